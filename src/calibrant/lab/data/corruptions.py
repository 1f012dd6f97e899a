"""Corruptions of image test sets: Gaussian noise, and the files of CIFAR-10-C (Hendrycks & Dietterich 2019).

Each maps uint8 images (n c h w) to uint8 images, at a severity of 1 .. 5.
"""

import numpy as np
import torch
from torch import Tensor

from calibrant._core.registry import CORRUPTIONS
from calibrant._core.types import InputError, Seed, Severity
from calibrant.lab.data._loading import find_in_root, wrap_read_errors

__all__ = ["cifar10_c", "gaussian_noise"]

NOISE = 0.04, 0.06, 0.08, 0.09, 0.10  # standard deviation by severity, from the benchmark's code for CIFAR


@CORRUPTIONS.register
def gaussian_noise(images: Tensor, *, severity: Severity = 5, seed: Seed = 0) -> Tensor:
    """Add noise N(0, c^2), c = 0.04 .. 0.10. AdaFocal uses severity 5 as out-of-distribution data."""
    if images.dtype != torch.uint8 or images.ndim != 4:
        raise InputError(
            f"Expected raw images (n, c, h, w) of type uint8, got {tuple(images.shape)} of type {images.dtype}.",
            code="raw_images",
        )
    generator = torch.Generator(images.device).manual_seed(seed)
    noise = torch.randn(images.shape, generator=generator, device=images.device)
    x = images / 255 + NOISE[severity - 1] * noise
    return (x.clamp(0, 1) * 255 + 1e-3).to(torch.uint8)  # rounded down; without 1e-3, errors turn 7 / 255 into 6


@CORRUPTIONS.register
def cifar10_c(images: Tensor, *, kind: str = "fog", severity: Severity = 5, folder: str = "CIFAR-10-C") -> Tensor:
    """Return the corrupted test images of CIFAR-10 that CIFAR-10-C publishes, such as those of fog.npy.

    Args:
        images: The test images of CIFAR-10 (n, c, h, w), in the order of the archive.
        kind: Name of a file without its ending.
        severity: 1 .. 5.
        folder: Folder of the files, as given or in the data folder.

    Raises:
        InputError: If the file cannot be read, or is not of these images.
    """
    path = find_in_root(folder, None) / f"{kind}.npy"
    with wrap_read_errors(str(path)):
        pixels = np.load(path, mmap_mode="r")  # (5 n, h, w, c), one severity after another
    n, channels, height, width = images.shape
    if pixels.shape != (5 * n, height, width, channels) or pixels.dtype != np.uint8:
        raise InputError(
            f"Expected {5 * n} images of {height} x {width} pixels in {path}, got {pixels.shape} of {pixels.dtype}. "
            "Try the whole test set of cifar10.",
            code="image_size",
        )
    rows = np.array(pixels[n * (severity - 1) : n * severity].transpose(0, 3, 1, 2))
    return torch.from_numpy(rows).to(images.device)
