"""No choosing: a mixture of the best families, weighted by what each predicts of data it has not seen."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from calibrant.backend.solvers import Certificate, Minimum, fit_mixture, newton
from calibrant.calibrators._affine import COARSE_GRADIENT_TOLERANCE, GRADIENT_TOLERANCE, fit_matrix, fit_vector
from calibrant.calibrators._apply import certified_classes, check_num_classes, keeps_predictions, preserves_argmax_if
from calibrant.calibrators._binary import fit_beta, fit_platt, fit_quadratic
from calibrant.calibrators._compose import Chain
from calibrant.calibrators._fitting import Solution, certify, example_mean, fit_method
from calibrant.calibrators._isotonic import fit_venn_abers
from calibrant.calibrators._monotone import fit_monotone
from calibrant.calibrators._structured import (
    SmoothedTemperature,
    TemperatureCache,
    fit_smoothed_temperature,
    fit_structured_matrix,
    fit_structured_vector,
    smoothing_cost,
)
from calibrant.calibrators._temperature import TemperatureFit
from calibrant.predictions import Predictions
from calibrant.predictions.folds import num_units, split_folds
from calibrant.registry import CALIBRATORS
from calibrant.types import Logits, Range

__all__ = ["Auto"]

MIN_STACKING_EXAMPLES = 20  # examples below which nothing is held out
MAX_MATRIX_WORK = 2e9  # n k^2 above which no matrix is tried: minutes in all
WEIGHT_GRADIENT_TOLERANCE = 1e-5  # gradient of the weights at which their search has converged
MIN_MEMBER_WEIGHT = 1e-3  # weight below which a member is not carried along
LIGHT_RIDGE = 0.1  # of the penalties of Berta et al. (2025): what is too weak for the data gets no weight
PRIOR_EXAMPLES = 5.0  # examples that what is believed of each member by itself counts for
BINARY_PRIOR_EXAMPLES = 40.0  # the same of two classes, of the squared distance of the weights from it
HANDICAP_EXAMPLES = (
    1000.0  # examples of two classes from which a handicap is as it is written: it grows by sqrt(1000 / n)
)
UNSEEN_EXAMPLE_NATS = (
    1.0  # nats by which the next example may gain or lose: no standard error is less than by one such in n
)
MAX_LOG_ODDS = 1e4  # log-odds, and log p of what members call impossible, are cut here


@dataclass(frozen=True)
class CalibratorFamily:
    """A family that may become a member, and what it needs."""

    name: str
    fit: Callable[
        [TemperatureCache, Any], Solution[Any]
    ]  # also given the search of an earlier fit to begin from, or None
    keeps_predictions: bool = False
    parameter_count: Literal["nothing", "few", "vector", "matrix"] = "few"  # numbers
    base: str = ""  # the family it is fitted on top of
    handicap: float = 0.0  # standard errors that it begins behind: what its penalties let it overfit
    classes: Literal["", "two", "more"] = ""  # that it is for

    def supports(self, k: int) -> bool:
        """Whether it is for k classes."""
        return not self.classes or (self.classes == "two") == (k == 2)

    def min_examples(self, k: int) -> int:
        """Fewest examples of k classes that it is tried on."""
        return max(
            MIN_STACKING_EXAMPLES, {"nothing": 0, "few": 0, "vector": k, "matrix": k * k // 50}[self.parameter_count]
        )

    def takes_too_long(self, n: int, k: int) -> bool:
        """Whether n rows of k classes are minutes of work."""
        return self.parameter_count == "matrix" and n * k * k > MAX_MATRIX_WORK


def _fit_identity(x: TemperatureCache, _: Any) -> Solution[Any]:
    one = torch.ones((), dtype=torch.float64)
    return Solution(SmoothedTemperature(one, x.p.total_weight * one), "closed form", slack=smoothing_cost(x.p))


IDENTITY_NAME = "as it is"
FAMILIES = (
    CalibratorFamily(IDENTITY_NAME, _fit_identity, keeps_predictions=True, parameter_count="nothing"),
    CalibratorFamily(
        "SmoothedTemperature", lambda x, _: fit_smoothed_temperature(x, robust=True), keeps_predictions=True
    ),
    CalibratorFamily(
        "Monotone",
        lambda x, start: fit_monotone(x.p, x.nll_fit, start, tolerance=0.01 * x.tolerance**2),
        keeps_predictions=True,
        classes="more",
    ),
    CalibratorFamily(
        "StructuredVector",
        lambda x, start: fit_structured_vector(x, start, robust=True),
        parameter_count="vector",
        classes="two",
    ),
    CalibratorFamily(
        "StructuredMatrix",
        lambda x, start: fit_structured_matrix(x, start, robust=True),
        parameter_count="matrix",
        classes="two",
    ),
    CalibratorFamily("Platt", lambda x, start: fit_platt(x.p, start), handicap=1.0, classes="two"),
    CalibratorFamily("Beta", lambda x, start: fit_beta(x.p, start), handicap=1.0, classes="two"),
    CalibratorFamily("Quadratic", lambda x, start: fit_quadratic(x.p, start), handicap=1.0, classes="two"),
    CalibratorFamily("VennAbers", lambda x, _: fit_venn_abers(x.p), handicap=math.inf, classes="two"),
    CalibratorFamily(
        "Monotone then StructuredMatrix",
        lambda x, start: fit_structured_matrix(x, start, robust=True),
        parameter_count="matrix",
        base="Monotone",
        handicap=1.0,
        classes="more",
    ),
    CalibratorFamily(
        f"Vector(ridge={LIGHT_RIDGE})",
        lambda x, start: fit_vector(x.p, x.nll_fit, start, ridge=LIGHT_RIDGE, tolerance=x.tolerance),
        parameter_count="vector",
        handicap=3.0,
        classes="more",
    ),
    CalibratorFamily(
        "Vector",
        lambda x, start: fit_vector(x.p, x.nll_fit, start, tolerance=x.tolerance),
        parameter_count="vector",
        handicap=3.0,
        classes="more",
    ),
    CalibratorFamily(
        f"Matrix(ridge={LIGHT_RIDGE})",
        lambda x, start: fit_matrix(x.p, x.nll_fit, start, ridge=LIGHT_RIDGE, tolerance=x.tolerance),
        parameter_count="matrix",
        handicap=3.0,
        classes="more",
    ),
)


@dataclass(frozen=True)
class WarmStarts:
    """What fits to some data found that fits to data nearby may begin from; it holds no data."""

    temperatures: dict[str, dict[str, TemperatureFit]] = field(
        default_factory=dict[str, dict[str, TemperatureFit]]
    )  # as `Fitted.data`
    searches: dict[str, Any] = field(default_factory=dict[str, Any])  # by family


@dataclass(frozen=True, eq=False)
class FittedFamilies:
    """Families fitted to the same data."""

    inputs: dict[str, TemperatureCache]  # as they came, "", and as the map of a family leaves them
    solutions: dict[str, Solution[Any]]

    @classmethod
    def fit_all(
        cls,
        families: Sequence[CalibratorFamily],
        p: Predictions,
        warm_starts: WarmStarts,
        tolerance: float = GRADIENT_TOLERANCE,
    ) -> "FittedFamilies":
        """Fit each, beginning from what was found on data nearby."""
        fitted = cls({"": TemperatureCache(p, warm_starts.temperatures.get("", {}), tolerance)}, {})
        for family in families:
            fitted._fit_family(family, warm_starts)
        return fitted

    def _fit_family(self, family: CalibratorFamily, warm_starts: WarmStarts) -> None:
        """Fit one more, first what it is fitted on top of."""
        if family.base and family.base not in self.solutions:
            self._fit_family(next(candidate for candidate in FAMILIES if candidate.name == family.base), warm_starts)
        if family.base not in self.inputs:
            x = self.inputs[""].p.apply(self.solutions[family.base].map)
            self.inputs[family.base] = TemperatureCache(
                x, warm_starts.temperatures.get(family.base, {}), self.inputs[""].tolerance
            )
        self.solutions[family.name] = family.fit(self.inputs[family.base], warm_starts.searches.get(family.name))

    @property
    def warm_starts(self) -> WarmStarts:
        """What a fit to data nearby may begin from."""
        return WarmStarts(
            {name: x.temperatures for name, x in self.inputs.items()},
            {name: solution.warm_start for name, solution in self.solutions.items()},
        )

    def apply_each(self, families: Sequence[CalibratorFamily], p: Predictions) -> Iterator[Predictions]:
        """Map other predictions by each, one after the other."""
        base_inputs = {name: p.apply(self.solutions[name].map) if name else p for name in self.inputs}
        mapped = {name: x for name, x in base_inputs.items() if name}
        return (
            mapped.get(family.name) or base_inputs[family.base].apply(self.solutions[family.name].map)
            for family in families
        )

    def map(self, family: CalibratorFamily) -> Any:
        """The map of a family, after that which it is fitted on top of."""
        family_map = self.solutions[family.name].with_certificate(self.inputs[family.base].p)
        return (
            Chain(self.solutions[family.base].with_certificate(self.inputs[""].p), family_map)
            if family.base
            else family_map
        )


@dataclass(frozen=True, eq=False)
class Candidate:
    """A family that was tried: its weight, and what it predicts of data it has not seen."""

    name: str
    weight: float
    held_out: float  # out-of-fold NLL, nan without folds
    fitted: Any = None  # to all examples; None without a weight


@CALIBRATORS.register
@dataclass(frozen=True, eq=False)
class Auto:
    r"""Out-of-fold stack of the best families: nothing to choose, and made not to hurt.

    The members go from no change at all to a matrix: the probabilities as they are and SmoothedTemperature; of two
    classes StructuredVector, StructuredMatrix, Platt, Beta, Quadratic and VennAbers; of more Monotone, Monotone then
    StructuredMatrix, and Vector and Matrix with little penalty and Vector with none; with `accuracy_preserving=True`
    only those that keep every prediction. Each predicts every example from a fit to the other folds, and weights are
    found for which a mixture of these predictions has the least NLL; the members are then fitted to all examples. Of
    more than two classes it is $\sum_m w_m p_m$, with w on the simplex, and of two the log-odds are mixed, $\sum_m w_m
    s_m$, $w \ge 0$, which may go beyond each of them. Both are convex problems.

    Caution stands in four places. Temperatures are robust and near 1 where little is known: one example that was called
    impossible carries none of them away. What one would believe of each member by itself, $w^0_m \propto \exp(-d_m /
    s_m - h_m)$, counts as a few examples do, with $d_m$ the mean out-of-fold NLL by which it lies behind the best of
    those without a handicap and $s_m^2$ the squared standard error of that, plus $1/n^2$ for an example yet unseen:
    what cannot be told apart from the best, the probabilities as they are perhaps, has its share. The handicap $h_m$ is
    what can overfit: 1 for Monotone then StructuredMatrix, 3 for Vector and Matrix, $\sqrt{1000 / n}$ for Platt, Beta
    and Quadratic; nothing is believed of VennAbers, which assumes no shape, but what the other folds' examples show. It
    adds $-5 \sum_m w^0_m \log w_m$ to the log loss of more than two classes, and $40 \lVert w - w^0 \rVert^2$ to that
    of two. Since all weight on one member is among the choices, for two classes the out-of-fold NLL is at most 80/n
    above that of the probabilities as they are, which are smoothed by one uniform example in n, at most $\log(1 + 1/n)$
    more. And of two classes, log-odds beyond all that it was fitted on move on by no more than they did before: no
    slope found there is steeper than 1.

    A member for which the data are too few is left out, as is a matrix that would take minutes (always so above 562
    classes), and `left_out` says why; one of weight below .001 is not carried along. `print` shows the weights, the
    out-of-fold NLL behind them, what was refused, and what the data cannot tell. (Stacking: Wolpert 1992, van der Laan
    et al. 2007; mixtures of log-odds: Genest & Zidek 1986; penalties of the members: Berta et al. 2025.)
    """

    candidates: tuple[Candidate, ...]  # all that were tried
    gain: float = math.nan  # of the mixture over the probabilities as they are, out of fold, in nats
    gain_error: float = math.nan  # one standard error of it
    left_out: tuple[str, ...] = ()  # who was not tried, and why
    ends: tuple[float, float] = (
        -MAX_LOG_ODDS,
        MAX_LOG_ODDS,
    )  # of two classes, least and greatest log-odds fitted on, and 0
    certificate: Certificate | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Of the members: the candidates that have a weight."""
        return tuple(candidate.name for candidate in self.candidates if candidate.weight > 0)

    @property
    def members(self) -> tuple[Any, ...]:
        """The fitted calibrators that are mixed."""
        return tuple(candidate.fitted for candidate in self.candidates if candidate.weight > 0)

    @property
    def weights(self) -> Tensor:
        """Of the members: (members) float64, above 0; of more than two classes their sum is 1."""
        return torch.tensor(
            [candidate.weight for candidate in self.candidates if candidate.weight > 0], dtype=torch.float64
        )

    @property
    def held_out(self) -> tuple[float, ...]:
        """Out-of-fold NLL of every candidate."""
        return tuple(candidate.held_out for candidate in self.candidates)

    @property
    def out_of_fold(self) -> float:
        """NLL of the mixture of what the candidates predicted of data they had not seen; nan without folds."""
        return self.candidates[0].held_out - self.gain

    @classmethod
    @fit_method
    def fit(
        cls, p: Predictions, *, folds: Annotated[int, Range(ge=2)] = 5, accuracy_preserving: bool = False
    ) -> "Auto":
        """Weigh the members on held-out folds, then fit them to everything.

        Folds keep rows of one group together; copies of a row count as one row of that weight where they share a
        group.
        """
        p = p.double()
        families, left_out = _eligible_families(p, folds, accuracy_preserving)
        m = len(families)
        weights, minimum = torch.full((m,), 1 / m, dtype=torch.float64), Minimum(torch.empty(0), math.nan, 0.0, 0)
        gain, error, held_out, warm_starts = math.nan, math.nan, [math.nan] * m, WarmStarts()
        if num_units(p) >= folds and p.total_weight >= MIN_STACKING_EXAMPLES:
            scores, warm_starts = _out_of_fold_scores(families, p, folds)
            log_p = logsigmoid(scores) if p.k == 2 else scores
            held_out = (-example_mean(log_p, p)).tolist()
            prior = _prior_weights(families, log_p, p)
            minimum = _fit_log_odds_weights(scores, p, prior) if p.k == 2 else _fit_mixture_weights(scores, p, prior)
            weights = minimum.x.where(minimum.x >= MIN_MEMBER_WEIGHT, 0.0)
            shares = weights.to(scores)
            mixed = logsigmoid(scores @ shares) if p.k == 2 else (scores + shares.log()).logsumexp(1)
            gain, error = (float(x) for x in _mean_gains(mixed - log_p[:, 0], p))
        weights = weights if p.k == 2 else weights / weights.sum()
        members_kept = [family for family, weight in zip(families, weights.tolist(), strict=True) if weight > 0]
        fitted = FittedFamilies.fit_all(members_kept, p, warm_starts)
        names = [family.name for family in families]
        members = [fitted.map(family) if family in members_kept else None for family in families]
        candidates = tuple(map(Candidate, names, weights.tolist(), held_out, members))
        stack = cls(candidates, gain, error, tuple(left_out), _log_odds_range(p) if p.k == 2 else cls.ends)
        slack = smoothing_cost(p) + 2 * BINARY_PRIOR_EXAMPLES / p.total_weight
        status = "converged" if minimum.gradient <= WEIGHT_GRADIENT_TOLERANCE else "not converged"
        return certify(stack, p, status, gradient=minimum.gradient, iterations=minimum.evaluations, slack=slack)

    @check_num_classes(certified_classes)
    @preserves_argmax_if(lambda self: all(map(keeps_predictions, self.members)))
    def __call__(self, logits: Logits) -> Logits:
        """Return the log of the weighted mean of the members' probabilities; of two classes, the mixed log-odds."""
        z = logits.double()
        if z.shape[-1] == 2:
            half = self._extrapolated_log_odds(z) / 2
            return torch.stack([-half, half], -1).to(logits.dtype)
        log_p = torch.stack([member(z).log_softmax(-1) for member in self.members])
        return (log_p + self.weights.to(z.device).log()[:, None, None]).logsumexp(0).to(logits.dtype)

    def _extrapolated_log_odds(self, z: Tensor) -> Tensor:
        """Mixed log-odds of two classes, which beyond the ends go on with a slope of no more than 1."""
        ends = z.new_tensor([[-end / 2, end / 2] for end in self.ends])
        log_odds, mixed = _log_odds(z), self._mixed_log_odds(z)
        low, high = self._mixed_log_odds(ends)
        excess = log_odds - log_odds.clamp(*self.ends)
        end = torch.where(excess < 0, low, high)
        change = (mixed - end).maximum(excess.clamp_max(0)).minimum(excess.clamp_min(0))
        return torch.where(excess == 0, mixed, end + change)

    def _mixed_log_odds(self, z: Tensor) -> Tensor:
        """The log-odds of the members, mixed."""
        return torch.stack([_log_odds(member(z)) for member in self.members], -1) @ self.weights.to(z.device)

    def __str__(self) -> str:
        lines = ["Auto: weight, NLL on examples not fitted to"]
        lines += [
            f"  {candidate.weight:5.3f}  {candidate.held_out:.4f}  {candidate.name}" for candidate in self.candidates
        ]
        lines += [f"  {line}" for line in self._report_lines]
        lines += [f"  left out: {reason}" for reason in self.left_out]
        return "\n".join([*lines, f"  {self.certificate}"])

    @property
    def _report_lines(self) -> list[str]:
        """What was chosen and why, what was refused, and what the data cannot tell."""
        if math.isnan(self.gain):
            return ["too few examples to hold any out: all have the same weight"]
        heaviest = max(self.candidates, key=lambda candidate: candidate.weight)
        best = min(self.candidates, key=lambda candidate: candidate.held_out)
        nll_gap = heaviest.held_out - best.held_out
        reason = "the best by itself" if heaviest is best else f"{nll_gap:.4f} behind {best.name}, the best by itself"
        refused = ", ".join(candidate.name for candidate in self.candidates if candidate.weight == 0)
        within_noise = abs(self.gain) < 2 * self.gain_error
        return [
            f"most weight: {heaviest.name}, {reason}",
            *([f"no weight: {refused}, which add nothing to the others"] if refused else []),
            f"gain of the mixture over the probabilities as they are: {self.gain:.4f} ± {self.gain_error:.4f} nats, "
            + ("which the data cannot tell from luck" if within_noise else "more than luck"),
        ]


