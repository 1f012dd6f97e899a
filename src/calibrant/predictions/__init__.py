"""Predictions: logits with labels and whatever else is known about each sample, validated once."""

from calibrant.events import EventSelector
from calibrant.predictions import _predictions
from calibrant.predictions._apply import BLOCK_ELEMENTS, apply_calibrator, calibrate_logits, check_is_map, row_blocks
from calibrant.predictions._predictions import *

__all__ = ["BLOCK_ELEMENTS", "EventSelector", "apply_calibrator", "calibrate_logits", "check_is_map", "row_blocks"]
__all__ += _predictions.__all__
