"""Weather on images: fog, snow, frost and spatter (Hendrycks & Dietterich 2019), whose code lights drops by OpenCV."""

import math
from collections.abc import Iterator

import numpy as np
import torch
from scipy.ndimage import binary_propagation
from torch import Generator, Tensor
from torch.nn.functional import conv2d, interpolate, pad

from calibrant._core.registry import CORRUPTIONS
from calibrant._core.types import InputError, Seed, Severity
from calibrant.lab.data._corruption import (
    TINY,
    blur_along,
    blur_gaussian,
    corruption,
    fractal_clouds,
    select,
    to_uint8,
    to_unit_range,
    zoom_center,
)
from calibrant.lab.data._loading import IMAGE_SUFFIXES, find_in_root, wrap_read_errors

MOVE_LENGTHS = {(0, 1): 1.0, (1, 1): 1.4, (1, 2): 2.1969}  # straight, diagonal, and a knight's move, as in OpenCV
TAN_22_5, TAN_67_5 = 0.41421356, 2.41421356  # of the angles halfway between 0, 45 and 90 degrees
MAX_EDGE_DISTANCE_PIXELS = 20.0  # larger distances have no effect
FAR_AWAY_PIXELS = 1e6  # initial distance of pixels that are not edges
LOW_EDGE_THRESHOLD, HIGH_EDGE_THRESHOLD = 50, 150  # gradients of Canny edges


@corruption((0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75))
def fog(x: Tensor, amount_and_decay: tuple[float, float], generator: Generator) -> Tensor:
    """Add clouds times an amount of 0.2 .. 1.5, and multiply by m / (m + amount), where m is the brightest value.

    As clouds are at most 1, no value exceeds m afterward.
    """
    amount, decay = amount_and_decay
    height, width = x.shape[2:]
    side = 1 << (max(height, width) - 1).bit_length()  # the next power of two
    cloud = fractal_clouds(len(x), side, decay, generator)[:, None, :height, :width]
    brightest = x.amax((1, 2, 3), keepdim=True)
    return (x + amount * cloud) * brightest / (brightest + amount)


@corruption(  # mean and deviation of noise, zoom, threshold, radius and sigma of flakes, weight of the image
    (0.1, 0.2, 1.0, 0.6, 8, 3.0, 0.95),
    (0.1, 0.2, 1.0, 0.5, 10, 4.0, 0.9),
    (0.15, 0.3, 1.75, 0.55, 10, 4.0, 0.9),
    (0.25, 0.3, 2.25, 0.6, 12, 6.0, 0.85),
    (0.3, 0.3, 1.25, 0.65, 14, 12.0, 0.8),
)
def snow(x: Tensor, values: tuple[float, float, float, float, int, float, float], generator: Generator) -> Tensor:
    """Whiten the image and add snowflakes: the brightest spots of noise, enlarged and blurred downward."""
    mean, deviation, zoom, threshold, radius, sigma, image_weight = values
    noise = mean + deviation * torch.randn(x[:, :1].shape, generator=generator, device=x.device)
    flakes = zoom_center(noise, zoom)
    flakes = (flakes.where(flakes >= threshold, 0.0).clamp(0, 1) * 255).floor() / 255  # whole levels, as in an image
    # -135 .. -45 degrees: the blur takes pixels from above, which draws flakes out downward
    angle = -math.pi / 4 - math.pi / 2 * torch.rand(len(x), generator=generator, device=x.device)
    flakes = (blur_along(flakes, radius, sigma, angle) * 255).round() / 255
    luma = torch.tensor([0.299, 0.587, 0.114], device=x.device).view(3, 1, 1)  # the eye's weights of red, green, blue
    gray = (x * luma).sum(1, keepdim=True)
    # mixed with a bright gray version of the image; the constants are the benchmark's
    whitened = image_weight * x + (1 - image_weight) * x.maximum(1.5 * gray + 0.5)
    return whitened + flakes + flakes.flip(2, 3)  # the flakes and the same turned by 180 degrees, as in the benchmark


@CORRUPTIONS.register
def frost(images: Tensor, *, textures: str = "frost", severity: Severity = 5, seed: Seed = 0) -> Tensor:
    """Overlay each image with a random crop of a photograph of frost, shrunk to a fifth.

    Args:
        images: uint8 images (n c h w).
        textures: Folder of photographs, as given or in the data folder. The benchmark's folder has six and uses five.
        severity: 1 .. 5.
        seed: Seed of the crops.

    Raises:
        InputError: If the folder has no images, or one that is too small.
    """
    image_weight, ice_weight = select(severity, (1.0, 0.2), (1.0, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))
    x = to_unit_range(images)
    height, width = images.shape[2:]
    photographs = list(_load_textures(textures, height, width))
    generator = torch.Generator(images.device).manual_seed(seed)
    shares = torch.rand(len(x), 3, generator=generator, device=x.device)  # of the photographs, and of possible offsets
    ice = torch.empty_like(x)
    for i, (photograph_share, down, across) in enumerate(shares.tolist()):
        texture = photographs[int(photograph_share * len(photographs))].to(x.device)
        top, left = int(down * (texture.shape[1] - height)), int(across * (texture.shape[2] - width))
        ice[i] = texture[:, top : top + height, left : left + width]
    return to_uint8(image_weight * x + ice_weight * ice)


