"""Decide which column of a table plays which role: by name, and by value where names have more than one reading."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from calibrant._text import shorten_list
from calibrant._validation.labels import positive_word
from calibrant.io.cells import MIN_TOP_CLASS_ROWS, class_keys, is_list, to_numbers, to_probabilities
from calibrant.io.columns import (
    MAX_LISTED_COLUMNS,
    MULTILABEL_PREFIXES,
    NON_CLASS_SUFFIXES,
    ROLE_COLUMN_NAMES,
    SCORE_COLUMN_NAMES,
    Columns,
    ScoreColumns,
    TableOptions,
    explicit_score_columns,
    find_affixed_class_columns,
    find_class_columns,
    find_columns_named_after_class,
    find_role_columns,
    find_single_score_columns,
    find_weak_role_columns,
    is_index_column,
    normalize_column_name,
    parse_class_suffix,
    sort_class_columns,
)
from calibrant.types import InputError

MIN_SEPARATED_ROWS = 5  # rows on either side of a threshold that is no accident
MIN_BINARY_ROWS, MIN_ROWS_BELOW_HALF = 8, 3  # rows, and rows below one half, from which two classes are no accident
PROBABILITY_SUM_TOLERANCE = 0.03


@np.errstate(invalid="ignore", over="ignore")  # infinities are refused later
def infer_columns(frame: Any, options: TableOptions | None = None, *, has_all_rows: bool = True) -> Columns:
    """Find the role of each column of a polars frame.

    `whole` is false where the frame is only the head of a table: then nothing is decided by values.

    Raises `InputError` where a given column is missing, or columns have more than one reading.
    """
    options = options or TableOptions()
    explicit_columns = {role: _match_column_names(value, frame.columns) for role, value in options.columns.items()}
    return _RoleSearch(frame, replace(options, columns=explicit_columns), has_all_rows).assign_roles()


def _match_column_names(value: Any, columns: Sequence[str]) -> Any:
    """Return given names as the table has them, where they differ in capitals and blanks around them alone."""
    if not isinstance(value, str):
        return tuple(_match_column_names(name, columns) for name in value)
    matches = [name for name in columns if name.strip().lower() == value.strip().lower()]
    return matches[0] if value not in columns and len(matches) == 1 else value


@dataclass
class _RoleSearch:
    frame: Any
    options: TableOptions
    has_all_rows: bool
    roles: dict[str, str] = field(default_factory=dict[str, str])
    notes: list[str] = field(default_factory=list[str])
    positive: str | None = None  # the class whose probability a single score evidently is

    @property
    def explicit_roles(self) -> Mapping[str, Any]:
        return self.options.columns

    @property
    def unassigned_columns(self) -> list[str]:
        """Return the columns that have no role yet."""
        assigned_columns = {
            name for value in self.explicit_roles.values() for name in ([value] if isinstance(value, str) else value)
        }
        assigned_columns |= set(self.roles.values())
        return [name for name in self.frame.columns if name not in assigned_columns and not is_index_column(name)]

    def assign_roles(self) -> Columns:
        """Return the role of every column."""
        _check_explicit_columns(self.frame.columns, self.explicit_roles)
        self.roles |= {
            role: str(self.explicit_roles[role]) for role in ROLE_COLUMN_NAMES if role in self.explicit_roles
        }
        for role in ROLE_COLUMN_NAMES:
            if role not in self.roles and (name := self._find_role_by_name(role)) is not None:
                self.roles[role] = name
        scores = self._find_score_columns()
        if scores is None:
            return self._build_columns("", (), None, None)
        columns, names = sort_class_columns(scores)
        is_single_score = len(columns) == 1 and not self._is_list(columns[0])
        if is_single_score:
            if not self._has_label():
                self._assign_remaining_column_to_label(scores)
            positive = self.positive or (scores.names[0] if scores.names else None)
            return self._build_columns(scores.kind, columns, None, positive)
        labels = () if self._has_label() else self._find_multilabel_columns(scores)
        if not labels and not self._has_label():
            self._assign_remaining_column_to_label(scores)
        if labels:
            return self._build_columns(scores.kind, scores.columns, scores.names, None, labels)
        return self._build_columns(scores.kind, columns, names, None)

    def _find_multilabel_columns(self, scores: ScoreColumns) -> tuple[str, ...]:
        """Return the columns of several labels per example, called as with a prefix or as the classes alone."""
        import polars

        label_columns = _find_prefixed_label_columns(self.frame.columns, scores)
        class_names = tuple(scores.names)
        if (
            label_columns
            or not self.has_all_rows
            or not class_names
            or not set(class_names) <= set(self.unassigned_columns) - set(scores.columns)
        ):
            return label_columns
        columns = [self.frame[name].drop_nulls() for name in class_names]
        are_numeric = all(column.dtype.is_numeric() or column.dtype == polars.Boolean for column in columns)
        return (
            class_names if are_numeric and all(set(column.unique().to_list()) <= {0, 1} for column in columns) else ()
        )

    def _assign_remaining_column_to_label(self, scores: ScoreColumns) -> None:
        """Take the only other column of a table for the label if it holds classes."""
        remaining_columns = [name for name in self.unassigned_columns if name not in scores.columns]
        if (
            not self.has_all_rows
            or len(remaining_columns) != 1
            or self._is_list(remaining_columns[0])
            or self._has_fractions(remaining_columns[0])
        ):
            return
        unique_labels = np.unique(class_keys(self.frame[remaining_columns[0]].drop_nulls())).tolist()
        names = {name.lower() for name in scores.names}
        is_binary = len(unique_labels) == 2 and positive_word(unique_labels) is not None and len(scores.columns) < 3
        if is_binary or (names and {label.lower() for label in unique_labels} <= names):
            self.roles["label"] = remaining_columns[0]
            self.notes.append(f"label is the only other column, {remaining_columns[0]!r}")

    def _has_label(self) -> bool:
        return "label" in self.roles

    def _build_columns(
        self,
        kind: str,
        scores: tuple[str, ...],
        names: tuple[str, ...] | None,
        positive: str | None,
        labels: tuple[str, ...] = (),
    ) -> Columns:
        dropped_roles = ("confidence", "correct", "predicted") if kind else ("label", "predicted")
        if not kind and "correct" not in self.roles and {"label", "predicted"} <= self.roles.keys():
            dropped_roles = ()
        roles = {role: name for role, name in self.roles.items() if role not in dropped_roles}
        used_columns = {*roles.values(), *scores, *labels}
        if duplicate_names := [
            name for name in self.frame.columns if name in used_columns and f"{name}_duplicated_0" in self.frame.columns
        ]:
            raise InputError(f"two columns are called {duplicate_names[0]!r}: rename one of them", code="column_twice")
        unused_columns = tuple(
            name for name in self.frame.columns if name not in used_columns and not is_index_column(name)
        )
        score_fields: dict[str, Any] = {"kind": kind, "scores": scores, "names": names, "positive": positive}
        score_fields |= {"explicit_roles": frozenset(self.explicit_roles), "notes": tuple(self.notes)}
        return Columns(**roles, labels=labels, unused_columns=unused_columns, **score_fields)

    # Single columns

    def _find_role_by_name(self, role: str) -> str | None:
        matches = find_role_columns(role, self.unassigned_columns)
        if role == "label":
            matches, weak_matches = self._filter_label_columns(matches), self._find_weak_label_columns()
            matches = (
                [*matches, *(name for name in weak_matches if self._has_only_label_classes(name, matches[0]))]
                if matches
                else weak_matches
            )
        if role == "predicted":
            matches = [name for name in matches if not self._has_fractions(name)] or self._find_weak_predicted_columns()
        if role in ("predicted", "correct", "confidence"):
            matches = [name for name in matches if not self._is_list(name)]
        return (
            matches[0]
            if (len(matches) < 2 and matches) or (role == "id" and matches)
            else self._first_of_equivalent(role, matches)
        )

    def _find_weak_label_columns(self) -> list[str]:
        """Return columns such as `class`; `answer` only beside predictions."""
        matches = self._filter_label_columns(find_weak_role_columns("label", self.unassigned_columns))
        predicted_columns = find_role_columns("predicted", self.unassigned_columns)
        return [name for name in matches if normalize_column_name(name) != "answer" or predicted_columns]

    def _find_weak_predicted_columns(self) -> list[str]:
        """Return columns such as `answer` that hold nothing but labels."""
        label_texts = set(self._label_texts())
        matches = [
            name
            for name in find_weak_role_columns("predicted", self.unassigned_columns)
            if label_texts and not self._is_list(name)
        ]
        return [
            name for name in matches if {*np.unique(class_keys(self.frame[name].drop_nulls())).tolist()} <= label_texts
        ]

    def _filter_label_columns(self, names: list[str]) -> list[str]:
        """Leave out columns of fractions, dates and lists where others remain."""
        label_columns = [
            n for n in names if not (self._has_fractions(n) or self._is_list(n) or self.frame[n].dtype.is_temporal())
        ]
        return label_columns or names

    def _has_only_label_classes(self, name: str, label: str) -> bool:
        """Whether a column holds classes of the label only, and so may be the label as well."""
        if not self.has_all_rows or self._is_list(name) or self._is_list(label):
            return False
        values, classes = (
            {*np.unique(class_keys(self.frame[column_name].drop_nulls()))} for column_name in (name, label)
        )
        return len(values) > 1 and values <= classes

    def _first_of_equivalent(self, role: str, names: list[str]) -> str | None:
        """Return the first of several columns that say the same; raises `InputError` where they do not."""
        if not names:
            return None
        first, *other_names = names
        suggestion = next(
            (name for name in names if re.search("true|truth|gold|actual", normalize_column_name(name))), first
        )
        if self.has_all_rows and all(self._are_equivalent(role, first, other_name) for other_name in other_names):
            return first
        option = role.replace("_", "-")
        raise InputError(
            f"columns {shorten_list(names)} could each be the {role}. Try {role}={suggestion!r} (on the command line, "
            f"--{option} {suggestion})",
            code="ambiguous_columns",
        )

    def _are_equivalent(self, role: str, first: str, second: str) -> bool:
        a, b = self.frame[first], self.frame[second]
        if role in ("label", "predicted"):
            return a.n_unique() == b.n_unique() == self.frame.select(first, second).n_unique()
        return bool((class_keys(a) == class_keys(b)).all())

    def _has_fractions(self, name: str) -> bool:
        column = self.frame[name]
        return column.dtype.is_float() and bool((column != column.round(0)).any())

    def _is_list(self, name: str) -> bool:
        return is_list(self.frame[name])

    # Scores

    def _find_score_columns(self) -> ScoreColumns | None:
        """Return the columns of scores; None where a confidence stands in their place."""
        explicit_kinds = [kind for kind in SCORE_COLUMN_NAMES if kind in self.explicit_roles]
        answer_roles = [role for role in ("confidence", "correct") if role in self.explicit_roles]
        if len(explicit_kinds) > 1 or (explicit_kinds and answer_roles):
            conflicting_roles = " and ".join([*explicit_kinds, *answer_roles][:2])
            raise InputError(
                f"expected probs, logits or confidence, got {conflicting_roles}. Try one of them.", code="two_readings"
            )
        if explicit_kinds:
            return explicit_score_columns(self.frame.columns, explicit_kinds[0], self.explicit_roles[explicit_kinds[0]])
        if answer_roles:
            self._assign_confidence()
            return None
        if (group := self._choose_class_columns()) is not None:
            return group
        singles = self._find_single_scores()
        if not singles and "confidence" not in self.roles and self.has_all_rows:
            if (group := self._find_unprefixed_class_columns()) is not None:
                return group
            singles = self._find_column_named_after_class()
        return self._resolve_single_score(singles)

    def _assign_confidence(self) -> None:
        if "confidence" in self.roles:
            return
        singles = [group for group in self._find_single_scores() if group.kind == "probs"]
        if len(singles) == 1:
            self.roles["confidence"] = singles[0].columns[0]

    def _choose_class_columns(self) -> ScoreColumns | None:
        """Return the columns with a score of each class, or of a list per row, where there is one such group."""
        has_answers = {"confidence", "correct"} <= self.roles.keys() and not self._has_label()
        list_groups = [
            group for group in find_single_score_columns(self.unassigned_columns) if self._is_list(group.columns[0])
        ]
        groups = [*self._find_class_column_groups(), *list_groups]
        certain_groups = [group for group in groups if not group.is_weak]
        if not certain_groups and self.has_all_rows and "confidence" not in self.roles:
            certain_groups = [group for group in groups if self._rows_sum_to_one(group.columns)]
        if has_answers and not self._has_prefixed_labels(certain_groups):
            return None
        if len(certain_groups) == 2 and self._probs_match_logits(*certain_groups):
            self.notes.append("probabilities and logits agree; the logits are read")
            return next(group for group in certain_groups if group.kind == "logits")
        if len(certain_groups) > 1:
            groups_text = " or ".join(f"{group.kind} in {shorten_list(group.columns)}" for group in certain_groups)
            raise InputError(
                f"found {groups_text}; say which: probs= or logits= (on the command line, --probs or --logits)",
                code="ambiguous_columns",
            )
        return certain_groups[0] if certain_groups else None

    def _probs_match_logits(self, first: ScoreColumns, second: ScoreColumns) -> bool:
        """Whether one group holds the probabilities of the other's logits."""
        if (
            not self.has_all_rows
            or {first.kind, second.kind} != {*SCORE_COLUMN_NAMES}
            or first.names != second.names
            or not first.names
        ):
            return False
        logits, probs = (first, second) if first.kind == "logits" else (second, first)
        z = np.stack([to_numbers(self.frame[name]).to_numpy() for name in logits.columns], 1).astype(float)
        p = np.stack([to_probabilities(self.frame[name], self.options) for name in probs.columns], 1)
        exp_logits = np.exp(z - z.max(1, keepdims=True))
        return bool((abs(exp_logits / exp_logits.sum(1, keepdims=True) - p) < 1e-2).all())

    def _find_class_column_groups(self) -> list[ScoreColumns]:
        """Return groups of one column per class; prob_max and the like belong to them where the values show it."""
        words, free = self._label_texts(), self.unassigned_columns
        groups = find_class_columns(free, words)
        is_confidence_inferred = "confidence" in self.roles and "confidence" not in self.explicit_roles
        confidence_column = self.roles["confidence"] if is_confidence_inferred else None
        candidate_columns = [name for name in self.frame.columns if name in free or name == confidence_column]
        for extended_group in (
            find_class_columns(candidate_columns, [*words, *NON_CLASS_SUFFIXES]) if self.has_all_rows else []
        ):
            contained_groups = [group for group in groups if {*group.columns} < {*extended_group.columns}]
            is_new = extended_group.columns not in [group.columns for group in groups]
            if is_new and (
                _find_prefixed_label_columns(self.frame.columns, extended_group)
                or (contained_groups and self._rows_sum_to_one(extended_group.columns))
            ):
                groups = [group for group in groups if group not in contained_groups] + [extended_group]
                if self.roles.get("confidence") in extended_group.columns:
                    del self.roles["confidence"]
        return groups

    def _has_prefixed_labels(self, groups: Sequence[ScoreColumns]) -> bool:
        return any(_find_prefixed_label_columns(self.frame.columns, group) for group in groups)

    def _find_unprefixed_class_columns(self) -> ScoreColumns | None:
        """Return columns named after their class alone, which rows of probabilities show."""
        groups = find_affixed_class_columns(self.unassigned_columns, self._label_texts())
        return next((group for group in groups if self._rows_sum_to_one(group.columns)), None)

    def _label_texts(self) -> list[str]:
        """Return the labels where they are words, or numbers as such."""
        if "label" not in self.roles or not self.has_all_rows or self._is_list(self.roles["label"]):
            return []
        return [str(value) for value in np.unique(class_keys(self.frame[self.roles["label"]].drop_nulls()))[:1000]]

    def _rows_sum_to_one(self, names: Sequence[str]) -> bool:
        """Whether rows of these columns are probabilities, or percentages, of classes."""
        try:
            rows = np.stack([to_probabilities(self.frame[name], self.options) for name in names], 1)
        except InputError:
            return False
        rows = rows[~np.isnan(rows).any(1)]
        sums = rows.sum(1)
        return (
            len(rows) > 0
            and bool((rows >= 0).all())
            and any(bool((abs(sums - total) <= PROBABILITY_SUM_TOLERANCE * total).all()) for total in (1, 100))
        )

    def _find_single_scores(self) -> list[ScoreColumns]:
        """Return the columns that may be a single score, fractions among predictions too."""
        words = {word.lower() for word in self._label_texts()}
        groups = [
            group
            for group in find_single_score_columns(self.unassigned_columns)
            if not group.is_weak or group.names[0].lower() in words or group.names[0].isdigit()
        ]
        fraction_columns = [
            name for name in find_role_columns("predicted", self.unassigned_columns) if self._has_fractions(name)
        ]
        return groups or [ScoreColumns("probs", (name,)) for name in fraction_columns]

    def _find_column_named_after_class(self) -> list[ScoreColumns]:
        """Return the column that is named after a class, such as spam; raises `InputError` for more than one."""
        groups = find_columns_named_after_class(self.unassigned_columns, self._label_texts())
        float_groups = [group for group in groups if self.frame[group.columns[0]].dtype.is_float()]
        if len(float_groups) > 1:
            names = [group.columns[0] for group in float_groups]
            raise InputError(
                f"expected probabilities of the classes in {shorten_list(names)}, but rows do not sum to 1. If they "
                "are "
                f"logits, try logits= with these columns (on the command line, --logits {','.join(names[:8])}).",
                code="ambiguous_columns",
            )
        return float_groups

    def _resolve_single_score(self, singles: list[ScoreColumns]) -> ScoreColumns | None:
        """Return the single score, or None where it is a confidence, which then has its role."""
        if "confidence" in self.roles and "correct" in self.roles:
            return None
        has_label_and_predicted = {"label", "predicted"} <= self.roles.keys()
        if not singles:
            if (
                "confidence" in self.roles
                and has_label_and_predicted
                and self._is_positive_class_score(self.roles["confidence"])
            ):
                name = self.roles["confidence"]
                raise _ambiguous_reading_error(name, f"it is above 1/2 exactly where {self.positive!r} is predicted")
            return None
        score = self._require_one_score(singles)
        name = score.columns[0]
        if "confidence" in self.roles:
            if self._is_confidence_of_score(name, score.kind):
                return score
            if has_label_and_predicted and self._have_equal_values(name, self.roles["confidence"]):
                return None
            if not self._has_label() and set(np.unique(self._read_probabilities(name)).tolist()) <= {0, 1}:
                self.roles["correct"] = name
                return None
            raise _ambiguous_reading_error(name, f"{self.roles['confidence']!r} holds other confidences")
        if score.kind == "logits" or self.options.positive is not None:
            return score
        reading = "probs"
        if "predicted" in self.roles:
            reading = self._infer_reading_from_predicted(name)
        elif "correct" in self.roles:
            reading = self._infer_reading_from_correct(name)
        if reading == "probs":
            return score
        self.roles["confidence"] = name
        self.notes.append(f"{name!r} is the confidence of the prediction")
        return None

    def _require_one_score(self, singles: list[ScoreColumns]) -> ScoreColumns:
        first, *other_groups = singles
        are_equal = self.has_all_rows and all(
            other_group.kind == first.kind and self._have_equal_values(first.columns[0], other_group.columns[0])
            for other_group in other_groups
        )
        if other_groups and not are_equal:
            groups_text = " or ".join(f"{group.kind} in {shorten_list(group.columns)}" for group in singles)
            raise InputError(
                f"found {groups_text}; say which: probs= or logits= (on the command line, --probs or --logits)",
                code="ambiguous_columns",
            )
        return first

    # Readings that values decide

    def _read_probabilities(self, name: str) -> np.ndarray:
        if not self.has_all_rows:
            raise _ambiguous_reading_error(name, "only the whole table tells")
        return to_probabilities(self.frame[name], self.options)

    def _have_equal_values(self, first: str, second: str) -> bool:
        a, b = self._read_probabilities(first), self._read_probabilities(second)
        is_present = ~(np.isnan(a) | np.isnan(b))
        return bool(is_present.any()) and bool((abs(a - b)[is_present] < 1e-6).all())

    def _is_confidence_of_score(self, name: str, kind: str) -> bool:
        """Whether the confidence is the larger of p and 1 - p, or p itself only above one half."""
        p, c = self._read_probabilities(name), self._read_probabilities(self.roles["confidence"])
        p = 1 / (1 + np.exp(-p)) if kind == "logits" else p
        is_present = ~(np.isnan(p) | np.isnan(c))
        p, c = p[is_present], c[is_present]
        return len(p) > 0 and bool((p < 0.5).any()) and bool((abs(np.maximum(p, 1 - p) - c) < 1e-3).all())

    def _is_positive_class_score(self, name: str) -> bool:
        """Whether a number is above one half exactly where one class of two is predicted."""
        if not self.has_all_rows:
            return False
        try:
            return self._infer_reading_from_predicted(name) == "probs"
        except InputError:
            return False

    def _infer_reading_from_predicted(self, name: str) -> str:
        """Return "probs" where a number is the probability of one of two classes, "confidence" where it is that of
        the predicted class; raises `InputError` where it may be either.
        """
        return self._infer_reading(name, *self._read_score_and_classes(name, "predicted"))

    def _infer_reading(self, name: str, p: np.ndarray, predicted: np.ndarray, classes: list[str]) -> str:
        """Return the reading of a number beside predictions of the given classes."""
        if len(classes) > 2:
            return "confidence"
        word = positive_word(classes)
        classes_above_half, classes_below_half = set(predicted[p > 0.5]), set(predicted[p < 0.5])
        if not classes_below_half:
            return self._infer_reading_above_half(name, p, predicted, word)
        if (
            len(p) < MIN_BINARY_ROWS
            or (p < 0.5).sum() < MIN_ROWS_BELOW_HALF
            or (not classes_above_half and (word is None or len(p) < MIN_TOP_CLASS_ROWS))
        ):
            raise _ambiguous_reading_error(name, "too few rows show which")
        if (
            len(classes_above_half) <= 1
            and len(classes_below_half) == 1
            and not classes_above_half & classes_below_half
        ):
            return self._accept_positive_class(name, str(next(iter(classes_above_half), word)), word)
        if (positive := _find_separated_class(p, predicted, MIN_SEPARATED_ROWS)) is not None:
            return self._accept_positive_class(name, positive, word)
        raise _ambiguous_reading_error(name, "it is below 1/2 for some predictions of each class")

    def _infer_reading_above_half(
        self, name: str, p: np.ndarray, predicted: np.ndarray, positive_name: str | None
    ) -> str:
        """Return the reading of a number that is never below one half."""
        predicted_classes = sorted(set(predicted))
        if len(predicted_classes) == 1:
            if positive_name in (None, predicted_classes[0]):
                return "confidence"  # both readings are the same here
            raise _ambiguous_reading_error(name, f"only {predicted_classes[0]} is predicted")
        positive = _find_separated_class(p, predicted, 1)
        if positive is not None and positive_name in (None, positive):
            raise _ambiguous_reading_error(name, "a threshold above 1/2 separates the predictions")
        return "confidence"

    def _accept_positive_class(self, name: str, positive: str | None, positive_name: str | None) -> str:
        if positive is None or (positive_name is not None and positive != positive_name):
            raise _ambiguous_reading_error(name, f"it seems to be the probability of {positive!r}")
        self.positive = positive if positive_name is None else None
        if name != self.roles.get("confidence"):
            self.notes.append(f"{name!r} is the probability of {positive!r}, as the predictions show")
        else:
            self.positive = positive
        return "probs"

    def _infer_reading_from_correct(self, name: str) -> str:
        """Return what a number beside `correct` is; of two classes, labels and `correct` tell what was predicted."""
        if "label" not in self.roles:
            return "confidence"
        p, truth, classes = self._read_score_and_classes(name, "label")
        if len(classes) != 2:
            return "confidence"
        is_present = ~np.isnan(self._read_probabilities(name)) & ~self.frame[self.roles["label"]].is_null().to_numpy()
        is_correct = to_numbers(self.frame[self.roles["correct"]], accept_truth_words=True).to_numpy()[is_present] > 0.5
        other_class = np.where(truth == classes[0], classes[1], classes[0])
        return self._infer_reading(name, p, np.where(is_correct, truth, other_class), classes)

    def _read_score_and_classes(self, name: str, role: str) -> tuple[np.ndarray, np.ndarray, list[str]]:
        """Return a score and the predictions or labels beside it, and all classes that occur."""
        p = self._read_probabilities(name)
        columns = [self.frame[self.roles[role_name]] for role_name in ("label", "predicted") if role_name in self.roles]
        index = 0 if role == "label" or len(columns) == 1 else 1
        keys = class_keys(*columns) if len(columns) > 1 else (class_keys(columns[0]),)
        is_present = ~np.isnan(p)
        for column in columns:
            is_present &= ~column.is_null().to_numpy()
        classes = sorted({str(kind) for column_keys in keys for kind in np.unique(column_keys[is_present])})
        if len(p[is_present]) and not 0 <= p[is_present].min() <= p[is_present].max() <= 1:
            return p[is_present], keys[index][is_present], [*classes, "", " "]  # refused later, for its range
        return p[is_present], keys[index][is_present], classes


