"""Binning if one of two classes is evaluated: its probability is binned from 0 to 1."""

from dataclasses import replace

import numpy as np
import pytest
from refusals import refused
from scipy.special import expit, softmax

from calibrant import Predictions, assess, calibrators
from calibrant.calibrators import (
    HistogramBinning,
    Platt,
    ScalingBinning,
    TopLabelBinning,
    load,
    num_classes,
    preserves_argmax,
    save,
)

FULL = ["TopLabelBinning(points=200)", "Spline(knots=12)"]  # settings with enough examples per bin, and enough knots
CONSTRUCTORS = ["confidence", "logit", "probs", "confidence", "logit"]
BINNING = ["BayesianBinning", "HistogramBinning", "ScalingBinning", "Spline", "TopLabelBinning"]


def shifted(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return scores that are too high by 1, outcomes and true probabilities."""
    rng = np.random.default_rng(seed)
    s = 2 * rng.standard_normal(n) - 1
    true = expit(s - 1)
    return s, (rng.random(n) < true).astype(int), true


def build_predictions(constructor: str, s: np.ndarray, y: np.ndarray) -> Predictions:
    if constructor == "confidence":
        return Predictions.from_confidence(expit(s), y)
    return Predictions.from_binary_logits(s, y) if constructor == "logit" else Predictions.from_probs(expit(s), y)


@pytest.mark.parametrize(("name", "constructor"), list(zip([*BINNING[:3], *FULL], CONSTRUCTORS)))
def test_probabilities_on_both_sides_of_one_half_become_true(name, constructor):
    s, y, _ = shifted(5_000)
    fresh, outcome, true = shifted(5_000, seed=1)
    after = (
        build_predictions(constructor, fresh, outcome)
        .apply(calibrators.fit(name, build_predictions(constructor, s, y)))
        .events.confidence
    )
    before = expit(fresh)
    for side in (before < 0.5, before > 0.5):
        assert np.abs(before - true)[side].mean() > 0.07
        assert np.abs(after - true)[side].mean() < 0.06
        assert abs((after - true)[side].mean()) < 0.03


@pytest.mark.parametrize("bins", [10, 15])
def test_histogram_binning_agrees_with_netcal_for_a_binary_event(bins):
    netcal = pytest.importorskip("netcal.binning")
    s, y, _ = shifted(3000)
    c = expit(s)
    theirs = netcal.HistogramBinning(bins)
    theirs.fit(c[:2000], y[:2000])
    p = Predictions.from_confidence(c, y)
    ours = p[2000:].apply(HistogramBinning.fit(p[:2000], bins=bins)).events.confidence
    np.testing.assert_allclose(ours, theirs.transform(c[2000:]), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", BINNING)
def test_maps_do_not_depend_on_which_class_is_evaluated(name):
    s, y, _ = shifted(400)
    p = Predictions.from_binary_logits(s, y)
    turned = Predictions(np.fliplr(p.logits), 1 - y, of=0)
    first, second = (calibrators.fit(name, q) for q in (p, turned))
    assert (first.of, second.of) == (1, 0)
    after = np.exp(np.fliplr(second(turned.logits)))
    np.testing.assert_allclose(after, np.exp(first(p.logits)), rtol=1e-7, atol=1e-7)


def test_scaling_binning_uses_platt_for_a_binary_event():
    s, y, _ = shifted(1500)
    p = Predictions.from_confidence(expit(s), y)
    fitted = ScalingBinning.fit(p, bins=10)
    scaled = softmax(Platt.fit(p)(p.logits), 1)[:, 1]
    expected = np.empty_like(scaled)
    for part in np.array_split(scaled.argsort(), 10):
        expected[part] = scaled[part].mean()
    np.testing.assert_allclose(p.apply(fitted).events.confidence, expected, rtol=1e-7, atol=1e-7)


def test_uniform_mass_bins_leave_out_the_examples_at_edges():
    """Gupta & Ramdas 2021, algorithm 1, by hand: 11 scores, two bins, the sixth score is the edge."""
    p = Predictions.from_binary_logits(np.arange(-5.0, 6.0), [0, 0, 1, 0, 0, 1, 1, 1, 0, 1, 1])
    fitted = TopLabelBinning.fit(p, points=5)
    assert fitted.group.tolist() == [0, 0]
    np.testing.assert_allclose(fitted.accuracy, [[1 / 5, 4 / 5]])
    new_probs = p.apply(fitted).events.confidence
    np.testing.assert_allclose(new_probs, [0.2] * 6 + [0.8] * 5, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("name", BINNING)
def test_saved_binning_keeps_its_event_and_number_of_classes(name, tmp_path):
    s, y, _ = shifted(500)
    p = Predictions.from_confidence(expit(s), y)
    fitted = calibrators.fit(name, p)
    save(fitted, tmp_path / "c.safetensors")
    back = load(tmp_path / "c.safetensors")
    assert back.of == fitted.of == 1
    assert np.array_equal(back(p.logits), fitted(p.logits))
    assert calibrators.fit(name, p.with_event("top")).of == "top"
    assert not preserves_argmax(back)
    bare = replace(back, certificate=None)
    assert num_classes(bare) == 2
    with refused("num_classes", name):
        bare(np.zeros((1, 3)))


def test_top_label_is_binned_for_more_than_two_classes():
    rng = np.random.default_rng(0)
    p = Predictions(rng.standard_normal((300, 3)), rng.integers(3, size=300), of=1)
    assert [calibrators.fit(name, p).of for name in BINNING] == ["top"] * 5


def test_assessment_with_binning_repairs_confidences_below_one_half():
    s, y, _ = shifted(1600)
    p = Predictions.from_confidence(expit(s), y)
    result = assess(p[:800], p[800:], ["HistogramBinning"])
    assert result.calibrated["kuiper"].p_value > 1e-4 > result.uncalibrated["kuiper"].p_value
    assert result.calibrated["ece"].value < 0.5 * result.uncalibrated["ece"].value
