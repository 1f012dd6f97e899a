"""Contracts of every registered data set, on small files with its schema, and of every corruption."""

import json

import pytest

torch = pytest.importorskip("torch")

from calibrant.registry import CORRUPTIONS, DATA_SETS  # noqa: E402
from method_contracts import Contract  # noqa: E402
from refusals import refused  # noqa: E402

contract = Contract()

ARGUMENTS = {
    "cifar10": {"val": 10},
    "cifar100": {"val": 100},
    "svhn": {"val": 10},
    "newsgroups": {"val": 30, "length": 50},
    "imagenet": {"size": 32},
    "tiny_imagenet": {"val": 0.2},
    "blobs": {"train": 50, "val": 20, "test": 30},
}


@pytest.mark.parametrize("name", DATA_SETS)
def test_contract_of(name, small_data):
    contract.verify(name, small_data=small_data)


def load(name, root):
    return DATA_SETS[name](root, **ARGUMENTS.get(name, {}))


@contract.holds()
def splits_have_valid_labels_and_facts(name, small_data):
    splits = load(name, small_data)
    for split in splits.train, splits.val, splits.test:
        assert len(split) == len(split.inputs) == len(split.labels) > 0
        assert split.labels.dtype == torch.int64
        assert 0 <= int(split.labels.min()) <= int(split.labels.max()) < len(splits.classes)
    assert len(set(splits.classes)) == len(splits.classes) >= 2
    assert json.loads(json.dumps(splits.facts)) == splits.facts


@contract.holds()
def splits_are_disjoint(name, small_data):
    if name in ("sst", "digits"):
        return  # separate files, and digits of which some are duplicates
    splits = load(name, small_data)
    inputs = [{part.numpy().tobytes() for part in split.inputs} for split in (splits.train, splits.val, splits.test)]
    assert [len(s) for s in inputs] == [len(splits.train), len(splits.val), len(splits.test)]
    assert len(set.union(*inputs)) == sum(map(len, inputs))


@contract.holds()
def loading_is_deterministic(name, small_data):
    first, second = load(name, small_data), load(name, small_data)
    for a, b in zip((first.train, first.val, first.test), (second.train, second.val, second.test), strict=True):
        assert torch.equal(a.labels, b.labels)
        if name != "sst":
            assert torch.equal(a.inputs, b.inputs)


@contract.holds()
def augmentation_depends_only_on_the_seed(name, small_data):
    splits = load(name, small_data)
    batch = splits.train[:7].to("cpu")
    prepared = splits.prepare(batch.inputs)
    assert len(prepared) == 7
    if splits.augment is not None:
        draw = [splits.augment(prepared, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)]
        assert draw[0].shape == prepared.shape
        assert draw[0].dtype == prepared.dtype
        assert torch.equal(draw[0], draw[1])
        assert not torch.equal(draw[0], draw[2])


@contract.holds()
def splits_are_indexed_by_slice_mask_and_indices(name, small_data):
    split = load(name, small_data).train
    rows = torch.tensor([3, 1])
    mask = torch.zeros(len(split), dtype=torch.bool).index_fill(0, rows, True)
    assert torch.equal(split[rows].labels, split.labels[rows])
    assert len(split[mask].inputs) == 2
    assert len(split[1:4].inputs) == 3


@contract.holds(val=[-1, 0, 10**9])
def invalid_validation_sizes_are_refused(name, val, small_data):
    if name in ("sst", "imagenet") or (name == "blobs" and val > 0):
        return  # it has no limit, or a fixed size
    with refused("val_range"):
        DATA_SETS[name](small_data, val=float(val) if name == "tiny_imagenet" else val)


@pytest.mark.parametrize("name", CORRUPTIONS)
@pytest.mark.parametrize("severity", [1, 5])
def test_corruptions_are_deterministic_and_keep_the_shape(name, severity, monkeypatch, cifar10_c):
    corrupt = CORRUPTIONS[name]
    monkeypatch.setenv("CALIBRANT_DATA", str(cifar10_c.parent))
    smooth = torch.linspace(20, 200, 32).expand(2, 3, 32, 32).clone()
    smooth[:, 1] = smooth[:, 1].mT * 0.7
    images = smooth.round().to(torch.uint8)
    changed = corrupt(images, severity=severity)
    assert changed.shape == images.shape
    assert changed.dtype == torch.uint8
    assert not torch.equal(changed, images)
    assert torch.equal(changed, corrupt(images, severity=severity))
    with refused("severity_range"):
        corrupt(images, severity=6)
