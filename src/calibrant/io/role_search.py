"""The state of a search for the roles of columns: the table, and the roles that are assigned so far."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from calibrant._core.types import InputError
from calibrant.io.cells import class_keys, is_list, sums_to, to_numbers, to_probabilities
from calibrant.io.column_roles import (
    MULTILABEL_PREFIXES,
    SCORE_COLUMN_NAMES,
    ScoreColumns,
    TableOptions,
    is_index_column,
)
from calibrant.predictions.validation.columns import strip_prefix

MAX_LABEL_TEXTS = 1000


@dataclass(frozen=True, eq=False)
class RoleSearch:
    """A table, and the roles that are assigned to its columns so far."""

    frame: Any
    options: TableOptions
    has_all_rows: bool  # False for the head of a table, whose values decide nothing
    roles: Mapping[str, str]  # column by role, such as "label", so far
    notes: tuple[str, ...] = ()  # sentences for the user on roles that values decided
    positive: str | None = None  # class that a single score is the probability of, as the predicted labels show

    def with_role(self, role: str, column: str, note: str = "") -> "RoleSearch":
        """Return the search with a column in a role, and perhaps a note."""
        return replace(self, roles={**self.roles, role: column}).with_note(note)

    def with_note(self, note: str) -> "RoleSearch":
        """Return the search with a further note, unless it is empty."""
        return replace(self, notes=(*self.notes, note)) if note else self

    @property
    def explicit_roles(self) -> Mapping[str, Any]:
        """The columns that the caller chose, by role."""
        return self.options.columns

    @property
    def unassigned_columns(self) -> list[str]:
        """The columns that have no role yet, without an index of pandas."""
        assigned = set(self.roles.values())
        for columns in self.explicit_roles.values():
            assigned |= {columns} if isinstance(columns, str) else {*columns}
        return [name for name in self.frame.columns if name not in assigned and not is_index_column(name)]

    def is_list(self, name: str) -> bool:
        """Whether a column holds lists."""
        return is_list(self.frame[name])

    def has_fractions(self, name: str) -> bool:
        """Whether a column has numbers that are not integers."""
        column = self.frame[name]
        return column.dtype.is_float() and bool((column != column.round(0)).any())

    def classes(self, name: str) -> list[str]:
        """Return the classes that occur in a column."""
        return np.unique(class_keys(self.frame[name].drop_nulls().unique())).tolist()

    def label_texts(self) -> list[str]:
        """Return up to `MAX_LABEL_TEXTS` labels that occur.

        There are none if no column is the label yet, if only the head of the table is read, and if labels are lists.
        """
        if "label" not in self.roles or not self.has_all_rows or self.is_list(self.roles["label"]):
            return []
        return self.classes(self.roles["label"])[:MAX_LABEL_TEXTS]

    def read_probabilities(self, name: str) -> np.ndarray:
        """Return a column as probabilities, or raise `InputError` if only the head of a table is known."""
        if not self.has_all_rows:
            raise ambiguous_score_error(name, "only the whole table can tell")
        return to_probabilities(self.frame[name], self.options)

    def have_equal_values(self, first: str, second: str) -> bool:
        """Whether two columns have the same numbers wherever both have numbers."""
        a, b = self.read_probabilities(first), self.read_probabilities(second)
        is_present = ~(np.isnan(a) | np.isnan(b))
        return bool(is_present.any()) and bool((abs(a - b)[is_present] < 1e-6).all())

    def rows_sum_to_one(self, names: Sequence[str]) -> bool:
        """Whether the rows of some columns are non-negative numbers that sum to 1, or to 100.

        Rows with a missing value do not count, but there must be others. False for texts that are not numbers.
        """
        try:
            rows = np.stack([to_probabilities(self.frame[name], self.options) for name in names], 1)
        except InputError:
            return False
        rows = rows[~np.isnan(rows).any(1)]
        return len(rows) > 0 and bool((rows >= 0).all()) and (sums_to(rows) or sums_to(rows, 100.0))

    def probs_match_logits(self, first: ScoreColumns, second: ScoreColumns) -> bool:
        """Whether one group of columns holds logits, and the other their softmax, up to 0.01, for the same classes."""
        has_both_kinds = {first.kind, second.kind} == {*SCORE_COLUMN_NAMES}  # probs and logits
        if not self.has_all_rows or not has_both_kinds or first.names != second.names or not first.names:
            return False
        logits, probs = (first, second) if first.kind == "logits" else (second, first)
        z = np.stack([to_numbers(self.frame[name]).to_numpy() for name in logits.columns], 1).astype(float)
        p = np.stack([to_probabilities(self.frame[name], self.options) for name in probs.columns], 1)
        exp_logits = np.exp(z - z.max(1, keepdims=True))  # minus the maximum, against overflow
        return bool((abs(exp_logits / exp_logits.sum(1, keepdims=True) - p) < 1e-2).all())

    def multilabel_columns(self, scores: ScoreColumns) -> tuple[str, ...]:
        """Return the columns label_cat, label_dog, ... beside the scores, or () unless each class has one."""
        label_candidates = [name for name in self.frame.columns if name not in scores.columns]
        for prefix in MULTILABEL_PREFIXES:
            by_class = {strip_prefix(name, prefix): name for name in label_candidates}  # "" for other names
            if scores.names and {*scores.names} <= by_class.keys():
                return tuple(by_class[name] for name in scores.names)
        return ()


def ambiguous_score_error(name: str, reason: str) -> InputError:
    """Return the error for a number that may be a confidence or the probability of one class."""
    return InputError(
        f"Expected either the confidence of the predicted class or the probability of one class in {name!r}, but "
        f"{reason}. Try confidence={name!r} (--confidence {name}), or probs={name!r} with positive= for the class "
        f"(--probs {name} --positive CLASS).",
        code="ambiguous_reading",
    )
