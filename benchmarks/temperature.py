"""What the temperature of least NLL costs: in softmax passes over the same logits, and against scikit-learn.

    python benchmarks/temperature.py [--small]

Every time is the median of interleaved repeats in one process, so that a busy machine slows all columns alike.
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
    warnings.filterwarnings("ignore")
    sizes = [(5000, 10), (5000, 100), (5000, 1000)] + ([] if parser.parse_args().small else [(50000, 1000)])
    others: dict[str, Callable[[Tensor, Tensor], float]] = {"sklearn": scikit_learn}
    others |= {f.__name__: f for f in (probmetrics, netcal) if importlib.util.find_spec(f.__name__)}
    for n, k in sizes:
        z, y = problem(n, k)
        ours = lambda: Temperature.fit(z, y)  # noqa: B023, E731
        tasks: dict[str, Callable[[], object]] = {
            "softmax": lambda: z.softmax(-1),  # noqa: B023
            "softmax, double": lambda: z.double().softmax(-1),  # noqa: B023
            "calibrant": ours,
        }
        tasks |= {name: (lambda f=f: f(z, y)) for name, f in others.items()}  # noqa: B023
        times: dict[str, list[float]] = {name: [] for name in tasks}
        found: dict[str, object] = {}
        for repeat in range(6 if n * k < 1e7 else 4):
            for name, task in tasks.items():
                start = time.perf_counter()
                try:
                    found[name] = task()
                except Exception as error:
                    found[name] = error
                if repeat:  # the first warms up
                    times[name].append(time.perf_counter() - start)
        base = median(times["softmax"])
        fitted = ours()
        print(f"\n{n} x {k}, {torch.get_num_threads()} threads; {fitted.certificate}")
        for name in tasks:
            seconds = median(times[name])
            t = fitted.temperature.item() if name == "calibrant" else found[name]
            said = "" if isinstance(t, Tensor) else f"T = {t:.7f}" if isinstance(t, float) else f"failed: {t}"[:80]
            print(f"  {name:16} {1e3 * seconds:10.2f} ms {seconds / base:8.1f} softmax passes  {said}", flush=True)


if __name__ == "__main__":
    main()
