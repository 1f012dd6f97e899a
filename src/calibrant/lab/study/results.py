"""What came of a study: its tables, rows and report, and how its runs stand."""

import math
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from calibrant.io import apply_umask, ensure_writable, to_safe_csv
from calibrant.lab.study.config import Run, Study
from calibrant.lab.study.measurements import ResultRow, RunMeasurement
from calibrant.lab.study.progress import Trial, duration_text
from calibrant.lab.study.tables import LATEX_PACKAGES, ResultTable
from calibrant.registry import Method
from calibrant.types import InputError

DRAFT_PATTERNS = ".results-*", ".report-*.html", ".rows-*.csv", ".tables-*.*"  # that a killed process may leave
MAX_LOCK_WAIT_SECONDS = 60.0  # seconds to wait for another process that writes its results

RESULT_FILES = ("rows.csv", "tables.csv", "tables.md", "tables.tex", "report.html")


@dataclass(frozen=True, eq=False)
class Result:
    """What a study found. Prints as its tables, what they say in words, and which runs failed."""

    study: Study
    tables: Sequence[ResultTable]
    measurements: Sequence[RunMeasurement]
    failed: Mapping[Run, str]  # why, in one line; all of it stands in partial/ID/error.txt
    folder: Path
    diverged_rows: Sequence[ResultRow] = ()  # the rows of networks that diverged
    notes: tuple[str, ...] = ()  # on what was damaged, or taken from elsewhere

    @property
    def rows(self) -> list[ResultRow]:
        """One row per run, shift, calibrator and metric."""
        return [*(row for measurement in self.measurements for row in measurement.rows), *self.diverged_rows]

    @property
    def report(self) -> Path | None:
        """The page that shows everything; None where nothing is measured."""
        return self.folder / "report.html" if self.tables else None

    @property
    def finding(self) -> str:
        """What was found, in words."""
        from calibrant.lab.study.report import findings_text

        return findings_text(self.tables) if self.tables else ""

    @property
    def cell_description(self) -> str:
        """What stands in a cell."""
        seeds = max((len(cell.values) for table in self.tables for cell in table.cells.values()), default=1)
        return f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "one seed"

    @property
    def failure_lines(self) -> list[str]:
        """A line for each run that failed, or for several on one data set that failed alike."""
        return [f"failed: {line}" for line in group_failures(self.study, self.failed)]

    def to_polars(self) -> Any:
        """Return the rows as a polars frame."""
        import polars

        return polars.DataFrame(self.rows, infer_schema_length=None)  # calibrators report different numbers

    def __str__(self) -> str:
        parts = [str(table) for table in self.tables]
        if self.tables:
            parts += [f"{self.cell_description}, temperature in brackets, best between stars\n{self.finding}"]
        parts += ["\n".join([*self.notes, *self.failure_lines])] if self.failed or self.notes else []
        parts += [f"report: {self.report}"] if self.report else []
        return "\n\n".join(parts)

    def _repr_html_(self) -> str:
        from calibrant.lab.study.report import result_cell

        return result_cell(self.study, self.tables)

    def write(self, page: str) -> None:
        """Write tables, rows and the report's page to the folder, as one set: `RESULT_FILES`."""
        import polars

        records = [record for table in self.tables for record in table.records()]
        write_files_together(
            self.folder,
            {
                "rows.csv": to_safe_csv(self.to_polars()),
                "tables.csv": to_safe_csv(polars.DataFrame(records, infer_schema_length=None)),
                "tables.md": "\n".join(table.markdown() for table in self.tables),
                "tables.tex": "\n".join([LATEX_PACKAGES, *(table.latex() for table in self.tables)]),
                "report.html": page,
            },
        )


def write_files_together(folder: Path, texts: Mapping[str, str]) -> None:
    """Write files that belong together, so that no kill and no full disk leaves some of one set beside some of another.

    All are written aside first; then the old ones are removed, and the new ones take their places. Drafts that killed
    processes left are removed.
    """
    from filelock import FileLock, Timeout

    for name in texts:
        ensure_writable(folder / name)
    try:
        with FileLock(folder / ".results.lock", timeout=MAX_LOCK_WAIT_SECONDS):
            for draft in (path for pattern in DRAFT_PATTERNS for path in folder.glob(pattern)):
                remove_path(draft)
            draft_folder = Path(tempfile.mkdtemp(prefix=".results-", dir=folder))
            try:
                for name, text in texts.items():
                    (draft_folder / name).write_text(text, encoding="utf-8")
                    apply_umask(draft_folder / name)
                for name in texts:
                    remove_path(folder / name)
                for name in texts:
                    (draft_folder / name).replace(folder / name)
            finally:
                remove_path(draft_folder)
    except Timeout:
        raise InputError(
            f"another process writes its results to {folder}; try again when it is done", code="folder_in_use"
        ) from None
    except OSError as error:
        error.filename = str(folder)
        raise


