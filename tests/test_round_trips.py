"""How often numbers are fetched from where the tensors are does not grow with the examples: on a GPU each one waits."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from calibrant import Predictions, metrics
from calibrant.backend import dispatch
from calibrant.calibrators import Temperature


class Fetches(TorchDispatchMode):
    """Counts every single number that is read by Python."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def fetches(n: int, work: Callable[[Predictions], Any]) -> int:
    g = torch.Generator().manual_seed(0)
    z = 2 * torch.randn(n, 5, generator=g)
    p = Predictions(z, torch.multinomial((z / 1.5).softmax(1), 1, generator=g).squeeze(1))
    with Fetches() as seen:
        work(p)
    return seen.count


@pytest.mark.parametrize(
    "name", ["nll", "brier", "ece", "adaptive_ece", "classwise_ece", "sweep_ece", "kuiper", "aurc"]
)
def test_metrics_fetch_as_often_for_many_examples_as_for_few(monkeypatch, name):
    monkeypatch.setattr(dispatch, "_load_once", lambda: None)
    metric = getattr(metrics, name)
    assert fetches(4000, metric) <= fetches(250, metric) + 16  # a sweep tries more bins


def test_a_temperature_is_fitted_with_a_few_fetches(monkeypatch):
    monkeypatch.setattr(dispatch, "_load_once", lambda: None)
    assert fetches(4000, Temperature.fit) < 40
