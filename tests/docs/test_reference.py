"""The reference has an entry for every public name, and pages written by hand agree with the source code."""

import importlib
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import jsonschema
import numpy as np
import pytest
from calibrant.registry import CALIBRATORS
from doc_pages import ROOT
from streams import draw

import calibrant
from calibrant import Predictions
from calibrant.io.formats import FORMATS

DOCS = ROOT / "docs"
SUBMODULES = (
    *("metrics.curves", "metrics.tables", "metrics.ood", "integrations.sklearn", "calibrators.subgroups"),
    *("lab.data", "lab.data.corruptions", "lab.figures", "lab.networks", "lab.study", "planning.few_labels"),
    *("language_models.cards", "language_models.fusion", "nn.collecting", "nn.selection", "nn.tokens"),
    *("reports.document", "reports.plots", "predictions.events", "types", "registry"),
)


@pytest.fixture(scope="module")
def extension():
    """Import a module of the documentation's Sphinx extension, which needs every package."""
    pytest.importorskip("torch")
    sys.path.insert(0, str(DOCS))
    yield lambda name: importlib.import_module(f"extension.{name}")
    sys.path.remove(str(DOCS))


@pytest.fixture(scope="module")
def pages(extension) -> str:
    return "\n".join(extension("reference").pages().values())


