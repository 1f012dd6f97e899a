"""What a campaign of damage counts: how often it was tried, and what came of it."""

from dataclasses import astuple, dataclass, fields


@dataclass(frozen=True)
class Counts:
    """Every trial is refused with one line, recovered from without a trace, or one of three that must not be.

    >>> Counts(tried=2, refused=1, recovered=1) + Counts(tried=1, silent=1)
    Counts(tried=3, refused=1, recovered=1, silent=1, traceback=0, stuck=0, missed=0)
    """

    tried: int = 0
    refused: int = 0  # with one line, and with nothing else changed
    recovered: int = 0  # to the very same result
    silent: int = 0  # another result, and not a word
    traceback: int = 0
    stuck: int = 0  # for ever, or until somebody deletes something by hand
    missed: int = 0  # not tried: who was to be struck had ended already

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    @property
    def good(self) -> bool:
        """Whether something was tried, and nothing came of it that must not."""
        return self.tried > 0 and self.silent == self.traceback == self.stuck == 0

    def line(self, name: str) -> str:
        """Say it in one line of a table; what was missed stands beside the name.

        >>> Counts(tried=3, refused=3).line("bit flips")
        '| bit flips | 3 | 3 | 0 | 0 | 0 | 0 |'
        """
        name += f" ({self.missed} more had ended before)" if self.missed else ""
        return f"| {name} | {' | '.join(f'{count:,}' for count in astuple(self)[:-1])} |"

    @staticmethod
    def head() -> str:
        """Return the head of such a table."""
        names = [field.name for field in fields(Counts)[:-1]]
        return f"| | {' | '.join(names)} |\n|---|{'---:|' * len(names)}"
