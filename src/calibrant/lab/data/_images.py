"""Images: bytes to uint8 tensors, standardization, and the papers' augmentation as one batched tensor function."""

import io
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor
from torch.nn.functional import affine_grid, grid_sample, pad

from calibrant.lab.data._loading import ConvertedData, Tables, check_labels, find_column, wrap_read_errors
from calibrant.lab.data._original_formats import InMemoryTable
from calibrant.lab.data._splits import Split, Splits
from calibrant.types import InputError

CIFAR_STATISTICS = (
    (0.4914, 0.4822, 0.4465),
    (0.2023, 0.1994, 0.2010),
)  # the channels' mean and deviation (Mukhoti et al. 2020)
IMAGENET_STATISTICS = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def decode_image(value: Any, location: str, size: int) -> np.ndarray:
    """Return the pixels (size, size, 3) of an encoded image, by its bytes or its path; gray ones become RGB."""
    from PIL import Image

    if isinstance(value, np.ndarray):
        return value
    data: Any = io.BytesIO(value["bytes"]) if value["bytes"] is not None else value["path"]
    with wrap_read_errors(location), Image.open(data) as image:
        if image.size != (size, size):
            raise InputError(
                f"{location}: expected an image of {size} x {size}, got {image.size[0]} x {image.size[1]}",
                code="image_size",
            )
        return np.asarray(image.convert("RGB"))


def convert_images(
    tables: Tables, *, image: Sequence[str], label: Sequence[str], size: int, classes: int
) -> ConvertedData:
    """Decode every split: tensors NAME.images (n 3 size size) uint8, NAME.labels (n); facts hold the classes."""
    tensors: dict[str, Tensor] = {}
    facts: dict[str, Any] = {}
    for name, table in tables.items():
        with wrap_read_errors(name):
            picture, target = find_column(table, name, *image), find_column(table, name, *label)
            names = getattr(table.features.get(target), "names", None)
            facts["classes"] = names if names and len(names) == classes else [str(i) for i in range(classes)]
            encoded = _select_encoded(table, picture, target)
            pixels, labels, paths = [], [], []
            for batch in encoded.iter(batch_size=1000):
                offset = len(labels)
                labels += batch[target]
                paths += [None if isinstance(value, np.ndarray) else value["path"] for value in batch[picture]]
                pixels.append(
                    np.stack([decode_image(v, f"{name}, row {offset + i}", size) for i, v in enumerate(batch[picture])])
                )
        if not labels:
            raise InputError(f"{name}: no rows", code="no_rows")
        tensors[f"{name}.images"] = torch.from_numpy(np.concatenate(pixels)).permute(0, 3, 1, 2).contiguous()
        tensors[f"{name}.labels"] = torch.from_numpy(check_labels(labels, name, classes))
        tensors[f"{name}.numbers"] = torch.tensor([_file_number(path) for path in paths])
    return tensors, facts


def standardize(mean: Sequence[float], deviation: Sequence[float]) -> Callable[[Tensor], Tensor]:
    """Return the map from uint8 images (n c h w) to floats of about mean 0 and deviation 1."""
    return partial(_standardize, mean=tuple(mean), deviation=tuple(deviation))


def crop_and_flip(padding: int, mean: Sequence[float], deviation: Sequence[float]) -> Callable[..., Tensor]:
    """Return the papers' augmentation of standardized images: pad with black, crop at random, mirror half of them."""
    return partial(_crop_and_flip, padding=padding, black=tuple(-m / d for m, d in zip(mean, deviation)))


def resized_crop_and_flip(images: Tensor, generator: Generator) -> Tensor:
    """Scale parts of images to the whole, 8 to 100 % of the area at aspects of 3/4 to 4/3, and mirror half of them.

    Inception's augmentation (Szegedy et al. 2015). What would be wider or higher than the image is cut to it.
    """
    n = len(images)
    area, aspect, x, y, flip = torch.rand(5, n, generator=generator, device=generator.device).to(images)
    aspect = (math.log(3 / 4) + aspect * math.log(16 / 9)).exp()
    area = 0.08 + 0.92 * area
    width, height = (area * aspect).sqrt().clamp_max(1), (area / aspect).sqrt().clamp_max(1)
    zero = torch.zeros_like(area)
    across = torch.stack([torch.where(flip < 0.5, -width, width), zero, (2 * x - 1) * (1 - width)], 1)
    down = torch.stack([zero, height, (2 * y - 1) * (1 - height)], 1)
    sampling_grid = affine_grid(torch.stack([across, down], 1), list(images.shape), align_corners=False)
    return grid_sample(images, sampling_grid, padding_mode="border", align_corners=False)


def image_splits(
    train: Split, val: Split, test: Split, facts: dict[str, Any], statistics: tuple[Any, Any], *, padding: int
) -> Splits:
    """Put an image data set together; `padding` 0 means no augmentation."""
    return Splits(
        train=train,
        val=val,
        test=test,
        classes=tuple(facts.pop("classes")),
        prepare=standardize(*statistics),
        augment=crop_and_flip(padding, *statistics) if padding else None,
        facts=facts,
    )


def _select_encoded(table: Any, picture: str, target: str) -> Any:
    """Return a table's pictures as they are stored, with their labels."""
    if isinstance(table, InMemoryTable):
        return table
    import datasets

    return table.select_columns([picture, target]).cast_column(picture, datasets.Image(decode=False))


def _file_number(path: str | None) -> int:
    digits = (path or "").rpartition("_")[2].partition(".")[0]
    return int(digits) if digits.isdigit() else -1


def _standardize(images: Tensor, *, mean: tuple[float, ...], deviation: tuple[float, ...]) -> Tensor:
    scale = 255 * torch.tensor(deviation, device=images.device)[:, None, None]
    return images / scale - (torch.tensor(mean, device=images.device) * 255)[:, None, None] / scale


def _crop_and_flip(images: Tensor, generator: Generator, *, padding: int, black: tuple[float, ...]) -> Tensor:
    n, _, height, width = images.shape
    device = generator.device
    shift = torch.randint(0, 2 * padding + 1, (2, n, 1), generator=generator, device=device)
    flip = torch.rand(n, 1, generator=generator, device=device) < 0.5
    column = torch.arange(width, device=device)
    rows = (shift[0] + torch.arange(height, device=device)).to(images.device)
    columns = (shift[1] + torch.where(flip, column.flip(0), column)).to(images.device)
    background = torch.tensor(black, dtype=images.dtype, device=images.device).view(-1, 1, 1)
    padded = pad(images - background, (padding,) * 4)
    index = torch.arange(n, device=images.device)[:, None, None]
    return padded.movedim(1, -1)[index, rows[:, :, None], columns[:, None, :]].movedim(-1, 1) + background
