"""The evaluation log of a language model, and its answers as arrays."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import numpy as np

from calibrant._core.lazy import polars
from calibrant._core.text import shorten_list
from calibrant._core.types import InputError, check_arguments, prefix_errors
from calibrant.io.logs import LogOptions, LogRow, Outcome, read_logs, rows_to_contents
from calibrant.predictions import Predictions


@dataclass(frozen=True, repr=False)
class EvaluationLog:
    """A language model's answers to the questions of one or more tasks, read from evaluation logs.

    Each answer has one of three outcomes: answered with a confidence, answered without a confidence, not answered or
    not gradable. No missing confidence or score is filled in.
    """

    rows: tuple[LogRow, ...]
    notes: tuple[str, ...] = ()  # sentences on how the logs were read, and what is left out of the predictions
    model: str | None = None
    has_task_names: bool = True  # else a task is the name of a file

    @classmethod
    def read(
        cls,
        path: str | Path | Sequence[str | Path],
        *,
        task: str | Sequence[str] | None = None,
        filter: str | Sequence[str] | None = None,
        score: str | Sequence[str] | None = None,
        confidence: str | None = None,
        subject: str | None = None,
        percent: bool | None = None,
        words: str | Mapping[str, float] = "survey",
    ) -> "EvaluationLog":
        """Read logs of lm-evaluation-harness, Inspect or HELM, token log-probabilities, or JSON lines of your own.

        Args:
            path: `samples_*.jsonl`, `.eval`, `.json`, the run folder of HELM, or `.jsonl` with one answer per line; a
                folder or pattern with logs of one model; or a list of files. If several files hold the same task, their
                answers to a question count as repeats.
            task: Tasks to keep.
            filter: Filter of lm-evaluation-harness, which scores the same responses in several ways.
            score: What grades the answers: the metric of lm-evaluation-harness, the scorer of Inspect (or SCORER/KEY),
                the statistic of HELM, or a field. For multiple choice in lm-evaluation-harness, "acc", "acc_norm",
                "acc_bytes" or "acc_mutual_info" tells which log-likelihoods are compared: as they are, per character,
                per byte, or less those of the choices alone. Of several names, each log takes the first that it has.
            confidence: Where confidences are from: a field of the log; "stated", what the response states, such as
                "Confidence: 85%"; "tokens", the probability of all tokens of the response; "mean_token", their
                geometric mean; "choices", the share of the choice that it names, such as B, in the probability of all
                choices among the most likely tokens. Default: log-likelihoods of choices, HELM's `max_prob`, or the
                field "confidence".
            subject: Key of a question's data that names its subject. Default: the task if there are several, else
                `subject` or `category`.
            percent: Whether plain numbers, such as 85, are percentages. By default numbers above 1 are refused.
            words: Probabilities of words such as "likely": the name of a table or a mapping; see `parse_confidence`.

        Raises:
            InputError: If the logs have several filters, scores or other options and no argument picks one (the code
                is "several_filters", "several_scores" and so on), or a log cannot be read.
        """
        options = LogOptions(_to_names(task), _to_names(filter), _to_names(score), confidence, subject, percent, words)
        with prefix_errors(str(path) if isinstance(path, str | Path) else "logs"):
            return cls(*read_logs(path, options))

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        tasks = shorten_list(self.tasks)
        return f"EvaluationLog({len(self):,} answers, {self.num_questions:,} questions, tasks {tasks})"

    @property
    def tasks(self) -> tuple[str, ...]:
        """Names of the tasks."""
        return tuple(dict.fromkeys(row.task for row in self.rows))

    @property
    def num_questions(self) -> int:
        """Number of distinct questions."""
        return len({(row.task, row.question) for row in self.rows})

    @property
    def outcomes(self) -> dict[Outcome, int]:
        """Number of answers with each outcome."""
        counts = Counter(row.outcome for row in self.rows)
        return {outcome: counts[outcome] for outcome in Outcome}

    @cached_property
    def predictions(self) -> Predictions:
        """The answers with a confidence: questions are clusters, subjects are groups.

        Log-likelihoods of choices are logits, with -inf after the last choice of a question. Other confidences become
        predictions as by `Predictions.from_confidence`, with fractional scores as partial credit.

        Raises:
            InputError: If no answer has a confidence ("no_confidence").
        """
        return rows_to_contents(self.rows, self.notes).to_predictions()

    @check_arguments
    def accuracy(self, average: Literal["micro", "macro"] = "micro") -> float:
        """Return the mean score of graded answers, in which a question counts once, with the mean of its repeats.

        Args:
            average: "micro", the mean over questions; "macro", the mean over the means of tasks.

        Raises:
            InputError: If no answer is graded.
        """
        scores: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))  # by task and question
        for row in self.rows:
            if row.correct is not None:
                scores[row.task][row.question].append(row.correct)
        if not scores:
            raise InputError("Expected graded answers, got none.", code="no_score")
        question_means = [[fmean(values) for values in questions.values()] for questions in scores.values()]  # by task
        return fmean(map(fmean, question_means)) if average == "macro" else fmean(chain(*question_means))

    def to_frame(self) -> Any:
        """Return a polars frame with a row per answer."""
        names = ("task", "question", "epoch", "subject", "outcome", "correct", "confidence", "label", "reason")
        columns = {name: [getattr(row, name) for row in self.rows] for name in names}
        return polars.DataFrame(columns | {"outcome": [row.outcome.value for row in self.rows]})


def _to_names(names: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return one name or several as a tuple, empty for None."""
    return (names,) if isinstance(names, str) else tuple(names or ())


# Answers as arrays


@dataclass(frozen=True, eq=False)
class Answers:
    """The answers in a log as arrays, in the order of its rows. NaN stands for a missing score or confidence."""

    question: np.ndarray  # (n) int64, index of `question_names`
    question_names: tuple[tuple[str, str], ...]  # task and id, sorted
    correct: np.ndarray  # (n) float64, score in [0, 1]
    confidence: np.ndarray  # (n) float64
    is_answered: np.ndarray  # (n) bool
    subject: tuple[str | None, ...]  # of the question, None without one

    @classmethod
    def from_rows(cls, rows: Iterable[LogRow]) -> "Answers":
        """Return the rows of a log as arrays."""
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
        """Whether each answer was given, with a confidence and a score, (n) bool."""
        return ~np.isnan(self.confidence) & self.is_answered & self.is_graded

    @property
    def lacks_only_grade(self) -> np.ndarray:
        """Whether each answer has a confidence but no score, (n) bool."""
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
