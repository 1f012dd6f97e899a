"""Decision curves: published formulas, paired differences, other prevalences, and the coverage of bands."""

import json

import numpy as np
import pytest
from refusals import code_of
from scipy.special import expit, softmax

from calibrant import Predictions
from calibrant.decisions import net_benefit

CUTS = [0.05, 0.1, 0.3, 0.5, 0.8]


def draw(n, seed, mean=-1.0, **options):
    """Draw an overconfident model and a noisier one, for the same examples."""
    rng = np.random.default_rng(seed)
    logit = rng.normal(mean, 1.2, n)
    y = (rng.random(n) < expit(logit)).astype(int)
    risks = expit(1.5 * logit), expit(logit + rng.normal(0, 0.7, n))
    return tuple(Predictions.from_probs(risk, y, **options) for risk in risks)


def rates(p, t):
    """Return prevalence, sensitivity and false positive rate of acting from t on."""
    risk, y = softmax(p.logits, 1)[:, 1], p.labels
    act = risk >= t * (1 - 1e-12)
    return y.mean(), act[y == 1].mean(), act[y == 0].mean()


@pytest.mark.parametrize("seed", range(20))
def test_net_benefit_equals_the_published_formulas(seed):
    """Vickers & Elkin (2006), by sensitivity and specificity at another prevalence, and Kerr et al. (2016)."""
    a, b = draw(150 + 20 * seed, seed)
    observed, standard = net_benefit(a, b, thresholds=CUTS), net_benefit(a, b, thresholds=CUTS, standardized=True)
    shifted = net_benefit(a, b, thresholds=CUTS, prevalence=0.4)
    shifted_standard = net_benefit(a, b, thresholds=CUTS, prevalence=0.4, standardized=True)
    for i, t in enumerate(CUTS):
        odds = t / (1 - t)
        f, sensitivity, alarms = rates(a, t)
        _, second_sensitivity, second_alarms = rates(b, t)
        model, treat_all = f * sensitivity - (1 - f) * odds * alarms, f - (1 - f) * odds
        second = f * second_sensitivity - (1 - f) * odds * second_alarms
        at_40 = 0.4 * sensitivity - 0.6 * odds * alarms
        for value, expected in (
            (observed.model, model),
            (observed.treat_all, treat_all),
            (observed.over_all.value, model - treat_all),
            (observed.over_second.value, model - second),
            (standard.model, model / f),
            (standard.over_second.value, (model - second) / f),
            (shifted.model, at_40),
            (shifted.treat_all, 0.4 - 0.6 * odds),
            (shifted.over_all.value, at_40 - 0.4 + 0.6 * odds),
            (shifted_standard.model, at_40 / 0.4),
        ):
            assert float(value[i]) == pytest.approx(expected, abs=1e-9)


def test_limits_at_one_threshold_are_those_of_the_mean_of_paired_gains():
    a, b = draw(4000, seed=3)
    t = 0.2
    y, act, second_act = a.labels, *(softmax(m.logits, 1)[:, 1] >= t for m in (a, b))
    gains = (act * 1.0 - second_act) * (y - 0.25 * (1 - y))
    half = 1.6449 * gains.std(ddof=1) / 4000**0.5
    difference = net_benefit(a, b, thresholds=[t]).over_second
    assert float(difference.low[0]) == pytest.approx(gains.mean() - half, abs=0.2 * half)
    assert float(difference.high[0]) == pytest.approx(gains.mean() + half, abs=0.2 * half)
    assert np.array_equal(difference.low, difference.band_low)  # one threshold needs no correction


def test_bands_are_wider_than_intervals_and_narrower_than_bonferroni():
    a, b = draw(500, seed=4)
    curve, bonferroni = (net_benefit(a, b, thresholds=CUTS, level=level) for level in (0.9, 0.98))
    for part, outer in ((curve, bonferroni), (curve.over_all, bonferroni.over_all)):
        assert bool((part.band_low < part.low).all())
        assert bool((part.band_high > part.high).all())
        assert bool((part.band_low > outer.low).all())
    assert bool((curve.over_second.band_low < curve.over_second.high).all())


