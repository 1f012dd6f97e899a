"""Studies in processes of their own, to be killed."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import polars

from calibrant import registry
from calibrant.lab.study import Store, Study
from calibrant.lab.study.measurements import study_rows as rows_of

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}


def start(study: Path, folder: Path, *options: str) -> subprocess.Popen[str]:
    """Begin to run a study."""
    command = [sys.executable, "-m", "calibrant", "study", "run", str(study), "--out", str(folder)]
    command += ["--with", "processes", *options]
    return subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process: subprocess.Popen[str], code: int = 0) -> str:
    """Wait for its end, and return what it said."""
    text, _ = process.communicate(timeout=300)
    assert process.returncode == code, text
    return text


def rows(study: Path, folder: Path) -> polars.DataFrame:
    """Measure what is stored."""
    return polars.DataFrame(list(rows_of(Study.load(study), Store(folder))))


def done(folder: Path) -> dict[str, int]:
    """Return the finished runs, and when they were written."""
    return {path.parent.name: path.stat().st_mtime_ns for path in folder.glob("runs/*/run.json")}


def wait(until: Callable[[], object], seconds: float = 280) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.005)


def working(folder: Path) -> list[int]:
    """Return the processes that work on a run of a store: those that hold its claims."""
    found: list[int] = []
    for handle in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if handle.readlink().parent == folder / "claims":
                found.append(int(handle.parts[2]))
        except OSError:  # gone meanwhile
            continue
    return found


@registry.TRACES.register
def halt(watched: object) -> dict[str, object]:
    """Trace nothing, but halt where a test says so: from as many finished runs on as its file tells, until it changes.

    `HALTS` names the folder of that file, `halt`, of the store, and of `halted`, where those who halt are listed.
    """
    if "HALTS" in os.environ:
        folder = Path(os.environ["HALTS"])
        mark = folder / "halted" / str(os.getpid())
        while len(done(folder / "store")) >= int((folder / "halt").read_text()):
            mark.touch()
            time.sleep(0.01)
        mark.unlink(missing_ok=True)
    return {}
