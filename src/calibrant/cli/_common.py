"""What commands share: options, the console, output, the user's own methods, and quick imports."""

import gc
import inspect
import shlex
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import wraps
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from rich.console import Console
from typer import Option

from calibrant._core.arguments import limits
from calibrant._core.errors import InputError, prefix_errors
from calibrant._core.grouping import group_pairs
from calibrant._core.text import escape_invisible, escape_markup, parse_integer

SMALL_INPUT_BYTES = 1_000_000  # of files for which the compiler takes longer than all work
MAX_PIPED_COLUMNS = 10_000  # more than any sentence has, so that piped lines stay whole
console = Console(highlight=False, width=None if sys.stdout.isatty() else MAX_PIPED_COLUMNS)
BARE_TABLE_STYLE: dict[str, Any] = {"box": None, "pad_edge": False, "header_style": "dim"}


def option_limits(hint: Any) -> dict[str, Any]:
    """Return the settings `min` and `max` of an option, from the annotation of the argument that it becomes.

    >>> from calibrant._core.arguments import Fraction
    >>> option_limits(Fraction | None)
    {'min': 0, 'max': 1}
    """
    limit = next(limits(hint))
    return {"min": limit.ge, "max": limit.le}


CONTRACT_OPTION = Option(
    None,
    "--contract",
    metavar="FILE",
    help="Contract of `calibrant contract`; the predictions are those of the network, before calibration.",
)
EVENT_OPTION = Option(
    None,
    metavar="EVENT",
    help='Event to evaluate: "top" (the predicted class is right), or a class by index or name. Default: of two '
    "classes the positive one, by its name or else class 1; of more, top.",
)
HTML_OPTION = Option(None, metavar="FILE", help="Write a report to this file.")
IGNORE_INDEX_OPTION = Option(None, metavar="N", help="Leave out rows with this label. Default: none.")
LEVEL_OPTION = Option(0.90, "--level", metavar="P", help="Level of the intervals.")
JSON_OPTION = Option(
    None, "--json", metavar="FILE", help="Write all numbers to this file, or to standard output if it is -."
)
WITH_OPTION = Option(
    None,
    "--with",
    metavar="FILE",
    help="Import this Python file or package first, which registers your own methods. Repeatable.",
)


@contextmanager
def show_status() -> Generator[Callable[[str], object], None, None]:
    """Yield a function that shows the current step on a terminal, and does nothing elsewhere."""
    if not console.is_terminal:
        yield lambda text: None
        return
    with console.status("reading") as spinner:
        yield lambda text: spinner.update(escape_markup(text))


def parse_event(text: str | None, predictions: Any = None) -> Any:
    """Return the event of the option --of: the index of a class for a number, unless a class has it as its name.

    Any other text is returned as it is, and refused later if it names no event. None stands for the default event.

    Args:
        text: The value of the option, None without the option.
        predictions: Predictions with the names of the classes.
    """
    class_names = getattr(predictions, "class_names", None) or ()  # chunks of a file have no names
    index = None if text is None or text in class_names else parse_integer(text)  # a class may be named "1"
    return text if index is None else index


def load_aggregates(path: Path, options: Mapping[str, Any]) -> Any:
    """Return the summary of a file, folder or pattern of the answers of `Summary.query`, or None for other files."""
    from calibrant.io.tables import read_aggregates

    frame = read_aggregates(path, "calibrant_summary", ["group_name"])
    if frame is None:
        return None
    from calibrant.metrics import Summary

    if refused := [name for name, value in options.items() if value is not None and name != "drop"]:
        raise InputError(
            f"{path}: Expected no options of predictions for sums of a database, got {', '.join(refused)}. Try them as "
            "options of Summary.query.",
            code="aggregates_options",
        )
    with prefix_errors(f"{path}"):
        summary = Summary.from_aggregates(frame, drop=bool(options.get("drop")))
    print_line(f"{path}: Read the sums of {len(summary):,} rows.")
    return summary


def group_options(options: dict[str, Any], by: str | None) -> dict[str, Any]:
    """Return the table options with the column that `--by` names as the column of groups, or unchanged without `--by`.

    Raises:
        InputError: If `--group` names another column.
    """
    if by is None:
        return options
    if options.get("group") not in (None, by):
        raise InputError(
            f"Expected one column of groups, got --by {by} and --group {options['group']}. Try --by alone.",
            code="groups_twice",
        )
    return options | {"group": by}


def check_output_paths(
    *paths: Path | None,
    inputs: Iterable[str | Path | None],
    suffixes: Mapping[Path | None, tuple[str, ...]] = MappingProxyType({}),
) -> None:
    """Raise `InputError` before any work if an output cannot be written, or would replace an input.

    Args:
        paths: The outputs; None and - are ignored.
        inputs: Files that the command reads. The files of the user's own methods (--with) are added to them.
        suffixes: The suffixes that some of the outputs may have; the key None is ignored.
    """
    from calibrant._core.files import check_suffix, ensure_writable
    from calibrant.io.files import check_outputs

    files = [path for path in paths if path is not None and str(path) != "-"]
    check_outputs(files, [*inputs, *_included_files()])
    for path in files:
        if path in suffixes:
            check_suffix(path, suffixes[path])
        ensure_writable(path)


