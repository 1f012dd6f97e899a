"""Building blocks of corruptions of images (n c h w): their common signature, and filters."""

import inspect
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from scipy.ndimage import gaussian_filter
from torch import Tensor
from torch.nn.functional import interpolate

from calibrant._core.registry import CORRUPTIONS
from calibrant._core.types import InputError, Seed, Severity

TINY = 1e-12  # floor of denominators that may be 0, far below a level of 1 / 255


def corruption(*values: Any) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Register `function(x, value, generator)`, which corrupts images (n c h w) in [0, 1], as a corruption.

    The registered function maps uint8 images to uint8 images and takes `severity`, 1 .. 5, which selects one of the
    five `values`. It also takes `seed` if the function has a parameter `generator`.
    """

    def decorate(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Return the registered function, with a seed if the corruption is random."""

        def corrupt(images: Tensor, *, severity: Severity = 5) -> Tensor:
            """Corrupt uint8 images, with rounding at the end."""
            return to_uint8(function(to_unit_range(images), select(severity, *values)))

        def corrupt_randomly(images: Tensor, *, severity: Severity = 5, seed: Seed = 0) -> Tensor:
            """Corrupt uint8 images by the random numbers of a seed, with rounding at the end."""
            generator = torch.Generator(images.device).manual_seed(seed)
            return to_uint8(function(to_unit_range(images), select(severity, *values), generator))

        is_random = "generator" in inspect.signature(function).parameters
        registered = corrupt_randomly if is_random else corrupt
        # not wraps(), which would also show the signature of `function`: `severity` and `seed` are the settings
        for name in ("__module__", "__name__", "__qualname__", "__doc__"):
            setattr(registered, name, getattr(function, name))
        return CORRUPTIONS.register(registered)

    return decorate


def select(severity: int, *values: Any) -> Any:
    """Return the value of a corruption's parameter for a severity: one of five, from mild to severe.

    Raises:
        InputError: If the severity is not 1 .. 5.
    """
    if severity not in range(1, 6):
        raise InputError(f"Expected a severity of 1 .. 5, got {severity}.", code="setting_range")
    return values[severity - 1]


def to_unit_range(images: Tensor) -> Tensor:
    """Convert uint8 images (n c h w) to floats in [0, 1].

    Raises:
        InputError: If the images have another type or number of dimensions.
    """
    if images.dtype != torch.uint8 or images.ndim != 4:
        raise InputError(
            f"Expected raw images (n, c, h, w) of type uint8, got {tuple(images.shape)} of type {images.dtype}.",
            code="raw_images",
        )
    return images / 255


def to_uint8(x: Tensor) -> Tensor:
    """Convert floats in [0, 1] to uint8 images, rounding down as the benchmark does."""
    return (x.clamp(0, 1) * 255 + 1e-3).to(torch.uint8)  # without 1e-3, rounding errors turn 7 / 255 into 6


# Filters


def blur_gaussian(x: Tensor, sigma: float, truncate: float = 4.0, *, mirror: bool = False) -> Tensor:
    """Blur (.. h w) with a Gaussian of sigma pixels that is cut at `truncate` standard deviations.

    Beyond the edges, the image is continued by the nearest pixel, or by its mirror image with repeated edges.
    """
    mode, axes = "reflect" if mirror else "nearest", (-2, -1)
    blurred = gaussian_filter(x.cpu().numpy(), sigma, mode=mode, truncate=truncate, axes=axes)
    return torch.from_numpy(blurred).to(x.device)


def pixel_coordinates(height: int, width: int, device: torch.device) -> tuple[Tensor, ...]:
    """Return row and column of every pixel, (h w) each."""
    return torch.meshgrid(torch.arange(height, device=device), torch.arange(width, device=device), indexing="ij")


