"""Proper losses, penalties and batch penalties against numpy written from the papers."""

import numpy as np
import pytest
import torch
from calibrant.registry import LOSSES
from refusals import refused
from torch.nn import functional as F

from calibrant import losses, registry


@pytest.fixture
def batch():
    g = torch.Generator().manual_seed(1)
    return 4 * torch.randn(150, 5, dtype=torch.float64, generator=g), torch.randint(5, (150,), generator=g)


@pytest.fixture
def easy():
    """Return a batch with about as many right as wrong predictions."""
    g = torch.Generator().manual_seed(2)
    logits = 2 * torch.randn(150, 5, dtype=torch.float64, generator=g)
    return logits, torch.multinomial(logits.softmax(-1), 1, generator=g).squeeze(1)


def numbers(logits, labels):
    z, y = logits.numpy(), labels.numpy()
    p = np.exp(z - z.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    return z, y, p, -np.log(p[np.arange(len(y)), y])


# Proper


@pytest.mark.parametrize("smoothing", [0.0, 0.05, 0.3, -0.01, -0.5])
def test_label_smoothing_in_both_conventions(batch, smoothing):
    _, y, p, _ = numbers(*batch)
    one_hot = np.eye(5)[y]
    for off_target, target in (
        ("k", (1 - smoothing) * one_hot + smoothing / 5),
        ("k-1", (1 - smoothing) * one_hot + smoothing / 4 * (1 - one_hot)),
    ):
        value = losses.cross_entropy(*batch, smoothing=smoothing, off_target=off_target)
        np.testing.assert_allclose(value, -(target * np.log(p)).sum(1), rtol=1e-11)
    if smoothing >= 0:
        theirs = F.cross_entropy(*batch, reduction="none", label_smoothing=smoothing)
        assert torch.allclose(losses.cross_entropy(*batch, smoothing=smoothing), theirs, rtol=1e-12)
    logits = batch[0][:5].clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda z: losses.cross_entropy(z, batch[1][:5], smoothing=smoothing), logits)


def test_smoothing_of_1_and_above_is_refused(batch):
    for text in "cross_entropy(smoothing=1)", "cross_entropy(smoothing=1.5)":
        with refused("setting_range"):
            registry.LOSSES.method(text)
    with refused("setting_range"):
        losses.cross_entropy(*batch, smoothing=1.0)


def test_label_smoothing_is_minimized_by_the_smoothed_target():
    z = torch.zeros(1, 4, dtype=torch.float64)
    target = torch.tensor([0.1 / 4, 0.1 / 4, 0.9 + 0.1 / 4, 0.1 / 4], dtype=torch.float64)
    z = target.log()[None].requires_grad_()
    losses.cross_entropy(z, torch.tensor([2]), smoothing=0.1).sum().backward()
    assert z.grad.abs().max() < 1e-12


def test_brier_is_the_squared_distance(batch):
    _, y, p, _ = numbers(*batch)
    np.testing.assert_allclose(losses.brier(*batch), ((p - np.eye(5)[y]) ** 2).sum(1), rtol=1e-9)


@pytest.mark.parametrize("name", ["cross_entropy", "brier"])
def test_proper_losses_are_minimized_by_the_truth(name):
    truth = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
    z = truth.log().expand(4, -1).clone().requires_grad_()
    (truth * getattr(losses, name)(z, torch.arange(4))).sum().backward()
    assert z.grad.sum(0).abs().max() < 1e-12


# Penalties


def test_penalties_equal_the_formulas_of_the_papers(batch):
    z, y, p, ce = numbers(*batch)
    top = z.max(1)
    distance = top[:, None] - z
    norm2 = np.sqrt((z**2).sum(1, keepdims=True)) + 1e-7
    w = z / (0.04 * norm2)
    fresh = {
        "entropy_regularized": ce + 0.1 * (p * np.log(p)).sum(1),
        "logit_norm": ce + 0.01 * np.abs(z).sum(1),
        "logit_normalized": np.log(np.exp(w).sum(1)) - w[np.arange(150), y],
        "margin_smoothing": ce + 0.1 * np.maximum(distance - 10, 0).mean(1),
        "acls": ce + 0.1 * (np.maximum(top - 10, 0) ** 2 + 0.1 * (np.maximum(distance - 10, 0) ** 2).sum(1) / 4),
    }
    assert (distance > 10).any()
    assert (top > 10).any()
    for name, expected in fresh.items():
        np.testing.assert_allclose(getattr(losses, name)(*batch), expected, rtol=1e-10, atol=1e-14, err_msg=name)


