"""What came of a study: its tables, rows and report, and how its runs stand."""

import math
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from calibrant.catalog import Method
from calibrant.io import csv_text, readable_by_others, writable
from calibrant.study.config import Run, Study
from calibrant.study.progress import Trial, in_words
from calibrant.study.rows import Measured, Row
from calibrant.study.tables import PACKAGES, Table
from calibrant.types import InputError

DRAFTS = ".results-*", ".report-*.html", ".rows-*.csv", ".tables-*.*"  # that a killed process may leave
PATIENCE = 60.0  # seconds to wait for another process that writes its results

RESULT_FILES = ("rows.csv", "tables.csv", "tables.md", "tables.tex", "report.html")


@dataclass(frozen=True, eq=False)
class Result:
    """What a study found. Prints as its tables, what they say in words, and which runs failed."""

    study: Study
    tables: Sequence[Table]
    measured: Sequence[Measured]
    failed: Mapping[Run, str]  # why, in one line; all of it stands in partial/ID/error.txt
    folder: Path
    lost: Sequence[Row] = ()  # the rows of networks that diverged
    notes: tuple[str, ...] = ()  # on what was damaged, or taken from elsewhere

    @property
    def rows(self) -> list[Row]:
        """One row per run, shift, calibrator and metric."""
        return [*(row for found in self.measured for row in found.rows), *self.lost]

    @property
    def report(self) -> Path | None:
        """The page that shows everything; None where nothing is measured."""
        return self.folder / "report.html" if self.tables else None

    @property
    def finding(self) -> str:
        """What was found, in words."""
        from calibrant.study.report import finding

        return finding(self.tables) if self.tables else ""

    @property
    def spread(self) -> str:
        """What stands in a cell."""
        seeds = max((len(cell.values) for table in self.tables for cell in table.cells.values()), default=1)
        return f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "one seed"

    @property
    def reasons(self) -> list[str]:
        """A line for each run that failed, or for several on one data set that failed alike."""
        return [f"failed: {line}" for line in alike(self.study, self.failed)]

    def to_polars(self) -> Any:
        """Return the rows as a polars frame."""
        import polars

        return polars.DataFrame(self.rows, infer_schema_length=None)  # calibrators report different numbers

    def __str__(self) -> str:
        parts = [str(table) for table in self.tables]
        if self.tables:
            parts += [f"{self.spread}, temperature in brackets, best between stars\n{self.finding}"]
        parts += ["\n".join([*self.notes, *self.reasons])] if self.failed or self.notes else []
        parts += [f"report: {self.report}"] if self.report else []
        return "\n\n".join(parts)

    def _repr_html_(self) -> str:
        from calibrant.study.report import result_cell

        return result_cell(self.study, self.tables)

    def write(self, page: str) -> None:
        """Write tables, rows and the report's page to the folder, as one set: `RESULT_FILES`."""
        import polars

        records = [record for table in self.tables for record in table.records()]
        write_set(
            self.folder,
            {
                "rows.csv": csv_text(self.to_polars()),
                "tables.csv": csv_text(polars.DataFrame(records, infer_schema_length=None)),
                "tables.md": "\n".join(table.markdown() for table in self.tables),
                "tables.tex": "\n".join([PACKAGES, *(table.latex() for table in self.tables)]),
                "report.html": page,
            },
        )


def write_set(folder: Path, texts: Mapping[str, str]) -> None:
    """Write files that belong together, so that no kill and no full disk leaves some of one set beside some of another.

    All are written aside first; then the old ones are removed, and the new ones take their places. Drafts that killed
    processes left are removed.
    """
    from filelock import FileLock, Timeout

    for name in texts:
        writable(folder / name)
    try:
        with FileLock(folder / ".results.lock", timeout=PATIENCE):
            for draft in (path for pattern in DRAFTS for path in folder.glob(pattern)):
                remove(draft)
            aside = Path(tempfile.mkdtemp(prefix=".results-", dir=folder))
            try:
                for name, text in texts.items():
                    (aside / name).write_text(text, encoding="utf-8")
                    readable_by_others(aside / name)
                for name in texts:
                    remove(folder / name)
                for name in texts:
                    (aside / name).replace(folder / name)
            finally:
                remove(aside)
    except Timeout:
        raise InputError(
            f"another process writes its results to {folder}; try again when it is done", code="folder_in_use"
        ) from None
    except OSError as error:
        error.filename = str(folder)
        raise