def test_weights_are_copies_and_clusters_widen_the_limits():
    p, _ = draw(300, seed=5)
    risk, y = softmax(p.logits, 1)[:, 1], p.labels
    repeated = Predictions.from_probs(np.tile(risk, 2), np.tile(y, 2))
    weighted = Predictions.from_probs(risk, y, weights=[2.0] * 300, weights_are="counts")
    clustered = Predictions.from_probs(np.tile(risk, 2), np.tile(y, 2), clusters=np.tile(np.arange(300), 2))
    single, doubled, counted, alike = (
        net_benefit(x, thresholds=CUTS, standardized=True) for x in (p, repeated, weighted, clustered)
    )
    assert np.allclose(doubled.over_all.band_low, counted.over_all.band_low, atol=1e-9)
    width, doubled_width, alike_width = (c.over_all.high - c.over_all.low for c in (single, doubled, alike))
    assert bool((doubled_width < 0.85 * width).all())
    assert np.allclose(alike_width, width, rtol=0.1)


def test_thresholds_may_have_any_order():
    p, _ = draw(200, seed=6)
    forward, backward = net_benefit(p, thresholds=CUTS), net_benefit(p, thresholds=CUTS[::-1])
    assert np.allclose(forward.band_low, np.flip(backward.band_low), atol=1e-3)  # another order of the draws
    assert np.array_equal(forward.model, np.flip(backward.model))


def test_thresholds_that_nobody_reaches_keep_limits():
    p = Predictions.from_probs([0.1, 0.2, 0.15, 0.1] * 10, [0, 1, 0, 0] * 10)
    curve = net_benefit(p, thresholds=[0.8, 0.9])
    assert curve.model.tolist() == [0, 0]
    assert bool((curve.low < 0).all())
    assert bool((curve.high > 0).all())


def test_net_benefit_refuses_what_has_no_answer():
    p, q = draw(50, seed=7)
    negative = Predictions.from_probs([0.1, 0.2], [0, 0])
    assert code_of(net_benefit, negative, of=1, standardized=True) == "one_outcome"
    assert code_of(net_benefit, negative, of=1, prevalence=0.1) == "one_outcome"
    assert code_of(net_benefit, p, prevalence=1.0) == "prevalence_range"
    assert code_of(net_benefit, p, q[:40]) is not None


def test_net_benefit_says_where_the_model_is_better():
    a, b = draw(3000, seed=8)
    curve = net_benefit(a, b)
    useful = curve.threshold[curve.useful]
    assert 0 < len(useful) < 99
    document = curve.document()
    assert f"{float(useful.min()):g} to {float(useful.max()):g}" in document.title
    table = document.sections[0].parts[0]
    assert len(table.rows) == 12
    assert "second" in table.head[-1]
    numbers = json.loads(curve.json())
    assert numbers["over_all"]["band_low"] == pytest.approx(curve.over_all.band_low.tolist())
    assert "At no threshold" in net_benefit(a[:10]).document().title


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "mean", "settings"),
    [(200, -1.0, {}), (200, -1.0, {"standardized": True, "prevalence": 0.3}), (2000, -4.0, {"standardized": True})],
)
def test_bands_hold_at_all_thresholds(n, mean, settings):
    """Of 300 bands at the level .90, at least 264 hold the true net benefit at all thresholds, up to chance."""
    cuts = np.arange(0.02, 0.99, 0.03)
    truth = net_benefit(*draw(2_000_000, seed=10**6, mean=mean), thresholds=cuts, **settings)
    truths = truth.model, truth.over_all.value, truth.over_second.value
    hits = np.zeros(3)
    for seed in range(300):
        curve = net_benefit(*draw(n, seed, mean=mean), thresholds=cuts, **settings)
        for i, (part, expected) in enumerate(zip((curve, curve.over_all, curve.over_second), truths, strict=True)):
            hits[i] += bool(((part.band_low <= expected) & (expected <= part.band_high)).all())
    assert hits.min() >= 264 - 2 * (300 * 0.9 * 0.1) ** 0.5
