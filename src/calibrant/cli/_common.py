"""What commands share: options, the console, and writing what they made."""

import gc
import shlex
import sys
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from calibrant._text import escape_invisible, escape_markup

console = Console(highlight=False, width=None if sys.stdout.isatty() else 400)  # whole lines when piped
error_console = Console(highlight=False, stderr=True, width=None if sys.stderr.isatty() else 400)
BARE_TABLE_STYLE: dict[str, Any] = {"box": None, "pad_edge": False, "header_style": "dim"}

WithOption = Annotated[
    list[str] | None,
    typer.Option("--with", help="A file (mine.py) or package of your own methods, to be imported first."),
]


def import_core() -> None:
    """Load what works on predictions, once. None of it is garbage: not to look for any, here and at the end, saves as
    much time as measuring a small file takes.
    """
    if "torch" in sys.modules:
        return
    gc.disable()
    try:
        import torch

        from calibrant import assessment  # noqa: F401  # pyright: ignore[reportUnusedImport]
        from calibrant.backend.dispatch import kernels

        kernels(torch.empty(0))
    finally:
        gc.freeze()
        gc.enable()


def include_sources(sources: Iterable[str] | None) -> None:
    """Import the user's own methods."""
    from calibrant import registry

    registry.include(sources or ())


def source_files(sources: Iterable[str] | None) -> list[Path]:
    """Return the Python files of the user's own methods, once they are imported."""
    files = [Path(source) for source in sources or ()]
    modules = [sys.modules[source] for source in sources or () if source in sys.modules]
    for module in modules:
        files += [Path(module.__file__)] if module.__file__ else []
        files += [file for folder in getattr(module, "__path__", ()) for file in Path(folder).rglob("*.py")]
    return files


@contextmanager
def show_status() -> Generator[Callable[[str], object], None, None]:
    """Say what is being done while it is being done, on a terminal."""
    if not console.is_terminal:
        yield lambda text: None
        return
    with console.status("reading") as spinner:
        yield lambda text: spinner.update(escape_markup(text))


def write_text_file(path: Path, text: str) -> None:
    """Write a text, and say so."""
    from calibrant.io import atomic_write

    with atomic_write(path) as draft:
        draft.write_text(text, encoding="utf-8")
    print_line(f"wrote {path}")


def print_line(text: str) -> None:
    """Print one line on what was done, however long."""
    console.print(escape_invisible(text), soft_wrap=True, markup=False)


def command_line() -> str:
    """The command as it was given."""
    return shlex.join(["calibrant", *sys.argv[1:]])