def remove(path: Path) -> None:
    """Remove a file, or a folder with all that is in it; nothing if it is not there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def alike(study: Study, runs: Mapping[Run, str]) -> list[str]:
    """Say why runs are not done, in one line where several on one data set have the same reason."""
    groups: dict[tuple[Method, str], list[Run]] = {}
    for run, why in runs.items():
        groups.setdefault((run.dataset, why), []).append(run)
    lines: list[str] = []
    for (dataset, why), some in groups.items():
        one = f"{', '.join(study.names(some[0]))}, seed {some[0].seed}"
        lines.append(f"{one if len(some) == 1 else f'{len(some)} runs on {study.label(dataset)}'}: {why}")
    return lines


@dataclass(frozen=True)
class Standing:
    """How a run stands: done, diverged, begun, failed, damaged, missing, or its data are (no data)."""

    run: Run
    state: str
    seconds: float  # it took; nan unless it is done
    why: str = ""  # it failed, in one line


@dataclass(frozen=True, eq=False)
class Status:
    """How the runs of a study stand, and how long the rest takes."""

    study: Study
    runs: tuple[Standing, ...]
    seconds: float  # that the rest takes, from the finished runs or from trials; nan if nothing is known
    trials: Mapping[Run, Trial]  # of kinds of which no run is finished
    absent: Mapping[Run, str] = field(default_factory=dict[Run, str])  # runs whose data are not at hand, and why

    def _in(self, *states: str) -> list[Run]:
        return [standing.run for standing in self.runs if standing.state in states]

    @property
    def done(self) -> list[Run]:
        """The finished runs, those that diverged among them."""
        return self._in("done", "diverged")

    @property
    def begun(self) -> list[Run]:
        """Those that were interrupted, or that somebody works on."""
        return self._in("begun")

    @property
    def failed(self) -> list[Run]:
        """Those that failed, which the next start tries again."""
        return self._in("failed")

    @property
    def left(self) -> list[Run]:
        """All that are not done, and whose data are not known to be missing."""
        return self._in("begun", "failed", "damaged", "missing")

    @property
    def rest(self) -> str:
        """What is left, and how long it takes, in words."""
        if not self.left:
            return f"all {len(self.runs)} runs are done" if not self.absent else "nothing can be trained"
        wait = "" if math.isnan(self.seconds) else f", {in_words(self.seconds)}"
        from_batches = ", estimated from single batches" if self.trials else ""
        return f"{len(self.left)} of {len(self.runs)} runs to train{wait}{from_batches}"

    @property
    def tried(self) -> list[str]:
        """A line for every kind of network that was tried, and for all data that are not at hand."""
        lines: list[str] = []
        for run, trial in self.trials.items():
            where, what, _ = self.study.names(run)
            size = f"{trial.examples:,} examples, {trial.parameters:,} parameters"
            lines.append(f"{what} on {where}: {size}, an epoch takes {in_words(trial.seconds)}")
        return [*lines, *(f"cannot run: {line}" for line in alike(self.study, self.absent))]

    def __str__(self) -> str:
        lines: list[str] = []
        for standing in self.runs:
            took = "" if math.isnan(standing.seconds) else f", {standing.seconds:.0f} s"
            why = f": {standing.why}" if standing.why and standing.run not in self.absent else ""
            names = ", ".join(self.study.names(standing.run))
            lines.append(f"{standing.state:<9}{names}, seed {standing.run.seed}{took}{why}")
        return "\n".join([*lines, *self.tried, self.rest])
