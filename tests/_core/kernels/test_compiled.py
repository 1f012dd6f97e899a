"""Compiled kernels agree with numpy to rounding, and the statistics of a row do not depend on its neighbors."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from drawn import drawn_labels

from calibrant import Predictions, measure, metrics
from calibrant._core.arrays import to_numpy
from calibrant._core.kernels import dispatch, softmax
from calibrant._core.kernels.bins import Events, GroupedScores
from calibrant._core.kernels.overlap import hash_rows
from calibrant.calibrators import Temperature, _isotonic, _temperature

needs_numba = pytest.mark.skipif(dispatch.cpu_kernels() is None, reason="numba is not installed, or switched off")


def use_numpy(monkeypatch) -> None:
    monkeypatch.setattr(dispatch, "cpu_kernels", lambda: None)


def to_type(z: np.ndarray, dtype: str) -> Any:
    """Return an array, or a tensor of bfloat16, which numpy lacks, with the strides of z."""
    return z.astype(dtype) if dtype != "bfloat16" else pytest.importorskip("torch").from_numpy(z).bfloat16()


def draw(n: int, k: int, dtype: str = "float32") -> tuple[Any, np.ndarray]:
    """Draw logits with ties for the maximum, impossible classes and certain ones."""
    rng = np.random.default_rng(0)
    z = 4 * rng.standard_normal((n, k))
    y = drawn_labels(z, rng)
    z[: n // 20, -1] = -np.inf
    z[n // 20 : n // 10, 0] = z[n // 20 : n // 10].max(1)
    z[n // 10 : n // 8] *= 100
    return to_type(z, dtype), y


def row_statistics(z: Any, y: np.ndarray) -> list[np.ndarray]:
    """Return correctness, then every other statistic of the rows."""
    k, rows = z.shape[1], softmax.outcomes(z, y, index=z.shape[1] - 1)
    visited = list[np.ndarray]()
    softmax.visit_probabilities(z, softmax.ChunkVisitor(lambda: lambda _, p: visited.append(p.copy())))
    columns = [rows.confidence, rows.log_likelihood, rows.brier, rows.probability, softmax.entropies(z)]
    single = [softmax.log_likelihood(z, y), softmax.class_probability(z, k - 1), softmax.top_label(z, y)[0]]
    return [rows.correct, *columns, np.concatenate(visited), *single]


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("k", [2, 3, 129])
@pytest.mark.parametrize("n", [1, 63, 64, 65, 400])
def test_prediction_is_the_first_maximum(n, k, dtype):
    rng = np.random.default_rng(n)
    z, y = rng.integers(-2, 2, (n, k)).astype(float), rng.integers(min(k, 4), size=n)
    z[::3] *= -1  # -0 equals 0
    z[1::5, -1] = -np.inf
    for layout in z, np.asfortranarray(z):
        assert np.array_equal(softmax.correct(to_type(layout, dtype), y), z.argmax(1) == y)


@needs_numba
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("k", [2, 3, 10, 300])
def test_compiled_row_statistics_agree_with_numpy(monkeypatch, k, dtype):
    z, y = draw(700, k, dtype)
    compiled = row_statistics(z, y)
    use_numpy(monkeypatch)
    for ours, expected in zip(compiled, row_statistics(z, y), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-13, atol=1e-14)
    assert np.array_equal(compiled[0], to_numpy(z).argmax(1) == y)


@pytest.mark.parametrize("use", ["compiled", "numpy"])
@pytest.mark.parametrize("k", [2, 3, 5, 10, 17, 100, 257])
def test_statistics_of_a_row_do_not_depend_on_its_neighbors(monkeypatch, k, use):
    if use == "numpy":
        use_numpy(monkeypatch)
    z, y = draw(130, k)
    together = row_statistics(z, y)
    for size in (1, 7, 16, 65):
        parts = [row_statistics(z[i : i + size], y[i : i + size]) for i in range(0, 130, size)]
        for expected, *columns in zip(together, *parts, strict=True):
            assert np.array_equal(np.concatenate(columns), expected)


@needs_numba
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("k", [2, 5, 150])
def test_every_number_of_the_report_agrees(monkeypatch, k, weighted):
    z, y = draw(3000, k)
    w = np.random.default_rng(1).random(3000) + 0.5 if weighted else None
    names = ["sweep_ece", "auroc", "auroc(of='correctness')", "entropy", "mce", "mmce"]
    compiled = measure(Predictions(z, y, w), metrics=names)
    use_numpy(monkeypatch)
    expected = measure(Predictions(z, y, w), metrics=names)
    assert [row.name for row in compiled.rows] == [row.name for row in expected.rows]
    for row, expected_row in zip(compiled.rows, expected.rows, strict=True):
        for column in ("value", "low", "high", "p_value"):
            number = pytest.approx(getattr(expected_row, column), rel=1e-9, abs=1e-12, nan_ok=True)
            assert getattr(row, column) == number, (row.name, column)


@pytest.mark.parametrize("k", [3, 10])
def test_auroc_without_weights_equals_auroc_with_weights_of_one(k):
    z, y = draw(700, k)
    z = z.round()  # ties
    assert metrics.auroc(z, y) == pytest.approx(metrics.auroc(Predictions(z, y, np.ones(700))), rel=1e-12)


@needs_numba
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("n", "k"), [(700, 2), (700, 5), (250_000, 5), (4000, 150)])  # one chunk, and several
def test_compiled_class_bins_agree_with_numpy(monkeypatch, n, k, weighted):
    z, y = draw(n, k)
    w = np.arange(n) % 5 + 0.5 if weighted else None
    compiled = metrics.tables.ClassSums.from_predictions(Predictions(z, y, w), 10).cells
    use_numpy(monkeypatch)
    expected = metrics.tables.ClassSums.from_predictions(Predictions(z, y, w), 10).cells
    np.testing.assert_allclose(compiled, expected, rtol=1e-11, atol=1e-10)
    p = expected.sum((0, 1))
    assert p[0] == pytest.approx(k * p[2])  # every sample counts in every class, and belongs to one


@needs_numba
@pytest.mark.parametrize("of", ["top", 1])
@pytest.mark.parametrize("weighted", [False, True])
def test_compiled_summary_equals_numpy_to_the_last_bit(monkeypatch, weighted, of):
    z, y = draw(2500, 4)
    y[:5] = 3  # impossible for some
    z[5, 1:] = -200.0
    w = 2000 * np.random.default_rng(1).random(2500) if weighted else None
    p = Predictions(z, y, w, of=of)
    compiled = metrics.Summary.empty(of=of).add(p) + metrics.Summary.empty(of=of).add(p[:77])
    monkeypatch.setattr(metrics._summary, "kernels", lambda x: None)  # the statistics of rows stay compiled
    expected = metrics.Summary.empty(of=of).add(p) + metrics.Summary.empty(of=of).add(p[:77])
    assert np.array_equal(compiled.sums, expected.sums)
    assert np.array_equal(compiled.cells, expected.cells)


@needs_numba
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("k", [2, 3, 129])
def test_compiled_hashes_equal_those_of_numpy(monkeypatch, k, dtype):
    z, y = draw(400, k, dtype)
    compiled = hash_rows(z, y)
    use_numpy(monkeypatch)
    assert np.array_equal(compiled, hash_rows(z, y))


@needs_numba
@pytest.mark.parametrize("n", [1, 2, 50, 1000])
def test_compiled_venn_abers_pass_agrees_with_python(monkeypatch, n):
    rng = np.random.default_rng(n)
    weight = rng.integers(1, 6, n) * rng.choice([1.0, 0.3], n)
    mean = rng.binomial(5, np.linspace(0.1, 0.9, n)) / 5
    compiled = _isotonic._venn_abers_pass(mean, weight)
    monkeypatch.setattr(_isotonic, "kernels", lambda x: None)
    np.testing.assert_allclose(compiled, _isotonic._venn_abers_pass(mean, weight), rtol=1e-12)


@needs_numba
@pytest.mark.parametrize("bins", [1, 7, 10, 15, 100])
def test_confidences_at_bin_edges_fall_into_the_same_bins(monkeypatch, bins):
    edges = np.linspace(0, 1, bins + 1)
    c = np.concatenate([edges, np.nextafter(edges, 0), np.nextafter(edges, 1).clip(0, 1)])
    columns = (c, np.arange(len(c)) % 2.0, np.arange(len(c), dtype=float))
    compiled = Events(*columns).moments(bins), Events(*columns).equal_width(bins)
    use_numpy(monkeypatch)
    expected = Events(*columns).moments(bins), Events(*columns).equal_width(bins)
    assert np.array_equal(compiled[0].total_weight, expected[0].total_weight)
    np.testing.assert_allclose(compiled[0].u_square_sum, expected[0].u_square_sum, rtol=1e-13, atol=1e-15)
    assert np.array_equal(compiled[1].count, expected[1].count)


@needs_numba
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("k", [2, 10, 128])
def test_compiled_nll_derivatives_agree_with_numpy(monkeypatch, k, dtype, weighted):
    z, y = draw(700, k, dtype)
    z[::9] = 0.0  # ties
    weights = np.arange(700) % 5 + 0.5 if weighted else None
    p = _temperature.drop_impossible(Predictions(z, y, weights))

    def derivatives(b: float) -> np.ndarray:
        return np.array([*vars(_temperature._nll_derivatives(p, b)).values()])

    scales = (1e-3, 0.7, 30.0)
    compiled = [derivatives(b) for b in scales]
    use_numpy(monkeypatch)
    for ours, b in zip(compiled, scales, strict=True):
        expected = derivatives(b)
        np.testing.assert_allclose(ours, expected, rtol=1e-11, atol=1e-12 * abs(expected).max())


@needs_numba
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize("n", [500, 30_000])
def test_compiled_temperature_fit_ends_where_numpy_does(monkeypatch, n, scale):
    rng = np.random.default_rng(1)
    z = 2 * rng.standard_normal((n, 10), dtype=np.float32)
    y = drawn_labels(z / 1.7, rng)
    compiled = Temperature.fit(scale * z, y)
    use_numpy(monkeypatch)
    expected = Temperature.fit(scale * z, y)
    assert float(compiled.temperature) == pytest.approx(float(expected.temperature), rel=1e-9)
    ours, theirs = compiled.certificate, expected.certificate
    assert ours.status == theirs.status == "converged"
    assert (ours.data, ours.accuracy_before) == (theirs.data, theirs.accuracy_before)
    for name in ("nll_before", "nll_after", "standard_error"):
        assert getattr(ours, name) == pytest.approx(getattr(theirs, name), rel=1e-6), name


def test_numpy_does_the_work_without_numba(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    assert dispatch.cpu_kernels.__wrapped__() is None


def test_packed_sort_equals_a_stable_sort():
    rng = np.random.default_rng(0)
    score = (8 * rng.standard_normal(1000)).round() / 8
    score[:3] = -np.inf, -0.0, 0.0
    positive = (rng.random(1000) < 1 / (1 + np.exp(-score))).astype(float)
    by_score = GroupedScores.from_scores(score, positive)
    weighted = GroupedScores.from_scores(score, positive, np.ones(1000))
    for column in ("value", "total_weight", "correct"):
        assert np.array_equal(getattr(by_score, column), getattr(weighted, column))


INTERRUPTED_IMPORT = """
import signal, sys, threading
from calibrant import Predictions, calibrators

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupts())
p = Predictions([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]], [0, 1, 1])
try:
    calibrators.Temperature.fit(p)
