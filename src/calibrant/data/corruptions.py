"""Shifts of image test sets: corruptions of CIFAR-10-C (Hendrycks & Dietterich 2019) with its five severities.

Each takes uint8 images (n c h w) and returns as many, with the constants of the benchmark's CIFAR code. `__all__` holds
those that are a few lines of tensor code; motion, glass, fog, frost, snow, spatter and elastic are not here.
"""

import io

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import conv2d, interpolate, pad

from calibrant._types import InputError

__all__ = [
    "brightness",
    "contrast",
    "gaussian_blur",
    "gaussian_noise",
    "impulse_noise",
    "jpeg_compression",
    "pixelate",
    "saturate",
    "shot_noise",
    "speckle_noise",
]


def gaussian_noise(images: Tensor, *, severity: int = 5, seed: int = 0) -> Tensor:
    """Add N(0, c^2) to pixels in [0, 1], c = 0.04 .. 0.10. Severity 5 is AdaFocal's out-of-distribution set."""
    x, noise = _unit(images), _noise(images, seed)
    return _pixels(x + _at(severity, 0.04, 0.06, 0.08, 0.09, 0.10) * noise)


def speckle_noise(images: Tensor, *, severity: int = 5, seed: int = 0) -> Tensor:
    """Multiply pixels by 1 + N(0, c^2), c = 0.06 .. 0.2."""
    x, noise = _unit(images), _noise(images, seed)
    return _pixels(x + x * _at(severity, 0.06, 0.1, 0.12, 0.16, 0.2) * noise)


def shot_noise(images: Tensor, *, severity: int = 5, seed: int = 0) -> Tensor:
    """Draw every pixel x from Poisson(c x) / c, c = 500 .. 50 photons."""
    photons = _at(severity, 500.0, 250.0, 100.0, 75.0, 50.0)
    generator = torch.Generator(images.device).manual_seed(seed)
    return _pixels(torch.poisson(_unit(images) * photons, generator=generator) / photons)


def impulse_noise(images: Tensor, *, severity: int = 5, seed: int = 0) -> Tensor:
    """Set a share c = 0.01 .. 0.07 of all values to black or white, half each."""
    share = _at(severity, 0.01, 0.02, 0.03, 0.05, 0.07)
    generator = torch.Generator(images.device).manual_seed(seed)
    drawn = torch.rand(images.shape, generator=generator, device=images.device)
    return images.masked_fill(drawn < share / 2, 0).masked_fill(drawn > 1 - share / 2, 255)


def contrast(images: Tensor, *, severity: int = 5) -> Tensor:
    """Pull pixels toward the mean of their channel and image, keeping a share c = 0.75 .. 0.15 of the distance."""
    x = _unit(images)
    mean = x.mean((2, 3), keepdim=True)
    return _pixels((x - mean) * _at(severity, 0.75, 0.5, 0.4, 0.3, 0.15) + mean)


def brightness(images: Tensor, *, severity: int = 5) -> Tensor:
    """Add c = 0.05 .. 0.3 to the value of each pixel's color (HSV)."""
    x = _unit(images)
    value = x.amax(1, keepdim=True)
    brighter = (value + _at(severity, 0.05, 0.1, 0.15, 0.2, 0.3)).clamp(max=1)
    return _pixels(torch.where(value > 0, x * brighter / value.clamp(min=1e-12), brighter))


def saturate(images: Tensor, *, severity: int = 5) -> Tensor:
    """Change the saturation s of each pixel's color (HSV) to a s + b, from (0.3, 0) to (2.5, 0.2).

    A gray pixel has no hue; as in HSV's usual convention it is taken as red.
    """
    scale, shift = [(0.3, 0.0), (0.1, 0.0), (1.5, 0.0), (2.0, 0.1), (2.5, 0.2)][_checked(severity) - 1]
    x = _unit(images)
    value, least = x.amax(1, keepdim=True), x.amin(1, keepdim=True)
    spread = value - least
    before = spread / value.clamp(min=1e-12)
    after = (before * scale + shift).clamp(0, 1)
    red = torch.tensor([0.0, 1.0, 1.0], device=x.device).view(1, 3, 1, 1)
    distance = torch.where(spread > 0, (value - x) / spread.clamp(min=1e-12), red)  # from the value, 0 .. 1
    return _pixels(value - distance * after * value)


