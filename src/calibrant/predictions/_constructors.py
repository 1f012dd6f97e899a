"""Validate every source of predictions: each function returns the fields of `Predictions`.

The arguments are explained at the constructors of `Predictions`, such as `Predictions.from_probs`.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from calibrant._core.arrays import like, namespace, to_numpy
from calibrant._core.kernels.threads import thread_limit
from calibrant._core.types import InputError
from calibrant.predictions.events import BINARY_KINDS, PREFERENCE, PRESENCE
from calibrant.predictions.validation import Fields, validate_inputs
from calibrant.predictions.validation.arrays import num_elements, to_array, to_column
from calibrant.predictions.validation.columns import match_columns, match_targets, score_name
from calibrant.predictions.validation.labels import binary_labels
from calibrant.predictions.validation.names import factorize_samples, to_unique_names
from calibrant.predictions.validation.scores import SingleScoreEvidence, clip_rounding, is_single, log_probs
from calibrant.predictions.validation.weights import COUNTS

SUM_TOLERANCE = 1e-3  # largest difference of the sum of rounded soft labels from 1


def fields_from_probs(probs: Any, labels: Any, weights: Any, *, normalize: bool = False, **options: Any) -> Fields:
    """Return the fields of `Predictions.from_probs`, from its arguments, which are validated.

    `probs` are (n, k, ...), or single probabilities of class 1 of two, (n,) or (n, 1, ...).
    """
    with thread_limit(num_elements(probs)):
        positive = score_name(probs)
        probs, labels, options["class_names"], column_notes = match_columns(probs, labels, options.get("class_names"))
        is_half_precision = str(getattr(probs, "dtype", "")).endswith("float16")
        p = to_array(probs, "probs")
        logits, notes = log_probs(p, normalize=normalize, is_half_precision=is_half_precision)
        if is_single(p):
            labels, names = binary_labels(labels, options.get("class_names"), options.get("ignore_index"), positive)
            if np.ndim(labels) == p.ndim > 1:  # labels (n, 1, ...), as the probabilities
                labels = to_column(labels, "labels")[:, 0]
            options = {"of": 1} | options | {"class_names": names}  # a given event takes precedence over class 1
        return validate_inputs(logits, labels, weights, notes=(*notes, *column_notes), **options)


def fields_from_logits(logits: Any, labels: Any, weights: Any, **options: Any) -> Fields:
    """Return the fields of `Predictions`, from its arguments, which are validated."""
    logits, labels, options["class_names"], notes = match_columns(logits, labels, options.get("class_names"))
    return validate_inputs(logits, labels, weights, notes=notes, **options)


def fields_from_confidence(
    confidence: Any, correct: Any, weights: Any, *, of: str = "correct", **options: Any
) -> Fields:
    """Return the fields of `Predictions.from_confidence`, from its arguments, which are validated.

    The classes are 0, such as "wrong", and 1, such as "correct". `correct` may be a credit between 0 and 1.
    """
    with thread_limit(num_elements(confidence)):
        c, y = to_column(confidence, "confidence").astype(float), to_column(correct, "correct").astype(float)
        if c.ndim != 1:
            raise InputError(f"Expected one confidence per sample (n,), got {tuple(c.shape)}.", code="shape")
        c = clip_rounding(c) if len(c) else c
        low, high = _range_without_nan(c, "confidences")
        if not 0 <= low <= high <= 1:
            is_percent = low >= 0 and 1 < high <= 100
            hint = " Try dividing percentages by 100." if is_percent else ""
            raise InputError(
                f"Expected confidences in [0, 1], got {low:.4g} .. {high:.4g}.{hint}",
                code="percent" if is_percent else "probability_range",
            )
        _check_credit(y)
        class_names = {event.kind: event.classes for event in BINARY_KINDS}.get(of)
        if class_names is None:
            kinds = " or ".join(f'of="{event.kind}" for {event.units}' for event in BINARY_KINDS)
            raise InputError(f"Expected {kinds}, got {of!r}.", code="unknown_event")
        rounded_y = np.round(y)
        fields = fields_from_probs(c, rounded_y.astype(np.int64), weights, of=1, class_names=class_names, **options)
        if bool((y == rounded_y).all()):
            return fields
        # An answer with a credit y between 0 and 1 becomes a wrong row of weight 1 - y and a correct row of weight y
        return _divide_examples(fields, np.stack([1 - y, y], 1))


def _range_without_nan(values: np.ndarray, name: str) -> tuple[float, float]:
    """Return the smallest and the largest value, or 0 and 0 without values. Raise `InputError` for NaN."""
    if np.isnan(values).any():
        raise InputError(
            f"Expected {name} without NaN, got {int(np.isnan(values).sum())} NaN of {len(values)}. Try dropping these "
            "samples.",
            code="nan",
        )
    return (float(values.min()), float(values.max())) if len(values) else (0.0, 0.0)


def _check_credit(correct: np.ndarray) -> None:
    """Raise `InputError` unless every credit is in [0, 1]."""
    low, high = _range_without_nan(correct, "correct")
    if not 0 <= low <= high <= 1:
        hint = f" Try dividing scores by their maximum, such as {high:g}." if low >= 0 and high > 1 else ""
        raise InputError(
            f"Expected correct as 0 or 1, or a credit in [0, 1], got {low:g} .. {high:g}.{hint}", code="label_range"
        )


def fields_from_soft_labels(
    scores: Any,
    soft_labels: Any,
    weights: Any,
    *,
    probs: bool = False,
    weights_are: Any = None,
    of: Any = "top",
    clusters: Any = None,
    groups: Any = None,
    class_names: Any = None,
) -> Fields:
    """Return the fields of `Predictions.from_soft_labels`, from its arguments, which are validated.

    `scores` are logits, or probabilities if `probs`; `soft_labels` are probabilities of the classes. Both are (n, k).
    """
    with thread_limit(num_elements(scores)):
        scores, soft_labels, class_names, _ = match_targets(scores, soft_labels, class_names, argument="soft_labels")
        z, y = to_array(scores, "scores"), to_column(soft_labels, "soft_labels").astype(float)
        if z.ndim != 2 or z.shape != y.shape:
            raise InputError(
                f"Expected scores and soft_labels (n, k), got {tuple(z.shape)} and {tuple(y.shape)}.", code="shape"
            )
        sums = y.sum(1)
        is_non_negative = bool((y >= 0).all())
        if not is_non_negative or not bool((abs(sums - 1) <= SUM_TOLERANCE).all()):
            hint = " Try dividing counts of votes by their sum." if is_non_negative else ""
            raise InputError(
                f"Expected soft_labels that are probabilities with rows that sum to 1, got {float(y.min()):g} .. "
                f"{float(y.max()):g} with sums {float(sums.min()):g} .. {float(sums.max()):g}.{hint}",
                code="soft_labels",
            )
        build = fields_from_probs if probs else validate_inputs
        columns: dict[str, Any] = {"weights_are": weights_are, "clusters": clusters, "groups": groups}
        columns["class_names"] = class_names
        fields = build(scores, y.argmax(1), weights, of=of, **columns)  # `_divide_examples` replaces these labels
        return _divide_examples(fields, y / sums[:, None])


def _divide_examples(fields: Fields, soft_labels: np.ndarray) -> Fields:
    """Return fields in which every example has one row per class of positive probability, weighted by that probability.

    Scores and fits that are linear in the label have the same value for these rows as for the soft labels. `examples`
    holds the example that each row belongs to, which also is its cluster unless there are clusters already. If every
    soft label is a single class, only the labels change.

    Args:
        fields: Fields of predictions, whose labels are replaced.
        soft_labels: Probabilities of the classes, (n, k); each row has a positive one.
    """
    examples, labels = (soft_labels > 0).nonzero()  # example and class of each new row
    if len(examples) == len(soft_labels):  # one class per example
        return replace(fields, labels=labels)
    num_fractional = int((soft_labels.max(1) < 1).sum())
    return replace(
        fields,
        logits=fields.logits[like(examples, fields.logits)],
        labels=labels,
        weights=soft_labels[examples, labels] * (1.0 if fields.weights is None else fields.weights[examples]),
        weights_are=fields.weights_are or COUNTS,  # the rows of an example sum to its weight
        clusters=examples.copy() if fields.clusters is None else fields.clusters[examples],  # fields share no memory
        groups=None if fields.groups is None else fields.groups[examples],
        examples=examples,
        notes=(*fields.notes, f"{num_fractional:,} of {len(soft_labels):,} outcomes are fractional."),
    )


def fields_from_binary_logits(
    scores: Any, labels: Any, weights: Any, *, logits: bool = False, **options: Any
) -> Fields:
    """Return the fields of `Predictions.from_binary_logits`, from its arguments, which are validated.

    Every score s, one per label, becomes the pair of logits [0, s], whose softmax gives class 1 the sigmoid of s. With
    `logits`, scores may all lie in [0, 1], as probabilities do.
    """
    with thread_limit(num_elements(scores)):
        ignore_index = options.get("ignore_index")
        labels, names = binary_labels(labels, options.pop("class_names", None), ignore_index, score_name(scores))
        s, y = to_array(scores, "logits"), to_column(labels, "labels")
        xp = namespace(s)
        # Scores and labels may both be (n, 1, ...), or one of them beside (n, ...) of the other
        if s.ndim > 1 and s.shape[1] == 1 and (s.ndim == y.ndim + 1 or s.shape == y.shape):
            s = s[:, 0]
        if y.ndim == s.ndim + 1 and y.shape[1] == 1:
            y = y[:, 0]
        if s.ndim < 1 or s.shape != y.shape:
            raise InputError(
                f"Expected one logit per label, (n,) or (n, 1), got {tuple(s.shape)} and {tuple(y.shape)}.",
                code="shape",
            )
        if not logits:  # refuse scores that look like probabilities
            SingleScoreEvidence().add(s if ignore_index is None else s[like(y != ignore_index, s)]).check()
        is_certain = s == xp.inf  # [-inf, 0] instead of [0, inf], because logits lie below infinity
        zero = xp.zeros_like(s)
        pair = xp.stack([xp.where(is_certain, -xp.inf, zero), xp.where(is_certain, zero, s)], axis=1)
        arguments: dict[str, Any] = {"of": 1} | options | {"class_names": names}
        return validate_inputs(pair, y, weights, **arguments)


def fields_from_pairs(chosen: Any, rejected: Any, weights: Any, **options: Any) -> Fields:
    """Return the fields of `Predictions.from_pairs`, from its arguments, which are validated.

    A pair becomes a row of logits [rejected, chosen] with label 1. A tie is half right: its soft label is [1/2, 1/2].
    """
    with thread_limit(num_elements(chosen)):
        scores = [to_array(values, name) for values, name in ((rejected, "rejected"), (chosen, "chosen"))]
        scores = [s[:, 0] if s.ndim == 2 and s.shape[1] == 1 else s for s in scores]
        shapes = [tuple(s.shape) for s in scores]
        if scores[0].ndim != 1 or shapes[0] != shapes[1]:
            raise InputError(
                f"Expected one score of the chosen and one of the rejected per pair, (n,) each, got {shapes[1]} and "
                f"{shapes[0]}.",
                code="shape",
            )
        xp = namespace(*scores)
        logits = xp.stack([xp.astype(s, xp.result_type(*scores)) for s in scores], axis=1)
        labels = np.ones(len(logits), dtype=np.int64)
        fields = validate_inputs(logits, labels, weights, class_names=PREFERENCE.classes, **options)
        half = to_numpy(logits[:, 0] == logits[:, 1]) / 2  # of a tie
        return _divide_examples(fields, np.stack([half, 1 - half], 1))


def fields_from_labels(
    scores: Any,
    targets: Any,
    weights: Any,
    *,
    weights_are: Any = None,
    names: Any = None,
    clusters: Any = None,
    groups: Any = None,
    probs: bool = False,
    logits: bool = False,
    ignore_index: int | None = None,
) -> Fields:
    """Return the fields of `Predictions.multilabel`, from its arguments, which are validated.

    `scores` and `targets` are (n, l), for l labels of each of n samples. Targets that are not ignored become rows.
    """
    if probs and logits:
        raise InputError("Expected probs or logits to be True, got both. Try one of them.", code="probs_and_logits")
    with thread_limit(num_elements(scores)):
        scores, targets, names, _ = match_targets(scores, targets, names, argument="targets")
        s, y = to_array(scores, "scores"), to_column(targets, "targets")
        if s.ndim != 2 or s.shape != y.shape:
            raise InputError(
                f"Expected scores and targets (n, labels), got {tuple(s.shape)} and {tuple(y.shape)}.", code="shape"
            )
        n, num_labels = s.shape
        label_names = tuple(map(str, range(num_labels))) if names is None else to_unique_names(names, "names")
        if len(label_names) != num_labels:
            raise InputError(
                f"Expected {num_labels} names, one per column of scores, got {len(label_names)}.", code="names"
            )
        is_ignored = np.isnan(y.astype(float))
        if ignore_index is not None:
            is_ignored |= y == ignore_index
        samples, label_index = (~is_ignored).nonzero()  # sample and label of each row of the predictions
        s, y = s[like(~is_ignored, s)], y[~is_ignored]

        def factorize_per_label(values: Any, name: str) -> tuple[np.ndarray, tuple[str, ...]]:
            """Return each row's value, as an index of the distinct values, and their names, from a value per sample."""
            index, level_names = factorize_samples(values, name, n)
            return index[samples], level_names

        # The groups of the predictions are the labels; groups of samples, such as hospitals, are kept beside them
        row_groups, row_group_names = (None, None) if groups is None else factorize_per_label(groups, "groups")
        options: dict[str, Any] = {
            "weights": None if weights is None else _weights_per_label(weights, is_ignored),
            "weights_are": weights_are,
            "of": 1,
            "clusters": samples if clusters is None else factorize_per_label(clusters, "clusters")[0],
            "class_names": PRESENCE.classes,
        }
        if not (probs or logits):  # refuse scores that look like probabilities
            SingleScoreEvidence().add(s).check("probs=True")
        build = fields_from_probs if probs else partial(fields_from_binary_logits, logits=True)  # checked above
        groups_of_rows = {"row_groups": row_groups, "row_group_names": row_group_names}
        return replace(build(s, y, **options), groups=label_index, group_names=label_names, **groups_of_rows)


def _weights_per_label(weights: Any, is_ignored: np.ndarray) -> np.ndarray:
    """Return the weight of every label that is not ignored.

    `weights` are per sample (n,) or, like `is_ignored`, per label (n, m).
    """
    w = to_column(weights, "weights")
    if w.shape not in (is_ignored.shape[:1], is_ignored.shape):
        raise InputError(f"Expected one weight per sample or label, got {tuple(w.shape)}.", code="shape")
    w = w[:, None] if w.ndim == 1 else w
    return np.broadcast_to(w, is_ignored.shape)[~is_ignored]