def _find_separated_class(p: np.ndarray, predicted: np.ndarray, min_rows: int) -> str | None:
    """Return the class that is predicted above a threshold only, with at least so many rows on either side."""
    classes = sorted(set(predicted))
    if len(classes) != 2:
        return None
    for upper, lower in (classes, classes[::-1]):
        upper_scores, lower_scores = p[predicted == upper], p[predicted == lower]
        if min(len(upper_scores), len(lower_scores)) >= min_rows and upper_scores.min() > lower_scores.max():
            return str(upper)
    return None


def _ambiguous_reading_error(name: str, reason: str) -> InputError:
    return InputError(
        f"column {name!r} may hold the confidence of the predicted class or the probability of one class: {reason}. "
        f"Try confidence={name!r} or probs={name!r} (on the command line, --confidence {name} or --probs {name})",
        code="ambiguous_reading",
    )


def _check_explicit_columns(columns: Sequence[str], explicit_columns: Mapping[str, Any]) -> None:
    """Raise `InputError` where a given column is missing, or given for two roles."""
    roles: dict[str, str] = {}
    for role, value in explicit_columns.items():
        for name in [value] if isinstance(value, str) else value:
            is_prefix = (
                role in SCORE_COLUMN_NAMES
                and isinstance(value, str)
                and any(parse_explicit_suffix(column, name) for column in columns)
            )
            if name not in columns and not is_prefix:
                raise InputError(f"no column {name!r} for {role}; there are {shorten_list(columns)}", code="no_column")
            if name in roles and roles[name] != role:
                raise InputError(
                    f"column {name!r} is given for {roles[name]} and for {role}. Try one role per column.",
                    code="column_twice",
                )
            roles[name] = role


