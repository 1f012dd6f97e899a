"""The omnibus test of calibration: Kuiper's test, and a smooth test of errors whose sign changes."""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from calibrant._core.kernels.bins import EventStatistics, GroupedScores
from calibrant.metrics._cumulative import kuiper
from calibrant.metrics._intervals import MIN_DIVISOR, Evidence
from calibrant.metrics._metric import metric
from calibrant.metrics._null import MIN_EVENT_VARIANCE, NullResiduals

__all__ = ["omnibus"]

MISCALIBRATION_P_VALUE = 0.05  # of the omnibus test; below it, predictions are called miscalibrated
KUIPER_WEIGHT = 0.8  # share of the level that Kuiper's test gets; the smooth test gets the rest
NUM_COSINES = 32
HALF_WEIGHT = 8  # index of the cosine whose weight is 1/2
NUM_VARIANCE_SLOTS = 64  # groups of neighboring confidences with nearly equal variance


def _omnibus_test(events: EventStatistics) -> Evidence:
    """Combine Kuiper's and the smooth test, as described at `omnibus`."""
    by_score, evidence = events.by_score, kuiper.test(events)
    form, residual = SmoothForm.from_scores(by_score)
    p_value = evidence.p_value
    if form.has_contrasts:
        if by_score.clusters is None and form.variance.sum() >= MIN_EVENT_VARIANCE:
            smooth = form.gamma_tail(float(form.statistic(residual)))
        else:
            smooth = _simulated_p_value(NullResiduals.shared(by_score))
        p_value = min(1.0, p_value / KUIPER_WEIGHT, smooth / (1 - KUIPER_WEIGHT))
    return Evidence(max(evidence.statistic, form.error(residual)), p_value)


def _simulated_p_value(null: NullResiduals) -> float:
    """Return the p-value of the smooth test among simulated calibrated models."""
    form = SmoothForm(null.value, null.total_weight, null.dispersion)
    return null.p_value(form.statistic)


@metric(
    "omnibus error",
    unit="share",
    meaning="Kuiper error, or one of alternating sign if that is larger; its p-value decides the verdict",
    term="omnibus",
    is_calibration_error=True,
    test=_omnibus_test,
)
def omnibus(events: EventStatistics) -> float:
    r"""Return Kuiper's error or the smooth error, whichever is larger; its test detects errors of any form.

    The smooth error, $\sqrt{\sum_j w_j C_j^2 / \sum_j w_j}$, is the weighted root mean square of 32 Fourier
    coefficients $C_j = \frac{\sqrt2}{n} \sum_i (a_i - c_i) \cos(\pi j t_i)$ of correctness a and confidence c, with
    $w_j = 1 / (1 + (j / 8)^2)$. The position $t_i$ is the share of the variance $V = \sum_i c_i (1 - c_i)$ at lower
    confidences. Examples of equal confidence have the mean of a cosine over the positions that they occupy.

    Kuiper's test has little power against errors whose sign alternates along the confidences, and a smooth test (Neyman
    1937; Eubank & LaRiccia 1992) less power against errors of one sign. The omnibus test combines both by a weighted
    Bonferroni rule, valid however they depend on each other: $p = \min(p_K / 0.8, p_S / 0.2)$. It decides the verdict
    of `calibrant.measure`.

    The statistic of the smooth test is the sum of $w_j C_j^2$ without the squares of single examples, whose mean is 0
    for a calibrated model. Its p-value is that of the gamma distribution with the same first three moments. With
    clusters, or if V is below 20, it is simulated as for `kuiper`. If there is only one confidence, Kuiper's test is
    the whole test.

    >>> omnibus(np.zeros((4, 2)), np.array([0, 0, 0, 1]))
    0.25
    >>> print(omnibus.test(np.zeros((100, 2)), np.array([0] * 60 + [1] * 40)))
    0.1000 (p = 0.068)
    """
    form, residual = SmoothForm.from_scores(events.by_score)
    return max(kuiper(events), form.error(residual))


