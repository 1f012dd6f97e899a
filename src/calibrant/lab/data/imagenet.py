"""ImageNet (ILSVRC 2012) and Tiny-ImageNet: images from folders, resized and cached as uint8, or decoded per batch."""

import os
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from calibrant._core.registry import DATA_SETS
from calibrant._core.types import Count, InputError, OpenFraction, Seed
from calibrant.lab.data._images import IMAGENET_STATISTICS, image_splits, load_images, resized_crop_and_flip
from calibrant.lab.data._loading import (
    CACHE_VERSION,
    IMAGE_SUFFIXES,
    ConvertedData,
    InMemoryTable,
    OriginalFormat,
    Source,
    SplitFiles,
    classes_by_path,
    data_root,
    file_stamps,
    first_existing,
    load_or_build,
    wrap_read_errors,
)
from calibrant.lab.data._splits import Split, Splits


@DATA_SETS.register
def imagenet(
    root: Path | None = None,
    *,
    size: Count = 64,
    seed: Seed = 1,
    stream: bool = False,
    crop: Literal["padded", "resized"] = "padded",
) -> Splits:
    """Load ImageNet from ROOT/imagenet/train/CLASS/*.JPEG and .../val/CLASS/*.JPEG. Classes are the folder names.

    The 50,000 validation images may also be directly in val, as distributed, beside a list of their classes:
    LOC_val_solution.csv, imagenet_2012_validation_synset_labels.txt, or the folder of the development kit. The official
    validation set is shuffled with `seed`; the first half tests and the second half validates (code of AdaFocal).

    Args:
        root: Data folder; by default CALIBRANT_DATA.
        size: Side of the images, which are resized to this shorter side and cropped at the center.
        seed: Seed of the split.
        stream: Decode every batch from its files on all cores, instead of caching the pixels (memory-mapped; 12 kB per
            image and 16 GB in all at size 64). Recommended at size 224 (193 GB).
        crop: Augmentation of training images: "padded" crops after padding by size / 16; "resized" resizes random crops
            of 8 to 100 % of the area (Szegedy et al. 2015), as is usual at size 224. Both mirror half of the images.

    Raises:
        InputError: If folders are missing or images cannot be read.
    """
    folder = (data_root(root) or Path()) / "imagenet"
    train = _labels_from_folders(folder / "train")
    files = {"train": train, "val": _labels_of_flat_folder(folder) or _labels_from_folders(folder / "val")}
    classes = sorted(set(train.values()))
    if unknown := set(files["val"].values()) - set(classes):
        raise InputError(
            f"{folder / 'val'}: Expected the classes of {folder / 'train'}, got {', '.join(sorted(unknown)[:5])}.",
            code="unknown_label",
        )
    class_index = {name: i for i, name in enumerate(classes)}
    paths = {split: list(class_by_path) for split, class_by_path in files.items()}
    if stream:
        images: Mapping[str, Any] = {split: ImageFiles(np.array(paths[split], dtype=object), size) for split in files}
    else:
        images = _load_or_decode(paths, size)
    examples, held_out = (  # the training images, and the official validation set
        Split(images[split], torch.tensor([class_index[name] for name in class_by_path.values()]))
        for split, class_by_path in files.items()
    )
    record = {"source": "folder imagenet", "classes": classes, "size": size, "crop": crop}
    order = np.random.RandomState(seed).permutation(len(held_out))
    half = len(order) // 2
    val, test = held_out[order[half:]], held_out[order[:half]]
    splits = image_splits(examples, val, test, record, IMAGENET_STATISTICS, padding=size // 16)
    if crop == "resized":
        splits = replace(splits, augment=resized_crop_and_flip)
    if not stream:
        return splits
    standardize = splits.prepare
    return replace(splits, prepare=lambda batch: standardize(batch.pixels()))  # decodes the batch first


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """Images that are decoded from their files batch by batch."""

    paths: np.ndarray  # of Path
    size: int
    device: Any = None  # of the decoded pixels

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, rows: Any) -> "ImageFiles":
        """Select images by slice, mask or indices."""
        return replace(self, paths=self.paths[rows.cpu().numpy() if isinstance(rows, Tensor) else rows])

    def to(self, device: Any) -> "ImageFiles":
        """Return a copy that is decoded to a device."""
        return replace(self, device=device)

    def pixels(self) -> Tensor:
        """Decode all images to uint8 (n 3 size size)."""
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            decoded = list(pool.map(partial(_resize_and_crop, size=self.size), self.paths))
        return torch.from_numpy(np.stack(decoded)).permute(0, 3, 1, 2).contiguous().to(self.device)

    @property
    def digest(self) -> list[Any]:
        """Identity of the images: their size in pixels, and class, name and size in bytes of each file."""
        return [self.size, [("/".join(path.parts[-2:]), path.stat().st_size) for path in self.paths]]


