"""Bounds of a blockwise calibration error over missing confidences and over all orders of equal ones.

Answers are sorted by confidence and divided into blocks. "Known" answers have a confidence, "missing" answers lack it,
and "hits" are right answers of both kinds. An arrangement gives each block a number m of missing answers, so that its
known answers are a run [first, last) in order of confidence, and a number q of hits. The confidences of the m missing
answers have a mean z, at least the known confidence before the run and at most the known confidence after it. A block
with the sum k of known confidences and the weight w adds w (k + m z - q)^2 to the squared error, and z does not
decrease from block to block. The bounds are the extremes over all arrangements and means.

The search minimizes a signed cost: the squared error for its least value (sign 1), or minus the squared error for its
greatest (sign -1).
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
    over its own blocks plus a bound of later blocks. The latter is from a table by dynamic programming: the least
    signed cost of later blocks, by the numbers of missing answers and of hits so far. The table ignores that the means
    of neighboring blocks must be in order. If the best partial arrangement is complete, its error is the exact bound;
    after `MAX_ARRANGEMENTS`, its bound is an outer bound. If the table would be too large, it rounds the number of
    hits, and its bound of all blocks is an outer bound. The bounds are 0 and 1 if the table would be too large anyway.
    Without missing confidences, the bounds are always exact.

    Args:
        confidence: Confidences (n,), NaN if missing.
        correct: 0 or 1 (n,).
        ends: Ends of the blocks.
        with_last_block: Whether the last block counts.
    """
    problem = _Blocks(confidence, correct, ends, with_last_block=with_last_block)
    low, is_low_exact = _least_cost(problem, 1)
    high, is_high_exact = _least_cost(problem, -1)  # minus the greatest squared error
    return math.sqrt(max(0.0, low)), math.sqrt(max(0.0, -high)), is_low_exact and is_high_exact


class _Runs(NamedTuple):
    """Runs of known answers, each in a block with m missing ones: arrays of one shape."""

    m: np.ndarray
    total: np.ndarray  # sum k of the known confidences
    lowest: np.ndarray  # range of the mean z of missing confidences
    highest: np.ndarray
    fewest_hits: np.ndarray  # range of the number q of hits
    most_hits: np.ndarray

    def cost(self, fewest_hits: np.ndarray, most_hits: np.ndarray, weight: float, sign: int) -> np.ndarray:
        """Return the least signed cost, sign w (k + m z - q)^2, over z and over q from `fewest_hits` to `most_hits`.

        w is the weight of the block, k the sum of its known confidences, z the mean of its m missing ones, and q its
        number of right answers. The cost is infinite where no q in this range is possible.
        """
        fewest_hits, most_hits = np.maximum(fewest_hits, self.fewest_hits), np.minimum(most_hits, self.most_hits)
        lowest_gap = self.total + self.m * self.lowest - most_hits  # of the range of k + m z - q
        highest_gap = self.total + self.m * self.highest - fewest_hits
        nearest_to_0 = np.maximum(0, np.maximum(lowest_gap, -highest_gap))  # 0 if the range holds it
        farthest_from_0 = np.maximum(-lowest_gap, highest_gap)
        cost = sign * weight * (nearest_to_0 if sign == 1 else farthest_from_0) ** 2
        return np.where(fewest_hits <= most_hits, cost, np.inf)


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
    terms: tuple[_Term, ...] = ()  # of the first blocks, in which the counts below are too
    missing: int = 0
    hits: int = 0
    fewest_right: int = 0  # range of the number of right answers among the missing
    most_right: int = 0


