"""`PriorShift`: class shares that differ between fitting and use."""

import numpy as np
import pytest
from refusals import refused
from scipy.special import softmax

from calibrant import Predictions, metrics
from calibrant.calibrators import PriorShift, Temperature, fit, load, save

SHARES = np.array([0.6, 0.3, 0.1])


def drawn(n, shares, seed, k=3):
    """Draw overconfident logits of three classes that assume the class shares `SHARES`."""
    rng = np.random.default_rng(seed)
    y = rng.choice(k, n, p=shares)
    x = rng.normal(0, 1, (n, k)) + 1.2 * np.eye(k)[y]
    return Predictions(2 * (1.2 * x + np.log(SHARES)), y)  # overconfident by a factor of 2


def nll(fitted, p):
    return float(metrics.nll(p.apply(fitted)))


def test_prior_follows_bayes_rule():
    p, fresh = drawn(4000, SHARES, 0), drawn(4000, [1 / 3] * 3, 1)
    shifted = PriorShift.fit(p, calibrator="Temperature")
    old = (np.bincount(p.labels) + 1 / 3) / (len(p) + 1)
    probs = softmax(p.apply(Temperature.fit(p)).logits, 1) / 3 / old
    np.testing.assert_allclose(softmax(p.apply(shifted).logits, 1), probs / probs.sum(1, keepdims=True), rtol=1e-7)
    assert nll(shifted, fresh) < nll(Temperature.fit(p), fresh) - 0.1
    alike = PriorShift.fit(p, calibrator="Temperature", prior=tuple(old.tolist()))
    np.testing.assert_allclose(alike.shift, np.zeros(3), atol=1e-6, rtol=0)
    assert np.array_equal(PriorShift.fit(p, prior=(2.0, 2.0, 2.0)).shift, PriorShift.fit(p).shift)


