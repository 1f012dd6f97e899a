"""Every command that the README and the pages show is one; those of the README do what it says."""

import re
import shlex

import numpy as np
import pytest
import typer
from shown import ROOT, blocks
from typer.testing import CliRunner

from calibrant.cli import app

PAGES = ["README.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md") if "api" not in p.parts)]
SHOWN = [
    (page, line.removeprefix("$ ").partition("  #")[0].strip())
    for page in PAGES
    for language in ("", "console")
    for block in blocks(page, language)
    for line in block.splitlines()
    if re.match(r"(\$ )?calibrant ", line)
]


def parsed(words: list[str]) -> None:
    """Let a command and its options be read, without running it."""
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


@pytest.mark.parametrize(("page", "line"), SHOWN)
def test_a_command_that_is_shown_is_one(page, line):
    parsed(shlex.split(line))


def test_commands_that_are_none_are_noticed():
    for line in ("calibrant frobnicate a.npz", "calibrant measure a.npz --htlm b", "calibrant study runs"):
        with pytest.raises(Exception, match=r"No such|frobnicate|htlm|runs"):
            parsed(shlex.split(line))
    assert len(SHOWN) > 10


@pytest.mark.slow
def test_the_commands_of_the_readme_do_what_it_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for name in "val", "test", "new":
        truth = 1.5 * rng.standard_normal((200, 3))
        odds = np.exp(truth)
        labels = [rng.choice(3, p=row / row.sum()) for row in odds]
        np.savez(f"{name}.npz", logits=2 * truth, labels=labels)
    lines = [line for page, line in SHOWN if page == "README.md" and "study" not in line]
    assert len(lines) == 4
    for line in lines:
        done = CliRunner().invoke(app, shlex.split(line)[1:])
        assert done.exit_code == 0, done.output
    made = {path.name for path in tmp_path.iterdir()}
    assert {"report.html", "numbers.json", "calibrator.safetensors", "calibrated.npz"} <= made
