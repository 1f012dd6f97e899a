"""torchmetrics: calibration errors in bounded memory, the same for any number of processes."""

import hashlib
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torchmetrics import Metric

from calibrant._core.arrays import to_numpy
from calibrant._core.types import Count, check_arguments
from calibrant.integrations._common import (
    have_new_ids,
    num_process_examples,
    num_processes,
    warn_padding_counts,
)
from calibrant.metrics import Summary
from calibrant.predictions import EventSelector, Predictions
from calibrant.predictions.validation.scores import SingleScoreEvidence


class CalibrationMetric(Metric):
    """A `metrics.Summary` as a torchmetrics metric.

    The state is 3.3 MB of integers for any number of examples. Processes synchronize by adding it, so that the result
    is the same to the last bit for any number of processes and any batches. `compute` returns the value of a
    single name, which `LightningModule.log` accepts, or a dictionary of several. `calibrant.measure(metric.summary)`
    has all metrics with intervals. In a `MetricCollection`, metrics with equal settings share one state.

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
        num_examples: Number of examples, or images, of the data set. With several processes, `DistributedSampler`
            copies some of them, to give all processes equally many; they are then left out. Without it, and without
            `ids` in `update`, `compute` warns that they are counted.
        kwargs: Options of `torchmetrics.Metric`.

    >>> metric = CalibrationMetric("accuracy", "ece")
    >>> metric.update(torch.zeros(4, 2), torch.tensor([0, 0, 0, 1]))
    >>> metric.compute()
    {'accuracy': tensor(0.7500, dtype=torch.float64), 'ece': tensor(0.2500, dtype=torch.float64)}
    >>> CalibrationMetric("ece", binary=True, probs=True)(torch.full((4,), 0.5), torch.tensor([0, 0, 0, 1]))
    tensor(0.2500, dtype=torch.float64)
    """

    full_state_update = False
    is_differentiable = False

    @check_arguments
    def __init__(
        self,
        *names: str,
        bins: Count = 15,
        of: EventSelector | None = None,
        ignore_index: int | None = -100,
        binary: bool = False,
        probs: bool = False,
        logits: bool = False,
        num_examples: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.names = names or ("accuracy", "nll", "brier", "ece", "adaptive_ece", "kuiper", "smooth_ece")
        self.bins, self.ignore_index, self.binary, self.probs = bins, ignore_index, binary, probs
        self.of: EventSelector = (1 if binary else "top") if of is None else of
        self._checks_scores, self._is_in_forward = binary and not (probs or logits), False
        self.num_examples, self._num_seen = num_examples, 0
        self._seen_ids = set[Any]()
        empty = Summary.empty(bins=bins, of=self.of)
        for name in self.names:
            empty[name]  # refuses an unknown metric, or one that needs every prediction, before the first epoch
        # A summary has slots of clusters, (3, sums, slots, bins), or None, which a state cannot be: zeros stand for it
        no_slots = torch.zeros(3, len(empty.sums[0]), Summary.NUM_SLOTS, bins, dtype=torch.int64)
        # `MetricCollection` lets metrics with equal states share them from then on, so settings are part of the state
        settings = (bins, self.of, ignore_index, binary, probs, logits, num_examples)
        digest = hashlib.sha256(repr(settings).encode()).digest()
        self.add_state("settings", torch.tensor(list(digest)), dist_reduce_fx="max")
        # The integers hold 26 bits each, so that their sum over processes does not overflow
        self.add_state("sums", torch.from_numpy(empty.sums), dist_reduce_fx="sum")
        self.add_state("cells", torch.from_numpy(empty.cells), dist_reduce_fx="sum")
        self.add_state("slots", no_slots, dist_reduce_fx="sum")
        self.add_state("classes", torch.tensor(0), dist_reduce_fx="max")
        # The evidence that binary logits are probabilities
        self.add_state("scores_inside", torch.tensor(0), dist_reduce_fx="sum")
        self.add_state("any_score_outside", torch.tensor(0), dist_reduce_fx="max")

    def forward(self, *args: Any, **kwargs: Any) -> Tensor | dict[str, Tensor]:
        """Add a batch, and return its values. `compute` alone refuses probabilities, by all batches."""
        self._is_in_forward = True
        try:
            return super().forward(*args, **kwargs)
        finally:
            self._is_in_forward = False

    def update(self, logits: Tensor, labels: Tensor, weights: Tensor | None = None, ids: Any = None) -> None:
        """Add a batch of logits (n, k, d1, ...) with labels (n, d1, ...), validated like `Predictions`.

        With `ids`, numbers or texts (n), an example counts once in all processes, whatever the sampler. All processes
        then need equally many batches.
        """
        logits, labels, weights = self._without_copies(logits, labels, weights, ids)
        if not len(labels) or (self.ignore_index is not None and bool((labels == self.ignore_index).all())):
            return  # predictions need an example
        self._store(self.summary.add(self._to_predictions(logits, labels, weights)))

    def _to_predictions(self, scores: Tensor, labels: Tensor, weights: Tensor | None) -> Predictions:
        """Build predictions from logits or probabilities, and add binary logits to the evidence for probabilities."""
        if not self.probs:
            # Accept all logits here: `compute` refuses probabilities by the evidence of all batches
            if not self.binary:
                return Predictions(scores, labels, weights, ignore_index=self.ignore_index)
            p = Predictions.from_binary_logits(scores, labels, weights, logits=True, ignore_index=self.ignore_index)
            if self._checks_scores:
                evidence = SingleScoreEvidence().add_pairs(p.logits)
                state: Any = self
                state.scores_inside = state.scores_inside + evidence.num_inside
                state.any_score_outside = state.any_score_outside | evidence.any_outside
            return p
        if self.binary and scores.shape[1:2] != (1,):
            scores = scores.unsqueeze(1)  # the axis of classes
        return Predictions.from_probs(scores, labels, weights, ignore_index=self.ignore_index)

    def _without_copies(
        self, logits: Tensor, labels: Tensor, weights: Tensor | None, ids: Any
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the examples of a batch that are not copies, by id or by position in the data of this process."""
        if ids is not None:
            are_counted = have_new_ids(ids, len(labels), self._seen_ids).to(labels.device)
        elif self.num_examples is None or num_processes() == 1:
            return logits, labels, weights
        else:
            limit = num_process_examples(self.num_examples, dist.get_rank(), num_processes())
            are_counted = torch.arange(self._num_seen, self._num_seen + len(labels), device=labels.device) < limit
            self._num_seen += len(labels)
        return logits[are_counted], labels[are_counted], None if weights is None else weights[are_counted]

    def reset(self) -> None:
        """Forget all examples."""
        super().reset()
        if not self._is_in_forward:  # which resets the state for the values of a batch
            self._num_seen = 0
            self._seen_ids.clear()

    def compute(self) -> Tensor | dict[str, Tensor]:
        """Return the values over all processes: of the single name, or by name."""
        if self.num_examples is None and not self._seen_ids and num_processes() > 1 and not self._is_in_forward:
            warn_padding_counts("num_examples=, the number of examples of the data set, or ids= in update")
        if self._checks_scores and not self._is_in_forward:
            state: Any = self
            evidence = SingleScoreEvidence()
            evidence.num_inside, evidence.any_outside = int(state.scores_inside), bool(state.any_score_outside)
            evidence.check("probs=True")
        summary = self.summary
        values = {name: torch.tensor(summary[name], dtype=torch.float64) for name in self.names}
        return values[self.names[0]] if len(self.names) == 1 else values

    @property
    def summary(self) -> Summary:
        """The state as a summary."""
        state: Any = self  # `add_state` sets attributes that type checkers do not know
        sums, cells, slots = (to_numpy(x) for x in (state.sums, state.cells, state.slots))
        slots = slots if slots.any() else None
        accumulated = Summary(int(state.classes), self.bins, sums, slots, cells=cells, of=self.of)
        # An addition carries over the integers, which can have more than 26 bits after a sum over processes
        return accumulated + Summary.empty(bins=self.bins, of=self.of)

    def _store(self, summary: Summary) -> None:
        """Make a summary the state. Slots of clusters are zeros if it has none."""
        self.sums, self.cells = (torch.from_numpy(x).to(self.device) for x in (summary.sums, summary.cells))
        slots = summary.slots
        self.slots = torch.zeros_like(self.slots) if slots is None else torch.from_numpy(slots).to(self.device)
        self.classes = torch.tensor(summary.k)
