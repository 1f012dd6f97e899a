"""Fractional outcomes and soft labels: rows with weights, and what intervals, floors and tests make of them."""

import json
import pickle

import numpy as np
import polars
import pytest
from calibrant.registry import METRICS
from refusals import code_of, refused
from scipy.special import log_softmax, softmax

from calibrant import (
    EvaluationLog,
    Predictions,
    Watch,
    assess,
    calibrators,
    check,
    decisions,
    measure,
    metrics,
    planning,
)
from calibrant.assessment._mistakes import most_confident_errors
from calibrant.language_models.cards import card
from calibrant.metrics import Summary, tables
from calibrant.monitoring import add_file


def draw(n: int, spread: float = 4.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return confidences, and outcomes in [0, 1] with these means whose variance is c (1 - c) / (spread + 1)."""
    rng = np.random.default_rng(seed)
    c = rng.uniform(0.02, 0.98, n)
    return c, rng.beta(c * spread, (1 - c) * spread)


def with_votes(n: int = 60, raters: int = 4, seed: int = 1) -> tuple[Predictions, Predictions]:
    """Return shares of votes as fractional outcomes, and every vote as a row of weight 1 / raters."""
    rng = np.random.default_rng(seed)
    c = rng.uniform(0, 1, n)
    votes = rng.random((n, raters)) < c[:, None]
    rows = np.repeat(c, raters), votes.ravel().astype(int), np.full(n * raters, 1 / raters)
    return (
        Predictions.from_confidence(c, votes.mean(1)),
        Predictions.from_confidence(*rows, clusters=np.repeat(np.arange(n), raters)),
    )


# Identities


def test_outcomes_without_fractions_are_unchanged():
    c, a = [0.9, 0.2, 0.6], [1, 0, 1]
    integers, floats = Predictions.from_confidence(c, a), Predictions.from_confidence(c, [1.0, 0.0, 1.0])
    for p in (integers, floats):
        assert p.examples is None
        assert p.weights is None
        assert p.clusters is None
        assert p.labels.tolist() == a
    one_hot = Predictions.from_soft_labels([[2.0, 1.0], [0.0, 1.0]], [[1, 0], [0, 1]])
    assert one_hot.examples is None
    assert one_hot.labels.tolist() == [0, 1]


def test_fractional_outcome_becomes_weighted_rows():
    p = Predictions.from_confidence([0.9, 0.2, 0.6], [0.75, 0.0, 1.0], groups=["a", "b", "a"])
    assert p.examples is not None
    assert p.weights is not None
    assert p.clusters is not None
    assert (len(p), p.num_examples) == (4, 3)
    assert p.examples.tolist() == p.clusters.tolist() == [0, 0, 1, 2]
    assert p.labels.tolist() == [0, 1, 0, 1]
    assert p.weights.tolist() == [0.25, 0.75, 1.0, 1.0]
    assert p.total_weight == 3
    assert len(p.select_group("a")) == 3
    assert p.shared_clusters is None
    assert pickle.loads(pickle.dumps(p)).num_examples == 3


@pytest.mark.parametrize("name", sorted(set(METRICS) - {METRICS[name].noise_floor for name in METRICS}))
def test_share_of_votes_equals_a_weighted_row_per_vote(name):
    shares, votes = with_votes()
    metric = METRICS[name]
    assert float(metric(shares)) == pytest.approx(float(metric(votes)), rel=1e-9, abs=1e-12, nan_ok=True)


@pytest.mark.parametrize("text", ["Temperature", "Platt", "Beta", "Isotonic", "HistogramBinning"])
def test_fits_to_shares_equal_fits_to_votes(text):
    shares, votes = with_votes(200)
    first, second = (softmax(calibrators.fit(text, p)(shares.logits), 1) for p in (shares, votes))
    np.testing.assert_allclose(first, second, rtol=1e-6, atol=1e-8)


def test_soft_labels_have_the_cross_entropy_and_expected_scores():
    rng = np.random.default_rng(0)
    z, soft = rng.standard_normal((50, 3)), rng.random((50, 3))
    soft /= soft.sum(1, keepdims=True)
    p, probs = Predictions.from_soft_labels(z, soft), softmax(z, 1)
    top = soft[np.arange(50), z.argmax(1)]
    assert float(metrics.nll(p)) == pytest.approx(-(soft * log_softmax(z, 1)).sum(1).mean())
    assert float(metrics.accuracy(p)) == pytest.approx(top.mean())
    spread = 1 - np.square(soft).sum(1)
    assert float(metrics.brier(p)) == pytest.approx((np.square(probs - soft).sum(1) + spread).mean())
    assert float(metrics.signed_gap(p)) == pytest.approx((probs.max(1) - top).mean())
    assert float(metrics.ece(p.with_event(2), bins=1)) == pytest.approx(abs((probs - soft)[:, 2].mean()))
    from_probs = Predictions.from_soft_labels(probs, soft, probs=True)
    assert float(metrics.nll(from_probs)) == pytest.approx(float(metrics.nll(p)))


def test_event_has_one_row_per_example_where_rows_are_merged():
    c, a = draw(40)
    merged = Predictions.from_confidence(c, a).events.merged
    np.testing.assert_allclose(merged.outcome, a, rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(merged.confidence, c, rtol=1e-7, atol=1e-7)
    assert merged.weights is None
    assert merged.clusters is None
    assert merged.by_score.total_weight.tolist() == [1.0] * 40
    by_pair = Predictions.from_confidence(c, a, clusters=np.arange(40) // 2).events.merged
    assert by_pair.clusters is not None
    assert by_pair.clusters.tolist() == [i // 2 for i in range(40)]


def test_interval_is_that_of_the_mean_outcomes():
    c, a = draw(200)
    interval = metrics.signed_gap.interval(Predictions.from_confidence(c, a))
    gaps = c - a
    half = 1.6525 * gaps.std(ddof=1) / 200**0.5
    assert 0.95 < (interval.high - interval.low) / (2 * half) < 1.25  # an unseen outcome may be 0 or 1


def test_skce_leaves_out_pairs_of_an_example_with_itself():
    c, a = draw(30)
    u = a - c
    kernel = np.exp(-abs(c[:, None] - c) / 0.4) * u[:, None] * u
    expected = (kernel.sum() - kernel.trace()) / (30 * 29)
    assert float(metrics.skce(Predictions.from_confidence(c, a))) == pytest.approx(expected)


# Truth


def test_noise_floor_shrinks_with_the_variance_of_outcomes():
    c, a = draw(2000, spread=15.0)
    fractional = Predictions.from_confidence(c, a)
    events = Predictions.from_confidence(c, (np.random.default_rng(1).random(2000) < c).astype(int))
    for floor in (metrics.noise_floor, metrics.adaptive_noise_floor):
        assert float(floor(fractional)) == pytest.approx(float(floor(events)) / 4, rel=0.1)
    assert fractional.events.by_score.dispersion == pytest.approx(1 / 16, rel=0.2)
    assert events.events.by_score.dispersion == 1


@pytest.mark.slow
@pytest.mark.parametrize("spread", [0.5, 10.0])
def test_tests_and_intervals_hold_their_level(spread):
    rounds, n = 200, 40
    rejected, covered, above = (
        dict.fromkeys(("kuiper", "ks", "omnibus", "skce"), 0),
        dict.fromkeys(("signed_gap", "debiased_l2"), 0),
        0,
    )
    for seed in range(rounds):
        p = Predictions.from_confidence(*draw(n, spread, seed))
        for name in rejected:
            rejected[name] += METRICS[name].test(p).p_value <= 0.05
        for name in covered:
            covered[name] += 0.0 in METRICS[name].interval(p)
        above += float(metrics.ece(p)) > metrics.noise_floor.interval(p).high
    assert max(rejected.values()) <= 21  # 10 expected; 21 are exceeded with probability 0.0005
    assert above <= 21
    assert min(covered.values()) >= 166  # 180 expected


def test_miscalibrated_fractions_are_found_with_fewer_examples_than_events():
    c, a = draw(100, spread=20.0)
    shifted = (c + 0.05).clip(0, 1)
    assert metrics.kuiper.test(Predictions.from_confidence(shifted, a)).p_value < 0.01
    events = (np.random.default_rng(1).random(100) < c).astype(int)
    assert metrics.kuiper.test(Predictions.from_confidence(shifted, events)).p_value > 0.05


@pytest.mark.slow
def test_outcomes_that_hardly_vary_are_tested_at_their_level():
    rejected = sum(
        metrics.kuiper.test(Predictions.from_confidence(*draw(20, 1000.0, seed))).p_value <= 0.05 for seed in range(200)
    )
    assert rejected <= 21
    c, _ = draw(50)
    equal = Predictions.from_confidence(c, c.astype(np.float32).astype(float))  # gaps that are rounding
    assert metrics.skce.test(equal).p_value > 0
    assert 0 < float(metrics.noise_floor(equal)) < 1e-6


def test_repeats_in_clusters_count_once():
    c, a = draw(150)
    once = Predictions.from_confidence(c, a)
    thrice = Predictions.from_confidence(np.tile(c, 3), np.tile(a, 3), clusters=np.tile(np.arange(150), 3))
    for name in ("signed_gap", "nll", "noise_floor"):
        first, second = (METRICS[name].interval(p) for p in (once, thrice))
        assert second.high - second.low == pytest.approx(first.high - first.low, rel=0.15)


# Use


def test_report_counts_examples():
    p = Predictions.from_confidence(*draw(60), groups=["a", "b"] * 30)
    measurement = measure(p)
    assert measurement.n == 60
    assert not measurement.clusters
    assert json.loads(measurement.json())["n"] == 60
    assert "60 of 60" in p.notes[-1]
    table = tables.groups(p)
    assert table is not None
    assert table.count.tolist() == pytest.approx([30, 30])


def test_assessment_and_requirements_take_fractions():
    val, test = (Predictions.from_confidence(np.sqrt(c), a) for c, a in (draw(300, seed=1), draw(300, seed=2)))
    result = assess(val, test)
    assert result.uncalibrated["ece"].value > 2 * result.calibrated["ece"].value
    outcome = check(test, require=["signed_gap < 0.5"])
    assert outcome.n == 300
    assert outcome.conditions[0].unit == "example"


def test_mistakes_are_examples_without_credit():
    c, a = [0.9, 0.8, 0.7, 0.95], [0.5, 0.0, 1.0, 0.0]
    p = Predictions.from_soft_labels([[0.0, 1.0 + x] for x in c], [[1 - x, x] for x in a])
    assert p.examples is not None
    assert p.examples[most_confident_errors(p)].tolist() == [3, 1]


def test_summary_has_the_same_values():
    p = Predictions.from_confidence(*draw(80))
    summary = Summary.from_predictions(p)
    assert len(summary) == 80
    for name in ("nll", "event_brier", "ece", "signed_gap"):
        assert float(METRICS[name](summary)) == pytest.approx(float(METRICS[name](p)), abs=1e-9)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_files_keep_which_rows_belong_together(tmp_path, suffix):
    p = Predictions.from_confidence(*draw(20))
    p.save(tmp_path / f"p{suffix}")
    q = Predictions.load(tmp_path / f"p{suffix}", of=1)
    assert q.num_examples == 20
    assert metrics.signed_gap.interval(q) == metrics.signed_gap.interval(p)
    assert code_of(p.save, tmp_path / "p.csv") == "soft_labels"


def test_tables_and_arrays_take_partial_credit(tmp_path):
    frame = polars.DataFrame({"confidence": [0.9, 0.4, 0.7], "correct": [0.5, 0.0, 1.0]})
    frame.write_csv(tmp_path / "answers.csv")
    np.savez(tmp_path / "answers.npz", **{name: frame[name].to_numpy() for name in frame.columns})
    for path in ("answers.csv", "answers.npz"):
        p = Predictions.load(tmp_path / path)
        assert (p.num_examples, float(metrics.signed_gap(p))) == (3, pytest.approx(0.5 / 3))


def test_partial_credit_of_a_log_reaches_predictions_and_card(tmp_path):
    rng = np.random.default_rng(0)
    records = [
        {"question_id": i, "confidence": float(c), "correct": float(rng.binomial(4, c) / 4)}
        for i, c in enumerate(rng.uniform(0.2, 0.9, 80).round(3))
    ]
    path = tmp_path / "judged.jsonl"
    path.write_text("\n".join(map(json.dumps, records)))
    log = EvaluationLog.read(path)
    assert log.predictions.num_examples == 80
    model = card(log).models[0]
    assert model.conventions == model.bounds == {}
    assert model.numbers["signed_gap"].value == pytest.approx(float(metrics.signed_gap(log.predictions)))
    assert model.accuracy.value == pytest.approx(log.accuracy())
    assert card(log).html()
    assert str(card(log))


# Refusals


@pytest.mark.parametrize("correct", [[85.0, 20.0, 100.0], [-0.5, 0.5, 1.0], [1, 2, 0]])
def test_credit_outside_0_and_1_is_refused(correct):
    with refused("label_range"):
        Predictions.from_confidence([0.9, 0.2, 0.6], correct)


@pytest.mark.parametrize(
    ("soft", "code"),
    [
        ([[3, 1], [0, 4]], "soft_labels"),
        ([[1.5, -0.5], [0.5, 0.5]], "soft_labels"),
        ([[float("nan"), 1.0], [0.5, 0.5]], "soft_labels"),
        ([[0.5, 0.5]], "shape"),
        ([0.5, 0.5], "shape"),
    ],
)
def test_soft_labels_that_are_no_probabilities_are_refused(soft, code):
    assert code_of(Predictions.from_soft_labels, [[2.0, 1.0], [0.0, 1.0]], soft) == code
    assert code_of(Predictions.from_confidence, [0.5, 0.5], [0.5, float("nan")]) == "nan"


def test_methods_of_single_outcomes_refuse_fractions(tmp_path):
    p = Predictions.from_confidence(*draw(50))
    assert code_of(calibrators.TopLabelBinning.fit, p) == "fractional_outcomes"
    assert code_of(planning.sample_size, p, detect=0.1) == "fractional_outcomes"
    assert code_of(planning.quick_sample_size, p, detect=0.1) == "fractional_outcomes"
    polars.DataFrame({"confidence": [0.9, 0.4], "correct": [0.5, 0.0]}).write_csv(tmp_path / "day.csv")
    assert code_of(add_file, Watch(), tmp_path / "day.csv") == "fractional_outcomes"
    assert code_of(decisions.certify_threshold, p) == "dependent_rows"
    assert code_of(Watch().add, p) == "dependent_rows"
