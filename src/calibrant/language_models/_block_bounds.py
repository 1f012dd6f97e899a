"""Bounds of a blockwise calibration error over missing confidences and over all orders of equal ones.

An arrangement says which answers are in which block: for each block, its number m of missing answers, which makes its
known answers a run [first, last) in order of confidence, and its number of right answers. The confidences of the m
missing answers have a mean z, which is at least the known confidence before the run and at most the one after it.
Therefore a block with the sum k of known confidences and q right answers adds w (k + m z - q)^2 to the squared error,
and the means of the blocks are in order. The bounds are the extremes over all arrangements and all such means.
"""

import heapq
import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

MAX_TABLE_STEPS = 200_000_000  # additions to fill a table of costs, about a second
MAX_ARRANGEMENTS = 1_000  # partial arrangements that are examined


def block_error_bounds(
    confidence: np.ndarray, correct: np.ndarray, ends: np.ndarray, *, with_last_block: bool
) -> tuple[float, float, bool]:
    r"""Return bounds of the HLE error over missing confidences and orders of equal ones, and whether they are exact.

    Best-first search (A*) builds arrangements block by block. The bound of a partial arrangement is the exact extreme
    over its own blocks plus a bound of later blocks, from a table by dynamic programming: their least or greatest cost
    by the numbers of missing and of right answers so far. The table ignores that the means of neighboring blocks must
    be in order. If the best partial arrangement is complete, its error is the exact bound; after `MAX_ARRANGEMENTS`,
    its bound is an outer bound. If the table would be too large, it rounds the number of right answers, and its bound
    of all blocks is an outer bound. Without missing confidences, the bounds are always exact.

    Args:
        confidence: Confidences (n,), NaN if missing.
        correct: 0 or 1 (n,).
        ends: Ends of the blocks.
        with_last_block: Whether the last block counts.
    """
    problem = _Blocks(confidence, correct, ends, with_last_block=with_last_block)
    low, is_low_exact = _least_cost(problem, 1)
    high, is_high_exact = _least_cost(problem, -1)
    return math.sqrt(max(0.0, low)), math.sqrt(max(0.0, -high)), is_low_exact and is_high_exact


class _Runs(NamedTuple):
    """Runs of known answers, each in a block with m missing ones: arrays of one shape."""

    m: np.ndarray
    total: np.ndarray  # sum of the known confidences
    lowest: np.ndarray  # range of the mean z of missing confidences
    highest: np.ndarray
    fewest_hits: np.ndarray  # range of the number of right answers, with missing ones
    most_hits: np.ndarray

    def cost(self, fewest_hits: np.ndarray, most_hits: np.ndarray, weight: float, sign: int) -> np.ndarray:
        """Return the least cost: the least w (k + m z - q)^2 (sign 1), or minus the greatest, over ranges of q and z.

        It is infinite where no number of right answers is possible.
        """
        fewest_hits, most_hits = np.maximum(fewest_hits, self.fewest_hits), np.minimum(most_hits, self.most_hits)
        least = self.total + self.m * self.lowest - most_hits  # of k + m z - q
        greatest = self.total + self.m * self.highest - fewest_hits
        nearest_to_0, farthest_from_0 = np.maximum(0, np.maximum(least, -greatest)), np.maximum(-least, greatest)
        sum_of_gaps = nearest_to_0 if sign == 1 else farthest_from_0  # |k + m z - q|
        return np.where(fewest_hits <= most_hits, sign * weight * sum_of_gaps**2, np.inf)


class _Term(NamedTuple):
    """The term w (rest + m z)^2 of a block, and the range of the mean z of its missing confidences."""

    weight: float
    rest: float  # k - q: the sum of the known confidences minus the number of right answers
    m: int  # number of missing confidences
    lowest: float
    highest: float


class _Prefix(NamedTuple):
    """An arrangement of the first blocks."""

    later_cost: float  # lower bound of the signed cost of later blocks
    terms: tuple[_Term, ...] = ()  # of these blocks
    missing: int = 0  # answers without a confidence in these blocks
    hits: int = 0  # right answers in these blocks
    fewest_right: int = 0  # range of the number of right ones among the missing
    most_right: int = 0


