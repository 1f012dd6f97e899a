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

from calibrant.lab.data import Splits
from calibrant.types import InputError

RECORD_FILE = "run.json"
RECORD_KEYS = "id", "run", "data", "learned", "facts", "files"
NETWORK_FILE = "network.safetensors"
UNREADABLE_ERRNOS = {
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EIO,
    errno.ELOOP,
}  # what fails by these is damaged
MAX_DIGEST_BYTES = 1 << 30  # bytes of a tensor from which only evenly spaced rows of about so many are looked at


class DamagedError(InputError):
    """A file in a store that is not what was written there."""

    def __init__(self, message: str = "", *, code: str = "damaged") -> None:
        super().__init__(message, code=code)


def sha256_hex(content: bytes) -> str:
    """Return the SHA-256 of bytes: about a second per gigabyte."""
    return hashlib.sha256(content).hexdigest()


# A finished run


def seal_record(record: Mapping[str, Any]) -> str:
    """Write a record as JSON that holds its own digest."""
    return json.dumps({**record, "seal": _record_digest(record)}, indent=1)


def read_record(folder: Path, name: str = "") -> dict[str, Any]:
    """Read the record of a run's folder, which has the run's name if not said.

    Raises `Damaged` if it is not there, is not what was written, or is another run's.
    """
    try:
        record: Any = json.loads(_read_bytes(folder / RECORD_FILE))
    except DamagedError:
        raise
    except (ValueError, RecursionError):
        raise DamagedError(f"{RECORD_FILE} is not JSON") from None
    if not isinstance(record, dict) or cast("dict[str, Any]", record).pop("seal", "") != _record_digest(record):
        raise DamagedError(f"{RECORD_FILE} is not what was written")
    if missing := set(RECORD_KEYS) - set(cast("dict[str, Any]", record)):
        raise DamagedError(f"{RECORD_FILE} has no {min(missing)!r}")
    if record["id"] != (name or folder.name):
        raise DamagedError(f"it is run {record['id']}")
    return cast("dict[str, Any]", record)


def read_run_file(folder: Path, record: Mapping[str, Any], name: str) -> bytes:
    """Read a file of a run's folder. Raises `Damaged` if it is not what was written."""
    data = _read_bytes(folder / name)
    if sha256_hex(data) != record["files"].get(name):
        raise DamagedError(f"{name} is not what was written")
    return data


def find_damage(folder: Path, name: str = "") -> str:
    """Say what is wrong with a run's folder, reading all of it; nothing if it is whole.

    Its network, which no table needs, is looked at where it is used.
    """
    try:
        record = read_record(folder, name)
        for file in record["files"].keys() - {NETWORK_FILE}:
            read_run_file(folder, record, file)
    except DamagedError as error:
        return str(error)
    return ""


def _read_bytes(path: Path) -> bytes:
    try:
        if path.exists() and not path.is_file():  # nor a pipe, which one would wait for
            raise DamagedError(f"{path.name} is not a file")
        return path.read_bytes()
    except OSError as error:
        if error.errno not in UNREADABLE_ERRNOS:
            raise
        raise DamagedError(f"{path.name} cannot be read ({error.strerror})") from None


def _record_digest(record: Any) -> str:
    normalized = json.loads(json.dumps(record))  # keys as texts, before they are sorted
    return sha256_hex(json.dumps(normalized, sort_keys=True).encode())


# Data


@dataclass(frozen=True)
class DataDigest:
    """The digests of a data set: of what a network learns from, and of all of it."""

    train_digest: str
    full_digest: str


def data_digest(splits: Splits) -> DataDigest:
    """Return the digests of all that a network learns from and is judged on, wherever it was read from.

    Of inputs that hold more than a gigabyte, evenly spaced rows of about so much are looked at. What is no tensor,
    number, text, array, sequence, mapping or dataclass may give a `digest` of its own; else only its type counts.
    """
    train_digest = _value_digest([splits.train.inputs, splits.train.labels, list(splits.classes), splits.vectors])
    evaluation_sets = [[split.inputs, split.labels] for split in (splits.val, splits.test)]
    return DataDigest(train_digest, _value_digest([train_digest, evaluation_sets]))


def _value_digest(value: Any) -> str:
    hasher = hashlib.sha256()
    _update_digest(hasher.update, value)
    return hasher.hexdigest()


def _update_digest(update: Callable[[Any], object], value: Any) -> None:
    """Add a value to a digest, its kind and size first: what differs cannot look alike."""
    update(f"<{type(value).__name__}>".encode())
    if isinstance(value, torch.Tensor):
        step = max(1, math.ceil(value.numel() * value.element_size() / MAX_DIGEST_BYTES)) if value.ndim else 1
        update(f"{value.dtype} {tuple(value.shape)}".encode())
        part = value.detach()[::step] if value.ndim else value.detach()
        update(part.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
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
