"""The command `sample-size`: how many labels an evaluation needs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from calibrant._text import escape_markup
from calibrant.cli._common import (
    BARE_TABLE_STYLE,
    WithOption,
    check_output_paths,
    console,
    import_prediction_modules,
    include_sources,
    output_result,
    parse_event,
    print_line,
    show_status,
    source_files,
)
from calibrant.cli._table_options import add_table_options
from calibrant.cli.assess import EventOption, IgnoreIndexOption, JsonOption

if TYPE_CHECKING:
    from calibrant.planning import Pattern

ASSUMPTION_PANEL_TITLE = "Assumptions"
CURVE_RATIOS = (0.25, 0.5, 0.75, 1, 1.25, 1.5, 2)  # to n, of the sizes in the printed curve


def _assumption(flag: str, metavar: str, text: str) -> Any:
    return typer.Option(flag, metavar=metavar, help=text, rich_help_panel=ASSUMPTION_PANEL_TITLE)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("sample-size")(add_table_options(sample_size_command))


def sample_size_command(
    file: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILE [SECOND]",
            help="Predictions like the future ones, labeled or not; and those of a second model, for --difference.",
            show_default=False,
        ),
    ] = None,
    detect: Annotated[
        float | None, typer.Option(metavar="X", help="Goal: detect a calibration error of X, such as 0.05.")
    ] = None,
    bound: Annotated[
        float | None, typer.Option(metavar="X", help="Goal: show that the error of a calibrated model is below X.")
    ] = None,
    difference: Annotated[
        float | None, typer.Option(metavar="X", help="Goal: tell apart two models whose metric differs by X.")
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            "--metric",
            "-m",
            metavar="NAME",
            help="Test, error or score of the goal. Default: kuiper, debiased_l2 or nll.",
        ),
    ] = None,
    power: Annotated[float, typer.Option(metavar="P", help="Probability to reach the goal.")] = 0.8,
    level: Annotated[float, typer.Option(metavar="P", help="Level of the test, or error rate of the bound.")] = 0.05,
    of: EventOption = None,
    accuracy: Annotated[
        float | None, _assumption("--accuracy", "P", "Expected accuracy, which is the mean confidence too.")
    ] = None,
    distribution: Annotated[
        str | None,
        _assumption("--distribution", "TEXT", 'Expected distribution of confidences, "beta(9, 1)" or its mean.'),
    ] = None,
    correlation: Annotated[
        float, _assumption("--correlation", "R", "Correlation of the scores of two models, without a second file.")
    ] = 0.5,
    cluster_size: Annotated[
        list[int] | None, _assumption("--cluster-size", "N", "Examples per cluster. Repeat it for several sizes.")
    ] = None,
    icc: Annotated[
        float | None,
        _assumption("--icc", "R", "Correlation of outcomes within clusters. Default: estimated from labels."),
    ] = None,
    pattern: Annotated[
        str,
        _assumption("--pattern", "NAME", "Error to detect: shift (same size everywhere) or scale (logits too large)."),
    ] = "shift",
    draws: Annotated[
        int | None, typer.Option(metavar="N", help="Simulated data sets. Default: 2,000, and 500 of clusters.")
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the simulation.")] = 0,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the power curve to this file: .png, .svg or .pdf.")
    ] = None,
    json_: JsonOption = None,
    ignore_index: IgnoreIndexOption = None,
    with_: WithOption = None,
    *,
    options: dict[str, Any],
) -> None:
    """Compute how many examples to label, by simulation.

    Give one goal, and either predictions or assumptions:

    calibrant sample-size --accuracy 0.9 --detect 0.05

    calibrant sample-size predictions.csv --bound 0.05
    """
    import_prediction_modules()
    from calibrant import planning
    from calibrant.io.results import check_suffix
    from calibrant.types import InputError

    include_sources(with_)
    files = file or []
    if len(files) > 2:
        raise InputError(f"Expected at most two files, got {len(files)}.", code="num_files")
    check_output_paths(plot, json_, inputs=[*files, *source_files(with_)])
    if plot is not None:
        check_suffix(plot, planning.FIGURE_SUFFIXES)
    predictions = [_load_predictions(path, options, ignore_index, difference is not None, icc) for path in files]
    with show_status() as progress:
        progress("simulating")
        result = planning.sample_size(
            *predictions,
            detect=detect,
            bound=bound,
            difference=difference,
            metric=metric,
            of=parse_event(of, predictions[0] if predictions else None),
            confidence=distribution,
            accuracy=accuracy,
            correlation=correlation,
            cluster_size=cluster_size or None,
            icc=icc,
            pattern=_parse_pattern(pattern),
            power=power,
            level=level,
            draws=draws,
            seed=seed,
        )
    if plot is not None:
        result.save(plot)
    output_result(result, lambda: _show_result(result, predictions), json_, [plot])


def _parse_pattern(text: str) -> "Pattern":
    from calibrant.planning import Pattern
    from calibrant.types import InputError

    for pattern in get_args(Pattern):
        if text == pattern:
            return pattern
    raise InputError(f"Expected a pattern among {', '.join(get_args(Pattern))}, got {text!r}.", code="pattern")


def _load_predictions(
    path: Path, options: dict[str, Any], ignore_index: int | None, needs_labels: bool, icc: float | None
) -> Any:
    """Return predictions, whose labels may be missing if the goal does not need them."""
    from calibrant import Predictions
    from calibrant.predictions import load_unlabeled
    from calibrant.types import InputError

    if needs_labels or ignore_index is not None:
        return Predictions.load(path, ignore_index=ignore_index, **options)
    p, has_labels = load_unlabeled(path, **options)
    if not has_labels and p.clusters is not None and icc is None:
        raise InputError(
            f"{path}: Expected labels, which show how alike the examples of a cluster are, got none. Try --icc 0.1.",
            code="no_icc",
        )
    return p


def _show_result(result: Any, predictions: list[Any]) -> None:
    """Print the result, its assumptions, the power curve and the power of the file."""
    console.print(escape_markup(str(result)))
    console.print(f"[dim]{escape_markup(' '.join(result.assumptions))}[/dim]")
    console.print()
    console.print(_curve_table(result))
    if predictions:
        _print_power_of_file(result, predictions[0])


def _curve_table(result: Any) -> Any:
    """Return powers at round numbers around n, from the fitted curve."""
    from rich.table import Table

    body = Table(**BARE_TABLE_STYLE)
    body.add_column(f"{result.unit}s", justify="right")
    body.add_column("power", justify="right")
    for factor in CURVE_RATIOS:
        n = max(2, round(factor * result.n))
        body.add_row(f"{n:,}", f"{result.power_at(n):.2f}")
    return body


def _print_power_of_file(result: Any, p: Any) -> None:
    num_clusters = 0 if p.clusters is None else len(p.clusters.unique())
    n = p.num_examples if result.unit == "example" else num_clusters
    if n >= 2:
        print_line(f"The {n:,} {result.unit}s of the file have a power of {result.power_at(n):.2f}.")
