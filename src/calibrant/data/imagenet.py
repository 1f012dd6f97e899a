"""ImageNet (ILSVRC 2012) from a folder of image files, shrunk to one size and kept as uint8."""

import hashlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from calibrant.catalog import DATA_SETS
from calibrant.data._images import IMAGENET, image_splits
from calibrant.data._load import VERSION, Converted, cached, data_root, reading
from calibrant.data._originals import SUFFIXES, class_folders, first
from calibrant.data._splits import Split, Splits
from calibrant.types import Count, InputError, Seed

__all__ = ["imagenet"]


@DATA_SETS.register
def imagenet(root: Path | None = None, *, size: Count = 64, seed: Seed = 1) -> Splits:
    """ImageNet from ROOT/imagenet/train/CLASS/*.JPEG and .../val/CLASS/*.JPEG; classes are the sorted folder names.

    The 50,000 validation images may lie flat in val, as they come, if one of the lists of their classes lies beside
    it: LOC_val_solution.csv, imagenet_2012_validation_synset_labels.txt, or the development kit's folder.
    Every image is scaled so that its shorter side is `size` and cropped at the center. The official validation set is
    shuffled with `seed`: the first half tests, the second validates (as AdaFocal's code). The pixels are mapped from
    the cache, not held in memory: 12 kB an image at size 64 (16 GB in all), 150 kB at 224 (193 GB). Training images
    are cropped after padding by size/16 and mirrored. Raises `InputError` for missing folders and unreadable images.
    """
    folder = (data_root(root) or Path()) / "imagenet"
    train = _labeled(folder / "train")
    files = {"train": train, "val": _flat(folder) or _labeled(folder / "val")}
    classes = sorted(set(train.values()))
    if unknown := set(files["val"].values()) - set(classes):
        raise InputError(f"{folder / 'val'}: classes without training images: {', '.join(sorted(unknown)[:5])}")
    number = {one: i for i, one in enumerate(classes)}
    stamps = [(str(f), one, f.stat().st_size, f.stat().st_mtime_ns) for name in files for f, one in files[name].items()]
    key = hashlib.sha256(json.dumps([VERSION, size, stamps]).encode()).hexdigest()[:24]
    with tempfile.TemporaryDirectory() as scratch:  # pixels grow in a mapped file, not in memory

        def build() -> Converted:
            tensors: dict[str, Tensor] = {}
            for name, paths in files.items():
                tensors[f"{name}.images"] = _pixels(list(paths), size, Path(scratch) / name)
                tensors[f"{name}.labels"] = torch.tensor([number[one] for one in paths.values()])
            return tensors, {"source": "folder imagenet", "classes": classes, "size": size}

        tensors, facts = cached(f"imagenet-{key}", build)
    official = Split(tensors["val.images"], tensors["val.labels"])
    order = np.random.RandomState(seed).permutation(len(official))
    half = len(order) // 2
    train = Split(tensors["train.images"], tensors["train.labels"])
    return image_splits(train, official[order[half:]], official[order[:half]], facts, IMAGENET, padding=size // 16)


def _labeled(folder: Path) -> dict[Path, str]:
    """Return the class of every image of CLASS/NAME.JPEG."""
    found = class_folders(folder)
    if not found:
        raise InputError(
            f"{folder}: expected images in CLASS/NAME.JPEG, found none; give ImageNet's folder by --data DIR"
        )
    return found


def _flat(folder: Path) -> dict[Path, str]:
    """Return the class of every image that lies in val itself, by the list that says so; nothing if none do."""
    images = sorted(f for f in (folder / "val").glob("*") if f.suffix.lower() in SUFFIXES)
    if not images:
        return {}
    for place in (folder, folder.parent, folder / "val"):
        with reading(str(place)):
            noted = _noted(place)
        if len(noted) == 1:  # a class a line, in the order of the names
            (classes,) = noted.values()
            if len(classes) == len(images):
                return dict(zip(images, classes, strict=True))
        elif noted and all(f.stem in noted for f in images):
            return {f: noted[f.stem][0] for f in images}
    raise InputError(
        f"{folder / 'val'}: {len(images)} images that are in no folder of their class; put LOC_val_solution.csv, "
        "imagenet_2012_validation_synset_labels.txt or ILSVRC2012_devkit_t12 beside it"
    )


def _noted(place: Path) -> dict[str, list[str]]:
    """Return the class by the name of every image, or under one name those of all images in order."""
    if (path := first(place, "LOC_val_solution.csv")) is not None:
        lines = [line.split(",") for line in path.read_text().splitlines()[1:] if line]
        return {name: said.split()[:1] for name, said in lines}
    if (path := first(place, "imagenet_2012_validation_synset_labels.txt")) is not None:
        return {path.name: path.read_text().split()}
    if (path := first(place, "ILSVRC2012_devkit_t12/data", "data")) is None or not (path / "meta.mat").is_file():
        return {}
    from scipy.io import loadmat

    synsets = loadmat(path / "meta.mat", squeeze_me=True)["synsets"]
    names = {int(row["ILSVRC2012_ID"]): str(row["WNID"]) for row in synsets}
    numbers = (path / "ILSVRC2012_validation_ground_truth.txt").read_text().split()
    return {path.name: [names[int(number)] for number in numbers]}


def _pixels(paths: list[Path], size: int, scratch: Path) -> Tensor:
    shape = (len(paths), 3, size, size)
    pixels = torch.from_file(str(scratch), shared=True, size=int(np.prod(shape)), dtype=torch.uint8).view(shape)
    for row, image in enumerate(_shrunk(paths, size)):
        pixels[row] = torch.from_numpy(image).permute(2, 0, 1)
    return pixels


def _shrunk(paths: list[Path], size: int) -> Iterator[np.ndarray]:
    from PIL import Image, ImageOps

    for path in paths:
        with reading(str(path)), Image.open(path) as image:
            fitted = ImageOps.fit(image.convert("RGB"), (size, size), Image.Resampling.BILINEAR)
            pixels = np.array(fitted)
        yield pixels
