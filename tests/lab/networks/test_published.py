"""Published networks: parameter counts, the recursion of the Tree-LSTM, and training."""

import importlib
import random

import pytest
import torch
from calibrant.registry import NETWORKS
from refusals import refused
from torch.nn.functional import cross_entropy

from calibrant.lab import data, networks
from calibrant.lab.data.sst import Trees, parse_tree

HE = "He et al. 2016, table 6 (0.27, 0.46, 0.66, 0.85, 1.7 M); exact counts of common reimplementations"
KUANGLIU = "the code that Mukhoti et al. (2020) use, 10 classes"
MUKHOTI = "layers in the code of Mukhoti et al. (2020)"
COUNTS = [  # network, arguments, classes, parameters without the embedding, source
    ("resnet20", {}, 10, 269_722, HE),
    ("resnet32", {}, 10, 464_154, HE),
    ("resnet44", {}, 10, 658_586, HE),
    ("resnet56", {}, 10, 853_018, HE),
    ("resnet110", {}, 10, 1_727_962, HE),
    ("resnet9", {}, 10, 6_568_000 + 5_130, "Page 2018 with a bias in the last layer, as usually reimplemented"),
    ("resnet18", {}, 10, 11_173_962, KUANGLIU),
    ("resnet34", {}, 10, 21_282_122, KUANGLIU),
    ("resnet50", {}, 10, 23_520_842, KUANGLIU),
    ("resnet101", {}, 10, 42_512_970, KUANGLIU),
    ("resnet152", {}, 10, 58_156_618, KUANGLIU),
    (
        "resnet110_bottleneck",
        {},
        10,
        42_512_970 + 3 * 1_117_184,
        "ResNet-101 with three more blocks in its third stage",
    ),
    ("densenet121", {}, 10, 6_956_298, KUANGLIU),
    ("vgg16", {}, 10, 14_728_266, KUANGLIU),
    ("lenet5", {}, 10, 61_706, "LeCun et al. 1998 with a full third layer"),
    ("global_pooling_cnn", {}, 20, 64_128 + 2 * 82_048 + 16_512 + 2_580, MUKHOTI),
    ("tree_lstm", {}, 2, 2 * 45_150 + 8 * 22_650 + 453, MUKHOTI),
]


@pytest.mark.parametrize(("name", "arguments", "classes", "count", "source"), COUNTS)
def test_parameter_counts_are_exact(name, arguments, classes, count, source):
    with torch.device("meta"):
        network = NETWORKS[name](classes, **arguments)
    assert sum(p.numel() for key, p in network.named_parameters() if "embedding" not in key) == count


def test_parameter_counts_match_papers_in_millions():
    with torch.device("meta"):
        sizes = {
            "WRN-28-10, Zagoruyko & Komodakis 2016, table 4": (networks.wide_resnet(10), 36.5),
            "WRN-16-4, ibid., which counts two more layers": (networks.wide_resnet(10, depth=14, widen=4), 2.8),
            "DenseNet-BC (100, 12), Huang et al. 2017, table 2": (networks.densenet(10, blocks=(16, 16, 16)), 0.8),
            "DenseNet-BC (190, 40), ibid.": (networks.densenet(10, blocks=(31, 31, 31), growth=40), 25.6),
            "ResNet-50, torchvision 0.20": (networks.resnet50_imagenet(), 25.557032),
            "BERT base, Devlin et al. 2019": (bert_base(), 110),
        }
    for source, (network, millions) in sizes.items():
        assert sum(p.numel() for p in network.parameters()) / 1e6 == pytest.approx(millions, rel=0.02, abs=0.05), source


def bert_base():
    from transformers import BertConfig, BertForSequenceClassification

    return BertForSequenceClassification(BertConfig(num_labels=20))


def test_invalid_depths_are_refused():
    with refused("depth_range"):
        networks.wide_resnet(10, depth=28)


def test_missing_checkpoints_are_refused(tmp_path):
    with refused("hub_unavailable") as caught:
        networks.bert(2, checkpoint=str(tmp_path / "nowhere"))
    assert "nowhere" in str(caught.value)


