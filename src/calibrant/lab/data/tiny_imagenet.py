"""Tiny-ImageNet: 200 classes of ImageNet at 64 x 64 pixels, 100,000 + 10,000 images."""

from pathlib import Path

import torch
from torch import Tensor

from calibrant.lab.data._images import IMAGENET_STATISTICS, convert_images, image_splits
from calibrant.lab.data._loading import Source, load
from calibrant.lab.data._original_formats import (
    ClassNames,
    InMemoryTable,
    OriginalFormat,
    SplitFiles,
    classes_by_path,
    first_existing,
)
from calibrant.lab.data._splits import Split, Splits
from calibrant.registry import DATA_SETS
from calibrant.types import InputError, OpenFraction

__all__ = ["tiny_imagenet"]


@DATA_SETS.register
def tiny_imagenet(root: Path | None = None, *, val: OpenFraction = 0.1, revision: str | None = None) -> Splits:
    """Tiny-ImageNet: 90,000 / 10,000 / 10,000 images, with the official validation set as the test set.

    In every class the images numbered 0 .. 449 train and 450 .. 499 validate (`val` = 0.1; as AdaFocal's code and
    Komisarenko & Kull 2024), by the number in the file's name; where files have no such names, by the order of the
    rows. The code of Mukhoti et al. (2020) instead validates and tests on the same official validation set. ImageNet's
    pixel statistics; training images of 64 pixels are cropped after padding by 4 and mirrored. `revision` is a commit
    of the hub's copy, which is read where no folder is given.
    """
    if not 0 < val < 1:
        raise InputError(
            f"tiny_imagenet: val is the share of every class, between 0 and 1, got {val}", code="setting_range"
        )
    splits = (("train",), ("validation", "valid"))
    source = Source(
        ("tiny-imagenet", "tiny_imagenet"),
        "zh-plus/tiny-imagenet",
        splits,
        revision=revision,
        original_formats=(_FOLDERS_FORMAT,),
    )
    tensors, facts = load(source, root, convert_images, image=("image",), label=("label",), size=64, classes=200)
    all_training = Split(tensors["train.images"], tensors["train.labels"])
    is_validation = validation_mask(all_training.labels, tensors["train.numbers"], val)
    if not 0 < int(is_validation.sum()) < len(is_validation):
        raise InputError(
            f"tiny_imagenet: val={val} of these {len(is_validation)} training rows leaves an empty split",
            code="empty_split",
        )
    test = Split(tensors["validation.images"], tensors["validation.labels"])
    return image_splits(
        all_training[~is_validation], all_training[is_validation], test, facts, IMAGENET_STATISTICS, padding=4
    )


def validation_mask(labels: Tensor, numbers: Tensor, share: float) -> Tensor:
    """Return which rows validate: the last `share` of 500 file numbers, or of each class's rows if files have none."""
    if bool((numbers >= 0).all()):
        return numbers >= round(500 * (1 - share))
    order = labels.argsort(stable=True)
    counts = labels.bincount()
    starts = counts.cumsum(0) - counts
    rank = torch.empty_like(labels)
    rank[order] = torch.arange(len(labels)) - starts[labels[order]]
    return rank >= (counts * (1 - share)).round()[labels]


def _find_folders(place: Path) -> SplitFiles:
    home = first_existing(place, "tiny-imagenet-200") or place
    notes, train = home / "val" / "val_annotations.txt", list(classes_by_path(home / "train"))
    if not train or not notes.is_file():
        return {}
    return {"train": train, "validation": sorted((home / "val" / "images").glob("*.JPEG")), "notes": [notes]}


def _read_folders(files: SplitFiles) -> dict[str, InMemoryTable]:
    (notes,) = files["notes"]
    lines = notes.read_text().splitlines()
    classes_by_name = dict(line.split("\t")[:2] for line in lines if line.strip())  # name -> class
    train = classes_by_path(notes.parents[1] / "train")
    classes = sorted(set(train.values()))
    number = {name: i for i, name in enumerate(classes)}
    labels_by_split = {"train": list(train.values())}
    labels_by_split["validation"] = [classes_by_name[path.name] for path in files["validation"]]
    return {
        name: InMemoryTable(
            {
                "image": [{"bytes": None, "path": str(path)} for path in files[name]],
                "label": [number[label] for label in labels],
            },
            {"label": ClassNames(classes)},
        )
        for name, labels in labels_by_split.items()
    }


_FOLDERS_FORMAT = OriginalFormat(
    "tiny-imagenet-200, with train, val and val_annotations.txt", _find_folders, _read_folders
)
