"""Log-likelihood and Brier score with hand-written gradients, from which most losses here are derived.

Under a soft label, the loss is the mean over labels drawn from it.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from calibrant._core.types import InputError, Labels, Logits, PerExampleLoss, SoftLabels, Targets
from calibrant.losses._register import check_tensors

MIN_LOG_P = -1e4  # p is 0 long before; a masked label (-3e38) would give an infinite incoming gradient times 0


def check_labels(logits: Logits, labels: Targets) -> Targets:
    """Return the labels, with class indices of any integer type as int64.

    Raises:
        InputError: If there is not one label per row: broadcasting would give a wrong loss silently.
    """
    check_tensors(logits, labels)
    if logits.ndim != 2 or logits.shape[1] == 1:
        raise InputError(
            f"Expected logits (n, k) of at least 2 classes, got {tuple(logits.shape)}. Try nn.Criterion for pixels and "
            "tokens, with binary=True for one logit per event.",
            code="logits_shape",
        )
    if labels.shape != (logits.shape if labels.is_floating_point() else logits.shape[:-1]):
        raise InputError(
            f"Expected one class index (int64) per row of logits {tuple(logits.shape)}, or floating point soft labels "
            f"of that shape, got {labels.dtype} labels {tuple(labels.shape)}.",
            code="label_kind",
        )
    return labels if labels.is_floating_point() else labels.long()


class _LogLikelihood(torch.autograd.Function):
    r"""Log-likelihood $\sum_j t_j \log p_j$ of the target $t = (1-\epsilon) e_y + \epsilon / k$ over k classes.

    Autograd would keep $\log p$ (n, k) until the backward pass and then hold two more tensors of that size. This keeps
    only the logits and computes the gradient $t - p$ directly. The gradient is itself differentiable.
    """

    generate_vmap_rule = True  # for per-example gradients by torch.func

    @staticmethod
    def forward(logits: Tensor, labels: Tensor, epsilon: float) -> Tensor:
        """Return the log-likelihood (n) of class indices (n), with the share `epsilon` spread over all classes."""
        log_p = logits.log_softmax(-1)
        log_p_y = log_p.gather(-1, labels[:, None]).squeeze(-1)
        return log_p_y if epsilon == 0 else (1 - epsilon) * log_p_y + epsilon * log_p.mean(-1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, float], output: Tensor) -> None:
        """Save what `backward` needs from the inputs of `forward`."""
        logits, labels, ctx.epsilon = inputs
        ctx.save_for_backward(logits, labels)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """Return the incoming gradient (n) times target t - p for the logits, and None for the other inputs."""
        logits, labels = ctx.saved_tensors
        incoming = gradients[0][:, None]
        p = logits.softmax(-1)
        # -p: in place to save memory, unless second derivatives need p
        logits_gradient = p * -incoming if torch.is_grad_enabled() else p.mul_(-incoming)
        # + t: epsilon / k for every class, 1 - epsilon more for the label
        if ctx.epsilon:
            logits_gradient += incoming * (ctx.epsilon / logits.shape[-1])
        return logits_gradient.scatter_add_(-1, labels[:, None], (1 - ctx.epsilon) * incoming), None, None


def log_likelihood(logits: Logits, labels: Targets, smoothing: float = 0.0) -> PerExampleLoss:
    r"""Return $\log p_y$, or with smoothing its expectation under the target $(1-\epsilon) e_y + \epsilon / k$.

    For soft labels t in place of $e_y$, return the expectation under $(1-\epsilon) t + \epsilon / k$.
    """
    labels = check_labels(logits, labels)
    if labels.is_floating_point():
        smoothed = (1 - smoothing) * labels + smoothing / logits.shape[-1] if smoothing else labels
        return _soft_label_mean(smoothed, logits, lambda log_p: log_p)
    if logits.shape[-1] == 2 and not smoothing:
        # a sigmoid takes half the time of a softmax for many rows
        label_logit, other_logit = logits.gather(-1, torch.stack([labels, 1 - labels], -1)).unbind(-1)
        return logsigmoid(label_logit - other_logit)
    return _LogLikelihood.apply(logits, labels, smoothing)  # pyright: ignore[reportReturnType]


def expected_loss(logits: Logits, labels: Targets, function: Callable[[Tensor], Tensor]) -> PerExampleLoss:
    r"""Return function(log p_y), or for soft labels t its expectation $\sum_j t_j\, function(\log p_j)$.

    `function` works elementwise and is called once, with a tensor (n) or (n, k).
    """
    labels = check_labels(logits, labels)
    if labels.is_floating_point():
        return _soft_label_mean(labels, logits, function)
    return function(log_likelihood(logits, labels))


def weighted_cross_entropy(
    logits: Logits, labels: Targets, weight: Callable[[Tensor], Tensor], *, detach_weight: bool = False
) -> PerExampleLoss:
    r"""Return $-w(\log p_y) \log p_y$, or its expectation over soft labels.

    Args:
        logits: Logits, (n k).
        labels: Class indices (n) or soft labels (n k).
        weight: The elementwise function w of log-probabilities.
        detach_weight: Stop the gradient through w.
    """

    def loss_from_log_p(log_p: Tensor) -> Tensor:
        """Return -w log p elementwise."""
        w = weight(log_p.clamp_min(MIN_LOG_P))
        return -(w.detach() if detach_weight else w) * log_p

    return expected_loss(logits, labels, loss_from_log_p)


def one_minus_p(log_p: Tensor) -> Tensor:
    """Return 1 - p, without the cancellation of 1 - exp(log p) for p close to 1."""
    return -log_p.expm1()


def _soft_label_mean(labels: SoftLabels, logits: Logits, function: Callable[[Tensor], Tensor]) -> PerExampleLoss:
    """Return the mean of function(log p_j) over the classes j, weighted by the soft labels, (n).

    Args:
        labels: Soft labels, (n k).
        logits: Logits, (n k).
        function: Elementwise function of log-probabilities (n k).
    """
    target = labels.to(logits)
    # for two classes a sigmoid equals the softmax, in half its time
    log_p = logsigmoid(logits - logits.flip(-1)) if logits.shape[-1] == 2 else logits.log_softmax(-1)
    return (target * function(log_p.masked_fill(target == 0, 0.0))).sum(-1)  # masked, as 0 * inf is NaN


class _Brier(torch.autograd.Function):
    r"""$\lVert p - e_y \rVert^2$, with gradient $2 p \circ (m - p \cdot m)$ where $m = p - e_y$."""

    generate_vmap_rule = True  # for per-example gradients by torch.func

    @staticmethod
    def forward(logits: Tensor, labels: Tensor) -> Tensor:
        """Return the Brier score (n) of class indices (n)."""
        p = logits.softmax(-1)
        p.scatter_add_(-1, labels[:, None], p.new_full((len(labels), 1), -1.0))  # p - e_y, in place to save memory
        return torch.linalg.vector_norm(p, 2, -1).square()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        """Save what `backward` needs from the inputs of `forward`."""
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        r"""Return the incoming gradient times $2 (p \circ m - p\, (p \cdot m))$, m = p - e_y, and None for labels."""
        logits, labels = ctx.saved_tensors
        factor, p = 2 * gradients[0][:, None], logits.softmax(-1)
        if torch.is_grad_enabled():  # second derivatives need p unchanged
            p_m = p * probability_error(logits, labels)
            return (p_m - p * p_m.sum(-1, keepdim=True)) * factor, None
        # the same in place, to save memory: p m is p^2, and p_y (p_y - 1) for the label
        p_y = p.gather(-1, labels[:, None])
        p_m = p.square().scatter_(-1, labels[:, None], p_y * (p_y - 1))
        return p_m.sub_(p.mul_(p_m.sum(-1, keepdim=True))).mul_(factor), None


def brier_score(logits: Logits, labels: Targets) -> PerExampleLoss:
    r"""Return $\lVert p - e_y \rVert^2$, or $\lVert p - t \rVert^2 + 1 - \lVert t \rVert^2$ for soft labels t."""
    labels = check_labels(logits, labels)
    if labels.is_floating_point():
        target = labels.to(logits)
        label_variance = (target * (1 - target)).sum(-1)  # 1 - |t|^2, as t sums to 1
        return (logits.softmax(-1) - target).square().sum(-1) + label_variance
    return _Brier.apply(logits, labels)  # pyright: ignore[reportReturnType]


def probability_error(logits: Logits, labels: Labels) -> Tensor:
    """Return softmax(logits) minus the one-hot labels, p - e_y (n, k)."""
    p = logits.softmax(-1)
    return p.scatter_add(-1, labels[:, None], p.new_full((len(labels), 1), -1.0))
