"""Losses with state, against simulations written line by line from the authors' procedure."""

import io
import math

import numpy as np
import pytest
import torch
from calibrant.types import StatefulLoss
from refusals import code_of, refused

from calibrant import Predictions, losses, registry
from calibrant._core.tensors import logit_tensor


def validation(epoch, n=240):
    """Return predictions of a simulated epoch, over- or underconfident by turns and by bin."""
    g = torch.Generator().manual_seed(epoch)
    mood = 1 if epoch < 14 or epoch >= 40 else -1
    scale = 6.0 if mood > 0 else 0.4
    logits = scale * torch.randn(n, 4, generator=g)
    hit = 0.15 if mood > 0 else 0.95
    top = logits.argmax(1)
    labels = torch.where(torch.rand(n, generator=g) < hit, top, (top + 1) % 4)
    return Predictions(logits, labels)


class Simulation:
    """AdaFocal with loops and dicts, as in the authors' code: bins, update, switch, clip."""

    def __init__(self, bins=15, fixed=False):
        self.fixed = fixed
        self.bins = [{"gamma": 1.0, "lower": b / bins, "upper": (b + 1) / bins} for b in range(bins)]
        self.switched = self.clipped_high = self.clipped_low = 0

    def after_epoch(self, logits, labels):
        z = np.asarray(logits, dtype=np.float64)
        p = np.exp(z - z.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        confidence, correct = p.max(1), p.argmax(1) == labels
        n, count = len(confidence), len(self.bins)
        edges = np.interp(np.linspace(0, n, count + 1), np.arange(n), np.sort(confidence))
        if self.fixed:
            edges = [b / count for b in range(count + 1)]
        for b, this in enumerate(self.bins):
            inside = [i for i in range(n) if edges[b] < confidence[i] <= edges[b + 1]]
            gap = 0.0
            if inside:
                gap = sum(confidence[i] for i in inside) / len(inside) - sum(correct[i] for i in inside) / len(inside)
            gamma = this["gamma"] * math.exp(gap if this["gamma"] > 0 else -gap)
            if abs(gamma) < 0.2:
                gamma = -0.2 if gamma > 0 else 0.2
                self.switched += 1
            self.clipped_high += gamma > 20
            self.clipped_low += gamma < -2
            this["gamma"] = max(min(gamma, 20.0), -2.0)
            this["lower"], this["upper"] = edges[b], edges[b + 1]

    def loss(self, p_y):
        for b, this in enumerate(self.bins):
            if b == 0 and p_y < this["upper"]:
                break
            if b == len(self.bins) - 1 and p_y >= this["lower"]:
                break
            if this["lower"] <= p_y < this["upper"]:
                break
        gamma = this["gamma"]
        return -((1 - math.copysign(1, gamma) * p_y) ** abs(gamma)) * math.log(p_y)


@pytest.mark.parametrize("scheme", ["equal_mass", "equal_width"])
def test_adafocal_replayed_over_fifty_epochs(scheme):
    loss = registry.LOSSES.resolve(f"AdaFocal(scheme={scheme!r})")
    simulation = Simulation(fixed=scheme == "equal_width")
    g = torch.Generator().manual_seed(0)
    for epoch in range(50):
        logits = 3 * torch.randn(60, 4, dtype=torch.float64, generator=g)
        labels = torch.randint(4, (60,), generator=g)
        p_y = logits.softmax(-1)[torch.arange(60), labels]
        np.testing.assert_allclose(loss(logits, labels), [simulation.loss(float(p)) for p in p_y], rtol=1e-9)
        val = validation(epoch)
        loss = loss.after_epoch(epoch, val)
        simulation.after_epoch(val.logits, val.labels)
        np.testing.assert_allclose(loss.gamma, [b["gamma"] for b in simulation.bins], rtol=1e-10)
        np.testing.assert_allclose(loss.edges[:-1], [b["lower"] for b in simulation.bins], rtol=1e-12)
    assert simulation.switched >= 8  # the replay covers every step
    assert simulation.clipped_high >= 8
    assert simulation.clipped_low >= 8


def test_adafocal_starts_as_focal_loss_and_is_inverse_focal_below_gamma_0():
    g = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(30, 4, dtype=torch.float64, generator=g), torch.randint(4, (30,), generator=g)
    assert torch.allclose(losses.AdaFocal()(logits, labels), losses.focal(logits, labels, gamma=1.0), rtol=1e-14)
    inverse = losses.AdaFocal(gamma=torch.full((15,), -1.5, dtype=torch.float64))
    assert torch.allclose(inverse(logits, labels), losses.inverse_focal(logits, labels, gamma=1.5), rtol=1e-14)


def test_gamma_belongs_to_the_bin_of_the_true_class_closed_below():
    loss = losses.AdaFocal(
        torch.tensor([0.3, 0.5, 0.5, 0.9], dtype=torch.float64),
        torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64),
        bins=3,
    )
    p = torch.tensor([0.0, 0.29, 0.49, 0.5, 0.89, 0.9, 1.0], dtype=torch.float64)
    assert loss.gamma_of(p).tolist() == [1, 1, 1, 3, 3, 3, 3]  # the middle bin is empty: two edges coincide


