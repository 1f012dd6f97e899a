"""PyTorch in your own training: criteria, collected logits, choice of an epoch, tokens. It never runs the training."""

from calibrant.nn._nn import CalibratedNetwork, Criterion, linear_loss

__all__ = ["CalibratedNetwork", "Criterion", "linear_loss"]
