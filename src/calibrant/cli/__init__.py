"""The command line: each command is a thin call of a function that Python users have too.

Help needs no torch: what a command needs is imported when it runs.
"""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from calibrant._text import cut_middle, escape_invisible
from calibrant._version import __version__
from calibrant.cli import assess, list_methods, study

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="Train, repair, measure and explain classifiers whose probabilities are true.",
)


MAX_ERROR_CHARACTERS = 1500  # characters of an error that are printed


def main() -> None:
    """Run the command line; bad input is one line and exit status 2."""
    _set_thread_defaults(sys.argv[1:])
    try:
        app()
    except ValueError as error:
        from calibrant.types import InputError

        if not isinstance(error, InputError):
            raise
        print(f"calibrant: {escape_invisible(cut_middle(str(error), MAX_ERROR_CHARACTERS))}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        filename_text = f" {error.filename}" if error.filename else ""
        print(
            escape_invisible(f"calibrant: cannot read or write{filename_text}: {error.strerror or error}"),
            file=sys.stderr,
        )
        sys.exit(2)
    except SystemExit as end:
        if end.code == 130:  # so typer ends at Ctrl-C
            print("calibrant: stopped; what was finished is kept, start again to go on", file=sys.stderr)
        raise


MIN_PARALLEL_BYTES = 500e6  # bytes of files from which on several threads are worth it
PREDICTION_COMMANDS = ("assess", "measure", "apply")  # commands that train nothing


def _set_thread_defaults(arguments: list[str]) -> None:
    """Decide, before torch is loaded, in how many threads a command works, where the user has not.

    Small files are worked on in one: on a quiet machine that is as fast, beside other work several times faster. Where
    there are more threads, those that wait sleep.
    """
    if arguments[:1] and arguments[0] in PREDICTION_COMMANDS:
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        files = (Path(argument) for argument in arguments[1:])
        if sum(_count_bytes(file) for file in files) < MIN_PARALLEL_BYTES:
            os.environ.setdefault("OMP_NUM_THREADS", "1")


def _count_bytes(path: Path) -> float:
    """Bytes of a file, or of the files of a folder; a pattern may stand for any number."""
    try:
        if "*" in path.name:
            return MIN_PARALLEL_BYTES
        return float(sum(file.stat().st_size for file in (path.iterdir() if path.is_dir() else [path])))
    except (OSError, ValueError):  # no file, but a word
        return 0.0


def _print_version(show: bool | None) -> None:
    if show:
        print(f"calibrant {__version__}")
        raise typer.Exit


@app.callback()
def _root_options(  # pyright: ignore[reportUnusedFunction]
    version: Annotated[
        bool | None, typer.Option("--version", callback=_print_version, help="Print the version.")
    ] = None,
) -> None:
    pass


assess.register(app)
list_methods.register(app)
study.register(app)
app.add_typer(study.study_app, name="study")
