"""The benchmark command runs, writes its page, and what it measures of ours is right."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_a_row_fails_that_loses_more_than_a_third():
    code = "from benchmarks.check import RATIOS, lost; import json; assert json.loads(RATIOS.read_text())['plain']; "
    code += "print(lost({'a': 1.3, 'b': 1.4, 'c': 9.0}, {'a': 1.0, 'b': 1.0}))"
    environment = os.environ | {"PYTHONPATH": "src"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.stdout == "['b: 1.40, was 1.00']\n", done.stderr


@pytest.mark.slow
def test_the_command_writes_every_part_and_ours_is_right(tmp_path):
    environment = os.environ | {"PYTHONPATH": "src", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks", "--size", "tiny", "--out", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, env=environment, check=True)
    page = (tmp_path / "benchmarks.md").read_text()
    titles = [line.removeprefix("## ") for line in page.splitlines() if line.startswith("## ")]
    assert titles == ["Accuracy of calibration", "Agreement", "Speed", "Training", "Scale"]
    assert "| mapie | not installed |" in page or "| mapie | 1" in page
    speed = [row for row in rows(tmp_path, "speed") if row["who"] == "calibrant"]
    assert [row["task"] for row in speed if row["right"] == "False" or row.get("note")] == []
    assert len([row for row in speed if row["right"] == "True"]) >= 15
    agreement = [row for row in rows(tmp_path, "agreement") if row["who"] == "calibrant"]
    assert max(float(row["off"]) for row in agreement) < 1e-6
    training = [row for row in rows(tmp_path, "throughput") if row["who"] == "calibrant train"]
    assert max(float(row["off"]) for row in training) < 1e-5
    assert max(float(row["off"]) for row in rows(tmp_path, "scale") if row["off"]) < 1e-6


def rows(folder: Path, part: str) -> list[dict[str, str]]:
    with (folder / "benchmarks" / f"{part}.csv").open(newline="") as file:
        return list(csv.DictReader(file))
