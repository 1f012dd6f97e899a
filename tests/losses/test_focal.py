"""The focal family against the papers: values written again in numpy, identities, and what is provably true."""

import numpy as np
import pytest
import torch
from refusals import refused
from scipy.optimize import brentq
from scipy.special import lambertw
from torch.nn.functional import cross_entropy, one_hot

from calibrant import losses
from calibrant.losses._likelihood import log_likelihood

gammas = pytest.mark.parametrize("gamma", [0.0, 0.3, 0.5, 1.0, 2.0, 3.0, 5.0, 7.5])


@pytest.fixture
def batch():
    g = torch.Generator().manual_seed(0)
    return 3 * torch.randn(200, 6, dtype=torch.float64, generator=g), torch.randint(6, (200,), generator=g)


def probabilities(logits):
    z = logits.numpy()
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def gradient(loss, logits, labels):
    z = logits.clone().requires_grad_()
    loss(z, labels).sum().backward()
    return z.grad


def g(p, gamma):
    return (1 - p) ** gamma - gamma * p * (1 - p) ** (gamma - 1) * np.log(p)


def pair(p):
    """Return logits of one example of two classes whose label has probability p."""
    return torch.tensor([[np.log(p), np.log1p(-p)]]), torch.tensor([0])


# Reference


def test_losses_equal_the_formulas_of_the_papers(batch):
    logits, labels = batch
    p = probabilities(logits)
    rows = np.arange(200)
    y = labels.numpy()
    p_y = p[rows, y]
    below = np.where(p < p_y[:, None], p, 0).max(1)
    row_loss = np.eye(6)[y]
    fresh = {
        losses.focal: -((1 - p_y) ** 3) * np.log(p_y),
        losses.inverse_focal: -((1 + p_y) ** 2) * np.log(p_y),
        losses.flsd: -((1 - p_y) ** np.where(p_y < 0.2, 5, 3)) * np.log(p_y),
        losses.dual_focal: -((1 - p_y + below) ** 5) * np.log(p_y),
        losses.bsce_gra: -np.abs(row_loss - p).sum(1) * np.log(p_y),
        losses.poly1: -np.log(p_y) + 2 * (1 - p_y),
        losses.focal_calibration: -((1 - p_y) ** 3) * np.log(p_y) + 0.5 * ((p - row_loss) ** 2).sum(1),
    }
    for loss, expected in fresh.items():
        np.testing.assert_allclose(loss(logits, labels), expected, rtol=1e-11, err_msg=loss.__name__)


def test_flsd_with_three_gammas(batch):
    logits, labels = batch
    p_y = probabilities(logits)[np.arange(200), labels.numpy()]
    gamma = np.select([p_y < 0.2, p_y < 0.5], [5, 3], 2)
    expected = -((1 - p_y) ** gamma) * np.log(p_y)
    value = losses.flsd(logits, labels, thresholds=(0.2, 0.5), gammas=(5.0, 3.0, 2.0))
    np.testing.assert_allclose(value, expected, rtol=1e-11)


def test_bsce_weights_by_any_norm(batch):
    logits, labels = batch
    p = probabilities(logits)
    weight = np.sqrt(((np.eye(6)[labels] - p) ** 2).sum(1)) ** 3
    value = losses.bsce_gra(logits, labels, gamma=3.0, norm=2.0)
    np.testing.assert_allclose(value, -weight * np.log(p[np.arange(200), labels]), rtol=1e-11)


# Identity


def test_focal_family_equals_cross_entropy_at_gamma_0(batch):
    expected = cross_entropy(*batch, reduction="none")
    for loss in losses.focal, losses.inverse_focal, losses.dual_focal, losses.bsce_gra:
        assert torch.allclose(loss(*batch, gamma=0.0), expected, rtol=1e-14)
        assert torch.allclose(
            gradient(lambda z, y, loss=loss: loss(z, y, gamma=0.0), *batch),
            gradient(losses.cross_entropy, *batch),
            rtol=1e-14,
        )
    assert torch.allclose(losses.poly1(*batch, epsilon=0.0), expected, rtol=1e-14)
    assert torch.equal(losses.focal_calibration(*batch, strength=0.0), losses.focal(*batch))


@gammas
def test_detached_weight_is_the_gradient_factor(batch, gamma):
    logits, labels = batch
    p_y = torch.from_numpy(probabilities(logits)[np.arange(200), labels.numpy()])[:, None]
    reference = gradient(losses.cross_entropy, logits, labels)
    detached = gradient(lambda z, y: losses.focal(z, y, gamma=gamma, detach_weight=True), logits, labels)
    assert torch.allclose(detached, (1 - p_y) ** gamma * reference, rtol=1e-9, atol=1e-12)
    if gamma < 3.5:
        inverse = gradient(lambda z, y: losses.inverse_focal(z, y, gamma=gamma, detach_weight=True), logits, labels)
        assert torch.allclose(inverse, (1 + p_y) ** gamma * reference, rtol=1e-9, atol=1e-12)


