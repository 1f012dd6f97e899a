import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from calibrant import theory

CLASSES = (2, 3, 10, 100, 1000)


def authors_map(q: torch.Tensor, gamma: float) -> torch.Tensor:
    """Return the map of Komisarenko & Kull (2024, eq. 1) in probabilities."""
    weight = 1 / ((1 - q) ** gamma * (1 / q - gamma * q.log() / (1 - q)))
    return weight / weight.sum(-1, keepdim=True)


def rows(k: int, scale: float, n: int = 300) -> torch.Tensor:
    generator = torch.Generator().manual_seed(k)
    return scale * torch.randn(n, k, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize("gamma", [-0.9, -0.5, -0.25, 0.05, 0.5, 1.0, 3.0, 5.0, 10.0])
@pytest.mark.parametrize("k", CLASSES)
def test_map_equals_the_authors_formula_where_that_is_stable(k, gamma):
    z = rows(k, 1.0)
    torch.testing.assert_close(theory.focal_map(z, gamma=gamma).exp(), authors_map(z.softmax(-1), gamma))


@pytest.mark.parametrize("gamma", [-0.9, -0.5, 0.5, 3.0, 10.0])
def test_the_map_is_finite_and_precise_on_saturated_float32_rows(gamma):
    z = torch.tensor(
        [[0.0, -30.0, -35.0], [0.0, -90.0, -95.0], [1e4, 0.0, -1e4], [0.0, -1e-4, -3.0], [0.0, 0.0, -1e30]]
    )
    in_single, in_double = theory.focal_map(z, gamma=gamma), theory.focal_map(z.double(), gamma=gamma)
    assert in_single.isfinite().all()
    torch.testing.assert_close(in_single.exp(), in_double.float().exp(), atol=1e-5, rtol=0)
    torch.testing.assert_close(in_single, in_double.float(), atol=1e-5, rtol=1e-5)
    # 1 - q = s is tiny: the odds of the top class become (1 + gamma) s^-gamma times larger
    s = math.exp(-30) + math.exp(-35)
    odds = in_double[0, 0] - in_double[0, 1]
    assert odds.item() == pytest.approx(30 - gamma * math.log(s) - math.log1p(gamma), abs=1e-9)


@pytest.mark.parametrize("gamma", [-0.5, 0.0, 2.0])
def test_impossible_classes_stay_impossible(gamma):
    z = torch.tensor([[0.0, -math.inf, -math.inf], [0.0, 1.0, -math.inf], [-math.inf, 7.0, -math.inf]])
    p = theory.focal_map(z, gamma=gamma).exp()
    torch.testing.assert_close(p[[0, 2]], torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]))
    torch.testing.assert_close(p[1, :2], theory.focal_map(z[1:2, :2], gamma=gamma).exp()[0])


def test_map_and_inverse_differentiate_in_logits_and_gamma():
    z = rows(4, 2.0, n=5).requires_grad_()
    gamma = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    for function in theory.focal_map, theory.focal_map_inverse:
        assert torch.autograd.gradcheck(lambda z, gamma, f=function: f(z, gamma=gamma), (z, gamma))
    hard = torch.tensor([[1e4, 0.0, 0.0], [0.0, -math.inf, 1.0], [0.0, -math.inf, -math.inf]], requires_grad=True)
    (slope,) = torch.autograd.grad(theory.focal_map(hard, gamma=2.0)[:, 0].sum(), hard)
    assert slope.isfinite().all()


def test_the_map_refuses_gamma_of_minus_one_and_below():
    with refused("gamma_range"):
        theory.focal_map(torch.zeros(1, 2), gamma=-1.0)


def test_gamma_zero_is_the_identity():
    z = rows(10, 3.0)
    torch.testing.assert_close(theory.focal_map(z, gamma=0.0), z.log_softmax(-1))
    torch.testing.assert_close(theory.focal_map_inverse(z, gamma=0.0), z.log_softmax(-1))


gammas = st.floats(-0.99, 20.0)
scales = st.sampled_from([0.01, 0.3, 1.0, 4.0, 20.0, 300.0])


