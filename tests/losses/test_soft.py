"""Soft labels against sums over classes written in numpy, and against what they stand for."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from calibrant import losses


@pytest.fixture
def batch():
    g = torch.Generator().manual_seed(3)
    z, t = (2 * torch.randn(80, 5, dtype=torch.float64, generator=g) for _ in range(2))
    return z, t.softmax(-1)


def numbers(logits, labels):
    p = logits.softmax(-1).numpy()
    return p, labels.numpy(), -(labels.numpy() * np.log(p)).sum(1)


def test_losses_of_soft_labels_equal_the_formulas(batch):
    p, t, _ = numbers(*batch)
    log_p, one_hot = np.log(p), np.eye(5)
    below = np.array([[max([q for q in row if q < x], default=0.0) for x in row] for row in p])
    distance = np.abs(one_hot[None] - p[:, None]).sum(2)  # (n k): of every label from p
    fresh = {
        "focal": -(t * (1 - p) ** 3 * log_p).sum(1),
        "inverse_focal": -(t * (1 + p) ** 2 * log_p).sum(1),
        "flsd": -(t * (1 - p) ** np.where(p < 0.2, 5, 3) * log_p).sum(1),
        "dual_focal": -(t * (1 - p + below) ** 5 * log_p).sum(1),
        "bsce_gra": -(t * distance * log_p).sum(1),
        "poly1": (t * (-log_p + 2 * (1 - p))).sum(1),
        "brier": ((p - t) ** 2).sum(1) + 1 - (t**2).sum(1),
    }
    for name, expected in fresh.items():
        np.testing.assert_allclose(getattr(losses, name)(*batch), expected, rtol=1e-9, err_msg=name)
    theirs = F.cross_entropy(*batch, reduction="none", label_smoothing=0.1)
    assert torch.allclose(losses.cross_entropy(*batch, smoothing=0.1), theirs, rtol=1e-12)


@pytest.mark.parametrize("norm", [1.0, 2.0, 3.5, np.inf])
def test_bsce_weights_every_class_by_any_norm(batch, norm):
    p, t, _ = numbers(*batch)
    distance = np.linalg.norm(np.eye(5)[None] - p[:, None], norm, 2)
    value = losses.bsce_gra(*batch, gamma=1.5, norm=float(norm))
    np.testing.assert_allclose(value, -(t * distance**1.5 * np.log(p)).sum(1), rtol=1e-7)


def test_equal_probabilities_are_not_runners_up():
    z = torch.tensor([[0.0, 0.0, -1.0]], dtype=torch.float64)
    t = torch.tensor([[0.4, 0.6, 0.0]], dtype=torch.float64)
    assert torch.allclose(losses.dual_focal(z, t), losses.dual_focal(z, torch.tensor([0])), rtol=1e-12)


def test_gamma_may_differ_by_example(batch):
    gamma = torch.linspace(0, 3, 80, dtype=torch.float64)
    for loss in losses.focal, losses.inverse_focal:
        row_losses = [loss(batch[0][i : i + 1], batch[1][i : i + 1], gamma=float(gamma[i])) for i in range(80)]
        assert torch.allclose(loss(*batch, gamma=gamma), torch.cat(row_losses), rtol=1e-12)


def test_batch_penalties_use_expected_correctness(batch):
    p, t, ce = numbers(*batch)
    r, c = p.max(1), t[np.arange(80), p.argmax(1)]
    np.testing.assert_allclose(losses.dca(*batch), ce + abs(r.mean() - c.mean()), rtol=1e-11)
    focal = -(t * (1 - p) ** 2 * np.log(p)).sum(1)
    by_class = np.abs(p.mean(0) - t.mean(0)).mean()
    np.testing.assert_allclose(losses.mdca(*batch, gamma=2.0), focal + by_class, rtol=1e-10)
    kernel = np.exp(-np.abs(r[:, None] - r) / 0.4)
    v = c * (1 - r) / c.sum() - (1 - c) * r / (1 - c).sum()
    value = losses.mmce(*batch, strength=1.0, normalization="paper")
    np.testing.assert_allclose(value, ce + np.sqrt(v @ kernel @ v + 1e-10), rtol=1e-10)
    v = (c - r) / 80
    np.testing.assert_allclose(losses.mmce(*batch, strength=1.0, form="plain"), ce + v @ kernel @ v, rtol=1e-10)
