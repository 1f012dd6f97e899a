"""What a campaign of bad inputs counts."""

from dataclasses import astuple, dataclass, fields


@dataclass(frozen=True)
class Counts:
    """How many inputs were tried, and what became of them; the last three must be 0."""

    tried: int = 0
    refused: int = 0  # with one line
    recovered: int = 0  # worked all the same
    silent: int = 0  # a wrong answer, and no word
    traceback: int = 0
    stuck: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def __str__(self) -> str:
        return ", ".join(f"{f.name} {getattr(self, f.name)}" for f in fields(self))
