"""Where runs rest: one immutable directory each, which exists if and only if the run is done."""

import io
import json
import os
import shutil
import tempfile
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibrant.io import readable_by_others
from calibrant.predictions import Predictions
from calibrant.study.config import Run
from calibrant.study.mirror import Mirror
from calibrant.types import InputError


@dataclass(frozen=True)
class Store:
    """A folder of finished runs; safe for many writers, for a shared disk, and for a kill at any moment.

    runs/ID/ holds run.json (what it is and what happened), one safetensors file per split and history.parquet. It is
    written aside in drafts/ and renamed into place when complete, so that a reader never sees half a run. partial/ID/
    holds the checkpoint of an interrupted run, claims/ID the lock of the process that works on it.

    With `mirror`, an fsspec URL, finished runs are copied there too, and `share` fetches those of other machines.
    """

    root: Path
    mirror: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", Path(self.root).absolute())  # the same in every process
        try:
            for name in "runs", "drafts", "claims", "partial":
                (self.root / name).mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.root / "drafts"):
                pass
        except OSError as error:
            raise InputError(f"cannot write to {self.root}: {error.strerror}; choose another folder") from None
        self._sweep()

    def folder(self, run: Run) -> Path:
        """Return where a finished run lies."""
        return self.root / "runs" / run.id

    def partial(self, run: Run) -> Path:
        """Return the folder where an unfinished run may leave what it needs to go on."""
        folder = self.root / "partial" / run.id
        folder.mkdir(exist_ok=True)
        return folder

    def state(self, run: Run) -> str:
        """Say how a run stands: done, failed (its error is in partial/ID/error.txt), begun, or missing."""
        partial = self.root / "partial" / run.id
        if run in self:
            return "done"
        if (partial / "error.txt").is_file():
            return "failed"
        return "begun" if partial.is_dir() else "missing"

    def __contains__(self, run: Run) -> bool:
        return (self.folder(run) / "run.json").is_file()

    @contextmanager
    def claim(self, run: Run) -> Generator[bool, None, None]:
        """Try to be the one process that works on a run; says whether it is ours until the end of the block.

        The operating system frees the claim of a process that dies, however it dies.
        """
        from filelock import FileLock, Timeout

        lock = FileLock(self.root / "claims" / run.id)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            yield False
            return
        try:
            yield True
        finally:
            lock.release()

    def put(
        self,
        run: Run,
        splits: Mapping[str, Predictions],
        facts: Mapping[str, Any],
        history: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Keep a finished run: everything is written aside, then renamed. The first of two writers stands."""
        import polars
        from safetensors.torch import save

        with self._draft(run.id) as draft:
            for split, p in splits.items():
                content = save({"logits": p.logits.contiguous(), "labels": p.labels})
                (draft / f"{split}.safetensors").write_bytes(content)  # a full disk is an OSError here
            epochs = io.BytesIO()
            polars.DataFrame(list(history), infer_schema_length=None).write_parquet(epochs)
            (draft / "history.parquet").write_bytes(epochs.getvalue())
            (draft / "run.json").write_text(json.dumps({"run": run.spelled, "facts": dict(facts)}, indent=1))
        shutil.rmtree(self.root / "partial" / run.id, ignore_errors=True)
        if self.mirror:
            Mirror(self.mirror).send(self.folder(run))

    @contextmanager
    def _draft(self, name: str) -> Generator[Path]:
        """Give a folder to fill; on leaving without an error it takes its place among the runs at once."""
        draft, place = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.root / "drafts")), self.root / "runs" / name
        try:
            yield draft
            for path in draft.iterdir():
                readable_by_others(path)
                _sync(path)
            readable_by_others(draft)
            try:
                draft.rename(place)
            except OSError:
                if not (place / "run.json").is_file():
                    raise
        except OSError as error:
            error.filename = error.filename or str(self.root)
            raise
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def share(self, runs: Iterable[Run]) -> None:
        """Fetch from the mirror those of the runs that are there and not here, and send those that are only here."""
        if not self.mirror:
            return
        mirror = Mirror(self.mirror)
        there = mirror.names()
        for run in runs:
            if run in self and run.id not in there:
                mirror.send(self.folder(run))
            elif run not in self and run.id in there:
                with self._draft(run.id) as draft:
                    mirror.fetch(run.id, draft)

    def get(self, run: Run, split: str) -> Predictions:
        """Read back one split of one run."""
        return Predictions.load(self.folder(run) / f"{split}.safetensors")

    def record(self, run: Run) -> dict[str, Any]:
        """Read back what was written about one run: {"run": ..., "facts": ...}."""
        return json.loads((self.folder(run) / "run.json").read_text())

    def history(self, run: Run) -> Any:
        """Read back the epochs of one run, as a polars frame."""
        import polars

        return polars.read_parquet(self.folder(run) / "history.parquet")

    def records(self) -> Iterator[dict[str, Any]]:
        """Read back what was written about every finished run."""
        for path in sorted((self.root / "runs").glob("*/run.json")):
            yield json.loads(path.read_text())

    def _sweep(self) -> None:
        """Delete drafts that a killed process left behind; those younger than a day may still be somebody's."""
        for draft in (self.root / "drafts").iterdir():
            if time.time() - draft.stat().st_mtime > 86400:
                shutil.rmtree(draft, ignore_errors=True)


def _sync(path: Path) -> None:
    with path.open("r+b") as file:  # not every system syncs what is open for reading
        os.fsync(file.fileno())