def _load_or_decode(files: Mapping[str, list[Path]], size: int) -> Mapping[str, Tensor]:
    """Read the pixels of both splits from the cache, or decode and cache them.

    Decoded pixels go to memory-mapped files, as they may not fit into memory.
    """
    depends_on = [CACHE_VERSION, size, [file_stamps(paths) for paths in files.values()]]
    with tempfile.TemporaryDirectory() as scratch:

        def build() -> ConvertedData:
            """Decode the images of each split. The record is empty, as `imagenet` writes it."""
            return {name: _decode_to_file(paths, size, Path(scratch) / name) for name, paths in files.items()}, {}

        tensors, _ = load_or_build("imagenet", depends_on, build)
        return tensors  # the pixels stay mapped after their files are deleted


def _labels_from_folders(folder: Path) -> dict[Path, str]:
    """Return the class of every image CLASS/NAME.JPEG."""
    labels = classes_by_path(folder)
    if not labels:
        raise InputError(
            f"{folder}: Expected images CLASS/NAME.JPEG, got none. Give the data folder with --data DIR.",
            code="no_images",
        )
    return labels


def _labels_of_flat_folder(folder: Path) -> dict[Path, str]:
    """Return the class of every image that is directly in val, from a list of classes; nothing without such images.

    The list is searched in `folder`, in the folder above it, and in val.

    Raises:
        InputError: If there are images but no list of their classes.
    """
    images = sorted(f for f in (folder / "val").glob("*") if f.suffix.lower() in IMAGE_SUFFIXES)
    if not images:
        return {}
    for searched_folder in (folder, folder.parent, folder / "val"):
        with wrap_read_errors(str(searched_folder)):
            classes = _read_class_list(searched_folder)
        # a list of classes counts only if it covers the images: by name, or as many in the order of names
        if isinstance(classes, dict) and all(image.stem in classes for image in images):
            return {image: classes[image.stem] for image in images}
        if isinstance(classes, list) and len(classes) == len(images):
            return dict(zip(images, classes, strict=True))
    raise InputError(
        f"{folder / 'val'}: Expected images in folders of their class, got {len(images)} images directly in it. Add "
        "LOC_val_solution.csv, imagenet_2012_validation_synset_labels.txt or ILSVRC2012_devkit_t12 beside it.",
        code="unsorted_images",
    )


def _read_class_list(folder: Path) -> dict[str, str] | list[str] | None:
    """Return the classes of the validation images from a list in a folder, or None without a list.

    The result is a dict by image name, or a list in the order of image names, as the file has it.
    """
    if (path := first_existing(folder, "LOC_val_solution.csv")) is not None:
        lines = [line.split(",") for line in path.read_text().splitlines()[1:] if line]
        return {name: text.split()[0] for name, text in lines}  # a text is the class and a box around the object
    if (path := first_existing(folder, "imagenet_2012_validation_synset_labels.txt")) is not None:
        return path.read_text().split()
    if (meta := first_existing(folder, "ILSVRC2012_devkit_t12/data/meta.mat", "data/meta.mat")) is None:
        return None
    from scipy.io import loadmat

    synsets = loadmat(meta, squeeze_me=True)["synsets"]  # the classes, with their numbers and names (WNID)
    names = {int(row["ILSVRC2012_ID"]): str(row["WNID"]) for row in synsets}
    class_numbers = (meta.parent / "ILSVRC2012_validation_ground_truth.txt").read_text().split()
    return [names[int(class_number)] for class_number in class_numbers]


