"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009): 50,000 + 10,000 images of 32 x 32 pixels."""

from functools import partial
from pathlib import Path
from typing import Literal

from calibrant.lab.data._images import CIFAR_STATISTICS, IMAGENET_STATISTICS, image_splits, load_images
from calibrant.lab.data._loading import Source
from calibrant.lab.data._original_formats import (
    InMemoryTable,
    OriginalFormat,
    SplitFiles,
    first_existing,
    read_pickle,
)
from calibrant.lab.data._splits import Splits, shuffled_indices
from calibrant.registry import DATA_SETS
from calibrant.types import Count, InputError, Seed

SplitProtocol = Literal["mukhoti", "wang"]

_PIXEL_STATISTICS = {
    ("cifar10", "mukhoti"): CIFAR_STATISTICS,
    ("cifar100", "mukhoti"): CIFAR_STATISTICS,
    ("cifar10", "wang"): IMAGENET_STATISTICS,
    ("cifar100", "wang"): ((0.507, 0.487, 0.441), (0.267, 0.256, 0.276)),
}
_SHUFFLE_SEEDS = {"mukhoti": 1, "wang": 101}


def _find_archive(folder: Path, *names: str) -> SplitFiles:
    """Return the archive, or the folder that it unpacks to, which may be the given folder."""
    unpacked = any((folder / name).is_file() for name in ("test_batch", "meta"))
    archive = first_existing(folder, *names) or (folder if unpacked else None)
    return {} if archive is None else {"train": [archive], "test": [archive]}


def _read_archive(
    files: SplitFiles, *, train: tuple[str, ...], test: str, meta: tuple[str, str], label: str, label_key: str
) -> dict[str, InMemoryTable]:
    (archive,) = files["train"]
    file, key = meta
    names = list(read_pickle(archive, file)[key])
    tables: dict[str, InMemoryTable] = {}
    for split, members in ("train", train), ("test", (test,)):
        parts = [read_pickle(archive, member) for member in members]
        images = [image for part in parts for image in part["data"].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)]
        labels = [int(value) for part in parts for value in part[label_key]]
        tables[split] = InMemoryTable({"img": images, label: labels}, names)
    return tables


_CIFAR10 = Source(
    folders=("cifar10",),
    hub="uoft-cs/cifar10",
    original_formats=(
        OriginalFormat(
            "cifar-10-batches-py, the python version",
            lambda folder: _find_archive(folder, "cifar-10-batches-py", "cifar-10-python.tar.gz"),
            partial(
                _read_archive,
                train=tuple(f"data_batch_{i}" for i in range(1, 6)),
                test="test_batch",
                meta=("batches.meta", "label_names"),
                label="label",
                label_key="labels",
            ),
        ),
    ),
)
_CIFAR100 = Source(
    folders=("cifar100",),
    hub="uoft-cs/cifar100",
    original_formats=(
        OriginalFormat(
            "cifar-100-python, the python version",
            lambda folder: _find_archive(folder, "cifar-100-python", "cifar-100-python.tar.gz"),
            partial(
                _read_archive,
                train=("train",),
                test="test",
                meta=("meta", "fine_label_names"),
                label="fine_label",
                label_key="fine_labels",
            ),
        ),
    ),
)


@DATA_SETS.register
def cifar10(
    root: Path | None = None,
    *,
    train: Count | None = None,
    val: Count = 5000,
    protocol: SplitProtocol = "mukhoti",
    seed: Seed | None = None,
    augment: bool = True,
    revision: str | None = None,
) -> Splits:
    """Load CIFAR-10: 45,000 / 5,000 / 10,000 images of 10 classes, split and standardized as in a paper's code.

    Args:
        root: Data folder; by default CALIBRANT_DATA or the hub.
        train: Number of training examples to keep, the first ones of the split (Wang et al. 2021, Figure 1d).
        val: Number of validation examples.
        protocol: "mukhoti" (Mukhoti et al. 2020, AdaFocal, Komisarenko & Kull): shuffle the training rows with seed 1;
            the first `val` validate. "wang" (Wang et al. 2021): `RandomState(101).permutation`; the last `val`
            validate; ImageNet's pixel statistics. Rows are in file order, the official order for the authors.
        seed: Seed of the split; by default that of the protocol.
        augment: Crop training batches after padding by 4, and mirror half of them.
        revision: Commit on the hub.

    Raises:
        InputError: If the data cannot be read, or `train` and `val` do not fit.
    """
    return _load_cifar(_CIFAR10, root, revision, "label", 10, train, val, protocol, seed, augment)


@DATA_SETS.register
def cifar100(
    root: Path | None = None,
    *,
    train: Count | None = None,
    val: Count = 5000,
    protocol: SplitProtocol = "mukhoti",
    seed: Seed | None = None,
    augment: bool = True,
    revision: str | None = None,
) -> Splits:
    """Load CIFAR-100 with its 100 fine classes. The arguments are those of `cifar10`."""
    return _load_cifar(_CIFAR100, root, revision, "fine_label", 100, train, val, protocol, seed, augment)


def _load_cifar(
    source: Source,
    root: Path | None,
    revision: str | None,
    label: str,
    classes: int,
    train: int | None,
    val: int,
    protocol: str,
    seed: int | None,
    augment: bool,
) -> Splits:
    name = source.folders[0]
    if protocol not in _SHUFFLE_SEEDS:
        raise InputError(f"{name}: Expected protocol 'mukhoti' or 'wang', got {protocol!r}.", code="setting_range")
    examples, test, _, facts = load_images(source, root, revision, label=label, size=32, classes=classes)
    order = shuffled_indices(len(examples), val, _SHUFFLE_SEEDS[protocol] if seed is None else seed, name)
    train_rows, val_rows = (order[val:], order[:val]) if protocol == "mukhoti" else (order[:-val], order[-val:])
    if train is not None and not 0 < train <= len(train_rows):
        raise InputError(
            f"{name}: Expected train between 1 and {len(train_rows)} with val={val}, got {train}.", code="empty_split"
        )
    return image_splits(
        examples[train_rows[:train]],
        examples[val_rows],
        test,
        facts | {"protocol": protocol},
        _PIXEL_STATISTICS[name, protocol],
        padding=4 if augment else 0,
    )
