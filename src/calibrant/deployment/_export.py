"""Export calibrators, contracts, prediction sets and thresholds to one file that runs without Calibrant."""

import ast
import inspect
import pprint
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import is_dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from calibrant._core.files import atomic_write, check_suffix, write_text
from calibrant._core.kernels.overlap import hash_keys
from calibrant._core.lazy import LazyModule, import_optional
from calibrant._core.registry import CALIBRATORS, is_built_in
from calibrant._core.text import to_one_line
from calibrant._core.types import Fraction, InputError, NumClasses, check_arguments
from calibrant._core.version import __version__
from calibrant.decisions import CertifiedThreshold, CrossSets, Sets
from calibrant.deployment._contract import Contract
from calibrant.predictions import check_is_calibrator

calibrators: Any = LazyModule("calibrant.calibrators")  # which takes long to load
fusions: Any = LazyModule("calibrant.language_models.fusion")

ExportFormat = Literal["numpy", "torch", "onnx"]
EXPORT_FORMATS: dict[ExportFormat, str] = {"numpy": ".py", "torch": ".pt2", "onnx": ".onnx"}  # suffixes
_CAPABILITY_NAMES = {"torch": "torch.export", "onnx": "ONNX"}
_UNUSED_FIELDS = ("certificate", "gain", "gain_error", "gain_low", "left_out", "candidates", "penalty", "count_of_bins")
_LINE_WIDTH = 120


@check_arguments
def export(
    calibrator: Any,
    path: str | Path,
    *,
    to: ExportFormat | None = None,
    num_classes: NumClasses | None = None,
    sets: Sets | CrossSets | None = None,
    threshold: CertifiedThreshold | Fraction | None = None,
) -> None:
    """Write a fitted calibrator to one file that runs without Calibrant.

    "numpy" writes a readable .py file that needs numpy alone, for every calibrator of `calibrant.calibrators`, for
    registered dataclasses of your own with a `numpy_map`, for a `Fusion`, for a `Contract` with its sets and threshold,
    and for prediction sets and thresholds, which apply to the calibrated logits. Its functions take logits, or
    `from_probs(probs)`, and refuse NaN and probabilities that are given as logits. "torch" writes a program of
    torch.export (.pt2), "onnx" a graph (.onnx) for those calibrators that support it; both map logits to calibrated
    logits.

    Args:
        calibrator: A fitted calibrator, a `Contract`, or a `Fusion`.
        path: The file to write: .py, .pt2 or .onnx.
        to: "numpy", "torch" or "onnx". Default: by the name of the file.
        num_classes: Number of classes, which "torch" and "onnx" need for calibrators of any number of classes.
        sets: Prediction sets, for "numpy": `Sets` of calibrated predictions, or `CrossSets` with calibrators of their
            own.
        threshold: Smallest confidence to act on, for "numpy".

    Raises:
        InputError: If the calibrator cannot be exported to this format, is a map of features such as
            `MultiCalibrated`, or has another number of classes.

    >>> import runpy, tempfile
    >>> path = tempfile.mkdtemp() + "/half.py"
    >>> export(calibrators.Temperature(2.0), path)
    >>> runpy.run_path(path)["calibrate"]([[4.0, 0.0]]).tolist()
    [[2.0, 0.0]]
    """
    path = Path(path)
    to = _export_format(path, to)
    is_whole = isinstance(calibrator, Contract | fusions.Fusion)  # with all its parts
    if is_whole and not (sets is threshold is None):
        raise InputError(
            f"Expected a {type(calibrator).__name__} alone, got sets or a threshold beside it. Try leaving them out.",
            code="format",
        )
    if isinstance(calibrator, fusions.Fusion):
        if to != "numpy":
            raise InputError(f"Expected a fusion with to='numpy', got {to!r}. Try a file .py.", code="format")
        write_text(path, fusion_source(calibrator))
        return
    contract = calibrator if isinstance(calibrator, Contract) else None
    if contract is not None:
        calibrator, sets, threshold = contract.calibrator, contract.sets, contract.threshold
        num_classes = num_classes or contract.k
    check_is_calibrator(calibrator)
    k = calibrators.num_classes(calibrator) or (contract.k if contract else 0)  # 0: any number
    for name, requested in (("num_classes", num_classes), ("sets", None if sets is None else sets.k)):
        if k and requested not in (None, k):
            raise InputError(f"Expected {name} of the calibrator's {k} classes, got {requested}.", code="num_classes")
    if to == "numpy":
        write_text(path, numpy_source(calibrator, sets, threshold, contract))
    elif sets is threshold is None:
        _export_network(calibrator, path, to, num_classes)
    else:
        hint = "contract.calibrator, or a file .py" if contract else "a file .py"
        raise InputError(f"Expected to='numpy' with sets or a threshold, got {to!r}. Try {hint}.", code="format")


