"""The commands `assess`, `measure` and `apply` for your own predictions."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibrant._text import display_name, escape_markup
from calibrant.cli._common import (
    BARE_TABLE_STYLE,
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
from calibrant.io.formats import CALIBRATOR_SUFFIX, COMPRESSION_SUFFIXES, FORMATS, WRITABLE_SUFFIXES, list_suffixes

if TYPE_CHECKING:
    from calibrant import Predictions

DEFAULT_CALIBRATORS_HELP = "Identity, Temperature, StructuredMatrix, HistogramBinning, Auto"
DEFAULT_METRICS_HELP = "accuracy, nll, brier, ece, adaptive_ece, classwise_ece"
DEFAULT_ERROR_TOLERANCE = 0.05  # that of `measure`, whose module loads torch
FLOATS_PER_ROW_AND_MAP = 16  # that an assessment keeps for each calibrator
_ARRAY_SUFFIXES = list_suffixes(suffix for f in FORMATS if not f.is_table and not f.is_log for suffix in f.suffixes)
_TABLE_SUFFIXES = list_suffixes(suffix for f in FORMATS if f.is_table for suffix in f.suffixes)
FILES_HELP = f"""
Files of arrays ({_ARRAY_SUFFIXES}) hold logits or probs with labels, or confidence with correct; NumPy arrays are
NAME_logits and NAME_labels.

Tables ({_TABLE_SUFFIXES}; text also compressed as {list_suffixes(COMPRESSION_SUFFIXES)}) have the columns label and
prob_cat, prob_dog, ..., or logit_..., or confidence and correct. A folder of tables, or a pattern in quotes, is one
table.

