"""Losses that change between epochs: frozen values that return their successor.

`state_dict` and `with_state_dict` carry the changing part through a checkpoint. The functions `state`, `restore_state`
and `for_epochs` accept any loss, with or without state.
"""

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import Annotated, Any, Literal, TypeVar

import torch
from torch import Tensor

from calibrant._core import registry
from calibrant._core.arrays import to_numpy
from calibrant._core.kernels.bins import Bins, equal_width_edges, mukhoti_edges
from calibrant._core.registry import LOSSES
from calibrant._core.types import (
    Count,
    InputError,
    Logits,
    NonNegativeFloat,
    PerExampleLoss,
    Range,
    StatefulLoss,
    Targets,
)
from calibrant.losses._focal import check_schedule, focal, power
from calibrant.losses._likelihood import one_minus_p, weighted_cross_entropy
from calibrant.predictions import Predictions

__all__ = ["AdaFocal", "Scheduled"]

AnyLoss = TypeVar("AnyLoss")
ClosedShare = Annotated[float, Range(ge=0, le=1)]


@LOSSES.register
@dataclass(frozen=True, eq=False)
class Scheduled:
    """Focal loss whose gamma follows a schedule over the epochs (Mukhoti et al. 2020, section 5).

    Equals `focal` if all gammas are equal.

    Args:
        epoch: Number of epochs that have passed.
        gammas: gammas[i] applies from the share shares[i - 1] of all epochs on. (5, 3, 2) is the paper's; (5, 3, 1) is
            its other schedule.
        shares: Shares of all epochs at which gamma changes, increasing. 2/7 and 5/7 are epochs 100 and 250 of the
            paper's 350, and 14 and 35 of its 50 on 20 Newsgroups. Tiny-ImageNet uses 0.3 and 0.7.
        epochs: Number of epochs of the training. Trainers set it by `for_epochs`.

    >>> loss = Scheduled(epochs=7)
    >>> for epoch in range(2):
    ...     loss = loss.after_epoch(epoch)
    >>> loss.gamma
    3.0
    """

    epoch: int = 0
    _: KW_ONLY
    gammas: tuple[NonNegativeFloat, ...] = (5.0, 3.0, 2.0)
    shares: tuple[ClosedShare, ...] = (2 / 7, 5 / 7)
    epochs: Count | None = None

    def __post_init__(self) -> None:
        registry.check_settings(Scheduled, {name: getattr(self, name) for name in ("gammas", "shares", "epochs")})
        check_schedule("shares", self.shares, self.gammas)

    @property
    def gamma(self) -> float:
        """Gamma of the current epoch."""
        if self.epochs is None:  # before training, as `after_epoch` needs the number of epochs
            return self.gammas[0]
        # 1e-9 absorbs the rounding of a product that is a whole number of epochs
        change_epochs = [math.floor(share * self.epochs + 1e-9) for share in self.shares]
        num_changes = sum(self.epoch >= change_epoch for change_epoch in change_epochs)
        return self.gammas[num_changes]

    def __call__(self, logits: Logits, labels: Targets) -> PerExampleLoss:
        """Return focal loss with the current gamma."""
        return focal(logits, labels, gamma=self.gamma)

    def after_epoch(self, epoch: int, val: Predictions | None = None) -> "Scheduled":
        """Return the loss of the epoch after `epoch`, counted from 0. Validation is not used."""
        if self.epochs is None:
            raise InputError("Expected the number of epochs, got None. Try Scheduled(epochs=...).", code="num_epochs")
        return replace(self, epoch=epoch + 1)

    def for_epochs(self, epochs: int) -> "Scheduled":
        """Return the loss with the number of epochs, unless it is set already."""
        return self if self.epochs is not None else replace(self, epochs=epochs)

    def state_dict(self) -> dict[str, Any]:
        """Return the number of epochs that have passed, which is all that changes in training."""
        return {"epoch": self.epoch}

    def with_state_dict(self, state: Mapping[str, Any]) -> "Scheduled":
        """Return a copy with a state that `state_dict` returned."""
        return replace(self, **state)


