"""Labels that are all of one class, or lack one: what is said first, and which calibrators are offered."""

import json
from html import unescape

import numpy as np
import pytest
from refusals import refused
from scipy.special import log_softmax, softmax

from calibrant import Predictions, assess, calibrators, measure, metrics
from calibrant.assessment import summarize
from calibrant.assessment._sentences import headline


def margins(n: int = 150, seed: int = 0) -> np.ndarray:
    """Return chosen minus rejected scores, 70 % of which are positive."""
    return np.random.default_rng(seed).normal(size=n) * 2 + 1.05


@pytest.fixture(scope="module")
def positives() -> Predictions:
    return Predictions.from_binary_logits(margins(), np.ones(150, dtype=int))


@pytest.fixture(scope="module")
def assessed(positives):
    return assess(positives, calibrators=["Identity", "Temperature", "StructuredMatrix", "HistogramBinning"])


def test_maps_that_learn_the_class_are_not_offered(positives, assessed):
    """They raised the accuracy from 70 to 100 %, which was called significant and calibrated."""
    assert [*assessed.calibrators] == ["Identity", "Temperature"]
    assert assessed.calibrated["accuracy"].value == assessed.uncalibrated["accuracy"].value
    z = np.array([[0.0, 2.5], [2.5, 0.0]])
    assert softmax(assessed.best(z), 1)[:, 1].sum() == pytest.approx(1)


def test_auto_mixes_members_that_treat_classes_alike(positives):
    fitted = calibrators.Auto.fit(positives)
    assert {*fitted.names} <= {"as it is", "SmoothedTemperature"}
    assert calibrators.treats_classes_alike(fitted)
    assert len(fitted.left_out) > 3
    z = np.linspace(-40, 40, 9)[:, None] * [0.0, 1.0]
    np.testing.assert_allclose(softmax(fitted(z), 1), softmax(fitted(z[:, ::-1]), 1)[:, ::-1], atol=1e-7)


def test_one_class_is_said_first(positives, assessed):
    for result, remarks in ((measure(positives), measure(positives).remarks), (assessed, assessed.remarks)):
        assert len(remarks) == (2 if result is assessed else 1)
        assert str(result).startswith(remarks[0].partition(" (")[0])
        assert json.loads(result.json())["notes"] == [*remarks]
        page = result.html()
        assert page.index(remarks[0].partition(" (")[0]) < page.index("Is it calibrated?")
        assert remarks[0] in unescape(page)
    measurement = measure(positives)
    assert measurement.only_class == 1
    assert headline(measurement) != headline(measure(positives.with_labels((positives.labels + np.arange(150)) % 2)))


def test_the_only_class_of_a_summary_is_known(positives):
    assert measure(summarize([positives[:70], positives[70:]])).only_class == 1
    assert measure(summarize([positives.with_labels(1 - positives.labels)])).only_class == 0


def test_rows_of_weight_0_are_no_labels(positives):
    labels = np.r_[np.ones(100, dtype=int), np.zeros(50, dtype=int)]
    p = Predictions.from_binary_logits(margins(), labels, (labels == 1).astype(float))
    assert p.absent_classes == (0,)
    assert measure(p).only_class == 1
    assert [*assess(p, calibrators=["Identity", "Platt"]).calibrators] == ["Identity"]


@pytest.mark.parametrize(("names", "choose"), [(["Platt"], None), (["Identity"], "Platt"), (["Vector", "Beta"], None)])
def test_a_calibrator_that_learns_the_class_cannot_be_chosen(positives, names, choose):
    with refused("one_class"):
        assess(positives, calibrators=names, choose=choose)


def test_fits_without_an_optimum_are_not_offered_unless_chosen():
    """All answers are correct with a confidence above one half: the best temperature is 0."""
    p = Predictions.from_confidence(np.linspace(0.55, 0.95, 60), np.ones(60))
    assert [*assess(p, calibrators=["Identity", "Temperature", "SmoothedTemperature"]).calibrators] == [
        "Identity",
        "SmoothedTemperature",
    ]
    requested = assess(p, calibrators=["Identity"], choose="Temperature")
    assert requested.certificates["Temperature"].separable
    smoothed = calibrators.fit("SmoothedTemperature", p)
    assert 0.9 < softmax(smoothed(np.array([[0.0, 1.0]])), 1)[0, 1] < 1 - 1e-3