def test_undersampled_training_is_undone_by_the_shares_of_its_classes():
    """With controls kept at the rate r, log-odds are too high by log(1 / r), and nothing else changes."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=200_000)
    y = (rng.random(len(x)) < 1 / (1 + np.exp(4.6 - x))).astype(int)
    rate = 0.05
    in_training = (y == 1) | (rng.random(len(x)) < rate)
    source = (float((1 - y[in_training]).mean()), float(y[in_training].mean()))
    logits = x - 4.6 - np.log(rate)  # what a logistic regression learns from the rows that are kept
    p = Predictions.from_binary_logits(logits, y, logits=True).with_event(1)
    prior = (float((1 - y).mean()), float(y.mean()))
    shifted = PriorShift.fit(p[:100], calibrator="Identity", source=source, prior=prior)
    assert float(shifted.shift[1] - shifted.shift[0]) == pytest.approx(np.log(rate), abs=0.05)
    assert float(metrics.observed_expected(p)) < 0.2
    assert float(metrics.observed_expected(p.apply(shifted))) == pytest.approx(1.0, abs=0.06)
    again = fit(f"PriorShift(calibrator='Identity', source={source}, prior={prior})", p[:100])
    assert np.array_equal(again.shift, shifted.shift)


def test_invalid_sources_are_refused():
    p = drawn(100, SHARES, 0)
    with refused("source", "3"):
        PriorShift.fit(p, calibrator="Identity", source=(0.5, 0.5))
    with refused("source"):
        PriorShift.fit(p, calibrator="Identity", source=(0.5, 0.5, 0.0))
    with refused("conflicting_settings", "source"):
        PriorShift.fit(p, calibrator="Identity", source=(0.5, 0.3, 0.2), unlabeled=p.logits)


def test_arrays_of_numpy_are_taken_as_tensors_and_tuples_are(torch):
    p, new = drawn(100, SHARES, 0), drawn(100, [0.1, 0.2, 0.7], 1)
    pairs = ("unlabeled", new.logits, torch.from_numpy(new.logits)), ("prior", SHARES, tuple(SHARES.tolist()))
    for name, *values in pairs:
        shifts = [PriorShift.fit(p, calibrator="Identity", **{name: value}).shift for value in values]
        assert np.array_equal(*shifts)


def test_shares_are_estimated_without_labels():
    p, new = drawn(3000, SHARES, 0), drawn(4000, [0.1, 0.2, 0.7], 1)
    shifted = PriorShift.fit(p, calibrator="Temperature", unlabeled=new.logits)
    estimated = np.exp(shifted.shift) * np.bincount(p.labels) / len(p)
    assert estimated.tolist() == pytest.approx([0.1, 0.2, 0.7], abs=0.04)
    with_prior = PriorShift.fit(p, calibrator="Temperature", prior=(0.1, 0.2, 0.7))
    assert nll(shifted, new) < nll(with_prior, new) + 0.005
    assert nll(shifted, new) < nll(Temperature.fit(p), new) - 0.2


@pytest.mark.parametrize("seed", range(5))
def test_estimate_without_a_shift_hardly_increases_the_nll(seed):
    p, new = drawn(500, SHARES, 2 * seed), drawn(500, SHARES, 2 * seed + 1)
    shifted = PriorShift.fit(p, calibrator="Temperature", unlabeled=new)
    assert nll(shifted, new) < nll(Temperature.fit(p), new) + 0.004


def test_weights_count_and_labels_of_unlabeled_examples_are_ignored():
    p, new = drawn(600, SHARES, 0), drawn(400, [1 / 3] * 3, 1)
    often = np.arange(400) % 3 + 1
    rows = np.arange(400).repeat(often)
    weighted_data = Predictions(new.logits, np.flip(new.labels), weights=often)
    first, two = (
        PriorShift.fit(p, calibrator="Temperature", unlabeled=q).shift for q in (weighted_data, new.logits[rows])
    )
    np.testing.assert_allclose(first, two, rtol=1e-7, atol=1e-7)
    counted = Predictions(p.logits, p.labels, weights=np.arange(600) % 3 + 1)
    assert not np.allclose(PriorShift.fit(counted, calibrator="Temperature").shift, PriorShift.fit(p).shift)


def test_unlabeled_file_in_a_text_and_saving(tmp_path):
    p, new = drawn(600, SHARES, 0), drawn(400, [1 / 3] * 3, 1)
    np.savez(tmp_path / "new.npz", logits=new.logits)
    text = f"PriorShift(calibrator='Temperature', unlabeled={str(tmp_path / 'new.npz')!r})"
    shifted = fit(text, p)
    expected = PriorShift.fit(p, calibrator="Temperature", unlabeled=new)
    np.testing.assert_allclose(shifted.shift, expected.shift, rtol=1e-7, atol=1e-7)
    save(shifted, tmp_path / "c.safetensors")
    assert np.array_equal(load(tmp_path / "c.safetensors")(new.logits), shifted(new.logits))


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ({"prior": (0.5, 0.5)}, "prior"),
        ({"prior": (0.5, 0.5, 0.0)}, "prior"),
        ({"prior": "balanced"}, "setting_range"),
        ({"unlabeled": np.zeros((5, 4))}, "num_classes"),
        ({"unlabeled": "nowhere.npz"}, "no_file"),
    ],
)
def test_unusable_priors_and_unlabeled_examples_are_refused(how, code):
    with refused(code):
        PriorShift.fit(drawn(100, SHARES, 0), **how)


def test_class_without_examples_counts_as_a_third_of_an_example():
    shifted = PriorShift.fit(Predictions(np.zeros((4, 3)), [0, 1, 0, 1]), calibrator="Identity")
    expected = (np.array([2, 2, 0]) + 1 / 3) / 5 * 3
    np.testing.assert_allclose(shifted.shift, -np.log(expected), rtol=1e-7)


@pytest.mark.shared
@pytest.mark.slow
def test_long_tailed_validation_balanced_test(shared):
    """Shares estimated from unlabeled test images gain 0.09 nats, nearly as much as the true ones."""
    p, test = (Predictions.load(shared / f"logits/sctl_cifar10LT_densenet40_ce.{name}.npz") for name in ("val", "test"))
    baseline = nll(fit("StructuredMatrix", p), test)
    estimated = nll(PriorShift.fit(p, calibrator="StructuredMatrix", unlabeled=test.logits), test)
    uniform = nll(PriorShift.fit(p, calibrator="StructuredMatrix"), test)
    assert estimated < baseline - 0.08
    assert uniform < estimated < uniform + 0.01
