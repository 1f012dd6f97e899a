"""What a campaign of abuse comes to."""

from dataclasses import astuple, dataclass


@dataclass(frozen=True)
class Counts:
    """How often something was tried, and how it ended; the last three must be 0."""

    tried: int = 0
    refused: int = 0  # with one clear line
    recovered: int = 0  # or harmless: the result was the right one
    silent: int = 0  # another result, without a word
    traceback: int = 0
    stuck: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def __str__(self) -> str:
        return ", ".join(f"{name} {value:,}" for name, value in vars(self).items())