@LOSSES.register
@dataclass(frozen=True, eq=False)
class AdaFocal:
    r"""AdaFocal: one gamma per confidence bin, driven by the calibration error of the bin (Ghosh et al. 2022).

    A sample whose true class has probability p in bin b has the loss $-(1 - p)^{\gamma_b} \log p$ for gamma_b > 0, and
    the inverse focal loss $-(1 + p)^{|\gamma_b|} \log p$ otherwise. After every epoch, in this order:

    - bins: equal-mass edges of the validation confidence (top label), interpolated as by the authors. A training sample
      belongs to [edge_b, edge_{b+1}), or to the first or last bin if it lies outside.
    - update: $\gamma_b \leftarrow \gamma_b \exp(\pm \lambda (conf_b - acc_b))$, with the sign of gamma_b. gamma stays
      with the index of the bin while edges move. An empty bin keeps its gamma.
    - switch: $|\gamma_b|$ below `switch` becomes $\mp$ `switch`, from focal to inverse focal loss or back.
    - clip to [`lowest`, `highest`].

    The first epoch is focal loss with gamma = 1 in equal-width bins. The defaults are the paper's. `edges` (b + 1) and
    `gamma` (b), both float64, are the whole state.

    Args:
        edges: Edges of the bins; equal width by default.
        gamma: Gamma of every bin; `start` by default.
        bins: Number of bins.
        rate: $\lambda$.
        start: First gamma of every bin.
        switch: Smallest absolute gamma.
        lowest: Lower limit of gamma, above -3.5911, the limit of `inverse_focal`.
        highest: Upper limit of gamma.
        scheme: "equal_mass" as in the paper, or "equal_width" to keep the first bins.
        every: Update gammas within an epoch instead of after it, as an option of the authors' code does: after the
            batches `every`, 2 `every`, ..., counted from 0 in every epoch, each time on all of validation. Trainers
            that do not validate within an epoch ignore it.

    >>> loss = AdaFocal(bins=2)
    >>> # all wrong; of the confidences .731 .881 .953 .982 the lowest is left out, the first bin has the next two
    >>> overconfident = Predictions([[3.0, 0.0], [2.0, 0.0], [1.0, 0.0], [4.0, 0.0]], [1, 1, 1, 1])
    >>> loss.after_epoch(0, overconfident).gamma
    tensor([2.5010, 2.6698], dtype=torch.float64)
    """

    edges: Tensor = None  # pyright: ignore[reportAssignmentType]  # set by __post_init__
    gamma: Tensor = None  # pyright: ignore[reportAssignmentType]
    _: KW_ONLY
    bins: Count = 15
    rate: NonNegativeFloat = 1.0
    start: float = 1.0
    switch: NonNegativeFloat = 0.2
    lowest: float = -2.0
    highest: float = 20.0
    scheme: Literal["equal_mass", "equal_width"] = "equal_mass"
    every: Count | None = None

    def __post_init__(self) -> None:
        """Validate the settings, and set the edges and gammas of the first epoch if they are not given."""
        registry.check_settings(AdaFocal, {name: getattr(self, name) for name in registry.hyperparameters(AdaFocal)})
        if not -3.5911 < self.lowest < self.highest or not self.lowest <= self.start <= self.highest:
            raise InputError(
                f"Expected -3.5911 < lowest < highest and start between them, got lowest={self.lowest}, "
                f"start={self.start}, highest={self.highest}; -3.5911 is the limit of inverse_focal. Try AdaFocal(), "
                "the paper's limits.",
                code="adafocal_limits",
            )
        gamma = torch.full((self.bins,), self.start, dtype=torch.float64)
        for name, default in (("edges", torch.from_numpy(equal_width_edges(self.bins))), ("gamma", gamma)):
            if getattr(self, name) is None:
                object.__setattr__(self, name, default)  # a frozen dataclass refuses self.name = default
            elif (shape := getattr(self, name).shape) != default.shape:
                raise InputError(
                    f"Expected {name} of {self.bins} bins {tuple(default.shape)}, got {tuple(shape)}.",
                    code="adafocal_state",
                )

    def gamma_of(self, p: Tensor) -> Tensor:
        """Return gamma of the bin that contains p, the probability of the true class, elementwise."""
        inner_edges = self.edges[1:-1].to(p.device)  # p beyond the outer edges belongs to the first or last bin
        # in float64 like the edges; p = edge_b is in b
        return self.gamma.to(p)[torch.bucketize(p.double(), inner_edges, right=True)]

    def __call__(self, logits: Logits, labels: Targets) -> PerExampleLoss:
        """Return the focal, or inverse focal, loss with the gamma of each sample."""

        def weight(log_p: Tensor) -> Tensor:
            """Return the weight of focal loss where gamma > 0, and of inverse focal loss elsewhere."""
            gamma = self.gamma_of(log_p.detach().exp())  # detached: bins are chosen without a gradient
            base = torch.where(gamma > 0, one_minus_p(log_p), 1 + log_p.exp())
            return power(base, gamma.abs())

        return weighted_cross_entropy(logits, labels, weight)

    def after_epoch(self, epoch: int, val: Predictions | None = None) -> "AdaFocal":
        """Return the loss of the next epoch: gammas rise in overconfident bins and fall in the others.

        With `every`, gammas change within the epoch instead, and this is the same loss.
        """
        if self.every is not None:
            return self
        if val is None:
            raise InputError(
                "Expected validation predictions after the epoch, got None. Try after_epoch(epoch, val).",
                code="no_validation",
            )
        return self.update(val)

    @property
    def needs_validation(self) -> bool:
        """Whether `after_epoch` needs validation predictions."""
        return self.every is None

    def is_due(self, batch: int) -> bool:
        """Return whether gammas change after this batch of an epoch, counted from 0."""
        return self.every is not None and batch > 0 and batch % self.every == 0

    def update(self, val: Predictions) -> "AdaFocal":
        """Return the loss with gammas updated by the calibration error of each bin on validation predictions."""
        top = val.with_event("top").events
        edges = to_numpy(self.edges)
        if self.scheme == "equal_mass":
            edges = mukhoti_edges(top.confidence, len(self.gamma), top.weights)
        bins = Bins.from_edges(edges, top.confidence, top.outcome, top.weights)
        edges, overconfidence = (torch.from_numpy(x).to(self.edges) for x in (edges, -bins.gap))
        sign = torch.where(self.gamma > 0, 1.0, -1.0).to(edges)
        gamma = self.gamma * (sign * self.rate * overconfidence).exp()  # rises by a factor if overconfident, else falls
        gamma = gamma.where(gamma.abs() >= self.switch, -self.switch * sign)  # to the other side of 0
        return replace(self, edges=edges, gamma=gamma.clamp(self.lowest, self.highest))

    def state_dict(self) -> dict[str, Any]:
        """Return the edges and gammas of the bins."""
        return {"edges": self.edges, "gamma": self.gamma}

    def with_state_dict(self, state: Mapping[str, Any]) -> "AdaFocal":
        """Return a copy with a state that `state_dict` returned."""
        return replace(self, **state)


