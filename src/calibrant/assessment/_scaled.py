"""What dividing the logits by a temperature does: the metrics themselves, at each of a grid of temperatures."""

from dataclasses import dataclass

from calibrant import metrics
from calibrant._bins import Bins
from calibrant.assessment._mapped import Mapped
from calibrant.metrics import Interval
from calibrant.predictions import Predictions

OCTAVES = -2, 2  # the grid goes from 1/4 to 4
RATIOS = 12, 6, 3  # steps per octave, the finest that is cheap enough


@dataclass(frozen=True, eq=False)
class Scaled:
    """Predictions whose logits were divided by a temperature, as far as it is measured."""

    temperature: float
    table: Bins  # the bins behind ECE
    ece: float
    floor: Interval  # noise floor of ECE
    nll: float
    said: float


def grid(elements: int, most: int) -> list[float]:
    """Temperatures evenly apart in their logarithm, 1 among them: 49, or 25, or 13; none where all cost too much.

    `elements` are the logits of one pass, `most` those of all passes together.

    >>> len(grid(1000, 100_000)), len(grid(1000, 20_000)), grid(1000, 10)
    (49, 13, [])
    """
    low, high = OCTAVES
    for ratio in RATIOS:
        if (ratio * (high - low) + 1) * elements <= most:
            return [2 ** (i / ratio) for i in range(low * ratio, high * ratio + 1)]
    return []


def scaled(p: Predictions, temperatures: list[float], bins: int, level: float) -> tuple[Scaled, ...]:
    """Measure predictions at every temperature."""
    return tuple(_at(p, t, bins, level) for t in temperatures)


def _at(p: Predictions, t: float, bins: int, level: float) -> Scaled:
    made = p if t == 1 else Mapped(p, lambda logits: logits / t)
    made.outcomes  # noqa: B018  one pass for all that follows
    events = made.events
    table = events.equal_width(bins)
    return Scaled(
        temperature=t,
        table=table,
        ece=float(metrics.ece.of_view(events, bins=bins)),
        floor=metrics.noise_floor.interval_of(events, level=level, bins=bins),
        nll=float(metrics.nll.of_view(made)),
        said=float((table.weight * table.confidence).nansum()),
    )