except KeyboardInterrupt:
    print("interrupted")
print(float(calibrators.Temperature.fit(p).temperature))
"""


@needs_numba
@pytest.mark.slow
@pytest.mark.parametrize(
    "module", ["numba", "numba.core.registry", "numba.core.typing.cmathdecl", "calibrant._core.kernels.compiled"]
)
def test_interrupt_during_the_import_of_kernels_breaks_nothing(module):
    command = [sys.executable, "-c", INTERRUPTED_IMPORT, module]
    status, temperature = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    p = Predictions([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]], [0, 1, 1])
    assert status == "interrupted"
    assert float(temperature) == pytest.approx(float(Temperature.fit(p).temperature), rel=1e-9)


FIRST_USE_IN_TWO_THREADS = """
import threading, time
from concurrent.futures import ThreadPoolExecutor
import numpy as np
from numba.core.registry import cpu_target
from calibrant._core.kernels.dispatch import kernels

running, refresh = [], cpu_target.typing_context.refresh

def refresh_alone():
    running.append(threading.get_ident())
    if len(running) == 1:
        time.sleep(0.2)
    assert len(set(running)) == 1, "two threads prepare numba's compiler"
    refresh()
    running.pop()

cpu_target.typing_context.refresh = refresh_alone
with ThreadPoolExecutor(2) as pool:
    first, second = pool.map(lambda _: kernels(np.empty(0)), range(2))
print(first is second is not None)
"""


@pytest.mark.slow
@needs_numba
def test_first_use_in_two_threads_prepares_numba_one_thread_at_a_time():
    command = [sys.executable, "-c", FIRST_USE_IN_TWO_THREADS]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() == ["True"]


@pytest.mark.parametrize("k", [2, 3, 300])
def test_predicted_classes_are_the_same_before_and_after_the_outcomes(k):
    p = Predictions(*draw(300, k))
    before = p.predicted
    p.compute_outcomes()
    assert np.array_equal(before, p.predicted)
