"""One network of a full recipe, a few epochs at a time, and the scale for GPUs."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from refusals import refused

from benchmarks import full_recipe
from calibrant.lab.study import Recipe, Run, Store, Study, stored_files
from calibrant.lab.study.datasets import DatasetCache
from calibrant.lab.study.engine import execute

TOML = """
losses = ["AdaFocal", "brier"]
datasets = ["blobs(train=40, val=20, test=20)"]
networks = ["mlp(features=2, hidden=())"]
recipe = {epochs = 5, batch_size = 20, milestones = [2, 4]}
calibrators = ["Identity"]
metrics = ["error"]

[drawn."calibrant figures full"]
"Figure 1" = ["val_error"]

[drawn."calibrant figures focal"]
"Figure 2" = ["curves"]

[scales.small]
seeds = [3]
"""


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "full.toml"
    path.write_text(TOML)
    return path


def epochs_of_calls(run, store, seconds, monkeypatch):
    """Return the progress of calls, in which each epoch takes a second, until the run is finished."""
    monkeypatch.setattr(stored_files, "MIN_SAVE_INTERVAL_SECONDS", 1e9)  # only what a stop writes
    clock = itertools.count()
    calls = []
    while not calls or not calls[-1].is_finished:
        calls.append(full_recipe.train_for(run, store, DatasetCache(), seconds, clock=lambda: next(clock)))
    return calls


@pytest.mark.parametrize("loss", ["AdaFocal", "brier"])
def test_calls_continue_and_give_the_network_of_one_training(loss, path, tmp_path, monkeypatch):
    """The learning rates are those of the whole schedule, and the logits those of an uninterrupted training."""
    (run,) = (run for run in Study.load(path).runs() if run.loss.text == loss)
    complete, parts = Store(tmp_path / "whole"), Store(tmp_path / "parts")
    list(execute(run, complete))
    calls = epochs_of_calls(run, parts, 2.5, monkeypatch)
    assert len(calls) > 2
    assert sum(call.num_epochs for call in calls) == 5
    assert [call.epoch for call in calls] == list(itertools.accumulate(call.num_epochs for call in calls))
    assert np.array_equal(parts.get(run, "test").logits, complete.get(run, "test").logits)
    histories = [store.history(run).drop("seconds") for store in (complete, parts)]
    assert histories[0].equals(histories[1])
    assert histories[0]["learning_rate"].to_list() == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001])


def test_at_least_one_epoch_is_trained_and_no_time_is_wasted(path, tmp_path, monkeypatch):
    run = next(iter(Study.load(path).runs()))
    assert [call.num_epochs for call in epochs_of_calls(run, Store(tmp_path / "a"), 0.0, monkeypatch)] == [1] * 5
    assert [call.num_epochs for call in epochs_of_calls(run, Store(tmp_path / "b"), 1e9, monkeypatch)] == [5]


def test_texts_have_the_minutes_of_an_epoch_and_of_the_whole_run(path):
    run = next(iter(Study.load(path).runs()))
    run = Run(run.dataset, run.network, run.loss, run.seed, replace(run.recipe, epochs=300, milestones=()))
    lines = str(full_recipe.TrainedEpochs(run, 30, 10, 600.0, 1200.0, is_finished=False)).splitlines()
    assert "epoch 30 of 300" in lines[2]
    assert lines[3].startswith("1.00 minutes per epoch, 2.00 ")
    assert "5.0 hours" in lines[4]
    assert "4.5 hours" in lines[4]


def test_the_command_takes_the_first_missing_run(path, tmp_path, capsys):
    command = [str(path), "--minutes", "1", "--scale", "gpu", "--out", str(tmp_path / "out")]
    for loss in "AdaFocal", "brier":
        full_recipe.main(command)
        text = capsys.readouterr().out
        assert loss in text
        assert "bf16-mixed" in text
    with pytest.raises(SystemExit, match="finished"):
        full_recipe.main([*command, "--only", "brier"])


def test_a_run_of_another_process_is_refused(path, tmp_path):
    run, store = next(iter(Study.load(path).runs())), Store(tmp_path / "out")
    with store.claim(run), pytest.raises(RuntimeError, match="--only"):
        full_recipe.train_for(run, Store(tmp_path / "out"), DatasetCache(), 60.0)


@pytest.mark.parametrize("name", ["mukhoti_2020", "wang_2021", "komisarenko_2024", "adafocal_2022", "loss_survey"])
def test_the_gpu_scale_is_the_whole_study_in_bfloat16(name):
    full, gpu = Study.load(name), Study.load(name, "gpu")
    assert gpu.name == f"{name}-gpu"
    assert {run.recipe.precision for run in gpu.runs()} == {"bf16-mixed"}
    assert all(run.recipe.channels_last for run in gpu.runs())
    as_whole = [replace(run.recipe, precision="32-true", channels_last=False) for run in gpu.runs()]
    assert as_whole == [replace(run.recipe, channels_last=False) for run in full.runs()]
    assert [(run.dataset, run.network, run.loss, run.seed) for run in gpu.runs()] == [
        (run.dataset, run.network, run.loss, run.seed) for run in full.runs()
    ]


def test_commands_of_the_gpu_scale_name_it(path):
    commands = {exhibit.title: exhibit.command for exhibit in Study.load(path, "gpu").drawn}
    assert commands == {"Figure 1": "calibrant figures full --scale gpu", "Figure 2": "calibrant figures focal"}
    assert not Study.load(path, "small").drawn
    with refused("scale"):
        Study.load(path, "tpu")


def test_a_closed_training_keeps_its_last_epoch(tmp_path, monkeypatch):
    monkeypatch.setattr(stored_files, "MIN_SAVE_INTERVAL_SECONDS", 1e9)
    run = Run(
        "blobs(train=40, val=20, test=20)", "mlp(features=2, hidden=())", "focal", 0, Recipe(epochs=3, milestones=())
    )
    store = Store(tmp_path)
    events = execute(run, store)
    assert [next(events).content["epoch"] for _ in range(2)] == [1, 2]
    events.close()
    assert [event.content.get("epoch") for event in execute(run, store)] == [3, None]
