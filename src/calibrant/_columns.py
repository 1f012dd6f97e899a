"""Which columns of a table are labels, probabilities, weights, groups: found by name, or as was said."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from calibrant._door import some
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
ROLES = (*SINGLE, *WHOLE)
SHOWN = 10  # columns that are named one by one
CALIBRATED = "calibrated_"  # stands before what is written of calibrated scores


@dataclass(frozen=True)
class TableOptions:
    """Options for reading a table: which column plays which role, and what its cells mean.

    `columns` maps roles such as "label" to the name of a column. `positive` is the name of the positive class where
    there is a single score, `labels_from` the number of the first class. `percent` says that numbers lie in 0 .. 100,
    `normalize` divides rows of rounded probabilities by their sum, `drop` leaves out rows with missing values, `na`
    lists further words for a missing value, and `encoding` is that of a text file.
    """

    columns: Mapping[str, Any] = field(default_factory=dict[str, Any])
    positive: str | None = None
    labels_from: int | None = None
    percent: bool = False
    normalize: bool = False
    drop: bool = False
    na: tuple[str, ...] = ()
    encoding: str | None = None

    @classmethod
    def of(cls, given: "Mapping[str, Any] | TableOptions | None" = None) -> "TableOptions":
        """Build options from keywords, roles of columns among them; keywords that are None count as absent.

        Raises `InputError` for unknown keywords and for values of the wrong kind.
        """
        if isinstance(given, TableOptions):
            return given
        used = {name: value for name, value in (given or {}).items() if value is not None}
        known = tuple(option.name for option in fields(cls) if option.name != "columns")
        if unknown := [name for name in used if name not in known and name not in ROLES]:
            raise InputError(
                f"unknown option {unknown[0]!r} for reading a table; expected one of {', '.join((*ROLES, *known))}",
                code="unknown_option",
            )
        options = {name: _option_value(name, value) for name, value in used.items() if name in known}
        return cls(columns={role: used[role] for role in ROLES if role in used}, **options)


OPTION_TYPES: dict[str, tuple[Any, str]] = {
    "positive": (str, "a name"),
    "labels_from": (int, "a whole number"),
    "na": (tuple, "words"),
    "encoding": (str, "a name"),
}


def _option_value(name: str, value: Any) -> Any:
    """Return the value of a reading option in its type; raises `InputError` where it has another."""
    if name == "na":
        value = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Iterable) else value
    elif name == "positive" and isinstance(value, int | float):
        value = str(value)
    kind, wanted = OPTION_TYPES.get(name, (bool, "True or False"))
    whole = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    if not whole or (name == "na" and not all(isinstance(word, str) for word in value)):
        raise InputError(f"expected {wanted} for {name}, got {value!r}", code="option_value")
    return value


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
    positive: str | None = None  # the class that the one column of scores is named after
    unused: tuple[str, ...] = ()

    @classmethod
    def of(cls, columns: Sequence[str], options: TableOptions | None = None, nested: Iterable[str] = ()) -> "Columns":
        """Find the role of each column by its name; `options` may give some, `nested` are those that hold lists.

        Raises `InputError` where a given column is missing, or what is there is not enough.
        """
        roles: dict[str, Any] = dict((options or TableOptions()).columns)
        for role, value in roles.items():
            for name in [value] if isinstance(value, str) else value:
                if name not in columns and not (role in PREFIXES and _starting(columns, name)):
                    raise InputError(f"no column {name!r} for {role}; there are {some(columns)}")
        used = {name for value in roles.values() for name in ([value] if isinstance(value, str) else value)}
        free = [name for name in columns if name not in used]
        for role, names in SINGLE.items():
            if role not in roles and (name := _one_of(free, names, role)) is not None:
                roles[role] = name
                free.remove(name)
        scores = _scores(columns, roles, free, set(nested))
        prefix = next((roles[kind] for kind in WHOLE if isinstance(roles.get(kind), str)), "")
        return _checked(columns, roles, scores, prefix)

    @property
    def text(self) -> str:
        """Say what was taken for what, and what was not used."""
        parts = [f"{role} from {getattr(self, role)!r}" for role in SINGLE if getattr(self, role) is not None]
        if self.labels:
            parts.insert(0, f"labels from {some(self.labels)}")
        if self.scores:
            parts.insert(1, f"{self.kind} from {some(self.scores)}")
        return "; ".join([", ".join(parts), *([f"not used: {some(self.unused)}"] if self.unused else [])])

    @property
    def plain(self) -> bool:
        """Whether all is as the library itself writes it: nothing needs to be said."""
        own = {"label": ("label", "labels"), "weight": ("weight", "weights"), "group": ("group", "groups")}
        own |= {"cluster": ("cluster", "clusters"), "correct": ("correct",), "confidence": ("confidence",)}
        same = all(getattr(self, role) in (None, *names) for role, names in own.items())
        return same and not self.unused and self.id is None and not self.labels


def _scores(
    columns: Sequence[str], roles: Mapping[str, Any], free: list[str], nested: set[str]
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
        ways += [(kind, tuple(begun)) for prefix in PREFIXES[kind] if (begun := _starting(free, prefix))]
        ways += [(kind, (name,)) for name in free if name.lower() in WHOLE[kind]]
    lists = [way for way in ways if way[1][0] in nested]
    many = [way for way in ways if len(way[1]) > 1] or lists or ways
    if len(many) > 1:
        shown = " or ".join(f"{kind} in {some(names)}" for kind, names in many)
        raise InputError(f"found {shown}; say which: probs= or logits= (on the command line, --probs or --logits)")
    return many[0] if many else ("", ())


def _any_scores(free: Sequence[str]) -> bool:
    return any(_starting(free, prefix) for prefixes in PREFIXES.values() for prefix in prefixes)


def _checked(
    columns: Sequence[str],
    roles: Mapping[str, Any],
    scores: tuple[str, tuple[str, ...]],
    prefix: str,
) -> Columns:
    kind, names = scores
    there: dict[str, Any] = {role: roles.get(role) for role in SINGLE}
    if not kind and there["confidence"] is None:
        free = [name for name in columns if name not in there.values()]
        such = f"; {some(free)} hold probabilities? then --probs {','.join(free)}" if 1 < len(free) <= SHOWN else ""
        raise InputError(
            "expected a column of labels with probabilities (prob_0, prob_1, ... or prob_cat, ...), logits (logit_0, "
            f"...) or a confidence with whether it was correct; got columns {some(columns)}. Say which is which: "
            f"label=, probs=, logits=, confidence=, correct= (on the command line, --label and so on{such})"
        )
    if kind:
        there |= {"confidence": None, "correct": None}
    elif there["correct"] is None and there["label"] is not None:
        there |= {"correct": there["label"], "label": None}
    suffixes = _suffixes(names, prefix)
    positive = _class_of(names[0], prefix) if len(names) == 1 else None
    labels = _several(columns, names, suffixes) if there["label"] is None else ()
    if suffixes is not None and not labels:
        names, suffixes = _ordered(names, suffixes)
    taken = {*names, *labels, *(value for value in there.values() if isinstance(value, str))}
    if twice := [name for name in columns if name in taken and f"{name}_duplicated_0" in columns]:  # so polars says it
        raise InputError(f"two columns are called {twice[0]!r}: rename one of them")
    unused = tuple(name for name in columns if name not in taken)
    there |= {"kind": kind, "scores": names, "names": suffixes, "positive": positive}
    return Columns(**there, labels=labels, unused=unused)


def _suffixes(names: tuple[str, ...], said: str) -> tuple[str, ...] | None:
    """What the columns of classes are called after what they begin with."""
    if len(names) < 2:
        return None
    common = next((prefix for prefix in _prefixes(said) if all(_after(name, prefix) for name in names)), "")
    return tuple(name[len(common) :] for name in names)


def _class_of(name: str, said: str) -> str | None:
    """The class that a column is named after, as it stands or calibrated; None where its name is none of a class."""
    whole = any(name.lower().removeprefix(CALIBRATED) in names for names in WHOLE.values())
    return None if whole else next((after for prefix in _prefixes(said) if (after := _after(name, prefix))), None)


def _prefixes(said: str) -> list[str]:
    """What columns of classes may begin with: as was said, or as is usual, calibrated or not."""
    usual = [prefix for prefixes in PREFIXES.values() for prefix in prefixes]
    return [prefix for prefix in (said, *usual, *(CALIBRATED + prefix for prefix in usual)) if prefix]


def _ordered(names: tuple[str, ...], suffixes: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
    """Numbered classes in the order of their numbers; those numbered 0 .. k-1 need no names."""
    if not all(suffix.isdigit() for suffix in suffixes):
        return names, suffixes
    pairs = sorted(zip(suffixes, names, strict=True), key=lambda pair: int(pair[0]))
    numbers = tuple(str(int(suffix)) for suffix, _ in pairs)
    if numbers[0] == "0" and numbers[-1] != str(len(numbers) - 1):
        common = names[0][: len(names[0]) - len(suffixes[0])]
        raise InputError(f"expected columns {common}0 .. {common}{len(names) - 1}, got {some(sorted(names))}")
    if len(set(numbers)) < len(numbers):
        raise InputError(f"two columns are of one class: {some(names)}")
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
