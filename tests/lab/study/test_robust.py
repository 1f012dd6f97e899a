"""Inapplicable methods and damaged files do not stop a study; results are written together."""

import json
import math
import os
import shutil
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import pytest
import torch
from refusals import refused
from stored_rows import study_rows

from calibrant import losses
from calibrant.lab import study as studies
from calibrant.lab.study import Grid, Recipe, Store, Study, results
from calibrant.lab.study.measurements import diagrams_over_seeds
from calibrant.lab.study.significance import holm, letter_groups, paired_p_value
from calibrant.lab.study.tables import build_tables

RECIPE = Recipe(epochs=2, batch_size=20, milestones=())
NETWORK = "mlp(features=2, hidden=())"
TWO, THREE = "blobs(classes=2, train=60, val=40, test=50)", "blobs(classes=3, train=60, val=40, test=50)"


def make_study(*datasets, calibrators=("Identity",), metrics=("error", "ece"), loss=("focal",), **grid_options):
    return Study("small", (Grid(datasets, (NETWORK,), loss, recipe=RECIPE, **grid_options),), calibrators, metrics)


# Methods that do not suit


def test_inapplicable_calibrator_leaves_cells_empty(tmp_path):
    result = studies.run(make_study(TWO, THREE, calibrators=("Identity", "Platt")), out=tmp_path)
    assert not result.failed
    finite = {(row["dataset"], row["calibrator"]): math.isfinite(row["value"]) for row in result.rows}
    assert finite == {(TWO, "Identity"): True, (TWO, "Platt"): True, (THREE, "Identity"): True, (THREE, "Platt"): False}
    for table in result.tables:
        cells = {(row[0], column): cell for (row, column), cell in table.cells.items()}
        assert cells[THREE, "Platt"].text(table.metric_info) == "n/a"
        assert "Platt" in cells[THREE, "Platt"].reason
        assert cells[TWO, "Platt"].reason == ""
        assert sum("Platt" in note for note in table.notes) == 1
    assert "n/a" in (tmp_path / "tables.tex").read_text()


def test_failing_user_metric_leaves_cells_empty(tmp_path, forgotten):
    from calibrant import metrics

    @metrics.metric("fails on larger sets")
    def fails_here(logits, labels):
        if len(labels) == 50:
            raise TypeError("not\nof these")
        return logits.sum() * 0

    result = studies.run(make_study(TWO, metrics=("error", "fails_here")), out=tmp_path)
    values = {row["metric"]: row for row in result.rows}
    assert math.isfinite(values["error"]["value"])
    assert math.isnan(values["fails_here"]["value"])
    assert "TypeError" in values["fails_here"]["reason"]


# Losses that are not finite


def test_nonfinite_losses_are_counted_and_reported(tmp_path, forgotten):
    @losses.register
    def sometimes_here(logits, labels):
        values = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
        return torch.where(torch.arange(len(labels)) == 0, torch.full_like(values, math.inf), values)

    study = make_study(TWO, loss=("sometimes_here",))
    result = studies.run(study, out=tmp_path)
    store, (run,) = Store(tmp_path), study.runs()
    assert store.history(run)["nonfinite_losses"].to_list() == [3, 3]  # one per batch
    assert store.record(run)["facts"]["nonfinite"] == {"losses": 6, "epochs": 2}
    assert sum("not finite" in note for note in result.notes) == 1
    assert studies.measure(study, out=tmp_path).notes == result.notes


def test_a_run_without_a_finite_loss_has_diverged(tmp_path, forgotten):
    @losses.register
    def never_here(logits, labels):
        return (logits * 0).sum(1) + math.nan * torch.ones(len(labels))

    study = make_study(TWO, loss=("never_here",))
    result = studies.run(study, out=tmp_path)
    (run,) = study.runs()
    assert Store(tmp_path).state(run) == "diverged"
    assert list(result.failed) == [run]


