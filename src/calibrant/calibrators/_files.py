"""Shipping: a fitted calibrator as one safetensors file that names its class and fields and holds no code."""

import json
import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant._core.files import apply_umask
from calibrant._core.foreign import parse_json
from calibrant._core.kernels.digests import arrays_digest
from calibrant._core.kernels.overlap import Sketch
from calibrant._core.kernels.roots import Certificate
from calibrant._core.registry import CALIBRATORS
from calibrant._core.tensors import read_tensors
from calibrant._core.text import to_one_line
from calibrant._core.types import Calibrator, InputError, prefix_errors
from calibrant.calibrators._auto import Candidate
from calibrant.calibrators._capabilities import num_classes
from calibrant.calibrators._compose import fitting_digests, is_custom_calibrator, learned_fields
from calibrant.io.formats import CALIBRATOR_FORMAT
from calibrant.predictions import Predictions
from calibrant.predictions.validation.states import build_state, refuse_malformed

VERSION = 5
METADATA_KEYS = {"format", "version", "calibrant", "fitted_on", "calibrator"}
KEY_VERSIONS = {"rows": 3, "class_names": 4}  # version of the format that added each key
MALFORMED = "Expected a calibrator, got a malformed description. Try saving it again."
MAX_ROW_HASHES = 1024  # of the fitting data in a file: 11 kB


@dataclass(frozen=True)
class Origin:
    """The metadata of a calibrator's file."""

    calibrator: str  # name of the class
    fitted_on: tuple[str, ...]  # digests of the fitting data
    calibrant: str  # version that wrote the file
    version: int  # of the format
    rows: Sketch | None = None  # of the fitting data, if they were given to `save`
    class_names: tuple[str, ...] | None = None  # of the fitting data, in the order of the columns


def save(calibrator: object, path: str | Path, *, fitted_on: Predictions | None = None) -> None:
    """Write a fitted calibrator to a .safetensors file: class name, learned fields, versions and checksum.

    Fields of a dataclass, or attributes of any other class, are stored by name: tensors as tensors, everything else
    (numbers, texts, tuples, other calibrators, the certificate) as JSON in the metadata. The metadata also hold the
    digests of the fitting data, so that `calibrate` refuses these data after `load`.

    Args:
        calibrator: The fitted calibrator.
        path: The file to write.
        fitted_on: The fitting data. Hashes of up to 1024 of their rows are stored, by which `assess` recognizes a part
            or a superset of them, and the class names, by which it recognizes other classes or another order.

    Raises:
        InputError: for a field that cannot be stored.
    """
    from safetensors import SafetensorError  # only files need this package
    from safetensors.torch import save_file

    tensors: dict[str, Tensor] = {}
    encoded = _encode(calibrator, "", tensors)
    digests, rows, class_names = fitting_digests(calibrator), "", ""
    if fitted_on:
        digests.add(fitted_on.digest)
        rows = Sketch.from_hashes(fitted_on.row_hashes).thin_to_size(MAX_ROW_HASHES).text
        class_names = json.dumps(fitted_on.class_names) if fitted_on.class_names else ""
    meta = {
        "format": CALIBRATOR_FORMAT,
        "version": str(VERSION),
        "calibrant": sys.modules["calibrant"].__version__,
        "fitted_on": " ".join(sorted(digests)),
        "rows": rows,
        "class_names": class_names,
        "calibrator": json.dumps(encoded, sort_keys=True, allow_nan=False),
    }
    try:
        save_file(tensors, path, meta | {"sha256": arrays_digest(meta, tensors)})
        apply_umask(Path(path))
    except (SafetensorError, OSError) as error:
        raise InputError(
            f"Expected a writable path, got {path} ({to_one_line(error)}). Try another folder.", code="not_writable"
        ) from None


def content_digest(value: object) -> str:
    """Return the SHA-256 hex digest of a calibrator, or another value that `save` takes, from its fields."""
    tensors: dict[str, Tensor] = {}
    encoded = _encode(value, "", tensors)
    return arrays_digest({"content": json.dumps(encoded, sort_keys=True)}, tensors)


