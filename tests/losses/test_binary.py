"""One logit per event: against the formulas of others, written here again, and against two classes."""

import math

import numpy as np
import pytest
import torch
from calibrant.registry import LOSSES
from counted_losses import loss_with_counts
from refusals import refused
from scipy.optimize import minimize_scalar
from torch.nn import functional as F

from calibrant import losses
from calibrant.nn import Criterion

every_loss = pytest.mark.parametrize("name", sorted(LOSSES))
ABSOLUTE = {"acls", "logit_norm", "logit_normalized"}  # depend on the logits, not only on their differences


@pytest.fixture
def events():
    g = torch.Generator().manual_seed(0)
    s = 3 * torch.randn(60, dtype=torch.float64, generator=g)
    return s, (torch.rand(60, generator=g) < 0.3).long()


def sigmoid_focal(s, t, alpha, gamma):
    """Return the formula of torchvision and kornia for targets 0 or 1."""
    p = 1 / (1 + np.exp(-s))
    positive_loss, negative_loss = -((1 - p) ** gamma) * np.log(p), -(p**gamma) * np.log(1 - p)
    return alpha * t * positive_loss + (1 - alpha) * (1 - t) * negative_loss


def slope(criterion, s, y):
    z = s.clone().requires_grad_()
    criterion(z, y).sum().backward()
    return z.grad


@pytest.mark.parametrize("alpha", [0.0, 0.25, 0.7, 1.0])
@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0, 5.0])
def test_binary_focal_equals_the_sigmoid_formula_with_alpha(events, alpha, gamma):
    s, y = events
    expected = sigmoid_focal(s.numpy(), y.numpy(), alpha, gamma)
    text = f"focal(gamma={gamma})"
    for targets in y, y.double(), y.bool(), y.to(torch.uint8):
        per_label = Criterion(text, binary=True, alpha=alpha, reduction="none")(s, targets)
        np.testing.assert_allclose(per_label, expected, rtol=1e-10, atol=1e-15)
    assert Criterion(text, binary=True, alpha=alpha)(s, y).item() == pytest.approx(expected.mean(), rel=1e-10)
    total = Criterion(text, binary=True, alpha=alpha, reduction="sum")(s, y)
    assert total.item() == pytest.approx(expected.sum(), rel=1e-10)


def test_binary_focal_values_by_hand():
    """By hand: s = log 3 is p = 3/4; alpha (1 - p)^2 log 1/p = .25 / 16 log 4/3, and .75 * 9/16 * log 4."""
    criterion = Criterion("focal(gamma=2)", binary=True, alpha=0.25, reduction="none")
    value = criterion(torch.tensor([math.log(3)] * 2), torch.tensor([1.0, 0.0]))
    assert value.tolist() == pytest.approx([0.25 / 16 * math.log(4 / 3), 0.75 * 9 / 16 * math.log(4)], rel=1e-6)


def test_binary_focal_limit_cases(events):
    s, y = events
    bce = F.binary_cross_entropy_with_logits(s, y.double(), reduction="none")
    for text in "cross_entropy", "focal(gamma=0)":
        assert torch.allclose(Criterion(text, binary=True, reduction="none")(s, y), bce, rtol=1e-12)
        tilted = Criterion(text, binary=True, alpha=0.8, reduction="none")(s, y)
        assert torch.allclose(tilted, (0.2 + 0.6 * y.double()) * bce, rtol=1e-12)
    half, unweighted = (Criterion("focal", binary=True, alpha=alpha)(s, y) for alpha in (0.5, None))
    assert half.item() == pytest.approx(float(unweighted) / 2, rel=1e-12)
    pos_weight = F.binary_cross_entropy_with_logits(s, y.double(), pos_weight=torch.tensor(4.0), reduction="none")
    assert torch.allclose(5 * tilted, pos_weight, rtol=1e-12)


def test_binary_focal_gradient_equals_autograd_of_the_formula(events):
    s, y = events
    ours = slope(Criterion("focal(gamma=2)", binary=True, alpha=0.25, reduction="sum"), s, y)
    z = s.clone().requires_grad_()
    p = z.sigmoid()
    ce = F.binary_cross_entropy_with_logits(z, y.double(), reduction="none")
    p_y = p * y + (1 - p) * (1 - y)
    ((0.25 * y + 0.75 * (1 - y)) * ce * (1 - p_y) ** 2).sum().backward()
    assert torch.allclose(ours, z.grad, rtol=1e-9, atol=1e-13)