def gaussian_blur(images: Tensor, *, severity: int = 5) -> Tensor:
    """Blur with a Gaussian of 0.4 .. 1 pixels, cut at 4 deviations, the nearest pixel continued outside."""
    sigma = _at(severity, 0.4, 0.6, 0.7, 0.8, 1.0)
    radius = int(4 * sigma + 0.5)
    at = torch.arange(-radius, radius + 1, device=images.device)
    kernel = (-(at**2) / (2 * sigma**2)).exp()
    kernel = kernel / kernel.sum()
    n, channels, height, width = images.shape
    x = pad(_unit(images), (radius,) * 4, mode="replicate").reshape(n * channels, 1, height + 2 * radius, -1)
    blurred = conv2d(conv2d(x, kernel.view(1, 1, -1, 1)), kernel.view(1, 1, 1, -1))
    return _pixels(blurred.view(n, channels, height, width))


def pixelate(images: Tensor, *, severity: int = 5) -> Tensor:
    """Shrink to a share c = 0.95 .. 0.65 of the side by averaging boxes, and back."""
    height, width = images.shape[2:]
    share = _at(severity, 0.95, 0.9, 0.85, 0.75, 0.65)
    down = _box(int(height * share), height, images.device), _box(int(width * share), width, images.device)
    up = _box(height, int(height * share), images.device), _box(width, int(width * share), images.device)
    small = _pixels(down[0] @ _unit(images) @ down[1].T)
    return _pixels(up[0] @ _unit(small) @ up[1].T)


def jpeg_compression(images: Tensor, *, severity: int = 5) -> Tensor:
    """Compress by JPEG at quality 80 .. 40."""
    from PIL import Image

    quality = int(_at(severity, 80.0, 65.0, 58.0, 50.0, 40.0))
    result: list[Tensor] = []
    for image in images.permute(0, 2, 3, 1).cpu().numpy():
        with io.BytesIO() as file:
            Image.fromarray(image).save(file, "JPEG", quality=quality)
            result.append(torch.from_numpy(np.array(Image.open(file))))
    return torch.stack(result).permute(0, 3, 1, 2).contiguous().to(images.device)


def resized(images: Tensor, size: int) -> Tensor:
    """Return images at size x size, antialiased, so that any data set can be another's out-of-distribution set."""
    return _pixels(interpolate(_unit(images), (size, size), mode="bilinear", antialias=True))


def _checked(severity: int) -> int:
    if severity not in range(1, 6):
        raise InputError(f"severity must be 1 .. 5, got {severity}")
    return severity


def _at(severity: int, *values: float) -> float:
    return values[_checked(severity) - 1]


def _unit(images: Tensor) -> Tensor:
    if images.dtype != torch.uint8 or images.ndim != 4:
        raise InputError(f"corruptions take raw images (n, c, h, w) uint8, got {tuple(images.shape)} {images.dtype}")
    return images / 255


def _pixels(x: Tensor) -> Tensor:
    return (x.clamp(0, 1) * 255 + 1e-3).to(torch.uint8)  # cut off as in the benchmark, but 7/255 remains 7


def _noise(images: Tensor, seed: int) -> Tensor:
    generator = torch.Generator(images.device).manual_seed(seed)
    return torch.randn(images.shape, generator=generator, device=images.device)


def _box(outputs: int, inputs: int, device: torch.device) -> Tensor:
    """Weights (outputs, inputs) of box resampling: which inputs' centers lie under each output, evenly."""
    center = torch.arange(inputs, device=device) + 0.5
    width = max(inputs / outputs, 1.0)
    middle = (torch.arange(outputs, device=device) + 0.5) * inputs / outputs
    near = center - middle[:, None]
    weight = ((near > -width / 2) & (near <= width / 2)).float()
    return weight / weight.sum(1, keepdim=True)
