"""The door: what predictions are made of, checked once, with one line that shows the way out."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from calibrant._threads import PIECE, map_chunks, threads_for
from calibrant.types import InputError

Of = Literal["top", "classes"] | int  # the event that is judged

REAL = {torch.float64, torch.float32, torch.float16, torch.bfloat16}
MOST = 2.0**53  # examples, above which counts are no whole numbers
FEW = 2  # rows with shares in them from which sums of 1 are no accident
POSITIVE = ("1", "positive", "pos", "true", "yes")
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
        y, names = _label_indices(labels, names, z)
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
            raise InputError(f"need one name per class, got {len(names)} class_names and {k} columns of logits")
        given = {"logits": logits, "labels": labels, "weights": weights} if owned else {}
        made = {"logits": z, "labels": y, **parts}
        return {
            **{name: own(part, given.get(name)) for name, part in made.items()},
            "of": event(of, k, names),
            "class_names": names,
            "group_names": group_names,
            "notes": notes,
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
            raise InputError(f"{name} must be a plain tensor of numbers, got a {kind} one; convert it first")
        return value.detach()
    try:
        array = np.asarray(value)
        found = torch.from_numpy(np.array(array, order="C", ndmin=1))
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        if _texts(value):
            raise InputError(f"{name} must be an array of numbers, got texts") from None
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{name} must be an array of numbers, got {type(value).__name__}: {reason}") from None
    return tensor(found, name)


def codes(values: Any, name: str) -> tuple[Tensor, tuple[str, ...]]:
    """Number groups or clusters in the order of their names or numbers, and return their names."""
    if isinstance(values, Tensor):
        kinds, index = tensor(values, name).unique(return_inverse=True)
        return index, tuple(map(str, kinds.tolist()))
    try:
        named = np.asarray(values)
        kinds, index = np.unique(named, return_inverse=True)
        return torch.from_numpy(index.reshape(named.shape)), tuple(map(str, kinds.tolist()))
    except (TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{name} must be an array of names or numbers: {reason}") from None


def distinct(names: Any, what: str) -> tuple[str, ...]:
    """Return names as texts; raises `InputError` where two are alike."""
    texts = tuple(map(str, names))
    if len(set(texts)) < len(texts):
        twice = next(text for text in texts if texts.count(text) > 1)
        raise InputError(f"{what} must differ, got {twice!r} twice")
    return texts


def _label_indices(labels: Any, names: tuple[str, ...] | None, logits: Tensor) -> tuple[Tensor, tuple[str, ...] | None]:
    """Return labels as class indices; those that are texts stand for the class of that name."""
    array = labels if isinstance(labels, Tensor) else np.asarray(labels) if _texts(labels) else None
    if array is None or isinstance(array, Tensor):
        return whole(tensor(labels, "labels")), names
    kinds, index = np.unique(array.astype(str), return_inverse=True)
    found = tuple(map(str, kinds.tolist()))
    if names is None and all(name.isdigit() for name in found) and found != tuple(sorted(found, key=int)):
        raise InputError(f"labels {some(found)} are numbers as texts: make them numbers, or give class_names=[...]")
    k = logits.shape[1] if logits.ndim > 1 else 0
    if names is None:
        if len(found) != k:
            raise InputError(
                f"labels name {len(found)} classes ({some(found)}), logits have {k} columns; say which column is "
                "which: class_names=[...]"
            )
        names = found
    if missing := [name for name in found if name not in names]:
        raise InputError(f"labels {some(missing)} are no classes; there are {some(names)}")
    place = torch.tensor([names.index(name) for name in found])
    return place[torch.from_numpy(index.reshape(array.shape))], names


def binary_names(kinds: Sequence[str], positive: str | None = None) -> tuple[str, str]:
    """Return the names of two classes, last that of which there is a score: `positive`, or a word such as yes.

    Raises `InputError` where it cannot be told.
    """
    words = [kind for kind in kinds if kind.strip().lower() in POSITIVE]
    if positive not in kinds and len(words) == 1:
        positive = words[0]
    others = [kind for kind in kinds if kind != positive]
    if len(others) > 1 or positive is None:
        raise InputError(
            f"cannot tell which class the one score is of, labels are {some(kinds)}: make them 0 and 1, or name the "
            "class (a column prob_NAME, class_names=[other, NAME])"
        )
    return (others or [f"not {positive}"])[0], positive


def binary_labels(labels: Any, names: Any) -> tuple[Any, Any]:
    """Labels of one score and the names of the two classes; texts become 0 and 1, by their names or `binary_names`."""
    if not _texts(labels):
        return labels, names
    called = binary_names(np.unique(np.asarray(labels).astype(str)).tolist()) if names is None else names
    return _label_indices(labels, distinct(called, "class_names"), torch.zeros(0, 2))


def _texts(labels: Any) -> bool:
    try:
        array = np.asarray(labels)
    except (TypeError, ValueError):
        return False
    if array.dtype.kind == "O":
        return bool(array.size) and all(isinstance(value, str) for value in array.ravel())
    return array.dtype.kind in "US"


def some(names: Sequence[str], most: int = 8) -> str:
    """Return the first of some names, as a text."""
    shown = ", ".join(map(repr, names[:most]))
    return shown if len(names) <= most else f"{shown}, ... ({len(names)} in all)"


def event(of: Any, k: int, names: tuple[str, ...] | None = None) -> Of:
    """Check which event is judged: a word, or a class by its index or name."""
    if of in ("top", "classes") or (isinstance(of, int) and not isinstance(of, bool) and 0 <= of < k):
        return of
    if names is not None and of in names:
        return names.index(of)
    named = "" if names is None else f" ({some(names)})"
    raise InputError(f"of must be 'top', 'classes' or the index of one of {k} classes{named}, got {of!r}")


def whole(labels: Tensor) -> Tensor:
    """Return labels as whole numbers."""
    if labels.is_floating_point() and not bool((labels == labels.round()).all()):
        raise InputError(f"labels must be whole numbers (class indices), got {labels.dtype} with fractions or NaN")
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
            "Predictions.from_binary_logits"
        )
    if labels.shape == logits.shape and logits.ndim == 2:
        raise InputError(
            f"need class indices as labels (n,), {got}; for one-hot labels use labels.argmax(-1), for several labels "
            "per example Predictions.multilabel"
        )
    if tuple(labels.shape) != shape:
        raise InputError(f"need logits (n, k) and labels (n,), {got}")
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
    raise InputError(f"need one {name.removesuffix('s')} per label, got {name} {tuple(part.shape)}, labels {shape}")


def _check(logits: Tensor, labels: Tensor, weights: Tensor | None) -> None:
    n, k = logits.shape
    if n == 0:
        raise InputError("no examples: logits and labels are empty")
    if k < 2:
        raise InputError(
            "need at least 2 classes, got 1; a single logit of a binary classifier enters by "
            "Predictions.from_binary_logits"
        )
    if not logits.is_floating_point():
        raise InputError(f"logits must be floating point, got {logits.dtype}; are logits and labels swapped?")
    low, high = (int(end) for end in labels.aminmax())
    if low < 0 or high >= k:
        hint = "are they 1-based? then subtract 1" if low >= 1 and high == k else "negative ones need ignore_index"
        hint = hint if high == k or low < 0 else "are there classes without a column?"
        raise InputError(f"labels must lie in [0, {k}), got {low} .. {high}; {hint}")
    finite(logits)
    if _like_probabilities(logits):
        raise InputError(
            f"logits look like probabilities (all {n} rows are non-negative and sum to 1); "
            "use Predictions.from_probs, or the key 'probs' in a file"
        )
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
        raise InputError(f"{_nan_rows(logits)} of {n} rows of logits contain NaN; drop or repair them first")
    if logits.isposinf().any():
        raise InputError(
            f"{int(logits.isposinf().any(1).sum())} of {n} rows of logits contain +inf; only -inf "
            "(probability 0) has a meaning"
        )
    if bool(logits.isneginf().all(1).any()):
        raise InputError("a row of logits is -inf everywhere: no class has any probability")


def _like_probabilities(logits: Tensor) -> bool:
    """Whether all rows are non-negative and sum to 1, and enough of them are not one-hot to be no accident."""
    if not _sum_to_one(logits[:32]) or not _sum_to_one(logits):
        return False
    return int(((logits > 0) & (logits < 1)).any(1).sum()) >= FEW


def _sum_to_one(rows: Tensor) -> bool:
    return bool((rows >= 0).all()) and bool(((rows.double().sum(1) - 1).abs() < 1e-3).all())


def _check_weights(weights: Tensor) -> None:
    total = float(weights.sum())
    if not bool((weights >= 0).all()) or not 0 < total <= MOST:
        raise InputError(f"weights must be non-negative, finite, not all zero and at most {MOST:.0e} together")
    if total < 1 + 1e-3 and int((weights > 0).sum()) > 1:
        raise InputError(
            f"weights say how often an example counts, but all {len(weights)} together count as {total:.4g}; "
            "multiply normalized ones by the number of examples"
        )


def log_probs(probs: Any) -> tuple[Tensor, tuple[str, ...]]:
    """Return log p in float64, and what is to be said of them: that they are rounded."""
    p = tensor(probs, "probs")
    narrow = p.dtype in (torch.float16, torch.bfloat16)
    p = p.double()
    if p.ndim == 1:
        p = torch.stack([1 - p, p], dim=-1)
    if p.ndim < 2 or not p.numel():
        raise InputError(f"need probs (n, k), or (n,) for the probability of class 1 of 2, got {tuple(p.shape)}")
    if p.isnan().any():
        raise InputError(f"{_nan_rows(p)} of {len(p)} rows of probs contain NaN; drop or repair them first")
    total = p.sum(1)
    off = float((total - 1).abs().max())
    if bool((p < 0).any()) or off > (2e-2 if narrow else 1e-3):
        digits = None if bool((p < 0).any()) else _rounded(p, off)
        if digits is None:
            raise InputError(
                f"rows of probs must be non-negative and sum to 1, got minimum {p.min():.4g} and sums "
                f"{total.min():.4g} .. {total.max():.4g}; if these are logits, say logits"
            )
        said = f"probabilities are rounded to {digits} decimals: rows sum to {total.min():.4g} .. {total.max():.4g}"
        return p.log(), (f"{said}, and are divided by it",)
    return p.log(), ()


def _rounded(p: Tensor, off: float) -> int | None:
    """Return to how many decimals, at least 3, probabilities are rounded, where that explains sums that are not 1."""
    for digits in range(3, 7):
        scaled = p * 10**digits
        if bool(((scaled - scaled.round()).abs() < 1e-3).all()):
            return digits if off <= 0.5 * 10**-digits * p.shape[1] + 1e-9 and bool((p.sum(1) > 0.5).all()) else None
    return None


def _nan_rows(x: Tensor) -> int:
    return int(x.isnan().flatten(1).any(1).sum())
