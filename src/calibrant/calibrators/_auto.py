"""No choosing: a geometric mixture of families, weighted by what each predicts of data it has not seen."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from calibrant._folds import split_folds, units
from calibrant._solve import Certificate, Minimum, few_threads, newton, summed
from calibrant.calibrators._affine import Matrix, Vector
from calibrant.calibrators._apply import certified, its_classes, keeping_if, keeps_predictions
from calibrant.calibrators._binary import Beta, Platt, Quadratic
from calibrant.calibrators._compose import Chain
from calibrant.calibrators._fit import certify, fits
from calibrant.calibrators._monotone import Monotone
from calibrant.calibrators._structured import SmoothedTemperature, StructuredMatrix, StructuredVector, least_cost
from calibrant.catalog import CALIBRATORS
from calibrant.predictions import Predictions
from calibrant.types import Logits, Range

__all__ = ["Auto"]

FEWEST = 20  # examples below which nothing is held out
WORK = 2e9  # n k^2 above which no matrix is tried: minutes in all
NEGLIGIBLE = 1e-3  # weight below which a member is not carried along
LIGHT = 0.1  # of the penalties of Berta et al. (2025): what is too weak for the data gets no weight
CAUTION = 40.0  # of the weights, times their squared distance from the prior ones over n
HANDICAP = 3.0  # standard errors that a family with little penalty has to be better than the others
WEIGHED = 1 << 25  # numbers, 256 MiB, from which the weights are found at most
DEEPEST = -1e4  # log p is cut here


@dataclass(frozen=True)
class Family:
    """A family that may become a member, and what it needs."""

    name: str
    fit: Callable[..., Any]  # (predictions, warm_start=a fit to begin from or None) -> calibrator
    keeps_predictions: bool = False
    learns: Literal["nothing", "few", "vector", "matrix"] = "few"  # numbers
    after: str = ""  # the family it is fitted on top of
    trusted: bool = True  # before anything is known: its penalties make it safe for few examples
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


def _as_it_is(p: Predictions) -> SmoothedTemperature:
    one = torch.ones((), dtype=torch.float64)
    return SmoothedTemperature(one, p.mass * one)


def _cold(fit: Callable[[Predictions], Any]) -> Callable[..., Any]:
    """A fit that needs nothing to begin from."""
    return lambda p, warm_start: fit(p)


AS_IT_IS = "as it is"
FAMILIES = (
    Family(AS_IT_IS, _cold(_as_it_is), keeps_predictions=True, learns="nothing"),
    Family("SmoothedTemperature", _cold(partial(SmoothedTemperature.fit, robust=True)), keeps_predictions=True),
    Family("Monotone", Monotone.fit, keeps_predictions=True, classes="more"),
    Family("StructuredVector", partial(StructuredVector.fit, robust=True), learns="vector", classes="two"),
    Family("StructuredMatrix", partial(StructuredMatrix.fit, robust=True), learns="matrix", classes="two"),
    Family("Platt", _cold(Platt.fit), classes="two"),
    Family("Beta", _cold(Beta.fit), classes="two"),
    Family("Quadratic", _cold(Quadratic.fit), classes="two"),
    Family(
        "Monotone then StructuredMatrix",
        partial(StructuredMatrix.fit, robust=True),
        learns="matrix",
        after="Monotone",
        classes="more",
    ),
    Family(f"Vector(ridge={LIGHT})", partial(Vector.fit, ridge=LIGHT), learns="vector", trusted=False, classes="more"),
    Family(f"Matrix(ridge={LIGHT})", partial(Matrix.fit, ridge=LIGHT), learns="matrix", trusted=False, classes="more"),
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
    r"""Out-of-fold stack of the best families, $\sum_m w_m \log p_m$: nothing to choose, and made not to hurt.

    The members go from no change at all to a matrix: the probabilities as they are and SmoothedTemperature; of two
    classes StructuredVector, StructuredMatrix, Platt, Beta and Quadratic; of more Monotone, Monotone then
    StructuredMatrix, and Vector and Matrix with little penalty; with `accuracy_preserving=True` only those that keep
    every prediction. Each predicts every example from a fit to the other folds, and the weights $w \ge 0$ minimize
    the mean NLL of the mixture of these predictions $+ \frac{40}{n} \lVert w - w^0 \rVert^2$, a convex problem; the
    members are then fitted to all examples. $w^0_m \propto \exp(-d_m / s_m)$ is what one would believe of each by
    itself: $d_m$ is the mean out-of-fold NLL by which it lies behind the best and $s_m$ the standard error of that,
    and the two with little penalty begin three standard errors behind. Few examples hardly move w from there, many
    take the best of all.

    Caution stands in four places. Temperatures are robust and near 1 where little is known: one example that was
    called impossible carries none of them away. What cannot be told apart from the best, the probabilities as they
    are perhaps, has its share. The mixture is geometric, so that members that disagree leave what they have in common.
    And with its penalty the out-of-fold NLL is never above that of any choice of weights, all on the probabilities as
    they are among them: at most $40 \lVert w^0 - e \rVert^2 / n \le 80/n$ nats above theirs, which are smoothed by one
    uniform example in n, at most $\log(1 + 1/n)$ more.

    A member for which the data are too few is left out, as is a matrix that would take minutes (always so above 562
    classes), and `left_out` says why; one of weight below .001 is not carried along. `print` shows the weights, the
    out-of-fold NLL behind them, and what the data cannot tell. (Stacking: Wolpert 1992; geometric mixtures: Genest &
    Zidek 1986; the penalties of the members: Berta et al. 2025.)
    """

    candidates: tuple[Candidate, ...]  # all that were tried
    gain: float = math.nan  # of the mixture over the probabilities as they are, out of fold, in nats
    gain_error: float = math.nan  # one standard error of it
    left_out: tuple[str, ...] = ()  # who was not tried, and why
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
        """Of the members: (members) float64, above 0; their sum is free, it acts as one over a temperature."""
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
        with few_threads(p.logits.numel()):
            return cls._fit(p.double(), folds, accuracy_preserving)

    @classmethod
    def _fit(cls, p: Predictions, folds: int, accuracy_preserving: bool) -> "Auto":
        families, left_out = _families(p, folds, accuracy_preserving)
        found = Minimum(torch.ones(len(families), dtype=torch.float64) / len(families), math.nan, 0.0, 0)
        gain, error, held_out, fitted = math.nan, math.nan, [math.nan] * len(families), dict[str, Any]()
        if units(p) >= folds and p.mass >= FEWEST:
            held, judged, fitted = _held(families, p, folds)
            each = held.gather(1, judged.labels[:, None, None].expand(-1, 1, len(families))).squeeze(1)
            held_out = (-_mean(each, judged)).tolist()
            found = _weighed(held, judged, _believed(families, each, judged))
            mixed = (held @ found.x).log_softmax(1).gather(1, judged.labels[:, None])
            gain, error = (float(x) for x in _gains(mixed - each[:, :1], judged))
        weights = found.x.where(found.x >= NEGLIGIBLE, 0.0)
        kept = [family for family, weight in zip(families, weights.tolist(), strict=True) if weight > 0]
        fitted = _fitted(kept, p, fitted)
        names = [family.name for family in families]
        members = [fitted.get(name) if weight > 0 else None for name, weight in zip(names, weights, strict=True)]
        candidates = tuple(map(Candidate, names, weights.tolist(), held_out, members))
        stack = cls(candidates, gain, error, tuple(left_out))
        slack = least_cost(p) + 2 * CAUTION / p.mass
        return certify(stack, p, "converged", gradient=found.gradient, iterations=found.evaluations, slack=slack)

    @its_classes(certified)
    @keeping_if(lambda self: all(map(keeps_predictions, self.members)))
    def __call__(self, logits: Logits) -> Logits:
        """Return the weighted sum of the logs of the members' probabilities."""
        z = logits.double()
        total = torch.zeros_like(z)
        for member, weight in zip(self.members, self.weights.tolist(), strict=True):
            total.add_(member(z).log_softmax(-1), alpha=weight)
        return total.to(logits.dtype)

    def __str__(self) -> str:
        lines = ["Auto: weight, out-of-fold NLL"]
        lines += [f"  {one.weight:5.3f}  {one.held_out:.4f}  {one.name}" for one in self.candidates]
        lines.append(f"  {self._told}")
        lines += [f"  left out: {reason}" for reason in self.left_out]
        return "\n".join([*lines, f"  {self.certificate}"])

    @property
    def _told(self) -> str:
        """What the data say about whether to calibrate at all."""
        if math.isnan(self.gain):
            return "too few examples to hold any out: the weights are those that were thought best before"
        luck = abs(self.gain) < 2 * self.gain_error
        told = "the data cannot tell whether calibrating helps: " if luck else ""
        return f"{told}gain over the probabilities {AS_IT_IS} {self.gain:.4f} +- {self.gain_error:.4f} nats out of fold"