def remove_path(path: Path) -> None:
    """Remove a file, or a folder with all that is in it; nothing if it is not there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def group_failures(study: Study, runs: Mapping[Run, str]) -> list[str]:
    """Say why runs are not done, in one line where several on one data set have the same reason."""
    groups: dict[tuple[Method, str], list[Run]] = {}
    for run, reason in runs.items():
        groups.setdefault((run.dataset, reason), []).append(run)
    lines: list[str] = []
    for (dataset, reason), group in groups.items():
        first_label = f"{', '.join(study.names(group[0]))}, seed {group[0].seed}"
        lines.append(f"{first_label if len(group) == 1 else f'{len(group)} runs on {study.label(dataset)}'}: {reason}")
    return lines


@dataclass(frozen=True)
class RunStatus:
    """How a run stands: done, diverged, begun, failed, damaged, missing, or its data are (no data)."""

    run: Run
    state: str
    seconds: float  # it took; nan unless it is done
    reason: str = ""  # it failed, in one line


@dataclass(frozen=True, eq=False)
class Status:
    """How the runs of a study stand, and how long the rest takes."""

    study: Study
    runs: tuple[RunStatus, ...]
    seconds: float  # that the rest takes, from the finished runs or from trials; nan if nothing is known
    trials: Mapping[Run, Trial]  # of kinds of which no run is finished
    runs_without_data: Mapping[Run, str] = field(
        default_factory=dict[Run, str]
    )  # runs whose data are not at hand, and why

    def _runs_in_state(self, *states: str) -> list[Run]:
        return [standing.run for standing in self.runs if standing.state in states]

    @property
    def done(self) -> list[Run]:
        """The finished runs, those that diverged among them."""
        return self._runs_in_state("done", "diverged")

    @property
    def in_progress(self) -> list[Run]:
        """Those that were interrupted, or that somebody works on."""
        return self._runs_in_state("begun")

    @property
    def failed(self) -> list[Run]:
        """Those that failed, which the next start tries again."""
        return self._runs_in_state("failed")

    @property
    def remaining(self) -> list[Run]:
        """All that are not done, and whose data are not known to be missing."""
        return self._runs_in_state("begun", "failed", "damaged", "missing")

    @property
    def summary(self) -> str:
        """What is left, and how long it takes, in words."""
        if not self.remaining:
            return f"all {len(self.runs)} runs are done" if not self.runs_without_data else "nothing can be trained"
        wait = "" if math.isnan(self.seconds) else f", {duration_text(self.seconds)}"
        from_batches = ", estimated from single batches" if self.trials else ""
        return f"{len(self.remaining)} of {len(self.runs)} runs to train{wait}{from_batches}"

    @property
    def trial_lines(self) -> list[str]:
        """A line for every kind of network that was tried, and for all data that are not at hand."""
        lines: list[str] = []
        for run, trial in self.trials.items():
            dataset, network, _ = self.study.names(run)
            size = f"{trial.examples:,} examples, {trial.parameters:,} parameters"
            lines.append(f"{network} on {dataset}: {size}, an epoch takes {duration_text(trial.seconds)}")
        return [*lines, *(f"cannot run: {line}" for line in group_failures(self.study, self.runs_without_data))]

    def __str__(self) -> str:
        lines: list[str] = []
        for standing in self.runs:
            duration = "" if math.isnan(standing.seconds) else f", {standing.seconds:.0f} s"
            reason = f": {standing.reason}" if standing.reason and standing.run not in self.runs_without_data else ""
            names = ", ".join(self.study.names(standing.run))
            lines.append(f"{standing.state:<9}{names}, seed {standing.run.seed}{duration}{reason}")
        return "\n".join([*lines, *self.trial_lines, self.summary])