def parse_explicit_suffix(name: str, prefix: str) -> str:
    """Return what follows a given prefix in the name of a column."""
    stripped = name.lstrip()
    return stripped[len(prefix) :] if stripped.lower().startswith(prefix.lower()) else parse_class_suffix(name, prefix)


def _find_prefixed_label_columns(columns: Sequence[str], scores: ScoreColumns) -> tuple[str, ...]:
    """Return the columns of several labels per example, one beside each score; none where they are not all there."""
    label_candidates = [name for name in columns if name not in scores.columns]
    for prefix in MULTILABEL_PREFIXES:
        stripped_names = {name: name.lstrip() for name in label_candidates if name.lstrip().lower().startswith(prefix)}
        columns_by_class = {stripped[len(prefix) :]: name for name, stripped in stripped_names.items()}
        if scores.names and set(scores.names) <= columns_by_class.keys():
            return tuple(columns_by_class[name] for name in scores.names)
    return ()


def describe_roles(columns: Columns, names: Sequence[str]) -> list[tuple[str, str]]:
    """Return the columns of a table with a role each, in their order."""
    roles = {getattr(columns, role): role for role in ROLE_COLUMN_NAMES if getattr(columns, role) is not None}
    classes = columns.names or tuple(map(str, range(len(columns.scores))))
    for name, class_name in zip(columns.scores, classes, strict=True):
        roles[name] = f"{columns.kind} of class {class_name}" if len(columns.scores) > 1 else columns.kind
    roles |= dict.fromkeys(columns.labels, "label of its class")
    return [(name, roles.get(name, "not used")) for name in names]


