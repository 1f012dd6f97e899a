"""Cases that other toolkits get wrong, with the right value."""

import math

import numpy as np
import pytest
from drawn import drawn_labels
from scipy.special import softmax

from calibrant import Predictions, metrics
from calibrant._core.kernels.bins import Bins, Events, GroupedScores
from calibrant.metrics import Summary

CALIBRATION_ERRORS = ["ece", "adaptive_ece", "smooth_ece", "kuiper", "ks", "sweep_ece", "mce"]


def constant(n: int, p: float, right: int) -> tuple[np.ndarray, np.ndarray]:
    """Return n predictions of confidence p, of which `right` are correct."""
    return np.tile([math.log(p / (1 - p)), 0.0], (n, 1)), (np.arange(n) >= right).astype(int)


@pytest.mark.parametrize("n", [1, 10, 100_000])
@pytest.mark.parametrize("name", CALIBRATION_ERRORS)
def test_errors_of_a_single_bin(name, n):
    logits, labels = constant(n, 0.8, 6 * n // 10)
    expected = abs(6 * n // 10 / n - 0.8)
    assert float(getattr(metrics, name)(logits, labels)) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("millions", [1, 17, 100])  # float32 counts stop at 16.8 million
def test_errors_of_a_single_bin_in_a_summary(millions):
    part = Summary.from_predictions(Predictions(*constant(100_000, 0.8, 60_000)))
    million = sum([part] * 10, Summary.empty())
    summary = sum([million] * millions, Summary.empty())
    assert len(summary) == millions * 1_000_000
    for name in "ece", "adaptive_ece", "kuiper", "smooth_ece":
        assert summary[name] == pytest.approx(0.2, abs=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("n", [34_000_000, 100_000_000])
def test_single_bin_counts_more_examples_than_float32(n):
    table = Events(np.full(n, 0.8), (np.arange(n) % 10 < 6).astype(float)).equal_width(15)
    assert table.count.sum() == n
    assert abs(table.gap).max() == pytest.approx(0.2, abs=1e-9)


def test_confidences_of_zero_and_one_fall_into_the_end_bins():
    events = Events(np.array([0.0, 1.0, 1.0]), np.array([1.0, 1.0, 0.0]))
    table = events.equal_width(15)
    assert table.count.tolist() == [1, *[0] * 13, 2]
    assert float(metrics.ece(events)) == pytest.approx(2 / 3)


def test_probabilities_of_zero_and_one_are_measured():
    p = Predictions.from_probs([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]], [0, 1, 1])
    for name in CALIBRATION_ERRORS[:-1]:
        assert float(getattr(metrics, name)(p)) == pytest.approx(1 / 3, abs=1e-9)
    assert float(metrics.ece(p.with_event(1))) == pytest.approx(1 / 3)
    assert float(metrics.nll(p)) == math.inf
    assert metrics.nll.interval(p).value == math.inf
    assert metrics.kuiper.test(p).p_value == 0  # impossible if the model were right
    certain = Predictions.from_probs([[1.0, 0.0]], [0])
    assert metrics.kuiper.test(certain).p_value == 1


def test_one_hot_predictions_have_error_zero_or_one():
    right, wrong = ([[1.0, 0.0]] * 5, [0] * 5), ([[1.0, 0.0]] * 5, [1] * 5)
    for name in CALIBRATION_ERRORS:
        assert float(getattr(metrics, name)(Predictions.from_probs(*right))) == 0
        assert float(getattr(metrics, name)(Predictions.from_probs(*wrong))) == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_probabilities_give_nearly_the_same_ece(dtype):
    rng = np.random.default_rng(0)
    logits = 2 * rng.standard_normal((5000, 5))
    probs, labels = softmax(logits, 1), drawn_labels(logits, rng)
    exact = float(metrics.ece(Predictions.from_probs(probs, labels)))
    half = probs.astype(dtype) if dtype == "float16" else pytest.importorskip("torch").tensor(probs).bfloat16()
    rounded = float(metrics.ece(Predictions.from_probs(half, labels)))
    assert rounded == pytest.approx(exact, abs=4e-3)
    assert rounded > 0


def test_half_precision_rows_are_normalized():
    p = Predictions.from_probs(np.full((1, 3), 0.3333, dtype=np.float16), [0])
    assert float(metrics.signed_gap(p)) == pytest.approx(1 / 3 - 1, abs=1e-12)


@pytest.mark.parametrize("name", ["adaptive_ece", "ece", "kuiper", "aurc", "skce"])
def test_ties_give_one_value_over_100_shuffles(name):
    rng, values = np.random.default_rng(0), set()
    logits, labels = (2 * rng.standard_normal((300, 3))).round(), rng.integers(3, size=300)
    for _ in range(100):
        order = rng.permutation(300)
        values.add(round(float(getattr(metrics, name)(logits[order], labels[order])), 13))
    assert len(values) <= 2  # a rounding boundary may fall between


def test_order_of_correctness_inside_ties_does_not_matter():
    logits, labels = constant(1000, 0.7, 640)
    assert float(metrics.adaptive_ece(logits, labels)) == pytest.approx(0.06, abs=1e-12)
    assert float(metrics.adaptive_ece(logits, labels[::-1])) == pytest.approx(0.06, abs=1e-12)


def test_equal_mass_bins_count_the_least_confident_example():
    by_score = GroupedScores.from_scores(np.linspace(0.5, 0.99, 30), np.ones(30))
    assert Bins.equal_mass(15, by_score).count.sum() == 30


def test_classwise_ece_counts_a_class_without_examples():
    rng = np.random.default_rng(0)
    logits, labels = rng.standard_normal((200, 5), dtype=np.float32), rng.integers(4, size=200)
    assert metrics.tables.classes(logits, labels).count.tolist()[4] == 0
    expected = np.mean([metrics.ece(Predictions(logits, labels, of=j)) for j in range(5)])
    assert metrics.classwise_ece(logits, labels) == pytest.approx(expected, rel=1e-10, abs=1e-12)
    assert math.isfinite(metrics.auroc(logits, labels))


def test_number_of_classes_is_that_of_the_logits():
    logits, labels = np.tile(np.eye(4), (2, 1)), np.array([0, 1, 0, 0, 0, 1, 1, 1])
    confidence = math.e / (math.e + 3)
    assert float(metrics.ece(logits, labels)) == pytest.approx(4 / 8 - confidence)
    assert float(metrics.ece(logits[:2], labels[:2])) == pytest.approx(1 - confidence)


def test_confidence_at_an_edge_falls_into_the_bin_below():
    p = Predictions.from_probs([[0.2, 0.8], [0.25, 0.75], [0.15, 0.85]], [1, 0, 1])
    table = metrics.tables.bins(p, bins=5)
    assert table.count.tolist() == [0, 0, 0, 2, 1]
    assert float(metrics.ece(p, bins=5)) == pytest.approx((2 * abs(0.5 - 0.775) + 0.15) / 3)


def test_event_of_two_classes_is_the_predicted_class_by_default():
    logits, labels = np.array([[2.0, 0.0], [2.0, 0.0]]), np.array([0, 0])
    p = 1 / (1 + math.exp(-2))
    assert float(metrics.ece(logits, labels)) == pytest.approx(1 - p)
    assert float(metrics.ece(Predictions(logits, labels, of=1))) == pytest.approx(1 - p)
    assert np.flatnonzero(metrics.tables.bins(logits, labels).count).tolist() == [13]
    assert np.flatnonzero(metrics.tables.bins(Predictions(logits, labels, of=1)).count).tolist() == [1]


def test_all_pixels_but_ignored_ones_count():
    rng = np.random.default_rng(0)
    logits, labels = rng.standard_normal((2, 4, 6, 5), dtype=np.float32), rng.integers(4, size=(2, 6, 5))
    labels[0, 0, :] = 255
    flat, labels_of_pixels = np.moveaxis(logits, 1, -1).reshape(-1, 4), labels.ravel()
    p = Predictions(logits, labels, ignore_index=255)
    assert len(p) == 55
    assert metrics.ece(p) == metrics.ece(flat[labels_of_pixels != 255], labels_of_pixels[labels_of_pixels != 255])


def test_bin_table_has_the_count_behind_mce():
    logits, labels = np.array([[0.0, 1.0]] * 99 + [[0.0, 5.0]]), np.array([1] * 73 + [0] * 27)
    table = metrics.tables.bins(logits, labels)
    assert table.count[table.worst_bin] == 1
    assert abs(table.gap[table.worst_bin]) == pytest.approx(metrics.mce(logits, labels))
