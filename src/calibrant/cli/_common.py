"""Options, consoles and output that commands share."""

import shlex
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rich.console import Console
from typer import Option

from calibrant._errors import InputError
from calibrant._text import escape_invisible, escape_markup, parse_integer

MAX_PIPED_COLUMNS = 10_000  # more than any sentence has, so that piped lines stay whole
console = Console(highlight=False, width=None if sys.stdout.isatty() else MAX_PIPED_COLUMNS)
BARE_TABLE_STYLE: dict[str, Any] = {"box": None, "pad_edge": False, "header_style": "dim"}

CONTRACT_OPTION = Option(
    None,
    "--contract",
    metavar="FILE",
    help="Contract of `calibrant contract`; the predictions are those of the network, before calibration.",
)
EVENT_OPTION = Option(
    None,
    metavar="EVENT",
    help='Event to evaluate: "top" (the predicted class is right), or a class by index or name. Default: class 1 of '
    "two, else top.",
)
HTML_OPTION = Option(None, metavar="FILE", help="Write a report to this file.")
IGNORE_INDEX_OPTION = Option(None, metavar="N", help="Leave out rows with this label. Default: none.")
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
    """Return the event of the option --of: the index of a class if the text is a number and no name of a class.

    Any other text is returned as it is, and refused later if it names no event; None stands for the default event.
    """
    class_names = getattr(predictions, "class_names", None) or ()  # chunks of a file have no names
    index = None if text is None or text in class_names else parse_integer(text)  # a class may be named "1"
    return text if index is None else index


def group_options(options: dict[str, Any], by: str | None) -> dict[str, Any]:
    """Return the table options with the column of `--by` as groups, or unchanged without `--by`.

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
    from calibrant.io.files import check_outputs, ensure_writable
    from calibrant.io.results import check_suffix

    files = [path for path in paths if path is not None and str(path) != "-"]
    check_outputs(files, [*inputs, *_included_files()])
    for path in files:
        if path in suffixes:
            check_suffix(path, suffixes[path])
        ensure_writable(path)


def _included_files() -> list[Path]:
    """Return the Python files of the user's own methods."""
    from calibrant.registry import INCLUDED_SOURCES

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
    from calibrant.io.files import write_text

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
    """Print the notes on how predictions were read, once if several files have the same."""
    notes: dict[str, list[str]] = {}
    for path, predictions in files:
        if predictions is not None:  # else the file is read in chunks
            for note in predictions.notes:
                notes.setdefault(note, []).append(str(path))
    for note, paths in notes.items():
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