def test_bsce_scales_the_gradient_of_cross_entropy(batch):
    logits, labels = batch
    weight = torch.from_numpy(np.abs(np.eye(6)[labels] - probabilities(logits)).sum(1))[:, None]
    expected = weight * gradient(losses.cross_entropy, logits, labels)
    assert torch.allclose(gradient(losses.bsce_gra, logits, labels), expected, rtol=1e-9)


def test_gamma_may_differ_by_example(batch):
    logits, labels = batch
    gamma = torch.linspace(0, 3, 200, dtype=torch.float64)
    for loss in losses.focal, losses.inverse_focal:
        gradients = [loss(logits[i : i + 1], labels[i : i + 1], gamma=float(gamma[i])) for i in range(200)]
        assert torch.allclose(loss(logits, labels, gamma=gamma), torch.cat(gradients), rtol=1e-12)
        assert gradient(lambda z, y, loss=loss: loss(z, y, gamma=gamma), logits, labels).isfinite().all()


def test_flsd_equals_focal_with_one_gamma_per_example(batch):
    logits, labels = batch
    p_y = log_likelihood(logits, labels).exp()
    gamma = torch.where(p_y < 0.2, 5.0, 3.0).double()
    assert torch.equal(losses.flsd(logits, labels), losses.focal(logits, labels, gamma=gamma))


def root_of_the_factor(p, low, high):
    """Return the gamma in [low, high] with g(p, gamma) = 1, or the nearer end."""
    if g(p, low) <= 1 or g(p, high) >= 1:
        return low if g(p, low) <= 1 else high
    return brentq(lambda gamma: np.log(g(p, gamma)), low, high)


@pytest.mark.parametrize(("low", "high"), [(3.0, 5.0), (0.5, 20.0), (2.0, 2.0)])
def test_continuous_flsd_uses_the_gamma_with_gradient_ratio_1(low, high):
    p = np.array([1e-9, 0.02, 0.05, 0.19, 0.1968, 0.197, 0.2, 0.22, 0.25, 0.2526, 0.3, 0.5, 0.9, 0.999])
    gamma = np.array([root_of_the_factor(row_loss, low, high) for row_loss in p])
    logits = torch.tensor(np.stack([np.log(p), np.log1p(-p)], 1))
    labels = torch.zeros(len(p), dtype=torch.int64)
    value = losses.flsd_continuous(logits, labels, low=low, high=high)
    np.testing.assert_allclose(value, -((1 - p) ** gamma) * np.log(p), rtol=1e-9)
    by_example = losses.focal(logits, labels, gamma=torch.tensor(gamma))
    torch.testing.assert_close(value, by_example, rtol=1e-9, atol=0.0)
    slopes = [
        gradient(losses.flsd_continuous, logits, labels),
        gradient(losses.flsd_continuous, logits.float(), labels),
    ]
    torch.testing.assert_close(slopes[1].double(), slopes[0], rtol=1e-4, atol=1e-6)
    with refused("interval_order"):
        losses.flsd_continuous(logits, labels, low=5.0, high=3.0)


def test_probability_on_a_threshold_gets_the_upper_gamma():
    logits = torch.zeros(1, 5, dtype=torch.float64)  # p_y = 0.2 up to rounding, moved onto it below
    p_y = float(log_likelihood(logits, torch.tensor([0])).exp())
    value = losses.flsd(logits, torch.tensor([0]), thresholds=(p_y,))
    assert torch.allclose(value, losses.focal(logits, torch.tensor([0]), gamma=3.0), rtol=1e-12)


def test_dual_focal_ignores_ties_and_has_no_runner_up_at_the_bottom():
    logits = torch.tensor([[0.0, 0.0, -1.0], [0.0, 1.0, 2.0]], dtype=torch.float64)
    p = probabilities(logits)
    expected = [-((1 - p[0, 0] + p[0, 2]) ** 5) * np.log(p[0, 0]), -((1 - p[1, 0]) ** 5) * np.log(p[1, 0])]
    np.testing.assert_allclose(losses.dual_focal(logits, torch.tensor([0, 0])), expected, rtol=1e-12)


# Truth


def test_focal_loss_is_convex_in_the_probability():
    """Komisarenko & Kull (2024), proposition 1."""
    p = np.linspace(1e-4, 1 - 1e-4, 4001)
    for gamma in (0.0, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 50.0):
        logits = torch.from_numpy(np.stack([np.log(p), np.log1p(-p)], 1))
        value = losses.focal(logits, torch.zeros(len(p), dtype=torch.int64), gamma=gamma).numpy()
        assert (np.diff(value, 2) > -1e-12).all()


