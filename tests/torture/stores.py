"""Campaigns against the store of a study: each takes a seed and a share of its full size, and counts what came of it.

A trial is refused if what is damaged is named in one line, and what is told of all else is what was told before; it is
recovered if the study, started again, gives the very rows it gives when nobody disturbs it.
"""

import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from stored_rows import study_rows
from torture.campaign import Counts

from calibrant import InputError
from calibrant.lab import study as studies
from calibrant.lab.study import Grid, Recipe, Result, Store, Study, stored_files
from calibrant.lab.study.datasets import DatasetCache
from calibrant.lab.study.engine import execute

RECIPE = Recipe(epochs=3, batch_size=20, milestones=())
DATA, NETWORK = "blobs(train=40, val=20, test=20)", "mlp(features=2, hidden=())"
SIGNALS = signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGSTOP
PATIENCE = 600.0  # seconds after which who has not ended is stuck
AGAIN = 4  # of so many damaged runs, one is trained again
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    ["torture.stores", "calibrant.lab.study.train", "filelock", "polars", "scipy.optimize"]
)


def study(losses: tuple[str, ...] = ("focal", "AdaFocal"), seeds: int = 1) -> Study:
    grid = Grid((DATA,), (NETWORK,), losses, range(seeds), RECIPE, traces=("norm",))
    return Study("small", (grid,), ("Identity",), ("error", "ece"))


@contextmanager
def without_report() -> Iterator[None]:
    """Save a checkpoint at every epoch and skip the report, which takes longest."""
    page, Result.html = Result.html, lambda *_: "no page"
    pause, stored_files.MIN_SAVE_INTERVAL_SECONDS = stored_files.MIN_SAVE_INTERVAL_SECONDS, 0.0
    try:
        yield
    finally:
        Result.html, stored_files.MIN_SAVE_INTERVAL_SECONDS = page, pause


def run(out: Path, spec: Study, engine: str = "local") -> None:
    """Run a study."""
    with without_report():
        studies.run(spec, out=out, engine=engine)


def read_runs(spec: Study, folder: Path) -> dict[str, str]:
    """Return rows, histories and facts of the runs of a store, without times."""
    store = Store(folder)
    texts = {item.id: [store.history(item).drop("seconds").to_dicts()] for item in spec.runs() if item in store}
    for item in spec.runs():
        if item.id in texts:
            texts[item.id].append({**store.record(item)["facts"], "seconds": 0})
    for row in study_rows(spec, store):
        texts[row["run"]].append(row)
    return {name: json.dumps(parts, default=str) for name, parts in texts.items()}


def measured_rows(spec: Study, folder: Path) -> tuple[dict[str, str], set[str]]:
    """Measure a store; return the rows of every run, and the runs reported as damaged."""
    texts: dict[str, list[Any]] = {}
    with without_report():
        result = studies.measure(spec, out=folder, jobs=1)
    for row in result.rows:
        texts.setdefault(row["run"], []).append(row)
    return {name: json.dumps(parts) for name, parts in texts.items()}, {item.id for item in result.failed}


@contextmanager
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@contextmanager
def finished_store(spec: Study) -> Iterator[tuple[Path, dict[str, str]]]:
    """Yield a store with a finished study, and its content."""
    with scratch() as folder:
        run(folder / "store", spec)
        yield folder / "store", read_runs(spec, folder / "store")


def attempt(act: Callable[[], Any], naming: str = "") -> Counts:
    """Call a function that may refuse its input in one line with a name."""
    try:
        act()
    except (InputError, OSError) as error:
        return Counts(refused=1) if "\n" not in str(error) and naming in str(error) else Counts(traceback=1)
    except Exception:
        return Counts(traceback=1)
    return Counts()


# A finished store


def _harm_runs(seed: int, trials: int, harm: Callable[[random.Random, bytes], bytes]) -> Counts:
    """Damage a file of a run, read it, sometimes run the study again, and restore the file."""
    dice, spec, total = random.Random(seed), study(), Counts()
    with finished_store(spec) as (folder, before):
        file_content, numbers = folder.with_name("whole"), measured_rows(spec, folder)[0]
        shutil.copytree(folder, file_content)
        files = sorted(path.relative_to(folder) for path in folder.glob("runs/*/*"))
        sizes = [(folder / file).stat().st_size for file in files]
        for trial in range(trials):
            (file,) = dice.choices(files, sizes if trial % 2 else None)
            (folder / file).write_bytes(harm(dice, (folder / file).read_bytes()))
            name = file.parent.name.partition(".")[0]
            outcome = _looked_at(spec, folder, before, numbers, name)
            if outcome == Counts(refused=1) and trial % AGAIN == 0:
                outcome = _run_again(spec, folder, before)
            total += Counts(tried=1) + outcome
            for part in "runs", "damaged":
                shutil.rmtree(folder / part, ignore_errors=True)
            shutil.copytree(file_content / "runs", folder / "runs")
    return total


