"""What stands in a table: which columns are labels, probabilities, weights, groups, found by name or as said."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from calibrant.types import InputError

SINGLE = {  # the names by which a column of this role is known
    "label": (
        *("label", "labels", "y_true", "y", "target", "targets", "true_label", "true_class", "ground_truth", "truth"),
        *("gold", "actual", "class"),
    ),
    "correct": ("correct", "is_correct", "correctness", "matched"),
    "confidence": ("confidence", "confidences", "conf"),
    "weight": ("weight", "weights", "sample_weight", "sample_weights"),
    "group": ("group", "groups"),
    "cluster": ("cluster", "clusters"),
    "id": ("id", "ids", "row_id", "example_id", "sample_id", "uid", "idx", "index"),
}
WHOLE = {  # a list per row, or the one number of a binary classifier
    "probs": ("probs", "prob", "probabilities", "probability", "proba", "y_prob", "y_proba", "y_score", "score", "p"),
    "logits": ("logits", "logit", "margin", "decision_function", "log_odds"),
}
PREFIXES = {
    "probs": ("prob_", "probs_", "proba_", "probability_", "p_"),
    "logits": ("logit_", "logits_", "z_"),
}
OF_LABEL = ("label_", "target_", "y_", "y_true_", "true_")  # columns of several labels per example
POSITIVE = ("1", "positive", "pos", "true", "yes")
ROLES = (*SINGLE, *WHOLE)


@dataclass(frozen=True)
class Columns:
    """Which column is what."""

    label: str | None = None
    labels: tuple[str, ...] = ()  # of several labels per example, in the order of `scores`
    correct: str | None = None
    confidence: str | None = None
    weight: str | None = None
    group: str | None = None
    cluster: str | None = None
    id: str | None = None
    kind: str = ""  # what the scores are: probs or logits
    scores: tuple[str, ...] = ()  # one column of lists or of a binary classifier's number, or one per class
    names: tuple[str, ...] | None = None  # of the classes, where the columns carry them
    unused: tuple[str, ...] = ()
    found: tuple[str, ...] = field(default=())  # roles that were not said, but found by name

    @classmethod
    def of(cls, columns: Sequence[str], said: Mapping[str, Any], nested: Iterable[str] = ()) -> "Columns":
        """Find out from the names of the columns; `said` gives some by role, `nested` those that hold lists.

        Raises `InputError` where a column that was said is missing, or what is there is not enough.
        """
        roles: dict[str, Any] = {role: value for role, value in said.items() if value is not None}
        for role, value in roles.items():
            for name in [value] if isinstance(value, str) else value:
                if name not in columns and not (role in PREFIXES and _starting(columns, name)):
                    raise InputError(f"no column {name!r} for {role}; there are {_some(columns)}")
        used = {name for value in roles.values() for name in ([value] if isinstance(value, str) else value)}
        free = [name for name in columns if name not in used]
        found: list[str] = []
        for role, names in SINGLE.items():
            if role not in roles and (name := _one_of(free, names, role)) is not None:
                roles[role] = name
                free.remove(name)
                found.append(role)
        scores = _scores(columns, roles, free, set(nested), found)
        prefix = next((roles[kind] for kind in WHOLE if isinstance(roles.get(kind), str)), "")
        return _checked(columns, roles, scores, prefix, tuple(found))

    @property
    def text(self) -> str:
        """Say what was taken for what, and what was not used."""
        parts = [f"{role} from {getattr(self, role)!r}" for role in SINGLE if getattr(self, role) is not None]
        if self.labels:
            parts.insert(0, f"labels from {_some(self.labels)}")
        if self.scores:
            parts.insert(1, f"{self.kind} from {_some(self.scores)}")
        return "; ".join([", ".join(parts), *([f"not used: {_some(self.unused)}"] if self.unused else [])])

    @property
    def plain(self) -> bool:
        """Whether all is as the library itself writes it: nothing needs to be said."""
        own = {"label": ("label", "labels"), "weight": ("weight", "weights"), "group": ("group", "groups")}
        own |= {"cluster": ("cluster", "clusters"), "correct": ("correct",), "confidence": ("confidence",)}
        same = all(getattr(self, role) in (None, *names) for role, names in own.items())
        return same and not self.unused and self.id is None and not self.labels


def arrays_of(frame: Any, columns: Columns, *, drop: bool = False) -> dict[str, Any]:
    """Return the arrays of a polars frame, by the names under which predictions enter.

    Raises `InputError` where values are missing, unless the rows may be left out (`drop`).
    """
    frame, notes = _usable(frame, columns, drop)
    arrays: dict[str, Any] = {"notes": notes}
    if not columns.plain:
        arrays["notes"] = (f"columns: {columns.text}", *notes)
    for role in ("weight", "group", "cluster"):
        if (name := getattr(columns, role)) is not None:
            arrays[f"{role}s"] = _values(frame[name])
    if columns.id is not None:
        arrays["ids"] = frame[columns.id]
    if columns.confidence is not None:
        arrays |= {"confidence": _values(frame[columns.confidence])}
        arrays |= {} if columns.correct is None else {"correct": _values(frame[columns.correct])}
        return arrays
    arrays[columns.kind] = _matrix(frame, columns)
    if columns.labels:
        arrays |= {"labels": frame.select(columns.labels).to_numpy(), "several": True}
    elif columns.label is not None:
        arrays["labels"], more = _labels(frame[columns.label], columns)
        arrays["several"] = arrays["labels"].ndim > 1
        arrays["notes"] += more
    if columns.names is not None:
        arrays["class_names"] = columns.names
    return arrays


def _matrix(frame: Any, columns: Columns) -> np.ndarray:
    if len(columns.scores) != 1:
        return frame.select(columns.scores).to_numpy()
    column = frame[columns.scores[0]]
    return _rows(column) if column.dtype.is_nested() else column.to_numpy()


def _rows(column: Any) -> np.ndarray:
    """Lists as rows; of one length, without a detour over Python's lists."""
    import polars

    if isinstance(column.dtype, polars.List) and column.dtype.inner.is_numeric() and column.list.len().n_unique() == 1:
        return column.explode().to_numpy().reshape(len(column), -1)
    return np.array(column.to_list())


