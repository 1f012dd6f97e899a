"""Find which columns of a table may play which role, by their names or as given."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from numbers import Integral
from typing import Any

from calibrant._text import parse_number, shorten_list, shorten_repr
from calibrant.types import InputError

ROLE_COLUMN_NAMES = {  # names of columns by role, compared by letters and digits alone
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
WEAK_LABEL_NAMES = (  # taken where no other column is one of labels
    *("class", "actual", "actuals", "outcome", "true", "expected", "expected_label", "reference", "observed", "obs"),
    *("answer_key", "gold_answer", "correct_answer", "category", "event", "answer"),
)
WEAK_PREDICTED_NAMES = ("answer", "response", "model_answer", "model_response", "output", "choice", "completion")
SCORE_COLUMN_NAMES = {  # a list per row, or the one number of a binary classifier
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
CLASS_COLUMN_PREFIXES = {  # what columns of one class each begin with
    "probs": (
        *("prob", "probs", "proba", "probas", "probability", "probabilities", "p", "y_prob", "y_proba", "y_probs"),
        *("y_pred_proba", "y_pred_prob", "pred_prob", "pred_probs", "pred_proba", "predicted_prob", "softmax"),
        *("predicted_proba", "predicted_probability", "prediction_prob", "class_prob", "p_class"),
    ),
    "logits": ("logit", "logits", "z", "y_logit", "raw_logit", "log_odds"),
}
WEAK_CLASS_COLUMN_PREFIXES = (  # of columns whose rows must sum to 1
    *("prediction_score", "pred_score", "y_score", "score", "scores", "confidence", "conf", "pred", "y_pred"),
    *("output", "out", "class", "y_hat"),
)
SINGLE_LETTER_PREFIXES = ("p", "z")  # prefixes that other things begin with as well
NON_CLASS_SUFFIXES = {  # ends of columns such as prob_max or p_value
    *("max", "min", "sum", "pred", "predicted", "top", "top1", "entropy", "margin", "std", "mean", "var", "value"),
    *("val", "values", "adj", "score", "threshold", "gap", "diff"),
}
MULTILABEL_PREFIXES = ("label_", "target_", "y_", "y_true_", "true_")  # columns of several labels per example
MAX_AFFIXED_LABELS = 1000
COLUMN_ROLES = (*ROLE_COLUMN_NAMES, *SCORE_COLUMN_NAMES)
MAX_LISTED_COLUMNS = 10  # columns that are named one by one
CALIBRATED_PREFIX = "calibrated_"  # stands before what is written of calibrated scores


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
    def from_keywords(cls, keywords: "Mapping[str, Any] | TableOptions | None" = None) -> "TableOptions":
        """Build options from keywords, roles of columns among them; keywords that are None count as absent.

        Raises `InputError` for unknown keywords and for values of the wrong kind.
        """
        if isinstance(keywords, TableOptions):
            return keywords
        values = {name: value for name, value in (keywords or {}).items() if value is not None}
        option_names = tuple(option.name for option in fields(cls) if option.name != "columns")
        if unknown_names := [name for name in values if name not in option_names and name not in COLUMN_ROLES]:
            raise InputError(
                f"unknown option {unknown_names[0]!r} for reading a table; expected one of "
                f"{', '.join((*COLUMN_ROLES, *option_names))}",
                code="unknown_option",
            )
        for role in (role for role in COLUMN_ROLES if role in values):
            _check_role(role, values[role])
        options = {name: _option_value(name, value) for name, value in values.items() if name in option_names}
        return cls(columns={role: values[role] for role in COLUMN_ROLES if role in values}, **options)


def _check_role(role: str, value: Any) -> None:
    """Raise `InputError` unless a role is given the name of a column, or scores the names of several."""
    has_several_names = role in SCORE_COLUMN_NAMES and isinstance(value, Iterable)
    names: tuple[Any, ...] = tuple(value) if has_several_names else (value,)  # pyright: ignore[reportUnknownArgumentType]
    if not all(isinstance(name, str) for name in names):
        expected = "the names of columns" if role in SCORE_COLUMN_NAMES else "the name of a column"
        raise InputError(f"expected {expected} for {role}, got {shorten_repr(value)}", code="option_value")


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
    option_type, expected = OPTION_TYPES.get(name, (bool, "True or False"))
    if any(not isinstance(word, option_type) or (option_type is not bool and isinstance(word, bool)) for word in words):
        raise InputError(f"expected {expected} for {name}, got {value!r}", code="option_value")
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
    unused_columns: tuple[str, ...] = ()
    explicit_roles: frozenset[str] = frozenset()  # roles that the caller gave
    notes: tuple[str, ...] = ()  # how columns with more than one reading were read

    @property
    def description(self) -> str:
        """Return which column plays which role, and which have none."""
        parts = [
            f"{role} from {shorten_repr(getattr(self, role))}"
            for role in ROLE_COLUMN_NAMES
            if getattr(self, role) is not None
        ]
        if self.labels:
            parts.insert(0, f"labels from {shorten_list(self.labels)}")
        if self.scores:
            parts.insert(int(bool(self.labels or self.label)), f"{self.kind} from {shorten_list(self.scores)}")
        unused_texts = [f"not used: {shorten_list(self.unused_columns)}"] if self.unused_columns else []
        return "; ".join([", ".join(parts), *self.notes, *unused_texts])

    @property
    def used_columns(self) -> list[str]:
        """Return the columns that have a role."""
        role_columns = [getattr(self, role) for role in ROLE_COLUMN_NAMES]
        return [name for name in (*role_columns, *self.labels, *self.scores) if name is not None]


@dataclass(frozen=True)
class ScoreColumns:
    """Columns that hold scores by their names: one per class, one of lists, or one number of a binary classifier."""

    kind: str  # probs or logits
    columns: tuple[str, ...]
    names: tuple[str, ...] = ()  # of the classes, one per column; none where the columns carry none
    is_weak: bool = False  # the name alone does not tell that these are scores


def normalize_column_name(name: str) -> str:
    """Return the letters and digits of a column's name in lower case, by which roles are found."""
    return re.sub(r"[\W_]+", "", name).lower()