def _export_format(path: Path, to: Any) -> ExportFormat:
    """Return the format that is asked for, or that belongs to the suffix of the file.

    Raises:
        InputError: For an unknown format, or another suffix than that of the format.
    """
    if to is None:
        check_suffix(path, EXPORT_FORMATS.values())
        return next(name for name, suffix in EXPORT_FORMATS.items() if suffix == path.suffix)
    export_format: Any = next((name for name in EXPORT_FORMATS if name == to), None)
    if export_format is None:
        raise InputError(
            f"Expected a format among {', '.join(EXPORT_FORMATS)}, got {to!r}. Try leaving it out.", code="format"
        )
    check_suffix(path, (EXPORT_FORMATS[export_format],))
    return export_format


def numpy_source(
    calibrator: Any,
    sets: Sets | CrossSets | None = None,
    threshold: CertifiedThreshold | float | None = None,
    contract: Contract | None = None,
) -> str:
    """Return the Python source of a calibrator, and of sets and a threshold, that needs numpy alone.

    Args:
        calibrator: A fitted calibrator.
        sets: Prediction sets.
        threshold: Smallest confidence to act on.
        contract: The contract that these are parts of, whose names and seal are written beside them.

    Raises:
        InputError: If the calibrator, or one inside it, is not of this package and has no `numpy_map`.
    """
    class_names = contract.class_names if contract else sets.class_names if sets else None
    k = calibrators.num_classes(calibrator) or (contract.k if contract else sets.k if sets else 0)
    event: Any = "top"
    if isinstance(threshold, CertifiedThreshold):
        threshold, event = threshold.threshold, _event_index(threshold.event, class_names)
    fitted, set_fields = serialize(calibrator), None if sets is None else _set_fields(sets)
    modules = (
        "calibrant._core.kernels.bits",
        "calibrant.calibrators.maps",
        "calibrant.decisions.score_map",
        "calibrant.deployment._numpy_functions",
    )
    class_maps = (_map_source(name) for name in sorted({*_class_names(fitted), *_class_names(set_fields)}))
    return _render(
        "calibrator.py.j2",
        functions="\n\n\n".join([*map(_source_of, modules), *filter(None, class_maps)]),
        fitted=fitted,
        k=k,
        class_names=class_names and list(class_names),
        sets=set_fields,
        is_cross_fitted=isinstance(sets, CrossSets),
        threshold=None if threshold is None else float(threshold),
        event=event,
        promises=None if contract is None else {"seal": contract.seal, "requirements": list(contract.requirements)},
    )


def _event_index(event: Any, class_names: Sequence[str] | None) -> Any:
    """Return the event of a threshold, "top" or the index of a class, for logits in the order of the classes.

    Raises:
        InputError: For the name of a class if the order of the classes is unknown.
    """
    if event in (None, "top") or isinstance(event, int):
        return "top" if event is None else event
    if class_names is None or event not in class_names:
        raise InputError(
            f"Expected a threshold for the top class, or with the names of all classes, got one for the event "
            f"{event!r}. Try a contract.",
            code="threshold_event",
        )
    return list(class_names).index(event)


def fusion_source(fusion: Any) -> str:
    """Return the Python source of a fusion, which needs numpy alone."""
    return _render("fusion.py.j2", functions=_source_of("calibrant.language_models._fusion_map"), fitted=fusion.learned)


