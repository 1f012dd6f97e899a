"""Files of a watch: round trips, other versions, kills, full disks and two writers."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import polars
import pytest
from commands import run
from refusals import code_of, refused
from safetensors.numpy import load_file, save_file
from scipy.special import softmax
from streams import draw, draw_groups

from calibrant import Watch, calibrators
from calibrant.monitoring import lock_state
from calibrant.monitoring._evidence import Wealth

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
COMMAND = [sys.executable, "-m", "calibrant", "watch"]


@pytest.fixture
def watch():
    p = draw(333, groups=draw_groups(333))
    return Watch(alpha=0.1).add(p, ids=range(333), times=np.arange(333.0), labeled=np.arange(333) != 200)


def test_state_reads_back_exactly_and_goes_on(watch, tmp_path):
    path = tmp_path / "a.watch"
    watch.save(path)
    loaded = Watch.load(path)
    assert loaded.verdict == watch.verdict
    assert (loaded.alpha, loaded.group_names, loaded.last_time) == (0.1, watch.group_names, 332.0)
    later = [x.add_labels([200], draw(333).labels[200:201]) for x in (watch, loaded)]
    assert later[0].rows == 330
    assert later[0].verdict == later[1].verdict
    for name in vars(Wealth.empty(0)):
        np.testing.assert_array_equal(getattr(later[0].evidence, name), getattr(later[1].evidence, name))
    empty = tmp_path / "empty.watch"
    Watch(of=None).save(empty)
    assert Watch.load(empty).rows == 0


def test_state_of_many_rows_is_small(tmp_path):
    watch = Watch()
    for seed in range(2):
        watch = watch.add(draw(60_000, seed=seed))
    path = tmp_path / "a.watch"
    watch.save(path)
    assert watch.rows == 120_000
    assert path.stat().st_size < 2_000_000


def test_other_versions_and_files_are_refused(watch, tmp_path):
    path = tmp_path / "a.watch"
    watch.save(path)
    metadata = {"format": "calibrant.calibrator", "version": "99", "calibrant": "9.9.9"}
    save_file(load_file(path), path, metadata=metadata)
    with refused("newer_format", "99", "9.9.9"):
        Watch.load(path)
    finished = run("watch", path)
    assert (finished.code, finished.returncode, finished.stderr.count("\n")) == ("newer_format", 2, 1)
    save_file(load_file(path), path)
    assert code_of(Watch.load, path) == "not_a_calibrator"
    calibrators.save(calibrators.fit("Temperature", draw(20)), path)
    assert code_of(Watch.load, path) == "file_content"
    path.write_bytes(b"not a state")
    assert code_of(Watch.load, path) == "unreadable"
    assert code_of(Watch.load, tmp_path / "missing.watch") == "no_file"
    assert code_of(watch.save, tmp_path / "a.pickle") == "suffix"


def test_truncated_state_is_refused(watch, tmp_path):
    path = tmp_path / "a.watch"
    watch.save(path)
    path.write_bytes(path.read_bytes()[:-100])
    assert code_of(Watch.load, path) == "unreadable"


def test_locked_state_is_refused_after_a_while(tmp_path):
    path = tmp_path / "a.watch"
    with lock_state(path), refused("locked"), lock_state(path, seconds=0.0):
        pass
    with lock_state(path, seconds=0.0):
        pass


def write_batch(path, seed, n=100):
    p = draw(n, seed=seed)
    probs = {f"prob_{j}": column for j, column in enumerate(softmax(p.logits, 1).T)}
    polars.DataFrame({"id": [f"{seed}-{i}" for i in range(n)], **probs, "label": p.labels}).write_csv(path)
    return path


@pytest.mark.slow
def test_killed_writer_leaves_the_old_state_and_no_lock(tmp_path):
    state, batch = tmp_path / "a.watch", write_batch(tmp_path / "b.csv", 1)
    Watch().add(draw(50)).save(state)
    old = state.read_bytes()
    code = (
        "import os, sys, time\n"
        "def halt(handle):\n"
        "    print('halted', flush=True)\n"
        "    time.sleep(600)\n"
        "os.fsync = halt\n"
        "from calibrant.cli import main\n"
        f"sys.argv = ['calibrant', 'watch', {str(state)!r}, {str(batch)!r}]\n"
        "main()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert "halted\n" in iter(process.stdout.readline, "")  # after the notes on the batch
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert state.read_bytes() == old
    finished = subprocess.run([*COMMAND, str(state), str(batch)], env=ENVIRONMENT, capture_output=True, text=True)
    assert finished.returncode in (0, 3), finished.stderr
    assert Watch.load(state).rows == 150


@pytest.mark.slow
def test_full_disk_leaves_the_old_state(tmp_path):
    """A limit on the size of files fails writes as a full disk does."""
    state, batch = tmp_path / "a.watch", write_batch(tmp_path / "b.csv", 1, n=4000)
    Watch().add(draw(50)).save(state)
    old, files = state.read_bytes(), {path.name for path in tmp_path.iterdir()}
    limit = f"ulimit -f 16; exec {' '.join(COMMAND)} {state} {batch}"
    finished = subprocess.run(["bash", "-c", limit], env=ENVIRONMENT, capture_output=True, text=True)
    assert (finished.returncode, finished.stderr.count("\n")) == (2, 1), finished
    assert state.read_bytes() == old
    assert {path.name for path in tmp_path.iterdir()} - files <= {".a.watch.lock"}


@pytest.mark.slow
def test_two_writers_both_count(tmp_path):
    state = tmp_path / "a.watch"
    batches = [write_batch(tmp_path / f"b{seed}.csv", seed) for seed in range(3)]
    commands = [[*COMMAND, str(state), str(batch), "--json", "-"] for batch in batches]
    processes = [subprocess.Popen(c, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) for c in commands]
    rows = sorted(json.loads(process.communicate(timeout=120)[0])["rows"] for process in processes)
    assert rows == [100, 200, 300]
    assert Watch.load(state).rows == 300
