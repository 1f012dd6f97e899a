"""The threshold above which the error is certified to be small."""

import math
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np

from calibrant._core.kernels.bins import allow_rounding
from calibrant._core.numbers import format_percent
from calibrant._core.types import Allows, Alpha, OpenFraction, check_arguments
from calibrant.predictions import Predictions, as_predictions
from calibrant.predictions.events import BINARY_EVENTS, evaluated_event

# increasing, and fixed before the data are seen
GRID = (*(i / 100 for i in range(1, 100)), 0.992, 0.994, 0.996, 0.998, 0.999)
# Thresholds at which the search starts, with their shares of delta, which add up to 1. A start far above a threshold
# may have too few examples, and one far below it too many errors
MAIN_STARTS = (0.999, 0.99, 0.95, 0.85, 0.70)
FURTHER_STARTS = (
    *(0.98, 0.97, 0.96, 0.94, 0.93, 0.92, 0.90, 0.88, 0.86, 0.82),
    *(0.80, 0.78, 0.75, 0.72, 0.67, 0.64, 0.60, 0.55, 0.50, 0.40),
)
START_SHARES = {
    **dict.fromkeys(MAIN_STARTS, 0.5 / len(MAIN_STARTS)),
    **dict.fromkeys(FURTHER_STARTS, 0.5 / len(FURTHER_STARTS)),
}


@dataclass(frozen=True)
class CertifiedThreshold:
    """A confidence threshold, with its certificate and the counts of predictions and errors at or above it."""

    threshold: Annotated[float, Allows(math.inf)]  # inf if no threshold is certified
    risk: float
    delta: float
    n: int  # examples at or above it
    errors: int  # wrong ones among them
    share: float  # of all examples
    reason: str  # a sentence: what is certified, or why nothing is
    event: str | int | None = field(default=None, compare=False)  # None: the event of the predictions, as in old files

    @property
    def is_certified(self) -> bool:
        """Whether a threshold is certified."""
        return math.isfinite(self.threshold)

    def acts_on(self, predictions: Predictions) -> np.ndarray:
        """Return whether to act on each prediction (n), or to abstain, by the event of the certificate."""
        predictions = predictions if self.event is None else predictions.with_event(self.event)
        return predictions.events.confidence >= allow_rounding(self.threshold)

    def __str__(self) -> str:
        return self.reason


@check_arguments
def certify_threshold(
    predictions: Predictions, *, risk: OpenFraction = 0.05, delta: Alpha = 0.1, of: str | int | None = None
) -> CertifiedThreshold:
    r"""Return the lowest threshold above which the error is below `risk`, certified with probability 1 - `delta`.

    With probability at least 1 - delta over draws of the data, the share of wrong predictions among all future ones
    with at least this confidence is at most `risk`. The hypotheses "the error above t exceeds `risk`" are tested on a
    grid of thresholds that was fixed beforehand, by exact binomial p-values, from the highest threshold down (Learn
    then Test, Angelopoulos et al. 2021). The fallback procedure (Wiens 2003) gives a tenth of delta to each of the
    thresholds .999, .99, .95, .85 and .70, and a fortieth to each of 20 thresholds between and below them; the level of
    a rejected hypothesis passes to the next lower threshold.

    Args:
        predictions: Labeled predictions that were used neither to train nor to calibrate the model.
        risk: Largest share of errors among the predictions that are acted on.
        delta: Probability that the promise is broken.
        of: Event, by default that the predicted class is right: an error is an example for which it did not happen.

    Raises:
        InputError: If predictions have weights or clusters, which binomial p-values do not know, or risk is not
            in (0, 1), or delta not in (0, 0.5).

    >>> p = Predictions.from_confidence([0.99] * 200 + [0.6] * 100, [1] * 260 + [0] * 40)
    >>> print(certify_threshold(p))
    Predictions with a confidence of at least 0.61 are wrong in at most 5.00 %, certified with probability 90.00 %.
    """
    with as_predictions(predictions) as p:
        if of is not None:
            p = p.with_event(of)
        p.require_independent_rows("one row per cluster, without weights")
        n, errors = _counts_above(p)
        # a class is kept by its name, as other predictions may have the classes in another order
        names = None if p.class_names in BINARY_EVENTS else p.class_names
        event = names[p.of] if names is not None and isinstance(p.of, int) else p.of
    words = evaluated_event(p)
    failure = "wrong" if words.is_confidence else f"not {words.outcome}"
    grid = np.array(GRID[::-1])
    certified = _certified_thresholds(grid, n, errors, risk=risk, delta=delta).nonzero()[0]  # indices
    if not len(certified):
        reason = _refusal(len(p), n, errors, failure, risk=risk, delta=delta)
        return CertifiedThreshold(math.inf, risk, delta, n=0, errors=0, share=0.0, reason=reason, event=event)
    i = certified[-1]  # the lowest threshold
    reason = (
        f"Predictions with a {words.probability} of at least {grid[i]:g} are {failure} in at most "
        f"{format_percent(risk)}, certified with probability {format_percent(1 - delta)}."
    )
    share = float(n[i]) / len(p)
    return CertifiedThreshold(
        float(grid[i]), risk, delta, n=int(n[i]), errors=int(errors[i]), share=share, reason=reason, event=event
    )


