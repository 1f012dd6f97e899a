"""Tests that keep the error rate of a family: random swaps or permutations of units, and step-down p-values."""

from collections.abc import Callable

import numpy as np

NUM_SWAPS = 1999  # draws; p-values are multiples of 1 / 2000
STATISTIC_ROUNDING = 1e-9  # relative, up to which two statistics are equal
Statistics = Callable[[np.ndarray, np.ndarray], np.ndarray]  # from sums (draws, m) of old and new to (draws, tests)


def paired_p_values(
    old: np.ndarray, new: np.ndarray, statistics: Statistics, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return p-values and adjusted p-values of tests of paired units, whose old and new sums are swapped at random.

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
    return step_down(statistics(total_old + change, total_new - change))


def unpaired_p_values(
    old: np.ndarray, new: np.ndarray, statistics: Statistics, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return p-values and adjusted p-values of tests of two samples, whose units are permuted at random.

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
    return step_down(statistics(total_old, units.sum(0) - total_old))


def step_down(statistics: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return raw and step-down adjusted p-values of the first row among exchangeable rows (draws, tests).

    The adjusted p-value of a test is the share of draws whose smallest p-value, among this test and all tests with
    larger observed p-values, is at most the observed p-value (Westfall & Young 1993, minP). If tests with an adjusted
    p-value up to .05 are called different, the probability that any of them is so by chance is at most 5 %.
    """
    p_values = np.stack([_upper_ranks(column) for column in statistics.T], 1) / len(statistics)
    observed = p_values[0]
    adjusted, smallest = np.empty_like(observed), np.full(len(p_values), np.inf)
    for j in np.argsort(-observed, kind="stable"):  # from the largest p-value down
        smallest = np.minimum(smallest, p_values[:, j])
        adjusted[j] = np.mean(smallest <= observed[j])
    order = np.argsort(observed, kind="stable")
    adjusted[order] = np.maximum.accumulate(adjusted[order])  # so that both p-values have the same order
    return observed, adjusted


def _upper_ranks(values: np.ndarray) -> np.ndarray:
    """Return for each value how many are at least as large, apart from rounding."""
    ordered = np.sort(values)
    return len(values) - np.searchsorted(ordered, values - STATISTIC_ROUNDING * np.abs(values), side="left")
