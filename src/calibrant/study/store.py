"""Where runs rest: one immutable directory each, which exists if and only if the run is done."""

import copy
import hashlib
import io
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch

from calibrant import __version__, catalog
from calibrant.catalog import Method
from calibrant.io import readable_by_others
from calibrant.predictions import Predictions
from calibrant.study.checkpoint import minor
from calibrant.study.config import WATCHED, Run
from calibrant.study.digests import NETWORK, RECORD, Damaged, content, digest, opened, problem, sealed
from calibrant.study.methods import method
from calibrant.study.mirror import Mirror
from calibrant.types import InputError, StatefulLoss

DAY = 86400
SIZES = "train", "val"  # of the parts of a data set: what else it is called with changes the examples
Found = tuple[Path, dict[str, Any]]  # a run's folder and record


@dataclass(frozen=True)
class Store:
    """A folder of finished runs; safe for many writers, for a shared disk, and for a kill at any moment.

    runs/ID/ holds run.json (what it is, what happened, and the digest of every file), one safetensors file per split
    and history.parquet. It is written aside in drafts/ and renamed into place when complete, so that a reader never
    sees half a run. partial/ID/ holds the checkpoint of an interrupted run, claims/ID the lock of the process that
    works on it, damaged/ what was found to be other than what was written.

    A finished run serves all that train the same on the same data and watch no more than it did; `data` are the digests
    of the data sets at hand, and where there is none, the runs of any data serve. With `mirror`, an fsspec URL,
    finished runs are copied there too, and `share` fetches those of other machines, and those of the stores in
    `neighbors`.
    """

    root: Path
    mirror: str | None = None
    neighbors: tuple[Path, ...] = ()
    data: Mapping[Method, str] = field(default_factory=dict[Method, str])

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", Path(self.root).absolute())  # the same in every process
        try:
            for name in "runs", "drafts", "claims", "partial":
                (self.root / name).mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self.root / "drafts") as new:
                now = Path(new.name).stat().st_mtime  # by the clock that dates the drafts
        except OSError as error:
            raise InputError(
                f"cannot write to {self.root}: {error.strerror}; choose another folder", code="not_writable"
            ) from None
        self._sweep(now)

    def knowing(self, data: Mapping[Method, str]) -> "Store":
        """Return the same store with the digests of more data sets."""
        other = copy.copy(self)
        object.__setattr__(other, "data", {**self.data, **data})
        return other

    # What is there

    def name(self, run: Run) -> str:
        """Return the name of a run's folder: its id, and eight hex digits of its data where they are known."""
        known = {m.canonical: self.data[m] for m in run.data if m in self.data}
        text = json.dumps(known, sort_keys=True).encode()
        return f"{run.id}.{hashlib.sha256(text).hexdigest()[:8]}" if known else run.id

    def folder(self, run: Run) -> Path:
        """Return where a finished run lies, or would."""
        found = self._find(run)
        return self.root / "runs" / self.name(run) if found is None else found[0]

    def partial(self, run: Run) -> Path:
        """Return the folder where an unfinished run may leave what it needs to go on; what else is there is moved."""
        folder = self._begun(run) or self.root / "partial" / self.name(run)
        if not folder.is_dir() and os.path.lexists(folder):
            self.set_aside(folder)
        folder.mkdir(exist_ok=True)
        for path in folder.iterdir():
            if not path.is_file():
                self.set_aside(path)
        return folder

    def state(self, run: Run) -> str:
        """Say how a run stands: done, diverged, damaged, failed (its error is in partial/ID/error.txt), begun, missing.

        Damage that shows only where all is read is told by `mend`.
        """
        if (found := self._find(run)) is not None:
            return "diverged" if "diverged" in found[1]["facts"] else "done"
        if any(_unreadable(folder) for folder in self._trained(run) if folder.name.startswith(run.id)):
            return "damaged"
        if (partial := self._begun(run)) is None:
            return "missing"
        return "failed" if (partial / "error.txt").is_file() else "begun"

    def __contains__(self, run: Run) -> bool:
        return bool(self._serving(run))

    def get(self, run: Run, split: str) -> Predictions:
        """Read back one split of one run. Raises `Damaged` if it is not what was written."""
        from safetensors.torch import load

        folder, record = self._finished(run)
        if split.startswith("shift"):  # it may have been kept beside others
            split = f"shift{record['run']['shifts'].index(run.shifts[int(split[5:])].canonical)}"
        with _telling(folder):
            tensors = load(content(folder, record, f"{split}.safetensors"))
        return Predictions(tensors["logits"], tensors["labels"])

    def record(self, run: Run) -> dict[str, Any]:
        """Read back what was written about one run: {"run": ..., "facts": ..., ...}."""
        return self._finished(run)[1]

    def history(self, run: Run) -> Any:
        """Read back the epochs of one run, as a polars frame. Raises `Damaged` if they are not what was written."""
        folder, record = self._finished(run)
        with _telling(folder):
            return _history(folder, record)

    def rows(self, folder: Path, record: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Read back the epochs of a run's folder."""
        return _history(folder, record).to_dicts()

    def kin(self, run: Run, learned: str) -> Found | None:
        """Find a finished network that this run need not train again, as it only judges it on other examples.

        It learned from the same examples, of a data set that differs in the sizes of its parts at most, and has been
        watched as this one is to be; nothing that differs may have told it what to learn.
        """
        for folder in sorted((self.root / "runs").iterdir()):
            with suppress(Damaged, InputError):
                record = opened(folder)
                theirs = record["facts"].get("versions", {}).get("calibrant", "")
                if minor(theirs) != minor(__version__) or NETWORK not in record["files"]:
                    continue
                same = record["data"].get(run.examples.canonical, "") == self.data.get(run.examples)
                if record["learned"] == learned and _akin(record["run"], run, same):
                    content(folder, record, NETWORK)
                    return folder, record
        return None

    def records(self) -> Iterator[dict[str, Any]]:
        """Read back what was written about every finished run."""
        for folder in sorted((self.root / "runs").iterdir()):
            with suppress(Damaged):
                yield opened(folder)

    def _trained(self, run: Run) -> list[Path]:
        """Return the folders of a run's training, whatever was watched, on whatever data; the plainest first."""
        found = (folder for folder in (self.root / "runs").iterdir() if folder.name[:12] == run.training)
        return sorted(found, key=lambda folder: (len(folder.name), folder.name))

    def _serving(self, run: Run) -> dict[str, Found]:
        """Return the finished runs that serve, one for each data they were trained on."""
        found: dict[str, Found] = {}
        for folder in self._trained(run):
            with suppress(Damaged):
                record = opened(folder)
                if self._serves(record, run):
                    found.setdefault(record["data"].get(run.examples.canonical, ""), (folder, record))
        return found

    def _find(self, run: Run) -> Found | None:
        """Find the run that serves; raises `InputError` if several on different data do, and which is not known."""
        found = self._serving(run)
        if len(found) > 1:
            names = " and ".join(folder.name for folder, _ in found.values())
            raise InputError(
                f"{self.root / 'runs'}: {names} are one training on different data; say which is meant by --data DIR, "
                "or move one away",
                code="ambiguous_data",
            )
        return next(iter(found.values()), None)

    def _serves(self, record: Mapping[str, Any], run: Run) -> bool:
        kept, known = record["run"], {m.canonical: self.data[m] for m in run.data if m in self.data}
        return (
            all(kept.get(key) == value for key, value in json.loads(json.dumps(run.trained)).items())
            and not _other_code(kept, run.methods)
            and all(set(run.watched[key]) <= set(kept.get(key, ())) for key in WATCHED)
            and all(record["data"].get(name, known[name]) == known[name] for name in known)
        )

    def other_code(self, run: Run) -> str:
        """Say what was done of a missing run by other code of its methods; "" if nothing was."""
        for folder in self._trained(run):
            with suppress(Damaged):
                if other := _other_code(opened(folder)["run"], run.methods):
                    return f"was trained by other code of {', '.join(other)}"
        plain = run.id.partition("_")[0]
        ids = {path.name.partition(".")[0] for path in (self.root / "partial").iterdir()}
        if any(name != run.id and name.partition("_")[0] == plain for name in ids):
            return "was begun by other code of its methods"
        return ""

    def _finished(self, run: Run) -> Found:
        if (found := self._find(run)) is None:
            raise InputError(
                f"run {run.id} is not done, or is damaged, in {self.root}: run its study", code="unfinished_run"
            )
        return found

    def _begun(self, run: Run) -> Path | None:
        exact = self.root / "partial" / self.name(run)
        if exact.is_dir() or run.examples in self.data:
            return exact if exact.is_dir() else None
        return next((f for f in (self.root / "partial").iterdir() if f.name.partition(".")[0] == run.id), None)

    # Working on a run

    @contextmanager
    def claim(self, run: Run) -> Generator[bool, None, None]:
        """Try to be the one process that works on a run; says whether it is ours until the end of the block.

        The operating system frees the claim of a process that dies, however it dies. Until then `holder` names it.
        """
        with _locked(self._claim_path(self.name(run))) as ours:
            who = self._who(run)
            if ours:
                with suppress(OSError):  # a full disk: it only helps who waits
                    who.write_text(json.dumps({"host": socket.gethostname(), "pid": os.getpid()}))
            try:
                yield ours
            finally:
                if ours:
                    with suppress(OSError):
                        who.unlink(missing_ok=True)

    def holder(self, run: Run) -> str:
        """Say who works on a run that others have claimed, as far as they could say."""
        try:
            said = json.loads(self._who(run).read_text())
            return f"process {said['pid']} on {said['host']}"
        except (OSError, ValueError, KeyError, TypeError):
            return "another process"

    def _claim_path(self, name: str) -> Path:
        """Return the lock of a run; what else lies in its place is set aside."""
        path = self.root / "claims" / name
        if not path.is_file() and os.path.lexists(path):
            self.set_aside(path)
        return path

    def _who(self, run: Run) -> Path:
        return self.root / "claims" / f"{self.name(run)}.who"

    def put(
        self,
        run: Run,
        splits: Mapping[str, Predictions],
        facts: Mapping[str, Any],
        history: Sequence[Mapping[str, Any]] = (),
        *,
        learned: str = "",
        network: Mapping[str, Any] | None = None,
    ) -> None:
        """Keep a finished run: everything is written aside, then renamed. The first of two writers stands.

        `learned` is the digest of what it learned from, `network` its weights.
        """
        import polars
        from safetensors.torch import save

        name = self.name(run)
        files = {
            f"{split}.safetensors": save({"logits": p.logits.contiguous(), "labels": p.labels})
            for split, p in splits.items()
        }
        if network and all(isinstance(value, torch.Tensor) for value in network.values()):
            plain = torch.contiguous_format  # others are not taken
            files[NETWORK] = save({k: v.detach().cpu().clone(memory_format=plain) for k, v in network.items()})
        epochs = io.BytesIO()
        polars.DataFrame(list(history), infer_schema_length=None).write_parquet(epochs)
        files["history.parquet"] = epochs.getvalue()
        record = {
            "id": name,
            "run": run.spelled,
            "data": {m.canonical: self.data[m] for m in run.data if m in self.data},
            "learned": learned,
            "facts": dict(facts),
            "files": {file: digest(written) for file, written in files.items()},
        }
        with self._draft(name) as draft:
            for file, written in files.items():
                (draft / file).write_bytes(written)  # a full disk is an OSError here
            (draft / RECORD).write_text(sealed(record))
        shutil.rmtree(self.root / "partial" / name, ignore_errors=True)
        if self.mirror:
            Mirror(self.mirror).send(self.root / "runs" / name)

    @contextmanager
    def _draft(self, name: str) -> Generator[Path]:
        """Give a folder to fill; on leaving without an error it takes its place among the runs at once.

        A lock beside it says that somebody lives who fills it.
        """
        draft = self.root / "drafts" / f"{name}-{uuid4().hex[:12]}"
        try:
            with _locked(_lock_of(draft)):
                try:
                    draft.mkdir()
                    yield draft
                    for path in draft.iterdir():
                        readable_by_others(path)
                        _sync(path)
                    readable_by_others(draft)
                    self._place(draft, self.root / "runs" / name)
                finally:
                    shutil.rmtree(draft, ignore_errors=True)
        except OSError as error:
            error.filename = error.filename or str(self.root)
            raise
        finally:
            with suppress(OSError):
                _lock_of(draft).unlink(missing_ok=True)

    def _place(self, draft: Path, place: Path) -> None:
        try:
            draft.rename(place)
        except OSError:
            if not _unreadable(place):
                return
            self.set_aside(place)  # a folder without its record: half of a copy, perhaps
            draft.rename(place)

    # Damage

    def mend(self, runs: Iterable[Run]) -> dict[Run, str]:
        """Read all that is kept of these runs, and set aside what is damaged; says what was wrong.

        What somebody works on is left to them, and so are whole copies of runs that are in their place, too.
        """
        found: dict[Run, str] = {}
        for run in runs:
            for folder in self._trained(run):
                if not self._is_copy(folder) and (why := problem(folder)):
                    with _locked(self._claim_path(folder.name)) as ours:
                        if ours and problem(folder):
                            found[run] = f"{why}; set aside in {self.set_aside(folder)}"
        return found

    def _is_copy(self, folder: Path) -> bool:
        """Say whether a folder holds the record of a run that is in its place."""
        with suppress(OSError, ValueError, RecursionError, KeyError, TypeError):
            if not (folder / RECORD).is_file():
                return False
            name = json.loads((folder / RECORD).read_text())["id"]
            return name != folder.name and Path(name).name == name and not _unreadable(self.root / "runs" / name)
        return False

    def set_aside(self, path: Path) -> Path:
        """Move what is damaged out of the way, into damaged/; returns where it lies now."""
        homes = (self.root / f"damaged{f'-{i}' if i else ''}" for i in range(1_000_000))
        home = next(folder for folder in homes if folder.is_dir() or not os.path.lexists(folder))
        home.mkdir(exist_ok=True)
        names = (f"{path.name}{f'-{i}' if i else ''}" for i in range(1_000_000))
        place = next(p for name in names if not os.path.lexists(p := home / name))
        with suppress(FileNotFoundError):  # somebody else did
            path.rename(place)
        return place

    def _sweep(self, now: float) -> None:
        """Delete drafts of yesterday and before that a killed process left behind: those that nobody holds."""
        for draft in {path.with_name(path.name.removesuffix(".lock")) for path in (self.root / "drafts").iterdir()}:
            lock = _lock_of(draft)
            with suppress(OSError):
                if now - (draft if draft.exists() else lock).stat().st_mtime > DAY:
                    with _locked(lock) as ours:
                        if ours:
                            shutil.rmtree(draft, ignore_errors=True)
                            lock.unlink(missing_ok=True)

    # Other stores

    def share(self, runs: Iterable[Run]) -> list[str]:
        """Fetch those of the runs that are elsewhere and not here, and send those to the mirror that are only here.

        Says what was taken from neighbors, and what was refused because it is damaged.
        """
        runs, said = list(runs), list[str]()
        if self.mirror:
            mirror = Mirror(self.mirror)
            there = mirror.names()
            said += self._fetched(mirror, there, runs)
            for run in runs:
                for folder, _ in self._serving(run).values():
                    if folder.name not in there:
                        mirror.send(folder)
        for neighbor in self.neighbors:
            before = sum(run in self for run in runs)
            near = Mirror(str(neighbor))
            said += self._fetched(near, near.names(), runs)
            if count := sum(run in self for run in runs) - before:
                said.append(f"{count} finished {'runs' if count > 1 else 'run'} taken from {neighbor}")
        return said

    def _fetched(self, mirror: Mirror, there: set[str], runs: Iterable[Run]) -> Iterator[str]:
        by_training: dict[str, list[str]] = {}
        for name in sorted(there, key=lambda name: (len(name), name)):
            by_training.setdefault(name[:12], []).append(name)
        for run in runs:
            for name in by_training.get(run.training, ()):
                if run in self or (self.root / "runs" / name).exists():
                    continue
                try:
                    with self._draft(name) as draft:
                        mirror.fetch(name, draft)
                        if why := problem(draft, name):
                            raise Damaged(why)
                except Damaged as error:
                    yield f"run {name} of {mirror.url} is refused: {error}"


def _other_code(kept: Mapping[str, Any], methods: Iterable[Method]) -> list[str]:
    """Return which methods' code is not that by which a run was trained.

    Runs of versions that did not record it were trained by the first revision of built-in methods, and by unknown code
    of the user's own.
    """
    code = kept.get("code", {})
    return [str(method) for method in methods if code.get(method.canonical, "") != method.code]


def _akin(kept: Mapping[str, Any], run: Run, same: bool) -> bool:
    """Say whether a network that was kept is the one that a run would train, if both learn from the same examples.

    `same` says that they are validated and tested on the same, too.
    """
    wanted = json.loads(json.dumps(run.trained))
    if any(kept[key] != wanted[key] for key in ("network", "loss", "seed", "recipe")):
        return False
    if _other_code(kept, (run.network, run.loss, *run.traces)):
        return False
    if kept.get("code", {}).get(kept["dataset"], "") != run.examples.code:
        return False
    if same:
        return set(run.watched["traces"]) <= set(kept["traces"])
    told = run.recipe.choose != "last" or isinstance(run.loss.bound, StatefulLoss)  # by the validation examples
    other = method("datasets", kept["dataset"])
    own = not run.examples.target.__module__.startswith("calibrant.")
    return not (told or own or run.traces) and _but_sizes(other) == _but_sizes(run.examples)


def _but_sizes(dataset: Method) -> tuple[str, dict[str, Any]]:
    settings = catalog.hyperparameters(dataset.function) | dataset.settings
    return dataset.name, {key: value for key, value in settings.items() if key not in SIZES}


def _history(folder: Path, record: Mapping[str, Any]) -> Any:
    import polars

    return polars.read_parquet(io.BytesIO(content(folder, record, "history.parquet")))


@contextmanager
def _locked(path: Path) -> Generator[bool]:
    """Try to hold a lock, which ends with this process at the latest; says whether it is ours."""
    from filelock import FileLock, Timeout

    lock = FileLock(path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


def _lock_of(draft: Path) -> Path:
    return draft.with_name(f"{draft.name}.lock")


def _unreadable(folder: Path) -> str:
    try:
        opened(folder)
    except Damaged as error:
        return str(error)
    return ""


@contextmanager
def _telling(folder: Path) -> Generator[None]:
    try:
        yield
    except Damaged as error:
        raise Damaged(f"{folder}: {error}; run the study again, which sets it aside") from None


def _sync(path: Path) -> None:
    with path.open("r+b") as file:  # not every system syncs what is open for reading
        os.fsync(file.fileno())
