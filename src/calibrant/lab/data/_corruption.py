"""The common signature of corruptions."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from calibrant.registry import CORRUPTIONS
from calibrant.types import InputError, Seed, Severity


def corruption(*values: Any) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Register `function(x, value, generator)`, which corrupts images (n c h w) in [0, 1], as a corruption.

    The registered function maps raw images to raw images and takes `severity`, which selects one of five `values`. It
    also takes `seed` if the function has a parameter `generator`.
    """

    def decorate(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def corrupt(images: Tensor, *, severity: Severity = 5) -> Tensor:
            return to_uint8(function(to_unit_range(images), select(severity, *values)))

        def corrupt_randomly(images: Tensor, *, severity: Severity = 5, seed: Seed = 0) -> Tensor:
            generator = torch.Generator(images.device).manual_seed(seed)
            return to_uint8(function(to_unit_range(images), select(severity, *values), generator))

        is_random = "generator" in inspect.signature(function).parameters
        registered = corrupt_randomly if is_random else corrupt
        for name in ("__module__", "__name__", "__qualname__", "__doc__"):
            setattr(registered, name, getattr(function, name))
        return CORRUPTIONS.register(registered)

    return decorate


def select(severity: int, *values: Any) -> Any:
    """Return the value of a severity.

    Raises:
        InputError: If the severity is not 1 .. 5.
    """
    if severity not in range(1, 6):
        raise InputError(f"Expected a severity of 1 .. 5, got {severity}.", code="setting_range")
    return values[severity - 1]


def to_unit_range(images: Tensor) -> Tensor:
    """Convert raw images (n c h w), uint8, to floats in [0, 1].

    Raises:
        InputError: If the images are not raw.
    """
    if images.dtype != torch.uint8 or images.ndim != 4:
        raise InputError(
            f"Expected raw images (n, c, h, w) of type uint8, got {tuple(images.shape)} of type {images.dtype}.",
            code="raw_images",
        )
    return images / 255


def to_uint8(x: Tensor) -> Tensor:
    """Convert floats in [0, 1] to raw images, rounding down as the benchmark does."""
    return (x.clamp(0, 1) * 255 + 1e-3).to(torch.uint8)  # without 1e-3, 7 / 255 would become 6
