"""Losses: functions of logits and labels that return one number per example. A loss never averages them.

Labels are class indices (n) or soft labels (n, k). Under soft labels a loss is the mean over labels drawn from them,
and penalties on the batch use the mean correctness. `register` adds a loss of your own. `nn.Criterion` handles one
logit per event.
"""

from calibrant._core.registry import LOSSES
from calibrant.losses import _adaptive, _batch_penalties, _focal, _long_tail, _penalties, _proper
from calibrant.losses._adaptive import *
from calibrant.losses._adaptive import for_epochs, needs_validation, restore_state, state
from calibrant.losses._batch_penalties import *
from calibrant.losses._focal import *
from calibrant.losses._long_tail import *
from calibrant.losses._long_tail import for_counts
from calibrant.losses._mixup import MixedBatch, Mixup, RegMixup
from calibrant.losses._penalties import *
from calibrant.losses._proper import *

register = LOSSES.register
__all__ = ["MixedBatch", "Mixup", "RegMixup", "for_counts", "for_epochs", "needs_validation", "register"]
__all__ += ["restore_state", "state"]
__all__ += _adaptive.__all__
__all__ += _batch_penalties.__all__
__all__ += _focal.__all__
__all__ += _long_tail.__all__
__all__ += _penalties.__all__
__all__ += _proper.__all__
