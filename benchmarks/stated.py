"""Many draws of what language models said of their answers: what Auto gains, and how often it hurts.

python -m benchmarks.stated [--draws 20]

A calibrator's cost on 50 examples is mostly chance; the mean over draws says what switching it on costs.
"""

import argparse
from collections.abc import Iterable

import numpy as np
from torch.nn import functional as F

from benchmarks._harness import markdown
from benchmarks._problems import LEAST, Problem, stated
from calibrant.registry import CALIBRATORS

CALIBRATOR_NAMES = ("Auto", "Platt", "Beta", "Identity")
HEAD = ["n", "models", "draws of each", *CALIBRATOR_NAMES[:3], "as they came", "to the better of Platt and Beta"]
HEAD += ["models hurt", "worst", "draws hurt", "worst"]


def table(problems: Iterable[Problem]) -> str:
    """A line for each number of examples; a model is hurt if the mean over its draws is more than .001 nats worse."""
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
    """No probability counts as less than 1e-7."""
    fitted = CALIBRATORS.resolve(calibrator)(problem.fit.logits, problem.fit.labels)
    after = fitted(problem.test.logits.double()).log_softmax(-1).clamp_min(np.log(LEAST))
    return float(F.nll_loss(after, problem.test.labels))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=20)
    print(table(stated(repeats=parser.parse_args().draws)))


if __name__ == "__main__":
    main()