def _labels(column: Any, columns: Columns) -> tuple[np.ndarray, tuple[str, ...]]:
    """Labels as numbers, or as names of classes where the columns carry names."""
    values = np.array(column.to_list()) if column.dtype.is_nested() else _values(column)
    if columns.names is None or values.dtype.kind == "U":
        return values, ()
    texts = {str(int(value)) for value in np.unique(values) if float(value).is_integer()}
    if texts <= set(columns.names):
        return values.astype(np.int64).astype(str), ()
    return values, ("labels are numbers: each is taken for the position of its class among the columns, from 0",)


def _values(column: Any) -> np.ndarray:
    """A column as numbers, or as texts; texts of whole numbers stay texts."""
    import polars

    if column.dtype == polars.Boolean:
        return column.cast(polars.Int64).to_numpy()
    if column.dtype.is_numeric():
        return column.to_numpy()
    if column.dtype.is_nested():
        return np.array(column.to_list())
    return np.array(column.cast(polars.String).to_list(), dtype=str)


def _usable(frame: Any, columns: Columns, drop: bool) -> tuple[Any, tuple[str, ...]]:
    """The rows in which nothing that is needed is missing."""
    import polars

    needed = [getattr(columns, role) for role in SINGLE if role not in ("id", "label") or not columns.labels]
    needed = [*filter(None, needed), *columns.scores]
    told: list[str] = []
    for name in dict.fromkeys(needed):
        column = frame[name]
        bad = column.is_null() | (column.is_nan() if column.dtype.is_float() else False)
        why = "missing"
        if name == columns.confidence and column.dtype.is_numeric() and drop:
            bad, why = bad | (column < 0) | (column > 1), "missing or outside [0, 1]"
        count = int(bad.fill_null(True).sum())
        if not count:
            continue
        if not drop:
            way = "leave such rows out with drop=True (on the command line, --drop)"
            raise InputError(f"{count} of {len(frame)} rows have no {name!r}; {way}")
        told.append(f"left out {count} rows in which {name!r} is {why}")
        frame = frame.filter(~bad.fill_null(True))
    if not len(frame):
        raise InputError(f"no rows are left: {polars.Series(told).str.join('; ').item()}" if told else "no examples")
    return frame, tuple(told)


# Finding


def _scores(
    columns: Sequence[str], roles: Mapping[str, Any], free: list[str], nested: set[str], found: list[str]
) -> tuple[str, tuple[str, ...]]:
    """Say what the scores are, and their columns; what was said goes first."""
    said = [kind for kind in WHOLE if kind in roles]
    if len(said) > 1:
        raise InputError("give probs or logits, not both")
    if said:
        value = roles[said[0]]
        if not isinstance(value, str):
            return said[0], tuple(value)
        return said[0], (value,) if value in columns else tuple(_starting(columns, value))
    if "confidence" in roles and "correct" in roles and not _any_scores(free):
        return "", ()
    ways: list[tuple[str, tuple[str, ...]]] = []
    for kind in WHOLE:
        ways += [(kind, tuple(some)) for prefix in PREFIXES[kind] if (some := _starting(free, prefix))]
        ways += [(kind, (name,)) for name in free if name.lower() in WHOLE[kind]]
    lists = [way for way in ways if way[1][0] in nested]
    many = [way for way in ways if len(way[1]) > 1] or lists or ways
    if len(many) > 1:
        shown = " or ".join(f"{kind} in {_some(names)}" for kind, names in many)
        raise InputError(f"found {shown}; say which: probs= or logits= (on the command line, --probs or --logits)")
    if many:
        found.append(many[0][0])
        return many[0]
    return "", ()


