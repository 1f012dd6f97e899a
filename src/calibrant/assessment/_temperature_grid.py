"""What dividing the logits by a temperature does: the metrics themselves, at each of a grid of temperatures."""

from dataclasses import dataclass

from calibrant import metrics
from calibrant.assessment._calibrated_predictions import CalibratedPredictions
from calibrant.backend.bins import Bins
from calibrant.metrics import Interval
from calibrant.predictions import Predictions

GRID_LOG2_RANGE = -2, 2  # the grid goes from 1/4 to 4
STEPS_PER_OCTAVE = 12, 6, 3  # steps per octave, the finest that is cheap enough


@dataclass(frozen=True, eq=False)
class TemperatureMeasurement:
    """Predictions whose logits were divided by a temperature, as far as it is measured."""

    temperature: float
    reliability_bins: Bins  # the bins behind ECE
    ece: float
    noise_floor: Interval  # noise floor of ECE
    nll: float
    mean_confidence: float


def slider_temperatures(elements: int, max_elements: int) -> list[float]:
    """Temperatures evenly apart in their logarithm, 1 among them: 49, or 25, or 13; none where all cost too much.

    `elements` are the logits of one pass, `most` those of all passes together.

    >>> len(slider_temperatures(1000, 100_000)), len(slider_temperatures(1000, 20_000)), slider_temperatures(1000, 10)
    (49, 13, [])
    """
    low, high = GRID_LOG2_RANGE
    for ratio in STEPS_PER_OCTAVE:
        if (ratio * (high - low) + 1) * elements <= max_elements:
            return [2 ** (i / ratio) for i in range(low * ratio, high * ratio + 1)]
    return []


def measure_temperatures(
    p: Predictions, temperatures: list[float], bins: int, level: float
) -> tuple[TemperatureMeasurement, ...]:
    """Measure predictions at every temperature."""
    return tuple(_measure_temperature(p, t, bins, level) for t in temperatures)


def _measure_temperature(p: Predictions, temperature: float, bins: int, level: float) -> TemperatureMeasurement:
    predictions = p if temperature == 1 else CalibratedPredictions(p, lambda logits: logits / temperature)
    predictions.outcomes  # noqa: B018  one pass for all that follows
    events = predictions.events
    table = events.equal_width(bins)
    return TemperatureMeasurement(
        temperature=temperature,
        reliability_bins=table,
        ece=float(metrics.ece.compute_from_view(events, bins=bins)),
        noise_floor=metrics.noise_floor.interval_from_view(events, level=level, bins=bins),
        nll=float(metrics.nll.compute_from_view(predictions)),
        mean_confidence=float((table.weight * table.confidence).nansum()),
    )
