r"""Evidence against calibration from bets, and the sums for confidence sequences.

Each test (the event, a class, a group) has one wealth process. It mixes bets and starting times: half of the wealth is
bet from the first row on, the rest is put in piece by piece every `START_ROWS` rows, so that a late change is found
without the losses of the time before (an e-detector; Shin, Ramdas and Rinaldo 2024). A mixture of nonnegative
martingales that start at 1 is one as well, and P(it ever reaches 1/a) <= a (Ville 1939).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated

import numpy as np
from jaxtyping import Float, Int64
from scipy.special import logsumexp

from calibrant._core.types import Allows, Index, Range
from calibrant.monitoring._bets import BETS, LOG_BET_WEIGHTS, bet_factors
from calibrant.monitoring._rows import AlignedArrays, Rows

LOOK_ROWS = 10  # the wealth is looked at after every ten rows, however rows arrive
START_ROWS = 100  # rows between two starting times of bets
LOOKS_PER_START = START_ROWS // LOOK_ROWS
MAX_FACTORS = 2_000_000  # in memory at once
LogWealth = Annotated[Float[np.ndarray, "s e"], Allows(-math.inf)]
PerBet = Int64[np.ndarray, "s e"]
PerTest = Float[np.ndarray, " s"]
CountPerTest = Annotated[Int64[np.ndarray, " s"], Range(ge=0)]
BetPerTest = Annotated[Int64[np.ndarray, " s"], Index("log_wealth", axis=1)]
RowPerTest = Annotated[Int64[np.ndarray, " s"], Range(ge=-1)]
SumsPerTest = Float[np.ndarray, "s c"]
SUM_NAMES = ("rows", "residual", "squared_residual", "squared_brier_residual")


@dataclass(frozen=True, eq=False)
class Wealth(AlignedArrays):
    """The wealth of s tests by e bets, and sums over their rows."""

    log_wealth: LogWealth  # (s e) of the bets that have started, before the weights of the bets
    log_reserve: PerTest  # (s) log of the share that has not been bet yet
    starts: CountPerTest  # (s) int64, number of starting times so far
    best: LogWealth  # (s e) largest log gain of each bet, over all starting times to begin it
    best_start: PerBet  # (s e) int64, number of rows before that starting time
    peak: PerTest  # (s) largest log wealth at any look
    peak_row: CountPerTest  # (s) int64, number of rows at that look
    peak_since: CountPerTest  # (s) int64, `best_start` of the bet that had gained most at that look
    peak_bet: BetPerTest  # (s) int64, index of that bet
    alarm_row: RowPerTest  # (s) int64, number of rows when the wealth first reached the threshold, or -1
    sums: SumsPerTest  # (s 4) as SUM_NAMES; residuals are confidences minus outcomes

    @classmethod
    def empty(cls, num_tests: int) -> "Wealth":
        """Return the evidence of tests before the first row."""
        shape = num_tests, len(BETS)
        log_half = np.log(0.5)  # half is bet from the first row on, and half is kept for later starts
        return cls(
            log_wealth=np.full(shape, log_half),
            log_reserve=np.full(num_tests, log_half),
            starts=np.ones(num_tests, dtype=np.int64),
            best=np.zeros(shape),
            best_start=np.zeros(shape, dtype=np.int64),
            peak=np.zeros(num_tests),
            peak_row=np.zeros(num_tests, dtype=np.int64),
            peak_since=np.zeros(num_tests, dtype=np.int64),
            peak_bet=np.zeros(num_tests, dtype=np.int64),
            alarm_row=np.full(num_tests, -1, dtype=np.int64),
            sums=np.zeros((num_tests, len(SUM_NAMES))),
        )

    @property
    def total(self) -> np.ndarray:
        """Log wealth of each test now (s)."""
        return _log_total(self.log_wealth, self.log_reserve)

    def advance(
        self, row: int, log_factors: np.ndarray, sums: np.ndarray, thresholds: np.ndarray
    ) -> tuple["Wealth", np.ndarray]:
        """Return the state after further looks, and the log wealth of the s tests at each look (looks s).

        A look comes after every LOOK_ROWS rows. Every LOOKS_PER_START looks, a part of the reserve goes into new bets.
        The result is the same however looks are divided into calls.

        Args:
            row: Number of rows before, a multiple of LOOK_ROWS.
            log_factors: Log factors of the e bets of each test, summed over the rows of each look (looks s e).
            sums: The four `SUM_NAMES`, summed over the rows of each look (looks s 4).
            thresholds: Log wealth that raises the alarm of each test (s).
        """
        state, totals = self, [np.zeros((0, len(self)))]  # no look yet: the result has this shape if none follows
        first = 0
        while first < len(log_factors):
            look = row // LOOK_ROWS + first  # number of looks before
            if look > 0 and look % LOOKS_PER_START == 0:  # `empty` has already started the bets of look 0
                state = state._start(look * LOOK_ROWS)
            last = min(len(log_factors), first + LOOKS_PER_START - look % LOOKS_PER_START)  # to the next start
            stretch = slice(first, last)
            has_rows = sums[stretch, :, 0].any(0) | log_factors[stretch].any((0, 2))
            active = np.flatnonzero(has_rows)  # the other tests keep their wealth
            part, part_totals = state[active]._advance_stretch(
                look * LOOK_ROWS, log_factors[stretch, active], sums[stretch, active], thresholds[active]
            )
            total = np.tile(state.total, (last - first, 1))
            total[:, active] = part_totals
            state = state._with_tests(active, part)
            totals.append(total)
            first = last
        return state, np.concatenate(totals)

    def _with_tests(self, tests: np.ndarray, part: "Wealth") -> "Wealth":
        """Return a copy in which the tests with these indices have the evidence of `part`."""
        arrays = {name: array.copy() for name, array in vars(self).items()}
        for name, array in arrays.items():
            array[tests] = getattr(part, name)
        return Wealth(**arrays)

    def _start(self, row: int) -> "Wealth":
        """Return the state after a piece of the reserve has gone into every bet, when `row` rows were processed.

        `reserve_after` says how much is left after each starting time.
        """
        step = reserve_after(self.starts + 1) - reserve_after(self.starts)  # below 0: the reserve shrinks by exp(step)
        piece = (self.log_reserve + np.log(-np.expm1(step)))[:, None]  # log(reserve * (1 - exp(step))), (s 1)
        return replace(
            self,
            log_wealth=np.logaddexp(self.log_wealth, piece),
            log_reserve=self.log_reserve + step,
            starts=self.starts + 1,
            best=np.maximum(self.best, 0.0),  # a bet that has lost since its best start would better begin here
            best_start=np.where(self.best < 0, row, self.best_start),
        )

    def _advance_stretch(
        self, row: int, log_factors: np.ndarray, sums: np.ndarray, thresholds: np.ndarray
    ) -> tuple["Wealth", np.ndarray]:
        """Advance by looks between two starting times, and return the log wealth at each look (looks s).

        Arguments are as in `advance`. The highest wealth of the stretch becomes the peak if it exceeds the one before.
        """
        wealth = _running_sums(self.log_wealth, log_factors)  # (looks s e)
        best = _running_sums(self.best, log_factors)
        total = _log_total(wealth, self.log_reserve)  # (looks s)
        tests = np.arange(len(self))
        highest, highest_look = total.max(0), total.argmax(0)
        is_peak = highest > self.peak
        is_crossed = total >= thresholds
        is_new_alarm = (self.alarm_row < 0) & is_crossed.any(0)
        bet = (best[highest_look, tests] + LOG_BET_WEIGHTS).argmax(1)  # the one that has gained most at that look
        state = replace(
            self,
            log_wealth=wealth[-1],
            best=best[-1],
            peak=np.where(is_peak, highest, self.peak),
            peak_row=np.where(is_peak, row + (highest_look + 1) * LOOK_ROWS, self.peak_row),
            peak_since=np.where(is_peak, self.best_start[tests, bet], self.peak_since),
            peak_bet=np.where(is_peak, bet, self.peak_bet),
            alarm_row=np.where(is_new_alarm, row + (is_crossed.argmax(0) + 1) * LOOK_ROWS, self.alarm_row),
            sums=_running_sums(self.sums, sums)[-1],
        )
        return state, total

    def then(self, later: "Wealth", row: int, thresholds: np.ndarray) -> "Wealth":
        """Return the evidence of these rows followed by later ones.

        The later bets began with a wealth of 1. They now begin with the wealth of these rows, whose log is added. An
        alarm that only both parts together raise is dated at the peak of the later one.

        Args:
            later: Evidence of the same tests, from rows after these.
            row: Number of rows before the later ones.
            thresholds: Log wealth that raises the alarm of each test (s).
        """
        stake = self.total  # log wealth (s)
        # A bet whose best start is the first later row keeps its start here if it was already gaining
        continues = (later.best_start == 0) & (self.best > 0)
        at_peak_bet = np.arange(len(self)), later.peak_bet  # index of one bet for each test
        peak_continues = (later.peak_since == 0) & (self.best[at_peak_bet] > 0)
        later_since = np.where(peak_continues, self.best_start[at_peak_bet], later.peak_since + row)
        later_peak = later.peak + stake
        is_later = later_peak > self.peak
        return Wealth(
            log_wealth=later.log_wealth + stake[:, None],
            log_reserve=later.log_reserve + stake,
            starts=later.starts,
            best=later.best + np.where(continues, self.best, 0.0),
            best_start=np.where(continues, self.best_start, later.best_start + row),
            peak=np.where(is_later, later_peak, self.peak),
            peak_row=np.where(is_later, later.peak_row + row, self.peak_row),
            peak_since=np.where(is_later, later_since, self.peak_since),
            peak_bet=np.where(is_later, later.peak_bet, self.peak_bet),
            alarm_row=np.where((self.alarm_row < 0) & (later_peak >= thresholds), later.peak_row + row, self.alarm_row),
            sums=self.sums + later.sums,
        )


def _running_sums(start: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Return the sums of `start` and the steps up to each, rounded alike however steps are divided into calls."""
    return np.cumsum(np.concatenate([start[None], steps]), axis=0)[1:]


