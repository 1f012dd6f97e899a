"""Validate inputs to `Predictions`. Errors say how to fix them."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrant._core.arrays import like
from calibrant._core.kernels.threads import thread_limit
from calibrant._core.text import shorten_list
from calibrant._core.types import Array, InputError
from calibrant.predictions.events import EventSelector
from calibrant.predictions.validation.arrays import (
    check_rows,
    copy_if_aliased,
    flatten_positions,
    num_elements,
    to_array,
    to_column,
)
from calibrant.predictions.validation.labels import to_class_indices
from calibrant.predictions.validation.names import factorize, to_unique_names
from calibrant.predictions.validation.weights import FRACTIONS_NOTE, IMPORTANCE, resolve_weights_are


@dataclass(frozen=True, eq=False, repr=False)
class Fields:
    """The validated fields of `Predictions`."""

    logits: Array  # (n k) float: an array of numpy, or a tensor on the device where it was given
    labels: np.ndarray  # (n) int64
    weights: np.ndarray | None  # (n) float64, non-negative
    weights_are: str | None  # "counts" or "importance", None without weights
    clusters: np.ndarray | None  # (n) int64
    groups: np.ndarray | None  # (n) int64, indices of `group_names`
    of: EventSelector  # the event to evaluate
    class_names: tuple[str, ...] | None
    group_names: tuple[str, ...] | None
    notes: tuple[str, ...]  # remarks on the input, such as rounding or the roles of a table's columns
    # (n) int64, indices of `row_group_names`: with several labels, `groups` are the labels, and these groups of samples
    row_groups: np.ndarray | None = None
    row_group_names: tuple[str, ...] | None = None
    examples: np.ndarray | None = None  # (n) int64, index of the example that each row is a part of, if labels are soft


def validate_inputs(
    logits: Any,
    labels: Any,
    weights: Any = None,
    *,
    weights_are: Any = None,
    of: Any = "top",
    clusters: Any = None,
    groups: Any = None,
    class_names: Any = None,
    ignore_index: int | None = None,
    notes: tuple[str, ...] = (),
    copy: bool = True,
) -> Fields:
    """Validate the arguments of `Predictions` and return its fields.

    `notes` are sentences on earlier conversions. With `copy`, no field shares memory with an argument. Positions with
    the label `ignore_index` are left out.

    Raises:
        InputError: As `Predictions` does.
    """
    z = to_array(logits, "logits")
    with thread_limit(num_elements(z), in_chunks=True):
        names = None if class_names is None else to_unique_names(class_names, "class_names")
        # For logits of one dimension, which `flatten_positions` refuses below, the number of classes is 0
        y, names, label_notes = to_class_indices(labels, names, z.shape[1] if z.ndim > 1 else 0, ignore_index)
        columns: dict[str, np.ndarray | None] = {
            "weights": None if weights is None else to_column(weights, "weights").astype(float),
            "clusters": None if clusters is None else factorize(clusters, "clusters")[0],
        }
        columns["groups"], group_names = (None, None) if groups is None else factorize(groups, "groups")
        z, y, columns = flatten_positions(z, y, columns)
        if ignore_index is not None:
            used = y != ignore_index
            z, y = z[like(used, z)], y[used]
            columns = {name: None if column is None else column[used] for name, column in columns.items()}
        check_rows(z, y, columns["weights"])
        reading = resolve_weights_are(weights_are, columns["weights"], columns["clusters"])
        if reading == IMPORTANCE and columns["clusters"] is None:  # each row is a unit of its own
            columns["clusters"] = np.arange(len(y))
            notes = notes if weights_are else (*notes, FRACTIONS_NOTE)
        k = z.shape[1]
        if names is not None and len(names) != k:
            raise InputError(
                f"Expected {k} class_names, one per column of logits, got {len(names)}.", code="names_length"
            )
        w = columns["weights"]
        if copy:  # other fields are new
            z, y = copy_if_aliased(z, logits), copy_if_aliased(y, labels)
            w = None if w is None else copy_if_aliased(w, weights)
        return Fields(
            logits=z,
            labels=y,
            weights=w,
            weights_are=reading,
            clusters=columns["clusters"],
            groups=columns["groups"],
            of=resolve_event(of, k, names),
            class_names=names,
            group_names=group_names,
            notes=(*notes, *label_notes),
        )


def resolve_event(of: Any, k: int, names: tuple[str, ...] | None = None) -> EventSelector:
    """Return the event selector `of`, "top", "classes" or a class, with a class name replaced by its index.

    Raises:
        InputError: If it names no event of k classes.
    """
    if of in ("top", "classes") or (isinstance(of, int) and not isinstance(of, bool) and 0 <= of < k):
        return of
    if names is not None and of in names:
        return names.index(of)
    names_hint = "" if names is None else f" ({shorten_list(names)})"
    raise InputError(
        f"Expected of as 'top', 'classes' or one of {k} classes{names_hint}, got {of!r}.", code="unknown_event"
    )
