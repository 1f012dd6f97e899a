"""A loss of the last linear layer, in chunks of its logits."""

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from calibrant._core.registry import LOSSES
from calibrant._core.types import InputError, Loss
from calibrant.nn._criterion import check_loss_shape


def linear_loss(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    loss: str | Loss = "cross_entropy",
    *,
    bias: Tensor | None = None,
    ignore_index: int = -100,
    chunk_elements: int = 1 << 23,
) -> Tensor:
    r"""Return the mean loss of the logits $h W^T + b$ without ever holding all of them in memory.

    With a vocabulary of 128k, the logits of a batch, their softmax and their gradient need far more memory than the
    network. Here they exist for a few rows at a time: the gradients of h, W and b are computed in the forward pass,
    chunk by chunk, and the backward pass, which can run only once, multiplies them by its factor.

    Args:
        hidden: Outputs of the network before its last layer (n, d).
        weight: Weight of the last layer (k, d).
        labels: Class indices (n).
        loss: Text of a registered loss such as "focal(gamma=3)", or a callable (n k), (n) -> (n). Losses that see the
            batch as a whole are refused.
        bias: Bias of the last layer (k).
        ignore_index: Label of rows to leave out.
        chunk_elements: Largest number of logits at a time. They are float32 for parameters of lower precision.

    Raises:
        InputError: If shapes do not fit together, or the loss needs the whole batch.

    >>> hidden, weight = torch.zeros(4, 3, requires_grad=True), torch.zeros(10, 3)
    >>> linear_loss(hidden, weight, torch.tensor([1, 2, 3, -100]))
    tensor(2.3026, grad_fn=<_LinearLossBackward>)
    """
    function: Loss = LOSSES.resolve(loss) if isinstance(loss, str) else loss
    if "weights" in inspect.signature(function).parameters:
        raise InputError(
            "Expected a loss of each example by itself, got one of the whole batch. Try Criterion on all logits.",
            code="batch_loss",
        )
    shapes = tuple(hidden.shape), tuple(weight.shape), tuple(labels.shape)
    if hidden.ndim != 2 or weight.ndim != 2 or hidden.shape[1] != weight.shape[1] or labels.shape != hidden.shape[:1]:
        raise InputError(
            f"Expected hidden states (n, d), a weight (k, d) and labels (n), got shapes {shapes}.", code="shape"
        )
    used = labels != ignore_index
    if bool(((labels < 0) | (labels >= len(weight)))[used].any()):
        raise InputError(f"Expected labels in 0 .. {len(weight) - 1} or {ignore_index}, got others.", code="labels")
    labels = labels.where(used, 0)  # any valid label, because the loss of unused rows is multiplied by 0
    return _LinearLoss.apply(hidden, weight, bias, labels, used, function, chunk_elements)  # pyright: ignore


class _LinearLoss(torch.autograd.Function):
    """The mean loss of a linear layer, with gradients that the forward pass computes."""

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        used: Tensor,
        loss: Loss,
        chunk_elements: int,
    ) -> Tensor:
        """Return the mean loss of the rows where `used` is true, from at most `chunk_elements` logits at a time."""
        precision = torch.promote_types(weight.dtype, torch.float32)
        needs_gradient = any(ctx.needs_input_grad[:3])
        hidden_gradient = torch.zeros_like(hidden)  # written once, while the others are sums over chunks
        weight_gradient = torch.zeros_like(weight, dtype=precision)
        bias_gradient = None if bias is None else torch.zeros_like(bias, dtype=precision)
        total = torch.zeros((), dtype=precision, device=hidden.device)
        count = used.sum().clamp_min(1)  # the loss of no rows is 0
        for chunk, logits in chunked_logits(hidden, weight, bias, chunk_elements):
            logits.requires_grad_(needs_gradient)
            with torch.set_grad_enabled(needs_gradient):
                values = loss(logits, labels[chunk])  # pyright: ignore[reportArgumentType]
                check_loss_shape(values, logits)
                value = (values * used[chunk]).sum() / count
            total += value.detach()
            if needs_gradient:
                (gradient,) = torch.autograd.grad(value, logits)
                hidden_gradient[chunk] = gradient.to(weight.dtype) @ weight
                weight_gradient.addmm_(gradient.T, hidden[chunk].to(precision))
                if bias_gradient is not None:
                    bias_gradient += gradient.sum(0)
        ctx.gradients = (hidden_gradient, weight_gradient, bias_gradient) if needs_gradient else None
        ctx.types = hidden.dtype, weight.dtype, None if bias is None else bias.dtype
        return total

    @staticmethod
    def backward(ctx: Any, factor: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the gradients of hidden states, weight and bias. The other four inputs have none."""
        if ctx.gradients is None:
            raise RuntimeError("linear_loss can be differentiated once; its gradients are already used")
        gradients, ctx.gradients = ctx.gradients, None  # scaled in place, so that they cannot be used again
        scaled = [
            None if g is None else g.mul_(factor).to(dtype) for g, dtype in zip(gradients, ctx.types, strict=True)
        ]
        return *scaled, None, None, None, None


@torch.no_grad()
def chunked_logits(
    hidden: Tensor, weight: Tensor | None, bias: Tensor | None, max_elements: int
) -> Iterator[tuple[slice, Tensor]]:
    """Yield slices of rows and their logits $h W^T + b$ (m, k) in at least float32, without gradients.

    Args:
        hidden: Hidden states (n, d), or logits (n, k) if there is no weight.
        weight: Weight of the last layer (k, d).
        bias: Bias of the last layer (k).
        max_elements: Largest number of logits at a time, unless a single row has more.
    """
    rows = max(1, max_elements // (hidden.shape[1] if weight is None else len(weight)))
    for start in range(0, len(hidden), rows):
        chunk = slice(start, start + rows)
        logits = hidden[chunk] if weight is None else torch.nn.functional.linear(hidden[chunk], weight, bias)
        yield chunk, logits.to(torch.promote_types(logits.dtype, torch.float32))