# Damage


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "out"
    studies.run(make_study(TWO), out=folder)
    return folder


@pytest.fixture
def finished(trained, tmp_path):
    study, out = make_study(TWO), shutil.copytree(trained, tmp_path / "out")
    (run,) = study.runs()
    return study, run, out, next((out / "runs").iterdir())


def loop(path):
    path.unlink()
    path.symlink_to(path)


def pipe(path):
    path.unlink()
    os.mkfifo(path)


def folder(path):
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("name", ["run.json", "test.safetensors"])
@pytest.mark.parametrize("harm", [loop, pipe, folder])
def test_loops_pipes_and_folders_in_place_of_files_are_set_aside(finished, harm, name):
    study, _, out, run_folder = finished
    harm(run_folder / name)
    result = studies.run(study, out=out)
    assert not result.failed
    assert len(result.notes) == 1
    assert os.path.lexists(out / "damaged" / run_folder.name / name)


@pytest.mark.parametrize(
    "obstacle", ["partial file", "partial loop", "claim folder", "error folder", "checkpoint folder"]
)
def test_unexpected_file_types_do_not_stop_a_run(tmp_path, obstacle):
    study = make_study(TWO)
    studies.run(study, out=tmp_path / "other")
    name = next((tmp_path / "other" / "runs").iterdir()).name
    Store(tmp_path / "out")
    partial, claim = tmp_path / "out" / "partial" / name, tmp_path / "out" / "claims" / name
    if obstacle == "partial file":
        partial.write_text("x")
    elif obstacle == "partial loop":
        partial.symlink_to(partial)
    elif obstacle == "claim folder":
        claim.mkdir()
    else:
        (partial / {"error folder": "error.txt", "checkpoint folder": "checkpoint.pt"}[obstacle]).mkdir(parents=True)
    assert not studies.run(study, out=tmp_path / "out").failed


def test_damage_is_set_aside_despite_occupied_places(finished):
    study, _, out, run_folder = finished
    (run_folder / "run.json").write_text("no record")
    (out / "claims" / run_folder.name).unlink(missing_ok=True)
    (out / "claims" / run_folder.name).mkdir()
    (out / "damaged").write_text("a file")
    assert not studies.run(study, out=out).failed
    assert {path.name for path in (out / "damaged-1").iterdir()} == {run_folder.name, f"{run_folder.name}-1"}


def test_undecodable_error_text_is_shown(tmp_path):
    study = make_study(TWO)
    (run,) = study.runs()
    (Store(tmp_path).partial(run) / "error.txt").write_bytes(b"no \xff\xfe text\nmore")
    (standing,) = studies.status(study, out=tmp_path).runs
    assert standing.state == "failed"
    assert standing.reason.startswith("no ")


def test_folder_or_loop_in_a_run_of_another_study_is_ignored(finished, tmp_path, monkeypatch):
    study, _, out, run_folder = finished
    (run_folder / "deep").mkdir()
    (run_folder / "deep" / "file").write_text("x")
    (run_folder / "loop").symlink_to(run_folder / "loop")
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    out.rename(tmp_path / "runs" / "other")
    result = studies.run(study)
    assert not result.failed
    assert len(result.notes) == 1  # on the run that was taken


def test_a_copy_of_a_run_is_left_alone(finished):
    import shutil

    study, _, out, run_folder = finished
    shutil.copytree(run_folder, run_folder.with_name(f"{run_folder.name}-copy"))
    steps = []
    result = studies.run(study, out=out, progress=steps.append)
    assert result.notes == ()
    assert [step.event.kind for step in steps if step.event] == ["found"]
    assert run_folder.with_name(f"{run_folder.name}-copy").is_dir()


# Results


NAMES = ("rows.csv", "tables.csv", "tables.md", "tables.tex", "report.html")