def test_logit_norm_accepts_any_p(batch):
    z, _, _, ce = numbers(*batch)
    value = losses.logit_norm(*batch, strength=0.2, p=3.0)
    np.testing.assert_allclose(value, ce + 0.2 * (np.abs(z) ** 3).sum(1) ** (1 / 3), rtol=1e-11)
    with refused("setting_range"):
        losses.logit_norm(*batch, p=0.5)


def test_penalties_with_strength_0_equal_cross_entropy(batch):
    for name in "entropy_regularized", "logit_norm", "margin_smoothing", "acls", "mmce", "dca", "mdca", "soft_ece":
        value = getattr(losses, name)(*batch, strength=0.0)
        assert torch.allclose(value, losses.cross_entropy(*batch), rtol=1e-14), name


def test_margin_smoothing_is_cross_entropy_within_the_margin(batch):
    for name in "margin_smoothing", "acls":
        assert torch.equal(getattr(losses, name)(*batch, margin=1e3), losses.cross_entropy(*batch))


def test_logit_normalized_is_invariant_to_scale(batch):
    logits, labels = batch
    one_hot, ten = (losses.logit_normalized(s * logits, labels) for s in (1, 10))
    assert torch.allclose(one_hot, ten, rtol=1e-5)


def test_acls_detaches_the_top_logit_in_distances():
    z = torch.tensor([[12.0, 0.0, 5.0]], dtype=torch.float64, requires_grad=True)
    full = losses.acls(z, torch.tensor([0]), top=0.0)
    (slope,) = torch.autograd.grad(full.sum() - losses.cross_entropy(z, torch.tensor([0])).sum(), z)
    assert torch.allclose(slope, torch.tensor([[0.0, -0.1 * 0.1 * 2 * 2 / 2, 0.0]], dtype=torch.float64), atol=1e-12)


# Batch penalties


def dense_mmce(logits, labels, form, normalization):
    """Return the sums over all pairs of Kumar et al. (2018) and of the code of Mukhoti et al. (2020)."""
    _, y, p, ce = numbers(logits, labels)
    r, c = p.max(1), (p.argmax(1) == y).astype(float)
    kernel = np.exp(-np.abs(r[:, None] - r) / 0.4)
    if form == "plain":
        square = ((c - r)[:, None] * (c - r) * kernel).sum() / len(r) ** 2
        return ce + 2 * (square if normalization == "code" else np.sqrt(square))
    right, wrong = c == 1, c == 0
    m, n = right.sum(), wrong.sum()
    a, b = 1 - r[right], r[wrong]
    cc = a[:, None] * a * kernel[np.ix_(right, right)]
    ii = b[:, None] * b * kernel[np.ix_(wrong, wrong)]
    ci = a[:, None] * b * kernel[np.ix_(right, wrong)]
    if normalization == "paper":
        return ce + 2 * np.sqrt(cc.sum() / m**2 + ii.sum() / n**2 - 2 * ci.sum() / (m * n))
    square = cc.mean() / (m * m + 1e-5) + ii.mean() / (n * n + 1e-5) - 2 * ci.mean() / (m * n + 1e-5)
    return ce + 2 * np.sqrt(square + 1e-10)


@pytest.mark.parametrize("normalization", ["code", "paper"])
@pytest.mark.parametrize("form", ["weighted", "plain"])
def test_mmce_equals_the_dense_sum(easy, form, normalization):
    expected = dense_mmce(*easy, form, normalization)
    value = losses.mmce(*easy, form=form, normalization=normalization)
    np.testing.assert_allclose(value, expected, rtol=0, atol=1e-8)
    assert expected.mean() - numbers(*easy)[3].mean() > 1e-4  # the penalty is not negligible


@pytest.mark.parametrize("width", [0.002, 0.0019, 1e-6])
def test_mmce_of_a_narrow_kernel_does_not_overflow(easy, width):
    logits, labels = easy
    z = logits[:40].clone().requires_grad_()
    value = losses.mmce(z, labels[:40], form="plain", width=width).mean()
    assert value.isfinite()
    assert torch.autograd.grad(value, z)[0].isfinite().all()


