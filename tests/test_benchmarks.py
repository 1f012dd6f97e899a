"""The benchmark command writes its page, and its values for Calibrant are correct."""

import csv
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
ROOT = Path(__file__).parents[1]


def test_slowdowns_are_ratios_more_than_a_third_above_the_committed_ones():
    check = importlib.import_module("benchmarks.check")
    assert json.loads(check.RATIOS.read_text())["plain"]
    assert check.slowdowns({"a": 1.3, "b": 1.4, "c": 9.0}, {"a": 1.0, "b": 1.0}) == ["b: 1.40, was 1.00"]


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks").glob("[!_]*.py")), ids=lambda path: path.stem)
def test_every_benchmark_finds_what_it_imports(path):
    try:
        importlib.import_module(f"benchmarks.{path.stem}")
    except ModuleNotFoundError as error:
        if str(error.name).startswith(("benchmarks", "calibrant")):
            raise
        pytest.skip(f"needs {error.name}")


@pytest.mark.slow
def test_gpu_table_runs_on_the_cpu():
    environment = os.environ | {"PYTHONPATH": "src", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks.gpu", "--device", "cpu", "--shapes", "500x4,20x32000", "--rounds", "1"]
    process = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    table_rows = [line.split("|")[1:3] for line in process.stdout.splitlines()[2:]]
    assert [shape.strip() for shape, _ in table_rows] == ["500 x 4"] * 10 + ["20 x 32,000"] * 7
    assert not any("off" in name for _, name in table_rows)


@pytest.mark.slow
def test_stated_table_averages_over_draws():
    """A model that says 90 % and is right half of the time gains; some draws of 20 examples hurt a calibrated one."""
    problems, stated = importlib.import_module("benchmarks._problems"), importlib.import_module("benchmarks.stated")
    rng, drawn = np.random.default_rng(0), []
    for name, right in ("boastful", 0.5), ("calibrated_predictions", 0.9):
        for draw in range(4):
            parts = [rng.random(n) < right for n in (20, 2000)]
            parts[0][:2] = True, False
            predictions = [problems._log_probs(np.tile([0.1, 0.9], (len(y), 1)), y) for y in parts]
            drawn.append(problems.Problem(f"stated: {name} #{draw}", 20, *predictions))
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in stated.table(drawn).splitlines()]
    table_rows = dict(zip(lines[0], lines[2], strict=True))
    assert (table_rows["n"], table_rows["models"], table_rows["draws of each"]) == ("20", "2", "4")
    log_loss = {p: -p * np.log(0.9) - (1 - p) * np.log(0.1) for p in (0.5, 0.9)}
    assert float(table_rows["uncalibrated"]) == pytest.approx(np.mean(list(log_loss.values())), abs=0.03)
    assert float(table_rows["Auto"]) < float(table_rows["uncalibrated"]) - 0.15
    assert lines[2][8] in {"0.0 %", "50.0 %"}
    assert float(lines[2][9]) <= float(lines[2][11]) < 0.5  # the worst mean is no worse than the worst draw


def test_gains_of_held_out_folds_are_those_of_known_probabilities():
    """No calibration gains 0; halving doubled logits regains the difference of two entropies that labels confirm."""
    held_out = importlib.import_module("benchmarks.held_out")
    world = next(world for world in held_out.WORLDS if world.name == "overconfident, 10 classes")
    identity = held_out.measure_draw(world, 100, "Identity", 0)
    assert identity == {"held_out": 0, "true": 0, "smaller_fits": 0, "difference": 0}
    _, test, true = world.draw(2000, np.random.default_rng(0))
    np.testing.assert_allclose(np.exp(true).sum(1), 1)
    bayes = -(np.exp(true) * true).sum(1).mean()
    gain = held_out.expected_nll(test, true) - bayes
    assert float(-test.log_likelihood.mean()) - bayes == pytest.approx(gain, rel=0.1)
    row = held_out.measure_draw(world, 2000, "Temperature", 0)
    assert row["true"] == pytest.approx(gain, rel=0.1)
    assert row["smaller_fits"] == pytest.approx(row["true"], abs=0.005)
    assert row["held_out"] == pytest.approx(row["true"], rel=0.3)
    assert [world.calibrated for world in held_out.WORLDS] == ["calibrated" in world.name for world in held_out.WORLDS]


