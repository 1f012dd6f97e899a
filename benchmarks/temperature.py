"""What the temperature of least NLL costs: in softmax passes over the same logits, and against scikit-learn.

    python benchmarks/temperature.py [--small]

Every time is the median of interleaved repeats in one process. On a busy machine read the processor time, which counts
only what the task itself did, over all its threads; the ratio is of that.
netcal and probmetrics join in where they are installed.
"""

import argparse
import importlib.util
import time
import warnings
from collections.abc import Callable
from statistics import median

import numpy as np
import torch
from torch import Tensor

from calibrant.calibrators import Temperature

T = 1.5


def problem(n: int, k: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    z = 2.5 * torch.randn(n, k, generator=g)
    noise = -(-torch.rand(n, k, generator=g).clamp_min(1e-30).log()).log()
    return T * z, (z + noise).argmax(-1)


def scikit_learn(z: Tensor, y: Tensor) -> float:
    from sklearn.calibration import _TemperatureScaling

    return 1 / float(_TemperatureScaling().fit(z.numpy(), y.numpy()).beta_)


def probmetrics(z: Tensor, y: Tensor) -> float:
    from probmetrics.calibrators import get_calibrator
    from probmetrics.distributions import CategoricalLogits

    fitted = get_calibrator("temp-scaling")
    fitted.fit_torch(CategoricalLogits(z), y)
    return 1 / float(fitted.invtemp_)


def netcal(z: Tensor, y: Tensor) -> float:
    from netcal.scaling import TemperatureScaling

    fitted = TemperatureScaling()
    fitted.fit(z.double().softmax(-1).numpy(), y.numpy())
    return 1 / float(np.ravel(fitted.temperature)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="leave out 50,000 x 1,000")
    parser.add_argument("--large", action="store_true", help="only 50,000 x 1,000")
    parser.add_argument("--alone", action="store_true", help="without competitors")
    warnings.filterwarnings("ignore")
    options = parser.parse_args()
    sizes = [] if options.large else [(5000, 10), (5000, 100), (5000, 1000)]
    sizes += [] if options.small else [(50000, 1000)]
    others: dict[str, Callable[[Tensor, Tensor], float]] = {} if options.alone else {"sklearn": scikit_learn}
    others |= (
        {} if options.alone else {f.__name__: f for f in (probmetrics, netcal) if importlib.util.find_spec(f.__name__)}
    )
    for n, k in sizes:
        z, y = problem(n, k)
        ours = lambda: Temperature.fit(z, y)  # noqa: B023, E731
        tasks: dict[str, Callable[[], object]] = {
            "softmax": lambda: z.softmax(-1),  # noqa: B023
            "softmax, double": lambda: z.double().softmax(-1),  # noqa: B023
            "calibrant": ours,
        }
        tasks |= {name: (lambda f=f: f(z, y)) for name, f in others.items()}  # noqa: B023
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in tasks}
        found: dict[str, object] = {}
        for repeat in range(6 if n * k < 1e7 else 4):
            for name, task in tasks.items():
                start = time.perf_counter(), time.process_time()
                try:
                    found[name] = task()
                except Exception as error:
                    found[name] = error
                if repeat:  # the first warms up
                    times[name].append((time.perf_counter() - start[0], time.process_time() - start[1]))
        base = median(cpu for _, cpu in times["softmax"])
        fitted = ours()
        print(f"\n{n} x {k}, {torch.get_num_threads()} threads; {fitted.certificate}")
        for name in tasks:
            wall, cpu = (1e3 * median(column) for column in zip(*times[name], strict=True))
            t = fitted.temperature.item() if name == "calibrant" else found[name]
            said = "" if isinstance(t, Tensor) else f"T = {t:.7f}" if isinstance(t, float) else f"failed: {t}"[:80]
            print(
                f"  {name:16} {wall:9.1f} ms, processor {cpu:9.1f} ms = {cpu / base / 1e3:7.1f} softmax  {said}",
                flush=True,
            )


if __name__ == "__main__":
    main()
