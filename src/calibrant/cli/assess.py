"""`assess`, `measure` and `apply`: one's own predictions, without any study."""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibrant._text import display_name, escape_markup, parse_integer
from calibrant.cli._common import (
    BARE_TABLE_STYLE,
    WithOption,
    command_line,
    console,
    import_core,
    include_sources,
    print_line,
    show_status,
    source_files,
    write_text_file,
)
from calibrant.cli._table_options import add_table_options

if TYPE_CHECKING:
    from calibrant import Predictions

DEFAULT_CALIBRATORS_HELP = "Identity, Temperature, StructuredMatrix, HistogramBinning, Auto"
FLOATS_PER_EXAMPLE_AND_MAP = 16  # numbers that are kept of an example for each map that it is judged after
DEFAULT_METRICS_HELP = "accuracy, nll, brier, ece, adaptive_ece, classwise_ece"

MetricOption = Annotated[list[str] | None, typer.Option("--metric", "-m", help="May be given again.")]
EventOption = Annotated[
    str | None,
    typer.Option(
        help="What is judged: top, the predicted class, or a class, by index or name; default: 1 of two, else top."
    ),
]
IgnoreIndexOption = Annotated[int | None, typer.Option("--ignore-index", help="Leave out positions with this label.")]
StreamOption = Annotated[
    bool | None,
    typer.Option("--stream/--whole", help="Read the judged file in pieces; default: when it would take more memory."),
]
MemoryOption = Annotated[
    float | None, typer.Option(min=0, help="GB that the judged file may take; default: a fourth of what is free.")
]
ShowColumnsOption = Annotated[
    bool, typer.Option("--columns", help="Show the role of each column of the table, and stop.", show_default=False)
]
HtmlOption = Annotated[Path | None, typer.Option(help="Write a report here.")]
JsonOption = Annotated[Path | None, typer.Option("--json", help="Write all numbers here; - is standard output.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("assess")(add_table_options(assess_command))
    app.command("measure")(add_table_options(measure_command))
    app.command("apply")(add_table_options(apply_command))


def assess_command(
    file: Annotated[list[Path], typer.Argument(metavar="VAL [TEST]", help="Predictions to fit on, and to judge on.")],
    calibrator: Annotated[
        list[str] | None,
        typer.Option(
            "--calibrator",
            "-c",
            help="Or a saved one (.safetensors). May be given again.",
            show_default=DEFAULT_CALIBRATORS_HELP,
        ),
    ] = None,
    metric: Annotated[
        list[str] | None, typer.Option("--metric", "-m", help="May be given again.", show_default=DEFAULT_METRICS_HELP)
    ] = None,
    cv: Annotated[int | None, typer.Option(help="Cross-fit one file in so many folds; default: 5.")] = None,
    choose: Annotated[
        str | None, typer.Option(help="Which calibrator to save; default: lowest cross-fitted NLL.")
    ] = None,
    of: EventOption = None,
    html: HtmlOption = None,
    json_: JsonOption = None,
    save: Annotated[Path | None, typer.Option(help="Write the chosen calibrator here (.safetensors).")] = None,
    stream: StreamOption = None,
    memory: MemoryOption = None,
    ignore_index: IgnoreIndexOption = None,
    show_columns: ShowColumnsOption = False,
    with_: WithOption = None,
    *,
    options: dict[str, Any],
) -> None:
    """Fit calibrators on VAL, judge them on TEST; a single file is cross-fitted in 5 folds.

    Files: .npz, .safetensors, .pt with keys logits or probs, and labels, or confidence and correct; NAME_logits.npy
    with NAME_labels.npy; tables (.csv, .tsv, .jsonl, .parquet, .arrow, .xlsx, also .csv.gz and the like, a folder of
    them, or a pattern in quotes) with columns label and prob_cat, prob_dog, ..., logit_..., or confidence and correct.
    """
    import_core()
    import calibrant
    from calibrant import assessment
    from calibrant.types import InputError

    if show_columns:
        _show_columns(file, options, ignore_index)
        return
    include_sources(with_)
    _check_output_paths(html, json_, save, inputs=[*file, *(calibrator or []), *source_files(with_)])
    if save is not None and save.suffix != ".safetensors":
        raise InputError(f"a calibrator is saved as .safetensors, got {save}", code="suffix")
    if len(file) > 2 or (len(file) == 2 and cv is not None):
        raise InputError(
            f"expected two files, or one with --cv, got {len(file)} files{' and --cv' if cv else ''}", code="num_files"
        )
    load_options: dict[str, Any] = {"ignore_index": ignore_index, **options}
    val = calibrant.Predictions.load(file[0], **load_options)
    num_maps = len(calibrator or assessment.DEFAULT_CALIBRATORS) + 1
    chunks = _load_chunks_if_large(file[1], stream, load_options, memory, num_maps, json_) if len(file) == 2 else None
    test = None if len(file) == 1 else chunks or calibrant.Predictions.load(file[1], **load_options)
    _print_input_notes({file[0]: val} | ({file[1]: test} if isinstance(test, calibrant.Predictions) else {}), json_)
    with show_status() as progress:
        result = calibrant.assess(
            val,
            test,
            calibrator or None,
            metric or None,
            choose=choose,
            folds=cv or 5,
            of=_parse_event(of, val),
            progress=progress,
        )
    facts = {"fitted on" if test is not None else "cross-fitted on": _describe_file(file[0], val)}
    if test is not None:
        facts["judged on"] = (
            f"{file[1]}: {result.uncalibrated.n:,} examples, in pieces" if chunks else _describe_file(file[1], test)
        )
    if save is not None:
        result.save(save)
        _print_note(f"wrote {save} ({display_name(result.chosen_name)})", json_)
    roles = ("fitted", "judged") if len(file) == 2 else ("cross-fitted",)
    loaded = [val, test if isinstance(test, calibrant.Predictions) else None][: len(file)]
    files = zip(roles, file, loaded, strict=True)
    data = [assessment.data_source(role, p, path=path, n=result.uncalibrated.n) for role, path, p in files]
    calibrator_roles = {path: "given" for path in calibrator or [] if path.endswith(".safetensors")}
    calibrator_roles |= {} if save is None else {str(save): "saved"}
    source = {
        "data": data,
        "calibrators": [assessment.calibrator_source(role, path) for path, role in calibrator_roles.items()],
    }
    _output_result(result, json_, html and (html, result.html({"command": command_line()} | facts, save)), source)


def measure_command(
    file: Annotated[Path, typer.Argument(help="Predictions with their labels.")],
    calibrator: Annotated[
        Path | None, typer.Option("--calibrator", "-c", help="Apply a saved calibrator (.safetensors) first.")
    ] = None,
    metric: MetricOption = None,
    of: EventOption = None,
    bins: Annotated[int | None, typer.Option(min=1, help="Bins of the binned errors; default 15.")] = None,
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
    """Measure the predictions of one file as they are: nothing is fitted.

    The formats of files are those of `calibrant assess`.
    """
    import_core()
    import calibrant
    from calibrant.assessment import calibrator_source, data_source, load_checked_calibrator, summarize

    if show_columns:
        _show_columns([file], options, ignore_index)
        return
    include_sources(with_)
    _check_output_paths(html, json_, inputs=[file, calibrator, *source_files(with_)])
    calibrate = None if calibrator is None else load_checked_calibrator(calibrator)
    with show_status() as progress:
        progress("measuring")
        load_options: dict[str, Any] = {"ignore_index": ignore_index, **options}
        chunks = _load_chunks_if_large(file, stream, load_options, memory, 1, json_)
        if chunks is not None:
            predictions: Any = summarize(chunks, calibrate, of=_parse_event(of), bins=bins or 15)
            fact = f"{file}: {len(predictions):,} examples, in pieces"
            data = data_source("measured", path=file, n=len(predictions))
        else:
            predictions = calibrant.Predictions.load(file, **load_options)
            _print_input_notes({file: predictions}, json_)
            fact, data = _describe_file(file, predictions), data_source("measured", predictions, path=file)
            predictions = predictions if calibrate is None else calibrate(predictions)
        result = calibrant.measure(predictions, metrics=metric, of=_parse_event(of, predictions), bins=bins)
    facts = {"command": command_line(), "measured": fact} | ({"calibrated by": str(calibrator)} if calibrator else {})
    calibrator_sources = [] if calibrator is None else [calibrator_source("applied", calibrator)]
    source = {"data": [data], "calibrators": calibrator_sources}
    _output_result(result, json_, html and (html, result.html(facts)), source)


def apply_command(
    calibrator: Annotated[Path, typer.Argument(help="A calibrator that assess saved.")],
    file: Annotated[Path, typer.Argument(help="Predictions; labels are not needed.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Where to write: .npz, .safetensors; .csv, .parquet, ... of a table."),
    ] = None,
    show_columns: ShowColumnsOption = False,
    with_: WithOption = None,
    *,
    options: dict[str, Any],
) -> None:
    """Calibrate predictions with a saved calibrator.

    Of arrays, calibrated logits are written. A table keeps its columns and rows, and gains calibrated_... with the
    probability of each class and, of classes, `predicted`.
    """
    import_core()
    from calibrant.assessment import apply_to_file
    from calibrant.types import InputError

    if show_columns:
        _show_columns([file], options)
        return
    if output is None:
        raise InputError("expected a file to write to. Try --output calibrated.csv.", code="no_output")
    include_sources(with_)
    _check_output_paths(output, inputs=[calibrator, file, *source_files(with_)])
    count, calibrated_unit = apply_to_file(
        calibrator, file, output, on_note=lambda note: print_line(f"{file}: {note}"), **options
    )
    print_line(f"wrote {output}: calibrated {calibrated_unit} of {count:,} examples")


def _output_result(result: Any, json_: Path | None, page: tuple[Path, str] | None, source: dict[str, Any]) -> None:
    """Print a result, or its JSON alone with the `source` of its numbers, and write what was asked for."""
    if str(json_) == "-":
        print(result.json(source), end="")
    else:
        console.print(result)
    if page:
        from calibrant.io import atomic_write

        with atomic_write(page[0]) as draft:
            draft.write_text(page[1], encoding="utf-8")
        _print_note(f"wrote {page[0]}", json_)
    if json_ is not None and str(json_) != "-":
        write_text_file(json_, result.json(source))


def _print_note(text: str, json_: Path | None) -> None:
    """Say what was done, but not into JSON."""
    if str(json_) != "-":
        print_line(text)


def _check_output_paths(*paths: Path | None, inputs: Iterable[str | Path | None]) -> None:
    from calibrant.io import check_outputs, ensure_writable

    files = [path for path in paths if path is not None and str(path) != "-"]
    check_outputs(files, inputs)
    for path in files:
        ensure_writable(path)


def _print_input_notes(files: "dict[Path, Predictions]", json_: Path | None) -> None:
    """Say what was noticed at the door, once for what is the same of several files."""
    notes: dict[str, list[str]] = {}
    for path, p in files.items():
        for note in p.notes:
            notes.setdefault(note, []).append(str(path))
    for note, paths in notes.items():
        _print_note(f"{' and '.join(paths)}: {note}", json_)


def _parse_event(event_text: str | None, predictions: Any = None) -> Any:
    """What is judged: a word, a class by its name, or else by its index."""
    if (
        event_text is None
        or event_text in ("top", "classes")
        or event_text in (getattr(predictions, "class_names", None) or ())
    ):
        return event_text
    index = parse_integer(event_text)
    return event_text if index is None else index


def _describe_file(path: Path, p: Any) -> str:
    return f"{path}: {p!r}, digest {p.digest}"


def _load_chunks_if_large(
    path: Path,
    stream: bool | None,
    load_options: dict[str, Any],
    memory: float | None,
    num_maps: int,
    json_: Path | None,
) -> "Iterable[Predictions] | None":
    """Return the pieces of a file that is read so: when asked for, or when it would take more memory than it may."""
    from calibrant import Predictions, io
    from calibrant.io.columns import TableOptions
    from calibrant.types import InputError

    if stream is False or (stream is None and not io.is_chunkable(path)):
        return None
    try:
        file = io.open_chunked(path, TableOptions.from_keywords(load_options))
    except InputError:
        if stream is None:  # columns whose role only the whole table shows
            return None
        return Predictions.load_chunks(path, **load_options)
    needed_bytes = 8 * file.num_rows * (file.width + FLOATS_PER_EXAMPLE_AND_MAP * num_maps)
    if stream is None and needed_bytes <= (_available_memory_bytes() / 4 if memory is None else 1e9 * memory):
        return None
    for note in file.notes:
        _print_note(f"{path}: {note}", json_)
    return Predictions.load_chunks(path, **load_options)


def _show_columns(files: list[Path], options: dict[str, Any], ignore_index: int | None = None) -> None:
    """Print the role of each column of tables."""
    from rich.table import Table

    from calibrant import io
    from calibrant.io.columns import TableOptions
    from calibrant.io.roles import describe_roles, infer_columns

    table_options = TableOptions.from_keywords({**options, "ignore_index": ignore_index})
    for path in files:
        if not io.is_table(path):
            print_line(f"{path}: arrays, no columns")
            continue
        loaded = io.read_table(path, table_options)
        frame = loaded.frame
        columns = infer_columns(frame, table_options)
        role_table = Table("column", "role", **BARE_TABLE_STYLE)
        for name, role in describe_roles(columns, frame.columns):
            role_table.add_row(escape_markup(name), escape_markup(role))
        print_line(f"{path}: {len(frame):,} rows")
        console.print(role_table)
        for note in (*loaded.notes, *columns.notes):
            print_line(note)


def _available_memory_bytes() -> float:
    """Bytes of memory that nobody uses, as far as the system says."""
    try:
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        return 1024.0 * int(lines["MemAvailable"].split()[0])
    except (OSError, KeyError, ValueError):  # not on every system
        return math.inf
