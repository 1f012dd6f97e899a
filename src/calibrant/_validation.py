"""The door: what predictions are made of, checked once, with one line that shows the way out."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, timedelta
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from calibrant._logit_checks import (
    RowScoreEvidence,
    check_single_probs,
    detect_decimals,
    divide_by_row_sums,
    log_prob_pairs,
    row_sum_error,
)
from calibrant._text import parse_number, shorten_repr, to_one_line
from calibrant.backend.threads import PARALLEL_CHUNK_ELEMENTS, map_chunks, thread_limit
from calibrant.types import InputError

EventSelector = Literal["top", "classes"] | int  # the event that is judged

FLOAT_DTYPES = {torch.float64, torch.float32, torch.float16, torch.bfloat16}
MAX_TOTAL_WEIGHT = 2.0**53  # examples, above which counts are no whole numbers
POSITIVE_WORDS: dict[
    str, tuple[str, ...]
] = {  # words for the positive class, with what must stand beside them, if anything
    "positive": (),
    "pos": (),
    "true": (),
    "yes": (),
    "1": ("0", "-1"),
    "+1": ("0", "-1"),
    "1.0": ("0.0", "-1.0"),
    "y": ("n",),
    "t": ("f",),
    "+": ("-",),
}
CORRECTNESS_CLASSES = ("wrong", "correct")  # the two classes of a confidence, of which the second is judged,
MATCH_CLASSES = ("unmatched", "matched")  # of that of a detection,
PRESENCE_CLASSES = ("absent", "present")  # and of one of several labels
BINARY_EVENTS = (CORRECTNESS_CLASSES, MATCH_CLASSES, PRESENCE_CLASSES)


def validate_inputs(
    logits: Any,
    labels: Any,
    weights: Any = None,
    *,
    of: Any = "top",
    clusters: Any = None,
    groups: Any = None,
    class_names: Any = None,
    ignore_index: int | None = None,
    notes: tuple[str, ...] = (),
    copy: bool = True,
) -> dict[str, Any]:
    """Check what predictions are made of, and return it by name; `owned` parts share no memory with the given."""
    z = to_tensor(logits, "logits")
    with thread_limit(z.numel(), in_chunks=True):
        names = None if class_names is None else check_unique(class_names, "class_names")
        y, names, label_notes = _label_indices(labels, names, z, ignore_index)
        row_fields: dict[str, Tensor | None] = {
            "weights": None if weights is None else to_tensor(weights, "weights").double(),
            "clusters": None if clusters is None else factorize(clusters, "clusters")[0],
        }
        row_fields["groups"], group_names = (None, None) if groups is None else factorize(groups, "groups")
        z, y, row_fields = _flatten_positions(z, y, row_fields)
        if ignore_index is not None:
            keep = y != ignore_index
            z, y = z[keep], y[keep]
            row_fields = {name: None if part is None else part[keep] for name, part in row_fields.items()}
        _check_arrays(z, y, row_fields["weights"])
        k = z.shape[1]
        if names is not None and len(names) != k:
            raise InputError(
                f"need one name per class, got {len(names)} class_names and {k} columns of logits", code="names_length"
            )
        originals = {"logits": logits, "labels": labels, "weights": weights} if copy else {}
        tensors = {"logits": z, "labels": y, **row_fields}
        return {
            **{name: copy_if_aliased(part, originals.get(name)) for name, part in tensors.items()},
            "of": resolve_event(of, k, names),
            "class_names": names,
            "group_names": group_names,
            "notes": (*notes, *label_notes),
        }


def copy_if_aliased(x: Tensor | None, original: Any) -> Tensor | None:
    """Return a tensor that shares no memory with the caller's."""
    if x is None or not isinstance(original, Tensor):
        return x
    if x.untyped_storage().data_ptr() != original.untyped_storage().data_ptr():
        return x
    copy = torch.empty_like(x)
    map_chunks(lambda rows: copy[rows].copy_(x[rows]), *_row_chunks(x))
    return copy