def _looked_at(spec: Study, folder: Path, before: dict[str, str], numbers: dict[str, str], name: str) -> Counts:
    """Return the outcome of damage to the run `name`.

    Who reads sees what was there before, or is refused in a line that names the run. Who measures is told of it too,
    and gets the same numbers of all else.
    """
    result: dict[str, str] = {}
    rest = {item: text for item, text in before.items() if item != name}
    outcome = attempt(lambda: result.update(read_runs(spec, folder)), name)
    if outcome.traceback:
        return outcome
    if not outcome.refused and result not in (before, rest):
        return Counts(silent=1)
    texts: list[tuple[dict[str, str], set[str]]] = []
    again = attempt(lambda: texts.append(measured_rows(spec, folder)))
    if again != Counts():
        return Counts(traceback=again.traceback, stuck=again.refused)
    without = {item: text for item, text in numbers.items() if item != name}
    if texts == [(numbers, set())]:
        return Counts(recovered=1) if result == before else Counts(silent=1)
    return Counts(refused=1) if texts == [(without, {name})] else Counts(silent=1)


def _run_again(spec: Study, folder: Path, before: dict[str, str]) -> Counts:
    outcome = attempt(lambda: run(folder, spec))
    if outcome == Counts():
        return Counts(recovered=1) if read_runs(spec, folder) == before else Counts(silent=1)
    return Counts(traceback=outcome.traceback, stuck=outcome.refused)


def flipped_bits(seed: int, share: float) -> Counts:
    """Flip one bit of one file of a finished run: 3,000 at full size."""

    def harm(dice: random.Random, content: bytes) -> bytes:
        changed = bytearray(content)
        changed[dice.randrange(len(changed))] ^= 1 << dice.randrange(8)
        return bytes(changed)

    return _harm_runs(seed, round(3000 * share), harm)


def torn_files(seed: int, share: float) -> Counts:
    """Cut a file of a finished run at any length, or fill its end with zeros as a power failure does: 1,000."""

    def harm(dice: random.Random, content: bytes) -> bytes:
        saved_bytes = content[: dice.randrange(len(content))]
        return saved_bytes if dice.random() < 0.5 else saved_bytes + bytes(len(content) - len(saved_bytes))

    return _harm_runs(seed, round(1000 * share), harm)


def harmed_checkpoints(seed: int, share: float) -> Counts:
    """Flip a bit of an interrupted run's checkpoint, or cut it, and start the study again: 300."""
    dice, spec, total = random.Random(seed), study(("AdaFocal",)), Counts()
    with finished_store(spec) as (_, before), scratch() as folder:
        stored_files.MIN_SAVE_INTERVAL_SECONDS, pause = 0.0, stored_files.MIN_SAVE_INTERVAL_SECONDS
        (item,) = spec.runs()
        going = execute(
            item, Store(folder / "begun").with_data({item.dataset: DatasetCache().digest(item.dataset).full_digest})
        )
        next(going), next(going)
        going.close()
        stored_files.MIN_SAVE_INTERVAL_SECONDS = pause
        for trial in range(round(300 * share)):
            shutil.copytree(folder / "begun", folder / "store")
            (path,) = (folder / "store").glob("partial/*/checkpoint.pt")
            content = bytearray(path.read_bytes())
            at = dice.randrange(len(content))
            content[at] ^= 1 << dice.randrange(8)
            path.write_bytes(content if trial % 3 else content[:at])
            outcome = _run_again(spec, folder / "store", before)
            if outcome.recovered and not any((folder / "store").glob("damaged/*")):
                outcome = Counts(silent=1)
            total += Counts(tried=1) + outcome
            shutil.rmtree(folder / "store")
    return total


# Disks


def full_disks(seed: int, share: float) -> Counts:
    """Let no file grow beyond every quarter of a kB up to the largest of a run, then lift that: a full disk, for all.

    Where a small file system can be mounted, which needs root, it is filled up to every kB, too.
    """
    spec, total, dice = study(("focal", "AdaFocal"), 2), Counts(), random.Random(seed)
    with finished_store(spec) as (file_content, before), scratch() as folder:
        largest = max(path.stat().st_size for path in file_content.rglob("*") if path.is_file())
        limits = list(range(256, largest + 512, 256))
        for limit in dice.sample(limits, max(1, round(len(limits) * share))):
            with _limited(limit):
                outcome = attempt(partial(run, folder / str(limit), spec))
            total += _lifted(outcome, spec, folder / str(limit), before)
        sizes = list(range(16, 200, 4))
        for size in dice.sample(sizes, max(1, round(len(sizes) * share))):
            with _small_files(folder / f"{size}k", size) as disk:
                if disk is None:
                    break
                outcome = attempt(lambda: run(disk / "store", spec))
                subprocess.run(["mount", "-o", "remount,size=50m", str(disk)], check=True)
                total += _lifted(outcome, spec, disk / "store", before)
    return total


def _lifted(outcome: Counts, spec: Study, folder: Path, before: dict[str, str]) -> Counts:
    after = attempt(lambda: run(folder, spec))
    if after == Counts():
        same = read_runs(spec, folder) == before and not [p for p in (folder / "drafts").iterdir() if p.is_dir()]
        after = Counts(recovered=same, silent=not same)
    return Counts(
        tried=1,
        recovered=after.recovered,
        silent=after.silent,
        traceback=max(outcome.traceback, after.traceback),
        stuck=after.refused,
    )


