"""The command line's page: what every command says of itself when asked for help."""

import re
from collections.abc import Iterator
from typing import Any

import typer
from typer.testing import CliRunner

from calibrant.cli import app


def page() -> str:
    """Return the page as Markdown."""
    lead = (
        "# The command line\n\nWhat `calibrant COMMAND --help` prints. Bad input is one line on standard error and "
        "status 2; a study of which something failed ends with status 1.\n"
    )
    return "\n".join([lead, *_commands(typer.main.get_command(app), ())])


def _commands(command: Any, path: tuple[str, ...]) -> Iterator[str]:
    name = " ".join(("calibrant", *path))
    shown = CliRunner().invoke(app, [*path, "--help"], prog_name="calibrant", env={"COLUMNS": "100", "NO_COLOR": "1"})
    text = re.sub(r"[ \t]+$", "", re.sub(r"\x1b\[[0-9;]*m", "", shown.output), flags=re.MULTILINE).strip()
    yield f"{'#' * (2 + max(0, len(path) - 1))} {name}\n\n```text\n{text}\n```\n"
    for inner in sorted(getattr(command, "commands", {})):
        yield from _commands(command.commands[inner], (*path, inner))