def test_revisions_apply_to_the_hub_but_not_to_folders(tmp_path, monkeypatch):
    import transformers

    requests = []

    def from_hub(name, *, revision, **_):
        requests.append((name, revision))
        raise OSError("not today")

    monkeypatch.setattr(importlib.import_module("calibrant.lab.networks.bert"), "is_hub_reachable", lambda: True)
    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", from_hub)
    with refused("hub_unavailable") as caught:
        networks.bert(2, checkpoint="somebody/bert", revision="abc")
    assert "not today" in str(caught.value)
    assert requests == [("somebody/bert", "abc")]
    with refused("revision_with_folder"):
        networks.bert(2, checkpoint=str(tmp_path), revision="abc")


def node_state(network, trees, node):
    """Return hidden state and cell of a node by recursion (Tai et al. 2015, eqs. 9-14 without the output gate)."""
    if trees.left[node] < 0:
        x = network.embedding.weight[trees.word[node]]
        cell, gate = (network.leaf.weight @ x + network.leaf.bias).chunk(2)
        return torch.sigmoid(gate) * torch.tanh(cell), cell
    (h_l, c_l), (h_r, c_r) = (node_state(network, trees, int(side[node])) for side in (trees.left, trees.right))
    z = network.left.weight @ h_l + network.left.bias + network.right.weight @ h_r + network.right.bias
    i, f_l, f_r, u = z.chunk(4)
    cell = torch.sigmoid(i) * torch.tanh(u) + torch.sigmoid(f_l) * c_l + torch.sigmoid(f_r) * c_r
    return torch.tanh(cell), cell


def random_tree(leaves, rng):
    if leaves == 1:
        return f"({rng.randrange(5)} w{rng.randrange(30)})"
    cut = rng.choice([1, leaves - 1, rng.randrange(1, leaves)])
    return f"({rng.randrange(5)} {random_tree(cut, rng)} {random_tree(leaves - cut, rng)})"


def forest(n, seed=0):
    rng, ids, nodes, start = random.Random(seed), {"": 0}, [], [0]
    for _ in range(n):
        nodes += parse_tree(random_tree(rng.choice([1, 2, 3, 9, 25]), rng), ids)
        start.append(len(nodes))
    return Trees(torch.tensor(start), *torch.tensor(nodes).T), len(ids)


@pytest.mark.parametrize("classes", [2, 5])
def test_tree_lstm_equals_the_recursion(classes):
    torch.manual_seed(0)
    trees, words = forest(20)
    network = networks.tree_lstm(classes, words=words, dimension=6, memory=5, dropout=0.0).double().train()
    logits = network(trees)
    expected = []
    for i in range(len(trees)):
        tree = trees[i : i + 1]
        expected += [network.head(node_state(network, tree, node)[0]) for node in range(len(tree.word))]
    torch.testing.assert_close(logits, torch.stack(expected), atol=1e-12, rtol=0)

    weight = torch.randn(logits.shape, dtype=torch.float64)
    parameters = list(network.parameters())
    by_height = torch.autograd.grad((logits * weight).sum(), parameters)
    by_node = torch.autograd.grad((torch.stack(expected) * weight).sum(), parameters)
    for a, b in zip(by_height, by_node, strict=True):
        torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-10)

    roots = logits[trees.start[1:] - 1]
    torch.testing.assert_close(network.eval()(trees), roots[:, [0, 2]] if classes == 2 else roots)


@pytest.mark.shared
def test_tree_lstm_equals_the_recursion_on_sst(shared, data_cache):
    torch.manual_seed(0)
    splits = data.sst(shared / "datasets")
    network = networks.tree_lstm(2, splits.word_vectors).eval()
    trees = splits.test.inputs[:25]
    with torch.no_grad():
        logits = network(trees)
        for i in range(25):
            tree = trees[i : i + 1]
            expected = network.head(node_state(network, tree, len(tree.word) - 1)[0])[[0, 2]]
            torch.testing.assert_close(logits[i], expected, atol=1e-6, rtol=1e-5)