def _decode_to_file(paths: list[Path], size: int, scratch: Path) -> Tensor:
    """Decode images to uint8 (n 3 size size) in `scratch`, a memory-mapped file, and return the mapped tensor."""
    shape = (len(paths), 3, size, size)
    pixels = torch.from_file(str(scratch), shared=True, size=int(np.prod(shape)), dtype=torch.uint8).view(shape)
    for row, path in enumerate(paths):
        pixels[row] = torch.from_numpy(_resize_and_crop(path, size)).permute(2, 0, 1)
    return pixels


def _resize_and_crop(path: Path, size: int) -> np.ndarray:
    """Return the pixels (size, size, 3) of an image, with its shorter side resized and its center cropped."""
    from PIL import Image, ImageOps

    with wrap_read_errors(str(path)), Image.open(path) as image:
        return np.array(ImageOps.fit(image.convert("RGB"), (size, size), Image.Resampling.BILINEAR))


# Tiny-ImageNet: 200 classes of ImageNet at 64 x 64 pixels, 100,000 + 10,000 images


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
    lines = filter(str.strip, annotations.read_text().splitlines())
    class_by_name = dict(line.split("\t")[:2] for line in lines)  # a box follows name and class
    # in the order of files["train"], which come from the same function
    train_classes = list(classes_by_path(annotations.parents[1] / "train").values())
    val_classes = [class_by_name[path.name] for path in files["validation"]]
    classes = sorted(set(train_classes))
    return {
        split: InMemoryTable(
            {
                "image": [{"bytes": None, "path": str(path)} for path in files[split]],
                "label": list(map(classes.index, class_names)),
            },
            classes,
        )
        for split, class_names in (("train", train_classes), ("validation", val_classes))
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
        root: Data folder; by default CALIBRANT_DATA or the Hugging Face hub.
        val: Fraction of every class for validation. With 0.1, the images numbered 0 .. 449 in their file names train
            and 450 .. 499 validate (code of AdaFocal, Komisarenko & Kull 2024). Without numbers, row order counts.
        revision: Commit on the Hugging Face hub.

    Raises:
        InputError: If `val` leaves an empty split.
    """
    loaded = load_images(_TINY_IMAGENET, root, revision, size=64, classes=200)
    examples = loaded.train
    is_validation = validation_mask(examples.labels, loaded.file_numbers, val)
    if not 0 < int(is_validation.sum()) < len(is_validation):
        raise InputError(
            f"tiny_imagenet: Expected val that splits {len(is_validation)} training rows, got {val}.",
            code="empty_split",
        )
    splits = examples[~is_validation], examples[is_validation], loaded.test
    return image_splits(*splits, loaded.record, IMAGENET_STATISTICS, padding=4)


def validation_mask(labels: Tensor, file_numbers: Tensor, share: float) -> Tensor:
    """Return a mask (n) of the training rows that validate: the last `share` of every class.

    The last are the highest file numbers, which are 0 .. 499 in every class. If any file has no number (-1), they are
    the last rows of each class.
    """
    if bool((file_numbers >= 0).all()):
        return file_numbers >= round(500 * (1 - share))
    is_validation = torch.zeros(len(labels), dtype=torch.bool)
    rows_by_class = labels.argsort(stable=True).split(labels.bincount().tolist())
    for rows in rows_by_class:
        is_validation[rows[round(len(rows) * (1 - share)) :]] = True
    return is_validation
