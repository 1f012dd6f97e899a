r"""Recalibration that is updated by batches, with its regret against the best fixed map in hindsight.

The map is a mixture of scaled logits, $q = \sum_m w_m \mathrm{softmax}(a_m z + b_m)$, whose weights are multiplied by
the likelihood of each label: mirror descent with the entropy as regularizer. Log loss is mixable, so that its total is
at most $\log M$ above the total of the best of the M maps, on every sequence of labels (Vovk 1990; Cesa-Bianchi and
Lugosi 2006, section 3.3). A share of the weight that is spread over all maps after each row lets the mixture follow
changes (Herbster and Warmuth 1998).
"""

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from calibrant._core.types import InputError, Logits
from calibrant.predictions import as_predictions

NUM_TEMPERATURES = 33  # from 1/4 to 4
BINARY_GRID = 17, 21  # slopes from 1/4 to 4, shifts from -2 to 2
MAX_LOGITS = 4_000_000  # scaled at once


class FixedMap(NamedTuple):
    """A map that multiplies logits by `slope` and, for two classes, adds `shift` to the second logit."""

    slope: float
    shift: float


@dataclass(frozen=True, eq=False, repr=False)
class OnlineScaling:
    """A mixture of maps that scale logits, updated by batches in the order of prediction.

    Binary logits are scaled and shifted, others only scaled. Call it to recalibrate logits, and `update` it with
    labels.

    >>> scaling = OnlineScaling.start(k=2)
    >>> z = torch.tensor([[0.0, 3.0]]).repeat(200, 1)
    >>> scaling = scaling.update(z, torch.arange(200) % 2)
    >>> scaling(z[:1]).softmax(1).round(decimals=2), scaling.regret <= scaling.regret_bound
    (tensor([[0.5000, 0.5000]], dtype=torch.float64), True)
    """

    k: int
    share: float  # of the weight that is spread over all maps after each row
    slopes: Tensor  # (m)
    shifts: Tensor  # (m)
    log_weights: Tensor  # (m)
    losses: Tensor  # (m) total log loss of each map
    rows: int = 0
    loss: float = 0.0  # total log loss of the mixture, updated after every row
    batch_loss: float = 0.0  # total log loss of the mixture as it was before each batch

    @classmethod
    def start(cls, k: int, *, share: float = 0.0) -> "OnlineScaling":
        """Return the mixture of a grid of maps with equal weights: slopes, and shifts as well for two classes.

        Args:
            k: Number of classes.
            share: Share of the weight that is spread over all maps after each row, such as 0.001. With 0, the mixture
                converges to one fixed map.
        """
        if k < 2 or not 0 <= share < 1:
            raise InputError(f"Expected k of at least 2 and 0 <= share < 1, got k={k} and {share:g}.", code="settings")
        if k == 2:
            num_slopes, num_shifts = BINARY_GRID
            shifts = torch.linspace(-2, 2, num_shifts, dtype=torch.float64)
            slopes, shifts = (x.flatten() for x in torch.meshgrid(_slope_grid(num_slopes), shifts, indexing="ij"))
        else:
            slopes = _slope_grid(NUM_TEMPERATURES)
            shifts = torch.zeros_like(slopes)
        log_weights = torch.full_like(slopes, -math.log(len(slopes)))
        return cls(k, share, slopes, shifts, log_weights, losses=torch.zeros_like(slopes))

    def __repr__(self) -> str:
        return f"OnlineScaling(k={self.k}, rows={self.rows:,}, maps={len(self.slopes)}, regret={self.regret:.4g})"

    def __call__(self, logits: Logits) -> Logits:
        """Return the log-probabilities of the mixture for any number of samples."""
        z = self._check_classes(logits)
        used = self.log_weights > -40  # smaller weights, below e^-40 = 4e-18, do not change a float64
        log_weights = self.log_weights[used, None, None]
        chunks = z.split(max(1, MAX_LOGITS // (self.k * len(log_weights))))
        return torch.cat([torch.logsumexp(self._log_probs(chunk, used) + log_weights, dim=0) for chunk in chunks])

    def update(self, predictions: Any, labels: Any = None) -> "OnlineScaling":
        """Return the mixture after one more batch. Batches come in the order of prediction.

        Args:
            predictions: Uncalibrated predictions; or logits, with `labels`.
            labels: Labels of the logits.

        Raises:
            InputError: For weights, and another number of classes.
        """
        with as_predictions(predictions, labels) as p:
            if p.weights is not None:
                raise InputError("Expected predictions without weights. Try one row per sample.", code="weights")
            z, y = self._check_classes(p.logits), p.labels
            step = max(1, MAX_LOGITS // (self.k * len(self.slopes)))
            parts: list[Tensor] = []
            for chunk, chunk_labels in zip(z.split(step), y.split(step), strict=True):
                log_probs = self._log_probs(chunk, maps=slice(None))  # (m n k)
                parts.append(log_probs[:, torch.arange(len(chunk)), chunk_labels])
        log_likelihoods = torch.cat(parts, dim=1)  # (m n)
        batch_loss = -float(torch.logsumexp(log_likelihoods + self.log_weights[:, None], dim=0).sum())
        log_weights, loss = self._update_weights(log_likelihoods)
        return replace(
            self,
            log_weights=log_weights,
            losses=self.losses - log_likelihoods.sum(1),
            rows=self.rows + len(y),
            loss=self.loss + loss,
            batch_loss=self.batch_loss + batch_loss,
        )

    @property
    def best_fixed_map(self) -> FixedMap:
        """The map of the grid with the smallest loss in hindsight."""
        best = int(self.losses.argmin())
        return FixedMap(float(self.slopes[best]), float(self.shifts[best]))

    @property
    def regret(self) -> float:
        """Total log loss of the mixture, updated after every row, minus the total log loss of the best fixed map."""
        return self.loss - float(self.losses.min())

    @property
    def batch_regret(self) -> float:
        """Total log loss of the mixture, updated after every batch, minus the total log loss of the best fixed map."""
        return self.batch_loss - float(self.losses.min())

    @property
    def regret_bound(self) -> float:
        """Upper limit of `regret` on every sequence of labels, log M - (n - 1) log(1 - share)."""
        return math.log(len(self.slopes)) - max(0, self.rows - 1) * math.log1p(-self.share)

    def _check_classes(self, logits: Any) -> Tensor:
        """Return logits in float64, or raise `InputError` for another shape than (n, k)."""
        z = torch.as_tensor(logits, dtype=torch.float64)
        if z.ndim != 2 or z.shape[1] != self.k:
            raise InputError(f"Expected logits (n, {self.k}), got {tuple(z.shape)}.", code="num_classes")
        return z

    def _log_probs(self, z: Tensor, maps: Tensor | slice) -> Tensor:
        """Return the log-probabilities that the selected maps give logits z (n k), (m n k)."""
        scaled = z * self.slopes[maps, None, None]
        if self.k == 2:  # the second logit is shifted
            scaled[..., 1] += self.shifts[maps, None]
        return scaled.log_softmax(-1)

    def _update_weights(self, log_likelihoods: Tensor) -> tuple[Tensor, float]:
        """Return the log weights after all rows, and the loss of the mixture, by fixed share (Herbster & Warmuth 1998).

        After each row, weights are multiplied by the likelihood and divided by their sum, which is the likelihood of
        the mixture. Then each keeps 1 - `share`, and `share` is spread evenly over all maps.

        Args:
            log_likelihoods: Log-likelihood of every row under every map (m n).
        """
        log_weights = self.log_weights
        if self.share == 0:  # the losses of single rows sum to the loss of all rows at once
            log_weights = log_weights + log_likelihoods.sum(1)
            log_total = torch.logsumexp(log_weights, 0)
            return log_weights - log_total, -float(log_total)
        loss = 0.0
        log_kept = math.log1p(-self.share)
        log_spread = torch.tensor(math.log(self.share / len(self.slopes)), dtype=torch.float64)  # added to each map
        for log_likelihood in log_likelihoods.T:
            log_weights = log_weights + log_likelihood
            log_total = torch.logsumexp(log_weights, 0)
            loss -= float(log_total)
            log_weights = torch.logaddexp(log_weights - log_total + log_kept, log_spread)
        return log_weights, loss


def _slope_grid(n: int) -> Tensor:
    """Return n geometrically spaced slopes from 1/4 to 4."""
    return torch.linspace(-math.log(4), math.log(4), n, dtype=torch.float64).exp()
