"""Cross-entropy plus the calibration error of the batch, which is one number added to the loss of every sample.

The mean over the batch is mean cross-entropy + strength * penalty. With several processes, or accumulated batches, each
batch has a penalty of its own, so that the loss depends on their number and size. `weights` count samples in the
penalty, as in metrics; weight 0 leaves one out. The caller weights the losses themselves.
"""

from typing import Literal

import torch
from torch import Tensor

from calibrant._core.types import Count, Logits, NonNegativeFloat, Norm, PerExampleLoss, Targets, Width
from calibrant.losses._focal import focal, power
from calibrant.losses._likelihood import check_labels, log_likelihood
from calibrant.losses._penalties import row_entropies
from calibrant.losses._register import register_loss

__all__ = ["avuc", "dca", "mdca", "mmce", "soft_ece"]


@register_loss
def mmce(
    logits: Logits,
    labels: Targets,
    *,
    strength: float = 2.0,
    form: Literal["weighted", "plain"] = "weighted",
    normalization: Literal["code", "paper"] = "code",
    width: Width = 0.4,
    weights: PerExampleLoss | None = None,
) -> PerExampleLoss:
    r"""Compute cross-entropy plus the maximum mean calibration error (Kumar et al. 2018, eq. 4 and 5).

    With confidence r, correctness c, kernel $k(r, r') = e^{-|r - r'| / width}$ and m correct among n predictions of the
    batch, the penalty is $\sqrt{\sum_{ij} v_i v_j k(r_i, r_j)}$. It is evaluated in float64, in O(n log n) for
    widths of at least 0.002. Equals cross-entropy at strength 0. With several processes, the penalty is that of the
    batch of each process.

    Args:
        logits: Unnormalized log-probabilities (n, k).
        labels: Class indices (n) or soft labels (n, k).
        strength: Factor of the penalty. 2 is tuned to the "code" normalization (8 for text).
        form: "weighted": $v_i = (1 - r_i) / m$ if correct, else $-r_i / (n - m)$, and 0 if either kind is missing.
            "plain": $v_i = (c_i - r_i) / n$; only this form vanishes for calibrated predictions.
        normalization: "code": as in the code of Mukhoti et al. (2020) and Kumar et al. The weighted v is divided by m^2
            and (n - m)^2, and the plain form has no square root. Their 1e-10 under the root is kept; the 1e-5 that they
            add to denominators is omitted, which changes the value by less than 1e-5 of itself. "paper": the equations
            above.
        width: Width of the kernel; 0.4 in the paper.
        weights: Weights of the samples (n) in the penalty.

    >>> mmce(torch.zeros(1, 2), torch.tensor([0]), strength=1.0, form="plain", normalization="paper")
    tensor([1.1931])
    """
    r, c, w = _confidence(logits, labels, weights)
    if form == "plain":
        v = w * (c - r) / w.sum()
    else:
        correct_weights, wrong_weights = w * c, w * (1 - c)
        num_correct, num_wrong = correct_weights.sum(), wrong_weights.sum()
        exponent = 1 if normalization == "paper" else 2
        # if a count is 0, division by 1 avoids NaN, and the last factor sets v to 0
        v = correct_weights * (1 - r) / num_correct.where(num_correct > 0, 1.0) ** exponent
        v = v - wrong_weights * r / num_wrong.where(num_wrong > 0, 1.0) ** exponent
        v = v * ((num_correct > 0) & (num_wrong > 0))
    penalty = _kernel_sum(v, r, width)
    if form == "weighted" or normalization == "paper":
        penalty = (penalty.clamp_min(0) + 1e-10).sqrt()  # rounding may leave less than 0; finite gradient at 0
    return _add_penalty(logits, labels, strength, penalty)


@register_loss
def dca(
    logits: Logits, labels: Targets, *, strength: float = 1.0, weights: PerExampleLoss | None = None
) -> PerExampleLoss:
    r"""Compute cross-entropy plus the gap of confidence and accuracy, $|\bar r - \bar c|$ (Liang et al. 2020).

    $\bar r$ and $\bar c$ are the means over the batch of confidence and correctness, with `weights` (n) if given.
    Equals cross-entropy at strength 0. The default strength is the one in the code of Hebbalaguppe et al. (2022). With
    several processes, the penalty is that of the batch of each process.

    >>> dca(torch.zeros(1, 2), torch.tensor([0]))
    tensor([1.1931])
    """
    r, c, w = _confidence(logits, labels, weights)
    return _add_penalty(logits, labels, strength, (w * (r - c)).sum().abs() / w.sum())


