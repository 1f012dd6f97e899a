"""Shifts of image test sets: corruptions of CIFAR-10-C (Hendrycks & Dietterich 2019) with its five severities.

Each takes uint8 images (n c h w) and returns as many, with the constants of the benchmark's CIFAR code: all nineteen.
Frost needs a folder of photographs.
"""

import io
import math

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import conv2d, grid_sample, interpolate, pad

from calibrant.lab.data._filters import (
    blur_along,
    blur_gaussian,
    box_weights,
    check_severity,
    gather_pixels,
    pixel_coordinates,
    severity_value,
    to_uint8,
    to_unit_range,
    zoom_center,
)
from calibrant.lab.data._weather import fog, frost, snow, spatter
from calibrant.registry import CORRUPTIONS
from calibrant.types import Seed, Severity

__all__ = [
    "brightness",
    "contrast",
    "defocus_blur",
    "elastic_transform",
    "fog",
    "frost",
    "gaussian_blur",
    "gaussian_noise",
    "glass_blur",
    "impulse_noise",
    "jpeg_compression",
    "motion_blur",
    "pixelate",
    "saturate",
    "shot_noise",
    "snow",
    "spatter",
    "speckle_noise",
    "zoom_blur",
]


@CORRUPTIONS.register
def gaussian_noise(images: Tensor, *, severity: Severity = 5, seed: Seed = 0) -> Tensor:
    """Add N(0, c^2) to pixels in [0, 1], c = 0.04 .. 0.10. Severity 5 is AdaFocal's out-of-distribution set."""
    x, noise = to_unit_range(images), _gaussian_noise(images, seed)
    return to_uint8(x + severity_value(severity, 0.04, 0.06, 0.08, 0.09, 0.10) * noise)


@CORRUPTIONS.register
def speckle_noise(images: Tensor, *, severity: Severity = 5, seed: Seed = 0) -> Tensor:
    """Multiply pixels by 1 + N(0, c^2), c = 0.06 .. 0.2."""
    x, noise = to_unit_range(images), _gaussian_noise(images, seed)
    return to_uint8(x + x * severity_value(severity, 0.06, 0.1, 0.12, 0.16, 0.2) * noise)


@CORRUPTIONS.register
def shot_noise(images: Tensor, *, severity: Severity = 5, seed: Seed = 0) -> Tensor:
    """Draw every pixel x from Poisson(c x) / c, c = 500 .. 50 photons."""
    photons = severity_value(severity, 500.0, 250.0, 100.0, 75.0, 50.0)
    generator = torch.Generator(images.device).manual_seed(seed)
    return to_uint8(torch.poisson(to_unit_range(images) * photons, generator=generator) / photons)


@CORRUPTIONS.register
def impulse_noise(images: Tensor, *, severity: Severity = 5, seed: Seed = 0) -> Tensor:
    """Set a share c = 0.01 .. 0.07 of all values to black or white, half each."""
    share = severity_value(severity, 0.01, 0.02, 0.03, 0.05, 0.07)
    generator = torch.Generator(images.device).manual_seed(seed)
    drawn = torch.rand(images.shape, generator=generator, device=images.device)
    return images.masked_fill(drawn < share / 2, 0).masked_fill(drawn > 1 - share / 2, 255)


@CORRUPTIONS.register
def contrast(images: Tensor, *, severity: Severity = 5) -> Tensor:
    """Pull pixels toward the mean of their channel and image, keeping a share c = 0.75 .. 0.15 of the distance."""
    x = to_unit_range(images)
    mean = x.mean((2, 3), keepdim=True)
    return to_uint8((x - mean) * severity_value(severity, 0.75, 0.5, 0.4, 0.3, 0.15) + mean)


@CORRUPTIONS.register
def brightness(images: Tensor, *, severity: Severity = 5) -> Tensor:
    """Add c = 0.05 .. 0.3 to the value of each pixel's color (HSV)."""
    x = to_unit_range(images)
    value = x.amax(1, keepdim=True)
    brighter = (value + severity_value(severity, 0.05, 0.1, 0.15, 0.2, 0.3)).clamp(max=1)
    return to_uint8(torch.where(value > 0, x * brighter / value.clamp(min=1e-12), brighter))


