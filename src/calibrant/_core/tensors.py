"""Tensors of torch, beside the arrays of predictions."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant._core.arrays import read_safetensors, to_numpy

__all__ = ["label_tensor", "like_logits", "logit_tensor", "read_tensors", "to_numpy", "weight_tensor", "with_tensors"]


def logit_tensor(p: Any) -> Tensor:
    """Return the logits of predictions as a tensor (n k), which shares their memory."""
    return torch.as_tensor(p.logits)


def with_tensors(p: Any) -> Any:
    """Return the same predictions with logits that are a tensor, which shares their memory."""
    return p if isinstance(p.logits, Tensor) else p.with_array_kind(logit_tensor(p))


def like_logits(column: np.ndarray, logits: Any) -> Tensor:
    """Return a column of predictions, such as labels (n), as a tensor on the device of their logits."""
    return torch.as_tensor(column).to(logits.device)


def label_tensor(p: Any) -> Tensor:
    """Return the labels of predictions, (n), beside their logits."""
    return like_logits(p.labels, p.logits)


def weight_tensor(p: Any) -> Tensor | None:
    """Return the weights of predictions, (n), beside their logits, or None without weights."""
    return None if p.weights is None else like_logits(p.weights, p.logits)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and the metadata of a .safetensors file. Raises as `read_safetensors` does."""
    return read_safetensors(path, "pt")
