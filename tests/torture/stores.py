"""Campaigns against the store of a study: each takes a seed and a share of its full size, and counts what came of it.

A trial is refused if what is damaged is named in one line and not read; it is recovered if the study, started again,
gives the very rows it gives when nobody disturbs it.
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
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from torture.campaign import Counts

from calibrant import InputError
from calibrant import study as studies
from calibrant.study import Grid, Recipe, Store, Study, checkpoint, report
from calibrant.study.engine import Data, execute
from calibrant.study.rows import rows

RECIPE = Recipe(epochs=3, batch_size=20, milestones=())
DATA, NETWORK = "blobs(train=40, val=20, test=20)", "mlp(features=2, hidden=())"
PATIENCE = 120.0  # seconds after which who has not ended is stuck
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["torture.stores", "calibrant.study.train", "filelock", "polars", "scipy.optimize"])


def study(losses: tuple[str, ...] = ("focal", "AdaFocal"), seeds: int = 1) -> Study:
    grid = Grid((DATA,), (NETWORK,), losses, range(seeds), RECIPE, traces=("norm",))
    return Study("small", (grid,), ("Identity",), ("error", "ece"))


def run(out: Path, what: Study) -> None:
    """Run a study without the page, which takes longer to draw than all the rest."""
    page, report.study_report = report.study_report, lambda *_: "no page"
    checkpoint.SECONDS, before = 0.0, checkpoint.SECONDS
    try:
        studies.run(what, out=out)
    finally:
        report.study_report, checkpoint.SECONDS = page, before


def seen(what: Study, folder: Path) -> str:
    """Return all that anybody reads of a store: rows, histories without times, what is said of the runs."""
    store = Store(folder)
    runs = [one for one in what.runs() if one in store]
    histories = [store.history(one).drop("seconds").to_dicts() for one in runs]
    facts = [{**store.record(one)["facts"], "seconds": 0} for one in runs]
    return json.dumps([list(rows(what, store)), histories, facts], default=str)


@contextmanager
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@contextmanager
def finished(what: Study) -> Iterator[tuple[Path, str]]:
    """Give a store where a study is done, and what is seen of it."""
    with scratch() as folder:
        run(folder / "store", what)
        yield folder / "store", seen(what, folder / "store")


def attempt(act: Callable[[], Any]) -> Counts:
    """Do something that may be refused."""
    try:
        act()
    except (InputError, OSError) as error:
        return Counts(refused=1) if "\n" not in str(error) else Counts(traceback=1)
    except Exception:
        return Counts(traceback=1)
    return Counts()


# A finished store


def _harm_runs(seed: int, trials: int, harm: Callable[[random.Random, bytes], bytes]) -> Counts:
    """Damage a file of a run, look, mend by running the study again now and then, and put it back as it was."""
    dice, what, total = random.Random(seed), study(), Counts()
    with finished(what) as (folder, before):
        whole = folder.with_name("whole")
        shutil.copytree(folder, whole)
        files = sorted(path.relative_to(folder) for path in folder.glob("runs/*/*"))
        sizes = [(folder / file).stat().st_size for file in files]
        for trial in range(trials):
            (file,) = dice.choices(files, sizes if trial % 2 else None)
            (folder / file).write_bytes(harm(dice, (folder / file).read_bytes()))
            total += Counts(tried=1) + _looked_at(what, folder, before, again=trial % 20 == 0)
            for name in "runs", "damaged":
                shutil.rmtree(folder / name, ignore_errors=True)
            shutil.copytree(whole / "runs", folder / "runs")
    return total


def _looked_at(what: Study, folder: Path, before: str, again: bool) -> Counts:
    """Say what came of damage: who reads must be refused, or see what was there before; who mends must say it."""
    found = ""

    def read() -> None:
        nonlocal found
        found = seen(what, folder)

    came = attempt(read)
    missing = came == Counts() and found != before and any(one not in Store(folder) for one in what.runs())
    if came == Counts() and not missing:
        return Counts(recovered=1) if found == before else Counts(silent=1)
    if came.traceback or not Store(folder).mend(what.runs()):
        return Counts(traceback=came.traceback, silent=1 - came.traceback)
    if not again:
        return Counts(refused=1)
    came = attempt(lambda: run(folder, what))
    if came == Counts():
        return Counts(recovered=1) if seen(what, folder) == before else Counts(silent=1)
    return Counts(traceback=came.traceback, stuck=came.refused)


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
        kept = content[: dice.randrange(len(content))]
        return kept if dice.random() < 0.5 else kept + bytes(len(content) - len(kept))

    return _harm_runs(seed, round(1000 * share), harm)


def harmed_checkpoints(seed: int, share: float) -> Counts:
    """Flip a bit of an interrupted run's checkpoint, or cut it, and start the study again: 300."""
    dice, what, total = random.Random(seed), study(("AdaFocal",)), Counts()
    with finished(what) as (_, before), scratch() as folder:
        checkpoint.SECONDS, pause = 0.0, checkpoint.SECONDS
        (one,) = what.runs()
        going = execute(one, Store(folder / "begun").knowing({one.dataset: Data().digest(one.dataset).whole}))
        next(going), next(going)
        going.close()
        checkpoint.SECONDS = pause
        for trial in range(round(300 * share)):
            shutil.copytree(folder / "begun", folder / "store")
            (path,) = (folder / "store").glob("partial/*/checkpoint.pt")
            content = bytearray(path.read_bytes())
            at = dice.randrange(len(content))
            content[at] ^= 1 << dice.randrange(8)
            path.write_bytes(content if trial % 3 else content[:at])
            came = attempt(lambda: run(folder / "store", what))
            if came == Counts():
                same = seen(what, folder / "store") == before
                told = any((folder / "store").glob("damaged/*"))
                came = Counts(recovered=1) if same and told else Counts(silent=1)
            total += Counts(tried=1, recovered=came.recovered, silent=came.silent) + Counts(
                traceback=came.traceback, stuck=came.refused
            )
            shutil.rmtree(folder / "store")
    return total


