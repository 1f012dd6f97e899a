"""Options for reading a table, the roles of its columns, and the names by which columns are recognized.

A role is what a column holds: "label" is the true class, "predicted" the predicted one, "confidence" the stated
probability that an answer is right, and "correct" whether it was right. Scores are probabilities or logits of classes:
a group of columns with one class each, one column with a list per row, or a single score, that of the positive class of
two. A group of columns is weak if only its values can confirm that it holds scores.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, get_type_hints

import numpy as np

from calibrant._core.registry import describe_mismatch
from calibrant._core.text import parse_number, shorten_list, shorten_repr
from calibrant._core.types import InputError
from calibrant.predictions.events import KIND_BY_COLUMN
from calibrant.predictions.validation.columns import (
    CLASS_COLUMN_PREFIXES,
    CLASS_PREFIXES,
    SINGLE_LETTER_PREFIXES,
    common_class_names,
    parse_class_suffixes,
    strip_prefix,
)

ROLE_COLUMN_NAMES = {  # compared by letters and digits alone
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
        *("correct", "is_correct", "was_correct", "correctness", "answer_correct", "answered_correctly"),
        *KIND_BY_COLUMN,
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
WEAK_ROLE_COLUMN_NAMES = {  # used if no column has a name from the table above
    "label": (
        *("class", "actual", "actuals", "outcome", "true", "expected", "expected_label", "reference", "observed"),
        *("obs", "answer_key", "gold_answer", "correct_answer", "category", "event", "answer"),
    ),
    "predicted": ("answer", "response", "model_answer", "model_response", "output", "choice", "completion"),
}
SCORE_COLUMN_NAMES = {  # a list per row, or the single score of a binary classifier
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
WEAK_CLASS_COLUMN_PREFIXES = (  # of columns that are scores only if their rows sum to 1
    *("prediction_score", "pred_score", "y_score", "score", "scores", "confidence", "conf", "pred", "y_pred"),
    *("output", "out", "class", "y_hat"),
)
NON_CLASS_SUFFIXES = {  # as in prob_max or p_value
    *("max", "min", "sum", "pred", "predicted", "top", "top1", "entropy", "margin", "std", "mean", "var", "value"),
    *("val", "values", "adj", "score", "threshold", "gap", "diff"),
}
MULTILABEL_PREFIXES = ("label_", "target_", "y_", "y_true_", "true_")  # of columns with one of several labels each
COLUMN_ROLES = (*ROLE_COLUMN_NAMES, *SCORE_COLUMN_NAMES)
CALIBRATED_PREFIX = "calibrated_"  # of columns that `calibrant apply` adds
MAX_AFFIXED_LABELS = 1000


@dataclass(frozen=True)
class ScoreColumns:
    """A group of columns that hold scores: one per class, one of lists, or the single score of a binary classifier."""

    kind: str  # probs or logits
    columns: tuple[str, ...]
    names: tuple[str, ...] = ()  # class of each column, or empty if the names of the columns do not tell
    is_weak: bool = False  # the values must confirm that these are scores


def normalize_column_name(name: str) -> str:
    """Return the letters and digits of a column's name in lower case."""
    return re.sub(r"[\W_]+", "", name).lower()


def _strip_percent_suffix(key: str) -> str:
    """Return a normalized column name without "percent" or "pct" at its end."""
    return re.sub(r"(pct|percent|percentage)$", "", key)


_ANY_PREFIX = re.compile(  # one pass over tables of thousands of columns, instead of one for each prefix
    "|".join(rf"\s*{re.escape(text)}" for text in (*CLASS_PREFIXES, *WEAK_CLASS_COLUMN_PREFIXES)),
    re.IGNORECASE,
)
ROLE_COLUMN_KEYS = {role: [*map(normalize_column_name, names)] for role, names in ROLE_COLUMN_NAMES.items()}
WEAK_ROLE_COLUMN_KEYS = {role: {*map(normalize_column_name, names)} for role, names in WEAK_ROLE_COLUMN_NAMES.items()}
SCORE_COLUMN_KEYS = {kind: {*map(normalize_column_name, names)} for kind, names in SCORE_COLUMN_NAMES.items()}


def is_index_column(name: str) -> bool:
    """Whether a column is the index that pandas writes."""
    pattern = r"unnamed: \d+(\.\d+)?|level_\d+|__index_level_\d+__"
    return not name.strip() or re.fullmatch(pattern, name.lower()) is not None


