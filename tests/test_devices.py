"""Predictions on a GPU: results equal those on the CPU, and only columns of the rows are transferred.

The GPU is a fake that refuses what a real one would refuse; `pytest --device cuda` takes a real one.
"""

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from calibrant.registry import CALIBRATORS, LOSSES, METRICS  # noqa: E402
from counted_losses import loss_with_counts  # noqa: E402
from fake_device import FakeTensor, Transfers, fake_device, real_device, to_fake_device, to_real_device  # noqa: E402
from golden_problems import ONE_SCORE  # noqa: E402
from torch import Tensor  # noqa: E402

from calibrant import Predictions, assess, calibrators, measure, metrics  # noqa: E402
from calibrant._core.kernels.solvers import sum_row_chunks  # noqa: E402
from calibrant._core.tensors import logit_tensor  # noqa: E402

WEIGHTED = pytest.mark.parametrize("weighted", [pytest.param(False, marks=pytest.mark.slow), True])
QUICK = {  # the same methods with less work
    "Auto": "Auto(folds=2)",
    "Chain": "Chain(first='Monotone', second='StructuredMatrix')",
    "PriorShift": "PriorShift(calibrator='Temperature')",
    "Matrix": "Matrix(penalty=1.0)",
    "FocalTemperature": "FocalTemperature(grid=((0.0, 1.0), (0.5, 1.0, 1.5, 2.0)))",
}
# Columns of 8 bytes that are transferred to memory, of every row
LABELS, WEIGHTS, CLUSTERS = 8, 8, 11  # with the names of the clusters, of which there are a third as many as rows
EVENTS = 16  # confidences and outcomes
CERTIFICATE = 40  # hashes of the rows; predictions and log-likelihoods, before and after
BYTES_PER_ROW = {"accuracy": 8, "error": 8, "nll": 8, "entropy": 8, "classwise_ece": 0, "brier": 40, "auroc": 56}
BYTES_PER_ROW |= {"refinement_nll": 80, "refinement_brier": 112}
BYTES_PER_ROW |= {"Identity": 0, "Temperature": 8, "Monotone": 64, "GroupCalibrated": 72, "IntraOrderPreserving": 88}
BYTES_PER_ROW |= {"BayesianBinning": 96, "HistogramBinning": 96, "Spline": 96, "ScalingBinning": 112}
BYTES_PER_ROW |= {"TopLabelBinning": 120, "Chain": 136, "Isotonic": 186, "SharedIsotonic": 186, "VennAbers": 280}
BYTES_PER_ROW |= {"Auto": 568, "EnsembleTemperature": 64}  # labels and certificates of its fits
BYTES_PER_ROW |= dict.fromkeys(("Beta", "Intercept", "Logistic", "Platt", "Quadratic"), 48)  # with the score


class Device(NamedTuple):
    """Moves tensors to a device, and counts the transfers back if it is the fake one."""

    move: Callable[[Tensor], Tensor]
    transfers: Transfers
    is_counted: bool

    def move_predictions(self, p: Predictions) -> Predictions:
        columns = {name: getattr(p, name) for name in ("weights", "clusters", "groups")}
        moved = {name: column if column is None else self.move_array(column) for name, column in columns.items()}
        return Predictions(self.move(logit_tensor(p)), self.move_array(p.labels), **moved)

    def move_array(self, column: np.ndarray) -> Tensor:
        return self.move(torch.from_numpy(column))


@pytest.fixture
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    if request.config.getoption("--device") == "cuda":
        with real_device() as transfers:
            yield Device(to_real_device, transfers, is_counted=False)
    else:
        with fake_device() as transfers:
            yield Device(to_fake_device, transfers, is_counted=True)


