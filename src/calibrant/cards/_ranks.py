"""Ranks of models on the questions that they share, with intervals that hold for all models at once."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

NUM_MULTIPLIER_DRAWS = 4000
MAX_DRAWN_ELEMENTS = 20_000_000  # in memory at once
_MIN_VARIANCE = 1e-24  # of the difference of two models' scores; less is rounding


@dataclass(frozen=True)
class RankInterval:
    """A model's mean score and the ranks that it may have."""

    model: str
    score: float
    best: int  # smallest rank in the interval
    worst: int

    @property
    def ranks_text(self) -> str:
        """The interval of ranks, or the single rank in it."""
        return f"{self.best}" if self.best == self.worst else f"{self.best} to {self.worst}"


@dataclass(frozen=True)
class Ranking:
    """Models in the order of a score, with simultaneous intervals of their ranks."""

    title: str
    questions: int  # that all models answered
    level: float
    rows: tuple[RankInterval, ...]  # the best first


def rank_models(
    title: str, scores: Mapping[str, Mapping[tuple[str, str], float]], *, higher_is_better: bool, level: float
) -> Ranking | None:
    r"""Return the ranking of models by mean score per question, or None below two shared questions.

    A model ranks below every model that is significantly better. The paired differences of all pairs are tested
    together: the critical value is the quantile of $\max_{i<j} |Z_i - Z_j| / s_{ij}$ over draws in which the deviation
    of each question has a normal random weight (multiplier bootstrap; Mogstad et al. 2024).

    Args:
        title: Name of the score.
        scores: For each model, the score of each question.
        higher_is_better: Whether the best model has the highest score.
        level: Probability that all intervals hold.
    """
    names = list(scores)
    shared = sorted(set.intersection(*(set(scores[name]) for name in names)))
    if len(shared) < 2:
        return None
    x = np.array([[scores[name][question] for question in shared] for name in names])  # (models, questions)
    mean, sign = x.mean(1), 1.0 if higher_is_better else -1.0
    is_better = _significant_differences(sign * x, level)  # (i, j): i is better than j
    best_ranks = 1 + is_better.sum(0)  # after all models that are better
    worst_ranks = len(names) - is_better.sum(1)  # before all models that are worse
    order = sorted(range(len(names)), key=lambda i: (-sign * mean[i], names[i]))
    rows = [RankInterval(names[i], float(mean[i]), int(best_ranks[i]), int(worst_ranks[i])) for i in order]
    return Ranking(title, questions=len(shared), level=level, rows=tuple(rows))


def _significant_differences(x: np.ndarray, level: float) -> np.ndarray:
    """Return (i, j): whether model i has a significantly higher mean than model j, by a multiplier bootstrap.

    Args:
        x: Scores (models, questions).
        level: Probability that no difference is significant by chance.
    """
    num_models, n = x.shape
    mean = x.mean(1)
    deviations = x - mean[:, None]
    covariance = deviations @ deviations.T / (n - 1)
    variances = covariance.diagonal()
    difference_variance = variances[:, None] + variances - 2 * covariance  # Var(x_i - x_j)
    differs = difference_variance > _MIN_VARIANCE  # else the models have the same scores up to a constant
    error = np.sqrt(np.where(differs, difference_variance, 1.0) / n)  # standard errors; 1 avoids 0 / 0
    rng = np.random.default_rng(0)
    block = max(1, MAX_DRAWN_ELEMENTS // max(n, num_models**2))  # draws at a time
    max_differences: list[np.ndarray] = []  # of each draw, over all pairs, in standard errors
    for first in range(0, NUM_MULTIPLIER_DRAWS, block):
        num_draws = min(block, NUM_MULTIPLIER_DRAWS - first)
        z = rng.standard_normal((num_draws, n)) @ deviations.T / n  # (draws, models) deviations with random weights
        differences = np.abs(z[:, :, None] - z[:, None, :]) / error * differs
        max_differences.append(differences.max((1, 2)))
    critical_value = np.quantile(np.concatenate(max_differences), level)
    return differs & ((mean[:, None] - mean) / error > critical_value)


def question_means(questions: Sequence[tuple[str, str]], values: np.ndarray) -> dict[tuple[str, str], float]:
    """Return the mean of every question's values except NaN. Questions with only NaN are left out."""
    sums: dict[tuple[str, str], list[float]] = {}
    for question, value in zip(questions, values.tolist(), strict=True):
        if not math.isnan(value):
            sums.setdefault(question, []).append(value)
    return {question: sum(items) / len(items) for question, items in sums.items()}
