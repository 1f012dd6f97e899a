"""Fusion of signals: better than each alone, moderate with few labels, and helped by other models."""

import inspect
import runpy
from dataclasses import replace

import numpy as np
import pytest
from refusals import code_of
from scipy.special import expit, logit

from calibrant import calibrators, metrics
from calibrant.deployment import export
from calibrant.language_models.fusion import Fusion, FusionPrior

SIGNALS = ("stated", "tokens", "noise")


def draw(n, seed, slopes=(1.5, 1.0), intercept=0.3):
    """Draw signals of which two are informative, groups of different difficulty, and whether answers are right."""
    rng = np.random.default_rng(seed)
    z = rng.standard_normal((n, 3))
    group = rng.integers(0, 4, n)
    logit = intercept + slopes[0] * z[:, 0] + slopes[1] * z[:, 1] + 0.8 * (group - 1.5)
    correct = (rng.random(n) < 1 / (1 + np.exp(-logit))).astype(int)
    signals = {"stated": (1 / (1 + np.exp(-z[:, 0]))).round(1), "tokens": np.exp(-np.exp(-z[:, 1])), "noise": z[:, 2]}
    return signals, correct, group.astype(str), logit


def nll(fused, data, columns=SIGNALS):
    signals, correct, group, _ = data
    return float(metrics.nll(fused.predictions({name: signals[name] for name in columns}, correct, group)))


def test_fusion_is_better_than_each_signal_and_calibrated():
    fit, test = draw(500, 0), draw(20_000, 1)
    fused = Fusion.fit(fit[0], fit[1], groups=fit[2])
    for name in SIGNALS:
        single = Fusion.fit({name: fit[0][name]}, fit[1], groups=fit[2])
        assert nll(fused, test) < nll(single, test, [name]) - 0.02
    p = fused.predictions(test[0], test[1], test[2])
    assert float(metrics.ece(p)) < 0.06
    assert np.corrcoef(logit(fused.apply(test[0], test[2])), test[3])[0, 1] > 0.95


def test_coefficients_are_the_mode_of_the_penalized_likelihood():
    """The gradient of the log posterior, of its definition, is 0."""
    signals, correct, group, _ = draw(300, 2)
    fused = Fusion.fit(signals, correct, groups=group)
    names, x = fused.design(signals, list(group))
    penalty = np.array([1e-3 if n == "intercept" else 10.0 if n.startswith("group") else 3.0 for n in names])
    gradient = x.T @ (expit(x @ fused.coefficients) - correct) + penalty * fused.coefficients
    assert np.abs(gradient).max() < 1e-4


def test_few_labels_keep_probabilities_moderate():
    signals, _, _, _ = draw(5, 3)
    p = Fusion.fit(signals, np.ones(5, dtype=int)).apply(signals)
    assert bool(((p > 0.5) & (p < 0.99)).all())


def test_missing_signals_and_new_groups_have_a_place():
    signals, correct, group, _ = draw(600, 4)
    signals["tokens"][::5] = np.nan
    fused = Fusion.fit(signals, correct, groups=group)
    new = {"stated": [0.5, np.nan], "tokens": [np.nan, np.nan], "noise": [0.0, np.nan]}
    assert np.isfinite(fused.apply(new, ["0", "new"])).all()
    with_names, in_order = fused.apply(signals, group), fused.apply(np.stack(list(signals.values()), 1), group)
    assert np.array_equal(with_names, in_order)


@pytest.mark.parametrize("dtype", [int, float, bytes])
def test_groups_are_found_in_any_form(dtype, tmp_path):
    signals, correct, *_ = draw(300, 2)
    groups = np.arange(300) % 3
    fused = Fusion.fit(signals, correct, groups=groups)
    in_form = groups.astype(str).astype("S") if dtype is bytes else groups.astype(dtype)
    assert np.array_equal(fused.apply(signals, in_form), fused.apply(signals, groups.astype(str)))
    assert not np.array_equal(fused.apply(signals, in_form), fused.apply(signals))
    assert code_of(fused.apply, signals, groups[:, None]) == "shape"
    export(fused, tmp_path / "fused.py")
    namespace = runpy.run_path(str(tmp_path / "fused.py"))
    np.testing.assert_allclose(namespace["probability_right"](signals, in_form), fused.apply(signals, groups))