@pytest.mark.parametrize("at", range(12))
def test_kill_while_writing_does_not_mix_results(tmp_path, monkeypatch, at):
    results.write_files_together(tmp_path, dict.fromkeys(NAMES, "old"))
    calls = []

    def interrupted(function):
        def step(*args, **kwargs):
            calls.append(args)
            if len(calls) > at:
                raise KeyboardInterrupt
            return function(*args, **kwargs)

        return step

    with monkeypatch.context() as patch:
        patch.setattr(results, "remove_path", interrupted(results.remove_path))
        patch.setattr(Path, "replace", interrupted(Path.replace))
        patch.setattr(Path, "write_text", interrupted(Path.write_text))
        with pytest.raises(KeyboardInterrupt):
            results.write_files_together(tmp_path, dict.fromkeys(NAMES, "new"))
    assert len({(tmp_path / name).read_text() for name in NAMES if (tmp_path / name).exists()}) <= 1
    results.write_files_together(tmp_path, dict.fromkeys(NAMES, "third"))
    assert {(tmp_path / name).read_text() for name in NAMES} == {"third"}
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([".results.lock", *NAMES])


def test_a_full_disk_leaves_the_old_results(tmp_path, monkeypatch):
    results.write_files_together(tmp_path, dict.fromkeys(NAMES, "old"))

    def full(path, text, encoding=None):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        with pytest.raises(OSError, match="No space"):
            results.write_files_together(tmp_path, dict.fromkeys(NAMES, "new"))
    assert {(tmp_path / name).read_text() for name in NAMES} == {"old"}


def test_orphan_drafts_are_removed_at_the_next_start(finished):
    study, _, out, _ = finished
    for name in (".report-abc.html", ".rows-abc.csv", ".tables-abc.md", ".made_with-abc.json"):
        (out / name).write_text("half")
    (out / ".results-abc").mkdir()
    studies.measure(study, out=out)
    assert not [path.name for path in out.glob(".*-abc*")]


# Tests over seeds


def test_holm_and_paired_tests_agree_with_scipy():
    from scipy.stats import ttest_rel

    first, second = {0: 1.0, 1: 2.0, 2: 4.0, 7: 9.0}, {0: 1.5, 1: 2.1, 2: 4.4, 8: 0.0}
    expected = ttest_rel([1.0, 2.0, 4.0], [1.5, 2.1, 4.4]).pvalue
    assert paired_p_value(first, second) == pytest.approx(expected)
    assert math.isnan(paired_p_value({0: 1.0}, {0: 2.0}))
    assert paired_p_value(first, first) == 1.0
    assert holm({"a": 0.02, "b": 0.01, "c": math.nan, "d": 0.5})["a"] == pytest.approx(0.04)


@pytest.mark.parametrize("seed", range(5))
def test_letters_are_shared_exactly_without_significant_difference(seed):
    g = torch.Generator().manual_seed(seed)
    names = list("uvwxyz")
    pairs = list(combinations(names, 2))
    different = [pair for pair in pairs if float(torch.rand((), generator=g)) < 0.5]
    letters = letter_groups(names, different)
    for left, right in pairs:
        assert bool(set(letters[left]) & set(letters[right])) == ((left, right) not in different)


def make_row(loss, seed, calibrator, value):
    where = {"run": f"{loss}{seed}", "dataset": "d", "network": "n", "loss": loss, "seed": seed, "shift": ""}
    return where | {"calibrator": calibrator, "temperature": math.nan, "metric": "ece", "value": value}


