"""Load the data sets and shifted test sets of runs, and identify them by digests of their content."""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch

from calibrant._core.registry import Method
from calibrant._core.types import InputError
from calibrant.lab.data import Split, Splits
from calibrant.lab.study.grids import Methods, is_corruption

MAX_DIGEST_BYTES = 1 << 30  # of larger tensors, evenly spaced rows of about this size are digested


class DatasetCache:
    """Load the data of runs from a folder or the Hugging Face hub, and keep the last data set in memory.

    A copy in another process starts empty.

    Attributes:
        root: The folder, or None.
        splits: Returns a data set. Raises `InputError` if its function does not return `Splits`.
        digest: Returns the digests of a data set.
        shifted_splits: Returns the shifted test sets of a data set, named shift0, shift1, ...
    """

    def __init__(self, root: Path | None = None) -> None:
        self.root = None if root is None else Path(root).absolute()
        self.splits = lru_cache(maxsize=1)(self._load_splits)
        self.digest = cache(lambda dataset: data_digest(self.splits(dataset)))
        self.shifted_splits = lru_cache(maxsize=1)(self._load_shifted_splits)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the folder only, as caches cannot be pickled."""
        return DatasetCache, (self.root,)

    def _load_splits(self, dataset: Method) -> Splits:
        """Call the function of a data set, and check its result."""
        loaded = dataset(self.root)
        if not isinstance(loaded, Splits):
            raise InputError(
                f"Expected {dataset.name} to return data.Splits, got {type(loaded).__name__}.", code="not_splits"
            )
        return loaded

    def _load_shifted_splits(self, dataset: Method, shifts: Methods) -> dict[str, Split]:
        """Return every shift of a data set by the name of its split."""
        test = self.splits(dataset).test
        return {f"shift{i}": self._load_shift(test, dataset.name, shift) for i, shift in enumerate(shifts)}

    def _load_shift(self, test: Split, name: str, shift: Method) -> Split:
        """Return a shifted test set: corrupted images with their labels, or another test set with labels 0.

        `test` is the test set of the run's data set, which has this `name`.

        Raises:
            InputError: If inputs to corrupt are not uint8 images, or inputs of the other test set have another shape.
        """
        inputs = test.inputs
        if is_corruption(shift):
            if not (isinstance(inputs, torch.Tensor) and inputs.dtype == torch.uint8 and inputs.ndim == 4):
                raise InputError(
                    f"Expected images of type uint8 for {shift}, got other inputs in {name}.", code="shift_images"
                )
            return Split(shift(inputs), test.labels)
        shifted_inputs = self._load_splits(shift).test.inputs  # without the cache, which keeps the data of the run
        if not isinstance(shifted_inputs, torch.Tensor) or shifted_inputs.shape[1:] != inputs.shape[1:]:
            raise InputError(
                f"Expected inputs of {shift} in the shape of {name}'s inputs. Try another shift.", code="shift_shape"
            )
        # labels of other classes have no meaning here; these examples are only to be detected
        return Split(shifted_inputs, torch.zeros(len(shifted_inputs), dtype=torch.long))


class DataDigest(NamedTuple):
    """Digests of a data set, for its training part and as a whole."""

    train_digest: str
    full_digest: str


def data_digest(splits: Splits) -> DataDigest:
    """Return digests of the training part and of the whole data set, which depend on its values, not on its files.

    A tensor above a gigabyte is digested by evenly spaced rows. Values other than tensors, numbers, texts, arrays,
    sequences, mappings and dataclasses may have an attribute `digest`; otherwise only their type counts.
    """
    # The initial word vectors of a text data set influence the trained network, too
    train_digest = _value_digest([splits.train.inputs, splits.train.labels, list(splits.classes), splits.word_vectors])
    evaluation_sets = [[split.inputs, split.labels] for split in (splits.val, splits.test)]
    full_digest = _value_digest([train_digest, evaluation_sets])  # the training part enters by its digest
    return DataDigest(train_digest, full_digest)


def _value_digest(value: Any) -> str:
    """Return the SHA-256 digest of a value of any type."""
    hasher = hashlib.sha256()
    _update_digest(hasher.update, value)
    return hasher.hexdigest()


def _update_digest(update: Callable[[Any], object], value: Any) -> None:
    """Add a value to a digest, after its type and size, so that values next to each other cannot run together.

    A tensor of more than `MAX_DIGEST_BYTES` adds a sample of evenly spaced rows. `update` adds bytes to the digest.
    """
    update(f"<{type(value).__name__}>".encode())
    if isinstance(value, torch.Tensor):
        update(f"{value.dtype} {tuple(value.shape)}".encode())
        rows = torch.atleast_1d(value.detach())
        step = max(1, math.ceil(rows.nbytes / MAX_DIGEST_BYTES))
        sample = rows[::step].cpu().contiguous()
        update(sample.reshape(-1).view(torch.uint8).numpy().data)  # as bytes, because numpy has no bfloat16
    elif hasattr(value, "digest"):
        _update_digest(update, value.digest() if callable(value.digest) else value.digest)
    elif isinstance(value, Mapping):
        _update_digest(update, list(cast("Mapping[Any, Any]", value).items()))
    elif is_dataclass(value):
        _update_digest(update, [getattr(value, field.name) for field in fields(value)])
    elif isinstance(value, str | bytes | int | float | None):
        update(f"{len(repr(value))}:{value!r}".encode())
    elif hasattr(value, "__array__"):
        _update_digest(update, torch.as_tensor(value.__array__()))
    elif isinstance(value, Sequence):
        update(str(len(cast("Sequence[Any]", value))).encode())
        for item in cast("Sequence[Any]", value):
            _update_digest(update, item)
