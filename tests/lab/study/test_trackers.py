"""Trackers receive the numbers of a study: files of TensorBoard, calls of the other clients."""

import math
import sys
from types import SimpleNamespace
from unittest.mock import MagicMock, call

import pytest
from refusals import refused

from calibrant.lab.study import Grid, Study
from calibrant.lab.study.engine import RunEvent
from calibrant.lab.study.trackers import open_tracker

STUDY = Study("tiny", (Grid(("digits",), ("resnet8",), ("focal",), seeds=(0, 1, 2)),))
FIRST, SECOND, THIRD = STUDY.runs()


def epoch(run, number, nll):
    facts = {"epoch": number, "val_nll": nll, "gammas": [1.0], "images": 60, "broken": math.nan}
    return RunEvent("epoch", run, facts)


EVENTS = [  # two runs at once; one was finished before, one never ends
    RunEvent("found", THIRD, {}),
    epoch(FIRST, 1, 0.5),
    epoch(SECOND, 1, 0.7),
    epoch(FIRST, 2, 0.25),
    RunEvent("done", FIRST, {"seconds": 1.0}),
]


def send_events(name, folder):
    with open_tracker(name, STUDY, folder) as watch:
        for event in EVENTS:
            watch(event)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of TensorBoard's own
def test_tensorboard_reads_what_was_written(tmp_path):
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    send_events("tensorboard", tmp_path)
    points = {}
    for folder in (tmp_path / "tensorboard").iterdir():
        board = EventAccumulator(str(folder)).Reload()
        assert set(board.Tags()["scalars"]) == {"val_nll", "images"}
        points[folder.name] = [(point.step, point.value) for point in board.Scalars("val_nll")]
    assert points == {
        f"digits resnet8 focal seed 0 {FIRST.id}": [(1, 0.5), (2, 0.25)],
        f"digits resnet8 focal seed 1 {SECOND.id}": [(1, pytest.approx(0.7))],
    }


def test_mlflow_is_called(tmp_path, monkeypatch):
    client = MagicMock()
    client.get_experiment_by_name.return_value = None
    client.create_experiment.return_value = "7"
    client.create_run.side_effect = lambda *_, run_name, tags: SimpleNamespace(info=SimpleNamespace(run_id=run_name))
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(MlflowClient=lambda: client))
    send_events("mlflow", tmp_path)
    first, second = "digits resnet8 focal seed 0", "digits resnet8 focal seed 1"
    assert [c.args[:3] for c in client.log_metric.call_args_list if c.args[1] == "val_nll"] == [
        (first, "val_nll", 0.5),
        (second, "val_nll", 0.7),
        (first, "val_nll", 0.25),
    ]
    assert [c.kwargs["step"] for c in client.log_metric.call_args_list if c.args[1] == "images"] == [1, 1, 2]
    assert client.set_terminated.call_args_list == [call(first, "FINISHED"), call(second, "FAILED")]


def test_wandb_is_called(tmp_path, monkeypatch):
    clients = {FIRST.id: MagicMock(), SECOND.id: MagicMock()}
    fake = SimpleNamespace(init=lambda **settings: clients[settings["id"]])
    monkeypatch.setitem(sys.modules, "wandb", fake)
    send_events("wandb", tmp_path)
    first, second = clients.values()
    logged = [call({"val_nll": 0.5, "images": 60}, step=1), call({"val_nll": 0.25, "images": 60}, step=2)]
    assert first.log.call_args_list == logged
    first.finish.assert_called_once_with(exit_code=0)
    second.finish.assert_called_once_with(exit_code=1)


def test_nothing_is_tracked_unless_asked(tmp_path):
    with open_tracker(None, STUDY, tmp_path) as watch:
        assert watch is None
    assert not list(tmp_path.iterdir())


def test_unknown_trackers_and_missing_clients_are_refused(tmp_path, monkeypatch):
    with refused("unknown_tracker") as caught:
        send_events("tensorbord", tmp_path)
    assert "'tensorboard'" in str(caught.value)
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with refused("missing_package") as caught:
        send_events("mlflow", tmp_path)
    assert "calibrant[mlflow]" in str(caught.value)
