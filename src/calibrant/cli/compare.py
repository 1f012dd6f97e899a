"""The commands `compare` and `drift`: two models, or a reference and new data."""

from pathlib import Path
from typing import Annotated, Any

import typer

from calibrant._text import escape_invisible
from calibrant.cli._common import (
    WithOption,
    check_output_paths,
    command_line,
    console,
    import_prediction_modules,
    include_sources,
    parse_event,
    print_line,
    show_status,
    source_files,
    write_text_file,
)
from calibrant.cli._table_options import add_table_options
from calibrant.cli.assess import EventOption, HtmlOption, JsonOption

DIFFERENCE_STATUS = 3  # exit status if there is a difference beyond chance
ByOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="Column of groups, in each of which means are compared too.")
]
LevelOption = Annotated[
    float, typer.Option(metavar="P", help="Probability that anything is called different without reason.")
]
SeedOption = Annotated[int, typer.Option(metavar="N", help="Seed of the permutations.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("compare")(add_table_options(compare_command))
    app.command("drift")(add_table_options(drift_command))


def compare_command(
    old: Annotated[Path, typer.Argument(metavar="OLD", help="Labeled predictions of the old model.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="Labeled predictions of the new model.")],
    by: ByOption = None,
    of: EventOption = None,
    level: LevelOption = 0.05,
    seed: SeedOption = 0,
    html: HtmlOption = None,
    json_: JsonOption = None,
    with_: WithOption = None,
    *,
    options: dict[str, Any],
) -> None:
    """Compare two models, and test what differs beyond chance.

    Predictions are paired by the column id, or by order if all labels agree; otherwise they are two samples.

    The exit status is 3 if anything differs beyond chance.

    calibrant compare old.csv new.csv --html comparison.html
    """
    import_prediction_modules()
    from calibrant.monitoring import compare
    from calibrant.predictions import load_with_ids

    include_sources(with_)
    check_output_paths(html, json_, inputs=[old, new, *source_files(with_)])
    _check_suffix(html)
    options |= {} if by is None else {"group": by}
    with show_status() as progress:
        progress(f"reading {old.name}")
        first, first_ids = load_with_ids(old, **options)
        progress(f"reading {new.name}")
        second, second_ids = load_with_ids(new, **options)
        progress("comparing")
        result = compare(
            first,
            second,
            old_ids=first_ids,
            new_ids=second_ids,
            of=parse_event(of, second),
            by_group=by is not None,
            level=level,
            seed=seed,
        )
    _output_result(result, html, json_)
    if result.differs:
        raise typer.Exit(DIFFERENCE_STATUS)


def drift_command(
    reference: Annotated[Path, typer.Argument(metavar="REFERENCE", help="Labeled predictions of the past.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="New predictions; labels are not needed.")],
    by: ByOption = None,
    of: EventOption = None,
    level: LevelOption = 0.05,
    seed: SeedOption = 0,
    html: HtmlOption = None,
    json_: JsonOption = None,
    with_: WithOption = None,
    *,
    options: dict[str, Any],
) -> None:
    """Find out, without new labels, whether predictions have drifted, and estimate the new accuracy.

    The distributions of confidence and of predicted classes are tested; new class shares are estimated, and tested
    whether they alone explain the change. Accuracy, gap and Brier score are estimated, each with its assumption.

    The exit status is 3 if the predictions have drifted beyond chance.

    calibrant drift reference.csv today.csv --html drift.html
    """
    import_prediction_modules()
    from calibrant.monitoring import drift
    from calibrant.predictions import Predictions, load_unlabeled

    include_sources(with_)
    check_output_paths(html, json_, inputs=[reference, new, *source_files(with_)])
    _check_suffix(html)
    options |= {} if by is None else {"group": by}
    with show_status() as progress:
        progress(f"reading {reference.name}")
        labeled = Predictions.load(reference, **options)
        progress(f"reading {new.name}")
        unlabeled, _ = load_unlabeled(new, **options)
        progress("testing")
        result = drift(labeled, unlabeled, of=parse_event(of, labeled), by_group=by is not None, level=level, seed=seed)
    _output_result(result, html, json_)
    if result.has_drifted:
        raise typer.Exit(DIFFERENCE_STATUS)


def _check_suffix(html: Path | None) -> None:
    from calibrant.types import InputError

    if html is not None and html.suffix != ".html":
        raise InputError(
            f"Expected a file name that ends in .html, got {str(html)!r}. Try {html.stem}.html.", code="suffix"
        )


def _output_result(result: Any, html: Path | None, json_: Path | None) -> None:
    """Print the result, or its JSON alone, and write the files."""
    if html is not None:
        write_text_file(html, result.html(command_line()))
    if str(json_) == "-":
        print(result.json({"command": command_line()}), end="")
        return
    console.print(escape_invisible(str(result), allowed="\n"), markup=False, soft_wrap=True)
    if html is not None:
        print_line(f"wrote {html}")
    if json_ is not None:
        write_text_file(json_, result.json({"command": command_line()}))
        print_line(f"wrote {json_}")
