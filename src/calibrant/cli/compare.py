"""The commands `compare` and `drift`: two models, or a reference and new data."""

from pathlib import Path
from typing import Annotated, Any

import typer

from calibrant.cli._common import (
    WithOption,
    check_output_paths,
    command_line,
    import_prediction_modules,
    include_sources,
    output_result,
    parse_event,
    print_text,
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
    from calibrant.io.results import check_suffix
    from calibrant.monitoring import compare
    from calibrant.predictions import load_with_ids

    include_sources(with_)
    check_output_paths(html, json_, inputs=[old, new, *source_files(with_)])
    if html is not None:
        check_suffix(html, (".html",))
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
    _output_page(result, html, json_)
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
    from calibrant.io.results import check_suffix
    from calibrant.monitoring import drift
    from calibrant.predictions import Predictions, load_unlabeled

    include_sources(with_)
    check_output_paths(html, json_, inputs=[reference, new, *source_files(with_)])
    if html is not None:
        check_suffix(html, (".html",))
    options |= {} if by is None else {"group": by}
    with show_status() as progress:
        progress(f"reading {reference.name}")
        labeled = Predictions.load(reference, **options)
        progress(f"reading {new.name}")
        unlabeled, _ = load_unlabeled(new, **options)
        progress("testing")
        result = drift(labeled, unlabeled, of=parse_event(of, labeled), by_group=by is not None, level=level, seed=seed)
    _output_page(result, html, json_)
    if result.has_drifted:
        raise typer.Exit(DIFFERENCE_STATUS)


def _output_page(result: Any, html: Path | None, json_: Path | None) -> None:
    """Write the page, print the result or its JSON, and write the JSON."""
    if html is not None:
        write_text_file(html, result.html(command_line()))
    output_result(result, lambda: print_text(str(result)), json_, [html])
