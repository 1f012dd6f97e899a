"""Find which columns of a table may play which role, by their names or as given."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from numbers import Integral
from typing import Any

from calibrant._door import some
from calibrant._text import plain_number, shorten
from calibrant.types import InputError

SINGLE = {  # names of columns by role, compared by letters and digits alone
    "label": (
        *("label", "labels", "y_true", "true_label", "true_labels", "true_class", "label_true", "ground_truth"),
        *("target", "targets", "y", "truth", "gold", "gold_label", "gt", "gt_label", "y_test", "actual_label"),
        *("actual_class", "class_label", "class_true", "target_label", "true_y", "y_actual", "true_answer"),
    ),
    "predicted": (
        *("y_pred", "pred", "preds", "prediction", "predictions", "predicted", "predicted_label", "pred_label"),
        *("predicted_class", "pred_class", "prediction_label", "label_pred", "label_predicted", "predicted_labels"),
        *("y_hat", "predict", "class_pred", "class_predicted", "y_predicted", "predicted_answer", "pred_answer"),
        *("model_prediction", "guess", "pred_y", "top1", "scored_labels"),
    ),
    "correct": (
        *("correct", "is_correct", "was_correct", "correctness", "answer_correct", "answered_correctly", "matched"),
        *("is_right", "was_right", "right", "is_match", "hit", "exact_match", "prediction_correct"),
        *("acc", "accuracy", "grade", "graded", "judgment", "judgement", "verdict"),
    ),
    "confidence": (
        *("confidence", "confidences", "conf", "confs", "confidence_score", "stated_confidence", "verbal_confidence"),
        *("model_confidence", "pred_confidence", "pred_conf", "prediction_confidence", "predicted_confidence"),
        *("max_prob", "prob_max", "max_probability", "max_proba", "top_prob", "top1_prob", "top_probability", "msp"),
        *("prob_pred", "prob_predicted", "certainty", "conf_score", "answer_confidence", "max_softmax"),
    ),
    "weight": ("weight", "weights", "sample_weight", "sample_weights", "case_weight", "obs_weight"),
    "group": ("group", "groups"),
    "cluster": ("cluster", "clusters"),
    "id": ("id", "ids", "row_id", "example_id", "sample_id", "uid", "idx", "index"),
}
WEAK_LABELS = (  # taken where no other column is one of labels
    *("class", "actual", "actuals", "outcome", "true", "expected", "expected_label", "reference", "observed", "obs"),
    *("answer_key", "gold_answer", "correct_answer", "category", "event", "answer"),
)
WEAK_PREDICTED = ("answer", "response", "model_answer", "model_response", "output", "choice", "completion")
WHOLE = {  # a list per row, or the one number of a binary classifier
    "probs": (
        *("probs", "prob", "probabilities", "probability", "proba", "probas", "y_prob", "y_proba", "y_probs"),
        *("y_score", "y_scores", "score", "scores", "p", "y_pred_proba", "y_pred_prob", "y_pred_probs", "pred_prob"),
        *("pred_probs", "pred_proba", "pred_probability", "predicted_prob", "predicted_proba"),
        *("predicted_probability", "predicted_probabilities", "prediction_probability", "prediction_prob", "p_hat"),
        *("pred_score", "predicted_score", "prediction_score", "model_score", "risk", "risk_score", "predict_proba"),
        *("class_probabilities", "class_probs", "softmax", "p_pred", "prob_score"),
        *("forecast", "forecast_prob", "predicted_risk", "prob_mean", "mean_prob", "scored_probabilities"),
    ),
    "logits": ("logits", "logit", "margin", "decision_function", "log_odds", "raw_logit", "raw_logits", "y_logit"),
}
PREFIXES = {  # what columns of one class each begin with
    "probs": (
        *("prob", "probs", "proba", "probas", "probability", "probabilities", "p", "y_prob", "y_proba", "y_probs"),
        *("y_pred_proba", "y_pred_prob", "pred_prob", "pred_probs", "pred_proba", "predicted_prob", "softmax"),
        *("predicted_proba", "predicted_probability", "prediction_prob", "class_prob", "p_class"),
    ),
    "logits": ("logit", "logits", "z", "y_logit", "raw_logit", "log_odds"),
}
WEAK_PREFIXES = (  # of columns whose rows must sum to 1
    *("prediction_score", "pred_score", "y_score", "score", "scores", "confidence", "conf", "pred", "y_pred"),
    *("output", "out", "class", "y_hat"),
)
LETTERS = ("p", "z")  # prefixes that other things begin with as well
NO_CLASSES = {  # ends of columns such as prob_max or p_value
    *("max", "min", "sum", "pred", "predicted", "top", "top1", "entropy", "margin", "std", "mean", "var", "value"),
    *("val", "values", "adj", "score", "threshold", "gap", "diff"),
}
OF_LABEL = ("label_", "target_", "y_", "y_true_", "true_")  # columns of several labels per example
MAX_AFFIXED_LABELS = 1000
ROLES = (*SINGLE, *WHOLE)
MAX_NAMED_COLUMNS = 10  # columns that are named one by one
CALIBRATED = "calibrated_"  # stands before what is written of calibrated scores


@dataclass(frozen=True)
class TableOptions:
    """Options for reading a table: which column plays which role, and what its cells mean.

    `columns` maps roles such as "label" to the name of a column. `positive` is the name of the positive class where
    there is a single score, `labels_from` the number of the first class. `percent` says that numbers lie in 0 .. 100,
    `normalize` divides rows of rounded probabilities by their sum, `drop` leaves out rows with missing values, `na`
    lists further words for a missing value, and `encoding` is that of a text file. `are_logits` says that scores of one
    per label are logits although all of them lie in [0, 1].
    """

    columns: Mapping[str, Any] = field(default_factory=dict[str, Any])
    positive: str | None = None
    labels_from: int | None = None
    percent: bool = False
    normalize: bool = False
    drop: bool = False
    na: tuple[str, ...] = ()
    encoding: str | None = None
    are_logits: bool = False
    ignore_index: int | None = None  # label of positions that are left out

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
        for role in (role for role in ROLES if role in used):
            _check_role(role, used[role])
        options = {name: _option_value(name, value) for name, value in used.items() if name in known}
        return cls(columns={role: used[role] for role in ROLES if role in used}, **options)


def _check_role(role: str, given: Any) -> None:
    """Raise `InputError` unless a role is given the name of a column, or scores the names of several."""
    several = role in WHOLE and isinstance(given, Iterable)
    names: tuple[Any, ...] = tuple(given) if several else (given,)  # pyright: ignore[reportUnknownArgumentType]
    if not all(isinstance(name, str) for name in names):
        wanted = "the names of columns" if role in WHOLE else "the name of a column"
        raise InputError(f"expected {wanted} for {role}, got {shorten(given)}", code="option_value")


OPTION_TYPES: dict[str, tuple[Any, str]] = {
    "positive": (str, "a name"),
    "labels_from": (int, "a whole number"),
    "ignore_index": (int, "a whole number"),
    "na": (str, "words"),
    "encoding": (str, "a name"),
}


def _option_value(name: str, value: Any) -> Any:
    """Return the value of a reading option in its type; raises `InputError` where it has another."""
    if name == "na" and not isinstance(value, str):
        words: tuple[Any, ...] = tuple(value) if isinstance(value, Iterable) else (value,)
    else:
        words = (value,)
    if name == "positive" and isinstance(value, int | float):
        words = (str(value),)
    if name != "positive" and isinstance(value, Integral) and value is not True and value is not False:
        words = (int(value),)  # of numpy, too
    kind, wanted = OPTION_TYPES.get(name, (bool, "True or False"))
    if any(not isinstance(word, kind) or (kind is not bool and isinstance(word, bool)) for word in words):
        raise InputError(f"expected {wanted} for {name}, got {value!r}", code="option_value")
    return words if name == "na" else words[0]


@dataclass(frozen=True)
class Columns:
    """The role of each column of a table."""

    label: str | None = None
    labels: tuple[str, ...] = ()  # of several labels per example, in the order of `scores`
    predicted: str | None = None  # beside a confidence, without `correct`
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
    given: frozenset[str] = frozenset()  # roles that the caller gave
    notes: tuple[str, ...] = ()  # how columns with more than one reading were read

    @property
    def text(self) -> str:
        """Return which column plays which role, and which have none."""
        parts = [f"{role} from {shorten(getattr(self, role))}" for role in SINGLE if getattr(self, role) is not None]
        if self.labels:
            parts.insert(0, f"labels from {some(self.labels)}")
        if self.scores:
            parts.insert(int(bool(self.labels or self.label)), f"{self.kind} from {some(self.scores)}")
        unused = [f"not used: {some(self.unused)}"] if self.unused else []
        return "; ".join([", ".join(parts), *self.notes, *unused])

    @property
    def used(self) -> list[str]:
        """Return the columns that have a role."""
        single = [getattr(self, role) for role in SINGLE]
        return [name for name in (*single, *self.labels, *self.scores) if name is not None]


@dataclass(frozen=True)
class ScoreColumns:
    """Columns that hold scores by their names: one per class, one of lists, or one number of a binary classifier."""

    kind: str  # probs or logits
    columns: tuple[str, ...]
    names: tuple[str, ...] = ()  # of the classes, one per column; none where the columns carry none
    weak: bool = False  # the name alone does not tell that these are scores


def key_of(name: str) -> str:
    """Return the letters and digits of a column's name in lower case, by which roles are found."""
    return re.sub(r"[\W_]+", "", name).lower()


