"""Multicalibration in simulations: what it changes where no subgroup differs, and what it corrects where one does.

    python -m benchmarks.subgroups [--draws 200]

Eight features, of which two describe a subgroup of a sixth of the examples. In it, the log-odds of the event are
higher than stated by the effect.
"""

import argparse
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from benchmarks._harness import markdown
from calibrant import Predictions, metrics
from calibrant.calibrators.subgroups import MultiCalibrated

SIZES, EFFECTS, POPULATION = (500, 2000, 8000), (0.0, 0.5, 1.0, 2.0), 50_000


def draw(n: int, effect: float, rng: np.random.Generator) -> tuple[Predictions, dict[str, np.ndarray], torch.Tensor]:
    """Return predictions, their features, and which examples are in the subgroup."""
    features: dict[str, np.ndarray] = {f"x{j}": rng.random(n) for j in range(6)}
    features |= {"site": rng.choice(list("ABCD"), n), "sex": rng.choice(["f", "m"], n)}
    inside = (features["x0"] < 1 / 3) & (features["sex"] == "f")
    z = 1.5 * rng.standard_normal(n) - 1
    labels = (rng.random(n) < 1 / (1 + np.exp(-z - effect * inside))).astype(int)
    return Predictions.from_binary_logits(torch.from_numpy(z), labels), features, torch.from_numpy(inside)


def simulated_rows(draws: int) -> Iterator[list[Any]]:
    """Yield a row per effect and size: NLL gained, and the gap of the subgroup before and after."""
    for effect in EFFECTS:
        test, test_features, inside = draw(POPULATION, effect, np.random.default_rng(1))
        for n in SIZES:
            rng, gains, gaps = np.random.default_rng([n, int(10 * effect)]), list[float](), list[list[float]]()
            for _ in range(draws):
                p, features, _ = draw(n, effect, rng)
                fitted = MultiCalibrated.fit(p, features)
                before, after = test.apply(fitted.pooled), fitted.apply(test, test_features)
                gains.append(float(metrics.nll(before)) - float(metrics.nll(after)))
                gaps.append([100 * abs(float(metrics.signed_gap(q[inside]))) for q in (before, after)])
            changed = 100 * np.mean([gain != 0 for gain in gains])
            yield [effect, n, changed, np.mean(gains), np.min(gains), *np.mean(gaps, axis=0)]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=200)
    head = ["effect", "n", "corrected (%)", "NLL gained", "smallest", "gap before (%)", "gap after (%)"]
    print(markdown(head, simulated_rows(parser.parse_args().draws)))


if __name__ == "__main__":
    main()
