"""Calibrators: (logits, labels) -> a map from logits to better logits. `__all__` is the registry.

`save` writes a fitted calibrator to a file, `load` reads it back, `origin` tells what a file holds.
"""

from calibrant.calibrators import _binning, _isotonic, _scaling, _spline
from calibrant.calibrators._binning import *
from calibrant.calibrators._files import load as load
from calibrant.calibrators._files import origin as origin
from calibrant.calibrators._files import save as save
from calibrant.calibrators._isotonic import *
from calibrant.calibrators._scaling import *
from calibrant.calibrators._spline import *

__all__: list[str] = []
__all__ += _binning.__all__
__all__ += _isotonic.__all__
__all__ += _scaling.__all__
__all__ += _spline.__all__
