"""Decide the role of each column of a table: by name, and by value where names are ambiguous.

The roles, and the words score and single score, are explained in `column_roles`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from calibrant._core.lazy import polars
from calibrant._core.text import shorten_list
from calibrant._core.types import InputError
from calibrant.io.cells import class_keys, comparable_class_keys
from calibrant.io.column_roles import (
    ROLE_COLUMN_NAMES,
    SCORE_COLUMN_NAMES,
    Columns,
    ScoreColumns,
    TableOptions,
    find_role_columns,
    find_weak_role_columns,
    is_index_column,
    normalize_column_name,
    sort_class_columns,
)
from calibrant.io.role_search import RoleSearch
from calibrant.io.score_columns import find_score_columns
from calibrant.predictions.validation.columns import strip_prefix
from calibrant.predictions.validation.labels import positive_word

MAX_LISTED_COLUMNS = 10


@np.errstate(invalid="ignore", over="ignore")  # infinities are refused later
def infer_columns(frame: Any, options: TableOptions, *, has_all_rows: bool = True) -> Columns:
    """Find the role of each column.

    Args:
        frame: A polars frame.
        options: Roles that the caller chose, and options for reading.
        has_all_rows: False if the frame is the head of a table, whose values decide nothing.

    Raises:
        InputError: If a chosen column is missing, or columns are ambiguous.
    """
    explicit = {role: _match_column_names(value, frame.columns) for role, value in options.columns.items()}
    _check_explicit_columns(frame.columns, explicit)
    roles = {role: explicit[role] for role in ROLE_COLUMN_NAMES if role in explicit}
    search = RoleSearch(frame, replace(options, columns=explicit), has_all_rows, roles)
    for role in ROLE_COLUMN_NAMES:
        if role not in search.roles and (name := _find_role_by_name(search, role)) is not None:
            search = search.with_role(role, name)  # no longer a candidate for the next roles
    search, scores = find_score_columns(search)
    if scores is None:
        return _build_columns(search)
    multilabel_columns = ()
    if "label" not in search.roles:
        is_single_score = len(scores.columns) == 1 and not search.is_list(scores.columns[0])
        multilabel_columns = () if is_single_score else _find_multilabel_columns(search, scores)
        if not multilabel_columns:
            search = _assign_remaining_column_to_label(search, scores)
    return _build_columns(search, scores, multilabel_columns)


def _match_column_names(value: Any, columns: Sequence[str]) -> Any:
    """Return a chosen name, or several, as the table spells them if they differ in case and surrounding blanks only.

    Names that match no column, or several, are returned unchanged.
    """
    if not isinstance(value, str):
        return tuple(_match_column_names(name, columns) for name in value)
    matches = [name for name in columns if name.strip().lower() == value.strip().lower()]
    return matches[0] if value not in columns and len(matches) == 1 else value


def _check_explicit_columns(columns: Sequence[str], explicit_columns: Mapping[str, Any]) -> None:
    """Raise `InputError` if a chosen column, or prefix of scores, is missing or has two roles."""
    roles: dict[str, str] = {}
    for role, value in explicit_columns.items():
        for name in [value] if isinstance(value, str) else value:
            may_be_prefix = role in SCORE_COLUMN_NAMES and isinstance(value, str) and value != ""
            is_prefix = may_be_prefix and any(strip_prefix(column, name) for column in columns)
            if name not in columns and not is_prefix:
                raise InputError(
                    f"Expected one of the columns {shorten_list(columns)} for {role}, got {name!r}.", code="no_column"
                )
            if roles.setdefault(name, role) != role:
                raise InputError(
                    f"Expected one role for column {name!r}, got {roles[name]} and {role}.", code="column_twice"
                )


def _build_columns(
    search: RoleSearch, scores: ScoreColumns | None = None, multilabel_columns: tuple[str, ...] = ()
) -> Columns:
    """Return the roles of all columns, after the search for scores and labels.

    Scores make a confidence superfluous. With a confidence, labels and predictions are needed only if no column tells
    which answers were correct.

    Args:
        search: The table, and the roles found by name.
        scores: The columns of scores, None if the table has a confidence instead.
        multilabel_columns: Columns of several labels per row, one for each score column; () for a single label.

    Raises:
        InputError: If a column is used whose name the table has twice.
    """
    dropped_roles: tuple[str, ...] = ("label", "predicted")
    if scores is not None:
        dropped_roles = ("confidence", "correct", "predicted")
    elif "correct" not in search.roles and {"label", "predicted"} <= search.roles.keys():
        dropped_roles = ()  # an answer is correct if the two are equal
    fields: dict[str, Any] = {}
    if scores is not None:
        # Several label columns belong to the score columns by position, so the score columns keep their order
        score_columns, names = (scores.columns, scores.names) if multilabel_columns else sort_class_columns(scores)
        fields = {"kind": scores.kind, "scores": score_columns, "names": names}
        if len(score_columns) == 1 and not search.is_list(score_columns[0]):
            # A single score belongs to the positive class of two, and the name of its column may name this class
            fields |= {"names": None, "positive": search.positive or next(iter(scores.names), None)}
    roles = {role: name for role, name in search.roles.items() if role not in dropped_roles}
    columns = search.frame.columns
    used_columns = {*roles.values(), *fields.get("scores", ()), *multilabel_columns}
    # Readers rename the second of two columns with the same name
    if repeated := [name for name in columns if name in used_columns and f"{name}_duplicated_0" in columns]:
        raise InputError(f"Expected one column {repeated[0]!r}, got two. Try to rename one.", code="column_twice")
    unused_columns = tuple(name for name in columns if name not in used_columns and not is_index_column(name))
    fields |= {"explicit_roles": frozenset(search.explicit_roles), "notes": search.notes}
    return Columns(**roles, **fields, labels=multilabel_columns, unused_columns=unused_columns)


# Single columns by name


def _find_role_by_name(search: RoleSearch, role: str) -> str | None:
    """Return the column with the name of a role, or None without such a column.

    Several columns may have such names if all their values are the same: then the first is returned. Ids may differ.

    Raises:
        InputError: If several columns differ, or may differ in rows that are not read yet.
    """
    matches = find_role_columns(role, search.unassigned_columns)
    if role == "label":
        matches = _find_label_columns(search, matches)
    if role == "predicted":  # a column `prediction` of fractions holds scores
        matches = [name for name in matches if not search.has_fractions(name)] or _find_weak_predicted(search)
    if role in ("predicted", "correct", "confidence"):
        matches = [name for name in matches if not search.is_list(name)]
    if role == "id":
        matches = [name for name in matches if not search.frame[name].dtype.is_nested()]
    if len(matches) < 2 or role == "id":
        return next(iter(matches), None)
    first, *duplicates = matches
    if search.has_all_rows and all(_are_equivalent(search, role, first, name) for name in duplicates):
        return first
    true_names = (name for name in matches if re.search("true|truth|gold|actual", normalize_column_name(name)))
    suggestion = next(true_names, first)
    raise InputError(
        f"Expected one column for {role}, got {shorten_list(matches)}. Try {role}={suggestion!r} "
        f"(--{role} {suggestion}).",
        code="ambiguous_columns",
    )


def _find_label_columns(search: RoleSearch, matches: list[str]) -> list[str]:
    """Return the columns that may be the label.

    These are `matches`, with names such as `y_true`, and columns with weaker names, such as `class`, if all their
    classes occur in the first match: such a column may be the label as well, so that the names do not decide. Without
    matches, they are all columns with weaker names.
    """
    matches = _filter_label_columns(search, matches)
    # The column `answer` is the label beside predictions, and else the prediction
    has_predicted = bool(find_role_columns("predicted", search.unassigned_columns))
    weak_matches = [
        name
        for name in _filter_label_columns(search, find_weak_role_columns("label", search.unassigned_columns))
        if normalize_column_name(name) != "answer" or has_predicted
    ]
    if not matches:
        return weak_matches
    return [*matches, *(name for name in weak_matches if _has_only_classes_of(search, name, matches[0]))]


def _filter_label_columns(search: RoleSearch, names: list[str]) -> list[str]:
    """Return the columns without those of fractions, dates and lists, or all columns if none would remain."""

    def is_unlikely(name: str) -> bool:
        """Whether a column holds values that are hardly classes."""
        return search.has_fractions(name) or search.is_list(name) or search.frame[name].dtype.is_temporal()

    return [name for name in names if not is_unlikely(name)] or names


def _has_only_classes_of(search: RoleSearch, name: str, label: str) -> bool:
    """Whether a column has several classes, all of which occur in the label, and so may be the label as well."""
    if not search.has_all_rows or search.is_list(name) or search.is_list(label):
        return False
    values = {*search.classes(name)}
    return len(values) > 1 and values <= {*search.classes(label)}


def _find_weak_predicted(search: RoleSearch) -> list[str]:
    """Return columns such as `answer` that may be predictions because all their values are labels."""
    labels = {*search.label_texts()}
    candidates = find_weak_role_columns("predicted", search.unassigned_columns) if labels else []
    return [name for name in candidates if not search.is_list(name) and {*search.classes(name)} <= labels]


def _are_equivalent(search: RoleSearch, role: str, first: str, second: str) -> bool:
    """Whether two columns have the same values, or the same classes by other names."""
    a, b = search.frame[first], search.frame[second]
    if role not in ("label", "predicted"):
        return bool((class_keys(a) == class_keys(b)).all())
    # Each class of one column must occur beside a single class of the other: then all three counts are equal
    if not a.n_unique() == b.n_unique() == search.frame.select(first, second).n_unique():
        return False
    if a.dtype.is_nested() or b.dtype.is_nested():  # lists have no names to compare
        return True
    keys, other_keys = comparable_class_keys(a, b)
    has_other_names = {*np.unique(keys).tolist()} != {*np.unique(other_keys).tolist()}
    # Equal names must stand in the same rows: columns in which 0 and 1 are exchanged contradict each other
    return has_other_names or bool((keys == other_keys).all())


# Labels beside scores


def _find_multilabel_columns(search: RoleSearch, scores: ScoreColumns) -> tuple[str, ...]:
    """Return columns of several labels per row, one for each class of the scores, or () if there are none.

    They have a prefix such as label_, or the names of the classes alone, if they hold 0 and 1 or false and true.
    """
    prefixed, names = search.multilabel_columns(scores), tuple(scores.names)
    have_columns = names and {*names} <= {*search.unassigned_columns} - {*scores.columns}
    if prefixed or not search.has_all_rows or not have_columns:
        return prefixed
    columns = [search.frame[name].drop_nulls() for name in names]
    are_numbers = all(column.dtype.is_numeric() or column.dtype == polars.Boolean for column in columns)
    are_binary = are_numbers and all({*column.unique().to_list()} <= {0, 1} for column in columns)
    return names if are_binary else ()


def _assign_remaining_column_to_label(search: RoleSearch, scores: ScoreColumns) -> RoleSearch:
    """Return the search, with the only other column of a table as the label if it holds classes.

    Its values are classes of the score columns, or two classes of which one means yes, beside one or two score columns.
    """
    remaining = [name for name in search.unassigned_columns if name not in scores.columns]
    if not search.has_all_rows or len(remaining) != 1:
        return search
    (column,) = remaining
    if search.is_list(column) or search.has_fractions(column):
        return search
    classes = search.classes(column)
    names = {name.lower() for name in scores.names}
    is_binary = len(classes) == 2 and positive_word(classes) is not None and len(scores.columns) < 3
    if is_binary or (names and {name.lower() for name in classes} <= names):
        return search.with_role("label", column, f"The label is the only other column, {column!r}.")
    return search


# Descriptions and requirements


def describe_roles(columns: Columns, names: Sequence[str]) -> list[tuple[str, str]]:
    """Return each column of a table, in their order, with a text of its role, or "not used".

    Scores of several classes name their class. In a multi-label table, each column of `columns.labels` tells whether
    its own class is present.
    """
    roles = {getattr(columns, role): role for role in ROLE_COLUMN_NAMES}  # by column; None for roles without one
    classes = columns.names or tuple(map(str, range(len(columns.scores))))
    for name, class_name in zip(columns.scores, classes, strict=True):
        roles[name] = f"{columns.kind} of class {class_name}" if len(columns.scores) > 1 else columns.kind
    roles |= dict.fromkeys(columns.labels, "label of its class")
    return [(name, roles.get(name, "not used")) for name in names]


def require_labels(columns: Columns, frame: Any) -> None:
    """Raise `InputError` if a table has no scores, or neither true labels nor correctness to compare them with."""
    names = [name for name in frame.columns if not is_index_column(name)]
    if columns.scores:
        if columns.label is None and not columns.labels:
            raise InputError(
                f"Expected a column of true labels beside {shorten_list(columns.scores)}, got columns "
                f"{shorten_list(names)}. Try label= with its name (--label NAME).",
                code="no_labels",
            )
    elif columns.confidence is None:
        raise InputError(_missing_scores_message(columns, names), code="no_scores")
    elif columns.correct is None and columns.predicted is None:
        raise InputError(_missing_correct_message(columns), code="no_correct")


def leave_out_empty_labels(columns: Columns, frame: Any) -> Columns:
    """Remove the column of correctness, or else of labels, from the roles if all its values are missing."""
    truth = columns.label if columns.correct is None else columns.correct
    if truth is None or len(frame) == 0 or frame[truth].null_count() < len(frame):
        return columns
    # the same column may have several of these roles
    empty_roles = [role for role in ("label", "correct", "predicted") if getattr(columns, role) == truth]
    return replace(columns, **dict.fromkeys(empty_roles))


def _missing_correct_message(columns: Columns) -> str:
    """Return the message for a column of confidences without a column that tells which answers were correct."""
    expected = f"Expected a column beside {columns.confidence!r} that tells whether the answer was correct"
    label = next(iter(find_role_columns("label", columns.unused_columns)), None)
    if label is None:
        return f"{expected}. Try correct= or predicted= with label= (--correct NAME)."
    return (
        f"{expected}, or what was predicted. Try predicted= (--predicted NAME); --correct {label} if {label!r} is 1 "
        f"for correct answers; or --probs {columns.confidence} if that is the probability of class 1."
    )


def _missing_scores_message(columns: Columns, names: Sequence[str]) -> str:
    """Return the message for a table whose columns have none of the known names of scores."""
    found_text = f"got columns {shorten_list(names, MAX_LISTED_COLUMNS)}"
    if columns.correct is not None:
        expected = f"Expected a column of confidences beside {columns.correct!r}"
        return f"{expected}, {found_text}. Try confidence= (--confidence NAME)."
    return (
        "Expected a column of labels with probabilities (prob_0, prob_1, ... or prob_cat, ...), logits (logit_0, ...) "
        f"or a confidence with whether it was correct; {found_text}. Try label= with probs=, logits= or confidence=, "
        "or confidence= with correct= (--label, --probs, --logits, --confidence and --correct)."
    )
