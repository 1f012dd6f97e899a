"""Mirrors hold complete runs, receive each once, and provide missing ones."""

import json

import fsspec
import pytest
import torch
from refusals import refused

from calibrant.lab.study import Recipe, Run, Store
from calibrant.lab.study.stored_files import Mirror

RUNS = [Run("digits", "resnet8", "focal", seed, Recipe()) for seed in range(3)]


@pytest.fixture(params=["file", "memory"])
def url(request, tmp_path):
    """Return a URL of each kind, and clean up."""
    if request.param == "file":
        yield f"file://{tmp_path / 'mirror'}"
    else:
        yield f"memory://{tmp_path.name}"
        fsspec.filesystem("memory").store.clear()


def save_run(store, run, calibrated_predictions):
    store.save(
        run,
        {"val": calibrated_predictions, "test": calibrated_predictions},
        {"seconds": 1.0},
        [{"epoch": 1, "val_nll": 0.5}],
    )


def test_mirror_shares_finished_runs(tmp_path, url, calibrated_predictions):
    first, two = (Store(tmp_path / name, url) for name in ("one", "two"))
    save_run(first, RUNS[0], calibrated_predictions)
    assert RUNS[0] not in two
    two.sync_runs(RUNS)
    assert [run in two for run in RUNS] == [True, False, False]
    assert torch.equal(two.get(RUNS[0], "test").logits, calibrated_predictions.logits)
    assert two.record(RUNS[0]) == first.record(RUNS[0])
    assert two.history(RUNS[0]).equals(first.history(RUNS[0]))
    assert not list((tmp_path / "two" / "drafts").iterdir())


def test_earlier_runs_are_sent_to_a_new_mirror(tmp_path, url, calibrated_predictions):
    save_run(Store(tmp_path / "one"), RUNS[1], calibrated_predictions)
    Store(tmp_path / "one", url).sync_runs(RUNS)
    assert Mirror(url).run_names() == {RUNS[1].id}
    Store(tmp_path / "one", url).sync_runs(RUNS)  # nothing is left to send


def test_run_without_record_is_not_in_the_mirror(tmp_path, url, calibrated_predictions):
    save_run(Store(tmp_path / "one", url), RUNS[0], calibrated_predictions)
    files, root = fsspec.core.url_to_fs(url)
    files.rm(f"{root}/runs/{RUNS[0].id}/run.json")  # as if the machine had died while sending
    second = Store(tmp_path / "two", url)
    second.sync_runs(RUNS)
    assert RUNS[0] not in second
    Store(tmp_path / "one", url).sync_runs(RUNS)
    assert Mirror(url).run_names() == {RUNS[0].id}


def test_the_record_is_sent_last(tmp_path, calibrated_predictions, monkeypatch):
    url, sent = f"memory://{tmp_path.name}", []
    memory = fsspec.filesystem("memory")
    monkeypatch.setattr(type(memory), "put_file", lambda self, path, target, **_: sent.append(target))
    save_run(Store(tmp_path / "one", url), RUNS[0], calibrated_predictions)
    assert [target.rpartition("/")[2] for target in sent][-1] == "run.json"
    assert len(sent) == 4


@pytest.mark.parametrize("url", ["nonsense://x", "file:///proc/none"])
def test_an_unreachable_mirror_is_refused_and_loses_nothing(tmp_path, url, calibrated_predictions):
    store = Store(tmp_path, url)
    with refused("mirror_unreachable") as caught:
        save_run(store, RUNS[0], calibrated_predictions)
    assert url in str(caught.value)
    assert json.loads((store.folder(RUNS[0]) / "run.json").read_text())["facts"] == {"seconds": 1.0}
