"""Texts of the page of results: numbers, intervals, tables and names."""

import math
from collections.abc import Callable, Iterable, Mapping
from decimal import ROUND_HALF_UP, Decimal

from benchmarks.claims import LEVEL
from benchmarks.statements import in_words

LOSS_NAMES = {
    "brier": "Brier score",
    "cross_entropy(smoothing=0.05)": "label smoothing .05",
    "flsd": "FLSD-53",
    "flsd(thresholds=(0.2, 0.5), gammas=(5, 3, 2))": "FLSD-532",
    "focal(gamma=1)": "focal loss, gamma 1",
    "focal(gamma=2)": "focal loss, gamma 2",
    "focal(gamma=3)": "focal loss, gamma 3",
    "focal": "focal loss, gamma 3",
    "Scheduled(gammas=(5, 3, 1))": "focal loss, scheduled 5, 3, 1",
    "Scheduled": "focal loss, scheduled 5, 3, 2",
    "mmce": "MMCE",
    "mmce(strength=2)": "MMCE",
    "AdaFocal": "AdaFocal",
    "inverse_focal(gamma=2)": "inverse focal loss, gamma 2",
    "logit_norm(strength=0.05)": "L1 norm .05",
    "logit_norm(strength=0.01)": "L1 norm .01",
    "logit_norm": "L1 norm .01",
    "entropy_regularized": "entropy regularization",
    "entropy_regularized(strength=0.1)": "entropy regularization",
}
STORED_NETWORKS = {
    "kull_cifar10_resnet110_ce": "ResNet-110, CIFAR-10, cross-entropy",
    "mukhoti_cifar100_resnet50_brier": "ResNet-50, CIFAR-100, Brier",
    "mukhoti_cifar10_densenet121_brier": "DenseNet-121, CIFAR-10, Brier",
    "mukhoti_cifar10_resnet50_flsd53": "ResNet-50, CIFAR-10, FLSD-53",
    "mukhoti_cifar10_wide_resnet_flsd53": "Wide ResNet, CIFAR-10, FLSD-53",
    "sctl_cifar10LT_densenet40_ce": "DenseNet-40, long-tailed CIFAR-10, cross-entropy",
}
Row = Mapping[str, str]


def column_head(column: str) -> str:
    return {"interval": f"{LEVEL:.0%} interval".replace("%", " %"), "value": "this loss"}.get(column, column)


def table_text(heads: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    """Return a table in Markdown whose columns but the first are aligned to the right."""
    heads = list(heads)
    ruler = "|---" + "|---:" * (len(heads) - 1) + "|"
    head, *texts = (f"| {' | '.join(row)} |".replace("|  |", "| |") for row in [heads, *lines])
    return "\n".join([head, ruler, *texts])


def italic_text(text: str, scale: float) -> str:
    return f"*{number_text(scale * float(text), 2)}*" if text and not math.isnan(float(text)) else ""


def number_text(value: float | str, digits: int = 1) -> str:
    """Return a number without the zero before the point; halves are rounded away from 0, as 55.65 to 55.7."""
    exact = Decimal(f"{float(value):.10f}")  # without the noise of floats
    text = str(exact.quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP))
    return text.replace("0.", ".", 1) if text.startswith(("0.", "-0.")) else text


def percent_text(value: float, digits: int = 1) -> str:
    """Return a share in percent."""
    return number_text(100 * value, digits)


def num_split(dataset: str) -> dict[str, int]:
    """Return the numbers in the settings of a data set: cifar10(train=3000, val=3000)."""
    settings = dataset.partition("(")[2].rstrip(")").split(", ")
    return {key: int(value) for key, _, value in (s.partition("=") for s in settings) if value.isdigit()}


def span_text(values: Iterable[float | str], digits: int = 1, scale: float = 1.0) -> str:
    """Return the lowest and the highest value, as one number if they are printed alike."""
    numbers = [scale * float(value) for value in values]
    low, high = number_text(min(numbers), digits), number_text(max(numbers), digits)
    return low if low == high else f"{low} to {high}"


def recorded_text(row: Row) -> str:
    """Return the lowest and highest value of a row of recorded.csv, with its own digits."""
    low, high = (row[key].removeprefix("0") if row[key] != "0" else "0" for key in ("low", "high"))
    return low if low == high else f"{low} to {high}"


def limits_text(row: Row, digits: int = 2, sign: int = 1) -> str:
    """Return the interval of a row; with the sign -1, that of the reduction."""
    limits = sorted(sign * float(text) for text in row["interval"].split(" to "))
    return " to ".join(number_text(limit, digits) for limit in limits)


def p_text(row: Row) -> str:
    return row["p"].removeprefix("0")


FILTERS: dict[str, Callable[..., str]] = {
    "num": number_text,
    "pct": percent_text,
    "span": span_text,
    "recorded_span": recorded_text,
    "limits": limits_text,
    "p": p_text,
    "grouped": lambda n: f"{n:,}",
    "words": lambda n, zero="no": in_words(n) if n else zero,
}