Evaluation logs of language models: samples_*.jsonl of lm-evaluation-harness, .eval and .json of Inspect, run folders of
HELM, and folders of logs. --correct names the score, --group the field of subjects, --confidence the field of
confidences, or stated, tokens or mean_token.
"""

MetricOption = Annotated[
    list[str] | None,
    typer.Option("--metric", "-m", metavar="NAME", help="Metric to add to the default ones. Repeatable."),
]
EventOption = Annotated[
    str | None,
    typer.Option(
        metavar="EVENT",
        help='Event to evaluate: "top" (the predicted class is right), or a class by index or name. Default: class 1 '
        "of two, else top.",
    ),
]
IgnoreIndexOption = Annotated[
    int | None, typer.Option("--ignore-index", metavar="N", help="Leave out rows with this label. Default: none.")
]
StreamOption = Annotated[
    bool | None,
    typer.Option(
        "--stream/--whole", help="Read the evaluated file in chunks, or whole. Default: in chunks beyond --memory."
    ),
]
MemoryOption = Annotated[
    float | None,
    typer.Option(
        min=0, metavar="GB", help="Memory limit in GB for the evaluated file. Default: a quarter of the free memory."
    ),
]
ShowColumnsOption = Annotated[
    bool, typer.Option("--columns", help="Only print the role of each column of the tables.", show_default=False)
]
ToleranceOption = Annotated[
    float,
    typer.Option(
        min=0,
        max=1,
        metavar="ERROR",
        help="Largest acceptable calibration error. If the data cannot rule out a larger one, there is too little data "
        "to tell.",
    ),
]
HtmlOption = Annotated[Path | None, typer.Option(metavar="FILE", help="Write a report to this file.")]
JsonOption = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", help="Write all numbers to this file, or to standard output if it is -."),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command, help_text in (
        (assess_command, f"{assess_command.__doc__}\n{FILES_HELP}"),
        (measure_command, f"{measure_command.__doc__}\n{FILES_HELP}"),
        (apply_command, apply_command.__doc__),
    ):
        name = command.__name__.removesuffix("_command")
        app.command(name, help=help_text)(add_table_options(command))


def assess_command(
    file: Annotated[
        list[Path], typer.Argument(metavar="VAL [TEST]", help="Predictions to fit on, and predictions to evaluate on.")
    ],
    calibrator: Annotated[
        list[str] | None,
        typer.Option(
            "--calibrator",
            "-c",
            metavar="NAME",
            help=f"Calibrator to compare, or the file of a saved one ({CALIBRATOR_SUFFIX}). Repeatable.",
            show_default=DEFAULT_CALIBRATORS_HELP,
        ),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            "--metric",
            "-m",
            metavar="NAME",
            help="Metric to compare by. Repeatable.",
            show_default=DEFAULT_METRICS_HELP,
        ),
    ] = None,
    cv: Annotated[
        int | None, typer.Option(metavar="FOLDS", help="Number of folds for a single file. Default: 5.")
    ] = None,
    choose: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Calibrator to choose. Default: the lowest cross-fitted NLL."),
    ] = None,
    of: EventOption = None,
    tolerance: ToleranceOption = DEFAULT_ERROR_TOLERANCE,
    html: HtmlOption = None,
    json_: JsonOption = None,
    save: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help=f"Write the chosen calibrator to this file ({CALIBRATOR_SUFFIX})."),
    ] = None,
    stream: StreamOption = None,
    memory: MemoryOption = None,
    ignore_index: IgnoreIndexOption = None,
    show_columns: ShowColumnsOption = False,
    with_: WithOption = None,
    *,
    options: dict[str, Any],
) -> None:
    """Fit calibrators on VAL and compare them on TEST, or by cross-fitting."""
    import_prediction_modules()
    import calibrant
    from calibrant import assessment
    from calibrant.types import InputError

    if show_columns:
        _print_columns(file, options, ignore_index)
        return
    include_sources(with_)
    check_output_paths(html, json_, save, inputs=[*file, *(calibrator or []), *source_files(with_)])
    if save is not None and save.suffix != CALIBRATOR_SUFFIX:
        raise InputError(f"Expected a file {CALIBRATOR_SUFFIX} to save a calibrator, got {save}.", code="suffix")
    if len(file) > 2 or (len(file) == 2 and cv is not None):
        inputs = f"{len(file)} files{' and --cv' if cv else ''}"
        raise InputError(f"Expected two files, or one with --cv, got {inputs}.", code="num_files")
    load_options: dict[str, Any] = {"ignore_index": ignore_index, **options}
    val, test, is_streamed = calibrant.Predictions.load(file[0], **load_options), None, False
    if len(file) == 2:
        num_maps = len(calibrator or assessment.DEFAULT_CALIBRATORS) + 1
        test, is_streamed = _load(file[1], load_options, stream, memory, num_maps, json_)
    loaded: list[Any] = [val]
    if len(file) == 2:
        loaded.append(None if is_streamed else test)
    _print_input_notes(dict(zip(file, loaded, strict=True)), json_)
    with show_status() as progress:
        result = calibrant.assess(
            val,
            test,
            calibrator or None,
            metric or None,
            choose=choose,
            folds=cv or 5,
            of=parse_event(of, val),
            tolerance=tolerance,
            progress=progress,
        )
    if save is not None:
        result.save(save)
        _print_note(f"wrote {save} ({display_name(result.chosen_name)})", json_)
    n = result.uncalibrated.n
    titles, roles = ("fitted on", "evaluated on"), ("fitted", "judged")
    if test is None:
        titles, roles = ("cross-fitted on",), ("cross-fitted",)
    facts = {title: _describe_file(path, p, n) for title, path, p in zip(titles, file, loaded, strict=True)}
    data = [assessment.data_source(role, p, path=path, n=n) for role, path, p in zip(roles, file, loaded, strict=True)]
    calibrators = {path: "given" for path in calibrator or [] if path.endswith(CALIBRATOR_SUFFIX)}
    calibrators |= {} if save is None else {str(save): "saved"}
    sources = [assessment.calibrator_source(role, path) for path, role in calibrators.items()]
    page = None if html is None else result.html({"command": command_line()} | facts, save)
    _output_result(result, json_, html, page, {"data": data, "calibrators": sources})


def measure_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Predictions with labels.")],
    calibrator: Annotated[
        Path | None,
        typer.Option(
            "--calibrator", "-c", metavar="FILE", help=f"Apply this saved calibrator ({CALIBRATOR_SUFFIX}) first."
        ),
    ] = None,
    metric: MetricOption = None,
    of: EventOption = None,
    bins: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Number of bins of binned metrics. Default: 15.")
    ] = None,
    tolerance: ToleranceOption = DEFAULT_ERROR_TOLERANCE,
    html: HtmlOption = None,
    json_: JsonOption = None,
    stream: StreamOption = None,
    memory: MemoryOption = None,
    ignore_index: IgnoreIndexOption = None,
    show_columns: ShowColumnsOption = False,
    with_: WithOption = None,
    *,
    options: dict[str, Any],
) -> None:
    """Measure the calibration of predictions as they are, without fitting anything."""
    import_prediction_modules()
    import calibrant
    from calibrant.assessment import calibrator_source, data_source, load_checked_calibrator, summarize

    if show_columns:
        _print_columns([file], options, ignore_index)
        return
    include_sources(with_)
    check_output_paths(html, json_, inputs=[file, calibrator, *source_files(with_)])
    calibrate = None if calibrator is None else load_checked_calibrator(calibrator)
    with show_status() as progress:
        progress("measuring")
        predictions, is_streamed = _load(file, {"ignore_index": ignore_index, **options}, stream, memory, 1, json_)
        loaded = None if is_streamed else predictions
        if is_streamed:
            predictions = summarize(predictions, calibrate, of=parse_event(of), bins=bins or 15)
        else:
            _print_input_notes({file: predictions}, json_)
            predictions = predictions if calibrate is None else calibrate(predictions)
        event = parse_event(of, predictions)
        result = calibrant.measure(predictions, metrics=metric, of=event, bins=bins, tolerance=tolerance)
    facts = {"command": command_line(), "measured": _describe_file(file, loaded, result.n)}
    facts |= {"calibrated by": str(calibrator)} if calibrator else {}
    data = [data_source("measured", loaded, path=file, n=result.n)]
    sources = [] if calibrator is None else [calibrator_source("applied", calibrator)]
    page = None if html is None else result.html(facts)
    _output_result(result, json_, html, page, {"data": data, "calibrators": sources})


def apply_command(
    calibrator: Annotated[
        Path, typer.Argument(metavar="CALIBRATOR", help="Calibrator that `assess --save` wrote, or a contract.")
    ],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Predictions, with or without labels.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help=f"Write the calibrated predictions to this file. Required. Suffix: "
            f"{list_suffixes(WRITABLE_SUFFIXES)}.",
        ),
    ] = None,
    show_columns: ShowColumnsOption = False,
    with_: WithOption = None,
    *,
    options: dict[str, Any],
) -> None:
    """Calibrate predictions with a saved calibrator.

    A table keeps its rows and columns, and gains the columns calibrated_prob_... and predicted, and act and
    prediction_set if a contract promises them. A file of arrays gets calibrated logits.
    """
    import_prediction_modules()
    from calibrant.assessment import apply_to_file
    from calibrant.types import InputError

    if show_columns:
        _print_columns([file], options)
        return
    if output is None:
        raise InputError("Expected a file to write to, got none. Try --output calibrated.csv.", code="no_output")
    include_sources(with_)
    check_output_paths(output, inputs=[calibrator, file, *source_files(with_)])
    n, unit = apply_to_file(calibrator, file, output, on_note=lambda note: print_line(f"{file}: {note}"), **options)
    print_line(f"wrote {output}: calibrated {unit} of {n:,} rows")


# Input


def _load(
    path: Path,
    load_options: Mapping[str, Any],
    stream: bool | None,
    memory: float | None,
    num_maps: int,
    json_: Path | None,
) -> tuple[Any, bool]:
    """Return the predictions of a file and False, or an iterable of their chunks and True.

    Args:
        path: File of predictions.
        load_options: Keywords of `Predictions.load`.
        stream: Whether to read in chunks; None: if the file exceeds the memory.
        memory: Memory to use, in GB; default: see `io.exceeds_memory`.
        num_maps: Number of calibrators, each of which needs memory for every row.
        json_: Where JSON goes; if that is standard output, no notes are printed.
    """
    from calibrant import Predictions, io
    from calibrant.types import InputError

    if stream is not False and (stream or io.is_chunkable(path)):
        try:
            file = io.open_chunked(path, io.TableOptions.from_keywords(load_options))
        except InputError:
            # loading raises an error that names the file, or succeeds if the roles of columns need the whole table
            load = Predictions.load_chunks if stream else Predictions.load
            return load(path, **load_options), bool(stream)
        floats_per_row = file.width + FLOATS_PER_ROW_AND_MAP * num_maps
        if stream or io.exceeds_memory(file, floats_per_row, None if memory is None else 1e9 * memory):
            for note in file.notes:
                _print_note(f"{path}: {note}", json_)
            return Predictions.load_chunks(path, **load_options), True
    return Predictions.load(path, **load_options), False


def _print_columns(files: list[Path], options: dict[str, Any], ignore_index: int | None = None) -> None:
    """Print the role of each column of tables."""
    from rich.table import Table

    from calibrant import io
    from calibrant.io.roles import describe_roles

    table_options = io.TableOptions.from_keywords({**options, "ignore_index": ignore_index})
    for path in files:
        if io.is_log(path):
            print_line(f"{path}: an evaluation log has no columns")
            continue
        if not io.is_table(path):
            print_line(f"{path}: a file of arrays has no columns")
            continue
        table = io.read_table(path, table_options)
        columns = io.infer_columns(table.frame, table_options)
        roles = Table("column", "role", **BARE_TABLE_STYLE)
        for name, role in describe_roles(columns, table.frame.columns):
            roles.add_row(escape_markup(name), escape_markup(role))
        print_line(f"{path}: {len(table.frame):,} rows")
        console.print(roles)
        for note in (*table.notes, *columns.notes):
            print_line(note)


# Output


def _output_result(
    result: Any, json_: Path | None, html: Path | None, page: str | None, source: dict[str, Any]
) -> None:
    """Print a result, or its JSON alone, and write the files."""
    if str(json_) == "-":
        print(result.json(source), end="")
    else:
        console.print(result)
    if html is not None and page is not None:
        write_text_file(html, page)
        _print_note(f"wrote {html}", json_)
    if json_ is not None and str(json_) != "-":
        write_text_file(json_, result.json(source))
        print_line(f"wrote {json_}")


def _print_note(text: str, json_: Path | None) -> None:
    """Print a line, unless standard output is JSON."""
    if str(json_) != "-":
        print_line(text)


def _print_input_notes(files: "Mapping[Path, Predictions | None]", json_: Path | None) -> None:
    """Print the notes on how files were read, once if several files have the same."""
    notes: dict[str, list[str]] = {}
    for path, p in files.items():
        for note in () if p is None else p.notes:
            notes.setdefault(note, []).append(str(path))
    for note, paths in notes.items():
        _print_note(f"{' and '.join(paths)}: {note}", json_)


def _describe_file(path: Path, p: Any, n: int) -> str:
    """Return a file's size and digest; chunks have no digest."""
    return f"{path}: {n:,} examples, in chunks" if p is None else f"{path}: {p!r}, digest {p.digest}"
