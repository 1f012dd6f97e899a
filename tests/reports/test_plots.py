"""Plot functions draw on the given axes and return them, without showing or saving a figure."""

import inspect

import matplotlib as mpl
import numpy as np
import pytest
from drawn import drawn_labels
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from calibrant import Predictions, decisions, metrics
from calibrant._core.kernels.bins import Bins
from calibrant.reports import plots
from calibrant.reports.plots import _predictions


@pytest.fixture
def ax() -> Axes:
    return Figure().add_subplot()


@pytest.fixture
def predictions() -> Predictions:
    rng = np.random.default_rng(1)
    logits = rng.normal(scale=3, size=(500, 4))
    return Predictions(logits, drawn_labels(logits / 2, rng))


CALLS = {
    "confidence_histogram": lambda p, ax: plots.confidence_histogram(metrics.tables.bins(p), ax=ax),
    "curves": lambda p, ax: plots.curves({"a": [1.0, 2.0], "b": [[1.0, 3.0], [2.0, 2.0]]}, ax=ax),
    "flexible_curve": lambda p, ax: plots.flexible_curve(metrics.curves.flexible(p), ax=ax),
    "histograms": lambda p, ax: plots.histograms({"right": p.logits[:, 0], "wrong": p.logits[:9, 1]}, ax=ax),
    "intervals": lambda p, ax: plots.intervals({"nll": metrics.nll.interval(p)}, ax=ax),
    "net_benefit": lambda p, ax: plots.net_benefit({"model": decisions.net_benefit(p.with_event(1))}, ax=ax),
    "prediction_sets": lambda p, ax: plots.prediction_sets(decisions.Sets.fit(p).evaluate(p), ax=ax),
    "reliability": lambda p, ax: plots.reliability(metrics.tables.bins(p), ax=ax),
    "reliability_curve": lambda p, ax: plots.reliability_curve(metrics.curves.corp(p), ax=ax),
    "risk_coverage": lambda p, ax: plots.risk_coverage({"before": metrics.curves.risk_coverage(p)}, ax=ax),
}


def test_all_plots_are_exported_and_tested():
    modules = {name: getattr(getattr(plots, name), "__module__", "") for name in plots.__all__}  # "" for colors
    assert {name for name, module in modules.items() if module.endswith(("._predictions", "._decisions"))} == set(CALLS)


@pytest.mark.parametrize("name", CALLS)
def test_plot_draws_on_the_axes_and_returns_them(name, ax, predictions, monkeypatch):
    import matplotlib.pyplot as plt

    monkeypatch.setattr(plt, "show", lambda *_: pytest.fail("a figure was shown"))
    monkeypatch.setattr(Figure, "savefig", lambda *_, **__: pytest.fail("a figure was saved"))
    before, settings = plt.get_fignums(), dict(mpl.rcParams)
    assert CALLS[name](predictions, ax) is ax
    assert ax.has_data()
    assert ax.figure.axes == [ax]
    assert plt.get_fignums() == before
    assert dict(mpl.rcParams) == settings
    assert "ax" in inspect.signature(getattr(plots, name)).parameters


@pytest.mark.parametrize("name", sorted(CALLS.keys() - {"flexible_curve"}))  # which needs both outcomes
def test_plot_draws_a_single_example(name, ax):
    assert CALLS[name](Predictions([[0.0, 2.0, 0.0, 0.0]], [1]), ax) is ax
    ax.figure.canvas.draw()


def test_reliability_bars_have_the_accuracy_of_their_bins(ax, predictions):
    bins = metrics.tables.bins(predictions, bins=20)
    plots.reliability(bins, ax=ax)
    nonempty = bins.count > 0
    assert 0 < nonempty.sum() < 20
    bars = [patch for patch in ax.patches if not patch.get_hatch()]
    np.testing.assert_allclose([bar.get_height() for bar in bars], bins.accuracy[nonempty])
    gaps = [patch for patch in ax.patches if patch.get_hatch()]
    np.testing.assert_allclose([gap.get_height() for gap in gaps], np.abs(bins.gap[nonempty]))
    shades = [bar.get_alpha() for bar in bars]
    assert int(np.argmax(shades)) == int(bins.weight[nonempty].argmax())
    assert all(0.25 <= shade <= 1 for shade in shades)


