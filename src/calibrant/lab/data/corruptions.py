"""Corruptions of image test sets: all nineteen of CIFAR-10-C (Hendrycks & Dietterich 2019), at five severities.

Each maps uint8 images (n c h w) to uint8 images, with the constants of the benchmark's CIFAR code for its severities.
Frost needs a folder of photographs.
"""

import io
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor
from torch.nn.functional import conv2d, grid_sample, interpolate, pad

from calibrant.lab.data._corruption import (
    TINY,
    blur_along,
    blur_gaussian,
    corruption,
    gather_pixels,
    pixel_coordinates,
    to_uint8,
    to_unit_range,
    zoom_center,
)
from calibrant.lab.data._weather import fog, frost, snow, spatter

__all__ = ["brightness", "contrast", "defocus_blur", "elastic_transform", "fog", "frost", "gaussian_blur"]
__all__ += ["gaussian_noise", "glass_blur", "impulse_noise", "jpeg_compression", "motion_blur", "pixelate"]
__all__ += ["saturate", "shot_noise", "snow", "spatter", "speckle_noise", "zoom_blur"]


@corruption(0.04, 0.06, 0.08, 0.09, 0.10)
def gaussian_noise(x: Tensor, c: float, generator: Generator) -> Tensor:
    """Add noise N(0, c^2), c = 0.04 .. 0.10. AdaFocal uses severity 5 as out-of-distribution data."""
    return x + c * _normal_noise(x, generator)


@corruption(0.06, 0.1, 0.12, 0.16, 0.2)
def speckle_noise(x: Tensor, c: float, generator: Generator) -> Tensor:
    """Multiply pixels by 1 + N(0, c^2), c = 0.06 .. 0.2."""
    return x + x * c * _normal_noise(x, generator)


@corruption(500.0, 250.0, 100.0, 75.0, 50.0)
def shot_noise(x: Tensor, photons: float, generator: Generator) -> Tensor:
    """Replace every pixel x by Poisson(c x) / c, with c = 500 .. 50 photons."""
    return torch.poisson(x * photons, generator=generator) / photons


@corruption(0.01, 0.02, 0.03, 0.05, 0.07)
def impulse_noise(x: Tensor, share: float, generator: Generator) -> Tensor:
    """Set a share of 0.01 .. 0.07 of all values to 0 or 1, half of them each (salt-and-pepper noise)."""
    uniform = torch.rand(x.shape, generator=generator, device=x.device)
    return x.masked_fill(uniform < share / 2, 0).masked_fill(uniform > 1 - share / 2, 1)


@corruption(0.75, 0.5, 0.4, 0.3, 0.15)
def contrast(x: Tensor, c: float) -> Tensor:
    """Scale the distance to the mean of each channel of an image by c = 0.75 .. 0.15."""
    mean = x.mean((2, 3), keepdim=True)
    return (x - mean) * c + mean


@corruption(0.05, 0.1, 0.15, 0.2, 0.3)
def brightness(x: Tensor, c: float) -> Tensor:
    """Add c = 0.05 .. 0.3 to the value in HSV color space."""
    value = x.amax(1, keepdim=True)
    brighter = (value + c).clamp(max=1)
    # scaling all channels keeps hue and saturation; black has neither, and becomes gray
    return torch.where(value > 0, x * brighter / value.clamp(min=TINY), brighter)


@corruption((0.3, 0.0), (0.1, 0.0), (1.5, 0.0), (2.0, 0.1), (2.5, 0.2))
def saturate(x: Tensor, scale_and_shift: tuple[float, float]) -> Tensor:
    """Change the saturation s in HSV color space to a s + b, with (a, b) from (0.3, 0) to (2.5, 0.2).

    Gray pixels have no hue and are treated as red, as usual in HSV.
    """
    scale, shift = scale_and_shift
    value, minimum = x.amax(1, keepdim=True), x.amin(1, keepdim=True)
    spread = value - minimum
    saturation = spread / value.clamp(min=TINY)
    new_saturation = (saturation * scale + shift).clamp(0, 1)
    red = torch.tensor([0.0, 1.0, 1.0], device=x.device).view(1, 3, 1, 1)
    # a channel is value * (1 - saturation * distance), where its distance, in [0, 1], depends on the hue alone
    distance = torch.where(spread > 0, (value - x) / spread.clamp(min=TINY), red)
    return value - distance * new_saturation * value


