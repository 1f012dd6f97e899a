"""The door: what predictions are made of, checked once, with one line that shows the way out."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, timedelta
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from calibrant._probabilities import RowScores, check_single, decimals_of, logit_pairs, normalized, sums_error
from calibrant._text import one_line, plain_number, shorten
from calibrant._threads import PIECE, map_chunks, threads_for
from calibrant.types import InputError

Of = Literal["top", "classes"] | int  # the event that is judged

REAL = {torch.float64, torch.float32, torch.float16, torch.bfloat16}
MOST = 2.0**53  # examples, above which counts are no whole numbers
POSITIVE: dict[str, tuple[str, ...]] = {  # words for the positive class, with what must stand beside them, if anything
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
CORRECTNESS = ("wrong", "correct")  # the two classes of a confidence, of which the second is judged,
MATCHES = ("unmatched", "matched")  # of that of a detection,
PRESENCE = ("absent", "present")  # and of one of several labels
KINDS = (CORRECTNESS, MATCHES, PRESENCE)


def entered(
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
    owned: bool = True,
) -> dict[str, Any]:
    """Check what predictions are made of, and return it by name; `owned` parts share no memory with the given."""
    z = tensor(logits, "logits")
    with threads_for(z.numel(), in_pieces=True):
        names = None if class_names is None else distinct(class_names, "class_names")
        y, names, noted = _label_indices(labels, names, z, ignore_index)
        parts: dict[str, Tensor | None] = {
            "weights": None if weights is None else tensor(weights, "weights").double(),
            "clusters": None if clusters is None else codes(clusters, "clusters")[0],
        }
        parts["groups"], group_names = (None, None) if groups is None else codes(groups, "groups")
        z, y, parts = _rows(z, y, parts)
        if ignore_index is not None:
            keep = y != ignore_index
            z, y = z[keep], y[keep]
            parts = {name: None if part is None else part[keep] for name, part in parts.items()}
        _check(z, y, parts["weights"])
        k = z.shape[1]
        if names is not None and len(names) != k:
            raise InputError(
                f"need one name per class, got {len(names)} class_names and {k} columns of logits", code="names_length"
            )
        given = {"logits": logits, "labels": labels, "weights": weights} if owned else {}
        made = {"logits": z, "labels": y, **parts}
        return {
            **{name: own(part, given.get(name)) for name, part in made.items()},
            "of": event(of, k, names),
            "class_names": names,
            "group_names": group_names,
            "notes": (*notes, *noted),
        }


def own(part: Tensor | None, given: Any) -> Tensor | None:
    """Return a tensor that shares no memory with the caller's."""
    if part is None or not isinstance(given, Tensor):
        return part
    if part.untyped_storage().data_ptr() != given.untyped_storage().data_ptr():
        return part
    copy = torch.empty_like(part)
    map_chunks(lambda rows: copy[rows].copy_(part[rows]), *_pieces(part))
    return copy