ROLE_COLUMN_KEYS = {
    role: {normalize_column_name(name): None for name in names} for role, names in ROLE_COLUMN_NAMES.items()
}
WEAK_ROLE_COLUMN_KEYS = {
    "label": {normalize_column_name(name) for name in WEAK_LABEL_NAMES},
    "predicted": {normalize_column_name(name) for name in WEAK_PREDICTED_NAMES},
}
SCORE_COLUMN_KEYS = {
    kind: {normalize_column_name(name) for name in names} for kind, names in SCORE_COLUMN_NAMES.items()
}


def is_index_column(name: str) -> bool:
    """Whether a column is the index that pandas writes."""
    return (
        not name.strip()
        or re.fullmatch(r"unnamed: \d+(\.\d+)?|level_\d+|__index_level_\d+__", name.lower()) is not None
    )


def find_role_columns(role: str, column_names: Iterable[str]) -> list[str]:
    """Return the columns whose names tell a role, the usual name first."""
    order = list(ROLE_COLUMN_KEYS[role])
    keys = {
        name: strip_percent_suffix(normalize_column_name(name)) if role == "confidence" else normalize_column_name(name)
        for name in column_names
    }
    return sorted(
        (name for name in keys if keys[name] in ROLE_COLUMN_KEYS[role]), key=lambda name: order.index(keys[name])
    )


def strip_percent_suffix(key: str) -> str:
    """Return the key of a column without "percent" at its end."""
    return re.sub(r"(pct|percent|percentage)$", "", key)


def find_weak_role_columns(role: str, column_names: Iterable[str]) -> list[str]:
    """Return the columns that may hold labels, or predictions, where no other does."""
    return [name for name in column_names if normalize_column_name(name) in WEAK_ROLE_COLUMN_KEYS[role]]


def find_single_score_columns(column_names: Sequence[str]) -> list[ScoreColumns]:
    """Return the columns that may hold a list of scores per row, or a single score."""
    groups = [
        ScoreColumns(kind, (name,))
        for kind in SCORE_COLUMN_NAMES
        for name in column_names
        if strip_percent_suffix(normalize_column_name(name)) in SCORE_COLUMN_KEYS[kind]
    ]
    grouped_names = {group.columns[0] for group in groups}
    for kind, prefixes in CLASS_COLUMN_PREFIXES.items():
        for prefix in prefixes:
            group = [
                (name, class_name)
                for name in column_names
                if name not in grouped_names and (class_name := parse_class_suffix(name, prefix))
            ]
            if len(group) == 1 and group[0][1].lower() not in NON_CLASS_SUFFIXES:
                groups.append(
                    ScoreColumns(kind, (group[0][0],), (group[0][1],), is_weak=prefix in SINGLE_LETTER_PREFIXES)
                )
                grouped_names.add(group[0][0])
    return groups


def find_class_columns(column_names: Sequence[str], labels: Iterable[str] = ()) -> list[ScoreColumns]:
    """Return the groups of columns with a score of one class each; `labels` are words known to be classes."""
    classes = {label.lower() for label in labels}
    groups: list[ScoreColumns] = []
    prefix_rules = [(kind, prefix, False) for kind, prefixes in CLASS_COLUMN_PREFIXES.items() for prefix in prefixes]
    for kind, prefix, is_weak in [*prefix_rules, *(("probs", prefix, True) for prefix in WEAK_CLASS_COLUMN_PREFIXES)]:
        group = [(name, class_name) for name in column_names if (class_name := parse_class_suffix(name, prefix))]
        group = [pair for pair in group if pair[1].lower() not in NON_CLASS_SUFFIXES - classes]
        if is_weak:
            group = [pair for pair in group if pair[1].lower() in classes or parse_number(pair[1]) is not None]
        if len(group) > 1 and not any({*next(zip(*group))} & {*existing.columns} for existing in groups):
            columns, names = zip(*group, strict=True)
            groups.append(ScoreColumns(kind, columns, names, is_weak))
    return groups


