"""Factors of bets and block sums of rows for every test."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from calibrant.monitoring._bets import BETS, bet_factors
from calibrant.monitoring._evidence import LOOK_ROWS, SUM_NAMES
from calibrant.monitoring._rows import Rows

MAX_FACTORS = 2_000_000  # in memory at once


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
        return np.concatenate([[event_weight], class_weights, group_weights, [0.0]])

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
        Log factors of every look, a block of LOOK_ROWS rows, (looks s e); its sums as SUM_NAMES (looks s 5); and the
        values of every row as PERIOD_COLUMNS (n 5).
    """
    p, y = rows.probs, rows.labels
    n, num_tests = len(rows), len(settings.weights)
    c, outcome = _event(rows, settings.event)
    factors, columns = bet_factors(c, outcome), _sum_columns(c, outcome, p, y)
    log_factors = np.zeros((n // LOOK_ROWS, num_tests, len(BETS)))
    sums = np.zeros((n // LOOK_ROWS, num_tests, len(SUM_NAMES)))
    log_factors[:, 0], sums[:, 0] = _block_log_products(factors), _block_sums(columns)
    first_group = 1 + len(settings.classes)  # index of the first test of a group, after the event (0) and the classes
    if settings.classes:
        class_probs = p[:, list(settings.classes)]
        is_class = (y[:, None] == np.array(settings.classes)).astype(float)
        log_factors[:, 1:first_group] = _block_log_products(bet_factors(class_probs, is_class))
        residual = is_class - class_probs
        class_columns = np.stack([np.ones_like(residual), residual, residual**2], -1)
        sums[:, 1:first_group, :3] = _block_sums(class_columns)  # classes have no Brier score
    if settings.num_groups:
        block = np.arange(n) // LOOK_ROWS * settings.num_groups + rows.groups  # number of the look and group
        order = np.argsort(block, kind="stable")
        used_blocks, start = np.unique(block[order], return_index=True)  # `start`: first row of each, in this order
        look, group = np.divmod(used_blocks, settings.num_groups)
        log_factors[look, first_group + group] = np.log(np.multiply.reduceat(factors[order], start, axis=0))
        sums[look, first_group + group] = np.add.reduceat(columns[order], start, axis=0)
    brier = columns[:, SUM_NAMES.index("brier")]
    period_columns = np.stack([np.ones(n), outcome, c, c * (1 - c), brier], axis=1)  # as PERIOD_COLUMNS
    return log_factors, sums, period_columns


def _event(rows: Rows, of: int | str) -> tuple[np.ndarray, np.ndarray]:
    """Return the confidence and outcome of the event of each row."""
    if isinstance(of, int):
        return rows.probs[:, of], (rows.labels == of).astype(float)
    predicted = rows.probs.argmax(1)
    return rows.probs[np.arange(len(rows)), predicted], (predicted == rows.labels).astype(float)


def _sum_columns(c: np.ndarray, outcome: np.ndarray, p: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the values of each row as SUM_NAMES.

    The Brier score of a calibrated model has the mean 1 - |p|^2, its predictable guess. It deviates from this
    guess by 2 (|p|^2 - p_y), at most 2 in size, so that half of the deviation counts.
    """
    squared_norm = (p * p).sum(1)  # |p|^2
    p_y = p[np.arange(len(y)), y]
    residual = outcome - c
    brier = squared_norm - 2 * p_y + 1
    half_deviation = squared_norm - p_y
    return np.stack([np.ones(len(y)), residual, residual**2, brier, half_deviation**2], axis=1)


def _block_log_products(factors: np.ndarray) -> np.ndarray:
    """Return the log product of the factors in each look."""
    return np.log(factors.reshape(-1, LOOK_ROWS, *factors.shape[1:]).prod(axis=1))


def _block_sums(columns: np.ndarray) -> np.ndarray:
    """Return the sums over the rows of each look."""
    return columns.reshape(-1, LOOK_ROWS, *columns.shape[1:]).sum(axis=1)
