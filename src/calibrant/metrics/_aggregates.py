"""The sums of a `Summary` from the answers of its queries."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrant._core.foreign import parse_json
from calibrant._core.kernels.bins import NUM_ODDS_CELLS
from calibrant._core.text import shorten_list, shorten_repr
from calibrant._core.types import InputError
from calibrant.metrics import _sums
from calibrant.metrics._class_sums import ClassSums
from calibrant.metrics._query import AGGREGATE_COLUMNS, EXTREMES, INCOMPLETE, INFINITE, KEYS, REFUSALS, SETTINGS
from calibrant.metrics._sums import FEATURES, NUM_GROUP_SLOT_FEATURES, NUM_SLOTS, GroupSums
from calibrant.predictions.validation.weights import COUNTS

MAX_INCOMPLETE_SHARE = 0.5  # of all rows
MAX_WEIGHT_DIFFERENCE = 1e-9  # relative difference of two sums of the same rows
MAX_BINS = 1 << 16
SETTING_TYPES = {"version": int, "k": int, "bins": int, "class_names": [str], "by": bool, "weights_are": str}
OTHER_ANSWER = "Try the answer of Summary.query as it is."


@dataclass(frozen=True, eq=False)
class Aggregates:
    """Rows of the answer of one query, each with the sums over some rows of the table."""

    settings: dict[str, Any]
    groups: np.ndarray  # name of the group, or None
    columns: dict[str, np.ndarray]  # the other columns, as float64 with nan for NULL

    @classmethod
    def from_rows(cls, answers: Sequence[Any]) -> "Aggregates":
        """Read answers, each a cursor, a frame, an Arrow table, or a list, one below the other."""
        tables = [_to_columns(rows) for rows in answers]
        if missing := [name for name in AGGREGATE_COLUMNS if not all(name in table for table in tables)]:
            raise InputError(
                f"Expected the columns of Summary.query, got a table without {shorten_list(missing)}. {OTHER_ANSWER}",
                code="aggregate_columns",
            )
        columns = {name: [cell for table in tables for cell in table[name]] for name in AGGREGATE_COLUMNS}
        texts = {text for text in columns[SETTINGS] if isinstance(text, str)}
        if len(texts) != 1:
            actual = f"those of {len(texts)}" if texts else "no row"
            raise InputError(
                f"Expected answers of queries with the same scores, event and bins, got {actual}. Try one "
                "Summary.from_aggregates for each, and add the summaries.",
                code="aggregate_settings",
            )
        settings = parse_json(texts.pop(), SETTING_TYPES)
        numbers: dict[str, np.ndarray] = {}
        for name in AGGREGATE_COLUMNS[2:]:
            try:
                numbers[name] = np.array([np.nan if x is None else float(x) for x in columns[name]])
            except (TypeError, ValueError):
                cell = next(x for x in columns[name] if x is not None and not isinstance(x, int | float))
                raise InputError(
                    f"Expected numbers in column {name}, got {shorten_repr(cell)}. {OTHER_ANSWER}", code="aggregates"
                ) from None
        groups = np.array([x if isinstance(x, str) else None for x in columns[KEYS[0]]], object)
        return cls(settings, groups, numbers)

    def __len__(self) -> int:
        return len(self.groups)

    def __getitem__(self, name: str) -> np.ndarray:
        """Return a column."""
        return self.columns[name]

    def select(self, mask: np.ndarray) -> "Aggregates":
        """Return some rows, with 0 for every NULL."""
        columns = {
            name: np.nan_to_num(column[mask], posinf=np.inf, neginf=-np.inf) for name, column in self.columns.items()
        }
        return Aggregates(self.settings, self.groups[mask], columns)

    def add_up(self, names: Sequence[str], *indices: tuple[np.ndarray, int]) -> np.ndarray:
        """Return the sums of columns (f, ...) for each combination of some indices, given with their numbers."""
        shape = tuple(size for _, size in indices)
        flat = np.ravel_multi_index(tuple(index.astype(int) for index, _ in indices), shape)
        sums = [np.bincount(flat, self[name], int(np.prod(shape))) for name in names]
        return np.stack(sums).reshape(len(names), *shape)

    @property
    def bin_index(self) -> tuple[np.ndarray, int]:
        """The bin of every row, and their number."""
        return self["bin"], self.settings["bins"]

    def check(self, num_classes: int) -> None:
        """Raise `InputError` for indices or sums that no query returns."""
        limits = {"bin": self.settings["bins"], "cell": NUM_ODDS_CELLS, "cluster_set": NUM_SLOTS}
        limits["class_index"] = num_classes
        wrong = [name for name, limit in limits.items() if not _are_indices(self[name], limit)]
        signed = ("gap",)
        for name in (*FEATURES, *EXTREMES):
            wrong += [name] if np.isinf(self[name]).any() or (name not in signed and (self[name] < 0).any()) else []
        limit = self["weight"] * (1 + MAX_WEIGHT_DIFFERENCE)
        wrong += [name for name in ("correct", "outcome", "confident") if (self[name] > limit).any()]
        if wrong:
            raise InputError(
                f"Expected sums of probabilities, got impossible numbers in {shorten_list(wrong)}. {OTHER_ANSWER}",
                code="aggregates",
            )


def summary_fields(rows: Sequence[Any], *, drop: bool = False) -> dict[str, Any]:
    """Return the fields of a `Summary`, given the arguments of `Summary.from_aggregates`."""
    answer = Aggregates.from_rows(rows)
    settings = answer.settings
    k, bins, names = settings.get("k", 0), settings.get("bins", 0), settings.get("class_names")
    if settings.get("version") != 1 or not 2 <= k <= NUM_ODDS_CELLS or not 1 <= bins <= MAX_BINS:
        raise InputError(
            f"Expected the settings of a query in column {SETTINGS}, got {shorten_repr(settings)}. {OTHER_ANSWER}",
            code="aggregate_settings",
        )
    is_class, is_set = ~np.isnan(answer["class_index"]), ~np.isnan(answer["cluster_set"])
    _check_left_out(answer, ~is_class & ~is_set, drop=drop)
    is_counted = answer["bin"] >= 0
    main, sets, classes = (
        answer.select(is_counted & mask) for mask in (~is_class & ~is_set, is_set & ~is_class, is_class)
    )
    for part in (main, sets, classes):
        part.check(k)
    if not main["rows"].sum():
        raise InputError(
            "Expected sums of at least one row, got none. Try another table, or also the answer of Summary.query "
            "without clusters and by_class.",
            code="no_rows",
        )
    _check_weights(main, sets)
    _check_same_rows(main, sets, classes, k)
    slots = (sets["cluster_set"], NUM_SLOTS)
    weight, outcome, gap = main["weight"], main["outcome"], main["gap"]
    # rounding may carry these sums beyond their limits
    shares = {"outcome": np.clip(outcome, 0, weight), "confidence": np.clip(outcome + gap, 0, weight)}
    cells = Aggregates(settings, main.groups, main.columns | shares)
    words = cells.add_up(["weight", "outcome", "confidence"], (main["cell"], NUM_ODDS_CELLS))
    return {
        "k": k,
        "bins": bins,
        "sums": _to_words(main.add_up(FEATURES, main.bin_index)),
        "slots": _to_words(sets.add_up(FEATURES, slots, sets.bin_index)) if len(sets) else None,
        "cells": _sums.to_words(words, 2, _sums.CELL_WORD_BITS).astype(np.int64),
        "of": settings.get("of", "top"),
        "class_names": None if names is None else tuple(names),
        "groups": _group_sums(main, sets, slots) if settings.get("by") else None,
        "classes": _class_sums(classes, k) if len(classes) else None,
        "by_class": len(classes) > 0,
        "max_surprisals": np.array([_surprisal(main[name]) for name in EXTREMES], dtype=float),
    }


def _to_columns(rows: Any) -> dict[str, list[Any]]:
    """Return the columns of a cursor, a data frame, an Arrow table, a mapping of columns, or a list of rows."""
    if hasattr(rows, "collect"):  # a frame of Spark, or a lazy one of polars
        rows = rows.collect()
    if hasattr(rows, "fetchall"):
        names = [str(column[0]) for column in rows.description]
        return dict(zip(names, map(list, zip(*rows.fetchall())))) or {name: [] for name in names}
    if hasattr(rows, "to_pydict"):
        return rows.to_pydict()
    if hasattr(rows, "columns"):
        return {str(name): rows[name].to_list() for name in rows.columns}
    if isinstance(rows, Mapping):
        return {str(name): list(column) for name, column in rows.items()}
    records = list(rows)
    if records and hasattr(records[0], "asDict"):  # of Spark
        records = [record.asDict() for record in records]
    if not records or hasattr(records[0], "keys"):
        names = records[0].keys() if records else AGGREGATE_COLUMNS
        return {name: [record[name] for record in records] for name in names}
    if not isinstance(records[0], Sequence) or any(len(record) != len(AGGREGATE_COLUMNS) for record in records):
        raise InputError(
            f"Expected rows of {len(AGGREGATE_COLUMNS)} values as Summary.query returns them, got "
            f"{shorten_repr(records[0])}. Try a cursor or a data frame.",
            code="aggregate_columns",
        )
    return dict(zip(AGGREGATE_COLUMNS, map(list, zip(*records)), strict=True))


def _are_indices(column: np.ndarray, size: int) -> bool:
    """Return whether all numbers are whole, and from 0 to less than `size`."""
    return bool(((column >= 0) & (column < size) & (column == np.floor(column))).all())


def _check_left_out(answer: Aggregates, is_main: np.ndarray, *, drop: bool) -> None:
    """Raise `InputError` for rows that the query could not sum."""
    rows = np.nan_to_num(answer["rows"])
    total = rows[is_main].sum()
    for status, expected in REFUSALS.items():
        if count := rows[is_main & (answer["bin"] == status)].sum():
            raise InputError(
                f"Expected {expected}, got {count:,.0f} of {total:,.0f} rows with others. Try a view without "
                "these rows.",
                code="aggregate_rows",
            )
    count = rows[is_main & (answer["bin"] == INCOMPLETE)].sum()
    if count and not drop:
        raise InputError(
            f"Expected rows without NULL, got {count:,.0f} of {total:,.0f} with one. Try drop=True (--drop) to leave "
            "them out.",
            code="missing",
        )
    if count > MAX_INCOMPLETE_SHARE * total:
        raise InputError(
            f"Expected to leave out few rows, got {count:,.0f} of {total:,.0f} with NULL. Try another column.",
            code="drop_most",
        )


def _check_weights(main: Aggregates, sets: Aggregates) -> None:
    """Raise `InputError` for importance weights without clusters, whose intervals would be wrong."""
    weights_are = main.settings.get("weights_are")
    count = main["fractional_weights"].sum()
    if len(sets) or weights_are == COUNTS or (weights_are is None and not count):
        return
    raise InputError(
        f"Expected counts as weights, got {'importance weights' if weights_are else f'{count:,.0f} fractions'}. Try "
        'weights_are="counts" in the query if they are counts, and else the answer of a second query with clusters=, '
        "the id of each row, beside this one.",
        code="importance_weights",
    )


def _check_same_rows(main: Aggregates, sets: Aggregates, classes: Aggregates, k: int) -> None:
    """Raise `InputError` unless all answers have the same total weight."""
    totals = [part["weight"].sum() for part in (main, sets) if len(part)]
    totals += list(classes.add_up(["weight"], (classes["class_index"], k))[0]) if len(classes) else []
    if not np.allclose(totals, totals[0], rtol=MAX_WEIGHT_DIFFERENCE, atol=0):
        raise InputError(
            f"Expected answers about the same rows, got total weights {min(totals):.10g} .. {max(totals):.10g}. Try "
            "all queries again, on the same state of the table.",
            code="rows_differ",
        )


def _group_sums(main: Aggregates, sets: Aggregates, slots: tuple[np.ndarray, int]) -> GroupSums:
    """Return the sums of every group. A group whose name is empty in a file has the empty name."""
    names, main_index = np.unique([name or "" for name in main.groups], return_inverse=True)
    sums = _to_words(main.add_up(FEATURES, (main_index, len(names)), main.bin_index))
    if not len(sets):
        return GroupSums(tuple(names.tolist()), sums, None)
    index = np.searchsorted(names, [name or "" for name in sets.groups]).clip(max=len(names) - 1)
    features = FEATURES[:NUM_GROUP_SLOT_FEATURES]
    return GroupSums(
        tuple(names.tolist()), sums, _to_words(sets.add_up(features, (index, len(names)), slots, sets.bin_index))
    )


def _class_sums(classes: Aggregates, k: int) -> ClassSums:
    """Return the sums of every class. The cell of a row tells whether the class is predicted."""
    probability = {"probability": np.clip(classes["outcome"] + classes["gap"], 0, classes["weight"])}
    classes = Aggregates(classes.settings, classes.groups, classes.columns | probability)
    indices = (classes["class_index"], k), classes.bin_index, (classes["cell"], 2)
    sums = classes.add_up(["weight", "probability", "outcome"], *indices)
    by_class, predicted = sums.sum((2, 3)), sums[..., 1].sum(2)  # (3 k) each
    rows = [by_class[2], predicted[2], predicted[0], predicted[2], predicted[1]]
    return ClassSums(np.ascontiguousarray(sums.sum(3).transpose(1, 2, 0)), np.stack(rows))


def _to_words(sums: np.ndarray) -> np.ndarray:
    """Return sums of features (f ...) in the words of `BinSums`, (3 f ...)."""
    sums = sums.copy()
    if len(sums) == len(FEATURES):  # squared log-likelihoods have coarser units
        sums[FEATURES.index("nll_square")] *= 2.0 ** (_sums.COARSE_UNIT_BITS - _sums.UNIT_BITS)
    return _sums.to_words(sums, 3, _sums.WORD_BITS).astype(np.int64)


def _surprisal(column: np.ndarray) -> float:
    """Return the largest surprisal, which may be infinite."""
    highest = float(column.max())
    return np.inf if highest >= INFINITE else highest