def _pieces(x: Tensor) -> tuple[list[slice], int]:
    """Rows to work on at a time, and how many numbers that is."""
    n = len(x)
    size = max(1, PIECE * n // max(1, x.numel()) if x.device.type == "cpu" else n)
    return [slice(first, first + size) for first in range(0, n, size)], size * x[:1].numel()


def numbers(given: Any) -> int:
    """How many numbers an array holds; what is none, or none yet, counts as few."""
    try:
        return int(math.prod(given.shape))
    except (AttributeError, TypeError, RuntimeError):
        return 0


def tensor(value: Any, name: str) -> Tensor:
    """Return an array of numbers as a tensor, whatever it came as."""
    if isinstance(value, Tensor):
        plain = value.layout == torch.strided and not (value.is_nested or value.is_meta or value.is_quantized)
        odd = (value.is_floating_point() and value.dtype not in REAL) or value.is_complex()
        if not plain or odd:
            kind = str(value.dtype if plain else "meta" if value.is_meta else value.layout).removeprefix("torch.")
            raise InputError(
                f"{name} must be a plain tensor of numbers, got a {kind} one; convert it first", code="tensor_kind"
            )
        return value.detach() if value.ndim else value.detach().reshape(1)
    try:
        array = np.asarray(value)
        found = torch.from_numpy(np.array(array, order="C", ndmin=1))
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        if _texts(value):
            raise InputError(f"{name} must be an array of numbers, got texts", code="not_numbers") from None
        reason = one_line(error)
        raise InputError(
            f"{name} must be an array of numbers, got {type(value).__name__}: {reason}", code="not_numbers"
        ) from None
    return tensor(found, name)


def codes(values: Any, name: str) -> tuple[Tensor, tuple[str, ...]]:
    """Number groups or clusters in the order of their names or numbers, and return their names."""
    if isinstance(values, Tensor):
        kinds, index = tensor(values, name).unique(return_inverse=True)
        if kinds.is_floating_point() and bool(kinds.isnan().any()):
            raise InputError(f"{name} must be names or numbers, got NaN; drop or repair such rows", code="nan")
        return index, tuple(map(str, kinds.tolist()))
    if isinstance(values, list | tuple) and all(type(value) is str for value in values):
        names = sorted(set(values))  # an array of texts would give every row the room of the longest
        place = {text: i for i, text in enumerate(names)}
        return torch.tensor([place[text] for text in values], dtype=torch.int64), tuple(names)
    try:
        named = np.asarray(values)
        kinds, index = np.unique(named, return_inverse=True)
    except (TypeError, ValueError, RuntimeError) as error:
        reason = one_line(error)
        raise InputError(f"{name} must be an array of names or numbers: {reason}", code="not_names") from None
    if kinds.dtype.kind == "c" or bool((kinds != kinds).any()):  # NaN and NaT differ from themselves
        raise InputError(f"{name} must be names or numbers, got NaN or complex numbers", code="not_names")
    index = torch.from_numpy(index.reshape(named.shape))
    return index if index.ndim else index.reshape(1), tuple(map(text_of, kinds.tolist()))


def per_row(values: Any, name: str, n: int) -> tuple[Tensor, tuple[str, ...]]:
    """Number the groups or clusters of n examples, and return their names; raises `InputError` for another shape."""
    index, names = codes(values, name)
    if tuple(index.shape) != (n,):
        raise InputError(f"expected one of {name} per example, ({n},), got {tuple(index.shape)}", code="shape")
    return index, names


def named_groups(groups: Any, names: Any) -> np.ndarray:
    """Return the name of the group of every example, given indices of names.

    Raises `InputError` unless they are whole numbers from 0 with a name each.
    """
    called, index = np.array(distinct(names, "group_names")), tensor(groups, "groups")
    if index.is_floating_point() or index.dtype == torch.bool:
        raise InputError(
            f"expected groups to be indices of group_names, got {index.dtype}. Try whole numbers, or names as groups "
            "and no group_names.",
            code="group_index",
        )
    low, high = (int(end) for end in index.aminmax()) if index.numel() else (0, -1)
    if low < 0 or high >= len(called):
        raise InputError(
            f"expected groups to be indices of {len(called)} group_names, got {low} .. {high}", code="group_index"
        )
    return called[index.cpu().numpy()]


def distinct(names: Any, what: str) -> tuple[str, ...]:
    """Return names as texts.

    Raises `InputError` where two are alike, and for values that are no sequence of names.
    """
    if isinstance(names, Tensor):
        names = tensor(names, what)
    if isinstance(names, Tensor | np.ndarray):
        names = names.tolist() if names.ndim == 1 else None
    listed = isinstance(names, Iterable) and not isinstance(names, str | bytes | set | frozenset | Mapping)
    found: list[Any] = list(names) if listed else []  # pyright: ignore[reportUnknownArgumentType]
    if not listed or any(name is None or name != name or np.ndim(name) for name in found):
        raise InputError(
            f"expected {what} to be a list of names, got {type(names).__name__}. Try ['cat', 'dog'].", code="names"
        )
    texts = tuple(map(text_of, found))
    if len(set(texts)) < len(texts):
        twice = next(text for text, count in Counter(texts).items() if count > 1)
        raise InputError(f"{what} must differ, got {twice[:50]!r} twice", code="names_differ")
    return texts


def text_of(name: Any) -> str:
    """Return a name as a text."""
    return name.decode(errors="replace") if isinstance(name, bytes) else str(name)


Matched = tuple[Tensor, tuple[str, ...] | None, tuple[str, ...]]  # class indices, names of the classes, notes


def _label_indices(
    labels: Any, names: tuple[str, ...] | None, logits: Tensor, ignore_index: int | None = None
) -> Matched:
    """Return labels as class indices; texts stand for the class of that name, numbers for positions."""
    k = logits.shape[1] if logits.ndim > 1 else 0
    array = labels if isinstance(labels, Tensor) else np.asarray(labels) if _texts(labels) else None
    if array is None or isinstance(array, Tensor):
        _refuse_dates(labels)
        return _numeric_indices(tensor(labels, "labels"), names, k, ignore_index, isinstance(labels, Tensor))
    kinds, index = np.unique(array.astype(str), return_inverse=True)
    found = tuple(map(str, kinds.tolist()))
    numbers = [plain_number(name) for name in found]
    if names is None and found and None not in numbers:
        values = torch.tensor(numbers, dtype=torch.float64)[torch.from_numpy(index.reshape(array.shape))]
        return _numeric_indices(values, None, k, ignore_index, False)
    notes: tuple[str, ...] = ()
    if names is None:
        if len(found) != k:
            raise InputError(
                f"labels name {len(found)} classes ({some(found)}), logits have {k} columns; say which column is "
                "which: class_names=[...]",
                code="class_count",
            )
        names = found
        columns = some([f"{name} is column {i}" for i, name in enumerate(names)]).replace("'", "")
        notes = (f"labels are words, taken for the columns in alphabetical order: {columns}",)
    place_of = {name: i for i, name in enumerate(names)}
    place = torch.tensor([place_of[name] for name in match_names(found, names)])
    return place[torch.from_numpy(index.reshape(array.shape))], names, notes


def _refuse_dates(labels: Any) -> None:
    """Raise `InputError` if labels are dates or times."""
    kind = getattr(getattr(labels, "dtype", None), "kind", None)
    values = np.asarray(labels, dtype=object).ravel()[:1] if isinstance(labels, Sequence) else []
    if (isinstance(kind, str) and kind in "mM") or any(isinstance(x, date | timedelta | np.datetime64) for x in values):
        raise InputError("expected classes as labels, got dates or times. Try another column.", code="label_kind")


def match_names(found: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the class name that each label means: the same text, the same number, or the same but for case and blanks.

    Raises `InputError` for labels without a class.
    """
    by_text = {name: name for name in names}
    by_value = _unique_keys(names, plain_number)
    by_word = _unique_keys(names, _folded)
    words = _unique_keys(found, _folded)
    matched: dict[str, str] = {}
    for label in found:
        name = by_text.get(label, by_value.get(plain_number(label)))
        if name is None and _folded(label) in words:
            name = by_word.get(_folded(label))
        if name is not None:
            matched[label] = name
    if missing := [label for label in found if label not in matched]:
        raise InputError(f"labels {some(missing)} are no classes; there are {some(names)}", code="unknown_label")
    return [matched[label] for label in found]


def _unique_keys(names: Sequence[str], key: Callable[[str], Any]) -> dict[Any, str]:
    """Return names by a key, without those that share it or have none."""
    keys = [key(name) for name in names]
    counts = Counter(keys)
    return {k: name for k, name in zip(keys, names, strict=True) if k is not None and counts[k] == 1}


def _folded(name: str) -> str:
    return "".join(mark for mark in name.casefold() if mark.isalnum()) or name


def _numeric_indices(
    labels: Tensor, names: tuple[str, ...] | None, k: int, ignore_index: int | None, by_position: bool
) -> Matched:
    """Return numeric labels as class indices: positions, or values of class names that are numbers.

    Raises `InputError` where both are possible, unless tensors (`by_position`) show that positions are meant.
    """
    numbers = [plain_number(name) for name in names or ()]
    if not numbers or None in numbers or numbers == list(range(k)) or not labels.numel():
        return _signs_as_classes(whole(labels), names, k, ignore_index)
    kept = labels if ignore_index is None else labels[labels != ignore_index]
    kinds = kept.unique().tolist()
    positions = all(0 <= kind < k and kind == int(kind) for kind in kinds)
    if not set(kinds) <= set(numbers) or (positions and by_position):
        return whole(labels), names, ()
    if positions:
        raise InputError(
            f"labels {some([f'{kind:g}' for kind in kinds])} may be positions of classes or their names "
            f"{some(names or ())}. Try labels as texts for names, or leave out class_names for positions.",
            code="ambiguous_labels",
        )
    place = {number: i for i, number in enumerate(numbers)}
    flat = [place.get(value, value) for value in labels.flatten().tolist()]
    return whole(torch.tensor(flat, device=labels.device).reshape(labels.shape)), names, ()


def _signs_as_classes(labels: Tensor, names: tuple[str, ...] | None, k: int, ignore_index: int | None) -> Matched:
    """Return labels -1 and +1 of two classes as 0 and 1; others as they are."""
    if k != 2 or ignore_index in (0, 1):
        return labels, names, ()
    kept = labels if ignore_index is None else labels[labels != ignore_index]
    if not kept.numel() or int(kept.min()) != -1 or int(kept.max()) != 1 or bool((kept == 0).any()):
        return labels, names, ()
    return (
        torch.where(labels.abs() == 1, (labels > 0).long(), labels),
        names,
        ("labels -1 and +1 are read as the first and the second class",),
    )


def binary_names(kinds: Sequence[str], positive: str | None = None, *, given: bool = False) -> tuple[str, str]:
    """Return the names of two classes, last that of which there is a score.

    That is `positive`, such as the name of a column, or else the word of the two that means yes; a `given` one must be
    among the labels. Raises `InputError` where the positive class is ambiguous.
    """
    same = [kind for kind in kinds if positive is not None and same_name(kind, positive)]
    if given and not same and len(kinds) > 1:
        raise InputError(f"expected a positive class among {some(kinds)}, got {positive!r}", code="positive_class")
    word = positive_word(kinds)
    positive = same[0] if same else positive if word is None else word
    others = [kind for kind in kinds if kind != positive]
    if len(others) > 1 or positive is None:
        raise InputError(
            f"cannot tell which of the labels {some(kinds)} the single score is the probability of. Try "
            f'positive="{kinds[-1]}" (on the command line, --positive "{kinds[-1]}") for tables, '
            "class_names=[other, positive] for arrays",
            code="ambiguous_positive",
        )
    return (others or [f"not {positive}"])[0], positive


def positive_word(kinds: Sequence[str]) -> str | None:
    """Return the one of at most two labels that means yes, such as "positive", or "1" beside "0"; None if none does."""
    words = [kind.strip().lower() for kind in kinds]
    positive = [i for i, word in enumerate(words) if word in POSITIVE]
    if len(positive) != 1:
        return None
    others = [word for i, word in enumerate(words) if i not in positive]
    pairs = POSITIVE[words[positive[0]]]
    return kinds[positive[0]] if not pairs or all(word in pairs for word in others) else None


def same_name(one: str, other: str) -> bool:
    """Whether two names of a class mean the same: as texts, as numbers, or but for case and blanks."""
    if one == other:
        return True
    numbers = plain_number(one), plain_number(other)
    return numbers[0] == numbers[1] if None not in numbers else _folded(one) == _folded(other)


def binary_labels(
    labels: Any, names: Any, positive: str | None = None, ignore_index: int | None = None
) -> tuple[Any, Any]:
    """Return labels of a single score as 0 and 1 where they are texts or -1 and +1, and the names of the classes.

    `positive` is the label whose probability the score is.
    """
    if positive is not None and names is None and not _texts(labels):
        labels = as_texts(tensor(labels, "labels"))
    if not _texts(labels):
        return labels, names
    kinds = np.unique(np.asarray(labels).astype(str)).tolist()
    called = binary_names(kinds, positive, given=positive is not None) if names is None else names
    return _label_indices(labels, distinct(called, "class_names"), torch.zeros(0, 2), ignore_index)[:2]


def as_texts(numbers: Tensor) -> np.ndarray:
    """Return numbers as texts, whole ones without decimals."""
    kinds, index = numbers.unique(return_inverse=True)
    return np.array([f"{kind:.15g}" for kind in kinds.tolist()])[index.cpu().numpy()]


def _texts(labels: Any) -> bool:
    if isinstance(labels, Tensor):
        return False
    try:
        array = np.asarray(labels)
    except (TypeError, ValueError):
        return False
    if array.dtype.kind == "O":
        return bool(array.size) and all(isinstance(value, str) for value in array.ravel())
    return array.dtype.kind in "US"


def some(names: Sequence[str], most: int = 8) -> str:
    """Return the first of some names, each shortened, as a text."""
    shown = ", ".join(shorten(name) for name in names[:most])
    return shown if len(names) <= most else f"{shown}, ... ({len(names)} in all)"


def event(of: Any, k: int, names: tuple[str, ...] | None = None) -> Of:
    """Check which event is judged: a word, or a class by its index or name."""
    if of in ("top", "classes") or (isinstance(of, int) and not isinstance(of, bool) and 0 <= of < k):
        return of
    if names is not None and of in names:
        return names.index(of)
    named = "" if names is None else f" ({some(names)})"
    raise InputError(
        f"of must be 'top', 'classes' or the index of one of {k} classes{named}, got {of!r}", code="unknown_event"
    )


def whole(labels: Tensor) -> Tensor:
    """Return labels as whole numbers."""
    if labels.is_floating_point() and not bool((labels == labels.round()).all()):
        raise InputError(
            f"labels must be whole numbers (class indices), got {labels.dtype} with fractions or NaN",
            code="label_fractions",
        )
    return labels.long()


def _rows(
    logits: Tensor, labels: Tensor, more: Mapping[str, Tensor | None]
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
    parts = {name: _spread(name, part, shape) for name, part in more.items()}
    if logits.ndim > 2:
        if parts.get("clusters") is None:
            parts["clusters"] = _spread("clusters", torch.arange(len(logits), device=logits.device), shape)
        logits = logits.movedim(1, -1).flatten(0, -2)
        labels = labels.flatten()
        parts = {name: None if part is None else part.flatten() for name, part in parts.items()}
    return logits, labels, parts


def _spread(name: str, part: Tensor | None, shape: tuple[int, ...]) -> Tensor | None:
    """One per label; one per image is every position's."""
    if part is None or tuple(part.shape) == shape:
        return part
    if len(shape) > 1 and tuple(part.shape) == shape[:1]:
        return part.view(-1, *[1] * (len(shape) - 1)).expand(shape)
    raise InputError(
        f"need one {name.removesuffix('s')} per label, got {name} {tuple(part.shape)}, labels {shape}", code="shape"
    )


def _check(logits: Tensor, labels: Tensor, weights: Tensor | None) -> None:
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
    finite(logits)
    RowScores().add(logits).check()
    if weights is not None:
        _check_weights(weights)


def finite(logits: Tensor) -> None:
    """Refuse NaN, +inf, and rows without any probability; all of them survive a sum: one cheap pass finds them."""
    exact = torch.float64 if logits.dtype == torch.float64 else torch.float32
    sums = map_chunks(lambda rows: logits[rows].sum(dtype=exact), *_pieces(logits))
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
    if not bool((weights >= 0).all()) or not 0 < total <= MOST:
        raise InputError(
            f"weights must be non-negative, finite, not all zero and at most {MOST:.0e} together", code="weight_range"
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
    p = tensor(probs, "probs")
    narrow = p.dtype in (torch.float16, torch.bfloat16)
    p = p.double()
    if not p.numel():
        raise InputError(
            f"need probs (n, k), or (n,) for the probability of class 1 of 2, got {tuple(p.shape)}", code="shape"
        )
    if p.isnan().any():
        raise InputError(f"{_nan_rows(p)} of {len(p)} rows of probs contain NaN; drop or repair them first", code="nan")
    if is_single(p):
        check_single(p)
        return logit_pairs(p), ()
    if normalize:
        return normalized(p).log(), ()
    total = p.sum(1)
    off = float((total - 1).abs().max())
    if bool((p >= 0).all()) and off <= (2e-2 if narrow else 1e-3):
        return p.log(), ()
    digits = None if bool((p < 0).any()) else decimals_of(p, off)
    if digits is None:
        raise sums_error(p)
    said = f"probabilities are rounded to {digits} decimals: rows sum to {total.min():.4g} .. {total.max():.4g}"
    return p.log(), (f"{said}, and are divided by it",)


def is_single(scores: Tensor) -> bool:
    """Whether there is one score per label, and not one per class."""
    return scores.ndim == 1 or scores.shape[1] == 1


def _nan_rows(x: Tensor) -> int:
    return int(x.isnan().reshape(len(x), -1).any(1).sum())