class _Blocks:
    """Known answers in order of confidence, with their ties, numbers of missing ones, and blocks.

    Attributes:
        num_known, num_missing: Numbers of answers with and without a confidence.
        right, wrong: Numbers of right and wrong answers among the missing.
        sum: Sum of the confidences of the first 0, 1, ... known answers.
        edge: Confidences of the known answers, between 0 and 1.
        fewest_hits, most_hits: Range of the number of right answers among the first 0, 1, ... known ones, over all
            orders of equal confidences.
        starts, ends, weights: Blocks, and the factor of the squared sum of gaps of each.
        step: Number of right answers in a step of the table of costs.
    """

    def __init__(self, confidence: np.ndarray, correct: np.ndarray, ends: np.ndarray, *, with_last_block: bool) -> None:
        """Sort the known answers, and count the right ones among them in the best and in the worst order."""
        is_missing = np.isnan(confidence)
        values, tie_index, sizes = np.unique(confidence[~is_missing], return_inverse=True, return_counts=True)
        in_order = np.repeat(values, sizes)
        self.num_known, self.num_missing = len(in_order), int(is_missing.sum())
        self.right = int(correct[is_missing].sum())
        self.wrong = self.num_missing - self.right
        self.sum = np.concatenate([[0.0], in_order.cumsum()])
        self.edge = np.concatenate([[0.0], in_order, [1.0]])
        hits = np.bincount(tie_index, correct[~is_missing], len(values)).round().astype(int)  # right answers per tie
        tie, count = np.repeat(np.arange(len(values)), sizes), np.arange(self.num_known)
        # The first `count` known answers end within this tie, whose right answers come last in it, or first
        hits_before, tie_end = (hits.cumsum() - hits)[tie], sizes.cumsum()[tie]
        fewest_hits = hits_before + np.maximum(0, hits[tie] - (tie_end - count))
        most_hits = hits_before + np.minimum(hits[tie], count - (tie_end - sizes[tie]))
        self.fewest_hits, self.most_hits = np.append(fewest_hits, hits.sum()), np.append(most_hits, hits.sum())
        self.starts, self.ends = [0, *ends[:-1].tolist()], ends.tolist()
        # Of the squared sum of gaps: n_b / n (sum / n_b)^2
        self.weights = [1 / (end - start) / len(confidence) for start, end in zip(self.starts, self.ends, strict=True)]
        if not with_last_block:
            self.weights[-1] = 0.0
        self.step = self._table_step()

    def _table_step(self) -> int:
        """Return the least number of right answers per table cell, a power of 2, that keeps to `MAX_TABLE_STEPS`."""
        shapes: list[tuple[int, int, int]] = []  # of every block: pairs of m and missing before, its size, its cells
        for start, end in zip(self.starts, self.ends, strict=True):
            least, greatest = self.missing_range(start)
            fewest_hits, most_hits = self.hits_range(start, np.arange(least, greatest + 1))
            pairs = (greatest - least + 1) * (min(end - start, self.num_missing) + 1)
            shapes.append((pairs, end - start, int((most_hits - fewest_hits).max())))
        pairs, sizes, hits = np.array(shapes, dtype=float).T
        step = 1
        # For every pair, `_table_before` adds a row of cells for each shift; without missing answers, none is rounded
        while self.num_missing and (pairs * (sizes / step + 2) * (hits / step + 1)).sum() > MAX_TABLE_STEPS:
            step *= 2
        return step

    def missing_range(self, end: int) -> tuple[int, int]:
        """Return the least and the greatest number of missing answers that the first `end` answers can include."""
        return max(0, end - self.num_known), min(self.num_missing, end)

    def hits_range(self, end: int, missing: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the fewest and most right answers among the first `end`, for each number of missing confidences.

        At most `wrong` of the answers without a confidence are wrong, and at most `right` of them are right.
        """
        num_known = np.minimum(end - missing, self.num_known)
        fewest_hits = self.fewest_hits[num_known] + np.maximum(0, missing - self.wrong)
        return fewest_hits, self.most_hits[num_known] + np.minimum(missing, self.right)

    def runs(self, block: int, before: np.ndarray, m: np.ndarray) -> _Runs:
        """Return the runs of a block with m missing answers, by the missing answers before it.

        A run that would end after the last known answer ends with it.
        """
        first = self.starts[block] - before  # known answers before the block
        last = np.minimum(self.ends[block] - before - m, self.num_known)
        fewest_hits = np.maximum(0, self.fewest_hits[last] - self.most_hits[first])
        most_hits = np.minimum(last - first, self.most_hits[last] - self.fewest_hits[first])
        return _Runs(
            m,
            self.sum[last] - self.sum[first],
            np.broadcast_to(self.edge[first], last.shape),  # confidence of the known answer before the run
            self.edge[last + 1],  # and after it
            fewest_hits + np.maximum(0, m - self.wrong),
            most_hits + np.minimum(m, self.right),
        )

    def tables_of_costs(self, sign: int) -> list[np.ndarray]:
        """Return lower bounds of the signed cost of the blocks after each boundary, infinite where impossible.

        Rows are the numbers of missing answers before the boundary. Columns are cells of `step` numbers of right ones,
        the first of which begins with the least number possible.
        """
        table = np.full((self.num_missing + 1, 1), np.inf)
        table[self.num_missing, 0] = 0.0  # after the last block, all missing answers are in blocks
        tables = [table]
        for block in reversed(range(len(self.ends))):
            tables.append(self._table_before(block, tables[-1], sign))
        return tables[::-1]

    def _table_before(self, block: int, later: np.ndarray, sign: int) -> np.ndarray:
        """Return the table of `tables_of_costs` before a block, from the table `later` after it.

        A path through the block has m missing answers, and leads from cell i before it to cell i + shift after it. Its
        cost is the least over all numbers of right answers that begin and end in these cells.
        """
        start, end, step = self.starts[block], self.ends[block], self.step
        least, greatest = self.missing_range(start)
        before = np.arange(least, greatest + 1)
        fewest_hits, most_hits = self.hits_range(start, before)
        cells = (most_hits - fewest_hits) // step + 1
        table = np.full((self.num_missing + 1, cells.max()), np.inf)
        for m in range(min(end - start, self.num_missing) + 1):
            runs = self.runs(block, before, np.array([m]))
            # Right answers of the block if it leads from the begin of a cell to the begin of the cell of the same index
            hits = self.hits_range(end, before + m)[0] - fewest_hits
            first_shift = math.ceil((runs.fewest_hits - hits - step + 1).min() / step)
            last_shift = math.floor((runs.most_hits - hits + step - 1).max() / step)
            hits = hits + step * np.arange(first_shift, last_shift + 1)[:, None]
            # Within the cells, the number of right answers may be up to step - 1 smaller or larger
            costs = runs.cost(hits - step + 1, hits + step - 1, self.weights[block], sign)
            for shift, cost in enumerate(costs[:, :, None], first_shift):
                cell = max(0, -shift)  # the first of the cells for which the other table has a cell `shift` later
                end_cell = max(cell, min(table.shape[1], later.shape[1] - shift))  # after the last one
                later_cost = later[least + m : greatest + m + 1, cell + shift : end_cell + shift]
                part = table[least : least + len(later_cost), cell:end_cell]
                np.minimum(part, cost[: len(later_cost)] + later_cost, out=part)
        table[least : greatest + 1][np.arange(table.shape[1]) >= cells[:, None]] = np.inf  # more hits than possible
        return table

    def extensions(
        self, prefix: _Prefix, cost: float, tables: list[np.ndarray], sign: int
    ) -> Iterator[tuple[float, _Prefix]]:
        """Yield (bound, arrangement) for `prefix` and one more block, by increasing lower bound of the signed cost.

        The block has m missing and q right answers; both take all possible values, m along rows and q along columns.
        `cost` is the exact signed cost of the blocks of `prefix`.
        """
        block = len(prefix.terms)
        end, weight = self.ends[block], self.weights[block]
        slots = end - self.starts[block]
        m = np.arange(min(slots, self.num_missing - prefix.missing) + 1)[:, None]
        runs, missing = self.runs(block, np.array([prefix.missing]), m), prefix.missing + m
        q = np.arange(runs.fewest_hits.min(), runs.most_hits.max() + 1)
        hits, num_known = prefix.hits + q, np.minimum(end - missing, self.num_known)
        # Range of the right ones among the missing: the prefix and this block limit it, and so do the known answers
        fewest_right = np.maximum(prefix.fewest_right + np.maximum(0, q - (slots - m)), missing - self.wrong)
        fewest_right = np.maximum(fewest_right, hits - self.most_hits[num_known])
        most_right = np.minimum(prefix.most_right + np.minimum(q, m), np.minimum(missing, self.right))
        most_right = np.minimum(most_right, hits - self.fewest_hits[num_known])
        cell = hits - self.hits_range(end, missing)[0]  # of the table, whose step is 1 in this search
        table = tables[block + 1]
        later_cost = table[missing, cell.clip(0, table.shape[1] - 1)]
        bounds = cost + runs.cost(q, q, weight, sign) + later_cost
        bounds[fewest_right > most_right] = np.inf
        for index in np.argsort(bounds, axis=None, kind="stable").tolist():
            i, j = divmod(index, len(q))  # row and column
            bound = float(bounds[i, j])
            if math.isinf(bound):
                return
            rest = float(runs.total[i, 0] - q[j])
            term = _Term(weight, rest, i, float(runs.lowest[i, 0]), float(runs.highest[i, 0]))
            counts = int(missing[i, 0]), int(hits[j]), int(fewest_right[i, j]), int(most_right[i, j])
            yield bound, _Prefix(float(later_cost[i, j]), (*prefix.terms, term), *counts)


def _least_cost(blocks: _Blocks, sign: int) -> tuple[float, bool]:
    """Return the least squared error (sign 1) or minus the greatest, and whether an arrangement has it.

    Otherwise it is a lower bound: from the table, if this rounds, or from the search after `MAX_ARRANGEMENTS`.
    """
    tables = blocks.tables_of_costs(sign)
    exact_cost = _least_sum if sign == 1 else _minus_greatest_sum
    table_bound = float(tables[0][0, 0])
    if blocks.step > 1:
        return table_bound, False
    rounding = 1e-15 * max(abs(table_bound), 1e-6)  # differences of costs that mean nothing
    # Priority, a number that decides between equal priorities, bound, arrangement, and its siblings with larger bounds
    queue: list[tuple[float, int, float, _Prefix, Iterator[tuple[float, _Prefix]]]] = []
    number = itertools.count()

    def push(extensions: Iterator[tuple[float, _Prefix]]) -> None:
        """Add the best extension, which brings the next one along when its turn comes."""
        for bound, prefix in itertools.islice(extensions, 1):
            priority = bound - rounding * len(prefix.terms)  # among equal bounds, the longest arrangement
            heapq.heappush(queue, (priority, next(number), bound, prefix, extensions))

    push(iter([(table_bound, _Prefix(table_bound))]))
    for _ in range(MAX_ARRANGEMENTS + len(blocks.ends)):
        _, _, bound, prefix, extensions = heapq.heappop(queue)
        push(extensions)
        cost = exact_cost(prefix.terms)  # with means in order, unlike in the table
        better_bound = cost + prefix.later_cost
        if better_bound > bound + rounding:  # back to the queue, where others may be better now
            push(iter([(better_bound, prefix)]))
        elif len(prefix.terms) == len(blocks.ends):
            return cost, True
        else:
            push(blocks.extensions(prefix, cost, tables, sign))
    priority, *_ = queue[0]  # the least bound, apart from rounding
    return priority, False


def _least_sum(terms: tuple[_Term, ...]) -> float:
    """Return the least sum of the terms w (rest + m z)^2 over means z that do not decrease from block to block.

    Found by the pool adjacent violators algorithm, in which the blocks of a pool have one z. Lowest and highest means
    grow from block to block, so that z of a pool lies between the lowest mean of its last block and the highest mean of
    its first block.
    """
    pools: list[tuple[float, float, float, list[_Term]]] = []  # z, sum of w m^2, minus sum of w m rest, blocks
    for term in terms:
        if term.weight > 0 and term.m > 0:
            # w (rest + m z)^2 is curvature z^2 - 2 slope z plus a constant, and least at slope / curvature
            curvature, slope, members = term.weight * term.m**2, -term.weight * term.m * term.rest, [term]
            z = min(max(slope / curvature, term.lowest), term.highest)
            while pools and pools[-1][0] > z:
                _, more_curvature, more_slope, earlier = pools.pop()
                curvature, slope, members = curvature + more_curvature, slope + more_slope, earlier + members
                z = min(max(slope / curvature, term.lowest), members[0].highest)
            pools.append((z, curvature, slope, members))
    fixed = [term.weight * term.rest**2 for term in terms if term.m == 0]
    return math.fsum(fixed + [t.weight * (t.rest + t.m * z) ** 2 for z, _, _, members in pools for t in members])


def _minus_greatest_sum(terms: tuple[_Term, ...]) -> float:
    """Return minus the greatest sum of the terms over nondecreasing means, each at an end of some range."""
    free = [term for term in terms if term.weight > 0 and term.m > 0]
    fixed = math.fsum(term.weight * term.rest**2 for term in terms if term.m == 0)
    z = np.unique([end for term in free for end in (term.lowest, term.highest)])
    best = np.zeros(max(1, len(z)))  # the greatest sum of the terms so far, by the mean of the last one
    for term in free:
        value = term.weight * (term.rest + term.m * z) ** 2
        # The mean of the term before may be this one or a smaller one
        best = np.maximum.accumulate(best) + np.where((term.lowest <= z) & (z <= term.highest), value, -np.inf)
    return -fixed - float(best.max())
