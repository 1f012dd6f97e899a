"""The commands `assess`, `measure` and `apply` for your own predictions."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from typer import Argument, Option

from calibrant._core.arguments import Count, Fraction
from calibrant._core.errors import InputError
from calibrant._core.files import COMPRESSION_SUFFIXES
from calibrant._core.text import display_name
from calibrant.cli._common import (
    EVENT_OPTION,
    HTML_OPTION,
    IGNORE_INDEX_OPTION,
    JSON_OPTION,
    LEVEL_OPTION,
    bare_table,
    check_output_paths,
    command_line,
    console,
    load_aggregates,
    option_limits,
    output_result,
    parse_event,
    print_input_notes,
    print_line,
    show_status,
)
from calibrant.io.formats import CALIBRATOR_SUFFIX, FORMATS, WRITABLE_SUFFIXES, list_suffixes

DEFAULT_CALIBRATORS_HELP = "Identity, Temperature, StructuredMatrix, HistogramBinning, Auto"
DEFAULT_METRICS_HELP = "accuracy, nll, brier, ece, adaptive_ece, classwise_ece"
FLOATS_PER_ROW_AND_CALIBRATOR = 16  # that an assessment keeps for each calibrator
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

STREAM_OPTION = Option(
    None, "--stream/--whole", help="Read the evaluated file in chunks, or whole. Default: in chunks beyond --memory."
)
MEMORY_OPTION = Option(
    None, min=0, metavar="GB", help="Memory limit in GB for the evaluated file. Default: a quarter of the free memory."
)
COLUMNS_OPTION = Option(
    False, "--columns", help="Only print the role of each column of the tables.", show_default=False
)
TOLERANCE_OPTION = Option(
    None,
    metavar="ERROR",
    help="Largest acceptable calibration error. If the data cannot rule out a larger one, there is too little data to "
    "tell. Default: 0.05, or half of the base rate of a class if that is less.",
    **option_limits(Fraction),
)


def assess_command(
    file: list[Path] = Argument(
        ..., metavar="VAL [TEST]", help="Predictions to fit on, and predictions to evaluate on."
    ),
    calibrator: list[str] | None = Option(
        None,
        "--calibrator",
        "-c",
        metavar="NAME",
        help=f"Calibrator to compare, or the file of a saved one ({CALIBRATOR_SUFFIX}). Repeatable.",
        show_default=DEFAULT_CALIBRATORS_HELP,
    ),
    metric: list[str] | None = Option(
        None,
        "--metric",
        "-m",
        metavar="NAME",
        help="Metric to compare by. Repeatable.",
        show_default=DEFAULT_METRICS_HELP,
    ),
    cv: int | None = Option(None, metavar="FOLDS", help="Number of folds for a single file. Default: 5."),
    choose: str | None = Option(
        None, metavar="NAME", help="Calibrator to choose. Default: the lowest cross-fitted NLL."
    ),
    of: str | None = EVENT_OPTION,
    tolerance: float | None = TOLERANCE_OPTION,
    level: float = LEVEL_OPTION,
    html: Path | None = HTML_OPTION,
    json_: Path | None = JSON_OPTION,
    save: Path | None = Option(
        None, metavar="FILE", help=f"Write the chosen calibrator to this file ({CALIBRATOR_SUFFIX})."
    ),
    stream: bool | None = STREAM_OPTION,
    memory: float | None = MEMORY_OPTION,
    ignore_index: int | None = IGNORE_INDEX_OPTION,
    show_columns: bool = COLUMNS_OPTION,
    *,
    options: dict[str, Any],
) -> None:
    """Fit calibrators on VAL and compare them on TEST, or by cross-fitting."""
    from calibrant import assessment
    from calibrant.predictions import Predictions

    if show_columns:
        _print_columns(file, options, ignore_index)
        return
    saved_calibrators = [path for path in calibrator or [] if path.endswith(CALIBRATOR_SUFFIX)]
    inputs = [*file, *saved_calibrators]
    check_output_paths(html, json_, save, inputs=inputs, suffixes={save: (CALIBRATOR_SUFFIX,)})
    has_test = len(file) == 2
    if len(file) > 2 or (has_test and cv is not None):
        inputs_text = f"{len(file)} files{' and --cv' if cv is not None else ''}"
        raise InputError(f"Expected two files, or one with --cv, got {inputs_text}.", code="num_files")
    load_options: dict[str, Any] = {"ignore_index": ignore_index, **options}
    val, test = Predictions.load(file[0], **load_options), None
    loaded: list[Any] = [val]  # per file, None if it is read in chunks
    if has_test:
        num_calibrators = len(calibrator or assessment.DEFAULT_CALIBRATORS) + 1  # and the uncalibrated predictions
        test, is_streamed = _load(file[1], load_options, stream=stream, memory=memory, num_calibrators=num_calibrators)
        loaded.append(None if is_streamed else test)
    print_input_notes(zip(file, loaded, strict=True))
    with show_status() as progress:
        result = assessment.assess(
            val,
            test,
            calibrator or None,
            metric or None,
            choose=choose,
            folds=5 if cv is None else cv,
            of=parse_event(of, val),
            tolerance=tolerance,
            level=level,
            progress=progress,
        )
    page_facts, data_sources = {"command": command_line()}, list[dict[str, Any]]()
    # the role of each file on the page, and in the JSON
    roles = {"fitted on": "fitted", "evaluated on": "judged"} if has_test else {"cross-fitted on": "cross-fitted"}
    for (page_role, json_role), path, p in zip(roles.items(), file, loaded, strict=True):
        n = result.uncalibrated.n  # of the evaluated file, the only one that may be read in chunks
        page_facts[page_role] = _describe_file(path, p, n)
        data_sources.append(assessment.data_source(json_role, p, path=path, n=n))
    calibrator_sources = [assessment.calibrator_source("given", path) for path in saved_calibrators]
    written: list[str] = []
    if save is not None:
        result.save(save)
        calibrator_sources.append(assessment.calibrator_source("saved", save))
        written.append(f"{save} ({display_name(result.chosen_name)})")
    provenance = {"data": data_sources, "calibrators": calibrator_sources}
    output_result(result, json_, written, html=html, page=lambda: result.html(page_facts, save), provenance=provenance)


def measure_command(
    file: Path = Argument(..., metavar="FILE", help="Predictions with labels."),
    calibrator: Path | None = Option(
        None, "--calibrator", "-c", metavar="FILE", help=f"Apply this saved calibrator ({CALIBRATOR_SUFFIX}) first."
    ),
    metric: list[str] | None = Option(
        None, "--metric", "-m", metavar="NAME", help="Metric to add to the default ones. Repeatable."
    ),
    of: str | None = EVENT_OPTION,
    bins: int | None = Option(
        None, metavar="N", help="Number of bins of binned metrics. Default: 15.", **option_limits(Count)
    ),
    tolerance: float | None = TOLERANCE_OPTION,
    level: float = LEVEL_OPTION,
    html: Path | None = HTML_OPTION,
    json_: Path | None = JSON_OPTION,
    stream: bool | None = STREAM_OPTION,
    memory: float | None = MEMORY_OPTION,
    ignore_index: int | None = IGNORE_INDEX_OPTION,
    show_columns: bool = COLUMNS_OPTION,
    *,
    options: dict[str, Any],
) -> None:
    """Measure the calibration of predictions as they are, without fitting anything."""
    from calibrant import assessment

    if show_columns:
        _print_columns([file], options, ignore_index)
        return
    check_output_paths(html, json_, inputs=[file, calibrator])
    # a function of predictions
    calibrate = (lambda p: p) if calibrator is None else assessment.load_checked_calibrator(calibrator)
    with show_status() as progress:
        progress("measuring")
        load_options = {"ignore_index": ignore_index, **options}
        calibrated: Any = load_aggregates(file, load_options)
        p = None  # the rows, if they are in memory
        if calibrated is None:
            loaded, is_streamed = _load(file, load_options, stream=stream, memory=memory, num_calibrators=1)
            if is_streamed:
                calibrated = assessment.summarize(loaded, calibrate, of=parse_event(of), bins=bins or 15)
            else:
                calibrated, p = calibrate(loaded), loaded
                print_input_notes([(file, calibrated)])
        elif calibrator is not None:
            raise InputError(f"{file}: Expected rows to calibrate, got sums. Leave out --calibrator.", code="sums")
        event = parse_event(of, calibrated)
        result = assessment.measure(calibrated, metrics=metric, of=event, bins=bins, tolerance=tolerance, level=level)
    page_facts = {"command": command_line(), "measured": _describe_file(file, p, result.n)}
    provenance = {"data": [assessment.data_source("measured", p, path=file, n=result.n)], "calibrators": []}
    if calibrator is not None:
        page_facts["calibrated by"] = str(calibrator)
        provenance["calibrators"] = [assessment.calibrator_source("applied", calibrator)]
    output_result(result, json_, html=html, page=lambda: result.html(page_facts), provenance=provenance)


def apply_command(
    calibrator: Path = Argument(
        ..., metavar="CALIBRATOR", help="Calibrator that `assess --save` wrote, or a contract."
    ),
    file: Path = Argument(..., metavar="FILE", help="Predictions, with or without labels."),
    output: Path | None = Option(
        None,
        "--output",
        "-o",
        metavar="FILE",
        help=f"Write the calibrated predictions to this file. Required. Suffix: {list_suffixes(WRITABLE_SUFFIXES)}.",
    ),
    show_columns: bool = COLUMNS_OPTION,
    *,
    options: dict[str, Any],
) -> None:
    """Calibrate predictions with a saved calibrator.

    A table keeps its rows and columns, and gains the columns calibrated_prob_... and predicted, and act and
    prediction_set if a contract promises them. A file of arrays gets calibrated logits.
    """
    from calibrant.assessment import apply_to_file
    from calibrant.io.frames import count_rows

    if show_columns:
        _print_columns([file], options)
        return
    if output is None:
        raise InputError("Expected a file to write to, got none. Try --output calibrated.csv.", code="no_output")
    check_output_paths(output, inputs=[calibrator, file])
    n, scores = apply_to_file(calibrator, file, output, on_note=lambda note: print_line(f"{file}: {note}"), **options)
    print_line(f"wrote {output}: calibrated {scores} of {count_rows(n)}")  # "calibrated probabilities of 90 rows"


# Input


def _load(
    path: Path, load_options: Mapping[str, Any], *, stream: bool | None, memory: float | None, num_calibrators: int
) -> tuple[Any, bool]:
    """Return the predictions of a file and False, or, if it is read in chunks, an iterator of chunks and True.

    Args:
        path: File of predictions.
        load_options: Keywords of `Predictions.load`.
        stream: Whether to read in chunks; None: only if the file would take more than `memory`.
        memory: Limit in GB; None: a quarter of the free memory.
        num_calibrators: Number of calibrators whose results on every row take memory too.
    """
    from calibrant.io.column_roles import TableOptions
    from calibrant.io.predictions import exceeds_memory, open_chunked
    from calibrant.predictions import Predictions

    def print_note(note: str) -> None:
        print_line(f"{path}: {note}")

    is_streamed = bool(stream)
    if stream is not False:
        # Ignore errors here: loading raises them again, unless the file can be read whole but not in chunks
        with suppress(InputError):
            chunked_file = open_chunked(path, TableOptions.from_keywords(load_options))
            floats_per_row = chunked_file.numbers_per_row + FLOATS_PER_ROW_AND_CALIBRATOR * num_calibrators
            max_bytes = None if memory is None else 1e9 * memory
            is_streamed = is_streamed or exceeds_memory(chunked_file, floats_per_row, max_bytes)
            for note in chunked_file.notes if is_streamed else ():
                print_note(note)
    if is_streamed:
        return Predictions.load_chunks(path, on_note=print_note, **load_options), True
    return Predictions.load(path, **load_options), False


def _print_columns(files: list[Path], options: dict[str, Any], ignore_index: int | None = None) -> None:
    """Print the role of each table column. Logs and files of arrays have no columns."""
    from calibrant.io.column_roles import TableOptions
    from calibrant.io.formats import is_table
    from calibrant.io.logs import is_log
    from calibrant.io.role_inference import describe_roles, infer_columns
    from calibrant.io.tables import read_table

    table_options = TableOptions.from_keywords({**options, "ignore_index": ignore_index})
    for path in files:
        if is_log(path) or not is_table(path):
            kind = "an evaluation log" if is_log(path) else "a file of arrays"
            print_line(f"{path}: {kind} has no columns")
            continue
        table = read_table(path, table_options)
        columns = infer_columns(table.frame, table_options)
        print_line(f"{path}: {len(table.frame):,} rows")
        roles = describe_roles(columns, table.frame.columns)
        console.print(bare_table(("column", "role"), roles, num_text_columns=2))
        for note in (*table.notes, *columns.notes):
            print_line(note)


# Output


def _describe_file(path: Path, p: Any, n: int) -> str:
    """Return a file's name, size and digest. Data read in chunks have no digest."""
    return f"{path}: {n:,} examples, in chunks" if p is None else f"{path}: {p!r}, digest {p.digest}"


for function in (assess_command, measure_command):
    function.__doc__ = f"{function.__doc__}\n{FILES_HELP}"
