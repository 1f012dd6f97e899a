import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from scipy.optimize import brentq
from scipy.special import lambertw

from calibrant import losses, theory


@pytest.mark.parametrize("gamma", [0.0, 0.3, 0.5, 1.0, 2.0, 3.0, 5.0, 7.5])
def test_focal_gradient_is_that_of_cross_entropy_times_the_ratio(gamma):
    """Mukhoti et al. (2020), proposition 1."""
    generator = torch.Generator().manual_seed(7)
    z = (3 * torch.randn(300, 7, dtype=torch.float64, generator=generator)).requires_grad_()
    y = torch.arange(300) % 7
    (focal,) = torch.autograd.grad(losses.focal(z, y, gamma=gamma).sum(), z)
    (ce_gradient,) = torch.autograd.grad(losses.cross_entropy(z, y).sum(), z)
    p = z.softmax(-1).gather(-1, y[:, None]).detach()
    torch.testing.assert_close(focal, theory.gradient_ratio(p, gamma) * ce_gradient, atol=4e-10, rtol=0)


def test_the_ratio_at_its_ends_and_for_gamma_zero():
    p = torch.linspace(0, 1, 11)
    assert (theory.gradient_ratio(p, 0.0) == 1).all()
    assert theory.gradient_ratio(p, 3.0)[[0, -1]].tolist() == [1.0, 0.0]
    near_one = torch.tensor(1 - 1e-12, dtype=torch.float64)  # (1 - p)^gamma (1 + gamma) up there
    assert theory.gradient_ratio(near_one, 0.5).item() == pytest.approx(1.5e-6, rel=1e-4)


@pytest.mark.parametrize("gamma", [0.5, 2.0, 7.0, 10.0])
def test_the_ratio_at_one_half(gamma):
    assert theory.gradient_ratio(0.5, gamma).item() == pytest.approx(2**-gamma * (1 + gamma * math.log(2)), rel=1e-12)


def test_published_values_of_the_ratio():
    for p, gamma, value in ((0.19, 5, 1.0278), (0.2, 5, 0.9869), (0.5, 7, 0.04572)):
        assert theory.gradient_ratio(p, float(gamma)).item() == pytest.approx(value, abs=5e-5)


@settings(deadline=None, max_examples=25)
@given(gamma=st.floats(0.01, 50.0))
def test_the_ratio_rises_from_one_then_falls_to_zero(gamma):
    p = torch.linspace(0, 1, 2001, dtype=torch.float64)
    rising = theory.gradient_ratio(p, gamma).diff() > 1e-15
    assert rising.long().diff().clamp_min(0).sum() == 0  # never rises again
    assert theory.gradient_ratio(p, gamma)[-1] == 0


PUBLISHED = {
    0.05: 37.844779,
    0.10: 14.923993,
    0.19: 5.337039,
    0.20: 4.850554,
    0.25: 3.070227,
    0.30: 1.957170,
    0.40: 0.680508,
    0.49: 0.052447,
}


@pytest.mark.parametrize(("p0", "gamma"), PUBLISHED.items())
def test_gamma_for_known_thresholds(p0, gamma):
    assert theory.gamma_for(p0).item() == pytest.approx(gamma, abs=6e-7)
    root = brentq(lambda x: theory.gradient_ratio(p0, x).item() - 1, 1e-3, 500, xtol=1e-14)
    assert theory.gamma_for(p0).item() == pytest.approx(root, rel=1e-11)


def test_gamma_star_vanishes_at_one_half():
    assert theory.gamma_for(0.5).item() == pytest.approx(0, abs=1e-12)
    assert theory.gamma_for(0.5 - 1e-9).item() == pytest.approx(0, abs=1e-6)
    a, b = 0.5, 0.5 * math.log(0.5)
    assert -(a ** (1 - a / b)) / b * math.log(a) == pytest.approx(-1 / math.e, rel=1e-12)


