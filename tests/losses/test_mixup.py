"""Mixup and RegMixup against their definitions."""

import pytest
import torch
from refusals import refused
from torch.nn.functional import cross_entropy, one_hot

from calibrant import losses, registry
from calibrant.losses import Mixup, RegMixup


@pytest.fixture
def batch():
    g = torch.Generator().manual_seed(0)
    return torch.randn(32, 3, 4, 4, generator=g), torch.randint(5, (32,), generator=g)


def test_the_clean_half_is_untouched_and_the_mixed_half_is_mixed(batch):
    inputs, labels = batch
    mixed = RegMixup().mix(inputs, labels, generator=torch.Generator().manual_seed(1))
    assert torch.equal(mixed.inputs[:32], inputs)
    assert torch.equal(mixed.first, torch.cat([labels, labels]))
    order = torch.randperm(32, generator=torch.Generator().manual_seed(1))
    assert torch.equal(mixed.second[32:], labels[order])
    assert torch.allclose(mixed.inputs[32:], mixed.share * inputs + (1 - mixed.share) * inputs[order])


def test_mixup_is_the_mixed_half_of_regmixup(batch):
    mixed, doubled = (
        m.mix(*batch, generator=torch.Generator().manual_seed(1)) for m in (Mixup(alpha=0.4), RegMixup(alpha=0.4))
    )
    assert torch.equal(mixed.inputs, doubled.inputs[32:])
    logits = torch.randn(64, 5, generator=torch.Generator().manual_seed(2))
    assert torch.equal(mixed.loss(losses.focal, logits[32:]), doubled.loss(losses.focal, logits)[32:])
    assert len(mixed.loss(losses.focal, logits[32:])) == 32


def test_mixed_loss_equals_cross_entropy_of_mixed_targets(batch):
    mixed = RegMixup(strength=0.7).mix(*batch)
    logits = torch.randn(64, 5, generator=torch.Generator().manual_seed(2))
    target = mixed.share * one_hot(mixed.first, 5) + (1 - mixed.share) * one_hot(mixed.second, 5)
    expected = cross_entropy(logits, target, reduction="none")
    expected[32:] *= 0.7
    assert torch.allclose(mixed.loss(losses.cross_entropy, logits), expected, atol=1e-6)
    clean = losses.focal(logits[:32], batch[1])
    assert torch.allclose(mixed.loss(losses.focal, logits)[:32], clean, rtol=1e-5)


def test_mixing_share_is_beta_distributed_and_reproducible(batch):
    g = torch.Generator().manual_seed(0)
    shares = torch.tensor([RegMixup(alpha=20.0).mix(*batch, generator=g).share for _ in range(2000)])
    assert shares.mean().item() == pytest.approx(0.5, abs=0.01)
    assert shares.var().item() == pytest.approx(1 / (4 * 41), rel=0.15)
    first_mix, second_mix = (RegMixup().mix(*batch, generator=torch.Generator().manual_seed(5)) for _ in range(2))
    assert torch.equal(first_mix.inputs, second_mix.inputs)


def test_regmixup_called_with_logits_is_its_inner_loss(batch):
    logits = torch.randn(32, 5, generator=torch.Generator().manual_seed(2))
    named = registry.LOSSES.resolve("RegMixup(loss='focal(gamma=2)')")
    assert torch.equal(named(logits, batch[1]), losses.focal(logits, batch[1], gamma=2.0))
    with refused("unknown_method", "'focal'"):
        RegMixup(loss="foca")


def test_state_of_the_inner_loss_is_carried():
    scheduled = losses.for_epochs(RegMixup(loss="Scheduled", alpha=3.0), 7)
    for epoch in range(2):
        scheduled = scheduled.after_epoch(epoch)
    assert (scheduled.loss.gamma, scheduled.alpha) == (3.0, 3.0)
    again = losses.restore_state(losses.for_epochs(RegMixup(loss="Scheduled"), 7), losses.state(scheduled))
    assert again.loss.gamma == 3.0
    assert losses.state(RegMixup()) == {}


def test_token_ids_and_logits_of_half_a_batch_are_refused(batch):
    with refused("token_ids"):
        RegMixup().mix(torch.zeros(32, 7, dtype=torch.int64), batch[1])
    with refused("num_logits", "64"):
        RegMixup().mix(*batch).loss(losses.focal, torch.zeros(32, 5))