@corruption(0.4, 0.6, 0.7, 0.8, 1.0)
def gaussian_blur(x: Tensor, sigma: float) -> Tensor:
    """Blur with a Gaussian of 0.4 .. 1 pixels, cut at 4 standard deviations, with the nearest pixel beyond edges."""
    return blur_gaussian(x, sigma)


@corruption((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1.0, 0.2), (1.5, 0.1))
def defocus_blur(x: Tensor, radius_and_sigma: tuple[float, float]) -> Tensor:
    """Blur with a Gaussian-smoothed disk of radius 0.3 .. 1.5 pixels, with mirrored edges.

    The kernel is 5 x 5: a disk smoothed by the benchmark's 3 x 3 Gaussian.
    """
    radius, sigma = radius_and_sigma
    offset = torch.arange(-2.0, 3.0, device=x.device)  # from the center of the kernel, in pixels
    disk = (offset[:, None] ** 2 + offset**2 <= radius**2).float()
    gaussian_1d = (-(offset[1:4] ** 2) / (2 * sigma**2)).exp()  # at -1, 0 and 1
    gaussian = gaussian_1d[:, None] * gaussian_1d
    kernel = conv2d((disk / disk.sum())[None, None], (gaussian / gaussian.sum())[None, None], padding=1)
    channels = pad(x, (2, 2, 2, 2), mode="reflect").flatten(0, 1).unsqueeze(1)  # each channel as an image
    return conv2d(channels, kernel).view(x.shape)


@corruption((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2))
def glass_blur(x: Tensor, sigma_and_rounds: tuple[float, int], generator: Generator) -> Tensor:
    """Blur, replace every pixel by itself or a neighbor above or left of it, once or twice, and blur again.

    The benchmark means to swap the two pixels, but its code copies one over the other.
    """
    sigma, rounds = sigma_and_rounds
    x = to_unit_range(to_uint8(blur_gaussian(x, sigma)))  # rounded, as in the benchmark
    n, _, height, width = x.shape
    row, column = pixel_coordinates(height, width, x.device)
    movable = (row > 1) & (column > 1)  # the first two rows and columns do not change
    for _ in range(rounds):
        up, left = torch.randint(0, 2, (2, n, height, width), generator=generator, device=x.device) * movable
        x = gather_pixels(x, row - up, column - left)
    return blur_gaussian(x, sigma)


@corruption((6, 1.0), (6, 1.5), (6, 2.0), (8, 2.0), (9, 2.5))
def motion_blur(x: Tensor, radius_and_sigma: tuple[int, float], generator: Generator) -> Tensor:
    """Blur each image along half a Gaussian of 1 .. 2.5 pixels, in a direction within 45 degrees of the right."""
    angle = math.pi / 2 * (torch.rand(len(x), generator=generator, device=x.device) - 0.5)
    radius, sigma = radius_and_sigma
    return blur_along(x, radius, sigma, angle)


@corruption(1.06, 1.11, 1.16, 1.21, 1.26)
def zoom_blur(x: Tensor, max_factor: float) -> Tensor:
    """Average the image with itself enlarged by 0 %, 1 %, .. up to 5 .. 25 %."""
    factors = np.arange(1, max_factor, 0.01).tolist()
    return sum((zoom_center(x, factor) for factor in factors), x) / (len(factors) + 1)


