"""Metrics: (logits, labels) -> one number. `__all__` is the registry."""

from calibrant.metrics import _binned, _scores
from calibrant.metrics._binned import *
from calibrant.metrics._scores import *

__all__: list[str] = []
__all__ += _binned.__all__
__all__ += _scores.__all__
