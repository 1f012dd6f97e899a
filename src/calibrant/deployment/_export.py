"""Export calibrators, prediction sets and thresholds to one file that runs without Calibrant."""

import inspect
import pprint
import textwrap
from collections.abc import Iterator
from dataclasses import is_dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from jinja2 import Environment, PackageLoader, StrictUndefined
from torch import Tensor

from calibrant import calibrators
from calibrant._validation import check_range
from calibrant._version import __version__
from calibrant.backend.overlap import hash_keys
from calibrant.calibrators import Auto, learned_fields
from calibrant.decisions import CertifiedThreshold, CrossSets, Sets
from calibrant.fusion import Fusion
from calibrant.io.files import atomic_write, check_suffix, write_text
from calibrant.nn import CalibratedNetwork
from calibrant.predictions import check_is_calibrator
from calibrant.registry import CALIBRATORS, is_built_in
from calibrant.types import InputError

ExportFormat = Literal["numpy", "torch", "onnx"]
EXPORT_FORMATS: dict[ExportFormat, str] = {"numpy": ".py", "torch": ".pt2", "onnx": ".onnx"}  # suffixes
_CAPABILITY_NAMES = {"torch": "torch.export", "onnx": "ONNX"}
_UNUSED_FIELDS = ("certificate", "gain", "gain_error", "gain_low", "left_out", "candidates", "penalty", "count_of_bins")
_LINE_WIDTH = 120


def export(
    calibrator: Any,
    path: str | Path,
    *,
    to: ExportFormat = "numpy",
    num_classes: int | None = None,
    sets: Sets | CrossSets | None = None,
    threshold: CertifiedThreshold | float | None = None,
) -> None:
    """Write a fitted calibrator to one file that runs without Calibrant.

    "numpy" writes a readable .py file that needs numpy alone, for every calibrator of `calibrant.calibrators`, for
    registered dataclasses of your own with a `numpy_map`, for a `Fusion`, and for prediction sets and thresholds, which
    apply to the calibrated logits. "torch" writes a program of
    torch.export (.pt2), "onnx" a graph (.onnx) for those calibrators that support it; both map logits to calibrated
    logits.

    Args:
        calibrator: A fitted calibrator, or a `Fusion`.
        path: The file to write.
        to: "numpy", "torch" or "onnx".
        num_classes: Number of classes, which "torch" and "onnx" need for calibrators of any number of classes.
        sets: Prediction sets, for "numpy": `Sets` of calibrated predictions, or `CrossSets` with calibrators of their
            own.
        threshold: Smallest confidence to act on, for "numpy".

    Raises:
        InputError: If the calibrator cannot be exported to this format, is a map of features such as
            `MultiCalibrated`, or has another number of classes.

    >>> import runpy, tempfile
    >>> path = tempfile.mkdtemp() + "/half.py"
    >>> export(calibrators.Temperature(torch.tensor(2.0)), path)
    >>> runpy.run_path(path)["calibrate"]([[4.0, 0.0]]).tolist()
    [[2.0, 0.0]]
    """
    path = Path(path)
    if to not in get_args(ExportFormat):
        raise InputError(f"Expected a format among {', '.join(get_args(ExportFormat))}, got {to!r}.", code="format")
    check_suffix(path, (EXPORT_FORMATS[to],))
    is_calibrator_alone = sets is None and threshold is None
    if isinstance(calibrator, Fusion):
        if to != "numpy" or not is_calibrator_alone:
            raise InputError("Expected a fusion with to='numpy', without sets and threshold.", code="format")
        write_text(path, fusion_source(calibrator))
        return
    check_is_calibrator(calibrator)
    check_range("num_classes", num_classes, "[2, inf)", 10, code="num_classes")
    k = calibrators.num_classes(calibrator)  # 0: any number
    for name, requested in (("num_classes", num_classes), ("sets", None if sets is None else sets.k)):
        if k and requested not in (None, k):
            raise InputError(f"Expected {name} of the calibrator's {k} classes, got {requested}.", code="num_classes")
    if not isinstance(threshold, CertifiedThreshold):
        check_range("a threshold", threshold, "[0, 1]", 0.9, code="threshold_range")
    if to == "numpy":
        write_text(path, numpy_source(calibrator, sets, threshold))
    elif is_calibrator_alone:
        _export_network(calibrator, path, to, num_classes)
    else:
        raise InputError(f"Expected to='numpy' with sets or a threshold, got {to!r}.", code="format")


