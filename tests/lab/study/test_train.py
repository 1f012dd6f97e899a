from dataclasses import replace

import numpy as np
import pytest
import torch

from calibrant import Predictions, losses, registry
from calibrant.lab.data import digits
from calibrant.lab.study import Recipe, stored_files
from calibrant.lab.study.stored_files import Checkpoint
from calibrant.lab.study.train import predict, train

RECIPE = Recipe(epochs=4, batch_size=20, milestones=(2,), learning_rate=0.05)
SPLITS = digits(train=60, val=100)


def network(seed=0):
    torch.manual_seed(seed)
    return registry.NETWORKS.resolve("resnet8(channels=1, width=4)")(10)


def weights(net):
    return torch.cat([p.detach().flatten() for p in net.parameters()])


def test_training_yields_every_epoch():
    net = network()
    epochs = list(train(net, SPLITS, losses.cross_entropy, RECIPE))
    assert [e.number for e in epochs] == [1, 2, 3, 4]
    assert [round(e.learning_rate, 6) for e in epochs] == [0.05, 0.05, 0.005, 0.005]
    assert epochs[-1].train_loss < epochs[0].train_loss
    assert np.array_equal(epochs[-1].val.logits, predict(net, SPLITS.val, SPLITS.prepare).logits)


def test_seed_determines_the_training():
    results = []
    for seed in 0, 0, 1:
        net = network()
        list(train(net, SPLITS, losses.cross_entropy, RECIPE, seed=seed))
        results.append(weights(net))
    assert np.array_equal(results[0], results[1])
    assert not np.array_equal(results[0], results[2])


def test_adafocal_can_update_within_an_epoch():
    """Like the authors' code, it updates after batches 2 and 4 of 6, counted from 0, not after the epoch."""
    net, seen_logits, training = network(), [], []
    net.register_forward_hook(
        lambda net, _, logits: (training if net.training else seen_logits).append(logits.detach())
    )
    recipe = Recipe(epochs=2, batch_size=10, milestones=(), learning_rate=0.05)
    loss = registry.LOSSES.resolve("AdaFocal(bins=3, every=2)")
    epochs = list(train(net, SPLITS, loss, recipe))
    assert (len(training), len(seen_logits)) == (12, 2 * 3)
    for epoch, views in zip(epochs, (seen_logits[:2], seen_logits[3:5])):
        for logits in views:
            loss = loss.update(Predictions(logits, SPLITS.val.labels))
        torch.testing.assert_close(epoch.loss.gamma, loss.gamma)
    assert not np.array_equal(epochs[0].loss.gamma, epochs[1].loss.gamma)
    assert loss.after_epoch(0, None) is loss


def test_regmixup_trains_on_clean_and_mixed_examples():
    """Each of the two batches holds the clean examples before the mixed ones."""
    recipe = Recipe(epochs=1, batch_size=30, momentum=0.0, weight_decay=0.0, learning_rate=0.05)
    seen_logits, ours, second = [], network(), network()
    mixup = registry.LOSSES.resolve("RegMixup(loss='focal', alpha=2, strength=0.5)")
    ours.register_forward_pre_hook(lambda net, inputs: seen_logits.append(inputs[0]) if net.training else None)
    (epoch,) = train(ours, SPLITS, mixup, recipe)
    assert [len(inputs) for inputs in seen_logits] == [60, 60]
    generator = torch.Generator().manual_seed(hash((0, 1, 2)))
    second.train()
    total, images = 0.0, SPLITS.prepare(SPLITS.train.inputs)
    for inputs in seen_logits:
        rows = [int((images == image).flatten(1).all(1).nonzero()[0]) for image in inputs[:30]]
        labels = SPLITS.train.labels[rows]
        batch = mixup.mix(inputs[:30], labels, generator=generator)
        assert np.array_equal(batch.inputs, inputs)
        values = batch.loss(losses.focal, second(inputs))
        second.zero_grad()
        values.mean().backward()
        with torch.no_grad():
            for p in second.parameters():
                p -= 0.05 * p.grad
        total += float(values.detach().sum())
    torch.testing.assert_close(weights(ours), weights(second))
    assert epoch.train_loss == pytest.approx(total / 120)


@pytest.mark.parametrize("loss", ["focal", "AdaFocal", "Scheduled"])
def test_resumed_training_equals_an_uninterrupted_one(tmp_path, monkeypatch, loss):
    monkeypatch.setattr(stored_files, "MIN_SAVE_INTERVAL_SECONDS", 0.0)
    complete = network()
    whole_epochs = list(train(complete, SPLITS, registry.LOSSES.resolve(loss), RECIPE, seed=3))
    path = tmp_path / "checkpoint.pt"
    for epoch in train(network(), SPLITS, registry.LOSSES.resolve(loss), RECIPE, seed=3, checkpoint=Checkpoint(path)):
        if epoch.number == 3:
            break  # closes the training, which saves the state after this epoch
    resumed = network(seed=9)  # the initial weights must not matter
    rest = list(train(resumed, SPLITS, registry.LOSSES.resolve(loss), RECIPE, seed=3, checkpoint=Checkpoint(path)))
    assert [e.number for e in rest] == [4]
    assert np.array_equal(weights(resumed), weights(complete))
    assert rest[-1].train_loss == whole_epochs[-1].train_loss


def test_sum_reduction_equals_mean_with_larger_rate():
    first, second = network(), network()
    mean_recipe = Recipe(epochs=2, batch_size=20, momentum=0.0, weight_decay=0.0, milestones=(), learning_rate=0.02)
    summed = Recipe(
        epochs=2, batch_size=20, momentum=0.0, weight_decay=0.0, milestones=(), learning_rate=0.001, reduction="sum"
    )
    list(train(first, SPLITS, losses.cross_entropy, mean_recipe))
    list(train(second, SPLITS, losses.cross_entropy, summed))
    torch.testing.assert_close(weights(first), weights(second), rtol=1e-3, atol=1e-4)


def test_balanced_loss_receives_class_counts():
    brief = Recipe(epochs=1, batch_size=20)
    subset = replace(SPLITS, train=SPLITS.train[torch.arange(60)[SPLITS.train.labels != 3]])  # without one class
    first, same, second = network(), network(), network()
    (epoch,) = list(train(first, subset, registry.LOSSES.resolve("balanced_softmax(gamma=1)"), brief))
    counts = [int((subset.train.labels == k).sum()) for k in range(10)]
    assert counts[3] == 0
    assert epoch.loss.keywords["counts"].tolist() == counts
    explicit = registry.LOSSES.resolve(f"balanced_softmax(gamma=1, counts={tuple(counts)})")
    list(train(same, subset, explicit, brief))
    list(train(second, subset, registry.LOSSES.resolve("focal(gamma=1)"), brief))
    assert np.array_equal(weights(first), weights(same))
    assert not np.array_equal(weights(first), weights(second))


def test_clipping_bounds_a_step():
    net = network()
    before = weights(net)
    recipe = Recipe(epochs=1, batch_size=60, momentum=0.0, weight_decay=0.0, learning_rate=1.0, clip=0.01)
    list(train(net, SPLITS, losses.cross_entropy, recipe))
    assert (weights(net) - before).norm() == pytest.approx(0.01, rel=1e-3)
