r"""The theory of focal loss, as functions: what it does to gradients, to probabilities, and how to undo it.

Two families of facts. Mukhoti et al. (2020): focal loss multiplies the gradient of cross-entropy by $g(p_y, \gamma)$,
and $\gamma^*$ makes that factor 1 where one wants it. Komisarenko & Kull (2024): focal loss is a proper loss of a
sharper prediction, the focal calibration map, which is nearly a temperature. `docs/theory.md` tells the story, and
says where the papers' statements had to be corrected.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from calibrant._types import InputError, Logits

__all__ = ["focal_map", "gradient_ratio"]

Gamma = float | Tensor


def gradient_ratio(p: Tensor | float, gamma: Gamma) -> Tensor:
    r"""Return $g(p, \gamma) = (1-p)^\gamma - \gamma p (1-p)^{\gamma-1} \log p$ (Mukhoti et al. 2020, prop. 1).

    The gradient of focal loss is that of cross-entropy times g at p = p_y, the probability of the true class.
    Written $(1-p)^\gamma (1 + \gamma r)$ with $r = -p \log p / (1-p)$, which rises from 0 at p = 0 to 1 at p = 1, so
    that both ends are exact. Elementwise; 1 at p = 0 and for gamma = 0. Plain numbers are taken in float64.

    >>> gradient_ratio(0.5, 2.0)  # (1 + 2 log 2) / 4
    tensor(0.5966, dtype=torch.float64)
    """
    p = torch.as_tensor(p, dtype=None if isinstance(p, Tensor) else torch.float64)
    o = 1 - p
    r = torch.where(o > 0, torch.special.entr(p) / o.where(o > 0, 1), 1)
    return o**gamma * (1 + gamma * r)


def focal_map(logits: Logits, *, gamma: Gamma) -> Logits:
    r"""Return the log of the focal calibration map, $p_k \propto q_k / g(q_k, \gamma)$ with $q$ = softmax(logits).

    If q minimizes the focal loss of gamma in expectation, then p is the true distribution (Charoenphakdee et al.
    2021, theorem 11; Komisarenko & Kull 2024, prop. 2 and 4, whose eq. 1 is this with $g$ written out). It keeps the
    order of the classes, sharpens for gamma > 0, softens for gamma < 0, and is the identity at gamma = 0.

    Everything stays in log space and $\log(1 - q)$ comes from the other classes, so that rows saturated to any degree
    are mapped in full precision, in float32 too; logits of -inf stay -inf. Half precision is raised to float32.
    Differentiable in logits and gamma. Raises `InputError` unless gamma > -1: at -1 and below g is not positive.

    >>> focal_map(torch.tensor([[0.626614827, 0.373385173]]).log(), gamma=2.0).exp()
    tensor([[0.8000, 0.2000]])
    """
    _check(gamma)
    z = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return _Sides(z, z.argmax(-1, keepdim=True)).sharpened(gamma).clamp_max(0).log_softmax(-1)


def _check(gamma: Gamma) -> None:
    if not bool((torch.as_tensor(gamma) > -1).all()):
        raise InputError(f"the focal map needs gamma > -1, got {gamma}; below, its weights are not positive")


class _Sides:
    """q = softmax(z) and o = 1 - q in log space, both accurate for every class of every row."""

    def __init__(self, z: Tensor, top: Tensor) -> None:
        self.top = torch.zeros_like(z, dtype=torch.bool).scatter_(-1, top, True)
        self.gap = z - z.gather(-1, top)
        others = self.gap.clamp_min(-1e30).masked_fill(self.top, -math.inf)
        d = -others.logsumexp(-1, keepdim=True)  # log-odds of the top class, at most 1e30
        self.log_q = self.gap + logsigmoid(d)
        self.log_o = torch.where(
            self.top, logsigmoid(-d), torch.log1p(-self.log_q.masked_fill(self.top, -math.inf).exp())
        )
        # r = -q log q / (1 - q), in [0, 1]: for the top class log(1 + t) / t with t = exp(-d)
        d = d.clamp_max(80)
        ratio = torch.where(self.top, -logsigmoid(d) * d.exp(), 0)
        log_q = self.log_q.clamp_min(-1e4)
        odds = (log_q - self.log_o).masked_fill(self.top, -math.inf).exp()
        self.r = torch.where(self.top, ratio, -log_q * odds)

    def sharpened(self, gamma: Gamma) -> Tensor:
        """Return log p of the focal map, up to a constant per row that makes the top class 0."""
        log_g = gamma * self.log_o + torch.log1p(gamma * self.r)
        return self.gap - (log_g - log_g.masked_fill(~self.top, 0).sum(-1, keepdim=True))