def numpy_source(
    calibrator: Any, sets: Sets | CrossSets | None = None, threshold: CertifiedThreshold | float | None = None
) -> str:
    """Return the Python source of a calibrator, and of sets and a threshold, that needs numpy alone.

    Raises:
        InputError: If the calibrator, or one inside it, is not of this package and has no `numpy_map`.
    """
    is_certified = isinstance(threshold, CertifiedThreshold)
    smallest, event = (threshold.threshold, threshold.event) if is_certified else (threshold, None)
    if event not in (None, "top"):  # the exported function compares the largest probability with the threshold
        raise InputError(
            f"Expected a threshold for the top class, got one for the event {event!r}. Try a contract.",
            code="threshold_event",
        )
    fitted, set_fields = serialize(calibrator), None if sets is None else _set_fields(sets)
    class_maps = (_map_source(name) for name in sorted({*_class_names(fitted), *_class_names(set_fields)}))
    return _render(
        "calibrator.py.j2",
        functions="\n\n\n".join([_source_of("calibrant.deployment", "_numpy_maps.py"), *filter(None, class_maps)]),
        fitted=fitted,
        k=calibrators.num_classes(calibrator) or (0 if sets is None else sets.k),
        sets=set_fields,
        is_cross_fitted=isinstance(sets, CrossSets),
        threshold=None if smallest is None else float(smallest),
    )


def fusion_source(fusion: Fusion) -> str:
    """Return the Python source of a fusion, which needs numpy alone."""
    functions = _source_of("calibrant", "_fusion_map.py")
    learned = {key: _to_plain(value) for key, value in fusion.learned.items()}
    return _render("fusion.py.j2", functions=functions, fitted=learned, signals=fusion.signals)


def _source_of(package: str, name: str) -> str:
    """Return the text of a module without its docstring, for a file that must not import this package."""
    return files(package).joinpath(name).read_text("utf-8").partition('"""\n\n')[2].strip()


def _class_names(node: Any) -> Iterator[str]:
    """Yield the class of every calibrator in nested fields, as `serialize` writes them."""
    if isinstance(node, dict):
        yield from [node["class"]] if "class" in node else []
        node = list(node.values())
    if isinstance(node, list):
        for part in node:
            yield from _class_names(part)


def _map_source(name: str) -> str:
    """Return the source of a calibrator's own `numpy_map` with its row of `MAPS`, or "" if it has none.

    Raises:
        InputError: If Python has no source of the map, such as of a class typed into a console.
    """
    function = getattr(CALIBRATORS[name], "numpy_map", None)
    if function is None:
        return ""
    try:
        lines = textwrap.dedent(inspect.getsource(function)).splitlines()
    except OSError:
        raise InputError(
            f"Expected the source of {name}.numpy_map in a file. Try defining the class in a module.",
            code="custom_calibrator",
        ) from None
    source = "\n".join(lines[1:] if lines[0] == "@staticmethod" else lines)
    return f"{source}\n\n\nMAPS[{name!r}] = {function.__name__}"


