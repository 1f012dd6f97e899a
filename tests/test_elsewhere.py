"""Predictions on a GPU: the same numbers as on the processor, worked out there, and little is fetched.

Without a GPU on a pretended one, which refuses what a real one would; `pytest --device cuda` takes a real one.
"""

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

import pytest
import torch
from elsewhere import Elsewhere, Fetched, elsewhere, on_a_gpu, there, to_a_gpu
from told import told
from torch import Tensor

from calibrant import Predictions, assess, calibrators, measure, metrics
from calibrant.backend.solvers import sum_row_chunks
from calibrant.registry import CALIBRATORS, LOSSES, METRICS

WEIGHTED = pytest.mark.parametrize("weighted", [pytest.param(False, marks=pytest.mark.slow), True])
BINARY = {"Beta", "Platt", "Quadratic"}
QUICK = {  # the same methods, with less work
    "Auto": "Auto(folds=2)",
    "Chain": "Chain(first='Monotone', second='StructuredMatrix')",
    "PriorShift": "PriorShift(calibrator='Temperature')",
    "Matrix": "Matrix(penalty=1.0)",
    "FocalTemperature": "FocalTemperature(grid=((0.0, 1.0), (0.5, 1.0, 1.5, 2.0)))",
}
SORTED = {"discrimination": 16, "miscalibration": 16, "uncertainty": 16}  # bytes a row, for isotonic regression
SORTED |= {"Isotonic": 120, "SharedIsotonic": 120, "VennAbers": 240, "Spline": 40, "BayesianBinning": 40}
SORTED |= {"Monotone": 40, "Chain": 40, "Auto": 160, "PriorShift": 40, "refinement_nll": 48, "refinement_brier": 48}


class Place(NamedTuple):
    """Where tensors go, and how much came back."""

    take: Callable[[Tensor], Tensor]
    fetched: Fetched
    counts: bool

    def predictions(self, p: Predictions) -> Predictions:
        parts = {name: getattr(p, name) for name in ("weights", "clusters", "groups")}
        moved = {name: None if part is None else self.take(part) for name, part in parts.items()}
        return Predictions(self.take(p.logits), self.take(p.labels), **moved)


@pytest.fixture
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    if request.config.getoption("--device") == "cuda":
        with on_a_gpu() as fetched:
            yield Place(to_a_gpu, fetched, counts=False)
    else:
        with elsewhere() as fetched:
            yield Place(there, fetched, counts=True)


