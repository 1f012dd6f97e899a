"""Damaged files in a store are reported, set aside and trained again; nothing else is."""

import itertools
import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars
import pytest
import torch
from polars.testing import assert_frame_equal
from refusals import refused
from typer.testing import CliRunner

from calibrant import Predictions, __version__, registry
from calibrant.cli.study import study_app
from calibrant.lab import study as studies
from calibrant.lab.data import Split, Splits, blobs
from calibrant.lab.study import Grid, Recipe, Run, Store, Study, api, grids, progress, stored_files
from calibrant.lab.study.datasets import DatasetCache, data_digest
from calibrant.lab.study.engine import RunEvent, execute, run_locally
from calibrant.lab.study.results import RESULT_FILES
from calibrant.lab.study.stored_files import read_record, serialize_record
from calibrant.lab.study.tables import describe_cells

RECIPE = Recipe(epochs=2, batch_size=20, milestones=())
DATA = "blobs(train=60, val=40, test=50)"
NETWORK = "mlp(features=2, hidden=())"


def make_study(losses=("focal", "brier"), *, data=(DATA,), name="small", recipe=RECIPE, **options):
    grid = {key: options.pop(key) for key in ("seeds", "shifts", "split", "traces", "networks") if key in options}
    grids = (Grid(data, grid.pop("networks", (NETWORK,)), losses, recipe=recipe, **grid),)
    return Study(name, grids, **{"calibrators": ("Identity",), "metrics": ("error", "ece"), **options})


