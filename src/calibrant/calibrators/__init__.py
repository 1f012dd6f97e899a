"""Calibrators: fitted maps from logits to better logits. A fitted map never changes, and never sees labels again.

`fit` fits one by name, `calibrate` applies it to new predictions, `cross_fit` calibrates without setting data aside,
and `pool` averages the members of an ensemble. `save`, `load` and `origin` write and read files. `register` adds a
calibrator of your own.

A fitted calibrator refuses logits of another number of classes with an `InputError`. `Identity`, and calibrators
constructed by hand such as `Temperature(1.5)`, accept any number. `capabilities` says what a calibrator
promises, such as that it never changes a predicted class; that holds in every precision.
"""

from calibrant._core.registry import CALIBRATORS
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
    _order_preserving,
    _prior_shift,
    _spline,
    _structured,
    _temperature,
)
from calibrant.calibrators._affine import *
from calibrant.calibrators._affine import MAX_MATRIX_CLASSES
from calibrant.calibrators._auto import *
from calibrant.calibrators._binary import *
from calibrant.calibrators._binning import *
from calibrant.calibrators._capabilities import (
    Capabilities,
    capabilities,
    num_classes,
    preserves_argmax,
    treats_classes_alike,
)
from calibrant.calibrators._compose import *
from calibrant.calibrators._compose import calibrate, cross_fit, fitting_digests, learned_fields, pool
from calibrant.calibrators._ensemble import *
from calibrant.calibrators._files import content_digest, load, load_instance, origin, save
from calibrant.calibrators._fitting import fit
from calibrant.calibrators._focal import *
from calibrant.calibrators._groups import *
from calibrant.calibrators._isotonic import *
from calibrant.calibrators._monotone import *
from calibrant.calibrators._order_preserving import *
from calibrant.calibrators._prior_shift import *
from calibrant.calibrators._spline import *
from calibrant.calibrators._structured import *
from calibrant.calibrators._temperature import *
from calibrant.calibrators.fields import learned_arrays

register = CALIBRATORS.register
__all__ = [
    "MAX_MATRIX_CLASSES",
    "Capabilities",
    "calibrate",
    "capabilities",
    "content_digest",
    "cross_fit",
    "fit",
    "fitting_digests",
    "learned_arrays",
    "learned_fields",
    "load",
    "load_instance",
    "num_classes",
    "origin",
    "pool",
    "preserves_argmax",
    "register",
    "save",
    "treats_classes_alike",
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
__all__ += _order_preserving.__all__
__all__ += _prior_shift.__all__
__all__ += _temperature.__all__
__all__ += _spline.__all__
__all__ += _structured.__all__
