"""Intervals of 90 % are computed from 4,000 simulated data sets per cell and compared with the truth.

Confidences lie around .6, .9, .95 and .99 (a normal spread of .3 in log-odds) or uniformly between .5 and 1. The
accuracy equals the confidence or lies below it by .02 or .1, for two and ten classes. The examples of a cluster, 1 to
20 of them, share half of the variance of their outcomes' probits. Weighted examples have weights from 1 to 10 and are
clusters of their own. The four groups of a data set have simultaneous intervals. Differences are those between a model
and its logits divided by 1.3 ("calibrators"), and between two models that see the logits with normal noise of .3 and .6
("models").
"""

import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri, stdtrit

from benchmarks._draws import draw_confidences
from benchmarks._harness import Row, Size, markdown
from calibrant import Predictions, metrics
from calibrant._core.kernels.bins import ClusterSums, Events, Moments, equal_width_index
from calibrant.metrics import _scores
from calibrant.metrics._intervals import (
    SHARE,
    Extremes,
    Sample,
    ScoreRange,
    mean_limits,
    square_limits,
    strict_limits,
)
from calibrant.metrics._moments import clustered_square, square_estimate

TITLE = "Coverage of intervals"
LEVEL, REQUIRED_COVERAGE = 0.90, 0.88
DRAWS, CHUNK = 4_000, 200_000  # data sets per cell, and examples that are drawn at once
POPULATION = 1_000_000  # examples that stand for the truth
SIZES = 5, 20, 50, 100, 300, 1000
NUM_CLUSTERS = 10, 20, 50
NUM_GROUPS = 4
CONFIDENCES = 0.6, 0.9, 0.95, 0.99, "mixed"
SHIFTS = 0.0, 0.02, 0.1
BINS = 15
RANGES = {
    "signed_gap": _scores._signed_gap_range,
    "event_brier": _scores._event_brier_range,
    "brier": _scores._brier_range,
    "nll": _scores._nll_range,
    "class_gap": _scores._signed_gap_range,
    "class_brier": _scores._event_brier_range,
}
Limits = dict[str, dict[str, tuple[Any, Any]]]  # by metric and method
OURS, STUDENT, WILSON = "calibrant", "Student", "Wilson"
PAIRS = {"calibrators": (0.0, 0.0, 1.3), "models": (0.3, 0.6, 1.0)}  # noise of both, and temperature of the second
DIFFERENCES = "accuracy", "nll", "brier", "event_brier", "signed_gap"


@dataclass(frozen=True)
class Cell:
    """A simulated problem."""

    classes: int
    confidence: float | str
    shift: float
    n: int  # examples, or clusters
    structure: str = "independent"  # or "weights", "clusters", "groups", and pairs of models: "models, weights"


@dataclass(frozen=True)
class Data:
    """Data sets of n examples (d n): confidence, true frequency and outcome; the same of class 1; values of scores."""

    confidence: np.ndarray
    truth: np.ndarray
    outcome: np.ndarray
    class_confidence: np.ndarray
    label: np.ndarray
    scores: dict[str, tuple[np.ndarray, float]]  # values and true mean


def draw(cell: Cell, shape: tuple[int, int], g: np.random.Generator, effect: np.ndarray | None = None) -> Data:
    """Draw data sets; `effect` is the share of variance 1/2 of every outcome's probit that its cluster has."""
    c = draw_confidences(cell.confidence, shape, g)
    q, k = np.clip(c - cell.shift, 0.0, 1.0), cell.classes
    noise = g.standard_normal(shape)
    a = ((noise if effect is None else effect + math.sqrt(0.5) * noise) < ndtri(q)).astype(float)
    is_top = g.random(shape) < 1 / k  # whether class 1 is predicted
    split = g.standard_exponential((*shape, k - 1))  # of the remaining probability
    split /= split.sum(-1, keepdims=True)
    label = np.minimum((g.random(shape)[..., None] > split.cumsum(-1)).sum(-1), k - 2)
    wrong_share = np.take_along_axis(split, label[..., None], -1)[..., 0]
    squares, entropy = (split**2).sum(-1), -(split * np.log(split)).sum(-1)
    rest = 1 - c
    p1, q1 = (np.where(is_top, x, (1 - x) * split[..., 0]) for x in (c, q))
    y1 = np.where(is_top, a, (1 - a) * (label == 0))
    right, wrong = rest**2 * (1 + squares), 1 + c**2 + rest**2 * squares
    covered = (c >= 0.9).astype(float)
    values = {
        "accuracy": (a, q),
        "signed_gap": (c - a, c - q),
        "event_brier": ((c - a) ** 2, q * rest**2 + (1 - q) * c**2),
        "nll": (-np.log(np.where(a == 1, c, rest * wrong_share)), -q * np.log(c) - (1 - q) * (np.log(rest) - entropy)),
        "coverage": (covered, covered),
    }
    if k > 2:
        values["brier"] = (
            np.where(a == 1, right, wrong - 2 * rest * wrong_share),
            q * right + (1 - q) * (wrong - 2 * rest * squares),
        )
        values["class_gap"] = (p1 - y1, p1 - q1)
        values["class_brier"] = ((p1 - y1) ** 2, q1 * (1 - p1) ** 2 + (1 - q1) * p1**2)
    return Data(c, q, a, p1, y1, {name: (v, float(t.mean())) for name, (v, t) in values.items()})


