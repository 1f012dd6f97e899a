"""What may be watched while a network learns: a trace is (watched, ...) -> the numbers of one epoch, by name.

Numbers are floats, lists of floats, or text; they become columns of a run's history. Nothing here changes the training.
A study lists traces such as "calibration(split='test')"; `registry.TRACES.register` adds one of your own.
"""

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from calibrant import metrics
from calibrant.backend.bins import Bins, mukhoti_edges
from calibrant.calibrators import Temperature
from calibrant.lab.data import Splits
from calibrant.predictions import Predictions
from calibrant.registry import METRICS, TRACES
from calibrant.types import Count, InputError, MetricText, TemperatureGrid

if TYPE_CHECKING:
    from calibrant.lab.study.train import Epoch

__all__ = ["bins", "calibration", "gammas", "gradients", "learned", "norm", "reliability", "scores", "values"]

EpochColumns = dict[str, Any]
SplitName = Literal["train", "val", "test"]


@dataclass(frozen=True, eq=False)
class EpochContext:
    """An epoch that has ended, the data, and the rows of the epochs before it."""

    epoch: "Epoch"
    splits: Splits
    is_last: bool  # whether this is the last epoch
    history: Sequence[Mapping[str, Any]] = ()
    predictions_cache: dict[str, Predictions] = field(default_factory=dict[str, Predictions])

    def predictions(self, split: str) -> Predictions:
        """Return the network's predictions now, without augmentation; every split is predicted once."""
        from calibrant.lab.study.train import predict

        if split not in ("train", "val", "test"):
            raise InputError(f"a trace watches train, val or test, got {split!r}", code="option_value")
        if split not in self.predictions_cache:
            network, is_val = self.epoch.network, split == "val"
            device = next(network.parameters()).device
            examples = getattr(self.splits, split)
            self.predictions_cache[split] = (
                self.epoch.val if is_val else predict(network, examples, self.splits.prepare, device=device)
            )
        return self.predictions_cache[split]


@TRACES.register
def scores(context: EpochContext, *, split: SplitName = "val") -> EpochColumns:
    """NLL, entropy, confidence and p_y, of correct and of wrong predictions (Mukhoti et al. 2020, Figures 1 and 3).

    Columns SPLIT_error, SPLIT_nll, SPLIT_nll_correct, ..., nan where there are no such predictions.
    """
    p = context.predictions(split).double()
    is_correct = p.outcomes.correct > 0
    row: EpochColumns = {f"{split}_error": float(metrics.error(p)), f"{split}_nll": float(metrics.nll(p))}
    for subset_name, mask in ("correct", is_correct), ("wrong", ~is_correct):
        subset = p[mask] if mask.any() else None
        row[f"{split}_nll_{subset_name}"] = math.nan if subset is None else float(metrics.nll(subset))
        row[f"{split}_entropy_{subset_name}"] = math.nan if subset is None else float(metrics.entropy(subset))
        row[f"{split}_confidence_{subset_name}"] = (
            math.nan if subset is None else float(subset.outcomes.confidence.mean())
        )
        label_probability = math.nan if subset is None else float(subset.log_likelihood.exp().mean())
        row[f"{split}_label_probability_{subset_name}"] = label_probability
    return row


@TRACES.register
def calibration(context: EpochContext, *, split: SplitName = "val", grid: TemperatureGrid = "wang") -> EpochColumns:
    """ECE before and after the temperature that is best for it on the same split (Wang et al. 2021, Figure 4).

    `grid` holds the temperatures that are tried, by name as in `Temperature`; of a coarser one more is left.
    Columns SPLIT_ece, SPLIT_optimal_ece, SPLIT_temperature.
    """
    p = context.predictions(split).double()
    best = Temperature.fit(p, criterion="ece", grid=grid)
    return {
        f"{split}_ece": float(metrics.ece(p)),
        f"{split}_optimal_ece": float(metrics.ece(p.apply(best))),
        f"{split}_temperature": float(best.temperature),
    }


@TRACES.register
def values(
    context: EpochContext,
    *,
    split: SplitName = "val",
    metrics: tuple[MetricText, ...] = ("error", "adaptive_ece(edges='mukhoti')"),
) -> EpochColumns:
    """Any metrics by name, such as AdaFocal's (Ghosh et al. 2022): the test error and ECE over bins of equal mass.

    Columns SPLIT_METRIC, with the metric as it is written.
    """
    p = context.predictions(split).double()
    return {f"{split}_{metric.text}": float(metric(p)) for metric in map(METRICS.method, metrics)}


@TRACES.register
def bins(context: EpochContext, *, split: SplitName = "val", count: Count = 15) -> EpochColumns:
    """Confidence minus accuracy in `count` bins of equal mass, as AdaFocal (Ghosh et al. 2022) looks at its bins.

    Column SPLIT_bin_gaps: a list from the least confident bin to the most confident one.
    """
    events = context.predictions(split).double().events
    bin_statistics = Bins.from_edges(mukhoti_edges(events.confidence, count), events.confidence, events.outcome)
    return {f"{split}_bin_gaps": (-bin_statistics.gap).tolist()}


@TRACES.register
def reliability(
    context: EpochContext,
    *,
    split: SplitName = "train",
    epochs: tuple[int, ...] = (100, 200, 300, 350),
    count: Count = 25,
) -> EpochColumns:
    """Confidence against accuracy in bins of equal width (Mukhoti et al. 2020, Figure 2), at the given epochs only.

    Columns SPLIT_reliability_count, _confidence and _accuracy: lists of `count` numbers, nan in empty bins.
    """
    if context.epoch.number not in epochs:
        return {}
    bin_statistics = context.predictions(split).double().events.equal_width(count)
    columns = {
        "count": bin_statistics.count,
        "confidence": bin_statistics.confidence,
        "accuracy": bin_statistics.accuracy,
    }
    return {f"{split}_reliability_{name}": values.tolist() for name, values in columns.items()}


