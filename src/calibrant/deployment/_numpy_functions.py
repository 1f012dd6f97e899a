"""What exported files add to the maps of `calibrators/maps.py`, whose text they contain as well, in numpy alone.

The first part has the functions that the maps take from `calibrators/array_functions.py`, in plain numpy from 1.22 on.
"""

from typing import Any

import numpy as np

from calibrant._core.kernels.bits import mix_bits, uniforms_of
from calibrant.calibrators.maps import MAPS, group_calibrated
from calibrant.decisions.score_map import scores_of

SCORE_ROUNDING = 1e-12  # of nonconformity scores


def namespace(z: Any) -> Any:
    """Return numpy, whose functions have the names of the array API standard."""
    return np


def single(z: Any) -> Any:
    """Return logits unchanged."""
    return z


def double(z: Any) -> Any:
    """Return logits unchanged, which are in double precision."""
    return z


def softmax(z: Any) -> Any:
    """Return probabilities."""
    p = np.exp(z - z.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def log_softmax(z: Any) -> Any:
    """Return log-probabilities."""
    return z - log_sum_exp(z, -1)[:, None]


def log_sum_exp(x: Any, axis: int) -> Any:
    """Return log sum e^x over an axis."""
    top = x.max(axis, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)  # as -inf - (-inf) is NaN
    return (top + np.log(np.exp(x - top).sum(axis, keepdims=True))).squeeze(axis)


def confidence(z: Any, event: Any) -> Any:
    """Return the probability of the predicted class, or of one class."""
    p = softmax(z)
    return p.max(-1) if event == "top" else p[:, event]


def rank(x: Any, values: Any, side: Any = "left") -> Any:
    """Return the number of sorted x below each value, or with side "right" at or below it."""
    return np.searchsorted(x, values, side=side)


def descending_order(p: Any) -> Any:
    """Return the indices that sort each row from its largest value down, equal values in the order of the columns."""
    return np.argsort(-p, 1, kind="stable")


def in_column_order(x: Any, order: Any) -> Any:
    """Undo the sorting of x (n, k) by `descending_order`, whose result is `order`."""
    result = np.empty_like(x)
    np.put_along_axis(result, order, x, 1)
    return result


def smallest(v: Any, count: int) -> Any:
    """Return the smallest values of each row in increasing order, (n, count)."""
    return np.sort(v)[:, :count]


def class_indices(z: Any) -> Any:
    """Return the indices 0 .. k-1 of the classes of logits (n, k)."""
    return np.arange(z.shape[-1])


def numbers_like(values: Any, z: Any) -> Any:
    """Return numbers as an array."""
    return np.array(values)


def apply(fitted: Any, z: Any, groups: Any = None) -> Any:
    """Return the calibrated logits (n, k) of a fitted calibrator, by the map for its class.

    `fitted` holds the name of the class and the learned values. `groups` has the group of each row, which only
    "GroupCalibrated" needs.
    """
    arrays = {name: np.array(value) if is_numbers(value) else value for name, value in fitted.items()}
    with np.errstate(divide="ignore", over="ignore", under="ignore", invalid="ignore"):
        if fitted["class"] == "Chain":
            return apply(fitted["second"], apply(fitted["first"], z, groups), groups)
        if fitted["class"] == "GroupCalibrated":
            common, names = apply(fitted["pooled"], z), fitted["names"]
            return group_calibrated(common, arrays, group_index(groups, names, len(z))) if names else common
        return MAPS[fitted["class"]](z, arrays)


def is_numbers(value: Any) -> bool:
    """Return whether a value is a list of numbers, or of lists of numbers."""
    return isinstance(value, list) and all(is_numbers(x) or isinstance(x, (int, float)) for x in value)


def check_logits(logits: Any, k: int) -> Any:
    """Return logits (n, k) in float64, with at least 2 classes if k is 0. One score per row is the logit of class 1.

    Raise `ValueError` for another shape, NaN, +inf, rows of -inf, and probabilities.
    """
    z = np.asarray(logits, dtype=np.float64)
    if (z.ndim == 1 and k == 2) or (z.ndim == 2 and z.shape[1] == 1 and k in (0, 2)):
        z = from_binary_logits(z)
    if z.ndim != 2 or z.shape[1] < 2 or k not in (0, z.shape[1]):
        hint = " Try logits[None] for one row, or from_binary_logits(scores) for one score per row."
        raise ValueError(f"Expected logits (n, {k or 'k'}), got {z.shape}.{hint if z.ndim == 1 else ''}")
    if not np.isfinite(z.max(1)).all():
        raise ValueError("Expected logits with a finite maximum in each row, got NaN or infinity. Try dropping them.")
    total, num_mixed = z.sum(1), ((z != 0).sum(1) > 1).sum()  # one-hot rows may be logits
    if num_mixed >= 2 and (z >= 0).all():
        # Probabilities with two decimals of not too many classes, or with more of them
        is_rounded = z.shape[1] <= 50 and (np.abs(100 * z - np.round(100 * z)) < 1e-4).all()
        if (np.abs(total - 1) < (0.030001 if is_rounded else 1e-3)).all() or (np.abs(total - 100) < 0.1).all():
            raise ValueError("Expected logits, got probabilities. Try from_probs(probs), with probs / 100 for percent.")
    return z


def from_binary_logits(scores: Any, *, logits: bool = False) -> Any:
    """Return logits (n, 2) of one score per row, the logit of class 1, (n) or (n, 1).

    Raise `ValueError` for several scores that all lie in [0, 1], as probabilities do, unless `logits`.
    """
    s = np.asarray(scores, dtype=np.float64)
    if s.ndim not in (1, 2) or s.shape[1:] not in ((), (1,)):
        raise ValueError(f"Expected one score per row (n), got {s.shape}.")
    s = s.reshape(len(s))
    if not logits and ((s >= 0) & (s <= 1)).all() and ((s > 0) & (s < 1)).sum() >= 3:
        raise ValueError(
            "Expected logits, got scores that all lie in [0, 1]. Try from_probs(scores), or "
            "from_binary_logits(scores, logits=True) if they are logits all the same."
        )
    is_certain = np.isposinf(s)  # [-inf, 0] in place of [0, inf]
    return np.stack([np.where(is_certain, -np.inf, 0.0), np.where(is_certain, 0.0, s)], -1)


def from_probs(probs: Any) -> Any:
    """Return logits (n, k) of probabilities (n, k), or of the probability of class 1 of two, (n) or (n, 1).

    Raise `ValueError` for anything that is no probability.
    """
    p = np.asarray(probs)
    max_error = 2e-2 if p.dtype == np.float16 else 1e-3
    p = p.astype(np.float64)
    if p.ndim not in (1, 2):
        raise ValueError(f"Expected probabilities (n, k), or (n) of class 1 of two, got {p.shape}.")
    if not ((p >= -1e-6) & (p <= 1 + 1e-6)).all():  # NaN too
        raise ValueError("Expected probabilities in [0, 1], got other numbers or NaN.")
    p = np.clip(p, 0.0, 1.0)
    if p.ndim == 1 or p.shape[1] == 1:
        p = np.concatenate([1 - p.reshape(-1, 1), p.reshape(-1, 1)], 1)
    if not (np.abs(p.sum(1) - 1) <= max_error).all():
        raise ValueError("Expected probabilities that sum to 1 in each row, got other sums. Try dividing by them.")
    with np.errstate(divide="ignore"):
        return np.log(p)


def group_index(groups: Any, names: Any, n: int) -> Any:
    """Return the index of each row's group among the names (n). A new group has the number of names as index."""
    values = np.asarray(groups, dtype=object)  # texts as they are: other arrays of texts drop trailing "\\0"
    if values.shape != (n,):  # None, too
        raise ValueError("Expected the group of each row: calibrate(logits, groups).")
    texts = [value.decode() if isinstance(value, bytes) else str(value) for value in values.tolist()]
    # A group of the same text takes precedence over a group of the same number
    position = {to_number(name): i for i, name in enumerate(names)} | {name: i for i, name in enumerate(names)}
    index = [position.get(text, position.get(to_number(text), len(names))) for text in texts]
    return np.array(index, dtype=np.int64)


def to_number(text: str) -> Any:
    """Return the number in a text, so that "2.0" equals "2", or another text unchanged."""
    try:
        return float(text)
    except ValueError:
        return text


def class_scores(z: Any, sets: Any) -> Any:
    """Return the nonconformity score of every class (n, k).

    Raises:
        ValueError: For NaN and infinity, which would be in no set.
    """
    if not np.isfinite(z.max(1)).all():
        raise ValueError("Expected logits with a finite maximum in each row, got NaN or infinity.")
    u = None if sets["score"] == "lac" else uniforms(z, sets)
    return scores_of(softmax(z), u, sets["score"], sets["penalty"])


def uniforms(z: Any, sets: Any) -> Any:
    """Return a pseudorandom value in [0, 1) for every row: a hash of its logits in float32 and of the seed.

    A word is the bits of two logits. The hash is the sum of all words, each times a key, with its bits mixed.
    """
    values = np.ascontiguousarray(z.astype(np.float32) + np.float32(0))  # -0 becomes 0
    values = np.pad(values, ((0, 0), (0, values.shape[1] % 2)))  # to whole words
    with np.errstate(over="ignore"):  # all products are modulo 2^64
        x = (values.view(np.int64) * np.array(sets["keys"], dtype=np.int64)).sum(1).astype(np.uint64)
        return uniforms_of(mix_bits(x), sets["seed"])


def sets_of(z: Any, sets: Any, groups: Any = None) -> Any:
    """Return the prediction sets (n, k) of calibrated logits, True for the classes in the set.

    With thresholds by group, new groups use the threshold that is named "".
    """
    thresholds = np.array(sets["thresholds"], dtype=np.float64)
    if sets["by"] == "groups":
        of_new_groups = thresholds[sets["names"].index("")]
        thresholds = np.append(thresholds, of_new_groups)[group_index(groups, sets["names"], len(z)), None]
    return class_scores(z, sets) <= thresholds + SCORE_ROUNDING


def cross_sets_of(z: Any, sets: Any) -> Any:
    """Return the cross-conformal sets (n, k) of logits as the network gives them, True for the classes in the set.

    A class is in the set if more than the share alpha of the scores is at least as large as its own score. Each fold
    of the fit is compared under the calibrator that was fitted without it.
    """
    # Number of scores at least as large as the score of the class, itself included
    num_at_least = np.ones(z.shape, dtype=np.int64)
    for fitted, scores in zip(sets["calibrators"], sets["scores"]):
        new_scores = class_scores(apply(fitted, z), sets)
        num_at_least += len(scores) - np.searchsorted(scores, new_scores - SCORE_ROUNDING)
    return num_at_least > sets["alpha"] * (sum(map(len, sets["scores"])) + 1)