@CORRUPTIONS.register
def saturate(images: Tensor, *, severity: Severity = 5) -> Tensor:
    """Change the saturation s of each pixel's color (HSV) to a s + b, from (0.3, 0) to (2.5, 0.2).

    A gray pixel has no hue; as in HSV's usual convention it is taken as red.
    """
    scale, shift = [(0.3, 0.0), (0.1, 0.0), (1.5, 0.0), (2.0, 0.1), (2.5, 0.2)][check_severity(severity) - 1]
    x = to_unit_range(images)
    value, minimum = x.amax(1, keepdim=True), x.amin(1, keepdim=True)
    spread = value - minimum
    saturation = spread / value.clamp(min=1e-12)
    new_saturation = (saturation * scale + shift).clamp(0, 1)
    red = torch.tensor([0.0, 1.0, 1.0], device=x.device).view(1, 3, 1, 1)
    distance = torch.where(spread > 0, (value - x) / spread.clamp(min=1e-12), red)  # from the value, 0 .. 1
    return to_uint8(value - distance * new_saturation * value)


@CORRUPTIONS.register
def gaussian_blur(images: Tensor, *, severity: Severity = 5) -> Tensor:
    """Blur with a Gaussian of 0.4 .. 1 pixels, cut at 4 deviations, the nearest pixel continued outside."""
    return to_uint8(blur_gaussian(to_unit_range(images), severity_value(severity, 0.4, 0.6, 0.7, 0.8, 1.0)))


@CORRUPTIONS.register
def defocus_blur(images: Tensor, *, severity: Severity = 5) -> Tensor:
    """Blur with a disk of radius 0.3 .. 1.5 pixels, its rim softened by a Gaussian; mirrored at the edges."""
    radius, rim = [(0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1.0, 0.2), (1.5, 0.1)][check_severity(severity) - 1]
    place = torch.arange(-2.0, 3.0, device=images.device)
    disk = (place[:, None] ** 2 + place**2 <= radius**2).float()
    bell = (-(place[1:4] ** 2) / (2 * rim**2)).exp()
    bell = bell[:, None] * bell
    kernel = conv2d((disk / disk.sum())[None, None], (bell / bell.sum())[None, None], padding=1)
    x = pad(to_unit_range(images), (2, 2, 2, 2), mode="reflect")
    return to_uint8(conv2d(x.flatten(0, 1).unsqueeze(1), kernel).view(images.shape))


@CORRUPTIONS.register
def glass_blur(images: Tensor, *, severity: Severity = 5, seed: Seed = 0) -> Tensor:
    """Blur a little, replace every pixel by itself or one above or left of it, once or twice, and blur again.

    The benchmark means to exchange the two pixels, but its assignment copies one of them.
    """
    sigma, times = [(0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2)][check_severity(severity) - 1]
    generator = torch.Generator(images.device).manual_seed(seed)
    x = to_unit_range(to_uint8(blur_gaussian(to_unit_range(images), sigma)))
    n, _, height, width = images.shape
    row, column = pixel_coordinates(height, width, images.device)
    movable = (row > 1) & (column > 1)  # two rows and columns stay
    for _ in range(times):
        up, left = torch.randint(0, 2, (2, n, height, width), generator=generator, device=images.device) * movable
        x = gather_pixels(x, row - up, column - left)
    return to_uint8(blur_gaussian(x, sigma))


@CORRUPTIONS.register
def motion_blur(images: Tensor, *, severity: Severity = 5, seed: Seed = 0) -> Tensor:
    """Blur along half a Gaussian of 1 .. 2.5 pixels, for every image in a direction within 45 degrees of the right."""
    radius, sigma = [(6, 1.0), (6, 1.5), (6, 2.0), (8, 2.0), (9, 2.5)][check_severity(severity) - 1]
    generator = torch.Generator(images.device).manual_seed(seed)
    angle = math.pi / 2 * (torch.rand(len(images), generator=generator, device=images.device) - 0.5)
    return to_uint8(blur_along(to_unit_range(images), radius, sigma, angle))


