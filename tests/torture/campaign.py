"""Count the outcomes of a campaign of damage."""

from dataclasses import astuple, dataclass, fields


@dataclass(frozen=True)
class Counts:
    """Outcomes of trials: refused in one line, recovered without a trace, or one of three failures.

    >>> Counts(tried=2, refused=1, recovered=1) + Counts(tried=1, silent=1)
    Counts(tried=3, refused=1, recovered=1, silent=1, traceback=0, stuck=0, missed=0)
    """

    tried: int = 0
    refused: int = 0  # with one line, and with nothing else changed
    recovered: int = 0  # to the same result
    silent: int = 0  # another result without a message
    traceback: int = 0
    stuck: int = 0  # forever, or until somebody deletes a file
    missed: int = 0  # not tried, because the process had ended

    def __add__(self, counts: "Counts") -> "Counts":
        return Counts(*(a + b for a, b in zip(astuple(self), astuple(counts), strict=True)))

    @property
    def has_no_failures(self) -> bool:
        """Whether there were trials, and no failures."""
        return self.tried > 0 and self.silent == self.traceback == self.stuck == 0

    def line(self, name: str) -> str:
        """Return a row of a table, with missed trials beside the name.

        >>> Counts(tried=3, refused=3).line("bit flips")
        '| bit flips | 3 | 3 | 0 | 0 | 0 | 0 |'
        """
        name += f" ({self.missed} more had ended before)" if self.missed else ""
        return f"| {name} | {' | '.join(f'{count:,}' for count in astuple(self)[:-1])} |"

    @staticmethod
    def head() -> str:
        """Return the header of the table."""
        names = [field.name for field in fields(Counts)[:-1]]
        return f"| | {' | '.join(names)} |\n|---|{'---:|' * len(names)}"
