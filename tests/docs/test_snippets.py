"""The code of the README and of all pages runs, and every name that they mention exists."""

import importlib
import re
from pathlib import Path

import numpy as np
import pytest
from commands import restored_registries
from doc_pages import ROOT, blocks, run
from drawn import drawn_labels

import calibrant
from calibrant import Predictions, metrics, registry
from calibrant.calibrators import Temperature

TESTED_ELSEWHERE = {"docs/forecasts.md", "docs/losses.md", "docs/more_than_memory.md"}
GENERATED = ("docs/auto_", "docs/reference/api/", "docs/reference/command_line.md", "docs/results/")
SOURCES = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]
PAGES = [page for page in SOURCES if not page.startswith(GENERATED)]
WITH_CODE = [page for page in PAGES if page not in TESTED_ELSEWHERE and blocks(page)]


def simulated_logits(n: int, seed: int, k: int = 3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    truth = rng.normal(scale=1.5, size=(n, k))
    return 2 * truth, drawn_labels(truth, rng)


def simulated_predictions(n: int, seed: int) -> Predictions:
    return Predictions(*simulated_logits(n, seed), groups=["Basel", "Bern"] * (n // 2))


def metrics_names() -> dict:
    z, y = simulated_logits(200, 0)
    simulated_predictions(200, 1).save("big.parquet")
    return {
        "calibrant": calibrant,
        "calibrators": calibrant.calibrators,
        "Predictions": Predictions,
        "Temperature": Temperature,
        "logits": z,
        "labels": y,
        "patient": [i // 4 for i in range(200)],
        "hospital": ["Basel", "Bern"] * 100,
        "val": simulated_predictions(200, 2),
        "test": simulated_predictions(200, 3),
        "batches": [simulated_logits(20, i) for i in range(3)],
        "other_process": metrics.Summary.empty().add(*simulated_logits(50, 9)),
    }


def theory_names() -> dict:
    import torch

    from calibrant import theory

    logits, labels = map(torch.as_tensor, simulated_logits(20, 0))
    return {"theory": theory, "logits": logits, "labels": labels}


def studies_names() -> dict:
    study = """
datasets = ["blobs(train=40, val=40, test=60)"]
networks = ["mlp(features=2, hidden=())"]
losses = ["cross_entropy"]
recipe = {epochs = 1, batch_size = 20, learning_rate = 0.1, milestones = []}
"""
    Path("mine.toml").write_text(study)
    return {}


NAMES = {  # names that a page uses without defining them
    "docs/metrics.md": metrics_names,
    "docs/studies.md": studies_names,
    "docs/theory.md": theory_names,
}
NEED_TORCH = re.compile(r"\b(?:torch|lab|losses|nn|studies|study|theory)\b")  # in the code of a page
QUICK_PAGES = {
    "docs/metrics.md",
    "docs/theory.md",
    "docs/howto/choose_a_metric.md",
    "docs/howto/ray.md",
    "docs/reference/formats.md",
}


@pytest.fixture
def registries():
    """Unregister the methods that a page registers."""
    with restored_registries():
        yield


@pytest.mark.usefixtures("registries")
@pytest.mark.filterwarnings("ignore")  # of onnx and scikit-learn
@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=() if page in QUICK_PAGES else pytest.mark.slow) for page in WITH_CODE]
)
def test_code_of_pages_runs(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    if NEED_TORCH.search("".join(blocks(page))):
        pytest.importorskip("torch").manual_seed(0)
    run(page, **NAMES.get(page, dict)())


def test_every_page_with_code_is_tested():
    assert len(WITH_CODE) >= 12
    assert all(blocks(page) for page in TESTED_ELSEWHERE)
    assert set(NAMES) <= set(WITH_CODE)


@pytest.mark.usefixtures("torch")
def test_first_study_of_the_page_on_studies_is_valid(tmp_path):
    from calibrant.lab.study import Study

    (tmp_path / "study.toml").write_text(blocks("docs/studies.md", "toml")[0])
    assert len(list(Study.load(tmp_path / "study.toml").runs())) == 18


# Names

SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
HOMES = {  # of modules that pages import from other packages than calibrant
    **dict.fromkeys(("networks", "data", "study", "figures"), "lab."),
    **{"plots": "reports.", "selection": "nn."},
}
MODULES = f"metrics|losses|calibrators|{'|'.join(HOMES)}|lab|theory|nn|types|registry|integrations"
NAME = re.compile(rf"(?<![\w.\"'/:])(?:calibrant\.)?((?:{MODULES})(?:\.[A-Za-z_]\w*)+|(?<=calibrant\.)[A-Za-z_]\w*)")
OTHER_PACKAGES = re.compile(r"(?<![\w.])((?:netcal|torchmetrics|sklearn)(?:\.[A-Za-z_]\w*)+)")
FILES = re.compile(r"\.(?:md|py|toml|csv|html|json|tex|parquet|npz|safetensors)$|^calibrant\.(?:cdx|calibrator)")


@pytest.fixture
def all_packages(torch) -> None:
    importlib.import_module("calibrant.nn.selection")  # registers its metrics


def names_in(text: str, pattern: re.Pattern[str]) -> set[str]:
    spans = [span for span in SPAN.findall(text) if not FILES.search(span)]
    return {name for span in spans for name in pattern.findall(span) if not FILES.search(name)}


def exists(name: str) -> bool:
    """Return whether a dotted name can be resolved: modules first, then attributes and fields."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError as error:
            if error.name in ("mlflow", "skore"):
                return True  # the framework of this integration is not installed
            continue
        for part in parts[length:]:
            if not hasattr(value, part) and part not in getattr(value, "__annotations__", {}):
                return False
            value = getattr(value, part, None)
        return True
    return False


def missing_names(text: str) -> list[str]:
    """Return the names of Calibrant in a text that do not exist."""
    full = {name: f"calibrant.{HOMES.get(name.split('.')[0], '')}{name}" for name in names_in(text, NAME)}
    return sorted(name for name in full if not exists(full[name]))


@pytest.mark.usefixtures("all_packages")
@pytest.mark.parametrize("page", PAGES)
def test_names_on_pages_exist(page):
    assert missing_names((ROOT / page).read_text()) == []


@pytest.mark.usefixtures("all_packages")
def test_missing_names_are_detected():
    text = "`metrics.ece(p)`, `metrics.eze`, `calibrant.measure(p)`, `calibrant.mesure`, `nn.Criterion`, `theory.md`"
    assert names_in(text, NAME) == {"metrics.ece", "metrics.eze", "measure", "mesure", "nn.Criterion"}
    assert missing_names(f"{text}, `data.Splits`, `study.rum`") == ["mesure", "metrics.eze", "study.rum"]


def test_names_of_other_packages_exist():
    pytest.importorskip("netcal")
    pytest.importorskip("torchmetrics")
    text = (ROOT / "docs/howto/coming_from.md").read_text()
    names = names_in(text, OTHER_PACKAGES)
    assert len(names) > 25
    assert not [name for name in sorted(names) if not exists(name)]


@pytest.mark.usefixtures("all_packages")
def test_recommended_calibrators_and_metrics_are_registered():
    for page, method_registry in (("choose_a_calibrator", registry.CALIBRATORS), ("choose_a_metric", registry.METRICS)):
        table = re.search(r"\n\|---.*?\n\n", (ROOT / f"docs/howto/{page}.md").read_text(), re.DOTALL)[0]
        cells = [row.split("|")[2] for row in table.strip().splitlines()[1:]]
        words = [text.split(".test")[0] for cell in cells for text in SPAN.findall(cell) if "p." not in text]
        texts = [text for text in words if not text.startswith(("metrics.", "calibrant."))]
        assert len(texts) > 12
        for text in texts:
            method_registry.method(text)