class _Blocks:
    """Known answers in order of confidence, with their ties, numbers of missing ones, and blocks.

    Attributes:
        num_known, num_missing: Numbers of answers with and without a confidence.
        right, wrong: Numbers of right and wrong answers among the missing.
        sum: Sum of the confidences of the first 0, 1, ... known answers.
        edge: Confidences of the known answers, with 0 before and 1 after them.
        fewest_hits, most_hits: Range of the number of hits among the first 0, 1, ... known answers, over all orders of
            equal confidences.
        starts, ends, weights: Blocks, and the weight w of each.
        step: Number of values of hits that share a cell of the table of costs, or None if the table would be too large.
    """

    def __init__(self, confidence: np.ndarray, correct: np.ndarray, ends: np.ndarray, *, with_last_block: bool) -> None:
        """Sort the known answers, and count hits among the first of them in the best and in the worst order.

        The arguments are those of `block_error_bounds`.
        """
        is_missing = np.isnan(confidence)
        # A tie is a set of known answers with one confidence: its value, and the number of its answers
        values, tie_index, sizes = np.unique(confidence[~is_missing], return_inverse=True, return_counts=True)
        in_order = np.repeat(values, sizes)
        self.num_known, self.num_missing = len(in_order), int(is_missing.sum())
        self.right = int(correct[is_missing].sum())
        self.wrong = self.num_missing - self.right
        self.sum = np.concatenate([[0.0], in_order.cumsum()])
        self.edge = np.concatenate([[0.0], in_order, [1.0]])
        tie_hits = np.bincount(tie_index, correct[~is_missing], len(values)).round().astype(int)
        # For each count: the first `count` known answers consist of whole ties and the first answers of one more tie
        tie, count = np.repeat(np.arange(len(values)), sizes), np.arange(self.num_known)
        hits_before, tie_end = (tie_hits.cumsum() - tie_hits)[tie], sizes.cumsum()[tie]
        num_taken, num_left = count - (tie_end - sizes[tie]), tie_end - count  # answers of this one more tie
        fewest_hits = hits_before + np.maximum(0, tie_hits[tie] - num_left)  # if its hits come last
        most_hits = hits_before + np.minimum(tie_hits[tie], num_taken)  # if its hits come first
        all_hits = tie_hits.sum()
        self.fewest_hits, self.most_hits = np.append(fewest_hits, all_hits), np.append(most_hits, all_hits)
        self.starts, self.ends = [0, *ends[:-1].tolist()], ends.tolist()
        # Block b adds n_b / n (gap / n_b)^2 = gap^2 / n_b / n, with gap = k + m z - q
        self.weights = [1 / (end - start) / len(confidence) for start, end in zip(self.starts, self.ends, strict=True)]
        if not with_last_block:
            self.weights[-1] = 0.0
        self.step = self._table_step()

    def _table_step(self) -> int | None:
        """Return the least `step`, a power of 2, that lets `tables_of_costs` do with `MAX_TABLE_STEPS` additions.

        `step` neighboring numbers of hits share a cell of the tables, which saves time but makes the bounds wider.
        Without missing answers the step is 1, whatever the time, so that the bounds are exact. It is None if even the
        largest step takes too long.
        """
        if not self.num_missing:
            return 1
        shapes: list[tuple[int, int, int]] = []  # per block, as unpacked below
        for start, end in zip(self.starts, self.ends, strict=True):
            least, greatest = self.missing_range(start)
            fewest_hits, most_hits = self.hits_range(start, np.arange(least, greatest + 1))
            num_pairs = (greatest - least + 1) * (min(end - start, self.num_missing) + 1)  # of missing before, and m
            shapes.append((num_pairs, end - start, int((most_hits - fewest_hits).max())))
        num_pairs, sizes, hit_ranges = np.array(shapes, dtype=float).T
        if 2 * num_pairs.sum() >= MAX_TABLE_STEPS:  # the sum below approaches this value as the step grows
            return None
        step = 1
        # For each pair, `_table_before` adds a row of up to hit_ranges / step + 1 cells for each shift. There are up to
        # sizes / step + 2 shifts
        while (num_pairs * (sizes / step + 2) * (hit_ranges / step + 1)).sum() > MAX_TABLE_STEPS:
            step *= 2
        return step

    def missing_range(self, end: int) -> tuple[int, int]:
        """Return the least and the greatest number of missing answers that the first `end` answers can include."""
        return max(0, end - self.num_known), min(self.num_missing, end)

    def hits_range(self, end: int, missing: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the fewest and most hits among the first `end` answers, for each number of missing ones among them.

        Hits are right answers, with or without a confidence. At most `wrong` of the missing answers are wrong, and at
        most `right` of them are right.
        """
        num_known = np.minimum(end - missing, self.num_known)
        fewest_hits = self.fewest_hits[num_known] + np.maximum(0, missing - self.wrong)
        return fewest_hits, self.most_hits[num_known] + np.minimum(missing, self.right)

    def runs(self, block: int, before: np.ndarray, m: np.ndarray) -> _Runs:
        """Return the runs of known answers in a block with m missing answers.

        `before` has numbers of missing answers in earlier blocks, and there is a run for each of them. A run that would
        end after the last known answer ends with it: no arrangement has so few missing answers.
        """
        first = self.starts[block] - before  # known answers before the block
        last = np.minimum(self.ends[block] - before - m, self.num_known)
        # If equal confidences lie on both sides of an end of the run, any of their answers may be in it
        fewest_hits = np.maximum(0, self.fewest_hits[last] - self.most_hits[first])
        most_hits = np.minimum(last - first, self.most_hits[last] - self.fewest_hits[first])
        return _Runs(
            m,
            total=self.sum[last] - self.sum[first],
            lowest=np.broadcast_to(self.edge[first], last.shape),  # confidence of the known answer before the run
            highest=self.edge[last + 1],  # and after it
            fewest_hits=fewest_hits + np.maximum(0, m - self.wrong),
            most_hits=most_hits + np.minimum(m, self.right),
        )

    def tables_of_costs(self, sign: int, step: int) -> list[np.ndarray]:
        """Return lower bounds of the signed cost of the blocks after each boundary, infinite where impossible.

        Rows are the numbers of missing answers before the boundary. Columns are cells: cell i holds `step` numbers of
        hits before the boundary, from the fewest possible plus i times `step` on.
        """
        table = np.full((self.num_missing + 1, 1), np.inf)
        table[self.num_missing, 0] = 0.0  # after the last block, all missing answers are in blocks
        tables = [table]
        for block in reversed(range(len(self.ends))):
            tables.append(self._table_before(block, tables[-1], sign, step))
        return tables[::-1]

    def _table_before(self, block: int, later: np.ndarray, sign: int, step: int) -> np.ndarray:
        """Return the table of `tables_of_costs` at the start of a block, from the table `later` at its end.

        A block with m missing answers leads from row r and cell i of the table to row r + m and cell i + shift of
        `later`. Its cost is the least over all numbers of hits in these two cells. The entry of the table is the least
        sum of this cost and the entry of `later`, over all m and shifts.
        """
        start, end = self.starts[block], self.ends[block]
        least, greatest = self.missing_range(start)  # the rows r of the table that are possible
        before = np.arange(least, greatest + 1)
        fewest_hits, most_hits = self.hits_range(start, before)
        num_cells = (most_hits - fewest_hits) // step + 1
        table = np.full((self.num_missing + 1, num_cells.max()), np.inf)
        for m in range(min(end - start, self.num_missing) + 1):
            runs = self.runs(block, before, np.array([m]))
            fewest_hits_after, _ = self.hits_range(end, before + m)
            hits = fewest_hits_after - fewest_hits  # in the block, between the first numbers of two cells with shift 0
            # From any number in one cell to any number in the other, it is up to step - 1 hits fewer or more
            first_shift = math.ceil((runs.fewest_hits - hits - step + 1).min() / step)
            last_shift = math.floor((runs.most_hits - hits + step - 1).max() / step)
            hits = hits + step * np.arange(first_shift, last_shift + 1)[:, None]  # (shifts, rows)
            costs = runs.cost(hits - step + 1, hits + step - 1, self.weights[block], sign)
            for shift, cost in enumerate(costs[:, :, None], first_shift):
                # Cells i of the table for which `later` has a cell i + shift
                i, end_i = max(0, -shift), min(table.shape[1], later.shape[1] - shift)
                later_cost = later[least + m : greatest + m + 1, i + shift : max(i, end_i) + shift]
                part = table[least : least + len(later_cost), i : max(i, end_i)]  # a view
                np.minimum(part, cost[: len(later_cost)] + later_cost, out=part)
        # Rows with fewer cells than the table has columns: there, the numbers of hits are too large to be possible
        table[least : greatest + 1][np.arange(table.shape[1]) >= num_cells[:, None]] = np.inf
        return table

    def extensions(
        self, prefix: _Prefix, cost: float, tables: list[np.ndarray], sign: int
    ) -> Iterator[tuple[float, _Prefix]]:
        """Yield (bound, arrangement) for `prefix` and one more block, by increasing lower bound of the signed cost.

        The block has m missing answers and q hits; both take all possible values, m along rows and q along columns.
        `cost` is the exact signed cost of the blocks of `prefix`, and `tables` are those of `tables_of_costs`.
        """
        block = len(prefix.terms)
        end, weight = self.ends[block], self.weights[block]
        size = end - self.starts[block]
        m = np.arange(min(size, self.num_missing - prefix.missing) + 1)[:, None]
        runs = self.runs(block, np.array([prefix.missing]), m)
        q = np.arange(runs.fewest_hits.min(), runs.most_hits.max() + 1)
        missing, hits = prefix.missing + m, prefix.hits + q  # with this block
        num_known = np.minimum(end - missing, self.num_known)
        # Range of the right answers among the missing: this block adds at least q - (size - m) and at most min(q, m).
        # There are `right` and `wrong` in all, and the known answers have the rest of the hits
        fewest_right = np.maximum(prefix.fewest_right + np.maximum(0, q - (size - m)), missing - self.wrong)
        fewest_right = np.maximum(fewest_right, hits - self.most_hits[num_known])
        most_right = np.minimum(prefix.most_right + np.minimum(q, m), np.minimum(missing, self.right))
        most_right = np.minimum(most_right, hits - self.fewest_hits[num_known])
        fewest_hits, _ = self.hits_range(end, missing)
        table, cell = tables[block + 1], hits - fewest_hits  # the step of the table is 1 in this search
        later_cost = table[missing, cell.clip(0, table.shape[1] - 1)]
        bounds = cost + runs.cost(q, q, weight, sign) + later_cost
        bounds[fewest_right > most_right] = np.inf
        for index in np.argsort(bounds, axis=None, kind="stable").tolist():
            i, j = divmod(index, len(q))  # row and column
            bound = float(bounds[i, j])
            if math.isinf(bound):
                return
            rest, lowest, highest = runs.total[i, 0] - q[j], runs.lowest[i, 0], runs.highest[i, 0]
            term = _Term(weight, rest=float(rest), m=i, lowest=float(lowest), highest=float(highest))
            counts = {"missing": int(missing[i, 0]), "hits": int(hits[j])}
            counts |= {"fewest_right": int(fewest_right[i, j]), "most_right": int(most_right[i, j])}
            yield bound, _Prefix(float(later_cost[i, j]), (*prefix.terms, term), **counts)


def _least_cost(blocks: _Blocks, sign: int) -> tuple[float, bool]:
    """Return the least signed cost of all arrangements, and True; or a lower bound of it, and False.

    The search is best-first: a queue holds partial arrangements by lower bounds of their signed cost, and the one with
    the least bound is extended by a block. The result is a lower bound if the table is too large or rounds, or if the
    search has not ended after about `MAX_ARRANGEMENTS` steps.

    Args:
        blocks: The answers and blocks.
        sign: 1 for the least squared error, -1 for minus the greatest.
    """
    if blocks.step is None:
        return (0.0 if sign == 1 else -1.0), False  # errors lie in [0, 1]
    tables = blocks.tables_of_costs(sign, blocks.step)
    table_bound = float(tables[0][0, 0])
    if blocks.step > 1:
        return table_bound, False
    exact_cost = _least_sum if sign == 1 else _minus_greatest_sum
    rounding = 1e-15 * max(abs(table_bound), 1e-6)  # differences of costs that mean nothing
    # Priority, a counter that decides between equal priorities, bound, arrangement, and its siblings: the arrangements
    # with the same earlier blocks and larger bounds, which are generated one by one when they are needed
    queue: list[tuple[float, int, float, _Prefix, Iterator[tuple[float, _Prefix]]]] = []
    counter = itertools.count()

    def push_first(siblings: Iterator[tuple[float, _Prefix]]) -> None:
        """Add the best of the siblings, if any is left. Another call adds the next one when the best is examined."""
        for bound, prefix in itertools.islice(siblings, 1):
            priority = bound - rounding * len(prefix.terms)  # among equal bounds, the longest arrangement
            heapq.heappush(queue, (priority, next(counter), bound, prefix, siblings))

    push_first(iter([(table_bound, _Prefix(table_bound))]))  # the empty arrangement has no siblings
    for _ in range(MAX_ARRANGEMENTS + len(blocks.ends)):  # a complete arrangement takes a turn for each block
        _, _, bound, prefix, siblings = heapq.heappop(queue)
        push_first(siblings)
        cost = exact_cost(prefix.terms)  # with means in order, unlike in the table
        better_bound = cost + prefix.later_cost
        if better_bound > bound + rounding:  # back to the queue, where others may be better now
            push_first(iter([(better_bound, prefix)]))
        elif len(prefix.terms) == len(blocks.ends):
            return cost, True
        else:
            push_first(blocks.extensions(prefix, cost, tables, sign))
    priority, *_ = queue[0]  # the least bound, apart from rounding
    return priority, False


class _Pool(NamedTuple):
    """Neighboring blocks with one mean z. The sum of their terms is curvature z^2 - 2 slope z plus a constant."""

    terms: tuple[_Term, ...]
    curvature: float  # sum of w m^2
    slope: float  # minus the sum of w m rest

    @property
    def z(self) -> float:
        """The mean with the least sum, not below the lowest mean of the last block or above the highest of the first.

        These two limits imply the others, since lowest and highest means grow from block to block.
        """
        return min(max(self.slope / self.curvature, self.terms[-1].lowest), self.terms[0].highest)


def _least_sum(terms: tuple[_Term, ...]) -> float:
    """Return the least sum of the terms w (rest + m z)^2 over means z that do not decrease from block to block.

    w, rest and m are fields of the terms; terms with m = 0 do not depend on z. The means are found by the pool adjacent
    violators algorithm: neighbors whose means would decrease get one mean.
    """
    pools: list[_Pool] = []
    for term in terms:
        if term.weight > 0 and term.m > 0:  # no other term depends on z
            pool = _Pool((term,), curvature=term.weight * term.m**2, slope=-term.weight * term.m * term.rest)
            while pools and pools[-1].z > pool.z:
                earlier_terms, curvature, slope = pools.pop()
                pool = _Pool(earlier_terms + pool.terms, pool.curvature + curvature, pool.slope + slope)
            pools.append(pool)
    fixed = [term.weight * term.rest**2 for term in terms if term.m == 0]
    return math.fsum(fixed + [t.weight * (t.rest + t.m * pool.z) ** 2 for pool in pools for t in pool.terms])


def _minus_greatest_sum(terms: tuple[_Term, ...]) -> float:
    """Return minus the greatest sum of the terms w (rest + m z)^2 over means z that do not decrease.

    w, rest and m are fields of the terms; terms with m = 0 do not depend on z. The others are convex in z, so that the
    greatest sum has each z at an end of its own range or of the range of another z. Dynamic programming runs over the
    blocks.
    """
    free = [term for term in terms if term.weight > 0 and term.m > 0]
    fixed = math.fsum(term.weight * term.rest**2 for term in terms if term.m == 0)
    z = np.unique([end for term in free for end in (term.lowest, term.highest)])
    best = np.zeros(max(1, len(z)))  # the greatest sum of the terms so far, by the mean of the last one
    for term in free:
        value = np.where((term.lowest <= z) & (z <= term.highest), term.weight * (term.rest + term.m * z) ** 2, -np.inf)
        best = np.maximum.accumulate(best) + value  # the mean of the term before is this z or a smaller one
    return -fixed - float(best.max())
