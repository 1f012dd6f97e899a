"""Lines about the progress, in Python and on the command line without a terminal."""

import threading

import pytest

from calibrant.cli.study import _show_progress
from calibrant.lab import study as studies
from calibrant.lab.study import Grid, Recipe, Study, progress_lines
from calibrant.lab.study.engine import RunEvent
from calibrant.lab.study.progress import Progress
from calibrant.lab.study.progress_lines import ProgressLines

WAIT_SECONDS = 60  # until a test fails
STUDY = Study(
    name="lines",
    grids=[
        Grid(
            datasets=["blobs(train=60, val=40, test=50)"],
            networks=["mlp(features=2, hidden=())"],
            losses=["focal", "brier"],
            recipe=Recipe(epochs=2, batch_size=20, milestones=()),
        )
    ],
    metrics=["error"],
    calibrators=["Identity"],
)


def steps():
    """Return a plan, two epochs, a failure and the end of a run."""
    run = next(iter(STUDY.runs()))
    kinds = "epoch", "epoch", "note", "failed", "done"
    events = [Progress(f"{kind} {i}", event=RunEvent(kind, run, {})) for i, kind in enumerate(kinds)]
    return [Progress("plan", note=True), *events, Progress("measuring")]


def lines_of(seconds, monkeypatch):
    monkeypatch.setattr(progress_lines, "LINE_SECONDS", seconds)
    written = []
    write_step = ProgressLines(written.append)
    for step in steps():
        write_step(step)
    return written


def test_notes_failures_and_finished_runs_are_always_lines(monkeypatch):
    assert lines_of(30.0, monkeypatch) == ["plan", "note 2", "failed 3", "done 4"]


def test_other_steps_are_lines_if_the_last_line_is_long_ago(monkeypatch):
    assert lines_of(0.0, monkeypatch) == ["plan", "epoch 0", "epoch 1", "note 2", "failed 3", "done 4", "measuring"]


def test_a_step_that_takes_long_is_repeated(monkeypatch):
    """The last step that says where the work is, not a note; and before the first step, that there is none."""
    monkeypatch.setattr(progress_lines, "LINE_SECONDS", 0.0)
    written, is_written = [], threading.Event()

    def write(line):
        written.append(line)
        is_written.set()

    def next_line():
        is_written.clear()
        assert is_written.wait(WAIT_SECONDS)
        return written[-1]

    write_step = ProgressLines(write)
    with write_step.repeated():
        assert next_line().endswith(" s")
        write_step(Progress("epoch 3 of 9"))
        write_step(Progress("a note", note=True))
        while not (line := next_line()).startswith("epoch"):
            pass
        assert line.endswith(" s ago")
    count = len(written)
    is_written.clear()
    assert not is_written.wait(0.05)
    assert len(written) == count


def test_python_says_what_it_does(tmp_path, capsys):
    studies.run(STUDY, out=tmp_path / "out")
    first, *run_lines = capsys.readouterr().err.splitlines()
    assert "2 of 2 runs" in first
    assert "4 epochs" in first
    assert len(run_lines) == 2
    studies.run(STUDY, out=tmp_path / "silent", progress=lambda step: None)
    assert capsys.readouterr().err == ""


def test_the_command_writes_lines_to_stdout_without_a_terminal(capsys):
    with _show_progress() as show_step:
        for step in steps():
            show_step(step)
    assert len(capsys.readouterr().out.splitlines()) == 4


@pytest.mark.parametrize("seconds", [0.0, 30.0])
def test_lines_have_no_control_characters(seconds, monkeypatch):
    monkeypatch.setattr(progress_lines, "LINE_SECONDS", seconds)
    written = []
    ProgressLines(written.append)(Progress("a\x1b[2Jb", note=True))
    assert "\x1b" not in written[0]
