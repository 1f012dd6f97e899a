"""What needs a network in PyTorch: criteria, collecting logits, the choice of an epoch, and tokens."""

from calibrant.nn._nn import CalibratedNetwork, Criterion, linear_loss

__all__ = ["CalibratedNetwork", "Criterion", "linear_loss"]
