"""The commands `check`, `compare`, `drift` and `watch`: requirements, two models, drift, and calibration over time."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from typer import Argument, Exit, Option

from calibrant._core.errors import InputError
from calibrant.cli._common import (
    CONTRACT_OPTION,
    EVENT_OPTION,
    HTML_OPTION,
    JSON_OPTION,
    LEVEL_OPTION,
    check_output_paths,
    command_line,
    group_options,
    load_aggregates,
    output_result,
    parse_event,
    print_input_notes,
    print_line,
    show_status,
)

DIFFERENCE_STATUS = ALARM_STATUS = 3  # exit statuses of a difference beyond chance, and of an alarm

BY_OPTION = Option(None, metavar="NAME", help="Column of groups, in each of which means are compared too.")
ALPHA_OPTION = Option(0.05, metavar="P", help="Probability that anything is called different without reason.")
SEED_OPTION = Option(0, metavar="N", help="Seed of the permutations.")
SHIFT_OPTION = Option(
    None,
    metavar="label|covariate",
    help="Assumption of the estimates. Default: label shift unless its test rejects it.",
)


def check_command(
    file: Path = Argument(..., metavar="FILE", help="Labeled predictions to check."),
    require: list[str] | None = Option(
        None,
        "--require",
        "-r",
        metavar="TEXT",
        help='Requirement: "ece < 0.02", "accuracy > 90%", "nll < old + 0.005". Repeatable.',
    ),
    requirements: Path | None = Option(
        None, metavar="FILE", help="TOML file with the keys require, and optionally level, of and by."
    ),
    contract_path: Path | None = CONTRACT_OPTION,
    against: Path | None = Option(
        None, metavar="OLD", help="Predictions of the old model that 'old' in requirements stands for."
    ),
    level: float | None = Option(None, metavar="P", help="Probability that each verdict is not wrong. Default: 0.95."),
    by: str | None = Option(None, metavar="NAME", help="Column of groups, in each of which requirements must hold."),
    of: str | None = EVENT_OPTION,
    junit: Path | None = Option(None, metavar="FILE", help="Write a JUnit report to this file: .xml."),
    json_: Path | None = JSON_OPTION,
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
    from calibrant.deployment import Contract
    from calibrant.io.predictions import read_file
    from calibrant.monitoring import check, read_requirements

    inputs = [file, contract_path, against, requirements]
    check_output_paths(junit, json_, inputs=inputs, suffixes={junit: (".xml",)})  # ignores options that are None
    contract = None if contract_path is None else Contract.load(contract_path)
    if contract is not None and any(option is not None for option in (require, requirements, against, level, of)):
        raise InputError(
            "Expected the requirements of the contract alone, got more options. Try --contract without --require, "
            "--requirements, --against, --level and --of.",
            code="contract_and_requirements",
        )
    file_settings = {} if requirements is None else read_requirements(requirements)
    by = by or file_settings.get("by")
    options = group_options(options, by)
    with show_status() as progress:
        progress(f"reading {file.name}")
        new, ids = load_aggregates(file, options | ({} if by is None else {"group": None})), None
        is_summary = new is not None
        if not is_summary:
            new, _, ids = read_file(file, **options)
        old, _, old_ids = (None, None, None) if against is None else read_file(against, **options)
        inputs = [(file, None if is_summary else new), *([] if against is None else [(against, old)])]
        print_input_notes(inputs)
        progress("checking")
        if contract is not None:
            if is_summary:
                raise InputError(f"{file}: Expected rows to calibrate, got sums. Try --require.", code="sums")
            result = contract.check(new, by_group=by is not None)
        else:
            all_requirements = [*file_settings.get("require", ()), *(require or ())]
            settings: dict[str, Any] = {"by_group": by is not None}  # options take precedence over the file
            settings["of"] = file_settings.get("of") if of is None else parse_event(of, new)
            settings["level"] = file_settings.get("level", 0.95) if level is None else level
            result = check(new, all_requirements, old=old, ids=ids, old_ids=old_ids, **settings)
    if junit is not None:
        result.save(junit)
    output_result(result, json_, [junit])
    if result.exit_status:
        raise Exit(result.exit_status)


def compare_command(
    old: Path = Argument(..., metavar="OLD", help="Labeled predictions of the old model."),
    new: Path = Argument(..., metavar="NEW", help="Labeled predictions of the new model."),
    by: str | None = BY_OPTION,
    of: str | None = EVENT_OPTION,
    alpha: float = ALPHA_OPTION,
    level: float = Option(0.95, metavar="P", help="Level of the limits of each difference."),
    seed: int = SEED_OPTION,
    html: Path | None = HTML_OPTION,
    json_: Path | None = JSON_OPTION,
    *,
    options: dict[str, Any],
) -> None:
    """Compare two models, and test what differs beyond chance.

    Predictions are paired by the column id, or by order if all labels agree; otherwise they are two samples.

    The exit status is 3 if anything differs beyond chance.

    calibrant compare old.csv new.csv --html comparison.html
    """
    from calibrant.io.predictions import read_file
    from calibrant.monitoring import compare

    check_output_paths(html, json_, inputs=[old, new], suffixes={html: (".html",)})
    options = group_options(options, by)
    with show_status() as progress:
        progress(f"reading {old.name}")
        old_p, _, old_ids = read_file(old, **options)
        progress(f"reading {new.name}")
        new_p, _, new_ids = read_file(new, **options)
        print_input_notes([(old, old_p), (new, new_p)])
        progress("comparing")
        settings: dict[str, Any] = {"of": parse_event(of, new_p), "by_group": by is not None}
        result = compare(
            old_p, new_p, old_ids=old_ids, new_ids=new_ids, alpha=alpha, level=level, seed=seed, **settings
        )
    _output_differences(result, result.differs, html, json_)


def drift_command(
    reference: Path = Argument(..., metavar="REFERENCE", help="Labeled predictions of the past."),
    new: Path = Argument(..., metavar="NEW", help="New predictions; labels are not needed."),
    by: str | None = BY_OPTION,
    of: str | None = EVENT_OPTION,
    shift: str | None = SHIFT_OPTION,
    alpha: float = ALPHA_OPTION,
    level: float = LEVEL_OPTION,
    seed: int = SEED_OPTION,
    html: Path | None = HTML_OPTION,
    json_: Path | None = JSON_OPTION,
    *,
    options: dict[str, Any],
) -> None:
    """Find out, without new labels, whether predictions have drifted, and estimate the new accuracy.

    The distributions of confidence and of predicted classes are tested. Class shares, accuracy, gap and Brier score are
    estimated under one assumption, which stands beside each number: label shift, unless its test rejects it, or
    covariate shift.

    The exit status is 3 if the predictions have drifted beyond chance.

    calibrant drift reference.csv today.csv --html drift.html
    """
    from calibrant.io.predictions import read_file
    from calibrant.monitoring import drift
    from calibrant.predictions import Predictions

    check_output_paths(html, json_, inputs=[reference, new], suffixes={html: (".html",)})
    options = group_options(options, by)
    with show_status() as progress:
        progress(f"reading {reference.name}")
        labeled = Predictions.load(reference, **options)
        progress(f"reading {new.name}")
        unlabeled = read_file(new, needs_labels=False, **options).predictions
        print_input_notes([(reference, labeled), (new, unlabeled)])
        progress("testing")
        event, has_groups = parse_event(of, labeled), by is not None
        result = drift(
            labeled,
            unlabeled,
            of=event,
            by_group=has_groups,
            shift=shift,  # pyright: ignore[reportArgumentType]  checked by `drift`
            alpha=alpha,
            level=level,
            seed=seed,
        )
    _output_differences(result, result.has_drifted, html, json_)


def _output_differences(result: Any, is_different: bool, html: Path | None, json_: Path | None) -> None:
    """Show the result of a comparison, write its page and JSON, and exit with `DIFFERENCE_STATUS` if `is_different`."""
    output_result(result, json_, html=html, page=lambda: result.html({"command": command_line()}))
    if is_different:
        raise Exit(DIFFERENCE_STATUS)


def watch_command(
    state: Path = Argument(..., metavar="STATE", help="State of the watch, NAME.watch; created if missing."),
    files: list[Path] | None = Argument(
        None,
        metavar="[NEW]...",
        help="Predictions in the order of their time, with labels where they are known; or labels by id.",
        show_default=False,
    ),
    alpha: float | None = Option(
        None, metavar="P", help="Probability that a calibrated model ever raises an alarm. Default: 0.05."
    ),
    level: float = Option(0.95, metavar="P", help="Level of the limits, which hold at all times."),
    contract_path: Path | None = CONTRACT_OPTION,
    of: str | None = EVENT_OPTION,
    time: str | None = Option(
        None, metavar="NAME", help="Column of times. Default: time, timestamp and similar names."
    ),
    by_class: bool | None = Option(
        None, "--by-class/--no-by-class", help="Test each class too. Default: up to 200 classes."
    ),
    give_up: bool = Option(
        False, "--give-up", help="Stop waiting for labels of rows that were predicted in earlier calls."
    ),
    reset: bool = Option(
        False, "--reset", help="Start a new epoch before the new files, after the model was retrained."
    ),
    page: Path | None = Option(None, metavar="FILE", help="Write a page to this file: .html."),
    periods: int = Option(30, metavar="N", min=1, help="Number of periods on the page."),
    prometheus: Path | None = Option(None, metavar="FILE", help="Write Prometheus metrics to this file: .prom."),
    json_: Path | None = JSON_OPTION,
    *,
    options: dict[str, Any],
) -> None:
    """Watch the calibration of a model over time, and raise an alarm when it is lost.

    A calibrated model ever raises an alarm with probability at most 5 %, however often the command runs. Labels may
    come later, in a file with the columns id and label. A file that is given twice counts once.

    The exit status is 0 without an alarm, also after a night without rows, and 3 once there is an alarm. It is 2 if a
    file is refused: the state then keeps the predictions of the call if only labels are refused.

    calibrant watch model.watch monday.csv

    calibrant watch model.watch labels_of_monday.csv tuesday.csv --page watch.html
    """
    from calibrant.deployment import Contract
    from calibrant.monitoring import WatchFile, lock_state

    paths = files or []
    suffixes = {state: (".watch",), page: (".html",), prometheus: (".prom",)}
    check_output_paths(state, page, prometheus, json_, inputs=[*paths, contract_path], suffixes=suffixes)
    event, calibrate = parse_event(of), None
    contract_seal = None  # digest of the contract, to compare with `watch.contract`, that of earlier calls
    if contract_path is not None:
        contract = Contract.load(contract_path)
        contract_seal = contract.seal
        event, calibrate = contract.of if of is None else event, contract.calibrate
    with lock_state(state), show_status() as progress:
        watch = _open_state(state, alpha, event, by_class)
        watch = watch.reset() if reset else watch
        if watch.k and watch.contract != contract_seal:  # k is 0 until there are predictions
            seals = (watch.contract, contract_seal)
            old, new = (f"the contract {seal[:12]}" if seal else "no contract" for seal in seals)
            raise InputError(
                f"{state}: Expected {old} as when the watch began, got {new}. Try another state, or --reset.",
                code="contract_differs",
            )
        watch, num_earlier_periods = replace(watch, contract=contract_seal), watch.periods.count
        parts: list[WatchFile] = []
        for path in paths:
            progress(f"reading {path.name}")
            parts.append(WatchFile.read(path, time=time, **options))
        watch, refusals = _add_files(watch, parts, event, calibrate)
        if give_up:
            num_earlier_rows, num_before = int((watch.pending.periods < num_earlier_periods).sum()), watch.given_up
            watch = watch.give_up(num_earlier_rows)  # waiting rows are in order of time, so that these are the first
            print_line(f"{watch.given_up - num_before:,} rows without a label were given up.")
        if not parts or len(refusals) < len(parts):
            watch.save(state)
    for path in (page, prometheus):
        if path is not None:
            watch.save(path, periods=periods, level=level)
    output_result(watch.verdict_at(level), json_, [page, prometheus])
    for refusal in refusals[1:]:
        print_line(str(refusal))
    if refusals:
        raise refusals[0]
    if watch.verdict.alarm:
        raise Exit(ALARM_STATUS)


def _add_files(watch: Any, files: list[Any], event: Any, calibrate: Any) -> tuple[Any, list[InputError]]:
    """Return the watch with the files of predictions, and then those of labels, added, and the refusals of labels.

    Labels may be those of predictions of the same call. If they are refused, the predictions count nevertheless.
    """
    refusals: list[InputError] = []
    for file in sorted(files, key=lambda file: file.holds_labels):  # a stable sort

        def on_note(note: str, path: Path = file.path) -> None:
            print_line(f"{path}: {note}")

        if not file.holds_labels:
            watch = file.add_rows(watch, event, calibrate, on_note)
            continue
        try:
            watch = file.add_labels(watch, on_note)
        except InputError as refusal:
            refusals.append(refusal)
    return watch, refusals


def _open_state(path: Path, alpha: float | None, of: Any, by_class: bool | None) -> Any:
    """Return the state in a file, or a new one if there is no file.

    Raises:
        InputError: If a setting is not None and differs from the state.
    """
    from calibrant.monitoring import Watch

    if not path.exists():
        return Watch(alpha=0.05 if alpha is None else alpha, by_class=by_class is not False)
    watch = Watch.load(path)
    names = watch.class_names or ()
    event = names.index(of) if of in names else of  # the state has the index of a class
    settings = [("alpha", alpha, watch.alpha), ("of", event, watch.of), ("by-class", by_class, watch.by_class)]
    for name, value, saved in settings:
        if value is not None and saved is not None and value != saved:  # `saved` is None until there are predictions
            raise InputError(
                f"{path}: Expected --{name} {saved} as when the watch began, got {value}. Try another state.",
                code="settings",
            )
    return watch
