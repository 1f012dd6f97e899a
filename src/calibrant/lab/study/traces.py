"""Traces record values after every epoch of a training, without changing it.

A trace is a function of an `EpochContext` and options. It returns floats, lists of floats or texts by name, which
become columns of the run's history. A study lists traces such as "calibration(split='test')";
`registry.TRACES.register` adds your own.
"""

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from calibrant import metrics
from calibrant._core.kernels.bins import Bins, mukhoti_edges
from calibrant._core.registry import METRICS, TRACES
from calibrant._core.types import Count, InputError, MetricText, TemperatureGrid
from calibrant.calibrators import Temperature
from calibrant.lab.data import Splits
from calibrant.lab.study.train import Epoch, predict
from calibrant.predictions import Predictions

EpochColumns = dict[str, Any]
SplitName = Literal["train", "val", "test"]


@dataclass(frozen=True, eq=False)
class EpochContext:
    """An epoch that has ended, the data, and the rows of the earlier epochs."""

    epoch: Epoch
    splits: Splits
    is_last: bool
    history: Sequence[Mapping[str, Any]] = ()
    predictions_cache: dict[str, Predictions] = field(default_factory=dict[str, Predictions])

    def predictions(self, split: SplitName) -> Predictions:
        """Return the network's predictions on a split without augmentation, cached per epoch."""
        if split == "val":  # predicted already
            return self.epoch.val
        if split not in self.predictions_cache:
            network, examples = self.epoch.network, getattr(self.splits, split)
            device = next(network.parameters()).device
            self.predictions_cache[split] = predict(network, examples, self.splits.prepare, device=device)
        return self.predictions_cache[split]


@TRACES.register
def scores(context: EpochContext, *, split: SplitName = "val") -> EpochColumns:
    """Record NLL, entropy, confidence and p_y of correct and wrong predictions (Mukhoti et al. 2020, Figures 1 and 3).

    p_y is the probability of the true class. Columns are SPLIT_error and SPLIT_nll over all examples, and
    SPLIT_nll_correct, SPLIT_nll_wrong, ... over a subset, nan if the subset is empty.
    """
    p = context.predictions(split).double()
    is_correct = p.outcomes.correct > 0
    row: EpochColumns = {f"{split}_error": float(metrics.error(p)), f"{split}_nll": float(metrics.nll(p))}
    for subset_name, mask in ("correct", is_correct), ("wrong", ~is_correct):
        means = dict.fromkeys(("nll", "entropy", "confidence", "label_probability"), math.nan)
        if mask.any():
            subset = p[mask]
            means = {
                "nll": float(metrics.nll(subset)),
                "entropy": float(metrics.entropy(subset)),
                "confidence": float(subset.outcomes.confidence.mean()),
                "label_probability": float(np.exp(subset.log_likelihood).mean()),
            }
        row |= {f"{split}_{name}_{subset_name}": value for name, value in means.items()}
    return row


@TRACES.register
def calibration(context: EpochContext, *, split: SplitName = "val", grid: TemperatureGrid = "wang") -> EpochColumns:
    """Record the ECE before and after the temperature that minimizes it on this split (Wang et al. 2021, Figure 4).

    `grid` names the temperatures to search, as in `Temperature`.
    Columns are SPLIT_ece, SPLIT_optimal_ece, SPLIT_temperature.
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
    """Record metrics by name, by default the error and the equal-mass ECE, as AdaFocal does (Ghosh et al. 2022).

    Columns are SPLIT_METRIC, with the metric as it is written.
    """
    p = context.predictions(split).double()
    return {f"{split}_{metric.text}": float(metric(p)) for metric in map(METRICS.method, metrics)}


@TRACES.register
def bins(context: EpochContext, *, split: SplitName = "val", count: Count = 15) -> EpochColumns:
    """Record confidence minus accuracy in `count` bins of equal mass, as AdaFocal uses them (Ghosh et al. 2022).

    The column SPLIT_bin_gaps holds a list from the least to the most confident bin.
    """
    events = context.predictions(split).double().events
    bin_statistics = Bins.from_edges(mukhoti_edges(events.confidence, count), events.confidence, events.outcome)
    return {f"{split}_bin_gaps": (-bin_statistics.gap).tolist()}  # the gap of `Bins` is accuracy minus confidence


@TRACES.register
def reliability(
    context: EpochContext,
    *,
    split: SplitName = "train",
    epochs: tuple[int, ...] = (100, 200, 300, 350),
    count: Count = 25,
) -> EpochColumns:
    """Record confidence and accuracy in bins of equal width at some epochs (Mukhoti et al. 2020, Figure 2).

    The columns SPLIT_reliability_count, _confidence and _accuracy hold lists of `count` values, nan in empty bins.
    """
    if context.epoch.number not in epochs:
        return {}
    bin_statistics = context.predictions(split).double().events.equal_width(count)
    return {
        f"{split}_reliability_{name}": getattr(bin_statistics, name).tolist()
        for name in ("count", "confidence", "accuracy")
    }


@TRACES.register
def gammas(context: EpochContext) -> EpochColumns:
    """Record the gammas that trained this epoch: one per bin for AdaFocal, one for a schedule.

    The column gammas holds a list; other losses have no column.
    """
    gamma = getattr(context.epoch.loss, "gamma", None)
    if gamma is None:
        return {}
    return {"gammas": gamma.tolist() if isinstance(gamma, Tensor) else [float(gamma)]}


@TRACES.register
def norm(context: EpochContext) -> EpochColumns:
    """Record the L2 norm of the last linear layer's weights (Mukhoti et al. 2020, Figure 3) as last_layer_norm."""
    return {"last_layer_norm": float(last_layer(context.epoch.network).weight.detach().float().norm())}