@CORRUPTIONS.register
def zoom_blur(images: Tensor, *, severity: Severity = 5) -> Tensor:
    """Average the image with itself enlarged by 0 %, 1 %, .. up to 5 .. 25 %."""
    x = to_unit_range(images)
    factors = np.arange(1, severity_value(severity, 1.06, 1.11, 1.16, 1.21, 1.26), 0.01).tolist()
    total = x.clone()
    for factor in factors:
        total += zoom_center(x, factor)
    return to_uint8(total / (len(factors) + 1))


@CORRUPTIONS.register
def elastic_transform(images: Tensor, *, severity: Severity = 5, seed: Seed = 0) -> Tensor:
    """Move three points by up to 8 .. 3 % of the side, the image with them, then every pixel by smooth noise."""
    n, _, height, width = images.shape
    amount, sigma, jitter = (
        min(height, width) * share
        for share in [(0.0, 0.0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)][
            check_severity(severity) - 1
        ]
    )
    generator = torch.Generator(images.device).manual_seed(seed)

    def drawn(*shape: int) -> Tensor:
        return 2 * torch.rand(shape, generator=generator, device=images.device) - 1

    row, column = pixel_coordinates(height, width, images.device)
    coordinates = torch.stack([column, row], -1).float()  # (h w 2) x and y
    third = min(height, width) // 3
    corners = torch.tensor([[third, third], [third, -third], [-third, -third]], device=images.device).float()
    corners += torch.tensor([width // 2, height // 2], device=images.device)
    moved = corners + jitter * drawn(n, 3, 2)
    inverse_map = torch.linalg.solve(torch.cat([moved, torch.ones_like(moved[:, :, :1])], 2), corners.expand(n, 3, 2))
    source = coordinates @ inverse_map[:, None, :2] + inverse_map[:, None, 2:]
    size = torch.tensor([width, height], device=images.device)
    x = to_unit_range(images)
    x = grid_sample(x, 2 * source / (size - 1) - 1, padding_mode="reflection", align_corners=True)
    shift = amount * blur_gaussian(drawn(n, 2, height, width), sigma, 3.0, mirror=True).permute(0, 2, 3, 1)
    place = (2 * (coordinates + shift) + 1) / size - 1
    return to_uint8(grid_sample(x, place, padding_mode="reflection", align_corners=False))


@CORRUPTIONS.register
def pixelate(images: Tensor, *, severity: Severity = 5) -> Tensor:
    """Shrink to a share c = 0.95 .. 0.65 of the side by averaging boxes, and back; rounded after every pass."""
    x, (height, width) = 255 * to_unit_range(images).double(), images.shape[2:]
    share = severity_value(severity, 0.95, 0.9, 0.85, 0.75, 0.65)
    small_size = int(height * share), int(width * share)
    for rows, columns in (small_size, (height, width)):
        x = (x @ box_weights(columns, x.shape[3], x.device).double().T + 0.5).floor()
        x = (box_weights(rows, x.shape[2], x.device).double() @ x + 0.5).floor()
    return x.to(torch.uint8)


@CORRUPTIONS.register
def jpeg_compression(images: Tensor, *, severity: Severity = 5) -> Tensor:
    """Compress by JPEG at quality 80 .. 40."""
    from PIL import Image

    quality = int(severity_value(severity, 80.0, 65.0, 58.0, 50.0, 40.0))
    result: list[Tensor] = []
    for image in images.permute(0, 2, 3, 1).cpu().numpy():
        with io.BytesIO() as file:
            Image.fromarray(image).save(file, "JPEG", quality=quality)
            result.append(torch.from_numpy(np.array(Image.open(file))))
    return torch.stack(result).permute(0, 3, 1, 2).contiguous().to(images.device)


def resize(images: Tensor, size: int) -> Tensor:
    """Return images at size x size, antialiased, so that any data set can be another's out-of-distribution set."""
    return to_uint8(interpolate(to_unit_range(images), (size, size), mode="bilinear", antialias=True))


def _gaussian_noise(images: Tensor, seed: int) -> Tensor:
    generator = torch.Generator(images.device).manual_seed(seed)
    return torch.randn(images.shape, generator=generator, device=images.device)
