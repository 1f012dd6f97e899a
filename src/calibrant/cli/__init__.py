"""The command line: each command is a thin call of a function that Python users have too.

Help needs no torch: what a command needs is imported when it runs.
"""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from calibrant._text import cut_middle, visible
from calibrant._version import __version__
from calibrant.cli import assess, show, study

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="Train, repair, measure and explain classifiers whose probabilities are true.",
)


MAX_MESSAGE = 1500  # characters of an error that are printed


def main() -> None:
    """Run the command line; bad input is one line and exit status 2."""
    _threads(sys.argv[1:])
    try:
        app()
    except ValueError as error:
        from calibrant.types import InputError

        if not isinstance(error, InputError):
            raise
        print(f"calibrant: {visible(cut_middle(str(error), MAX_MESSAGE))}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        print(visible(f"calibrant: cannot read or write{where}: {error.strerror or error}"), file=sys.stderr)
        sys.exit(2)
    except SystemExit as end:
        if end.code == 130:  # so typer ends at Ctrl-C
            print("calibrant: stopped; what was finished is kept, start again to go on", file=sys.stderr)
        raise


LARGE = 500e6  # bytes of files from which on several threads are worth it
FEW = ("assess", "measure", "apply")  # commands that train nothing


def _threads(arguments: list[str]) -> None:
    """Decide, before torch is loaded, in how many threads a command works, where the user has not.

    Small files are worked on in one: on a quiet machine that is as fast, beside other work several times faster. Where
    there are more threads, those that wait sleep.
    """
    if arguments[:1] and arguments[0] in FEW:
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        files = (Path(argument) for argument in arguments[1:])
        if sum(_size(file) for file in files) < LARGE:
            os.environ.setdefault("OMP_NUM_THREADS", "1")


def _size(path: Path) -> float:
    """Bytes of a file, or of the files of a folder; a pattern may stand for any number."""
    try:
        if "*" in path.name:
            return LARGE
        return float(sum(file.stat().st_size for file in (path.iterdir() if path.is_dir() else [path])))
    except (OSError, ValueError):  # no file, but a word
        return 0.0


def _version(show: bool | None) -> None:
    if show:
        print(f"calibrant {__version__}")
        raise typer.Exit


@app.callback()
def _root(  # pyright: ignore[reportUnusedFunction]
    version: Annotated[bool | None, typer.Option("--version", callback=_version, help="Print the version.")] = None,
) -> None:
    pass


assess.register(app)
show.register(app)
study.register(app)
app.add_typer(study.study_app, name="study")