def test_a_calibrated_bin_keeps_its_gamma():
    logits = torch.zeros(8, 2, dtype=torch.float64)
    logits[:, 0] = torch.arange(8) / 1e9
    val = Predictions(logits, torch.tensor([0, 1] * 4))
    gamma = losses.AdaFocal(bins=1).after_epoch(0, val).gamma
    assert gamma[0] == pytest.approx(math.exp(0.5 - 3 / 7), abs=1e-6)  # the lowest confidence is left out of the bins


@pytest.mark.parametrize(
    ("text", "epochs", "changes"),
    [
        ("Scheduled", 350, {0: 5, 99: 5, 100: 3, 249: 3, 250: 2, 349: 2}),
        ("Scheduled(gammas=(5, 3, 1))", 350, {99: 5, 100: 3, 250: 1}),
        ("Scheduled", 50, {13: 5, 14: 3, 34: 3, 35: 2}),
        ("Scheduled(shares=(0.3, 0.7))", 100, {29: 5, 30: 3, 69: 3, 70: 2}),
        ("Scheduled", 2, {0: 3, 1: 2}),
    ],
)
def test_scheduled_changes_gamma_at_the_epochs_of_the_papers(text, epochs, changes):
    loss = losses.for_epochs(registry.LOSSES.resolve(text), epochs)
    logits, labels = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0, 1])
    for epoch in range(epochs):
        if epoch in changes:
            assert loss.gamma == changes[epoch]
            expected = losses.focal(logits, labels, gamma=float(changes[epoch]))
            assert torch.equal(loss(logits, labels), expected)
        loss = loss.after_epoch(epoch, None)


def test_scheduled_needs_the_number_of_epochs():
    with refused("num_epochs"):
        losses.Scheduled().after_epoch(0)
    with refused("schedule"):
        losses.Scheduled(shares=(0.7, 0.3))
    assert losses.for_epochs(losses.Scheduled(epochs=9), 90).epochs == 9  # set already
    assert losses.for_epochs(losses.focal, 90) is losses.focal


@pytest.mark.parametrize("text", ["AdaFocal(bins=7)", "Scheduled(epochs=20)"])
def test_training_resumed_from_a_checkpoint_equals_uninterrupted_training(text):
    loss = registry.LOSSES.resolve(text)
    assert isinstance(loss, StatefulLoss)
    for epoch in range(6):
        loss = loss.after_epoch(epoch, validation(epoch))
    file = io.BytesIO()
    torch.save(losses.state(loss), file)
    file.seek(0)
    again = losses.restore_state(registry.LOSSES.resolve(text), torch.load(file, weights_only=True))
    for epoch in range(6, 20):
        val = validation(epoch)
        logits, labels = logit_tensor(val), torch.from_numpy(val.labels)
        assert torch.equal(loss(logits, labels), again(logits, labels))
        loss, again = loss.after_epoch(epoch, val), again.after_epoch(epoch, val)


def test_a_state_of_another_loss_is_refused():
    with refused("state_keys", "AdaFocal"):
        losses.restore_state(losses.AdaFocal(), losses.state(losses.Scheduled()))
    assert losses.state(losses.focal) == {}
    assert losses.restore_state(losses.focal, {}) is losses.focal


def test_after_epoch_leaves_the_loss_unchanged():
    loss = losses.AdaFocal()
    before = loss.gamma.clone(), loss.edges.clone()
    loss.after_epoch(0, validation(0))
    assert torch.equal(loss.gamma, before[0])
    assert torch.equal(loss.edges, before[1])


def test_state_of_another_number_of_bins_is_refused():
    saved = losses.AdaFocal(bins=15).state_dict()
    assert code_of(losses.AdaFocal(bins=10).with_state_dict, saved) == "adafocal_state"
    assert code_of(losses.AdaFocal, gamma=torch.ones(3)) == "adafocal_state"