def _log_total(log_wealth: np.ndarray, log_reserve: np.ndarray) -> np.ndarray:
    """Return the log of the reserve plus the mean wealth of the bets (... s e), weighted by weights that sum to 1."""
    return np.asarray(logsumexp(np.logaddexp(log_wealth, log_reserve[:, None]) + LOG_BET_WEIGHTS, axis=-1))


def reserve_after(starts: np.ndarray) -> np.ndarray:
    """Return the log of the share that is not bet after a number of starting times, 1 / (2 log2(starts + 1)).

    The share falls so slowly that a piece is left for every later time: the j-th piece is about 1 / (2.9 j log2(j)^2).

    >>> reserve_after(np.array([1, 3])).round(3)
    array([-0.693, -1.386])
    """
    return -np.log(2 * np.log2(starts + 1.0))


# Factors of bets and sums of rows in looks


@dataclass(frozen=True)
class LookSettings:
    """The tests of a watch, in this order: the event, classes, groups, and a spare one that new groups copy."""

    event: int | str  # "top" or the index of a class
    classes: tuple[int, ...]
    num_groups: int | None
    alpha: float

    @cached_property
    def weights(self) -> np.ndarray:
        """The share of alpha for each test. Their sum is at most 1, however many groups appear.

        The event has one half, and classes and groups share the other half equally. The event has all if there are
        neither. Within their part, classes share equally, and the g-th group has 1 / (g (g + 1)).
        """
        num_parts = bool(self.classes) + (self.num_groups is not None)
        event_weight, part = (0.5, 0.5 / num_parts) if num_parts else (1.0, 0.0)
        class_weights = [part / len(self.classes) for _ in self.classes]
        g = np.arange(1, (self.num_groups or 0) + 1)
        group_weights = part / (g * (g + 1.0))  # 1 / (g (g + 1)) sums to 1 over all g
        return np.concatenate([[event_weight], class_weights, group_weights, [0.0]])  # 0 for the spare test

    @property
    def thresholds(self) -> np.ndarray:
        """Log wealth that raises the alarm of each test, log(1 / (alpha weight))."""
        with np.errstate(divide="ignore"):  # the spare test has the weight 0, and never raises an alarm
            return -np.log(self.alpha * self.weights)

    def split(self, rows: Rows) -> Iterator[Rows]:
        """Yield the rows in parts whose factors fit into memory."""
        # Factors of the event and of each class are computed by row, factors of groups only by look
        factors_per_row = len(BETS) * (1 + len(self.classes) + (self.num_groups or 0) / LOOK_ROWS)
        size = max(1, int(MAX_FACTORS / factors_per_row) // LOOK_ROWS) * LOOK_ROWS
        for start in range(0, len(rows), size):
            yield rows[start : start + size]


def compute_looks(rows: Rows, settings: LookSettings) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return arguments of `Wealth.advance` and `Periods.advance`, for s tests and e bets.

    Returns:
        Log factors of every look, a block of LOOK_ROWS rows, (looks s e); its sums as SUM_NAMES (looks s 4); and the
        values of every row as PERIOD_COLUMNS (n 4).
    """
    n, num_tests = len(rows), len(settings.weights)
    c, outcome = _event(rows, settings.event)
    factors, columns = bet_factors(c, outcome), _sum_columns(c, outcome)  # of each row: (n e) and (n 4)
    log_factors = np.zeros((n // LOOK_ROWS, num_tests, len(BETS)))
    sums = np.zeros((n // LOOK_ROWS, num_tests, len(SUM_NAMES)))
    log_factors[:, 0], sums[:, 0] = _block_log_products(factors), _block_sums(columns)
    first_group = 1 + len(settings.classes)  # index of the first test of a group, after the event (0) and the classes
    if settings.classes:
        class_probs = rows.probs[:, list(settings.classes)]
        is_class = (rows.labels[:, None] == np.array(settings.classes)).astype(float)
        log_factors[:, 1:first_group] = _block_log_products(bet_factors(class_probs, is_class))
        sums[:, 1:first_group] = _block_sums(_sum_columns(class_probs, is_class))
    if settings.num_groups:
        # A product and a sum for the rows of each group in each look; groups without rows keep the log factor 0
        block = np.arange(n) // LOOK_ROWS * settings.num_groups + rows.groups  # number of the look and group
        order = np.argsort(block, kind="stable")
        used_blocks, start = np.unique(block[order], return_index=True)  # `start`: first row of each, in this order
        look, group = np.divmod(used_blocks, settings.num_groups)
        log_factors[look, first_group + group] = np.log(np.multiply.reduceat(factors[order], start, axis=0))
        sums[look, first_group + group] = np.add.reduceat(columns[order], start, axis=0)
    period_columns = np.stack([np.ones(n), outcome, c, c * (1 - c)], axis=1)  # as PERIOD_COLUMNS
    return log_factors, sums, period_columns


def _event(rows: Rows, of: int | str) -> tuple[np.ndarray, np.ndarray]:
    """Return the confidence and outcome (n) of the event: class `of`, or that the predicted class is right."""
    if isinstance(of, int):
        return rows.probs[:, of], (rows.labels == of).astype(float)
    predicted = rows.probs.argmax(1)
    return rows.probs[np.arange(len(rows)), predicted], (predicted == rows.labels).astype(float)


def _sum_columns(c: np.ndarray, outcome: np.ndarray) -> np.ndarray:
    """Return the values of confidences and outcomes (...) as SUM_NAMES, (... 4).

    The squared residual is the Brier score of the event. That of a calibrated model has the mean c (1 - c), its
    predictable guess, from which it deviates by (c - y) (2 c - 1), at most 1 in size.
    """
    residual = c - outcome
    return np.stack([np.ones_like(c), residual, residual**2, (residual * (2 * c - 1)) ** 2], axis=-1)


def _block_log_products(factors: np.ndarray) -> np.ndarray:
    """Return the log of the product of the factors (n ...) over the rows of each look (looks ...)."""
    # one logarithm for ten factors, whose product cannot underflow, as each is at least `MIN_FACTOR`
    return np.log(factors.reshape(-1, LOOK_ROWS, *factors.shape[1:]).prod(axis=1))


def _block_sums(columns: np.ndarray) -> np.ndarray:
    """Return the sums of columns (n ...) over the rows of each look (looks ...)."""
    return columns.reshape(-1, LOOK_ROWS, *columns.shape[1:]).sum(axis=1)
