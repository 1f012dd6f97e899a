"""Log-likelihood and Brier score with their backward written by hand: what most losses here are functions of."""

from typing import Any

import torch
from torch import Tensor

from calibrant.types import InputError, Labels, Logits, PerExample


def check_labels(logits: Logits, labels: Labels) -> None:
    """Refuse anything but one class index per row: fewer would be spread over the rows, or leave rows out."""
    if labels.shape != logits.shape[:-1] or labels.is_floating_point():
        got = f"{tuple(labels.shape)} of {labels.dtype} for logits {tuple(logits.shape)}"
        raise InputError(f"need one class index (int64) as label per row of logits, got {got}")


class _ExpectedLogLikelihood(torch.autograd.Function):
    r"""$\sum_k t_k \log p_k$ under the target $t = (1-\epsilon) e_y + \epsilon / k$.

    Autograd would keep $\log p$ (n k) from forward to backward, and hold two more of that size while it goes back.
    Here nothing but the logits is kept, and the gradient $t - p$ is made at once. The backward is itself
    differentiable.
    """

    generate_vmap_rule = True  # for per-example gradients by torch.func

    @staticmethod
    def forward(logits: Tensor, labels: Tensor, epsilon: float) -> Tensor:
        log_p = logits.log_softmax(-1)
        picked = log_p.gather(-1, labels[:, None]).squeeze(-1)
        return picked if epsilon == 0 else (1 - epsilon) * picked + epsilon * log_p.mean(-1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, float], output: Tensor) -> None:
        logits, labels, ctx.epsilon = inputs
        ctx.save_for_backward(logits, labels)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        logits, labels = ctx.saved_tensors
        gradient = gradients[0][:, None]
        p = logits.softmax(-1)
        back = p * -gradient if torch.is_grad_enabled() else p.mul_(-gradient)  # enabled: differentiated once more
        if ctx.epsilon:
            back += gradient * (ctx.epsilon / logits.shape[-1])
        return back.scatter_add_(-1, labels[:, None], (1 - ctx.epsilon) * gradient), None, None


def smoothed_log_likelihood(logits: Logits, labels: Labels, smoothing: float = 0.0) -> PerExample:
    r"""Return $\log p_y$, or its expectation under the smoothed target $(1-\epsilon) e_y + \epsilon / k$."""
    check_labels(logits, labels)
    return _ExpectedLogLikelihood.apply(logits, labels, smoothing)  # pyright: ignore[reportReturnType]


class _Brier(torch.autograd.Function):
    r"""$\lVert p - e_y \rVert^2$, whose gradient is $2 p \circ (m - p \cdot m)$ with $m = p - e_y$; as above."""

    generate_vmap_rule = True

    @staticmethod
    def forward(logits: Tensor, labels: Tensor) -> Tensor:
        p = logits.softmax(-1)
        p.scatter_add_(-1, labels[:, None], p.new_full((len(labels), 1), -1.0))
        return torch.linalg.vector_norm(p, 2, -1).square()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        logits, labels = ctx.saved_tensors
        gradient, p = 2 * gradients[0][:, None], logits.softmax(-1)
        if torch.is_grad_enabled():
            back = p * miss(logits, labels)
            return (back - p * back.sum(-1, keepdim=True)) * gradient, None
        p_y = p.gather(-1, labels[:, None])
        back = p.square().scatter_(-1, labels[:, None], p_y * (p_y - 1))
        return back.sub_(p.mul_(back.sum(-1, keepdim=True))).mul_(gradient), None


def brier_score(logits: Logits, labels: Labels) -> PerExample:
    r"""Return $\lVert p - e_y \rVert^2$."""
    check_labels(logits, labels)
    return _Brier.apply(logits, labels)  # pyright: ignore[reportReturnType]


def miss(logits: Logits, labels: Labels) -> Tensor:
    """Return p - e_y (n k), how far the probabilities are from the truth."""
    check_labels(logits, labels)
    p = logits.softmax(-1)
    return p.scatter_add(-1, labels[:, None], p.new_full((len(labels), 1), -1.0))
