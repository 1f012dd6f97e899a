"""Tensors of torch, beside the arrays of predictions."""

from typing import Any

import torch
from torch import Tensor

__all__ = ["logit_tensor"]


def logit_tensor(p: Any) -> Tensor:
    """Return the logits of predictions as a tensor (n k), which shares their memory."""
    return torch.as_tensor(p.logits)