def _prior_weights(families: Sequence[CalibratorFamily], log_p: Tensor, p: Predictions) -> Tensor:
    """The weights before they are weighed together: by how many standard errors each lies behind the best of all."""
    handicap = log_p.new_tensor([family.handicap for family in families])
    best = example_mean(log_p, p).where(handicap == 0, -torch.inf).argmax()
    gains, error = _mean_gains(log_p - log_p[:, best, None], p)
    if p.k == 2:
        handicap = handicap * math.sqrt(HANDICAP_EXAMPLES / p.total_weight)
    return (
        (gains / (error.square() + (UNSEEN_EXAMPLE_NATS / p.total_weight) ** 2).sqrt() - handicap)
        .clamp_max(50.0)
        .softmax(0)
        .cpu()
    )


def _log_odds(logits: Tensor) -> Tensor:
    """Of class 1 of two, cut where a class is impossible."""
    z = logits.double().log_softmax(-1).clamp_min(-MAX_LOG_ODDS)
    return z[..., 1] - z[..., 0]


def _log_odds_range(p: Predictions) -> tuple[float, float]:
    """Least and greatest log-odds of class 1, and 0."""
    s = _log_odds(p.logits)
    return min(float(s.min()), 0.0), max(float(s.max()), 0.0)


def _out_of_fold_scores(families: Sequence[CalibratorFamily], p: Predictions, folds: int) -> tuple[Tensor, WarmStarts]:
    """What fits to the other folds say of every label, (n m), log p or of two classes log-odds; and what they found."""
    scores, warm_starts = p.logits.new_empty(len(p), len(families), dtype=torch.float64), WarmStarts()
    for training, in_fold in split_folds(p, folds):
        fitted, validation = (
            FittedFamilies.fit_all(families, training, warm_starts, COARSE_GRADIENT_TOLERANCE),
            p[in_fold],
        )
        scores[in_fold] = torch.stack([_label_scores(mapped) for mapped in fitted.apply_each(families, validation)], 1)
        warm_starts = fitted.warm_starts
    return scores, warm_starts


