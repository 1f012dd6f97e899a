"""Killed studies continue without losing or repeating finished runs."""

import resource
import shutil
import signal
import subprocess
import sys
import time
from functools import partial

import polars
import pytest
from polars.testing import assert_frame_equal
from processes import ENVIRONMENT, finish, finished_runs, rows, start, wait

from calibrant.lab.study import Recipe, Run, Store, stored_files
from calibrant.lab.study.engine import execute, run_locally


@pytest.fixture
def small_disk(tmp_path):
    """Mount a file system that holds a few runs."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=400k", "none", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small file system cannot be mounted here; that needs root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.slow
def test_repeated_kills_do_not_change_the_result(tiny, tmp_path, untouched, halt):
    folder, stored, kills = tmp_path / "store", {}, 0
    for pause in (0.0, 0.3, 0.05, 0.15):
        num_done = len(finished_runs(folder))
        halt(num_done + 2)  # leaves a process to kill three times
        process = start(tiny, folder)
        wait(
            lambda num_done=num_done, process=process: (
                len(finished_runs(folder)) > num_done or process.poll() is not None
            )
        )
        time.sleep(pause)  # kill at various points of the next run
        process.send_signal(signal.SIGKILL)
        process.communicate()
        kills += process.returncode == -signal.SIGKILL
        now = finished_runs(folder)
        assert stored.items() <= now.items()  # nothing lost, nothing written again
        stored = now
    assert kills >= 3
    halt(9)
    text = finish(start(tiny, folder))
    assert stored.items() <= finished_runs(folder).items()
    assert text.count("done ") == 8 - len(stored)
    assert_frame_equal(rows(tiny, folder), untouched)
    assert (folder / "report.html").is_file()


@pytest.mark.slow
def test_two_processes_share_one_store(tiny, tmp_path, untouched):
    processes = [start(tiny, tmp_path / "two") for _ in range(2)]
    texts = [finish(process) for process in processes]
    assert sum(text.count("done ") for text in texts) == 8  # every run by exactly one of them
    assert_frame_equal(rows(tiny, tmp_path / "two"), untouched)


@pytest.mark.slow
def test_ctrl_c_stops_cleanly(tiny, tmp_path, untouched, halt):
    folder = tmp_path / "store"
    halt(2)
    process = start(tiny, folder)
    wait(lambda: list((tmp_path / "halted").iterdir()))
    process.send_signal(signal.SIGINT)
    text = finish(process, 130)
    assert text.splitlines()[-1].startswith("calibrant: ")
    assert "Traceback" not in text
    assert len(finished_runs(folder)) == 2
    halt(9)
    assert finish(start(tiny, folder)).count("done ") == 6
    assert_frame_equal(rows(tiny, folder), untouched, check_exact=True)


@pytest.mark.slow
def test_a_full_disk_is_reported_and_loses_nothing(tiny, small_disk, untouched):
    folder = small_disk / "full"
    text = finish(start(tiny, folder), 2)
    assert text.splitlines()[-1].endswith(f" {folder}: No space left on device")
    assert "Traceback" not in text
    stored = finished_runs(folder)
    assert 1 <= len(stored) < 8
    assert not list((folder / "drafts").iterdir())
    subprocess.run(["mount", "-o", "remount,size=20m", str(small_disk)], check=True)
    assert finish(start(tiny, folder)).count("done ") == 8 - len(stored)
    assert stored.items() <= finished_runs(folder).items()
    assert_frame_equal(rows(tiny, folder), untouched, check_exact=True)


def test_full_disk_at_a_checkpoint_stops_the_study(tmp_path, monkeypatch):
    """A limit of 2,000 bytes per file acts like a full disk, which only root can create."""
    monkeypatch.setattr(stored_files, "MIN_SAVE_INTERVAL_SECONDS", 0.0)
    recipe = Recipe(epochs=2, batch_size=20)
    run = Run("blobs(train=40, val=20, test=20)", "mlp(features=2, hidden=(64,))", "focal", 0, recipe)
    store, limits = Store(tmp_path), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            list(run_locally(partial(execute, store=store), [run], store))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [event.kind for event in run_locally(partial(execute, store=store), [run], store)] == [
        "epoch",
        "epoch",
        "done",
    ]


def test_time_of_a_resumed_training_includes_its_earlier_epochs(tmp_path, monkeypatch):
    monkeypatch.setattr(stored_files, "MIN_SAVE_INTERVAL_SECONDS", 0.0)
    recipe = Recipe(epochs=2, batch_size=20, milestones=())
    run = Run("blobs(train=40, val=20, test=20)", "mlp(features=2, hidden=())", "focal", 0, recipe)
    store = Store(tmp_path)
    interrupted = execute(run, store)
    for _ in range(2):
        next(interrupted)
    interrupted.close()
    checkpoint = stored_files.Checkpoint(store.partial(run) / "checkpoint.pt")
    state = checkpoint.read()
    checkpoint.rows[0]["seconds"] = 1000.0
    checkpoint.save(state)
    *_, last_event = execute(run, store)
    assert last_event.content["seconds"] > 1000


@pytest.mark.slow
def test_a_second_start_finds_everything_done(tiny, tmp_path):
    finish(start(tiny, tmp_path / "again"))
    before = finished_runs(tmp_path / "again")
    assert "done " not in finish(start(tiny, tmp_path / "again"))
    assert finished_runs(tmp_path / "again") == before


@pytest.mark.slow
def test_commands_show_and_measure_stored_runs(tiny, tmp_path):
    def calibrant(*arguments):
        command = [sys.executable, "-m", "calibrant", "study", *arguments, str(tiny), "--out", str(tmp_path / "out")]
        command += ["--with", "processes"]
        return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)

    dry = calibrant("run", "--dry-run").stdout
    for part in ("resnet8(channels=1, width=4) on digits(train=60, val=100)", "60 examples", "4,934 parameters"):
        assert part in dry
    assert "8 of 8 runs" in dry
    assert calibrant("run", "--only", "focal").returncode == 0
    text = calibrant("status").stdout
    assert (text.count("done "), text.count("missing ")) == (4, 4)
    assert "4 of 8 runs" in text
    again = calibrant("measure", "-c", "Identity", "-m", "mce")
    assert again.returncode == 0, again.stderr
    assert "mce (%)" in again.stdout
    frame = polars.read_csv(tmp_path / "out" / "measured" / "rows.csv")
    assert frame["metric"].unique().to_list() == ["mce"]
    assert len(frame) == 4
    assert "| mce (%) | Identity |" in (tmp_path / "out" / "measured" / "tables.md").read_text()
    assert "'resnet20'" in calibrant("run", "--only", "resnet20").stderr
