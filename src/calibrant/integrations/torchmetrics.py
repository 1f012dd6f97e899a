"""torchmetrics: calibration errors in bounded memory, the same on any number of processes."""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from calibrant._validation.scores import SingleScoreEvidence
from calibrant.metrics import Summary
from calibrant.predictions import EventSelector, Predictions
from calibrant.types import InputError

__all__ = ["Calibration"]


class Calibration(Metric):
    """A `metrics.Summary` as a `torchmetrics.Metric`: `update(logits, labels)`, `compute()` of the named values.

    The state is 3.3 MB of integers whatever was seen; processes synchronize by adding it up, so that the result is
    the same to the last bit for any number of them and any split of the batches. `compute` returns a dictionary of
    the metrics that are named; `calibrant.measure(metric.summary)` has all of them with their intervals. Logits may
    have shape (n, k, d1, ...); labels of `ignore_index` are left out. `of` is the event that is judged.

    `binary` says that there is one logit for each label, of whatever shape, whose class 1 is judged unless `of` says
    otherwise; `probs`, that probabilities are given instead of logits. With both, a confidence and whether it was right
    are given as language models and detectors have them. Where all single scores of all updates lie in [0, 1],
    `compute` refuses them unless `probs` or `logits` says what they are.

    >>> metric = Calibration("accuracy", "ece")
    >>> metric.update(torch.zeros(4, 2), torch.tensor([0, 0, 0, 1]))
    >>> metric.compute()
    {'accuracy': tensor(0.7500, dtype=torch.float64), 'ece': tensor(0.2500, dtype=torch.float64)}
    >>> Calibration("ece", binary=True, probs=True)(torch.full((4,), 0.5), torch.tensor([0, 0, 0, 1]))
    {'ece': tensor(0.2500, dtype=torch.float64)}
    """

    full_state_update = False
    is_differentiable = False

    def __init__(
        self,
        *names: str,
        bins: int = 15,
        of: EventSelector | None = None,
        ignore_index: int | None = -100,
        binary: bool = False,
        probs: bool = False,
        logits: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.names = names or ("accuracy", "nll", "brier", "ece", "adaptive_ece", "kuiper", "smooth_ece")
        self.bins, self.ignore_index, self.binary, self.probs = bins, ignore_index, binary, probs
        self.of: EventSelector = (1 if binary else "top") if of is None else of
        self._single_scores = None if probs or logits or not binary else SingleScoreEvidence()
        empty = Summary.empty(bins=bins, of=self.of)
        self.add_state("sums", empty.sums, dist_reduce_fx="sum")  # words of 26 bits: any number of processes
        self.add_state("cells", empty.cells, dist_reduce_fx="sum")
        empty_slots = torch.zeros(3, len(empty.sums[0]), Summary.NUM_SLOTS, bins, dtype=torch.int64)
        self.add_state(
            "slots", empty_slots, dist_reduce_fx="sum"
        )  # of examples in clusters, such as the positions of an image
        self.add_state("classes", torch.tensor(0), dist_reduce_fx="max")

    def update(self, logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> None:
        """Add one batch, checked as `Predictions` checks it."""
        if self.ignore_index is not None and bool((labels == self.ignore_index).all()):
            return
        self._store(self.summary.add(self._to_predictions(logits, labels, weights)))

    def _to_predictions(self, scores: Tensor, labels: Tensor, weights: Tensor | None) -> Predictions:
        if not self.probs:
            make_predictions = partial(Predictions.from_binary_logits, logits=True) if self.binary else Predictions
            p = make_predictions(scores, labels, weights, ignore_index=self.ignore_index)
            if self._single_scores is not None:
                self._single_scores.add_pairs(p.logits)
            return p
        if self.binary:
            if scores.numel() != labels.numel():
                raise InputError(
                    f"need one probability per label, got {tuple(scores.shape)} and {tuple(labels.shape)}", code="shape"
                )
            scores, labels = scores.flatten(), labels.flatten()
            weights = None if weights is None else weights.flatten()
        return Predictions.from_probs(scores, labels, weights, ignore_index=self.ignore_index)

    def compute(self) -> dict[str, Tensor]:
        """The named values, over all processes."""
        if self._single_scores is not None:
            self._single_scores.check("probs=True")
        summary = self.summary
        return {name: torch.tensor(summary[name], dtype=torch.float64, device=self.device) for name in self.names}

    @property
    def summary(self) -> Summary:
        """The state as a summary."""
        state: Any = self
        slots = state.slots if bool(state.slots.any()) else None
        accumulated = Summary(int(state.classes), self.bins, state.sums, state.cells, self.of, slots=slots)
        return accumulated + Summary.empty(bins=self.bins, of=self.of, device=self.device)

    def _store(self, summary: Summary) -> None:
        self.sums, self.cells = summary.sums, summary.cells
        self.slots = torch.zeros_like(self.slots) if summary.slots is None else summary.slots
        self.classes = torch.tensor(summary.k, device=self.device)