def events(study, folder, **how):
    """Run a study, and return its result, the kind of event and loss of every run, and the notes."""
    steps = []
    result = studies.run(study, out=folder, progress=steps.append, **how)
    kinds = [(step.event.kind, step.event.run.loss.name) for step in steps if step.event]
    notes = [step.text for step in steps if step.note and not step.text.startswith("to train: ")]
    return result, [pair for pair in kinds if pair[0] != "epoch"], notes


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return a store of two finished runs, and its rows."""
    folder = tmp_path_factory.mktemp("trained") / "out"
    result, *_ = events(make_study(), folder)
    return folder, result.to_polars()


@pytest.fixture
def finished(trained, tmp_path):
    folder, rows = trained
    return shutil.copytree(folder, tmp_path / "out"), rows


def of(folder: Path, loss: str) -> Path:
    (result,) = (
        f for f in (folder / "runs").iterdir() if loss in json.loads((f / "run.json").read_text())["run"]["loss"]
    )
    return result


def flip(path: Path, at: float = 0.5) -> None:
    content = bytearray(path.read_bytes())
    content[int(at * (len(content) - 1))] ^= 4
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("file", "how"),
    [
        *itertools.product(["run.json", "val.safetensors", "test.safetensors", "history.parquet"], ["flipped"]),
        *itertools.product(["run.json"], ["torn", "gone", "empty"]),
    ],
)
def test_a_damaged_run_is_reported_set_aside_and_trained_again(finished, file, how):
    folder, rows = finished
    run, right = of(folder, "focal"), of(folder, "brier")
    modified = (right / "run.json").stat().st_mtime_ns
    if how == "flipped":
        flip(run / file)
    elif how == "gone":
        (run / file).unlink()
    else:
        (run / file).write_bytes((run / file).read_bytes()[: 40 if how == "torn" else 0])
    result, kinds, (line,) = events(make_study(), folder)
    for part in (f"{DATA}, {NETWORK}, focal, seed 0 ", f" {file} ", str(folder / "damaged" / run.name)):
        assert part in line
    assert kinds == [("done", "focal"), ("found", "brier")]
    assert (folder / "damaged" / run.name).is_dir()
    assert (right / "run.json").stat().st_mtime_ns == modified
    assert result.notes == (line,)
    assert_frame_equal(result.to_polars(), rows, check_exact=True)


def test_measure_reports_damaged_runs_and_measures_the_rest(finished):
    folder, rows = finished
    flip(of(folder, "brier") / "test.safetensors")
    result = studies.measure(make_study(), out=folder)
    assert_frame_equal(result.to_polars(), rows.filter(polars.col("loss") == "focal"), check_exact=True)
    ((run, why),) = result.failed.items()
    assert run.loss.name == "brier"
    assert "test.safetensors" in why


def test_measuring_with_other_methods_leaves_the_results_of_the_study(finished):
    folder, _ = finished
    before = {name: (folder / name).read_bytes() for name in RESULT_FILES}
    result = studies.measure(make_study(), out=folder, metrics=["nll"], calibrators=["Temperature"])
    assert {name: (folder / name).read_bytes() for name in RESULT_FILES} == before
    assert result.report == folder / "measured" / "report.html"
    assert {path.name for path in result.report.parent.iterdir()} >= set(RESULT_FILES)
    assert {row["metric"] for row in result.rows} == {"nll"}
    assert studies.measure(make_study(), out=folder).folder == folder


def test_damaged_files_are_not_read(finished):
    folder, _ = finished
    store, (run, _) = Store(folder), make_study().runs()
    flip(store.folder(run) / "test.safetensors")
    flip(store.folder(run) / "history.parquet")
    for read in (lambda: store.get(run, "test"), lambda: store.history(run)):
        with refused("damaged"):
            read()
    flip(store.folder(run) / "run.json")
    assert store.state(run) == "damaged"
    assert "damaged" in str(studies.status(make_study(), out=folder))


def test_swapped_folders_and_files_are_detected(finished):
    folder, rows = finished
    left, right = of(folder, "focal"), of(folder, "brier")
    left.rename(folder / "between")
    right.rename(left)
    (folder / "between").rename(right)
    result, kinds, lines = events(make_study(), folder)
    assert [kind for kind, _ in kinds] == ["done", "done"]
    assert [run.name in line for run, line in zip((right, left), lines, strict=True)] == [True, True]
    assert_frame_equal(result.to_polars(), rows, check_exact=True)

    left, right = of(folder, "focal"), of(folder, "brier")
    shutil.copy(right / "test.safetensors", left / "test.safetensors")
    result, kinds, _ = events(make_study(), folder)
    assert kinds == [("done", "focal"), ("found", "brier")]
    assert_frame_equal(result.to_polars(), rows, check_exact=True)


def test_incomplete_copy_of_a_run_is_replaced(finished):
    folder, rows = finished
    run = of(folder, "focal")
    for path in run.iterdir():
        path.unlink()
    (run / "val.safetensors").write_bytes(b"half")
    store, (first, _) = Store(folder), make_study().runs()
    store = store.with_data({first.dataset: DatasetCache().digest(first.dataset).full_digest})
    list(execute(first, store))  # without verifying the store first
    assert first in store
    assert list((folder / "damaged").iterdir())
    assert_frame_equal(studies.measure(make_study(), out=folder).to_polars(), rows, check_exact=True)


def interrupted(folder, study, monkeypatch):
    """Stop the first run of a study in its second epoch, and return its checkpoint."""
    monkeypatch.setattr(stored_files, "MIN_SAVE_INTERVAL_SECONDS", 0.0)
    run = next(study.runs())
    store = Store(folder).with_data({run.dataset: DatasetCache().digest(run.dataset).full_digest})
    going = execute(run, store)
    assert [next(going).content["epoch"] for _ in range(2)] == [1, 2]
    going.close()
    return store.partial(run) / "checkpoint.pt"


def test_a_checkpoint_holds_the_epochs_so_far(tmp_path, monkeypatch):
    study = make_study(("AdaFocal",), recipe=replace(RECIPE, epochs=3), traces=("norm",))
    complete, *_ = events(study, tmp_path / "whole")
    interrupted(tmp_path / "parted", study, monkeypatch)
    parted, kinds, lines = events(study, tmp_path / "parted")
    assert (kinds, lines) == ([("done", "AdaFocal")], [])
    run = next(study.runs())
    left, right = (Store(tmp_path / name).history(run).drop("seconds") for name in ("whole", "parted"))
    assert left.equals(right)
    assert_frame_equal(parted.to_polars(), complete.to_polars(), check_exact=True)


@pytest.mark.parametrize("how", ["flipped", "torn", "empty", "nothing of ours", "another version", "another network"])
def test_damaged_checkpoint_restarts_the_run(tmp_path, monkeypatch, how):
    study = make_study(("focal",), recipe=replace(RECIPE, epochs=3))
    complete, *_ = events(study, tmp_path / "whole")
    with monkeypatch.context() as patch:
        if how == "another version":
            patch.setattr(stored_files, "__version__", "0.0.7")
        path = interrupted(tmp_path / "out", study, patch)
    if how == "another network":
        right = make_study(("focal",), recipe=replace(RECIPE, epochs=3), networks=("mlp(features=2, hidden=(5,))",))
        path.write_bytes(interrupted(tmp_path / "other", right, monkeypatch).read_bytes())
    elif how == "flipped":
        flip(path)
    elif how != "another version":
        path.write_bytes({"torn": path.read_bytes()[:500], "empty": b"", "nothing of ours": b"PK\x03\x04 zip"}[how])
    steps = []
    result = studies.run(study, out=tmp_path / "out", progress=steps.append)
    note_texts = [step.text for step in steps if step.event and step.event.kind == "note"]
    assert len(note_texts) == 1
    assert "focal, seed 0: " in note_texts[0]
    assert "checkpoint" in note_texts[0]
    assert (tmp_path / "out" / "damaged" / "checkpoint.pt").is_file()
    assert not result.failed
    assert_frame_equal(result.to_polars(), complete.to_polars(), check_exact=True)


@pytest.mark.slow
def test_diverged_network_is_stored_reported_and_not_trained_again(tmp_path, page):
    wild = Grid((DATA,), (NETWORK,), ("brier",), (0, 1), replace(RECIPE, learning_rate=1e38))
    calm = Grid((DATA,), (NETWORK,), ("brier",), (2,), RECIPE)
    separate = Grid((DATA,), (NETWORK,), ("focal",), (0,), replace(RECIPE, learning_rate=1e38))
    study = Study("wild", (wild, calm, separate), ("Identity", "Temperature"), ("nll", "ece"))
    for again in (False, True):
        result, kinds, _ = events(study, tmp_path / "out")
        assert [kind for kind, _ in kinds] == (["found"] * 4 if again else ["failed", "failed", "done", "failed"])
        assert [run.seed for run in result.failed] == [0, 1, 0]
        assert all("diverged" in why for why in result.failed.values())
        table = result.tables[0]
        values = {row[2]: cell.values for (row, _), cell in table.cells.items()}
        assert {name: len(checked) for name, checked in values.items()} == {
            "brier with learning_rate=1e+38": 0,
            "brier with learning_rate=0.1": 1,
            "focal with learning_rate=1e+38": 0,
        }
        assert {cell.text(table.metric_info) for cell in table.cells.values() if not cell.values} == {"diverged"}
        (note,) = (note for note in table.notes if "diverged" in note)
        assert re.findall(r"(\d of \d) of (\w+)", note) == [("2 of 2", "brier"), ("1 of 1", "focal")]
        for text in (table.markdown(), " ".join(str(result).split()), result.report.read_text()):
            assert note in text
        assert describe_cells(result.tables).startswith("one seed")
    frame = polars.read_csv(tmp_path / "out" / "rows.csv")
    assert (frame["diverged"] > 0).sum() == 3 * 2 * 2
    standing = studies.status(study, out=tmp_path / "out")
    assert len(standing.finished) == 4
    assert "diverged" in str(standing)


def test_runs_on_other_data_are_other_runs(tmp_path, forgotten):
    drawn = {"seed": 0}

    def changing(root=None):
        return blobs(train=60, val=40, test=50, seed=drawn["seed"])

    registry.DATA_SETS.register(changing)
    study = make_study(("focal",), data=("changing",))
    first, *_ = events(study, tmp_path / "out")
    drawn["seed"] = 1
    second, kinds, _ = events(study, tmp_path / "out")
    assert kinds == [("done", "focal")]
    assert first.to_polars()["value"].to_list() != second.to_polars()["value"].to_list()
    with refused("ambiguous_data"):
        studies.measure(study, out=tmp_path / "out")
    drawn["seed"] = 0
    third, kinds, _ = events(study, tmp_path / "out")
    assert kinds == [("found", "focal")]
    assert_frame_equal(third.to_polars(), first.to_polars(), check_exact=True)
    selected = studies.measure(study, out=tmp_path / "out", data=tmp_path)
    assert_frame_equal(selected.to_polars(), first.to_polars(), check_exact=True)


def test_worker_with_other_data_does_not_train(tmp_path):
    (run,) = make_study(("focal",)).runs()
    store = Store(tmp_path).with_data({run.dataset: "0" * 64})
    (event,) = run_locally(lambda run: execute(run, store), [run], store)
    assert event.kind == "failed"
    assert event.content["error"].startswith(f"{DATA} holds other data here ")


@pytest.mark.parametrize(
    "part", ["train.inputs", "train.labels", "val.inputs", "test.labels", "classes", "word_vectors"]
)
def test_data_digest_covers_every_part(part):
    def make_splits(changed):
        splits = {name: Split(torch.zeros(4, 2), torch.zeros(4, dtype=torch.long)) for name in ("train", "val", "test")}
        name, _, field = part.partition(".")
        if changed and field:
            getattr(splits[name], field)[3] = 1
        classes = ("a", "c") if changed and part == "classes" else ("a", "b")
        return Splits(
            **splits, classes=classes, word_vectors=torch.full((2, 2), float(changed and part == "word_vectors"))
        )

    reference, changed = data_digest(make_splits(False)), data_digest(make_splits(True))
    assert reference == data_digest(make_splits(False))
    assert reference.full_digest != changed.full_digest
    assert (reference.train_digest != changed.train_digest) == (not part.startswith(("val", "test")))


@pytest.mark.slow
def test_runs_of_other_versions_are_mixed_in_only_on_request(finished, page):
    folder, _ = finished
    for loss, version in ("focal", "0.0.1"), ("brier", "0.0.2"):
        old = of(folder, loss)
        record = read_record(old)
        record["facts"]["versions"]["calibrant"] = version
        (old / "run.json").write_text(serialize_record(record))
    separate, kinds, _ = events(make_study(), folder)
    assert [kind for kind, _ in kinds] == ["found", "found"]
    assert "0.0.1 (1) and 0.0.2 (1)." in str(separate)
    options = make_study(("focal", "brier", "mmce"))
    with refused("mixed_versions") as caught:
        studies.run(options, out=folder)
    assert "0.0.1, 0.0.2" in str(caught.value)
    result, kinds, _ = events(options, folder, mix_versions=True)
    assert [kind for kind, _ in kinds] == ["found", "found", "done"]
    for text in (result.tables[0].latex(), result.report.read_text()):
        assert f"0.0.1 (1) and 0.0.2 (1) and {__version__} (1)" in text


def test_finished_run_serves_runs_that_monitor_no_more(tmp_path):
    watched = make_study(("focal",), traces=("norm", "scores"), shifts=("blobs(seed=3)",))
    reference = make_study(("focal",))
    _, kinds, _ = events(watched, tmp_path / "out")
    less = make_study(("focal",), traces=("scores",), shifts=("blobs(seed=3)",))
    for study in reference, less:
        _, kinds, _ = events(study, tmp_path / "out")
        assert kinds == [("found", "focal")]
    assert len(list((tmp_path / "out" / "runs").iterdir())) == 1
    outright, *_ = events(reference, tmp_path / "outright")
    again = studies.measure(reference, out=tmp_path / "out")
    assert_frame_equal(again.to_polars(), outright.to_polars(), check_exact=True)
    _, kinds, _ = events(make_study(("focal",), traces=("calibration",)), tmp_path / "out")
    assert kinds == [("done", "focal")]  # this trace was not recorded


def counted(study, folder):
    steps = []
    result = studies.run(study, out=folder, progress=steps.append)
    return result, sum(step.event.kind == "epoch" for step in steps if step.event)


def test_stored_network_predicts_further_sets_without_training(tmp_path):
    sizes = tuple(f"blobs(train=60, val={val}, test=50)" for val in (40, 30))
    separate, _ = counted(make_study(("focal",), data=sizes[1:]), tmp_path / "alone")
    _, epochs = counted(make_study(("focal",), data=(DATA,)), tmp_path / "out")
    assert epochs == 2
    same = {split: data_digest(blobs(train=60, val=val, test=50)).train_digest for split, val in (("a", 40), ("b", 30))}
    assert same["a"] == same["b"]
    result, epochs = counted(make_study(("focal",), data=sizes), tmp_path / "out")
    assert epochs == 0
    ours = result.to_polars().filter(polars.col("dataset") == sizes[1])
    assert_frame_equal(ours, separate.to_polars(), check_exact=True)
    _, epochs = counted(make_study(("AdaFocal",), data=sizes), tmp_path / "out")
    assert epochs == 4  # this loss depends on validation examples
    shifted, epochs = counted(make_study(("focal",), shifts=("blobs(seed=3)",)), tmp_path / "out")
    assert epochs == 0
    assert {row["shift"] for row in shifted.rows} == {"", "blobs(seed=3)"}
    _, epochs = counted(make_study(("focal",), recipe=replace(RECIPE, batch_size=30)), tmp_path / "out")
    assert epochs == 2


def test_loss_that_is_updated_within_epochs_depends_on_validation_examples(forgotten):
    @registry.LOSSES.register
    class Updated:
        def __call__(self, logits, labels):
            return logits.logsumexp(-1)

        def is_due(self, batch):
            return True

        def update(self, val):
            return self

    for loss, reusable in (("focal", True), ("Updated", False)):
        stored, run = (Run(f"blobs(val={val})", NETWORK, loss, 0, RECIPE) for val in (40, 30))
        assert grids.trains_same_network(stored.spec, run, same_data=False) == reusable


def test_neighboring_studies_share_trainings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    events(make_study(("focal", "brier"), name="one"), None)
    steps = []
    result = studies.run(make_study(("brier", "mmce"), name="two"), progress=steps.append)
    assert [s.event.kind for s in steps if s.event and s.event.kind != "epoch"] == ["found", "done"]
    (note,) = result.notes
    assert note.startswith("1 ")
    assert note.endswith(str(tmp_path / "runs" / "one"))
    separate, *_ = events(make_study(("brier", "mmce")), tmp_path / "apart")
    assert_frame_equal(result.to_polars(), separate.to_polars(), check_exact=True)


def test_studies_of_one_paper_share_trainings():
    names = [
        "wang_2021",
        *(f"wang_2021_{part}" for part in ("coefficients", "inverse", "training_size", "validation_size")),
    ]
    runs = [run for name in names for run in Study.load(name).runs()]

    def learned(run):
        name, settings = grids._settings_without_sizes(run.divided_dataset)
        return name, str(settings), run.dataset.settings.get("train") or 45_000

    trainings = {(learned(run), run.network, run.loss, run.seed, run.recipe) for run in runs}
    assert (len(runs), len(trainings)) == (980, 627)


def test_splits_that_follow_the_seed_are_drawn_trained_and_shared(tmp_path):
    study = make_study(("brier",), seeds=(1, 2), split="seed")
    result, *_ = events(study, tmp_path / "out")
    (first, second), store = study.runs(), Store(tmp_path / "out")
    theirs = [blobs(train=60, val=40, test=50, seed=seed).val.labels for seed in (1, 2)]
    assert np.array_equal(store.get(first, "val").labels, theirs[0])
    assert np.array_equal(store.get(second, "val").labels, theirs[1])
    assert {row["dataset"] for row in result.rows} == {DATA}
    named = make_study(("brier",), data=(DATA.replace("50)", "50, seed=2)"),), seeds=(2,))
    assert counted(named, tmp_path / "out")[1] == 0


@pytest.mark.slow
def test_glob_characters_in_folder_names_are_literal(tmp_path):
    for name, loss in ("st1", "brier"), ("st[1]", "focal"):
        study = make_study((loss,), traces=("norm",))
        result, *_ = events(study, tmp_path / name)
        assert {row["loss"] for row in result.rows} == {loss}
    (run,) = study.runs()
    theirs = next(make_study(("brier",), traces=("norm",)).runs())
    left, right = Store(tmp_path / "st[1]").history(run), Store(tmp_path / "st1").history(theirs)
    assert left["train_loss"].to_list() != right["train_loss"].to_list()
    drawn = studies.draw(study, tmp_path / "f[1]", out=tmp_path / "st[1]")
    assert drawn
    assert all(path.parent == tmp_path / "f[1]" for path in drawn)


def test_every_command_of_studies_takes_a_folder_with_glob_characters(tmp_path):
    def note_texts(*words):
        completed = CliRunner().invoke(study_app, [*map(str, words)])
        assert completed.exit_code == 0, completed.output
        return completed.output

    def table(folder):
        return (folder / "rows.csv").read_text()

    for name, loss in ("br1", "brier"), ("br[1]", "focal"), ("b*", "focal(gamma=1)"):
        (tmp_path / f"{name}.toml").write_text(
            f'losses = ["{loss}"]\nmetrics = ["error"]\nnetworks = ["{NETWORK}"]\ndatasets = ["{DATA}"]\n'
            "recipe = {epochs = 1, batch_size = 20, milestones = []}\n"
        )
        note_texts("run", tmp_path / f"{name}.toml", "--out", tmp_path / name)
    study, out = tmp_path / "br[1].toml", tmp_path / "br[1]"
    assert [len(list((tmp_path / name / "runs").iterdir())) for name in ("br1", "br[1]", "b*")] == [1, 1, 1]
    first = table(out)
    assert note_texts("status", study, "--out", out).startswith("done ")
    note_texts("run", study, "--out", out)
    assert table(out) == first
    note_texts("measure", study, "--out", out, "-c", "Vector")
    assert "Vector" in table(out / "measured")
    assert table(out) == first
    assert "Vector" not in table(tmp_path / "br1")


@pytest.mark.parametrize("name", ["../../up", "/tmp/up", "..", ".", "", "a/b", "a\\b", "c:up", "a\nb", "x" * 300])
def test_study_names_must_be_folder_names(name):
    with refused("name"):
        make_study(name=name)


@pytest.mark.parametrize(
    ("options", "mentions"),
    [
        ({"seeds": (0, 0, 0)}, ("seeds", "0", "3")),
        ({"losses": ("focal", "brier", "focal(gamma=3.0)")}, ("losses", "focal", "focal(gamma=3)", "2")),
        ({"calibrators": ("Temperature",) * 6}, ("calibrators", "Temperature", "6")),
        ({"metrics": ("ece", "ece(bins=15)")}, ("metrics", "ece", "ece(bins=15)", "2")),
        ({"data": (DATA, DATA)}, ("datasets", DATA)),
    ],
)
def test_repeated_entries_are_refused(options, mentions):
    with refused("entry_twice") as caught:
        make_study(**options)
    assert [part for part in mentions if part not in str(caught.value)] == []


def test_measure_rejects_repeated_calibrators(finished):
    with refused("entry_twice"):
        studies.measure(make_study(), out=finished[0], calibrators=["Temperature", "Temperature"])


def test_locked_draft_is_kept_whatever_its_age(tmp_path, calibrated_predictions):
    Store(tmp_path)
    with stored_files.open_draft(tmp_path, "slow") as draft:
        past = draft.stat().st_mtime - 3 * stored_files.MAX_DRAFT_AGE_SECONDS
        os.utime(draft, (past, past))
        Store(tmp_path)  # deletes stale drafts
        assert draft.is_dir()
        (draft / "run.json").write_text("{}")
    assert (tmp_path / "runs" / "slow").is_dir()
    assert not list((tmp_path / "drafts").iterdir())


def test_waiting_process_names_the_holder(tmp_path, calibrated_predictions):
    store, (run, _) = Store(tmp_path), make_study().runs()
    with store.claim(run) as ours:
        assert ours
        waiting = run_locally(lambda run: iter([RunEvent("done", run, {})]), [run], Store(tmp_path))
        note_texts = next(waiting)
        assert note_texts.kind == "note"
        assert f" {os.getpid()} " in note_texts.content["text"]
    assert next(waiting).kind == "done"
    (tmp_path / "claims" / f"{run.id}.who").write_text("torn {")
    assert store.holder(run) == "another process"


def test_runs_without_data_do_not_stop_the_others(tmp_path, monkeypatch):
    monkeypatch.delenv("CALIBRANT_DATA", raising=False)
    grids = [Grid((data,), (network,), ("focal", "brier"), (0, 1), RECIPE) for data, network in GRIDS]
    study = Study("three", grids, ("Identity",), ("error",))
    dry = studies.status(study, out=tmp_path / "out", data=tmp_path, estimate=True)
    assert len(dry.runs_without_data) == 4
    assert len(dry.remaining) == 8
    (line,) = (line for line in dry.trial_lines if "4 runs on cifar10" in line)
    assert "uoft-cs/cifar10" in line
    assert sum(line.startswith("no data") for line in str(dry).splitlines()) == 4
    result = studies.run(study, out=tmp_path / "out", data=tmp_path)
    assert len(result.failed) == 4
    assert [reason for reason in result.failure_lines if "4 runs on cifar10" in reason]
    assert {row["dataset"] for row in result.rows} == {data for data, _ in GRIDS if data != "cifar10"}
    assert result.report.is_file()


GRIDS = (DATA, NETWORK), ("cifar10", "resnet8"), ("blobs(train=50, val=40, test=50)", NETWORK)


def test_a_dry_run_works_without_any_data_and_limits_its_trials(tmp_path, monkeypatch):
    separate = Study("x", [Grid(("svhn",), (NETWORK,), ("focal",), (0,), RECIPE)])
    dry = studies.status(separate, out=tmp_path / "out", data=tmp_path, estimate=True)
    assert str(dry).splitlines()[0].startswith("no data")
    assert not dry.trials
    with refused("no_data") as caught:
        studies.run(separate, out=tmp_path / "out", data=tmp_path)
    assert "svhn" in str(caught.value)
    grids = [Grid((DATA, GRIDS[2][0]), (NETWORK,), ("focal",), (0,), RECIPE)]
    monkeypatch.setattr(api, "MAX_DRY_RUN_SECONDS", 0.0)  # allows the first trial only
    dry = studies.status(Study("y", grids), out=tmp_path / "out", estimate=True)
    assert len(dry.trials) == 1


def test_finished_runs_need_no_data(tmp_path, monkeypatch):
    grid = Grid(("cifar10",), ("resnet8",), ("focal",), (0,), RECIPE)
    study, store = Study("x", (grid,), ("Identity",), ("error",)), Store(tmp_path / "out")
    (run,) = study.runs()
    logits = torch.randn(40, 10, generator=torch.Generator().manual_seed(0))
    store.save(run, dict.fromkeys(("val", "test"), Predictions(logits, logits.argmax(1))), {"seconds": 1.0})
    checked_store, runs_without_data = progress.check_data([run], store, DatasetCache(tmp_path))
    assert (runs_without_data, checked_store.data) == ({}, {})
    assert len(studies.run(study, out=tmp_path / "out", data=tmp_path).rows) == 1


def test_damaged_runs_of_a_neighbor_are_rejected_one_by_one(finished, tmp_path):
    folder, _ = finished
    neighbor = tmp_path / "nei[ghbor]"
    shutil.copytree(folder / "runs", neighbor / "runs")
    shutil.copytree(neighbor, tmp_path / "nei" / "ghbor")
    flip(of(neighbor, "focal") / "test.safetensors")
    store, runs = Store(tmp_path / "new", (neighbor,)), list(make_study().runs())
    lines = store.sync_runs(runs)
    assert {run.loss.name: run in store for run in runs} == {"focal": False, "brier": True}
    assert len(lines) == 2
    assert " test.safetensors " in lines[0]
    (of(neighbor, "brier") / "history.parquet").unlink()
    assert " history.parquet " in " ".join(Store(tmp_path / "newer", (neighbor,)).sync_runs(runs))


def test_run_id_ends_with_a_digest_of_the_traces():
    run = Run("digits", "resnet8", "focal", 0, Recipe())
    options = Run("digits", "resnet8", "focal", 0, Recipe(), traces=("norm",))
    assert run.id == run.training_id == options.training_id
    assert options.id.startswith(f"{run.id}-")
