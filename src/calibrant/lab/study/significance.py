"""Paired tests over seeds, corrected for multiple comparisons, and the unpaired test of printed means."""

import math
import warnings
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import accumulate, combinations, compress
from typing import TypeVar

SIGNIFICANCE_LEVEL = 0.05  # after Holm's correction
ALPHABET = "abcdefghijklmnopqrstuvwxyz"

Key = TypeVar("Key", bound=Hashable)
ValuesBySeed = Mapping[int, float]  # values of a metric by seed
Printed = tuple[float, float]  # a mean and its standard deviation over runs


def paired_p_value(first: ValuesBySeed, second: ValuesBySeed) -> float:
    """Return the two-sided p-value of Student's paired t-test over shared seeds, or nan with fewer than two.

    It is nan, too, if a value is not finite: a test of the other seeds would leave out the worst one.

    >>> round(paired_p_value({0: 1.0, 1: 2.0, 2: 3.0}, {0: 1.5, 1: 2.6, 2: 3.4}), 4)
    0.0131
    """
    pairs = [(first[seed], second[seed]) for seed in first if seed in second]
    if len(pairs) < 2 or not all(math.isfinite(value) for pair in pairs for value in pair):
        return math.nan
    if all(first_value == second_value for first_value, second_value in pairs):
        return 1.0  # scipy would return nan
    from scipy.stats import ttest_rel  # imported here because it is slow

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # if all differences are equal, scipy divides by 0; then p is 0
        first_values, second_values = zip(*pairs, strict=True)
        return float(ttest_rel(first_values, second_values).pvalue)  # pyright: ignore


def unpaired_p_value(first: Printed, second: Printed, n: int) -> float:
    """Return the two-sided p-value of Student's unpaired t-test of two means over n runs each, or nan if n < 2.

    Means and deviations are as papers print them. It is nan, too, without deviations.

    >>> round(unpaired_p_value((0.95, 0.19), (1.39, 0.28), 5), 4)
    0.0197
    """
    (first_mean, first_deviation), (second_mean, second_deviation) = first, second
    standard_error = math.sqrt((first_deviation**2 + second_deviation**2) / n)
    if n < 2 or not standard_error > 0:
        return math.nan
    from scipy.stats import t  # imported here because it is slow

    return float(2 * t.sf(abs(first_mean - second_mean) / standard_error, 2 * n - 2))


def holm(p_values: Mapping[Key, float]) -> dict[Key, float]:
    """Return p-values adjusted by Holm's step-down correction (1979). nan stays nan and is not a test.

    >>> holm({"a": 0.01, "b": 0.04, "c": 0.03})
    {'a': 0.03, 'c': 0.06, 'b': 0.06}
    """
    tested = sorted((key for key, p in p_values.items() if not math.isnan(p)), key=p_values.__getitem__)
    # the smallest of m p-values times m, the next times m - 1, ...
    multiplied = (min(1.0, (len(tested) - i) * p_values[key]) for i, key in enumerate(tested))
    adjusted = dict(zip(tested, accumulate(multiplied, max), strict=True))  # running maximum: keeps the order
    return adjusted | {key: p for key, p in p_values.items() if math.isnan(p)}


def is_significantly_different(values: ValuesBySeed, contenders: Iterable[ValuesBySeed]) -> bool:
    """Return whether values differ significantly from those of each contender, of which there is at least one.

    The paired t-tests are corrected together by Holm's method. Without a test, nothing is significant.

    >>> is_significantly_different({0: 1.0, 1: 1.1}, [{0: 2.0, 1: 2.1}]), is_significantly_different({0: 1.0}, [])
    (True, False)
    """
    p_values = holm({i: paired_p_value(values, contender) for i, contender in enumerate(contenders)})
    return bool(p_values) and all(p < SIGNIFICANCE_LEVEL for p in p_values.values())  # nan is not below


def pairwise_p_values(values: Mapping[Key, ValuesBySeed]) -> dict[tuple[Key, Key], float]:
    """Return the p-value of every pair that shares seeds, by Student's paired t-test with Holm's correction."""
    p_values = {
        (first, second): paired_p_value(values[first], values[second]) for first, second in combinations(values, 2)
    }
    return {pair: p for pair, p in holm(p_values).items() if not math.isnan(p)}


def letter_groups(names: Sequence[Key], significant_pairs: Iterable[tuple[Key, Key]]) -> dict[Key, str]:
    """Assign letters so that two names share one if and only if they do not differ significantly (Piepho 2004).

    All names start with one letter. Every significant pair splits each group that holds both names into two, one
    without each; a group inside another one is dropped.

    >>> letter_groups(["x", "y", "z"], [("x", "z")])
    {'x': 'a', 'y': 'ab', 'z': 'b'}
    """
    groups = [set(names)]  # each is the names that share a letter: at first all
    for first, second in significant_pairs:
        mixed_groups = [group for group in groups if {first, second} <= group]
        groups = [group for group in groups if group not in mixed_groups]
        parts = [mixed - {name} for mixed in mixed_groups for name in (second, first)]  # each without one of the two
        for part in parts:
            if not any(part <= group for group in groups):  # a subset of another group needs no letter
                groups = [group for group in groups if not group <= part] + [part]
    groups.sort(key=lambda group: [name not in group for name in names])  # groups of the first names come first
    letters = [*ALPHABET, *(f"({i + 1})" for i in range(len(ALPHABET), len(groups)))]  # (27), (28), ... after z
    return {name: "".join(compress(letters, [name in group for group in groups])) for name in names}