def _believed(families: Sequence[Family], log_p: Tensor, p: Predictions) -> Tensor:
    """The weights before they are weighed together: by how many standard errors each lies behind the best of all."""
    trusted = torch.tensor([family.trusted for family in families])
    best = _mean(log_p, p).where(trusted, -torch.inf).argmax()
    behind, error = _gains(log_p[:, best, None] - log_p, p)
    ahead = -behind / error.clamp_min(1e-12) - HANDICAP * (~trusted).double()
    weights = ahead.clamp_max(50.0).exp()
    weights[best] = 1
    return weights / weights.sum()


def _held(families: Sequence[Family], p: Predictions, folds: int) -> tuple[Tensor, Predictions, dict[str, Any]]:
    """Log-probabilities (n k m) of examples under fits to the other folds, these examples, and the last fits.

    Where there are very many, they are evenly drawn from each fold.
    """
    every = -(-p.logits.numel() * len(families) // WEIGHED)
    fitted, held, which = dict[str, Any](), list[Tensor](), list[Tensor]()
    for rest, inside in split_folds(p, folds):
        fitted = _fitted(families, rest, fitted)
        rows = inside.nonzero().squeeze(1)[::every]
        logits = p.logits[rows]
        held.append(torch.stack([fitted[one.name](logits).log_softmax(-1) for one in families], 2).clamp_min(DEEPEST))
        which.append(rows)
    return torch.cat(held), p[torch.cat(which)], fitted


def _weighed(held: Tensor, p: Predictions, prior: Tensor) -> Minimum:
    """Minimize the mean NLL of the geometric mixture, and the penalty: smooth and convex in few numbers."""
    m = held.shape[2]
    parts = held - held.gather(1, p.labels[:, None, None].expand(-1, 1, m))
    weights = () if p.weights is None else (p.weights,)

    def f(w: Tensor) -> tuple[float, Tensor, Tensor]:
        def part(x: Tensor, *weights: Tensor) -> Tensor:
            s = x @ w
            norm = s.logsumexp(1)
            q = (s - norm[:, None]).exp()
            often = weights[0] if weights else torch.ones_like(norm)
            mean = (q[:, :, None] * x).sum(1)
            flat = (x * (q * often[:, None]).sqrt()[:, :, None]).view(-1, m)
            square = flat.mT @ flat - (often[:, None] * mean).mT @ mean
            return torch.cat([(often @ norm).view(1), often @ mean, square.view(-1)])

        sums = summed(part, parts, *weights) / p.mass
        away, penalty = w - prior, CAUTION / p.mass
        value = float(sums[0] + penalty * away @ away)
        bend = sums[m + 1 :].view(m, m) + 2 * penalty * torch.eye(m, dtype=torch.float64)
        return value, sums[1 : m + 1] + 2 * penalty * away, bend

    return newton(f, prior, lower=torch.zeros(m, dtype=torch.float64), tolerance=1e-8)


def _gains(each: Tensor, p: Predictions) -> tuple[Tensor, Tensor]:
    """Means of what examples gain, (n m) -> (m), and their standard errors."""
    mean = _mean(each, p)
    spread = _mean((each - mean).square(), p) * p.mass / max(p.mass - 1, 1.0)
    return mean, (spread / p.mass).sqrt()


def _mean(values: Tensor, p: Predictions) -> Tensor:
    return values.mean(0) if p.weights is None else p.weights @ values / p.mass


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


def _fitted(families: Sequence[Family], p: Predictions, start: Mapping[str, Any]) -> dict[str, Any]:
    """Fit the families, each beginning from an earlier fit where there is one."""
    made: dict[str, Any] = {}
    for family in families:
        before = start.get(family.name)
        if not family.after:
            made[family.name] = family.fit(p, warm_start=before)
            continue
        below = [one for one in FAMILIES if one.name == family.after]
        first = made.get(family.after) or _fitted(below, p, start)[family.after]
        second = family.fit(p.mapped(first), warm_start=None if before is None else before.second)
        made[family.name] = Chain(first, second)
    return made
