"""Gain of a prior from other models over own labels alone, where the new model is like these models or not.

    python -m benchmarks.fusion_priors [--draws 200] [--out docs/howto/fusion_priors.csv]

Two signals are the logistic function of normal numbers z. The log-odds of a right answer are a level plus slopes times
z; over the models of a prior they are normal, levels of 1 +- 0.3 and slopes of 1.2 +- 0.2. Each prior is learned from
12 models with 1,500 answers, or from 3 with 150. The gain is the log-likelihood per answer, on 2,000 answers of the new
model that no fit has seen, less that of a fusion of the labels alone. A standard error is that of the mean over draws.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

from benchmarks._harness import table_parser, write_table
from calibrant.language_models.fusion import Fusion, FusionPrior

SIZES = 10, 30, 100
TEST_ANSWERS = 2000
LEVEL, LEVEL_DEVIATION, SLOPE, SLOPE_DEVIATION = 1.0, 0.3, 1.2, 0.2
NUM_PRIORS = 4  # of each kind, over which the draws are spread
Answers = tuple[dict[str, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class World:
    """A new model. Without a level or slopes, they are drawn like those of the models of the prior."""

    name: str
    level: float | None = None
    slope: float | None = None
    scale: Callable[[np.ndarray], np.ndarray] = lambda p: p  # of its signals
    num_models: int = 12
    num_answers: int = 1500  # of each model of the prior


WORLDS = (
    World("like the models of the prior"),
    World("the same, prior of 3 models with 150 answers", num_models=3, num_answers=150),
    World("3 deviations less accurate", level=LEVEL - 3 * LEVEL_DEVIATION),
    World("5.5 deviations less accurate", level=LEVEL - 5.5 * LEVEL_DEVIATION),
    World("5.5 deviations more accurate", level=LEVEL + 5.5 * LEVEL_DEVIATION),
    World("10 deviations less accurate", level=LEVEL - 10 * LEVEL_DEVIATION),
    World("reverse order", slope=-SLOPE),
    World("no order", slope=0.0),
    World("wider spread: slopes times 3", slope=3 * SLOPE),
    World("signals halved", scale=lambda p: p / 2),
    World("signals to the third power", scale=lambda p: p**3),
)


def draw_answers(world: World, n: int, level: float, slopes: np.ndarray, rng: np.random.Generator) -> Answers:
    """Draw the signals of n answers, and whether they are right."""
    z = rng.standard_normal((n, len(slopes)))
    correct = (rng.random(n) < 1 / (1 + np.exp(-level - z @ slopes))).astype(float)
    return {f"signal {j}": world.scale(1 / (1 + np.exp(-column))) for j, column in enumerate(z.T)}, correct


def draw_model(world: World, rng: np.random.Generator) -> tuple[float, np.ndarray]:
    """Draw the level and the slopes of a new model."""
    level = rng.normal(LEVEL, LEVEL_DEVIATION) if world.level is None else world.level
    slopes = rng.normal(SLOPE, SLOPE_DEVIATION, 2) if world.slope is None else np.full(2, world.slope)
    return level, slopes


@cache
def learn_prior(num_models: int, num_answers: int, seed: int) -> FusionPrior:
    """Learn a prior from models that are drawn at random."""
    rng, world = np.random.default_rng([num_models, seed]), WORLDS[0]
    models = [draw_answers(world, num_answers, *draw_model(world, rng), rng) for _ in range(num_models)]
    return FusionPrior.from_fits([Fusion.fit(*answers, scale="probability") for answers in models])


def log_likelihood(fused: Fusion, answers: Answers) -> float:
    """Return the log-likelihood per answer."""
    p = fused.apply(answers[0])
    return float(np.log(np.where(answers[1] == 1, p, 1 - p)).mean())


def measure(world: World, n: int, draws: int) -> tuple[np.ndarray, float]:
    """Return the gain over own labels of each draw, and the mean weight of the prior."""
    gains, weights, rng = list[float](), list[float](), np.random.default_rng([n, len(world.name)])
    for draw in range(draws):
        prior, model = learn_prior(world.num_models, world.num_answers, draw % NUM_PRIORS), draw_model(world, rng)
        labeled, test = (draw_answers(world, size, *model, rng) for size in (n, TEST_ANSWERS))
        from_labels, fused = Fusion.fit(*labeled, scale="probability"), Fusion.fit(*labeled, prior=prior)
        gains.append(log_likelihood(fused, test) - log_likelihood(from_labels, test))
        weights.append(fused.prior_weight)
    return np.array(gains), float(np.mean(weights))


def main() -> None:
    """Measure, print the table, and write it."""
    options = table_parser(__doc__, draws=200).parse_args()
    torch.set_num_threads(1)
    lines: list[list[str]] = []
    for world in WORLDS:
        line = [world.name]
        for n in SIZES:
            gains, weight = measure(world, n, options.draws)
            line += [f"{gains.mean():+.3f} ± {gains.std() / len(gains) ** 0.5:.3f}", f"{weight:.2f}"]
        lines.append(line)
    head = ["new model", *(text for n in SIZES for text in (f"gain, n = {n}", "weight"))]
    write_table(head, lines, options.out)


if __name__ == "__main__":
    main()