def _label_scores(p: Predictions) -> Tensor:
    """What predictions say of every label."""
    if p.k == 2:
        return _log_odds(p.logits) * (2 * p.labels - 1)
    return p.log_likelihood.clamp_min(-MAX_LOG_ODDS)


def _fit_mixture_weights(scores: Tensor, p: Predictions, prior: Tensor) -> Minimum:
    """Maximize the likelihood of the mixture, what is believed of each counting as examples that only it predicts."""
    m = len(prior)
    weights = scores.new_ones(len(scores)) if p.weights is None else p.weights
    likelihoods = (scores - scores.amax(1, keepdim=True)).exp()
    rows = torch.cat([likelihoods, torch.eye(m).to(likelihoods)])
    mixture_fit = fit_mixture(rows, torch.cat([weights, PRIOR_EXAMPLES * prior.to(weights)]))
    return Minimum(mixture_fit.shares, math.nan, mixture_fit.gap, mixture_fit.steps)


def _fit_log_odds_weights(scores: Tensor, p: Predictions, prior: Tensor) -> Minimum:
    """Minimize the mean NLL of mixed log-odds, and the penalty: a logistic regression with nonnegative weights."""
    weights = scores.new_ones(len(scores)) if p.weights is None else p.weights
    weights, penalty = weights / p.total_weight, BINARY_PRIOR_EXAMPLES / p.total_weight

    def f(w: Tensor) -> tuple[float, Tensor, Tensor]:
        s, deviation = scores @ w.to(scores), w - prior
        wrong = (-s).sigmoid() * weights
        value = -float(weights @ logsigmoid(s)) + penalty * float(deviation @ deviation)
        curvature = ((scores * (wrong * s.sigmoid())[:, None]).mT @ scores).cpu()
        slope = (wrong @ scores).cpu()
        return value, 2 * penalty * deviation - slope, curvature + 2 * penalty * torch.eye(len(w), dtype=torch.float64)

    return newton(f, prior, lower=torch.zeros_like(prior))


