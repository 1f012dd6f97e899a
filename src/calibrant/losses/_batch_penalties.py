"""Cross-entropy plus the calibration error of the batch: the penalty is one number, added to every example's loss.

The mean over the batch is then mean cross-entropy + strength * penalty. `weights` count examples in the penalty (0
leaves one out), as they do in metrics; the caller weighs the per-example losses themselves.
"""

from typing import Literal

import torch
from torch import Tensor

from calibrant.losses._focal import focal, power
from calibrant.losses._likelihood import check_labels, smoothed_log_likelihood
from calibrant.registry import LOSSES
from calibrant.types import Count, Logits, Norm, PerExample, Scalar, Targets, Width

__all__ = ["dca", "mdca", "mmce", "soft_ece"]


@LOSSES.register
def mmce(
    logits: Logits,
    labels: Targets,
    *,
    strength: float = 2.0,
    form: Literal["weighted", "plain"] = "weighted",
    normalization: Literal["code", "paper"] = "code",
    width: Width = 0.4,
    weights: PerExample | None = None,
) -> PerExample:
    r"""Cross-entropy plus the maximum mean calibration error (Kumar et al. 2018, eq. 4 and 5).

    With confidence r, correctness c and kernel $k(r, r') = e^{-|r - r'| / width}$, and m correct among n
    predictions in the batch, the penalty is $\sqrt{\sum_{ij} v_i v_j k(r_i, r_j)}$ with

    - weighted: $v_i = (1 - r_i) / m$ where correct, $-r_i / (n - m)$ where wrong; 0 if either kind is missing
    - plain: $v_i = (c_i - r_i) / n$

    Only the plain form vanishes on honest predictions; the weighted one does where half of them are right.

    "code" is what Mukhoti et al. (2020) and Kumar et al. run, to which strength 2 (8 for text) is tuned: m^2 and
    (n - m)^2 divide the weighted v, and the plain form has no square root. 1e-10 under the root keeps its gradient
    finite, as there; the 1e-5 which they add to denominators, below 1e-5 of the value, is left out.

    The double sum is evaluated in O(n log n), and in float64: after sorting by r the kernel factorizes, so that a
    cumulative sum holds all earlier examples.

    >>> mmce(torch.zeros(1, 2), torch.tensor([0]), strength=1.0, form="plain", normalization="paper")
    tensor([1.1931])
    """
    r, c, w = _confidence(logits, labels, weights)
    if form == "plain":
        v = w * (c - r) / w.sum()
    else:
        correct_weights, wrong_weights = w * c, w * (1 - c)
        m, n = correct_weights.sum(), wrong_weights.sum()
        power_of_count = 1 if normalization == "paper" else 2
        v = correct_weights * (1 - r) / m.where(m > 0, 1.0) ** power_of_count
        v = v - wrong_weights * r / n.where(n > 0, 1.0) ** power_of_count
        v = v * ((m > 0) & (n > 0))
    square = _quadratic_form(v, r / width)
    rooted = form == "weighted" or normalization == "paper"
    return _add_penalty(logits, labels, strength, (square.clamp_min(0) + 1e-10).sqrt() if rooted else square)


@LOSSES.register
def dca(logits: Logits, labels: Targets, *, strength: float = 1.0, weights: PerExample | None = None) -> PerExample:
    r"""Cross-entropy plus the difference between confidence and accuracy of the batch (Liang et al. 2020).

    $|\bar r - \bar c|$ of the top label. strength = 1 is used in the code of Hebbalaguppe et al. (2022).

    >>> dca(torch.zeros(1, 2), torch.tensor([0]))
    tensor([1.1931])
    """
    r, c, w = _confidence(logits, labels, weights)
    return _add_penalty(logits, labels, strength, (w * (r - c)).sum().abs() / w.sum())


@LOSSES.register
def mdca(
    logits: Logits,
    labels: Targets,
    *,
    strength: float = 1.0,
    gamma: float = 0.0,
    weights: PerExample | None = None,
) -> PerExample:
    r"""Focal loss plus the multi-class difference between confidence and accuracy (Hebbalaguppe et al. 2022).

    $\frac{1}{k} \sum_k |\bar p_k - \bar 1[y = k]|$, means over the batch. Cross-entropy at the default gamma = 0; the
    authors also combine it with gamma = 1 .. 3. strength = 1 is their code's.

    >>> mdca(torch.zeros(1, 2), torch.tensor([0]))
    tensor([1.1931])
    """
    check_labels(logits, labels)
    p = logits.softmax(-1)
    share = torch.full_like(p[:, 0], 1 / len(p)) if weights is None else (weights / weights.sum()).to(p)
    if labels.is_floating_point():
        frequency = share @ labels.to(p)
    else:
        frequency = torch.zeros_like(p[0]).index_add(0, labels, share)
    return focal(logits, labels, gamma=gamma) + strength * (share @ p - frequency).abs().mean()


@LOSSES.register
def soft_ece(
    logits: Logits,
    labels: Targets,
    *,
    strength: float = 1.0,
    bins: Count = 15,
    temperature: Width = 0.01,
    norm: Norm = 2.0,
    weights: PerExample | None = None,
) -> PerExample:
    r"""Cross-entropy plus soft-binned calibration error, SB-ECE (Karandikar et al. 2021).

    Confidence r belongs to the bin with center $\xi_b = (b - 1/2) / M$ by the share softmax$_b(-(r - \xi_b)^2 / T)$;
    the error is $(\sum_b \frac{S_b}{n} |A_b - C_b|^q)^{1/q}$ with bin sizes S, accuracies A and confidences C under
    these shares. It approaches the error of equal-width bins as T goes to 0. The defaults T = 0.01, q = 2 and
    strength 1 were not checked against the paper's tables.

    >>> soft_ece(torch.zeros(1, 2), torch.tensor([0]))
    tensor([1.1931])
    """
    r, c, w = _confidence(logits, labels, weights)
    centers = (torch.arange(bins, device=r.device) + 0.5) / bins
    shares = (-((r[:, None] - centers) ** 2) / temperature).softmax(-1) * (w / w.sum())[:, None]
    size = shares.sum(0)
    gap = ((c - r) @ shares).abs() / size.clamp_min(torch.finfo(size.dtype).tiny)
    return _add_penalty(logits, labels, strength, power((size * power(gap, norm)).sum(), 1 / norm))


def _confidence(logits: Logits, labels: Targets, weights: PerExample | None) -> tuple[Tensor, Tensor, Tensor]:
    """Probability of the predicted class, with its gradient; whether it is right; what it counts; all in float64.

    Under a soft label the prediction is right by the share that it gives to it.
    """
    check_labels(logits, labels)
    predicted = logits.argmax(-1)
    r = smoothed_log_likelihood(logits, predicted).double().exp()
    soft = labels.is_floating_point()
    correct = labels.gather(-1, predicted[:, None]).squeeze(-1) if soft else predicted == labels
    return r, correct.to(r), torch.ones_like(r) if weights is None else weights.to(r)


def _add_penalty(logits: Logits, labels: Targets, strength: float, penalty: Scalar) -> PerExample:
    return strength * penalty.to(logits.dtype) - smoothed_log_likelihood(logits, labels)


def _quadratic_form(v: Tensor, x: Tensor) -> Tensor:
    r"""$\sum_{ij} v_i v_j e^{-|x_i - x_j|}$ in O(n log n)."""
    x, order = x.sort()
    v = v[order]
    prefix_sums = (v * x.exp()).cumsum(0) - v * x.exp()
    return v.square().sum() + 2 * (v * (-x).exp() * prefix_sums).sum()
