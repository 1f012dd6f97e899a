"""Whether the classes are as frequent in the data to be judged as in those that calibrators were fitted on."""

import torch
from torch import Tensor

from calibrant._text import display_name
from calibrant.predictions import Predictions

MAX_SHIFT_P_VALUE = 1e-3  # probability, by chance alone, of differences that are told
MIN_SHIFT_DISTANCE = 0.02  # total variation below which nothing is told


def class_counts(p: Predictions) -> Tensor:
    """How often each class is the label: (k) float64."""
    return torch.bincount(p.labels, p.weights, minlength=p.k).double().cpu()


def label_shift_message(fitted: Tensor, evaluated: Tensor, names: tuple[str, ...] | None) -> str:
    """Say how the shares of the classes differ, with what to do, or nothing where that may be luck."""
    from scipy.special import chdtrc  # slow to import

    n, m = float(fitted.sum()), float(evaluated.sum())
    present = fitted + evaluated > 0
    a, b = fitted[present] / n, evaluated[present] / m
    pooled = (fitted[present] + evaluated[present]) / (n + m)
    distance = float((a - b).abs().sum()) / 2
    statistic = float(((a - b).square() / pooled).sum()) / (1 / n + 1 / m)
    if distance < MIN_SHIFT_DISTANCE or len(a) < 2 or chdtrc(len(a) - 1, statistic) > MAX_SHIFT_P_VALUE:
        return ""
    worst_class = int((fitted / n - evaluated / m).abs().argmax())
    name = worst_class if names is None else repr(display_name(names[worst_class]))
    return (
        f" The classes are not as frequent in one as in the other: {distance:.0%} of the examples would have to change "
        f"theirs (class {name}: {float(fitted[worst_class]) / n:.1%} of the fitting data, "
        f"{float(evaluated[worst_class]) / m:.1%} of "
        "the others). A calibrator learns the shares it was fitted on; PriorShift corrects for others, given or "
        "estimated."
    )