def _any_scores(free: Sequence[str]) -> bool:
    return any(_starting(free, prefix) for prefixes in PREFIXES.values() for prefix in prefixes)


def _checked(
    columns: Sequence[str],
    roles: Mapping[str, Any],
    scores: tuple[str, tuple[str, ...]],
    prefix: str,
    found: tuple[str, ...],
) -> Columns:
    kind, names = scores
    there = {role: roles.get(role) for role in SINGLE}
    if not kind and there["confidence"] is None:
        raise InputError(
            "expected a column of labels with probabilities (prob_0, prob_1, ... or prob_cat, ...), logits (logit_0, "
            f"...) or a confidence with whether it was correct; got columns {_some(columns)}. Say which is which: "
            "label=, probs=, logits=, confidence=, correct= (on the command line, --label and so on)"
        )
    if kind:
        there |= {"confidence": None, "correct": None}
    elif there["correct"] is None and there["label"] is not None:
        there |= {"correct": there["label"], "label": None}
    suffixes = _suffixes(names, prefix)
    labels = _several(columns, names, suffixes) if there["label"] is None else ()
    if suffixes is not None and not labels:
        names, suffixes = _ordered(names, suffixes)
    taken = {*names, *labels, *(value for value in there.values() if isinstance(value, str))}
    unused = tuple(name for name in columns if name not in taken)
    return Columns(**there, labels=labels, kind=kind, scores=names, names=suffixes, unused=unused, found=found)


def _suffixes(names: tuple[str, ...], said: str) -> tuple[str, ...] | None:
    """What the columns of classes are called after what they begin with."""
    if len(names) < 2:
        return None
    known = [said, *(prefix for prefixes in PREFIXES.values() for prefix in prefixes)]
    common = next((prefix for prefix in known if prefix and all(_after(name, prefix) for name in names)), "")
    return tuple(name[len(common) :] for name in names)


def _ordered(names: tuple[str, ...], suffixes: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
    """Numbered classes in the order of their numbers; those numbered 0 .. k-1 need no names."""
    if not all(suffix.isdigit() for suffix in suffixes):
        return names, suffixes
    pairs = sorted(zip(suffixes, names, strict=True), key=lambda pair: int(pair[0]))
    numbers = tuple(str(int(suffix)) for suffix, _ in pairs)
    if numbers[0] == "0" and numbers[-1] != str(len(numbers) - 1):
        common = names[0][: len(names[0]) - len(suffixes[0])]
        raise InputError(f"expected columns {common}0 .. {common}{len(names) - 1}, got {_some(sorted(names))}")
    if len(set(numbers)) < len(numbers):
        raise InputError(f"two columns are of one class: {_some(names)}")
    ordered = tuple(name for _, name in pairs)
    return ordered, None if numbers == tuple(map(str, range(len(numbers)))) else numbers


def _several(columns: Sequence[str], names: tuple[str, ...], suffixes: tuple[str, ...] | None) -> tuple[str, ...]:
    """The columns of several labels per example, one beside each score; none where they are not all there."""
    for prefix in OF_LABEL:
        wanted = tuple(prefix + suffix for suffix in suffixes or ())
        if wanted and set(wanted) <= set(columns) - set(names):
            return wanted
    return ()


def _one_of(free: Sequence[str], names: Sequence[str], role: str) -> str | None:
    there = [name for wanted in names for name in free if name.lower() == wanted]
    if role == "label" and len(there) > 1 and there[0].lower() not in ("label", "labels"):
        raise InputError(f"both {there[0]!r} and {there[1]!r} could be the label; say which: label= (or --label)")
    return there[0] if there else None


def _starting(columns: Sequence[str], prefix: str) -> list[str]:
    return [name for name in columns if _after(name, prefix)]


def _after(name: str, prefix: str) -> str:
    return name[len(prefix) :] if name.lower().startswith(prefix.lower()) else ""


def _some(names: Sequence[str], most: int = 8) -> str:
    shown = ", ".join(map(repr, names[:most]))
    return shown if len(names) <= most else f"{shown}, ... ({len(names)} in all)"
