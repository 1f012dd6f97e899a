"""Shipping: a fitted calibrator as one safetensors file that names its class and fields and holds no code."""

import json
import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from calibrant._core.arrays import is_torch_array, read_safetensors, to_numpy
from calibrant._core.files import apply_umask
from calibrant._core.foreign import parse_json
from calibrant._core.kernels.digests import arrays_digest
from calibrant._core.kernels.overlap import Sketch
from calibrant._core.kernels.roots import Certificate
from calibrant._core.lazy import import_optional
from calibrant._core.registry import CALIBRATORS
from calibrant._core.text import to_one_line
from calibrant._core.types import Calibrator, InputError, prefix_errors
from calibrant.calibrators._auto import Candidate
from calibrant.calibrators._capabilities import num_classes
from calibrant.calibrators._compose import fitting_digests, is_custom_calibrator, learned_fields
from calibrant.calibrators.fields import FittedMap, learned_arrays
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

    Fields of a dataclass, or attributes of any other class, are stored by name: arrays and tensors as such, everything
    else (numbers, texts, tuples, other calibrators, the certificate) as JSON in the metadata. The metadata also hold
    the digests of the fitting data, so that `calibrate` refuses these data after `load`.

    Args:
        calibrator: The fitted calibrator.
        path: The file to write.
        fitted_on: The fitting data. Hashes of up to 1024 of their rows are stored, by which `assess` recognizes a part
            or a superset of them, and the class names, by which it recognizes other classes or another order.

    Raises:
        InputError: for a field that cannot be stored.
    """
    from safetensors import SafetensorError  # only files need this package

    arrays: dict[str, Any] = {}
    encoded = _encode(calibrator, "", arrays)
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
        _write(path, arrays, meta | {"sha256": arrays_digest(meta, arrays)})
        apply_umask(Path(path))
    except (SafetensorError, OSError) as error:
        raise InputError(
            f"Expected a writable path, got {path} ({to_one_line(error)}). Try another folder.", code="not_writable"
        ) from None


def content_digest(value: object) -> str:
    """Return the SHA-256 hex digest of a calibrator, or another value that `save` takes, from its fields."""
    arrays: dict[str, Any] = {}
    encoded = _encode(value, "", arrays)
    return arrays_digest({"content": json.dumps(encoded, sort_keys=True)}, arrays)


def load(path: str | Path, *, extra_classes: Iterable[type] = ()) -> Any:
    """Read a calibrator that `save` wrote. Learned arrays are restored bit for bit, in memory.

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
    >>> save(Temperature(2.0), path)
    >>> load(path)(np.array([[4.0, 0.0]]))
    array([[2., 0.]])
    """
    meta, arrays = _read(Path(path))
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
        value = _decode(description, arrays, custom_classes)
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
        logits = np.linspace(-9, 9, 3)[:, None] * np.arange(k) / k
        groups = getattr(calibrator, "names", ()) or ("",)  # known ones of `GroupCalibrated`, for which "" is a new one
        Predictions(logits, np.zeros(3, dtype=np.int64), groups=[groups[0], groups[-1], ""]).apply(calibrator)
    except Exception as error:  # any failure is the fault of the file
        reason = to_one_line(error)
        raise InputError(
            f"Expected consistent fields of {name}, got fields that fail ({reason}). Try saving it again.",
            code="parts_mismatch",
        ) from None
    return calibrator


# Values to JSON and back: a tensor is {"tensor": key}, an array {"array": key}, a tuple {"tuple": [...]}, and a
# dataclass {"class": ..., "fields": ...}. Learned arrays of this package's calibrators are {"tensor": key} as well, as
# they were tensors in earlier versions


NESTED_CLASSES: dict[str, type] = {"Certificate": Certificate, "Candidate": Candidate}  # parts of calibrators


def _class_name(cls: type) -> str:
    """Return the registered name of a class, the dotted path of any other."""
    if NESTED_CLASSES.get(cls.__name__) is cls or CALIBRATORS.get(cls.__name__) is cls:
        return cls.__name__
    # A user may have registered the class under another name
    names = (name for name in CALIBRATORS if CALIBRATORS[name] is cls)
    return next(names, f"{cls.__module__}.{cls.__qualname__}")


def _encode(value: Any, field_path: str, arrays: dict[str, Any], kind: str = "array") -> Any:
    """Return a value as JSON, and add its arrays to `arrays` under the path of their field, such as ".first.bias".

    An array is of the kind "array", or "tensor" if it is a learned field of a calibrator of this package.
    """
    if is_torch_array(value) or isinstance(value, np.ndarray):
        key = field_path or "value"
        if is_torch_array(value):
            kind, value = "tensor", value.detach().cpu()
        arrays[key] = value if str(value.dtype) == "torch.bfloat16" else np.array(to_numpy(value), order="C")
        return {kind: key}
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}  # JSON has no inf and nan
    if isinstance(value, tuple):
        return {"tuple": [_encode(item, f"{field_path}.{i}", arrays) for i, item in enumerate(value)]}
    if (is_dataclass(value) and not isinstance(value, type)) or is_custom_calibrator(value):
        learned = learned_arrays(value)
        encoded_fields = {
            name: _encode(part, f"{field_path}.{name}", arrays, "tensor" if name in learned else "array")
            for name, part in (learned_fields(value) | learned).items()
        }
        return {"class": _class_name(type(value)), "fields": encoded_fields}
    raise InputError(
        f"Expected tensors, numbers, texts, tuples, calibrators or dataclasses of these, got {type(value).__name__} in "
        f"{field_path.lstrip('.') or 'the calibrator'}. Try converting it to one of these types.",
        code="field_kind",
    )


def _decode(node: Any, arrays: Mapping[str, Any], custom_classes: Mapping[str, type], cls: type = object) -> Any:
    """Return the value that `_encode` wrote as a JSON node of a class. Raise `ValueError` for any other node."""
    match node:
        case {"tensor": str(key)} if not issubclass(cls, FittedMap):
            return import_optional("torch", "torch", f"A file of {cls.__name__}").as_tensor(arrays[key])
        case {"tensor": str(key)} | {"array": str(key)}:
            return to_numpy(arrays[key])
        case {"float": str(text)}:
            return float(text)
        case {"tuple": list(items)}:
            return tuple(_decode(item, arrays, custom_classes, cls) for item in items)
        case {"class": str(name), "fields": dict(encoded_fields)}:
            cls = _find_class(name, custom_classes)
            values = {key: _decode(item, arrays, custom_classes, cls) for key, item in encoded_fields.items()}
            return build_state(cls, values, name) if is_dataclass(cls) else _build_custom(cls, values)
        case None | bool() | int() | float() | str():
            return node
        case _:
            raise ValueError


def _find_class(name: str, custom_classes: Mapping[str, type]) -> type:
    """Return the class of a calibrator, or of a part of one, by its name in the file.

    `custom_classes` may be built although they are not registered.
    """
    cls = custom_classes.get(name) or NESTED_CLASSES.get(name) or CALIBRATORS.get(name)
    if not isinstance(cls, type):  # unknown, or a fit function
        # --with is the option of commands that loads a user's file, which may register the class
        hint = "--with its file, or upgrading calibrant"
        if "." in name:  # a class that was not registered when it was saved
            hint = f"load(path, extra_classes=[{name.rpartition('.')[2]}]), or registering it (--with its file)"
        raise InputError(f"Expected a known class, got {name!r}. Try {hint}.", code="unknown_class")
    return cls


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


def _write(path: str | Path, arrays: dict[str, Any], metadata: dict[str, str]) -> None:
    """Write arrays and metadata. Tensors of bfloat16, which numpy lacks, need torch."""
    from safetensors.numpy import save_file

    if any(map(is_torch_array, arrays.values())):
        from safetensors.torch import save_file  # pyright: ignore

        torch: Any = sys.modules["torch"]
        arrays = {key: torch.as_tensor(value) for key, value in arrays.items()}
    save_file(arrays, path, metadata)


def _read(path: Path) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the metadata and arrays of a file, after checking its format, version and checksum."""
    with prefix_errors(f"{path}"):
        arrays, meta = read_safetensors(path, "np")
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
    if meta.keys() != keys or stored_checksum != arrays_digest(meta, arrays):
        raise InputError(
            f"Expected the checksum in {path}, got another: the file was damaged or changed. Try saving it again.",
            code="checksum",
        )
    return meta, arrays
