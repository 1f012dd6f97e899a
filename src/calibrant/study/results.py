"""What came of a study: its tables, rows and report, and how its runs stand."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibrant.io import atomic_write, writable
from calibrant.study.config import Run, Study
from calibrant.study.progress import Trial
from calibrant.study.rows import Measured, Row
from calibrant.study.tables import Table


@dataclass(frozen=True, eq=False)
class Result:
    """What a study found. Prints as its tables, what they say in words, and which runs failed."""

    study: Study
    tables: Sequence[Table]
    measured: Sequence[Measured]
    failed: Mapping[Run, str]  # why, in one line; all of it stands in partial/ID/error.txt
    folder: Path

    @property
    def rows(self) -> list[Row]:
        """One row per run, shift, calibrator and metric."""
        return [row for found in self.measured for row in found.rows]

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
        seeds = max(len(grid.seeds) for grid in self.study.grids)
        return f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "one seed"

    @property
    def reasons(self) -> list[str]:
        """A line for each run that failed."""
        return [
            f"failed: {', '.join(self.study.names(run))}, seed {run.seed}: {why}" for run, why in self.failed.items()
        ]

    def to_polars(self) -> Any:
        """Return the rows as a polars frame."""
        import polars

        return polars.DataFrame(self.rows, infer_schema_length=None)  # calibrators report different numbers

    def __str__(self) -> str:
        parts = [str(table) for table in self.tables]
        if self.tables:
            parts += [f"{self.spread}, temperature in brackets, best between stars\n{self.finding}"]
        parts += ["\n".join(self.reasons)] if self.failed else []
        parts += [f"report: {self.report}"] if self.report else []
        return "\n\n".join(parts)

    def _repr_html_(self) -> str:
        from calibrant.study.report import result_tables

        return result_tables(self.study, self.tables)

    def write(self, page: str) -> None:
        """Write tables, rows and the report's page to the folder."""
        import polars

        writable(self.folder / "report.html")
        with atomic_write(self.folder / "rows.csv") as draft:
            self.to_polars().write_csv(draft)
        with atomic_write(self.folder / "tables.csv") as draft:
            records = [record for table in self.tables for record in table.records()]
            polars.DataFrame(records, infer_schema_length=None).write_csv(draft)
        texts = {
            "tables.md": "\n".join(table.markdown() for table in self.tables),
            "tables.tex": "\n".join(table.latex() for table in self.tables),
            "report.html": page,
        }
        for name, text in texts.items():
            with atomic_write(self.folder / name) as draft:
                draft.write_text(text, encoding="utf-8")


@dataclass(frozen=True)
class Standing:
    """How a run stands: done, begun, failed, or missing."""

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
    trials: Mapping[Run, Trial | str]  # of kinds of which no run is finished, or why there is none

    def _in(self, *states: str) -> list[Run]:
        return [standing.run for standing in self.runs if standing.state in states]

    @property
    def done(self) -> list[Run]:
        """The finished runs."""
        return self._in("done")

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
        """All that are not done."""
        return self._in("begun", "failed", "missing")

    @property
    def rest(self) -> str:
        """What is left, and how long it takes, in words."""
        if not self.left:
            return f"all {len(self.runs)} runs are done"
        minutes = self.seconds / 60
        words = f"about {minutes / 60:.1f} hours" if minutes > 90 else f"about {minutes:.0f} minutes"
        wait = "" if math.isnan(minutes) else f", {words if minutes >= 1 else 'less than a minute'}"
        tried = any(isinstance(trial, Trial) for trial in self.trials.values())
        from_batches = ", estimated from single batches" if tried else ""
        return f"{len(self.left)} of {len(self.runs)} runs to train{wait}{from_batches}"

    @property
    def tried(self) -> list[str]:
        """A line for every kind of network that was tried."""
        lines: list[str] = []
        for run, trial in self.trials.items():
            where, what, _ = self.study.names(run)
            if isinstance(trial, str):
                lines.append(f"no estimate for {what} on {where}: {trial}")
            else:
                size = f"{trial.examples:,} examples, {trial.parameters:,} parameters"
                lines.append(f"{what} on {where}: {size}, about {trial.seconds:.3g} s an epoch")
        return lines

    def __str__(self) -> str:
        lines: list[str] = []
        for standing in self.runs:
            took = "" if math.isnan(standing.seconds) else f", {standing.seconds:.0f} s"
            why = f": {standing.why}" if standing.why else ""
            names = ", ".join(self.study.names(standing.run))
            lines.append(f"{standing.state:<8}{names}, seed {standing.run.seed}{took}{why}")
        return "\n".join([*lines, *self.tried, self.rest])
