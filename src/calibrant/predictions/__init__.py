"""Predictions: logits, labels and whatever else is known about each example, checked once. It never measures."""

from calibrant.predictions import _apply, _predictions
from calibrant.predictions._apply import *
from calibrant.predictions._predictions import *
from calibrant.predictions.events import EventSelector
from calibrant.predictions.validation.columns import column_names

__all__ = ["EventSelector", "column_names"]
__all__ += _apply.__all__
__all__ += _predictions.__all__
