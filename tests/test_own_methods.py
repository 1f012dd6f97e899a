"""Every command accepts own methods of every kind, from a file that uses public names only."""

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from commands import run

import calibrant
from calibrant import Predictions

OWN = Path(__file__).parent / "own"
NAMES = ("hinge", "WarmUp", "top2", "Shrink", "Tiny", "moons")


@pytest.fixture
def place(tmp_path):
    for name in "mine.py", "study.toml":
        shutil.copy(OWN / name, tmp_path / name)
    return tmp_path


def command(place, *words, status=0):
    done = run(*words, folder=place)
    assert done.returncode == status, done.stdout[-2000:] + done.stderr[-2000:]
    return done if status else done.stdout


def write(path, n, seed):
    g = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, 3, generator=g)
    Predictions(3 * logits, torch.multinomial(logits.softmax(-1), 1, generator=g).squeeze(1)).save(path)


def test_the_file_imports_nothing_private():
    names = [node for node in ast.walk(ast.parse((OWN / "mine.py").read_text())) if isinstance(node, ast.ImportFrom)]
    assert not [alias.name for node in names for alias in node.names if alias.name.startswith("_")]
    assert not [node.module for node in names if "._" in (node.module or "")]


def test_list_shows_own_methods(place):
    words = [sys.executable, "-m", "calibrant", "list", "--with", "mine.py"]
    environment = os.environ | {"PYTHONPATH": str(Path(calibrant.__file__).parents[1])}
    text = subprocess.run(words, cwd=place, env=environment, capture_output=True, text=True, check=True).stdout
    for name in NAMES:
        assert name in text
    assert "Multi-class hinge loss" in text
    assert "hinge" not in command(place, "list")


def test_a_study_trains_measures_and_reports_own_methods(place):
    said = command(place, "study", "run", "study.toml", "--with", "mine.py", "--out", "out")
    assert "top2 (%)" in said
    report = (place / "out" / "report.html").read_text()
    for text in "hinge(margin=2)", "WarmUp", "Shrink", "top2 (%)":
        assert text in report
    rows = (place / "out" / "rows.csv").read_text()
    assert "Shrink" in rows
    assert "top2" in rows
    tables = (place / "out" / "tables.md").read_text()
    best = [line for line in tables.partition("top2")[2].partition("\n\n")[0].splitlines() if "**" in line]
    assert best, "the highest accuracy is bold"
    again = command(
        place, "study", "measure", "study.toml", "--with", "mine.py", "--out", "out", "-m", "top2", "-c", "Shrink"
    )
    assert "top2 (%)" in again


def test_a_study_does_not_run_code_that_the_user_did_not_allow(place):
    (place / "mine.py").write_text("open('called', 'w').close()\n" + (place / "mine.py").read_text())
    done = command(place, "study", "run", "study.toml", "--dry-run", status=2)
    assert done.code == "code_not_allowed"
    assert "--with mine.py" in done.stderr
    assert not (place / "called").exists()


def test_assess_saves_and_apply_loads_own_calibrators(place):
    write(place / "val.npz", 400, 0)
    write(place / "test.npz", 600, 1)
    words = ("-c", "Shrink", "-c", "Identity", "-m", "top2", "-m", "nll", "--choose", "Shrink")
    out = ("--json", "n.json", "--save", "c.safetensors", "--html", "r.html")
    said = command(place, "assess", "val.npz", "test.npz", "--with", "mine.py", *words, *out)
    assert "Shrink" in said
    assert "top2 (%)" in said or "top-2 accuracy" in said
    found = json.loads((place / "n.json").read_text())
    assert found["chosen"] == "Shrink"
    assert {"calibrator": "Shrink", "by": 3} in [
        {key: row[key] for key in ("calibrator", "by") if key in row} for row in found["parameters"]
    ]
    assert "top-2 accuracy" in (place / "r.html").read_text()
    command(place, "apply", "c.safetensors", "test.npz", "-o", "new.npz", "--with", "mine.py")
    before, after = Predictions.load(place / "test.npz"), Predictions.load(place / "new.npz")
    torch.testing.assert_close(after.logits, before.logits.double() / 3)
    assert command(place, "apply", "c.safetensors", "test.npz", "-o", "no.npz", status=2).code == "unknown_class"


def test_weights_are_refused_for_own_calibrators_without_weights(place):
    write(place / "val.npz", 100, 0)
    p = Predictions.load(place / "val.npz")
    Predictions(p.logits, p.labels, torch.full((100,), 2.0)).save(place / "weighted.npz")
    write(place / "test.npz", 100, 1)
    done = command(place, "assess", "weighted.npz", "test.npz", "--with", "mine.py", "-c", "Shrink", status=2)
    assert done.code == "weights_refused"
    assert "Shrink" in done.stderr
