"""The exact search over 1000 temperatures against the plain loop: ratios within one run, on the processor's clock."""

import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from calibrant import Predictions, catalog, metrics
from calibrant._solve import first_minimum
from calibrant.calibrators._grid import search

GRID: list[float] = (np.arange(1, 1001) / 100).tolist()


def predictions(n: int, k: int) -> Predictions:
    g = torch.Generator().manual_seed(0)
    z = 2.5 * torch.randn(n, k, dtype=torch.float64, generator=g)
    return Predictions(z, torch.multinomial((z / 1.7).softmax(-1), 1, generator=g).squeeze(1))


def seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def main(n: int = 5000) -> None:
    torch.set_num_threads(1)
    print(f"{'criterion':14} {'k':>5} {'plain s':>8} {'search s':>8} {'ratio':>6}  same argmin")
    for k, repeats in (10, 5), (100, 3), (1000, 1):
        data = predictions(n, k)
        for criterion in "ece", "adaptive_ece":
            metric = catalog.resolve(criterion, metrics)
            loop = lambda data=data, metric=metric: first_minimum(  # noqa: E731
                lambda t: float(metric(data.logits / t, data.labels)), GRID
            )
            fast = lambda data=data, criterion=criterion: search(*data, criterion, [((0.0,), GRID)])  # noqa: E731
            same = loop() == fast()[1:] if k < 1000 else None
            pairs = [(seconds(loop), seconds(fast)) for _ in range(repeats)]
            plain, quick = (statistics.median(side) for side in zip(*pairs, strict=True))
            print(f"{criterion:14} {k:5} {plain:8.2f} {quick:8.2f} {plain / quick:6.1f}  {same}")


if __name__ == "__main__":
    main()
