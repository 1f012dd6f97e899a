"""No choosing: a mixture of the best families, weighted by what each predicts of data it has not seen."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from calibrant._folds import split_folds, units
from calibrant._solve import Certificate, Minimum, mixture, newton
from calibrant.calibrators._affine import EXACT, NEARLY, matrix, vector
from calibrant.calibrators._apply import certified, its_classes, keeping_if, keeps_predictions
from calibrant.calibrators._binary import beta, platt, quadratic
from calibrant.calibrators._compose import Chain
from calibrant.calibrators._fit import Solution, certify, fits, mean_of
from calibrant.calibrators._isotonic import venn_abers
from calibrant.calibrators._monotone import monotone
from calibrant.calibrators._scaling import Found
from calibrant.calibrators._structured import (
    Scaled,
    SmoothedTemperature,
    least_cost,
    smoothed_temperature,
    structured_matrix,
    structured_vector,
)
from calibrant.catalog import CALIBRATORS
from calibrant.predictions import Predictions
from calibrant.types import Logits, Range

__all__ = ["Auto"]

FEWEST = 20  # examples below which nothing is held out
WORK = 2e9  # n k^2 above which no matrix is tried: minutes in all
SETTLED = 1e-5  # gradient of the weights at which their search has converged
NEGLIGIBLE = 1e-3  # weight below which a member is not carried along
LIGHT = 0.1  # of the penalties of Berta et al. (2025): what is too weak for the data gets no weight
BELIEF = 5.0  # examples that what is believed of each member by itself counts for
CAUTION = 40.0  # the same of two classes, of the squared distance of the weights from it
ENOUGH = 1000.0  # examples of two classes from which a handicap is as it is written: it grows by sqrt(1000 / n)
UNSEEN = 1.0  # nats by which the next example may gain or lose: no standard error is less than by one such in n
FARTHEST = 1e4  # log-odds, and log p of what members call impossible, are cut here


@dataclass(frozen=True)
class Family:
    """A family that may become a member, and what it needs."""

    name: str
    fit: Callable[[Scaled, Any], Solution[Any]]  # also given the search of an earlier fit to begin from, or None
    keeps_predictions: bool = False
    learns: Literal["nothing", "few", "vector", "matrix"] = "few"  # numbers
    after: str = ""  # the family it is fitted on top of
    handicap: float = 0.0  # standard errors that it begins behind: what its penalties let it overfit
    classes: Literal["", "two", "more"] = ""  # that it is for

    def suits(self, k: int) -> bool:
        """Whether it is for k classes."""
        return not self.classes or (self.classes == "two") == (k == 2)

    def needs(self, k: int) -> int:
        """Fewest examples of k classes that it is tried on."""
        return max(FEWEST, {"nothing": 0, "few": 0, "vector": k, "matrix": k * k // 50}[self.learns])

    def takes_too_long(self, n: int, k: int) -> bool:
        """Whether n rows of k classes are minutes of work."""
        return self.learns == "matrix" and n * k * k > WORK


def _as_it_is(x: Scaled, _: Any) -> Solution[Any]:
    one = torch.ones((), dtype=torch.float64)
    return Solution(SmoothedTemperature(one, x.p.mass * one), "closed form", slack=least_cost(x.p))


AS_IT_IS = "as it is"
FAMILIES = (
    Family(AS_IT_IS, _as_it_is, keeps_predictions=True, learns="nothing"),
    Family("SmoothedTemperature", lambda x, _: smoothed_temperature(x, robust=True), keeps_predictions=True),
    Family(
        "Monotone",
        lambda x, start: monotone(x.p, x.plain, start, tolerance=0.01 * x.tolerance**2),
        keeps_predictions=True,
        classes="more",
    ),
    Family(
        "StructuredVector",
        lambda x, start: structured_vector(x, start, robust=True),
        learns="vector",
        classes="two",
    ),
    Family(
        "StructuredMatrix",
        lambda x, start: structured_matrix(x, start, robust=True),
        learns="matrix",
        classes="two",
    ),
    Family("Platt", lambda x, start: platt(x.p, start), handicap=1.0, classes="two"),
    Family("Beta", lambda x, start: beta(x.p, start), handicap=1.0, classes="two"),
    Family("Quadratic", lambda x, start: quadratic(x.p, start), handicap=1.0, classes="two"),
    Family("VennAbers", lambda x, _: venn_abers(x.p), handicap=math.inf, classes="two"),
    Family(
        "Monotone then StructuredMatrix",
        lambda x, start: structured_matrix(x, start, robust=True),
        learns="matrix",
        after="Monotone",
        handicap=1.0,
        classes="more",
    ),
    Family(
        f"Vector(ridge={LIGHT})",
        lambda x, start: vector(x.p, x.plain, start, ridge=LIGHT, tolerance=x.tolerance),
        learns="vector",
        handicap=3.0,
        classes="more",
    ),
    Family(
        "Vector",
        lambda x, start: vector(x.p, x.plain, start, tolerance=x.tolerance),
        learns="vector",
        handicap=3.0,
        classes="more",
    ),
    Family(
        f"Matrix(ridge={LIGHT})",
        lambda x, start: matrix(x.p, x.plain, start, ridge=LIGHT, tolerance=x.tolerance),
        learns="matrix",
        handicap=3.0,
        classes="more",
    ),
)


@dataclass(frozen=True)
class Nearby:
    """What fits to some data found that fits to data nearby may begin from; it holds no data."""

    temperatures: dict[str, dict[str, Found]] = field(default_factory=dict[str, dict[str, Found]])  # as `Fitted.data`
    searches: dict[str, Any] = field(default_factory=dict[str, Any])  # by family


@dataclass(frozen=True, eq=False)
class Fitted:
    """Families fitted to the same data."""

    data: dict[str, Scaled]  # as they came, "", and as the map of a family leaves them
    solutions: dict[str, Solution[Any]]

    @classmethod
    def to(cls, families: Sequence[Family], p: Predictions, near: Nearby, tolerance: float = EXACT) -> "Fitted":
        """Fit each, beginning from what was found on data nearby."""
        made = cls({"": Scaled(p, near.temperatures.get("", {}), tolerance)}, {})
        for family in families:
            made._add(family, near)
        return made

    def _add(self, family: Family, near: Nearby) -> None:
        """Fit one more, first what it is fitted on top of."""
        if family.after and family.after not in self.solutions:
            self._add(next(one for one in FAMILIES if one.name == family.after), near)
        if family.after not in self.data:
            x = self.data[""].p.mapped(self.solutions[family.after].map)
            self.data[family.after] = Scaled(x, near.temperatures.get(family.after, {}), self.data[""].tolerance)
        self.solutions[family.name] = family.fit(self.data[family.after], near.searches.get(family.name))

    @property
    def nearby(self) -> Nearby:
        """What a fit to data nearby may begin from."""
        return Nearby(
            {name: x.temperatures for name, x in self.data.items()},
            {name: found.search for name, found in self.solutions.items()},
        )

    def applied(self, families: Sequence[Family], p: Predictions) -> Iterator[Predictions]:
        """Map other predictions by each, one after the other."""
        below = {name: p.mapped(self.solutions[name].map) if name else p for name in self.data}
        mapped = {name: x for name, x in below.items() if name}
        return (mapped.get(one.name) or below[one.after].mapped(self.solutions[one.name].map) for one in families)

    def map(self, family: Family) -> Any:
        """The map of a family, after that which it is fitted on top of."""
        last = self.solutions[family.name].certified(self.data[family.after].p)
        return Chain(self.solutions[family.after].certified(self.data[""].p), last) if family.after else last


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
    ends: tuple[float, float] = (-FARTHEST, FARTHEST)  # of two classes, least and greatest log-odds fitted on, and 0
    certificate: Certificate | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Of the members: the candidates that have a weight."""
        return tuple(one.name for one in self.candidates if one.weight > 0)

    @property
    def members(self) -> tuple[Any, ...]:
        """The fitted calibrators that are mixed."""
        return tuple(one.fitted for one in self.candidates if one.weight > 0)

    @property
    def weights(self) -> Tensor:
        """Of the members: (members) float64, above 0; of more than two classes their sum is 1."""
        return torch.tensor([one.weight for one in self.candidates if one.weight > 0], dtype=torch.float64)

    @property
    def held_out(self) -> tuple[float, ...]:
        """Out-of-fold NLL of every candidate."""
        return tuple(one.held_out for one in self.candidates)

    @property
    def out_of_fold(self) -> float:
        """NLL of the mixture of what the candidates predicted of data they had not seen; nan without folds."""
        return self.candidates[0].held_out - self.gain

    @classmethod
    @fits
    def fit(
        cls, p: Predictions, *, folds: Annotated[int, Range(least=2)] = 5, accuracy_preserving: bool = False
    ) -> "Auto":
        """Weigh the members on held-out folds, then fit them to everything.

        Folds keep rows of one group together; copies of a row count as one row of that weight where they share a
        group.
        """
        p = p.double()
        families, left_out = _families(p, folds, accuracy_preserving)
        m = len(families)
        weights, found = torch.full((m,), 1 / m, dtype=torch.float64), Minimum(torch.empty(0), math.nan, 0.0, 0)
        gain, error, held_out, near = math.nan, math.nan, [math.nan] * m, Nearby()
        if units(p) >= folds and p.mass >= FEWEST:
            held, near = _held(families, p, folds)
            each = logsigmoid(held) if p.k == 2 else held
            held_out = (-mean_of(each, p)).tolist()
            believed = _believed(families, each, p)
            found = _odds_weighed(held, p, believed) if p.k == 2 else _weighed(held, p, believed)
            weights = found.x.where(found.x >= NEGLIGIBLE, 0.0)
            shares = weights.to(held)
            mixed = logsigmoid(held @ shares) if p.k == 2 else (held + shares.log()).logsumexp(1)
            gain, error = (float(x) for x in _gains(mixed - each[:, 0], p))
        weights = weights if p.k == 2 else weights / weights.sum()
        kept = [family for family, weight in zip(families, weights.tolist(), strict=True) if weight > 0]
        fitted = Fitted.to(kept, p, near)
        names = [family.name for family in families]
        members = [fitted.map(family) if family in kept else None for family in families]
        candidates = tuple(map(Candidate, names, weights.tolist(), held_out, members))
        stack = cls(candidates, gain, error, tuple(left_out), _ends(p) if p.k == 2 else cls.ends)
        slack = least_cost(p) + 2 * CAUTION / p.mass
        status = "converged" if found.gradient <= SETTLED else "not converged"
        return certify(stack, p, status, gradient=found.gradient, iterations=found.evaluations, slack=slack)

    @its_classes(certified)
    @keeping_if(lambda self: all(map(keeps_predictions, self.members)))
    def __call__(self, logits: Logits) -> Logits:
        """Return the log of the weighted mean of the members' probabilities; of two classes, the mixed log-odds."""
        z = logits.double()
        if z.shape[-1] == 2:
            half = self._odds(z) / 2
            return torch.stack([-half, half], -1).to(logits.dtype)
        log_p = torch.stack([member(z).log_softmax(-1) for member in self.members])
        return (log_p + self.weights.to(z.device).log()[:, None, None]).logsumexp(0).to(logits.dtype)

    def _odds(self, z: Tensor) -> Tensor:
        """Mixed log-odds of two classes, which beyond the ends go on with a slope of no more than 1."""
        ends = z.new_tensor([[-end / 2, end / 2] for end in self.ends])
        before, mixed = _log_odds(z), self._mixed(z)
        low, high = self._mixed(ends)
        beyond = before - before.clamp(*self.ends)
        end = torch.where(beyond < 0, low, high)
        moved = (mixed - end).maximum(beyond.clamp_max(0)).minimum(beyond.clamp_min(0))
        return torch.where(beyond == 0, mixed, end + moved)

    def _mixed(self, z: Tensor) -> Tensor:
        """The log-odds of the members, mixed."""
        return torch.stack([_log_odds(member(z)) for member in self.members], -1) @ self.weights.to(z.device)

    def __str__(self) -> str:
        lines = ["Auto: weight, NLL on examples not fitted to"]
        lines += [f"  {one.weight:5.3f}  {one.held_out:.4f}  {one.name}" for one in self.candidates]
        lines += [f"  {line}" for line in self._told]
        lines += [f"  left out: {reason}" for reason in self.left_out]
        return "\n".join([*lines, f"  {self.certificate}"])

    @property
    def _told(self) -> list[str]:
        """What was chosen and why, what was refused, and what the data cannot tell."""
        if math.isnan(self.gain):
            return ["too few examples to hold any out: all have the same weight"]
        first = max(self.candidates, key=lambda one: one.weight)
        best = min(self.candidates, key=lambda one: one.held_out)
        behind = first.held_out - best.held_out
        why = "the best by itself" if first is best else f"{behind:.4f} behind {best.name}, the best by itself"
        refused = ", ".join(one.name for one in self.candidates if one.weight == 0)
        luck = abs(self.gain) < 2 * self.gain_error
        return [
            f"most weight: {first.name}, {why}",
            *([f"no weight: {refused}, which add nothing to the others"] if refused else []),
            f"gain of the mixture over the probabilities as they are: {self.gain:.4f} ± {self.gain_error:.4f} nats, "
            + ("which the data cannot tell from luck" if luck else "more than luck"),
        ]


