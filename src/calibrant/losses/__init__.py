"""Losses: (logits, labels) -> one number per example. `__all__` is the registry."""

from calibrant.losses import _adaptive, _batch, _focal, _penalties, _proper
from calibrant.losses._adaptive import *
from calibrant.losses._adaptive import for_epochs as for_epochs
from calibrant.losses._adaptive import restored as restored
from calibrant.losses._adaptive import state as state
from calibrant.losses._batch import *
from calibrant.losses._focal import *
from calibrant.losses._mixup import Mixed as Mixed
from calibrant.losses._mixup import RegMixup as RegMixup
from calibrant.losses._penalties import *
from calibrant.losses._proper import *

__all__: list[str] = []
__all__ += _adaptive.__all__
__all__ += _batch.__all__
__all__ += _focal.__all__
__all__ += _penalties.__all__
__all__ += _proper.__all__