def load(path: str | Path, *, extra_classes: Iterable[type] = ()) -> Any:
    """Read a calibrator that `save` wrote. Learned tensors are restored bit for bit, on the CPU.

    Builds registered calibrators only (your own by `calibrators.register`) and `extra_classes`: no name in a file makes
    Python import or run anything. Fields must have the declared shapes and ranges.

    Args:
        path: The file to read.
        extra_classes: Classes that may be built although they are not registered.

    Raises:
        InputError: for a file that is not a calibrator's, was changed after it was written, has a later format, or
            names an unknown class.

    >>> import tempfile
    >>> from calibrant.calibrators import Temperature, load, save
    >>> path = tempfile.mkdtemp() + "/t.safetensors"
    >>> save(Temperature(torch.tensor(2.0)), path)
    >>> load(path)(torch.tensor([[4.0, 0.0]]))
    tensor([[2., 0.]])
    """
    meta, tensors = _read(Path(path))
    custom_classes = {_class_name(cls): cls for cls in extra_classes}
    with prefix_errors(f"{path}"), refuse_malformed(MALFORMED):
        description = _description(meta)
        class_name = description["class"]
        if class_name.startswith("calibrant.") and class_name not in custom_classes:  # calibrators have no dotted path
            kind = class_name.rpartition(".")[2]
            raise InputError(
                f"Expected a calibrator, got a file of {kind}.save. Try {kind}.load, or another file.",
                code="not_a_calibrator",
            )
        value = _decode(description, tensors, custom_classes)
        # An extra class need not be a calibrator, such as the `Fusion` of `load_instance`
        return value if type(value) in custom_classes.values() else _check_applies(value)


def load_instance(path: str | Path, cls: type, extra_classes: Iterable[type] = ()) -> Any:
    """Read an object that is not a calibrator, such as a `Fusion`, from a file that `save` wrote.

    Args:
        path: The file to read.
        cls: The class of the object, which has a property `is_consistent`.
        extra_classes: Classes of the parts of the object.

    Raises:
        InputError: As `load` does; for an instance of another class, or one whose parts do not fit together.
    """
    loaded = load(path, extra_classes=[cls, *extra_classes])
    with prefix_errors(f"{path}"), refuse_malformed(MALFORMED):
        if not isinstance(loaded, cls) or not loaded.is_consistent:
            raise InputError(f"Expected a file of {cls.__name__}.save, got another file.", code="file_content")
    return loaded


def origin(path: str | Path) -> Origin:
    """Read the metadata of a calibrator's file without building the calibrator."""
    meta, _ = _read(Path(path))
    with prefix_errors(f"{path}"), refuse_malformed(MALFORMED):
        name = _description(meta)["class"]
        rows = Sketch.from_text(meta["rows"]) if meta.get("rows") else None
        names = tuple(parse_json(meta["class_names"], [str])) if meta.get("class_names") else None
    return Origin(name, tuple(meta["fitted_on"].split()), meta["calibrant"], int(meta["version"]), rows, names)


def _description(meta: Mapping[str, str]) -> dict[str, Any]:
    """Return the class name and fields of the calibrator in a file's metadata. Raises `ValueError` for other JSON."""
    match parse_json(meta["calibrator"]):
        case {"class": str(), "fields": dict()} as node:
            return node
        case _:
            raise ValueError


def _check_applies(calibrator: Any) -> Any:
    """Return a loaded calibrator. If it belongs to this package, check first that it maps three rows of logits.

    Fields that are valid on their own but do not fit together make this check fail.
    """
    if not isinstance(calibrator, Calibrator) or not type(calibrator).__module__.startswith("calibrant."):
        return calibrator
    name = type(calibrator).__name__
    try:
        k = num_classes(calibrator) or 3  # any number, if it accepts all
        logits = torch.linspace(-9, 9, 3, dtype=torch.float64)[:, None] * torch.arange(k, dtype=torch.float64) / k
        groups = getattr(calibrator, "names", ()) or ("",)  # known ones of `GroupCalibrated`, for which "" is a new one
        Predictions(logits, torch.zeros(3, dtype=torch.int64), groups=[groups[0], groups[-1], ""]).apply(calibrator)
    except Exception as error:  # any failure is the fault of the file
        reason = to_one_line(error)
        raise InputError(
            f"Expected consistent fields of {name}, got fields that fail ({reason}). Try saving it again.",
            code="parts_mismatch",
        ) from None
    return calibrator


# Values to JSON and back: a tensor is {"tensor": key}, an array {"array": key}, a tuple {"tuple": [...]}, and a
# dataclass {"class": ..., "fields": ...}


NESTED_CLASSES: dict[str, type] = {"Certificate": Certificate, "Candidate": Candidate}  # parts of calibrators


def _class_name(cls: type) -> str:
    """Return the registered name of a class, the dotted path of any other."""
    if NESTED_CLASSES.get(cls.__name__) is cls or CALIBRATORS.get(cls.__name__) is cls:
        return cls.__name__
    # A user may have registered the class under another name
    names = (name for name in CALIBRATORS if CALIBRATORS[name] is cls)
    return next(names, f"{cls.__module__}.{cls.__qualname__}")