def test_mmce_gradient_equals_that_of_the_dense_sum(easy):
    logits, labels = easy
    z = logits[:40].clone().requires_grad_()
    (slope,) = torch.autograd.grad(losses.mmce(z, labels[:40], normalization="paper").sum(), z)
    p = z.softmax(-1)
    r, predicted = p.max(-1)
    right = predicted == labels[:40]
    v = (1 - r) * right / right.sum() - r * ~right / (~right).sum()
    kernel = (-(r[:, None] - r).abs() / 0.4).exp()
    dense = F.cross_entropy(z, labels[:40], reduction="sum") + 40 * 2 * (v @ kernel @ v + 1e-10).sqrt()
    (expected,) = torch.autograd.grad(dense, z)
    assert torch.allclose(slope, expected, rtol=1e-9, atol=1e-12)


def test_mmce_of_an_all_correct_saturated_batch_is_smooth():
    """Netcal's penalty has a nan gradient here."""
    logits = torch.zeros(4, 3)
    logits[:, 0] = 200.0
    for form in "weighted", "plain":
        for normalization in "code", "paper":
            z = logits.clone().requires_grad_()
            value = losses.mmce(z, torch.zeros(4, dtype=torch.int64), form=form, normalization=normalization)
            value.sum().backward()
            assert value.isfinite().all()
            assert (z.grad == 0).all()


def test_mmce_memory_is_linear():
    n = 200_000  # the dense kernel would take 160 GB
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(n, 3, generator=g)
    assert losses.mmce(logits, torch.randint(3, (n,), generator=g)).isfinite().all()


def test_dca_and_mdca_are_differences_of_means(easy):
    _, y, p, ce = numbers(*easy)
    gap = abs(p.max(1).mean() - (p.argmax(1) == y).mean())
    np.testing.assert_allclose(losses.dca(*easy, strength=3.0), ce + 3 * gap, rtol=1e-11)
    by_class = np.abs(p.mean(0) - np.eye(5)[y].mean(0)).mean()
    np.testing.assert_allclose(losses.mdca(*easy, strength=3.0), ce + 3 * by_class, rtol=1e-11)
    p_y = p[np.arange(150), y]
    focal = (1 - p_y) ** 2 * ce
    np.testing.assert_allclose(losses.mdca(*easy, gamma=2.0), focal + by_class, rtol=1e-11)


@pytest.mark.parametrize("threshold", [None, 0.0, 0.9, 5.0])
def test_avuc_equals_the_formula(easy, threshold):
    _, y, p, ce = numbers(*easy)
    r, c, u = p.max(1), p.argmax(1) == y, -(p * np.log(p)).sum(1)
    cut = (u[c].mean() + u[~c].mean()) / 2 if threshold is None else threshold
    counts = dict.fromkeys(("AC", "AU", "IC", "IU"), 0.0)
    for confidence, is_correct, entropy in zip(r, c, u):
        weight = confidence if is_correct else 1 - confidence
        share = 1 - np.tanh(entropy) if entropy <= cut else np.tanh(entropy)
        counts[("A" if is_correct else "I") + ("C" if entropy <= cut else "U")] += weight * share
    with np.errstate(divide="ignore"):
        penalty = np.log(1 + (counts["AU"] + counts["IC"]) / (counts["AC"] + counts["IU"] + 1e-10))
    np.testing.assert_allclose(losses.avuc(*easy, strength=3.0, threshold=threshold), ce + 3 * penalty, rtol=1e-9)


def test_avuc_prefers_certain_right_and_uncertain_wrong_predictions():
    logits = torch.tensor([[4.0, 0.0, 0.0], [0.1, 0.0, 0.0]])
    penalties = [
        (losses.avuc(logits, y, strength=1.0) - losses.cross_entropy(logits, y)).mean()
        for y in (torch.tensor([0, 1]), torch.tensor([1, 0]))
    ]
    assert penalties[0] < 0.05 < penalties[1]


@pytest.mark.parametrize("norm", [1.0, 2.0, 3.0])
def test_soft_ece_equals_the_formula(easy, norm):
    _, y, p, ce = numbers(*easy)
    r, c = p.max(1), (p.argmax(1) == y).astype(float)
    total = 0.0
    scores = np.array([[-((x - (b + 0.5) / 15) ** 2) / 0.01 for b in range(15)] for x in r])
    share = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    for b in range(15):
        size = share[:, b].sum()
        gap = abs((share[:, b] * c).sum() / size - (share[:, b] * r).sum() / size)
        total += size / 150 * gap**norm
    np.testing.assert_allclose(losses.soft_ece(*easy, norm=norm), ce + total ** (1 / norm), rtol=1e-6)


