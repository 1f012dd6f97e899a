"""ImageNet (ILSVRC 2012) from a folder of image files, shrunk to one size: kept as uint8, or read batch by batch."""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from calibrant.lab.data._images import IMAGENET_STATISTICS, image_splits, resized_crop_and_flip
from calibrant.lab.data._loading import CACHE_VERSION, ConvertedData, data_root, load_or_build, wrap_read_errors
from calibrant.lab.data._original_formats import IMAGE_SUFFIXES, classes_by_path, first_existing
from calibrant.lab.data._splits import Split, Splits
from calibrant.registry import DATA_SETS
from calibrant.types import Count, InputError, Seed

__all__ = ["imagenet"]


@DATA_SETS.register
def imagenet(
    root: Path | None = None,
    *,
    size: Count = 64,
    seed: Seed = 1,
    stream: bool = False,
    crop: Literal["padded", "resized"] = "padded",
) -> Splits:
    """ImageNet from ROOT/imagenet/train/CLASS/*.JPEG and .../val/CLASS/*.JPEG; classes are the sorted folder names.

    The 50,000 validation images may lie flat in val, as they come, if one of the lists of their classes lies beside
    it: LOC_val_solution.csv, imagenet_2012_validation_synset_labels.txt, or the development kit's folder.
    Every image is scaled so that its shorter side is `size` and cropped at the center. The official validation set is
    shuffled with `seed`: the first half tests, the second validates (as AdaFocal's code). The pixels are mapped from
    the cache, not held in memory: 12 kB an image at size 64 (16 GB in all). With `stream` nothing is kept: every batch
    is decoded from its files, by all cores, which at 224 pixels is what one wants (150 kB an image, 193 GB in all).
    Training images are cropped after padding by size/16 and mirrored, or with `crop="resized"` mirrored parts of them,
    8 to 100 % of the area at aspects of 3/4 to 4/3, are scaled to the whole (Szegedy et al. 2015), as is usual at 224.
    Raises `InputError` for missing folders and unreadable images.
    """
    folder = (data_root(root) or Path()) / "imagenet"
    train = _labels_from_folders(folder / "train")
    files = {"train": train, "val": _labels_of_flat_folder(folder) or _labels_from_folders(folder / "val")}
    classes = sorted(set(train.values()))
    if unknown := set(files["val"].values()) - set(classes):
        raise InputError(
            f"{folder / 'val'}: classes without training images: {', '.join(sorted(unknown)[:5])}", code="unknown_label"
        )
    class_index = {class_name: i for i, class_name in enumerate(classes)}
    labels = {
        name: torch.tensor([class_index[class_name] for class_name in paths.values()]) for name, paths in files.items()
    }
    if stream:
        images: Mapping[str, Any] = {name: ImageFiles.from_paths(list(paths), size) for name, paths in files.items()}
    else:
        images = _load_or_decode({name: list(paths) for name, paths in files.items()}, size)
    facts = {"source": "folder imagenet", "classes": classes, "size": size, "crop": crop}
    official = Split(images["val"], labels["val"])
    order = np.random.RandomState(seed).permutation(len(official))
    half = len(order) // 2
    splits = image_splits(
        Split(images["train"], labels["train"]),
        official[order[half:]],
        official[order[:half]],
        facts,
        IMAGENET_STATISTICS,
        padding=size // 16,
    )
    splits = splits if crop == "padded" else replace(splits, augment=resized_crop_and_flip)
    return replace(splits, prepare=partial(_decode_batch, prepare=splits.prepare)) if stream else splits


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """Images that stay in their files until a batch of them is decoded."""

    paths: np.ndarray  # of paths, as texts
    size: int
    device: Any = None  # where their pixels go

    @classmethod
    def from_paths(cls, paths: Sequence[Path], size: int) -> "ImageFiles":
        """Name the files of images to be scaled to one size."""
        return cls(np.array([str(path) for path in paths], dtype=object), size)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, rows: Any) -> "ImageFiles":
        """Some of the images, by slice, mask or indices."""
        rows = rows.cpu().numpy() if isinstance(rows, Tensor) else rows
        return replace(self, paths=self.paths[rows])

    def to(self, device: Any) -> "ImageFiles":
        """The same images, whose pixels go to a device."""
        return replace(self, device=device)

    def pixels(self) -> Tensor:
        """Decode them all: (n 3 size size) uint8."""
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            decoded = list(pool.map(partial(_resize_and_crop, size=self.size), self.paths))
        return torch.from_numpy(np.stack(decoded)).permute(0, 3, 1, 2).contiguous().to(self.device)

    @property
    def digest(self) -> list[Any]:
        """What they are known by: their class and name, and how large the files are."""
        return [self.size, [("/".join(Path(p).parts[-2:]), os.path.getsize(p)) for p in self.paths]]  # noqa: PTH202


