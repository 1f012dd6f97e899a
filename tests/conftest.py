import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from small_data import data_cache, small_data, textures  # noqa: F401

from calibrant import Predictions

collect_ignore = ["own", "mutants.py", "small_wheel.py"]  # what tests run, not tests
SHARED = Path(__file__).resolve().parents[2] / "shared"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where the tests of other devices work: on one that is pretended, or with `--device cuda` on a real one."""
    parser.addoption("--device", choices=("pretended", "cuda"), default="pretended")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real predictions and data sets beside the checkout, or a skip with the reason."""
    if not (SHARED / "logits").is_dir():
        pytest.skip(f"real predictions and data sets are not at {SHARED}")
    return SHARED


@pytest.fixture
def closed_port() -> Iterator[str]:
    """An address, HOST:PORT, that refuses connections: it is taken, and nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield "{}:{}".format(*taken.getsockname())


@pytest.fixture(params=[2, 10])
def honest(request) -> Predictions:
    """Labels drawn from the very probabilities the logits state, in double."""
    g = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(4000, request.param, dtype=torch.float64, generator=g)
    return Predictions(logits, torch.multinomial(logits.softmax(-1), 1, generator=g).squeeze(1))
