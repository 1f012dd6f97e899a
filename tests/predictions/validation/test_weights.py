"""What weights are: counts, or the importance of rows that are clusters of their own."""

import numpy as np
import pytest
from refusals import refused

from calibrant import Predictions, calibrators, measure, metrics
from calibrant.metrics import Summary
from calibrant.predictions.validation.weights import FRACTIONS_NOTE

FRACTIONS = [0.5, 1.0, 1.5, 2.0]
SCORES, LABELS = [[0.0, 1.0], [1.0, 0.0], [0.0, 2.0], [3.0, 0.0]], [1, 0, 1, 1]


def draw(n, seed=0, spread=1.0):
    """Draw calibrated probabilities with lognormal weights."""
    g = np.random.default_rng(seed)
    probs = g.random(n)
    return probs, (g.random(n) < probs).astype(int), g.lognormal(0, spread, n)


@pytest.mark.parametrize(
    ("weights", "word", "kind", "is_noted"),
    [
        ([1.0, 2.0, 3.0, 0.0], None, "counts", False),
        (FRACTIONS, None, "importance", True),
        (FRACTIONS, "counts", "counts", False),
        (FRACTIONS, "importance", "importance", False),
        ([1, 2, 3, 4], "importance", "importance", False),
    ],
)
def test_fractions_without_a_word_are_importance(weights, word, kind, is_noted):
    p = Predictions(SCORES, LABELS, weights, weights_are=word)
    assert p.weights_are == kind
    assert (p.clusters is None) == (kind == "counts")
    assert p.shared_clusters is None
    assert (FRACTIONS_NOTE in p.notes) == is_noted
    assert np.array_equal(p.weights, weights)


def test_given_clusters_decide_whatever_the_weights_are():
    counted = Predictions(SCORES, LABELS, FRACTIONS, clusters=["a", "a", "b", "b"])
    assert (counted.weights_are, counted.notes) == ("counts", ())
    important = Predictions(SCORES, LABELS, FRACTIONS, clusters=["a", "a", "b", "b"], weights_are="importance")
    assert important.clusters.tolist() == [0, 0, 1, 1] == counted.clusters.tolist()


def test_other_words_and_missing_weights_are_refused():
    with refused("weights_are"):
        Predictions(SCORES, LABELS, FRACTIONS, weights_are="frequency")
    with refused("no_weights"):
        Predictions(SCORES, LABELS, weights_are="counts")


@pytest.mark.parametrize(
    "build",
    [
        lambda **options: Predictions.from_probs([0.2, 0.7, 0.4], [0, 1, 1], FRACTIONS[:3], **options),
        lambda **options: Predictions.from_confidence([0.2, 0.7, 0.4], [0, 1, 1], FRACTIONS[:3], **options),
        lambda **options: Predictions.from_binary_logits([2.0, -1.0, 4.0], [0, 1, 1], FRACTIONS[:3], **options),
        lambda **options: Predictions.from_soft_labels(
            SCORES[:3], [[1, 0], [0, 1], [0.5, 0.5]], FRACTIONS[:3], **options
        ),
        lambda **options: Predictions.from_table(
            {"prob": [0.2, 0.7, 0.4], "label": [0, 1, 1], "weight": FRACTIONS[:3]}, **options
        ),
    ],
)
def test_every_constructor_reads_the_word(build):
    assert build().weights_are == build(weights_are="importance").weights_are == "importance"
    assert build(weights_are="counts").weights_are == "counts"
    assert build().shared_clusters is None


@pytest.mark.slow
def test_interval_and_test_do_not_take_fractions_for_counts():
    probs, labels, w = draw(500)
    p, counts = (Predictions.from_probs(probs, labels, w, weights_are=word) for word in (None, "counts"))
    clustered = Predictions.from_probs(probs, labels, w, clusters=range(500), weights_are="counts")
    for name in "accuracy", "nll", "event_brier", "signed_gap", "debiased_l2":
        metric = getattr(metrics, name)
        assert metric.interval(p) == metric.interval(clustered)
    gap, wrong = metrics.signed_gap.interval(p), metrics.signed_gap.interval(counts)
    assert gap.high - gap.low > 1.3 * (wrong.high - wrong.low)  # the effective number is 1 / e of the rows
    assert metrics.kuiper.test(p).p_value == metrics.kuiper.test(clustered).p_value


def test_results_do_not_depend_on_the_unit_of_importance():
    probs, labels, w = draw(300)
    low_unit, unit, high_unit = (Predictions.from_probs(probs, labels, scale * w) for scale in (0.05, 1.0, 40.0))
    for name in "nll", "signed_gap", "debiased_l2":
        a, b = (getattr(metrics, name).interval(p) for p in (unit, high_unit))
        assert (a.low, a.high) == pytest.approx((b.low, b.high), rel=1e-9)
    first, second = (calibrators.fit("Platt", p) for p in (low_unit, high_unit))
    assert np.allclose(first(low_unit.logits), second(low_unit.logits), atol=1e-6)


def test_fits_count_the_effective_number_of_examples():
    p = Predictions(SCORES, LABELS, [1, 1, 1, 9], weights_are="importance")
    assert float(p.with_effective_weights().total_weight) == pytest.approx(12**2 / 84)
    counts = Predictions(SCORES, LABELS, [1, 1, 1, 9])
    assert counts.with_effective_weights() is counts


@pytest.mark.parametrize("name", ["p.npz", "p.safetensors"])
@pytest.mark.parametrize(("weights", "word"), [(FRACTIONS, "counts"), (FRACTIONS, None), ([1, 2, 3, 4], "importance")])
def test_files_keep_what_weights_are(tmp_path, name, weights, word):
    p = Predictions(SCORES, LABELS, weights, weights_are=word)
    p.save(tmp_path / name)
    loaded = Predictions.load(tmp_path / name)
    assert (loaded.weights_are, loaded.clusters is None) == (p.weights_are, p.clusters is None)
    assert Predictions.load(tmp_path / name, weights_are="counts").weights_are == "counts"


@pytest.mark.parametrize("name", ["p.parquet", "p.safetensors"])
def test_fractions_anywhere_in_a_file_decide_for_every_chunk(tmp_path, name):
    p = Predictions(SCORES * 3, LABELS * 3, [1.0] * 8 + FRACTIONS, weights_are="counts")
    if name.endswith("parquet"):
        p.save(tmp_path / name)
    else:
        from safetensors.numpy import save_file

        save_file({"logits": p.logits, "labels": p.labels, "weights": p.weights}, tmp_path / name)
    parts = list(Predictions.load_chunks(tmp_path / name, rows=4))
    assert [part.weights_are for part in parts] == ["importance"] * 3
    assert Summary.from_file(tmp_path / name).has_clusters


def test_measure_says_how_weights_were_read():
    probs, labels, w = draw(40)
    assert FRACTIONS_NOTE in str(measure(Predictions.from_probs(probs, labels, w))).replace("\n", " ")