def find_role_columns(role: str, column_names: Iterable[str]) -> list[str]:
    """Return the columns whose names stand for a role, the most common name first."""
    keys = {name: normalize_column_name(name) for name in column_names}
    if role == "confidence":  # as in confidence_pct
        keys = {name: _strip_percent_suffix(key) for name, key in keys.items()}
    order = ROLE_COLUMN_KEYS[role]
    return sorted((name for name in keys if keys[name] in order), key=lambda name: order.index(keys[name]))


def find_weak_role_columns(role: str, column_names: Iterable[str]) -> list[str]:
    """Return the columns that may hold labels, or predictions, if no other column does."""
    return [name for name in column_names if normalize_column_name(name) in WEAK_ROLE_COLUMN_KEYS[role]]


def find_single_score_columns(column_names: Sequence[str]) -> list[ScoreColumns]:
    """Return the columns that may hold a list of scores per row, or a single score, as groups of one column.

    They have the name of a score, such as `prob`, or are the only column with a prefix and a class, such as
    `prob_spam`.
    """
    groups = [
        ScoreColumns(kind, (name,))
        for kind in SCORE_COLUMN_NAMES
        for name in column_names
        if _strip_percent_suffix(normalize_column_name(name)) in SCORE_COLUMN_KEYS[kind]
    ]
    grouped_names = {group.columns[0] for group in groups}
    prefixed_names = [*filter(_ANY_PREFIX.match, column_names)]
    for kind, prefixes in CLASS_COLUMN_PREFIXES.items():
        for prefix in prefixes:
            class_by_column = _classes_by_column((name for name in prefixed_names if name not in grouped_names), prefix)
            name, class_name = next(iter(class_by_column.items()), ("", ""))
            if len(class_by_column) == 1 and class_name.lower() not in NON_CLASS_SUFFIXES:
                # Weak: other evidence must confirm that this is a score, since many names begin with p or z
                groups.append(ScoreColumns(kind, (name,), (class_name,), is_weak=prefix in SINGLE_LETTER_PREFIXES))
                grouped_names.add(name)
    return groups


def find_class_columns(column_names: Sequence[str], labels: Iterable[str] = ()) -> list[ScoreColumns]:
    """Return the groups of columns with a score of one class each, such as prob_cat and prob_dog.

    Classes are the texts after a common prefix, but not words such as `max`, unless `labels`, the known classes,
    include them. After a weak prefix, such as `score`, only known classes and numbers are classes. A column belongs to
    the group of the first prefix that fits.
    """
    known_classes = {label.lower() for label in labels}
    groups: list[ScoreColumns] = []
    prefixed_names = [*filter(_ANY_PREFIX.match, column_names)]
    # Kind of the scores, prefix, and whether the prefix is weak: the values must confirm such scores
    rules = [(kind, prefix, False) for kind, prefixes in CLASS_COLUMN_PREFIXES.items() for prefix in prefixes]
    rules += [("probs", prefix, True) for prefix in WEAK_CLASS_COLUMN_PREFIXES]
    for kind, prefix, is_weak in rules:
        class_by_column = {
            column: name
            for column, name in _classes_by_column(prefixed_names, prefix).items()
            if name.lower() in known_classes
            or (is_weak and parse_number(name) is not None)
            or (not is_weak and name.lower() not in NON_CLASS_SUFFIXES)
        }
        is_taken = any(class_by_column.keys() & {*group.columns} for group in groups)  # by an earlier prefix
        if len(class_by_column) > 1 and not is_taken:
            groups.append(ScoreColumns(kind, tuple(class_by_column), tuple(class_by_column.values()), is_weak))
    return groups


def find_affixed_class_columns(column_names: Sequence[str], labels: Sequence[str]) -> list[ScoreColumns]:
    """Return groups of columns whose names differ only in a class label or number, such as cat_score and dog_score.

    Other examples are cat and dog, and Forest (cat) and Forest (dog). The groups are weak: their values must confirm
    that they are probabilities.
    """
    # Classes by column, by the text before and after the class
    classes_by_affixes: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    # Longest first: an alternation takes the first match
    known_labels = sorted(filter(None, labels), key=len, reverse=True)[:MAX_AFFIXED_LABELS]
    pattern = re.compile("|".join([*map(re.escape, known_labels), r"[0-9]+"]), re.IGNORECASE)
    for name in column_names:
        for match in pattern.finditer(name):
            prefix, suffix = name[: match.start()], name[match.end() :]
            if not (prefix[-1:].isalnum() or suffix[:1].isalnum()):  # a whole word, unlike cat in category
                classes_by_affixes[prefix, suffix][name] = match[0]
    return [
        ScoreColumns("probs", tuple(classes), tuple(classes.values()), is_weak=True)
        for classes in classes_by_affixes.values()
        if len(classes) > 1
    ]