def state(loss: Any) -> dict[str, Any]:
    """Return the state of a loss as a dict of tensors and numbers, which is empty for a loss without state.

    >>> state(Scheduled(3))
    {'epoch': 3}
    """
    return dict(loss.state_dict()) if isinstance(loss, StatefulLoss) else {}


def restore_state(loss: AnyLoss, saved: Mapping[str, Any]) -> AnyLoss:
    """Return the loss with a state that `state` returned for the same loss.

    Raises:
        InputError: If the state has other keys than the state of this loss.

    >>> restore_state(Scheduled(epochs=7), {"epoch": 6}).gamma
    2.0
    """
    current = state(loss)
    if set(saved) != set(current):
        name = getattr(loss, "__name__", type(loss).__name__)
        raise InputError(
            f"Expected a state of {name} with keys {sorted(current)}, got {sorted(saved)}.", code="state_keys"
        )
    if not current:  # a loss without state has no method with_state_dict
        return loss
    return loss.with_state_dict(saved)  # pyright: ignore


def needs_validation(loss: Any) -> bool:
    """Return whether the method `after_epoch` of a loss needs validation predictions.

    >>> needs_validation(AdaFocal()), needs_validation(Scheduled())
    (True, False)
    """
    return bool(getattr(loss, "needs_validation", False))


def for_epochs(loss: AnyLoss, epochs: int) -> AnyLoss:
    """Return the loss with the number of epochs, if it has a method `for_epochs`.

    >>> for_epochs(Scheduled(), 90).epochs
    90
    """
    set_epochs = getattr(loss, "for_epochs", None)
    return loss if set_epochs is None else set_epochs(epochs)
