"""torchmetrics: calibration errors in bounded memory, the same for any number of processes."""

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from calibrant._validation.scores import SingleScoreEvidence
from calibrant.integrations._common import predictions_from_scores
from calibrant.metrics import Summary
from calibrant.predictions import EventSelector, Predictions


class CalibrationMetric(Metric):
    """A `metrics.Summary` as a torchmetrics metric.

    The state is 3.3 MB of integers for any number of examples. Processes synchronize by adding it, so that the result
    is the same to the last bit for any number of processes and any batches. `compute` returns a dictionary of the named
    metrics; `calibrant.measure(metric.summary)` has all of them with intervals.

    Args:
        names: Metrics that a summary supports, such as "ece" or "nll".
        bins: Number of bins.
        of: Event to evaluate. By default class 1 if `binary`, else the top class.
        ignore_index: Label of positions to leave out.
        binary: There is one logit per label, of any shape, for class 1.
        probs: Scores are probabilities instead of logits. With `binary` they are confidences, and labels say whether
            they were right.
        logits: Accept `binary` logits that all lie in [0, 1]. Otherwise `compute` refuses them if they do in all
            updates.
        kwargs: Options of `torchmetrics.Metric`.

    >>> metric = CalibrationMetric("accuracy", "ece")
    >>> metric.update(torch.zeros(4, 2), torch.tensor([0, 0, 0, 1]))
    >>> metric.compute()
    {'accuracy': tensor(0.7500, dtype=torch.float64), 'ece': tensor(0.2500, dtype=torch.float64)}
    >>> CalibrationMetric("ece", binary=True, probs=True)(torch.full((4,), 0.5), torch.tensor([0, 0, 0, 1]))
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
        self._checks_scores, self._is_in_forward = binary and not (probs or logits), False
        empty = Summary.empty(bins=bins, of=self.of)
        for name in self.names:
            empty[name]  # refuses an unknown metric, or one that needs every prediction, before the first epoch
        # A summary has slots of clusters, (3, sums, slots, bins), or None, which a state cannot be: zeros stand for it
        no_slots = torch.zeros(3, len(empty.sums[0]), Summary.NUM_SLOTS, bins, dtype=torch.int64)
        # The integers hold 26 bits each, so that their sum over processes does not overflow
        self.add_state("sums", empty.sums, dist_reduce_fx="sum")
        self.add_state("cells", empty.cells, dist_reduce_fx="sum")
        self.add_state("slots", no_slots, dist_reduce_fx="sum")
        self.add_state("classes", torch.tensor(0), dist_reduce_fx="max")
        # The evidence that binary logits are probabilities
        self.add_state("scores_inside", torch.tensor(0), dist_reduce_fx="sum")
        self.add_state("any_score_outside", torch.tensor(0), dist_reduce_fx="max")

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Add a batch, and return its values. `compute` alone refuses probabilities, by all batches."""
        self._is_in_forward = True
        try:
            return super().forward(*args, **kwargs)
        finally:
            self._is_in_forward = False

    def update(self, logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> None:
        """Add a batch of logits (n, k, d1, ...) with labels (n, d1, ...), validated like `Predictions`."""
        if self.ignore_index is not None and bool((labels == self.ignore_index).all()):
            return  # predictions need an example
        self._store(self.summary.add(self._to_predictions(logits, labels, weights)))

    def _to_predictions(self, scores: Tensor, labels: Tensor, weights: Tensor | None) -> Predictions:
        """Build predictions from logits or probabilities, and add binary logits to the evidence for probabilities."""
        if not self.probs:
            # Accept all logits here: `compute` refuses probabilities by the evidence of all batches
            p = predictions_from_scores(
                scores, labels, weights, binary=self.binary, logits=True, ignore_index=self.ignore_index
            )
            if self._checks_scores:
                evidence = SingleScoreEvidence().add_pairs(p.logits)
                state: Any = self
                state.scores_inside = state.scores_inside + evidence.num_inside
                state.any_score_outside = state.any_score_outside | evidence.any_outside
            return p
        if self.binary and scores.shape[1:2] != (1,):
            scores = scores.unsqueeze(1)  # the axis of classes
        return Predictions.from_probs(scores, labels, weights, ignore_index=self.ignore_index)

    def compute(self) -> dict[str, Tensor]:
        """Return the named values over all processes."""
        if self._checks_scores and not self._is_in_forward:
            state: Any = self
            evidence = SingleScoreEvidence()
            evidence.num_inside, evidence.any_outside = int(state.scores_inside), bool(state.any_score_outside)
            evidence.check("probs=True")
        summary = self.summary
        return {name: torch.tensor(summary[name], dtype=torch.float64, device=self.device) for name in self.names}

    @property
    def summary(self) -> Summary:
        """The state as a summary."""
        state: Any = self  # `add_state` sets attributes that type checkers do not know
        slots = state.slots if bool(state.slots.any()) else None
        accumulated = Summary(int(state.classes), self.bins, state.sums, slots, cells=state.cells, of=self.of)
        # An addition carries over the integers, which can have more than 26 bits after a sum over processes
        return accumulated + Summary.empty(bins=self.bins, of=self.of, device=self.device)

    def _store(self, summary: Summary) -> None:
        """Make a summary the state. Slots of clusters are zeros if it has none."""
        self.sums, self.cells = summary.sums, summary.cells
        self.slots = torch.zeros_like(self.slots) if summary.slots is None else summary.slots
        self.classes = torch.tensor(summary.k, device=self.device)
