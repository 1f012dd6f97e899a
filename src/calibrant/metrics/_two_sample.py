"""A test over seeds of whether two training methods differ in a metric."""

from collections.abc import Sequence
from typing import Any

from calibrant.metrics._intervals import Evidence
from calibrant.types import InputError

__all__ = ["two_sample"]


def two_sample(first: Sequence[float], second: Sequence[float], *, equal_variance: bool = True) -> Evidence:
    """Run Student's two-sided t-test of a metric over seeds, second minus first (as in Wang et al. 2021, Table 2).

    Args:
        first: The metric for each seed.
        second: The metric for each seed of the other way to train.
        equal_variance: False is Welch's test.

    >>> print(two_sample([1.0, 2.0, 3.0], [4.0, 5.0, 6.0]))
    3.6742 (p = 0.0213)
    """
    from scipy.stats import ttest_ind  # slow to import

    if min(len(first), len(second)) < 2:
        raise InputError(
            f"Expected at least 2 values on each side of a t-test, got {len(first)} and {len(second)}.",
            code="few_values",
        )
    result: Any = ttest_ind(second, first, equal_var=equal_variance)
    return Evidence(float(result.statistic), float(result.pvalue))
