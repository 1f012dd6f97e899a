"""Real processes, really killed: the study goes on, nothing finished is lost or done again."""

import signal
import subprocess
import sys
import time

import polars
import pytest
from polars.testing import assert_frame_equal
from processes import ENVIRONMENT, done, finish, rows, start


@pytest.fixture
def untouched(tiny, tmp_path):
    """The result of the study when nobody disturbs it."""
    text = finish(start(tiny, tmp_path / "untouched"))
    assert text.count("done ") == 8
    return rows(tiny, tmp_path / "untouched")


@pytest.mark.slow
def test_killed_again_and_again_it_ends_the_same(tiny, tmp_path, untouched):
    folder, kept, kills = tmp_path / "killed", {}, 0
    for wait in (0.0, 0.3, 0.05, 0.15):
        process = start(tiny, folder)
        known = len(done(folder))
        deadline = time.monotonic() + 120
        while len(done(folder)) == known and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)  # until one more run is finished, then somewhere in the next
        time.sleep(wait)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        kills += process.returncode == -signal.SIGKILL
        now = done(folder)
        assert kept.items() <= now.items()  # nothing lost, nothing written again
        kept = now
    assert kills >= 3
    text = finish(start(tiny, folder))
    assert kept.items() <= done(folder).items()
    assert text.count("done ") == 8 - len(kept)
    assert_frame_equal(rows(tiny, folder), untouched)
    assert (folder / "report.html").is_file()


@pytest.mark.slow
def test_two_processes_on_one_store_end_as_one(tiny, tmp_path, untouched):
    processes = [start(tiny, tmp_path / "two") for _ in range(2)]
    texts = [finish(process) for process in processes]
    assert sum(text.count("done ") for text in texts) == 8  # every run by exactly one of them
    assert_frame_equal(rows(tiny, tmp_path / "two"), untouched)


@pytest.mark.slow
def test_a_second_start_finds_everything_done(tiny, tmp_path):
    finish(start(tiny, tmp_path / "again"))
    before = done(tmp_path / "again")
    assert "done " not in finish(start(tiny, tmp_path / "again"))
    assert done(tmp_path / "again") == before


@pytest.mark.slow
def test_what_is_stored_can_be_seen_and_measured_again(tiny, tmp_path):
    def calibrant(*arguments):
        command = [sys.executable, "-m", "calibrant", "study", *arguments, str(tiny), "--out", str(tmp_path / "out")]
        return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)

    assert "8 of 8 runs to train" in calibrant("run", "--dry-run").stdout
    assert calibrant("run", "--only", "focal").returncode == 0
    text = calibrant("status").stdout
    assert (text.count("done "), text.count("missing ")) == (4, 4)
    assert "4 of 8 runs to train, about 0 minutes" in text
    again = calibrant("measure", "-c", "Identity", "-m", "mce")
    assert again.returncode == 0, again.stderr
    assert "mce (%)" in again.stdout
    frame = polars.read_csv(tmp_path / "out" / "rows.csv")
    assert frame["metric"].unique().to_list() == ["mce"]
    assert len(frame) == 4
    assert "| mce (%) | Identity |" in (tmp_path / "out" / "tables.md").read_text()
    assert "no run of study 'tiny' has 'resnet20'" in calibrant("run", "--only", "resnet20").stderr
