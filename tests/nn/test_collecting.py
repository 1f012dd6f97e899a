"""`collect` runs a network over batches of any form, in memory or to a file."""

from contextlib import suppress

import numpy as np
import pytest
import torch
from refusals import refused
from torch import Tensor, nn

from calibrant import InputError, Predictions, assess, collect

G = torch.Generator().manual_seed(0)
X, Y = torch.randn(20, 3, generator=G), torch.randint(0, 4, (20,), generator=G)
NETWORK = nn.Linear(3, 4).requires_grad_(False)
BATCHES = [(X[:12], Y[:12]), (X[12:], Y[12:])]


class KeywordNetwork(nn.Module):
    """A network with keyword inputs and a mapping of outputs, as in Transformers."""

    def forward(self, pixels: Tensor, scale: float = 1.0) -> dict[str, Tensor]:
        return {"loss": torch.zeros(()), "logits": scale * NETWORK(pixels)}


def test_collect_reads_batches_and_outputs_of_any_form():
    expected = NETWORK(X)
    named = [{"pixels": x, "labels": y} for x, y in BATCHES]
    assert np.array_equal(collect(KeywordNetwork(), named).logits, expected)
    twice = [({"pixels": x, "scale": 2.0}, y) for x, y in BATCHES]
    assert np.array_equal(collect(KeywordNetwork(), twice).logits, 2 * expected)
    triples = [(x, y, "name") for x, y in BATCHES]
    assert np.array_equal(collect(NETWORK, triples, unpack=lambda batch: batch[:2]).logits, expected)
    pairs = nn.Sequential(NETWORK)
    pairs.register_forward_hook(lambda module, inputs, outputs: (outputs, None))
    assert np.array_equal(collect(pairs, BATCHES, output=0).logits, expected)


@pytest.mark.parametrize(
    ("network", "batches", "code", "part"),
    [
        (NETWORK, [(X, Y, 0)], "batch", "3"),
        (NETWORK, [{"pixels": X}], "batch_keys", "pixels"),
        (NETWORK, [X], "batch", "Tensor"),
        (nn.LSTM(3, 4), [(X, Y)], "no_logits", "tuple"),
        (NETWORK, [(X, ["a"] * len(X))], "not_numbers", "labels"),
    ],
)
def test_batches_and_outputs_of_unknown_form_are_refused(network, batches, code, part):
    network.train()
    with refused(code, part):
        collect(network, batches)
    assert network.training


@pytest.mark.parametrize("output", [2, "scores"])
def test_output_without_the_named_logits_is_refused(output):
    with refused("no_logits", "tuple"):
        collect(nn.LSTM(3, 4), [(X, Y)], output=output)


@pytest.mark.parametrize("batches", [BATCHES, [X]])
@pytest.mark.parametrize("is_training", [True, False])
def test_every_module_gets_its_mode_back(batches, is_training):
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Sequential(nn.Dropout(), nn.Dropout()))
    network.train(is_training)
    network[1].train(not is_training)
    network[2][0].train(not is_training)
    modes = [module.training for module in network.modules()]
    with suppress(InputError):  # of batches that are refused
        collect(network, batches)
    assert [module.training for module in network.modules()] == modes


def test_collect_reads_single_logits_as_binary():
    binary = nn.Linear(3, 1).requires_grad_(False)
    p = collect(binary, [(X, (Y > 1).float()[:, None])], binary=True)
    assert np.array_equal(p.logits[:, 1], binary(X).squeeze(1).detach())
    assert (p.of, p.labels.tolist()) == (1, (Y > 1).long().tolist())


def test_collect_makes_each_image_a_cluster(tmp_path):
    network = nn.Conv2d(3, 5, 1).requires_grad_(False)
    images, labels = torch.randn(4, 3, 2, 3, generator=G), torch.randint(0, 5, (4, 2, 3), generator=G)
    labels[1] = 255
    labels[0, 0, 0] = 255
    batches = [(images[i : i + 1], labels[i : i + 1]) for i in range(4)]
    p = collect(network, batches, ignore_index=255)
    assert p.clusters.tolist() == [0] * 5 + [1] * 6 + [2] * 6
    path = collect(network, batches, ignore_index=255, to=tmp_path / "p.parquet")
    loaded = Predictions.load(path)
    assert np.array_equal(loaded.logits, p.logits)
    assert np.array_equal(loaded.clusters, p.clusters)


def test_failed_collect_leaves_no_file(tmp_path):
    path = collect(NETWORK, BATCHES, to=tmp_path / "p.parquet")
    assert np.array_equal(Predictions.load(path).logits, NETWORK(X))
    assert assess(Predictions(NETWORK(X + 1), Y), path, ["Identity", "Temperature"]).uncalibrated.n == 20

    def failing_batches():
        yield BATCHES[0]
        raise OSError("disk failure")

    for batches, error in (failing_batches(), pytest.raises(OSError, match="disk")), (iter(()), refused("no_batches")):
        with error:
            collect(NETWORK, batches, to=tmp_path / "other.parquet")
    assert [file.name for file in tmp_path.iterdir()] == ["p.parquet"]
    with refused("suffix"):
        collect(NETWORK, BATCHES, to=tmp_path / "p.npz")


class Named(nn.Module):
    """A network whose logits have a name of their own."""

    def forward(self, x: Tensor) -> dict[str, object]:
        return {"step": 3, "scores": NETWORK(x)}


def test_missing_logits_are_refused_with_the_keys_of_the_output():
    with refused("no_logits", "output='scores'"):
        collect(Named(), BATCHES)
    assert np.array_equal(collect(Named(), BATCHES, output="scores").logits, NETWORK(X))


@pytest.mark.parametrize("label", [255, -1, -100])
def test_unlabeled_pixels_are_refused_with_the_option_that_leaves_them_out(label):
    pixels = [(X, Y.clone())]
    pixels[0][1][:5] = label
    with refused("label_range" if label > 0 else "negative_labels", f"ignore_index={label}"):
        collect(NETWORK, pixels)
    assert len(collect(NETWORK, pixels, ignore_index=label)) == 15


@pytest.mark.parametrize("outputs", [(), (1,), (4,)])
def test_single_logits_and_several_labels_are_refused_with_binary(outputs):
    body = nn.Linear(3, *outputs or (1,)).requires_grad_(False)
    network = nn.Sequential(body, nn.Flatten(0)) if not outputs else body
    labels = torch.randint(2, (20, 4) if outputs == (4,) else (20,), generator=G)
    with refused({(): "single_logit", (1,): "one_class", (4,): "one_hot_labels"}[outputs], "binary=True"):
        collect(network, [(X, labels)])
    assert len(collect(network, [(X, labels)], binary=True)) == labels.numel()


def test_collect_keeps_names(tmp_path):
    names = ["a", "b", "c", "d"]
    assert collect(NETWORK, BATCHES, names=names).class_names == tuple(names)
    labels = torch.randint(2, (20, 4), generator=G)
    batches = [(X[:7], labels[:7]), (X[7:], labels[7:])]
    p = collect(NETWORK, batches, binary=True, names=names)
    expected = Predictions.multilabel(NETWORK(X), labels, names=names)
    assert p.group_names == tuple(names)
    assert p.of == expected.of
    for name in "logits", "labels", "groups", "clusters":
        assert np.array_equal(getattr(p, name), getattr(expected, name))
    with refused("names"):
        collect(NETWORK, BATCHES, names=names, to=tmp_path / "p.parquet")