def require_labels(columns: Columns, frame: Any) -> None:
    """Raise `InputError` where a table has no scores, or nothing that says what was true."""
    names = [name for name in frame.columns if not is_index_column(name)]
    if columns.scores:
        if columns.label is None and not columns.labels:
            raise InputError(
                f"expected a column of true labels beside {shorten_list(columns.scores)}, got columns "
                f"{shorten_list(names)}. "
                "Try label= with its name (on the command line, --label NAME)",
                code="no_labels",
            )
        return
    if columns.confidence is not None:
        if columns.correct is None and columns.predicted is None:
            raise InputError(_missing_correct_message(columns), code="no_correct")
        return
    raise InputError(_missing_scores_message(columns, names), code="no_scores")


def _missing_correct_message(columns: Columns) -> str:
    label = next(
        (name for name in columns.unused_columns if name in {*find_role_columns("label", columns.unused_columns)}), None
    )
    text = f"expected a column beside {columns.confidence!r} that says whether the answer was right"
    if label is None:
        return f"{text}. Try correct= or predicted= with label= (on the command line, --correct NAME)"
    return (
        f"{text}, or what was predicted. Try predicted= (on the command line, --predicted NAME); "
        f"--correct {label} if {label!r} is 1 where the answer was right; --probs {columns.confidence} if that is the "
        "probability of class 1"
    )


def _missing_scores_message(columns: Columns, names: Sequence[str]) -> str:
    got = f"got columns {shorten_list(names, MAX_LISTED_COLUMNS)}"
    if columns.correct is not None:
        return (
            f"expected a column of confidences beside {columns.correct!r}, {got}. Try confidence= (--confidence NAME)"
        )
    return (
        "expected a column of labels with probabilities (prob_0, prob_1, ... or prob_cat, ...), logits (logit_0, ...) "
        f"or a confidence with whether it was correct; {got}. Say which is which: label=, probs=, logits=, "
        "confidence=, correct= (on the command line, --label and so on)"
    )
