"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009): 50,000 + 10,000 images of 32 x 32 pixels."""

from pathlib import Path
from typing import Any, Literal

from calibrant.catalog import DATA_SETS
from calibrant.data._images import CIFAR, IMAGENET, convert_images, image_splits
from calibrant.data._load import Source, load
from calibrant.data._originals import Files, Named, Original, Rows, first, pickled
from calibrant.data._splits import Split, Splits, shuffled
from calibrant.types import Count, InputError, Seed

__all__ = ["cifar10", "cifar100"]

Protocol = Literal["mukhoti", "wang"]

_STATISTICS = {
    ("cifar10", "mukhoti"): CIFAR,
    ("cifar100", "mukhoti"): CIFAR,
    ("cifar10", "wang"): IMAGENET,
    ("cifar100", "wang"): ((0.507, 0.487, 0.441), (0.267, 0.256, 0.276)),
}
_SEEDS = {"mukhoti": 1, "wang": 101}


@DATA_SETS.register
def cifar10(
    root: Path | None = None,
    *,
    train: Count | None = None,
    val: Count = 5000,
    protocol: Protocol = "mukhoti",
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
    source = Source(("cifar10",), "uoft-cs/cifar10", revision=revision, originals=(_CIFAR10,))
    return _cifar(source, root, ("label",), 10, train, val, protocol, seed, augment)


@DATA_SETS.register
def cifar100(
    root: Path | None = None,
    *,
    train: Count | None = None,
    val: Count = 5000,
    protocol: Protocol = "mukhoti",
    seed: Seed | None = None,
    augment: bool = True,
    revision: str | None = None,
) -> Splits:
    """CIFAR-100: as `cifar10`, with the 100 fine classes."""
    source = Source(("cifar100",), "uoft-cs/cifar100", revision=revision, originals=(_CIFAR100,))
    return _cifar(source, root, ("fine_label",), 100, train, val, protocol, seed, augment)


def _find(place: Path, *names: str) -> Files:
    """Return the archive, or the folder it unpacks to."""
    there = first(place, *names) or (place if (place / "test_batch").is_file() or (place / "meta").is_file() else None)
    return {} if there is None else {"train": [there], "test": [there]}


def _read(files: Files, *, train: tuple[str, ...], test: str, meta: tuple[str, str], label: str) -> dict[str, Rows]:
    (there,) = files["train"]
    names = Named(list(pickled(there, meta[0])[meta[1]]))
    tables: dict[str, Rows] = {}
    for split, members in ("train", train), ("test", (test,)):
        images: list[Any] = []
        labels: list[int] = []
        for member in members:
            table = pickled(there, member)
            images += list(table["data"].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
            labels += [int(y) for y in table["labels" if label == "label" else "fine_labels"]]
        tables[split] = Rows({"img": images, label: labels}, {label: names})
    return tables


_CIFAR10 = Original(
    "cifar-10-batches-py, the python version",
    lambda place: _find(place, "cifar-10-batches-py", "cifar-10-python.tar.gz"),
    lambda files: _read(
        files,
        train=tuple(f"data_batch_{i}" for i in range(1, 6)),
        test="test_batch",
        meta=("batches.meta", "label_names"),
        label="label",
    ),
)
_CIFAR100 = Original(
    "cifar-100-python, the python version",
    lambda place: _find(place, "cifar-100-python", "cifar-100-python.tar.gz"),
    lambda files: _read(files, train=("train",), test="test", meta=("meta", "fine_label_names"), label="fine_label"),
)


def _cifar(
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
    if protocol not in _SEEDS:
        raise InputError(f"{name}: protocol must be mukhoti or wang, got {protocol!r}", code="setting_range")
    tensors, facts = load(source, root, convert_images, image=("img", "image"), label=label, size=32, classes=classes)
    everything = Split(tensors["train.images"], tensors["train.labels"])
    order = shuffled(len(everything), val, _SEEDS[protocol] if seed is None else seed, name)
    chosen = (order[val:], order[:val]) if protocol == "mukhoti" else (order[:-val], order[-val:])
    if train is not None and not 0 < train <= len(chosen[0]):
        raise InputError(
            f"{name} has {len(chosen[0])} examples to train on after val={val}, got train={train}", code="empty_split"
        )
    return image_splits(
        everything[chosen[0][:train]],
        everything[chosen[1]],
        Split(tensors["test.images"], tensors["test.labels"]),
        facts | {"protocol": protocol},
        _STATISTICS[name, protocol],
        padding=4 if augment else 0,
    )