def _believed(families: Sequence[Family], log_p: Tensor, p: Predictions) -> Tensor:
    """The weights before they are weighed together: by how many standard errors each lies behind the best of all."""
    handicap = log_p.new_tensor([family.handicap for family in families])
    best = mean_of(log_p, p).where(handicap == 0, -torch.inf).argmax()
    ahead, error = _gains(log_p - log_p[:, best, None], p)
    if p.k == 2:
        handicap = handicap * math.sqrt(ENOUGH / p.mass)
    return (ahead / (error.square() + (UNSEEN / p.mass) ** 2).sqrt() - handicap).clamp_max(50.0).softmax(0).cpu()


def _log_odds(logits: Tensor) -> Tensor:
    """Of class 1 of two, cut where a class is impossible."""
    z = logits.double().log_softmax(-1).clamp_min(-FARTHEST)
    return z[..., 1] - z[..., 0]


def _ends(p: Predictions) -> tuple[float, float]:
    """Least and greatest log-odds of class 1, and 0."""
    s = _log_odds(p.logits)
    return min(float(s.min()), 0.0), max(float(s.max()), 0.0)


def _held(families: Sequence[Family], p: Predictions, folds: int) -> tuple[Tensor, Nearby]:
    """What fits to the other folds say of every label, (n m), log p or of two classes log-odds; and what they found."""
    held, near = p.logits.new_empty(len(p), len(families), dtype=torch.float64), Nearby()
    for rest, inside in split_folds(p, folds):
        fitted, out = Fitted.to(families, rest, near, NEARLY), p[inside]
        held[inside] = torch.stack([_told(after) for after in fitted.applied(families, out)], 1)
        near = fitted.nearby
    return held, near


