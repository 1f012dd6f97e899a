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
    """The path of a study of eight small runs."""
    path = tmp_path_factory.mktemp("study") / "tiny.toml"
    path.write_text(TINY)
    return path


@pytest.fixture(scope="session")
def untouched(tiny, tmp_path_factory):
    """The result of that study when nobody disturbs it."""
    folder = tmp_path_factory.mktemp("untouched")
    assert finish(start(tiny, folder)).count("done ") == 8
    return rows(tiny, folder)


@pytest.fixture(autouse=True)
def _in_this_process(monkeypatch):
    """However long measuring takes, it starts no processes unless a test asks for them."""
    monkeypatch.setattr(rows_module, "MIN_PARALLEL_SECONDS", math.inf)


@pytest.fixture
def halt(tmp_path, monkeypatch):
    """`halt(runs)`: whoever works on `tmp_path / "store"` halts from so many finished runs on (`processes.halt`)."""

    def from_now_on(runs: int) -> None:
        (tmp_path / "next").write_text(str(runs))
        (tmp_path / "next").replace(tmp_path / "halt")

    (tmp_path / "halted").mkdir()
    monkeypatch.setitem(ENVIRONMENT, "HALTS", str(tmp_path))
    return from_now_on


@pytest.fixture
def forgotten():
    """What a test registers and includes is forgotten when it ends."""
    with restored_registries():
        yield
