"""PyTorch in your own training: criteria, collected logits, choice of an epoch, tokens. It never runs the training."""

from calibrant.nn._calibrated_network import CalibratedNetwork
from calibrant.nn._criterion import Criterion
from calibrant.nn._linear_loss import linear_loss

__all__ = ["CalibratedNetwork", "Criterion", "linear_loss"]
