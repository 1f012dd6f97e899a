"""Images: decoding to uint8 tensors, standardization, and the papers' augmentation of batches."""

import io
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Generator, Tensor
from torch.nn.functional import affine_grid, grid_sample, pad

from calibrant._core.types import InputError
from calibrant.lab.data._loading import (
    ConvertedData,
    InMemoryTable,
    Source,
    Tables,
    check_labels,
    find_column,
    load,
    wrap_read_errors,
)
from calibrant.lab.data._splits import Split, Splits

ChannelStatistics = tuple[Sequence[float], Sequence[float]]  # mean and standard deviation of the channels
CIFAR_STATISTICS = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)  # Mukhoti et al. (2020)
IMAGENET_STATISTICS = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class LoadedImages(NamedTuple):
    """The two splits of an image data set, as its authors distribute it."""

    train: Split
    test: Split
    file_numbers: Tensor  # (n) numbers in the file names of the training images, or -1
    record: dict[str, Any]  # entries of the record of a run, and "classes"


def load_images(
    source: Source, root: Path | None, revision: str | None, *, label: str = "label", size: int, classes: int
) -> LoadedImages:
    """Load the two splits of an image data set of `classes` classes, whose images have `size` x `size` pixels.

    `source` says where to look, beginning with the data folder `root`; `revision` is a commit on the Hugging Face hub.
    `label` is the column of labels.
    """
    tensors, record = load(source, root, revision, convert_images, label=label, size=size, classes=classes)
    # a split may have several names; the first one is its key in the tensors
    (train_name, *_), (test_name, *_) = source.splits
    train, test = (Split(tensors[f"{name}.images"], tensors[f"{name}.labels"]) for name in (train_name, test_name))
    return LoadedImages(train, test, tensors[f"{train_name}.numbers"], record)


def convert_images(tables: Tables, *, label: str, size: int, classes: int) -> ConvertedData:
    """Decode every split NAME to NAME.images (n 3 size size) uint8, NAME.labels (n) and NAME.numbers (n).

    The numbers are the last ones in the names of the image files, or -1. The record has the "classes": the names of the
    labels in the table if there are `classes` of them, else 0, 1, ...
    """
    import datasets

    tensors: dict[str, Tensor] = {}
    record: dict[str, Any] = {}
    for name, table in tables.items():
        with wrap_read_errors(name):
            image = find_column(table, name, "img", "image")
            find_column(table, name, label)  # raises if it is missing
            is_in_memory = isinstance(table, InMemoryTable)
            names = table.classes if is_in_memory else getattr(table.features.get(label), "names", None)
            record["classes"] = names if names and len(names) == classes else [str(i) for i in range(classes)]
            if not is_in_memory:  # read the images as stored, without decoding them
                table = table.select_columns([image, label]).cast_column(image, datasets.Image(decode=False))
            pixels, labels, file_numbers = [], [], []
            for batch in table.iter(batch_size=1000):
                rows = enumerate(batch[image], start=len(labels))  # `labels` holds the earlier batches
                pixels.append(np.stack([decode_image(value, f"{name}, row {row}", size) for row, value in rows]))
                file_numbers += [_file_number(value) for value in batch[image]]
                labels += batch[label]
        if not labels:
            raise InputError(f"{name}: Expected at least one row, got none.", code="no_rows")
        tensors[f"{name}.images"] = torch.from_numpy(np.concatenate(pixels)).permute(0, 3, 1, 2).contiguous()
        tensors[f"{name}.labels"] = torch.from_numpy(check_labels(labels, name, classes))
        tensors[f"{name}.numbers"] = torch.tensor(file_numbers)
    return tensors, record


def decode_image(value: Any, location: str, size: int) -> np.ndarray:
    """Return the RGB pixels (size, size, 3) of an image, given as pixels or by its encoded bytes or path.

    Raises:
        InputError: If the image cannot be decoded, or has another size. Given pixels are not checked. `location` names
            the image in the message.
    """
    from PIL import Image

    if isinstance(value, np.ndarray):
        return value
    data: Any = io.BytesIO(value["bytes"]) if value["bytes"] is not None else value["path"]
    with wrap_read_errors(location), Image.open(data) as image:
        if image.size != (size, size):
            raise InputError(
                f"{location}: Expected an image of {size} x {size}, got {image.size[0]} x {image.size[1]}.",
                code="image_size",
            )
        return np.asarray(image.convert("RGB"))


