"""The compiled kernels say what torch says, to rounding, and of every row the same whatever stands beside it."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from calibrant import Predictions, measure, metrics
from calibrant.backend import dispatch, overlap, softmax
from calibrant.backend.bins import Events, GroupedScores
from calibrant.calibrators import FocalTemperature, Temperature, _grid_search, _isotonic, _temperature

needs_numba = pytest.mark.skipif(dispatch._load_once() is None, reason="numba is not installed, or switched off")


def plainly(monkeypatch) -> None:
    monkeypatch.setattr(dispatch, "_load_once", lambda: None)


def draw(n: int, k: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits with ties for the maximum, impossible classes and certain ones."""
    g = torch.Generator().manual_seed(0)
    z = (4 * torch.randn(n, k, generator=g)).to(dtype)
    y = torch.multinomial(z.float().softmax(1), 1, generator=g).squeeze(1)
    z[: n // 20, -1] = -torch.inf
    z[n // 20 : n // 10, 0] = z[n // 20 : n // 10].amax(1)
    z[n // 10 : n // 8] *= 100
    return z, y


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("k", [2, 3, 127, 128, 129, 300])
@pytest.mark.parametrize("n", [1, 63, 64, 65, 400])
def test_who_is_right_is_who_says_the_first_of_the_largest(n, k, dtype):
    g = torch.Generator().manual_seed(n)
    z, y = torch.randint(-2, 2, (n, k), generator=g).to(dtype), torch.randint(min(k, 4), (n,), generator=g)
    z[::3] *= -1  # zeros of both signs are one number
    z[1::5, -1] = -torch.inf
    for rows in z, z.T.contiguous().T:  # also where they do not stand in one piece
        assert torch.equal(softmax.correct(rows, y), (z.argmax(1) == y).double())


@needs_numba
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("k", [2, 3, 10, 127, 128, 300])
def test_a_compiled_pass_is_the_plain_one_to_rounding(monkeypatch, k, dtype):
    z, y = draw(700, k, dtype)

    def found() -> list[torch.Tensor]:
        seen = softmax.outcomes(z, y, index=k - 1)
        shown = list[torch.Tensor]()
        softmax.visit_probabilities(z, softmax.StatelessVisitor(lambda _, p: shown.append(p.clone())))
        each = [seen.confidence, seen.log_likelihood, seen.brier, seen.probability, softmax.entropies(z)]
        each.append(torch.cat(shown))
        return [seen.correct, *each, softmax.log_likelihood(z, y), softmax.class_probability(z, k - 1)]

    fast = found()
    plainly(monkeypatch)
    for ours, plain in zip(fast, found(), strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-13, atol=1e-14)
    assert torch.equal(fast[0], (z.argmax(1) == y).double())


@needs_numba
def test_rows_laid_out_otherwise_are_the_same_rows():
    z, y = draw(500, 7)
    turned = z.T.contiguous().T
    assert not turned.is_contiguous()
    for ours, theirs in zip(softmax.top_label(z, y), softmax.top_label(turned, y), strict=True):
        assert torch.equal(ours, theirs)


@needs_numba
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("k", [2, 5, 150])
def test_every_number_of_the_report_agrees(monkeypatch, k, weighted):
    z, y = draw(3000, k)
    w = torch.rand(3000, generator=torch.Generator().manual_seed(1)).double() + 0.5 if weighted else None
    more = ["sweep_ece", "auroc", "auroc(of='correctness')", "entropy", "mce", "mmce"]
    fast = measure(Predictions(z, y, w), metrics=more)
    plainly(monkeypatch)
    plain = measure(Predictions(z, y, w), metrics=more)
    assert [row.name for row in fast.rows] == [row.name for row in plain.rows]
    for ours, theirs in zip(fast.rows, plain.rows, strict=True):
        for part in ("value", "low", "high", "p_value"):
            same = pytest.approx(getattr(theirs, part), rel=1e-9, abs=1e-12, nan_ok=True)
            assert getattr(ours, part) == same, (ours.name, part)


@needs_numba
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("n", "k"), [(700, 2), (700, 5), (250_000, 5), (700, 150), (4000, 150)])  # one piece and three
def test_compiled_cells_of_the_classes_are_the_plain_ones(monkeypatch, n, k, weighted):
    z, y = draw(n, k)
    w = torch.arange(n) % 5 + 0.5 if weighted else None
    fast = metrics.tables.collect_class_bins(Predictions(z, y, w), 10)().sums
    plainly(monkeypatch)
    plain = metrics.tables.collect_class_bins(Predictions(z, y, w), 10)().sums
    torch.testing.assert_close(fast, plain, rtol=1e-11, atol=1e-10)
    p = plain.sum((0, 1))
    assert p[0] == pytest.approx(k * float(p[2]))  # every example counts in every class, and happens in one


@needs_numba
@pytest.mark.parametrize("of", ["top", 1])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_compiled_summary_is_the_plain_one_to_the_last_bit(monkeypatch, weighted, of):
    z, y = draw(2500, 4)
    y[:5] = 3  # of which some are impossible
    z[5, 1:] = -200.0
    w = torch.rand(2500, generator=torch.Generator().manual_seed(1)).double() * 2000 if weighted else None
    p = Predictions(z, y, w, of=of)
    fast = metrics.Summary.empty(of=of).add(p) + metrics.Summary.empty(of=of).add(p[:77])
    monkeypatch.setattr(metrics._summary, "kernels", lambda x: None)  # where the rows' own numbers are the same
    plain = metrics.Summary.empty(of=of).add(p) + metrics.Summary.empty(of=of).add(p[:77])
    assert torch.equal(fast.event_bin_sums, plain.sums)
    assert torch.equal(fast.add_class_bins, plain.cells)


@needs_numba
@pytest.mark.parametrize("n", [1, 2, 50, 1000])
def test_a_compiled_sweep_of_venn_abers_is_the_plain_one(monkeypatch, n):
    rng = np.random.default_rng(n)
    weight = rng.integers(1, 6, n) * rng.choice([1.0, 0.3], n)
    mean = rng.binomial(5, np.linspace(0.1, 0.9, n)) / 5
    fast = _isotonic._venn_abers_pass(mean, weight)
    monkeypatch.setattr(_isotonic, "kernels", lambda x: None)
    np.testing.assert_allclose(fast, _isotonic._venn_abers_pass(mean, weight), rtol=1e-12)


@needs_numba
def test_a_compiled_risk_is_the_plain_one(monkeypatch):
    g = torch.Generator().manual_seed(0)
    events = torch.rand(999, generator=g).double(), (torch.rand(999, generator=g) < 0.7).double()
    fast = metrics._ranking.aurc_of(GroupedScores.from_scores(*events))
    monkeypatch.setattr(metrics._ranking, "kernels", lambda x: None)
    assert float(fast) == pytest.approx(float(metrics._ranking.aurc_of(GroupedScores.from_scores(*events))), rel=1e-12)


@needs_numba
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("k", [2, 10, 127])
def test_sums_of_the_predicted_class_need_no_events_and_are_theirs_to_the_last_bit(k, dtype, weighted):
    z, y = draw(1000, k, dtype)
    w = torch.arange(len(z)) % 5 + 0.5 if weighted else None
    p, whole = Predictions(z, y, w), Predictions(z, y, w).events
    for bins in (15, 1):
        assert torch.equal(metrics.ece(p, bins=bins), metrics.ece.function(whole, bins=bins))
        assert ("events" in p.__dict__) == (bins == 1)  # a second question is worth them
    for metric in (metrics.noise_floor, metrics.debiased_l2, metrics.mce, metrics.sweep_ece):
        assert torch.equal(metric(Predictions(z, y, w)), metric.function(whole)), metric.__name__


@needs_numba
def test_the_same_sums_are_made_once_and_more_of_them_when_they_are_wanted(monkeypatch):
    z, y = draw(500, 4)
    p = Predictions(z, y)
    metrics.noise_floor(p)
    monkeypatch.setattr(dispatch._load_once(), "top_label_bin_sums", None)
    metrics.mce(p), metrics.ece(p)
    assert "events" not in p.__dict__
    again = Predictions(z, y)
    again.outcomes  # noqa: B018
    metrics.ece(again)  # what one pass has said needs no other
    assert isinstance(again.event_stats, Events)


@needs_numba
@pytest.mark.parametrize("bins", [1, 7, 10, 15, 100])
def test_confidences_at_the_edges_fall_into_the_same_bins(monkeypatch, bins):
    edges = np.linspace(0, 1, bins + 1)
    c = torch.from_numpy(np.concatenate([edges, np.nextafter(edges, 0), np.nextafter(edges, 1).clip(0, 1)]))
    events = (c, (torch.arange(len(c)) % 2).double(), torch.arange(len(c)).double())
    fast = Events(*events).moments(bins), Events(*events).equal_width(bins)
    plainly(monkeypatch)
    plain = Events(*events).moments(bins), Events(*events).equal_width(bins)
    assert torch.equal(fast[0].total_weight, plain[0].total_weight)
    torch.testing.assert_close(fast[0].gap_square, plain[0].gap_square, rtol=1e-13, atol=1e-15)
    assert torch.equal(fast[1].count, plain[1].count)


@needs_numba
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("k", [2, 10, 127, 128])
def test_a_compiled_pass_of_the_temperature_is_the_plain_one(monkeypatch, k, dtype, weighted):
    z, y = draw(700, k, dtype)
    z[::9] = 0.0  # ties
    p = _temperature.drop_impossible(
        Predictions(z, y, torch.arange(700) % 5 + 0.5 if weighted else None),
    )

    def found() -> list[torch.Tensor]:
        at = [(b, single) for b in (1e-3, 0.7, 30.0) for single in (torch.float64, torch.float32)]
        each = (_temperature._nll_derivatives(p, b, single) for b, single in at)
        return [torch.tensor([*vars(one).values()][: 8 if i % 2 == 0 else 6]) for i, one in enumerate(each)]

    fast = found()
    plainly(monkeypatch)
    for i, (ours, plain) in enumerate(zip(fast, found(), strict=True)):
        near = 1e-11 if i % 2 == 0 else 1e-4
        torch.testing.assert_close(ours, plain, rtol=near, atol=near * float(plain.abs().max()) / 10)


@needs_numba
@pytest.mark.parametrize("k", [2, 10, 127, 128])
def test_compiled_confidences_of_a_grid_are_the_plain_ones(monkeypatch, k):
    z, y = draw(700, k)
    top = z.argmax(1, keepdim=True)
    d = (z.double() - z.double().gather(1, top)).clamp_min(-1e300)
    y = y.where(d.gather(1, y[:, None]).squeeze(1) > -1e300, top.squeeze(1))

    def found(gammas: tuple[float, ...]) -> torch.Tensor:
        each = [_grid_search._loss(d, top, b, gammas, label) for b in (1e-3, 0.7, 40.0) for label in (None, y)]
        return torch.stack([*each, _grid_search._loss(-700 * (top != torch.arange(k)).double(), top, 1.2, gammas, y)])

    of_focal = (-0.75, 0.0, 0.3, 5.0, 1000.0)
    fast = found((0.0,)), found(of_focal)
    plainly(monkeypatch)
    torch.testing.assert_close(fast[0], found((0.0,)), rtol=1e-13, atol=1e-14)
    torch.testing.assert_close(fast[1][:, :4], found(of_focal)[:, :4], rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(fast[1][:, 4], found(of_focal)[:, 4], rtol=1e-11, atol=1e-12)


@needs_numba
@pytest.mark.parametrize("criterion", ["nll", "ece", "adaptive_ece"])
@pytest.mark.parametrize("k", [3, 130])
def test_a_compiled_focal_search_ends_where_the_plain_one_does(monkeypatch, k, criterion):
    g = torch.Generator().manual_seed(2)
    z = 2 * torch.randn(700, k, generator=g)
    y = torch.multinomial((z / 1.4).softmax(1), 1, generator=g).squeeze(1)
    z[:20, 1:] = -torch.inf
    y[:20] = 0
    grid = [-0.5, 0.0, 1.0], [i / 20 for i in range(10, 60)] + [1e-9]
    fast = FocalTemperature.fit(z, y, criterion=criterion, grid=grid)
    plainly(monkeypatch)
    plain = FocalTemperature.fit(z, y, criterion=criterion, grid=grid)
    assert (fast.temperature, fast.gamma) == (plain.temperature, plain.gamma)
    assert fast.certificate.after == pytest.approx(plain.certificate.after, rel=1e-9)


@needs_numba
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize("n", [500, 30_000])
def test_a_compiled_fit_ends_where_the_plain_one_does(monkeypatch, n, scale):
    g = torch.Generator().manual_seed(1)
    z = 2 * torch.randn(n, 10, generator=g)
    y = torch.multinomial((z / 1.7).softmax(1), 1, generator=g).squeeze(1)
    fast = Temperature.fit(scale * z, y)
    plainly(monkeypatch)
    plain = Temperature.fit(scale * z, y)
    assert float(fast.temperature) == pytest.approx(float(plain.temperature), rel=1e-9)
    ours, theirs = fast.certificate, plain.certificate
    assert ours.status == theirs.status == "converged"
    assert (ours.data, ours.accuracy_before) == (theirs.data, theirs.accuracy_before)
    for name in ("nll_before", "nll_after", "standard_error"):
        assert getattr(ours, name) == pytest.approx(getattr(theirs, name), rel=1e-6), name


@needs_numba
@pytest.mark.parametrize("k", [2, 3, 130])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_compiled_hashes_of_rows_are_those_of_torch(monkeypatch, k, dtype):
    z, y = draw(700, k, dtype)
    z[5] = -0.0
    fast = overlap.hash_rows(z, y)
    plainly(monkeypatch)
    assert np.array_equal(fast, overlap.hash_rows(z, y))


def test_without_numba_torch_does_the_work(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    assert dispatch._load_once.__wrapped__() is None


def test_packed_sorting_is_sorting():
    g = torch.Generator().manual_seed(0)
    score = torch.randn(1000, generator=g).double().mul(8).round().div(8)
    score[:3] = torch.tensor([-torch.inf, -0.0, 0.0])
    positive = torch.rand(1000, generator=g) < score.sigmoid()
    ties = metrics._ranking.GroupedScores.from_scores(score, positive.double())
    weighted = metrics._ranking.GroupedScores.from_scores(score, positive.double(), torch.ones(1000).double())
    for part in ("value", "mass", "correct"):
        assert torch.equal(getattr(ties, part), getattr(weighted, part))


INTERRUPTED = """
import signal, sys, threading, torch
from calibrant import Predictions, calibrators

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupts())
p = Predictions(torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]]), [0, 1, 1])
try:
    calibrators.Temperature.fit(p)
except KeyboardInterrupt:
    print("interrupted")
print(float(calibrators.Temperature.fit(p).temperature))
"""


@needs_numba
@pytest.mark.slow
@pytest.mark.parametrize(
    "module", ["numba", "numba.core.registry", "numba.core.typing.cmathdecl", "calibrant.backend.compiled"]
)
def test_interrupt_while_kernels_are_loaded_breaks_nothing(module):
    """Numba reads what it knows on first use, and never again where that is cut short."""
    done = subprocess.run([sys.executable, "-c", INTERRUPTED, module], capture_output=True, text=True, check=True)
    said, number = done.stdout.split()
    p = Predictions(torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]]), [0, 1, 1])
    assert said == "interrupted"
    assert float(number) == pytest.approx(float(Temperature.fit(p).temperature), rel=1e-9)