@settings(deadline=None, max_examples=25)
@given(k=st.sampled_from(CLASSES), gamma=gammas, scale=scales, seed=st.integers(0, 1000))
def test_map_preserves_the_order_of_classes(k, gamma, scale, seed):
    z = scale * torch.randn(5, k, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    mapped = theory.focal_map(z, gamma=gamma)
    assert (mapped.argmax(-1) == z.argmax(-1)).all()
    inside = mapped.gather(-1, z.argsort(-1)).diff(dim=-1)
    assert (inside >= -1e-12 * (1 + mapped.abs().amax())).all()


@pytest.mark.parametrize("gamma", [-0.9, -0.25, 0.0, 0.5, 3.0, 20.0])
def test_an_exact_tie_keeps_its_first_class(gamma):
    z = torch.tensor([[2.0, 3.0, 3.0, 3.0], [1.0, 0.0, 1.0, -9.0]], dtype=torch.float64)
    assert theory.focal_map(z, gamma=gamma).argmax(-1).tolist() == [1, 0]
    assert theory.focal_map_inverse(z, gamma=gamma).argmax(-1).tolist() == [1, 0]


@settings(deadline=None, max_examples=25)
@given(k=st.sampled_from(CLASSES), gamma=gammas, scale=scales, seed=st.integers(0, 1000))
def test_map_and_inverse_are_inverse(k, gamma, scale, seed):
    z = scale * torch.randn(20, k, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    p = z.softmax(-1)
    recovered = theory.focal_map_inverse(theory.focal_map(z, gamma=gamma), gamma=gamma)
    back = theory.focal_map(theory.focal_map_inverse(z, gamma=gamma), gamma=gamma)
    torch.testing.assert_close(recovered.exp(), p, atol=1e-12, rtol=0)
    torch.testing.assert_close(back.exp(), p, atol=1e-12, rtol=0)


@pytest.mark.parametrize("gamma", [-0.999, -0.9, -0.5, 0.1, 1.0, 5.0, 20.0])
@pytest.mark.parametrize("k", CLASSES)
def test_sparse_predictions_survive_the_round_trip_in_log_space(k, gamma):
    alpha = torch.full((k,), 0.05, dtype=torch.float64)
    torch.manual_seed(k)
    z = torch.distributions.Dirichlet(alpha).sample((50,)).clamp_min(1e-250).log()
    back = theory.focal_map(theory.focal_map_inverse(z, gamma=gamma), gamma=gamma)
    torch.testing.assert_close(back, z.log_softmax(-1), atol=1e-10, rtol=1e-10)


def test_inverse_preserves_probabilities_of_0_and_1():
    z = torch.tensor([[0.0, -math.inf, -math.inf], [0.0, 1.0, -math.inf]])
    for gamma in (-0.5, 0.0, 2.0):
        q = theory.focal_map_inverse(z, gamma=gamma)
        assert q.dtype == z.dtype
        assert q[0].tolist() == [0.0, -math.inf, -math.inf]
        torch.testing.assert_close(theory.focal_map(q, gamma=gamma).exp(), z.softmax(-1))


def test_inverse_of_nan_raises():
    with pytest.raises(ArithmeticError, match="1 rows"):
        theory.focal_map_inverse(torch.tensor([[0.0, math.nan], [0.0, 1.0]]), gamma=1.0)


def test_weights_are_not_positive_below_minus_one_nor_monotone_below_zero():
    q = torch.linspace(1e-6, 1 - 1e-6, 20001, dtype=torch.float64)
    assert theory.gradient_ratio(q, -1.2).min() < 0 < theory.gradient_ratio(q, -0.999).min()
    for gamma, monotone in ((-0.5, False), (-0.1, False), (0.5, True), (7.0, True)):
        assert bool(((q / theory.gradient_ratio(q, gamma)).diff() > 0).all()) is monotone


def test_clamping_probabilities_as_the_published_code_does_caps_the_confidence():
    q = torch.nn.functional.one_hot(torch.tensor([0]), 100).double()
    clamped = authors_map(q.clamp(1e-12, 1 - 1e-12), -0.5)
    assert 1 - clamped[0, 0].item() == pytest.approx(4.95e-5, rel=1e-2)
    assert theory.focal_map(q.log(), gamma=-0.5)[0, 0].item() == 0


def worst_drop(gamma, k, top):
    """Return the drop in confidence for these top probabilities, with the rest spread evenly."""
    q = torch.cat([top[:, None], ((1 - top) / (k - 1))[:, None].expand(-1, k - 1)], dim=-1)
    return (q[:, 0] - theory.focal_map(q.log(), gamma=gamma).exp()[:, 0]).max().item()


@pytest.mark.parametrize(
    ("k", "gamma", "top", "mapped"),
    [
        (100, 1.0, 0.02, 0.019584),
        (10, 1.0, 0.11, 0.109751),
        (10, 1.0, 0.13, 0.129398),
        (1000, 3.0, 0.003, 0.002927),
        (5, 0.01, 0.201, 0.2009999841),
        (100, 1.0, 0.12, 0.110465),
    ],
)
def test_proposition_5_as_printed_fails_below_the_threshold(k, gamma, top, mapped):
    assert top < theory.confidence_threshold(gamma)
    assert worst_drop(gamma, k, torch.tensor([top], dtype=torch.float64)) == pytest.approx(top - mapped, rel=1e-2)


def test_proposition_5_fails_for_four_classes_too():
    q = torch.tensor([[0.32, 0.32, 0.32, 0.04]], dtype=torch.float64)
    assert 0.32 - theory.focal_map(q.log(), gamma=0.25).exp()[0, 0].item() == pytest.approx(8.48e-5, rel=1e-2)


def test_the_largest_drop_of_confidence_is_a_fortieth():
    """With infinitely many other classes p = t / (t + (1 - t) g(t)): t - p is at most 0.02486, at gamma = 3.8."""
    top = torch.linspace(0.01, 0.5, 491, dtype=torch.float64)
    assert worst_drop(3.8, 100, top) == pytest.approx(0.0141, abs=5e-5)
    assert worst_drop(3.8, 20000, top[::10]) == pytest.approx(0.02486, abs=2e-4)


@settings(deadline=None, max_examples=25)
@given(
    k=st.sampled_from([2, 3, 4, 5, 10, 100]),
    gamma=st.one_of(st.floats(1e-3, 20.0), st.floats(-0.99, -1e-3)),
    excess=st.floats(0.0, 1.0),
    alpha=st.sampled_from([0.05, 0.5, 5.0]),
    seed=st.integers(0, 1000),
)
def test_proposition_5_corrected(k, gamma, excess, alpha, seed):
    """At or above p0(gamma) the map never lowers the confidence (gamma > 0), never raises it (gamma < 0)."""
    p0 = theory.confidence_threshold(gamma)
    top = torch.tensor([[p0 + excess * (1 - p0)]], dtype=torch.float64)
    torch.manual_seed(seed)
    rest = torch.distributions.Dirichlet(torch.full((k - 1,), alpha, dtype=torch.float64)).sample((20,))
    q = torch.cat([top.expand(20, 1), (1 - top) * rest], dim=-1).clamp_min(1e-300)
    q = q[q[:, 1:].amax(-1) <= q[:, 0]]
    change = theory.focal_map(q.log(), gamma=gamma).exp()[:, 0] - q[:, 0]
    assert (math.copysign(1, gamma) * change >= -1e-12).all()


@pytest.mark.parametrize("gamma", [0.05, 0.5, 1.0, 3.0, 10.0])
def test_proposition_5_as_printed_holds_for_two_and_three_classes(gamma):
    q = torch.linspace(1e-3, 1, 400, dtype=torch.float64)
    grid = torch.cartesian_prod(q, q)
    grid = torch.cat([grid, (1 - grid.sum(-1, keepdim=True))], dim=-1)
    grid = torch.cat([grid[grid[:, 2] > 1e-9], torch.stack([q, 1 - q, 0 * q], dim=-1).clamp_min(1e-300)])
    raised = theory.focal_map(grid.log(), gamma=gamma).exp().amax(-1) - grid.amax(-1)
    assert raised.min() >= -1e-12