@TRACES.register
def gammas(context: EpochContext) -> EpochColumns:
    """The gammas that trained this epoch: one per bin for AdaFocal, one for a schedule, none for other losses.

    Column gammas: a list.
    """
    gamma = getattr(context.epoch.loss, "gamma", None)
    if gamma is None:
        return {}
    return {"gammas": gamma.tolist() if isinstance(gamma, Tensor) else [float(gamma)]}


@TRACES.register
def norm(context: EpochContext) -> EpochColumns:
    """L2 norm of the last linear layer's weights (Mukhoti et al. 2020, Figure 3). Column last_layer_norm."""
    return {"last_layer_norm": float(last_layer(context.epoch.network).weight.detach().float().norm())}


@TRACES.register
def gradients(context: EpochContext, *, epochs: tuple[int, ...] = (10, 100, 200), count: Count = 50) -> EpochColumns:
    r"""Norms of the loss's gradient in the last linear layer, per training example (Mukhoti et al. 2020, Figure 4).

    For logits W h + b the gradient in (W, b) is $\partial L/\partial z$ times (h, 1), so its norm is
    $\|\partial L/\partial z\| \sqrt{\|h\|^2 + 1}$. At the given epochs only: gradient_norms, the counts of a
    histogram, and gradient_edges, its `count` + 1 edges; the thousandth with the largest norms counts at its least.
    """
    if context.epoch.number not in epochs:
        return {}
    norms = _gradient_norms(context).numpy()
    counts, edges = np.histogram(np.minimum(norms, np.quantile(norms, 0.999, method="higher")), count)
    return {"gradient_norms": counts.tolist(), "gradient_edges": edges.tolist()}


@TRACES.register
def learned(context: EpochContext, *, groups: Count = 5, count: Count = 50) -> EpochColumns:
    """Maximum logits of the training examples by learned epoch (Wang et al. 2021, Figure 5).

    An example's learned epoch is that since which it is classified correctly until the end. Every epoch keeps
    `learned_bits`, one bit per example in base 64, so that a resumed run knows; the last one has `learned_counts`, a
    histogram of the maximum logits for each of `groups` equal spans of epochs and for those never learned,
    `learned_edges`, and `learned_spans`, the first epoch of each span.
    """
    p = context.predictions("train")
    is_correct = (p.logits.argmax(-1) == p.labels).numpy()
    row: EpochColumns = {"learned_bits": base64.b64encode(np.packbits(is_correct).tobytes()).decode()}
    if not context.is_last:
        return row
    epochs = learned_epochs(
        [*(past_row["learned_bits"] for past_row in context.history), row["learned_bits"]], len(is_correct)
    )
    spans = np.linspace(1, context.epoch.number + 1, groups + 1)
    maxima = p.logits.amax(-1).numpy()
    edges = np.histogram_bin_edges(maxima, count)
    group = np.digitize(epochs, spans) - 1
    counts = [np.histogram(maxima[group == i], edges)[0].tolist() for i in range(groups + 1)]
    return row | {"learned_counts": counts, "learned_edges": edges.tolist(), "learned_spans": spans[:-1].tolist()}


def learned_epochs(bits: Sequence[str], n: int) -> np.ndarray:
    """Return since which epoch, counted from 1, each of n examples was right to the end; len(bits) + 1 if never.

    >>> first, second = (base64.b64encode(bytes([b])).decode() for b in (0b10100000, 0b11000000))
    >>> learned_epochs([first, second], 3)
    array([1, 2, 3])
    """
    epochs = np.full(n, len(bits) + 1)
    correct_to_end = np.ones(n, dtype=bool)
    for epoch in range(len(bits), 0, -1):
        packed = np.frombuffer(base64.b64decode(bits[epoch - 1]), dtype=np.uint8)
        correct_to_end &= np.unpackbits(packed, count=n).astype(bool)
        epochs[correct_to_end] = epoch
    return epochs


def last_layer(network: nn.Module) -> nn.Linear:
    """Return the linear layer that makes the logits; raises `InputError` for a network without any."""
    layers = [module for module in network.modules() if isinstance(module, nn.Linear)]
    if not layers:
        raise InputError(f"{type(network).__name__} has no linear layer to watch", code="no_linear_layer")
    return layers[-1]


def _gradient_norms(context: EpochContext, batch_size: int = 250) -> Tensor:
    network, examples, splits = context.epoch.network, context.splits.train, context.splits
    layer = last_layer(network)
    layer_inputs: list[Tensor] = []
    hook = layer.register_forward_pre_hook(lambda _, inputs: layer_inputs.append(inputs[0].detach().float()))
    device = layer.weight.device
    norms: list[Tensor] = []
    network.eval()
    try:
        for start in range(0, len(examples), batch_size):
            batch = examples[start : start + batch_size].to(device)
            with torch.no_grad():
                logits = network(splits.prepare(batch.inputs)).float()
            z = logits.detach().requires_grad_()
            with torch.enable_grad():
                (slope,) = torch.autograd.grad(context.epoch.loss(z, batch.labels).sum(), z)
            features = layer_inputs.pop()
            norms.append((slope.norm(dim=-1) * (features.square().sum(-1) + 1).sqrt()).cpu())
    finally:
        hook.remove()
    return torch.cat(norms)
