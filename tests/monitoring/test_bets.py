"""Bets, wealth and confidence sequences: identities, references, and error rates."""

import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import expit, gammainc, gammaln, logsumexp

from calibrant.monitoring import mean_sequence, time_uniform_bound
from calibrant.monitoring._bets import BETS, CELL_EDGES, LOG_BET_WEIGHTS, MAX_STAKE, MIN_FACTOR, STAKES, bet_factors
from calibrant.monitoring._evidence import LOOK_ROWS, START_ROWS, SUM_NAMES, Wealth, reserve_after

CONFIDENCES = np.concatenate([[0.0, 1e-300, 1e-9], np.linspace(0.001, 0.999, 997), CELL_EDGES, [1 - 1e-12, 1.0]])


def test_factors_are_positive_and_have_mean_one():
    """A bet on a calibrated event is fair at every confidence, 0 and 1 included."""
    lost, won = (bet_factors(CONFIDENCES, np.full_like(CONFIDENCES, y)) for y in (0.0, 1.0))
    assert min(lost.min(), won.min()) >= MIN_FACTOR - 1e-12
    mean = CONFIDENCES[:, None] * won + (1 - CONFIDENCES[:, None]) * lost
    np.testing.assert_allclose(mean, 1, atol=1e-12)


def test_factor_at_the_center_of_a_cell_is_the_likelihood_ratio():
    z = (np.log(CELL_EDGES / (1 - CELL_EDGES))[1:] + np.log(CELL_EDGES / (1 - CELL_EDGES))[:-1]) / 2
    c = expit(z)
    for i, bet in enumerate(BETS):
        q = bet.alternative(c, z)
        stakes = STAKES[1:-1, i]
        free = (np.abs(stakes) < MAX_STAKE) & (np.abs(stakes - (q - c) / (c * (1 - c))) < 1e-9)
        assert free.mean() > (0.99 if bet.kind == "shift" else 0.3)
        won = bet_factors(c, np.ones_like(c))[:, i]
        np.testing.assert_allclose(won[free], (q / c)[free], rtol=1e-9)


def test_weights_of_bets_sum_to_one():
    assert np.exp(LOG_BET_WEIGHTS).sum() == pytest.approx(1)


def test_wealth_is_the_sum_over_bets_and_starting_times():
    """Compare the recursion with the definition of the mixture."""
    looks = 3 * START_ROWS // LOOK_ROWS + 4
    log_factors = 0.3 * np.random.default_rng(0).standard_normal((looks, 2, len(BETS)))
    thresholds = np.full(2, np.inf)
    wealth, totals = Wealth.empty(2).advance(0, log_factors, np.ones((looks, 2, len(SUM_NAMES))), thresholds)
    reserve = np.exp(reserve_after(np.arange(1, 5)))
    pieces = np.concatenate([[0.5], reserve[:-1] - reserve[1:]])
    per_start = START_ROWS // LOOK_ROWS
    parts = [np.log(piece) + log_factors[j * per_start :].sum(0) for j, piece in enumerate(pieces)]
    expected = logsumexp(np.logaddexp(logsumexp(parts, axis=0), np.log(reserve[-1])) + LOG_BET_WEIGHTS, axis=1)
    np.testing.assert_allclose(wealth.total, expected, rtol=1e-10)
    products = [log_factors[j * per_start :].sum(0) for j in range(len(pieces))]
    np.testing.assert_allclose(wealth.best, np.max(products, axis=0), rtol=1e-10)
    np.testing.assert_array_equal(wealth.best_start, START_ROWS * np.argmax(products, axis=0))
    np.testing.assert_allclose(wealth.peak, np.maximum(totals.max(0), 0))


def simulate_wealth(streams, looks, truth_slope=1.0, seed=0):
    """Return the log wealth of streams at every look, for events with true logits of `truth_slope` times the stated."""
    rng = np.random.default_rng(seed)
    wealth, totals = Wealth.empty(streams), []
    for look in range(looks):
        z = 1.5 * rng.standard_normal((LOOK_ROWS, streams))
        outcome = (rng.random(z.shape) < expit(truth_slope * z)).astype(float)
        log_factors = np.log(bet_factors(expit(z), outcome)).sum(0)
        sums = np.zeros((1, streams, len(SUM_NAMES)))
        wealth, total = wealth.advance(look * LOOK_ROWS, log_factors[None], sums, np.full(streams, np.log(20)))
        totals.append(total[0])
    return np.array(totals), wealth


def test_calibrated_streams_have_mean_wealth_one_and_few_alarms():
    totals, _ = simulate_wealth(4000, 5)
    wealth = np.exp(totals[-1])
    assert abs(wealth.mean() - 1) < 5 * wealth.std() / math.sqrt(4000)
    totals, state = simulate_wealth(600, 60, seed=1)
    assert (totals.max(0) >= math.log(20)).mean() < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 600)
    np.testing.assert_array_equal(state.alarm_row >= 0, totals.max(0) >= math.log(20))


def test_overconfident_streams_raise_alarms():
    totals, state = simulate_wealth(50, 100, truth_slope=0.5)
    assert (state.alarm_row >= 0).all()
    first = (totals >= math.log(20)).argmax(0)
    np.testing.assert_array_equal(state.alarm_row, (first + 1) * LOOK_ROWS)


# Confidence sequences


@pytest.mark.parametrize(("variance", "error_rate"), [(0.0, 0.05), (3.0, 0.025), (400.0, 0.01)])
def test_bound_solves_the_mixture_integral(variance, error_rate):
    """Integrate exp(s x - v (-log(1 - x) - x)) over the density of the mixture."""
    tuning = 50.0
    rho = tuning / (2 * math.log(1 / error_rate) + math.log1p(2 * math.log(1 / error_rate)))
    log_constant = rho * math.log(rho) - gammaln(rho) - math.log(gammainc(rho, rho))
    s = time_uniform_bound(variance, error_rate, tuning)

    def integrand(x):
        density = log_constant + (rho - 1) * math.log1p(-x) - rho * (1 - x)
        return math.exp(density + s * x + variance * (math.log1p(-x) + x))

    assert quad(integrand, 0, 1, limit=200)[0] == pytest.approx(1 / error_rate, rel=1e-6)


@pytest.mark.slow
def test_sequences_cover_a_drifting_mean_at_all_times():
    rng = np.random.default_rng(0)
    looks, missed = np.unique(np.geomspace(5, 4000, 12).astype(int)), 0
    drift = np.linspace(-0.15, 0.1, 4000)
    for _ in range(60):
        c = rng.uniform(0.2, 0.8, 4000)
        y = rng.random(4000) < c + drift
        residual = y - c
        total, variance, truth = residual.cumsum(), (residual**2).cumsum(), drift.cumsum()
        options = {"scale": 1.0, "limits": (-1.0, 1.0), "level": 0.95}
        sequences = [mean_sequence(float(n), float(total[n - 1]), float(variance[n - 1]), **options) for n in looks]
        missed += not all(s.low <= truth[n - 1] / n <= s.high for n, s in zip(looks, sequences, strict=True))
    assert missed <= 6


def test_sequence_of_no_rows_is_the_whole_range():
    empty = mean_sequence(0.0, 0.0, 0.0, scale=1.0, limits=(-1.0, 1.0), level=0.95)
    assert (empty.low, empty.high) == (-1, 1)
