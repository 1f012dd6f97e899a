r"""The first minimum of a criterion over a grid of temperatures, or of (gamma, T): exact, and far faster.

A metric of the top label sees a temperature only through the confidences $c_i = \exp(-L_i)$. All of them fall with T,
and an error over bins is at least |mean confidence - accuracy|: a few looks leave a stretch of the grid that could hold
the minimum. With many classes each row's L is interpolated there in u = log(1/T), in which it is analytic whatever the
scale of the logits. Every point then gets a lower and an upper bound of the criterion that allow for the error of the
confidences: only examples next to a bin edge, or tied across one, can make a difference. All points that could be the
minimum are computed by the metric itself, so that the answer is that of the plain loop.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant import registry, theory
from calibrant.backend.bins import pack_scores, unpack_scores
from calibrant.backend.dispatch import kernels
from calibrant.backend.softmax import LOG2_E
from calibrant.backend.solvers import first_minimum, map_row_chunks
from calibrant.predictions import Predictions

GridBlock = tuple[Sequence[float], Sequence[float]]  # gammas, and temperatures for each of them
Bounds = partial[tuple[Tensor, Tensor]]  # of confidences, what happened, weights, and the confidences' error

CHUNK_ELEMENTS = 1 << 17  # elements worked on at a time, to stay in cache
MAX_BATCH_CONFIDENCES = 1 << 18  # confidences worked on at a time
ROUNDING_ERROR, INTERPOLATION_ERROR = 1e-13, 1e-9  # error of a confidence, computed and interpolated
MAX_EXHAUSTIVE_TEMPERATURES = 16  # temperatures that are not worth a search
PANEL_WIDTH = 1.75  # width in log T of one piece of the interpolant
INTERPOLANT_DEGREES = (8, 16, 32, 64, 128)  # of the interpolant of a row, the first that is enough


@dataclass(frozen=True)
class GridMinimum:
    """Where a criterion is least on a grid."""

    gamma: float
    temperature: float
    value: float


def search_grid(p: Predictions, criterion: str, blocks: Sequence[GridBlock]) -> GridMinimum:
    """Return the first strict minimum, gamma by gamma and in the order of the temperatures.

    The same as evaluating the criterion on `focal_map(logits / T, gamma)` everywhere. Only "ece" of norm 1 of the
    top label, "adaptive_ece" without weights and "nll" of all are bounded first; any other metric is evaluated
    everywhere.
    """
    metric = registry.METRICS.method(criterion)
    p = p.double()
    grid = [(gamma, t) for gammas, ts in blocks for gamma in gammas for t in ts]

    def exact(pair: tuple[float, float]) -> float:
        gamma, t = pair
        return float(metric(p.apply(lambda z: theory.focal_map(z / t, gamma=gamma) if gamma else z / t)))

    low, high = _criterion_bounds(p, metric, blocks)
    possible = (low <= high.min()).nonzero().squeeze(1).tolist()
    (gamma, t), value = first_minimum(exact, [grid[i] for i in possible])
    return GridMinimum(gamma, t, value)


def _criterion_bounds(p: Predictions, metric: registry.Method, blocks: Sequence[GridBlock]) -> tuple[Tensor, Tensor]:
    """Lower and upper bounds of the criterion on the whole grid."""
    z = p.logits.double()
    top = z.argmax(-1, keepdim=True)
    d = (z - z.gather(-1, top)).clamp_min(-1e300)
    parts = [_bounds_of_block(d, top, p, metric, gammas, ts) for gammas, ts in blocks]
    lows, highs = zip(*parts, strict=True)
    return torch.cat(lows), torch.cat(highs)


def _bounds_of_block(
    d: Tensor, top: Tensor, p: Predictions, metric: registry.Method, gammas: Sequence[float], ts: Sequence[float]
) -> tuple[Tensor, Tensor]:
    low = torch.full((len(gammas), len(ts)), -math.inf, dtype=torch.float64)
    high = torch.full_like(low, math.inf)
    if metric.canonical == "nll(among='all')":
        possible = bool((d.gather(1, p.labels[:, None]) > -1e300).all())  # else the NLL is infinite everywhere
        return _nll_bounds(d, top, p, gammas, ts) if possible else (low.flatten(), high.flatten())
    bounds = _binned_error_bounds(metric, p)
    if bounds is not None:
        correct, places = (top.squeeze(1) == p.labels).double(), torch.arange(len(ts))
        if (
            not any(gammas)
            and len(ts) > MAX_EXHAUSTIVE_TEMPERATURES
            and bounds.keywords.get("boundaries") is not _mukhoti_boundaries
        ):
            lower_bounds, places = _restrict_grid(d, top, correct, p.weights, bounds, ts)
            low[:] = lower_bounds
        for indices, loss, error in _losses(d, top, gammas, [ts[i] for i in places.tolist()]):
            bound_pair = bounds(_confidence(loss).flatten(0, 1), correct, p.weights, error)
            low[:, places[indices]], high[:, places[indices]] = (
                bound.view(loss.shape[:2]).cpu() for bound in bound_pair
            )
    return low.flatten(), high.flatten()


# Where on the grid the minimum could be


def _restrict_grid(
    d: Tensor, top: Tensor, correct: Tensor, weights: Tensor | None, bounds: Bounds, ts: Sequence[float]
) -> tuple[Tensor, Tensor]:
    """Lower bounds of an error over bins on the whole grid, and the places in it where the error could be least.

    The gap, mean confidence - accuracy, falls with T. Where it is beyond the least error seen, no error is as small:
    the ends of that stretch are sought until FEW places are left between two looks.
    """
    order = torch.tensor(ts, dtype=torch.float64).argsort(stable=True)
    gaps: dict[int, float] = {}
    lowest_error = level = math.inf
    last = len(ts) - 1
    new_places = {0, *(round(last ** (i / 4)) for i in range(5))}  # papers' grids lie evenly in T
    while new_places:
        for place in new_places:
            c = _confidence(_loss(d, top, 1 / ts[int(order[place])], (0.0,)))
            gaps[place] = float(_mean(c - correct, weights))
            lowest_error = min(lowest_error, float(bounds(c, correct, weights, ROUNDING_ERROR)[1]))
        level = lowest_error + INTERPOLATION_ERROR
        between = [(i, j, aim) for i, j in pairwise(sorted(gaps)) for aim in (level, 0.0, -level)]
        new_places = {_crossing(i, j, gaps[i], gaps[j], aim) for i, j, aim in between if gaps[i] > aim >= gaps[j]} - {
            -1
        }
    evaluated = torch.tensor(sorted(gaps))
    gap, place = torch.tensor([gaps[i] for i in evaluated.tolist()], dtype=torch.float64), torch.arange(len(ts))
    next_gap = gap[torch.searchsorted(evaluated, place)]
    previous_gap = gap[torch.searchsorted(evaluated, place, right=True) - 1]
    bound = torch.maximum(next_gap, -previous_gap)
    low = torch.empty_like(bound).index_copy_(0, order, bound - 10 * ROUNDING_ERROR)
    return low, order[bound <= level].sort().values


def _crossing(i: int, j: int, left_gap: float, right_gap: float, target: float) -> int:
    """Where between two places a falling gap may cross what is aimed at; -1 if they are near enough."""
    share = (left_gap - target) / (left_gap - right_gap)
    return -1 if j - i <= MAX_EXHAUSTIVE_TEMPERATURES else i + round((j - i) * min(max(share, 0.1), 0.9))


# Confidences on a grid


def _confidence(loss: Tensor) -> Tensor:
    return loss.clamp_min(0).mul_(-LOG2_E).exp2_()


def _losses(
    d: Tensor, top: Tensor, gammas: Sequence[float], ts: Sequence[float]
) -> Iterator[tuple[Tensor, Tensor, float]]:
    """Yield (indices into ts, L (g, m, n), error of L) until all temperatures are done; L = -log confidence."""
    u = -torch.tensor(ts, dtype=torch.float64).log()
    n, k = d.shape
    size = max(1, MAX_BATCH_CONFIDENCES // (n * len(gammas)))
    if k < 64 or len(ts) < 40:
        for indices in torch.arange(len(ts)).split(size):
            yield (
                indices,
                torch.stack([_loss(d, top, math.exp(v), gammas) for v in u[indices].tolist()], 1),
                ROUNDING_ERROR,
            )
        return
    for panel, start, end in _panels(u):
        curve = _interpolant(d, top, gammas, u[panel], start, end)
        for indices in panel.split(size):
            yield indices, curve(u[indices]), INTERPOLATION_ERROR


def _interpolant(
    d: Tensor, top: Tensor, gammas: Sequence[float], u: Tensor, start: float, end: float
) -> Callable[[Tensor], Tensor]:
    """Chebyshev interpolation of every row's L on [start, end], checked at one of the u; stubborn rows directly."""
    half, middle = (end - start) / 2, (end + start) / 2
    rows, remaining = torch.arange(len(d), device=d.device), (d, top)
    pieces: list[tuple[Tensor, Tensor]] = []
    values = d.new_empty(0)
    for degree in INTERPOLANT_DEGREES:
        if 2 * degree > len(u):
            break
        new_nodes = _chebyshev_nodes(degree)[1::2] if len(values) else _chebyshev_nodes(degree)
        sampled = torch.stack([_loss(*remaining, math.exp(middle + half * x), gammas) for x in new_nodes.tolist()], -1)
        if len(values):  # between every two old nodes lies a new one
            sampled = torch.cat([torch.stack([values[..., :-1], sampled], -1).flatten(-2), values[..., -1:]], -1)
        values = sampled
        coefficients = values @ _chebyshev_transform(degree)
        rough = (coefficients[..., -max(2, degree // 8) :].abs().amax(-1) > INTERPOLATION_ERROR / 100).any(0)
        pieces.append((rows[~rough], coefficients[:, ~rough]))
        rows, values = rows[rough], values[:, rough]
        remaining = d[rows], top[rows]
        if not len(rows):
            break

    def curve(u: Tensor) -> Tensor:
        angle = ((u - middle) / half).clamp(-1, 1).arccos()
        result = d.new_empty(len(gammas), len(u), len(d))
        for piece_rows, coefficients in pieces:
            degrees = torch.arange(coefficients.shape[-1], dtype=u.dtype)
            result[..., piece_rows] = ((angle[:, None] * degrees).cos() @ coefficients.mT).to(result)
        if len(rows):
            result[..., rows] = torch.stack([_loss(*remaining, math.exp(v), gammas) for v in u.tolist()], 1)
        return result

    check = u[len(u) // 2 :][:1]
    error = (curve(check)[:, 0] - _loss(d, top, math.exp(float(check)), gammas)).abs().amax(0)
    if bool((error > INTERPOLATION_ERROR / 10).any()):
        wrong = error > INTERPOLATION_ERROR / 10
        pieces = [
            (piece_rows[~wrong[piece_rows]], coefficients[:, ~wrong[piece_rows]]) for piece_rows, coefficients in pieces
        ]
        rows = torch.cat([rows, wrong.nonzero().squeeze(1)]).unique()
        remaining = d[rows], top[rows]
    return curve


def _loss(d: Tensor, top: Tensor, b: float, gammas: Sequence[float], label: Tensor | None = None) -> Tensor:
    """-log p of the top class, or of the label, by focal_map(b z, gamma) for every gamma (g, n); d = z - max z."""
    part = _loss_of_rows if (fast := kernels(d)) is None else partial(_compiled_loss, fast)
    labels = () if label is None else (label,)
    return torch.cat(map_row_chunks(partial(part, b, gammas), d, top, *labels, elements=CHUNK_ELEMENTS), -1)


def _compiled_loss(
    fast: Any, b: float, gammas: Sequence[float], d: Tensor, top: Tensor, label: Tensor | None = None
) -> Tensor:
    """The same by one compiled pass."""
    out = torch.empty(len(gammas), len(d), dtype=torch.float64)
    if any(gammas):
        y = torch.empty(0, dtype=torch.int64) if label is None else label
        rows, classes = d.contiguous().numpy(), (top.flatten().numpy(), y.contiguous().numpy())
        fast.focal_losses(rows, *classes, b, np.array(gammas, dtype=np.float64), out.numpy())
        return out
    fast.scaled_logsumexp(d.contiguous().numpy(), b, out[0].numpy())
    out = out[:1] if label is None else out[:1] - b * d.gather(1, label[:, None]).T
    return out.expand(len(gammas), -1)


def _loss_of_rows(b: float, gammas: Sequence[float], d: Tensor, top: Tensor, label: Tensor | None = None) -> Tensor:
    label = None if label is None else label[:, None]
    e = (b * LOG2_E * d).exp2_().scatter_(1, top, 0.0)
    extra = 0 if label is None else -b * d.gather(1, label).squeeze(1)
    if not any(gammas):
        return e.sum(1).log1p().add(extra).expand(len(gammas), -1)
    s = (b * d).clamp_min_(-1e300)
    t = e.sum(1)
    norm = t.log1p()
    q = e / (1 + t)[:, None]  # of the other classes, at most 1/2
    log_o = (-q).log1p()
    r = q * (norm[:, None] - s) / (1 - q)
    t = t.clamp_min(1e-300)
    log_t = t.log() if label is None else s.scatter(1, top, -math.inf).logsumexp(1)  # beyond the range of t
    log_o_top, r_top = log_t - norm, t.log1p() / t
    losses: list[Tensor] = []
    for gamma in gammas:
        other_mass = (q * (-gamma * log_o).exp() / (1 + gamma * r)).sum(1)
        g_top = gamma * log_o_top + (gamma * r_top).log1p()
        loss = (other_mass.log() + norm + g_top).exp().log1p() if gamma else norm
        if label is not None:  # log(p_top / p_y), with g = 1 at q = 0
            g = gamma * log_o.gather(1, label) + (gamma * r.gather(1, label)).log1p()
            loss = loss + extra + torch.where(label == top, 0, g - g_top[:, None]).squeeze(1)
        losses.append(loss)
    return torch.stack(losses)


def _nll_bounds(
    d: Tensor, top: Tensor, p: Predictions, gammas: Sequence[float], ts: Sequence[float]
) -> tuple[Tensor, Tensor]:
    """Bounds of the NLL: the mean over examples of smooth curves, interpolated with degree 32 piece by piece."""
    u = -torch.tensor(ts, dtype=torch.float64).log()
    low, high = torch.full((2, len(gammas), len(ts)), math.nan, dtype=torch.float64)
    for panel, start, end in _panels(u):
        half, middle, degree = (end - start) / 2, (end + start) / 2, 32
        scales = [math.exp(middle + half * x) for x in _chebyshev_nodes(degree).tolist()]
        losses = (_loss(d, top, b, gammas, p.labels) for b in scales)
        values = torch.stack([_mean(loss, p.weights).cpu() for loss in losses], -1)
        coefficients = values @ _chebyshev_transform(degree)
        angle = ((u[panel] - middle) / half).clamp(-1, 1).arccos()
        interpolated = coefficients @ (torch.arange(degree + 1, dtype=u.dtype)[:, None] * angle).cos()
        error = 100 * coefficients[:, -4:].abs().amax(1, keepdim=True) + INTERPOLATION_ERROR
        low[:, panel], high[:, panel] = interpolated - error, interpolated + error
    return low.flatten(), high.flatten()


def _mean(loss: Tensor, weights: Tensor | None) -> Tensor:
    return loss.mean(1) if weights is None else loss @ weights / weights.sum()


def _panels(u: Tensor) -> Iterator[tuple[Tensor, float, float]]:
    """Cut the range of u into pieces: the indices inside each, its start and its end."""
    pieces = max(1, math.ceil(float(u.max() - u.min()) / PANEL_WIDTH))
    edges = torch.linspace(float(u.min()), float(u.max()), pieces + 1, dtype=torch.float64)
    piece = (torch.searchsorted(edges, u) - 1).clamp(0, pieces - 1)
    for p in range(pieces):
        indices = (piece == p).nonzero().squeeze(1)
        if len(indices):
            yield indices, float(edges[p]), float(edges[p + 1]) + 1e-12  # never of no width


def _chebyshev_nodes(degree: int) -> Tensor:
    return (torch.arange(degree + 1, dtype=torch.float64) * (math.pi / degree)).cos()


def _chebyshev_transform(degree: int) -> Tensor:
    """Matrix that takes values at the nodes to Chebyshev coefficients."""
    j = torch.arange(degree + 1, dtype=torch.float64)
    matrix = (j[:, None] * j * (math.pi / degree)).cos() * (2 / degree)
    matrix[0] /= 2
    matrix[-1] /= 2
    matrix[:, 0] /= 2
    matrix[:, -1] /= 2
    return matrix


# Bounds of a binned error from confidences that are nearly right


def _binned_error_bounds(metric: registry.Method, p: Predictions) -> Bounds | None:
    """Return the bounds for a metric that has them: errors of norm 1 of the top label."""
    if metric.name not in ("ece", "adaptive_ece") or p.of != "top":
        return None
    match registry.hyperparameters(metric.function) | metric.settings:
        case {"norm": norm} if norm != 1:
            return None
        case {"edges": "equal_width", "bins": bins}:
            return partial(_ece_bounds, bins=bins)
        case _ if p.weights is not None:  # a bin may end inside a row
            return None
        case {"edges": "mukhoti", "bins": bins}:
            return partial(_adaptive_ece_bounds, boundaries=_mukhoti_boundaries, bins=bins)
        case {"edges": "equal_mass", "bins": bins}:
            return partial(_adaptive_ece_bounds, boundaries=_equal_count_boundaries, bins=bins)
        case _:
            return None


def _ece_bounds(
    c: Tensor, correct: Tensor, weights: Tensor | None, error: float, *, bins: int
) -> tuple[Tensor, Tensor]:
    """Bounds of ECE for confidences c (m, n): what lies within the error of an edge could be on its other side."""
    m, n = c.shape
    gap, place = c - correct, c * bins
    gap = gap if weights is None else gap * weights
    edge = place.round()
    near_edge = ((place - edge).abs_() <= bins * error + 1e-12) & (edge > 0) & (edge < bins)
    unsure = c.new_zeros(m).index_put_((near_edge.nonzero()[:, 0],), gap[near_edge].abs(), accumulate=True)
    index = place.ceil_().sub_(1).clamp_(0, bins - 1).add_(bins * torch.arange(m, device=c.device)[:, None]).long()
    total = torch.bincount(index.flatten(), gap.flatten(), minlength=m * bins).view(m, bins)
    return _bounds_around(total, unsure, error, float(n) if weights is None else float(weights.sum()))


def _adaptive_ece_bounds(
    c: Tensor,
    correct: Tensor,
    weights: Tensor | None,
    error: float,
    *,
    bins: int,
    boundaries: Callable[[int, int], np.ndarray],
) -> tuple[Tensor, Tensor]:
    """Bounds of adaptive ECE, weights aside: what ties, within the error, with an example across a boundary could be
    there too.
    """
    m, n = c.shape
    cuts = torch.from_numpy(boundaries(n, bins)).to(c.device)
    if c.device.type == "cpu":
        keys = pack_scores(c, correct)
        keys.sort(axis=-1)
        c, outcome = unpack_scores(keys)
    else:
        c, order = c.sort(-1)
        outcome = correct[order]
    gap = c - outcome
    total = torch.cat([gap.new_zeros(m, 1), gap.cumsum(1)], 1)[:, cuts].diff(dim=1)
    inner = cuts[(cuts > 0) & (cuts < n)]
    tied = (c[:, inner] - c[:, inner - 1]) <= 2 * error
    unsure = c.new_zeros(m)
    for row in tied.any(1).nonzero().squeeze(1).tolist():
        group = torch.cat([cuts.new_zeros(1), (c[row].diff() > 2 * error).cumsum(0)])
        hot = torch.isin(group, group[inner[tied[row]]])
        unsure[row] = gap[row].abs()[hot].sum()
    lost = unsure.new_zeros(m)
    if boundaries is _mukhoti_boundaries:  # an edge that interpolation puts on an example may fall on either side of it
        unsure = unsure + gap[:, (inner - 1).unique()].abs().sum(1) + gap[:, inner.unique()].abs().sum(1)
        lost = (gap.abs() * (c - c[:, :1] <= 2 * error)).sum(1)  # what ties with the lowest is left out
    return _bounds_around(total, unsure, error, float(n), lost)


def _bounds_around(
    total: Tensor, unsure: Tensor, error: float, n: float, lost: Tensor | float = 0.0
) -> tuple[Tensor, Tensor]:
    value, slack = total.abs().sum(1) / n, 2 * unsure / n + error
    # bins or not, the error is at least that of all examples together
    overall_bound = (total.sum(1).abs() - lost) / n - 2 * error
    return torch.maximum(value - slack, overall_bound), value + slack


def _equal_count_boundaries(n: int, bins: int) -> np.ndarray:
    bin_size, num_larger = divmod(n, bins)
    return np.arange(bins + 1) * bin_size + np.minimum(np.arange(bins + 1), num_larger)


def _mukhoti_boundaries(n: int, bins: int) -> np.ndarray:
    """Numbers of examples at or below the edges interpolated at linspace(0, n); the lowest example is left out."""
    return np.minimum(np.floor(np.linspace(0, n, bins + 1)).astype(np.int64) + 1, n)
