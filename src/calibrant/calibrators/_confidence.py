"""Whose probability is binned, or bent by a spline, and how a new one finds its place among the others."""

import math
from typing import Any, Literal

import torch
from torch import Tensor

from calibrant._softmax import one_class, top_label
from calibrant.calibrators._apply import certified
from calibrant.predictions import Predictions
from calibrant.types import Logits, PerExample

Binned = Literal["top", 0, 1]  # the predicted class's, or of two classes that of the one judged
SMALLEST_LEAD = 1e-6  # of the predicted class over any other, relative; more where numbers are coarser


def binned(p: Predictions) -> Binned:
    """Whose probability is binned: the predicted class's, unless one of two is judged."""
    return p.of if p.k == 2 and p.of in (0, 1) else "top"


def classes_binned(calibrator: Any) -> int:
    """How many classes a map is for."""
    return certified(calibrator) if calibrator.of == "top" else 2


def confidence(logits: Logits, of: Binned) -> PerExample:
    """Return the very numbers that events are made of."""
    return top_label(logits, logits.argmax(-1))[0] if of == "top" else one_class(logits, of)


def with_confidence(logits: Logits, confidence: PerExample, of: Binned = "top") -> Logits:
    """Give the predicted class, or one of two, a new probability; the others share the rest.

    They keep their proportions, but none gets as much as the predicted class, which therefore stays predicted: the
    surplus goes to those below. Only a probability of 1/k or less, or too few possible classes, give it away. One of
    two gets what it is given.
    """
    if of != "top":
        pair = torch.stack([(-confidence).log1p(), confidence.log()], -1)
        return (pair if of == 1 else pair.flip(-1)).to(logits.dtype)
    log_p = logits.double().log_softmax(-1)
    top = torch.zeros_like(log_p, dtype=torch.bool).scatter_(-1, logits.argmax(-1, keepdim=True), True)
    rest = log_p.masked_fill(top, -torch.inf)
    log_rest = rest.logsumexp(-1, keepdim=True)  # log(1 - confidence), accurate near 1
    share = torch.where(log_rest.isneginf(), -math.log(log_p.shape[-1] - 1), rest.log_softmax(-1))
    others = ((-confidence).log1p()[:, None] + share).masked_fill(top, -torch.inf)
    lead = max(SMALLEST_LEAD, 8 * torch.finfo(logits.dtype).eps)
    limit = confidence.log() + math.log1p(-lead)
    above = others.amax(-1) > limit
    if bool(above.any()):
        others[above] = _below(others[above], limit[above, None])
    return torch.where(top, confidence.log()[:, None], others).to(logits.dtype)


def _below(log_p: Tensor, log_limit: Tensor) -> Tensor:
    """Lower what lies above the limit of its row to it, and raise the rest in proportion; rows keep their sums.

    Rows without room for that stay as they are.
    """
    limit, s = log_limit.exp(), log_p.exp().sort(-1, descending=True).values
    tail = s.flip(-1).cumsum(-1).flip(-1)  # what the m-th largest and all below it have
    left = tail[:, :1] - limit * torch.arange(s.shape[-1], device=s.device)  # for them if m are at the limit
    factor = left / tail
    fits = (factor * s <= limit) & (left >= 0)
    raised = log_p + factor.gather(-1, fits.int().argmax(-1, keepdim=True)).log()
    return torch.where(fits.any(-1, keepdim=True), raised.minimum(log_limit), log_p)