def _mean_gains(gains: Tensor, p: Predictions) -> tuple[Tensor, Tensor]:
    """Means of what examples gain, (n m) -> (m), and their standard errors."""
    mean = example_mean(gains, p)
    spread = example_mean((gains - mean).square(), p) * p.total_weight / max(p.total_weight - 1, 1.0)
    return mean, (spread / p.total_weight).sqrt()


def _eligible_families(
    p: Predictions, folds: int, accuracy_preserving: bool
) -> tuple[list[CalibratorFamily], list[str]]:
    """Return who is tried on these examples, and who is not and why."""
    n, k = p.logits.shape
    tried, left_out = list[CalibratorFamily](), list[str]()
    for family in FAMILIES:
        description = f"{family.name}: {p.total_weight:.6g} examples of {k} classes"
        if not family.supports(k) or (accuracy_preserving and not family.keeps_predictions):
            continue
        if family.name in (required.name for required in FAMILIES[:2]):
            tried.append(family)
        elif p.total_weight < family.min_examples(k):
            left_out.append(f"{description}, needs {family.min_examples(k)}")
        elif num_units(p) < folds:
            left_out.append(f"{family.name}: {folds} folds need as many rows or clusters, there are {num_units(p)}")
        elif family.takes_too_long(n, k):
            left_out.append(f"{description} take too long")
        else:
            tried.append(family)
    return tried, left_out
