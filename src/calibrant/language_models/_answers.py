"""The answers of a log as arrays."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from calibrant.io.logs import LogRow, Outcome
from calibrant.types import InputError


@dataclass(frozen=True, eq=False)
class Answers:
    """The answers in a log, in the order of its rows. NaN stands for a missing score or confidence."""

    question: np.ndarray  # (n) int64, index of `question_names`
    question_names: tuple[tuple[str, str], ...]  # task and id, sorted
    correct: np.ndarray  # (n) float64
    confidence: np.ndarray  # (n) float64
    is_answered: np.ndarray  # (n) bool
    subject: tuple[str | None, ...]

    @classmethod
    def from_rows(cls, rows: Iterable[LogRow]) -> "Answers":
        """Read the rows of a log."""
        rows = tuple(rows)
        names = tuple(sorted({(row.task, row.question) for row in rows}))
        index = {name: i for i, name in enumerate(names)}
        return cls(
            question=np.array([index[row.task, row.question] for row in rows], dtype=np.int64),
            question_names=names,
            correct=np.array([row.correct for row in rows], dtype=np.float64),  # converts None to NaN
            confidence=np.array([row.confidence for row in rows], dtype=np.float64),
            is_answered=np.array([row.outcome is not Outcome.NOT_ANSWERED for row in rows], dtype=bool),
            subject=tuple(row.subject for row in rows),
        )

    def __len__(self) -> int:
        return len(self.question)

    def __getitem__(self, rows: np.ndarray) -> "Answers":
        """Select rows by mask or indices. Questions keep their indices."""
        names = ("question", "correct", "confidence", "is_answered")
        arrays: dict[str, Any] = {name: getattr(self, name)[rows] for name in names}
        return replace(self, **arrays, subject=tuple(np.array(self.subject, dtype=object)[rows]))

    @property
    def is_graded(self) -> np.ndarray:
        """Whether each answer has a score."""
        return ~np.isnan(self.correct)

    @property
    def has_confidence(self) -> np.ndarray:
        """Whether each answer was given with a confidence, and graded."""
        return ~np.isnan(self.confidence) & self.is_answered & self.is_graded

    @property
    def lacks_only_grade(self) -> np.ndarray:
        """Whether each answer has a confidence and only lacks a score."""
        return ~np.isnan(self.confidence) & ~self.is_graded

    @property
    def is_binary(self) -> bool:
        """Whether every answer has the score 0 or 1."""
        return bool(np.isin(self.correct, (0.0, 1.0)).all())

    @property
    def question_weights(self) -> np.ndarray:
        """Weights (n) that make every question count once: one over its number of rows."""
        return 1 / np.bincount(self.question)[self.question]


def check_binary(correct: np.ndarray) -> None:
    """Raise `InputError` if a score is neither 0 nor 1."""
    fractions = correct[(correct != 0) & (correct != 1)]
    if len(fractions):
        raise InputError(
            f"Expected scores 0 or 1, got {fractions[0]:g}, and {len(fractions):,} fractional scores in all. Try "
            "another score.",
            code="fractional_correct",
        )
