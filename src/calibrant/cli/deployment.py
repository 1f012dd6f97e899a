"""The commands `contract` and `export`: a calibrator with its promises, and one that runs without Calibrant."""

from pathlib import Path
from typing import Any

from typer import Argument, Option

from calibrant._core.arguments import Fraction, NumClasses
from calibrant._core.errors import InputError
from calibrant.cli._common import (
    EVENT_OPTION,
    check_output_paths,
    option_limits,
    parse_event,
    print_input_notes,
    print_line,
    print_text,
    show_status,
)


def contract_command(
    calibrator: Path = Argument(..., metavar="CALIBRATOR", help="Saved calibrator, .safetensors."),
    file: Path = Argument(
        ..., metavar="FILE", help="Labeled predictions that are new to the network and to the calibrator."
    ),
    out: Path = Option(..., "--out", "-o", metavar="FILE", help="File to write: .contract."),
    require: list[str] | None = Option(
        None, "--require", "-r", metavar="TEXT", help='Requirement: "ece < 0.02". Repeatable; all must hold.'
    ),
    level: float = Option(0.95, metavar="P", help="Probability that the verdict on a requirement is not wrong."),
    risk: float | None = Option(None, metavar="P", help="Certify a threshold above which at most this share is wrong."),
    delta: float | None = Option(
        None, metavar="P", help="Probability that the promise of the threshold is broken. Default: 0.1."
    ),
    alpha: float | None = Option(
        None, metavar="P", help="Fit prediction sets that miss the class with this probability."
    ),
    score: str | None = Option(None, metavar="NAME", help="Score of the sets: lac (default), aps, raps or saps."),
    of: str | None = EVENT_OPTION,
    *,
    options: dict[str, Any],
) -> None:
    """Test a calibrator on new predictions, and seal it with what held in one file.

    `check`, `watch` and `apply` take the contract. They refuse one that was changed, or whose parts do not belong
    together.

    calibrant contract calibrator.safetensors test.csv -r "ece < 0.05" --risk 0.05 --alpha 0.1 -o model.contract
    """
    from calibrant import calibrators
    from calibrant.assessment import load_checked_calibrator
    from calibrant.deployment import Contract
    from calibrant.io.formats import CONTRACT_SUFFIX
    from calibrant.predictions import Predictions

    check_output_paths(out, inputs=[calibrator, file], suffixes={out: (CONTRACT_SUFFIX,)})
    fitted: Any = calibrators.load(calibrator)
    promises: dict[str, Any] = {"risk": risk, "delta": delta, "alpha": alpha, "score": score}
    promises = {name: value for name, value in promises.items() if value is not None}
    for option, needed in (("delta", "risk"), ("score", "alpha")):
        if option in promises and needed not in promises:
            raise InputError(f"Expected --{needed} with --{option}. Try --{needed} 0.1.", code="option_alone")
    with show_status() as progress:
        progress(f"reading {file.name}")
        p = Predictions.load(file, **options).reorder_classes(calibrators.origin(calibrator).class_names)
        load_checked_calibrator(calibrator)(p)  # refuses the data of the fit
        print_input_notes([(file, p)])
        progress("testing")
        contract = Contract.create(fitted, p, require=require or (), level=level, of=parse_event(of, p), **promises)
    contract.save(out)
    print_text(str(contract))
    print_line(f"wrote {out}")


def export_command(
    calibrator: Path = Argument(
        ..., metavar="CALIBRATOR", help="Saved calibrator or fusion, .safetensors, or a .contract."
    ),
    out: Path = Option(..., "--out", "-o", metavar="FILE", help="File to write: .py, .pt2 or .onnx."),
    to: str | None = Option(None, metavar="FORMAT", help="numpy, torch or onnx. Default: by the name of the file."),
    classes: int | None = Option(
        None, metavar="N", help="Number of classes, for calibrators that take any.", **option_limits(NumClasses)
    ),
    sets: Path | None = Option(None, metavar="FILE", help="Prediction sets (.safetensors) to put into a .py file."),
    threshold: float | None = Option(
        None, metavar="P", help="Smallest confidence to act on, for a .py file.", **option_limits(Fraction)
    ),
) -> None:
    """Export a saved calibrator to one file that runs without Calibrant.

    A .py file is readable and needs numpy alone; a .pt2 file needs torch, an .onnx file onnxruntime.

    calibrant export calibrator.safetensors -o calibrator.py
    """
    from calibrant import calibrators
    from calibrant.decisions import Sets
    from calibrant.deployment import Contract, export
    from calibrant.language_models.fusion import Fusion

    check_output_paths(out, inputs=[calibrator, sets])
    loaders = {f"{cls.__module__}.{cls.__qualname__}": cls.load for cls in (Contract, Fusion)}
    fitted = loaders.get(calibrators.origin(calibrator).calibrator, calibrators.load)(calibrator)
    fitted_sets = None if sets is None else Sets.load(sets)
    export_format: Any = to
    export(fitted, out, to=export_format, num_classes=classes, sets=fitted_sets, threshold=threshold)
    print_line(f"wrote {out}")
