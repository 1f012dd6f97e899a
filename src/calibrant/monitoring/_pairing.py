"""Pair the predictions of two models for the same examples, by id or by order."""

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from calibrant._core.types import InputError
from calibrant.monitoring._features import group_mask, row_weights
from calibrant.monitoring._rows import id_texts
from calibrant.predictions import Predictions


@dataclass(frozen=True, eq=False)
class ModelPair:
    """Predictions of an old and a new model for the same examples, or for two samples."""

    old: Predictions
    new: Predictions
    paired_by: Literal["id", "order"] | None  # None: two samples
    note: str  # a sentence on how they were paired

    def select_group(self, group: str) -> "ModelPair":
        """Select the examples of a group in both models. A pair is in the group of its new row."""
        is_in_group = group_mask(self.new, group)
        # Two samples of different examples have each their own groups
        old = self.old.select_group(group) if self.paired_by is None else self.old[is_in_group]
        return replace(self, old=old, new=self.new[is_in_group])


def pair_models(old: Predictions, new: Predictions, old_ids: Any = None, new_ids: Any = None) -> ModelPair:
    """Pair by id if both have distinct ids of which some match, else by order if all labels agree.

    Otherwise the two are samples of different examples.

    Raises:
        InputError: If ids are repeated, or the labels or classes of the same examples differ.
    """
    new = new.reorder_classes(old.class_names)
    if new.k != old.k:
        raise InputError(f"Expected models of {old.k} classes, got {new.k}.", code="num_classes")
    if old_ids is not None and new_ids is not None:
        old_rows, new_rows = _rows_by_id(old_ids, "old"), _rows_by_id(new_ids, "new")
        shared_ids = [name for name in new_rows if name in old_rows]
        if shared_ids:
            old_index, new_index = (np.array([rows[name] for name in shared_ids]) for rows in (old_rows, new_rows))
            return _paired_by_id(old, new, old_index, new_index)
    if old_ids is None and new_ids is None and np.array_equal(old.labels, new.labels):  # also of the same length
        _check_same_weights(old, new)
        note = f"Paired {old.num_examples:,} examples by their order, as all labels agree."
        return ModelPair(old, new, paired_by="order", note=note)
    sizes = f"{old.num_examples:,} old with {new.num_examples:,} new examples"
    note = f"Compared {sizes} as two samples, which share no ids or order."
    return ModelPair(old, new, paired_by=None, note=note)


def _rows_by_id(ids: Any, model: str) -> dict[str, int]:
    """Return the row of each id that is not missing, or raise `InputError` for repeated ids."""
    texts = id_texts(ids)
    rows = {text: i for i, text in enumerate(texts) if text is not None}
    if len(rows) < (num_ids := len(texts) - texts.count(None)):
        raise InputError(
            f"Expected distinct ids of the {model} model, got {len(rows):,} for {num_ids:,} rows. Try another column "
            "with --id.",
            code="repeated_ids",
        )
    return rows


def _paired_by_id(old: Predictions, new: Predictions, old_rows: np.ndarray, new_rows: np.ndarray) -> ModelPair:
    """Return the pair of these rows, or raise `InputError` if an id has two labels."""
    left_out = len(old) + len(new) - 2 * len(new_rows)  # rows of either model without a partner
    note = f"Paired {len(new_rows):,} examples by id" + (f"; {left_out:,} rows have no partner." if left_out else ".")
    old, new = old[old_rows], new[new_rows]
    if count := int((old.labels != new.labels).sum()):
        raise InputError(
            f"Expected the same label for the same id, got {count:,} examples with different labels. Try without ids, "
            "as two samples, if labels tell whether the answer of each model is correct.",
            code="different_labels",
        )
    _check_same_weights(old, new)
    return ModelPair(old, new, paired_by="id", note=note)


def _check_same_weights(old: Predictions, new: Predictions) -> None:
    """Refuse weights that differ: the examples are the same."""
    if not np.array_equal(row_weights(old), row_weights(new)):
        raise InputError("Expected the same weights of the same examples in both models.", code="different_weights")
