"""Few labels: intervals of the accuracy that use rows without labels, and rows to label."""

import inspect
import math

import numpy as np
import pytest
from refusals import code_of

from calibrant.planning.few_labels import accuracy_interval, gap_interval, rows_to_label

N = 3000


def population(seed=0, slope=3.0):
    """Return a probability per row, distorted, and whether the row is right."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=N)
    correct = (rng.random(N) < 1 / (1 + np.exp(-0.5 - slope * z))).astype(int)
    return 1 / (1 + np.exp(-1 - 1.5 * z)), correct


def wilson_width(y, z=1.6448536269514722):
    n, share = len(y), y.mean()
    return 2 * z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / (1 + z * z / n)


@pytest.mark.slow
@pytest.mark.parametrize("n", [20, 100])
@pytest.mark.parametrize("planned", [False, True])
def test_intervals_cover_and_are_shorter_than_without_the_rest(n, planned):
    p, correct = population()
    covered, widths, errors, plain_errors = [], [], [], []
    for seed in range(600):
        rows = np.random.default_rng(seed).permutation(N)[:n]
        plain_errors.append(correct[rows].mean() - correct.mean())
        weights = None
        if planned:
            plan = rows_to_label(p, n, seed=seed)
            rows, weights = plan.rows, plan.weights
        x = accuracy_interval(p, rows, correct[rows], weights=weights)
        covered.append(float(correct.mean()) in x)
        widths.append((x.high - x.low) / wilson_width(correct[rows]))
        errors.append(x.value - correct.mean())
    assert 0.85 < np.mean(covered) < 0.96
    assert np.mean(widths) < 0.85
    assert abs(np.mean(errors)) < 4 * np.std(errors) / math.sqrt(600) + 0.005
    assert np.std(errors) < 0.85 * np.std(plain_errors)


@pytest.mark.slow
def test_useless_probabilities_change_little():
    rng, ratios, covered = np.random.default_rng(1), [], []
    correct = (rng.random(N) < 0.7).astype(int)
    for _ in range(300):
        rows = rng.permutation(N)[:60]
        x = accuracy_interval(rng.random(N), rows, correct[rows])
        ratios.append((x.high - x.low) / wilson_width(correct[rows]))
        covered.append(float(correct.mean()) in x)
    assert 0.97 < np.mean(ratios) < 1.03
    assert 0.85 < np.mean(covered) < 0.95


def test_the_estimate_is_the_regression_estimator():
    p, correct = population(2, slope=1.0)
    rows = np.random.default_rng(0).permutation(N)[:80]
    slope, intercept = np.polyfit(p[rows], correct[rows], 1)
    assert 0 < slope < 1.5
    assert accuracy_interval(p, rows, correct[rows]).value == pytest.approx(slope * p.mean() + intercept)


def test_complete_labels_and_constant_probabilities_give_the_interval_of_wilson():
    p, correct = population(3)
    everything = accuracy_interval(p[:200], np.arange(200), correct[:200])
    constant = accuracy_interval(np.full(N, 0.7), np.arange(200), correct[:200])
    assert constant.value == pytest.approx(correct[:200].mean())
    for x in (everything, constant):
        assert x.high - x.low == pytest.approx(wilson_width(correct[:200]), rel=0.01)


@pytest.mark.parametrize("n", [0, 1, 2])
def test_fewer_than_three_labels_say_nothing(n):
    x = accuracy_interval([0.9, 0.8, 0.7, 0.6], np.arange(n), np.ones(n))
    assert (x.low, x.high) == (0.0, 1.0)
    assert math.isnan(x.value) == (n == 0)


def test_equal_labels_give_an_interval_of_positive_width():
    x = accuracy_interval(np.linspace(0, 1, 100), [3, 50, 70, 90], [1, 1, 1, 1])
    assert x.value == x.high == 1.0
    assert x.low**4 == pytest.approx(0.05)
    y = accuracy_interval(np.linspace(0, 1, 100), [3, 50, 70, 90], [0, 0, 0, 0])
    assert (y.value, y.low, y.high) == (0.0, 0.0, pytest.approx(1 - x.low))


@pytest.mark.parametrize("label", [0, 1])
def test_unequal_weights_do_not_change_the_interval_of_equal_labels(label):
    p, rows = np.linspace(0.3, 0.9, 1000), np.arange(7)
    for seed in range(20):
        weights = np.random.default_rng(seed).random(7) + 0.1
        weighted = accuracy_interval(p, rows, [label] * 7, weights=weights)
        assert str(weighted) == str(accuracy_interval(p, rows, [label] * 7))


def test_the_gap_is_the_mean_confidence_minus_the_accuracy():
    p, correct = population(4)
    accuracy = accuracy_interval(p, np.arange(50), correct[:50])
    gap = gap_interval(p, accuracy)
    assert gap.value == pytest.approx(p.mean() - accuracy.value)
    assert (gap.high + accuracy.low, gap.low + accuracy.high) == pytest.approx((p.mean(), p.mean()))


@pytest.mark.slow
def test_uncertain_rows_are_chosen_more_often_and_weights_undo_it():
    p = np.concatenate([np.full(900, 0.99), np.full(100, 0.5)])
    counts, totals = np.zeros(1000), []
    for seed in range(400):
        plan = rows_to_label(p, 50, seed=seed)
        assert len(np.unique(plan.rows)) == 50
        counts[plan.rows] += 1
        totals.append(plan.weights[plan.rows >= 900].sum() / plan.weights.sum())
    assert counts[900:].mean() / counts[:900].mean() == pytest.approx(0.5 / 0.3, rel=0.05)
    assert np.mean(totals) == pytest.approx(0.1, abs=0.01)


def test_all_rows_can_be_chosen():
    plan = rows_to_label([0.0, 0.5, 1.0, 0.5], 4)
    assert sorted(plan.rows.tolist()) == [0, 1, 2, 3]
    assert plan.weights == pytest.approx(np.ones(4))


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (([0.5, 1.5], [0], [1]), "probability_range"),
        (([0.5, math.nan], [0], [1]), "probability_range"),
        (([0.5, 0.6], [0, 1], [1]), "shape"),
        (([0.5, 0.6], [0, 0], [1, 1]), "rows"),
        (([0.5, 0.6], [0, 2], [1, 1]), "rows"),
        (([0.5, 0.6], [0, 1], [1, 0.5]), "correct_range"),
    ],
)
def test_bad_input_is_refused(arguments, code):
    assert code_of(accuracy_interval, *arguments) == code


def test_bad_weights_and_numbers_of_rows_are_refused():
    assert code_of(accuracy_interval, [0.5, 0.6], [0, 1], [1, 1], weights=[1.0, 0.0]) == "weights"
    assert code_of(accuracy_interval, [0.5, 0.6], [True, False], [1, 1]) == "rows"  # a mask
    assert code_of(accuracy_interval, [0.5, 0.6], [0.2, 1.9], [1, 1]) == "rows"
    assert code_of(rows_to_label, [0.5, 0.6], 3) == "n_range"
    assert code_of(gap_interval, [2.0], accuracy_interval([0.5], [], [])) == "probability_range"
    assert code_of(inspect.unwrap(gap_interval), [0.2], 0.5) == "accuracy_kind"


def test_inputs_that_are_no_columns_of_numbers_are_refused():
    interval = accuracy_interval([0.5], [], [])
    assert code_of(gap_interval, ["a"], interval) == "not_numbers"
    assert code_of(rows_to_label, ["x"], 1) == "not_numbers"
    assert code_of(accuracy_interval, [0.5, 0.6], [0, 1], ["a", 1]) == "not_numbers"
    assert code_of(accuracy_interval, [0.5, 0.6], [0, 1], [1, 0], weights=2) == "shape"
    assert code_of(accuracy_interval, [0.5, 0.6], 1, [1, 0]) == "shape"
    assert code_of(accuracy_interval, [0.5, 0.6], [[0], [1]], [1, 0]) == "shape"
