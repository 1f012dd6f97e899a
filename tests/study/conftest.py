import pytest
from processes import finish, rows, start

TINY = """
title = "tiny"
datasets = ["digits(train=60, val=100)"]
networks = ["resnet8(channels=1, width=4)"]
losses = ["focal", "cross_entropy(smoothing=0.05)"]
calibrators = ["Identity", "Temperature"]
metrics = ["error", "ece"]
seeds = [0, 1, 2, 3]
traces = ["processes.halt"]
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