@pytest.mark.parametrize(("p0", "trivial"), [(0.05, 0), (0.2, 0), (0.49, 0), (0.51, -1), (0.6, -1), (0.9, -1)])
def test_one_branch_of_lambert_always_gives_gamma_zero(p0, trivial):
    """The paper discards W_0 as negative; below 1/2 it is 0, and above it is W_-1 that is 0."""
    a, b = 1 - p0, p0 * math.log(p0)
    branches = {k: (a / b + lambertw(-(a ** (1 - a / b)) / b * math.log(a), k) / math.log(a)).real for k in (0, -1)}
    assert branches[trivial] == pytest.approx(0, abs=1e-11)
    assert branches[-1 - trivial] == pytest.approx(theory.gamma_for(p0).item(), rel=1e-11)
    assert (branches[-1 - trivial] > 0) == (p0 < 0.5)


@settings(deadline=None, max_examples=25)
@given(p0=st.floats(1e-6, 1 - 1e-6))
def test_gamma_for_solves_its_equation_and_the_threshold_inverts_it(p0):
    gamma = theory.gamma_for(p0).item()
    assert theory.gradient_ratio(p0, gamma).item() == pytest.approx(1, abs=1e-8)
    assert gamma > -1
    assert theory.confidence_threshold(gamma) == pytest.approx(p0, rel=1e-6, abs=1e-7)


@settings(deadline=None, max_examples=25)
@given(gamma=st.floats(0.01, 100.0), p=st.floats(1e-6, 1 - 1e-6))
def test_the_ratio_exceeds_one_exactly_below_the_threshold(gamma, p):
    p0 = theory.confidence_threshold(gamma)
    assert 0 < p0 < 0.5
    if abs(p - p0) > 1e-6:
        assert (theory.gradient_ratio(p, gamma).log().item() > 0) == (p < p0)


def test_known_thresholds():
    for gamma, p0 in ((5, 0.196803), (3, 0.252584), (2, 0.297637), (1, math.exp(-1))):
        assert theory.confidence_threshold(float(gamma)) == pytest.approx(p0, abs=6e-7)
    assert theory.confidence_threshold(0.0) == 0.5
    assert theory.confidence_threshold(1e-6) == pytest.approx(0.5, abs=1e-6)


def test_sample_dependent_gamma_is_clipped_gamma_star():
    p = torch.linspace(0, 1, 1001, dtype=torch.float64)
    gamma = theory.sample_dependent_gamma(p)
    torch.testing.assert_close(gamma[p < 0.1968], torch.full_like(gamma[p < 0.1968], 5.0))
    torch.testing.assert_close(gamma[p > 0.2526], torch.full_like(gamma[p > 0.2526], 3.0))
    middle = (p > 0.197) & (p < 0.2525)
    ratio = theory.gradient_ratio(p[middle], gamma[middle])
    torch.testing.assert_close(ratio, torch.ones_like(ratio))
    rounded = torch.where(p < 0.2, 5.0, 3.0).double()
    assert (gamma - rounded).abs().mean() < 0.05
    z, y = torch.randn(6, 4), torch.tensor([0, 1, 2, 3, 0, 1])
    p_y = z.softmax(-1).gather(-1, y[:, None]).squeeze(-1)
    values = losses.focal(z, y, gamma=theory.sample_dependent_gamma(p_y))
    torch.testing.assert_close(losses.flsd_continuous(z, y), values)


@pytest.mark.parametrize("p0", [0.0, 1.0, -0.1, math.nan])
def test_probabilities_of_0_and_1_have_no_gamma(p0):
    with refused("probability_range"):
        theory.gamma_for(p0)


def test_gammas_out_of_range_are_refused():
    with refused("gamma_range"):
        theory.confidence_threshold(-1.0)
    with refused("interval_order"):
        theory.sample_dependent_gamma(0.3, low=5.0, high=3.0)
