import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from scipy.optimize import minimize_scalar

from calibrant import losses, theory


def two(p: float) -> torch.Tensor:
    return torch.tensor([[p, 1 - p]], dtype=torch.float64).log()


def random_rows(k, seed, n=20, scale=2.0):
    return scale * torch.randn(n, k, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_focal_minimizer_for_a_probability_of_four_fifths():
    """Komisarenko & Kull (2024), section 3.1: 'around 0.62'."""

    def risk(q):
        return theory.conditional_risk(two(q), two(0.8), loss=lambda z, y: losses.focal(z, y, gamma=2.0)).item()

    minimizer = minimize_scalar(risk, bounds=(0.5, 0.99), method="bounded", options={"xatol": 1e-12}).x
    assert minimizer == pytest.approx(0.626614827, abs=1e-7)
    assert theory.focal_map_inverse(two(0.8), gamma=2.0).exp()[0, 0].item() == pytest.approx(0.626614827, abs=1e-9)


def test_every_gamma_moves_the_minimizer_further_from_the_truth_towards_one_half():
    q = [
        theory.focal_map_inverse(two(0.8), gamma=gamma).exp()[0, 0].item() for gamma in (1e-4, 0.5, 1.0, 3.0, 20.0, 1e3)
    ]
    assert q == sorted(q, reverse=True)
    assert q[0] == pytest.approx(0.8, abs=1e-4)
    assert q[-1] == pytest.approx(0.5, abs=1e-3)


@pytest.mark.parametrize("gamma", [-0.5, 0.5, 2.0, 5.0])
@pytest.mark.parametrize("k", [2, 3, 10])
def test_the_risk_of_focal_loss_is_flat_at_the_inverse_map(k, gamma):
    truth = random_rows(k, seed=k)
    q = theory.focal_map_inverse(truth, gamma=gamma).requires_grad_()

    def loss(z, y):  # for gamma < 0 too, which losses.focal refuses
        p = z.softmax(-1).gather(-1, y[:, None]).squeeze(-1)
        return -((1 - p) ** gamma) * p.log()

    risk = theory.conditional_risk(q, truth, loss=loss)
    (slope,) = torch.autograd.grad(risk.sum(), q)
    torch.testing.assert_close(slope, torch.zeros_like(slope), atol=1e-12, rtol=0)


@settings(deadline=None, max_examples=25)
@given(
    k=st.integers(2, 6),
    gamma=st.floats(0.0, 10.0),
    seed=st.integers(0, 500),
    distance=st.sampled_from([0.01, 0.3, 3.0]),
)
def test_the_proper_part_is_proper(k, gamma, seed, distance):
    truth = random_rows(k, seed)
    candidate = truth + random_rows(k, seed + 1, scale=distance)

    def loss(z, y):
        return theory.proper_part(z, y, gamma=gamma)

    regret = theory.conditional_risk(candidate, truth, loss=loss) - theory.conditional_risk(truth, truth, loss=loss)
    assert (regret > 0).all()


@pytest.mark.parametrize("gamma", [0.0, 1.0, 3.0])
def test_focal_loss_is_its_proper_part_after_the_map(gamma):
    z, y = random_rows(5, 3), torch.arange(20) % 5
    z.requires_grad_()
    focal_loss, parts = (
        losses.focal(z, y, gamma=gamma),
        theory.proper_part(theory.focal_map(z, gamma=gamma), y, gamma=gamma),
    )
    torch.testing.assert_close(parts, focal_loss, atol=1e-12, rtol=1e-10)
    (a,), (b,) = torch.autograd.grad(focal_loss.sum(), z), torch.autograd.grad(parts.sum(), z)
    torch.testing.assert_close(b, a, atol=1e-10, rtol=1e-8)  # training is the same, as the paper says
    if gamma == 0:
        torch.testing.assert_close(focal_loss, losses.cross_entropy(z, y))


def test_the_proper_part_crosses_focal_loss_at_one_half():
    """Komisarenko & Kull (2024), section 3.2: below focal loss for p < 1/2, above for p > 1/2."""
    p = torch.linspace(0.01, 0.99, 99, dtype=torch.float64)
    z, y = torch.stack([p, 1 - p], dim=-1).log(), torch.zeros(99, dtype=torch.int64)
    gap = theory.proper_part(z, y, gamma=3.0) - losses.focal(z, y, gamma=3.0)
    assert (gap[p < 0.499] < 0).all()
    assert (gap[p > 0.501] > 0).all()


@settings(deadline=None, max_examples=25)
@given(
    k=st.sampled_from([2, 3, 10, 100]),
    gamma=st.floats(0.0, 20.0),
    seed=st.integers(0, 500),
    scale=st.floats(0.01, 20.0),
)
def test_focal_loss_is_at_least_cross_entropy_minus_gamma_entropies(k, gamma, seed, scale):
    z, y = random_rows(k, seed, scale=scale), torch.arange(20) % k
    assert (losses.focal(z, y, gamma=gamma) - theory.kl_entropy_bound(z, y, gamma=gamma) >= -1e-12).all()


@pytest.mark.parametrize("gamma", [0.01, 0.3, 0.9])
def test_the_entropy_bound_holds_where_bernoulli_does_not(gamma):
    p = torch.cat([torch.logspace(-12, -0.302, 2000, dtype=torch.float64)])
    p = torch.cat([p, 1 - p])
    z, y = torch.stack([p.log(), torch.log1p(-p)], dim=-1), torch.zeros(4000, dtype=torch.int64)
    assert ((1 - p) ** gamma - (1 - gamma * p)).min() < -1e-4  # (1 - p)^gamma >= 1 - gamma p fails
    assert (losses.focal(z, y, gamma=gamma) - theory.kl_entropy_bound(z, y, gamma=gamma)).min() >= -1e-12


def test_impossible_classes_carry_no_risk():
    truth = torch.tensor([[1.0, 0.0]]).log()
    assert theory.conditional_risk(truth, truth, loss=losses.cross_entropy).tolist() == [0.0]


def test_the_proper_part_refuses_negative_gamma():
    with refused("gamma_range"):
        theory.proper_part(torch.zeros(1, 2), torch.tensor([0]), gamma=-0.5)