def _render(template: str, **values: Any) -> str:
    """Return a template of Python source, filled with values."""
    environment = Environment(
        loader=PackageLoader("calibrant.deployment", "."),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["literal"] = _format  # {{ value | literal }} in a template
    return environment.get_template(template).render(**values, version=__version__)


def serialize(calibrator: Any) -> dict[str, Any]:
    """Return the class and the learned fields of a calibrator as numbers, texts and lists.

    Raises:
        InputError: If the calibrator, or one inside it, is not of this package and has no `numpy_map`.
    """
    name = type(calibrator).__name__
    has_map = is_built_in(type(calibrator)) or hasattr(calibrator, "numpy_map")
    if not is_dataclass(calibrator) or CALIBRATORS.get(name) is not type(calibrator) or not has_map:
        raise InputError(
            f"Expected a calibrator of this package, got {name}. "
            "Try registering a dataclass of your own with a static method numpy_map(z, fitted).",
            code="custom_calibrator",
        )
    learned = {key: value for key, value in learned_fields(calibrator).items() if key not in _UNUSED_FIELDS}
    if isinstance(calibrator, Auto):  # whose members and weights are properties
        learned |= {"members": calibrator.members, "weights": calibrator.weights}
    return {"class": name} | {key: _to_plain(value) for key, value in learned.items()}


def _to_plain(value: Any) -> Any:
    """Return arrays and tuples as lists, a calibrator as `serialize` does, and anything else as it is."""
    if isinstance(value, np.ndarray | Tensor):
        return value.tolist()
    if is_dataclass(value) and not isinstance(value, type):
        return serialize(value)
    return [_to_plain(item) for item in value] if isinstance(value, tuple) else value


def _set_fields(sets: Sets | CrossSets) -> dict[str, Any]:
    """Return the fields of prediction sets that the exported numpy functions read."""
    keys = hash_keys((sets.k + 1) // 2).tolist()  # for the hash of a row, one for each pair of logits
    fields = {"score": sets.score, "penalty": sets.penalty, "seed": sets.seed, "keys": keys}
    if isinstance(sets, CrossSets):
        scores = [part.tolist() for part in sets.scores]
        return fields | {"alpha": sets.alpha, "calibrators": list(map(serialize, sets.maps)), "scores": scores}
    return fields | {"by": sets.by, "names": list(sets.names), "thresholds": list(sets.thresholds)}


def _format(value: Any) -> str:
    """Return Python source of a value, in which `inf` and `nan` are names."""
    return pprint.pformat(value, width=_LINE_WIDTH, compact=True, sort_dicts=False)


def _export_network(calibrator: Any, path: Path, to: ExportFormat, num_classes: int | None) -> None:
    """Write a program of torch.export, or an ONNX graph, from logits to calibrated logits.

    `num_classes` is needed for a calibrator of any number of classes.
    """
    name = type(calibrator).__name__
    k = calibrators.num_classes(calibrator) or num_classes  # None, 0: any number
    if _CAPABILITY_NAMES[to] not in calibrators.capabilities(calibrator).exports:
        raise InputError(f"{name} cannot be exported to {to}. Try numpy.", code="not_exportable")
    if getattr(calibrator, "names", ()) and calibrators.capabilities(calibrator).takes_groups:
        raise InputError(
            f"Expected the calibrator of one group, got {name} with groups. Try calibrator.of_group(name), or numpy.",
            code="not_exportable",
        )
    if k is None:
        raise InputError(
            f"Expected the number of classes, as {name} takes any. Try num_classes=10 (--classes 10).",
            code="no_num_classes",
        )
    module = CalibratedNetwork(torch.nn.Identity(), calibrator).eval()
    example = torch.linspace(-1, 1, 2 * k).view(2, k)  # any logits, whose operations are recorded
    shapes: Any = (({0: torch.export.Dim("batch", min=2)},),)  # torch would export a batch of 1 as a constant
    with atomic_write(path) as draft:
        if to == "torch":
            torch.export.save(torch.export.export(module, (example,), dynamic_shapes=shapes), draft)
        else:
            torch.onnx.export(module, (example,), str(draft), dynamo=True, dynamic_shapes=shapes, verbose=False)
