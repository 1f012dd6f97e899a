"""Everything that the README and the pages show runs, and what it names is there."""

import importlib
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from shown import ROOT, blocks, run

import calibrant
from calibrant import Predictions, metrics, registry, theory
from calibrant.calibrators import Temperature
from calibrant.lab.study import Study

APART = {"docs/forecasts.md", "docs/losses.md", "docs/more_than_memory.md"}  # pages with tests of their own
MADE = ("docs/auto_", "docs/reference/api/", "docs/reference/command_line.md", "docs/results/")
SOURCES = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]
PAGES = [page for page in SOURCES if not page.startswith(MADE)]
WITH_CODE = [page for page in PAGES if page not in APART and blocks(page)]


def logits(n: int, seed: int, k: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    truth = 1.5 * torch.randn(n, k, generator=g)
    return 2 * truth, torch.multinomial(truth.softmax(1), 1, generator=g).squeeze(1)


def predictions(n: int, seed: int) -> Predictions:
    return Predictions(*logits(n, seed), groups=["Basel", "Bern"] * (n // 2))


def readme() -> dict:
    for i, name in enumerate(("val", "test")):
        z, y = logits(200, i)
        np.save(f"{name}_logits.npy", z)
        np.save(f"{name}_labels.npy", y)
    batches = [logits(20, i) for i in range(3)]
    inputs, labels = torch.randn(8, 5), torch.randint(3, (8,))
    loader = [(torch.randn(8, 5), torch.randint(3, (8,))) for _ in range(4)]
    return {"network": torch.nn.Linear(5, 3), "inputs": inputs, "labels": labels, "batches": batches, "loader": loader}


def index() -> dict:
    parts = {"val": logits(200, 0), "test": logits(200, 1)}
    return {f"{name}_{what}": x for name, pair in parts.items() for what, x in zip(("logits", "labels"), pair)}


def on_metrics() -> dict:
    z, y = logits(200, 0)
    predictions(200, 1).save("big.parquet")
    return {
        "calibrant": calibrant,
        "calibrators": calibrant.calibrators,
        "Predictions": Predictions,
        "Temperature": Temperature,
        "logits": z,
        "labels": y,
        "patient": [i // 4 for i in range(200)],
        "hospital": ["Basel", "Bern"] * 100,
        "val": predictions(200, 2),
        "test": predictions(200, 3),
        "batches": [logits(20, i) for i in range(3)],
        "other_process": metrics.Summary.empty().add(*logits(50, 9)),
    }


def on_studies() -> dict:
    study = """
datasets = ["blobs(train=40, val=40, test=60)"]
networks = ["mlp(features=2, hidden=())"]
losses = ["cross_entropy"]
recipe = {epochs = 1, batch_size = 20, learning_rate = 0.1, milestones = []}
"""
    Path("mine.toml").write_text(study)
    return {}


GIVEN = {
    "README.md": readme,
    "docs/index.md": index,
    "docs/metrics.md": on_metrics,
    "docs/studies.md": on_studies,
    "docs/theory.md": lambda: {"theory": theory, "logits": logits(20, 0)[0], "labels": logits(20, 0)[1]},
}
QUICK = {
    "docs/metrics.md",
    "docs/theory.md",
    "docs/howto/choose_a_metric.md",
    "docs/howto/ray.md",
    "docs/reference/formats.md",
}


@pytest.fixture
def registries():
    """The methods that pages register are theirs alone."""
    kept = {
        method_registry: dict(method_registry.items()) for method_registry in registry.REGISTRIES.values()
    }  # filled by being asked
    yield
    for method_registry, methods in kept.items():
        method_registry._methods.clear()
        method_registry._methods.update(methods)


@pytest.mark.usefixtures("registries")
@pytest.mark.filterwarnings("ignore")  # of onnx and scikit-learn
@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=() if page in QUICK else pytest.mark.slow) for page in WITH_CODE]
)
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    run(page, **GIVEN.get(page, dict)())


def test_no_page_with_code_is_forgotten():
    assert len(WITH_CODE) >= 12
    assert all(blocks(page) for page in APART)
    assert set(GIVEN) <= set(WITH_CODE)


def test_the_studies_of_the_readme_and_the_pages_are_read(tmp_path):
    for i, text in enumerate(blocks("README.md", "toml")):
        (tmp_path / f"study{i}.toml").write_text(text)
        assert list(Study.load(tmp_path / f"study{i}.toml").runs())


# Names

SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
importlib.import_module("calibrant.selection")  # whose metrics are among those of calibrant.metrics from then on
MODULES = "metrics|losses|calibrators|networks|data|theory|plots|study|nn|selection|types|catalog|figures"
NAME = re.compile(rf"(?<![\w.\"'/:])(?:calibrant\.)?((?:{MODULES})(?:\.[A-Za-z_]\w*)+|(?<=calibrant\.)[A-Za-z_]\w*)")
ELSEWHERE = re.compile(r"(?<![\w.])((?:netcal|torchmetrics|sklearn)(?:\.[A-Za-z_]\w*)+)")
FILES = re.compile(r"\.(?:md|py|toml|csv|html|json|tex|parquet|npz|safetensors)$|^calibrant\.(?:cdx|calibrator)")


def named(text: str, pattern: re.Pattern[str]) -> set[str]:
    spans = [span for span in SPAN.findall(text) if not FILES.search(span)]
    return {name for span in spans for name in pattern.findall(span) if not FILES.search(name)}


def found(name: str) -> bool:
    """Whether a dotted name is there: modules as far as there are any, then attributes."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            place = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError as error:
            if error.name in ("evaluate", "mlflow", "skore"):
                return True  # the framework of a thin file is not installed
            continue
        for part in parts[length:]:
            if not hasattr(place, part) and part not in getattr(place, "__annotations__", {}):
                return False
            place = getattr(place, part, None)
        return True
    return False


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_names_is_there(page):
    text = (ROOT / page).read_text()
    missing = [name for name in named(text, NAME) if not found(f"calibrant.{name}")]
    assert not missing, f"{page} names {', '.join(sorted(missing))}"


def test_names_that_are_not_there_are_noticed():
    text = "`metrics.ece(p)`, `metrics.eze`, `calibrant.measure(p)`, `calibrant.mesure`, `nn.Criterion`, `theory.md`"
    names = named(text, NAME)
    assert names == {"metrics.ece", "metrics.eze", "measure", "mesure", "nn.Criterion"}
    assert [name for name in sorted(names) if not found(f"calibrant.{name}")] == ["mesure", "metrics.eze"]


def test_the_names_of_other_packages_are_theirs():
    text = (ROOT / "docs/howto/coming_from.md").read_text()
    names = named(text, ELSEWHERE)
    assert len(names) > 25
    assert not [name for name in sorted(names) if not found(name)]


def test_calibrators_and_metrics_that_pages_recommend_are_known():
    for page, method_registry in (("choose_a_calibrator", registry.CALIBRATORS), ("choose_a_metric", registry.METRICS)):
        table = re.search(r"\n\|---.*?\n\n", (ROOT / f"docs/howto/{page}.md").read_text(), re.DOTALL)[0]
        cells = [row.split("|")[2] for row in table.strip().splitlines()[1:]]
        words = [text.split(".test")[0] for cell in cells for text in SPAN.findall(cell) if "p." not in text]
        texts = [text for text in words if not text.startswith("metrics.")]
        assert len(texts) > 12
        for text in texts:
            method_registry.method(text)
