"""Cross-conformal prediction sets: calibrate and fit sets on the same examples, with a weaker guarantee."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from calibrant._core.arrays import like, namespace, to_numpy
from calibrant._core.lazy import LazyModule
from calibrant._core.types import Alpha, Array, NonNegativeFloat, NonNegativeInt, NumFolds, check_arguments
from calibrant.decisions._scores import RANK_PENALTY, SetScore, class_scores, label_scores
from calibrant.decisions._sets import (
    SCORE_TOLERANCE,
    PredictionSets,
    checked_logits,
)
from calibrant.predictions import Predictions, as_predictions
from calibrant.predictions.folds import split_folds

calibrators: Any = LazyModule("calibrant.calibrators")  # which takes long to load


@dataclass(frozen=True, eq=False)
class CrossSets(PredictionSets):
    """Cross-conformal prediction sets (Vovk 2015), with a calibrator that was fitted to each fold's complement.

    The set of an example holds every class whose score is not larger than nearly all scores of the fit, each compared
    under the calibrator that has not seen it. No data are set aside, but the guarantee is weaker than for `Sets`:
    see `guaranteed_coverage`. In practice coverage is near 1 - alpha.

    >>> p = Predictions(3 * np.tile(np.eye(3), (40, 1)), np.arange(120) % 3)
    >>> sets = CrossSets.fit_folds(p, "Temperature", alpha=0.1)
    >>> sets(p.logits[:1]), round(sets.guaranteed_coverage, 2)
    (array([[ True, False, False]]), 0.72)
    """

    maps: tuple[Any, ...]  # the calibrator that each fold is held out of
    scores: tuple[Float[Array, " _"], ...]  # scores of each fold's true classes, in increasing order, float64

    def __post_init__(self) -> None:
        """Convert the scores of a file, which are tensors."""
        object.__setattr__(self, "scores", tuple(map(to_numpy, self.scores)))

    @classmethod
    @check_arguments
    def fit_folds(
        cls,
        predictions: Predictions,
        calibrator: str = "Temperature",
        *,
        alpha: Alpha = 0.1,
        score: SetScore = "lac",
        penalty: NonNegativeFloat = RANK_PENALTY,
        folds: NumFolds = 10,
        seed: NonNegativeInt = 0,
    ) -> "CrossSets":
        """Fit to labeled predictions that the model was not trained on, as the network gives them.

        Args:
            predictions: Labeled predictions, independent of each other, without weights.
            calibrator: Name of the calibrator that is fitted to the complement of each fold.
            alpha: About the probability that a set misses the true class.
            score: See `Sets.fit`.
            penalty: Penalty per rank of "raps" and "saps".
            folds: Number of folds.
            seed: Seed of the folds and of randomized scores.

        Raises:
            InputError: If alpha is not in (0, 0.5), or predictions have weights or clusters.
        """
        with as_predictions(predictions) as p:
            p = p.double()  # as in `__call__`, so that scores of the fit and of new logits are rounded alike
            p.require_independent_rows("Sets.fit on other data than the calibrator's")
            maps, scores = list[Any](), list[np.ndarray]()
            for fitting, is_held_out in split_folds(p, folds, seed):
                fitted = calibrators.fit(calibrator, fitting)
                maps.append(fitted)
                scores.append(np.sort(label_scores(p[is_held_out].apply(fitted), score, penalty, seed)))
        return cls(
            alpha=alpha,
            score=score,
            penalty=penalty,
            seed=seed,
            maps=tuple(maps),
            scores=tuple(scores),
            class_names=p.class_names,
            k=p.k,
        )

    @property
    def n(self) -> int:
        """Number of examples of the fit."""
        return sum(map(len, self.scores))

    @property
    def guaranteed_coverage(self) -> float:
        r"""Smallest probability that a set contains the true class, over draws of the fit and of the example.

        $1 - 2 \alpha - \min(2 (1 - 1/K) / (n/K + 1), (1 - K/n) / (K + 1))$ for K folds (Barber et al. 2021, theorem 4).
        """
        n, folds = self.n, len(self.maps)
        loss = min(2 * (1 - 1 / folds) / (n / folds + 1), (1 - folds / n) / (folds + 1))
        return max(0.0, 1 - 2 * self.alpha - loss)

    def __call__(self, logits: Any) -> Array:
        """Return the sets (n, k), True for the classes in the set.

        The conformal p-value of a class is the share of the scores of the fit that are at least as large as its own,
        itself included. The set holds the classes with a p-value above alpha.

        Args:
            logits: Logits (n, k) as the network gives them.

        Raises:
            InputError: If the number of classes differs, a logit is NaN or infinite, or logits are probabilities.
        """
        z = checked_logits(logits, self.k)
        xp = namespace(z)
        z = xp.astype(z, xp.float64)
        # Number of scores at least as large as that of each class, itself included (n, k)
        num_at_least = xp.ones(z.shape, dtype=xp.int64, device=z.device)
        for fitted, scores in zip(self.maps, self.scores, strict=True):
            new_scores = class_scores(fitted(z), self.score, self.penalty, self.seed)
            num_below = xp.searchsorted(like(scores, z), xp.reshape(new_scores - SCORE_TOLERANCE, (-1,)))
            num_at_least += len(scores) - xp.reshape(num_below, z.shape)
        return num_at_least > self.alpha * (self.n + 1)

    def apply(self, predictions: Predictions) -> Array:
        """Return the sets (n, k) of predictions as the network gives them, with the classes in the order of the fit."""
        return self(predictions.reorder_classes(self.class_names).logits)

    @property
    def is_consistent(self) -> bool:
        """Whether the fields fit together, as in a file that is not damaged."""
        is_sorted = all(s.ndim == 1 and bool((np.diff(s) >= 0).all()) for s in self.scores)
        class_counts = {calibrators.num_classes(fitted) if callable(fitted) else None for fitted in self.maps}
        return is_sorted and len(self.maps) == len(self.scores) > 1 and class_counts <= {0, self.k}  # 0: any number