def test_bin_shares_sum_to_one(ax, predictions):
    plots.confidence_histogram(metrics.tables.bins(predictions, bins=25), ax=ax)
    assert sum(bar.get_height() for bar in ax.patches) == pytest.approx(1)


def test_curves_show_mean_and_range_over_runs(ax):
    runs = np.array([[1.0, 5.0, np.nan], [3.0, 1.0, np.nan], [2.0, 0.0, np.nan]])
    plots.curves({"focal": runs}, ax=ax, ylabel="ECE")
    (line,) = ax.lines
    np.testing.assert_array_equal(line.get_ydata(), [2.0, 2.0, np.nan])
    np.testing.assert_array_equal(line.get_xdata(), [1, 2, 3])
    corners = ax.collections[0].get_paths()[0].vertices
    assert {(1.0, 1.0), (1.0, 3.0), (2.0, 0.0), (2.0, 5.0)} <= {(float(x), float(y)) for x, y in corners}


def test_single_epoch_has_an_integer_tick(ax):
    plots.curves({"focal": [1.0]}, ax=ax)
    low, high = ax.get_xlim()
    assert [tick for tick in ax.get_xticks() if low <= tick <= high] == [1]


def test_thirty_lines_have_distinct_styles(ax):
    plots.curves({f"loss {i}": [1.0, 2.0] for i in range(30)}, ax=ax)
    assert len({(line.get_color(), str(line._dash_pattern)) for line in ax.lines}) == 30


def test_histograms_share_their_bins(ax):
    plots.histograms({"early": np.linspace(0, 1, 300), "late": np.linspace(1, 4, 10)}, ax=ax, bins=8)
    outlines = [patch.get_path().vertices for patch in ax.patches]
    edges = {round(float(x), 6) for xy in outlines for x in xy[:, 0]}
    assert edges <= {round(0.5 * i, 6) for i in range(9)}
    assert ax.get_legend() is not None


def test_thinned_reliability_curve_keeps_its_shape(ax):
    x = np.linspace(0, 1, 20_001)
    y = (x > 0.3).astype(float)
    plots.reliability_curve(metrics.Curve(x, y), ax=ax)
    drawn = ax.lines[0].get_xydata()
    assert len(drawn) < 1000
    away = np.abs(x - 0.3) > 1 / _predictions.MAX_CURVE_COLUMNS
    np.testing.assert_allclose(np.interp(x, *drawn.T)[away], y[away], atol=1e-9, rtol=0)


def test_reliability_curve_shades_areas_outside_the_band(ax, predictions):
    curve = metrics.curves.corp(predictions)
    plots.reliability_curve(curve, ax=ax)
    band, below, above = ax.collections
    assert band.get_paths()
    assert bool((curve.y < curve.low).any()) == bool(below.get_paths())
    assert bool((curve.y > curve.high).any()) == bool(above.get_paths())


def test_risk_coverage_ends_at_the_error(ax, predictions):
    plots.risk_coverage({"before": metrics.curves.risk_coverage(predictions)}, ax=ax)
    assert ax.lines[0].get_ydata()[-1] == pytest.approx(float(metrics.error(predictions)))


def test_intervals_that_contain_the_reference_are_gray(ax):
    rows = {"clear": metrics.Interval(1.0, 0.5, 1.5), "open": metrics.Interval(0.2, -0.5, 0.9)}
    plots.intervals(rows, ax=ax)
    assert [line.get_color() for line in ax.lines[0:4:2]] == [_predictions.BAR_COLOR, _predictions.LINE_COLOR]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["clear", "open"]


def test_custom_bins_are_drawn(ax):
    nan = np.nan
    bins = Bins(*map(np.array, ([0, 0.5, 1], [0.0, 1], [nan, 0.9], [nan, 0.6], [0, 10])))
    plots.reliability(bins, ax=ax)
    bar, gap = ax.patches
    assert (bar.get_x(), bar.get_width(), bar.get_height()) == (0.5, 0.5, 0.6)
    assert gap.get_y() == 0.6
    assert gap.get_height() == pytest.approx(0.3)
