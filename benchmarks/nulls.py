"""Rejection rates of tests and coverage of intervals, on simulated predictions with known truth.

    python -m benchmarks.nulls [--repeats 1000]

Prints how often the Kuiper and KS tests reject a calibrated model at 5 %, and how often 90 % intervals contain the
truth, with standard errors. The truth is 0, or the value of two million other examples.
"""

import argparse
import math
from collections.abc import Iterator

import torch

from benchmarks._harness import markdown
from calibrant import Predictions
from calibrant.registry import METRICS

TESTS = "kuiper", "ks"
INTERVALS = "accuracy", "nll", "brier", "signed_gap", "debiased_l2", "auroc"
SIZES = 300, 3000
CLASSES = 2, 10


def draw(n: int, k: int, seed: int, by: float = 1.0) -> Predictions:
    """Draw labels from the softmax of logits, which are then multiplied by `by`."""
    g = torch.Generator().manual_seed(seed)
    z = 2 * torch.randn(n, k, generator=g, dtype=torch.float64)
    return Predictions(by * z, torch.multinomial(z.softmax(1), 1, generator=g).squeeze(1))


def share(hits: int, of: int) -> str:
    """Return a share in percent with its standard error."""
    p = hits / of
    return f"{100 * p:.1f} ± {100 * math.sqrt(p * (1 - p) / of):.1f}"


def rejected(repeats: int) -> Iterator[list[str]]:
    """Yield the rejection rates of calibrated models."""
    for k in CLASSES:
        for n in SIZES:
            counts = dict.fromkeys(TESTS, 0)
            for seed in range(repeats):
                p = draw(n, k, seed)
                for name in TESTS:
                    counts[name] += METRICS[name].test(p).p_value < 0.05  # pyright: ignore
            yield [f"{n:,}", str(k), *(share(counts[name], repeats) for name in TESTS)]


def covered(repeats: int) -> Iterator[list[str]]:
    """Yield the coverage for calibrated and overconfident models."""
    for by in (1.0, 1.5):
        for k in CLASSES:
            population = draw(2_000_000, k, 10**6, by)
            truth = {name: float(METRICS[name](population)) for name in INTERVALS}
            truth |= {"signed_gap": 0.0, "debiased_l2": 0.0} if by == 1 else {}
            for n in SIZES:
                counts = dict.fromkeys(INTERVALS, 0)
                for seed in range(repeats):
                    p = draw(n, k, seed, by)
                    for name in INTERVALS:
                        estimate = METRICS[name].interval(p)  # pyright: ignore[reportFunctionMemberAccess]
                        counts[name] += estimate.low <= truth[name] <= estimate.high
                model = "calibrated" if by == 1 else "overconfident"
                yield [model, f"{n:,}", str(k), *(share(counts[name], repeats) for name in INTERVALS)]


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=1000)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    print(markdown(["n", "k", *TESTS], rejected(repeats)), end="\n\n")
    print(markdown(["model", "n", "k", *INTERVALS], covered(repeats)))


if __name__ == "__main__":
    main()
