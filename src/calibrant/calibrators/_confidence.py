"""The probability that binning and splines recalibrate, and the shares of the other classes."""

import math
from typing import Any, Literal

import torch
from torch import Tensor

from calibrant._core.kernels.softmax import class_probability, top_label
from calibrant._core.tensors import like_logits
from calibrant._core.types import Logits
from calibrant.calibrators._capabilities import certified_classes
from calibrant.predictions import Predictions

BinnedEvent = Literal["top", 0, 1]  # the predicted class, or one class of two
MIN_TOP_LEAD = 1e-6  # relative lead of the predicted class over any other; more in coarser precision


def binned_event(p: Predictions) -> BinnedEvent:
    """Return the class whose probability is recalibrated: the evaluated one of two, otherwise the predicted one."""
    return p.of if p.k == 2 and p.of in (0, 1) else "top"


def binned_num_classes(calibrator: Any) -> int:
    """Return the number of classes that a calibrator accepts: 2 if it maps one class of two, 0 if unknown."""
    return certified_classes(calibrator) if calibrator.of == "top" else 2


def confidence(logits: Logits, event: BinnedEvent) -> Tensor:
    """Return the probability of the event, with the same rounding as `Predictions.events`."""
    values = top_label(logits, logits.argmax(-1))[0] if event == "top" else class_probability(logits, event)
    return like_logits(values, logits)


def replace_confidence(logits: Logits, confidence: Tensor, event: BinnedEvent = "top") -> Logits:
    """Return log p with a new probability for the predicted class, or for one class of two.

    The other classes keep their proportions, but none exceeds the predicted class: the surplus goes to smaller ones.
    The predicted class changes only if its new probability is 1/k or less, or too few classes are possible.

    Args:
        logits: Logits of any floating type, (n k).
        confidence: New probability of the event, (n) float64.
        event: "top" for the predicted class, or the index of one class of two.
    """
    log_confidence, log_remainder = confidence.log(), (-confidence).log1p()
    if event != "top":  # there are two classes
        pair = torch.stack([log_remainder, log_confidence], -1)
        return (pair if event == 1 else pair.flip(-1)).to(logits.dtype)
    log_p = logits.double().log_softmax(-1)
    top = torch.zeros_like(log_p, dtype=torch.bool).scatter_(-1, logits.argmax(-1, keepdim=True), True)
    log_p_without_top = log_p.masked_fill(top, -torch.inf)
    # If all others have probability 0, they have no proportions and get equal shares
    is_certain = log_p_without_top.isneginf().all(-1, keepdim=True)
    log_share = torch.where(is_certain, -math.log(log_p.shape[-1] - 1), log_p_without_top.log_softmax(-1))
    other_log_p = (log_remainder[:, None] + log_share).masked_fill(top, -torch.inf)
    # The others stay below the confidence by a relative lead that survives rounding to the precision of the logits
    lead = max(MIN_TOP_LEAD, 8 * torch.finfo(logits.dtype).eps)
    log_limit = log_confidence + math.log1p(-lead)
    exceeds = other_log_p.amax(-1) > log_limit
    if bool(exceeds.any()):
        other_log_p[exceeds] = _cap_probabilities(other_log_p[exceeds], log_limit[exceeds, None])
    return torch.where(top, log_confidence[:, None], other_log_p).to(logits.dtype)


def _cap_probabilities(log_p: Tensor, log_limit: Tensor) -> Tensor:
    """Lower probabilities above the limit of their row to it, and raise the others in proportion to keep row sums.

    Rows in which the limit is too low for that stay unchanged. Column m of the arrays (n k) below is the case that the
    m largest probabilities are at the limit; the first feasible case is taken.

    Args:
        log_p: Log-probabilities, (n k).
        log_limit: Logarithm of the limit of each row, (n 1).
    """
    limit, sorted_p = log_limit.exp(), log_p.exp().sort(-1, descending=True).values
    tail = sorted_p.flip(-1).cumsum(-1).flip(-1)  # sum of the probabilities that are not at the limit
    row_sum = tail[:, :1]
    # What m probabilities at the limit leave to the others, and the factor that raises these to it
    remaining_mass = row_sum - limit * torch.arange(log_p.shape[-1], device=log_p.device)
    factor = remaining_mass / tail
    feasible = (factor * sorted_p <= limit) & (remaining_mass >= 0)
    first_feasible = feasible.int().argmax(-1, keepdim=True)
    raised = log_p + factor.gather(-1, first_feasible).log()
    return torch.where(feasible.any(-1, keepdim=True), raised.minimum(log_limit), log_p)