def draw(n: int, k: int = 4, seed: int = 0, *, weighted: bool = False) -> Predictions:
    g = torch.Generator().manual_seed(seed)
    z = 2 * torch.randn(n, k, generator=g, dtype=torch.float64)
    y = torch.multinomial((z / 1.5).softmax(1), 1, generator=g).squeeze(1)
    weights = torch.rand(n, generator=g, dtype=torch.float64) + 0.2 if weighted else None
    return Predictions(z, y, weights, clusters=torch.randint(0, n // 3, (n,), generator=g) if weighted else None)


def to_cpu(x: Tensor) -> Tensor:
    return x.inner if isinstance(x, FakeTensor) else x.cpu()


def fit_function(name: str) -> Callable[[Predictions], Any]:
    return CALIBRATORS.resolve(QUICK.get(name, name))


def fitted_arrays(value: Any) -> Iterator[Any]:
    """Yield all arrays and tensors of a fitted map."""
    if isinstance(value, Tensor | np.ndarray):
        yield value
    parts = value if isinstance(value, tuple) else ()
    parts = [getattr(value, field.name) for field in fields(value)] if is_dataclass(value) else parts
    for part in parts:
        yield from fitted_arrays(part)


def test_fake_device_is_as_strict_as_a_real_one():
    with fake_device() as transfers:
        x = to_fake_device(torch.arange(6.0).view(2, 3))
        assert x.device.type == "cuda"
        assert (x + 1).sum(0).device.type == torch.zeros(2, device=x.device).device.type == "cuda"
        assert transfers == Transfers()
        for mixed in (lambda: x + torch.ones(3), lambda: x @ torch.ones(3), lambda: torch.cat([x, torch.ones(1, 3)])):
            with pytest.raises(RuntimeError, match="same device"):
                mixed()
        with pytest.raises(TypeError, match="numpy"):
            x.numpy()
        assert transfers == Transfers()
        assert x.sum().item() == 15
        assert transfers == Transfers(4, 1)
        assert x.cpu().tolist() == x.tolist()
        assert transfers == Transfers(4 + 24 + 24, 3)


@WEIGHTED
@pytest.mark.parametrize("name", sorted(METRICS))
def test_metrics_are_equal_on_a_device(device, name, weighted):
    metric, p = METRICS[name], draw(200, weighted=weighted)
    on_device = float(metric(device.move_predictions(p)))
    assert on_device == pytest.approx(float(metric(p)), rel=1e-9, abs=1e-12, nan_ok=True)
    if device.is_counted:
        before = device.transfers.bytes
        metric(device.move_predictions(draw(1000, weighted=weighted)))
        columns = LABELS + (WEIGHTS + CLUSTERS) * weighted + BYTES_PER_ROW.get(name, EVENTS)
        limit = 800 * columns + 100
        assert device.transfers.bytes - 2 * before < limit


@pytest.mark.parametrize("name", sorted(name for name in METRICS if METRICS[name].has_interval))
def test_intervals_are_equal_on_a_device(device, name):
    for p in (draw(200), draw(200, weighted=True)):
        on_device, on_cpu = METRICS[name].interval(device.move_predictions(p)), METRICS[name].interval(p)
        assert [on_device.low, on_device.high] == pytest.approx([on_cpu.low, on_cpu.high], rel=1e-6, abs=1e-9)


@WEIGHTED
@pytest.mark.parametrize("name", sorted(CALIBRATORS))
def test_calibrators_are_fitted_and_applied_on_a_device(device, name, weighted):
    """The parameters are arrays in memory, and follow the logits."""
    k = 2 if name in ONE_SCORE else 4
    fit = fit_function(name)
    p, logits = draw(200, k, weighted=weighted), logit_tensor(draw(50, k, seed=1))
    expected = fit(p)
    fitted = fit(device.move_predictions(p))
    assert all(type(x) is np.ndarray for x in fitted_arrays(fitted))
    assert name == "Identity" or fitted.certificate.data == expected.certificate.data
    for z in (logits, logits.float()):
        calibrated = fitted(device.move(z))
        assert calibrated.device.type == "cuda"
        assert calibrated.dtype == z.dtype
        torch.testing.assert_close(to_cpu(calibrated), fitted(z), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(fitted(logits).softmax(-1), expected(logits).softmax(-1), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name == "Auto" else ())
        for name in sorted(set(CALIBRATORS) - {"FocalTemperature", "Dirichlet", "Matrix"})
    ],
)
def test_fits_transfer_the_columns_of_their_certificate(device, name):
    """Calibrators that sort also transfer what they sort."""
    if not device.is_counted:
        pytest.skip("only the fake device counts transfers")
    k, fit = 2 if name in ONE_SCORE else 4, fit_function(name)
    transferred = []
    for n in (200, 1000):
        before = device.transfers.bytes
        fit(device.move_predictions(draw(n, k)))
        transferred.append(device.transfers.bytes - before)
    columns = LABELS + BYTES_PER_ROW.get(name, CERTIFICATE)
    assert (transferred[1] - transferred[0]) / 800 < columns + 4  # the number of steps varies


def count_transfers(device: Device, n: int, work: Callable[[Predictions], Any]) -> int:
    """Return how often work on n rows, of predictions that lie on the device, waits for a transfer."""
    if not device.is_counted:
        pytest.skip("only the fake device counts transfers")
    p, before = device.move_predictions(draw(n, 5)), device.transfers.count
    work(p)
    return device.transfers.count - before


@pytest.mark.parametrize(
    "name", ["nll", "brier", "ece", "adaptive_ece", "classwise_ece", "sweep_ece", "kuiper", "aurc"]
)
def test_metrics_transfer_independently_of_the_number_of_samples(device, name):
    assert count_transfers(device, 4000, METRICS[name]) == count_transfers(device, 250, METRICS[name]) > 0


def test_temperature_fit_needs_few_transfers(device):
    assert 0 < count_transfers(device, 4000, fit_function("Temperature")) < 40


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_losses_have_equal_gradients_on_a_device_without_transfers(device, name):
    p = draw(24)
    gradients = []
    for move in (Tensor.clone, device.move):
        z = move(torch.as_tensor(p.logits).float()).requires_grad_()
        loss_with_counts(name, 4)(z, move(torch.from_numpy(p.labels))).sum().backward()
        gradients.append(z.grad)
    torch.testing.assert_close(to_cpu(gradients[1]), gradients[0], rtol=1e-5, atol=1e-7)
    assert device.transfers == Transfers()


def test_measure_is_equal_on_a_device(device):
    p = draw(300, weighted=True)
    assert str(measure(device.move_predictions(p))) == str(measure(p))


def test_summary_is_equal_on_a_device(device):
    p = draw(300)
    on_cpu, on_device = (metrics.Summary.empty(by_class=True).add(x) for x in (p, device.move_predictions(p)))
    for name in ("ece", "nll", "brier", "accuracy", "kuiper"):
        assert on_device[name] == pytest.approx(on_cpu[name], rel=1e-9)


@pytest.mark.slow
def test_assess_is_equal_on_a_device(device):
    val, test = draw(300), draw(400, seed=1)
    names = ["Temperature", "StructuredVector"]
    on_device = assess(device.move_predictions(val), device.move_predictions(test), calibrators=names)
    assert str(on_device) == str(assess(val, test, calibrators=names))


@pytest.mark.slow
def test_compare_is_equal_on_a_device(device):
    first = draw(200)
    second = Predictions(1.3 * first.logits, first.labels)
    on_device = metrics.compare(device.move_predictions(first), device.move_predictions(second))
    assert str(on_device) == str(metrics.compare(first, second))


def test_row_sums_take_one_step_on_a_device(device):
    """Chunks that fit the cache of a CPU would leave a GPU idle."""
    x, sizes = torch.ones(20_000, 100), []

    def total(rows: Tensor) -> Tensor:
        sizes.append(len(rows))
        return rows.sum(0)

    assert float(sum_row_chunks(total, x)[0]) == float(sum_row_chunks(total, device.move(x))[0]) == 20_000
    assert len(sizes) == 16 + 1
    assert sizes[-1] == 20_000


def test_calibrator_fitted_on_the_cpu_works_on_a_device(device):
    fitted = calibrators.fit("Auto(folds=2)", draw(300))
    for dtype in (torch.float32, torch.bfloat16):
        z = torch.as_tensor(draw(40, seed=3).logits).to(dtype)
        torch.testing.assert_close(to_cpu(fitted(device.move(z))), fitted(z), rtol=1e-3, atol=1e-3)
