"""The number of transfers from the GPU, each of which waits, does not grow with the number of samples."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from calibrant import Predictions, metrics
from calibrant._core.kernels import dispatch
from calibrant.calibrators import Temperature


class FetchCounter(TorchDispatchMode):
    """Count the scalars that Python reads from tensors."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def count_fetches(n: int, work: Callable[[Predictions], Any]) -> int:
    g = torch.Generator().manual_seed(0)
    z = 2 * torch.randn(n, 5, generator=g)
    p = Predictions(z, torch.multinomial((z / 1.5).softmax(1), 1, generator=g).squeeze(1))
    with FetchCounter() as counter:
        work(p)
    return counter.count


@pytest.mark.parametrize(
    "name", ["nll", "brier", "ece", "adaptive_ece", "classwise_ece", "sweep_ece", "kuiper", "aurc"]
)
def test_metrics_fetch_independently_of_the_number_of_samples(monkeypatch, name):
    monkeypatch.setattr(dispatch, "cpu_kernels", lambda: None)
    metric = getattr(metrics, name)
    assert count_fetches(4000, metric) <= count_fetches(250, metric) + 16  # a sweep tries more bins


def test_temperature_fit_needs_few_fetches(monkeypatch):
    monkeypatch.setattr(dispatch, "cpu_kernels", lambda: None)
    assert count_fetches(4000, Temperature.fit) < 40