def draw(n: int, k: int = 4, seed: int = 0, *, weighted: bool = False) -> Predictions:
    g = torch.Generator().manual_seed(seed)
    z = 2 * torch.randn(n, k, generator=g, dtype=torch.float64)
    y = torch.multinomial((z / 1.5).softmax(1), 1, generator=g).squeeze(1)
    weights = torch.rand(n, generator=g, dtype=torch.float64) + 0.2 if weighted else None
    return Predictions(z, y, weights, clusters=torch.randint(0, n // 3, (n,), generator=g) if weighted else None)


def home(x: Tensor) -> Tensor:
    return x.inner if isinstance(x, Elsewhere) else x.cpu()


def learned(part: Any) -> Iterator[Tensor]:
    """All tensors of a fitted map."""
    if isinstance(part, Tensor):
        yield part
    elif isinstance(part, tuple):
        for one in part:
            yield from learned(one)
    elif is_dataclass(part):
        for one in fields(part):
            yield from learned(getattr(part, one.name))


def test_the_pretended_device_is_as_strict_as_a_real_one():
    with elsewhere() as fetched:
        x = there(torch.arange(6.0).view(2, 3))
        assert x.device.type == "cuda"
        assert (x + 1).sum(0).device.type == torch.zeros(2, device=x.device).device.type == "cuda"
        assert fetched == Fetched()
        for wrong in (lambda: x + torch.ones(3), lambda: x @ torch.ones(3), lambda: torch.cat([x, torch.ones(1, 3)])):
            with pytest.raises(RuntimeError, match="same device"):
                wrong()
        with pytest.raises(TypeError, match="numpy"):
            x.numpy()
        assert fetched == Fetched()
        assert x.sum().item() == 15
        assert fetched == Fetched(4, 1)
        assert x.cpu().tolist() == x.tolist()
        assert fetched == Fetched(4 + 24 + 24, 3)


@WEIGHTED
@pytest.mark.parametrize("name", sorted(METRICS))
def test_a_metric_is_the_same_elsewhere(place, name, weighted):
    metric, p, more = METRICS[name], draw(200, weighted=weighted), draw(1000, weighted=weighted)
    assert float(metric(place.predictions(p))) == pytest.approx(float(metric(p)), rel=1e-9, abs=1e-12, nan_ok=True)
    if place.counts:
        before = place.fetched.bytes
        metric(place.predictions(more))
        # of clusters their names; a sweep tries more bins
        assert place.fetched.bytes - 2 * before < 800 * (SORTED.get(name, 0) + 4 * weighted) + 100


@pytest.mark.parametrize("name", sorted(name for name in METRICS if METRICS[name].has_interval))
def test_an_interval_is_the_same_elsewhere(place, name):
    for p in (draw(200), draw(200, weighted=True)):
        made, aim = METRICS[name].interval(place.predictions(p)), METRICS[name].interval(p)
        assert [made.low, made.high] == pytest.approx([aim.low, aim.high], rel=1e-6, abs=1e-9)


@WEIGHTED
@pytest.mark.parametrize("name", sorted(CALIBRATORS))
def test_a_calibrator_is_fitted_and_works_elsewhere(place, name, weighted):
    """What it learned is kept on the processor, and goes where the logits are."""
    k = 2 if name in BINARY else 4
    fit = CALIBRATORS.method(QUICK.get(name, name)).bound
    p, fresh = draw(200, k, weighted=weighted), draw(50, k, seed=1).logits
    expected = fit(p)
    fitted = fit(place.predictions(p))
    assert all(type(x) is Tensor and x.device.type == "cpu" for x in learned(fitted))
    assert name == "Identity" or fitted.certificate.data == expected.certificate.data
    for z in (fresh, fresh.float()):
        made = fitted(place.take(z))
        assert made.device.type == "cuda"
        assert made.dtype == z.dtype
        torch.testing.assert_close(home(made), fitted(z), rtol=1e-5, atol=1e-6)
    after, aim = (one(fresh).log_softmax(-1).exp() for one in (fitted, expected))
    torch.testing.assert_close(after, aim, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name == "Auto" else ())
        for name in sorted(set(CALIBRATORS) - {"FocalTemperature", "Dirichlet", "Matrix"})
    ],
)
def test_of_each_example_a_fit_fetches_a_word(place, name):
    """By which the certificate knows the data; what sorts, fetches what it sorts."""
    if not place.counts:
        pytest.skip("counted on the pretended device only")
    k, fit = 2 if name in BINARY else 4, CALIBRATORS.method(QUICK.get(name, name)).bound
    seen = []
    for n in (200, 1000):
        before = place.fetched.bytes
        fit(place.predictions(draw(n, k)))
        seen.append(place.fetched.bytes - before)
    assert (seen[1] - seen[0]) / 800 < SORTED.get(name, 8) + 12  # searches take more or fewer steps


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_a_loss_has_the_same_gradient_elsewhere_and_fetches_nothing(place, name):
    p = draw(24)
    slopes = []
    for take in (Tensor.clone, place.take):
        z = take(p.logits.float()).requires_grad_()
        told(name, 4)(z, take(p.labels)).sum().backward()
        slopes.append(z.grad)
    torch.testing.assert_close(home(slopes[1]), slopes[0], rtol=1e-5, atol=1e-7)
    assert place.fetched == Fetched()


def test_a_measurement_is_the_same_elsewhere(place):
    p = draw(300, weighted=True)
    assert str(measure(place.predictions(p))) == str(measure(p))


def test_a_summary_is_the_same_elsewhere(place):
    p = draw(300)
    here, made = (metrics.Summary.empty(by_class=True).add(one) for one in (p, place.predictions(p)))
    for name in ("ece", "nll", "brier", "accuracy", "kuiper"):
        assert made[name] == pytest.approx(here[name], rel=1e-9)


def test_an_assessment_is_the_same_elsewhere(place):
    val, test = draw(300), draw(400, seed=1)
    chosen = ["Temperature", "StructuredVector"]
    made = assess(place.predictions(val), place.predictions(test), calibrators=chosen)
    assert str(made) == str(assess(val, test, calibrators=chosen))


def test_two_models_are_compared_elsewhere(place):
    one, other = draw(200), draw(200, seed=2)
    other = Predictions(1.3 * one.logits, one.labels)
    made = metrics.compare(place.predictions(one), place.predictions(other))
    assert str(made) == str(metrics.compare(one, other))


def test_a_sum_over_rows_is_made_in_few_steps_there(place):
    """Each of which is a dozen calls that wait for the card: what fits a cache here would not keep it busy."""
    x, sizes = torch.ones(20_000, 100), []

    def total(rows: Tensor) -> Tensor:
        sizes.append(len(rows))
        return rows.sum(0)

    assert float(sum_row_chunks(total, x)[0]) == float(sum_row_chunks(total, place.take(x))[0]) == 20_000
    assert len(sizes) == 16 + 1
    assert sizes[-1] == 20_000


def test_a_calibrator_fitted_here_works_there(place):
    """In float32 and in half precision, one that holds others too."""
    fitted = calibrators.fit("Auto(folds=2)", draw(300))
    for dtype in (torch.float32, torch.bfloat16):
        z = draw(40, seed=3).logits.to(dtype)
        torch.testing.assert_close(home(fitted(place.take(z))), fitted(z), rtol=1e-3, atol=1e-3)
