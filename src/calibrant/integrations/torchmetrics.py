"""torchmetrics: calibration errors in bounded memory, the same on any number of processes."""

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from calibrant.metrics import Summary
from calibrant.predictions import Of, Predictions

__all__ = ["Calibration"]


class Calibration(Metric):
    """A `metrics.Summary` as a `torchmetrics.Metric`: `update(logits, labels)`, `compute()` of the named values.

    The state is 3.3 MB of integers whatever was seen; processes synchronize by adding it up, so that the result is
    the same to the last bit for any number of them and any split of the batches. `compute` returns a dictionary of
    the metrics that are named; `calibrant.measure(metric.summary)` has all of them with their intervals. Logits may
    have shape (n, k, d1, ...); labels of `ignore_index` are left out. `of` is the event that is judged.

    >>> metric = Calibration("accuracy", "ece")
    >>> metric.update(torch.zeros(4, 2), torch.tensor([0, 0, 0, 1]))
    >>> metric.compute()
    {'accuracy': tensor(0.7500, dtype=torch.float64), 'ece': tensor(0.2500, dtype=torch.float64)}
    """

    full_state_update = False
    is_differentiable = False

    def __init__(
        self,
        *names: str,
        bins: int = 15,
        of: Of = "top",
        ignore_index: int | None = -100,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.names = names or ("accuracy", "nll", "brier", "ece", "adaptive_ece", "kuiper", "smooth_ece")
        self.bins, self.ignore_index = bins, ignore_index
        self.of: Of = of
        empty = Summary.empty(bins=bins, of=of)
        self.add_state("sums", empty.sums, dist_reduce_fx="sum")  # words of 26 bits: any number of processes
        self.add_state("cells", empty.cells, dist_reduce_fx="sum")
        none = torch.zeros(3, len(empty.sums[0]), Summary.SLOTS, bins, dtype=torch.int64)
        self.add_state(
            "slots", none, dist_reduce_fx="sum"
        )  # of examples in clusters, such as the positions of an image
        self.add_state("classes", torch.tensor(0), dist_reduce_fx="max")

    def update(self, logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> None:
        """Add one batch, checked as `Predictions` checks it."""
        if self.ignore_index is not None and bool((labels == self.ignore_index).all()):
            return
        self._keep(self.summary.add(Predictions(logits, labels, weights, ignore_index=self.ignore_index)))

    def compute(self) -> dict[str, Tensor]:
        """The named values, over all processes."""
        summary = self.summary
        return {name: torch.tensor(summary[name], dtype=torch.float64, device=self.device) for name in self.names}

    @property
    def summary(self) -> Summary:
        """The state as a summary."""
        state: Any = self
        slots = state.slots if bool(state.slots.any()) else None
        seen = Summary(int(state.classes), self.bins, state.sums, state.cells, self.of, slots=slots)
        return seen + Summary.empty(bins=self.bins, of=self.of, device=self.device)

    def _keep(self, summary: Summary) -> None:
        self.sums, self.cells = summary.sums, summary.cells
        self.slots = torch.zeros_like(self.slots) if summary.slots is None else summary.slots
        self.classes = torch.tensor(summary.k, device=self.device)
