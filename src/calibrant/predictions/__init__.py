"""Predictions: logits with labels and whatever else is known about each sample, validated once."""

from calibrant._validation import EventSelector
from calibrant.predictions._maps import BLOCK_ELEMENTS, apply_map, map_logits
from calibrant.predictions._predictions import (
    FIELD_NAMES,
    Predictions,
    as_predictions,
    from_unlabeled_arrays,
    load_unlabeled,
    to_predictions,
)

__all__ = [
    "BLOCK_ELEMENTS",
    "FIELD_NAMES",
    "EventSelector",
    "Predictions",
    "apply_map",
    "as_predictions",
    "from_unlabeled_arrays",
    "load_unlabeled",
    "map_logits",
    "to_predictions",
]
