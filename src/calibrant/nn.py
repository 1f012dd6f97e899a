"""The only torch modules here: they carry any loss, or any calibrator, into a network."""

import inspect
from dataclasses import is_dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from calibrant import calibrators, losses
from calibrant.predictions import Predictions
from calibrant.registry import LOSSES
from calibrant.types import Calibrator, InputError, Loss, StatefulLoss


class Criterion(nn.Module):
    """A loss as torch trains with it: `Criterion("focal(gamma=3)")(logits, labels).backward()`.

    Takes logits (n, k) or (n, k, d1, ...) with labels (n) or (n, d1, ...), or with soft labels, floating and of the
    shape of the logits, whose loss is the mean over labels drawn from them. `reduction`, `ignore_index` and class
    `weight` mean what they mean in `torch.nn.functional.cross_entropy`: the weighted mean divides by the sum of the
    weights of the examples' classes, and ignored positions count nowhere, in penalties on the whole batch neither.
    With one difference: a class weight multiplies an example's whole loss, label smoothing included, where torch
    weighs every class's term of the smoothed sum by its own weight, so that its minimizer is no longer the smoothed
    target. A soft label weighs what its classes weigh on average. Logits in float16 or bfloat16 are computed in
    float32.

    With `binary`, each logit s is an event of its own, with P(y = 1) = 1 / (1 + exp(-s)), and labels are 0 or 1, or
    that probability: logits (n) or (n, 1, d1, ...) with labels (n) or (n, d1, ...), and several labels per example as
    logits and labels (n, m). Every loss is then that of the two logits -s/2 and s/2: focal is the sigmoid focal loss.
    `alpha` multiplies the loss of events that happen, and 1 - `alpha` that of the others, as in Lin et al. (2017);
    means divide by the number of events, not by their weight.

    A loss is the text of one here or any callable (n k), (n) -> (n); one with a parameter `weights`, because it sees
    the batch as a whole, is told what each row counts. A loss with state is advanced by `after_epoch`, and its state
    is kept in the `state_dict`.

    >>> criterion = Criterion("focal(gamma=2)", ignore_index=-1)
    >>> criterion(torch.zeros(3, 2), torch.tensor([0, 1, -1]))
    tensor(0.1733)
    >>> Criterion("focal(gamma=2)", binary=True, alpha=0.25)(torch.zeros(4), torch.tensor([0.0, 0.0, 0.0, 1.0]))
    tensor(0.1083)
    """

    weight: Tensor | None

    def __init__(
        self,
        loss: str | Loss,
        *,
        reduction: Literal["mean", "sum", "none"] = "mean",
        weight: Tensor | None = None,
        ignore_index: int = -100,
        binary: bool = False,
        alpha: float | None = None,
    ) -> None:
        super().__init__()
        if reduction not in ("mean", "sum", "none"):
            raise InputError(f"reduction must be mean, sum or none, got {reduction!r}", code="option_value")
        if alpha is not None and not (binary and 0 <= alpha <= 1):
            raise InputError(
                f"alpha weighs events that happen, from 0 to 1, where binary=True, got {alpha} and binary={binary}; "
                "classes have weight=torch.tensor([...])",
                code="alpha",
            )
        self.loss: Loss = LOSSES.resolve(loss) if isinstance(loss, str) else loss
        self.reduction = reduction
        self.ignore_index = ignore_index
        self.binary = binary
        self.alpha = alpha
        self.register_buffer("weight", weight)
        self._takes_weights = "weights" in inspect.signature(self.loss).parameters  # it penalizes the batch as a whole
        self._labels_checked = False  # at the values of labels, which on a GPU is worth one wait and no more

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the reduced loss, or one number per position with reduction "none"."""
        rows, targets, shape = (_flatten_binary if self.binary else _flatten_classes)(logits, labels)
        rows = rows.float() if rows.dtype in (torch.float16, torch.bfloat16) else rows
        targets = targets.to(rows) if targets.is_floating_point() else targets.long()
        if targets.ndim == 1:
            used = targets != self.ignore_index
            targets = targets.where(used, 0)
        else:
            used = torch.ones_like(rows[:, 0], dtype=torch.bool)
        if not self._labels_checked and not torch.compiler.is_compiling():
            _check_label_values(targets, rows.shape[1], self.binary, self.ignore_index)
            self._labels_checked = True
        factor = 1.0 if self.alpha is None else 1 - self.alpha + (2 * self.alpha - 1) * targets.to(rows)
        if self.binary and targets.is_floating_point():
            targets = torch.stack([1 - targets, targets], -1)
        mass = used.to(rows) if self.weight is None else _target_weights(self.weight.to(rows), targets) * used
        count = mass * factor
        values = self.loss(rows, targets, weights=count) if self._takes_weights else self.loss(rows, targets)  # pyright: ignore
        values = values.where(used, 0) * count
        if self.reduction == "none":
            return values.view(shape)
        return values.sum() if self.reduction == "sum" else values.sum() / mass.sum()

    def after_epoch(self, epoch: int, val: Predictions | None = None) -> None:
        """Replace a loss with state by the one of the next epoch; leave any other alone. Epochs count from 0."""
        if isinstance(self.loss, StatefulLoss):
            self.loss = self.loss.after_epoch(epoch, val)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name, value in losses.state(self.loss).items():
            destination[f"{prefix}loss.{name}"] = torch.as_tensor(value)

    def _load_from_state_dict(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, state_dict: dict[str, Any], prefix: str, *args: Any
    ) -> None:
        current = losses.state(self.loss)
        keys = {f"{prefix}loss.{name}": name for name in current}
        saved = {name: state_dict.pop(key) for key, name in keys.items() if key in state_dict}
        if current and len(saved) == len(current):
            learned = {name: v if isinstance(current[name], Tensor) else v.item() for name, v in saved.items()}
            self.loss = losses.restore_state(self.loss, learned)
        super()._load_from_state_dict(state_dict, prefix, *args)
        missing: list[str] = args[2]
        missing += [key for key, name in keys.items() if name not in saved]


def _flatten_classes(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, torch.Size]:
    """Rows (n, k), their labels (n) or soft labels (n, k), and the shape of positions."""
    shape = logits.shape[:1] + logits.shape[2:]
    soft = labels.is_floating_point()
    if logits.ndim < 2 or labels.shape != (logits.shape if soft else shape):
        several = labels.shape == logits.shape
        way_out = "; labels.float() if one-hot, binary=True if several are true at once" if several else ""
        raise InputError(
            "need logits (n, k, ...) and class indices (n, ...) or floating soft labels (n, k, ...), got "
            f"{tuple(logits.shape)} and {tuple(labels.shape)} of {labels.dtype}{way_out}",
            code="shape",
        )
    if logits.shape[1] == 1:
        raise InputError(
            f"one class leaves nothing to learn, got logits {tuple(logits.shape)}; say binary=True", code="one_class"
        )
    return _flatten_positions(logits), _flatten_positions(labels) if soft else labels.flatten(), shape


def _flatten_positions(x: Tensor) -> Tensor:
    return x if x.ndim == 2 else x.movedim(1, -1).flatten(0, -2)


def _flatten_binary(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, torch.Size]:
    """Two logits for each event (n, 2), whether it happened (n) as a class or a probability, and their shape."""
    if labels.shape not in (logits.shape, logits.shape[:1] + logits.shape[2:] if logits.shape[1:2] == (1,) else None):
        raise InputError(
            "binary needs one logit for each label, (n, ...) and (n, ...) or (n, 1, ...) and (n, ...), got "
            f"{tuple(logits.shape)} and {tuple(labels.shape)}; logits of two classes need no binary",
            code="shape",
        )
    half = logits.flatten() / 2  # and its negative: neither class is special to a loss that sees the logits themselves
    return torch.stack([-half, half], -1), labels.flatten(), labels.shape


def _check_label_values(targets: Tensor, k: int, binary: bool, ignore_index: int) -> None:
    """Refuse labels that mean something else; inside vmap, where values cannot be looked at, they are trusted."""
    soft = targets.is_floating_point()
    try:
        low, high = (0.0, 0.0) if targets.numel() == 0 else (float(x) for x in targets.aminmax())
        is_normalized = binary or not soft or float((targets.sum(-1) - 1).abs().max()) < 1e-2
    except RuntimeError:
        return
    upper = 1 if binary or soft else k - 1
    if not 0 <= low <= high <= upper:
        description = "labels" if not soft else "probabilities as labels" if binary else "soft labels"
        raise InputError(
            f"{description} must lie in 0 .. {upper}, got {low:g} .. {high:g}; "
            f"what to leave out is ignore_index={ignore_index}",
            code="label_range",
        )
    if not is_normalized:
        raise InputError(
            "soft labels must sum to 1 over the classes; for several labels per example say binary=True",
            code="label_sums",
        )


def _target_weights(weight: Tensor, targets: Tensor) -> Tensor:
    """What the class of each example weighs; of a soft label, the mean."""
    return targets.to(weight) @ weight if targets.is_floating_point() else weight[targets]


class CalibratedNetwork(nn.Module):
    """A network followed by a fitted calibrator; what it learned is kept in buffers and moves with the module.

    Logits (n, k, d1, ...), such as those of segmentation, are calibrated along axis 1. A calibrator of your own is
    any class of the shape `types.Calibrator`; its tensors are buffers too, those of calibrators inside it included.

    With `binary`, the network answers with one logit s for each event, in any shape, and the calibrator is of two
    classes, fitted on `Predictions.from_binary_logits`: s becomes the difference of the two logits that it makes of
    (0, s), so that P(y = 1) stays 1 / (1 + exp(-s)).

    >>> warm = calibrators.Temperature(torch.tensor(2.0))
    >>> CalibratedNetwork(torch.nn.Identity(), warm, binary=True)(torch.tensor([[3.0], [-1.0]]))
    tensor([[ 1.5000],
            [-0.5000]])
    """

    def __init__(self, network: nn.Module, calibrator: Calibrator, *, binary: bool = False) -> None:
        super().__init__()
        self.network = network
        self.calibrator = calibrator
        self.binary = binary
        self._buffer_plan = self._register_tensors(calibrator, "")

    def _register_tensors(self, value: Any, name: str) -> "BufferPlan":
        """Keep the tensors inside a value as buffers; return where each belongs."""
        if isinstance(value, Tensor):
            self.register_buffer(name, value)
            return name
        plans = {
            key: self._register_tensors(part, f"{name}__{key}" if name else key)
            for key, part in _named_parts(value).items()
        }
        return {key: plan for key, plan in plans.items() if plan}

    def forward(self, *inputs: Any, **kwargs: Any) -> Tensor:
        """Return calibrated logits of the network's inputs."""
        logits = self.network(*inputs, **kwargs)
        calibrator = _with_buffers(
            self.calibrator, self._buffer_plan, dict(self.named_buffers(recurse=False, remove_duplicate=False))
        )
        if self.binary:
            flat = logits.flatten()
            zero, one = calibrator(torch.stack([torch.zeros_like(flat), flat], -1)).unbind(-1)
            return (one - zero).view(logits.shape)
        if logits.ndim == 2:
            return calibrator(logits)
        dense = logits.movedim(1, -1)
        return calibrator(dense.flatten(0, -2)).view(dense.shape).movedim(-1, 1)


BufferPlan = str | dict[str, Any]  # the buffer's name, or a plan for each part that holds some


def _named_parts(value: Any) -> dict[str, Any]:
    if isinstance(value, tuple):
        return {str(i): part for i, part in enumerate(value)}  # pyright: ignore[reportUnknownVariableType]
    return calibrators.learned_fields(value)


def _with_buffers(value: Any, plan: BufferPlan, buffers: dict[str, Tensor]) -> Any:
    """Return the same value with its tensors taken from the buffers."""
    if isinstance(plan, str):
        return buffers[plan]
    if not plan:
        return value
    parts = _named_parts(value)
    new_parts = {key: _with_buffers(parts[key], part_plan, buffers) for key, part_plan in plan.items()}
    if isinstance(value, tuple):
        return tuple((parts | new_parts).values())
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **new_parts)
    rebuilt = object.__new__(type(value))
    for key, part in (parts | new_parts).items():
        object.__setattr__(rebuilt, key, part)
    return rebuilt
