"""Fuse several signals of confidence, such as stated, token and judged ones, into one probability of being right.

Priors are learned from fusions, and fusions are fitted with priors. Therefore both are in this long file.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float

from calibrant import calibrators
from calibrant._core.kernels.logistic import sigmoid, sigmoid_and_softplus
from calibrant._core.kernels.solvers import newton
from calibrant._core.lazy import special
from calibrant._core.types import InputError, NonNegativeInt, OpenFraction, Size, check_arguments
from calibrant.calibrators.fields import FittedMap
from calibrant.language_models import _fusion_map
from calibrant.metrics import Evidence, Interval, Sample
from calibrant.predictions import Predictions
from calibrant.predictions.folds import split_folds
from calibrant.predictions.validation.columns import split_columns
from calibrant.predictions.validation.names import to_text

__all__ = ["Fusion", "FusionPrior"]

SIGNAL_PRECISION, GROUP_PRECISION, INTERCEPT_PRECISION = 3.0, 10.0, 1e-3  # of normal priors of the coefficients
OFF_DIAGONAL = 0.7  # factor of the off-diagonal covariances of a prior
MAX_POINTS = 513  # number of values of a signal at which its ranks are stored
MIN_VARIANCE = 1e-3  # smallest variance of a coefficient between models
UNUSED_PROBABILITY = 0.2  # prior probability that a signal does not inform as in the models of a prior
MAX_UNUSED = 2  # signals that do not inform at the same time
LEVEL_DEVIATION = 2.0  # standard deviation of the log-odds by which another accuracy moves the intercept
NUM_TRANSFER_DRAWS = 999
COVARIANCE_ROUNDING = 1e-6  # relative asymmetry and negative variance of a covariance
_NUM_FOLDS = 5
MODE_TOLERANCE = 5e-11  # nats by which the log posterior may lie below its maximum
_NUM_BISECTIONS = 25  # to a millionth of the log-odds

Points = Float[np.ndarray, "s m"]
Coefficients = Float[np.ndarray, " d"]
Covariance = Float[np.ndarray, "d d"]
CoefficientNames = Annotated[tuple[str, ...], Size("d")]
Scale = Literal["rank", "probability"]


class Departure(NamedTuple):
    """A way in which a new model may differ from the models of a prior."""

    name: str
    probability: float  # before any label
    factor: float  # of the prior's covariance; infinite: the fixed prior of a fusion without a learned one
    level_deviation: float = LEVEL_DEVIATION  # of the intercept, beside the prior's
    has_parts: bool = False  # whether parts without some of the signals count too


# Scales of variance 1, 3 and 10 standard deviations; more of them changes little
DEPARTURES = (
    Departure("none", 0.50, factor=1.0, level_deviation=0.0, has_parts=True),
    Departure("accuracy", 0.20, factor=1.0, has_parts=True),
    Departure("coefficients", 0.10, factor=9.0, level_deviation=0.0),
    Departure("accuracy and coefficients", 0.10, factor=9.0),
    Departure("far", 0.05, factor=100.0),
    Departure("own labels only", 0.05, factor=math.inf),
)


@dataclass(frozen=True, eq=False)
class FusionPrior(FittedMap):
    """Normal prior for the coefficients of a new model's fusion, learned from fusions of other models.

    `Fusion.fit(..., prior=prior)` updates the prior by the labels of the new model. On the scale of ranks, it needs
    hundreds of labels. The scale of probabilities is the same for all models, so that 0 to 200 labels are enough.

    A signal that informs in the models of the prior may not inform in a new one. On the scale of probabilities, `parts`
    are the priors that do without one or two of the signals; the labels decide how much each counts. Hundreds of labels
    need no parts.

    A new model may also be unlike the models of the prior: in its accuracy, in how much its signals say, or altogether.
    `DEPARTURES` are such models, up to a fusion of the own labels alone, and the labels decide how much each counts. A
    prior that the labels contradict thus loses its weight, which is `Fusion.prior_weight`.
    """

    names: tuple[str, ...]
    mean: np.ndarray  # (d)
    covariance: np.ndarray  # (d d)
    scale: Scale = "rank"
    signals: tuple[str, ...] = ()
    parts: tuple["FusionPrior", ...] = ()

    @classmethod
    def from_fits(cls, fits: "Sequence[Fusion]") -> "FusionPrior":
        """Learn a prior from fusions of the same signals for at least three other models.

        The mean is that of the fitted coefficients. The covariance is their covariance between models minus the mean
        of their sampling covariances, with off-diagonal elements shrunk by 30 % (empirical Bayes). Coefficients that
        some model lacks are left out. On the scale of probabilities, a part is learned in the same way for each signal,
        and each pair of signals, from the posteriors of the fusions given that their coefficients are 0.

        Raises:
            InputError: If there are fewer than three fusions, or anything else, or they have no coefficient in common
                or different scales.
        """
        entries: list[Any] = list(fits) if isinstance(fits, Iterable) else [fits]  # pyright: ignore
        if wrong_types := [type(entry).__name__ for entry in entries if not isinstance(entry, Fusion)]:
            raise InputError(
                f"Expected a fusion of each other model, got {wrong_types[0]}. Try a list of results of Fusion.fit.",
                code="not_a_fusion",
            )
        fits = entries
        if len(fits) < 3:
            raise InputError(f"Expected fusions of at least 3 models, got {len(fits)}.", code="few_models")
        if len({fit.scale for fit in fits}) > 1:
            raise InputError("Expected fusions on one scale, got both. Try scale='probability' for all.", code="scale")
        shared = [name for name in fits[0].names if all(name in fit.names for fit in fits[1:])]
        if not shared:
            raise InputError("Expected fusions with the same signals, got none in common.", code="signals")
        signals, scale = fits[0].signals, fits[0].scale
        max_unused = min(MAX_UNUSED, len(signals) - 1) if scale == "probability" else 0  # one signal is always left
        # Sets of signals to do without; the first one, which is empty, gives the prior itself
        unused_sets = [unused for size in range(max_unused + 1) for unused in combinations(signals, size)]
        prior, *parts = (
            cls(*_moments_between(fits, shared, unused), scale, tuple(name for name in signals if name not in unused))
            for unused in unused_sets
        )
        return replace(prior, parts=tuple(parts))

    @check_arguments
    def test(self, signals: Any, correct: Any, *, groups: Any = None, seed: NonNegativeInt = 0) -> Evidence:
        """Test whether labels of a new model follow the order in which the prior expects right answers.

        The statistic is the correlation of the labels with the log-odds at the prior's mean. The p-value is the share
        of simulated models whose correlation is no higher, with coefficients and labels drawn from the prior (a prior
        predictive check, Box 1980). A small p-value means that the labels contradict the prior. The intercept of each
        simulated model is such that it expects as many right answers as observed, because an accuracy that differs from
        the prior's is no evidence against their order. If all labels are equal, there is no order to test: the p-value
        is 1.

        Args:
            signals: As for `Fusion.fit`.
            correct: Whether each answer is right (n).
            groups: As for `Fusion.fit`.
            seed: Seed of the draws.

        Raises:
            InputError: As for `Fusion.fit`.
        """
        y = _read_outcomes(correct)
        unfitted, x = _regression(_read_signals(signals, len(y)), y, _read_groups(groups, len(y)), self, None)
        return _transfer_evidence(x, y, *_prior_moments(unfitted.names, self), seed)


@dataclass(frozen=True, eq=False)
class Fusion(FittedMap):
    r"""A penalized logistic regression of being right on several signals of confidence.

    On the scale of ranks, each signal enters by the normal score r of its rank, by $\max(r - 0.7, 0)$ and by
    $\max(-r - 0.7, 0)$, and each pair of signals by its product. On the scale of probabilities, each enters by
    $\log p$ and $-\log(1 - p)$, as in beta calibration (Kull et al. 2017), so that its coefficients are comparable
    between models. Two indicators of each signal mark values of 0 and missing values. Groups have effects that are
    shrunk toward 0. The coefficients have normal priors with fixed precisions, or with mean and covariance learned from
    other models (`FusionPrior`). Probabilities are averaged over the posterior of the coefficients (approximations of
    Laplace and MacKay), which keeps them moderate where few labels determine them.

    >>> rng = np.random.default_rng(0)
    >>> stated, tokens = rng.random((2, 400))
    >>> correct = rng.random(400) < (stated + tokens) / 2
    >>> fused = Fusion.fit({"stated": stated, "tokens": tokens}, correct)
    >>> p = fused.apply({"stated": [0.9, 0.1], "tokens": [0.9, 0.1]})
    >>> bool(p[0] > p[1])
    True
    """

    signals: tuple[str, ...]
    points: Points  # (s m) increasing values of each signal; empty on the scale of probabilities
    scores: Points  # (s m) normal scores of the ranks of these values
    groups: tuple[str, ...]
    names: CoefficientNames  # (d)
    coefficients: Coefficients  # (d) posterior mode
    covariance: Covariance  # (d d) of the posterior
    worth: tuple[tuple[str, Interval], ...] = ()  # out-of-fold log-likelihood that each signal adds, nats per example
    scale: Scale = "rank"
    prior_weight: float = math.nan  # posterior probability of no departure from the prior; NaN without a prior

    @classmethod
    @check_arguments
    def fit(
        cls,
        signals: Any,
        correct: Any,
        *,
        groups: Any = None,
        prior: FusionPrior | None = None,
        scale: Scale | None = None,
        worth: bool = False,
        level: OpenFraction = 0.90,
        seed: NonNegativeInt = 0,
    ) -> "Fusion":
        """Fit the regression to answers that are labeled as right or wrong.

        Args:
            signals: One column of numbers per signal: a mapping, a data frame, or an array (n, s). NaN is missing.
            correct: Whether each answer is right (n), 0 or 1. With a prior on the scale of probabilities, n may be 0.
            groups: Group of each answer (n), such as its category.
            prior: Prior from other models. Coefficients that it does not name have the fixed prior.
            scale: "rank", for signals of any range and hundreds of labels, or "probability", for signals in [0, 1] and
                priors of a new model with few labels. Default: that of the prior, or "rank" without a prior.
            worth: Whether to compute the log-likelihood that each signal adds, by five-fold cross-fitting with and
                without it.
            level: Level of the intervals of the worth.
            seed: Seed of the folds.

        Raises:
            InputError: If lengths differ, answers are not 0 or 1, the prior is of another type, signals on the scale of
                probabilities leave [0, 1], or a signal has the name of a coefficient, such as "intercept".
        """
        if not isinstance(prior, FusionPrior | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InputError(
                f"Expected a FusionPrior as prior, got {type(prior).__name__}. Try FusionPrior.from_fits with the "
                "fusions of at least 3 other models.",
                code="not_a_prior",
            )
        y = _read_outcomes(correct)
        columns, group_column = _read_signals(signals, len(y)), _read_groups(groups, len(y))
        unfitted, x = _regression(columns, y, group_column, prior, scale)
        fitted = _fit_coefficients(unfitted, x, y, prior)
        if not worth:
            return fitted
        gains = _signal_gains(columns, y, group_column, prior, fitted.scale, seed)
        intervals = [(name, Sample.from_values(gain, None, None).normal_interval(level)) for name, gain in gains]
        return replace(fitted, worth=tuple(intervals))

    def apply(self, signals: Any, groups: Any = None) -> np.ndarray:
        """Return the probability that each answer is right (n) float64.

        Args:
            signals: The signals of the fit, by name or in their order.
            groups: Group of each answer (n). Groups that the fit did not see have an effect of 0.

        Raises:
            InputError: If a signal is missing.
        """
        columns = _read_signals(signals, None, self.signals)
        if lacking := [name for name in self.signals if name not in columns]:
            raise InputError(f"Expected the signals {', '.join(self.signals)}, got no {lacking[0]!r}.", code="signals")
        columns = _check_scale({name: columns[name] for name in self.signals}, self.scale)
        n = len(next(iter(columns.values())))
        return _fusion_map.probability(columns, _read_groups(groups, n), self.learned)

    def predictions(self, signals: Any, correct: Any, groups: Any = None, **options: Any) -> Predictions:
        """Return the probabilities with the labels as `Predictions`, for `measure` and every other function.

        Args:
            signals: As for `apply`.
            correct: Whether each answer is right (n).
            groups: As for `apply`.
            **options: As for `Predictions.from_confidence`.
        """
        return Predictions.from_confidence(self.apply(signals, groups), correct, **options)

    def save(self, path: str | Path) -> None:
        """Write to a .safetensors file."""
        calibrators.save(self, path)

    @classmethod
    def load(cls, path: str | Path) -> "Fusion":
        """Read what `save` wrote.

        Raises:
            InputError: If the file does not hold a fusion, or is damaged.
        """
        return calibrators.load_instance(path, cls, [Interval])

    @property
    def is_consistent(self) -> bool:
        """Whether the fields fit together, as in a file that is not damaged."""
        names, _ = self.design({name: np.array([0.5]) for name in self.signals}, None)
        is_increasing = bool((np.diff(self.points) >= 0).all())
        asymmetry, largest = np.abs(self.covariance - self.covariance.T).max(), np.abs(self.covariance).max()
        variances = np.linalg.eigvalsh(self.covariance)  # also those of all sums of coefficients
        is_covariance = bool(
            asymmetry <= COVARIANCE_ROUNDING * largest and variances.min() >= -COVARIANCE_ROUNDING * largest
        )
        return bool(self.signals) and names == self.names and is_increasing and is_covariance

    def design(
        self, columns: Mapping[str, np.ndarray], groups: Sequence[str] | None
    ) -> tuple[tuple[str, ...], np.ndarray]:
        """Return the names of the coefficients (d), and the matrix of the regression (n d) for signals and groups (n).

        Raises:
            InputError: If signals on the scale of probabilities leave [0, 1], or their names are those of coefficients.
        """
        parts = _fusion_map.variables(_check_scale(columns, self.scale), groups, self.learned)
        names, arrays = zip(*parts, strict=True)
        # Names that start with "group " are those of groups, also in a prior
        if ambiguous := [x for x in names if names.count(x) > 1 or (x in self.signals and x.startswith("group "))]:
            raise InputError(
                f"Expected signals without the names of other coefficients, got {ambiguous[0]!r}. Try another name for "
                "the signal.",
                code="signal_name",
            )
        return names, np.stack(arrays, 1)

    @property
    def learned(self) -> dict[str, Any]:
        """Names and numbers that determine the probabilities, as arrays and texts."""
        arrays = {name: getattr(self, name) for name in ("points", "scores", "coefficients", "covariance")}
        return {"signals": self.signals, "scale": self.scale, "groups": self.groups} | arrays


def _check_scale(columns: Mapping[str, np.ndarray], scale: Scale) -> Mapping[str, np.ndarray]:
    """Return the signals. Raises `InputError` if they do not have the scale."""
    for name, x in columns.items() if scale == "probability" else ():
        if ((x < 0) | (x > 1)).any():
            raise InputError(
                f"Expected the signal {name!r} in [0, 1], got {np.nan_to_num(x).min():.4g} to "
                f"{np.nan_to_num(x).max():.4g}. Try scale='rank'.",
                code="signal_range",
            )
    return columns


def _regression(
    columns: Mapping[str, np.ndarray],
    y: np.ndarray,
    groups: Sequence[str] | None,
    prior: FusionPrior | None,
    scale: Scale | None,
) -> tuple[Fusion, np.ndarray]:
    """Return the fusion without coefficients, and the design matrix of its regression, (n d).

    Args:
        columns: Signals by name, each (n).
        y: Outcomes 0 or 1 (n).
        groups: Group of each answer (n), or None.
        prior: Prior from other models, or None.
        scale: Scale of the signals, or None for that of the prior, or ranks without a prior.
    """
    scale = scale or ("rank" if prior is None else prior.scale)
    if prior is not None and scale != prior.scale:
        raise InputError(f"Expected the prior's scale {prior.scale!r}, got {scale!r}.", code="scale")
    has_known_scale = prior is not None and scale == "probability"  # ranks are taken among labeled answers
    if len(y) == 0 and not has_known_scale:
        raise InputError("Expected labels, got none. Try a prior on the scale of probabilities.", code="correct_range")
    prior_groups = [name.removeprefix("group ") for name in (prior.names if prior else ()) if name.startswith("group ")]
    # Groups of the prior have coefficients even if no labeled answer belongs to them
    group_names = tuple(dict.fromkeys([*prior_groups, *(groups or ())]))
    if scale == "rank":
        points, scores = (np.stack(parts) for parts in zip(*map(_rank_scores, columns.values()), strict=True))
    else:
        points = scores = np.empty((0, 0))
    unfitted = Fusion(
        signals=tuple(columns),
        points=points,
        scores=scores,
        groups=group_names,
        names=(),  # of the coefficients, set below from the design
        coefficients=np.empty(0),
        covariance=np.empty((0, 0)),
        scale=scale,
    )
    names, x = unfitted.design(columns, groups)
    return replace(unfitted, names=names), x


def _read_outcomes(correct: Any) -> np.ndarray:
    """Return outcomes 0 or 1 (n) in float64. Raises `InputError` for anything else."""
    try:
        y = np.array(correct, dtype=np.float64)
    except (TypeError, ValueError):
        y = np.array([np.nan])  # which the check refuses
    if y.ndim != 1 or not ((y == 0) | (y == 1)).all():
        raise InputError("Expected whether each answer is right (n), 0 or 1, got other values.", code="correct_range")
    return y


def _read_signals(signals: Any, n: int | None, names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
    """Return columns of numbers by name. The columns of an array take `names` in order."""
    columns = split_columns(signals, names)
    lengths = {column.shape for column in columns.values()}
    if len(lengths) != 1 or len(next(iter(lengths))) != 1 or (n is not None and lengths != {(n,)}):
        raise InputError(
            f"Expected signals of one length{'' if n is None else f', {n:,}'}, got {lengths}.", code="shape"
        )
    try:
        return {name: column.astype(np.float64) for name, column in columns.items()}
    except (TypeError, ValueError):
        raise InputError("Expected numbers as signals, NaN where missing, got other values.", code="signals") from None


def _read_groups(groups: Any, n: int) -> list[str] | None:
    """Return the group of each answer as text, or None without groups. Raises `InputError` for another length."""
    if groups is None:
        return None
    values = groups.to_list() if hasattr(groups, "to_list") else np.atleast_1d(groups).tolist()
    names = [to_text(group) for group in values]
    if len(names) != n or any(np.ndim(group) for group in values):
        raise InputError(f"Expected a group for each of {n:,} answers, got {len(names):,}.", code="shape")
    return names


def _rank_scores(column: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return `MAX_POINTS` values of a signal in increasing order, some of them repeated, and their normal scores.

    The normal score of a value is the quantile of the normal distribution at its mean rank, as a share of all ranks.
    """
    values, counts = np.unique(column[~np.isnan(column)], return_counts=True)
    if not len(values):  # a signal that is always missing: any value has the score 0
        values, counts = np.zeros(1), np.ones(1)
    end = counts.cumsum()
    scores = special.ndtri((end - counts / 2) / end[-1])
    position = np.linspace(0, len(values) - 1, MAX_POINTS).round().astype(np.int64)
    return values[position], scores[position]