def _load_textures(name: str, height: int, width: int) -> Iterator[Tensor]:
    """Yield the photographs in the folder `name`, (3 h w) in [0, 1], shrunk to a fifth and rounded to levels of 1/255.

    Raises `InputError` without photographs, or for one that is not larger than the crops of height x width.
    """
    from PIL import Image

    folder = find_in_root(name, None)
    paths = sorted(path for path in folder.glob("*") if path.suffix.lower() in IMAGE_SUFFIXES)
    if not paths:
        raise InputError(
            f"frost: Expected photographs in {folder}, got none. Name a folder, such as frost(textures='DIR').",
            code="no_images",
        )
    for path in paths:
        with wrap_read_errors(str(path)), Image.open(path) as image:
            photograph = torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)[None] / 255
        reduced_height, reduced_width = (round(side / 5) for side in photograph.shape[2:])
        if reduced_height <= height or reduced_width <= width:
            raise InputError(
                f"frost: Expected photographs above {5 * height} x {5 * width} pixels, got {path} of "
                f"{photograph.shape[2]} x {photograph.shape[3]}.",
                code="image_size",
            )
        reduced = interpolate(photograph, (reduced_height, reduced_width), mode="bilinear")[0]
        yield (reduced * 255).round() / 255


@corruption(  # mean, deviation, sigma and threshold of noise, amount of the liquid, whether it is mud
    (0.62, 0.1, 0.7, 0.7, 0.5, False),
    (0.65, 0.1, 0.8, 0.7, 0.5, False),
    (0.65, 0.3, 1.0, 0.69, 0.5, False),
    (0.65, 0.1, 0.7, 0.69, 0.6, True),
    (0.65, 0.1, 0.5, 0.68, 0.6, True),
)
def spatter(x: Tensor, values: tuple[float, float, float, float, float, bool], generator: Generator) -> Tensor:
    """Splash water (severity 1 to 3) or mud (4 and 5) on the lens, where blurred noise exceeds a threshold."""
    mean, deviation, sigma, threshold, amount, mud = values
    noise = mean + deviation * torch.randn(x[:, 0].shape, generator=generator, device=x.device)
    return _apply_liquid(x, blur_gaussian(noise, sigma), threshold, amount, mud=mud)


def _apply_liquid(x: Tensor, liquid: Tensor, threshold: float, amount: float, *, mud: bool) -> Tensor:
    """Cover images (n c h w) where `liquid` (n h w), blurred noise, is above the threshold.

    `amount` is the brightness of water, or the sigma of the blur of mud in pixels.
    """
    if mud:
        cover = blur_gaussian((liquid > threshold).float(), amount)[:, None]
        cover = cover.where(cover >= 0.8, 0.0)  # only the middle of a splash is mud
        return x * (1 - cover) + cover * _color(x, 63, 42, 20)
    # whole levels; above 255 they start again at 0, as the benchmark converts them to bytes
    thickness = (liquid.where(liquid >= threshold, 0.0) * 255).floor().remainder(256)
    return x + amount * drop_light(thickness)[:, None] * _color(x, 175, 238, 238)


def _color(x: Tensor, *rgb: int) -> Tensor:
    """Return a color (1 3 1 1) in [0, 1] from levels 0 .. 255."""
    return torch.tensor(rgb, device=x.device).view(1, 3, 1, 1) / 255


# Light in water drops on a lens, as the benchmark computes it with OpenCV: edges, distances, histograms


def drop_light(liquid: Tensor) -> Tensor:
    """Return the light (n h w) in [0, 1] of drops whose thickness is given in whole levels 0 .. 255.

    The steps are those of the benchmark's code, which calls OpenCV on images of bytes: hence the rounding.
    """
    mean_filter = torch.full((3, 3), 1 / 9)
    relief_filter = torch.tensor([[-2.0, -1, 0], [-1, 1, 1], [0, 1, 2]])  # bright where values rise to the bottom right
    distance = edge_distances(canny_edges(liquid)).clamp(max=MAX_EDGE_DISTANCE_PIXELS)
    smoothed = correlate(distance, mean_filter).floor()
    relief = correlate(equalize_histogram(smoothed), relief_filter).clamp(0, 255)
    light = liquid * correlate(relief, mean_filter).round()
    return light / light.amax((1, 2), keepdim=True).clamp(min=TINY)


