"""Calibrators: (logits, labels) -> a map from logits to better logits. `__all__` is the registry."""

from calibrant.calibrators import _binning, _scaling
from calibrant.calibrators._binning import *
from calibrant.calibrators._scaling import *

__all__: list[str] = []
__all__ += _binning.__all__
__all__ += _scaling.__all__
