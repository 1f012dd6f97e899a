"""`sample_size`: refusals, identities, and the promised power against independent simulations."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from commands import run
from drawn import drawn_labels
from refusals import code_of
from scipy.special import softmax
from scipy.stats import norm

from calibrant import Predictions, metrics
from calibrant.planning import PowerPoint, quick_sample_size, sample_size
from calibrant.planning._differences import PairedUnits, assumed_pairs, observed_pairs
from calibrant.planning._populations import (
    Clusters,
    Population,
    assumed_population,
    cluster_correlation,
    latent_correlation,
    miscalibrate,
    observed_population,
)
from calibrant.planning._precision import net_benefit_size, ratio_size, slope_size
from calibrant.planning._search import PowerCurve, find_size, fit_power, power_between

FAST = {"draws": 200}


def draw(n: int, k: int, seed: int = 0, **options: object) -> Predictions:
    rng = np.random.default_rng(seed)
    z = 1.5 * rng.standard_normal((n, k))
    return Predictions(z, drawn_labels(z, rng), **options)


# Search


@pytest.mark.slow
@pytest.mark.parametrize("effect", [0.02, 0.2, 1.0])
def test_search_finds_the_n_of_a_z_test(effect):
    """One observation of N(effect sqrt n, 1): the power is known."""
    curve = PowerCurve(lambda n, rng: rng.standard_normal() + effect * math.sqrt(n) > norm.ppf(0.95), seed=0)
    n = find_size(curve, start=50, power=0.8, draws=4000)
    exact = ((norm.ppf(0.95) + norm.ppf(0.8)) / effect) ** 2
    assert norm.cdf(effect * math.sqrt(n) - norm.ppf(0.95)) == pytest.approx(0.8, abs=0.03 if exact > 20 else 0.1)


def test_fit_recovers_a_probit_curve_without_noise():
    points = tuple(PowerPoint(n, norm.cdf(-1.6 + 0.15 * math.sqrt(n)), 10**9) for n in (200, 250, 300))
    assert fit_power(points, 1) == pytest.approx([-1.6, 0.15], rel=1e-5)
    assert power_between(points, 400) == pytest.approx(norm.cdf(-1.6 + 0.15 * 20), rel=1e-5)


def test_goal_that_ten_million_units_do_not_reach_is_refused():
    assert code_of(find_size, PowerCurve(lambda n, rng: False, 0), 1e6, 0.8, 100) == "too_many"


# Populations


@pytest.mark.parametrize("pattern", ["shift", "scale"])
@pytest.mark.parametrize("confidence", [0.9, 0.2, "beta(2, 2)", [0.1, 0.5, 0.99]])
def test_miscalibration_has_the_error_asked_for(pattern, confidence):
    population = miscalibrate(assumed_population(confidence), 0.04, pattern)
    c, p = population.confidence, population.truth
    assert population.share @ np.abs(p - c) == pytest.approx(0.04, abs=1e-9)
    assert ((p >= 0) & (p <= 1)).all()
    if pattern == "scale":
        assert (np.abs(p - 0.5) <= np.abs(c - 0.5) + 1e-12).all()


def test_scale_divides_logits_for_ten_classes():
    """With equal logits of the other classes, true probabilities are those of scaled logits."""
    z = 3.0 * np.eye(10)[0]
    c = softmax(z).max()
    population = Population(*(np.array([x]) for x in (c, 1.0, c)), chance=0.1)
    goal = c - softmax(0.7 * z).max()
    assert miscalibrate(population, goal, "scale").truth[0] == pytest.approx(c - goal, abs=1e-9)


@pytest.mark.parametrize("icc", [0.0, 0.1, 0.5])
def test_drawn_outcomes_have_the_correlation_within_clusters(icc):
    population = replace(assumed_population("beta(6, 3)"), clusters=Clusters(np.array([2, 8]), icc))
    events = population.draw(6000, np.random.default_rng(0))
    c, a, cluster = events.confidence, events.outcome, events.clusters
    start = np.unique(cluster, return_index=True)[1]
    estimate = cluster_correlation(a - c, c * (1 - c), np.ones(len(a)), start)
    assert estimate == pytest.approx(icc, abs=0.02)
    assert a.mean() == pytest.approx(population.mean, abs=0.02)


def test_latent_correlation_of_medians_is_the_sine_formula():
    """P(X > 0, Y > 0) = 1/4 + arcsin(tau) / 2 pi."""
    tau = latent_correlation(np.array([0.5]), np.array([1.0]), 0.3)
    assert math.asin(tau) / (2 * math.pi) == pytest.approx(0.3 / 4, abs=1e-6)


@pytest.mark.parametrize("n", [50, 50_000])
def test_drawn_examples_have_the_given_distribution(n):
    events = miscalibrate(assumed_population(0.8), 0.1, "shift").draw(n, np.random.default_rng(0))
    w = np.ones_like(events.outcome) if events.weights is None else events.weights
    assert float(w.sum()) == n
    gap = float(((events.confidence - events.outcome) * w).sum()) / n
    assert gap == pytest.approx(0.1, abs=4 * math.sqrt(0.2 / n))


# Differences


class InOrder(np.random.Generator):
    """A generator that draws every unit once."""

    def random(self, n):
        return (np.arange(n) + 0.5) / n

    def multinomial(self, n, share):
        return np.ones(n)


def test_tilted_differences_have_the_mean_asked_for_and_the_same_support():
    pairs = observed_pairs(draw(500, 3), draw(500, 3, 0).apply(lambda z: 1.3 * z), metrics.nll)
    tilted = pairs.tilt(0.05)
    assert tilted.mean == pytest.approx(0.05, abs=1e-9)
    assert tilted.difference is pairs.difference


@pytest.mark.parametrize("n", [40, 4000])
def test_p_value_is_that_of_compare(n):
    """Units drawn once each: the test is the paired test of `metrics.compare`."""
    first = draw(n, 3)
    second = first.apply(lambda z: 1.4 * z + np.array([0.3, 0.0, 0.0]))
    pairs = observed_pairs(first, second, metrics.brier)

    expected = metrics.compare(first, second, names=["brier"], groups=20)["brier"].p_value
    assert pairs.p_value(n, InOrder(np.random.PCG64())) == pytest.approx(expected, rel=1e-9)


def test_assumed_pairs_have_the_correlation():
    scores = np.random.default_rng(0).exponential(size=5000)
    pairs = assumed_pairs(np.stack([scores, scores, scores]), 0.6, None, seed=0)
    assert pairs.difference.var() / scores.var() == pytest.approx(2 * (1 - 0.6), rel=0.1)


def test_paired_units_weigh_clusters_by_size():
    values = np.array([1.0, 0.0, 0.0, 0.0])
    pairs = PairedUnits.from_examples(np.stack([values, values, values]), np.ones(4), np.array([0, 1, 1, 1]))
    assert (pairs.mean, pairs.unit_size) == (0.25, 2.0)


# The function


@pytest.mark.slow
def test_difference_of_accuracies_is_near_the_normal_formula():
    """n = (z_0.975 + z_0.8)^2 q / d^2 with q the share of examples on which the models disagree (Connor 1987)."""
    result = sample_size(accuracy=0.8, difference=0.05, metric="accuracy", correlation=0.5, exact=True)
    q = (1 - 0.5) * 2 * 0.8 * 0.2
    assert result.n == pytest.approx((norm.ppf(0.975) + norm.ppf(0.8)) ** 2 * q / 0.05**2, rel=0.1)


@pytest.mark.slow
def test_mean_gap_is_bounded_near_the_normal_formula():
    result = sample_size(confidence="beta(18, 2)", bound=0.05, metric="signed_gap", draws=400)
    c = np.random.default_rng(0).beta(18, 2, 100_000)
    exact = (norm.ppf(0.95) + norm.ppf(0.9)) ** 2 * (c * (1 - c)).mean() / 0.05**2  # both ends must lie within
    assert result.n == pytest.approx(exact, rel=0.1)


@pytest.mark.slow
def test_difference_to_an_assumed_second_model_needs_no_weights():
    columns = ({}, {"weights": np.ones(240)}, {"clusters": np.repeat(np.arange(80), 3)})
    unweighted, weighted, clustered = (sample_size(draw(240, 2, **c), difference=0.1, **FAST) for c in columns)
    assert unweighted.n == weighted.n
    assert (unweighted.unit, clustered.unit) == ("example", "cluster")


def test_mean_is_read_from_text():
    a, b = (sample_size(confidence=c, difference=0.1, metric="accuracy", **FAST) for c in (0.7, ".7"))
    assert a == b


@pytest.mark.slow
def test_seed_reproduces_and_changes_the_simulation():
    a, b, c = (sample_size(accuracy=0.7, difference=0.1, metric="accuracy", seed=seed, **FAST) for seed in (1, 1, 2))
    assert a == b
    assert a.curve != c.curve
    assert a.n == pytest.approx(c.n, rel=0.15)


@pytest.mark.slow
def test_smaller_effects_and_clusters_need_more_examples():
    sizes = [sample_size(accuracy=0.8, detect=x, **FAST).n for x in (0.2, 0.1, 0.05)]
    assert sizes == sorted(sizes)
    clustered = sample_size(accuracy=0.8, detect=0.2, cluster_size=4.0, icc=0.3, draws=100)
    assert clustered.unit == "cluster"
    assert clustered.examples == 4 * clustered.n > sizes[0]


def test_integer_weights_equal_copies():
    p = draw(60, 2)
    weights = np.arange(60) % 3 + 1
    copies = np.arange(60).repeat(weights)
    weighted = Predictions(p.logits, p.labels, weights)
    a, b = (observed_population(data.with_event(1).events.by_score, 0.5) for data in (weighted, p[copies]))
    assert np.array_equal(a.confidence, b.confidence)
    assert np.array_equal(a.share, b.share)


@pytest.mark.slow
def test_labels_do_not_matter_for_independent_examples():
    p = draw(200, 3)
    relabeled = Predictions(p.logits, np.zeros_like(p.labels))
    assert sample_size(p, detect=0.1, **FAST).n == sample_size(relabeled, detect=0.1, **FAST).n


@pytest.mark.slow
def test_two_classes_are_evaluated_as_measure_does():
    p = draw(30, 2)
    assert quick_sample_size(p, detect=0.1) == quick_sample_size(p.with_event(1).events, detect=0.1)


@pytest.mark.slow
def test_quick_estimate_is_near_and_accepts_statistics():
    p = draw(1000, 10)
    expected = sample_size(p, detect=0.1, draws=300).n
    assert quick_sample_size(p, detect=0.1) == pytest.approx(expected, rel=0.2)
    summary = metrics.Summary.from_predictions(p)
    assert quick_sample_size(summary, detect=0.1) == pytest.approx(expected, rel=0.2)
    alike = Predictions(np.tile(p.logits, (5, 1)), np.tile(p.labels, 5), clusters=np.tile(np.arange(1000), 5))
    assert quick_sample_size(alike, detect=0.1) == pytest.approx(5 * expected, rel=0.25)


P = draw(100, 3)
ONE_CLUSTER = Predictions(P.logits, P.labels, clusters=[0] * 100)


@pytest.mark.parametrize(
    ("code", "arguments", "options"),
    [
        ("num_goals", (), {"accuracy": 0.9, "detect": 0.1, "bound": 0.1}),
        ("source", (P,), {"detect": 0.1, "accuracy": 0.9}),
        ("confidence_and_accuracy", (), {"detect": 0.1, "accuracy": 0.9, "confidence": 0.9}),
        ("unreachable", (), {"confidence": [0.5], "detect": 0.1, "pattern": "scale"}),
        ("unreachable", (), {"accuracy": 0.9, "difference": 0.2, "metric": "accuracy"}),
        ("unreachable", (P, P), {"difference": 0.1}),
        ("different_examples", (P, draw(50, 3)), {"difference": 0.1}),
        ("too_many", (), {"accuracy": 0.9, "detect": 1e-5}),
        ("confidence_range", (), {"confidence": 90, "detect": 0.1}),
        ("cluster_size", (), {"accuracy": 0.9, "detect": 0.1, "cluster_size": 2.5, "icc": 0.1}),
        ("cluster_size", (), {"accuracy": 0.9, "detect": 0.1, "cluster_size": math.inf, "icc": 0.1}),
        ("one_cluster", (ONE_CLUSTER,), {"detect": 0.1}),
        ("two_models", (P, P), {"detect": 0.1}),
        ("metric", (P,), {"detect": 0.1, "metric": "ece"}),
        ("metric", (P,), {"bound": 0.1, "metric": "accuracy"}),
        ("metric", (P, P), {"difference": 0.1, "metric": "ece"}),
        ("unused", (P,), {"detect": 0.1, "correlation": 0.7}),
        ("unused", (P, P), {"difference": 0.1, "correlation": 0.7}),
        ("unused", (P,), {"bound": 0.1, "pattern": "scale"}),
        ("unused", (), {"accuracy": 0.9, "detect": 0.1, "of": 1}),
        ("power_range", (P,), {"detect": 0.1, "power": 0.01}),
    ],
)
def test_goals_that_cannot_be_reached_are_refused(code, arguments, options):
    assert code_of(sample_size, *arguments, **options) == code


# The result


@pytest.fixture(scope="module")
def result():
    return sample_size(accuracy=0.8, difference=0.1, metric="accuracy", draws=150)


@pytest.mark.slow
def test_result_contains_the_simulated_curve(result):
    assert result.simulated in result.curve
    assert result.simulated.draws >= 150
    assert result.power_at(result.n) == pytest.approx(result.simulated.power, abs=0.05)
    assert result.power_at(2 * result.n) > 0.9 > 0.7 > result.power_at(result.n // 2)


@pytest.mark.slow
def test_results_are_written_as_json_and_pictures(result, tmp_path):
    content = json.loads(result.json())
    assert (content["n"], content["goal"], content["power"]) == (result.n, "difference", 0.8)
    assert [point["n"] for point in content["curve"]] == [point.n for point in result.curve]
    for name in ("a.json", "a.html", "a.png", "a.svg", "a.pdf"):
        result.save(tmp_path / name)
        assert (tmp_path / name).stat().st_size > 500
    assert code_of(result.save, tmp_path / "a.docx") == "suffix"


@pytest.mark.slow
def test_plot_draws_on_the_axes(result):
    from matplotlib.figure import Figure

    ax = Figure().add_subplot()
    assert result.plot(ax) is ax
    assert ax.get_xlabel() == "examples"
    assert any(list(line.get_xdata()) == [result.n, result.n] for line in ax.get_lines())


def test_quick_estimate_is_the_default_and_near_the_exact_number():
    texts = []
    quick = sample_size(accuracy=0.8, detect=0.2, progress=texts.append)
    exact = sample_size(accuracy=0.8, detect=0.2, draws=300)
    assert (quick.is_exact, exact.is_exact) == (False, True)
    assert quick.n == pytest.approx(exact.n, rel=0.25)
    assert sum(point.draws for point in quick.curve) < 1000
    assert quick.power_at(quick.n) == pytest.approx(0.8, abs=0.1)
    assert quick.power_at(3 * quick.n) > 0.97
    assert texts
    assert "estimated" in quick.sentence
    assert "estimated" not in exact.sentence


@pytest.mark.slow
def test_quick_results_are_drawn_and_saved(tmp_path):
    sample_size(accuracy=0.8, detect=0.2).save(tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 500


# Precision


def test_slope_and_ratio_need_the_published_numbers():
    """Riley et al. (2021), beta(1.5, 3): 769 for O/E with SE .051; 2,736 and 684 for slopes with .051 and .102."""
    z = norm.ppf(0.975)

    def width_of(error):
        return 2 * z * error

    settings = {"confidence": "beta(1.5, 3)"}
    assert sample_size(slope=width_of(0.051), **settings).n == pytest.approx(2736, rel=0.005)
    assert sample_size(slope=width_of(0.102), **settings).n == pytest.approx(684, rel=0.005)
    ratio = sample_size(observed_expected=2 * math.sinh(z * 0.051), **settings)
    assert ratio.n == pytest.approx(769, abs=1)


def test_precisions_equal_the_formulas():
    rng = np.random.default_rng(0)
    p, z, t = rng.beta(2, 5, 300), norm.ppf(0.95), 0.3
    f, lp, v, act = p.mean(), np.log(p / (1 - p)), p * (1 - p), p >= t
    a, ab, b = v.mean(), (v * lp).mean(), (v * lp**2).mean()
    slope = a / (a * b - ab**2) / (0.3 / (2 * z)) ** 2
    ratio = (1 - f) / (f * (math.asinh(0.1) / z) ** 2)
    se, sp, w = p[act].sum() / p.sum(), 1 - (1 - p)[act].sum() / (1 - p).sum(), (1 - f) / f * t / (1 - t)
    variance = se * (1 - se) / f + w**2 * sp * (1 - sp) / (1 - f) + w**2 * (1 - sp) ** 2 / (f * (1 - f))
    population = Population(p, np.full(300, 1 / 300), p)
    assert slope_size(population, 0.3, 0.1) == pytest.approx(slope, rel=1e-9)
    assert ratio_size(population, 0.2, 0.1) == pytest.approx(ratio, rel=1e-9)
    assert net_benefit_size(population, 0.3, 0.1, t) == pytest.approx(variance / (0.3 / (2 * z)) ** 2, rel=1e-9)
    settings = {"confidence": p, "alpha": 0.1}
    assert sample_size(slope=0.3, **settings).n == pytest.approx(slope, rel=0.02)
    assert sample_size(observed_expected=0.2, **settings).n == pytest.approx(ratio, rel=0.02)
    benefit = sample_size(net_benefit=0.3, threshold=t, **settings)
    assert benefit.n == pytest.approx(net_benefit_size(population, 0.3, 0.1, t), rel=0.02)
    assert (benefit.power, benefit.curve, benefit.unit) == (None, (), "example")
    assert "90 % interval" in str(benefit)
    assert json.loads(benefit.json())["power"] is None
    assert code_of(benefit.plot) == "no_power"


def test_clusters_multiply_a_precision_by_their_design_effect():
    independent = sample_size(confidence="beta(2, 5)", slope=0.4)
    clustered = sample_size(confidence="beta(2, 5)", slope=0.4, cluster_size=5, icc=0.1)
    assert clustered.unit == "cluster"
    assert clustered.n == pytest.approx(independent.n * (1 + 4 * 0.1) / 5, abs=1)
    assert clustered.examples == 5 * clustered.n


@pytest.mark.slow
def test_intervals_have_the_promised_width_on_average():
    """Slope by maximum likelihood, O/E, and net benefit by `decisions.net_benefit`, in 300 new data sets each."""
    from calibrant.decisions import net_benefit
    from calibrant.metrics import fit_logistic

    settings, rng, z = {"confidence": "beta(1.5, 3)"}, np.random.default_rng(0), norm.ppf(0.975)
    widths = {"slope": 0.4, "observed_expected": 0.2, "net_benefit": 0.2}
    for goal, width in widths.items():
        threshold = {"threshold": 0.3} if goal == "net_benefit" else {}
        n, observed = sample_size(**{goal: width}, **threshold, **settings).n, []
        for _ in range(300):
            p = rng.beta(1.5, 3, n)
            y = (rng.random(n) < p).astype(float)
            if goal == "slope":
                design = np.column_stack([np.ones(n), np.log(p / (1 - p))])
                observed.append(2 * z * math.sqrt(fit_logistic(design, y).covariance[1, 1]))
            elif goal == "observed_expected":
                error = math.sqrt((1 - y.mean()) / y.sum())
                observed.append(y.sum() / p.sum() * 2 * math.sinh(z * error))
            else:
                predictions = Predictions.from_probs(p, y.astype(int))
                curve = net_benefit(predictions, thresholds=[0.3], standardized=True, level=0.95)
                observed.append(float(curve.high[0] - curve.low[0]))
        assert np.mean(observed) == pytest.approx(width, rel=0.05)


@pytest.mark.parametrize(
    ("code", "options"),
    [
        ("num_goals", {"slope": 0.2, "detect": 0.1}),
        ("threshold_goal", {"net_benefit": 0.2}),
        ("threshold_goal", {"slope": 0.2, "threshold": 0.2}),
        ("threshold_reached", {"net_benefit": 0.2, "threshold": 0.5, "confidence": [0.1, 0.2]}),
        ("no_spread", {"slope": 0.2, "confidence": [0.2, 0.2]}),
        ("unused", {"slope": 0.2, "metric": "ece"}),
        ("unused", {"slope": 0.2, "power": 0.9}),
        ("unused", {"slope": 0.2, "exact": True}),
        ("unused", {"detect": 0.2, "threshold": 0.5}),
        ("slope_range", {"slope": 0.0}),
    ],
)
def test_precisions_are_refused(code, options):
    assert code_of(sample_size, **{"confidence": "beta(2, 5)"} | options) == code


# The command


def test_command_plans_a_precision(tmp_path):
    finished = run("sample-size", "--distribution", "beta(1.5, 3)", "--slope", 0.4, "--json", tmp_path / "a.json")
    assert finished.returncode == 0, finished.stderr
    assert "calibration slope" in finished.stdout
    assert json.loads((tmp_path / "a.json").read_text())["n"] == pytest.approx(684, rel=0.005)


def test_command_is_quick_by_default():
    finished = run("sample-size", "--accuracy", 0.8, "--difference", 0.1, "--metric", "accuracy")
    assert finished.returncode == 0, finished.stderr
    assert "estimated" in finished.stdout


def test_command_prints_the_sentence_and_writes_files(tmp_path):
    finished = run(
        *("sample-size", "--accuracy", 0.8, "--difference", 0.1, "--metric", "accuracy", "--draws", 200),
        *("--plot", tmp_path / "power.png", "--json", tmp_path / "a.json"),
    )
    assert finished.returncode == 0, finished.stderr
    expected = sample_size(accuracy=0.8, difference=0.1, metric="accuracy", **FAST)
    assert str(expected) in finished.stdout
    assert json.loads((tmp_path / "a.json").read_text())["n"] == expected.n
    assert (tmp_path / "power.png").stat().st_size > 500


def test_command_reads_predictions_without_labels(tmp_path):
    path = tmp_path / "new.csv"
    path.write_text("prob_a,prob_b\n" + "".join(f"{c:.3f},{1 - c:.3f}\n" for c in np.linspace(0.02, 0.98, 97)))
    finished = run("sample-size", path, "--detect", 0.3, "--draws", 100, "--json", "-")
    assert finished.returncode == 0, finished.stderr
    assert json.loads(finished.stdout)["goal"] == "detect"


def test_command_needs_labels_for_the_correlation_within_clusters(tmp_path):
    path = tmp_path / "new.csv"
    path.write_text("prob_a,prob_b,cluster\n" + "".join(f"0.{i},0.{10 - i},{i // 3}\n" for i in range(1, 10)))
    assert run("sample-size", path, "--detect", 0.15).code == "no_icc"


@pytest.mark.parametrize(
    ("code", "arguments"),
    [
        ("num_goals", ("--accuracy", "0.9")),
        ("suffix", ("--accuracy", "0.9", "--detect", "0.1", "--plot", "power.txt")),
        ("pattern", ("--accuracy", "0.9", "--detect", "0.1", "--pattern", "wave")),
        ("num_files", ("a.csv", "b.csv", "c.csv", "--detect", "0.1")),
    ],
)
def test_command_refuses_in_one_line(code, arguments):
    finished = run("sample-size", *arguments)
    assert (finished.code, finished.returncode, finished.stderr.count("\n")) == (code, 2, 1)


@pytest.mark.slow
@pytest.mark.parametrize("detect", [0.7, 0.9])
def test_large_effects_need_few_examples(detect):
    """The search may have more draws at the smallest size than it needs to confirm it."""
    result = sample_size(accuracy=0.9, detect=detect, draws=200)
    assert result.n <= 5
    assert 0.8 <= result.power <= 1
