"""Bands of curves hold everywhere at once, from twenty examples on."""

import numpy as np
import pytest
from scipy.special import expit

from calibrant import Predictions, metrics
from calibrant._core.kernels.bins import Events
from calibrant.metrics.curves import (
    corp_of,
    frequency_limits,
    precision_limits,
    risk_coverage_of,
    simultaneous_band,
    simultaneous_level,
)

ROUNDING = 1e-9


def draw_confidences(kind: str, n: int, rng: np.random.Generator) -> np.ndarray:
    c = rng.random(n)
    return {"spread": c, "high": 0.9 + 0.1 * c, "rounded": (10 * c).round() / 10}[kind]


def holds(low: np.ndarray, high: np.ndarray, truth: np.ndarray) -> bool:
    return bool(((low - ROUNDING <= truth) & (truth <= high + ROUNDING)).all())


def covered_shares(kind: str, n: int, shift: float, draws: int) -> dict[str, float]:
    """Return the share of draws in which each band holds the whole truth; confidences are `shift` too high."""
    rng, count = np.random.default_rng(n), dict.fromkeys(("bins", "thresholds", "risk"), 0)
    count |= {} if shift else {"corp": 0}
    for i in range(draws):
        c = draw_confidences(kind, n, rng)
        truth = (c - shift).clip(0, 1)
        events = Events(c, (rng.random(n) < truth).astype(float))
        true_events, by_score = Events(c, truth), events.by_score
        bins, true_bins = events.equal_width(15), true_events.equal_width(15)
        is_full = bins.count > 0
        low, high = frequency_limits(bins)
        count["bins"] += holds(low[is_full], high[is_full], true_bins.accuracy[is_full])
        curve, true_risk = risk_coverage_of(by_score), metrics.curves._ranking.risk_coverage(true_events.by_score)[1]
        count["risk"] += holds(curve.low, curve.high, true_risk)
        cuts = np.linspace(0, 1, 21)
        above = cuts[cuts <= c.max()]
        precision = np.array([truth[c >= cut - ROUNDING].mean() for cut in above])
        count["thresholds"] += holds(*precision_limits(by_score, above), precision)
        if "corp" in count:
            reliability = corp_of(by_score, 0.90, 100, i)
            count["corp"] += holds(reliability.low, reliability.high, reliability.y)
    return {name: value / draws for name, value in count.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "n", "shift"),
    [
        ("spread", 20, 0.0),
        ("high", 20, 0.1),
        ("rounded", 20, 0.0),
        ("spread", 50, 0.1),
        ("high", 50, 0.0),
        ("rounded", 50, 0.1),
        ("spread", 300, 0.1),
        ("rounded", 300, 0.0),
    ],
)
def test_bands_hold_simultaneously(kind, n, shift):
    assert min(covered_shares(kind, n, shift, 600).values()) >= 0.87  # 0.9 less two and a half standard errors


@pytest.mark.parametrize("spread", [2.0, 4.0])
def test_extreme_probabilities_do_not_widen_the_whole_band(spread):
    """With 2,000 examples of which many are nearly 0 or 1, the band is not the whole square."""
    rng = np.random.default_rng(0)
    c = expit(spread * rng.standard_normal(2000))
    curve = corp_of(Events(c, (rng.random(2000) < c).astype(float)).by_score, 0.9, 300, 0)
    assert (curve.high - curve.low).mean() < 0.3


def test_one_confidence_needs_no_adjustment():
    outcome = np.arange(50) % 2.0
    by_score = Events(np.full(50, 0.7), outcome).by_score
    assert simultaneous_level(by_score, 0.9) == pytest.approx(0.9, abs=0.015)
    distinct = Events(np.linspace(0, 1, 50), outcome).by_score
    assert 0.95 < simultaneous_level(distinct, 0.9) < 0.995


def test_integer_weights_are_copies():
    rng = np.random.default_rng(0)
    c, a, w = rng.random(30), rng.integers(2, size=30), np.arange(30) % 3 + 1
    weighted = metrics.curves.risk_coverage(Predictions.from_confidence(c, a, weights=w))
    copied = metrics.curves.risk_coverage(Predictions.from_confidence(c.repeat(w), a.repeat(w)))
    for name in ("x", "y", "low", "high"):
        np.testing.assert_allclose(getattr(weighted, name), getattr(copied, name), rtol=1e-7, atol=1e-7)


def test_clusters_widen_the_band():
    rng = np.random.default_rng(1)
    rows = np.tile(rng.random(40), 5), np.tile(rng.integers(2, size=40), 5)
    independent, clustered = (
        metrics.curves.risk_coverage(Predictions.from_confidence(*rows, clusters=clusters))
        for clusters in (None, np.tile(np.arange(40), 5))
    )
    assert (clustered.high - clustered.low).mean() > 1.5 * (independent.high - independent.low).mean()
    assert (clustered.low <= clustered.y).all()
    assert (clustered.y <= clustered.high).all()


def test_no_example_above_a_threshold_gives_no_information():
    by_score = Events(np.array([0.2, 0.4]), np.array([0.0, 1.0])).by_score
    low, high = precision_limits(by_score, np.array([0.3, 0.9]))
    assert (low[1], high[1]) == (0.0, 1.0)
    assert 0 < low[0] < high[0] == 1


@pytest.mark.slow
def test_band_of_drawn_curves_holds_a_further_curve():
    rng, inside = np.random.default_rng(2), 0
    for _ in range(200):
        curves = expit(rng.standard_normal((101, 30)).cumsum(1))
        inside += holds(*simultaneous_band(curves[1:], 0.9), curves[0])
    assert inside >= 0.85 * 200


def test_band_of_clusters_holds_the_curve_at_every_tie():
    """Sums of many equal confidences are rounded, and still belong to their own step of the curve."""
    rng = np.random.default_rng(0)
    c = rng.choice([0.85, 0.9, 0.95], 12_000)
    p = Predictions.from_confidence(c, (rng.random(12_000) < c).astype(int), clusters=np.arange(12_000))
    curve = metrics.curves.risk_coverage(p)
    assert curve.low is not None
    assert curve.high is not None
    assert ((curve.low <= curve.y) & (curve.y <= curve.high)).all()
