"""What was written is what is read: digests of a finished run's files and record, and of the data it was trained on."""

import errno
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, cast

import torch

from calibrant.data import Splits
from calibrant.types import InputError

RECORD = "run.json"
KEYS = "id", "run", "data", "learned", "facts", "files"
NETWORK = "network.safetensors"
LOST = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EIO, errno.ELOOP}  # what fails by these is damaged
LARGE = 1 << 30  # bytes of a tensor from which only evenly spaced rows of about so many are looked at


class Damaged(InputError):
    """A file in a store that is not what was written there."""

    def __init__(self, message: str = "", *, code: str = "damaged") -> None:
        super().__init__(message, code=code)


def digest(content: bytes) -> str:
    """Return the SHA-256 of bytes: about a second per gigabyte."""
    return hashlib.sha256(content).hexdigest()


# A finished run


def sealed(record: Mapping[str, Any]) -> str:
    """Write a record as JSON that holds its own digest."""
    return json.dumps({**record, "seal": _seal(record)}, indent=1)


def opened(folder: Path, name: str = "") -> dict[str, Any]:
    """Read the record of a run's folder, which has the run's name if not said.

    Raises `Damaged` if it is not there, is not what was written, or is another run's.
    """
    try:
        record: Any = json.loads(_read(folder / RECORD))
    except Damaged:
        raise
    except (ValueError, RecursionError):
        raise Damaged(f"{RECORD} is not JSON") from None
    if not isinstance(record, dict) or cast("dict[str, Any]", record).pop("seal", "") != _seal(record):
        raise Damaged(f"{RECORD} is not what was written")
    if missing := set(KEYS) - set(cast("dict[str, Any]", record)):
        raise Damaged(f"{RECORD} has no {min(missing)!r}")
    if record["id"] != (name or folder.name):
        raise Damaged(f"it is run {record['id']}")
    return cast("dict[str, Any]", record)


def content(folder: Path, record: Mapping[str, Any], name: str) -> bytes:
    """Read a file of a run's folder. Raises `Damaged` if it is not what was written."""
    found = _read(folder / name)
    if digest(found) != record["files"].get(name):
        raise Damaged(f"{name} is not what was written")
    return found


def problem(folder: Path, name: str = "") -> str:
    """Say what is wrong with a run's folder, reading all of it; nothing if it is whole.

    Its network, which no table needs, is looked at where it is used.
    """
    try:
        record = opened(folder, name)
        for file in record["files"].keys() - {NETWORK}:
            content(folder, record, file)
    except Damaged as error:
        return str(error)
    return ""


def _read(path: Path) -> bytes:
    try:
        if path.exists() and not path.is_file():  # nor a pipe, which one would wait for
            raise Damaged(f"{path.name} is not a file")
        return path.read_bytes()
    except OSError as error:
        if error.errno not in LOST:
            raise
        raise Damaged(f"{path.name} cannot be read ({error.strerror})") from None


def _seal(record: Any) -> str:
    plain = json.loads(json.dumps(record))  # keys as texts, before they are sorted
    return digest(json.dumps(plain, sort_keys=True).encode())


# Data


@dataclass(frozen=True)
class DataDigest:
    """The digests of a data set: of what a network learns from, and of all of it."""

    learned: str
    whole: str


def data_digest(splits: Splits) -> DataDigest:
    """Return the digests of all that a network learns from and is judged on, wherever it was read from.

    Of inputs that hold more than a gigabyte, evenly spaced rows of about so much are looked at. What is no tensor,
    number, text, array, sequence, mapping or dataclass may give a `digest` of its own; else only its type counts.
    """
    learned = _digest_of([splits.train.inputs, splits.train.labels, list(splits.classes), splits.vectors])
    judged = [[split.inputs, split.labels] for split in (splits.val, splits.test)]
    return DataDigest(learned, _digest_of([learned, judged]))


def _digest_of(value: Any) -> str:
    found = hashlib.sha256()
    _walk(found.update, value)
    return found.hexdigest()


def _walk(add: Callable[[Any], object], value: Any) -> None:
    """Add a value to a digest, its kind and size first: what differs cannot look alike."""
    add(f"<{type(value).__name__}>".encode())
    if isinstance(value, torch.Tensor):
        step = max(1, math.ceil(value.numel() * value.element_size() / LARGE)) if value.ndim else 1
        add(f"{value.dtype} {tuple(value.shape)}".encode())
        part = value.detach()[::step] if value.ndim else value.detach()
        add(part.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    elif hasattr(value, "digest"):
        _walk(add, value.digest() if callable(value.digest) else value.digest)
    elif isinstance(value, Mapping):
        _walk(add, list(cast("Mapping[Any, Any]", value).items()))
    elif is_dataclass(value):
        _walk(add, [getattr(value, field.name) for field in fields(value)])
    elif isinstance(value, str | bytes | int | float | None):
        add(f"{len(repr(value))}:{value!r}".encode())
    elif hasattr(value, "__array__"):
        _walk(add, torch.as_tensor(value.__array__()))
    elif isinstance(value, Sequence):
        add(str(len(cast("Sequence[Any]", value))).encode())
        for item in cast("Sequence[Any]", value):
            _walk(add, item)
