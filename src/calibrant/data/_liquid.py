"""Water on a lens: edges, distances and light of drops, as the benchmark draws them with an image library."""

import torch
from torch import Tensor
from torch.nn.functional import conv2d, max_pool2d, pad

STEPS = {(0, 1): 1.0, (1, 1): 1.4, (1, 2): 2.1969}  # lengths of a straight, a diagonal and a knight's move
FAR = 20.0  # pixels from which it does not matter how far an edge is


def shine(liquid: Tensor) -> Tensor:
    """Return the light in drops (n h w) in [0, 1] of how thick the liquid lies, in whole numbers 0 .. 255."""
    distance = distances(edges(liquid))
    near = filtered(distance.clamp(max=FAR), torch.full((3, 3), 1 / 9)).floor()
    slope = torch.tensor([[-2.0, -1, 0], [-1, 1, 1], [0, 1, 2]])
    relief = filtered(equalized(near), slope).clamp(0, 255)
    light = liquid * filtered(relief, torch.full((3, 3), 1 / 9)).round()
    return light / light.amax((1, 2), keepdim=True).clamp(min=1e-12)


def edges(x: Tensor, low: float = 50, high: float = 150) -> Tensor:
    """Canny's edges of images (n h w): ridges of the gradient above `low` that lead to one above `high`."""
    across = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]])
    right, down = filtered(x, across, "replicate"), filtered(x, across.T, "replicate")
    size = right.abs() + down.abs()
    around = pad(size, (1, 1, 1, 1))
    height, width = x.shape[1:]

    def beside(row: int, column: int) -> Tensor:
        return around[:, 1 + row : 1 + row + height, 1 + column : 1 + column + width]

    flat, steep = down.abs() < 0.41421356 * right.abs(), down.abs() > 2.41421356 * right.abs()
    falling = right * down < 0
    level = (size > beside(0, -1)) & (size >= beside(0, 1))
    upright = (size > beside(-1, 0)) & (size >= beside(1, 0))
    one = torch.where(falling, beside(-1, 1), beside(-1, -1))
    other = torch.where(falling, beside(1, -1), beside(1, 1))
    slanted = (size > one) & (size > other)
    ridge = (size > low) & torch.where(flat, level, torch.where(steep, upright, slanted))
    found = ridge & (size > high)
    while True:
        more = ridge & (max_pool2d(found.float(), 3, 1, 1) > 0)
        if torch.equal(more, found):
            return found
        found = more


def distances(edge: Tensor) -> Tensor:
    """Return how far every pixel (n h w) is from an edge, in moves of `STEPS`, right up to `FAR`."""
    moves = {
        (sign * (a if swap else b), other * (b if swap else a)): length
        for (a, b), length in STEPS.items()
        for sign in (-1, 1)
        for other in (-1, 1)
        for swap in (False, True)
    }
    height, width = edge.shape[1:]
    found = torch.where(edge, 0.0, 1e6)
    for _ in range(int(FAR) + 1):
        around = pad(found, (2, 2, 2, 2), value=1e6)
        near = [
            around[:, 2 + row : 2 + row + height, 2 + column : 2 + column + width] + length
            for (row, column), length in moves.items()
        ]
        found = torch.stack([found, *near]).amin(0)
    return found


def equalized(x: Tensor) -> Tensor:
    """Spread whole numbers 0 .. 255 (n h w) so that each holds about as many pixels, the least becoming 0."""
    values = x.flatten(1).long()
    counts = torch.zeros(len(x), 256, device=x.device).scatter_add_(1, values, torch.ones_like(x.flatten(1)))
    least = values.amin(1, keepdim=True)
    first = counts.gather(1, least)
    total = counts.sum(1, keepdim=True)
    table = ((counts.cumsum(1) - first) * 255 / (total - first).clamp(min=1)).round()
    table = torch.where(first == total, least.float(), table)
    return table.gather(1, values).view(x.shape)


def filtered(x: Tensor, kernel: Tensor, mode: str = "reflect") -> Tensor:
    """Correlate images (n h w) with a kernel 3 x 3."""
    return conv2d(pad(x[:, None], (1, 1, 1, 1), mode=mode), kernel[None, None].to(x)).squeeze(1)
