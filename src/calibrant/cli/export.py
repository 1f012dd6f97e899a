"""The command `export`: a fitted calibrator as one file that runs without Calibrant."""

from pathlib import Path
from typing import Annotated, Any

import typer

from calibrant.cli._common import check_output_paths, import_prediction_modules, print_line


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("export")(export_command)


def export_command(
    calibrator: Annotated[Path, typer.Argument(metavar="CALIBRATOR", help="Saved calibrator, .safetensors.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="File to write: .py, .pt2 or .onnx.")],
    to: Annotated[
        str | None, typer.Option(metavar="FORMAT", help="numpy, torch or onnx. Default: by the name of the file.")
    ] = None,
    classes: Annotated[
        int | None, typer.Option(metavar="N", min=2, help="Number of classes, for calibrators that take any.")
    ] = None,
    sets: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Prediction sets (.safetensors) to put into a .py file.")
    ] = None,
    threshold: Annotated[
        float | None, typer.Option(metavar="P", min=0, max=1, help="Smallest confidence to act on, for a .py file.")
    ] = None,
) -> None:
    """Export a saved calibrator to one file that runs without Calibrant.

    A .py file is readable and needs numpy alone; a .pt2 file needs torch, an .onnx file onnxruntime.

    calibrant export calibrator.safetensors -o calibrator.py
    """
    import_prediction_modules()
    from calibrant import calibrators
    from calibrant.decisions import Sets
    from calibrant.deployment import EXPORT_FORMATS, export
    from calibrant.types import InputError

    check_output_paths(out, inputs=[calibrator, *([] if sets is None else [sets])])
    by_suffix: dict[str, Any] = {suffix: name for name, suffix in EXPORT_FORMATS.items()}
    if to is None and out.suffix not in by_suffix:
        raise InputError(
            f"Expected a file name that ends in {', '.join(by_suffix)}, got {str(out)!r}. Try {out.stem}.py.",
            code="suffix",
        )
    selected: Any = to or by_suffix[out.suffix]
    if selected not in EXPORT_FORMATS:
        raise InputError(f"Expected a format among {', '.join(EXPORT_FORMATS)}, got {to!r}.", code="format")
    fitted = calibrators.load(calibrator)
    loaded_sets = None if sets is None else Sets.load(sets)
    export(fitted, out, to=selected, num_classes=classes, sets=loaded_sets, threshold=threshold)
    print_line(f"wrote {out}")