def _prior_moments(
    names: Sequence[str], prior: FusionPrior | None, departure: Departure = DEPARTURES[0]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean (d) and the precision (d d) of the normal prior of the coefficients of a model.

    Coefficients that the learned prior does not name have the mean 0 and a fixed precision. The departure of the model
    scales the covariance of the learned prior, and adds to the variance of the intercept.
    """
    fixed_precisions = [GROUP_PRECISION if name.startswith("group ") else SIGNAL_PRECISION for name in names]
    mean, precision = np.zeros(len(names)), np.diag(fixed_precisions)
    intercept = list(names).index("intercept") if "intercept" in names else None
    if intercept is not None:  # a nearly flat prior would have no evidence beside others, however far these are
        is_alone = prior is None or departure.level_deviation == 0
        precision[intercept, intercept] = INTERCEPT_PRECISION if is_alone else departure.level_deviation**-2
    if prior is not None and math.isfinite(departure.factor):
        pairs = [(i, prior.names.index(name)) for i, name in enumerate(names) if name in prior.names]
        rows, prior_rows = (np.array(indices) for indices in zip(*pairs, strict=True))
        covariance = departure.factor * prior.covariance[prior_rows][:, prior_rows]
        covariance[rows == intercept, rows == intercept] += departure.level_deviation**2
        mean[rows] = prior.mean[prior_rows]
        precision[rows] = 0.0  # replaces the fixed precisions of these coefficients
        precision[rows[:, None], rows] = np.linalg.inv(covariance)
    return mean, precision


def _moments_between(
    fits: Sequence[Fusion], shared: Sequence[str], unused: Sequence[str]
) -> tuple[tuple[str, ...], np.ndarray, np.ndarray]:
    """Return the names, mean (d) and covariance (d d) of coefficients across models, without `unused` signals.

    The covariance is that of the posterior means of the models, less the mean of their posterior covariances, which is
    due to sampling. Off-diagonal elements are shrunk, and eigenvalues raised to a minimum.

    Args:
        fits: Fusions of the models.
        shared: Names of the coefficients that all models have.
        unused: Signals whose coefficients are 0.
    """
    absent = {name for signal in unused for name in _coefficient_names(signal, fits[0].signals)}
    names = tuple(name for name in shared if name not in absent)
    posteriors = [_posterior_without(fit, names, absent) for fit in fits]
    coefficients = np.stack([mean for mean, _ in posteriors])
    sampling = np.mean([covariance for _, covariance in posteriors], axis=0)
    between = np.cov(coefficients.T).reshape(len(names), len(names)) - sampling  # reshape: (d d) also for d = 1
    between = OFF_DIAGONAL * between + (1 - OFF_DIAGONAL) * np.diag(between.diagonal())
    values, vectors = np.linalg.eigh(between)  # a difference may have negative eigenvalues
    return names, coefficients.mean(0), (vectors * np.maximum(values, MIN_VARIANCE)) @ vectors.T


def _posterior_without(fit: Fusion, names: Sequence[str], absent: set[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the posterior mean (d) and covariance (d d) of named coefficients, given that the absent ones are 0."""
    rows = [fit.names.index(name) for name in names]
    mean, covariance = fit.coefficients[rows], fit.covariance[rows][:, rows]
    dropped = [i for i, name in enumerate(fit.names) if name in absent]
    if not dropped:
        return mean, covariance
    # Conditioning a normal distribution on dropped coefficients of 0: with their covariance V, the cross-covariance C
    # and the gain G = C V^-1, the mean falls by G times the dropped coefficients, and the covariance by G C'
    cross_covariance = fit.covariance[rows][:, dropped]
    gain = np.linalg.solve(fit.covariance[dropped][:, dropped], cross_covariance.T).T
    return mean - gain @ fit.coefficients[dropped], covariance - gain @ cross_covariance.T


def _coefficient_names(signal: str, signals: Sequence[str]) -> set[str]:
    """Return all names that the coefficients of a signal can have among `signals`."""
    products = {f"{a} x {b}" for a, b in combinations(signals, 2) if signal in (a, b)}
    return products | {signal + ending for ending in _fusion_map.ENDINGS}


def _fit_coefficients(unfitted: Fusion, x: np.ndarray, y: np.ndarray, prior: FusionPrior | None) -> Fusion:
    """Return the fusion with coefficients, averaged over the departures from the prior and its applicable parts.

    Each is weighted by its evidence and its prior probability (Bayesian model averaging, Hoeting et al. 1999). The
    coefficients are those of the normal distribution with the mixture's moments. Without labels, the prior itself is
    used.

    Args:
        unfitted: Fusion without coefficients.
        x: Its matrix (n d).
        y: Outcomes 0 or 1 (n).
        prior: Prior from other models.
    """
    d = x.shape[1]
    log_weights, means, covariances, is_like = list[float](), list[np.ndarray](), list[np.ndarray](), list[bool]()
    for candidate in _candidate_priors(unfitted, prior, has_labels=len(y) > 0):
        rows = np.array([unfitted.names.index(name) for name in candidate.names])
        mode, posterior, evidence = _fit_logistic(x[:, rows], y, *candidate.moments)
        mean, covariance = np.zeros(d), np.zeros((d, d))
        mean[rows], covariance[rows[:, None], rows] = mode, posterior
        means.append(mean)
        covariances.append(covariance)
        log_weights.append(evidence + candidate.log_probability)
        is_like.append(candidate.is_like)
    weights = special.softmax(log_weights)
    mean = weights @ np.stack(means)
    distance = np.stack(means) - mean
    # Covariance of a mixture: the mean of the covariances, plus the covariance of the means
    covariance = np.einsum("p,pij->ij", weights, np.stack(covariances)) + (distance.T * weights) @ distance
    prior_weight = math.nan if prior is None else float(weights @ np.array(is_like))
    return replace(unfitted, coefficients=mean, covariance=covariance, prior_weight=prior_weight)


class CandidatePrior(NamedTuple):
    """A normal prior of some coefficients, one of those that the labels choose from."""

    log_probability: float  # before any label, up to a constant
    names: tuple[str, ...]  # of its coefficients (d); the others are 0
    moments: tuple[np.ndarray, np.ndarray]  # mean (d) and precision (d d)
    is_like: bool  # whether the model is like those of the learned prior


def _candidate_priors(unfitted: Fusion, prior: FusionPrior | None, *, has_labels: bool) -> Iterator[CandidatePrior]:
    """Yield the priors of a fusion's coefficients: the learned one, its parts, and its departures.

    Without a learned prior, it is the fixed one; without labels, only the prior itself.
    """
    if prior is None:
        yield CandidatePrior(0.0, unfitted.names, _prior_moments(unfitted.names, None), is_like=False)
        return
    for departure in DEPARTURES if has_labels else DEPARTURES[:1]:
        is_like = departure.name == "none"
        for part in (prior, *(prior.parts if departure.has_parts and has_labels else ())):
            unused = set(prior.signals) - set(part.signals)
            # Skip a part that would leave no signal, or that does without a signal which this fusion does not have
            if unused and not unused < set(unfitted.signals):
                continue
            # The coefficients of the part, and those with a fixed prior
            names = tuple(name for name in unfitted.names if name in part.names or name not in prior.names)
            log_odds = len(unused) * math.log(UNUSED_PROBABILITY / (1 - UNUSED_PROBABILITY))
            moments = _prior_moments(names, part, departure)
            yield CandidatePrior(math.log(departure.probability) + log_odds, names, moments, is_like)


def _fit_logistic(
    x: np.ndarray, y: np.ndarray, prior_mean: np.ndarray, prior_precision: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float]:
    """Return the posterior mode and covariance of a logistic regression, and its log-evidence by Laplace's method.

    Args:
        x: Inputs (n d).
        y: Outcomes 0 or 1 (n).
        prior_mean: Mean of the normal prior of the coefficients (d).
        prior_precision: Its inverse covariance (d d).
    """

    def neg_log_posterior(beta: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """Return the value, up to a constant, the gradient and the Hessian."""
        z = x @ beta
        p, softplus = sigmoid_and_softplus(z)
        prior_gradient = prior_precision @ (beta - prior_mean)
        value = (softplus - y * z).sum() + (beta - prior_mean) @ prior_gradient / 2
        hessian = (x * (p * (1 - p))[:, None]).T @ x + prior_precision
        return float(value), x.T @ (p - y) + prior_gradient, hessian

    unbounded = np.full_like(prior_mean, -np.inf)
    minimum = newton(neg_log_posterior, prior_mean, lower=unbounded, tolerance=MODE_TOLERANCE)
    _, hessian = minimum.derivatives
    covariance = np.linalg.inv(hessian)
    # The factors of 2 pi in the prior and in Laplace's method cancel
    log_determinants = np.linalg.slogdet(np.stack([prior_precision, covariance])).logabsdet
    log_evidence = float(log_determinants.sum()) / 2 - minimum.value
    return minimum.x, covariance, log_evidence


def _transfer_evidence(x: np.ndarray, y: np.ndarray, mean: np.ndarray, precision: np.ndarray, seed: int) -> Evidence:
    """Test whether labels (n) contradict a prior with this mean and precision, as described at `FusionPrior.test`."""
    expected_logit, num_right = x @ mean, float(y.sum())  # the log-odds at the prior's mean
    distance = expected_logit - expected_logit.mean()
    if not 0 < num_right < len(y) or float(np.abs(distance).max()) < 1e-9:
        return Evidence(0.0, 1.0)  # equal labels or equal log-odds: there is no order to test
    generator = np.random.default_rng(seed)
    noise = generator.standard_normal((len(mean), NUM_TRANSFER_DRAWS))
    # L^-T noise has the covariance of the prior, for precision = L L^T
    coefficients = mean[:, None] + np.linalg.solve(np.linalg.cholesky(precision).T, noise)
    logit = _shift_to_level((x @ coefficients).T, num_right)
    drawn = (generator.random(logit.shape) < sigmoid(logit)).astype(float)

    def correlation(labels: np.ndarray) -> np.ndarray:
        """Return the correlation of labels (..., n) with the log-odds at the prior's mean, 0 if all are equal."""
        norms = labels.std(-1) * np.linalg.norm(distance) * len(y) ** 0.5
        return labels @ distance / np.maximum(norms, 1e-9)

    observed = correlation(y)
    num_below = int((correlation(drawn) <= observed + 1e-12).sum())  # equal ones count, up to rounding
    return Evidence(float(observed), (1 + num_below) / (1 + NUM_TRANSFER_DRAWS))


def _shift_to_level(logit: np.ndarray, num_right: float) -> np.ndarray:
    """Return log-odds (b n), shifted in each row so that the expected number of right answers is `num_right`."""
    # With all log-odds below -20 or above 20, nearly no or nearly all answers are right
    low, high = -logit.max(1, keepdims=True) - 20, -logit.min(1, keepdims=True) + 20
    for _ in range(_NUM_BISECTIONS):
        middle = (low + high) / 2
        is_below = sigmoid(logit + middle).sum(1, keepdims=True) < num_right
        low, high = np.where(is_below, middle, low), np.where(is_below, high, middle)
    return logit + (low + high) / 2


def _signal_gains(
    columns: Mapping[str, np.ndarray],
    y: np.ndarray,
    groups: Sequence[str] | None,
    prior: FusionPrior | None,
    scale: Scale,
    seed: int,
) -> list[tuple[str, np.ndarray]]:
    """Return, for each signal, by how much it raises the log-likelihood of each held-out example (n), in nats.

    All signals are compared with all but this one; a single signal is compared with the share of right answers.
    Arguments are as in `_regression`, with the seed of the folds.
    """
    base = Predictions.from_confidence(np.full_like(y, 0.5), y.astype(np.int64))  # for the folds

    def groups_of(rows: np.ndarray) -> list[str] | None:
        """Return the groups of some examples, None without groups."""
        return None if groups is None else [groups[int(i)] for i in rows]

    def held_out(names: Sequence[str]) -> np.ndarray:
        """Return the out-of-fold log-likelihood of each example with these signals (n)."""
        out = np.zeros_like(y)
        for _, inside in split_folds(base, _NUM_FOLDS, seed):
            train, test = np.flatnonzero(~inside), np.flatnonzero(inside)
            train_columns = {name: columns[name][train] for name in names}
            unfitted, x = _regression(train_columns, y[train], groups_of(train), prior, scale)
            fitted = _fit_coefficients(unfitted, x, y[train], prior)
            p = fitted.apply({name: columns[name][test] for name in names}, groups_of(test))
            out[test] = np.log(np.where(y[test] == 1, p, 1 - p))
        return out

    with_all = held_out(tuple(columns))
    if len(columns) == 1:
        share = (y.sum() + 0.5) / (len(y) + 1)  # of right answers, with half a pseudo-answer of either kind
        baseline = np.log(np.where(y == 1, share, 1 - share))
        return [(name, with_all - baseline) for name in columns]
    return [(name, with_all - held_out([column for column in columns if column != name])) for name in columns]
