"""Probabilities of a fusion in numpy. The source text of this module is copied into exported files.

`fitted` is a mapping of names to the numbers and texts that a fusion has learned, `Fusion.learned`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

Array = np.ndarray
Fitted = dict[str, Any]
HINGE = 0.7  # normal score beyond which, on both sides, the slope of a signal may change
ENDINGS = ("", " is high", " is low", " log p", " -log(1 - p)", " is 0", " is missing")  # of a signal's coefficients
EXTREME_PROBABILITY = 0.01  # signals on the scale of probabilities are clipped to [0.01, 0.99]


def variables(signals: Mapping[str, Array], groups: Any, fitted: Fitted) -> list[tuple[str, Array]]:
    """Return the coefficient names and regression columns (n): intercept, functions of signals, products, groups.

    Signals (n) are NaN where missing. Functions of a missing value are 0, and an indicator marks it.
    """
    n = len(next(iter(signals.values())))
    columns, scores = [("intercept", np.ones(n))], {}  # scores: normal score of each signal
    for i, name in enumerate(fitted["signals"]):
        x, is_missing = signals[name], np.isnan(signals[name])
        if fitted["scale"] == "probability":
            p = np.clip(x, EXTREME_PROBABILITY, 1 - EXTREME_PROBABILITY)
            shapes = {f"{name} log p": np.log(p), f"{name} -log(1 - p)": -np.log1p(-p)}
        else:
            r = np.interp(np.nan_to_num(x), fitted["points"][i], fitted["scores"][i])  # normal score of the rank
            scores[name] = np.where(is_missing, 0.0, r)
            high, low = (np.maximum(sign * r - HINGE, 0.0) for sign in (1, -1))
            shapes = {name: r, f"{name} is high": high, f"{name} is low": low}
        columns += [(key, np.where(is_missing, 0.0, shape)) for key, shape in shapes.items()]
        columns += [(f"{name} is 0", 1.0 * (x == 0)), (f"{name} is missing", 1.0 * is_missing)]
    for i, first in enumerate(scores):  # products of signals, on the scale of ranks only
        columns += [(f"{first} x {second}", scores[first] * scores[second]) for second in list(scores)[i + 1 :]]
    group_of_row = np.array([None] * n if groups is None else match_groups(groups, fitted["groups"]), dtype=object)
    return columns + [(f"group {name}", 1.0 * (group_of_row == name)) for name in fitted["groups"]]


def check_signals(signals: Mapping[str, Any], groups: Any, fitted: Fitted) -> dict[str, Array]:
    """Return the signals of the fit (n) by name. Raise `ValueError` for missing signals, other lengths and ranges."""
    if missing := [name for name in fitted["signals"] if name not in signals]:
        raise ValueError(f"Expected the signals {', '.join(map(repr, fitted['signals']))}, got no {missing[0]!r}.")
    arrays = {name: np.asarray(signals[name], dtype=np.float64) for name in fitted["signals"]}
    lengths = {x.shape for x in arrays.values()} | (set() if groups is None else {(len(groups),)})
    if len(lengths) != 1 or len(next(iter(lengths))) != 1:
        raise ValueError(f"Expected signals, and groups, of one length (n), got {sorted(lengths)}.")
    for name, x in arrays.items() if fitted["scale"] == "probability" else ():
        if ((x < 0) | (x > 1)).any():
            raise ValueError(f"Expected the signal {name!r} in [0, 1], got {np.nanmin(x):.4g} to {np.nanmax(x):.4g}.")
    return arrays


def match_groups(groups: Any, names: Any) -> list[str]:
    """Return each group as one of the names if it is the same text, or else the same number: 2.0 is "2"."""

    def number(text: str) -> Any:
        """Return the number that a text spells, or None."""
        try:
            return float(text)
        except ValueError:
            return None

    texts = [group.decode() if isinstance(group, bytes) else str(group) for group in groups]
    by_number = {number(name): name for name in names if number(name) is not None}
    return [text if text in names else by_number.get(number(text), text) for text in texts]


def probability(signals: Mapping[str, Array], groups: Any, fitted: Fitted) -> Array:
    """Return the probability that each answer is right (n), averaged over the posterior (MacKay 1992, eq. 10).

    The mean of the sigmoid of a normal logit is nearly sigmoid(mean / sqrt(1 + pi variance / 8)).
    """
    x = np.stack([column for _, column in variables(signals, groups, fitted)], 1)  # (n, d)
    logit, variance = x @ fitted["coefficients"], ((x @ fitted["covariance"]) * x).sum(1)
    return np.exp(-np.logaddexp(0.0, -logit / np.sqrt(1 + np.pi / 8 * variance)))
