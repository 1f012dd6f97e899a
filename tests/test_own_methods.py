"""Every command accepts user-defined methods of every kind, from files that use public names only."""

import ast
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from commands import run
from drawn import drawn_labels

from calibrant import Predictions

EXAMPLES = Path(__file__).parent / "own"
FILES = {"mine.py": ("top2", "Shrink"), "training.py": ("hinge", "WarmUp", "credit", "Tiny", "moons")}
INCLUDED = ("--with", "mine.py", "--with", "training.py")


@pytest.fixture
def folder(tmp_path):
    for name in *FILES, "study.toml":
        shutil.copy(EXAMPLES / name, tmp_path / name)
    return tmp_path


def command(folder, *words, status=0):
    process = run(*words, folder=folder)
    assert process.returncode == status, process.stdout[-2000:] + process.stderr[-2000:]
    return process if status else process.stdout


def write(path, n, seed):
    rng = np.random.default_rng(seed)
    logits = 2 * rng.standard_normal((n, 3), np.float32)
    Predictions(3 * logits, drawn_labels(logits, rng)).save(path)


@pytest.mark.parametrize("file", FILES)
def test_example_file_imports_public_names_only(file):
    names = [node for node in ast.walk(ast.parse((EXAMPLES / file).read_text())) if isinstance(node, ast.ImportFrom)]
    assert not [alias.name for node in names for alias in node.names if alias.name.startswith("_")]
    assert not [node.module for node in names if "._" in (node.module or "")]


@pytest.mark.usefixtures("torch")
def test_list_contains_user_defined_methods(folder):
    text = command(folder, "list", *INCLUDED)
    for name in FILES["mine.py"] + FILES["training.py"]:
        assert name in text
    assert "multi-class hinge loss" in text
    assert "hinge" not in command(folder, "list")


@pytest.mark.slow
@pytest.mark.usefixtures("torch")
def test_study_trains_measures_and_reports_user_defined_methods(folder):
    output = command(folder, "study", "run", "study.toml", *INCLUDED, "--out", "out")
    assert "ece (%)" in output
    report = (folder / "out" / "report.html").read_text()
    for text in "hinge(margin=2)", "WarmUp", "Shrink", "top2 (%)", "credit (%)":
        assert text in report
    rows = (folder / "out" / "rows.csv").read_text()
    assert "Shrink" in rows
    assert "top2" in rows
    tables = (folder / "out" / "tables.md").read_text()
    bold = [line for line in tables.partition("top2")[2].partition("\n\n")[0].splitlines() if "**" in line]
    assert bold, "the highest accuracy is bold"
    output = command(folder, "study", "measure", "study.toml", *INCLUDED, "--out", "out", "-m", "top2", "-c", "Shrink")
    assert "top2 (%)" in output


@pytest.mark.usefixtures("torch")
def test_study_runs_only_code_that_the_user_allowed(folder):
    (folder / "mine.py").write_text("open('called', 'w').close()\n" + (folder / "mine.py").read_text())
    process = command(folder, "study", "run", "study.toml", "--dry-run", status=2)
    assert process.code == "code_not_allowed"
    assert "--with mine.py" in process.stderr
    assert not (folder / "called").exists()


def test_assess_saves_and_apply_loads_user_defined_calibrators(folder):
    write(folder / "val.npz", 2000, 0)  # the standard error of log T is 0.035
    write(folder / "test.npz", 600, 1)
    words = ("-c", "Shrink", "-c", "Identity", "-m", "top2", "-m", "nll", "--choose", "Shrink")
    out = ("--json", "n.json", "--save", "c.safetensors", "--html", "r.html")
    output = command(folder, "assess", "val.npz", "test.npz", "--with", "mine.py", *words, *out)
    assert "Shrink" in output
    assert "top2 (%)" in output or "top-2 accuracy" in output
    content = json.loads((folder / "n.json").read_text())
    assert content["chosen"] == "Shrink"
    assert {"calibrator": "Shrink", "by": 3} in [
        {key: row[key] for key in ("calibrator", "by") if key in row} for row in content["parameters"]
    ]
    assert "top-2 accuracy" in (folder / "r.html").read_text()
    command(folder, "apply", "c.safetensors", "test.npz", "-o", "new.npz", "--with", "mine.py")
    before, after = Predictions.load(folder / "test.npz"), Predictions.load(folder / "new.npz")
    assert after.logits.dtype == float
    np.testing.assert_allclose(after.logits, before.logits.astype(float) / 3, rtol=1e-7, atol=1e-7)
    assert command(folder, "apply", "c.safetensors", "test.npz", "-o", "no.npz", status=2).code == "unknown_class"
