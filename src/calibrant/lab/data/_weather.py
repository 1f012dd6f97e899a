"""Weather on images: fog, snow, frost, and what splashes on a lens (Hendrycks & Dietterich 2019)."""

import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from calibrant.lab.data._filters import (
    blur_along,
    blur_gaussian,
    check_severity,
    fractal_clouds,
    to_uint8,
    to_unit_range,
    zoom_center,
)
from calibrant.lab.data._loading import data_root, wrap_read_errors
from calibrant.lab.data._original_formats import IMAGE_SUFFIXES
from calibrant.lab.data._spatter import drop_light
from calibrant.registry import CORRUPTIONS
from calibrant.types import InputError, Seed, Severity

__all__ = ["fog", "frost", "snow", "spatter"]


@CORRUPTIONS.register
def fog(images: Tensor, *, severity: Severity = 5, seed: Seed = 0) -> Tensor:
    """Add c = 0.2 .. 1.5 times fractal clouds, and darken the whole so that the brightest value could stay."""
    amount, decay = [(0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75)][check_severity(severity) - 1]
    x, (height, width) = to_unit_range(images), images.shape[2:]
    side = 1 << (max(height, width) - 1).bit_length()
    cloud = fractal_clouds(len(x), side, decay, torch.Generator(images.device).manual_seed(seed))[
        :, None, :height, :width
    ]
    brightest = x.amax((1, 2, 3), keepdim=True)
    return to_uint8((x + amount * cloud) * brightest / (brightest + amount))


@CORRUPTIONS.register
def snow(images: Tensor, *, severity: Severity = 5, seed: Seed = 0) -> Tensor:
    """Whiten the image, and let flakes fall through it: the brightest spots of noise, enlarged and dragged downward."""
    mean, deviation, size, threshold, radius, sigma, image_weight = [
        (0.1, 0.2, 1.0, 0.6, 8, 3.0, 0.95),
        (0.1, 0.2, 1.0, 0.5, 10, 4.0, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4.0, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6.0, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12.0, 0.8),
    ][check_severity(severity) - 1]
    x, generator = to_unit_range(images), torch.Generator(images.device).manual_seed(seed)
    noise = mean + deviation * torch.randn(x[:, :1].shape, generator=generator, device=x.device)
    flakes = zoom_center(noise, size)
    flakes = (flakes.where(flakes >= threshold, 0.0).clamp(0, 1) * 255).floor() / 255  # in whole levels, as an image
    angle = -math.pi / 4 - math.pi / 2 * torch.rand(len(x), generator=generator, device=x.device)
    flakes = (blur_along(flakes, radius, sigma, angle) * 255).round() / 255
    gray = (x * torch.tensor([0.299, 0.587, 0.114], device=x.device).view(3, 1, 1)).sum(1, keepdim=True)
    whitened = image_weight * x + (1 - image_weight) * x.maximum(1.5 * gray + 0.5)
    return to_uint8(whitened + flakes + flakes.flip(2, 3))


@CORRUPTIONS.register
def frost(images: Tensor, *, textures: str = "frost", severity: Severity = 5, seed: Seed = 0) -> Tensor:
    """Lay a photograph of frost on each image: one of a folder, shrunk to a fifth, cut out at random.

    `textures` is that folder, as given or in the data folder; the benchmark's own has six, of which it uses five.
    Raises `InputError` where there is no image in it, or one that is too small.
    """
    image_weight, ice_weight = [(1.0, 0.2), (1.0, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)][
        check_severity(severity) - 1
    ]
    x, (height, width) = to_unit_range(images), images.shape[2:]
    photographs = _load_textures(textures, height, width)
    generator = torch.Generator(images.device).manual_seed(seed)
    ice = torch.empty_like(x)
    for i, draw in enumerate(torch.rand(len(x), 3, generator=generator, device=x.device).tolist()):
        texture = photographs[int(draw[0] * len(photographs))].to(x.device)
        top, left = int(draw[1] * (texture.shape[1] - height)), int(draw[2] * (texture.shape[2] - width))
        ice[i] = texture[:, top : top + height, left : left + width]
    return to_uint8(image_weight * x + ice_weight * ice)


def _load_textures(name: str, height: int, width: int) -> list[Tensor]:
    """Return the images of a folder (3 h w) in [0, 1], shrunk to a fifth."""
    from PIL import Image

    root = data_root(None)
    folder = Path(name) if Path(name).is_dir() or root is None else root / name
    paths = sorted(path for path in folder.glob("*") if path.suffix.lower() in IMAGE_SUFFIXES)
    if not paths:
        raise InputError(
            f"frost: no photographs in {folder}; name a folder of them, as in frost(textures='DIR')", code="no_images"
        )
    photographs: list[Tensor] = []
    for path in paths:
        with wrap_read_errors(str(path)), Image.open(path) as image:
            photograph = torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)[None] / 255
        size = [round(side / 5) for side in photograph.shape[2:]]
        if size[0] <= height or size[1] <= width:
            raise InputError(
                f"frost: {path} is too small; it must be above {5 * height} x {5 * width} pixels", code="image_size"
            )
        photographs.append((interpolate(photograph, size, mode="bilinear")[0] * 255).round() / 255)
    return photographs


@CORRUPTIONS.register
def spatter(images: Tensor, *, severity: Severity = 5, seed: Seed = 0) -> Tensor:
    """Splash water (severity 1 to 3) or mud on the lens, where blurred noise is thickest."""
    mean, deviation, sigma, threshold, amount, mud = [
        (0.62, 0.1, 0.7, 0.7, 0.5, False),
        (0.65, 0.1, 0.8, 0.7, 0.5, False),
        (0.65, 0.3, 1.0, 0.69, 0.5, False),
        (0.65, 0.1, 0.7, 0.69, 0.6, True),
        (0.65, 0.1, 0.5, 0.68, 0.6, True),
    ][check_severity(severity) - 1]
    x, generator = to_unit_range(images), torch.Generator(images.device).manual_seed(seed)
    noise = mean + deviation * torch.randn(x[:, 0].shape, generator=generator, device=x.device)
    return to_uint8(_apply_liquid(x, blur_gaussian(noise, sigma), threshold, amount, mud=mud))


def _apply_liquid(x: Tensor, liquid: Tensor, threshold: float, amount: float, *, mud: bool) -> Tensor:
    """Lay a liquid (n h w) on images in [0, 1]; `amount` is how bright water is, or how far mud is blurred."""
    if mud:
        cover = blur_gaussian((liquid > threshold).float(), amount)[:, None]
        cover = cover.where(cover >= 0.8, 0.0)
        return x * (1 - cover) + cover * _color_tensor(x, 63, 42, 20)
    thickness = (liquid.where(liquid >= threshold, 0.0) * 255).floor().remainder(256)  # in whole levels, as an image
    return x + amount * drop_light(thickness)[:, None] * _color_tensor(x, 175, 238, 238)


def _color_tensor(x: Tensor, *rgb: int) -> Tensor:
    return torch.tensor(rgb, device=x.device).view(1, 3, 1, 1) / 255