def _encode(value: Any, field_path: str, tensors: dict[str, Tensor]) -> Any:
    """Return a value as JSON, and add its tensors to `tensors` under the path of their field, such as ".first.bias"."""
    if isinstance(value, Tensor):
        key = field_path or "value"
        # safetensors takes only contiguous tensors that share no memory
        tensors[key] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
        return {"tensor": key}
    if isinstance(value, np.ndarray):
        key = _encode(torch.from_numpy(value), field_path, tensors)["tensor"]
        return {"array": key}
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}  # JSON has no inf and nan
    if isinstance(value, tuple):
        return {"tuple": [_encode(item, f"{field_path}.{i}", tensors) for i, item in enumerate(value)]}
    if (is_dataclass(value) and not isinstance(value, type)) or is_custom_calibrator(value):
        encoded_fields = {
            name: _encode(part, f"{field_path}.{name}", tensors) for name, part in learned_fields(value).items()
        }
        return {"class": _class_name(type(value)), "fields": encoded_fields}
    raise InputError(
        f"Expected tensors, numbers, texts, tuples, calibrators or dataclasses of these, got {type(value).__name__} in "
        f"{field_path.lstrip('.') or 'the calibrator'}. Try converting it to one of these types.",
        code="field_kind",
    )


def _decode(node: Any, tensors: Mapping[str, Tensor], custom_classes: Mapping[str, type]) -> Any:
    """Return the value that `_encode` wrote as a JSON node. Raise `ValueError` for any other node."""
    match node:
        case {"tensor": str(key)}:
            return tensors[key]
        case {"array": str(key)}:
            return tensors[key].numpy()
        case {"float": str(text)}:
            return float(text)
        case {"tuple": list(items)}:
            return tuple(_decode(item, tensors, custom_classes) for item in items)
        case {"class": str(name), "fields": dict(encoded_fields)}:
            values = {key: _decode(item, tensors, custom_classes) for key, item in encoded_fields.items()}
            return _build(name, values, custom_classes)
        case None | bool() | int() | float() | str():
            return node
        case _:
            raise ValueError


def _build(name: str, values: Mapping[str, Any], custom_classes: Mapping[str, type]) -> Any:
    """Build a calibrator, or a part of one, from its fields, after checking their names, types, shapes and ranges.

    Args:
        name: Class name in the file.
        values: Decoded fields.
        custom_classes: Classes that may be built although they are not registered, by name.
    """
    cls = custom_classes.get(name) or NESTED_CLASSES.get(name) or CALIBRATORS.get(name)
    if not isinstance(cls, type):  # unknown, or a fit function
        # --with is the option of commands that loads a user's file, which may register the class
        hint = "--with its file, or upgrading calibrant"
        if "." in name:  # a class that was not registered when it was saved
            hint = f"load(path, extra_classes=[{name.rpartition('.')[2]}]), or registering it (--with its file)"
        raise InputError(f"Expected a known class, got {name!r}. Try {hint}.", code="unknown_class")
    if not is_dataclass(cls):
        return _build_custom(cls, values)
    return build_state(cls, values, name)


def _build_custom(cls: type, values: Mapping[str, Any]) -> Any:
    """Build a calibrator that is not a dataclass by setting attributes, without running its code.

    Raise `ValueError` for a name that is no attribute, or is Python's own.
    """
    if not all(key.isidentifier() and not key.startswith("__") for key in values):
        raise ValueError
    calibrator = object.__new__(cls)
    vars(calibrator).update(values)
    return calibrator


# The file


def _read(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Return the metadata and tensors of a file, after checking its format, version and checksum."""
    with prefix_errors(f"{path}"):
        tensors, meta = read_tensors(path)
    version = meta.get("version", "")
    if meta.get("format") != CALIBRATOR_FORMAT or not (version.isascii() and version.isdigit() and len(version) < 10):
        raise InputError(
            f"Expected a calibrator's file, got another safetensors file, {path}. Try a file of calibrators.save.",
            code="not_a_calibrator",
        )
    if int(version) > VERSION:
        raise InputError(
            f"Expected a format up to {VERSION}, got format {version} by calibrant {meta.get('calibrant')} in {path}. "
            "Try upgrading calibrant.",
            code="newer_format",
        )
    stored_checksum = meta.pop("sha256", "")  # the checksum covers the other keys
    keys = METADATA_KEYS | {key for key, since in KEY_VERSIONS.items() if int(version) >= since}
    if meta.keys() != keys or stored_checksum != arrays_digest(meta, tensors):
        raise InputError(
            f"Expected the checksum in {path}, got another: the file was damaged or changed. Try saving it again.",
            code="checksum",
        )
    return meta, tensors