def test_probabilities_as_labels_mix_the_losses(events):
    s, _ = events
    t = torch.linspace(0, 1, 60, dtype=torch.float64)
    bce = F.binary_cross_entropy_with_logits(s, t, reduction="none")
    assert torch.allclose(Criterion("cross_entropy", binary=True, reduction="none")(s, t), bce, rtol=1e-12)
    mixed = t.numpy() * sigmoid_focal(s.numpy(), 1, 0.5, 2) + (1 - t.numpy()) * sigmoid_focal(s.numpy(), 0, 0.5, 2)
    value = Criterion("focal(gamma=2)", binary=True, reduction="none")(s, t)
    np.testing.assert_allclose(value, 2 * mixed, rtol=1e-10)


def test_binary_mmce(events):
    s, y = events
    p = s.sigmoid().numpy()
    r, c = np.maximum(p, 1 - p), (p > 0.5) == y.numpy()
    m, n = c.sum(), (~c).sum()
    square = 0.0
    for i in range(60):
        for j in range(60):
            v, w = ((1 - r[k]) / m if c[k] else -r[k] / n for k in (i, j))
            square += v * w * np.exp(-abs(r[i] - r[j]) / 0.4)
    bce = F.binary_cross_entropy_with_logits(s, y.double())
    value = Criterion("mmce(strength=3, normalization='paper')", binary=True)(s, y)
    assert value.item() == pytest.approx(float(bce) + 3 * math.sqrt(square + 1e-10), rel=1e-10)


@every_loss
def test_binary_loss_equals_the_loss_of_two_classes(name, events):
    s, y = events
    value = Criterion(loss_with_counts(name, 2), binary=True, reduction="none")(s, y)
    low = -s / 2 if name in ABSOLUTE else torch.zeros_like(s)
    pair = torch.stack([low, low + s], 1)
    assert torch.allclose(value, loss_with_counts(name, 2)(pair, y), rtol=1e-9)
    criteria = Criterion(loss_with_counts(name, 2), binary=True), Criterion(loss_with_counts(name, 2))
    ours, theirs = slope(criteria[0], s, y), slope(criteria[1], pair, y)
    assert torch.allclose(ours, theirs[:, 1], rtol=1e-7, atol=1e-12) or name in ABSOLUTE
    assert torch.allclose(slope(criteria[0], s, y.double()), ours, rtol=1e-7, atol=1e-12)


@every_loss
def test_binary_loss_is_symmetric_in_the_classes(name, events):
    s, y = events
    criterion = Criterion(loss_with_counts(name, 2, even=True), binary=True, reduction="none")
    assert torch.allclose(criterion(s, y), criterion(-s, 1 - y), rtol=1e-9)


@every_loss
def test_binary_loss_is_finite_at_saturation(name):
    s = torch.tensor([0.0, 100.0, -100.0, 1e4, -1e4, 1e4], requires_grad=True)
    for y in torch.tensor([0, 1, 0, 1, 0, 0]), torch.tensor([1.0, 0.0, 0.5, 1.0, 0.0, 0.1]):
        value = Criterion(loss_with_counts(name, 2), binary=True, alpha=0.25)(s, y)
        (slope,) = torch.autograd.grad(value, s)
        assert value.isfinite()
        assert slope.isfinite().all()


@pytest.mark.parametrize(
    ("name", "logits", "labels"),
    [(name, (2, 1, 4, 5), (2, 4, 5)) for name in LOSSES]
    + [("focal", logits, (40,)) for logits in ((40,), (40, 1))]
    + [(name, shape, shape) for name in ("focal", "mmce") for shape in ((40, 1), (8, 5), (2, 4, 5))],
)
def test_binary_loss_accepts_any_shape_with_one_label_per_logit(name, logits, labels, events):
    s, y = (x[:40] for x in events)
    y = y.where(torch.arange(40) % 7 > 0, -1)
    ours = s.reshape(logits).clone().requires_grad_()
    for targets in y, y.double():
        per_label = Criterion(loss_with_counts(name, 2), binary=True, reduction="none", ignore_index=-1)(
            ours, targets.reshape(labels)
        )
        value = Criterion(loss_with_counts(name, 2), binary=True, alpha=0.25, ignore_index=-1)(
            ours, targets.reshape(labels)
        )
        expected = Criterion(loss_with_counts(name, 2), binary=True, alpha=0.25)(s[y >= 0], targets[y >= 0])
        assert per_label.shape == labels
        assert (per_label.flatten()[y < 0] == 0).all()
        assert value.item() == pytest.approx(expected.item(), rel=1e-9)
        (gradient,) = torch.autograd.grad(value, ours)
        assert (gradient.flatten()[y < 0] == 0).all()