def _source_of(module: str) -> str:
    """Return the text of a module without its docstring and imports, for a file that must not import this package."""
    package, _, name = module.rpartition(".")
    text = files(package).joinpath(f"{name}.py").read_text("utf-8")
    introduction = [node for node in ast.parse(text).body if isinstance(node, ast.Expr | ast.Import | ast.ImportFrom)]
    return "\n".join(text.splitlines()[introduction[-1].end_lineno :]).strip()


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


@cache
def _templates() -> Environment:
    """Return the templates of Python source, in which `{{ value | literal }}` writes a value."""
    environment = Environment(
        loader=PackageLoader("calibrant.deployment", "."),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["literal"] = _literal
    return environment


def _render(template: str, **values: Any) -> str:
    """Return a template of Python source, filled with values, which reach the source as literals alone.

    Raises:
        InputError: If the source does not compile, such as for calibrators in hundreds of chains.
    """
    source = _templates().get_template(template).render(**values, version=__version__)
    try:
        compile(source, template, "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InputError(
            f"Expected a calibrator that can be written as Python, got one that cannot ({to_one_line(error)}). Try "
            "calibrators.save.",
            code="not_python",
        ) from None
    return source


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
    learned = {key: value for key, value in calibrators.learned_fields(calibrator).items() if key not in _UNUSED_FIELDS}
    if isinstance(calibrator, calibrators.Auto):  # whose members and weights are properties
        auto: Any = calibrator
        learned |= {"members": auto.members, "weights": auto.weights}
    return {"class": name} | {key: _to_plain(value) for key, value in learned.items()}


def _to_plain(value: Any) -> Any:
    """Return a value as Python's own numbers, texts, lists and dictionaries, a calibrator as `serialize` does.

    Raises:
        InputError: For anything else, whose representation may be any text.
    """
    if isinstance(value, np.generic) or hasattr(value, "__array__"):
        return value.tolist()
    if is_dataclass(value) and not isinstance(value, type):
        return serialize(value)
    if isinstance(value, list | tuple):
        return [_to_plain(item) for item in value]
    if isinstance(value, dict):
        return {_to_plain(key): _to_plain(item) for key, item in value.items()}
    for kind in (bool, int, float, str):  # a subclass could represent itself as code
        if isinstance(value, kind):
            return kind(value)
    if value is None:
        return None
    raise InputError(
        f"Expected fields of numbers, texts and arrays, got {type(value).__name__}. Try converting it.",
        code="field_kind",
    )


def _set_fields(sets: Sets | CrossSets) -> dict[str, Any]:
    """Return the fields of prediction sets that the exported numpy functions read."""
    keys = hash_keys((sets.k + 1) // 2).tolist()  # for the hash of a row, one for each pair of logits
    fields = {"score": sets.score, "penalty": sets.penalty, "seed": sets.seed, "keys": keys}
    if isinstance(sets, CrossSets):
        scores = [part.tolist() for part in sets.scores]
        return fields | {"alpha": sets.alpha, "calibrators": list(map(serialize, sets.maps)), "scores": scores}
    return fields | {"by": sets.by, "names": list(sets.names), "thresholds": list(sets.thresholds)}


def _literal(value: Any) -> str:
    """Return the Python literal of a value, in which `inf` and `nan` are names."""
    return pprint.pformat(_to_plain(value), width=_LINE_WIDTH, compact=True, sort_dicts=False)


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
    torch = import_optional("torch", "torch", "This export")
    from calibrant.nn import CalibratedNetwork

    module = CalibratedNetwork(torch.nn.Identity(), calibrator).eval()
    example = torch.linspace(-1, 1, 2 * k).view(2, k)  # any logits, whose operations are recorded
    shapes: Any = (({0: torch.export.Dim("batch", min=2)},),)  # torch would export a batch of 1 as a constant
    with atomic_write(path) as draft:
        if to == "torch":
            torch.export.save(torch.export.export(module, (example,), dynamic_shapes=shapes), draft)
        else:
            torch.onnx.export(module, (example,), str(draft), dynamo=True, dynamic_shapes=shapes, verbose=False)
