"""Intervals of small samples, for which those of a normal mean collapse."""

import math

import numpy as np
import pytest
from scipy.special import ndtri

from calibrant import Predictions, metrics
from calibrant._core.kernels.bins import Events
from calibrant.metrics import Summary
from calibrant.metrics._intervals import SHARE, Extremes, ScoreRange, mean_limits

MEANS = ("accuracy", "signed_gap", "event_brier", "brier", "nll")
CONSISTENT = {  # values if 90 % of the answers with a confidence of 90 % are correct
    "accuracy": 0.9,
    "signed_gap": 0.0,
    "event_brier": 0.09,
    "brier": 0.18,
    "nll": -0.9 * math.log(0.9) - 0.1 * math.log(0.1),
}


@pytest.fixture
def all_right() -> Predictions:
    return Predictions.from_confidence([0.9] * 20, [1] * 20)


@pytest.mark.parametrize("name", MEANS)
def test_twenty_correct_answers_at_90_percent_are_compatible_with_calibration(all_right, name):
    interval = getattr(metrics, name).interval(all_right)  # all twenty are correct with probability 12 %
    assert interval.low <= interval.value <= interval.high
    assert CONSISTENT[name] in interval
    assert interval.high - interval.low > 0.05


@pytest.mark.parametrize("name", MEANS)
def test_interval_of_twenty_wrong_answers_does_not_collapse(name):
    interval = getattr(metrics, name).interval(Predictions.from_confidence([0.9] * 20, [0] * 20))
    assert interval.high - interval.low > 0.05
    assert CONSISTENT[name] not in interval


def test_interval_of_a_known_score_has_no_width():
    fair = Predictions.from_confidence([0.5] * 20, [1] * 12 + [0] * 8)
    interval = metrics.event_brier.interval(fair)
    assert (interval.low, interval.high) == (0.25, 0.25)


def test_probabilities_of_one_leave_the_score_unknown():
    certain = Predictions.from_confidence([1.0] * 20, [1] * 20)
    assert metrics.event_brier.interval(certain).high > 0.1
    assert metrics.nll.interval(certain).high > 1


@pytest.mark.parametrize("name", MEANS)
def test_interval_of_one_example_is_the_whole_range(name):
    interval = getattr(metrics, name).interval(Predictions.from_confidence([0.9], [1]))
    if_wrong = {"accuracy": 1, "signed_gap": 0.9, "event_brier": 0.81, "brier": 1.62, "nll": -math.log(0.1)}
    assert interval.high == pytest.approx(if_wrong[name])


@pytest.mark.parametrize("name", MEANS)
@pytest.mark.parametrize("clustered", [False, True])
def test_summary_has_the_intervals_of_the_predictions(name, clustered):
    rng = np.random.default_rng(0)
    c = 1 - 0.5 * rng.random(50) ** 2
    p = Predictions.from_confidence(c, (rng.random(50) < c).astype(int))
    if clustered:  # exact only if every cluster has its own set
        p = Predictions(p.logits[:8], p.labels[:8], of=1, clusters=range(8))
    summary = metrics.Summary.from_predictions(p)
    if clustered and (summary.slots[0, 1].sum(-1) > 0).sum() < 8:
        pytest.skip("two clusters share a set")
    streamed, in_memory = summary.interval(name), getattr(metrics, name).interval(p)
    assert [streamed.low, streamed.high] == pytest.approx(
        [in_memory.low, in_memory.high], abs=1e-11 if name == "nll" else 1e-12
    )


def tail_probability(hits: int, n: int, p: float, observed_share: float) -> float:
    """Return P(more than `hits` of n) plus a share of P(exactly `hits`)."""

    def law(i: int) -> float:
        return math.comb(n, i) * p**i * (1 - p) ** (n - i)

    return observed_share * law(hits) + sum(law(i) for i in range(hits + 1, n + 1))


@pytest.mark.parametrize(("hits", "n"), [(3, 10), (1, 16), (9, 100), (70, 400)])
def test_limits_of_a_share_are_between_exact_and_mid_p(hits, n):
    share, kappa = hits / n, min(1.0, 0.5 + 2 / math.sqrt(n))
    low, high = mean_limits(n, share, share * (1 - share), SHARE, 0.9)
    assert tail_probability(hits, n, float(low), kappa) == pytest.approx(0.05)
    assert tail_probability(n - hits, n, 1 - float(high), kappa) == pytest.approx(0.05)