def test_a_prior_of_other_models_helps_with_few_labels():
    rng, gains = np.random.default_rng(5), []
    models = [draw(1500, 100 + i, rng.normal((1.5, 1.0), 0.2), rng.normal(0.3, 0.2)) for i in range(12)]
    fits = [Fusion.fit(signals, correct, groups=group) for signals, correct, group, _ in models]
    prior = FusionPrior.from_fits(fits)
    for seed in range(6):
        fit, test = draw(40, 200 + seed), draw(4000, 300 + seed)
        uninformed, informed = (Fusion.fit(fit[0], fit[1], groups=fit[2], prior=p) for p in (None, prior))
        gains.append(nll(uninformed, test) - nll(informed, test))
    assert np.mean(gains) > 0.02
    assert min(gains) > 0
    inverted = test[0], 1 - test[1], *test[2:]
    without_prior, fused = (Fusion.fit(*inverted[:2], groups=test[2], prior=p) for p in (None, prior))
    assert fused.prior_weight < 1e-6
    assert nll(fused, inverted) < nll(without_prior, inverted) + 0.002
    assert code_of(FusionPrior.from_fits, fits[:2]) == "few_models"


def test_the_worth_of_signals_is_told_apart():
    signals, correct, group, _ = draw(800, 6)
    worth = dict(Fusion.fit(signals, correct, groups=group, worth=True).worth)
    assert worth["stated"].low > 0
    assert worth["tokens"].low > 0
    assert worth["noise"].value < 0.01


def test_files_keep_every_bit(tmp_path):
    signals, correct, group, _ = draw(300, 7)
    fused = Fusion.fit(signals, correct, groups=group, worth=True)
    fused.save(tmp_path / "f.safetensors")
    loaded = Fusion.load(tmp_path / "f.safetensors")
    assert np.array_equal(loaded.coefficients, fused.coefficients)
    np.testing.assert_allclose(loaded.apply(signals, group), fused.apply(signals, group), rtol=1e-12, atol=0)
    assert loaded.worth == fused.worth
    p = fused.predictions(signals, correct, group)
    calibrators.save(calibrators.fit("Platt", p), tmp_path / "c.safetensors")
    assert code_of(Fusion.load, tmp_path / "c.safetensors") == "file_content"


def test_bad_input_is_refused():
    signals, correct, group, _ = draw(50, 8)
    assert code_of(Fusion.fit, signals, correct[:40]) == "shape"
    assert code_of(Fusion.fit, signals, correct + 1) == "correct_range"
    assert code_of(Fusion.fit, signals, correct[:, None]) == "correct_range"
    assert code_of(Fusion.fit, signals, ["yes"] * len(correct)) == "correct_range"
    assert code_of(Fusion.fit, signals, correct, groups=group[:3]) == "shape"
    fused = Fusion.fit(signals, correct)
    assert code_of(fused.apply, {"stated": [0.5]}) == "signals"
    assert code_of(fused.apply, np.zeros((5, 4))) == "signals"  # three signals
    assert code_of(Fusion.fit, signals, correct, groups=3) == "shape"
    assert code_of(fused.apply, {"stated": ["high"], "tokens": [0.1], "noise": [0.0]}) == "signals"


def test_priors_and_fusions_of_another_type_are_refused():
    signals, correct, *_ = draw(50, 8)
    fused = Fusion.fit(signals, correct)
    fit, from_fits = (inspect.unwrap(method.__func__) for method in (Fusion.fit, FusionPrior.from_fits))
    for prior in (fused, [fused] * 3, "prior.safetensors", {}, 0, FusionPrior):
        assert code_of(fit, Fusion, signals, correct, prior=prior) == "not_a_prior"
    prior = FusionPrior.from_fits([fused] * 3)
    for fits in ([fused, fused, prior], dict.fromkeys("abc", fused), "abc", None):
        assert code_of(from_fits, FusionPrior, fits) == "not_a_fusion"
    assert code_of(from_fits, FusionPrior, fused) == "few_models"


def draw_model(seed, n=1500, slope=1.0, level=0.0):
    """Return stated confidences of a model, its subjects, and whether its answers are right."""
    rng = np.random.default_rng(seed)
    z = rng.normal(1.0, 1.2, n)
    subject = rng.integers(0, 3, n)
    correct = (rng.random(n) < 1 / (1 + np.exp(-level - slope * z - 0.8 * (subject - 1)))).astype(int)
    return {"stated": (1 / (1 + np.exp(-z - 1))).round(2)}, correct, subject.astype(str)