def gather_pixels(x: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Copy to each pixel of (n c h w) the pixel of the same image at (row, column), clamped to the image.

    `row` and `column` (n h w) hold the position to copy from.
    """
    _, channels, height, width = x.shape
    index = row.clamp(0, height - 1) * width + column.clamp(0, width - 1)  # (n h w) in flattened images
    return x.flatten(2).gather(2, index.flatten(1)[:, None].expand(-1, channels, -1)).view(x.shape)


def blur_along(x: Tensor, radius: int, sigma: float, angle: Tensor) -> Tensor:
    """Blur with half a Gaussian: the mean of the 2 radius + 1 pixels on one side of each pixel, as in ImageMagick.

    `angle` (n) is the direction from a pixel to those that it takes, for each image: 0 is to the right, pi / 2
    downward.
    """
    row, column = pixel_coordinates(x.shape[2], x.shape[3], x.device)
    weights = [math.exp(-(i**2) / (2 * sigma**2)) for i in range(2 * radius + 1)]  # of the pixel i steps away
    blurred = torch.zeros_like(x)
    for i, weight in enumerate(weights):
        right = (i * angle.cos() - 0.5).ceil().long().view(-1, 1, 1)  # to the nearest pixel, a half rounded down
        down = (i * angle.sin() - 0.5).ceil().long().view(-1, 1, 1)
        blurred += weight / sum(weights) * gather_pixels(x, row + down, column + right)
    return blurred


def zoom_center(x: Tensor, factor: float) -> Tensor:
    """Enlarge images (n c h w) by a factor of 1 or more and crop them to the original size, around the center.

    The part that stays visible is cut out before it is enlarged, as in the benchmark.
    """
    size = x.shape[2:]
    inner_size = [math.ceil(side / factor) for side in size]
    zoomed_size = [round(side * factor) for side in inner_size]  # at least `size`
    zoomed = interpolate(_crop_center(x, inner_size), zoomed_size, mode="bilinear", align_corners=True)
    return _crop_center(zoomed, size)


def _crop_center(x: Tensor, size: Iterable[int]) -> Tensor:
    """Return the middle of images at a smaller height and width, rounded to the top left."""
    (height, width), (full_height, full_width) = size, x.shape[2:]
    top, left = (full_height - height) // 2, (full_width - width) // 2
    return x[:, :, top : top + height, left : left + width]


def fractal_clouds(n: int, side: int, decay: float, generator: torch.Generator) -> Tensor:
    """Return fractal clouds (n side side) in [0, 1] by the diamond-square algorithm.

    `side` is a power of two. Each pass sets the points halfway between the points of the last pass to the mean of four
    neighbors plus uniform noise, whose amplitude falls by a factor of `decay`^2. The image is continued periodically.
    """
    height = torch.zeros(n, side, side, device=generator.device)
    step, wobble = side, 100.0  # the value of the benchmark, which cancels when the result is scaled to [0, 1]

    def displaced_mean(total: Tensor) -> Tensor:
        """Return the mean of four neighbors from their sum, plus noise of amplitude wobble^2 as in the benchmark."""
        noise = 2 * torch.rand(total.shape, generator=generator, device=generator.device) - 1
        return total / 4 + wobble**2 * noise

    while step > 1:
        half = step // 2
        corner = height[:, ::step, ::step]
        across = corner + corner.roll(-1, 2)  # sum of the ends of each horizontal side
        down = corner + corner.roll(-1, 1)  # sum of the ends of each vertical side
        midpoint = displaced_mean(across + across.roll(-1, 1))  # between four corners
        height[:, half::step, half::step] = midpoint
        # a point on a side has two corners and the midpoints on both sides of it as neighbors
        height[:, ::step, half::step] = displaced_mean(across + midpoint + midpoint.roll(1, 1))
        height[:, half::step, ::step] = displaced_mean(down + midpoint + midpoint.roll(1, 2))
        step, wobble = half, wobble / decay
    height -= height.amin((1, 2), keepdim=True)
    return height / height.amax((1, 2), keepdim=True)
