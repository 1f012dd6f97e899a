"""Tests by random swaps or permutations of units, and the error rate of a family of tests."""

from collections.abc import Callable

import numpy as np

NUM_SWAPS = 1999  # draws; p-values are multiples of 1 / 2000
STATISTIC_ROUNDING = 1e-9  # relative, up to which two statistics are equal
Statistics = Callable[[np.ndarray, np.ndarray], np.ndarray]  # from sums (draws, m) of old and new to (draws, tests)


def paired_p_values(old: np.ndarray, new: np.ndarray, statistics: Statistics, seed: int) -> np.ndarray:
    """Return p-values of tests of paired units, whose old and new sums are swapped at random.

    Args:
        old: Sums of every unit, (u, m).
        new: Sums of the same units with the new model, (u, m).
        statistics: Function from total sums (draws, m) of old and new to statistics, large if they differ.
        seed: Seed of the draws.
    """
    total_old, total_new, difference = old.sum(0), new.sum(0), new - old
    is_swapped = np.random.default_rng(seed).integers(0, 2, (NUM_SWAPS, len(old)), dtype=np.int8)
    change = is_swapped.astype(np.float64) @ difference  # how the swaps change the old sums
    change = np.concatenate([np.zeros((1, old.shape[1])), change])  # row 0 is the data
    return _data_p_values(statistics(total_old + change, total_new - change))


def unpaired_p_values(old: np.ndarray, new: np.ndarray, statistics: Statistics, seed: int) -> np.ndarray:
    """Return p-values of tests of two samples, whose units are permuted at random.

    Args:
        old: Sums of every unit of the first sample, (u, m).
        new: Sums of every unit of the second sample, (v, m).
        statistics: Function from total sums (draws, m) of old and new to statistics, large if they differ.
        seed: Seed of the draws.
    """
    units = np.concatenate([old, new])
    is_old = np.zeros((NUM_SWAPS + 1, len(units)))
    is_old[:, : len(old)] = 1
    is_old[1:] = np.random.default_rng(seed).permuted(is_old[1:], axis=1)  # row 0 is the data
    total_old = is_old @ units
    return _data_p_values(statistics(total_old, units.sum(0) - total_old))


def holm(p_values: np.ndarray) -> np.ndarray:
    """Return the adjusted p-values of any tests (Holm 1979).

    If tests with an adjusted p-value up to .05 are called different, the probability that any of them is so by chance
    is at most 5 %, however the tests depend on each other.
    """
    order = np.argsort(p_values, kind="stable")
    adjusted = np.empty_like(p_values)
    adjusted[order] = np.maximum.accumulate(p_values[order] * np.arange(len(order), 0, -1))
    return np.minimum(adjusted, 1.0)


def _data_p_values(statistics: np.ndarray) -> np.ndarray:
    """Return the p-value of each test for the data, row 0, among exchangeable rows (draws, tests)."""
    threshold = statistics[0] - STATISTIC_ROUNDING * np.abs(statistics[0])
    return np.mean(statistics >= threshold, axis=0)
