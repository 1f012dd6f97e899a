"""Write the page of the command line from the help texts of all commands."""

import re
from collections.abc import Iterator
from typing import Any

import typer
from typer.testing import CliRunner

from calibrant.cli import app


def page() -> str:
    """Return the page as Markdown."""
    lead = (
        "# The command line\n\nThis page shows the output of `calibrant COMMAND --help`. Invalid input prints one line "
        "to standard error and exits with status 2. A study with failed runs exits with status 1.\n"
    )
    return "\n".join([lead, *_commands(typer.main.get_command(app), ())])


def _commands(command: Any, path: tuple[str, ...]) -> Iterator[str]:
    name = " ".join(("calibrant", *path))
    result = CliRunner().invoke(app, [*path, "--help"], prog_name="calibrant", env={"COLUMNS": "88", "NO_COLOR": "1"})
    text = re.sub(r"[ \t]+$", "", re.sub(r"\x1b\[[0-9;]*m", "", result.output), flags=re.MULTILINE).strip()
    yield f"{'#' * (2 + max(0, len(path) - 1))} {name}\n\n```text\n{text}\n```\n"
    for subcommand in sorted(getattr(command, "commands", {})):
        yield from _commands(command.commands[subcommand], (*path, subcommand))
