"""`assess`, `measure` and `apply`: one's own predictions, without any study."""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibrant._text import markup, name_text, plain_integer
from calibrant.cli._columns import with_columns
from calibrant.cli._common import PLAIN, With, command, include, load, out, say, source_files, status, write

if TYPE_CHECKING:
    from calibrant import Predictions

CALIBRATORS = "Identity, Temperature, StructuredMatrix, HistogramBinning, Auto"
COLUMNS = 16  # numbers that are kept of an example for each map that it is judged after
METRICS = "accuracy, nll, brier, ece, adaptive_ece, classwise_ece"

Metrics = Annotated[list[str] | None, typer.Option("--metric", "-m", help="May be given again.")]
Of = Annotated[
    str | None,
    typer.Option(
        help="What is judged: top, the predicted class, or a class, by index or name; default: 1 of two, else top."
    ),
]
Ignore = Annotated[int | None, typer.Option("--ignore-index", help="Leave out positions with this label.")]
Stream = Annotated[
    bool | None,
    typer.Option("--stream/--whole", help="Read the judged file in pieces; default: when it would take more memory."),
]
Memory = Annotated[
    float | None, typer.Option(min=0, help="GB that the judged file may take; default: a fourth of what is free.")
]
ShowColumns = Annotated[
    bool, typer.Option("--columns", help="Show the role of each column of the table, and stop.", show_default=False)
]
Html = Annotated[Path | None, typer.Option(help="Write a report here.")]
Json = Annotated[Path | None, typer.Option("--json", help="Write all numbers here; - is standard output.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("assess")(with_columns(assess_))
    app.command("measure")(with_columns(measure_))
    app.command("apply")(with_columns(apply_))


def assess_(
    file: Annotated[list[Path], typer.Argument(metavar="VAL [TEST]", help="Predictions to fit on, and to judge on.")],
    calibrator: Annotated[
        list[str] | None,
        typer.Option(
            "--calibrator", "-c", help="Or a saved one (.safetensors). May be given again.", show_default=CALIBRATORS
        ),
    ] = None,
    metric: Annotated[
        list[str] | None, typer.Option("--metric", "-m", help="May be given again.", show_default=METRICS)
    ] = None,
    cv: Annotated[int | None, typer.Option(help="Cross-fit one file in so many folds; default: 5.")] = None,
    choose: Annotated[
        str | None, typer.Option(help="Which calibrator to save; default: lowest cross-fitted NLL.")
    ] = None,
    of: Of = None,
    html: Html = None,
    json_: Json = None,
    save: Annotated[Path | None, typer.Option(help="Write the chosen calibrator here (.safetensors).")] = None,
    stream: Stream = None,
    memory: Memory = None,
    ignore: Ignore = None,
    columns: ShowColumns = False,
    with_: With = None,
    *,
    options: dict[str, Any],
) -> None:
    """Fit calibrators on VAL, judge them on TEST; a single file is cross-fitted in 5 folds.

    Files: .npz, .safetensors, .pt with keys logits or probs, and labels, or confidence and correct; NAME_logits.npy
    with NAME_labels.npy; tables (.csv, .tsv, .jsonl, .parquet, .arrow, .xlsx, also .csv.gz and the like, a folder of
    them, or a pattern in quotes) with columns label and prob_cat, prob_dog, ..., logit_..., or confidence and correct.
    """
    load()
    import calibrant
    from calibrant import assessment
    from calibrant.types import InputError

    if columns:
        _show_columns(file, options, ignore)
        return
    include(with_)
    _writable(html, json_, save, inputs=[*file, *(calibrator or []), *source_files(with_)])
    if save is not None and save.suffix != ".safetensors":
        raise InputError(f"a calibrator is saved as .safetensors, got {save}", code="suffix")
    if len(file) > 2 or (len(file) == 2 and cv is not None):
        raise InputError(
            f"expected two files, or one with --cv, got {len(file)} files{' and --cv' if cv else ''}", code="num_files"
        )
    how: dict[str, Any] = {"ignore_index": ignore, **options}
    val = calibrant.Predictions.load(file[0], **how)
    maps = len(calibrator or assessment.CALIBRATORS) + 1
    pieces = _in_pieces(file[1], stream, how, memory, maps, json_) if len(file) == 2 else None
    test = None if len(file) == 1 else pieces or calibrant.Predictions.load(file[1], **how)
    _told({file[0]: val} | ({file[1]: test} if isinstance(test, calibrant.Predictions) else {}), json_)
    with status() as progress:
        found = calibrant.assess(
            val,
            test,
            calibrator or None,
            metric or None,
            choose=choose,
            folds=cv or 5,
            of=_event(of, val),
            progress=progress,
        )
    facts = {"fitted on" if test is not None else "cross-fitted on": _fact(file[0], val)}
    if test is not None:
        facts["judged on"] = f"{file[1]}: {found.before.n:,} examples, in pieces" if pieces else _fact(file[1], test)
    if save is not None:
        found.save(save)
        _note(f"wrote {save} ({name_text(found.chosen)})", json_)
    roles = ("fitted", "judged") if len(file) == 2 else ("cross-fitted",)
    loaded = [val, test if isinstance(test, calibrant.Predictions) else None][: len(file)]
    files = zip(roles, file, loaded, strict=True)
    data = [assessment.data_source(role, p, path=path, n=found.before.n) for role, path, p in files]
    used = {path: "given" for path in calibrator or [] if path.endswith(".safetensors")}
    used |= {} if save is None else {str(save): "saved"}
    source = {"data": data, "calibrators": [assessment.calibrator_source(role, path) for path, role in used.items()]}
    _give(found, json_, html and (html, found.html({"command": command()} | facts, save)), source)


def measure_(
    file: Annotated[Path, typer.Argument(help="Predictions with their labels.")],
    calibrator: Annotated[
        Path | None, typer.Option("--calibrator", "-c", help="Apply a saved calibrator (.safetensors) first.")
    ] = None,
    metric: Metrics = None,
    of: Of = None,
    bins: Annotated[int | None, typer.Option(min=1, help="Bins of the binned errors; default 15.")] = None,
    html: Html = None,
    json_: Json = None,
    stream: Stream = None,
    memory: Memory = None,
    ignore: Ignore = None,
    columns: ShowColumns = False,
    with_: With = None,
    *,
    options: dict[str, Any],
) -> None:
    """Measure the predictions of one file as they are: nothing is fitted.

    The formats of files are those of `calibrant assess`.
    """
    load()
    import calibrant
    from calibrant.assessment import calibrator_source, data_source, saved, summary_of

    if columns:
        _show_columns([file], options, ignore)
        return
    include(with_)
    _writable(html, json_, inputs=[file, calibrator, *source_files(with_)])
    calibrate = None if calibrator is None else saved(calibrator)
    with status() as progress:
        progress("measuring")
        how: dict[str, Any] = {"ignore_index": ignore, **options}
        pieces = _in_pieces(file, stream, how, memory, 1, json_)
        if pieces is not None:
            judged: Any = summary_of(pieces, calibrate, of=_event(of), bins=bins or 15)
            fact = f"{file}: {len(judged):,} examples, in pieces"
            data = data_source("measured", path=file, n=len(judged))
        else:
            judged = calibrant.Predictions.load(file, **how)
            _told({file: judged}, json_)
            fact, data = _fact(file, judged), data_source("measured", judged, path=file)
            judged = judged if calibrate is None else calibrate(judged)
        measured = calibrant.measure(judged, metrics=metric, of=_event(of, judged), bins=bins)
    facts = {"command": command(), "measured": fact} | ({"calibrated by": str(calibrator)} if calibrator else {})
    applied = [] if calibrator is None else [calibrator_source("applied", calibrator)]
    source = {"data": [data], "calibrators": applied}
    _give(measured, json_, html and (html, measured.html(facts)), source)


def apply_(
    calibrator: Annotated[Path, typer.Argument(help="A calibrator that assess saved.")],
    file: Annotated[Path, typer.Argument(help="Predictions; labels are not needed.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Where to write: .npz, .safetensors; .csv, .parquet, ... of a table."),
    ] = None,
    columns: ShowColumns = False,
    with_: With = None,
    *,
    options: dict[str, Any],
) -> None:
    """Calibrate predictions with a saved calibrator.

    Of arrays, calibrated logits are written. A table keeps its columns and rows, and gains calibrated_... with the
    probability of each class and, of classes, `predicted`.
    """
    load()
    from calibrant.assessment import apply_to_file
    from calibrant.types import InputError

    if columns:
        _show_columns([file], options)
        return
    if output is None:
        raise InputError("expected a file to write to. Try --output calibrated.csv.", code="no_output")
    include(with_)
    _writable(output, inputs=[calibrator, file, *source_files(with_)])
    count, what = apply_to_file(calibrator, file, output, on_note=lambda note: say(f"{file}: {note}"), **options)
    say(f"wrote {output}: calibrated {what} of {count:,} examples")


def _give(found: Any, json_: Path | None, page: tuple[Path, str] | None, source: dict[str, Any]) -> None:
    """Print a result, or its JSON alone with the `source` of its numbers, and write what was asked for."""
    if str(json_) == "-":
        print(found.json(source), end="")
    else:
        out.print(found)
    if page:
        from calibrant.io import atomic_write

        with atomic_write(page[0]) as draft:
            draft.write_text(page[1], encoding="utf-8")
        _note(f"wrote {page[0]}", json_)
    if json_ is not None and str(json_) != "-":
        write(json_, found.json(source))


def _note(text: str, json_: Path | None) -> None:
    """Say what was done, but not into JSON."""
    if str(json_) != "-":
        say(text)


def _writable(*paths: Path | None, inputs: Iterable[str | Path | None]) -> None:
    from calibrant.io import apart, writable

    files = [path for path in paths if path is not None and str(path) != "-"]
    apart(files, inputs)
    for path in files:
        writable(path)


def _told(files: "dict[Path, Predictions]", json_: Path | None) -> None:
    """Say what was noticed at the door, once for what is the same of several files."""
    notes: dict[str, list[str]] = {}
    for path, p in files.items():
        for note in p.notes:
            notes.setdefault(note, []).append(str(path))
    for note, paths in notes.items():
        _note(f"{' and '.join(paths)}: {note}", json_)


def _event(of: str | None, p: Any = None) -> Any:
    """What is judged: a word, a class by its name, or else by its index."""
    if of is None or of in ("top", "classes") or of in (getattr(p, "class_names", None) or ()):
        return of
    index = plain_integer(of)
    return of if index is None else index


def _fact(path: Path, p: Any) -> str:
    return f"{path}: {p!r}, digest {p.digest}"


def _in_pieces(
    path: Path, stream: bool | None, how: dict[str, Any], memory: float | None, maps: int, json_: Path | None
) -> "Iterable[Predictions] | None":
    """Return the pieces of a file that is read so: when asked for, or when it would take more memory than it may."""
    from calibrant import Predictions, io
    from calibrant._columns import TableOptions
    from calibrant.types import InputError

    if stream is False or (stream is None and not io.in_pieces(path)):
        return None
    try:
        file = io.pieces_of(path, TableOptions.of(how))
    except InputError:
        if stream is None:  # columns whose role only the whole table shows
            return None
        return Predictions.load_pieces(path, **how)
    needed = 8 * file.rows * (file.width + COLUMNS * maps)
    if stream is None and needed <= (_free() / 4 if memory is None else 1e9 * memory):
        return None
    for note in file.notes:
        _note(f"{path}: {note}", json_)
    return Predictions.load_pieces(path, **how)


def _show_columns(files: list[Path], options: dict[str, Any], ignore: int | None = None) -> None:
    """Print the role of each column of tables."""
    from rich.table import Table

    from calibrant import io
    from calibrant._columns import TableOptions
    from calibrant._readings import columns_of, roles_of

    reading = TableOptions.of({**options, "ignore_index": ignore})
    for path in files:
        if not io.is_table(path):
            say(f"{path}: arrays, no columns")
            continue
        found = io.table(path, reading)
        frame = found.frame
        columns = columns_of(frame, reading)
        shown = Table("column", "role", **PLAIN)
        for name, role in roles_of(columns, frame.columns):
            shown.add_row(markup(name), markup(role))
        say(f"{path}: {len(frame):,} rows")
        out.print(shown)
        for note in (*found.notes, *columns.notes):
            say(note)


def _free() -> float:
    """Bytes of memory that nobody uses, as far as the system says."""
    try:
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        return 1024.0 * int(lines["MemAvailable"].split()[0])
    except (OSError, KeyError, ValueError):  # not on every system
        return math.inf
