"""No choosing: a mixture of the best families, weighted by what each predicts of data it has not seen."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from calibrant._bins import log_likelihood
from calibrant._folds import folds_of
from calibrant._solve import Certificate, few_threads, mixture
from calibrant._types import Labels, Logits
from calibrant.calibrators._affine import Matrix, Vector
from calibrant.calibrators._certify import certify
from calibrant.calibrators._compose import Chain
from calibrant.calibrators._monotone import Monotone
from calibrant.calibrators._structured import SmoothedTemperature, StructuredMatrix
from calibrant.predictions import Predictions

__all__ = ["Auto"]

FEWEST = 20  # examples below which nothing is held out
WORK = 2e9  # n k^2 above which no matrix is tried: minutes in all
NEGLIGIBLE = 1e-3  # weight below which a member is not carried along
LIGHT = 0.1  # of the penalties of Berta et al. (2025): what is too weak for the data gets no weight
CHAIN = "Monotone then StructuredMatrix"
Fit = Callable[[Tensor, Tensor, Any], Any]  # (logits, labels, a fit to begin from or None) -> calibrator
FITS: dict[str, Fit] = {
    "SmoothedTemperature": lambda z, labels, start: SmoothedTemperature.fit(z, labels),
    "Monotone": Monotone.fit,
    f"Vector(ridge={LIGHT})": partial(Vector.fit, ridge=LIGHT),
    "Vector": Vector.fit,
    f"Matrix(ridge={LIGHT})": partial(Matrix.fit, ridge=LIGHT),
}


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

    members: tuple[Any, ...]  # fitted calibrators
    weights: Tensor  # (members) float64, on the simplex
    names: tuple[str, ...]  # of the members
    candidates: tuple[str, ...]  # all that were tried
    shares: tuple[float, ...]  # weight of every candidate
    held_out: tuple[float, ...]  # out-of-fold NLL of every candidate, nan without folds
    gain: tuple[float, float] = (math.nan, math.nan)  # of the mixture over its first candidate, and its error, in nats
    left_out: tuple[str, ...] = ()  # who was not tried, and why
    certificate: Certificate | None = None

    @classmethod
    def fit(cls, logits: Logits, labels: Labels, *, folds: int = 5, accuracy_preserving: bool = False) -> "Auto":
        """Weigh the members on held-out folds, then fit them to everything."""
        with few_threads(logits.numel()):
            logits, labels = Predictions(logits, labels)
            return cls._fit(logits, labels, folds, accuracy_preserving)

    @classmethod
    def _fit(cls, logits: Tensor, labels: Tensor, folds: int, accuracy_preserving: bool) -> "Auto":
        z, (n, k) = logits.double(), logits.shape
        names, left_out = _candidates(n, k, accuracy_preserving)
        fitted: dict[str, Any] = {}
        weights, gap, steps = torch.ones(1, dtype=torch.float64), 0.0, 0
        gain = (math.nan, math.nan)
        held_out = (math.nan,) * len(names)
        if len(names) > 1:
            fold = folds_of(z, labels, folds)
            held = torch.empty(n, len(names), dtype=torch.float64)
            for i in range(folds):
                out = fold == i
                fitted = _fit(names, z[~out], labels[~out], fitted)
                held[out] = torch.stack([log_likelihood(fitted[name](z[out]), labels[out]) for name in names], 1)
            weights, gap, steps = mixture(held.exp())
            weights, gain = _cautious(weights, held)
            held_out = tuple((-held.mean(0)).tolist())
        shares = weights.where(weights >= NEGLIGIBLE, 0.0)
        shares = shares / shares.sum()
        kept = [name for name, share in zip(names, shares.tolist(), strict=True) if share > 0]
        fitted = _fit(kept, z, labels, fitted)
        stack = cls(
            members=tuple(fitted[name] for name in kept),
            weights=shares[shares > 0],
            names=tuple(kept),
            candidates=tuple(names),
            shares=tuple(shares.tolist()),
            held_out=held_out,
            gain=gain,
            left_out=tuple(left_out),
        )
        return certify(stack, logits, labels, "converged", gradient=gap, iterations=steps)

    def __call__(self, logits: Logits) -> Logits:
        """Return the log of the weighted mean of the members' probabilities."""
        z = logits.double()
        log_p = torch.stack([member(z).log_softmax(-1) for member in self.members])
        return (log_p + self.weights.log()[:, None, None]).logsumexp(0).to(logits.dtype)

    def __str__(self) -> str:
        lines = ["Auto: weight, out-of-fold NLL"]
        for name, share, nll in zip(self.candidates, self.shares, self.held_out, strict=True):
            lines.append(f"  {share:5.3f}  {nll:.4f}  {name}")
        if len(self.candidates) > 1:
            lines.append(f"  gain over {self.candidates[0]} {self.gain[0]:.4f} +- {self.gain[1]:.4f} nats out of fold")
        lines += [f"  left out: {reason}" for reason in self.left_out]
        return "\n".join([*lines, f"  {self.certificate}"])


def _cautious(weights: Tensor, held: Tensor) -> tuple[Tensor, tuple[float, float]]:
    """Return the weights, drawn towards the first member as far as their gain over it may be luck; and the gain."""
    gains = (held + weights.log()).logsumexp(1) - held[:, 0]
    gain, error = float(gains.mean()), float(gains.std()) / len(gains) ** 0.5
    trust = min(1.0, max(0.0, gain / error - 1)) if error > 0 else 0.0
    first = torch.zeros_like(weights)
    first[0] = 1
    return trust * weights + (1 - trust) * first, (gain, error)


def _candidates(n: int, k: int, accuracy_preserving: bool) -> tuple[list[str], list[str]]:
    """Return who is tried on n examples of k classes, and who is not and why."""
    names, left_out = ["SmoothedTemperature"], list[str]()
    for name in ["Monotone"] if accuracy_preserving else [*list(FITS)[1:], CHAIN]:
        matrix = "Matrix" in name
        needed = max(FEWEST, k * k // 50 if matrix else k if "Vector" in name else 0)
        if n < needed:
            left_out.append(f"{name}: {n} examples of {k} classes, needs {needed}")
        elif matrix and n * k * k > WORK:
            left_out.append(f"{name}: {n} examples of {k} classes take too long")
        else:
            names.append(name)
    return names, left_out


def _fit(names: list[str], z: Tensor, labels: Tensor, start: dict[str, Any]) -> dict[str, Any]:
    """Fit the named members, each beginning from an earlier fit where there is one."""
    made = {name: FITS[name](z, labels, start.get(name)) for name in names if name != CHAIN}
    if CHAIN in names:
        first, before = made.get("Monotone") or Monotone.fit(z, labels, start.get("Monotone")), start.get(CHAIN)
        second = StructuredMatrix.fit(first(z), labels, None if before is None else before.second)
        made[CHAIN] = Chain(first, second)
    return made