# Disks


def full_disks(seed: int, share: float) -> Counts:
    """Let no file grow beyond every quarter of a kB up to the largest of a run, then lift that: a full disk, for all.

    Where a small file system can be mounted, which needs root, it is filled up to every kB, too.
    """
    what, total, dice = study(("focal", "AdaFocal"), 2), Counts(), random.Random(seed)
    with finished(what) as (whole, before), scratch() as folder:
        largest = max(path.stat().st_size for path in whole.rglob("*") if path.is_file())
        limits = list(range(256, largest + 512, 256))
        for limit in dice.sample(limits, max(1, round(len(limits) * share))):
            with _limited(limit):
                came = attempt(partial(run, folder / str(limit), what))
            total += _lifted(came, what, folder / str(limit), before)
        sizes = list(range(16, 200, 4))
        for size in dice.sample(sizes, max(1, round(len(sizes) * share))):
            with _small(folder / f"{size}k", size) as disk:
                if disk is None:
                    break
                came = attempt(lambda: run(disk / "store", what))
                subprocess.run(["mount", "-o", "remount,size=50m", str(disk)], check=True)
                total += _lifted(came, what, disk / "store", before)
    return total


def _lifted(came: Counts, what: Study, folder: Path, before: str) -> Counts:
    after = attempt(lambda: run(folder, what))
    if after == Counts():
        same = seen(what, folder) == before and not [p for p in (folder / "drafts").iterdir() if p.is_dir()]
        after = Counts(recovered=same, silent=not same)
    return Counts(
        tried=1,
        recovered=after.recovered,
        silent=after.silent,
        traceback=max(came.traceback, after.traceback),
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
def _small(folder: Path, size: int) -> Iterator[Path | None]:
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


def _work(out: Path, what: Study) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        run(out, what)
    except KeyboardInterrupt:
        sys.exit(130)


@contextmanager
def _importable() -> Iterator[None]:
    """Let the server of processes import what they need before it forks the first."""
    known = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    try:
        yield
    finally:
        del os.environ["PYTHONPATH"]
        os.environ.update({} if known is None else {"PYTHONPATH": known})


def kills(seed: int, share: float) -> Counts:
    """Kill, end, interrupt or stop one of one, two or three processes at any moment; 40 at full size.

    The others end by themselves, and the study is started again: as nobody had disturbed it. A process that is only
    stopped keeps its run: the others wait for it, and go on when it is killed.
    """
    dice, what, total = random.Random(seed), study(("focal", "AdaFocal", "brier"), 2), Counts()
    ways = [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGSTOP]
    with finished(what) as (_, before), scratch() as folder, _importable():
        for trial in range(max(4, round(40 * share))):
            total += _killed(dice, what, folder / str(trial), before, ways[trial % 4], 1 + trial // 4 % 3)
    return total


def _killed(dice: random.Random, what: Study, out: Path, before: str, how: int, count: int) -> Counts:
    processes = [PROCESSES.Process(target=_work, args=(out, what)) for _ in range(count)]
    for process in processes:
        process.start()
    deadline = time.monotonic() + PATIENCE
    while not list(out.glob("claims/*.who")) and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(dice.uniform(0, 0.5))
    victim = dice.choice(processes)
    if victim.is_alive():
        os.kill(int(victim.pid or 0), how)
    if how == signal.SIGSTOP:
        time.sleep(0.2)
        victim.kill()
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
    stuck = [process for process in processes if process.is_alive()]
    for process in stuck:
        process.kill()
        process.join()
    others = [process for process in processes if process is not victim]
    came = attempt(lambda: run(out, what))
    same = came == Counts() and seen(what, out) == before and len(list((out / "runs").iterdir())) == 6
    return Counts(
        tried=1,
        recovered=same and not stuck,
        silent=came == Counts() and not same,
        traceback=came.traceback + sum(process.exitcode == 1 for process in others),
        stuck=len(stuck) + came.refused,
    )


CAMPAIGNS: dict[str, Callable[[int, float], Counts]] = {
    "flipped bits of finished runs": flipped_bits,
    "torn files of finished runs": torn_files,
    "damaged checkpoints": harmed_checkpoints,
    "full disks": full_disks,
    "killed and stopped processes": kills,
}