@pytest.mark.parametrize("of", ["top", None])
def test_no_rare_event_in_the_data_changes_little(of):
    """One example of 50 is positive, none of these 100: monotone maps made them certain, at .6 nats per new example."""
    z = 3.9 + 0.8 * np.random.default_rng(0).normal(size=100)
    p = Predictions.from_binary_logits(-z, np.zeros(100, dtype=int))
    result = assess(p, of=of)
    assert {*result.calibrators} <= {"Identity", "Auto"}
    risk = 1 / (1 + np.exp(z))
    for fitted in result.calibrators.values():
        after, before = log_softmax(fitted(p.logits), 1), log_softmax(p.logits, 1)
        harm = ((1 - risk) * (before - after)[:, 0] + risk * (before - after)[:, 1]).mean()
        assert harm < 0.02


def test_one_of_several_classes():
    g = np.random.default_rng(1)
    p = Predictions(2 * g.normal(size=(150, 4)), np.full(150, 2), class_names=["a", "b", "c", "d"])
    result = assess(p, calibrators=["Identity", "Temperature", "Vector", "HistogramBinning"])
    assert [*result.calibrators] == ["Identity", "Temperature", "HistogramBinning"]  # bins of the confidence
    assert len(result.remarks) == 2
    assert result.uncalibrated.only_class == 2
    assert result.uncalibrated.verdict.is_miscalibrated
    assert headline(result.uncalibrated) != headline(measure(p, of=2))  # which always happens


def test_an_absent_class_is_ordinary():
    g = np.random.default_rng(2)
    labels = g.choice([0, 1, 3], 150)
    p = Predictions(g.normal(size=(150, 4)) + 2 * np.eye(4)[labels], labels)
    result = assess(p, calibrators=["Identity", "Temperature", "Vector"])
    assert [*result.calibrators] == ["Identity", "Temperature", "Vector"]
    assert len(result.remarks) == 1
    assert measure(p).remarks == ()
    certificate = result.certificates["Vector"]
    assert (certificate.absent, certificate.classes) == (1, 4)
    mean = softmax(result.calibrators["Vector"](p.logits), 1)[:, 2].mean()
    assert 1e-4 < mean < 0.03  # about 1 / n


def test_evaluation_data_of_one_class_change_no_fit():
    m = margins(300, 3)
    labels = (np.random.default_rng(4).random(300) < 1 / (1 + np.exp(-m))).astype(int)
    val = Predictions.from_binary_logits(m, labels)
    test = Predictions.from_binary_logits(margins(100, 5), np.ones(100, dtype=int))
    result = assess(val, test, ["Identity", "Platt"])
    assert [*result.calibrators] == ["Identity", "Platt"]
    assert result.uncalibrated.only_class == 1
    assert len(result.remarks) == 1
    assert result.fitting_data.absent_classes == ()


def test_calibrators_that_were_fitted_before_stay(positives):
    g = np.random.default_rng(6)
    m = g.normal(size=200)
    fitted = calibrators.Platt.fit(Predictions.from_binary_logits(m, (g.random(200) < 0.5).astype(int)))
    assert [*assess(positives, calibrators=["Identity", fitted]).calibrators] == ["Identity", "Platt"]


def test_a_group_of_one_class_keeps_finite_probabilities():
    g = np.random.default_rng(7)
    m, groups = g.normal(size=200), np.repeat(["a", "b"], 100)
    labels = np.where(groups == "a", 1, (g.random(200) < 0.5)).astype(int)
    p = Predictions.from_binary_logits(m, labels, groups=groups)
    fitted = calibrators.fit("GroupCalibrated", p)
    probs = softmax(p.double().apply(fitted).logits, 1)
    assert 0 < probs.min() < probs.max() < 1
    assert metrics.nll(p.double().apply(fitted)) < metrics.nll(p)
