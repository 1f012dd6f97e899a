"""Calibrators: (logits, labels) -> a map from logits to better logits. `register` enrolls one of your own.

`save` writes a fitted calibrator to a file, `load` reads it back, `origin` tells what a file holds. `calibrate`
applies one to predictions that are to be judged and refuses those it was fitted on, `fit` fits one by name,
`cross_fit` calibrates without losing data, `pool` averages the members of an ensemble.

A fitted map knows how many classes it was fitted on and refuses others with an `InputError`. Identity, and maps made by
hand such as `Temperature(torch.tensor(1.5))`, take any number. Where one is said to keep every prediction, it does so
in every precision.
"""

from calibrant.calibrators import (
    _affine,
    _auto,
    _binary,
    _binning,
    _compose,
    _ensemble,
    _focal,
    _groups,
    _isotonic,
    _monotone,
    _prior_shift,
    _spline,
    _structured,
    _temperature,
)
from calibrant.calibrators._affine import *
from calibrant.calibrators._affine import MAX_MATRIX_CLASSES
from calibrant.calibrators._apply import num_classes
from calibrant.calibrators._auto import *
from calibrant.calibrators._binary import *
from calibrant.calibrators._binning import *
from calibrant.calibrators._compose import *
from calibrant.calibrators._compose import calibrate, cross_fit, fitting_digests, learned_fields, pool
from calibrant.calibrators._ensemble import *
from calibrant.calibrators._files import load, origin, save
from calibrant.calibrators._fitting import fit
from calibrant.calibrators._focal import *
from calibrant.calibrators._groups import *
from calibrant.calibrators._isotonic import *
from calibrant.calibrators._monotone import *
from calibrant.calibrators._prior_shift import *
from calibrant.calibrators._spline import *
from calibrant.calibrators._structured import *
from calibrant.calibrators._temperature import *
from calibrant.registry import CALIBRATORS

register = CALIBRATORS.register
__all__ = [
    "MAX_MATRIX_CLASSES",
    "calibrate",
    "cross_fit",
    "fit",
    "fitting_digests",
    "learned_fields",
    "load",
    "num_classes",
    "origin",
    "pool",
    "register",
    "save",
]
__all__ += _affine.__all__
__all__ += _auto.__all__
__all__ += _binary.__all__
__all__ += _binning.__all__
__all__ += _compose.__all__
__all__ += _ensemble.__all__
__all__ += _focal.__all__
__all__ += _groups.__all__
__all__ += _isotonic.__all__
__all__ += _monotone.__all__
__all__ += _prior_shift.__all__
__all__ += _temperature.__all__
__all__ += _spline.__all__
__all__ += _structured.__all__
