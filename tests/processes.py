"""Run studies in other processes, which tests kill."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import polars
import pytest
from stored_rows import study_rows

from calibrant import registry
from calibrant.lab.study import Store, Study

# RAY_AUTH_MODE: a cluster that Ray has started in this process before would change what later ones ask for
ENVIRONMENT = os.environ | {
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": os.pathsep.join(sys.path),
    "RAY_AUTH_MODE": "disabled",
}


def start(study: Path, folder: Path, *options: str) -> subprocess.Popen[str]:
    """Start a process that runs a study."""
    command = [sys.executable, "-m", "calibrant", "study", "run", str(study), "--out", str(folder)]
    command += ["--with", "processes", *options]
    return subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process: subprocess.Popen[str], code: int = 0) -> str:
    """Wait for a process to end, and return its output."""
    text, _ = process.communicate(timeout=300)
    assert process.returncode == code, text
    return text


def rows(study: Path, folder: Path) -> polars.DataFrame:
    """Return the measurements of the stored runs."""
    return polars.DataFrame(list(study_rows(Study.load(study), Store(folder))))


def finished_runs(folder: Path) -> dict[str, int]:
    """Return the finished runs with their modification times."""
    return {path.parent.name: path.stat().st_mtime_ns for path in folder.glob("runs/*/run.json")}


def wait(until: Callable[[], object], process: subprocess.Popen[str] | None = None, seconds: float = 280) -> None:
    """Wait until a condition holds, or fail with the output of the process that should bring it about."""
    deadline = time.monotonic() + seconds
    while not until():
        if process is not None and (process.poll() is not None or time.monotonic() > deadline):
            process.kill()
            pytest.fail(f"waited too long; exit status {process.returncode}:\n{process.communicate()[0]}")
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.005)


def working(folder: Path) -> list[int]:
    """Return the processes that hold the claims of a store, and so work on its runs."""
    processes: list[int] = []
    for handle in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if handle.readlink().parent == folder / "claims":
                processes.append(int(handle.parts[2]))
        except OSError:  # the process has ended
            continue
    return processes


@registry.TRACES.register
def halt(watched: object) -> dict[str, object]:
    """Trace nothing, but halt while the store has at least as many finished runs as the file `halt` says.

    The variable `HALTS` is the folder of that file, of the store, and of `halted`, which lists halted processes.
    """
    if "HALTS" in os.environ:
        folder = Path(os.environ["HALTS"])
        mark = folder / "halted" / str(os.getpid())
        while len(finished_runs(folder / "store")) >= int((folder / "halt").read_text()):
            mark.touch()
            time.sleep(0.01)
        mark.unlink(missing_ok=True)
    return {}