KEYS = {role: {key_of(name): None for name in names} for role, names in SINGLE.items()}
WEAK_KEYS = {
    "label": {key_of(name) for name in WEAK_LABELS},
    "predicted": {key_of(name) for name in WEAK_PREDICTED},
}
WHOLE_KEYS = {kind: {key_of(name) for name in names} for kind, names in WHOLE.items()}


def is_index(name: str) -> bool:
    """Whether a column is the index that pandas writes."""
    return (
        not name.strip()
        or re.fullmatch(r"unnamed: \d+(\.\d+)?|level_\d+|__index_level_\d+__", name.lower()) is not None
    )


def candidates(role: str, free: Iterable[str]) -> list[str]:
    """Return the columns whose names tell a role, the usual name first."""
    order = list(KEYS[role])
    keys = {name: without_percent(key_of(name)) if role == "confidence" else key_of(name) for name in free}
    return sorted((name for name in keys if keys[name] in KEYS[role]), key=lambda name: order.index(keys[name]))


def without_percent(key: str) -> str:
    """Return the key of a column without "percent" at its end."""
    return re.sub(r"(pct|percent|percentage)$", "", key)


def weak_candidates(role: str, free: Iterable[str]) -> list[str]:
    """Return the columns that may hold labels, or predictions, where no other does."""
    return [name for name in free if key_of(name) in WEAK_KEYS[role]]


