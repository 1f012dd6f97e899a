"""The reference has an entry for every public name; pages written by hand agree with the sources."""

import csv
import importlib
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import jsonschema
import pytest
import torch
from shown import ROOT

import calibrant
from calibrant import Predictions
from calibrant.registry import CALIBRATORS

DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def extension():
    """The modules that the site is built with."""
    sys.path.insert(0, str(DOCS))
    yield lambda name: importlib.import_module(f"extension.{name}")
    sys.path.remove(str(DOCS))


@pytest.fixture(scope="module")
def pages(extension) -> str:
    return "\n".join(extension("reference").pages().values())


def public() -> set[str]:
    """Every public name by its public home, found by importing, not as the reference finds it."""
    names: set[str] = set()
    for home in sorted((ROOT / "src" / "calibrant").iterdir()):
        module = home.stem
        if (
            module.startswith("_")
            or module in ("cli", "studies", "integrations", "py")
            or home.suffix not in ("", ".py")
        ):
            continue
        made = importlib.import_module(f"calibrant.{module}")
        own = [name for name, x in vars(made).items() if getattr(x, "__module__", "") == made.__name__]
        for name in getattr(made, "__all__", own):
            if not name.startswith("_") and not isinstance(getattr(made, name), ModuleType):
                names.add(f"{module}.{name}")
    for module in ("metrics.curves", "metrics.tables", "metrics.ood", "data.corruptions", "integrations.sklearn"):
        names |= {f"{module}.{name}" for name in importlib.import_module(f"calibrant.{module}").__all__}
    return names


def test_no_public_name_is_without_an_entry(pages):
    entries, module = set(), ""
    for kind, name in re.findall(r"\{py:(module|function|class|data)\} ([\w.]+)", pages):
        module = name.removeprefix("calibrant.") if kind == "module" else module
        entries |= {f"{module}.{name}"} if kind != "module" else set()
    assert len(entries) > 300
    assert public() - entries == set()


def test_every_public_module_is_on_a_page(extension):
    reference = extension("reference")
    shown = {module.split(".")[0] for page in reference.PAGES.values() for module in page.modules}
    assert reference.public_modules() == shown
    folder = ROOT / "src" / "calibrant" / "integrations"
    thin = {f"integrations.{path.stem}" for path in folder.glob("[a-z]*.py")}
    assert thin == set(reference.PAGES["integrations"].modules)


def test_top_level_names_are_told_of():
    text = (DOCS / "reference" / "index.md").read_text()
    tops = {name for name in calibrant.__all__ if not isinstance(getattr(calibrant, name), ModuleType | str)}
    assert all(f"`calibrant.{name}`" in text for name in tops)


def test_an_entry_has_its_signature_docstring_and_facts(pages):
    entry = pages[pages.index("{py:function} focal(logits") :][:3000]
    assert "gamma" in entry.splitlines()[0]
    assert r"$-(1 - p_y)^\gamma \log p_y$" in entry
    assert "```pycon\n>>> " in entry
    entry = pages[pages.index("{py:function} kuiper(") :][:3000]
    assert "has a test" in entry
    entry = pages[pages.index("{py:class} Temperature\n") :][:4000]
    assert "- `temperature: PositiveNumber`" in entry
    assert "{py:method} Temperature.fit(" in entry


def test_entries_show_the_pictures_that_use_them(pages):
    shown = set(re.findall(r"^   gallery/(\S+)$", pages, re.MULTILINE))
    assert len(shown) >= 25
    assert all((DOCS / "gallery" / name).is_file() for name in shown)


def test_the_command_lines_page_has_every_command(extension):
    text = extension("commands").page()
    for command in (
        "assess",
        "measure",
        "apply",
        "list",
        "demo",
        "figures",
        "study run",
        "study measure",
        "study status",
    ):
        assert f"# calibrant {command}\n" in text
    assert "--ignore-index" in text


def test_results_are_as_the_schema_says():
    schema = json.loads((DOCS / "reference" / "results.schema.json").read_text())
    checker = jsonschema.Draft202012Validator(schema)
    checker.check_schema(schema)
    g = torch.Generator().manual_seed(0)
    z = torch.randn(200, 3, generator=g)
    y = torch.multinomial(z.softmax(1), 1, generator=g).squeeze(1)
    plain = Predictions(2 * z, y)
    grouped = Predictions(
        2 * z, y, groups=["a", "b"] * 100, clusters=torch.arange(200) // 4, class_names=["u", "v", "w"]
    )
    for p in plain, grouped:
        checker.validate(json.loads(calibrant.measure(p).json()))
        found = calibrant.assess(p[:100], p[100:], ["Identity", "HistogramBinning"])
        checker.validate(json.loads(found.json()))
    broken = json.loads(calibrant.measure(plain).json())
    broken["results"][0]["value"] = "high"
    assert not checker.is_valid(broken)


# What runs where


def exports(extension) -> list[dict[str, str]]:
    with extension("exports").TABLE.open() as file:
        return list(csv.DictReader(file))


def test_the_table_of_exports_has_every_calibrator(extension):
    rows = exports(extension)
    assert [row["calibrator"] for row in rows] == sorted(CALIBRATORS)
    assert all(row["safetensors"] == "yes" for row in rows)


def test_what_the_table_sends_to_onnx_is_what_is_tested_there(extension):
    import test_export

    assert [row["calibrator"] for row in exports(extension) if row["ONNX"] == "yes"] == test_export.EXPORTED


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of onnx
def test_the_table_of_exports_is_what_trying_gives(extension, tmp_path):
    for row in exports(extension):
        ways = ("safetensors", "torch.export", "plain numpy", *(["ONNX"] if row["ONNX"] == "no" else []))
        found = extension("exports").tried(row["calibrator"], tmp_path, ways)
        assert found == {name: row[name] for name in found}


# The files of the project


def test_versions_agree():
    version = calibrant.__version__
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.M)


def test_workflows_and_templates_are_read():
    import yaml

    files = [*Path(ROOT / ".github").rglob("*.yml"), ROOT / "CITATION.cff"]
    assert len(files) >= 8
    assert all(isinstance(yaml.safe_load(path.read_text()), dict) for path in files)