def test_embeddings_start_from_vectors_and_can_be_frozen():
    vectors = torch.randn(50, 100)
    vectors[0] = 0
    for frozen in True, False:
        network = networks.global_pooling_cnn(2, vectors, frozen=frozen)
        torch.testing.assert_close(network.embedding.weight.detach(), vectors)
        assert network.embedding.weight.requires_grad is not frozen
    network(torch.randint(50, (2, 30))).sum().backward()
    assert (network.embedding.weight.grad[0] == 0).all()  # padding is not trained


def training_accuracy(network, batch, labels, steps, rate, prepare=lambda x: x, *, bf16=False):
    optimizer = torch.optim.Adam([p for p in network.parameters() if p.requires_grad], rate)
    x = prepare(batch)
    for step in range(1, steps + 1):
        network.train()
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):  # twice as fast
            logits = network(x)
        cross_entropy(logits.float(), labels).backward()
        optimizer.step()
        if step % 5 == 0 and accuracy(network, x, labels) == 1:
            break
    return accuracy(network, x, labels)


def accuracy(network, x, labels):
    network.eval()
    with torch.no_grad():
        return float((network(x).argmax(1) == labels).double().mean())


QUICK_NETWORKS = {"resnet8", "resnet20", "lenet5", "mlp"}
LARGE_NETWORKS = [
    name for name in NETWORKS if name.startswith(("resnet", "dense", "wide", "vgg")) and name not in QUICK_NETWORKS
]


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize(
    "name", [*sorted(QUICK_NETWORKS), *(pytest.param(n, marks=pytest.mark.large) for n in LARGE_NETWORKS)]
)
def test_image_networks_overfit_a_batch(name, shared, data_cache):
    torch.manual_seed(0)
    tiny = name == "resnet50_tiny_imagenet"
    splits = data.tiny_imagenet(shared / "datasets") if tiny else data.cifar10(shared / "datasets")
    batch = splits.train[: 64 if name in LARGE_NETWORKS else 16]
    arguments = {"mlp": {"features": 3072}, "lenet5": {"channels": 3}, "densenet": {"blocks": (2, 2), "growth": 16}}
    network = NETWORKS[name](len(splits.classes), **arguments.get(name, {}))
    network = network.to(memory_format=torch.channels_last)
    with torch.no_grad():  # running statistics must follow a few steps quickly
        for module in network.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.momentum = 0.5
    rate = 5e-4 if name == "vgg16" else 2e-3
    assert (
        training_accuracy(network, batch.inputs, batch.labels, 150, rate, splits.prepare, bf16=name in LARGE_NETWORKS)
        == 1.0
    )


@pytest.mark.shared
@pytest.mark.slow
@pytest.mark.parametrize("name", ["global_pooling_cnn", "cnn8_text"])
def test_text_networks_overfit_a_batch(name, shared, data_cache):
    torch.manual_seed(0)
    splits = data.newsgroups(shared / "datasets")
    batch = splits.train[:64]
    network = NETWORKS[name](20, splits.word_vectors)
    tokens = batch.inputs[:, -100:]
    assert training_accuracy(network, tokens, batch.labels, 60, 2e-3, splits.prepare) == 1.0


@pytest.mark.slow
@pytest.mark.shared
def test_tree_lstm_overfits_a_batch(shared, data_cache):
    torch.manual_seed(0)
    splits = data.sst(shared / "datasets")
    batch = splits.train[:12]
    network = networks.tree_lstm(2, splits.word_vectors, dropout=0.0)
    node_labels = splits.targets(batch.inputs, batch.labels)
    optimizer = torch.optim.Adam(network.parameters(), 5e-3)
    for _ in range(30):
        network.train()
        optimizer.zero_grad()
        cross_entropy(network(batch.inputs), node_labels).backward()
        optimizer.step()
    assert accuracy(network, batch.inputs, batch.labels) == 1.0