def _decode_batch(images: ImageFiles, *, prepare: Callable[[Tensor], Tensor]) -> Tensor:
    return prepare(images.pixels())


def _load_or_decode(files: Mapping[str, list[Path]], size: int) -> Mapping[str, Tensor]:
    stamps = [(str(f), f.stat().st_size, f.stat().st_mtime_ns) for name in files for f in files[name]]
    key = hashlib.sha256(json.dumps([CACHE_VERSION, size, stamps]).encode()).hexdigest()[:24]
    with tempfile.TemporaryDirectory() as scratch:  # pixels grow in a mapped file, not in memory

        def build() -> ConvertedData:
            return {name: _decode_to_file(paths, size, Path(scratch) / name) for name, paths in files.items()}, {}

        return load_or_build(f"imagenet-{key}", build)[0]


def _labels_from_folders(folder: Path) -> dict[Path, str]:
    """Return the class of every image of CLASS/NAME.JPEG."""
    labels = classes_by_path(folder)
    if not labels:
        raise InputError(
            f"{folder}: expected images in CLASS/NAME.JPEG, found none; give ImageNet's folder by --data DIR",
            code="no_images",
        )
    return labels


def _labels_of_flat_folder(folder: Path) -> dict[Path, str]:
    """Return the class of every image that lies in val itself, by the list that says so; nothing if none do."""
    images = sorted(f for f in (folder / "val").glob("*") if f.suffix.lower() in IMAGE_SUFFIXES)
    if not images:
        return {}
    for place in (folder, folder.parent, folder / "val"):
        with wrap_read_errors(str(place)):
            classes_by_name = _read_class_list(place)
        if len(classes_by_name) == 1:  # a class a line, in the order of the names
            (classes,) = classes_by_name.values()
            if len(classes) == len(images):
                return dict(zip(images, classes, strict=True))
        elif classes_by_name and all(f.stem in classes_by_name for f in images):
            return {f: classes_by_name[f.stem][0] for f in images}
    raise InputError(
        f"{folder / 'val'}: {len(images)} images that are in no folder of their class; put LOC_val_solution.csv, "
        "imagenet_2012_validation_synset_labels.txt or ILSVRC2012_devkit_t12 beside it",
        code="unsorted_images",
    )


def _read_class_list(place: Path) -> dict[str, list[str]]:
    """Return the class by the name of every image, or under one name those of all images in order."""
    if (path := first_existing(place, "LOC_val_solution.csv")) is not None:
        lines = [line.split(",") for line in path.read_text().splitlines()[1:] if line]
        return {name: prediction.split()[:1] for name, prediction in lines}
    if (path := first_existing(place, "imagenet_2012_validation_synset_labels.txt")) is not None:
        return {path.name: path.read_text().split()}
    if (path := first_existing(place, "ILSVRC2012_devkit_t12/data", "data")) is None or not (
        path / "meta.mat"
    ).is_file():
        return {}
    from scipy.io import loadmat

    synsets = loadmat(path / "meta.mat", squeeze_me=True)["synsets"]
    names = {int(row["ILSVRC2012_ID"]): str(row["WNID"]) for row in synsets}
    numbers = (path / "ILSVRC2012_validation_ground_truth.txt").read_text().split()
    return {path.name: [names[int(number)] for number in numbers]}


def _decode_to_file(paths: list[Path], size: int, scratch: Path) -> Tensor:
    shape = (len(paths), 3, size, size)
    pixels = torch.from_file(str(scratch), shared=True, size=int(np.prod(shape)), dtype=torch.uint8).view(shape)
    for row, path in enumerate(paths):
        pixels[row] = torch.from_numpy(_resize_and_crop(path, size)).permute(2, 0, 1)
    return pixels


def _resize_and_crop(path: Path | str, size: int) -> np.ndarray:
    from PIL import Image, ImageOps

    with wrap_read_errors(str(path)), Image.open(path) as image:
        return np.array(ImageOps.fit(image.convert("RGB"), (size, size), Image.Resampling.BILINEAR))