def canny_edges(x: Tensor) -> Tensor:
    """Return Canny edges of images (n h w): ridges of the gradient above the low threshold that reach the high one."""
    sobel = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]])
    right, down = correlate(x, sobel, "replicate"), correlate(x, sobel.T, "replicate")  # components of the gradient
    strength = right.abs() + down.abs()
    padded_strength = pad(strength, (1, 1, 1, 1))
    height, width = x.shape[1:]

    def neighbor(row: int, column: int) -> Tensor:
        """Return for every pixel the strength of its neighbor at this offset."""
        return padded_strength[:, 1 + row : 1 + row + height, 1 + column : 1 + column + width]

    is_nearly_horizontal = down.abs() < TAN_22_5 * right.abs()  # the direction of the gradient, across the edge
    is_nearly_vertical = down.abs() > TAN_67_5 * right.abs()
    is_rising = right * down < 0  # the direction is from bottom left to top right, or the reverse
    # a pixel is a peak if it is stronger than both neighbors along the direction of its gradient; of two equal
    # pixels, > and >= choose the left or upper one; diagonals have two >, as in OpenCV
    horizontal_peak = (strength > neighbor(0, -1)) & (strength >= neighbor(0, 1))
    vertical_peak = (strength > neighbor(-1, 0)) & (strength >= neighbor(1, 0))
    diagonal_above = torch.where(is_rising, neighbor(-1, 1), neighbor(-1, -1))
    diagonal_below = torch.where(is_rising, neighbor(1, -1), neighbor(1, 1))
    diagonal_peak = (strength > diagonal_above) & (strength > diagonal_below)
    peak = torch.where(is_nearly_vertical, vertical_peak, diagonal_peak)
    peak = torch.where(is_nearly_horizontal, horizontal_peak, peak)
    ridge = peak & (strength > LOW_EDGE_THRESHOLD)
    strong_edge = (ridge & (strength > HIGH_EDGE_THRESHOLD)).cpu().numpy()
    # hysteresis: weaker ridges are edges if they are connected to a strong one
    connected = binary_propagation(strong_edge, np.ones((1, 3, 3)), ridge.cpu().numpy())
    return torch.from_numpy(connected).to(x.device)


def edge_distances(edge: Tensor) -> Tensor:
    """Return the length of the shortest path from every pixel (n h w) to a pixel that is an edge (chamfer distance).

    `edge` is a mask. A path consists of the moves in `MOVE_LENGTHS`, in all directions. Lengths are exact up to
    `MAX_EDGE_DISTANCE_PIXELS`; longer ones may be too large.
    """
    moves = {  # (rows, columns) of each move with its length
        (row_sign * rows, column_sign * columns): length
        for (a, b), length in MOVE_LENGTHS.items()
        for rows, columns in ((a, b), (b, a))
        for row_sign in (-1, 1)
        for column_sign in (-1, 1)
    }
    height, width = edge.shape[1:]
    distance = torch.where(edge, 0.0, FAR_AWAY_PIXELS)
    for _ in range(int(MAX_EDGE_DISTANCE_PIXELS) + 1):  # each pass adds a move, of length 1 or more
        padded_distance = pad(distance, (2, 2, 2, 2), value=FAR_AWAY_PIXELS)
        neighbor_distances = [
            padded_distance[:, 2 + row : 2 + row + height, 2 + column : 2 + column + width] + length
            for (row, column), length in moves.items()
        ]
        distance = torch.stack([distance, *neighbor_distances]).amin(0)
    return distance


def equalize_histogram(x: Tensor) -> Tensor:
    """Equalize the histogram of whole levels 0 .. 255 (n h w), as OpenCV does.

    A level becomes 255 (c - c_0) / (n - c_0), where c of the n pixels of an image have at most this level, and c_0 have
    the lowest level of the image.
    """
    levels = x.flatten(1).long()
    counts = torch.zeros(len(x), 256, device=x.device).scatter_add_(1, levels, torch.ones_like(x.flatten(1)))
    lowest = levels.amin(1, keepdim=True)
    lowest_count = counts.gather(1, lowest)
    total = counts.sum(1, keepdim=True)
    new_levels = ((counts.cumsum(1) - lowest_count) * 255 / (total - lowest_count).clamp(min=1)).round()
    new_levels = torch.where(lowest_count == total, lowest.float(), new_levels)  # an image of one level keeps it
    return new_levels.gather(1, levels).view(x.shape)


def correlate(x: Tensor, kernel: Tensor, mode: str = "reflect") -> Tensor:
    """Correlate images (n h w) with a 3 x 3 kernel."""
    return conv2d(pad(x[:, None], (1, 1, 1, 1), mode=mode), kernel[None, None].to(x)).squeeze(1)