def _counts_above(p: Predictions) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of examples and errors (t) with at least the confidence of each of the t thresholds in `GRID`.

    The highest threshold comes first.
    """
    by_score = p.events.by_score  # in increasing order, sorted once for all risks
    # Index of the first confidence that reaches each threshold, up to rounding, or the length if none does
    first = np.searchsorted(by_score.value, allow_rounding(np.array(GRID[::-1])))

    def totals_from_first(counts: np.ndarray) -> np.ndarray:
        """Return the sum of the counts at or above every threshold, or 0 if no confidence reaches it."""
        sums_from_index = np.append(np.flip(np.flip(counts, 0).cumsum(0), 0), 0.0)
        return np.round(sums_from_index[first]).astype(np.int64)

    n = totals_from_first(by_score.total_weight)
    return n, n - totals_from_first(by_score.correct)


def _certified_thresholds(
    grid: np.ndarray, n: np.ndarray, errors: np.ndarray, *, risk: float, delta: float
) -> np.ndarray:
    """Return at which thresholds of the grid the hypothesis "the error is above `risk`" is rejected (Wiens 2003).

    A threshold has the level that the one before it has passed on, and each start its share of delta more. It passes
    its level on if its hypothesis is rejected; otherwise that level is spent.

    Args:
        grid: Thresholds, the highest first (t).
        n: Number of examples at or above each threshold (t).
        errors: Number of errors among them (t).
        risk: Largest share of errors.
        delta: Probability that any rejection is wrong.
    """
    p_values = _p_values(n, errors, risk)
    level, is_rejected = 0.0, np.zeros(len(grid), dtype=bool)
    for i, threshold in enumerate(grid):
        level += delta * START_SHARES.get(float(threshold), 0.0)
        is_rejected[i] = p_values[i] <= level
        if not is_rejected[i]:
            level = 0.0
    return is_rejected


def _p_values(n: np.ndarray, errors: np.ndarray, risk: float) -> np.ndarray:
    """Return the probability of at most so many errors among n if their share is `risk`, or 1 without examples."""
    from scipy.special import bdtr  # slow to import

    return np.where(n > 0, bdtr(errors, np.maximum(n, 1), risk), 1.0)


def _refusal(
    n: int, num_above: np.ndarray, errors_above: np.ndarray, failure: str, *, risk: float, delta: float
) -> str:
    """Return a sentence on why no threshold is certified, given the counts of predictions and errors above each one.

    Above a threshold without errors, m predictions give the p-value (1 - risk)^m. The first threshold to be certified
    has the level of its start, as none before it has passed a level on.
    """
    needed = math.ceil(math.log(delta * max(START_SHARES.values())) / math.log1p(-risk))
    if n < needed:
        return (
            f"No threshold can be certified: {n:,} examples are too few for a risk of {format_percent(risk)}; "
            f"even without errors at least {needed:,} are needed."
        )
    if num_above.max() < needed:
        return (
            f"No threshold is certified: fewer than {needed:,} predictions lie above the lowest threshold, {GRID[0]}."
        )
    best = int(_p_values(num_above, errors_above, risk).argmin())
    return (
        f"No threshold is certified: at the best one, {GRID[::-1][best]:g}, {errors_above[best]:,} of "
        f"{num_above[best]:,} are {failure}, not clearly below {format_percent(risk)}. Try a larger risk, more "
        "examples, or a better model."
    )