def test_soft_ece_approaches_equal_width_ece(easy):
    _, y, p, ce = numbers(*easy)
    r, c = p.max(1), (p.argmax(1) == y).astype(float)
    index = np.floor(r * 15)
    ece = sum(abs((c - r)[index == b].sum()) / 150 for b in range(15))
    np.testing.assert_allclose(losses.soft_ece(*easy, temperature=1e-6, norm=1.0), ce + ece, atol=1e-6)


@pytest.mark.parametrize("name", ["avuc", "mmce", "dca", "mdca", "soft_ece"])
def test_weights_count_examples_in_the_penalty(easy, name):
    logits, labels = easy
    loss = getattr(losses, name)
    rows = torch.arange(150) % 3 != 0
    rest = loss(logits[rows], labels[rows])
    masked = loss(logits, labels, weights=rows.double())
    assert torch.allclose(masked[rows], rest, rtol=1e-10)
    assert torch.allclose(loss(logits, labels, weights=torch.ones(150)), loss(logits, labels), rtol=1e-12)
    count = 1 + torch.arange(150) % 2  # an example of weight 2 is that example twice
    twice = loss(logits.repeat_interleave(count, 0), labels.repeat_interleave(count))
    weighted = loss(logits, labels, weights=count.double())
    assert torch.allclose(weighted.repeat_interleave(count), twice, rtol=1e-10)


def test_penalties_vanish_on_calibrated_predictions():
    """Labels drawn from the stated probabilities leave only noise, of order 1 / sqrt(n)."""
    g = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(40_000, 4, dtype=torch.float64, generator=g)
    labels = torch.multinomial(logits.softmax(-1), 1, generator=g).squeeze(1)
    ce = losses.cross_entropy(logits, labels)
    for name, extra in (
        ("dca", {}),
        ("mdca", {}),
        ("soft_ece", {}),
        ("mmce", {"form": "plain", "normalization": "paper"}),
    ):
        loss = getattr(losses, name)
        calibrated_penalty = (loss(logits, labels, strength=1.0, **extra) - ce).mean()
        sharpened = (loss(3 * logits, labels, strength=1.0, **extra) - losses.cross_entropy(3 * logits, labels)).mean()
        assert calibrated_penalty < 0.02, name
        if name != "mdca":  # symmetric noise cancels in class means
            assert sharpened > 4 * calibrated_penalty, name


def test_weighted_mmce_is_positive_on_calibrated_predictions():
    """Right and wrong predictions are normalized separately, so that the penalty prefers half of them right."""
    c = torch.tensor([0.9] * 9 + [0.9], dtype=torch.float64)  # nine right, one wrong, all at confidence 0.9
    logits = torch.stack([c.log(), (1 - c).log()], 1)
    labels = torch.tensor([0] * 9 + [1])
    for form, expected in ("plain", 0.0), ("weighted", 0.8):  # |0.1 - 0.9|
        value = losses.mmce(logits, labels, strength=1.0, form=form, normalization="paper")
        assert (value - losses.cross_entropy(logits, labels)).mean() == pytest.approx(expected, abs=2e-5)


@pytest.mark.parametrize("name", sorted(LOSSES))
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_class_indices_may_have_any_integer_type(name, dtype):
    g = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(20, 3, generator=g), torch.randint(3, (20,), generator=g)
    torch.manual_seed(0)  # mixing is random
    expected = prepared(name)(logits, labels)
    torch.manual_seed(0)
    assert torch.equal(prepared(name)(logits, labels.to(dtype)), expected)


@pytest.mark.parametrize("name", sorted(set(LOSSES) - {"acls"}))
@pytest.mark.parametrize("k", [2, 3])
def test_a_masked_label_has_a_finite_gradient(name, k):
    """Masks of float32 are the smallest finite number. The penalty of acls grows with the square of such logits."""
    logits = torch.zeros(4, k)
    logits[0, 1] = logits[1, 0] = torch.finfo(torch.float32).min
    logits.requires_grad_()
    prepared(name, k)(logits, torch.tensor([1, 1, 0, 0])).sum().backward()
    assert bool(logits.grad.isfinite().all())


def prepared(name, k=3):
    return losses.for_counts(LOSSES.resolve(name), torch.tensor([9, 6, 5][:k]))
