"""The omnibus test: its definition, its moments, its level, and its power against errors whose sign alternates."""

import itertools
import math

import numpy as np
import pytest

from calibrant import Predictions, measure, metrics
from calibrant._core.kernels.bins import Events
from calibrant.metrics import Summary
from calibrant.metrics._omnibus import SmoothForm


def draw(n: int, rng: np.random.Generator, error: float = 0.0, bands: int = 5) -> Events:
    """Draw events with uniform confidences, whose error has another sign in every other band of confidences."""
    c = rng.random(n)
    sign = np.where(np.floor(c * bands) % 2 == 0, 1.0, -1.0)
    return to_events(c, rng.random(n) < np.clip(c + error * sign, 0, 1))


def to_events(c, outcome, **columns) -> Events:
    return Events(np.asarray(c), np.asarray(outcome, dtype=float), **columns)


def reject_share(events: list[Events], name: str) -> float:
    return float(np.mean([getattr(metrics, name).test(e).p_value <= 0.05 for e in events]))


def test_smooth_error_is_the_mean_square_of_integrated_cosines():
    rng = np.random.default_rng(0)
    c, a = np.sort(rng.random(40)), rng.random(40) < 0.5
    end = np.concatenate([[0], np.cumsum(c * (1 - c))])
    end /= end[-1]
    squares, weights = 0.0, 0.0
    for j in range(1, 33):
        primitive = math.sqrt(2) * np.sin(math.pi * j * end) / (math.pi * j)
        coefficient = float(((a - c) * np.diff(primitive) / np.diff(end)).sum()) / 40
        weight = 1 / (1 + (j / 8) ** 2)
        squares, weights = squares + weight * coefficient**2, weights + weight
    form, residual = SmoothForm.from_scores(to_events(c, a).by_score)
    assert form.error(residual) == pytest.approx(math.sqrt(squares / weights), rel=1e-9)


@pytest.mark.parametrize(("error", "bands", "is_smooth"), [(0.3, 20, True), (0.3, 1, False)])
def test_omnibus_error_is_the_larger_of_both(error, bands, is_smooth):
    events = draw(2000, np.random.default_rng(2), error, bands)
    form, residual = SmoothForm.from_scores(events.by_score)
    smooth, kuiper = form.error(residual), float(metrics.kuiper(events))
    assert (smooth > kuiper) is is_smooth
    assert float(metrics.omnibus(events)) == pytest.approx(max(smooth, kuiper), rel=1e-12)


def test_moments_of_single_examples_are_those_of_all_their_outcomes():
    c = np.array([0.02, 0.1, 0.3, 0.45, 0.8, 0.9, 0.97])
    form = SmoothForm(c, np.ones(7))
    outcomes = np.array(list(itertools.product([0.0, 1.0], repeat=7)))
    probability = np.where(outcomes == 1, c, 1 - c).prod(1)
    statistic = form.statistic(outcomes - c)
    exact = [float(probability @ statistic**power) for power in (1, 2, 3)]
    assert [0.0, *form.null_moments()] == pytest.approx(exact, rel=1e-9, abs=1e-12)


def test_omnibus_test_detects_alternating_errors_that_kuiper_misses():
    rng = np.random.default_rng(1)
    events = [draw(1000, rng, 0.08) for _ in range(50)]
    assert reject_share(events, "kuiper") < 0.6
    assert reject_share(events, "omnibus") > 0.9


@pytest.mark.slow
def test_omnibus_test_has_almost_the_power_of_kuiper_against_overconfidence():
    rng, events = np.random.default_rng(2), []
    for _ in range(100):
        c = rng.uniform(0.5, 1, 600)
        events.append(to_events(c, rng.random(600) < c - 0.05))
    assert 0.5 < reject_share(events, "kuiper") < 0.95
    assert reject_share(events, "omnibus") >= reject_share(events, "kuiper") - 0.05


def rare(n: int, rng: np.random.Generator) -> np.ndarray:
    return np.clip(0.03 * np.exp(rng.standard_normal(n)), 0, 1)


@pytest.mark.parametrize(
    "confidences",
    [
        pytest.param(lambda n, rng: rng.random(n), id="continuous"),
        pytest.param(lambda n, rng: np.ceil(10 * rng.random(n)) / 10 - 0.05, id="rounded"),
        pytest.param(lambda n, rng: rng.choice([0.6, 0.9], n), id="two values"),
        pytest.param(rare, id="rare events"),
    ],
)
@pytest.mark.parametrize("n", [50, 1000])
def test_omnibus_test_holds_its_level(confidences, n):
    rng, events = np.random.default_rng(n), []
    for _ in range(40):
        c = confidences(n, rng)
        events.append(to_events(c, rng.random(n) < c))
    assert reject_share(events, "omnibus") <= 0.175  # 2 of 40 expected; 7 are exceeded with probability 0.0007


def test_without_two_confidences_the_omnibus_test_is_that_of_kuiper():
    for c in (np.full(50, 0.7), np.tile([0.0, 0.3, 1.0], 20)):
        events = to_events(c, np.arange(len(c)) % 3 == 2)
        assert metrics.omnibus.test(events) == metrics.kuiper.test(events)


def test_certain_predictions_are_rejected_by_one_error_alone():
    c = np.tile([0.0, 1.0], 5)
    assert metrics.omnibus.test(to_events(c, c)).p_value == 1
    assert metrics.omnibus.test(to_events(c, np.ones(10))).p_value == 0


def test_summary_has_the_omnibus_test_of_its_rows():
    rng = np.random.default_rng(3)
    c = rng.random(3000)
    p = Predictions.from_probs(c, (rng.random(3000) < c + 0.08 * np.sin(12 * c)).astype(int)).with_event(1)
    of_rows, of_sums = metrics.omnibus.test(p), metrics.omnibus.test(Summary.from_predictions(p))
    assert of_sums.statistic == pytest.approx(of_rows.statistic, abs=1e-4)
    assert of_sums.p_value == pytest.approx(of_rows.p_value, rel=0.05)


def test_verdict_has_the_p_value_of_the_omnibus_test():
    events = draw(2000, np.random.default_rng(5), 0.1, bands=10)
    measured = measure(Predictions.from_probs(events.confidence, events.outcome.astype(int)))
    assert measured.verdict.is_miscalibrated
    assert measured["kuiper"].p_value > 0.05 > measured["omnibus"].p_value == measured.verdict.p_value


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("hits", [4, 5, 6])
def test_kuiper_p_value_of_rare_events_is_not_below_their_probability(hits, flip):
    c = np.full(1000, 0.0005)
    outcome = np.arange(1000) % 1000 < hits
    if flip:
        c, outcome = 1 - c, ~outcome
    exact = 1 - sum(0.5**k * math.exp(-0.5) / math.factorial(k) for k in range(hits))  # Poisson, 1/2 event expected
    assert metrics.kuiper.test(to_events(c, outcome)).p_value > exact / 1.2
