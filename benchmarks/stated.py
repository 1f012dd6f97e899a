"""Many draws of stated confidences of language models: what Auto gains, and how often it hurts.

    python -m benchmarks.stated [--draws 20]

The result of a calibrator on 50 examples is mostly chance; the mean over draws shows its expected cost.
"""

import argparse
from collections.abc import Iterable

import numpy as np
from calibrant.registry import CALIBRATORS
from scipy.special import log_softmax

from benchmarks._harness import markdown
from benchmarks._problems import MIN_PROBABILITY, Problem, stated

CALIBRATOR_NAMES = ("Auto", "Platt", "Beta", "Identity")
HEAD = ["n", "models", "draws of each", *CALIBRATOR_NAMES[:3], "uncalibrated", "minus the better of Platt and Beta"]
HEAD += ["models hurt", "worst", "draws hurt", "worst"]


def table(problems: Iterable[Problem]) -> str:
    """Return a row per number of examples. A model is hurt if its mean over draws is more than .001 nats worse."""
    losses: dict[int, dict[str, list[list[float]]]] = {}
    for problem in problems:
        model = problem.name.split(" #")[0]
        losses.setdefault(problem.n, {}).setdefault(model, []).append(
            [_loss(calibrator, problem) for calibrator in CALIBRATOR_NAMES]
        )
    lines: list[list[object]] = []
    for n, models in sorted(losses.items()):
        draws = np.concatenate([np.array(model_losses) for model_losses in models.values()])
        means = np.array([np.mean(model_losses, 0) for model_losses in models.values()])
        hurt = [100 * (excess > 1e-3).mean() for excess in (_cost(means), _cost(draws))]
        gain = means[:, 0] - means[:, 1:3].min(1)
        line = [n, len(models), len(draws) // len(models), *(f"{x:.4f}" for x in means.mean(0)), f"{gain.mean():+.4f}"]
        line += [f"{hurt[0]:.1f} %", f"{_cost(means).max():+.4f}", f"{hurt[1]:.1f} %", f"{_cost(draws).max():+.4f}"]
        lines.append(line)
    return markdown(HEAD, lines)


def _cost(losses: np.ndarray) -> np.ndarray:
    return losses[:, 0] - losses[:, -1]


def _loss(calibrator: str, problem: Problem) -> float:
    """Return the NLL of a calibrator, with probabilities raised to 1e-7."""
    fitted = CALIBRATORS.resolve(calibrator)(problem.fit.logits, problem.fit.labels)
    after = log_softmax(fitted(problem.test.logits.astype(float)), axis=-1)
    label_log_p = after[np.arange(len(after)), problem.test.labels]
    return float(-np.maximum(label_log_p, np.log(MIN_PROBABILITY)).mean())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=20)
    print(table(stated(repeats=parser.parse_args().draws)))


if __name__ == "__main__":
    main()
