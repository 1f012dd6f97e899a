"""Results of a study, what they were made with, and the status of its runs."""

import json
import math
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from calibrant._core.files import atomic_write
from calibrant._core.grouping import group_pairs
from calibrant._core.lazy import polars
from calibrant._core.types import InputError
from calibrant._core.version import __version__
from calibrant.io.tables import to_safe_csv
from calibrant.lab.study.config import Study
from calibrant.lab.study.drawing import Drawing
from calibrant.lab.study.grids import Run
from calibrant.lab.study.measurements import ResultRow, RunMeasurement
from calibrant.lab.study.progress import Trial, duration_text
from calibrant.lab.study.stored_files import name_in_errors
from calibrant.lab.study.tables import LATEX_PACKAGES, ResultTable
from calibrant.reports.document import Document
from calibrant.reports.result import Reportable

DRAFT_PATTERNS = ".results-*", ".made_with-*.json", ".report-*.html", ".rows-*.csv", ".tables-*.*"  # of killed writers
MAX_LOCK_WAIT_SECONDS = 60.0
RESULT_FILES = ("rows.csv", "tables.csv", "tables.md", "tables.tex", "made_with.json", "report.html")


@dataclass(frozen=True, eq=False)
class Result(Reportable):
    """Results of a study. Prints as findings, tables and failed runs."""

    study: Study
    tables: Sequence[ResultTable]
    measurements: Sequence[RunMeasurement]
    failed: Mapping[Run, str]  # the reason in one line; partial/ID/error.txt holds the traceback
    folder: Path
    diverged_rows: Sequence[ResultRow] = ()  # rows of networks that diverged
    notes: tuple[str, ...] = ()  # on damaged runs, and runs from other stores
    learning_curves: Sequence[Drawing] = ()
    facts: Mapping[str, str] = field(default_factory=dict[str, str])  # what was trained and how

    @property
    def rows(self) -> list[ResultRow]:
        """One row per run, shift, calibrator and metric."""
        return [*(row for measurement in self.measurements for row in measurement.rows), *self.diverged_rows]

    @property
    def report(self) -> Path | None:
        """Path of the HTML report, or None if nothing was measured."""
        return self.folder / "report.html" if self.tables else None

    @property
    def finding(self) -> str:
        """The findings in words."""
        from calibrant.lab.study.report import findings

        texts = findings(self.tables)
        return "\n".join(texts.values() if len(texts) == 1 else [f"{setup}: {text}" for setup, text in texts.items()])

    @property
    def failure_lines(self) -> list[str]:
        """A line for each failed run, or for several that failed for the same reason on one data set."""
        return [f"failed: {line}" for line in describe_failures(self.study, self.failed)]

    def to_polars(self) -> Any:
        """Return the rows as a polars frame."""
        return polars.DataFrame(self.rows, infer_schema_length=None)  # columns differ between calibrators

    def document(self) -> Document:
        """Return the findings, tables, reliability diagrams, sweeps and learning curves."""
        from calibrant.lab.study.report import study_document
        from calibrant.lab.study.sweeps import sweep_drawings

        return study_document(
            self.study,
            self.tables,
            self.measurements,
            sweeps=sweep_drawings(self.study, self.rows) if self.rows else (),
            learning_curves=self.learning_curves,
            notes=[*self.notes, *self.failure_lines],
            facts=self.facts,
        )

    def numbers(self) -> dict[str, Any]:
        """Return the rows, and every cell of the tables."""
        return {"rows": self.rows, "tables": [record for table in self.tables for record in table.records()]}

    def write(self, command: str) -> None:
        """Write tables, rows and the report, which shows the command, to the folder together: `RESULT_FILES`."""
        records = [record for table in self.tables for record in table.records()]
        runs = [measurement.run for measurement in self.measurements if isinstance(measurement.run, Run)]
        write_files_together(
            self.folder,
            {
                "rows.csv": to_safe_csv(self.to_polars()),
                "tables.csv": to_safe_csv(polars.DataFrame(records, infer_schema_length=None)),
                "tables.md": "\n".join(table.markdown() for table in self.tables),
                "tables.tex": "\n".join([LATEX_PACKAGES, *(table.latex() for table in self.tables)]),
                "made_with.json": json.dumps(made_with(self.study, runs), indent=1) + "\n",
                "report.html": self.html({"command": command}),
            },
        )


