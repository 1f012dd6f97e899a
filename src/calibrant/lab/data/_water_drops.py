"""Light in water drops on a lens, as the benchmark computes it with OpenCV: edges, distances, histograms."""

import numpy as np
import torch
from scipy.ndimage import binary_propagation
from torch import Tensor
from torch.nn.functional import conv2d, pad

MOVE_LENGTHS = {(0, 1): 1.0, (1, 1): 1.4, (1, 2): 2.1969}  # lengths of a straight, a diagonal and a knight's move
TAN_22_5, TAN_67_5 = 0.41421356, 2.41421356  # of the angles halfway between 0, 45 and 90 degrees
MAX_EDGE_DISTANCE_PIXELS = 20.0  # larger distances have no effect


def drop_light(liquid: Tensor) -> Tensor:
    """Return the light (n h w) in [0, 1] of drops whose thickness is given in whole levels 0 .. 255."""
    distance = edge_distances(canny_edges(liquid))
    smoothed = correlate(distance.clamp(max=MAX_EDGE_DISTANCE_PIXELS), torch.full((3, 3), 1 / 9)).floor()
    slope = torch.tensor([[-2.0, -1, 0], [-1, 1, 1], [0, 1, 2]])
    relief = correlate(equalize_histogram(smoothed), slope).clamp(0, 255)
    light = liquid * correlate(relief, torch.full((3, 3), 1 / 9)).round()
    return light / light.amax((1, 2), keepdim=True).clamp(min=1e-12)


def canny_edges(x: Tensor, low_threshold: float = 50, high_threshold: float = 150) -> Tensor:
    """Return Canny edges of images (n h w): ridges of the gradient above the low threshold, connected to a high one."""
    across = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]])
    right, down = correlate(x, across, "replicate"), correlate(x, across.T, "replicate")
    size = right.abs() + down.abs()
    padded_size = pad(size, (1, 1, 1, 1))
    height, width = x.shape[1:]

    def neighbor(row: int, column: int) -> Tensor:
        return padded_size[:, 1 + row : 1 + row + height, 1 + column : 1 + column + width]

    is_nearly_horizontal = down.abs() < TAN_22_5 * right.abs()  # the gradient, which is across the edge
    is_nearly_vertical = down.abs() > TAN_67_5 * right.abs()
    is_rising = right * down < 0  # from bottom left to top right
    # Of two equal neighbors only the left or upper one is a peak, by > and >=; diagonals need two > as in OpenCV
    horizontal_peak = (size > neighbor(0, -1)) & (size >= neighbor(0, 1))
    vertical_peak = (size > neighbor(-1, 0)) & (size >= neighbor(1, 0))
    diagonal_above = torch.where(is_rising, neighbor(-1, 1), neighbor(-1, -1))
    diagonal_below = torch.where(is_rising, neighbor(1, -1), neighbor(1, 1))
    diagonal_peak = (size > diagonal_above) & (size > diagonal_below)
    ridge = (size > low_threshold) & torch.where(
        is_nearly_horizontal, horizontal_peak, torch.where(is_nearly_vertical, vertical_peak, diagonal_peak)
    )
    strong_edge = (ridge & (size > high_threshold)).cpu().numpy()
    connected = binary_propagation(strong_edge, np.ones((1, 3, 3)), ridge.cpu().numpy())
    return torch.from_numpy(connected).to(x.device)


def edge_distances(edge: Tensor) -> Tensor:
    """Return the distance of every pixel (n h w) from an edge by `MOVE_LENGTHS`, exact up to the maximum."""
    moves = {
        (row_sign * (a if swap else b), column_sign * (b if swap else a)): length
        for (a, b), length in MOVE_LENGTHS.items()
        for row_sign in (-1, 1)
        for column_sign in (-1, 1)
        for swap in (False, True)
    }
    height, width = edge.shape[1:]
    distance = torch.where(edge, 0.0, 1e6)
    for _ in range(int(MAX_EDGE_DISTANCE_PIXELS) + 1):
        padded_distance = pad(distance, (2, 2, 2, 2), value=1e6)
        neighbor_distances = [
            padded_distance[:, 2 + row : 2 + row + height, 2 + column : 2 + column + width] + length
            for (row, column), length in moves.items()
        ]
        distance = torch.stack([distance, *neighbor_distances]).amin(0)
    return distance


def equalize_histogram(x: Tensor) -> Tensor:
    """Equalize the histogram of whole levels 0 .. 255 (n h w), as OpenCV does; the lowest level becomes 0."""
    values = x.flatten(1).long()
    counts = torch.zeros(len(x), 256, device=x.device).scatter_add_(1, values, torch.ones_like(x.flatten(1)))
    lowest = values.amin(1, keepdim=True)
    first = counts.gather(1, lowest)
    total = counts.sum(1, keepdim=True)
    table = ((counts.cumsum(1) - first) * 255 / (total - first).clamp(min=1)).round()
    table = torch.where(first == total, lowest.float(), table)
    return table.gather(1, values).view(x.shape)


def correlate(x: Tensor, kernel: Tensor, mode: str = "reflect") -> Tensor:
    """Correlate images (n h w) with a 3 x 3 kernel."""
    return conv2d(pad(x[:, None], (1, 1, 1, 1), mode=mode), kernel[None, None].to(x)).squeeze(1)