def _included_files() -> list[Path]:
    """Return the Python files of the user's own methods."""
    from calibrant._core.registry import INCLUDED_SOURCES

    files: list[Path] = []
    for source in INCLUDED_SOURCES:  # the path of a file, or the name of a module or package
        module = sys.modules.get(source)
        files.append(Path(getattr(module, "__file__", None) or source))
        for folder in getattr(module, "__path__", ()):  # of a package
            files.extend(Path(folder).rglob("*.py"))
    return files


def bare_table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, num_text_columns: int) -> Any:
    """Return a table without lines, whose columns after the first `num_text_columns` are aligned as numbers."""
    from rich.table import Table

    table = Table(**BARE_TABLE_STYLE)
    for i, heading in enumerate(headings):
        table.add_column(heading, justify="left" if i < num_text_columns else "right")
    for row in rows:
        table.add_row(*map(escape_markup, row))
    return table


def output_result(
    result: Any,
    json_: Path | None,
    written: Iterable[object] = (),
    *,
    html: Path | None = None,
    page: Callable[[], str] = str,  # str() is an empty page, for commands without the option `html`
    show: Callable[[], object] | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> None:
    """Show a result, write its page and its JSON, and list the files that were written.

    Args:
        result: The result.
        json_: File of the JSON, or - for standard output.
        written: Files that were written before; None is skipped.
        html: File of the page.
        page: Returns the page.
        show: Prints the result. Default: as rich tables if the result has them, else as text.
        provenance: Provenance in the JSON. Default: the command.
    """
    from calibrant._core.files import write_text

    if html is not None:
        write_text(html, page())
    if show is not None:
        show()
    elif hasattr(result, "__rich__"):
        console.print(result)
    else:
        print_text(str(result))
    if json_ is not None:
        text = result.json({"command": command_line()} if provenance is None else provenance)
        if str(json_) == "-":
            print(text, end="")
        else:
            write_text(json_, text)
    for path in (html, *written, json_):
        if path is not None:
            print_line(f"wrote {path}")


def print_input_notes(files: Iterable[tuple[Path, Any]]) -> None:
    """Print the notes on how predictions were read, a note of several files only once.

    Args:
        files: Paths and the predictions read from them, None for a file that is read in chunks.
    """
    whole_files = [(path, p) for path, p in files if p is not None]  # the others are read in chunks
    paths_by_note = group_pairs((note, str(path)) for path, p in whole_files for note in p.notes)
    for note, paths in paths_by_note.items():
        print_line(f"{' and '.join(paths)}: {note}")


def print_text(text: str) -> None:
    """Print text of several lines, without markup and wrapping."""
    console.print(escape_invisible(text, allowed="\n"), markup=False, soft_wrap=True)


def print_line(text: str) -> None:
    """Print one line, without wrapping it."""
    console.print(escape_invisible(text), soft_wrap=True, markup=False)


def command_line() -> str:
    """Return the command as the user typed it."""
    return shlex.join(["calibrant", *sys.argv[1:]])


# Commands for predictions


class TableOption(NamedTuple):
    """An option of commands that read tables."""

    type: Any
    help: str
    metavar: str | None = None  # placeholder of the value in the help; None: a flag


_ROLE_HELP = {
    "label": "Column of the true labels. Default: label, y_true, target and similar names.",
    "probs": "Columns of probabilities: a name, several (a,b,c), or a prefix. Default: prob_..., probs, score "
    "and similar names.",
    "logits": "Columns of logits: a name, several (a,b,c), or a prefix. Default: logit_..., logits and similar names.",
    "predicted": "Column of predicted labels, beside a confidence. Default: y_pred, prediction and similar names.",
    "confidence": "Column of stated confidences. Default: confidence and similar names.",
    "correct": "Column that tells whether the answer was correct. Default: correct and similar names.",
    "group": "Column of groups, which are measured separately. Default: group.",
    "weight": "Column of weights, see --weights-are. Default: weight, if it sums to about the number of rows.",
    "cluster": "Column of clusters, whose rows depend on each other. Default: cluster.",
    "id": "Column of row names. Default: id and similar names.",
}
ROLE_OPTIONS = {role: TableOption(str | None, text, "NAME") for role, text in _ROLE_HELP.items()}
READING_OPTIONS = {
    "positive": TableOption(
        str | None, "Positive class of a single score. Default: 1, yes, true and similar names.", "NAME"
    ),
    "labels_from": TableOption(int | None, "Number of the first class. Default: 0.", "N"),
    "percent": TableOption(bool | None, "Read probabilities as percentages from 0 to 100."),
    "normalize": TableOption(
        bool | None, "Divide rows of rounded probabilities, with sums from 0.97 to 1.03, by their sum."
    ),
    "drop": TableOption(bool | None, "Leave out rows with missing values, or with confidences outside [0, 1]."),
    "na": TableOption(list[str] | None, "Read this word as a missing value. Repeatable.", "WORD"),
    "encoding": TableOption(str | None, "Encoding of a text file, such as cp1252. Default: detected.", "NAME"),
    "are_logits": TableOption(bool | None, "Read single scores as logits although all of them lie in [0, 1]."),
    "weights_are": TableOption(
        str | None,
        "What weights are: counts, numbers of copies; or importance, as survey weights. Default: counts if all are "
        "integers, else importance.",
        "WORD",
    ),
}
LOG_OPTIONS = {
    "task": TableOption(list[str] | None, "Task of evaluation logs to keep. Repeatable. Default: all.", "NAME"),
    "filter": TableOption(list[str] | None, "Filter of lm-evaluation-harness whose scores count. Repeatable.", "NAME"),
}


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    """Return a keyword-only parameter of a command, which typer turns into an option."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _table_parameter(name: str, option: TableOption, panel: str) -> inspect.Parameter:
    """Return the parameter of a table option, listed in the panel of the help with this title."""
    flag = f"--{name.replace('_', '-')}"
    default = Option(None, flag, metavar=option.metavar, help=option.help, rich_help_panel=panel)
    return _keyword(name, option.type, default)


TABLE_PARAMETERS = [
    *(_table_parameter(name, option, "Columns of tables") for name, option in (ROLE_OPTIONS | READING_OPTIONS).items()),
    *(_table_parameter(name, option, "Evaluation logs") for name, option in LOG_OPTIONS.items()),
]


def prediction_command(function: Callable[..., None]) -> Callable[..., None]:
    """Return the function that typer runs as a command: it imports the modules for predictions and calls `function`.

    With `--json -`, standard output is JSON alone: the console is quiet.

    If `function` has the parameter `options`, it reads tables. In place of this parameter, the command has the option
    `--with` and one option for each of `TABLE_PARAMETERS`. Those that the user set become the mapping `options`.
    """
    signature = inspect.signature(function)
    parameters = [p.replace(kind=p.KEYWORD_ONLY) for p in signature.parameters.values() if p.name != "options"]
    reads_tables = "options" in signature.parameters
    if reads_tables:
        parameters += [_keyword("with_", list[str] | None, WITH_OPTION), *TABLE_PARAMETERS]

    @wraps(function)
    def run(**arguments: Any) -> None:  # called by typer with the values of all options
        is_small = _are_small(arguments.values())
        import_prediction_modules(with_kernels=not is_small)
        from calibrant._core.kernels.dispatch import without_compiler

        if reads_tables:
            from calibrant._core import registry

            registry.include(arguments.pop("with_") or ())
            values = {parameter.name: arguments.pop(parameter.name) for parameter in TABLE_PARAMETERS}
            arguments["options"] = {
                name: _split_names(name, value)
                for name, value in values.items()
                if value is not None and value is not False and value != []  # not `if value`: 0 is a number of a class
            }
        console.quiet = str(arguments.get("json_")) == "-"
        try:
            with without_compiler() if is_small else nullcontext():
                function(**arguments)
        finally:
            console.quiet = False

    # Typer reads the signature and the type hints, which `wraps` has copied from the function
    run.__signature__ = signature.replace(parameters=parameters)  # pyright: ignore[reportAttributeAccessIssue]
    run.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": None}
    return run


def _split_names(role: str, value: Any) -> Any:
    """Return the names of several columns of scores, which commas separate, as a list, and other values unchanged."""
    return value.split(",") if role in ("probs", "logits") and "," in value else value


def _are_small(values: Iterable[Any]) -> bool:
    """Return whether the files among the values of a command's arguments have few bytes in all. A folder has many."""
    paths = [path for value in values for path in (value if isinstance(value, list) else [value])]
    try:
        sizes = [path.stat().st_size for path in paths if isinstance(path, Path) and path.is_file()]
        return sum(sizes) <= SMALL_INPUT_BYTES and not any(isinstance(path, Path) and path.is_dir() for path in paths)
    except OSError:  # the command itself says what is wrong with a file
        return True


def import_prediction_modules(with_kernels: bool = True) -> None:
    """Import the modules for predictions once, with the compiled kernels or without, and without garbage collection.

    No imported object is garbage, and the collector would take as long as measuring a small file.
    """
    if "calibrant.assessment" in sys.modules:
        return
    gc.disable()
    try:
        from calibrant import assessment  # noqa: F401  # pyright: ignore[reportUnusedImport]
        from calibrant._core.kernels.dispatch import cpu_kernels

        if with_kernels:
            cpu_kernels()  # which are otherwise imported on first use
    finally:
        gc.freeze()  # later collections skip the objects that exist now
        gc.enable()