def write_files_together(folder: Path, texts: Mapping[str, str]) -> None:
    """Write texts to files of a folder, so that a kill or a full disk never leaves old and new ones side by side.

    All drafts are written first; then the old files are removed and the drafts renamed.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(folder / ".results.lock", timeout=MAX_LOCK_WAIT_SECONDS)
    try:
        with name_in_errors(folder), lock, ExitStack() as drafts:
            for leftover in chain.from_iterable(map(folder.glob, DRAFT_PATTERNS)):
                remove_path(leftover)
            for name, text in texts.items():
                drafts.enter_context(atomic_write(folder / name)).write_text(text, encoding="utf-8")
            for name in texts:  # a missing file is better than an old one beside new ones
                remove_path(folder / name)
            # at the end of the block, `atomic_write` renames each draft to its file
    except Timeout:
        raise InputError(
            f"Another process is writing its results to {folder}. Try again when it is done.", code="folder_in_use"
        ) from None


def remove_path(path: Path) -> None:
    """Remove a file, or a folder with its content, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def describe_failures(study: Study, reasons: Mapping[Run, str]) -> Iterator[str]:
    """Yield a line for each failed run with its reason, or for several on one data set with the same reason."""
    runs_by_cause = group_pairs(((run.dataset, reason), run) for run, reason in reasons.items())
    for (dataset, reason), runs in runs_by_cause.items():
        subject = study.describe(runs[0]) if len(runs) == 1 else f"{len(runs)} runs on {study.label(dataset)}"
        yield f"{subject}: {reason}"


@dataclass(frozen=True)
class RunStatus:
    """State of a run: done, diverged, begun, failed, damaged, missing, or "no data" if its data are missing."""

    run: Run
    state: str
    seconds: float  # of the training; nan unless it is done
    reason: str = ""  # why it failed, in one line


@dataclass(frozen=True, eq=False)
class Status:
    """State of every run in a study, and the estimated time for the remaining ones."""

    study: Study
    runs: tuple[RunStatus, ...]
    seconds: float  # of the remaining runs; nan if unknown
    trials: Mapping[Run, Trial]  # of networks and data sets without a finished run
    runs_without_data: Mapping[Run, str] = field(default_factory=dict[Run, str])  # with the reasons

    def _runs_in_state(self, *states: str) -> list[Run]:
        """Return the runs in any of these states."""
        return [status.run for status in self.runs if status.state in states]

    @property
    def finished(self) -> list[Run]:
        """Finished runs, including those that diverged."""
        return self._runs_in_state("done", "diverged")

    @property
    def failed(self) -> list[Run]:
        """Failed runs, which the next start tries again."""
        return self._runs_in_state("failed")

    @property
    def remaining(self) -> list[Run]:
        """Unfinished runs whose data are not known to be missing."""
        return self._runs_in_state("begun", "failed", "damaged", "missing")

    @property
    def summary(self) -> str:
        """Number and estimated time of the remaining runs; else that all are done, or that the rest lack data."""
        if not self.remaining:
            return "nothing can be trained" if self.runs_without_data else f"all {len(self.runs)} runs are done"
        wait = "" if math.isnan(self.seconds) else f", {duration_text(self.seconds)}"
        from_batches = ", estimated from single batches" if self.trials else ""
        return f"{len(self.remaining)} of {len(self.runs)} runs to train{wait}{from_batches}"

    @property
    def trial_lines(self) -> list[str]:
        """A line for every trial, and for all missing data."""
        trial_lines = [
            f"{self.study.names(run).setup}: {trial.examples:,} examples, {trial.parameters:,} parameters, an epoch "
            f"takes {duration_text(trial.seconds)}"
            for run, trial in self.trials.items()
        ]
        return trial_lines + [f"cannot run: {line}" for line in describe_failures(self.study, self.runs_without_data)]

    def __str__(self) -> str:
        """Return a line for every run with its state, then the lines of trials and the summary."""
        lines: list[str] = []
        for status in self.runs:
            epochs = f"{status.run.recipe.epochs} epoch{'s' if status.run.recipe.epochs > 1 else ''}"
            duration = "" if math.isnan(status.seconds) else f", {status.seconds:.0f} s"
            is_reason_below = status.run in self.runs_without_data  # in `trial_lines`
            reason = f": {status.reason}" if status.reason and not is_reason_below else ""
            lines.append(f"{status.state:<9}{self.study.describe(status.run)}, {epochs}{duration}{reason}")
        return "\n".join([*lines, *self.trial_lines, self.summary])


# What results were made with


def made_with(study: Study, runs: Iterable[Run]) -> dict[str, Any]:
    """Return the version, the precision of the training, the runs and the methods of results, for `made_with.json`.

    The id of a run changes with its data set, network, loss, recipe, seed, traces and the revisions of their methods.
    """
    methods = *study.calibrators, *study.metrics, *study.detection
    trained = list(runs)
    return {
        "calibrant": __version__,
        "study": study.name,
        "precision": "/".join(dict.fromkeys(run.recipe.precision for run in trained)),
        "runs": {run.id: study.describe(run) for run in trained},
        # the code is "" in the first revision of a built-in method
        "revisions": {method.text: method.code or "revision 1" for method in methods},
    }
