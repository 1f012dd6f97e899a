"""Losses: (logits, labels) -> one number per example. `register` enrolls one of your own.

Labels are class indices (n), or soft labels (n k), which say how probable each class is: the loss is then the mean over
labels drawn from them, and penalties on the batch see the mean correctness. One logit per event: `nn.Criterion`.
"""

from calibrant.losses import _adaptive, _batch_penalties, _focal, _long_tail, _penalties, _proper
from calibrant.losses._adaptive import *
from calibrant.losses._adaptive import for_epochs, restore_state, state
from calibrant.losses._batch_penalties import *
from calibrant.losses._focal import *
from calibrant.losses._long_tail import *
from calibrant.losses._long_tail import for_counts
from calibrant.losses._mixup import MixedBatch, RegMixup
from calibrant.losses._penalties import *
from calibrant.losses._proper import *
from calibrant.registry import LOSSES

register = LOSSES.register
__all__ = ["MixedBatch", "RegMixup", "for_counts", "for_epochs", "register", "restore_state", "state"]
__all__ += _adaptive.__all__
__all__ += _batch_penalties.__all__
__all__ += _focal.__all__
__all__ += _long_tail.__all__
__all__ += _penalties.__all__
__all__ += _proper.__all__
