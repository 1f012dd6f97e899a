"""Data sets: (root, ...) -> Splits. `__all__` is the registry."""

from calibrant.data import digits as _digits
from calibrant.data._splits import Split as Split
from calibrant.data._splits import Splits as Splits
from calibrant.data.digits import *

__all__: list[str] = []
__all__ += _digits.__all__