@corruption((0.0, 0.0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03))
def elastic_transform(x: Tensor, shares: tuple[float, float, float], generator: Generator) -> Tensor:
    """Apply a random affine map that moves three points by up to 8 .. 3 % of the side, then smooth random shifts.

    `shares` of the shorter side are the size of the shifts, the sigma that smooths them, and the moves of the points.
    The three points are corners of a square around the center; their moves determine the affine map.
    """
    n, _, height, width = x.shape
    amount, sigma, jitter = (min(height, width) * share for share in shares)  # in pixels

    def uniform(*shape: int) -> Tensor:
        """Return random numbers in [-1, 1]."""
        return 2 * torch.rand(shape, generator=generator, device=x.device) - 1

    row, column = pixel_coordinates(height, width, x.device)
    coordinates = torch.stack([column, row], -1).float()  # (h w 2): x and y
    third = min(height, width) // 3
    corners = torch.tensor([[third, third], [third, -third], [-third, -third]], device=x.device).float()
    corners += torch.tensor([width // 2, height // 2], device=x.device)
    moved = corners + jitter * uniform(n, 3, 2)
    # each pixel of the result gets the value of its source: the affine map from moved to original corners
    moved_and_one = torch.cat([moved, torch.ones_like(moved[:, :, :1])], 2)  # (n 3 3): x, y, 1
    inverse_map = torch.linalg.solve(moved_and_one, corners.expand(n, 3, 2))  # (n 3 2)
    source = coordinates @ inverse_map[:, None, :2] + inverse_map[:, None, 2:]
    size = torch.tensor([width, height], device=x.device)
    # with align_corners, -1 and 1 are the centers of the first and last pixel; without, the edges of the image
    x = grid_sample(x, 2 * source / (size - 1) - 1, padding_mode="reflection", align_corners=True)
    noise = blur_gaussian(uniform(n, 2, height, width), sigma, truncate=3.0, mirror=True)
    shifted = coordinates + amount * noise.permute(0, 2, 3, 1)
    return grid_sample(x, (2 * shifted + 1) / size - 1, padding_mode="reflection", align_corners=False)


@corruption(0.95, 0.9, 0.85, 0.75, 0.65)
def pixelate(x: Tensor, share: float) -> Tensor:
    """Shrink the sides to a share of 0.95 .. 0.65 by box averaging and enlarge them again, with rounding each time."""
    from PIL.Image import Resampling

    height, width = x.shape[2:]
    size = width, height
    reduced_size = int(width * share), int(height * share)
    return _map_pillow(x, lambda image: image.resize(reduced_size, Resampling.BOX).resize(size, Resampling.BOX))


@corruption(80, 65, 58, 50, 40)
def jpeg_compression(x: Tensor, quality: int) -> Tensor:
    """Compress with JPEG at quality 80 .. 40."""
    from PIL import Image

    def compress(image: Image.Image) -> Image.Image:
        """Write the image as JPEG and read it again."""
        file = io.BytesIO()
        image.save(file, "JPEG", quality=quality)
        return Image.open(file)  # from the start of the file

    return _map_pillow(x, compress)


def resize(images: Tensor, size: int) -> Tensor:
    """Resize uint8 images to size x size with antialiasing, to use another data set as a shift."""
    return to_uint8(interpolate(to_unit_range(images), (size, size), mode="bilinear", antialias=True))


def _map_pillow(x: Tensor, change: Callable[[Any], Any]) -> Tensor:
    """Apply `change`, a function from a Pillow image to a Pillow image, to every image (n c h w) in [0, 1]."""
    from PIL.Image import fromarray

    images = to_uint8(x).permute(0, 2, 3, 1).cpu().numpy()  # (n h w c)
    changed = np.stack([np.array(change(fromarray(image))) for image in images])
    return to_unit_range(torch.from_numpy(changed).permute(0, 3, 1, 2).contiguous().to(x.device))


def _normal_noise(x: Tensor, generator: Generator) -> Tensor:
    """Return noise N(0, 1) in the shape of the images. `randn_like` takes no generator."""
    return torch.randn(x.shape, generator=generator, device=x.device)
