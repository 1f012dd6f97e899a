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
from calibrant.data._splits import Split, Splits
from calibrant.types import InputError

__all__ = ["imagenet"]


@DATA_SETS.register
def imagenet(root: Path | None = None, *, size: int = 64, seed: int = 1) -> Splits:
    """ImageNet from ROOT/imagenet/train/CLASS/*.JPEG and .../val/CLASS/*.JPEG; classes are the sorted folder names.

    Every image is scaled so that its shorter side is `size` and cropped at the center. The official validation set is
    shuffled with `seed`: the first half tests, the second validates (as AdaFocal's code). The pixels are mapped from
    the cache, not held in memory: 12 kB an image at size 64 (16 GB in all), 150 kB at 224 (193 GB). Training images
    are cropped after padding by size/16 and mirrored. Raises `InputError` for missing folders and unreadable images.
    """
    folder = (data_root(root) or Path()) / "imagenet"
    files = {name: _files(folder / name) for name in ("train", "val")}
    classes = sorted({f.parent.name for f in files["train"]})
    if unknown := {f.parent.name for f in files["val"]} - set(classes):
        raise InputError(f"{folder / 'val'}: classes without training images: {', '.join(sorted(unknown)[:5])}")
    stamps = [(str(f), f.stat().st_size, f.stat().st_mtime_ns) for name in files for f in files[name]]
    key = hashlib.sha256(json.dumps([VERSION, size, stamps]).encode()).hexdigest()[:24]
    with tempfile.TemporaryDirectory() as scratch:  # pixels grow in a mapped file, not in memory

        def build() -> Converted:
            tensors: dict[str, Tensor] = {}
            for name, paths in files.items():
                tensors[f"{name}.images"] = _pixels(paths, size, Path(scratch) / name)
                tensors[f"{name}.labels"] = torch.tensor([classes.index(f.parent.name) for f in paths])
            return tensors, {"source": "folder imagenet", "classes": classes, "size": size}

        tensors, facts = cached(f"imagenet-{key}", build)
    official = Split(tensors["val.images"], tensors["val.labels"])
    order = np.random.RandomState(seed).permutation(len(official))
    half = len(order) // 2
    train = Split(tensors["train.images"], tensors["train.labels"])
    return image_splits(train, official[order[half:]], official[order[:half]], facts, IMAGENET, padding=size // 16)


def _files(folder: Path) -> list[Path]:
    found = sorted(f for f in folder.glob("*/*") if f.suffix.lower() in (".jpeg", ".jpg", ".png"))
    if not found:
        raise InputError(
            f"{folder}: expected images in CLASS/NAME.JPEG, found none; give ImageNet's folder by --data DIR"
        )
    return found


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