@contextmanager
def _limited(size: int) -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@contextmanager
def _small_files(folder: Path, size: int) -> Iterator[Path | None]:
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}k", "none", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        yield None
        return
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


# Processes


def _work(out: Path, spec: Study, engine: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        run(out, spec, engine)
    except KeyboardInterrupt:
        sys.exit(130)
    except InputError:  # Ray does not start on a machine that is too busy
        sys.exit(2)


@contextmanager
def _importable() -> Iterator[None]:
    """Import modules in the fork server before the first fork."""
    python_path = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    try:
        yield
    finally:
        del os.environ["PYTHONPATH"]
        os.environ.update({} if python_path is None else {"PYTHONPATH": python_path})


def kills(seed: int, share: float) -> Counts:
    """Kill, end, interrupt or stop one of one, two or three processes at any moment; 40 at full size.

    The others end by themselves, and the study is started again: as nobody had disturbed it. A process that is only
    stopped keeps its run: the others wait for it, and go on when it is killed. One that had ended before it was struck
    counts apart, and another is struck in its place.
    """
    dice, spec, total = random.Random(seed), study(("focal", "AdaFocal", "brier"), 2), Counts()
    with finished_store(spec) as (_, before), scratch() as folder, _importable():
        while total.tried < max(4, round(40 * share)) and total.missed < 400:
            trial = total.tried
            out = folder / str(trial + total.missed)
            total += _killed(dice, spec, out, before, SIGNALS[trial % 4], 1 + trial // 4 % 3)
    return total


def kills_on_ray(seed: int, share: float) -> Counts:
    """Do the same to a process that trains on Ray, or to one of its workers; 8 at full size."""
    if find_spec("ray") is None:
        pytest.skip("ray is not installed")
    dice, spec, total = random.Random(seed), study(("focal", "AdaFocal", "brier"), 2), Counts()
    with finished_store(spec) as (_, before), scratch() as folder, _importable():
        while total.tried < max(2, round(8 * share)) and total.missed < 80:
            trial = total.tried
            out = folder / str(trial + total.missed)
            total += _killed(dice, spec, out, before, SIGNALS[trial // 2 % 4], 1, "ray", worker=trial % 2 == 1)
    return total


def _killed(
    dice: random.Random,
    spec: Study,
    out: Path,
    before: dict[str, str],
    how: int,
    count: int,
    engine: str = "local",
    worker: bool = False,
) -> Counts:
    processes = [PROCESSES.Process(target=_work, args=(out, spec, engine)) for _ in range(count)]
    for process in processes:
        process.start()
    deadline = time.monotonic() + PATIENCE
    while not list(out.glob("claims/*.who")) and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(dice.uniform(0, 0.5))
    victim = dice.choice(processes)
    struck = _strike(_worker(out) if worker else int(victim.pid or 0), how)
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
    stuck = [process for process in processes if process.is_alive()]
    for process in stuck:
        process.kill()
        process.join()
    other_runs = processes if worker else [process for process in processes if process is not victim]
    outcome = attempt(lambda: run(out, spec))
    same = outcome == Counts() and read_runs(spec, out) == before and len(list((out / "runs").iterdir())) == 6
    bad = Counts(
        silent=outcome == Counts() and not same,
        traceback=outcome.traceback + sum(process.exitcode == 1 for process in other_runs),
        stuck=len(stuck) + outcome.refused,
    )
    return bad + (Counts(tried=1, recovered=bad == Counts()) if struck else Counts(missed=1))


def _worker(out: Path) -> int:
    """Return a process that works on a run of a store, or 0."""
    for path in out.glob("claims/*.who"):
        with suppress(OSError, ValueError):
            return int(json.loads(path.read_text())["pid"])
    return 0


def _strike(pid: int, how: int) -> bool:
    """Stop a process, send it a signal, and return whether it was still alive."""
    if pid == 0:
        return False
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
        deadline = time.monotonic() + 5
        while (state := _state(pid)) not in "TZX" and time.monotonic() < deadline:
            time.sleep(0.001)
        if state == "T":
            if how == signal.SIGSTOP:
                time.sleep(0.2)
                how = signal.SIGKILL
            os.kill(pid, how)
            os.kill(pid, signal.SIGCONT)
            return True
    return False


def _state(pid: int) -> str:
    """Return the state of a process: T is stopped (also if unknown), Z has ended, X is gone."""
    if not Path("/proc/self/stat").is_file():
        return "T"
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


CAMPAIGNS: dict[str, Callable[[int, float], Counts]] = {
    "flipped bits of finished runs": flipped_bits,
    "torn files of finished runs": torn_files,
    "damaged checkpoints": harmed_checkpoints,
    "full disks": full_disks,
    "killed and stopped processes": kills,
    "killed and stopped processes of Ray": kills_on_ray,
}
