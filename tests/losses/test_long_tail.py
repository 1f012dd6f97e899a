"""Losses for long tails: the papers' formulas in numpy, and the balanced error that they are made for."""

import math

import numpy as np
import pytest
import torch
from calibrant.registry import LOSSES
from refusals import refused
from scipy.optimize import minimize
from torch.nn import functional as F

from calibrant import losses
from calibrant.nn import Criterion

COUNTS = (500.0, 60.0, 9.0, 1.0)


@pytest.fixture
def batch():
    g = torch.Generator().manual_seed(0)
    return 2 * torch.randn(50, 4, dtype=torch.float64, generator=g), torch.randint(4, (50,), generator=g)


def softmax(z):
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


# Reference


@pytest.mark.parametrize("gamma", [0.0, 2.0])
@pytest.mark.parametrize("beta", [0.0, 0.9, 0.999, 0.9999])
def test_class_balanced_weights_by_the_effective_number(batch, beta, gamma):
    weight = np.array([(1 - beta) / (1 - beta**n) for n in COUNTS])
    weight = weight / weight.sum() * 4
    y = batch[1].numpy()
    p_y = softmax(batch[0].numpy())[np.arange(50), y]
    value = losses.class_balanced(*batch, counts=COUNTS, beta=beta, gamma=gamma)
    np.testing.assert_allclose(value, -weight[y] * (1 - p_y) ** gamma * np.log(p_y), rtol=1e-9)


@pytest.mark.parametrize("gamma", [0.0, 2.0])
@pytest.mark.parametrize("tau", [0.0, 0.5, 1.0, 2.0])
def test_logit_adjusted_adds_the_log_of_the_prior(batch, tau, gamma):
    prior = np.array(COUNTS) / sum(COUNTS)
    p_y = softmax(batch[0].numpy() + tau * np.log(prior))[np.arange(50), batch[1]]
    value = losses.logit_adjusted(*batch, counts=COUNTS, tau=tau, gamma=gamma)
    np.testing.assert_allclose(value, -((1 - p_y) ** gamma) * np.log(p_y), rtol=1e-9)


@pytest.mark.parametrize("gamma", [0.0, 2.0])
def test_balanced_softmax_multiplies_by_the_counts(batch, gamma):
    odds = np.array(COUNTS) * np.exp(batch[0].numpy())
    p_y = odds[np.arange(50), batch[1]] / odds.sum(1)
    value = losses.balanced_softmax(*batch, counts=COUNTS, gamma=gamma)
    np.testing.assert_allclose(value, -((1 - p_y) ** gamma) * np.log(p_y), rtol=1e-9)


def test_binary_criterion_takes_two_counts():
    s, y = torch.tensor([0.3, -1.2], dtype=torch.float64), torch.tensor([1, 0])
    value = Criterion("balanced_softmax(counts=(90, 10))", binary=True, reduction="none")(s, y)
    expected = F.binary_cross_entropy_with_logits(s + math.log(1 / 9), y.double(), reduction="none")
    assert torch.allclose(value, expected, rtol=1e-12)


# Identity


@pytest.mark.parametrize("name", ["balanced_softmax", "class_balanced", "logit_adjusted"])
def test_equal_counts_give_cross_entropy_and_focal_loss(batch, name):
    even = torch.full((4,), 7)
    loss = getattr(losses, name)
    assert torch.allclose(loss(*batch, counts=even), losses.cross_entropy(*batch), rtol=1e-12)
    assert torch.allclose(loss(*batch, counts=even, gamma=3.0), losses.focal(*batch), rtol=1e-12)


def test_subtracting_the_prior_gives_cross_entropy(batch):
    logits, labels = batch
    value = losses.balanced_softmax(logits - torch.tensor(COUNTS).double().log(), labels, counts=COUNTS)
    assert torch.allclose(value, losses.cross_entropy(logits, labels), rtol=1e-9)


def test_beta_goes_from_even_weights_to_inverse_counts(batch):
    even = losses.class_balanced(*batch, counts=COUNTS, beta=0.0)
    assert torch.allclose(even, losses.cross_entropy(*batch), rtol=1e-12)
    inverse = 1 / torch.tensor(COUNTS, dtype=torch.float64)
    expected = 4 * inverse[batch[1]] / inverse.sum() * losses.cross_entropy(*batch)
    assert torch.allclose(losses.class_balanced(*batch, counts=COUNTS, beta=1 - 1e-9), expected, rtol=1e-5)


# Truth


def test_effective_number_equals_expected_distinct_prototypes():
    """With ten prototypes, beta = .9: weights of classes with 3 and 20 samples are inverse to the prototypes drawn."""
    g = np.random.default_rng(0)
    distinct = [np.mean([len(set(row)) for row in g.integers(10, size=(20_000, n))]) for n in (3, 20)]
    z = torch.zeros(2, 2, dtype=torch.float64)
    low, high = losses.class_balanced(z, torch.tensor([0, 1]), counts=(3.0, 20.0), beta=0.9).tolist()
    assert low / high == pytest.approx(distinct[1] / distinct[0], rel=0.01)