def single_scores(free: Sequence[str]) -> list[ScoreColumns]:
    """Return the columns that may hold a list of scores per row, or a single score."""
    found = [
        ScoreColumns(kind, (name,))
        for kind in WHOLE
        for name in free
        if without_percent(key_of(name)) in WHOLE_KEYS[kind]
    ]
    known = {group.columns[0] for group in found}
    for kind, prefixes in PREFIXES.items():
        for prefix in prefixes:
            group = [(name, after) for name in free if name not in known and (after := suffix_of(name, prefix))]
            if len(group) == 1 and group[0][1].lower() not in NO_CLASSES:
                found.append(ScoreColumns(kind, (group[0][0],), (group[0][1],), weak=prefix in LETTERS))
                known.add(group[0][0])
    return found


def class_columns(free: Sequence[str], labels: Iterable[str] = ()) -> list[ScoreColumns]:
    """Return the groups of columns with a score of one class each; `labels` are words known to be classes."""
    classes = {label.lower() for label in labels}
    found: list[ScoreColumns] = []
    ways = [(kind, prefix, False) for kind, prefixes in PREFIXES.items() for prefix in prefixes]
    for kind, prefix, weak in [*ways, *(("probs", prefix, True) for prefix in WEAK_PREFIXES)]:
        group = [(name, after) for name in free if (after := suffix_of(name, prefix))]
        group = [pair for pair in group if pair[1].lower() not in NO_CLASSES - classes]
        if weak:
            group = [pair for pair in group if pair[1].lower() in classes or plain_number(pair[1]) is not None]
        if len(group) > 1 and not any({*next(zip(*group))} & {*other.columns} for other in found):
            columns, names = zip(*group, strict=True)
            found.append(ScoreColumns(kind, columns, names, weak))
    return found