def find_affixed_class_columns(column_names: Sequence[str], labels: Sequence[str]) -> list[ScoreColumns]:
    """Return the columns that are named by a label, or a number, with the same text before and after it, if any.

    Such as cat and dog, cat_score and dog_score, or Forest (cat) and Forest (dog).
    """
    groups: dict[tuple[str, str], list[tuple[str, str]]] = {}
    words = sorted(filter(None, labels), key=len, reverse=True)[:MAX_AFFIXED_LABELS]
    pattern = re.compile("|".join([*map(re.escape, words), r"[0-9]+"]), re.IGNORECASE)
    for name in column_names:
        for match in pattern.finditer(name):
            prefix, suffix = name[: match.start()], name[match.end() :]
            if not (prefix[-1:].isalnum() or suffix[:1].isalnum()):
                groups.setdefault((prefix, suffix), []).append((name, match[0]))
    return [
        ScoreColumns("probs", tuple(name for name, _ in group), tuple(label for _, label in group), is_weak=True)
        for group in groups.values()
        if len(group) > 1
    ]


def find_columns_named_after_class(column_names: Sequence[str], labels: Sequence[str]) -> list[ScoreColumns]:
    """Return the columns that hold the score of one class by their names, such as spam or spam_probability."""
    words = {label.lower() for label in labels}
    groups: list[ScoreColumns] = []
    for name in column_names:
        match = re.fullmatch(r"(.+?)[_\s.\-](?:prob|proba|probability)", name, re.IGNORECASE)
        stem = match[1] if match else name
        if stem.lower() in words or (match and stem.lower() not in NON_CLASS_SUFFIXES):
            groups.append(ScoreColumns("probs", (name,), (stem,), is_weak=True))
    return groups


def parse_class_suffix(name: str, prefix: str) -> str:
    """Return what follows a prefix in the name of a column, such as "cat" in prob_cat, p(cat), prob cat; "" if none."""
    name = name.lstrip()
    if not name.lower().startswith(prefix):
        return ""
    remainder = name[len(prefix) :]
    if remainder.startswith("_"):
        return remainder[1:]
    if remainder.isascii() and remainder.isdigit():
        return remainder
    if match := re.fullmatch(r"\s*[(\[]\s*(?:(?:y|class|label)\s*={1,2}\s*)?(.+?)\s*[)\]]", remainder):
        return match[1]
    if prefix not in SINGLE_LETTER_PREFIXES and (match := re.fullmatch(r"[\s.:\-]\s*(\S.*)", remainder)):
        return match[1].strip()
    return ""


def explicit_score_columns(columns: Sequence[str], kind: str, value: Any) -> ScoreColumns:
    """Return the score columns that the caller gave: by name, or by what they begin with.

    Raises `InputError` if there are none.
    """
    if not isinstance(value, str):
        return ScoreColumns(kind, tuple(value), _class_names_from_columns(tuple(value)))
    if value in columns:
        return ScoreColumns(kind, (value,), _class_names_from_columns((value,)))
    stripped_names = {name: name.lstrip() for name in columns if name.lstrip().lower().startswith(value.lower())}
    class_names = {
        name: remainder for name, stripped in stripped_names.items() if (remainder := stripped[len(value) :])
    }
    return ScoreColumns(kind, tuple(class_names), tuple(class_names.values()))


def _class_names_from_columns(column_names: tuple[str, ...]) -> tuple[str, ...]:
    """Return what given columns call their classes after a usual prefix, or their whole names; () if they call none."""
    calibrated_prefixes = [
        CALIBRATED_PREFIX + prefix for prefixes in CLASS_COLUMN_PREFIXES.values() for prefix in prefixes
    ]
    for prefix in [
        *(prefix for prefixes in CLASS_COLUMN_PREFIXES.values() for prefix in prefixes),
        *calibrated_prefixes,
    ]:
        names = tuple(parse_class_suffix(name, prefix) for name in column_names)
        if all(names):
            column_key = normalize_column_name(column_names[0].lower().removeprefix(CALIBRATED_PREFIX))
            return (
                ()
                if len(column_names) == 1 and any(column_key in keys for keys in SCORE_COLUMN_KEYS.values())
                else names
            )
    return column_names if len(column_names) > 1 else ()


def sort_class_columns(group: ScoreColumns) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
    """Return class columns in the order of their numbers if they are numbered, and the names of the classes.

    Classes spelled 0 .. k-1 need no names. Raises `InputError` where one is there twice.
    """
    numbers = [parse_number(name) for name in group.names]
    if None in numbers or not numbers:
        return group.columns, group.names or None
    order = sorted(range(len(numbers)), key=lambda i: numbers[i] or 0.0)
    values = [numbers[i] or 0.0 for i in order]
    columns = tuple(group.columns[i] for i in order)
    if len(set(values)) < len(values):
        raise InputError(f"two columns are of one class: {shorten_list(columns)}", code="class_twice")
    names = tuple(group.names[i] for i in order)
    return columns, None if names == tuple(map(str, range(len(names)))) else names
