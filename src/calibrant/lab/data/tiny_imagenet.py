"""Tiny-ImageNet: 200 classes of ImageNet at 64 x 64 pixels, 100,000 + 10,000 images."""

from pathlib import Path

import torch
from torch import Tensor

from calibrant.lab.data._images import IMAGENET_STATISTICS, image_splits, load_images
from calibrant.lab.data._loading import Source
from calibrant.lab.data._original_formats import (
    InMemoryTable,
    OriginalFormat,
    SplitFiles,
    classes_by_path,
    first_existing,
)
from calibrant.lab.data._splits import Splits
from calibrant.registry import DATA_SETS
from calibrant.types import InputError, OpenFraction


def _find_files(folder: Path) -> SplitFiles:
    """Return the image files of both splits and the labels of the validation set, or nothing if any is missing."""
    home = first_existing(folder, "tiny-imagenet-200") or folder
    annotations, train = home / "val" / "val_annotations.txt", list(classes_by_path(home / "train"))
    if not train or not annotations.is_file():
        return {}
    val = sorted((home / "val" / "images").glob("*.JPEG"))
    return {"train": train, "validation": val, "annotations": [annotations]}


def _read_files(files: SplitFiles) -> dict[str, InMemoryTable]:
    """Return a table of image paths and labels per split. Training images are in one folder per class."""
    (annotations,) = files["annotations"]
    lines = annotations.read_text().splitlines()
    classes_by_name = dict(line.split("\t")[:2] for line in lines if line.strip())
    train = classes_by_path(annotations.parents[1] / "train")
    classes = sorted(set(train.values()))
    labels_by_split = {
        "train": list(train.values()),
        "validation": [classes_by_name[path.name] for path in files["validation"]],
    }
    return {
        split: InMemoryTable(
            {
                "image": [{"bytes": None, "path": str(path)} for path in files[split]],
                "label": [classes.index(label) for label in labels],
            },
            classes,
        )
        for split, labels in labels_by_split.items()
    }


_TINY_IMAGENET = Source(
    folders=("tiny-imagenet", "tiny_imagenet"),
    hub="zh-plus/tiny-imagenet",
    splits=(("train",), ("validation", "valid")),
    original_formats=(
        OriginalFormat("tiny-imagenet-200, with train, val and val_annotations.txt", _find_files, _read_files),
    ),
)


@DATA_SETS.register
def tiny_imagenet(root: Path | None = None, *, val: OpenFraction = 0.1, revision: str | None = None) -> Splits:
    """Load Tiny-ImageNet: 90,000 / 10,000 / 10,000 images. The official validation set is the test set.

    Training batches are cropped after padding by 4 and mirrored, with ImageNet's pixel statistics. The code of Mukhoti
    et al. (2020) instead validates and tests on the official validation set.

    Args:
        root: Data folder; by default CALIBRANT_DATA or the hub.
        val: Fraction of every class for validation. With 0.1, the images numbered 0 .. 449 in their file names train
            and 450 .. 499 validate (code of AdaFocal, Komisarenko & Kull 2024). Without numbers, row order counts.
        revision: Commit on the hub.

    Raises:
        InputError: If `val` leaves an empty split.
    """
    if not 0 < val < 1:
        raise InputError(f"tiny_imagenet: Expected val between 0 and 1, got {val}.", code="setting_range")
    examples, test, numbers, facts = load_images(_TINY_IMAGENET, root, revision, size=64, classes=200)
    is_validation = validation_mask(examples.labels, numbers, val)
    if not 0 < int(is_validation.sum()) < len(is_validation):
        raise InputError(
            f"tiny_imagenet: Expected val that splits {len(is_validation)} training rows, got {val}.",
            code="empty_split",
        )
    train, held_out = examples[~is_validation], examples[is_validation]
    return image_splits(train, held_out, test, facts, IMAGENET_STATISTICS, padding=4)


def validation_mask(labels: Tensor, numbers: Tensor, share: float) -> Tensor:
    """Return which rows validate: the last `share` of 500 file numbers, or of the rows of each class."""
    if bool((numbers >= 0).all()):
        return numbers >= round(500 * (1 - share))
    order = labels.argsort(stable=True)
    counts = labels.bincount()
    starts = counts.cumsum(0) - counts
    rank = torch.empty_like(labels)
    rank[order] = torch.arange(len(labels)) - starts[labels[order]]
    return rank >= (counts * (1 - share)).round()[labels]
