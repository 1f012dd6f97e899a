"""Factors of bets and block sums of rows for every test."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from calibrant.monitoring._bets import BETS, bet_factors
from calibrant.monitoring._evidence import LOOK_ROWS, SUM_NAMES
from calibrant.monitoring._rows import Rows

MAX_FACTORS = 2_000_000  # in memory at once


class Looks(NamedTuple):
    """What `Wealth.advance` and `Periods.advance` take."""

    log_factors: np.ndarray  # (looks s e)
    sums: np.ndarray  # (looks s 5)
    period_columns: np.ndarray  # (n 5)


@dataclass(frozen=True)
class LookSettings:
    """The tests of a watch, in this order: the event, classes, groups, and a spare one that new groups copy."""

    of: int | str  # "top" or the index of a class
    classes: tuple[int, ...]
    num_groups: int | None
    alpha: float

    @cached_property
    def weights(self) -> np.ndarray:
        """The share of alpha for each test. Their sum is at most 1, however many groups appear.

        The event has one half. Classes and groups have equal parts of the other half, and the event has all of it if
        there are neither. Classes share equally; the g-th group has the share 1 / (g (g + 1)).
        """
        num_kinds = bool(self.classes) + (self.num_groups is not None)
        event = 0.5 if num_kinds else 1.0
        kind = 0.5 / max(1, num_kinds)
        classes = np.full(len(self.classes), kind / max(1, len(self.classes)))
        g = np.arange(1, (self.num_groups or 0) + 1)
        groups = kind / (g * (g + 1.0))  # 1 / (g (g + 1)) sums to 1 over all g
        return np.concatenate([[event], classes, groups, [0.0]])

    @property
    def thresholds(self) -> np.ndarray:
        """Log wealth that raises the alarm of each test, log(1 / (alpha weight))."""
        with np.errstate(divide="ignore"):  # the spare test has the weight 0, and never raises an alarm
            return -np.log(self.alpha * self.weights)

    def split(self, rows: Rows) -> Iterator[Rows]:
        """Yield the rows in parts whose factors fit into memory."""
        # a row has factors of the event and of each class, but groups only one product per look
        factors_per_row = len(BETS) * (1 + len(self.classes) + (self.num_groups or 0) / LOOK_ROWS)
        size = max(1, int(MAX_FACTORS / factors_per_row) // LOOK_ROWS) * LOOK_ROWS
        for start in range(0, len(rows), size):
            yield rows[start : start + size]


def compute_looks(rows: Rows, settings: LookSettings) -> Looks:
    """Return the log factors and sums of blocks of LOOK_ROWS rows."""
    p, y = rows.probs, rows.labels
    n, tests = len(rows), len(settings.weights)
    c, outcome = _event(rows, settings.of)
    factors, columns = bet_factors(c, outcome), _sum_columns(c, outcome, p, y)
    log_factors = np.zeros((n // LOOK_ROWS, tests, len(BETS)))
    sums = np.zeros((n // LOOK_ROWS, tests, len(SUM_NAMES)))
    log_factors[:, 0], sums[:, 0] = _block_products(factors), _block_sums(columns)
    first_group = 1 + len(settings.classes)  # index of its test; the event is 0
    if settings.classes:
        class_probs = p[:, list(settings.classes)]
        is_class = (y[:, None] == np.array(settings.classes)).astype(float)
        log_factors[:, 1:first_group] = _block_products(bet_factors(class_probs, is_class))
        residual = is_class - class_probs
        class_columns = np.stack([np.ones_like(residual), residual, residual**2], -1)
        sums[:, 1:first_group, :3] = _block_sums(class_columns)  # classes have no Brier score
    if settings.num_groups:
        _add_groups(rows.groups, first_group, factors, columns, log_factors, sums)
    brier = columns[:, SUM_NAMES.index("brier")]
    period_columns = np.stack([np.ones(n), outcome, c, c * (1 - c), brier], axis=1)  # as PERIOD_COLUMNS
    return Looks(log_factors, sums, period_columns)


def _event(rows: Rows, of: int | str) -> tuple[np.ndarray, np.ndarray]:
    """Return the confidence and outcome of the event of each row."""
    if isinstance(of, int):
        return rows.probs[:, of], (rows.labels == of).astype(float)
    predicted = rows.probs.argmax(1)
    return rows.probs[np.arange(len(rows)), predicted], (predicted == rows.labels).astype(float)


def _sum_columns(c: np.ndarray, outcome: np.ndarray, p: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the values of each row as SUM_NAMES.

    The Brier score of a calibrated model has the mean 1 - |p|^2, its predictable guess. It deviates from that by
    2 (|p|^2 - p_y), at most 2 in size, so that the deviation counts in halves.
    """
    square = (p * p).sum(1)  # |p|^2
    p_y = p[np.arange(len(y)), y]
    residual = outcome - c
    brier = square - 2 * p_y + 1
    return np.stack([np.ones(len(y)), residual, residual**2, brier, (square - p_y) ** 2], axis=1)


def _block_products(factors: np.ndarray) -> np.ndarray:
    """Return the log product of the factors in each look."""
    return np.log(factors.reshape(-1, LOOK_ROWS, *factors.shape[1:]).prod(axis=1))


def _block_sums(columns: np.ndarray) -> np.ndarray:
    """Return the sums over the rows of each look."""
    return columns.reshape(-1, LOOK_ROWS, *columns.shape[1:]).sum(axis=1)


def _add_groups(
    groups: np.ndarray,
    first_group: int,
    factors: np.ndarray,
    columns: np.ndarray,
    log_factors: np.ndarray,
    sums: np.ndarray,
) -> None:
    """Write the log factors and sums of each look and group, whose tests begin at index `first_group`."""
    look = np.arange(len(groups)) // LOOK_ROWS
    keys = look * (groups.max() + 1) + groups  # by look, then by group
    order = np.argsort(keys, kind="stable")
    start = np.unique(keys[order], return_index=True)[1]  # first row of each look and group, in this order
    cells = look[order[start]], first_group + groups[order[start]]
    log_factors[cells] = np.log(np.multiply.reduceat(factors[order], start, axis=0))
    sums[cells] = np.add.reduceat(columns[order], start, axis=0)
