"""One table of a paper: its printed values, the study's own beside them, and the test of each."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from calibrant import metrics
from calibrant._core import registry
from calibrant._core.grouping import group_pairs
from calibrant._core.types import InputError
from calibrant.lab.study.published_results import PaperComparison, PrintedNames, PrintedTable, PublishedResults
from calibrant.lab.study.significance import SIGNIFICANCE_LEVEL, unpaired_p_value
from calibrant.lab.study.tables import PaperValue, ResultCell, ResultTable
from calibrant.reports.document import Document, Section, Table
from calibrant.reports.result import Reportable

HEADINGS = "data set", "network", "trained with", "calibrator", "metric", "here", "test here", "paper", "paper's test"
NUM_TEXT_COLUMNS = 5


@dataclass(frozen=True)
class PaperRow:
    """A printed value, and the cell of the study that repeats it."""

    names: PrintedNames  # data set, network, loss, calibrator and metric, as the paper prints them
    paper: PaperValue
    paper_mark: str  # of the paper's test: higher (▲) or lower (▼) than the first loss; hollow if not significant
    cell: ResultCell | None  # None if the study has no finished run for it
    metric: str  # as the study names it

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts of `HEADINGS`."""
        info = metrics.metric_info(self.metric)
        own_text = "" if self.cell is None else self.cell.text(info).removesuffix(self.cell.test_results).strip()
        mark = "" if self.cell is None else self.cell.mark
        return (*self.names, own_text, mark, self.paper.text(info), self.paper_mark)


@dataclass(frozen=True)
class PaperTable(Reportable):
    """One table of a paper beside a study. Prints as a text table."""

    paper: str
    source: str  # such as "Table 2"
    rows: Sequence[PaperRow]
    notes: tuple[str, ...]  # on both tests, and on differences in training

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield a record for every row; shares are not in percent, and values are None without a finished run."""
        for row in self.rows:
            yield dict(zip(HEADINGS[:NUM_TEXT_COLUMNS], row.names, strict=True)) | {
                "mean": None if row.cell is None else row.cell.mean,
                "deviation": None if row.cell is None else row.cell.deviation,
                "mark": None if row.cell is None else row.cell.mark,
                "paper_mean": row.paper.mean,
                "paper_deviation": row.paper.deviation,
                "paper_temperature": row.paper.temperature,
                "paper_mark": row.paper_mark,
            }

    def document(self) -> Document:
        """Return the printed values with the study's own, a table for each data set and network."""
        groups = group_pairs((row.names[:2], row) for row in self.rows)
        tables = [
            Table(
                caption=f"{network} on {dataset}",
                head=HEADINGS[2:],
                rows=[row.texts[2:] for row in rows],
            )
            for (dataset, network), rows in groups.items()
        ]
        return Document(
            kind="A table of a paper",
            title=f"{self.source} of {self.paper}",
            notes=self.notes,
            sections=[Section("Ours beside the paper's", tables)],
        )

    def numbers(self) -> dict[str, Any]:
        """Return a record for every row."""
        return {"paper": self.paper, "source": self.source, "rows": list(self.records())}


def paper_table(comparison: PaperComparison | None, source: str, tables: Iterable[ResultTable]) -> PaperTable:
    """Return one table of the paper that a study repeats, with the cells of the study's `tables` beside it.

    Raises:
        InputError: If the study names no paper, or the paper has no such table.
    """
    if comparison is None:
        raise InputError("Expected a study with published results, got one without. Try wang_2021.", code="no_paper")
    published = comparison.published
    registry.check_name(source, published.tables, f"table of {published.paper}", "unknown_table")
    cells = {}
    for table in tables:
        for (row, column), cell in table.cells.items():
            names = {"shift": table.shift, "metric": table.metric, "calibrator": column}
            if (key := comparison.paper_key(row._asdict() | names)) is not None:
                cells[key] = cell
    printed = published.tables[source]
    marks = _paper_marks(published, printed)
    rows = [
        PaperRow(names, value, marks.get(names, ""), cells.get(key), _metric_text(published, names))
        for names, (key, value) in printed.items()
    ]
    return PaperTable(published.paper, source, rows, tuple(_notes(comparison, rows)))


def _metric_text(published: PublishedResults, names: PrintedNames) -> str:
    """Return the metric of a printed value, from a row of the same table whose loss the paper defines."""
    keys = (
        key for table in published.tables.values() for printed, (key, _) in table.items() if printed[-1] == names[-1]
    )
    return next(key[-1].text for key in keys if key is not None)


def _paper_marks(published: PublishedResults, printed: PrintedTable) -> dict[PrintedNames, str]:
    """Return the marks of unpaired t-tests against the first loss of each data set, network, calibrator and metric."""
    groups = group_pairs(((names[:2] + names[3:]), (names, value)) for names, (_, value) in printed.items())
    marks: dict[PrintedNames, str] = {}
    for (_, reference), *compared in groups.values():
        for names, value in compared:
            printed_means = (reference.mean, reference.deviation), (value.mean, value.deviation)
            p = unpaired_p_value(*printed_means, published.runs or 1)
            if not math.isnan(p) and value.mean != reference.mean:
                higher, lower = "▲▼" if p < SIGNIFICANCE_LEVEL else "△▽"
                marks[names] = higher if value.mean > reference.mean else lower
    return marks


def _notes(comparison: PaperComparison, rows: Sequence[PaperRow]) -> Iterator[str]:
    """Yield which test gives the marks of each column, and how the study's training differs."""
    meaning = f"▲ is higher and ▼ lower than the first loss at level {SIGNIFICANCE_LEVEL}; △ and ▽ are not significant."
    if any(row.paper_mark for row in rows):
        yield (
            f"paper's test: Student's unpaired t-test from the printed means and deviations of "
            f"{comparison.published.runs} runs, without correction. {meaning}"
        )
    else:
        yield "paper's test: none, because the table has no deviations."
    if any(row.cell is not None and row.cell.mark for row in rows):
        yield f"test here: paired t-test over shared seeds, with Holm's correction for the column's losses. {meaning}"
    if all(row.cell is None for row in rows):
        yield "here: no finished run. Try `calibrant study run` first."
    else:
        yield comparison.note(row.paper for row in rows)