def find_columns_named_after_class(column_names: Sequence[str], labels: Sequence[str]) -> list[ScoreColumns]:
    """Return a group for each column that is named after one class: by a label, as spam, or by a suffix, as spam_prob.

    Before the suffix "prob", "proba" or "probability" stands any word except those such as "max". The groups are weak:
    their values must confirm that they are probabilities.
    """
    known_classes = {label.lower() for label in labels}
    groups: list[ScoreColumns] = []
    for name in column_names:
        match = re.fullmatch(r"(.+?)[_\s.\-](?:prob|proba|probability)", name, re.IGNORECASE)
        class_name = match[1] if match else name
        if class_name.lower() in known_classes or (match and class_name.lower() not in NON_CLASS_SUFFIXES):
            groups.append(ScoreColumns("probs", (name,), (class_name,), is_weak=True))
    return groups


def _classes_by_column(column_names: Iterable[str], prefix: str) -> dict[str, str]:
    """Return the class after a prefix by column, for the columns that have one. Few columns begin with the prefix."""
    candidates = [name for name in column_names if name.lstrip().lower().startswith(prefix)]
    return parse_class_suffixes(candidates, prefix) if candidates else {}


def explicit_score_columns(columns: Sequence[str], kind: str, value: Any) -> ScoreColumns:
    """Return the score columns that the caller chose.

    Args:
        columns: All columns of the table.
        kind: Kind of the scores, "probs" or "logits".
        value: Name of a column, or else the prefix of several, or a list of names.
    """
    if not isinstance(value, str) or value in columns:
        names = (value,) if isinstance(value, str) else tuple(value)
        return ScoreColumns(kind, names, _class_names_from_columns(names))
    class_names = {name: class_name for name in columns if (class_name := strip_prefix(name, value))}
    return ScoreColumns(kind, tuple(class_names), tuple(class_names.values()))


def _class_names_from_columns(columns: tuple[str, ...]) -> tuple[str, ...]:
    """Return the classes of columns that the caller chose, () if their names tell no class.

    Classes are the texts after a prefix that all names have, or else the whole names. A single column has no class if
    it is named as a score, such as pred_prob, or has no known prefix.
    """
    if len(columns) == 1:
        key = normalize_column_name(columns[0].lower().removeprefix(CALIBRATED_PREFIX))
        if any(key in keys for keys in SCORE_COLUMN_KEYS.values()):
            return ()
    prefixes = (*CLASS_PREFIXES, *(CALIBRATED_PREFIX + prefix for prefix in CLASS_PREFIXES))
    return common_class_names(columns, prefixes) or (columns if len(columns) > 1 else ())


def sort_class_columns(group: ScoreColumns) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
    """Return class columns and class names, sorted by number if all names are numbers.

    Names are None for the classes 0 .. k-1, which are then class indices, and for columns without names. Raises
    `InputError` if two columns are of one class, as with the names "1" and "1.0".
    """
    numbers = [number for name in group.names if (number := parse_number(name)) is not None]
    if len(numbers) < len(group.names) or not numbers:  # some names are words, or there are none
        return group.columns, group.names or None
    order = sorted(range(len(numbers)), key=numbers.__getitem__)
    columns = tuple(group.columns[i] for i in order)
    if len(set(numbers)) < len(numbers):
        raise InputError(f"Expected one column per class, got {shorten_list(columns)}.", code="class_twice")
    names = tuple(group.names[i] for i in order)
    return columns, None if names == tuple(map(str, range(len(names)))) else names


# Options and roles


