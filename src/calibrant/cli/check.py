"""The command `check`: requirements that predictions must meet."""

from pathlib import Path
from typing import Annotated, Any

import typer

from calibrant.cli._common import (
    ContractOption,
    WithOption,
    check_output_paths,
    console,
    import_prediction_modules,
    include_sources,
    load_contract,
    output_result,
    parse_event,
    print_line,
    show_status,
    source_files,
)
from calibrant.cli._table_options import add_table_options
from calibrant.cli.assess import EventOption, JsonOption

STATUS_STYLES = {"holds": "green", "broken": "bold red", "too_little_data": "yellow"}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("check")(add_table_options(check_command))


def check_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Labeled predictions to check.")],
    require: Annotated[
        list[str] | None,
        typer.Option(
            "--require",
            "-r",
            metavar="TEXT",
            help='Requirement: "ece < 0.02", "accuracy > 90%", "nll < old + 0.005". Repeatable.',
        ),
    ] = None,
    requirements: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="TOML file with the keys require, and optionally level, of and by."),
    ] = None,
    contract: ContractOption = None,
    against: Annotated[
        Path | None,
        typer.Option(metavar="OLD", help="Predictions of the old model that 'old' in requirements stands for."),
    ] = None,
    level: Annotated[
        float | None,
        typer.Option(metavar="P", help="Probability that each verdict is not wrong. Default: 0.95."),
    ] = None,
    by: Annotated[
        str | None, typer.Option(metavar="NAME", help="Column of groups, in each of which requirements must hold.")
    ] = None,
    of: EventOption = None,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a JUnit report to this file: .xml.")] = None,
    json_: JsonOption = None,
    with_: WithOption = None,
    *,
    options: dict[str, Any],
) -> None:
    """Check predictions against requirements, for a gate in continuous integration.

    Each requirement holds, is broken, or has too little data; "holds" and "broken" are wrong with probability at most
    5 % each.

    The exit status is 0 if all hold, 3 if any is broken, and 4 if there is too little data.

    calibrant check predictions.csv --require "ece < 0.02" --require "accuracy > 90%"

    calibrant check new.csv --against old.csv --require "nll < old + 0.005"

    calibrant check new.csv --contract model.contract
    """
    import_prediction_modules()
    from calibrant.io.results import check_suffix
    from calibrant.monitoring import check, read_requirements
    from calibrant.types import InputError

    include_sources(with_)
    check_output_paths(junit, json_, inputs=[file, contract, against, requirements, *source_files(with_)])
    if junit is not None:
        check_suffix(junit, (".xml",))
    sealed = load_contract(contract)
    if sealed is not None and any(option is not None for option in (require, requirements, against, level, of)):
        raise InputError(
            "Expected the requirements of the contract alone, got more options. Try --contract without --require, "
            "--requirements, --against, --level and --of.",
            code="contract_and_requirements",
        )
    content = {} if requirements is None else read_requirements(requirements)
    by = by or content.get("by")
    options |= {} if by is None else {"group": by}
    with show_status() as progress:
        progress(f"reading {file.name}")
        new, ids = _load(file, options)
        old, old_ids = (None, None) if against is None else _load(against, options)
        progress("checking")
        if sealed is not None:
            result = sealed.check(new, by_group=by is not None)
        else:
            result = check(
                new,
                [*content.get("require", ()), *(require or ())],
                old=old,
                ids=ids,
                old_ids=old_ids,
                of=content.get("of") if of is None else parse_event(of, new),
                by_group=by is not None,
                level=content.get("level", 0.95) if level is None else level,
            )
    if junit is not None:
        result.save(junit)
    output_result(result, lambda: _show_conditions(result), json_, [junit])
    if result.exit_status:
        raise typer.Exit(result.exit_status)


def _load(path: Path, options: dict[str, Any]) -> Any:
    from calibrant.predictions import load_with_ids

    return load_with_ids(path, **options)


def _show_conditions(result: Any) -> None:
    for note in result.notes:
        print_line(note)
    for condition in result.conditions:
        console.print(str(condition), style=STATUS_STYLES[condition.status], markup=False, soft_wrap=True)
