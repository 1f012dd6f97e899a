"""Options for reading a table, and the roles of its columns."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, get_type_hints

import numpy as np

from calibrant._text import shorten_list, shorten_repr
from calibrant.io.column_names import COLUMN_ROLES, ROLE_COLUMN_NAMES, SCORE_COLUMN_NAMES
from calibrant.registry import describe_mismatch
from calibrant.types import InputError


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
    """Return a column name, or several for scores, or raise `InputError` for anything else."""
    accepts_list = role in SCORE_COLUMN_NAMES
    names: Iterable[Any] = value if accepts_list and isinstance(value, Iterable) else [value]
    if not all(isinstance(name, str) for name in names):
        expected = "names of columns" if accepts_list else "the name of a column"
        raise InputError(f"Expected {expected} for {role}, got {shorten_repr(value)}.", code="option_value")
    return value


def _check_option(name: str, value: Any) -> Any:
    """Return the value of an option in its type, or raise `InputError` for another type."""
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
        columns: dict[str, Any] = {"label": self.label, "labels": self.labels, self.kind: self.scores}  # come first
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
