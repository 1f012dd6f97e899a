"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009): 50,000 + 10,000 images of 32 x 32 pixels."""

from pathlib import Path
from typing import Any, Literal

from calibrant.lab.data._images import CIFAR_STATISTICS, IMAGENET_STATISTICS, convert_images, image_splits
from calibrant.lab.data._loading import Source, load
from calibrant.lab.data._original_formats import (
    ClassNames,
    InMemoryTable,
    OriginalFormat,
    SplitFiles,
    first_existing,
    read_pickle,
)
from calibrant.lab.data._splits import Split, Splits, shuffled_indices
from calibrant.registry import DATA_SETS
from calibrant.types import Count, InputError, Seed

__all__ = ["cifar10", "cifar100"]

SplitProtocol = Literal["mukhoti", "wang"]

_PIXEL_STATISTICS = {
    ("cifar10", "mukhoti"): CIFAR_STATISTICS,
    ("cifar100", "mukhoti"): CIFAR_STATISTICS,
    ("cifar10", "wang"): IMAGENET_STATISTICS,
    ("cifar100", "wang"): ((0.507, 0.487, 0.441), (0.267, 0.256, 0.276)),
}
_SHUFFLE_SEEDS = {"mukhoti": 1, "wang": 101}


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
    """CIFAR-10: 45,000 / 5,000 / 10,000 images of 10 classes, split and standardized as a paper's authors do.

    `protocol="mukhoti"` (Mukhoti et al. (2020), and after it AdaFocal and Komisarenko & Kull): the training rows
    shuffled with seed 1, the first `val` of them for validation. `"wang"` (Wang et al. 2021):
    `RandomState(101).permutation`, the last `val`; ImageNet's pixel statistics. Other seeds give other splits of the
    same kind. Rows are counted in the order of the files, which for the authors is the official one. `train` keeps the
    first so many of the shuffled training examples (Wang et al. 2021, Figure 1d), None all. Training batches are
    cropped after padding by 4 and mirrored, unless `augment` is off. Raises `InputError` for what cannot be read, for
    a `val` that leaves nothing to train on, and for a `train` that is not there. `revision` is a commit of the hub's
    copy, which is read where no folder is given.
    """
    source = Source(("cifar10",), "uoft-cs/cifar10", revision=revision, original_formats=(_CIFAR10_FORMAT,))
    return _load_cifar(source, root, ("label",), 10, train, val, protocol, seed, augment)


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
    """CIFAR-100: as `cifar10`, with the 100 fine classes."""
    source = Source(("cifar100",), "uoft-cs/cifar100", revision=revision, original_formats=(_CIFAR100_FORMAT,))
    return _load_cifar(source, root, ("fine_label",), 100, train, val, protocol, seed, augment)


def _find_archive(place: Path, *names: str) -> SplitFiles:
    """Return the archive, or the folder it unpacks to."""
    archive = first_existing(place, *names) or (
        place if (place / "test_batch").is_file() or (place / "meta").is_file() else None
    )
    return {} if archive is None else {"train": [archive], "test": [archive]}


def _read_archive(
    files: SplitFiles, *, train: tuple[str, ...], test: str, meta: tuple[str, str], label: str
) -> dict[str, InMemoryTable]:
    (archive,) = files["train"]
    names = ClassNames(list(read_pickle(archive, meta[0])[meta[1]]))
    tables: dict[str, InMemoryTable] = {}
    for split, members in ("train", train), ("test", (test,)):
        images: list[Any] = []
        labels: list[int] = []
        for member in members:
            table = read_pickle(archive, member)
            images += list(table["data"].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
            labels += [int(y) for y in table["labels" if label == "label" else "fine_labels"]]
        tables[split] = InMemoryTable({"img": images, label: labels}, {label: names})
    return tables


_CIFAR10_FORMAT = OriginalFormat(
    "cifar-10-batches-py, the python version",
    lambda place: _find_archive(place, "cifar-10-batches-py", "cifar-10-python.tar.gz"),
    lambda files: _read_archive(
        files,
        train=tuple(f"data_batch_{i}" for i in range(1, 6)),
        test="test_batch",
        meta=("batches.meta", "label_names"),
        label="label",
    ),
)
_CIFAR100_FORMAT = OriginalFormat(
    "cifar-100-python, the python version",
    lambda place: _find_archive(place, "cifar-100-python", "cifar-100-python.tar.gz"),
    lambda files: _read_archive(
        files, train=("train",), test="test", meta=("meta", "fine_label_names"), label="fine_label"
    ),
)


def _load_cifar(
    source: Source,
    root: Path | None,
    label: tuple[str, ...],
    classes: int,
    train: int | None,
    val: int,
    protocol: str,
    seed: int | None,
    augment: bool,
) -> Splits:
    name = source.folders[0]
    if protocol not in _SHUFFLE_SEEDS:
        raise InputError(f"{name}: protocol must be mukhoti or wang, got {protocol!r}", code="setting_range")
    tensors, facts = load(source, root, convert_images, image=("img", "image"), label=label, size=32, classes=classes)
    all_training = Split(tensors["train.images"], tensors["train.labels"])
    order = shuffled_indices(len(all_training), val, _SHUFFLE_SEEDS[protocol] if seed is None else seed, name)
    part_rows = (order[val:], order[:val]) if protocol == "mukhoti" else (order[:-val], order[-val:])
    if train is not None and not 0 < train <= len(part_rows[0]):
        raise InputError(
            f"{name} has {len(part_rows[0])} examples to train on after val={val}, got train={train}",
            code="empty_split",
        )
    return image_splits(
        all_training[part_rows[0][:train]],
        all_training[part_rows[1]],
        Split(tensors["test.images"], tensors["test.labels"]),
        facts | {"protocol": protocol},
        _PIXEL_STATISTICS[name, protocol],
        padding=4 if augment else 0,
    )
