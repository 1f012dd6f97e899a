"""False alarms and detection delays of `calibrant.Watch`, on simulated streams with known truth.

    python -m benchmarks.watch [--streams 10000] [--first 0] [--delays 400] [--mapie]

Prints how many of the streams of calibrated models ever raise an alarm at level 0.05, by kind of stream, and the median
number of examples until the test of the top class alone finds confidences that are too extreme. --mapie adds MAPIE's
monitoring of the Brier score on the same streams, where MAPIE is installed.
"""

import argparse
from collections.abc import Callable, Iterator

import numpy as np
import torch

from benchmarks._harness import markdown
from calibrant import Predictions, Watch

ROWS, LOOKS = 10_000, 200
SCALES = 1.2, 1.5, 2.0
Stream = tuple[np.ndarray, np.ndarray | None]  # probabilities and groups


def softmax(z: np.ndarray) -> np.ndarray:
    """Return the probabilities of logits."""
    p = np.exp(z - z.max(1, keepdims=True))
    return p / p.sum(1, keepdims=True)


def draw_labels(p: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw a label from each row of probabilities."""
    return (rng.random((len(p), 1)) > p.cumsum(1)[:, :-1]).sum(1)


def normal_stream(rng: np.random.Generator) -> Stream:
    """Three classes with normal logits, and three groups of unequal size."""
    return softmax(2 * rng.standard_normal((ROWS, 3))), rng.choice(["a", "b", "c"], ROWS, p=[0.7, 0.25, 0.05])


def tied_stream(rng: np.random.Generator) -> Stream:
    """Probabilities in tenths, exactly 0 and 1 included, with ties between classes."""
    return rng.multinomial(10, [0.6, 0.3, 0.1], ROWS) / 10, None


def rare_stream(rng: np.random.Generator) -> Stream:
    """A rare binary event, and groups that appear one after another."""
    event = rng.beta(0.3, 6, ROWS)
    return np.stack([1 - event, event], 1), (np.arange(ROWS) // 1000 + rng.integers(0, 3, ROWS)).astype(str)


def drifting_stream(rng: np.random.Generator) -> Stream:
    """Ten classes whose logits wander, so that every row has another distribution."""
    walk = np.cumsum(0.02 * rng.standard_normal((ROWS, 10)), 0)
    return softmax(walk + rng.standard_normal((ROWS, 10))), None


STREAMS: dict[str, Callable[[np.random.Generator], Stream]] = {
    "three classes, groups": normal_stream,
    "ties, exact 0 and 1": tied_stream,
    "rare event, new groups": rare_stream,
    "drifting inputs": drifting_stream,
}
ADVERSARIAL = "adversarial inputs"


def adversarial_stream(rng: np.random.Generator) -> tuple[Predictions, None]:
    """Return binary predictions whose sharpness an adversary chooses from the outcomes before, to keep a lead."""
    size, lead = ROWS // LOOKS, 0.0
    probs, labels = [], []
    for _ in range(LOOKS):
        event = np.full(size, 0.5) if lead < 3 else rng.choice([0.02, 0.98], size)
        p = np.stack([1 - event, event], 1)
        y = draw_labels(p, rng)
        lead += float((y - event).sum()) / 10
        probs.append(p)
        labels.append(y)
    return Predictions.from_probs(np.concatenate(probs), np.concatenate(labels)), None


def false_alarms(streams: int, first: int) -> Iterator[tuple[str, bool]]:
    """Yield the kind of each null stream, and whether it ever raises an alarm.

    An alarm at any row stays one, so that an adversary who stops whenever it suits finds none that is not counted.
    """
    kinds = [*STREAMS, ADVERSARIAL]
    for seed in range(first, first + streams):
        rng, kind = np.random.default_rng(seed), kinds[seed % len(kinds)]
        if kind == ADVERSARIAL:
            predictions, _ = adversarial_stream(rng)
        else:
            probs, groups = STREAMS[kind](rng)
            predictions = Predictions.from_probs(probs, draw_labels(probs, rng), groups=groups)
        yield kind, Watch().add(predictions).verdict.alarm


def overconfident(seed: int, scale: float, k: int = 3) -> Predictions:
    """Draw labels from the softmax of standard normal logits, which are then multiplied by `scale`."""
    rng = np.random.default_rng(10**6 + seed)
    z = rng.standard_normal((ROWS, k))
    return Predictions(scale * torch.from_numpy(z), draw_labels(softmax(z), rng))


def delay(p: Predictions) -> float:
    """Return the number of examples until the test of the top class alone raises an alarm."""
    row = Watch(by_class=False).add(p).verdict.event.alarm_row
    return np.inf if row is None else row


def mapie_delay(p: Predictions, reference: Predictions) -> float:
    """Return the delay of MAPIE's risk monitoring on the squared error of the confidence in the top class.

    Its threshold is the mean of ten thousand predictions of a calibrated model, without the margin that MAPIE adds.
    """
    from mapie.exchangeability_testing import RiskMonitoring  # pyright: ignore[reportMissingImports]
    from mapie.risk_control.risks import mse  # pyright: ignore[reportMissingImports]

    events = reference.events
    threshold = float(np.square(events.outcome - events.confidence).mean())
    monitor = RiskMonitoring("accuracy", threshold=threshold, warn=False)
    monitor.risk = mse  # the constructor of MAPIE 1.6 refuses risks that are not 0 or 1
    monitor.update(p.events.outcome, p.events.confidence)
    crossed = np.flatnonzero(monitor.online_risk_lower_bound_sequence_history > threshold)
    return float(crossed[0]) + 1 if len(crossed) else np.inf


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--delays", type=int, default=400)
    parser.add_argument("--mapie", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    counts: dict[str, list[bool]] = {}
    for kind, alarm in false_alarms(options.streams, options.first):
        counts.setdefault(kind, []).append(alarm)
    rows = [[kind, f"{len(alarms):,}", str(sum(alarms))] for kind, alarms in counts.items()]
    print(markdown(["null streams", "streams", "with an alarm"], rows), end="\n\n", flush=True)
    rows = []
    for scale in SCALES if options.delays else ():
        streams = [overconfident(seed, scale) for seed in range(options.delays)]
        monitors = {"Watch": [delay(p) for p in streams]}
        if options.mapie:
            pairs = zip(
                streams, map(overconfident, range(10**5, 10**5 + len(streams)), [1.0] * len(streams)), strict=True
            )
            monitors["MAPIE, Brier"] = [mapie_delay(p, reference) for p, reference in pairs]
        for name, delays in monitors.items():
            median = f"{np.median(delays):,.0f}"
            rows.append([f"{scale:g}", name, median, f"{np.mean(np.isfinite(delays)):.3f}"])
    print(markdown(["logits times", "monitor", "median delay", "detected"], rows))


if __name__ == "__main__":
    main()