def test_limits_of_equal_values_are_exact():
    low, high = mean_limits(10, 0.0, 0.0, SHARE, 0.9)
    assert (float(low), float(high)) == pytest.approx((0, 1 - 0.05 ** (1 / 10)))


def test_limits_agree_with_weights_drawn_from_the_flat_dirichlet_distribution():
    g = np.random.default_rng(0)
    values = g.random(12) ** 2  # n below 16: Gaffke's bounds
    low, high = mean_limits(12, values.mean(), values.var(), SHARE, 0.9)
    drawn = [g.dirichlet(np.ones(13), 100_000) @ np.append(values, end) for end in SHARE]
    assert (low, high) == pytest.approx((np.quantile(drawn[0], 0.05), np.quantile(drawn[1], 0.95)), abs=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("n", [5, 20, 100])
@pytest.mark.parametrize("confidences", [(0.6, 0.6), (0.95, 0.95), (0.5, 0.99)])
@pytest.mark.parametrize("shift", [0.0, 0.1])
def test_intervals_of_scores_cover_the_truth(n, confidences, shift):
    draws, g = 500, np.random.default_rng(n)
    c = np.linspace(*confidences, n)
    truth = np.clip(c - shift, 0, 1 - 1e-9)
    correct = (g.random((draws, n)) < truth).astype(float)
    moments, surprisal = Events(c, np.zeros(n)).moments(15), -math.log(1 - c.max())
    extremes = Extremes.from_moments(moments, (surprisal, surprisal), 2)
    scores = {
        "signed_gap": lambda a: c - a,
        "event_brier": lambda a: (c - a) ** 2,
        "nll": lambda a: -np.log(np.clip(np.where(a == 1, c, 1 - c), 1e-9, 1)),
        "accuracy": lambda a: a + 0 * c,
    }
    for name, score in scores.items():
        mean, values = (truth * score(1) + (1 - truth) * score(0)).mean(), score(correct)
        ends = SHARE if name == "accuracy" else getattr(metrics, name).score_range(extremes)
        low, high = mean_limits(n, values.mean(1), values.var(1), ScoreRange(*map(float, ends)), 0.9)
        assert ((low <= mean) & (mean <= high)).mean() > 0.85, name  # nominal .9; three standard errors are .04


@pytest.mark.parametrize(
    ("name", "extreme", "ordinary"), [("nll", 1 - 1e-12, 0.7), ("event_brier", 0.99, 0.5), ("signed_gap", 0.99, 1e-6)]
)
def test_interval_allows_for_an_error_of_the_most_confident_predictions(name, extreme, ordinary):
    draws, n, share, wrong = 400, 200, 0.1, 0.02  # in two of three samples, none of them is wrong
    g = np.random.default_rng(0)
    c = np.where(g.random((draws, n)) < share, extreme, ordinary)
    frequency = np.where(c == extreme, 1 - wrong, c)
    y = g.random((draws, n)) < frequency
    score = {
        "nll": lambda c, y: -np.log(np.where(y, c, 1 - c)),
        "event_brier": lambda c, y: (c - y) ** 2,
        "signed_gap": lambda c, y: c - y,
    }[name]
    pair = np.array([extreme, ordinary])
    truth = np.array([1 - wrong, ordinary]) * score(pair, True) + np.array([wrong, 1 - ordinary]) * score(pair, False)
    truth = float(np.array([share, 1 - share]) @ truth)
    surprisal = -np.log(np.minimum(c, 1 - c).min(1))
    extremes = Extremes(c.min(1), c.max(1), surprisal, score(c, y).max(1), 2)
    values = score(c, y)
    low, high = mean_limits(n, values.mean(1), values.var(1), getattr(metrics, name).score_range(extremes), 0.9)
    assert ((low <= truth) & (truth <= high)).mean() > 0.88


def test_nll_interval_of_saturated_logits_allows_for_their_score():
    z = np.array([[0.0, 200.0]] * 5 + [[0.0, 1.0]] * 45)  # 1 - p is 0 in float64
    interval = metrics.nll.interval(Predictions(z, [1] * 50))
    assert interval.high > 200 / 50
    summary = sum((Summary.from_predictions(Predictions(z[i::2], [1] * 25)) for i in (0, 1)), Summary.empty())
    assert summary.interval("nll").high == pytest.approx(interval.high, rel=1e-9)


def test_nll_has_no_interval_if_an_error_has_probability_0():
    p = Predictions.from_probs([[0.0, 1.0], [0.5, 0.5]], [1, 0])
    assert (metrics.nll.interval(p).low, metrics.nll.interval(p).high) == (-math.inf, math.inf)
    without = Predictions.from_probs([[0.0, 1.0], [0.5, 0.5], [0.4, 0.6]], [1, 0, 1], [0, 2, 1])  # weight 0: left out
    assert math.isfinite(metrics.nll.interval(without).high)


@pytest.mark.parametrize("name", MEANS)
def test_interval_of_many_examples_is_the_normal_one(name):
    rng = np.random.default_rng(0)
    c = 0.5 + 0.5 * rng.random(1000)
    p = Predictions.from_confidence(c, (rng.random(1000) < c).astype(int))
    metric = getattr(metrics, name)
    values, interval = metric.values(p), metric.interval(p)
    excess = 0.12 if name == "nll" else 0.03  # an unseen error of the most confident prediction costs much
    width = 2 * 1.6449 * values.std(ddof=1) / math.sqrt(1000)
    assert interval.high - interval.low == pytest.approx(width, rel=excess)


def test_twenty_correct_answers_are_compatible_with_a_debiased_error_of_zero(all_right):
    interval = metrics.debiased_l2.interval(all_right)
    assert interval.value == pytest.approx(0.1)
    assert interval.low == 0
    assert interval.high > interval.value
    streamed = metrics.Summary.from_predictions(all_right).interval("debiased_l2")
    assert [streamed.low, streamed.high] == pytest.approx([interval.low, interval.high], abs=1e-12)


@pytest.mark.parametrize("shift", [0.0, 0.1])
@pytest.mark.parametrize("n", [20, 100])
def test_debiased_error_interval_covers_with_few_examples(n, shift):
    draws, rng = 100, np.random.default_rng(n)
    c = np.full(n, 0.9)
    correct = (rng.random((draws, n)) < 0.9 - shift).astype(float)
    interval = [metrics.debiased_l2.interval(Events(c, row), level=0.9) for row in correct]
    assert sum(interval.low <= shift + 1e-9 <= interval.high + 2e-9 for interval in interval) / draws > 0.85


def separated(negatives: int, positives: int) -> Predictions:
    n = negatives + positives
    scores = np.arange(n, dtype=float)
    return Predictions(np.stack([0 * scores, scores], 1), (scores >= negatives).astype(int), of=1)


def test_auroc_interval_of_five_separated_examples_is_wide():
    interval = metrics.auroc.interval(separated(3, 2))
    assert interval.value == interval.high == 1
    assert interval.low < 0.8  # with an area of .8 the five are separated with probability above 20 %
    assert interval.low > 0


def test_auroc_interval_is_symmetric_and_narrows():
    of_ten, of_hundred = (metrics.auroc.interval(separated(n, n)) for n in (5, 50))
    assert of_ten.low < of_hundred.low < 1
    p = separated(5, 5)
    mirrored = metrics.auroc.interval(Predictions(-p.logits, p.labels, of=1))
    assert [mirrored.low, mirrored.high] == pytest.approx([0, 1 - of_ten.low])


def test_auroc_interval_covers_with_few_examples():
    draws, area, rng = 100, 0.95, np.random.default_rng(0)
    labels = np.arange(20) % 2
    scores = rng.standard_normal((draws, 20)) + math.sqrt(2) * ndtri(area) * labels
    logits = np.stack([np.zeros_like(scores), scores], -1)
    covered = sum(area in metrics.auroc.interval(Predictions(z, labels, of=1)) for z in logits)
    assert covered / draws > 0.85


def reject_rate(structure: str, confidence: float, n: int, name: str, draws: int = 300) -> float:
    """Return how often a test rejects a calibrated model at 5 %; clusters of 1 to 20 share half of their variance."""
    g, rejected = np.random.default_rng(0), 0
    for _ in range(draws):
        clusters = np.repeat(np.arange(n), g.integers(1, 21, n) if structure == "clusters" else 1)
        c = 1 / (1 + np.exp(-math.log(confidence / (1 - confidence)) - 0.3 * g.standard_normal(len(clusters))))
        shared = g.standard_normal(n)[clusters]
        noise = g.standard_normal(len(clusters))
        outcome = (shared + noise) / math.sqrt(2) < ndtri(c)
        weights = g.uniform(1, 10, n) if structure == "weights" else None
        events = Events(c, outcome.astype(float), weights, clusters)
        rejected += getattr(metrics, name).test(events).p_value <= 0.05
    return rejected / draws


@pytest.mark.slow
@pytest.mark.parametrize("name", ["kuiper", "ks", "omnibus", "skce"])
@pytest.mark.parametrize(("structure", "confidence"), [("weights", 0.9), ("clusters", 0.95)])
def test_few_expected_errors_reject_no_calibrated_model(structure, confidence, name):
    assert reject_rate(structure, confidence, 20, name) <= 0.09  # 0.06 and 2.2 standard errors


@pytest.mark.slow
def test_smooth_ece_test_has_its_nominal_size_and_power():
    rng, p_values = np.random.default_rng(0), {0.0: [], 0.2: []}
    for _ in range(200):
        c = 0.5 + 0.5 * rng.random(100)
        a = (rng.random(100) < c).astype(float)
        for shift, values in p_values.items():
            values.append(metrics.smooth_ece.test(Events((c - shift).clip(0, 1), a), draws=199).p_value)
    assert 0.01 <= np.mean(np.array(p_values[0.0]) <= 0.05) <= 0.09
    assert np.mean(np.array(p_values[0.2]) <= 0.05) >= 0.95


@pytest.mark.parametrize("name", ["kuiper", "ks", "omnibus"])
def test_tests_of_one_confidence_are_the_binomial_test(name):
    events = Events(np.full(100, 0.5), (np.arange(100) < 60).astype(float))
    assert getattr(metrics, name).test(events).p_value == pytest.approx(0.0569, abs=0.02)  # 2 P(X >= 60)


def test_p_values_below_a_thousandth_need_no_simulation():
    events = Events(np.full(400, 0.5), (np.arange(400) < 300).astype(float))
    assert metrics.kuiper.test(events).p_value < 1e-12


def test_clusters_of_one_example_are_independent_examples():
    rng = np.random.default_rng(0)
    c = rng.random(50)
    a = (rng.random(50) < c * 0.7).astype(float)
    independent, clustered = Events(c, a), Events(c, a, None, np.arange(50))
    for name in ("kuiper", "ks", "skce", "smooth_ece"):
        p_values = [getattr(metrics, name).test(events).p_value for events in (independent, clustered)]
        assert p_values[0] == pytest.approx(p_values[1], abs=0.05)


def test_comparison_of_fewer_examples_than_groups_leaves_out_one_at_a_time():
    rng = np.random.default_rng(0)
    p = Predictions(rng.standard_normal((20, 3)), rng.integers(3, size=20))
    row = metrics.compare(p, Predictions(2 * p.logits, p.labels), names=["ece"])["ece"]
    assert 0 < row.high - row.low < 1


@pytest.mark.slow
@pytest.mark.parametrize("structure", ["independent", "clusters"])
def test_aurc_interval_covers_the_truth(structure):
    rng = np.random.default_rng(0)
    population = 0.5 + 0.5 * rng.random(200_000)
    truth, covered = float(metrics.aurc(Events(population, population))), 0
    for _ in range(200):
        clusters = np.arange(30).repeat(4) if structure == "clusters" else None
        c = 0.5 + 0.5 * rng.random(30 if clusters is None else 120)
        u = rng.random(30)  # shared by the examples of a cluster
        outcome = (u if clusters is None else u[clusters]) < c
        interval = metrics.aurc.interval(Events(c, outcome.astype(float), None, clusters))
        covered += interval.low <= truth <= interval.high
    assert covered >= 172


def test_aurc_standard_error_is_that_of_the_jackknife():
    rng = np.random.default_rng(0)
    c = 0.5 + 0.5 * rng.random(400)
    a = (rng.random(400) < c).astype(float)
    remaining_rows = [np.arange(400) != i for i in range(400)]
    jackknife = np.array([metrics.aurc(Events(c[i], a[i])) for i in remaining_rows])
    error = math.sqrt(399 / 400 * np.square(jackknife - jackknife.mean()).sum())
    interval = metrics.aurc.interval(Events(c, a))
    assert (interval.high - interval.low) / (2 * 1.6449) == pytest.approx(error, rel=0.1)