def test_minimizers_of_the_expected_losses():
    """Soft labels are the truth p: the gradient vanishes at p / prior, and at p times the weights."""
    p = torch.tensor([[0.7, 0.2, 0.06, 0.04], [0.1, 0.5, 0.1, 0.3]], dtype=torch.float64)
    prior = torch.tensor(COUNTS, dtype=torch.float64)
    for loss, best in (
        (lambda z: losses.logit_adjusted(z, p, counts=COUNTS, tau=0.7), (p / prior**0.7).log()),
        (lambda z: losses.balanced_softmax(z, p, counts=COUNTS), (p / prior).log()),
        (lambda z: losses.class_balanced(z, p, counts=COUNTS, beta=1 - 1e-9), (p / prior).log()),
    ):
        z = best.clone().requires_grad_()
        loss(z).sum().backward()
        assert z.grad.abs().max() < 1e-6
        z = p.log().requires_grad_()
        loss(z).sum().backward()
        assert z.grad.abs().max() > 0.05


def fitted(loss, x, y):
    """Train a linear network to convergence."""
    inputs = torch.cat([x, torch.ones_like(x[:, :1])], 1)

    def value_and_slope(flat):
        weight = torch.tensor(flat).view(3, 3).requires_grad_()
        value = loss(inputs @ weight, y).mean()
        (slope,) = torch.autograd.grad(value, weight)
        return value.item(), slope.flatten().numpy()

    best = torch.tensor(minimize(value_and_slope, np.zeros(9), jac=True, method="L-BFGS-B").x).view(3, 3)
    return lambda x: torch.cat([x, torch.ones_like(x[:, :1])], 1) @ best


@pytest.mark.parametrize("text", ["logit_adjusted", "balanced_softmax", "class_balanced(beta=0.999999)"])
def test_adjusted_losses_reach_the_least_balanced_error(text):
    """Three Gaussians of unit variance: Bayes' rule for equal classes is the nearest mean."""
    g = torch.Generator().manual_seed(0)
    means = 2 * torch.tensor([[1.0, 0.0], [-0.5, 0.87], [-0.5, -0.87]], dtype=torch.float64)

    def drawn(labels):
        return means[labels] + torch.randn(len(labels), 2, dtype=torch.float64, generator=g), labels

    x, y = drawn(torch.arange(3).repeat_interleave(torch.tensor([9000, 900, 100])))
    even, truth = drawn(torch.arange(3).repeat(10_000))
    bayes = float((torch.cdist(even, means).argmin(1) != truth).double().mean())
    loss_with_counts = losses.for_counts(LOSSES.resolve(text), y.bincount())
    ours, unadjusted = (
        float((fitted(f, x, y)(even).argmax(1) != truth).double().mean())
        for f in (loss_with_counts, losses.cross_entropy)
    )
    assert ours < bayes + 0.01
    assert unadjusted > bayes + 0.08
    if text != "class_balanced(beta=0.999999)":  # calibrated for classes of equal frequency
        probs = fitted(loss_with_counts, x, y)(even).softmax(1)
        exact = (-(torch.cdist(even, means) ** 2) / 2).softmax(1)
        assert (probs - exact).abs().mean() < 0.03


# What training lacks


def test_class_without_training_samples_gets_no_gradient(batch):
    logits, labels = batch
    for name in "balanced_softmax", "class_balanced", "logit_adjusted":
        z = logits.clone().requires_grad_()
        value = getattr(losses, name)(z, labels.clamp_max(2), counts=(500.0, 60.0, 9.0, 0.0))
        value.sum().backward()
        assert value.isfinite().all()
        assert z.grad.isfinite().all()
        expected = getattr(losses, name)(logits[:, :3], labels.clamp_max(2), counts=COUNTS[:3])
        if name != "class_balanced":
            assert (z.grad[:, 3] == 0).all()
            assert torch.allclose(value, expected, rtol=1e-12)


def test_class_counts_are_required_and_match_the_logits(batch):
    for name in "balanced_softmax", "class_balanced", "logit_adjusted":
        loss = LOSSES.resolve(name)
        with refused("no_counts", name):
            loss(*batch)
        with refused("num_classes", name):
            losses.for_counts(loss, torch.tensor([3, 2, 1]))(*batch)
        probs = LOSSES.resolve(f"{name}(counts=(500, 60, 9, 1))")
        assert losses.for_counts(probs, torch.ones(4)) is probs
        expected = losses.for_counts(loss, torch.tensor(COUNTS))(*batch)
        assert torch.equal(probs(*batch), expected)
    assert losses.for_counts(losses.focal, torch.ones(4)) is losses.focal
    with refused("setting_range", "counts"):
        LOSSES.resolve("class_balanced(counts=(5, -1))")


@pytest.mark.parametrize("name", ["class_balanced", "logit_adjusted", "balanced_softmax"])
@pytest.mark.parametrize("counts", [(5, -1, 2, 1), (0, 0, 0, 0), (5, float("nan"), 2, 1)])
def test_negative_missing_and_zero_counts_are_refused(name, counts, batch):
    loss = losses.for_counts(LOSSES.resolve(name), torch.tensor(counts, dtype=torch.float64))
    with refused("counts", name):
        loss(*batch)
