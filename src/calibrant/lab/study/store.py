"""Store finished runs on disk: one immutable folder each, which exists if and only if the run is complete.

A run is a training (data set, network, loss, seed, recipe) and its monitoring (traces, shifted test sets). The record
of a finished run holds its settings ("run"), the digests of its data sets ("data") and of the training examples
("learned"), facts such as the seconds of training ("facts"), and the digest of each file ("files"). In records, methods
are texts that spell out all defaults: `canonical`.
"""

import copy
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

import torch
from safetensors.torch import load, save

from calibrant._core.foreign import parse_json
from calibrant._core.grouping import group_pairs
from calibrant._core.kernels.digests import json_digest
from calibrant._core.lazy import polars
from calibrant._core.registry import Method
from calibrant._core.tensors import logit_tensor
from calibrant._core.types import InputError
from calibrant._core.version import __version__
from calibrant.lab.study.grids import (
    MONITORED_FIELDS,
    TRAINING_ID_DIGITS,
    Run,
    changed_methods,
    trains_same_network,
    uncompared_methods,
)
from calibrant.lab.study.stored_files import (
    NETWORK_FILE,
    RECORD_FILE,
    DamagedError,
    delete_stale_drafts,
    find_damage,
    minor_version,
    move_to_damaged,
    open_draft,
    read_record,
    read_run_file,
    read_run_files,
    serialize_record,
    sha256_hex,
    try_lock,
)
from calibrant.predictions import Predictions

HISTORY_FILE = "history.parquet"
StoredRun = tuple[Path, dict[str, Any]]  # folder and record of a finished run