@register_loss
def mdca(
    logits: Logits,
    labels: Targets,
    *,
    strength: float = 1.0,
    gamma: NonNegativeFloat = 0.0,
    weights: PerExampleLoss | None = None,
) -> PerExampleLoss:
    r"""Compute focal loss plus the class-wise gap of the batch (Hebbalaguppe et al. 2022).

    The penalty is $\frac{1}{k} \sum_j |\bar p_j - \bar 1[y = j]|$ over the k classes j: the mean probability of a class
    in the batch against its frequency. Equals focal loss at strength 0. With several processes, the penalty is that of
    the batch of each process.

    Args:
        logits: Unnormalized log-probabilities (n, k).
        labels: Class indices (n) or soft labels (n, k).
        strength: Factor of the penalty; 1 in the authors' code.
        gamma: Gamma of the focal loss. The default 0 is cross-entropy; the authors also use 1 to 3.
        weights: Weights of the samples (n) in the penalty.

    >>> mdca(torch.zeros(1, 2), torch.tensor([0]))
    tensor([1.1931])
    """
    labels = check_labels(logits, labels)
    p = logits.softmax(-1)
    share = torch.full_like(p[:, 0], 1 / len(p)) if weights is None else (weights / weights.sum()).to(p)
    if labels.is_floating_point():
        frequency = (share[:, None] * labels.to(p)).sum(0)  # no matrix product, which autocast would round
    else:
        frequency = torch.zeros_like(p[0]).index_add(0, labels, share)
    class_gap = ((share[:, None] * p).sum(0) - frequency).abs()  # mean probability against frequency, (k)
    return focal(logits, labels, gamma=gamma) + strength * class_gap.mean()


@register_loss
def soft_ece(
    logits: Logits,
    labels: Targets,
    *,
    strength: float = 1.0,
    bins: Count = 15,
    temperature: Width = 0.01,
    norm: Norm = 2.0,
    weights: PerExampleLoss | None = None,
) -> PerExampleLoss:
    r"""Compute cross-entropy plus the soft-binned calibration error, SB-ECE (Karandikar et al. 2021).

    The confidence r belongs to the bin with center $\xi_b = (b - 1/2) / M$ by the share softmax$_b(-(r - \xi_b)^2 /
    T)$. With bin sizes S, accuracies A and confidences C under these shares, the penalty is
    $(\sum_b \frac{S_b}{n} |A_b - C_b|^q)^{1/q}$, which approaches the error of equal-width bins as T goes to 0. Equals
    cross-entropy at strength 0. The defaults were not checked against the paper's tables. With several processes, the
    penalty is that of the batch of each process.

    Args:
        logits: Unnormalized log-probabilities (n, k).
        labels: Class indices (n) or soft labels (n, k).
        strength: Factor of the penalty.
        bins: Number M of bins.
        temperature: T, the softness of the bins.
        norm: q.
        weights: Weights of the samples (n) in the penalty.

    >>> soft_ece(torch.zeros(1, 2), torch.tensor([0]))
    tensor([1.1931])
    """
    r, c, w = _confidence(logits, labels, weights)
    centers = (torch.arange(bins, device=r.device) + 0.5) / bins
    # (n bins): share of a sample in each bin, times its share of the batch
    shares = (-((r[:, None] - centers) ** 2) / temperature).softmax(-1) * (w / w.sum())[:, None]
    size = shares.sum(0)  # share of the batch in each bin, S / n
    bin_gap = ((c - r) @ shares).abs() / size.clamp_min(torch.finfo(size.dtype).tiny)  # |A - C|
    return _add_penalty(logits, labels, strength, power((size * power(bin_gap, norm)).sum(), 1 / norm))