def test_cells_of_held_out_gains_replace_those_of_the_file(tmp_path, monkeypatch):
    held_out = importlib.import_module("benchmarks.held_out")
    path = tmp_path / "held_out.csv"
    for names, draws in ("Identity;Temperature", 1), ("Temperature", 2):
        cell = ["--worlds", "calibrated, 2 classes", "--sizes", "30", "--calibrators", names, "--draws", str(draws)]
        monkeypatch.setattr(sys, "argv", ["held_out", *cell, "--out", str(path)])
        held_out.main()
    rows = importlib.import_module("benchmarks._harness").read(path)
    assert [(row["calibrator"], row["draws"]) for row in rows] == [("Identity", 1), ("Temperature", 2)]
    assert "| Temperature | 2 |" in held_out.page(rows)


@pytest.mark.slow
def test_command_writes_every_part_with_correct_values(tmp_path):
    environment = os.environ | {"PYTHONPATH": "src", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks", "--size", "tiny", "--out", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, env=environment, check=True)
    page = (tmp_path / "benchmarks.md").read_text()
    titles = [line.removeprefix("## ") for line in page.splitlines() if line.startswith("## ")]
    parts = importlib.import_module("benchmarks.__main__").PARTS
    expected = [importlib.import_module(f"benchmarks.{part}").TITLE for part in parts]
    assert titles == [*expected, "Versions and machines"]
    assert "| mapie | not installed |" in page or "| mapie | 1" in page
    speed = [row for row in rows(tmp_path, "speed") if row["contender"] == "calibrant"]
    assert [row["task"] for row in speed if row["right"] == "False" or row.get("note")] == []
    assert len([row for row in speed if row["right"] == "True"]) >= 15
    agreement = [row for row in rows(tmp_path, "agreement") if row["contender"] == "calibrant"]
    assert max(float(row["off"]) for row in agreement) < 1e-6
    training = [row for row in rows(tmp_path, "throughput") if row["contender"] == "calibrant train"]
    assert max(float(row["off"]) for row in training) < 1e-5
    assert max(float(row["off"]) for row in rows(tmp_path, "scale") if row["off"]) < 1e-6


@pytest.mark.shared
def test_shared_tables_and_stated_confidences_load(shared):
    problems = importlib.import_module("benchmarks._problems")
    table = next(problems.tabular())
    assert np.abs(np.exp(table.fit.logits).sum(1) - 1).max() < 1e-12
    assert table.fit.log_likelihood.min() > -17
    problem = next(problems.stated(sizes=(50,)))
    assert (len(problem.fit), len(problem.test), problem.fit.k) == (50, 3000, 2)


def rows(folder: Path, part: str) -> list[dict[str, str]]:
    with (folder / "benchmarks" / f"{part}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("classes", "confidence", "shift", "n", "structure"),
    [
        (2, 0.99, 0.02, 20, "independent"),
        (2, 0.6, 0.02, 50, "independent"),
        (2, "mixed", 0.1, 20, "independent"),
        (10, "mixed", 0.02, 20, "independent"),
        (10, 0.99, 0.1, 50, "independent"),
        (2, 0.95, 0.02, 20, "groups"),
        (2, 0.95, 0.02, 20, "clusters"),
        (2, 0.9, 0.0, 20, "weights"),
    ],
)
def test_intervals_cover_in_cells_that_are_hard(classes, confidence, shift, n, structure):
    coverage = importlib.import_module("benchmarks.coverage")
    rows = list(coverage.measure_cell(coverage.Cell(classes, confidence, shift, n, structure), 1000))
    ours = {row["metric"]: row["coverage"] for row in rows if row["method"] == coverage.OURS}
    assert min(ours.values()) > 0.87, ours  # nominal .9; three standard errors are .03


@pytest.mark.slow
@pytest.mark.shared
def test_few_labels_of_a_model_of_another_family_gain(shared):
    bench = importlib.import_module("benchmarks.few_labels")
    openai_google = [m for m in bench.models() if m.family in ("OpenAI", "Google")]
    losses = np.array([bench.map_losses(m, 50, draw) for m in openai_google for draw in range(2)])
    assert np.mean(losses[:, :-4].min(1) - losses[:, -4]) > 0.005  # against the best of each draw in hindsight
    refusals = np.concatenate([list(bench.refusals(m, m.signals, 100, 1)) for m in openai_google if len(m.signals) > 1])
    as_stated, inverted, _ = refusals.mean(0)
    assert as_stated < 0.1
    assert inverted > 0.9


@pytest.mark.shared
def test_fusions_of_few_labels_are_calibrated(shared):
    bench = importlib.import_module("benchmarks.fusion")
    ece, brier, auroc = bench.mean_numbers(bench.read_models()[:8], bench.SIGNALS, 1, use_prior=False)
    assert ece < 4
    assert brier < 0.25
    assert auroc > 0.65
