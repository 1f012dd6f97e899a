"""The focal calibration map and its inverse (Komisarenko & Kull 2024, propositions 2 and 4)."""

import math

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from calibrant.types import InputError, Logits

__all__ = ["focal_map", "focal_map_inverse"]


def focal_map(logits: Logits, *, gamma: Tensor | float) -> Logits:
    r"""Return the log of the focal calibration map, $p_k \propto q_k / g(q_k, \gamma)$ with $q$ = softmax(logits).

    If q minimizes the expected focal loss, p is the true distribution (Charoenphakdee et al. 2021, theorem 11;
    Komisarenko & Kull 2024, eq. 1). The map preserves the order of classes. It sharpens for gamma > 0, softens
    predictions above `confidence_threshold` for gamma < 0, and is the identity at gamma = 0. Differentiable in logits
    and gamma.

    All computations are in log space, with $\log(1 - q)$ from the other classes, so that saturated rows keep full
    precision. Logits of -inf stay -inf. Half precision is raised to float32.

    Args:
        logits: Unnormalized log-probabilities (n, k).
        gamma: Gamma of the focal loss, above -1: otherwise g is not positive.

    Raises:
        InputError: If gamma is -1 or less.

    >>> focal_map(torch.tensor([[0.626614827, 0.373385173]]).log(), gamma=2.0).exp()
    tensor([[0.8000, 0.2000]])
    """
    _check_gamma(gamma)
    z = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return _ProbabilityTerms(z, z.argmax(-1, keepdim=True)).focal_logits(gamma).clamp_max(0).log_softmax(-1)


def focal_map_inverse(logits: Logits, *, gamma: Tensor | float) -> Logits:
    """Return log q with `focal_map`(log q) = log p, where p = softmax(logits).

    q minimizes the expected focal loss if p is the true distribution. Solved in float64 by Newton's method, whose
    Jacobian is diagonal plus rank one, so that a step costs as much as the map. Steps are projected on the order of the
    classes and halved if they do not improve. At 1e-13 from the solution, one more step carries the gradients in logits
    and gamma. Takes 5 to 10 steps for |gamma| of some units, and up to 50 near gamma = -1.

    Args:
        logits: Unnormalized log-probabilities of p (n, k).
        gamma: Gamma of the focal loss, above -1.

    Raises:
        InputError: If gamma is -1 or less.

    >>> focal_map_inverse(torch.tensor([[0.8, 0.2]]).log(), gamma=2.0).exp()
    tensor([[0.6266, 0.3734]])
    """
    _check_gamma(gamma)
    top = logits.argmax(-1, keepdim=True)
    target = logits.double() - logits.double().gather(-1, top)
    fixed = torch.as_tensor(gamma, dtype=torch.float64, device=logits.device).detach()
    gap = _solve_inverse(target.detach(), top, fixed)
    sides = _ProbabilityTerms(gap, top)
    refined = gap + sides.step(sides.residual(target, gamma), fixed)
    gap = refined - refined.detach().clamp_min(0)
    return gap.log_softmax(-1).to(torch.promote_types(logits.dtype, torch.float32))


@torch.no_grad()
def _solve_inverse(target: Tensor, top: Tensor, gamma: Tensor) -> Tensor:
    """Return logits, 0 for the top class, that the map takes to `target`, to a relative error of 1e-13."""
    tolerance = 1e-13 / (1 + gamma).clamp_max(1)
    sides = _ProbabilityTerms(target, top)
    # for confident rows the map multiplies the log-odds of the top class by 1 + gamma and shifts the others alike
    trial = (target + gamma / (1 + gamma) * sides.top_log_odds.clamp_min(0)).clamp_max(0).masked_fill(sides.top, 0)
    gap = step = torch.zeros_like(target)
    length = smallest = torch.full_like(sides.top_log_odds, math.inf)
    for _ in range(100):
        sides = _ProbabilityTerms(trial, top)
        miss = sides.residual(target, gamma)
        size = (miss.abs() / (1 - target)).amax(-1, keepdim=True)
        improved = size < smallest
        gap, step = trial.where(improved, gap), sides.step(miss, gamma).where(improved, step)
        length, smallest = torch.where(improved, 1, length / 2), size.where(improved, smallest)
        if bool((smallest <= tolerance).all()):
            return gap
        trial = gap + (length * step).masked_fill(smallest <= tolerance, 0)
        trial = trial.clamp_max(0).masked_fill(sides.top, 0)
    if bool((smallest < 1e-10).all()):
        return gap
    raise ArithmeticError(f"The inverse of the focal map did not converge for {int((~(smallest < 1e-10)).sum())} rows.")