def _told(p: Predictions) -> Tensor:
    """What predictions say of every label."""
    if p.k == 2:
        return _log_odds(p.logits) * (2 * p.labels - 1)
    return p.log_likelihood.clamp_min(-FARTHEST)


def _weighed(held: Tensor, p: Predictions, believed: Tensor) -> Minimum:
    """Maximize the likelihood of the mixture, what is believed of each counting as examples that only it predicts."""
    m = len(believed)
    often = held.new_ones(len(held)) if p.weights is None else p.weights
    likelihoods = (held - held.amax(1, keepdim=True)).exp()
    rows = torch.cat([likelihoods, torch.eye(m).to(likelihoods)])
    found = mixture(rows, torch.cat([often, BELIEF * believed.to(often)]))
    return Minimum(found.shares, math.nan, found.gap, found.steps)


def _odds_weighed(held: Tensor, p: Predictions, believed: Tensor) -> Minimum:
    """Minimize the mean NLL of mixed log-odds, and the penalty: a logistic regression with nonnegative weights."""
    often = held.new_ones(len(held)) if p.weights is None else p.weights
    often, penalty = often / p.mass, CAUTION / p.mass

    def f(w: Tensor) -> tuple[float, Tensor, Tensor]:
        s, away = held @ w.to(held), w - believed
        wrong = (-s).sigmoid() * often
        value = -float(often @ logsigmoid(s)) + penalty * float(away @ away)
        bend = ((held * (wrong * s.sigmoid())[:, None]).mT @ held).cpu()
        slope = (wrong @ held).cpu()
        return value, 2 * penalty * away - slope, bend + 2 * penalty * torch.eye(len(w), dtype=torch.float64)

    return newton(f, believed, lower=torch.zeros_like(believed))


def _gains(each: Tensor, p: Predictions) -> tuple[Tensor, Tensor]:
    """Means of what examples gain, (n m) -> (m), and their standard errors."""
    mean = mean_of(each, p)
    spread = mean_of((each - mean).square(), p) * p.mass / max(p.mass - 1, 1.0)
    return mean, (spread / p.mass).sqrt()


def _families(p: Predictions, folds: int, accuracy_preserving: bool) -> tuple[list[Family], list[str]]:
    """Return who is tried on these examples, and who is not and why."""
    n, k = p.logits.shape
    tried, left_out = list[Family](), list[str]()
    for family in FAMILIES:
        of = f"{family.name}: {p.mass:.6g} examples of {k} classes"
        if not family.suits(k) or (accuracy_preserving and not family.keeps_predictions):
            continue
        if family.name in (one.name for one in FAMILIES[:2]):
            tried.append(family)
        elif p.mass < family.needs(k):
            left_out.append(f"{of}, needs {family.needs(k)}")
        elif units(p) < folds:
            left_out.append(f"{family.name}: {folds} folds need as many rows or clusters, there are {units(p)}")
        elif family.takes_too_long(n, k):
            left_out.append(f"{of} take too long")
        else:
            tried.append(family)
    return tried, left_out
