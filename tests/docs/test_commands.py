"""Every command shown in the README and on a page exists, and the commands of the README do what it says."""

import re
import shlex

import numpy as np
import pytest
import typer
from doc_pages import ROOT, blocks
from typer.testing import CliRunner

from calibrant.cli import app

PAGES = ["README.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md") if "api" not in p.parts)]
COMMANDS = [
    (page, line.removeprefix("$ ").partition("  #")[0].strip())
    for page in PAGES
    for language in ("", "console")
    for block in blocks(page, language)
    for line in block.splitlines()
    if re.match(r"(\$ )?calibrant ", line)
]


def parse_command(words: list[str]) -> None:
    """Parse a command and its options without running it."""
    command = typer.main.get_command(app)
    while True:
        context = command.make_context(words[0], words[1:])
        if not hasattr(command, "resolve_command"):
            return
        words = [*context._protected_args, *context.args]
        if not words:
            return
        _, command, rest = command.resolve_command(context, words)
        words = [words[0], *rest]


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_documented_commands_parse(page, line):
    parse_command(shlex.split(line))


def test_unknown_commands_and_options_fail_to_parse():
    for line in ("calibrant frobnicate a.npz", "calibrant measure a.npz --htlm b", "calibrant study runs"):
        with pytest.raises(Exception, match=r"No such|frobnicate|htlm|runs"):
            parse_command(shlex.split(line))
    assert len(COMMANDS) > 10


@pytest.mark.slow
def test_readme_commands_write_their_outputs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for name in "val", "test", "new":
        truth = 1.5 * rng.standard_normal((200, 3))
        odds = np.exp(truth)
        labels = [rng.choice(3, p=row / row.sum()) for row in odds]
        np.savez(f"{name}.npz", logits=2 * truth, labels=labels)
    lines = [line for page, line in COMMANDS if page == "README.md" and "study" not in line]
    assert len(lines) == 4
    for line in lines:
        result = CliRunner().invoke(app, shlex.split(line)[1:])
        assert result.exit_code == 0, result.output
    written = {path.name for path in tmp_path.iterdir()}
    assert {"report.html", "numbers.json", "calibrator.safetensors", "calibrated.npz"} <= written
