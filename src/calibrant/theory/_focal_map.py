"""The focal calibration map and its inverse (Komisarenko & Kull 2024, propositions 2 and 4)."""

import math

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from calibrant._core.types import Logits
from calibrant.theory._gradient import check_gamma

__all__ = ["focal_map", "focal_map_inverse"]


def focal_map(logits: Logits, *, gamma: Tensor | float) -> Logits:
    r"""Return the log of the focal calibration map, $p_k \propto q_k / g(q_k, \gamma)$ with $q$ = softmax(logits).

    The function g is `gradient_ratio`. If q minimizes the expected focal loss, p is the true distribution
    (Charoenphakdee et al. 2021, theorem 11; Komisarenko & Kull 2024, eq. 1). The map preserves the order of classes. It
    sharpens predictions above `confidence_threshold` for gamma > 0, softens them for gamma < 0, and is the identity at
    gamma = 0. Differentiable in logits and gamma.

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
    check_gamma(gamma)
    z = logits.to(torch.promote_types(logits.dtype, torch.float32))
    terms = _ProbabilityTerms(z, z.argmax(-1, keepdim=True))
    mapped = terms.focal_logits(gamma).clamp_max(0)  # so that rounding lifts no class above the top one
    return mapped.log_softmax(-1)


def focal_map_inverse(logits: Logits, *, gamma: Tensor | float) -> Logits:
    """Return log q with `focal_map`(log q) = log p, where p = softmax(logits).

    q minimizes the expected focal loss if p is the true distribution. Solved in float64 to 1e-13 by Newton's method,
    whose Jacobian is diagonal plus rank one, so that a step costs as much as the map. A step never lifts a class above
    the top one, and is halved if it does not improve. Takes 3 to 6 steps for gamma from -0.5 to 5, and up to 50 near
    gamma = -1. The steps run without gradients; one more step from the solution makes the result differentiable in
    logits and gamma.

    Args:
        logits: Unnormalized log-probabilities of p (n, k).
        gamma: Gamma of the focal loss, above -1.

    Raises:
        InputError: If gamma is -1 or less.

    >>> focal_map_inverse(torch.tensor([[0.8, 0.2]]).log(), gamma=2.0).exp()
    tensor([[0.6266, 0.3734]])
    """
    check_gamma(gamma)
    top = logits.argmax(-1, keepdim=True)
    target = logits.double() - logits.double().gather(-1, top)  # log p, shifted to 0 for the top class
    fixed_gamma = torch.as_tensor(gamma, dtype=torch.float64, device=logits.device).detach()
    solution = _solve_inverse(target.detach(), top, fixed_gamma)
    terms = _ProbabilityTerms(solution, top)
    # one Newton step more: the residual carries the gradients, and the step multiplies them by the inverse Jacobian at
    # the solution, as the implicit function theorem requires; the Jacobian itself needs no gradient
    refined = solution + terms.step(terms.residual(target, gamma), fixed_gamma)
    # so that rounding lifts no class above the top one; unlike clamp_max(0), this keeps the gradient
    refined = refined - refined.detach().clamp_min(0)
    return refined.log_softmax(-1).to(torch.promote_types(logits.dtype, torch.float32))


@torch.no_grad()
def _solve_inverse(target: Tensor, top: Tensor, gamma: Tensor) -> Tensor:
    """Invert the focal map by a damped Newton method, to a relative error of 1e-13.

    Args:
        target: Logits that the map is to return (n, k), 0 for the top class and negative or 0 for the others.
        top: Index of the top class (n, 1).
        gamma: Gamma of the focal loss, float64.

    Returns:
        Logits before the map (n, k), 0 for the top class.

    Raises:
        ArithmeticError: If a row does not converge, for example because it holds NaN.
    """
    tolerance = 1e-13 / (1 + gamma).clamp_max(1)  # near gamma = -1, logits before the map and their rounding are larger
    terms = _ProbabilityTerms(target, top)
    # for confident rows the map multiplies the log-odds of the top class by 1 + gamma and shifts the others alike;
    # dividing by 1 + gamma lowers the log-odds l of the target by l gamma / (1 + gamma)
    trial = (target + gamma / (1 + gamma) * terms.top_log_odds.clamp_min(0)).clamp_max(0).masked_fill(terms.top, 0)
    best = step = torch.zeros_like(target)  # best logits of each row, and the Newton step from there
    step_length = smallest_error = torch.full_like(terms.top_log_odds, math.inf)  # (n, 1); set by the first pass
    for _ in range(100):  # twice the steps that are needed near gamma = -1
        terms = _ProbabilityTerms(trial, top)
        residual = terms.residual(target, gamma)
        error = (residual.abs() / (1 - target)).amax(-1, keepdim=True)  # relative to 1 + |target|
        improved = error < smallest_error
        best = trial.where(improved, best)
        step = terms.step(residual, gamma).where(improved, step)
        step_length = torch.where(improved, 1, step_length / 2)
        smallest_error = error.where(improved, smallest_error)
        if bool((smallest_error <= tolerance).all()):
            return best
        trial = best + (step_length * step).masked_fill(smallest_error <= tolerance, 0)  # solved rows stay
        trial = trial.clamp_max(0).masked_fill(terms.top, 0)  # the map keeps the top class
    failed = ~(smallest_error < 1e-10)  # errors slightly above the tolerance are accepted, NaN is not
    if bool(failed.any()):
        raise ArithmeticError(f"The inverse of the focal map did not converge for {int(failed.sum())} rows.")
    return best


def _log_sigmoid(x: Tensor) -> Tensor:
    """Return log(sigmoid(x)), also in exported graphs."""
    if torch.compiler.is_compiling():  # ONNX spells logsigmoid log(sigmoid(x)), which underflows
        return x.clamp_max(0) - (-x.abs()).exp().log1p()
    return logsigmoid(x)


def _log1p_ratio(d: Tensor) -> Tensor:
    """Return log(1 + t) / t with t = exp(-d), without overflow for d up to 80."""
    ratio = -_log_sigmoid(d) * d.exp()  # -log sigmoid(d) is log(1 + exp(-d))
    if torch.compiler.is_compiling():  # ONNX spells log1p log(1 + t), which is 0 for a small t
        t = (-d).exp()
        return torch.where(t < 1e-2, 1 - t / 2 + t * t / 3 - t**3 / 4, ratio)  # Taylor series, with an error below 2e-9
    return ratio


class _ProbabilityTerms:
    """Terms of the focal map at q = softmax(z), with accurate logarithms of q and o = 1 - q.

    Args:
        z: Logits (n, k).
        top: Index of the top class of each row (n, 1).

    Attributes:
        top_index: `top` as given (n, 1).
        top: True for the top class (n, k).
        relative_logits: Logits minus that of the top class (n, k).
        other_logits: `relative_logits` without the top class, which has -inf (n, k).
        top_log_odds: Log-odds of the top class (n, 1), at most 1e30.
        log_q, log_o: Logarithms of q and o (n, k).
        r: -q log q / o (n, k), from 0 at q = 0 to 1 at q = 1.
    """

    def __init__(self, z: Tensor, top: Tensor) -> None:
        # q = softmax(z), o = 1 - q, r = -q log q / o; the top class has its own formulas, as its o may underflow
        self.top_index, self.top = top, torch.zeros_like(z, dtype=torch.bool).scatter_(-1, top, True)
        self.relative_logits = z - z.gather(-1, top)
        # at least -1e30, so that the log-odds stay finite if all other classes are impossible
        self.other_logits = self.relative_logits.clamp_min(-1e30).masked_fill(self.top, -math.inf)
        self.top_log_odds = -self.other_logits.logsumexp(-1, keepdim=True)
        self.log_q = self.relative_logits + _log_sigmoid(self.top_log_odds)
        other_log_q = self.log_q.masked_fill(self.top, -math.inf)
        other_q = other_log_q.exp()  # at most 1/2, so that 1 - q and log1p(-q) are accurate
        self.log_o = torch.where(self.top, _log_sigmoid(-self.top_log_odds), torch.log1p(-other_q))
        # with log-odds d: -log q = log(1 + exp(-d)) and q / o = exp(d); above d = 80 r is 1, and exp may overflow
        top_r = _log1p_ratio(self.top_log_odds.clamp_max(80))
        other_r = -other_log_q.clamp_min(-1e4) * other_q / (1 - other_q)  # log q is finite, as inf * 0 is NaN
        self.r = torch.where(self.top, top_r, other_r)

    def focal_logits(self, gamma: Tensor | float) -> Tensor:
        r"""Return $\log(q / g)$ minus its value for the top class of each row (n, k).

        Here $g = o^\gamma (1 + \gamma r)$ is `gradient_ratio` at q.
        """
        log_g = gamma * self.log_o + torch.log1p(gamma * self.r)
        return self.relative_logits - (log_g - log_g.gather(-1, self.top_index))

    def residual(self, target: Tensor, gamma: Tensor | float) -> Tensor:
        """Return the logits after the map minus `target` (n, k), and 0 for the top class and impossible classes."""
        ignored = self.top | target.isinf()
        return self.focal_logits(gamma).masked_fill(ignored, 0) - target.masked_fill(ignored, 0)

    def step(self, residual: Tensor, gamma: Tensor) -> Tensor:
        r"""Return the change of z (n, k), 0 for the top class, that cancels the residual to first order.

        With q = softmax(z), $o = 1 - q$, $r = -q \log q / o$ and $g = o^\gamma (1 + \gamma r)$, let $d_j$ be the change
        of the log-odds of class j. Then $\log q_j$ changes by $o_j d_j$, and $\log(q_j / g_j)$ by $s_j d_j$ with the
        slope $s = o + \gamma (q - (r - q) / (1 + \gamma r))$. The residual, which is relative to the top class,
        vanishes if $s_j d_j = s_{top} d_{top} - residual_j$. Probabilities sum to 1 if $\sum_j q_j o_j d_j = 0$.
        Divided by $o_{top}$, with $a_j = (q_j / o_{top}) (o_j / s_j)$ for the other classes, this is
        $q_{top} d_{top} + \sum_j a_j (s_{top} d_{top} - residual_j) = 0$, which determines $d_{top}$.
        """
        q, o = self.log_q.exp(), self.log_o.exp()
        s = o + gamma * (q - (self.r - q) / (1 + gamma * self.r))
        o_by_s = o / s.masked_fill(self.top, 1)  # not used for the top class, where s may be 0
        a = self.other_logits.softmax(-1) * o_by_s  # the softmax over the other classes is q / o_top
        q_top, o_top, s_top = (x.gather(-1, self.top_index) for x in (q, o, s))
        d_top = (a * residual).sum(-1, keepdim=True) / (q_top + s_top * a.sum(-1, keepdim=True))
        change_of_log_q = (s_top * d_top - residual) * o_by_s  # o d
        # relative to the top class, as the shift of a row's logits is free
        return (change_of_log_q - o_top * d_top).masked_fill(self.top, 0)
