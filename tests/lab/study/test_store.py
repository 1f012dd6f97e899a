"""Runs are stored completely or not at all, whenever a writer dies."""

import json
import multiprocessing
import os
import signal
import stat
from pathlib import Path

import numpy as np
import pytest
import torch
from refusals import refused
from safetensors.torch import load

from calibrant import Predictions
from calibrant.lab.study import Recipe, Run, Store

RUN = Run("digits", "resnet8", "focal", 0, Recipe())
PREDICTIONS = Predictions(torch.eye(3).repeat(4, 1) * 2, [0, 1, 2] * 4)


def test_saved_run_is_read_back(tmp_path):
    store = Store(tmp_path)
    assert RUN not in store
    store.save(RUN, {"test": PREDICTIONS}, {"seconds": 1.5}, [{"epoch": 1, "loss": 0.5}])
    assert RUN in store
    assert np.array_equal(store.get(RUN, "test").logits, PREDICTIONS.logits)
    assert store.record(RUN)["facts"] == {"seconds": 1.5}
    assert store.history(RUN).to_dicts() == [{"epoch": 1, "loss": 0.5}]
    assert [record["run"]["loss"] for record in store.records()] == ["focal(gamma=3, detach_weight=False)"]
    assert not list((tmp_path / "drafts").iterdir())


def test_first_of_two_writers_wins(tmp_path):
    store = Store(tmp_path)
    store.save(RUN, {"test": PREDICTIONS}, {"who": "first"})
    store.save(RUN, {"test": PREDICTIONS}, {"who": "second"})
    assert store.record(RUN)["facts"] == {"who": "first"}
    assert not list((tmp_path / "drafts").iterdir())


def _die_while_writing(root, where):
    import calibrant.lab.study.stored_files as module

    def die(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    if where == "split":  # die after half of a file
        write = Path.write_bytes

        def half(path, content):
            write(path, content[:100])
            die()

        Path.write_bytes = half
    elif where == "record":  # die after half of the record
        write_text = Path.write_text

        def part(path, text):
            write_text(path, text[:30])
            die()

        Path.write_text = part
    else:
        module._fsync = die
    Store(root).save(RUN, {"test": PREDICTIONS}, {"seconds": 1.0})


@pytest.mark.slow
@pytest.mark.parametrize("where", ["split", "record", "sync"])
def test_kill_while_writing_leaves_no_run(tmp_path, where):
    process = multiprocessing.get_context("spawn").Process(target=_die_while_writing, args=(tmp_path, where))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    store = Store(tmp_path)
    assert list((tmp_path / "drafts").iterdir())  # the write had started
    assert RUN not in store
    assert not list(store.records())
    store.save(RUN, {"test": PREDICTIONS}, {"seconds": 2.0})
    assert store.record(RUN)["facts"] == {"seconds": 2.0}


def _hold(root, ready, end):
    with Store(root).claim(RUN) as ours:
        assert ours
        ready.set()
        end.wait()  # until it is killed


@pytest.mark.slow
def test_claim_ends_with_its_process(tmp_path):
    context = multiprocessing.get_context("spawn")
    ready, end = context.Event(), context.Event()
    process = context.Process(target=_hold, args=(tmp_path, ready, end), daemon=True)
    process.start()
    assert ready.wait(300)
    store = Store(tmp_path)
    with store.claim(RUN) as ours:
        assert not ours
    process.kill()
    process.join()
    with store.claim(RUN) as ours:
        assert ours


def test_only_old_drafts_are_deleted(tmp_path):
    store = Store(tmp_path)
    for name, age in ("old", 2 * 86400), ("young", 60):
        (tmp_path / "drafts" / name).mkdir()
        past = (tmp_path / "drafts" / name).stat().st_mtime - age
        os.utime(tmp_path / "drafts" / name, (past, past))
    Store(store.root)
    assert [path.name for path in (tmp_path / "drafts").iterdir()] == ["young"]


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text(json.dumps({}))
    with refused("not_writable"):
        Store(tmp_path / "file")


def test_permissions_of_runs_follow_the_umask(tmp_path):
    store = Store(tmp_path)
    before = os.umask(0o027)
    try:
        store.save(RUN, {"val": PREDICTIONS}, {})
    finally:
        os.umask(before)
    folder = store.folder(RUN)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o750
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o640}


def test_noncontiguous_weights_are_stored(tmp_path):
    """Convolutions trained with channels_last are not contiguous, which safetensors requires."""
    store, weight = Store(tmp_path), torch.arange(120.0).view(2, 3, 4, 5)
    moved = weight.to(memory_format=torch.channels_last)
    store.save(RUN, {"test": PREDICTIONS}, {"seconds": 1.5}, network={"weight": moved})
    weights = load((tmp_path / "runs" / RUN.id / "network.safetensors").read_bytes())
    assert np.array_equal(weights["weight"], weight)
