"""Numbers that no rewriting may change, and what version 0.2.0 saved."""

import json
import math
import shutil
from pathlib import Path

import golden_problems
import polars
import pytest
from scipy.special import softmax

from calibrant import calibrators

SAVED = Path(__file__).parent / "v0_2_0"
GOLDEN = json.loads(golden_problems.FILE.read_text())


def assert_close(actual: dict[str, float], golden: dict[str, object], tolerance: float) -> None:
    """Compare the numbers of all golden paths; paths that are new are ignored."""
    expected = {path: float(value) for path, value in golden.items()}  # pyright: ignore[reportArgumentType]
    assert expected.keys() <= actual.keys()
    wrong = {
        path: (value, actual[path])
        for path, value in expected.items()
        if not (actual[path] == value or math.isclose(actual[path], value, rel_tol=tolerance, abs_tol=tolerance))
    }
    assert not wrong


def test_measured_numbers_are_golden():
    assert_close(golden_problems.measured(), GOLDEN["measured"], 1e-12)


@pytest.mark.slow
def test_assessed_numbers_are_golden():
    assert_close(golden_problems.assessed(), GOLDEN["assessed"], 1e-6)


@pytest.mark.parametrize("file", sorted(SAVED.glob("calibrators/*.safetensors")), ids=lambda file: file.stem)
def test_calibrator_saved_by_0_2_0_gives_its_probabilities(file):
    golden = json.loads((SAVED / "probs.json").read_text())[file.stem]
    fresh = golden_problems.predictions(50)["binary" if file.stem in golden_problems.ONE_SCORE else "classes"]
    probs = softmax(calibrators.load(file)(fresh.logits[:5].astype(float)), -1)
    assert probs.flatten().tolist() == pytest.approx(golden, abs=1e-12)


@pytest.mark.usefixtures("torch")
def test_study_of_0_2_0_is_measured_from_its_stored_runs(tmp_path):
    from calibrant.lab import study

    shutil.copytree(SAVED / "study", tmp_path / "study")
    study.measure(tmp_path / "study" / "study.toml", out=tmp_path / "study")
    keys = ["loss", "calibrator", "metric"]
    golden, actual = (polars.read_csv(folder / "study" / "rows.csv").sort(keys) for folder in (SAVED, tmp_path))
    assert actual[keys].equals(golden[keys])
    assert actual["value"].to_list() == pytest.approx(golden["value"].to_list(), rel=1e-6, nan_ok=True)
