"""What corruptions of images are made of: tensors (n c h w) in, as many out."""

import math

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from calibrant.types import InputError


def blur_gaussian(x: Tensor, sigma: float, deviations: float = 4.0, *, mirror: bool = False) -> Tensor:
    """Blur (.. h w) with a Gaussian; outside lies the nearest pixel, or the mirror image, edges repeated."""
    radius = int(deviations * sigma + 0.5)
    offsets = torch.arange(-radius, radius + 1, device=x.device)
    kernel = (-(offsets**2) / (2 * max(sigma, 1e-3) ** 2)).exp()

    def matrix(size: int) -> Tensor:
        seen = torch.arange(size, device=x.device)[:, None] + offsets
        turned = seen.remainder(2 * size)
        seen = turned.minimum(2 * size - 1 - turned) if mirror else seen.clamp(0, size - 1)
        return torch.zeros(size, size, device=x.device).scatter_add_(1, seen, (kernel / kernel.sum()).expand(size, -1))

    return matrix(x.shape[-2]) @ x @ matrix(x.shape[-1]).T


def pixel_coordinates(height: int, width: int, device: torch.device) -> tuple[Tensor, ...]:
    """Row and column of every pixel, (h w) each."""
    return torch.meshgrid(torch.arange(height, device=device), torch.arange(width, device=device), indexing="ij")


def gather_pixels(x: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Pixels of (n c h w) from places (n h w), the nearest ones where those lie outside."""
    _, channels, height, width = x.shape
    index = row.clamp(0, height - 1) * width + column.clamp(0, width - 1)
    return x.flatten(2).gather(2, index.flatten(1)[:, None].expand(-1, channels, -1)).view(x.shape)


def blur_along(x: Tensor, radius: int, sigma: float, angle: Tensor) -> Tensor:
    """Blur along half a Gaussian that begins at each pixel, as ImageMagick does: 2 radius + 1 steps to whole pixels."""
    row, column = pixel_coordinates(x.shape[2], x.shape[3], x.device)
    steps = range(2 * radius + 1)
    weights = [math.exp(-(i**2) / (2 * sigma**2)) for i in steps]
    out = torch.zeros_like(x)
    for i, weight in zip(steps, weights, strict=True):
        right, down = ((i * part(angle) - 0.5).ceil().long().view(-1, 1, 1) for part in (torch.cos, torch.sin))
        out += weight / sum(weights) * gather_pixels(x, row + down, column + right)
    return out


def zoom_center(x: Tensor, factor: float) -> Tensor:
    """The middle of (n c h w), enlarged to at least its size and cut to it."""
    height, width = x.shape[2:]
    crop_size = math.ceil(height / factor), math.ceil(width / factor)
    top, left = (height - crop_size[0]) // 2, (width - crop_size[1]) // 2
    crop = x[:, :, top : top + crop_size[0], left : left + crop_size[1]]
    size = [round(crop_size[0] * factor), round(crop_size[1] * factor)]
    zoomed = interpolate(crop, size, mode="bilinear", align_corners=True)
    top, left = (size[0] - height) // 2, (size[1] - width) // 2
    return zoomed[:, :, top : top + height, left : left + width]


def fractal_clouds(n: int, side: int, decay: float, generator: torch.Generator) -> Tensor:
    """Fractal clouds (n side side) in [0, 1]: midpoints of squares, then of diamonds, displaced ever less."""
    height = torch.zeros(n, side, side, device=generator.device)
    step, wobble = side, 100.0

    def between(total: Tensor) -> Tensor:
        drawn = 2 * torch.rand(total.shape, generator=generator, device=generator.device) - 1
        return total / 4 + wobble**2 * drawn

    while step > 1:
        half = step // 2
        corner = height[:, ::step, ::step]
        corner_sums = corner + corner.roll(-1, 2), corner + corner.roll(-1, 1)
        midpoint = between(corner_sums[0] + corner_sums[0].roll(-1, 1))
        height[:, half::step, half::step] = midpoint
        height[:, ::step, half::step] = between(corner_sums[0] + midpoint + midpoint.roll(1, 1))
        height[:, half::step, ::step] = between(corner_sums[1] + midpoint + midpoint.roll(1, 2))
        step, wobble = half, wobble / decay
    height -= height.amin((1, 2), keepdim=True)
    return height / height.amax((1, 2), keepdim=True)


def box_weights(outputs: int, inputs: int, device: torch.device) -> Tensor:
    """Weights (outputs, inputs) of box resampling: which inputs' centers lie under each output, evenly."""
    center = torch.arange(inputs, device=device) + 0.5
    width = max(inputs / outputs, 1.0)
    output_center = (torch.arange(outputs, device=device) + 0.5) * inputs / outputs
    distance = center - output_center[:, None]
    weight = ((distance > -width / 2) & (distance <= width / 2)).float()
    return weight / weight.sum(1, keepdim=True)


def check_severity(severity: int) -> int:
    """Return a severity, 1 .. 5."""
    if severity not in range(1, 6):
        raise InputError(f"severity must be 1 .. 5, got {severity}", code="setting_range")
    return severity


def severity_value(severity: int, *values: float) -> float:
    """Return the value of a severity."""
    return values[check_severity(severity) - 1]


def to_unit_range(images: Tensor) -> Tensor:
    """Return raw images as numbers in [0, 1]."""
    if images.dtype != torch.uint8 or images.ndim != 4:
        raise InputError(
            f"corruptions take raw images (n, c, h, w) uint8, got {tuple(images.shape)} {images.dtype}",
            code="raw_images",
        )
    return images / 255


def to_uint8(x: Tensor) -> Tensor:
    """Return numbers in [0, 1] as raw images."""
    return (x.clamp(0, 1) * 255 + 1e-3).to(torch.uint8)  # cut off as in the benchmark, but 7/255 remains 7