@dataclass(frozen=True)
class Store:
    """A folder of finished runs, safe for many writers, for shared disks, and for a kill at any moment.

    runs/ID/ holds run.json (the settings, the facts, and the digest of every file), one safetensors file per split and
    history.parquet. A run is written to drafts/ and renamed when it is complete, so that readers never see half a run.
    partial/ID/ holds the checkpoint of an interrupted run, claims/ID the lock of the process that works on it, and
    damaged/ the files that failed verification.

    A finished run serves every run with the same training and data that monitors no more.

    Attributes:
        root: The folder.
        neighbors: Folders of other stores, from which `sync_runs` fetches finished runs.
        data: Digests of the data sets at hand. Runs with any data serve a data set without a digest.
    """

    root: Path
    neighbors: tuple[Path, ...] = ()
    data: Mapping[Method, str] = field(default_factory=dict[Method, str])

    def __post_init__(self) -> None:
        """Open the folder."""
        self.move_to(self.root)

    def move_to(self, root: Path) -> None:
        """Use another folder: make its folders, check that they can be written to, and delete stale drafts."""
        object.__setattr__(self, "root", Path(root).absolute())  # processes may have other working folders
        try:
            for name in "runs", "drafts", "claims", "partial":
                (self.root / name).mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self.root / "drafts") as probe:
                now = Path(probe.name).stat().st_mtime  # the clock of the file system, which dates the drafts
        except OSError as error:
            raise InputError(
                f"Cannot write to {self.root}: {error.strerror}. Try another folder.", code="not_writable"
            ) from None
        delete_stale_drafts(self.root, now)

    def with_data(self, data: Mapping[Method, str]) -> "Store":
        """Return a copy that knows the digests of more data sets."""
        store_copy = copy.copy(self)  # replace() would prepare the folder again
        object.__setattr__(store_copy, "data", {**self.data, **data})
        return store_copy

    # Looking up runs

    def name(self, run: Run) -> str:
        """Return the name of a run's folder: its id, and eight digits for its data if their digests are known."""
        digests = self._data_digests(run)
        return f"{run.id}.{json_digest(digests)[:8]}" if digests else run.id

    def folder(self, run: Run) -> Path:
        """Return the folder of the finished run that serves a run, or the folder that the run will have."""
        stored_run = self._find_run(run)
        return self.root / "runs" / self.name(run) if stored_run is None else stored_run[0]

    def partial(self, run: Run) -> Path:
        """Return the folder for the checkpoint of an unfinished run, and make it if needed.

        A file in its place, and folders in it, are moved to damaged/.
        """
        folder = self._partial_folder(run) or self.root / "partial" / self.name(run)
        if not folder.is_dir() and os.path.lexists(folder):
            move_to_damaged(self.root, folder)
        folder.mkdir(exist_ok=True)
        for path in folder.iterdir():
            if not path.is_file():
                move_to_damaged(self.root, path)
        return folder

    def state(self, run: Run) -> str:
        """Return a run's state: diverged or done if it is finished, else damaged, missing, failed or begun.

        A failed run has an error in partial/ID/error.txt. A begun run was interrupted or is in training. Only records
        are verified; `set_aside_damaged` verifies all files.
        """
        if (stored_run := self._find_run(run)) is not None:
            _, record = stored_run
            return "diverged" if "diverged" in record["facts"] else "done"
        # not finished; a damaged folder is recognized by its name, as its record may be lost
        folders = (folder for folder in self._training_folders(run) if folder.name.startswith(run.id))
        if any(find_damage(folder, record_only=True) for folder in folders):
            return "damaged"
        if (partial := self._partial_folder(run)) is None:
            return "missing"
        return "failed" if (partial / "error.txt").is_file() else "begun"

    def __contains__(self, run: Run) -> bool:
        """Return whether a finished run has the training and data of this run, and monitors no less."""
        return bool(self._matching_runs(run))

    def get(self, run: Run, split: str) -> Predictions:
        """Read the predictions of a run on the split "val", "test", or "shift0", "shift1", ... for the run's shifts.

        Raises:
            DamagedError: If they were changed.
        """
        folder, record = self._require_run(run)
        if split.startswith("shift"):  # the stored run may have more shifts, and so another number for this one
            shift = run.shifts[int(split.removeprefix("shift"))]
            split = f"shift{record['run']['shifts'].index(shift.canonical)}"
        tensors: dict[str, Any] = load(_read_finished_run(folder, record, f"{split}.safetensors"))
        return Predictions(**tensors)

    def record(self, run: Run) -> dict[str, Any]:
        """Read the record of a run: {"run": ..., "facts": ..., ...}."""
        return self._require_run(run)[1]

    def history(self, run: Run) -> Any:
        """Read the epochs of a run as a polars frame. Raises `DamagedError` if they were changed."""
        return parse_history(_read_finished_run(*self._require_run(run), HISTORY_FILE))

    def records(self) -> Iterator[dict[str, Any]]:
        """Iterate over the records of all finished runs."""
        return (record for _, record in _intact_runs((self.root / "runs").iterdir()))

    def find_reusable_run(self, run: Run, train_digest: str) -> StoredRun | None:
        """Return a finished run whose stored network equals the one that this run would train, or None.

        It learned from the same examples, whose digest is `train_digest`, and nothing that differs can have influenced
        the training. Its validation and test sets may be of other sizes.
        """
        for folder, record in _intact_runs((self.root / "runs").iterdir()):
            version = record["facts"].get("versions", {}).get("calibrant", "")
            # another minor version may train another network, and some runs store none
            if minor_version(version) != minor_version(__version__) or NETWORK_FILE not in record["files"]:
                continue
            # unknown digests, "" and None, are not equal: then the data count as different
            same_data = record["data"].get(run.divided_dataset.canonical, "") == self.data.get(run.divided_dataset)
            with suppress(InputError):  # a damaged network, or a data set that is no longer known
                if record["learned"] == train_digest and trains_same_network(record["run"], run, same_data=same_data):
                    read_run_file(folder, record, NETWORK_FILE)  # raises if it is damaged
                    return folder, record
        return None

    def code_change(self, run: Run) -> str:
        """Say with which changed methods a missing run was trained or begun, or return "" if none changed.

        The text is the rest of a sentence about the run, such as "was trained with other code of focal".
        """
        for _, record in _intact_runs(self._training_folders(run)):
            # shifts and traces that the stored run did not monitor have no code in its record
            monitored = {text for key in MONITORED_FIELDS for text in record["run"].get(key, ())}
            shared = [method for method in (*run.shifts, *run.traces) if method.canonical in monitored]
            if changed := changed_methods(record["run"], (run.divided_dataset, run.network, run.loss, *shared)):
                return f"was trained with other code of {', '.join(changed)}"
        id_without_code, *_ = run.id.partition("_")
        for path in (self.root / "partial").iterdir():
            begun_id, *_ = path.name.partition(".")  # the name is ID or ID.DATA_DIGEST, and ID may end in _CODE_DIGEST
            if begun_id != run.id and begun_id.partition("_")[0] == id_without_code:
                return "was begun with other code of its methods"
        return ""

    def uncompared_code(self, run: Run) -> str:
        """Say which methods of a finished run may have changed since an earlier version trained it, or return ""."""
        folder, record = self._require_run(run)
        methods = ", ".join(uncompared_methods(record["run"], run.methods))
        return methods and f"was trained by an earlier version, perhaps with other code of {methods}, in {folder}"

    def _data_digests(self, run: Run) -> dict[str, str]:
        """Return the known digests of a run's data sets by their canonical texts."""
        return {dataset.canonical: self.data[dataset] for dataset in run.required_datasets if dataset in self.data}

    def _training_folders(self, run: Run) -> list[Path]:
        """Return the folders of runs with this training, whatever they monitor, on any data. Some may be damaged."""
        return [folder for folder in (self.root / "runs").iterdir() if folder.name.startswith(run.training_id)]

    def _matching_runs(self, run: Run) -> dict[str, StoredRun]:
        """Return finished runs that serve a run (see `_matches`): one for each data set that they were trained on.

        The keys are the digests of these data sets, "" if unknown.
        """
        matches: dict[str, StoredRun] = {}
        stored_runs = [stored for stored in _intact_runs(self._training_folders(run)) if self._matches(stored[1], run)]
        for folder, record in sorted(stored_runs, key=lambda s: bool(uncompared_methods(s[1]["run"], run.methods))):
            matches.setdefault(record["data"].get(run.divided_dataset.canonical, ""), (folder, record))
        return matches

    def _find_run(self, run: Run) -> StoredRun | None:
        """Return the folder and record of the finished run that serves a run (see `_matches`), or None.

        Raises:
            InputError: If runs on different data match.
        """
        matches = self._matching_runs(run)
        if len(matches) > 1:
            folders = " and ".join(folder.name for folder, _ in matches.values())
            raise InputError(
                f"Expected one run of this training in {self.root / 'runs'}, got {folders} on different data. "
                "Choose the data with --data DIR, or move one away.",
                code="ambiguous_data",
            )
        return next(iter(matches.values()), None)

    def _matches(self, record: Mapping[str, Any], run: Run) -> bool:
        """Return whether a finished run has the training, code and data of a run, and monitors no less.

        Data whose digest is not recorded match any data.
        """
        run_record = record["run"]
        return (
            all(run_record.get(key) == value for key, value in run.training_spec.items())
            and not changed_methods(run_record, run.methods)
            and all(set(texts) <= set(run_record.get(key, ())) for key, texts in run.monitoring_spec.items())
            and all(record["data"].get(name, digest) == digest for name, digest in self._data_digests(run).items())
        )

    def _require_run(self, run: Run) -> StoredRun:
        """Return the folder and record of a run. Raises `InputError` if it is not finished."""
        if (stored_run := self._find_run(run)) is None:
            raise InputError(
                f"Run {run.id} is not finished, or is damaged, in {self.root}. Run its study.", code="unfinished_run"
            )
        return stored_run

    def _partial_folder(self, run: Run) -> Path | None:
        """Return the folder of an unfinished run, or None. If the digest of its data is unknown, any data match."""
        partial = self.root / "partial"
        if (partial / self.name(run)).is_dir():
            return partial / self.name(run)
        if run.divided_dataset in self.data:
            return None
        return next((folder for folder in partial.iterdir() if folder.name.partition(".")[0] == run.id), None)

    # Writing runs

    @contextmanager
    def claim(self, run: Run) -> Generator[bool, None, None]:
        """Try to claim a run for this process until the end of the block, and yield whether it was free.

        The operating system releases the claim of a process that dies. Until then `holder` names the process.
        """
        with try_lock(self._claim_path(self.name(run))) as is_claimed:
            if not is_claimed:
                yield False
                return
            holder_path = self._holder_path(run)
            with suppress(OSError):  # a full disk; the file is only for messages of other processes
                holder_path.write_text(json.dumps({"host": socket.gethostname(), "pid": os.getpid()}))
            try:
                yield True
            finally:
                with suppress(OSError):
                    holder_path.unlink(missing_ok=True)

    def holder(self, run: Run) -> str:
        """Return "process PID on HOST" for the process that has claimed a run, or "another process" if unknown."""
        try:
            process = parse_json(self._holder_path(run).read_text(), {"pid": int, "host": str})
            return f"process {process['pid']} on {process['host']}"
        except (OSError, ValueError, KeyError):
            return "another process"

    def _claim_path(self, name: str) -> Path:
        """Return the path of a run's lock. Anything but a file in its place is set aside."""
        path = self.root / "claims" / name
        if not path.is_file() and os.path.lexists(path):
            move_to_damaged(self.root, path)
        return path

    def _holder_path(self, run: Run) -> Path:
        """Return the path of the file that names the process which works on a run."""
        return self.root / "claims" / f"{self.name(run)}.who"

    def save(
        self,
        run: Run,
        splits: Mapping[str, Predictions],
        facts: Mapping[str, Any],
        history: Sequence[Mapping[str, Any]] = (),
        *,
        train_digest: str = "",
        network: Mapping[str, Any] | None = None,
    ) -> None:
        """Store a finished run in one step. If two processes store the same run, the first one counts.

        Args:
            run: The run.
            splits: Predictions by split: "val", "test", "shift0", ...
            facts: Facts for the record, such as the seconds of training.
            history: A row of values for each epoch.
            train_digest: Digest of the examples that the network learned from.
            network: The weights, by name. Not stored if some are not tensors, which safetensors cannot hold.
        """
        name = self.name(run)
        files = {
            f"{split}.safetensors": save({"logits": logit_tensor(p).contiguous(), "labels": torch.from_numpy(p.labels)})
            for split, p in splits.items()
        }
        if network and all(isinstance(value, torch.Tensor) for value in network.values()):
            contiguous = torch.contiguous_format  # the only one that safetensors accepts
            files[NETWORK_FILE] = save(
                {k: v.detach().cpu().clone(memory_format=contiguous) for k, v in network.items()}
            )
        epochs = io.BytesIO()
        polars.DataFrame(list(history), infer_schema_length=None).write_parquet(epochs)
        files[HISTORY_FILE] = epochs.getvalue()
        record = {
            "id": name,
            "run": run.spec,
            "data": self._data_digests(run),
            "learned": train_digest,
            "facts": dict(facts),
            "files": {file: sha256_hex(content) for file, content in files.items()},
        }
        with open_draft(self.root, name) as draft:
            for file, content in files.items():
                (draft / file).write_bytes(content)  # raises OSError if the disk is full
            (draft / RECORD_FILE).write_text(serialize_record(record))
        shutil.rmtree(self.root / "partial" / name, ignore_errors=True)

    # Damage

    def set_aside_damaged(self, runs: Iterable[Run]) -> dict[Run, str]:
        """Verify all files of these runs except their networks, and move damaged folders to damaged/.

        Runs that another process has claimed, and copies of intact finished runs, are left alone.

        Returns:
            For each damaged run, the damage and the new path of its folder.
        """
        messages: dict[Run, str] = {}
        for run in runs:
            for folder in self._training_folders(run):
                if not self._is_copy(folder) and (damage := find_damage(folder)):
                    with try_lock(self._claim_path(folder.name)) as is_locked:
                        if is_locked and find_damage(folder):  # again, as another process may have replaced it
                            messages[run] = f"{damage}; set aside in {move_to_damaged(self.root, folder)}"
        return messages

    def _is_copy(self, folder: Path) -> bool:
        """Return whether a folder is a copy by hand: it has the record of another run whose own folder is intact."""
        with suppress(OSError, ValueError, KeyError):  # the record may hold anything
            if not (folder / RECORD_FILE).is_file():
                return False
            name = str(parse_json((folder / RECORD_FILE).read_text())["id"])
            original = self.root / "runs" / name
            # the record of a damaged folder may name its own, or a path to another place
            return name != folder.name and original.name == name and not find_damage(original, record_only=True)
        return False

    # Other stores

    def add(self, name: str, files: Mapping[str, bytes]) -> None:
        """Store the files of a finished run from another folder or machine. Raises `DamagedError` if they differ."""
        with open_draft(self.root, name) as draft:
            for file, content in files.items():
                (draft / file).write_bytes(content)
            if damage := find_damage(draft, name):
                raise DamagedError(damage)  # inside the block, so that the draft is deleted

    def sync_runs(self, runs: Iterable[Run]) -> list[str]:
        """Fetch missing runs from the neighbors.

        Returns:
            Notes on runs that were fetched, or rejected because they are damaged.
        """
        runs, messages = list(runs), list[str]()
        for neighbor in self.neighbors:
            num_before = sum(run in self for run in runs)
            messages += self._fetch_runs(neighbor, runs)
            if num_fetched := sum(run in self for run in runs) - num_before:
                messages.append(f"{num_fetched} finished {'runs' if num_fetched > 1 else 'run'} taken from {neighbor}")
        return messages

    def _fetch_runs(self, neighbor: Path, runs: Iterable[Run]) -> Iterator[str]:
        """Fetch missing runs from another store, and yield a line for each that is rejected as damaged.

        Its runs with the same training are tried in turn, as any that monitors enough serves a run.
        """
        folders = [folder for folder in (neighbor / "runs").iterdir() if (folder / RECORD_FILE).is_file()]
        folders.sort(key=lambda folder: (len(folder.name), folder.name))  # runs without monitoring come first
        # a name begins with the id of the training
        folders_by_training = group_pairs((folder.name[:TRAINING_ID_DIGITS], folder) for folder in folders)
        for run in runs:
            for folder in folders_by_training.get(run.training_id, ()):
                if run in self or (self.root / "runs" / folder.name).exists():
                    continue
                try:
                    self.add(folder.name, read_run_files(folder))
                except DamagedError as error:
                    yield f"run {folder.name} of {neighbor} is rejected: {error}"


def _intact_runs(folders: Iterable[Path]) -> Iterator[StoredRun]:
    """Yield the folders of finished runs with their records, shortest names first."""
    for folder in sorted(folders, key=lambda folder: (len(folder.name), folder.name)):
        with suppress(DamagedError):
            yield folder, read_record(folder)


def parse_history(content: bytes) -> Any:
    """Return the epochs in a run's `HISTORY_FILE` as a polars frame."""
    return polars.read_parquet(io.BytesIO(content))


def _read_finished_run(folder: Path, record: Mapping[str, Any], name: str) -> bytes:
    """Read a file of a run's folder. Raises `DamagedError`, which names the folder, if it was changed."""
    try:
        return read_run_file(folder, record, name)
    except DamagedError as error:
        raise DamagedError(f"{folder}: {error}. Run the study again, which sets it aside.") from None