@TRACES.register
def gradients(context: EpochContext, *, epochs: tuple[int, ...] = (10, 100, 200), count: Count = 50) -> EpochColumns:
    r"""Record a histogram of gradient norms in the last linear layer (Mukhoti et al. 2020, Figure 4) at some epochs.

    Each training example has one norm. For logits W h + b, the gradient in (W, b) is $\partial L/\partial z$ times
    (h, 1), so its norm is $\|\partial L/\partial z\| \sqrt{\|h\|^2 + 1}$. The columns are gradient_norms, the counts,
    and gradient_edges, the `count` + 1 edges. Norms are clipped at their 99.9 % quantile.
    """
    if context.epoch.number not in epochs:
        return {}
    norms = _gradient_norms(context).numpy()
    # else a few outliers would stretch the bins
    clipped_norms = np.minimum(norms, np.quantile(norms, 0.999, method="higher"))
    counts, edges = np.histogram(clipped_norms, count)
    return {"gradient_norms": counts.tolist(), "gradient_edges": edges.tolist()}


@TRACES.register
def learned(context: EpochContext, *, groups: Count = 5, count: Count = 50) -> EpochColumns:
    """Record histograms of the maximum logits of training examples by learned epoch (Wang et al. 2021, Figure 5).

    An example's learned epoch is the first one from which it is classified correctly until the end. Every epoch has the
    column learned_bits, one bit per example in base 64, so that a resumed run can continue. The last epoch also has
    learned_counts, a histogram for each of `groups` equal spans of epochs and one for examples never learned;
    learned_edges; and learned_spans, the start of each span, which may be between two epochs.
    """
    p = context.predictions("train")
    is_correct = p.predicted == p.labels
    row: EpochColumns = {"learned_bits": base64.b64encode(np.packbits(is_correct).tobytes()).decode()}
    if not context.is_last:
        return row
    bits = [*(past_row["learned_bits"] for past_row in context.history), row["learned_bits"]]
    epochs = learned_epochs(bits, len(is_correct))  # one more than the last epoch if never learned
    *starts, end = np.linspace(1, context.epoch.number + 1, groups + 1).tolist()
    group = np.digitize(epochs, [*starts, end]) - 1  # 0 .. groups - 1, or `groups` for examples never learned
    max_logits = p.logits.max(-1)
    edges = np.histogram_bin_edges(max_logits, count)
    counts = [np.histogram(max_logits[group == i], edges)[0].tolist() for i in range(groups + 1)]
    return row | {"learned_counts": counts, "learned_edges": edges.tolist(), "learned_spans": starts}


def learned_epochs(bits: Sequence[str], n: int) -> np.ndarray:
    """Return the learned epoch of each of n examples, from 1, or len(bits) + 1 if it was never learned.

    `bits` holds a text for each epoch, as in the column learned_bits of `learned`.

    >>> first, second = (base64.b64encode(bytes([b])).decode() for b in (0b10100000, 0b11000000))
    >>> learned_epochs([first, second], 3)
    array([1, 2, 3])
    """
    packed = np.array([np.frombuffer(base64.b64decode(text), dtype=np.uint8) for text in bits])
    is_correct = np.unpackbits(packed, axis=1, count=n)  # (epochs, n)
    correct_to_end = np.minimum.accumulate(is_correct[::-1])  # 1 if correct from this epoch on; last epoch first
    # the sum counts the epochs from the learned one to the end
    return len(bits) + 1 - correct_to_end.sum(0, dtype=int)


def last_layer(network: nn.Module) -> nn.Linear:
    """Return the last linear layer. Raises `InputError` for a network without one."""
    layers = [module for module in network.modules() if isinstance(module, nn.Linear)]
    if not layers:
        raise InputError(
            f"Expected a network with a linear layer, got {type(network).__name__}.", code="no_linear_layer"
        )
    return layers[-1]


def _gradient_norms(context: EpochContext, batch_size: int = 250) -> Tensor:
    """Return the norm of each training example's gradient in the weights and bias of the last linear layer (n).

    A hook on the layer collects its inputs h for the formula in `gradients`.
    """
    network, examples = context.epoch.network, context.splits.train
    layer = last_layer(network)
    layer_inputs: list[Tensor] = []
    norms: list[Tensor] = []
    network.eval()
    with layer.register_forward_pre_hook(lambda _, inputs: layer_inputs.append(inputs[0].detach().float())):
        for start in range(0, len(examples), batch_size):
            batch = examples[start : start + batch_size].to(layer.weight.device)
            with torch.no_grad():
                logits = network(context.splits.prepare(batch.inputs)).float()
            logits.requires_grad_()
            # the gradient of the sum is the gradient of each example's loss, in its row
            with torch.enable_grad():
                (logit_gradient,) = torch.autograd.grad(context.epoch.loss(logits, batch.labels).sum(), logits)
            features = layer_inputs.pop()
            norms.append((logit_gradient.norm(dim=-1) * (features.square().sum(-1) + 1).sqrt()).cpu())
    return torch.cat(norms)