def model_prior(slope=1.0, spread=0.2, seed=10, count=15):
    rng = np.random.default_rng(seed)
    models = [draw_model(seed + i, slope=rng.normal(slope, spread), level=rng.normal(-0.5, 0.7)) for i in range(count)]
    fits = [Fusion.fit(signals, correct, groups=subject, scale="probability") for signals, correct, subject in models]
    return FusionPrior.from_fits(fits)


def test_variables_on_the_scale_of_probabilities_are_those_of_beta_calibration():
    fused = Fusion.fit({"stated": [0.2, 0.0, np.nan, 0.9]}, [0, 0, 1, 1], scale="probability")
    columns = {"stated": np.array([0.2, 0.0, np.nan, 0.9])}
    names, x = fused.design(columns, None)
    assert names[1:] == ("stated log p", "stated -log(1 - p)", "stated is 0", "stated is missing")
    expected = [[np.log(0.2), -np.log(0.8)], [np.log(0.01), -np.log(0.99)], [0, 0], [np.log(0.9), -np.log(0.1)]]
    np.testing.assert_allclose(x[:, 1:3], expected, rtol=1e-12)
    assert x[:, 3:].tolist() == [[0, 0], [1, 0], [0, 1], [0, 0]]


def test_no_labels_give_the_mean_of_the_prior_with_its_groups():
    prior = model_prior()
    fused = Fusion.fit({"stated": np.empty(0)}, [], prior=prior)
    assert fused.scale == "probability"
    np.testing.assert_allclose(fused.coefficients, prior.mean, rtol=1e-9)
    np.testing.assert_allclose(fused.covariance, prior.covariance, rtol=1e-6, atol=1e-9)
    p = fused.apply({"stated": [0.8, 0.8]}, ["0", "2"])
    assert p[1] > p[0] + 0.1  # the subjects differ in all models


def test_few_labels_with_a_prior_are_better_than_alone():
    prior, gains = model_prior(), []
    for seed in range(8):
        fit, test = draw_model(200 + seed, n=20, level=1.0), draw_model(300 + seed, n=4000, level=1.0)
        losses = []
        for options in ({"prior": prior}, {"scale": "probability"}):
            fused = Fusion.fit(fit[0], fit[1], groups=fit[2], **options)
            losses.append(float(metrics.nll(fused.predictions(test[0], test[1], test[2]))))
        gains.append(losses[1] - losses[0])
    assert np.mean(gains) > 0.01


def test_a_signal_that_informs_only_in_models_of_the_prior_loses_its_weight():
    """Parts help a model whose second signal says nothing, and cost one that is like those of the prior little."""

    def draw_two(seed, n, slope):
        rng = np.random.default_rng(seed)
        z = rng.normal(size=(2, n))
        correct = (rng.random(n) < 1 / (1 + np.exp(-1.5 * z[0] - slope * z[1]))).astype(int)
        return dict(zip(("stated", "tokens"), 1 / (1 + np.exp(-z)), strict=True)), correct

    rng = np.random.default_rng(0)
    fits = [Fusion.fit(*draw_two(i, 1500, rng.normal(1.0, 0.2)), scale="probability") for i in range(8)]
    prior = FusionPrior.from_fits(fits)
    assert [part.signals for part in prior.parts] == [("tokens",), ("stated",)]

    def mean_gain(slope):
        test, gains = draw_two(99, 4000, slope), []
        for seed in range(8):
            labeled = draw_two(200 + seed, 60, slope)
            if prior.test(*labeled).p_value > 0.05:
                fits = [Fusion.fit(*labeled, prior=p) for p in (replace(prior, parts=()), prior)]
                without, averaged = (float(metrics.nll(fused.predictions(*test))) for fused in fits)
                gains.append(without - averaged)
        assert len(gains) >= 3
        return np.mean(gains)

    assert mean_gain(0.0) > 0.02
    assert mean_gain(1.0) > -0.01


def transferred_gains(prior, n, draws=10, **departure):
    """Return the mean gain of a prior over own labels on unseen answers, and its mean weight."""
    gains, weights = [], []
    for seed in range(draws):
        fit, test = draw_model(200 + seed, n=n, **departure), draw_model(300 + seed, n=3000, **departure)
        from_labels = Fusion.fit(fit[0], fit[1], groups=fit[2], scale="probability")
        fused = Fusion.fit(fit[0], fit[1], groups=fit[2], prior=prior)
        losses = [float(metrics.nll(f.predictions(test[0], test[1], test[2]))) for f in (from_labels, fused)]
        gains.append(losses[0] - losses[1])
        weights.append(fused.prior_weight)
    return np.mean(gains), np.mean(weights)


