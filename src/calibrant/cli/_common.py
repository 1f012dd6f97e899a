"""Options, consoles and output that commands share."""

import gc
import shlex
import sys
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from calibrant._text import escape_invisible, escape_markup, parse_integer

console = Console(highlight=False, width=None if sys.stdout.isatty() else 400)  # whole lines if piped
BARE_TABLE_STYLE: dict[str, Any] = {"box": None, "pad_edge": False, "header_style": "dim"}

WithOption = Annotated[
    list[str] | None,
    typer.Option(
        "--with",
        metavar="FILE",
        help="Import this Python file or package first, which registers your own methods. Repeatable.",
    ),
]


ContractOption = Annotated[
    Path | None,
    typer.Option(
        "--contract",
        metavar="FILE",
        help="Contract of `calibrant contract`; the predictions are those of the network, before calibration.",
    ),
]


def load_contract(path: Path | None) -> Any:
    """Return a contract, or None without a path."""
    if path is None:
        return None
    from calibrant.deployment import Contract

    return Contract.load(path)


def import_prediction_modules() -> None:
    """Import the modules for predictions once, without garbage collection.

    No imported object is garbage, and the collector would take as long as measuring a small file.
    """
    if "torch" in sys.modules:
        return
    gc.disable()
    try:
        import torch

        from calibrant import assessment  # noqa: F401  # pyright: ignore[reportUnusedImport]
        from calibrant.backend.dispatch import kernels

        kernels(torch.empty(0))  # imports the compiled kernels, which are otherwise imported on first use
    finally:
        gc.freeze()  # later collections skip the objects that exist now
        gc.enable()


def include_sources(sources: Iterable[str] | None) -> None:
    """Import the user's own methods."""
    from calibrant import registry

    registry.include(sources or ())


def source_files(sources: Iterable[str] | None) -> list[Path]:
    """Return the Python files of the user's own methods, after they are imported."""
    files = [Path(source) for source in sources or ()]
    for module in [sys.modules[source] for source in sources or () if source in sys.modules]:
        files += [Path(module.__file__)] if module.__file__ else []
        files += [file for folder in getattr(module, "__path__", ()) for file in Path(folder).rglob("*.py")]
    return files


@contextmanager
def show_status() -> Generator[Callable[[str], object], None, None]:
    """Give a function that shows the current step on a terminal."""
    if not console.is_terminal:
        yield lambda text: None
        return
    with console.status("reading") as spinner:
        yield lambda text: spinner.update(escape_markup(text))


def parse_event(text: str | None, predictions: Any = None) -> Any:
    """Return the event: "top" or "classes", a class name, or else an index."""
    if text is None or text in ("top", "classes", *(getattr(predictions, "class_names", None) or ())):
        return text
    index = parse_integer(text)
    return text if index is None else index


def check_output_paths(*paths: Path | None, inputs: Iterable[str | Path | None]) -> None:
    """Raise `InputError` before any work if an output cannot be written."""
    from calibrant.io import check_outputs, ensure_writable

    files = [path for path in paths if path is not None and str(path) != "-"]
    check_outputs(files, inputs)
    for path in files:
        ensure_writable(path)


def write_text_file(path: Path, text: str) -> None:
    """Write a text file at once, or not at all."""
    from calibrant.io import atomic_write

    with atomic_write(path) as draft:
        draft.write_text(text, encoding="utf-8")


def output_result(
    result: Any, show: Callable[[], None], json_: Path | None, written: Iterable[Path | None] = ()
) -> None:
    """Print the JSON of a result alone if it goes to standard output; else show it, write the JSON, and list files."""
    if str(json_) == "-":
        print(result.json({"command": command_line()}), end="")
        return
    show()
    if json_ is not None:
        write_text_file(json_, result.json({"command": command_line()}))
    for path in (*written, json_):
        if path is not None:
            print_line(f"wrote {path}")


def print_text(text: str) -> None:
    """Print text of several lines, without markup and wrapping."""
    console.print(escape_invisible(text, allowed="\n"), markup=False, soft_wrap=True)


def print_line(text: str) -> None:
    """Print one line, without wrapping it."""
    console.print(escape_invisible(text), soft_wrap=True, markup=False)


def command_line() -> str:
    """Return the command as the user typed it."""
    return shlex.join(["calibrant", *sys.argv[1:]])
