"""The command line: thin commands, each of which calls a public function. A command never computes by itself.

Help loads neither torch nor polars: a command imports what it needs when it runs.
"""

import os
import sys
from pathlib import Path

from typer import Exit, Option, Typer

from calibrant._core.errors import InputError
from calibrant._core.text import cut_middle, escape_invisible
from calibrant._core.version import __version__
from calibrant.cli import assess, card, deployment, list_methods, monitoring, sample_size, study
from calibrant.cli._common import prediction_command

app = Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="Train, repair, measure and explain the calibration of classifiers.",
)
MAX_ERROR_CHARACTERS = 1500
MIN_PARALLEL_BYTES = 500_000_000  # of input files that are worth several threads
PREDICTION_COMMANDS = {  # train no network
    "assess": assess.assess_command,
    "measure": assess.measure_command,
    "apply": assess.apply_command,
    "sample-size": sample_size.sample_size_command,
    "card": card.card_command,
    "check": monitoring.check_command,
    "compare": monitoring.compare_command,
    "drift": monitoring.drift_command,
    "contract": deployment.contract_command,
    "export": deployment.export_command,
    "watch": monitoring.watch_command,
}


def main() -> None:
    """Run the command line. Invalid input ends it with one line and exit status 2."""
    _set_thread_defaults(sys.argv[1:])
    try:
        app()
    except InputError as error:
        _exit_with(cut_middle(str(error), MAX_ERROR_CHARACTERS))
    except ModuleNotFoundError as error:
        _exit_with(f"this command needs the package {error.name}. Try pip install 'calibrant[train]'.")
    except OSError as error:
        file_name = f" {error.filename}" if error.filename else ""
        _exit_with(f"cannot read or write{file_name}: {error.strerror or error}")
    except SystemExit as error:
        if error.code == 130:  # the status that typer exits with after Ctrl-C
            is_training = sys.argv[1:3] == ["study", "run"] or sys.argv[1:2] == ["demo"]
            remedy = "Finished runs are kept; start again to continue." if is_training else "No file is half written."
            print(f"calibrant: stopped. {remedy}", file=sys.stderr)
        raise


def _exit_with(message: str) -> None:
    """Print an error to standard error, and exit with status 2."""
    print(escape_invisible(f"calibrant: {message}"), file=sys.stderr)
    sys.exit(2)


def _set_thread_defaults(arguments: list[str]) -> None:
    """Let waiting threads sleep and use one thread for small files, unless the user set these environment variables.

    OpenMP reads the variables when torch is loaded, later. One thread is as fast for small files, and several times
    faster on a busy machine.
    """
    if arguments and arguments[0] in PREDICTION_COMMANDS:
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        if sum(map(_count_bytes, arguments[1:])) < MIN_PARALLEL_BYTES:
            os.environ.setdefault("OMP_NUM_THREADS", "1")


def _count_bytes(argument: str) -> int:
    """Return the size in bytes of the file or folder that an argument names.

    A pattern counts as large, because its files are not searched for, and other arguments count as 0.
    """
    if "*" in argument:
        return MIN_PARALLEL_BYTES
    path = Path(argument)
    try:
        files = path.iterdir() if path.is_dir() else [path]
        return sum(file.stat().st_size for file in files)
    except (OSError, ValueError):  # there is no such file: an option or its value
        return 0


def _print_version(show: bool | None) -> None:
    """Print the version and exit, if asked for."""
    if show:
        print(f"calibrant {__version__}")
        raise Exit


@app.callback()
def _root_options(  # pyright: ignore[reportUnusedFunction]
    version: bool | None = Option(None, "--version", callback=_print_version, help="Print the version and exit."),
) -> None:
    pass  # the callback of the option does the work


for command_name, function in PREDICTION_COMMANDS.items():
    app.command(command_name)(prediction_command(function))
app.command("list")(list_methods.list_command)
app.add_typer(study.study_app, name="study")
app.command()(study.demo)
app.command()(study.figures)