def test_class_weights_are_normalized_and_alpha_is_not(events):
    s, y = events
    per_label = Criterion("focal", binary=True, reduction="none")(s, y)
    weight = 1 + 2.0 * y.double()
    weighed = Criterion("focal", binary=True, weight=torch.tensor([1.0, 3.0]))(s, y)
    assert weighed.item() == pytest.approx(float((weight * per_label).sum() / weight.sum()), rel=1e-9)
    assert Criterion("focal", binary=True, alpha=0.75)(s, y).item() == pytest.approx(
        float((weight * per_label).mean() / 4), rel=1e-9
    )


def test_alpha_shifts_the_minimizer_by_its_log_odds():
    """With the truth .2, cross-entropy of alpha .25 is best where the odds are (.25 .2) / (.75 .8) = 1 / 12."""
    y = torch.tensor([1.0] * 2 + [0.0] * 8)

    def mean(s):
        return float(Criterion("cross_entropy", binary=True, alpha=0.25)(torch.full((10,), s), y))

    best = minimize_scalar(mean, bounds=(-6, 2), method="bounded", options={"xatol": 1e-8})
    assert best.x == pytest.approx(-math.log(12), abs=1e-2)


def test_binary_focal_minimizer_is_underconfident():
    """80 of 100 events under focal loss of gamma 2: .6266 (Komisarenko & Kull 2024, introduction)."""
    y = torch.tensor([1] * 80 + [0] * 20)

    def mean(s):
        return float(Criterion("focal(gamma=2)", binary=True)(torch.full((100,), s, dtype=torch.float64), y))

    best = minimize_scalar(mean, bounds=(-6, 6), method="bounded", options={"xatol": 1e-9})
    assert 1 / (1 + math.exp(-best.x)) == pytest.approx(0.626614827, abs=1e-6)


@pytest.mark.parametrize(
    ("call", "code", "name"),
    [
        (lambda s, y: Criterion("focal", alpha=0.25), "alpha", "binary=True"),
        (lambda s, y: Criterion("focal", binary=True)(torch.zeros(60, 2), y), "shape", "(60, 2) and (60,)"),
        (lambda s, y: Criterion("focal")(torch.zeros(60, 2), torch.ones(60, 2).long()), "shape", "binary=True"),
        (lambda s, y: Criterion("focal", binary=True)(s, 2 * y), "label_range", "0 .. 1, got 0 .. 2"),
        (lambda s, y: Criterion("focal", binary=True)(s, y - 0.5), "label_range", "-0.5 .. 0.5"),
        (lambda s, y: Criterion("focal")(s[:, None], y), "one_class", "binary=True"),
        (lambda s, y: Criterion("focal")(torch.zeros(60, 4), y + 3), "label_range", "ignore_index=-100"),
        (lambda s, y: Criterion("focal")(torch.zeros(60, 3), torch.ones(60, 3)), "label_sums", "binary=True"),
    ],
)
def test_mismatched_logits_and_labels_are_refused(call, code, name, events):
    with refused(code, name):
        call(*events)


def test_per_example_gradients_by_torch_func(events):
    s, y = events
    criterion = Criterion("focal", binary=True)
    per_label = torch.func.vmap(torch.func.grad(lambda a, b: criterion(a[None], b[None])))(s, y)
    assert torch.allclose(per_label / 60, slope(criterion, s, y), rtol=1e-12)


def test_after_epoch_accepts_binary_predictions(events):
    from calibrant import Predictions

    s, y = events
    criterion = Criterion("AdaFocal(bins=3)", binary=True)
    before = criterion(s, y)
    criterion.after_epoch(0, Predictions(torch.stack([0 * s, s], 1), y))
    assert criterion(s, y) != before
    assert not torch.equal(criterion.loss.gamma, losses.AdaFocal(bins=3).gamma)
