"""Preference pairs: one row per pair, whose chosen one has label 1, and fits that see both orders."""

import numpy as np
import pytest
from refusals import refused
from scipy.special import expit, softmax

from calibrant import Predictions, assess, calibrators, measure, metrics
from calibrant.predictions.folds import num_units

SCALE = 2.0  # by which the margins of the reward model are too large


def bradley_terry(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return scores of chosen and rejected answers, drawn from the Bradley-Terry model of the scores / SCALE."""
    g = np.random.default_rng(seed)
    first, second = g.normal(size=(2, n)) * 2
    is_first = g.random(n) < 1 / (1 + np.exp(second - first))
    return SCALE * np.where(is_first, first, second), SCALE * np.where(is_first, second, first)


@pytest.fixture(scope="module")
def pairs() -> Predictions:
    return Predictions.from_pairs(*bradley_terry(1500))


def test_the_event_is_that_the_chosen_one_has_the_higher_score(pairs):
    chosen_scores, rejected_scores = bradley_terry(1500)
    assert pairs.is_pairs
    assert len(pairs) == pairs.num_examples == num_units(pairs) == 1500
    assert pairs.with_default_event().of == "top"
    measurement = measure(pairs)
    assert measurement.event.kind == "preferred"
    assert measurement["accuracy"].value == pytest.approx((chosen_scores > rejected_scores).mean())
    assert measurement.mean_confidence == pytest.approx(
        (1 / (1 + np.exp(-abs(chosen_scores - rejected_scores)))).mean()
    )
    assert measurement.verdict.direction == "over"
    assert measurement.remarks == ()
    assert measurement.only_class is None


def test_ties_are_half_right():
    p = Predictions.from_pairs([2.0, 0.5, 1.0], [0.0, 1.5, 1.0])
    assert float(metrics.accuracy(p)) == 0.5
    assert p.is_pairs
    assert (p.num_examples, p.total_weight) == (3, 3.0)
    swapped = p.with_both_orders()
    assert float(metrics.accuracy(swapped)) == 0.5
    assert swapped.total_weight == 3.0


def test_temperature_is_the_scale_of_the_margins(pairs, tmp_path):
    fitted = calibrators.Temperature.fit(pairs)
    assert float(fitted.temperature) == pytest.approx(SCALE, abs=3 * fitted.certificate.standard_error)
    assert fitted.certificate.absent == 0
    calibrators.save(fitted, tmp_path / "t.safetensors", fitted_on=pairs)
    margin = np.linspace(-9, 9, 19)
    prob = softmax(calibrators.load(tmp_path / "t.safetensors")(np.c_[0 * margin, margin]), 1)[:, 1]
    np.testing.assert_allclose(prob, expit(margin / fitted.temperature))
    np.testing.assert_allclose(prob + prob[::-1], 1)


def test_scores_may_be_tensors(torch, pairs):
    assert Predictions.from_pairs(*map(torch.tensor, bradley_terry(1500))).digest == pairs.digest


def test_biases_are_zero(pairs):
    """Fitted to the order of the file, in which the chosen one is always second, they have no finite optimum."""
    assert abs(float(calibrators.Platt.fit(pairs).bias)) < 1e-6
    for name in "BiasCorrectedTemperature", "StructuredMatrix":
        assert np.ptp(calibrators.fit(name, pairs).bias) < 1e-6


def test_fits_count_pairs(pairs):
    swapped = pairs.with_both_orders()
    assert (len(swapped), num_units(swapped), swapped.total_weight) == (3000, 1500, 1500.0)
    assert float(metrics.nll(swapped)) == pytest.approx(float(metrics.nll(pairs)))
    assert float(swapped.labels.astype(float).mean()) == 0.5
    assert swapped.with_both_orders() is swapped
    certificate = calibrators.Temperature.fit(pairs).certificate
    assert certificate.data == pairs.digest
    assert certificate.nll_before == pytest.approx(float(metrics.nll(pairs)))


def test_prompts_weights_and_groups_are_kept():
    chosen_scores, rejected_scores = bradley_terry(60)
    columns = {"clusters": np.arange(60) // 3, "groups": np.where(np.arange(60) % 2, "chat", "code")}
    p = Predictions.from_pairs(chosen_scores[:, None], rejected_scores, np.arange(60) % 4, **columns)
    swapped = p.with_both_orders()
    assert (num_units(p), num_units(swapped)) == (20, 20)
    assert np.array_equal(swapped.clusters.reshape(2, -1)[0], swapped.clusters.reshape(2, -1)[1])
    assert p.group_names == ("chat", "code")
    assert calibrators.Temperature.fit(p).certificate.is_optimal


def test_own_fits_see_both_orders(pairs):
    calls = []

    def fit_scale(logits, labels):
        calls.append((logits, labels))
        return lambda z: z / 2

    calibrators.fit(fit_scale, pairs)
    ((logits, labels),) = calls
    assert len(labels) == 3000
    assert float(labels.mean()) == 0.5
    assert np.array_equal(logits[:1500], logits[1500:, ::-1])


def test_assess_halves_the_margins(pairs):
    result = assess(pairs, calibrators=["Identity", "Temperature", "Platt"])
    assert result.remarks == ()
    assert {"Identity", "Temperature", "Platt"} == {*result.calibrators}
    assert result.chosen_name != "Identity"
    prob = softmax(result.best(np.array([[0.0, 3.0], [3.0, 0.0]])), 1)[:, 1]
    assert prob.sum() == pytest.approx(1, abs=1e-6)
    assert prob[0] == pytest.approx(1 / (1 + np.exp(-3 / SCALE)), abs=0.05)
    assert result.changes_by_metric["accuracy"].difference == pytest.approx(0, abs=1e-3)


def test_pairs_survive_saving(pairs, tmp_path):
    pairs.save(tmp_path / "pairs.npz")
    loaded = Predictions.load(tmp_path / "pairs.npz")
    assert loaded.is_pairs
    assert loaded.of == "top"
    assert loaded.digest == pairs.digest


def test_two_classes_of_these_names_are_no_pairs(pairs):
    p = Predictions(pairs.logits[:4], [0, 1, 1, 0], class_names=["rejected", "chosen"])
    assert not p.is_pairs
    assert p.with_both_orders() is p


@pytest.mark.parametrize(
    ("chosen_scores", "rejected_scores", "code"),
    [
        ([1.0, np.nan], [0.0, 0.0], "nan"),
        ([1.0, 2.0], [0.0], "shape"),
        (np.ones((3, 2)), np.ones((3, 2)), "shape"),
    ],
)
def test_scores_that_are_no_pairs_are_refused(chosen_scores, rejected_scores, code):
    with refused(code):
        Predictions.from_pairs(chosen_scores, rejected_scores)