@dataclass(frozen=True, eq=False)
class SmoothForm:
    r"""The quadratic form of the smooth error, $\sum_{g, h} A_{gh} R_g R_h$.

    $R_g$ is the sum of outcome minus confidence in slot g, and $A_{gh} = \sum_j w_j \phi_j(g) \phi_j(h) / \sum_j w_j$
    with the means $\phi_j(g)$ of the cosines $\sqrt2 \cos(\pi j t)$ over the slot.
    """

    value: np.ndarray  # (s) mean confidence of a slot
    weight: np.ndarray  # (s) its number of examples
    dispersion: float = 1.0  # as in `GroupedScores`

    @classmethod
    def from_scores(cls, by_score: GroupedScores) -> tuple["SmoothForm", np.ndarray]:
        """Return the form of at most 64 slots of nearly equal variance, and the residual of every slot, (s)."""
        running = by_score.cumulative_sums
        if len(by_score.value) > NUM_VARIANCE_SLOTS:
            inner = np.linspace(0, 1, NUM_VARIANCE_SLOTS + 1)[1:-1]
            ends = np.searchsorted(running[3], inner * running[3, -1])
            running = running[:, np.unique(np.concatenate([[0, len(by_score.value)], ends]))]
        weight, confidence, outcome, _ = np.diff(running)
        value = np.minimum(confidence / weight, 1.0)  # a mean of ones may round up
        return cls(value, weight, by_score.dispersion), outcome - confidence

    @cached_property
    def variance(self) -> np.ndarray:
        """Variance of the residual of every slot if every confidence is true, (s)."""
        return self.weight * self.value * (1 - self.value) * self.dispersion

    @property
    def has_contrasts(self) -> bool:
        """Whether at least two slots have uncertain outcomes."""
        return int((self.variance > 0).sum()) > 1

    @cached_property
    def matrix(self) -> np.ndarray:
        """The matrix A, (s s)."""
        j = np.arange(1, NUM_COSINES + 1)
        weight = 1 / (1 + (j / HALF_WEIGHT) ** 2)
        width = self.variance / max(self.variance.sum(), MIN_DIVISOR)
        middle = width.cumsum() - width / 2
        # the mean over a slot of the given width is the value in its middle times sin(x) / x, x = pi j width / 2
        cosines = math.sqrt(2) * np.cos(np.pi * j * middle[:, None]) * np.sinc(j * width[:, None] / 2)
        return cosines * (weight / weight.sum()) @ cosines.T

    def error(self, residual: np.ndarray) -> float:
        """Return the smooth error, 0 if all confidences are 0 or 1."""
        return math.sqrt(max(float(residual @ self.matrix @ residual), 0.0)) / float(self.weight.sum())

    def statistic(self, residual: np.ndarray) -> np.ndarray:
        """Return the form without the squares of single examples, for one or more rows of residuals (..., s)."""
        # Of an outcome a, (a - c)^2 = c (1 - c) + (1 - 2 c) (a - c). Residuals of fractional outcomes are smaller by
        # the square root of the dispersion, as in `NullResiduals`
        squares = self.variance + math.sqrt(self.dispersion) * (1 - 2 * self.value) * residual
        return np.asarray(((residual @ self.matrix) * residual).sum(-1) - squares @ self.matrix.diagonal())

    def null_moments(self) -> tuple[float, float]:
        """Return the variance and the third cumulant of `statistic` if every confidence is true; its mean is 0."""
        pairs = 1 - 1 / np.maximum(self.weight, 1)  # share of pairs of two different examples
        scaled = self.matrix * np.sqrt(self.variance[:, None] * self.variance)
        np.fill_diagonal(scaled, scaled.diagonal() * np.sqrt(pairs))
        cubed = self.matrix**3
        np.fill_diagonal(cubed, cubed.diagonal() * pairs)
        skewness = (1 - 2 * self.value) * self.variance  # third cumulant of the residual of each slot
        third = 8 * float((scaled @ scaled * scaled).sum()) + 4 * float(skewness @ cubed @ skewness)
        return 2 * float(np.square(scaled).sum()), third

    def gamma_tail(self, statistic: float) -> float:
        """Return the probability of a larger statistic, by the gamma distribution with its first three moments."""
        from scipy.special import gammaincc  # slow to import

        variance, third = self.null_moments()
        shape = 4 * variance**3 / third**2
        return float(gammaincc(shape, max(shape + statistic * math.sqrt(shape / variance), 0.0)))
