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

from calibrant import __version__, registry
from calibrant.io import apply_umask
from calibrant.lab.study.checkpoint import minor_version
from calibrant.lab.study.config import MONITORED_FIELDS, Run
from calibrant.lab.study.digests import (
    NETWORK_FILE,
    RECORD_FILE,
    DamagedError,
    find_damage,
    read_record,
    read_run_file,
    seal_record,
    sha256_hex,
)
from calibrant.lab.study.methods import parse_method
from calibrant.lab.study.mirror import Mirror
from calibrant.predictions import Predictions
from calibrant.registry import Method
from calibrant.types import InputError, StatefulLoss

MAX_DRAFT_AGE_SECONDS = 86400
SIZE_SETTINGS = "train", "val"  # of the parts of a data set: what else it is called with changes the examples
StoredRun = tuple[Path, dict[str, Any]]  # a run's folder and record


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
            with tempfile.NamedTemporaryFile(dir=self.root / "drafts") as probe:
                now = Path(probe.name).stat().st_mtime  # by the clock that dates the drafts
        except OSError as error:
            raise InputError(
                f"cannot write to {self.root}: {error.strerror}; choose another folder", code="not_writable"
            ) from None
        self._delete_stale_drafts(now)

    def with_data(self, data: Mapping[Method, str]) -> "Store":
        """Return the same store with the digests of more data sets."""
        store_copy = copy.copy(self)
        object.__setattr__(store_copy, "data", {**self.data, **data})
        return store_copy

    # What is there

    def name(self, run: Run) -> str:
        """Return the name of a run's folder: its id, and eight hex digits of its data where they are known."""
        digests = {m.canonical: self.data[m] for m in run.required_datasets if m in self.data}
        text = json.dumps(digests, sort_keys=True).encode()
        return f"{run.id}.{hashlib.sha256(text).hexdigest()[:8]}" if digests else run.id

    def folder(self, run: Run) -> Path:
        """Return where a finished run lies, or would."""
        stored_run = self._find_run(run)
        return self.root / "runs" / self.name(run) if stored_run is None else stored_run[0]

    def partial(self, run: Run) -> Path:
        """Return the folder where an unfinished run may leave what it needs to go on; what else is there is moved."""
        folder = self._partial_folder(run) or self.root / "partial" / self.name(run)
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
        if (stored_run := self._find_run(run)) is not None:
            return "diverged" if "diverged" in stored_run[1]["facts"] else "done"
        if any(_record_damage(folder) for folder in self._training_folders(run) if folder.name.startswith(run.id)):
            return "damaged"
        if (partial := self._partial_folder(run)) is None:
            return "missing"
        return "failed" if (partial / "error.txt").is_file() else "begun"

    def __contains__(self, run: Run) -> bool:
        return bool(self._matching_runs(run))

    def get(self, run: Run, split: str) -> Predictions:
        """Read back one split of one run. Raises `Damaged` if it is not what was written."""
        from safetensors.torch import load

        folder, record = self._require_run(run)
        if split.startswith("shift"):  # it may have been kept beside others
            split = f"shift{record['run']['shifts'].index(run.shifts[int(split[5:])].canonical)}"
        with _name_folder_in_errors(folder):
            tensors = load(read_run_file(folder, record, f"{split}.safetensors"))
        return Predictions(tensors["logits"], tensors["labels"])

    def record(self, run: Run) -> dict[str, Any]:
        """Read back what was written about one run: {"run": ..., "facts": ..., ...}."""
        return self._require_run(run)[1]

    def history(self, run: Run) -> Any:
        """Read back the epochs of one run, as a polars frame. Raises `Damaged` if they are not what was written."""
        folder, record = self._require_run(run)
        with _name_folder_in_errors(folder):
            return _read_history(folder, record)

    def epoch_rows(self, folder: Path, record: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Read back the epochs of a run's folder."""
        return _read_history(folder, record).to_dicts()

    def find_reusable_run(self, run: Run, train_digest: str) -> StoredRun | None:
        """Find a finished network that this run need not train again, as it only judges it on other examples.

        It learned from the same examples, of a data set that differs in the sizes of its parts at most, and has been
        watched as this one is to be; nothing that differs may have told it what to learn.
        """
        for folder in sorted((self.root / "runs").iterdir()):
            with suppress(DamagedError, InputError):
                record = read_record(folder)
                version = record["facts"].get("versions", {}).get("calibrant", "")
                if minor_version(version) != minor_version(__version__) or NETWORK_FILE not in record["files"]:
                    continue
                same_data = record["data"].get(run.divided_dataset.canonical, "") == self.data.get(run.divided_dataset)
                if record["learned"] == train_digest and _trains_same_network(record["run"], run, same_data):
                    read_run_file(folder, record, NETWORK_FILE)
                    return folder, record
        return None

    def records(self) -> Iterator[dict[str, Any]]:
        """Read back what was written about every finished run."""
        for folder in sorted((self.root / "runs").iterdir()):
            with suppress(DamagedError):
                yield read_record(folder)

    def _training_folders(self, run: Run) -> list[Path]:
        """Return the folders of a run's training, whatever was watched, on whatever data; the plainest first."""
        folders = (folder for folder in (self.root / "runs").iterdir() if folder.name[:12] == run.training_id)
        return sorted(folders, key=lambda folder: (len(folder.name), folder.name))

    def _matching_runs(self, run: Run) -> dict[str, StoredRun]:
        """Return the finished runs that serve, one for each data they were trained on."""
        matches: dict[str, StoredRun] = {}
        for folder in self._training_folders(run):
            with suppress(DamagedError):
                record = read_record(folder)
                if self._matches(record, run):
                    matches.setdefault(record["data"].get(run.divided_dataset.canonical, ""), (folder, record))
        return matches

    def _find_run(self, run: Run) -> StoredRun | None:
        """Find the run that serves; raises `InputError` if several on different data do, and which is not known."""
        matches = self._matching_runs(run)
        if len(matches) > 1:
            names = " and ".join(folder.name for folder, _ in matches.values())
            raise InputError(
                f"{self.root / 'runs'}: {names} are one training on different data; say which is meant by --data DIR, "
                "or move one away",
                code="ambiguous_data",
            )
        return next(iter(matches.values()), None)

    def _matches(self, record: Mapping[str, Any], run: Run) -> bool:
        run_record, digests = (
            record["run"],
            {m.canonical: self.data[m] for m in run.required_datasets if m in self.data},
        )
        return (
            all(run_record.get(key) == value for key, value in json.loads(json.dumps(run.training_spec)).items())
            and not _changed_methods(run_record, run.methods)
            and all(set(run.monitoring_spec[key]) <= set(run_record.get(key, ())) for key in MONITORED_FIELDS)
            and all(record["data"].get(name, digests[name]) == digests[name] for name in digests)
        )

    def code_change(self, run: Run) -> str:
        """Say what was done of a missing run by other code of its methods; "" if nothing was."""
        for folder in self._training_folders(run):
            with suppress(DamagedError):
                if changed := _changed_methods(read_record(folder)["run"], run.methods):
                    return f"was trained by other code of {', '.join(changed)}"
        id_without_code = run.id.partition("_")[0]
        ids = {path.name.partition(".")[0] for path in (self.root / "partial").iterdir()}
        if any(name != run.id and name.partition("_")[0] == id_without_code for name in ids):
            return "was begun by other code of its methods"
        return ""

    def _require_run(self, run: Run) -> StoredRun:
        if (stored_run := self._find_run(run)) is None:
            raise InputError(
                f"run {run.id} is not done, or is damaged, in {self.root}: run its study", code="unfinished_run"
            )
        return stored_run

    def _partial_folder(self, run: Run) -> Path | None:
        folder = self.root / "partial" / self.name(run)
        if folder.is_dir() or run.divided_dataset in self.data:
            return folder if folder.is_dir() else None
        return next((f for f in (self.root / "partial").iterdir() if f.name.partition(".")[0] == run.id), None)

    # Working on a run

    @contextmanager
    def claim(self, run: Run) -> Generator[bool, None, None]:
        """Try to be the one process that works on a run; says whether it is ours until the end of the block.

        The operating system frees the claim of a process that dies, however it dies. Until then `holder` names it.
        """
        with _try_lock(self._claim_path(self.name(run))) as is_claimed:
            holder_path = self._holder_path(run)
            if is_claimed:
                with suppress(OSError):  # a full disk: it only helps who waits
                    holder_path.write_text(json.dumps({"host": socket.gethostname(), "pid": os.getpid()}))
            try:
                yield is_claimed
            finally:
                if is_claimed:
                    with suppress(OSError):
                        holder_path.unlink(missing_ok=True)

    def holder(self, run: Run) -> str:
        """Say who works on a run that others have claimed, as far as they could say."""
        try:
            owner = json.loads(self._holder_path(run).read_text())
            return f"process {owner['pid']} on {owner['host']}"
        except (OSError, ValueError, KeyError, TypeError):
            return "another process"

    def _claim_path(self, name: str) -> Path:
        """Return the lock of a run; what else lies in its place is set aside."""
        path = self.root / "claims" / name
        if not path.is_file() and os.path.lexists(path):
            self.set_aside(path)
        return path

    def _holder_path(self, run: Run) -> Path:
        return self.root / "claims" / f"{self.name(run)}.who"

    def put(
        self,
        run: Run,
        splits: Mapping[str, Predictions],
        facts: Mapping[str, Any],
        history: Sequence[Mapping[str, Any]] = (),
        *,
        train_digest: str = "",
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
            memory_format = torch.contiguous_format  # others are not taken
            files[NETWORK_FILE] = save(
                {k: v.detach().cpu().clone(memory_format=memory_format) for k, v in network.items()}
            )
        epochs = io.BytesIO()
        polars.DataFrame(list(history), infer_schema_length=None).write_parquet(epochs)
        files["history.parquet"] = epochs.getvalue()
        record = {
            "id": name,
            "run": run.spec,
            "data": {m.canonical: self.data[m] for m in run.required_datasets if m in self.data},
            "learned": train_digest,
            "facts": dict(facts),
            "files": {file: sha256_hex(written) for file, written in files.items()},
        }
        with self._open_draft(name) as draft:
            for file, written in files.items():
                (draft / file).write_bytes(written)  # a full disk is an OSError here
            (draft / RECORD_FILE).write_text(seal_record(record))
        shutil.rmtree(self.root / "partial" / name, ignore_errors=True)
        if self.mirror:
            Mirror(self.mirror).send(self.root / "runs" / name)

    @contextmanager
    def _open_draft(self, name: str) -> Generator[Path]:
        """Give a folder to fill; on leaving without an error it takes its place among the runs at once.

        A lock beside it says that somebody lives who fills it.
        """
        draft = self.root / "drafts" / f"{name}-{uuid4().hex[:12]}"
        try:
            with _try_lock(_lock_path(draft)):
                try:
                    draft.mkdir()
                    yield draft
                    for path in draft.iterdir():
                        apply_umask(path)
                        _fsync(path)
                    apply_umask(draft)
                    self._move_into_place(draft, self.root / "runs" / name)
                finally:
                    shutil.rmtree(draft, ignore_errors=True)
        except OSError as error:
            error.filename = error.filename or str(self.root)
            raise
        finally:
            with suppress(OSError):
                _lock_path(draft).unlink(missing_ok=True)

    def _move_into_place(self, draft: Path, place: Path) -> None:
        try:
            draft.rename(place)
        except OSError:
            if not _record_damage(place):
                return
            self.set_aside(place)  # a folder without its record: half of a copy, perhaps
            draft.rename(place)

    # Damage

    def set_aside_damaged(self, runs: Iterable[Run]) -> dict[Run, str]:
        """Read all that is kept of these runs, and set aside what is damaged; says what was wrong.

        What somebody works on is left to them, and so are whole copies of runs that are in their place, too.
        """
        messages: dict[Run, str] = {}
        for run in runs:
            for folder in self._training_folders(run):
                if not self._is_copy(folder) and (damage := find_damage(folder)):
                    with _try_lock(self._claim_path(folder.name)) as is_locked:
                        if is_locked and find_damage(folder):
                            messages[run] = f"{damage}; set aside in {self.set_aside(folder)}"
        return messages

    def _is_copy(self, folder: Path) -> bool:
        """Say whether a folder holds the record of a run that is in its place."""
        with suppress(OSError, ValueError, RecursionError, KeyError, TypeError):
            if not (folder / RECORD_FILE).is_file():
                return False
            name = json.loads((folder / RECORD_FILE).read_text())["id"]
            return name != folder.name and Path(name).name == name and not _record_damage(self.root / "runs" / name)
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

    def _delete_stale_drafts(self, now: float) -> None:
        """Delete drafts of yesterday and before that a killed process left behind: those that nobody holds."""
        for draft in {path.with_name(path.name.removesuffix(".lock")) for path in (self.root / "drafts").iterdir()}:
            lock = _lock_path(draft)
            with suppress(OSError):
                if now - (draft if draft.exists() else lock).stat().st_mtime > MAX_DRAFT_AGE_SECONDS:
                    with _try_lock(lock) as is_locked:
                        if is_locked:
                            shutil.rmtree(draft, ignore_errors=True)
                            lock.unlink(missing_ok=True)

    # Other stores

    def sync_runs(self, runs: Iterable[Run]) -> list[str]:
        """Fetch those of the runs that are elsewhere and not here, and send those to the mirror that are only here.

        Says what was taken from neighbors, and what was refused because it is damaged.
        """
        runs, messages = list(runs), list[str]()
        if self.mirror:
            mirror = Mirror(self.mirror)
            remote_names = mirror.run_names()
            messages += self._fetch_runs(mirror, remote_names, runs)
            for run in runs:
                for folder, _ in self._matching_runs(run).values():
                    if folder.name not in remote_names:
                        mirror.send(folder)
        for neighbor in self.neighbors:
            count_before = sum(run in self for run in runs)
            neighbor_mirror = Mirror(str(neighbor))
            messages += self._fetch_runs(neighbor_mirror, neighbor_mirror.run_names(), runs)
            if count := sum(run in self for run in runs) - count_before:
                messages.append(f"{count} finished {'runs' if count > 1 else 'run'} taken from {neighbor}")
        return messages

    def _fetch_runs(self, mirror: Mirror, remote_names: set[str], runs: Iterable[Run]) -> Iterator[str]:
        by_training: dict[str, list[str]] = {}
        for name in sorted(remote_names, key=lambda name: (len(name), name)):
            by_training.setdefault(name[:12], []).append(name)
        for run in runs:
            for name in by_training.get(run.training_id, ()):
                if run in self or (self.root / "runs" / name).exists():
                    continue
                try:
                    with self._open_draft(name) as draft:
                        mirror.fetch(name, draft)
                        if damage := find_damage(draft, name):
                            raise DamagedError(damage)
                except DamagedError as error:
                    yield f"run {name} of {mirror.url} is refused: {error}"


def _changed_methods(run_record: Mapping[str, Any], methods: Iterable[Method]) -> list[str]:
    """Return which methods' code is not that by which a run was trained.

    Runs of versions that did not record it were trained by the first revision of built-in methods, and by unknown code
    of the user's own.
    """
    code = run_record.get("code", {})
    return [str(method) for method in methods if code.get(method.canonical, "") != method.code]


def _trains_same_network(run_record: Mapping[str, Any], run: Run, same_data: bool) -> bool:
    """Say whether a network that was kept is the one that a run would train, if both learn from the same examples.

    `same` says that they are validated and tested on the same, too.
    """
    training_spec = json.loads(json.dumps(run.training_spec))
    if any(run_record[key] != training_spec[key] for key in ("network", "loss", "seed", "recipe")):
        return False
    if _changed_methods(run_record, (run.network, run.loss, *run.traces)):
        return False
    if run_record.get("code", {}).get(run_record["dataset"], "") != run.divided_dataset.code:
        return False
    if same_data:
        return set(run.monitoring_spec["traces"]) <= set(run_record["traces"])
    uses_validation = run.recipe.choose != "last" or isinstance(
        run.loss.bound_function, StatefulLoss
    )  # by the validation examples
    stored_dataset = parse_method("datasets", run_record["dataset"])
    is_user_dataset = not run.divided_dataset.target.__module__.startswith("calibrant.")
    return not (uses_validation or is_user_dataset or run.traces) and _settings_without_sizes(
        stored_dataset
    ) == _settings_without_sizes(run.divided_dataset)


def _settings_without_sizes(dataset: Method) -> tuple[str, dict[str, Any]]:
    settings = registry.hyperparameters(dataset.function) | dataset.settings
    return dataset.name, {key: value for key, value in settings.items() if key not in SIZE_SETTINGS}


def _read_history(folder: Path, record: Mapping[str, Any]) -> Any:
    import polars

    return polars.read_parquet(io.BytesIO(read_run_file(folder, record, "history.parquet")))


@contextmanager
def _try_lock(path: Path) -> Generator[bool]:
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


def _lock_path(draft: Path) -> Path:
    return draft.with_name(f"{draft.name}.lock")


def _record_damage(folder: Path) -> str:
    try:
        read_record(folder)
    except DamagedError as error:
        return str(error)
    return ""


@contextmanager
def _name_folder_in_errors(folder: Path) -> Generator[None]:
    try:
        yield
    except DamagedError as error:
        raise DamagedError(f"{folder}: {error}; run the study again, which sets it aside") from None


def _fsync(path: Path) -> None:
    with path.open("r+b") as file:  # not every system syncs what is open for reading
        os.fsync(file.fileno())