def _check_gamma(gamma: Tensor | float) -> None:
    if not torch.compiler.is_compiling() and not bool((torch.as_tensor(gamma) > -1).all()):
        raise InputError(
            f"Expected gamma > -1, got {gamma}. Other weights of the focal map are not positive.", code="gamma_range"
        )


def _log_sigmoid(x: Tensor) -> Tensor:
    if torch.compiler.is_compiling():  # ONNX spells logsigmoid log(sigmoid(x)), which underflows
        return x.clamp_max(0) - (-x.abs()).exp().log1p()
    return logsigmoid(x)


def _log1p_ratio(d: Tensor) -> Tensor:
    """Return log(1 + t) / t with t = exp(-d)."""
    ratio = -_log_sigmoid(d) * d.exp()
    if torch.compiler.is_compiling():  # ONNX spells log1p log(1 + t), which is 0 for a small t
        t = (-d).exp()
        return torch.where(t < 1e-2, 1 - t / 2 + t * t / 3 - t**3 / 4, ratio)
    return ratio


class _ProbabilityTerms:
    """q = softmax(z) and o = 1 - q, both accurate for every class; `top` marks the largest class of a row."""

    def __init__(self, z: Tensor, top: Tensor) -> None:
        self.top = torch.zeros_like(z, dtype=torch.bool).scatter_(-1, top, True)
        self.gap = z - z.gather(-1, top)
        self.other_logits = self.gap.clamp_min(-1e30).masked_fill(self.top, -math.inf)
        self.top_log_odds = -self.other_logits.logsumexp(-1, keepdim=True)  # log-odds of the top class, at most 1e30
        self.log_q = self.gap + _log_sigmoid(self.top_log_odds)
        below = self.log_q.masked_fill(self.top, -math.inf)  # here o >= 1/2
        self.log_o = torch.where(self.top, _log_sigmoid(-self.top_log_odds), torch.log1p(-below.exp()))
        # r = -q log q / o, from 0 at q = 0 to 1 at q = 1; for the top class log(1 + t) / t with t = exp(-d)
        d = self.top_log_odds.clamp_max(80)
        self.r = torch.where(self.top, _log1p_ratio(d), -below.clamp_min(-1e4) * (below - self.log_o).exp())

    def focal_logits(self, gamma: Tensor | float) -> Tensor:
        """Return log p of the focal map, up to a constant per row that makes the top class 0."""
        log_g = gamma * self.log_o + torch.log1p(gamma * self.r)
        return self.gap - (log_g - log_g.masked_fill(~self.top, 0).sum(-1, keepdim=True))

    def residual(self, target: Tensor, gamma: Tensor | float) -> Tensor:
        """Return log p of the map minus `target`; 0 for the top class and impossible classes."""
        settled = self.top | target.isinf()
        return self.focal_logits(gamma).masked_fill(settled, 0) - target.masked_fill(settled, 0)

    def step(self, miss: Tensor, gamma: Tensor) -> Tensor:
        r"""Return the change of z, 0 for the top class, that cancels `miss` to first order.

        With $h = q / g$ and $s = d \log h / d\, \text{logit}(q) = o + \gamma (q - (r - q) / (1 + \gamma r))$, every
        other class needs $s\, d\log q / o = s_{top} d_{top} - miss$. The condition that $q$ sums to 1 determines
        $d_{top}$, the change of the log-odds of the top class.
        """
        q, o = self.log_q.exp(), self.log_o.exp()
        slope = o + gamma * (q - (self.r - q) / (1 + gamma * self.r))
        odds_per_slope = o / slope.masked_fill(self.top, 1)
        share = self.other_logits.softmax(-1)
        q_top, o_top, slope_top = ((x * self.top).sum(-1, keepdim=True) for x in (q, o, slope))
        d_top = (share * odds_per_slope * miss).sum(-1, keepdim=True) / (
            q_top + slope_top * (share * odds_per_slope).sum(-1, keepdim=True)
        )
        return ((slope_top * d_top - miss) * odds_per_slope - o_top * d_top).masked_fill(self.top, 0)
