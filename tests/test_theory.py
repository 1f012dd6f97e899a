import math

import pytest
import torch

from calibrant import InputError, losses, theory

CLASSES = (2, 3, 10, 100, 1000)


def authors_map(q: torch.Tensor, gamma: float) -> torch.Tensor:
    """The map as Komisarenko & Kull (2024) print it in eq. 1, in probabilities."""
    weight = 1 / ((1 - q) ** gamma * (1 / q - gamma * q.log() / (1 - q)))
    return weight / weight.sum(-1, keepdim=True)


def rows(k: int, scale: float, n: int = 300) -> torch.Tensor:
    generator = torch.Generator().manual_seed(k)
    return scale * torch.randn(n, k, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize("gamma", [-0.9, -0.5, -0.25, 0.05, 0.5, 1.0, 3.0, 5.0, 10.0])
@pytest.mark.parametrize("k", CLASSES)
def test_the_map_is_the_authors_formula_where_that_is_stable(k, gamma):
    z = rows(k, 1.0)
    torch.testing.assert_close(theory.focal_map(z, gamma=gamma).exp(), authors_map(z.softmax(-1), gamma))


@pytest.mark.parametrize("gamma", [-0.9, -0.5, 0.5, 3.0, 10.0])
def test_the_map_is_finite_and_precise_on_saturated_float32_rows(gamma):
    z = torch.tensor(
        [[0.0, -30.0, -35.0], [0.0, -90.0, -95.0], [1e4, 0.0, -1e4], [0.0, -1e-4, -3.0], [0.0, 0.0, -1e30]]
    )
    narrow, wide = theory.focal_map(z, gamma=gamma), theory.focal_map(z.double(), gamma=gamma)
    assert narrow.isfinite().all()
    torch.testing.assert_close(narrow.exp(), wide.float().exp(), atol=1e-5, rtol=0)
    torch.testing.assert_close(narrow, wide.float(), atol=1e-5, rtol=1e-5)
    # 1 - q = s is tiny: the odds of the top class become (1 + gamma) s^-gamma times larger
    s = math.exp(-30) + math.exp(-35)
    odds = wide[0, 0] - wide[0, 1]
    assert odds.item() == pytest.approx(30 - gamma * math.log(s) - math.log1p(gamma), abs=1e-9)


@pytest.mark.parametrize("gamma", [-0.5, 0.0, 2.0])
def test_impossible_classes_stay_impossible(gamma):
    z = torch.tensor([[0.0, -math.inf, -math.inf], [0.0, 1.0, -math.inf], [-math.inf, 7.0, -math.inf]])
    p = theory.focal_map(z, gamma=gamma).exp()
    torch.testing.assert_close(p[[0, 2]], torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]))
    torch.testing.assert_close(p[1, :2], theory.focal_map(z[1:2, :2], gamma=gamma).exp()[0])


def test_the_map_differentiates_in_logits_and_gamma():
    z = rows(4, 2.0, n=5).requires_grad_()
    gamma = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda z, gamma: theory.focal_map(z, gamma=gamma), (z, gamma))
    hard = torch.tensor([[1e4, 0.0, 0.0], [0.0, -math.inf, 1.0], [0.0, -math.inf, -math.inf]], requires_grad=True)
    (slope,) = torch.autograd.grad(theory.focal_map(hard, gamma=2.0)[:, 0].sum(), hard)
    assert slope.isfinite().all()


def test_the_map_refuses_gamma_of_minus_one_and_below():
    with pytest.raises(InputError, match="gamma > -1, got -1"):
        theory.focal_map(torch.zeros(1, 2), gamma=-1.0)


def test_gamma_zero_is_the_identity_and_gradient_ratio_one():
    z = rows(10, 3.0)
    torch.testing.assert_close(theory.focal_map(z, gamma=0.0), z.log_softmax(-1))
    assert (theory.gradient_ratio(torch.linspace(0, 1, 11), 0.0) == 1).all()


@pytest.mark.parametrize("gamma", [0.3, 1.0, 2.0, 3.0, 5.0, 7.0])
def test_focal_gradient_is_that_of_cross_entropy_times_the_ratio(gamma):
    z, y = rows(7, 3.0).requires_grad_(), torch.arange(300) % 7
    (focal,) = torch.autograd.grad(losses.focal(z, y, gamma=gamma).sum(), z)
    (plain,) = torch.autograd.grad(losses.cross_entropy(z, y).sum(), z)
    p = z.softmax(-1).gather(-1, y[:, None]).detach()
    torch.testing.assert_close(focal, theory.gradient_ratio(p, gamma) * plain, atol=4e-10, rtol=0)
