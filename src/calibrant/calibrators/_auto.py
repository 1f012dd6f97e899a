"""No choosing: a mixture of the best families, weighted by what each predicts of data it has not seen."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from calibrant._folds import split_folds, units
from calibrant._solve import Certificate, Mixture, few_threads, mixture
from calibrant.calibrators._affine import Matrix, Vector
from calibrant.calibrators._apply import certified, its_classes, keeping_if, keeps_predictions
from calibrant.calibrators._compose import Chain
from calibrant.calibrators._fit import certify, fits
from calibrant.calibrators._monotone import Monotone
from calibrant.calibrators._structured import SmoothedTemperature, StructuredMatrix, least_cost
from calibrant.catalog import CALIBRATORS
from calibrant.predictions import Predictions
from calibrant.types import Logits, Range

__all__ = ["Auto"]

FEWEST = 20  # examples below which nothing is held out
WORK = 2e9  # n k^2 above which no matrix is tried: minutes in all
NEGLIGIBLE = 1e-3  # weight below which a member is not carried along
LIGHT = 0.1  # of the penalties of Berta et al. (2025): what is too weak for the data gets no weight


@dataclass(frozen=True)
class Family:
    """A family that may become a member, and what it needs."""

    name: str
    fit: Callable[..., Any]  # (predictions, warm_start=a fit to begin from or None) -> calibrator
    keeps_predictions: bool = False
    learns: Literal["few", "vector", "matrix"] = "few"  # numbers
    after: str = ""  # the family it is fitted on top of

    def needs(self, k: int) -> int:
        """Fewest examples of k classes that it is tried on."""
        return max(FEWEST, {"few": 0, "vector": k, "matrix": k * k // 50}[self.learns])

    def takes_too_long(self, n: int, k: int) -> bool:
        """Whether n rows of k classes are minutes of work."""
        return self.learns == "matrix" and n * k * k > WORK


def _temperature(p: Predictions, *, warm_start: Any) -> SmoothedTemperature:
    return SmoothedTemperature.fit(p)


FAMILIES = (
    Family("SmoothedTemperature", _temperature, keeps_predictions=True),
    Family("Monotone", Monotone.fit, keeps_predictions=True),
    Family(f"Vector(ridge={LIGHT})", partial(Vector.fit, ridge=LIGHT), learns="vector"),
    Family("Vector", Vector.fit, learns="vector"),
    Family(f"Matrix(ridge={LIGHT})", partial(Matrix.fit, ridge=LIGHT), learns="matrix"),
    Family("Monotone then StructuredMatrix", StructuredMatrix.fit, learns="matrix", after="Monotone"),
)


@dataclass(frozen=True, eq=False)
class Candidate:
    """A family that was tried: its share of the mixture, and what it predicts of data it has not seen."""

    name: str
    share: float
    held_out: float  # out-of-fold NLL, nan without folds
    fitted: Any = None  # to all examples; None without a share


@CALIBRATORS.register
@dataclass(frozen=True, eq=False)
class Auto:
    r"""Out-of-fold stack of the best families, $\log \sum_m w_m p_m$: nothing to choose.

    The members are SmoothedTemperature, Vector with little penalty and with none, Matrix with little, Monotone, and
    Monotone then StructuredMatrix; with `accuracy_preserving=True` only SmoothedTemperature and Monotone, which keep
    every prediction. Each member predicts every example from a fit to the other folds; the weights maximize the
    likelihood of the mixture of these predictions (concave: EM finds the one maximum), and the members are then fitted
    to all examples. The mixture's out-of-fold gain over SmoothedTemperature alone must be told from luck: below one
    standard error temperature gets all the weight, above two the mixture stands as it is, in between both share.

    A member for which the data are too few is left out, as is a matrix that would take minutes (always so above 562
    classes), and `left_out` says why; one of weight below .001 is not carried along. Seldom much worse than its best
    member, often better than all (Wolpert 1992; van der Laan et al. 2007), as long as the data to come are like those
    it was fitted on. `print` shows the weights and the out-of-fold NLL behind them.
    """

    candidates: tuple[Candidate, ...]  # all that were tried
    gain: float = math.nan  # of the mixture over its first candidate, out of fold, in nats
    gain_error: float = math.nan  # one standard error of it
    left_out: tuple[str, ...] = ()  # who was not tried, and why
    certificate: Certificate | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Of the members: the candidates that have a share."""
        return tuple(one.name for one in self.candidates if one.share > 0)

    @property
    def members(self) -> tuple[Any, ...]:
        """The fitted calibrators that are mixed."""
        return tuple(one.fitted for one in self.candidates if one.share > 0)

    @property
    def weights(self) -> Tensor:
        """Shares of the members: (members) float64, on the simplex."""
        return torch.tensor([one.share for one in self.candidates if one.share > 0], dtype=torch.float64)

    @property
    def held_out(self) -> tuple[float, ...]:
        """Out-of-fold NLL of every candidate."""
        return tuple(one.held_out for one in self.candidates)

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
        names = [family.name for family in families]
        found = Mixture(torch.ones(1, dtype=torch.float64), 0.0, 0)
        gain, error, held_out, fitted = math.nan, math.nan, [math.nan] * len(names), dict[str, Any]()
        if len(names) > 1:
            held = torch.empty(len(p), len(names), dtype=torch.float64)
            for rest, inside in split_folds(p, folds):
                fitted, out = _fitted(families, rest, fitted), p[inside]
                held[inside] = torch.stack([out.mapped(fitted[name]).log_likelihood for name in names], 1)
            found = mixture(held.exp(), p.weights)
            gain, error = _gain(found.shares, held, p)
            held_out = (-_mean(held, p)).tolist()
        shares = _cautious(found.shares, gain, error)
        shares = shares.where(shares >= NEGLIGIBLE, 0.0)
        shares = shares / shares.sum()
        kept = [family for family, share in zip(families, shares.tolist(), strict=True) if share > 0]
        fitted = _fitted(kept, p, fitted)
        members = [fitted[name] if share > 0 else None for name, share in zip(names, shares.tolist(), strict=True)]
        candidates = tuple(map(Candidate, names, shares.tolist(), held_out, members))
        stack = cls(candidates, gain, error, tuple(left_out))
        return certify(stack, p, "converged", gradient=found.gap, iterations=found.steps, slack=least_cost(p))

    @its_classes(certified)
    @keeping_if(lambda self: all(map(keeps_predictions, self.members)))
    def __call__(self, logits: Logits) -> Logits:
        """Return the log of the weighted mean of the members' probabilities."""
        z = logits.double()
        log_p = torch.stack([member(z).log_softmax(-1) for member in self.members])
        return (log_p + self.weights.to(z.device).log()[:, None, None]).logsumexp(0).to(logits.dtype)

    def __str__(self) -> str:
        lines = ["Auto: weight, out-of-fold NLL"]
        lines += [f"  {one.share:5.3f}  {one.held_out:.4f}  {one.name}" for one in self.candidates]
        if len(self.candidates) > 1:
            first = self.candidates[0].name
            lines.append(f"  gain over {first} {self.gain:.4f} +- {self.gain_error:.4f} nats out of fold")
        lines += [f"  left out: {reason}" for reason in self.left_out]
        return "\n".join([*lines, f"  {self.certificate}"])