def standardize(images: Tensor, *, mean: Sequence[float], deviation: Sequence[float]) -> Tensor:
    """Convert uint8 images (n c h w) to standardized floats, (x / 255 - mean) / deviation."""
    mean_level = torch.tensor(mean, device=images.device)[:, None, None] * 255  # in levels 0 .. 255
    level_deviation = 255 * torch.tensor(deviation, device=images.device)[:, None, None]
    # dividing the mean beforehand saves a pass over the images
    return images / level_deviation - mean_level / level_deviation


def crop_and_flip(images: Tensor, generator: Generator, *, padding: int, black: Sequence[float]) -> Tensor:
    """Pad standardized images (n c h w) with black, crop them at random to their size, and mirror half of them.

    `padding` is the number of pixels added on each side; the crop then shifts an image by at most as many.
    `black` is the standardized value of a black pixel in each channel, which is not 0.
    """
    n, _, height, width = images.shape
    device = generator.device
    down, right = torch.randint(0, 2 * padding + 1, (2, n, 1), generator=generator, device=device)
    flip = torch.rand(n, 1, generator=generator, device=device) < 0.5
    column = torch.arange(width, device=device)
    rows = (down + torch.arange(height, device=device)).to(images.device)  # (n h), in the padded image
    columns = (right + torch.where(flip, column.flip(0), column)).to(images.device)  # (n w)
    background = torch.tensor(black, dtype=images.dtype, device=images.device).view(-1, 1, 1)
    # (n h w c); relative to black, because `pad` fills all channels with one value, here 0
    padded = pad(images - background, (padding,) * 4).movedim(1, -1)
    image = torch.arange(n, device=images.device)[:, None, None]
    return padded[image, rows[:, :, None], columns[:, None, :]].movedim(-1, 1) + background


def resized_crop_and_flip(images: Tensor, generator: Generator) -> Tensor:
    """Resize random crops to the full image, and mirror half of them (Szegedy et al. 2015).

    Crops have 8 to 100 % of the area and aspect ratios of 3/4 to 4/3, and are clipped to the image.
    """
    n = len(images)
    # uniform in [0, 1), one of each per image; x and y place the crop between the edges of the image
    area_share, aspect_share, x, y, flip = torch.rand(5, n, generator=generator, device=generator.device).to(images)
    area = 0.08 + 0.92 * area_share
    aspect = (math.log(3 / 4) + aspect_share * math.log(16 / 9)).exp()  # 3/4 .. 4/3, uniform on the log scale
    width = (area * aspect).sqrt().clamp_max(1)  # as shares of the sides of the image
    height = (area / aspect).sqrt().clamp_max(1)
    zero = torch.zeros_like(area)
    # affine maps (n 2 3) from the result to the image, with coordinates in [-1, 1]: scale, no shear, center of the crop
    across = torch.stack([torch.where(flip < 0.5, -width, width), zero, (2 * x - 1) * (1 - width)], 1)
    down = torch.stack([zero, height, (2 * y - 1) * (1 - height)], 1)
    sampling_grid = affine_grid(torch.stack([across, down], 1), list(images.shape), align_corners=False)
    return grid_sample(images, sampling_grid, padding_mode="border", align_corners=False)


def image_splits(
    train: Split, val: Split, test: Split, record: dict[str, Any], statistics: ChannelStatistics, *, padding: int
) -> Splits:
    """Assemble an image data set from its splits and the record of `load_images`.

    `statistics` are the mean and deviation of each channel. Training batches are padded, cropped and flipped, or not
    augmented if `padding` is 0.
    """
    mean, deviation = statistics
    black = [-m / d for m, d in zip(mean, deviation, strict=True)]  # standardized 0
    return Splits(
        train=train,
        val=val,
        test=test,
        classes=tuple(record.pop("classes")),
        prepare=partial(standardize, mean=mean, deviation=deviation),
        augment=partial(crop_and_flip, padding=padding, black=black) if padding else None,
        facts=record,
    )


def _file_number(value: Any) -> int:
    """Return the number at the end of an image's file name, such as 17 of n01_17.JPEG, or -1."""
    path = "" if isinstance(value, np.ndarray) else value["path"] or ""
    digits = path.rpartition("_")[2].partition(".")[0]  # from the last _ to the next dot
    return int(digits) if digits.isdigit() else -1
