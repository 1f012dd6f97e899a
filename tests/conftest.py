import socket
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from drawn import drawn_labels
from markupsafe import Markup
from small_data import cifar10_c, data_cache, small_data  # noqa: F401

from calibrant import Predictions
from calibrant.reports.document import Picture

collect_ignore = ["own", "mutants.py", "small_wheel.py"]  # run by tests
collect_ignore += [] if find_spec("torch") else ["integrations", "lab", "losses", "nn", "theory"]
SHARED = Path(__file__).resolve().parents[2] / "shared"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for tests of other devices: a simulated one by default, or `--device cuda`."""
    parser.addoption("--device", choices=("pretended", "cuda"), default="pretended")


@pytest.fixture(scope="session")
def shared() -> Path:
    """Return the folder of real predictions and data sets beside the checkout, or skip the test."""
    if not (SHARED / "logits").is_dir():
        pytest.skip(f"real predictions and data sets are not at {SHARED}")
    return SHARED


@pytest.fixture(scope="session")
def torch() -> ModuleType:
    """Return torch, for a test of tensors; where it is not installed, that test is skipped."""
    return pytest.importorskip("torch")


@pytest.fixture(scope="session")
def type_checker(request: pytest.FixtureRequest) -> bool:
    """Return whether the types and shapes of all arguments are checked, before the package checks them itself."""
    return bool(request.config.getoption("jaxtyping_packages", None))


@pytest.fixture
def pictures() -> None:
    """Request the pictures of pages, which are slow to draw; fixtures of a module or session have them, and torture."""


@pytest.fixture(autouse=True)
def _frames_without_pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "pictures" not in request.fixturenames and request.path.parent.name != "torture":
        monkeypatch.setattr("calibrant.reports.page.figure", frame)


def frame(picture: Picture) -> Markup:
    """Return the caption and the alternative text of a picture around nothing."""
    heading = Markup("<figcaption>{}</figcaption>").format(picture.caption)
    return Markup('<figure>{}<svg role="img" aria-label="{}"></svg></figure>').format(heading, picture.alt_text)


@pytest.fixture
def closed_port() -> Iterator[str]:
    """Yield an address, HOST:PORT, that refuses connections, because a socket that does not listen is bound to it."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield "{}:{}".format(*bound.getsockname())


@pytest.fixture(params=[2, 10])
def calibrated_predictions(request) -> Predictions:
    """Return calibrated predictions: labels are drawn from the probabilities of the float64 logits."""
    rng = np.random.default_rng(0)
    logits = rng.normal(scale=2, size=(4000, request.param))
    return Predictions(logits, drawn_labels(logits, rng))
