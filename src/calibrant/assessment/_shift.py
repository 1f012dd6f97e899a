"""Whether the classes are as frequent in the data to be judged as in those that calibrators were fitted on."""

import torch
from torch import Tensor

from calibrant._text import name_text
from calibrant.predictions import Predictions

LUCK = 1e-3  # probability, by chance alone, of differences that are told
SMALL = 0.02  # total variation below which nothing is told


def counts_of(p: Predictions) -> Tensor:
    """How often each class is the label: (k) float64."""
    return torch.bincount(p.labels, p.weights, minlength=p.k).double().cpu()


def shift(fitted: Tensor, judged: Tensor, names: tuple[str, ...] | None) -> str:
    """Say how the shares of the classes differ, with what to do, or nothing where that may be luck."""
    from scipy.special import chdtrc  # slow to import

    n, m = float(fitted.sum()), float(judged.sum())
    there = fitted + judged > 0
    a, b = fitted[there] / n, judged[there] / m
    pooled = (fitted[there] + judged[there]) / (n + m)
    distance = float((a - b).abs().sum()) / 2
    statistic = float(((a - b).square() / pooled).sum()) / (1 / n + 1 / m)
    if distance < SMALL or len(a) < 2 or chdtrc(len(a) - 1, statistic) > LUCK:
        return ""
    worst = int((fitted / n - judged / m).abs().argmax())
    name = worst if names is None else repr(name_text(names[worst]))
    return (
        f" The classes are not as frequent in one as in the other: {distance:.0%} of the examples would have to change "
        f"theirs (class {name}: {float(fitted[worst]) / n:.1%} of the fitting data, {float(judged[worst]) / m:.1%} of "
        "the others). A calibrator learns the shares it was fitted on; PriorShift corrects for others, given or "
        "estimated."
    )