def test_calibrators_and_losses_are_tested_in_pairs_of_seeds():
    """Seeds differ far more than calibrators, so that only paired tests are significant."""
    base, noise = [0.10, 0.20, 0.30, 0.40, 0.50], [0.001, -0.001, 0.0005, 0.0, -0.0005]
    result = [
        make_row(
            loss, seed, calibrator, value + shift + grid_options + wobble * (calibrator != "Identity" or loss == "b")
        )
        for seed, (value, wobble) in enumerate(zip(base, noise, strict=True))
        for loss, shift in (("a", 0.0), ("b", 0.02))
        for calibrator, grid_options in (("Identity", 0.0), ("Temperature", -0.02), ("Monotone", -0.02 + 3 * wobble))
    ]
    (table,) = build_tables(result)
    letters = {column: table.cells[("d", "n", "a"), column].letters for column in table.columns}
    assert not set(letters["Identity"]) & set(letters["Temperature"])
    assert set(letters["Temperature"]) & set(letters["Monotone"])
    assert {table.cells[("d", "n", "b"), column].mark for column in table.columns} == {"▲"}
    for text in (table.markdown(), table.latex(), str(table), table.notes[0]):
        assert "Holm" in text


# Diagrams


@pytest.mark.slow
def test_diagrams_show_every_calibrator_and_the_error_of_the_table(tmp_path):
    study = make_study(THREE, calibrators=("Identity", "Temperature", "Monotone"), seeds=(0, 1, 2))
    result = studies.run(study, out=tmp_path)
    parts = list(diagrams_over_seeds(study, result.measurements))
    assert [part.calibrator for part in parts] == ["", "Temperature", "Monotone"]
    ece = next(table for table in result.tables if table.metric == "ece")
    (row,) = ece.rows
    for part in parts:
        cell = ece.cells[row, part.calibrator or "Identity"]
        assert f"{100 * cell.mean:.2f} ± {100 * cell.deviation:.2f} %" in part.ece
        assert len(part.events.confidence) == 150
    files = {path.stem for path in studies.draw(study, tmp_path / "figures", out=tmp_path)}
    assert {"diagram_before_focal", "diagram_after_focal", "diagram_after_Monotone_focal"} <= files


@pytest.mark.slow
def test_figure_numbers_do_not_depend_on_finished_runs(tmp_path):
    study = make_study(TWO, THREE)
    studies.run(study, out=tmp_path, select="classes=3")
    files = {path.stem for path in studies.draw(study, tmp_path / "figures", out=tmp_path)}
    assert "diagram_before_focal-2" in files
    assert "diagram_before_focal" not in files
    assert all(name.endswith("-2") for name in files if name.startswith(("diagram", "val_")))


def test_rows_of_diverged_networks_have_a_reason_column_too(tmp_path, forgotten):
    @losses.register
    def nan_here(logits, labels):
        return (logits * 0).sum(1) + math.nan * torch.ones(len(labels))

    study = make_study(TWO, loss=("focal", "nan_here"))
    studies.run(study, out=tmp_path)
    assert len({frozenset(row) for row in study_rows(study, Store(tmp_path))}) == 1


# Processes and options

SPAWNING = """
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from calibrant.lab.study.measurements import _child_environment

if __name__ == "__main__":
    with _child_environment(), ProcessPoolExecutor(1, get_context("spawn")) as pool:
        print(pool.submit(abs, -3).result())
"""


@pytest.mark.slow
def test_modules_of_the_current_folder_are_not_imported(tmp_path):
    names = ("pickle", "socket", "json", "typing", "numpy", "torch", "typer", "polars")
    for name in names:
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write({name!r})\n")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONSAFEPATH"}
    environment["PYTHONPATH"] = str(Path(studies.__file__).parents[3])
    script = tmp_path.parent / f"{tmp_path.name}.py"
    script.write_text(SPAWNING)
    for command in ([sys.executable, "-m", "calibrant", "--version"], [sys.executable, str(script)]):
        calls = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
        assert calls.returncode == 0, calls.stderr
        assert not (tmp_path / "ran").exists(), (tmp_path / "ran").read_text()


def test_options_of_ray_need_ray(tmp_path):
    for options in ({"address": "1.2.3.4:5"}, {"gpus": 1.0}):
        with refused("needs_ray"):
            studies.run(make_study(TWO), out=tmp_path, **options)


def test_the_record_of_a_run_is_json(finished):
    assert "code" not in json.loads((finished[3] / "run.json").read_text())["run"]