@dataclass(frozen=True)
class TableOptions:
    """Options for reading a table: the roles of its columns, and the meaning of its cells."""

    columns: Mapping[str, Any] = field(default_factory=dict[str, Any])  # column name(s) by role
    positive: str | None = None  # name of the positive class of a single score
    labels_from: int | None = None  # number of the first class
    percent: bool = False  # probabilities are percentages
    normalize: bool = False  # divide rows of rounded probabilities by their sum
    drop: bool = False  # leave out rows with missing values
    na: tuple[str, ...] = ()  # further words for a missing value
    encoding: str | None = None  # of a text file; detected if None
    are_logits: bool = False  # single scores are logits although all of them lie in [0, 1]
    weights_are: str | None = None  # counts or importance, as for `Predictions`
    ignore_index: int | None = None  # label of rows that are left out
    task: tuple[str, ...] = ()  # tasks of evaluation logs to keep
    filter: tuple[str, ...] = ()  # alternative scoring in evaluation logs

    @classmethod
    def from_keywords(cls, keywords: Mapping[str, Any]) -> "TableOptions":
        """Build options from keywords, which include roles. Keywords that are None count as absent.

        Raises:
            InputError: If an option is unknown, or its value has another type.
        """
        values = {name: value for name, value in keywords.items() if value is not None}
        option_names = tuple(option.name for option in fields(cls) if option.name != "columns")
        if unknown_names := [name for name in values if name not in (*option_names, *COLUMN_ROLES)]:
            raise InputError(
                f"Expected one of the options {', '.join((*COLUMN_ROLES, *option_names))}, got {unknown_names[0]!r}.",
                code="unknown_option",
            )
        columns = {role: _check_role(role, values[role]) for role in COLUMN_ROLES if role in values}
        return cls(columns, **{name: _check_option(name, values[name]) for name in option_names if name in values})


def _check_role(role: str, value: Any) -> Any:
    """Return the value of a role: the name of a column, or several for the roles of scores.

    Raises:
        InputError: If the value is anything else.
    """
    accepts_list = role in SCORE_COLUMN_NAMES
    names: Iterable[Any] = value if accepts_list and isinstance(value, Iterable) else [value]
    if not all(isinstance(name, str) for name in names):
        expected = "names of columns" if accepts_list else "the name of a column"
        raise InputError(f"Expected {expected} for {role}, got {shorten_repr(value)}.", code="option_value")
    return value


def _check_option(name: str, value: Any) -> Any:
    """Return the value of an option in the type of its field, or raise `InputError` if it has another type.

    Some other spellings are converted first: integers of numpy, a single text where several are allowed, and a number
    as name of the positive class.
    """
    hint = get_type_hints(TableOptions)[name]
    if isinstance(value, np.integer):
        value = int(value)
    if hint == tuple[str, ...] and isinstance(value, Iterable):
        value = (value,) if isinstance(value, str) else tuple(value)
    if name == "positive" and isinstance(value, int | float):  # a class such as 1
        value = str(value)
    if expected := describe_mismatch(value, hint):
        raise InputError(f"Expected {name} as {expected}, got {shorten_repr(value)}.", code="option_value")
    return value


@dataclass(frozen=True)
class Columns:
    """The role of each column of a table."""

    label: str | None = None
    labels: tuple[str, ...] = ()  # several labels per row, in the order of `scores`
    predicted: str | None = None  # beside a confidence, if there is no `correct`
    correct: str | None = None
    confidence: str | None = None
    weight: str | None = None
    group: str | None = None
    cluster: str | None = None
    id: str | None = None
    kind: str = ""  # of the scores: probs or logits
    scores: tuple[str, ...] = ()  # one column per class, one of lists, or one with a single score
    names: tuple[str, ...] | None = None  # of the classes, if the columns carry them
    positive: str | None = None  # class that the column of a single score is named after
    unused_columns: tuple[str, ...] = ()
    explicit_roles: frozenset[str] = frozenset()  # roles that the caller assigned
    notes: tuple[str, ...] = ()  # sentences on columns whose role was inferred from their values

    @property
    def description(self) -> str:
        """The role of each column, and the columns without a role, as sentences."""
        # Labels and scores come first; the roles added below, "label" among them, keep these positions
        columns: dict[str, Any] = {"label": self.label, "labels": self.labels, self.kind: self.scores}
        columns |= {role: getattr(self, role) for role in ROLE_COLUMN_NAMES}
        parts = [
            f"{role} from {shorten_repr(names) if isinstance(names, str) else shorten_list(names)}"
            for role, names in columns.items()
            if names not in (None, ())
        ]
        unused = [f"Columns not used: {shorten_list(self.unused_columns)}."] if self.unused_columns else []
        return " ".join([", ".join(parts) + ".", *self.notes, *unused])

    @property
    def used_columns(self) -> list[str]:
        """The columns that have a role."""
        role_columns = [getattr(self, role) for role in ROLE_COLUMN_NAMES]
        return [name for name in (*role_columns, *self.labels, *self.scores) if name is not None]