@pytest.mark.parametrize(
    "departure", [{"level": -5.0}, {"level": 4.0}, {"slope": -1.5, "level": 2.0}, {"slope": 4.0, "level": -2.0}]
)
def test_a_prior_that_labels_contradict_loses_its_weight(departure):
    """In accuracy alone, in order, and in spread: by more labels more, and from 100 on never far below own labels."""
    prior = model_prior()
    (few_gain, few_weight), (gain, weight) = (transferred_gains(prior, n, **departure) for n in (15, 100))
    assert weight < 0.1
    assert weight < few_weight
    assert gain > -0.02
    assert few_gain > -0.05  # fifteen labels hardly reveal a reversed order


def test_a_prior_that_labels_confirm_keeps_its_weight():
    prior = model_prior()
    gain, weight = transferred_gains(prior, 30, level=-0.5)
    assert weight > 0.5
    assert gain > 0.01


def test_a_prior_without_a_signal_is_nearly_that_of_fusions_without_it():
    models = [draw_model(400 + i, n=3000, level=0.1 * i) for i in range(4)]
    noise = np.random.default_rng(0).random(3000)
    full, reduced = (
        FusionPrior.from_fits([Fusion.fit(s | unrelated, y, scale="probability") for s, y, _ in models])
        for unrelated in ({"noise": noise}, {})
    )
    part = next(part for part in full.parts if part.signals == ("stated",))
    assert part.names == reduced.names
    np.testing.assert_allclose(part.mean, reduced.mean, rtol=0, atol=0.05)


@pytest.mark.slow
def test_the_level_of_the_transfer_test_holds_for_models_of_the_prior():
    prior = model_prior()
    rng = np.random.default_rng(0)
    factor = np.linalg.cholesky(prior.covariance)
    fused = Fusion.fit({"stated": np.empty(0)}, [], prior=prior)
    p_values = []
    for i in range(200):
        signals, _, subject = draw_model(500 + i, n=40)
        _, x = fused.design(signals, list(subject))
        beta = prior.mean + factor @ rng.normal(size=len(prior.mean))
        labels = (rng.random(40) < 1 / (1 + np.exp(-(x @ beta)))).astype(int)
        p_values.append(prior.test(signals, labels, groups=subject).p_value)
    assert np.mean(np.array(p_values) < 0.05) < 0.12
    assert 0.4 < np.mean(p_values) < 0.6


def test_the_transfer_test_finds_an_inverted_map():
    prior = model_prior()
    refused = []
    for seed in range(20):
        signals, correct, subject = draw_model(700 + seed, n=100)
        assert prior.test(signals, correct, groups=subject).p_value > 0.005
        refused.append(prior.test(signals, 1 - correct, groups=subject).p_value < 0.05)
    assert np.mean(refused) > 0.9
    assert prior.test(signals, 1 - correct, groups=subject).statistic < 0
    assert Fusion.fit(signals, 1 - correct, groups=subject, prior=prior).prior_weight < 0.01
    assert prior.test(signals, np.ones(100), groups=subject).p_value > 0.05  # a level alone is no evidence


def test_scales_are_checked_and_kept_in_files(tmp_path):
    prior, (signals, correct, subject) = model_prior(count=3), draw_model(1, n=60)
    ranked = Fusion.fit(signals, correct, groups=subject)
    fused = Fusion.fit(signals, correct, groups=subject, prior=prior, worth=True)
    assert code_of(Fusion.fit, signals, correct, prior=prior, scale="rank") == "scale"
    assert code_of(FusionPrior.from_fits, [ranked, fused, fused]) == "scale"
    assert code_of(Fusion.fit, {"stated": [2.0]}, [1], scale="probability") == "signal_range"
    assert code_of(Fusion.fit, {"stated": []}, [], scale="probability") == "correct_range"
    fused.save(tmp_path / "f.safetensors")
    loaded = Fusion.load(tmp_path / "f.safetensors")
    assert loaded.scale == "probability"
    np.testing.assert_allclose(loaded.apply(signals, subject), fused.apply(signals, subject), rtol=1e-12, atol=0)