@register_loss
def avuc(
    logits: Logits,
    labels: Targets,
    *,
    strength: float = 1.0,
    threshold: float | None = None,
    weights: PerExampleLoss | None = None,
) -> PerExampleLoss:
    r"""Compute cross-entropy plus the AvUC loss, accuracy versus uncertainty (Krishnan & Tickoo 2020, eq. 2 to 5).

    A prediction of confidence r is certain if its entropy u is at most the threshold. With t = tanh(u), the penalty is
    $\log(1 + \frac{n_{AU} + n_{IC}}{n_{AC} + n_{IU}})$. The terms are sums over the batch: $n_{AC}$ of r (1 - t) over
    right and certain predictions, $n_{AU}$ of r t over right and uncertain ones, $n_{IC}$ of (1 - r)(1 - t) over wrong
    and certain ones, and $n_{IU}$ of (1 - r) t over wrong and uncertain ones. The 1e-10 of the authors' code is added
    to the sums. Equals cross-entropy at strength 0. With several processes, the penalty is that of the batch of each
    process.

    Args:
        logits: Unnormalized log-probabilities (n, k).
        labels: Class indices (n) or soft labels (n, k).
        strength: Factor of the penalty. The paper adds it to the loss of a Bayesian network; the default is not tuned.
        threshold: Entropy in nats. Default: halfway between the mean entropies of right and of wrong predictions of
            the batch. The authors' code computes these means on validation data, after each of the first epochs.
        weights: Weights of the samples (n) in the penalty.

    >>> avuc(torch.zeros(1, 2), torch.tensor([0]))
    tensor([0.6931])
    """
    r, c, w = _confidence(logits, labels, weights)
    u = row_entropies(logits.double())
    right, wrong = w * c, w * (1 - c)  # weights of each sample as right and as wrong
    limit: Tensor | float | None = threshold
    if limit is None:
        counts = torch.stack([right.sum(), wrong.sum()])
        mean_entropies = torch.stack([right @ u, wrong @ u]).detach() / counts.where(counts > 0, 1.0)
        limit = mean_entropies.sum() / (counts > 0).sum()  # halfway, or the one mean if all are right or all wrong
    t, is_certain = u.tanh(), u <= limit
    share = torch.where(is_certain, 1 - t, t)
    right_terms = right * r * share
    wrong_terms = wrong * (1 - r) * share
    matching = (right_terms * is_certain + wrong_terms * ~is_certain).sum() + 1e-10  # n_AC + n_IU
    conflicting = (right_terms * ~is_certain + wrong_terms * is_certain).sum()  # n_AU + n_IC
    return _add_penalty(logits, labels, strength, (conflicting / matching).log1p())


def _confidence(logits: Logits, labels: Targets, weights: PerExampleLoss | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return the confidence (differentiable), correctness and weight of each sample, all (n) in float64.

    Float64, because penalties are differences of nearly equal sums. Under a soft label, correctness is the probability
    that it gives to the predicted class.
    """
    labels = check_labels(logits, labels)
    predicted = logits.argmax(-1)
    r = log_likelihood(logits, predicted).double().exp()
    soft = labels.is_floating_point()
    correct = labels.gather(-1, predicted[:, None]).squeeze(-1) if soft else predicted == labels
    return r, correct.to(r), torch.ones_like(r) if weights is None else weights.to(r)


def _add_penalty(logits: Logits, labels: Targets, strength: float, penalty: Tensor) -> PerExampleLoss:
    """Return the cross-entropy of each sample plus `strength` times the penalty of the batch."""
    return strength * penalty.to(logits.dtype) - log_likelihood(logits, labels)


def _kernel_sum(v: Tensor, r: Tensor, width: float) -> Tensor:
    r"""Return $\sum_{ij} v_i v_j e^{-|r_i - r_j| / width}$, in O(n log n) for widths of at least 0.002."""
    if width < 2e-3:  # e^{r / width} would overflow
        return v @ (-(r[:, None] - r).abs() / width).exp() @ v
    x, order = (r / width).sort()
    v = v[order]
    # for j < i in this order the kernel is e^{x_j} e^{-x_i}, so that one cumulative sum covers all j
    sums_before = (v * x.exp()).cumsum(0) - v * x.exp()
    return v.square().sum() + 2 * (v * (-x).exp() * sums_before).sum()