def _gain(shares: Tensor, held: Tensor, p: Predictions) -> tuple[float, float]:
    """Return how much the mixture gains over its first member, in nats, and the standard error of that."""
    gains = (held + shares.log()).logsumexp(1) - held[:, 0]
    mean = _mean(gains, p)
    spread = _mean((gains - mean).square(), p) * p.mass / max(p.mass - 1, 1.0)
    return float(mean), float((spread / p.mass).sqrt())


def _cautious(shares: Tensor, gain: float, error: float) -> Tensor:
    """Return the shares, drawn towards the first member as far as their gain over it may be luck."""
    trust = min(1.0, max(0.0, gain / error - 1)) if error > 0 else 0.0
    first = torch.zeros_like(shares)
    first[0] = 1
    return trust * shares + (1 - trust) * first


def _mean(values: Tensor, p: Predictions) -> Tensor:
    return values.mean(0) if p.weights is None else p.weights @ values / p.mass


def _families(p: Predictions, folds: int, accuracy_preserving: bool) -> tuple[list[Family], list[str]]:
    """Return who is tried on these examples, and who is not and why."""
    n, k = p.logits.shape
    tried, left_out = [FAMILIES[0]], list[str]()
    for family in FAMILIES[1:]:
        of = f"{family.name}: {p.mass:.6g} examples of {k} classes"
        if accuracy_preserving and not family.keeps_predictions:
            continue
        if p.mass < family.needs(k):
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
