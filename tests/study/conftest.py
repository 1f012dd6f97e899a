import pytest

TINY = """
title = "tiny"
datasets = ["digits(train=60, val=100)"]
networks = ["resnet8(channels=1, width=4)"]
losses = ["focal", "cross_entropy(smoothing=0.05)"]
calibrators = ["Identity", "Temperature"]
metrics = ["error", "ece"]
seeds = [0, 1, 2, 3]
[recipe]
epochs = 6
batch_size = 20
milestones = [2]
"""


@pytest.fixture
def tiny(tmp_path):
    """The path of a study of eight small runs."""
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return path