def public_names() -> set[str]:
    """Return every public name with its module, found by importing instead of parsing."""
    names: set[str] = set()
    homes = [path.stem for path in (ROOT / "src" / "calibrant").iterdir() if path.suffix in ("", ".py")]
    undocumented = ("cli", "studies", "integrations", "lab", "py")
    for name in *(home for home in homes if home not in undocumented and not home.startswith("_")), *SUBMODULES:
        module = importlib.import_module(f"calibrant.{name}")
        defined = [key for key, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
        for key in getattr(module, "__all__", defined):
            if not key.startswith("_") and not isinstance(getattr(module, key), ModuleType):
                names.add(f"{name}.{key}")
    return names


def test_every_public_name_has_an_entry(pages):
    entries, module = set(), ""
    for kind, name in re.findall(r"\{py:(module|function|class|data)\} ([\w.]+)", pages):
        module = name.removeprefix("calibrant.") if kind == "module" else module
        entries |= {f"{module}.{name}"} if kind != "module" else set()
    assert len(entries) > 300
    assert public_names() - entries == set()


def test_every_public_module_is_on_a_page(extension):
    reference = extension("reference")
    modules = {module for page in reference.PAGES.values() for module in page.modules}
    assert reference.public_modules() == {module.split(".")[0] for module in modules}
    folder = ROOT / "src" / "calibrant" / "integrations"
    assert {f"integrations.{path.stem}" for path in folder.glob("[a-z]*.py")} == set(
        reference.PAGES["integrations"].modules
    )


@pytest.mark.usefixtures("torch")
def test_index_lists_top_level_names():
    text = (DOCS / "reference" / "index.md").read_text()
    top_level = {name for name in calibrant.__all__ if not isinstance(getattr(calibrant, name), ModuleType | str)}
    assert all(f"`calibrant.{name}`" in text for name in top_level)


def test_entries_have_signature_docstring_and_facts(pages):
    entry = pages[pages.index("{py:function} focal(logits") :][:3000]
    assert "gamma" in entry.splitlines()[0]
    assert r"$-(1 - p_y)^\gamma \log p_y$" in entry
    assert "```pycon\n>>> " in entry
    entry = pages[pages.index("{py:function} kuiper(") :][:3000]
    assert "has a test" in entry
    entry = pages[pages.index("{py:class} Temperature\n") :][:4000]
    assert "- `temperature: PositiveScalar`" in entry
    assert "{py:method} Temperature.fit(predictions" in entry


DOCSTRING = r"""Fit it with $a | b$ and *stars*.

Args:
    criterion: "nll" (default) or any `a|b`,
        continued on the next line.
    *rest: Others.
Returns:
    Result: a tensor of shape (n, k).

Raises:
    InputError: If nothing fits.

>>> 1 + 1
2
"""


def test_sections_of_google_docstrings_become_tables(extension):
    text = extension("reference")._markdown(DOCSTRING)
    assert text.split("\n\n") == [
        r"Fit it with $a | b$ and \*stars\*.",
        "| Parameters | Description |\n| :-- | :-- |\n"
        r'| `criterion` | "nll" (default) or any `a\|b`, continued on the next line. |'
        "\n| `*rest` | Others. |",
        "**Returns:** Result: a tensor of shape (n, k).",
        "| Raises | Description |\n| :-- | :-- |\n| `InputError` | If nothing fits. |",
        "```pycon\n>>> 1 + 1\n2\n```",
    ]


def test_no_section_is_left_as_text(pages):
    assert re.findall(r"^(?:Args|Returns|Raises):$", pages, re.MULTILINE) == []


def test_entries_show_figures_that_use_them(pages):
    figures = set(re.findall(r"^   gallery/(\S+)$", pages, re.MULTILINE))
    assert len(figures) >= 25
    assert all((DOCS / "gallery" / name).is_file() for name in figures)


def test_command_line_page_has_every_command(extension):
    text = extension("commands").page()
    for command in (
        *("assess", "measure", "apply", "list", "demo", "figures"),
        *("study run", "study measure", "study status"),
    ):
        assert f"# calibrant {command}\n" in text
    assert "--ignore-index" in text


def test_results_match_the_schema():
    schema = json.loads((DOCS / "reference" / "results.schema.json").read_text())
    validator = jsonschema.Draft202012Validator(schema)
    validator.check_schema(schema)
    ungrouped = draw(200, scale=2.0)
    grouped = Predictions(
        ungrouped.logits,
        ungrouped.labels,
        groups=["a", "b"] * 100,
        clusters=np.arange(200) // 4,
        class_names=["u", "v", "w"],
    )
    for p in ungrouped, grouped:
        validator.validate(json.loads(calibrant.measure(p).json()))
        result = calibrant.assess(p[:100], p[100:], ["Identity", "HistogramBinning"])
        validator.validate(json.loads(result.json()))
    broken = json.loads(calibrant.measure(ungrouped).json())
    broken["results"][0]["value"] = "high"
    assert not validator.is_valid(broken)


# Exports


def test_pages_contain_the_tables_that_they_request(extension):
    for page, name, entries in (
        ("howto/deploy.md", "export-formats", sorted(CALIBRATORS)),
        ("reference/formats.md", "file-formats", [f"`{suffix}`" for f in FORMATS for suffix in f.suffixes]),
        ("howto/choose_a_calibrator.md", "measured-calibrators", ["`Auto`", "`Temperature`"]),
    ):
        text = (DOCS / page).read_text()
        assert f"```{{{name}}}\n```" in text
        table = extension("generated").insert_tables(text)
        assert f"{{{name}}}" not in table
        assert all(f"| {entry} " in table or f" {entry} " in table for entry in entries)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of onnx
def test_exports_are_those_that_the_classes_declare(extension, tmp_path):
    """ONNX is tried only if it is not declared; `test_export` covers the others."""
    exports = extension("exports")
    for row in map(exports.declared_exports, sorted(CALIBRATORS)):
        formats = ("safetensors", "torch.export", "numpy", *(["ONNX"] if row["ONNX"] == "no" else []))
        result = exports.try_exports(row["calibrator"], tmp_path, formats)
        assert result == {name: row[name] for name in result}


# Project files


def test_versions_agree():
    version = calibrant.__version__
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.M)


def test_workflows_and_templates_are_valid_yaml():
    yaml = pytest.importorskip("yaml")

    files = [*Path(ROOT / ".github").rglob("*.yml"), ROOT / "CITATION.cff"]
    assert len(files) >= 8
    assert all(isinstance(yaml.safe_load(path.read_text()), dict) for path in files)
