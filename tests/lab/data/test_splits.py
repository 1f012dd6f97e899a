"""Data sets of torch and of the Hugging Face hub become a `Split` in one call."""

import numpy as np
import pytest
import torch
from refusals import refused
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from calibrant.lab.data import Split, Splits

G = torch.Generator().manual_seed(0)
X, Y = torch.randn(6, 4, generator=G), torch.randint(3, (6,), generator=G)


class Pairs(Dataset):
    """A data set without slices, and without an end by IndexError."""

    def __len__(self):
        return len(X)

    def __getitem__(self, i):
        return X[i % len(X)].numpy(), int(Y[i % len(X)])


class Stream(IterableDataset):
    def __iter__(self):
        return zip(X, Y, strict=True)


@pytest.mark.parametrize("dataset", [TensorDataset(X, Y), Pairs(), Stream(), list(zip(X, Y, strict=True))])
def test_torch_data_sets_become_a_split(dataset):
    split = Split.from_dataset(dataset)
    assert np.array_equal(split.inputs, X)
    assert np.array_equal(split.labels, Y)
    doubled = Split.from_dataset(dataset, transform=lambda x: 2 * x)
    assert np.array_equal(doubled.inputs, 2 * X)


def test_hugging_face_data_sets_become_a_split():
    datasets = pytest.importorskip("datasets")
    images = np.random.default_rng(0).integers(0, 256, (4, 5, 6, 3), dtype=np.uint8)
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})
    from PIL import Image

    rows = {"image": [Image.fromarray(image) for image in images], "label": [0, 1, 1, 0]}
    split = Split.from_dataset(datasets.Dataset.from_dict(rows, features=features))
    assert split.inputs.dtype == torch.uint8
    assert np.array_equal(split.inputs.numpy(), images.transpose(0, 3, 1, 2))
    assert split.labels.tolist() == [0, 1, 1, 0]
    table = datasets.Dataset.from_dict({"id": [7, 8], "x": [[1.0, 2.0], [3.0, 4.0]], "kind": [1, 0]})
    with refused("example_keys"):
        Split.from_dataset(table)
    assert Split.from_dataset(table, inputs="x", labels="kind").inputs.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    texts = datasets.Dataset.from_dict({"text": ["a bc", "d"], "label": [0, 1]})
    with refused("not_numbers"):
        Split.from_dataset(texts)
    assert Split.from_dataset(texts, transform=lambda text: [len(text)]).inputs.tolist() == [[4], [1]]


@pytest.mark.parametrize(
    ("dataset", "code"),
    [([], "no_rows"), ([(X[0], 1, 2)], "example"), ([(X[0], 1), (X[0, :2], 0)], "input_shapes")],
)
def test_other_examples_are_refused(dataset, code):
    with refused(code):
        Split.from_dataset(dataset)


def test_a_data_set_of_torch_is_refused_with_the_call_that_reads_it():
    split = Split(X, Y)
    with refused("not_split", "Split.from_dataset(test)"):
        Splits(split, split, TensorDataset(X, Y), classes=("a", "b", "c"))
    Splits(split, split, Split.from_dataset(TensorDataset(X, Y)), classes=("a", "b", "c"))