def affixed_classes(free: Sequence[str], labels: Sequence[str]) -> list[ScoreColumns]:
    """Return the columns that are named by a label, or a number, with the same text before and after it, if any.

    Such as cat and dog, cat_score and dog_score, or Forest (cat) and Forest (dog).
    """
    groups: dict[tuple[str, str], list[tuple[str, str]]] = {}
    words = sorted(filter(None, labels), key=len, reverse=True)[:MAX_AFFIXED_LABELS]
    pattern = re.compile("|".join([*map(re.escape, words), r"[0-9]+"]), re.IGNORECASE)
    for name in free:
        for found in pattern.finditer(name):
            before, after = name[: found.start()], name[found.end() :]
            if not (before[-1:].isalnum() or after[:1].isalnum()):
                groups.setdefault((before, after), []).append((name, found[0]))
    return [
        ScoreColumns("probs", tuple(name for name, _ in group), tuple(label for _, label in group), weak=True)
        for group in groups.values()
        if len(group) > 1
    ]


def named_after_a_class(free: Sequence[str], labels: Sequence[str]) -> list[ScoreColumns]:
    """Return the columns that hold the score of one class by their names, such as spam or spam_probability."""
    words = {label.lower() for label in labels}
    found: list[ScoreColumns] = []
    for name in free:
        match = re.fullmatch(r"(.+?)[_\s.\-](?:prob|proba|probability)", name, re.IGNORECASE)
        stem = match[1] if match else name
        if stem.lower() in words or (match and stem.lower() not in NO_CLASSES):
            found.append(ScoreColumns("probs", (name,), (stem,), weak=True))
    return found


def suffix_of(name: str, prefix: str) -> str:
    """Return what follows a prefix in the name of a column, such as "cat" in prob_cat, p(cat), prob cat; "" if none."""
    name = name.lstrip()
    if not name.lower().startswith(prefix):
        return ""
    rest = name[len(prefix) :]
    if rest.startswith("_"):
        return rest[1:]
    if rest.isascii() and rest.isdigit():
        return rest
    if found := re.fullmatch(r"\s*[(\[]\s*(?:(?:y|class|label)\s*={1,2}\s*)?(.+?)\s*[)\]]", rest):
        return found[1]
    if prefix not in LETTERS and (found := re.fullmatch(r"[\s.:\-]\s*(\S.*)", rest)):
        return found[1].strip()
    return ""


def given_scores(columns: Sequence[str], kind: str, value: Any) -> ScoreColumns:
    """Return the score columns that the caller gave: by name, or by what they begin with.

    Raises `InputError` if there are none.
    """
    if not isinstance(value, str):
        return ScoreColumns(kind, tuple(value), _class_names(tuple(value)))
    if value in columns:
        return ScoreColumns(kind, (value,), _class_names((value,)))
    begun = {name: name.lstrip() for name in columns if name.lstrip().lower().startswith(value.lower())}
    found = {name: rest for name, plain in begun.items() if (rest := plain[len(value) :])}
    return ScoreColumns(kind, tuple(found), tuple(found.values()))


def _class_names(columns: tuple[str, ...]) -> tuple[str, ...]:
    """Return what given columns call their classes after a usual prefix, or their whole names; () if they call none."""
    plain = [CALIBRATED + prefix for prefixes in PREFIXES.values() for prefix in prefixes]
    for prefix in [*(prefix for prefixes in PREFIXES.values() for prefix in prefixes), *plain]:
        names = tuple(suffix_of(name, prefix) for name in columns)
        if all(names):
            whole = key_of(columns[0].lower().removeprefix(CALIBRATED))
            return () if len(columns) == 1 and any(whole in keys for keys in WHOLE_KEYS.values()) else names
    return columns if len(columns) > 1 else ()


def ordered(group: ScoreColumns) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
    """Return class columns in the order of their numbers if they are numbered, and the names of the classes.

    Classes spelled 0 .. k-1 need no names. Raises `InputError` where one is there twice.
    """
    numbers = [plain_number(name) for name in group.names]
    if None in numbers or not numbers:
        return group.columns, group.names or None
    order = sorted(range(len(numbers)), key=lambda i: numbers[i] or 0.0)
    values = [numbers[i] or 0.0 for i in order]
    columns = tuple(group.columns[i] for i in order)
    if len(set(values)) < len(values):
        raise InputError(f"two columns are of one class: {some(columns)}", code="class_twice")
    names = tuple(group.names[i] for i in order)
    return columns, None if names == tuple(map(str, range(len(names)))) else names
