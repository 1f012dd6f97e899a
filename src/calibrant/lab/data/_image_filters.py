"""Filters of images (n c h w) that corruptions are built from."""

import math
from collections.abc import Iterable

import torch
from scipy.ndimage import gaussian_filter
from torch import Tensor
from torch.nn.functional import interpolate


def blur_gaussian(x: Tensor, sigma: float, truncate: float = 4.0, *, mirror: bool = False) -> Tensor:
    """Blur (.. h w) with a Gaussian that is cut at `truncate` standard deviations.

    Beyond the edges, the image is continued by the nearest pixel, or by its mirror image with repeated edges.
    """
    mode, axes = "reflect" if mirror else "nearest", (-2, -1)
    blurred = gaussian_filter(x.cpu().numpy(), sigma, mode=mode, truncate=truncate, axes=axes)
    return torch.from_numpy(blurred).to(x.device)


def pixel_coordinates(height: int, width: int, device: torch.device) -> tuple[Tensor, ...]:
    """Return row and column of every pixel, (h w) each."""
    return torch.meshgrid(torch.arange(height, device=device), torch.arange(width, device=device), indexing="ij")


def gather_pixels(x: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Return the pixels of (n c h w) at positions (n h w), clamped to the image."""
    _, channels, height, width = x.shape
    index = row.clamp(0, height - 1) * width + column.clamp(0, width - 1)
    return x.flatten(2).gather(2, index.flatten(1)[:, None].expand(-1, channels, -1)).view(x.shape)


def blur_along(x: Tensor, radius: int, sigma: float, angle: Tensor) -> Tensor:
    """Blur with half a Gaussian of 2 radius + 1 steps that starts at each pixel, as ImageMagick does."""
    row, column = pixel_coordinates(x.shape[2], x.shape[3], x.device)
    weights = [math.exp(-(i**2) / (2 * sigma**2)) for i in range(2 * radius + 1)]
    out = torch.zeros_like(x)
    for i, weight in enumerate(weights):
        right, down = ((i * part(angle) - 0.5).ceil().long().view(-1, 1, 1) for part in (torch.cos, torch.sin))
        out += weight / sum(weights) * gather_pixels(x, row + down, column + right)
    return out


def zoom_center(x: Tensor, factor: float) -> Tensor:
    """Enlarge the center of (n c h w) and crop it to the original size."""
    size = x.shape[2:]
    inner = [math.ceil(side / factor) for side in size]
    zoomed = interpolate(
        _crop_center(x, inner), [round(side * factor) for side in inner], mode="bilinear", align_corners=True
    )
    return _crop_center(zoomed, size)


def _crop_center(x: Tensor, size: Iterable[int]) -> Tensor:
    (height, width), (full_height, full_width) = size, x.shape[2:]
    top, left = (full_height - height) // 2, (full_width - width) // 2
    return x[:, :, top : top + height, left : left + width]


def fractal_clouds(n: int, side: int, decay: float, generator: torch.Generator) -> Tensor:
    """Return fractal clouds (n side side) in [0, 1] by the diamond-square algorithm."""
    height = torch.zeros(n, side, side, device=generator.device)
    step, wobble = side, 100.0

    def displaced_mean(total: Tensor) -> Tensor:
        noise = 2 * torch.rand(total.shape, generator=generator, device=generator.device) - 1
        return total / 4 + wobble**2 * noise

    while step > 1:
        half = step // 2
        corner = height[:, ::step, ::step]
        across, down = corner + corner.roll(-1, 2), corner + corner.roll(-1, 1)
        midpoint = displaced_mean(across + across.roll(-1, 1))
        height[:, half::step, half::step] = midpoint
        height[:, ::step, half::step] = displaced_mean(across + midpoint + midpoint.roll(1, 1))
        height[:, half::step, ::step] = displaced_mean(down + midpoint + midpoint.roll(1, 2))
        step, wobble = half, wobble / decay
    height -= height.amin((1, 2), keepdim=True)
    return height / height.amax((1, 2), keepdim=True)
