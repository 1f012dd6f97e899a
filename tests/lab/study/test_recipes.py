"""Recipes: names, schedules, optimizers and choice of epoch."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from refusals import refused
from torch import nn

from calibrant import losses
from calibrant.lab import networks
from calibrant.lab.data import Splits, blobs, sst
from calibrant.lab.study import stored_files
from calibrant.lab.study.config import Study, parse_recipe
from calibrant.lab.study.recipe import RECIPES, Recipe
from calibrant.lab.study.stored_files import Checkpoint
from calibrant.lab.study.train import build_optimizers, predict, train
from calibrant.metrics import error
from calibrant.nn.selection import refinement_nll

SPLITS = blobs(train=60, val=40, test=40, classes=3)
SHORT = Recipe(epochs=3, batch_size=20, milestones=(2,), learning_rate=0.05)


def mlp(seed=0):
    torch.manual_seed(seed)
    return networks.mlp(3, features=2, hidden=(8,))


def weights(net):
    return torch.cat([p.detach().flatten() for p in net.parameters()])


def rates(recipe):
    return [recipe.learning_rate * recipe.rate_factor(epoch) for epoch in range(recipe.epochs)]


def test_learning_rates_of_the_papers():
    by_code = rates(RECIPES["mukhoti_cifar"])
    assert len(by_code) == 350
    assert [by_code[e] for e in (0, 148, 149, 248, 249, 349)] == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001, 0.001])
    wang = rates(RECIPES["wang_cifar"])
    assert [wang[e] for e in (99, 100, 149, 150, 199)] == pytest.approx([0.1, 0.01, 0.01, 0.001, 0.001])
    tiny = rates(RECIPES["komisarenko_tiny_imagenet"])
    assert [tiny[e] for e in (38, 39, 58, 59)] == pytest.approx([0.1, 0.01, 0.01, 0.001])


def test_reduction_depends_on_the_loss_only():
    from calibrant.lab.study import Run

    by = {loss: Run("digits", "resnet8", loss, 0, RECIPES["mukhoti_cifar"]).recipe for loss in ("brier", "focal")}
    assert {loss: recipe.reduction for loss, recipe in by.items()} == {"brier": "mean", "focal": "sum"}
    same = Run("digits", "resnet8", "brier", 0, replace(RECIPES["mukhoti_cifar"], reduction="mean"))
    assert same == Run("digits", "resnet8", "brier", 0, RECIPES["mukhoti_cifar"])


def test_training_loss_is_the_mean_over_used_examples():
    recipe = replace(SHORT, batch_size=25, drop_last=True, learning_rate=1e-12, epochs=1, milestones=())
    epoch_results = train(mlp(), SPLITS, lambda z, y: torch.ones_like(z[:, 0]) + 0 * z.sum(1), recipe)
    assert [epoch.train_loss for epoch in epoch_results] == pytest.approx([1.0])


@pytest.mark.parametrize("name", RECIPES)
def test_every_named_recipe_trains_when_it_is_short(name):
    short = replace(RECIPES[name].with_epochs(2), warmup=0, precision="32-true", channels_last=False)
    epochs = list(train(mlp(), SPLITS, losses.cross_entropy, replace(short, batch_size=20)))
    assert len(epochs) == 2
    assert all(torch.as_tensor(epoch.val.logits).isfinite().all() for epoch in epochs)


def test_schedules_match_torch():
    net = mlp()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    for rate in rates(Recipe(epochs=10, schedule="cosine")):
        assert rate == pytest.approx(optimizer.param_groups[0]["lr"])
        optimizer.step()
        cosine.step()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    steps = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 5])
    for rate in rates(Recipe(epochs=8, milestones=(2, 5))):
        assert rate == pytest.approx(optimizer.param_groups[0]["lr"])
        optimizer.step()
        steps.step()
    assert rates(Recipe(epochs=5, warmup=4, milestones=()))[:5] == pytest.approx([0.025, 0.05, 0.075, 0.1, 0.1])


def test_the_rate_of_an_epoch_is_what_the_optimizer_used():
    rates_used = [e.learning_rate for e in train(mlp(), SPLITS, losses.cross_entropy, replace(SHORT, warmup=1))]
    assert rates_used == pytest.approx([0.05, 0.05, 0.005])


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("sgd", torch.optim.SGD),
        ("adam", torch.optim.Adam),
        ("adamw", torch.optim.AdamW),
        ("adagrad", torch.optim.Adagrad),
    ],
)
def test_an_epoch_equals_a_loop_with_torchs_optimizer(name, kind):
    how = Recipe(epochs=1, batch_size=60, optimizer=name, learning_rate=0.01, weight_decay=0.1, momentum=0.5)
    ours, theirs = mlp(), mlp()
    list(train(ours, SPLITS, losses.cross_entropy, how))
    momentum_option = {"momentum": 0.5} if name == "sgd" else {}
    optimizer = kind(theirs.parameters(), lr=0.01, weight_decay=0.1, **momentum_option)
    nn.functional.cross_entropy(theirs(SPLITS.train.inputs), SPLITS.train.labels).backward()
    optimizer.step()
    torch.testing.assert_close(weights(ours), weights(theirs), atol=1e-5, rtol=1e-4)


def test_weight_decay_can_spare_biases_and_norms():
    net = networks.resnet8(3, width=4)
    (optimizer,) = build_optimizers(net, Recipe(decayed="weights"))
    decayed, spared = optimizer.param_groups
    assert (decayed["weight_decay"], spared["weight_decay"]) == (5e-4, 0.0)
    assert all(p.ndim >= 2 for p in decayed["params"])
    assert all(p.ndim == 1 for p in spared["params"])
    assert len(decayed["params"]) + len(spared["params"]) == len(list(net.parameters()))


def test_word_vectors_have_their_own_plain_sgd():
    net = networks.tree_lstm(2, words=30, dimension=4, memory=3)
    rest, vectors = build_optimizers(net, RECIPES["mukhoti_sst"])
    assert isinstance(rest, torch.optim.Adagrad)
    assert isinstance(vectors, torch.optim.SGD)
    (group,) = vectors.param_groups
    assert (group["lr"], group["weight_decay"], group["momentum"]) == (0.1, 0, 0)
    assert group["params"][0] is net.embedding.weight
    assert all(p is not net.embedding.weight for g in rest.param_groups for p in g["params"])
    frozen = networks.global_pooling_cnn(2, torch.zeros(9, 8), frozen=True)
    assert len(build_optimizers(frozen, RECIPES["mukhoti_sst"])) == 1


def test_trees_train_on_every_node_and_the_loss_is_per_tree(small_data):
    splits = sst(small_data, dimension=4)
    torch.manual_seed(0)
    net = networks.tree_lstm(2, splits.word_vectors, memory=3, dropout=0.0)
    before = {k: v.clone() for k, v in net.state_dict().items()}
    how = Recipe(epochs=1, batch_size=100, momentum=0.0, weight_decay=0.0, learning_rate=1.0)
    list(train(net, splits, losses.cross_entropy, how))
    reference = networks.tree_lstm(2, splits.word_vectors, memory=3, dropout=0.0)
    reference.load_state_dict(before)
    trees = splits.train.inputs
    nodes = nn.functional.cross_entropy(
        reference.train()(trees), splits.targets(trees, splits.train.labels), reduction="sum"
    )
    (nodes / len(trees)).backward()
    for (key, after), parameter in zip(net.named_parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(after.detach(), before[key] - parameter.grad, atol=1e-5, rtol=1e-4)


def test_clipping_bounds_the_gradient_of_word_vectors_too(small_data):
    splits = sst(small_data, dimension=4)
    net = networks.tree_lstm(2, splits.word_vectors, memory=3, dropout=0.0)
    before = {k: v.clone() for k, v in net.state_dict().items()}
    recipe = Recipe(epochs=1, batch_size=100, momentum=0.0, weight_decay=0.0, learning_rate=1.0)
    list(train(net, splits, losses.cross_entropy, replace(recipe, vectors_learning_rate=1.0, clip=0.01)))
    changes = {k: v - before[k] for k, v in net.state_dict().items()}
    assert changes["embedding.weight"].norm() > 0
    assert torch.cat([v.flatten() for v in changes.values()]).norm() == pytest.approx(0.01, rel=1e-3)


def test_incomplete_batch_can_be_dropped():
    sizes = []

    def loss(logits, labels):
        sizes.append(len(labels))
        return losses.cross_entropy(logits, labels)

    list(train(mlp(), SPLITS, loss, replace(SHORT, epochs=1, batch_size=25, drop_last=True)))
    assert sizes == [25, 25]
    list(train(mlp(), SPLITS, loss, replace(SHORT, epochs=1, batch_size=100, drop_last=True)))
    assert sizes[2:] == [60]  # all examples


@pytest.mark.parametrize("choose", ["accuracy", "refinement"])
def test_the_chosen_epoch_is_the_best_also_after_an_interruption(choose, tmp_path, monkeypatch):
    monkeypatch.setattr(stored_files, "MIN_SAVE_INTERVAL_SECONDS", 0.0)
    wild = Recipe(epochs=8, batch_size=10, learning_rate=0.8, milestones=(), momentum=0.9, choose=choose)
    score = (
        (lambda val: -float(error(val))) if choose == "accuracy" else (lambda val: -float(refinement_nll(val, folds=1)))
    )
    net, scores, flags, snapshots = mlp(), [], [], []
    for epoch in train(net, SPLITS, losses.cross_entropy, wild, seed=4):
        scores.append(score(epoch.val))
        flags.append(epoch.best)
        snapshots.append(weights(net))
    best = scores.index(max(scores))
    assert best < 7  # otherwise the last epoch would do
    assert np.array_equal(weights(net), snapshots[best])
    assert [i for i, flag in enumerate(flags) if flag][-1] == best
    assert score(predict(net, SPLITS.val, SPLITS.prepare)) == max(scores)

    path = tmp_path / "checkpoint.pt"
    for epoch in train(mlp(), SPLITS, losses.cross_entropy, wild, seed=4, checkpoint=Checkpoint(path)):
        if epoch.number == best + 3:
            break
    resumed = mlp(seed=9)
    list(train(resumed, SPLITS, losses.cross_entropy, wild, seed=4, checkpoint=Checkpoint(path)))
    assert np.array_equal(weights(resumed), snapshots[best])


@pytest.mark.parametrize("changes", [{"precision": "bf16-mixed", "channels_last": True}, {"precision": "bf16-true"}])
def test_low_precision_learns_too(changes, small_data):
    from calibrant.lab.data import cifar10

    splits = cifar10(small_data, val=10)
    net = networks.resnet8(10, width=4)
    epochs = list(train(net, splits, losses.cross_entropy, replace(SHORT, **changes)))
    assert epochs[-1].val.logits.dtype == np.float32
    assert epochs[-1].train_loss < epochs[0].train_loss


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_compiled_network_learns_the_same():
    nets = mlp(), mlp()
    for net, compiled in zip(nets, (False, True), strict=True):
        list(train(net, SPLITS, losses.cross_entropy, replace(SHORT, compile=compiled)))
    torch.testing.assert_close(weights(nets[0]), weights(nets[1]), atol=1e-4, rtol=1e-3)


def test_a_study_names_a_recipe_and_scales_it(tmp_path):
    text = 'datasets = ["cifar10"]\nnetworks = ["resnet50"]\nlosses = ["focal"]\n'
    (tmp_path / "a.toml").write_text('recipe = "mukhoti_cifar"\n' + text)
    assert Study.load(tmp_path / "a.toml").grids[0].recipe == RECIPES["mukhoti_cifar"]
    (tmp_path / "b.toml").write_text(text + '[recipe]\nlike = "mukhoti_cifar"\nepochs = 35\nclip = 1\n')
    assert Study.load(tmp_path / "b.toml").grids[0].recipe == replace(
        RECIPES["mukhoti_cifar"].with_epochs(35), clip=1.0
    )
    for wrong, code, mention in (
        ('like = "mukhoti_cifra"', "unknown_recipe", "'mukhoti_cifar'"),
        ('like = "mukhoti_cifar"\nepoch = 3', "unknown_key", "'epochs'"),
        ('optimizer = "lion"', "type_of_key", "optimizer"),
        ("warmup = 400", "recipe_warmup", "400"),
    ):
        (tmp_path / "c.toml").write_text(text + "[recipe]\n" + wrong + "\n")
        with refused(code) as caught:
            Study.load(tmp_path / "c.toml")
        assert mention in str(caught.value)


def test_recipe_changes_keep_other_settings():
    named = parse_recipe({"like": "mukhoti_cifar", "milestones": [10], "epochs": 20})
    assert (named.milestones, named.clip, named.reduction) == ((10,), 2.0, "sum")
    assert isinstance(SPLITS, Splits)


def test_an_interrupted_training_sees_the_same_augmented_batches(small_data, tmp_path, monkeypatch):
    from calibrant.lab.data import cifar10

    monkeypatch.setattr(stored_files, "MIN_SAVE_INTERVAL_SECONDS", 0.0)
    splits, path = cifar10(small_data, val=10), tmp_path / "checkpoint.pt"

    def fresh():
        torch.manual_seed(0)
        return networks.resnet8(10, width=4)

    uninterrupted, resumed = fresh(), fresh()
    list(train(uninterrupted, splits, losses.cross_entropy, SHORT, seed=2))
    for epoch in train(fresh(), splits, losses.cross_entropy, SHORT, seed=2, checkpoint=Checkpoint(path)):
        if epoch.number == 2:
            break
    list(train(resumed, splits, losses.cross_entropy, SHORT, seed=2, checkpoint=Checkpoint(path)))
    assert np.array_equal(weights(uninterrupted), weights(resumed))
    reference = fresh()
    list(train(reference, splits, losses.cross_entropy, SHORT, seed=3))
    assert not np.array_equal(weights(uninterrupted), weights(reference))