def _row_chunks(x: Tensor) -> tuple[list[slice], int]:
    """Rows to work on at a time, and how many numbers that is."""
    n = len(x)
    size = max(1, PARALLEL_CHUNK_ELEMENTS * n // max(1, x.numel()) if x.device.type == "cpu" else n)
    return [slice(first, first + size) for first in range(0, n, size)], size * x[:1].numel()


def num_elements(array: Any) -> int:
    """How many numbers an array holds; what is none, or none yet, counts as few."""
    try:
        return int(math.prod(array.shape))
    except (AttributeError, TypeError, RuntimeError):
        return 0


def to_tensor(value: Any, name: str) -> Tensor:
    """Return an array of numbers as a tensor, whatever it came as."""
    if isinstance(value, Tensor):
        is_dense = value.layout == torch.strided and not (value.is_nested or value.is_meta or value.is_quantized)
        is_unsupported = (value.is_floating_point() and value.dtype not in FLOAT_DTYPES) or value.is_complex()
        if not is_dense or is_unsupported:
            kind = str(value.dtype if is_dense else "meta" if value.is_meta else value.layout).removeprefix("torch.")
            raise InputError(
                f"{name} must be a plain tensor of numbers, got a {kind} one; convert it first", code="tensor_kind"
            )
        return value.detach() if value.ndim else value.detach().reshape(1)
    try:
        array = np.asarray(value)
        converted = torch.from_numpy(np.array(array, order="C", ndmin=1))
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        if _is_text(value):
            raise InputError(f"{name} must be an array of numbers, got texts", code="not_numbers") from None
        reason = to_one_line(error)
        raise InputError(
            f"{name} must be an array of numbers, got {type(value).__name__}: {reason}", code="not_numbers"
        ) from None
    return to_tensor(converted, name)


def factorize(values: Any, name: str) -> tuple[Tensor, tuple[str, ...]]:
    """Number groups or clusters in the order of their names or numbers, and return their names."""
    if isinstance(values, Tensor):
        levels, index = to_tensor(values, name).unique(return_inverse=True)
        if levels.is_floating_point() and bool(levels.isnan().any()):
            raise InputError(f"{name} must be names or numbers, got NaN; drop or repair such rows", code="nan")
        return index, tuple(map(str, levels.tolist()))
    if isinstance(values, list | tuple) and all(type(value) is str for value in values):
        names = sorted(set(values))  # an array of texts would give every row the room of the longest
        index_of = {text: i for i, text in enumerate(names)}
        return torch.tensor([index_of[text] for text in values], dtype=torch.int64), tuple(names)
    try:
        array = np.asarray(values)
        levels, index = np.unique(array, return_inverse=True)
    except (TypeError, ValueError, RuntimeError) as error:
        reason = to_one_line(error)
        raise InputError(f"{name} must be an array of names or numbers: {reason}", code="not_names") from None
    if levels.dtype.kind == "c" or bool((levels != levels).any()):  # NaN and NaT differ from themselves
        raise InputError(f"{name} must be names or numbers, got NaN or complex numbers", code="not_names")
    index = torch.from_numpy(index.reshape(array.shape))
    return index if index.ndim else index.reshape(1), tuple(map(to_text, levels.tolist()))


def factorize_per_example(values: Any, name: str, n: int) -> tuple[Tensor, tuple[str, ...]]:
    """Number the groups or clusters of n examples, and return their names; raises `InputError` for another shape."""
    index, names = factorize(values, name)
    if tuple(index.shape) != (n,):
        raise InputError(f"expected one of {name} per example, ({n},), got {tuple(index.shape)}", code="shape")
    return index, names


def group_name_per_example(groups: Any, names: Any) -> np.ndarray:
    """Return the name of the group of every example, given indices of names.

    Raises `InputError` unless they are whole numbers from 0 with a name each.
    """
    name_array, index = np.array(check_unique(names, "group_names")), to_tensor(groups, "groups")
    if index.is_floating_point() or index.dtype == torch.bool:
        raise InputError(
            f"expected groups to be indices of group_names, got {index.dtype}. Try whole numbers, or names as groups "
            "and no group_names.",
            code="group_index",
        )
    low, high = (int(end) for end in index.aminmax()) if index.numel() else (0, -1)
    if low < 0 or high >= len(name_array):
        raise InputError(
            f"expected groups to be indices of {len(name_array)} group_names, got {low} .. {high}", code="group_index"
        )
    return name_array[index.cpu().numpy()]


def check_unique(names: Any, argument: str) -> tuple[str, ...]:
    """Return names as texts.

    Raises `InputError` where two are alike, and for values that are no sequence of names.
    """
    if isinstance(names, Tensor):
        names = to_tensor(names, argument)
    if isinstance(names, Tensor | np.ndarray):
        names = names.tolist() if names.ndim == 1 else None
    is_list = isinstance(names, Iterable) and not isinstance(names, str | bytes | set | frozenset | Mapping)
    items: list[Any] = list(names) if is_list else []  # pyright: ignore[reportUnknownArgumentType]
    if not is_list or any(name is None or name != name or np.ndim(name) for name in items):
        raise InputError(
            f"expected {argument} to be a list of names, got {type(names).__name__}. Try ['cat', 'dog'].", code="names"
        )
    texts = tuple(map(to_text, items))
    if len(set(texts)) < len(texts):
        duplicate = next(text for text, count in Counter(texts).items() if count > 1)
        raise InputError(f"{argument} must differ, got {duplicate[:50]!r} twice", code="names_differ")
    return texts


def to_text(name: Any) -> str:
    """Return a name as a text."""
    return name.decode(errors="replace") if isinstance(name, bytes) else str(name)


LabelIndices = tuple[Tensor, tuple[str, ...] | None, tuple[str, ...]]  # class indices, names of the classes, notes


def _label_indices(
    labels: Any, names: tuple[str, ...] | None, logits: Tensor, ignore_index: int | None = None
) -> LabelIndices:
    """Return labels as class indices; texts stand for the class of that name, numbers for positions."""
    k = logits.shape[1] if logits.ndim > 1 else 0
    array = labels if isinstance(labels, Tensor) else np.asarray(labels) if _is_text(labels) else None
    if array is None or isinstance(array, Tensor):
        _refuse_dates(labels)
        return _numeric_indices(to_tensor(labels, "labels"), names, k, ignore_index, isinstance(labels, Tensor))
    levels, index = np.unique(array.astype(str), return_inverse=True)
    label_names = tuple(map(str, levels.tolist()))
    numbers = [parse_number(name) for name in label_names]
    if names is None and label_names and None not in numbers:
        values = torch.tensor(numbers, dtype=torch.float64)[torch.from_numpy(index.reshape(array.shape))]
        return _numeric_indices(values, None, k, ignore_index, False)
    notes: tuple[str, ...] = ()
    if names is None:
        if len(label_names) != k:
            raise InputError(
                f"labels name {len(label_names)} classes ({shorten_list(label_names)}), logits have {k} columns; say "
                "which column is "
                "which: class_names=[...]",
                code="class_count",
            )
        names = label_names
        columns = shorten_list([f"{name} is column {i}" for i, name in enumerate(names)]).replace("'", "")
        notes = (f"labels are words, taken for the columns in alphabetical order: {columns}",)
    index_of = {name: i for i, name in enumerate(names)}
    class_index = torch.tensor([index_of[name] for name in match_names(label_names, names)])
    return class_index[torch.from_numpy(index.reshape(array.shape))], names, notes


def _refuse_dates(labels: Any) -> None:
    """Raise `InputError` if labels are dates or times."""
    kind = getattr(getattr(labels, "dtype", None), "kind", None)
    values = np.asarray(labels, dtype=object).ravel()[:1] if isinstance(labels, Sequence) else []
    if (isinstance(kind, str) and kind in "mM") or any(isinstance(x, date | timedelta | np.datetime64) for x in values):
        raise InputError("expected classes as labels, got dates or times. Try another column.", code="label_kind")


def match_names(labels: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the class name that each label means: the same text, the same number, or the same but for case and blanks.

    Raises `InputError` for labels without a class.
    """
    by_text = {name: name for name in names}
    by_value = _unique_keys(names, parse_number)
    by_word = _unique_keys(names, _normalize_name)
    words = _unique_keys(labels, _normalize_name)
    matched: dict[str, str] = {}
    for label in labels:
        name = by_text.get(label, by_value.get(parse_number(label)))
        if name is None and _normalize_name(label) in words:
            name = by_word.get(_normalize_name(label))
        if name is not None:
            matched[label] = name
    if missing := [label for label in labels if label not in matched]:
        raise InputError(
            f"labels {shorten_list(missing)} are no classes; there are {shorten_list(names)}", code="unknown_label"
        )
    return [matched[label] for label in labels]


def _unique_keys(names: Sequence[str], key: Callable[[str], Any]) -> dict[Any, str]:
    """Return names by a key, without those that share it or have none."""
    keys = [key(name) for name in names]
    counts = Counter(keys)
    return {k: name for k, name in zip(keys, names, strict=True) if k is not None and counts[k] == 1}


def _normalize_name(name: str) -> str:
    return "".join(mark for mark in name.casefold() if mark.isalnum()) or name


def _numeric_indices(
    labels: Tensor, names: tuple[str, ...] | None, k: int, ignore_index: int | None, by_position: bool
) -> LabelIndices:
    """Return numeric labels as class indices: positions, or values of class names that are numbers.

    Raises `InputError` where both are possible, unless tensors (`by_position`) show that positions are meant.
    """
    numbers = [parse_number(name) for name in names or ()]
    if not numbers or None in numbers or numbers == list(range(k)) or not labels.numel():
        return _signs_to_classes(to_int(labels), names, k, ignore_index)
    valid_labels = labels if ignore_index is None else labels[labels != ignore_index]
    levels = valid_labels.unique().tolist()
    positions = all(0 <= kind < k and kind == int(kind) for kind in levels)
    if not set(levels) <= set(numbers) or (positions and by_position):
        return to_int(labels), names, ()
    if positions:
        raise InputError(
            f"labels {shorten_list([f'{kind:g}' for kind in levels])} may be positions of classes or their names "
            f"{shorten_list(names or ())}. Try labels as texts for names, or leave out class_names for positions.",
            code="ambiguous_labels",
        )
    index_of = {number: i for i, number in enumerate(numbers)}
    flat = [index_of.get(value, value) for value in labels.flatten().tolist()]
    return to_int(torch.tensor(flat, device=labels.device).reshape(labels.shape)), names, ()


def _signs_to_classes(labels: Tensor, names: tuple[str, ...] | None, k: int, ignore_index: int | None) -> LabelIndices:
    """Return labels -1 and +1 of two classes as 0 and 1; others as they are."""
    if k != 2 or ignore_index in (0, 1):
        return labels, names, ()
    valid_labels = labels if ignore_index is None else labels[labels != ignore_index]
    if (
        not valid_labels.numel()
        or int(valid_labels.min()) != -1
        or int(valid_labels.max()) != 1
        or bool((valid_labels == 0).any())
    ):
        return labels, names, ()
    return (
        torch.where(labels.abs() == 1, (labels > 0).long(), labels),
        names,
        ("labels -1 and +1 are read as the first and the second class",),
    )


def binary_names(labels: Sequence[str], positive: str | None = None, *, required: bool = False) -> tuple[str, str]:
    """Return the names of two classes, last that of which there is a score.

    That is `positive`, such as the name of a column, or else the word of the two that means yes; a `given` one must be
    among the labels. Raises `InputError` where the positive class is ambiguous.
    """
    matches = [kind for kind in labels if positive is not None and is_same_name(kind, positive)]
    if required and not matches and len(labels) > 1:
        raise InputError(
            f"expected a positive class among {shorten_list(labels)}, got {positive!r}", code="positive_class"
        )
    word = positive_word(labels)
    positive = matches[0] if matches else positive if word is None else word
    others = [kind for kind in labels if kind != positive]
    if len(others) > 1 or positive is None:
        raise InputError(
            f"cannot tell which of the labels {shorten_list(labels)} the single score is the probability of. Try "
            f'positive="{labels[-1]}" (on the command line, --positive "{labels[-1]}") for tables, '
            "class_names=[other, positive] for arrays",
            code="ambiguous_positive",
        )
    return (others or [f"not {positive}"])[0], positive


def positive_word(labels: Sequence[str]) -> str | None:
    """Return the one of at most two labels that means yes, such as "positive", or "1" beside "0"; None if none does."""
    words = [kind.strip().lower() for kind in labels]
    positive = [i for i, word in enumerate(words) if word in POSITIVE_WORDS]
    if len(positive) != 1:
        return None
    others = [word for i, word in enumerate(words) if i not in positive]
    pairs = POSITIVE_WORDS[words[positive[0]]]
    return labels[positive[0]] if not pairs or all(word in pairs for word in others) else None


def is_same_name(first: str, second: str) -> bool:
    """Whether two names of a class mean the same: as texts, as numbers, or but for case and blanks."""
    if first == second:
        return True
    numbers = parse_number(first), parse_number(second)
    return numbers[0] == numbers[1] if None not in numbers else _normalize_name(first) == _normalize_name(second)


def binary_labels(
    labels: Any, names: Any, positive: str | None = None, ignore_index: int | None = None
) -> tuple[Any, Any]:
    """Return labels of a single score as 0 and 1 where they are texts or -1 and +1, and the names of the classes.

    `positive` is the label whose probability the score is.
    """
    if positive is not None and names is None and not _is_text(labels):
        labels = to_texts(to_tensor(labels, "labels"))
    if not _is_text(labels):
        return labels, names
    levels = np.unique(np.asarray(labels).astype(str)).tolist()
    class_names = binary_names(levels, positive, required=positive is not None) if names is None else names
    return _label_indices(labels, check_unique(class_names, "class_names"), torch.zeros(0, 2), ignore_index)[:2]


def to_texts(numbers: Tensor) -> np.ndarray:
    """Return numbers as texts, whole ones without decimals."""
    levels, index = numbers.unique(return_inverse=True)
    return np.array([f"{kind:.15g}" for kind in levels.tolist()])[index.cpu().numpy()]


def _is_text(labels: Any) -> bool:
    if isinstance(labels, Tensor):
        return False
    try:
        array = np.asarray(labels)
    except (TypeError, ValueError):
        return False
    if array.dtype.kind == "O":
        return bool(array.size) and all(isinstance(value, str) for value in array.ravel())
    return array.dtype.kind in "US"


def shorten_list(names: Sequence[str], limit: int = 8) -> str:
    """Return the first of some names, each shortened, as a text."""
    text = ", ".join(shorten_repr(name) for name in names[:limit])
    return text if len(names) <= limit else f"{text}, ... ({len(names)} in all)"


def resolve_event(of: Any, k: int, names: tuple[str, ...] | None = None) -> EventSelector:
    """Check which event is judged: a word, or a class by its index or name."""
    if of in ("top", "classes") or (isinstance(of, int) and not isinstance(of, bool) and 0 <= of < k):
        return of
    if names is not None and of in names:
        return names.index(of)
    names_hint = "" if names is None else f" ({shorten_list(names)})"
    raise InputError(
        f"of must be 'top', 'classes' or the index of one of {k} classes{names_hint}, got {of!r}", code="unknown_event"
    )


def to_int(labels: Tensor) -> Tensor:
    """Return labels as whole numbers."""
    if labels.is_floating_point() and not bool((labels == labels.round()).all()):
        raise InputError(
            f"labels must be whole numbers (class indices), got {labels.dtype} with fractions or NaN",
            code="label_fractions",
        )
    return labels.long()


def _flatten_positions(
    logits: Tensor, labels: Tensor, row_fields: Mapping[str, Tensor | None]
) -> tuple[Tensor, Tensor, dict[str, Tensor | None]]:
    """One row per label; the positions of one image or text become rows of one cluster."""
    shape = (logits.shape[0], *logits.shape[2:]) if logits.ndim else ()
    got = f"got {tuple(logits.shape)} and {tuple(labels.shape)}"
    if logits.ndim < 2:
        raise InputError(
            f"need logits (n, k) and labels (n,), {got}; a single logit of a binary classifier enters by "
            "Predictions.from_binary_logits",
            code="single_logit",
        )
    if labels.shape == logits.shape and logits.ndim == 2:
        raise InputError(
            f"need class indices as labels (n,), {got}; for one-hot labels use labels.argmax(-1), for several labels "
            "per example Predictions.multilabel",
            code="one_hot_labels",
        )
    if tuple(labels.shape) != shape:
        raise InputError(f"need logits (n, k) and labels (n,), {got}", code="shape")
    parts = {name: _broadcast_to_positions(name, part, shape) for name, part in row_fields.items()}
    if logits.ndim > 2:
        if parts.get("clusters") is None:
            parts["clusters"] = _broadcast_to_positions(
                "clusters", torch.arange(len(logits), device=logits.device), shape
            )
        logits = logits.movedim(1, -1).flatten(0, -2)
        labels = labels.flatten()
        parts = {name: None if part is None else part.flatten() for name, part in parts.items()}
    return logits, labels, parts


def _broadcast_to_positions(name: str, values: Tensor | None, shape: tuple[int, ...]) -> Tensor | None:
    """One per label; one per image is every position's."""
    if values is None or tuple(values.shape) == shape:
        return values
    if len(shape) > 1 and tuple(values.shape) == shape[:1]:
        return values.view(-1, *[1] * (len(shape) - 1)).expand(shape)
    raise InputError(
        f"need one {name.removesuffix('s')} per label, got {name} {tuple(values.shape)}, labels {shape}", code="shape"
    )


def _check_arrays(logits: Tensor, labels: Tensor, weights: Tensor | None) -> None:
    n, k = logits.shape
    if n == 0:
        raise InputError("no examples: logits and labels are empty", code="no_rows")
    if k < 2:
        raise InputError(
            "need at least 2 classes, got 1; a single logit of a binary classifier enters by "
            "Predictions.from_binary_logits",
            code="one_class",
        )
    if not logits.is_floating_point():
        raise InputError(
            f"logits must be floating point, got {logits.dtype}; are logits and labels swapped?", code="not_floating"
        )
    low, high = (int(end) for end in labels.aminmax())
    if low < 0 or high >= k:
        hint = "are they 1-based? then subtract 1" if low >= 1 and high == k else "negative ones need ignore_index"
        hint = hint if high == k or low < 0 else "are there classes without a column?"
        code = "labels_from" if low >= 1 and high == k else "label_range" if low >= 0 else "negative_labels"
        raise InputError(f"labels must lie in [0, {k}), got {low} .. {high}; {hint}", code=code)
    check_finite(logits)
    RowScoreEvidence().add(logits).check()
    if weights is not None:
        _check_weights(weights)


def check_finite(logits: Tensor) -> None:
    """Refuse NaN, +inf, and rows without any probability; all of them survive a sum: one cheap pass finds them."""
    exact = torch.float64 if logits.dtype == torch.float64 else torch.float32
    sums = map_chunks(lambda rows: logits[rows].sum(dtype=exact), *_row_chunks(logits))
    if not sums or bool(torch.stack(sums).sum().isfinite()):
        return
    n = len(logits)
    if logits.isnan().any():
        raise InputError(
            f"{_nan_rows(logits)} of {n} rows of logits contain NaN; drop or repair them first", code="nan"
        )
    if logits.isposinf().any():
        raise InputError(
            f"{int(logits.isposinf().any(1).sum())} of {n} rows of logits contain +inf; only -inf "
            "(probability 0) has a meaning",
            code="infinite",
        )
    if bool(logits.isneginf().all(1).any()):
        raise InputError("a row of logits is -inf everywhere: no class has any probability", code="impossible_row")


def _check_weights(weights: Tensor) -> None:
    total = float(weights.sum())
    if not bool((weights >= 0).all()) or not 0 < total <= MAX_TOTAL_WEIGHT:
        raise InputError(
            f"weights must be non-negative, finite, not all zero and at most {MAX_TOTAL_WEIGHT:.0e} together",
            code="weight_range",
        )
    if total < 1 + 1e-3 and int((weights > 0).sum()) > 1:
        raise InputError(
            f"weights say how often an example counts, but all {len(weights)} together count as {total:.4g}; "
            "multiply normalized ones by the number of examples",
            code="weights_sum",
        )


def log_probs(probs: Any, *, normalize: bool = False) -> tuple[Tensor, tuple[str, ...]]:
    """Return log p in float64, (n, k, ...), and a note if probabilities are rounded.

    Single probabilities, (n,) or (n, 1, ...), become those of two classes. `normalize` divides rows by their sum.
    """
    p = to_tensor(probs, "probs")
    is_half_precision = p.dtype in (torch.float16, torch.bfloat16)
    p = p.double()
    if not p.numel():
        raise InputError(
            f"need probs (n, k), or (n,) for the probability of class 1 of 2, got {tuple(p.shape)}", code="shape"
        )
    if p.isnan().any():
        raise InputError(f"{_nan_rows(p)} of {len(p)} rows of probs contain NaN; drop or repair them first", code="nan")
    if is_single(p):
        check_single_probs(p)
        return log_prob_pairs(p), ()
    if normalize:
        return divide_by_row_sums(p).log(), ()
    total = p.sum(1)
    max_error = float((total - 1).abs().max())
    if bool((p >= 0).all()) and max_error <= (2e-2 if is_half_precision else 1e-3):
        return p.log(), ()
    digits = None if bool((p < 0).any()) else detect_decimals(p, max_error)
    if digits is None:
        raise row_sum_error(p)
    note = f"probabilities are rounded to {digits} decimals: rows sum to {total.min():.4g} .. {total.max():.4g}"
    return p.log(), (f"{note}, and are divided by it",)


def is_single(scores: Tensor) -> bool:
    """Whether there is one score per label, and not one per class."""
    return scores.ndim == 1 or scores.shape[1] == 1


def _nan_rows(x: Tensor) -> int:
    return int(x.isnan().reshape(len(x), -1).any(1).sum())
