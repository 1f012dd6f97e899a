import math

import pytest
from commands import restored_registries
from processes import ENVIRONMENT, finish, rows, start

from calibrant.lab.study import measurements as rows_module

TINY = """
title = "tiny"
datasets = ["digits(train=60, val=100)"]
networks = ["resnet8(channels=1, width=4)"]
losses = ["focal", "cross_entropy(smoothing=0.05)"]
calibrators = ["Identity", "Temperature"]
metrics = ["error", "ece"]
seeds = [0, 1, 2, 3]
traces = ["halt"]
[recipe]
epochs = 6
batch_size = 20
milestones = [2]
"""


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """Return the path of a study of eight small runs."""
    path = tmp_path_factory.mktemp("study") / "tiny.toml"
    path.write_text(TINY)
    return path


@pytest.fixture(scope="session")
def untouched(tiny, tmp_path_factory):
    """Return the result of that study without interruptions."""
    folder = tmp_path_factory.mktemp("untouched")
    assert finish(start(tiny, folder)).count("done ") == 8
    return rows(tiny, folder)


@pytest.fixture
def page():
    """Request the report of a study, which is slow to draw."""


@pytest.fixture(autouse=True)
def _no_page(request, monkeypatch):
    if "page" not in request.fixturenames:
        monkeypatch.setattr("calibrant.lab.study.Result.html", lambda *_: "no page")


@pytest.fixture(autouse=True)
def _in_this_process(monkeypatch):
    """Measure in this process, however long it takes, unless a test asks for processes."""
    monkeypatch.setattr(rows_module, "MIN_PARALLEL_SECONDS", math.inf)


@pytest.fixture
def halt(tmp_path, monkeypatch):
    """Return `halt(runs)`: processes that work on `tmp_path / "store"` pause after so many finished runs."""

    def from_now_on(runs: int) -> None:
        (tmp_path / "next").write_text(str(runs))
        (tmp_path / "next").replace(tmp_path / "halt")

    (tmp_path / "halted").mkdir()
    monkeypatch.setitem(ENVIRONMENT, "HALTS", str(tmp_path))
    return from_now_on


@pytest.fixture
def forgotten():
    """Forget what a test registers and includes when it ends."""
    with restored_registries():
        yield