def test_inverse_focal_refuses_a_gamma_that_rewards_mistakes():
    limit = 1 / lambertw(1 / np.e).real
    assert pytest.approx(limit, abs=1e-12) == losses._focal.INVERSE_GAMMA_LIMIT
    z, y = pair(lambertw(1 / np.e).real)  # where the factor is smallest

    def step(gamma):
        return float(gradient(lambda z, y: losses.inverse_focal(z, y, gamma=gamma), z, y)[0, 0])

    assert step(limit - 1e-6) < 0  # a step still raises the logit of the label
    log_p = torch.tensor(np.log(lambertw(1 / np.e).real), requires_grad=True)
    (-((1 + log_p.exp()) ** (limit + 0.01)) * log_p).backward()
    assert log_p.grad > 0  # beyond the limit it lowers it
    with refused("setting_range"):
        losses.inverse_focal(z, y, gamma=3.6)


def test_invalid_hyperparameters_are_refused(batch):
    for code, loss, hyperparameters in (
        ("setting_range", losses.focal, {"gamma": -1.0}),
        ("setting_range", losses.focal, {"gamma": {}}),
        ("setting_range", losses.inverse_focal, {"gamma": -0.5}),
        ("schedule", losses.flsd, {"thresholds": (0.2, 0.5)}),
        ("schedule", losses.flsd, {"thresholds": (0.5, 0.2), "gammas": (5.0, 3.0, 2.0)}),
        ("setting_range", losses.poly1, {"epsilon": -1.5}),
    ):
        with refused(code):
            loss(*batch, **hyperparameters)


@pytest.mark.parametrize("gamma", [0.01, 0.5, 0.99, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_saturated_correct_logit_has_gradient_0_also_below_gamma_1(gamma, dtype):
    """Torchvision's and torch-uncertainty's focal losses give nan here."""
    logits = torch.tensor([[1e3, 0.0, 0.0], [200.0, 0.0, 0.0], [40.0, 0.0, 0.0]], dtype=dtype)
    labels = torch.zeros(3, dtype=torch.int64)
    for loss in losses.focal, losses.dual_focal:
        slope = gradient(lambda z, y, loss=loss: loss(z, y, gamma=gamma), logits, labels)
        assert slope.isfinite().all()
        assert slope.abs().max() < 1e-4


# The hand-written backward


def agree_twice_over(lean, reference, z):
    """Assert that two functions have the same values and the same first and second derivatives."""
    assert torch.allclose(lean(z), reference(z), rtol=1e-13)
    assert torch.autograd.gradcheck(lean, z)
    assert torch.autograd.gradgradcheck(lean, z)
    once = [torch.autograd.grad((f(z) ** 2).sum(), z, create_graph=True)[0] for f in (lean, reference)]
    twice = [torch.autograd.grad((slope**2).sum(), z)[0] for slope in once]
    assert torch.allclose(*once, rtol=1e-12)
    assert torch.allclose(*twice, rtol=1e-12)


@pytest.mark.parametrize("epsilon", [0.0, 0.1])
def test_log_likelihood_derivatives_equal_autograd(batch, epsilon):
    logits, labels = batch

    def lean(z):
        return log_likelihood(z, labels[:5], epsilon)

    def reference(z):
        return -cross_entropy(z, labels[:5], reduction="none", label_smoothing=epsilon)

    agree_twice_over(lean, reference, logits[:5].clone().requires_grad_())


def test_brier_derivatives_equal_autograd(batch):
    logits, labels = batch
    z = logits[:5].clone().requires_grad_()

    def lean(z):
        return losses.brier(z, labels[:5])

    def reference(z):
        return (z.softmax(-1) - one_hot(labels[:5], z.shape[-1])).square().sum(-1)

    agree_twice_over(lean, reference, z)
    assert torch.allclose(gradient(losses.brier, logits, labels)[:5], torch.autograd.grad(reference(z).sum(), z)[0])


def test_log_likelihood_saves_no_tensor_of_the_size_of_the_logits():
    z = torch.randn(8, 1000, requires_grad=True)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        losses.focal(z, torch.zeros(8, dtype=torch.int64))
    large_tensors = [t for t in saved if t.numel() >= z.numel()]
    assert all(t.data_ptr() == z.data_ptr() for t in large_tensors)


@pytest.mark.parametrize("loss", [losses.focal, losses.brier])
def test_per_example_gradients_by_torch_func(batch, loss):
    logits, labels = batch

    def row_loss(z, y):
        return loss(z[None], y[None]).squeeze(0)

    gradients = torch.func.vmap(torch.func.grad(row_loss))(logits, labels)
    assert torch.allclose(gradients, gradient(loss, logits, labels), rtol=1e-12)


def test_error_for_alpha_names_criterion():
    z, y = torch.zeros(2, 2), torch.tensor([0, 1])
    with refused("unknown_setting", "alpha", "nn.Criterion('focal', binary=True, alpha=0.25)"):
        losses.focal(z, y, alpha=0.25)
    with refused("unknown_setting", "gama", "gamma, detach_weight"):
        losses.focal(z, y, gama=2.0)