def moments(c: np.ndarray, a: np.ndarray) -> Moments:
    """Return the sums over bins of every data set (d b)."""
    index = equal_width_index(BINS, c.flatten()) + BINS * np.repeat(np.arange(len(c)), c.shape[1])
    terms = Moments.terms(c, a)
    return Moments(*(np.bincount(index, x.flatten(), len(c) * BINS).reshape(-1, BINS) for x in terms))


def range_of(name: str, data: Data, k: int) -> ScoreRange:
    """Return the range of a score in every data set."""
    c = data.class_confidence if name.startswith("class") else data.confidence
    if name not in RANGES:
        return SHARE
    surprisals = -np.log(np.minimum(c, 1 - c).min(1)), data.scores["nll"][0].max(1)
    return RANGES[name](Extremes.from_moments(moments(c, data.outcome), surprisals, k))


def methods(
    n: Any, mean: np.ndarray, variance: np.ndarray, ends: ScoreRange, t: Any
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return the limits of every method."""
    half = t * np.sqrt(variance / np.maximum(n - 1, 1e-9))
    limits = {OURS: mean_limits(n, mean, variance, ends, LEVEL), STUDENT: (mean - half, mean + half)}
    if ends is SHARE:
        z = float(ndtri((1 + LEVEL) / 2))
        center, half = mean + z * z / (2 * n), z * np.sqrt(mean * (1 - mean) / n + z * z / (4 * n * n))
        limits[WILSON] = tuple((center + sign * half) / (1 + z * z / n) for sign in (-1, 1))
    return limits


def ranked(score: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return AUROC, the variance of its placements and the number of the rarer outcome, without ties."""
    ordered = np.take_along_axis(y, score.argsort(1), 1)
    positives = ordered.sum(1, keepdims=True)
    negatives = y.shape[1] - positives
    below, above = (1 - ordered).cumsum(1) / negatives, 1 - ordered.cumsum(1) / positives
    area = (ordered * below).sum(1, keepdims=True) / positives
    scale = y.shape[1] / np.where(ordered == 1, positives, negatives)
    placements = (np.where(ordered == 1, below, above) - area) * scale
    return area[:, 0], placements.var(1), np.minimum(positives, negatives)[:, 0]


@cache
def population(classes: int, confidence: float | str, shift: float) -> dict[str, float]:
    """Return the truth of every metric."""
    data = draw(Cell(classes, confidence, shift, 0), (1, POPULATION), np.random.default_rng(0))
    truth = {name: float(t) for name, (_, t) in data.scores.items()}
    by_bin = moments(data.confidence, data.truth)
    square = (np.square(by_bin.u_sum) / np.maximum(by_bin.total_weight, 1)).sum() / POPULATION
    area = ranked(data.class_confidence, data.label)[0]
    truth["group_gaps"] = truth["signed_gap"]
    errors = 1 - data.truth[0, (-data.confidence[0]).argsort()]
    risk = float((errors.cumsum() / np.arange(1, POPULATION + 1)).mean())
    return truth | {"debiased_l2": math.sqrt(float(square)), "auroc": float(area[0]), "aurc": risk}


def independent_limits(data: Data, k: int) -> Limits:
    """Return the limits of every metric and method."""
    n = data.confidence.shape[1]
    t, limits = stdtrit(n - 1, (1 + LEVEL) / 2), Limits()
    for name, (values, _) in data.scores.items():
        limits[name] = methods(n, values.mean(1), values.var(1), range_of(name, data, k), t)
    square = square_limits(*square_estimate(moments(data.confidence, data.outcome)), t)
    limits["debiased_l2"] = {OURS: root_limits(square, limits["signed_gap"][OURS])}
    with np.errstate(divide="ignore", invalid="ignore"):
        area, variance, rarer = ranked(data.class_confidence, data.label)
    has_both = rarer > 0
    area, variance, rarer = area[has_both], variance[has_both], rarer[has_both]
    limits["auroc"] = methods(rarer, area, variance * (rarer - 1) / (n - 1), ScoreRange(0.0, 1.0), t)
    limits["aurc"] = {OURS: aurc_limits(data, None, None)}
    return limits


def aurc_limits(data: Data, weights: np.ndarray | None, clusters: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the limits of the area under the risk-coverage curve of every data set."""
    rows = zip(data.confidence, data.outcome, strict=True)
    events = (Events(c, y, None if weights is None else weights[i], clusters) for i, (c, y) in enumerate(rows))
    intervals = [metrics.aurc.interval(e, level=LEVEL) for e in events]
    return np.array([i.low for i in intervals]), np.array([i.high for i in intervals])


def root_limits(square: tuple[Any, Any], gap: tuple[Any, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return the limits of a root, no lower than those of the signed gap."""
    low, high = (np.sqrt(end) for end in square)
    return low, np.maximum(high, np.maximum(-gap[0], gap[1]))


def group_limits(data: Data, k: int) -> Limits:
    """Return simultaneous limits of the gaps of groups, each a block of data sets."""
    n, (values, _) = data.confidence.shape[1], data.scores["signed_gap"]
    level = 1 - (1 - LEVEL) / NUM_GROUPS
    low, high = mean_limits(n, values.mean(1), values.var(1), range_of("signed_gap", data, k), level)
    return {"group_gaps": {OURS: tuple(end.reshape(NUM_GROUPS, -1) for end in (low, high))}}


def sample_statistics(
    values: np.ndarray, weights: np.ndarray | None, clusters: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the equivalent size, the mean, its variance, degrees of freedom and error, of every data set (d n)."""
    rows = enumerate(values)
    samples = [Sample.from_values(row, None if weights is None else weights[i], clusters) for i, row in rows]
    mean, degrees, error = (np.array([getattr(s, name) for s in samples]) for name in ("mean", "degrees", "error"))
    n, variance = np.array([s.equivalent_sample for s in samples]).T
    return n, mean, variance, degrees, error


def clustered_limits(cell: Cell, g: np.random.Generator, draws: int) -> Limits:
    """Return the limits of dependent or weighted examples: clusters of 1 to 20 rows, or rows of weight 1 to 10."""
    weighted = cell.structure == "weights"
    size = np.full(cell.n, 1) if weighted else 1 + np.arange(cell.n) * 20 // cell.n
    clusters = np.repeat(np.arange(cell.n), size)
    effect = None if weighted else np.repeat(np.sqrt(0.5) * g.standard_normal((draws, cell.n)), size, axis=1)
    data = draw(cell, (draws, len(clusters)), g, effect)
    w = g.integers(1, 11, data.confidence.shape).astype(float) if weighted else None
    limits: Limits = {}
    for name in ("accuracy", "signed_gap", "event_brier", "nll"):
        ends = range_of(name, data, cell.classes)
        n, mean, variance, degrees, error = sample_statistics(data.scores[name][0], w, clusters)
        t = stdtrit(degrees, (1 + LEVEL) / 2)
        half = t * error
        limits[name] = {OURS: mean_limits(n, mean, variance, ends, LEVEL), STUDENT: (mean - half, mean + half)}
    columns = []
    for i in range(draws):
        c, a = data.confidence[i], data.outcome[i]
        weight = np.ones_like(c) if w is None else w[i]
        sums = ClusterSums.from_events(clusters, equal_width_index(BINS, c), BINS, weight, c, a)
        columns.append([float(x) for x in clustered_square(sums)[0]])
    square = square_limits(*np.array(columns).T, stdtrit(cell.n - 1, (1 + LEVEL) / 2))
    limits["debiased_l2"] = {OURS: root_limits(square, limits["signed_gap"][OURS])}
    limits["aurc"] = {OURS: aurc_limits(data, w, clusters)}
    return limits


def draw_pairs(cell: Cell, shape: tuple[int, int], g: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return logits of two models (2 d n k), and the true probabilities (d n k)."""
    c, k = draw_confidences(cell.confidence, shape, g), cell.classes
    split = g.standard_exponential((*shape, k - 1))
    split /= split.sum(-1, keepdims=True)
    logits, truth = (
        np.concatenate([top[..., None], (1 - top)[..., None] * split], -1) for top in (c, np.clip(c - cell.shift, 0, 1))
    )
    order = g.random(logits.shape).argsort(-1)  # so that classes do not tell the more likely ones
    logits, truth = (np.take_along_axis(x, order, -1) for x in (np.log(logits), truth))
    *noise, temperature = PAIRS[cell.structure.split(",")[0]]
    first, second = (logits + size * g.standard_normal(logits.shape) for size in noise)
    return np.stack([first, second / temperature]), truth


def paired_scores(logits: np.ndarray, labels: np.ndarray) -> dict[str, tuple[np.ndarray, ...]]:
    """Return the smallest, actual and largest differences of two models (2 d n k) for labels (d n), by score."""
    of = "top" if logits.shape[-1] > 2 else 1
    y = labels.ravel()
    scores = metrics.PairedScores(*(Predictions(z.reshape(len(y), -1), y, of=of) for z in logits))
    values = {name: scores.values(getattr(metrics, name)) for name in DIFFERENCES}
    return {name: tuple(x.reshape(labels.shape) for x in parts) for name, parts in values.items()}


@cache
def pair_population(cell: Cell) -> dict[str, float]:
    """Return the true differences of two models; the size of the cell is ignored."""
    logits, truth = draw_pairs(cell, (1, POPULATION // 5), np.random.default_rng(0))
    expected = dict.fromkeys(DIFFERENCES, 0.0)
    for j in range(cell.classes):
        for name, (_, value, _) in paired_scores(logits, np.full(truth.shape[:2], j)).items():
            expected[name] += float((truth[..., j] * value).mean())
    return {f"{name} difference": value for name, value in expected.items()}


def pair_limits(cell: Cell, g: np.random.Generator, draws: int) -> Limits:
    """Return the limits of paired differences of independent, weighted or clustered examples."""
    structure = cell.structure.split(", ")[-1]
    size = 1 + np.arange(cell.n) * 20 // cell.n if structure == "clusters" else np.ones(cell.n, int)
    shape = draws, int(size.sum())
    logits, truth = draw_pairs(cell, shape, g)
    noise = g.standard_normal(shape)
    if structure == "clusters":
        noise = math.sqrt(0.5) * (noise + np.repeat(g.standard_normal((draws, cell.n)), size, axis=1))
    labels = np.minimum((truth.cumsum(-1) < ndtr(noise)[..., None]).sum(-1), cell.classes - 1)
    clusters = np.repeat(np.arange(cell.n), size) if structure in ("clusters", "weights") else None
    w = g.integers(1, 11, shape).astype(float) if structure == "weights" else None
    limits: Limits = {}
    for name, (smallest, value, largest) in paired_scores(logits, labels).items():
        if clusters is None:
            mean, degrees = value.mean(1), shape[1] - 1
            error = np.sqrt(value.var(1) / degrees)
        else:
            _, mean, _, degrees, error = sample_statistics(value, w, clusters)
        # extremes of examples or, by their means, of clusters
        extremes = np.minimum(smallest, 0), np.maximum(largest, 0)
        if structure == "clusters":
            extremes = (np.add.reduceat(x, size.cumsum() - size, axis=1) / size for x in extremes)
        low, high = extremes
        ends = ScoreRange(low.min(1), high.max(1))
        half = stdtrit(degrees, (1 + LEVEL) / 2) * error
        with strict_limits():  # of as many independent units of equal weight
            low, high = mean_limits(degrees + 1, mean, error**2 * degrees, ends, LEVEL)
        wider = half * (1 + 1 / (degrees + 1))
        limits[f"{name} difference"] = {
            OURS: (np.minimum(low, mean - wider), np.maximum(high, mean + wider)),
            STUDENT: (mean - half, mean + half),
        }
    return limits


def cells(sizes: Sequence[int] = SIZES) -> Iterator[Cell]:
    """Yield all cells whose probabilities stay below 1."""
    for confidence, shift in product(CONFIDENCES, SHIFTS):
        for k in (2, 10):
            yield from (Cell(k, confidence, shift, n) for n in sizes)
        yield from (Cell(2, confidence, shift, n, "groups") for n in sizes[:4])
        yield from (Cell(2, confidence, shift, n, "weights") for n in (20, 100))
        yield from (Cell(2, confidence, shift, n, "clusters") for n in NUM_CLUSTERS)
    for confidence, shift, pair in product(CONFIDENCES, SHIFTS[:2], PAIRS):
        yield from (Cell(k, confidence, shift, n, pair) for n in sizes for k in (2, 10))
        yield from (Cell(2, confidence, shift, n, f"{pair}, weights") for n in (20, 100))
        yield from (Cell(2, confidence, shift, n, f"{pair}, clusters") for n in NUM_CLUSTERS)


def measure_cell(cell: Cell, draws: int = DRAWS) -> Iterator[Row]:
    """Yield the coverage and mean width of every metric and method in a cell."""
    g, parts = np.random.default_rng(zlib.crc32(repr(cell).encode())), []
    is_pair = cell.structure.split(",")[0] in PAIRS
    if is_pair:
        chunk = max(1, min(draws, CHUNK // cell.n))
        parts += [pair_limits(cell, g, min(chunk, draws - start)) for start in range(0, draws, chunk)]
    elif cell.structure in ("clusters", "weights"):
        parts.append(clustered_limits(cell, g, draws))
    else:
        num_groups = NUM_GROUPS if cell.structure == "groups" else 1
        limits = group_limits if num_groups > 1 else independent_limits
        chunk = max(1, min(draws, CHUNK // cell.n))
        for start in range(0, draws, chunk):
            shape = num_groups * min(chunk, draws - start), cell.n
            parts.append(limits(draw(cell, shape, g), cell.classes))
    truth = (
        pair_population(replace(cell, n=0, structure=cell.structure.split(",")[0]))
        if is_pair
        else population(cell.classes, cell.confidence, cell.shift)
    )
    for name, of_methods in parts[0].items():
        for method in of_methods:
            low, high = (np.concatenate([part[name][method][i] for part in parts], axis=-1) for i in (0, 1))
            holds = (low <= truth[name] + 1e-9) & (truth[name] - 1e-9 <= high)
            coverage = holds.all(0).mean() if holds.ndim > 1 else holds.mean()
            measured = {"coverage": float(coverage), "width": float((high - low).mean())}
            yield asdict(cell) | {"draws": draws, "metric": name, "method": method} | measured


def run(size: Size) -> Iterator[Row]:
    """Yield the coverage of every cell."""
    for cell in cells(SIZES if size.shrink == 1 else SIZES[::3]):
        yield from measure_cell(cell, max(20, DRAWS // size.shrink))


def page(rows: list[Row]) -> str:
    """Return the lowest coverage of every metric over its cells, and the widths relative to other methods."""
    cells: dict[tuple[Any, ...], dict[str, Row]] = {}
    for row in rows:
        cell = tuple(row[name] for name in ("metric", "structure", "n", "classes", "confidence", "shift"))
        cells.setdefault(cell, {})[row["method"]] = row
    coverage, width = [], []
    sizes = sorted({int(row["n"]) for row in rows})
    for kind in dict.fromkeys(cell[:2] for cell in cells):
        by_size = [[row for cell, row in cells.items() if cell[:3] == (*kind, n)] for n in sizes]
        name = kind[0] if kind[1] == "independent" else f"{kind[0]}, {kind[1]}"
        coverage.append(
            [name, *(min((of[OURS]["coverage"] for of in cells_of_n), default=math.nan) for cells_of_n in by_size)]
        )
        width.append([name, *(_median_width(cells_of_n) for cells_of_n in by_size)])
    head = [f"n = {n:,}" for n in sizes]
    return "\n\n".join(
        [
            "Lowest coverage of Calibrant's intervals over all cells with n examples or clusters:",
            markdown(["metric", *head], coverage),
            f"Their mean width, as a multiple of that of the narrowest method of the cell that covers at least "
            f"{100 * REQUIRED_COVERAGE:.0f} % (ours, Student's t, or Wilson's for shares); median over the cells:",
            markdown(["metric", *head], width),
        ]
    )


def _median_width(cells: list[dict[str, Row]]) -> float:
    ratios = [
        of[OURS]["width"]
        / min(row["width"] for row in of.values() if row["coverage"] >= REQUIRED_COVERAGE and row["width"] > 1e-9)
        for of in cells
        if any(row["coverage"] >= REQUIRED_COVERAGE and row["width"] > 1e-9 for row in of.values())
    ]
    return float(np.median(ratios)) if ratios else math.nan
