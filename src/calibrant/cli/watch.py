"""The command `watch`: calibration over time."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from calibrant._text import cut_middle, escape_markup
from calibrant.cli._common import (
    BARE_TABLE_STYLE,
    ContractOption,
    WithOption,
    check_output_paths,
    console,
    import_prediction_modules,
    include_sources,
    load_contract,
    output_result,
    parse_event,
    show_status,
    source_files,
)
from calibrant.cli._table_options import add_table_options
from calibrant.cli.assess import EventOption, JsonOption

ALARM_STATUS = 3  # exit status
MAX_PRINTED_TESTS = 8
MAX_TITLE_CHARACTERS = 24


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("watch")(add_table_options(watch_command))


def watch_command(
    state: Annotated[Path, typer.Argument(metavar="STATE", help="State of the watch, NAME.watch; created if missing.")],
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[NEW]...",
            help="Predictions in the order of their time, with labels where they are known; or labels by id.",
            show_default=False,
        ),
    ] = None,
    alpha: Annotated[
        float | None,
        typer.Option(metavar="P", help="Probability that a calibrated model ever raises an alarm. Default: 0.05."),
    ] = None,
    contract: ContractOption = None,
    of: EventOption = None,
    time: Annotated[
        str | None, typer.Option(metavar="NAME", help="Column of times. Default: time, timestamp and similar names.")
    ] = None,
    by_class: Annotated[
        bool | None, typer.Option("--by-class/--no-by-class", help="Test each class too. Default: up to 200 classes.")
    ] = None,
    give_up: Annotated[
        bool, typer.Option("--give-up", help="Stop waiting for labels of rows that were predicted in earlier calls.")
    ] = False,
    reset: Annotated[
        bool, typer.Option("--reset", help="Start a new epoch before the new files, after the model was retrained.")
    ] = False,
    page: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page to this file: .html.")] = None,
    periods: Annotated[int, typer.Option(metavar="N", min=1, help="Number of periods on the page.")] = 30,
    prometheus: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write Prometheus metrics to this file: .prom.")
    ] = None,
    json_: JsonOption = None,
    with_: WithOption = None,
    *,
    options: dict[str, Any],
) -> None:
    """Watch the calibration of a model over time, and raise an alarm when it is lost.

    A calibrated model ever raises an alarm with probability at most 5 %, however often the command runs. Labels may
    come later, in a file with the columns id and label. A file that is given twice counts once.

    The exit status is 3 once there is an alarm.

    calibrant watch model.watch monday.csv

    calibrant watch model.watch labels_of_monday.csv tuesday.csv --page watch.html
    """
    import_prediction_modules()
    from calibrant.io.results import check_suffix
    from calibrant.monitoring import lock_state

    include_sources(with_)
    paths = files or []
    check_output_paths(state, page, prometheus, json_, inputs=[*paths, contract, *source_files(with_)])
    for path, suffix in ((state, ".watch"), (page, ".html"), (prometheus, ".prom")):
        if path is not None:
            check_suffix(path, (suffix,))
    sealed = load_contract(contract)
    event = parse_event(of) if sealed is None or of is not None else sealed.of
    reading = {"time": time, "of": event, "calibrate": None if sealed is None else sealed.calibrate, **options}
    with lock_state(state), show_status() as progress:
        watch = _open_state(state, alpha, event, by_class)
        watch = watch.reset() if reset else watch
        watch = _with_contract(watch, state, sealed)
        watch = _add_files(watch, paths, give_up, progress, reading)
        watch.save(state)
    for path in (page, prometheus):
        if path is not None:
            watch.save(path, periods=periods)
    output_result(watch.verdict, lambda: _show_verdict(watch.verdict), json_, [page, prometheus])
    if watch.verdict.alarm:
        raise typer.Exit(ALARM_STATUS)


def _open_state(path: Path, alpha: float | None, of: Any, by_class: bool | None) -> Any:
    """Return the state of a file, or a new one; refuse settings that differ from those of the state."""
    from calibrant.monitoring import Watch
    from calibrant.types import InputError

    if not path.exists():
        return Watch(alpha=0.05 if alpha is None else alpha, by_class=by_class is not False)
    watch = Watch.load(path)
    names = watch.class_names or ()
    event = names.index(of) if of in names else of
    settings: dict[str, tuple[Any, Any]] = {
        "alpha": (alpha, watch.alpha),
        "of": (event, watch.of),
        "by-class": (by_class, watch.by_class),
    }
    for name, (value, saved) in settings.items():
        if value is not None and saved is not None and value != saved:
            raise InputError(
                f"{path}: Expected --{name} {saved} as when the watch began, got {value}. Try another state.",
                code="settings",
            )
    return watch


def _with_contract(watch: Any, path: Path, contract: Any) -> Any:
    """Return the watch of a contract; refuse one that began with another, or without."""
    from calibrant.types import InputError

    seal = None if contract is None else contract.seal
    if watch.k and watch.contract != seal:
        began_with, now = ("no contract" if x is None else f"the contract {x[:12]}" for x in (watch.contract, seal))
        raise InputError(
            f"{path}: Expected {began_with} as when the watch began, got {now}. Try another state, or --reset.",
            code="contract_differs",
        )
    return replace(watch, contract=seal)


def _add_files(watch: Any, paths: list[Path], give_up: bool, progress: Any, options: dict[str, Any]) -> Any:
    """Return the watch with all files."""
    from calibrant.monitoring import add_file

    periods = watch.periods.count
    for path in paths:
        progress(f"reading {path.name}")
        watch = add_file(watch, path, **options)
    return watch.give_up(int((watch.pending.periods < periods).sum())) if give_up else watch


def _show_verdict(verdict: Any) -> None:
    """Print the verdict and the tests."""
    for sentence in verdict.sentences[:MAX_PRINTED_TESTS]:
        style = "bold red" if verdict.alarm else "bold"
        console.print(f"[{style}]{escape_markup(sentence)}[/{style}]")
    if verdict.pending:
        console.print(f"{verdict.pending:,} rows wait, {verdict.unlabeled:,} of them for their label.")
    if verdict.rows:
        console.print()
        console.print(_tests_table(verdict))


def _tests_table(verdict: Any) -> Any:
    """Return the event and the tests with the strongest evidence."""
    from rich.table import Table

    first, *tests = verdict.tests
    strongest = sorted(tests, key=lambda test: -test.log10_evidence)[: MAX_PRINTED_TESTS - 1]
    body = Table(**BARE_TABLE_STYLE)
    for i, heading in enumerate(("test", "rows", "gap", "95 % at all times", "evidence", "needed")):
        body.add_column(heading, justify="right" if i else "left", no_wrap=True)
    for test in (first, *strongest):
        gap = test.gap
        body.add_row(
            escape_markup(cut_middle(test.title, MAX_TITLE_CHARACTERS)),
            f"{test.rows:,}",
            f"{100 * gap.value:+.2f} %" if test.rows else "",
            f"{100 * gap.low:+.2f} to {100 * gap.high:+.2f} %" if test.rows else "",
            test.evidence_text,
            f"{1 / verdict.alpha:,.0f}",
        )
    return body
