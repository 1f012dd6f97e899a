"""The command `contract`: a calibrator, what it was tested on, and what was promised for it, in one file."""

from pathlib import Path
from typing import Annotated, Any

import typer

from calibrant.cli._common import (
    WithOption,
    check_output_paths,
    import_prediction_modules,
    include_sources,
    parse_event,
    print_line,
    print_text,
    show_status,
    source_files,
)
from calibrant.cli._table_options import add_table_options
from calibrant.cli.assess import EventOption


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("contract")(add_table_options(contract_command))


def contract_command(
    calibrator: Annotated[Path, typer.Argument(metavar="CALIBRATOR", help="Saved calibrator, .safetensors.")],
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="Labeled predictions that are new to the network and to the calibrator."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="File to write: .contract.")],
    require: Annotated[
        list[str] | None,
        typer.Option("--require", "-r", metavar="TEXT", help='Requirement: "ece < 0.02". Repeatable; all must hold.'),
    ] = None,
    level: Annotated[
        float, typer.Option(metavar="P", help="Probability that the verdict on a requirement is not wrong.")
    ] = 0.95,
    risk: Annotated[
        float | None,
        typer.Option(metavar="P", help="Certify a threshold above which at most this share is wrong."),
    ] = None,
    delta: Annotated[
        float, typer.Option(metavar="P", help="Probability that the promise of the threshold is broken.")
    ] = 0.1,
    alpha: Annotated[
        float | None,
        typer.Option(metavar="P", help="Fit prediction sets that miss the class with this probability."),
    ] = None,
    score: Annotated[str, typer.Option(metavar="NAME", help="Score of the sets: lac, aps, raps or saps.")] = "lac",
    of: EventOption = None,
    with_: WithOption = None,
    *,
    options: dict[str, Any],
) -> None:
    """Test a calibrator on new predictions, and seal it with what held in one file.

    `check`, `watch` and `apply` take the contract. They refuse one that was changed, or whose parts do not belong
    together.

    calibrant contract calibrator.safetensors test.csv -r "ece < 0.05" --risk 0.05 --alpha 0.1 -o model.contract
    """
    import_prediction_modules()
    from calibrant import calibrators
    from calibrant.assessment import load_checked_calibrator
    from calibrant.deployment import Contract
    from calibrant.io.formats import CONTRACT_SUFFIX
    from calibrant.io.results import check_suffix
    from calibrant.predictions import Predictions

    include_sources(with_)
    check_output_paths(out, inputs=[calibrator, file, *source_files(with_)])
    check_suffix(out, (CONTRACT_SUFFIX,))
    fitted: Any = calibrators.load(calibrator)
    promises: dict[str, Any] = {"risk": risk, "delta": delta, "alpha": alpha, "score": score}
    with show_status() as progress:
        progress(f"reading {file.name}")
        p = Predictions.load(file, **options).reorder_classes(calibrators.origin(calibrator).class_names)
        load_checked_calibrator(calibrator)(p)  # refuses the data of the fit
        progress("testing")
        contract = Contract.create(fitted, p, require=require or (), level=level, of=parse_event(of, p), **promises)
    contract.save(out)
    print_text(str(contract))
    print_line(f"wrote {out}")
