"""Calibrators of calibrators, and the guard against judging a map on the data it learned from."""

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from calibrant._folds import cross_fitted
from calibrant._solve import Certificate
from calibrant._types import Calibrator, InputError, Labels, Logits
from calibrant.calibrators._certify import certify
from calibrant.predictions import Predictions

__all__ = ["Chain"]


@dataclass(frozen=True, eq=False)
class Chain:
    """One calibrator after another: `Chain(first, second)(logits)` is `second(first(logits))`.

    >>> from calibrant.calibrators import Temperature
    >>> half = Temperature(torch.tensor(2.0))
    >>> Chain(half, half)(torch.tensor([[4.0, 0.0]]))
    tensor([[1., 0.]])
    """

    first: Any  # two fitted calibrators
    second: Any
    certificate: Certificate | None = None

    @classmethod
    def fit(
        cls,
        logits: Logits,
        labels: Labels,
        start: "Chain | None" = None,
        *,
        first: str = "Monotone",
        second: str = "StructuredMatrix",
    ) -> "Chain":
        """Fit the first by name, and the second to what it makes of the logits; `start` is a fit to begin from."""
        logits, labels = Predictions(logits, labels)
        one = _begin(resolve(first), logits, labels, None if start is None else start.first)
        middle = one(logits.double())
        two = _begin(resolve(second), middle, labels, None if start is None else start.second)
        done = two.certificate
        return certify(
            cls(one, two), logits, labels, done.status, gradient=done.gradient, iterations=done.iterations
        )  # fmt: skip

    def __call__(self, logits: Logits) -> Logits:
        """Return second(first(z))."""
        return self.second(self.first(logits.double())).to(logits.dtype)


def resolve(calibrator: str | type[Calibrator] | Callable[..., Any]) -> Callable[..., Any]:
    """Return how to fit a calibrator, given as text, class or the fit itself."""
    if isinstance(calibrator, str):
        from calibrant import calibrators, catalog

        return catalog.resolve(calibrator, calibrators)
    return getattr(calibrator, "fit", calibrator)


def _begin(fit: Callable[..., Any], logits: Tensor, labels: Tensor, start: Any) -> Any:
    return fit(logits, labels) if start is None else fit(logits, labels, start)


def cross_fit(
    calibrator: str | type[Calibrator] | Callable[..., Any], predictions: Predictions, *, folds: int = 5, seed: int = 0
) -> Predictions:
    """Calibrate every example by a map that was fitted on the other folds: honest to judge, and no data lost.

    `calibrator` is a class, its text such as "StructuredVector(refit_temperature=True)", or a fit. Folds are drawn
    by `seed`, evenly within every class. Raises `InputError` where there are fewer examples than folds.

    >>> from calibrant.calibrators import Temperature
    >>> cross_fit(Temperature, Predictions(3 * torch.eye(2).repeat(5, 1), [0, 1, 0, 1, 0, 1, 1, 0, 1, 0]), folds=2)
    Predictions(n=10, k=2, float32)
    """
    z, y = predictions.logits, predictions.labels
    return Predictions(cross_fitted(resolve(calibrator), z, y, folds=folds, seed=seed), y, predictions.weights)


def pool(*members: Predictions) -> Predictions:
    """Average the probabilities of an ensemble's members on the same examples; calibrate afterwards.

    The average of calibrated members is underconfident: pool first, then fit the calibrator (Rahaman & Thiery 2021).
    Raises `InputError` where the members' labels or shapes differ.

    >>> a, b = Predictions([[0.0, -torch.inf]], [0]), Predictions([[-torch.inf, 0.0]], [0])
    >>> pool(a, b).logits.exp()
    tensor([[0.5000, 0.5000]], dtype=torch.float64)
    """
    if not members:
        raise InputError("nothing to pool: give the predictions of at least one member")
    first = members[0]
    for member in members[1:]:
        if member.logits.shape != first.logits.shape or not torch.equal(member.labels, first.labels):
            raise InputError("the members must predict the same examples in the same order; their labels differ")
    stack = torch.stack([member.logits.double().log_softmax(-1) for member in members])
    mean = stack.logsumexp(0) - torch.log(torch.tensor(len(members), dtype=torch.float64))
    return Predictions(mean, first.labels, first.weights)


def fitted_on(calibrator: object) -> set[str]:
    """Digests of all predictions that a calibrator, or a calibrator inside it, was fitted on."""
    found: set[str] = set()
    if isinstance(calibrator, tuple):
        return found.union(*map(fitted_on, calibrator))  # pyright: ignore[reportUnknownArgumentType]
    if isinstance(calibrator, Certificate):
        return {calibrator.data} - {""}
    if is_dataclass(calibrator):
        found = found.union(*(fitted_on(getattr(calibrator, field.name)) for field in fields(calibrator)))
    return found


def calibrate(calibrator: Calibrator, predictions: Predictions, *, in_sample: bool = False) -> Predictions:
    """Apply a fitted calibrator to predictions that are to be judged.

    Raises `InputError` if they are the very predictions it was fitted on, whatever file they came from: in-sample
    scores flatter. `in_sample=True` asks for them all the same; `cross_fit` gives honest ones from the same data.
    """
    if not in_sample and predictions.digest in fitted_on(calibrator):
        raise InputError(
            f"{type(calibrator).__name__} was fitted on these very predictions ({predictions.digest}); judge it on "
            "others, use cross_fit, or say in_sample=True"
        )
    return Predictions(calibrator(predictions.logits), predictions.labels, predictions.weights)
