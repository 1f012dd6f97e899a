"""Build tables like the papers' from rows: a row per network and loss, a column per calibrator, means over seeds."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from statistics import mean, stdev
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from calibrant import metrics
from calibrant._grouping import group_pairs
from calibrant._text import escape_invisible, escape_latex, escape_markdown
from calibrant.lab.study.grids import MODELS_PLACEHOLDER
from calibrant.lab.study.significance import (
    SIGNIFICANCE_LEVEL,
    ValuesBySeed,
    holm,
    letter_groups,
    paired_p_value,
    pairwise_p_values,
)
from calibrant.metrics import MetricInfo, describe_metric

LEARNED_PREFIX = "learned_"  # prefix of the columns with further numbers that a calibrator reports
LATEX_PACKAGES = "% \\usepackage{booktabs, amssymb, graphicx}; names in non-Latin scripts need LuaLaTeX or XeLaTeX\n"
CellKey = tuple[tuple[str, ...], str]  # row and column
LATEX_MARKS = {"▲": r"$\blacktriangle$", "▼": r"$\blacktriangledown$", "△": r"$\vartriangle$", "▽": r"$\triangledown$"}


@dataclass(frozen=True)
class PaperNumber:
    """A number printed in a paper."""

    mean: float
    deviation: float  # nan if not printed
    temperature: float  # nan if not printed
    source: str  # such as "Table 1"

    def text(self, about: MetricInfo, *, deviation: bool = True) -> str:
        """Format it like a `Cell`."""
        number = _number_text(about, self.mean, self.deviation if deviation else math.nan)
        return number if math.isnan(self.temperature) else f"{number} ({self.temperature:.2f})"


@dataclass(frozen=True)
class Cell:
    """The values of a metric over seeds for one row and column of a table."""

    values: tuple[float, ...]  # of the networks that did not diverge
    temperature: float  # mean over seeds; nan without one
    best: bool = False
    mark: str = ""  # higher (▲) or lower (▼) than the reference row by a paired t-test; hollow if not significant
    paper: PaperNumber | None = None
    diverged: int = 0  # number of networks that diverged
    seeds: tuple[int, ...] = ()
    letters: str = ""  # cells of a row that share a letter do not differ significantly
    reason: str = ""  # why the calibrator or metric does not apply
    learned_values: Mapping[str, float] = field(default_factory=dict[str, float])  # means of further reported numbers

    @property
    def mean(self) -> float:
        """Mean over seeds; nan if every network diverged."""
        return mean(self.values) if self.values else math.nan

    @property
    def deviation(self) -> float:
        """Standard deviation over seeds; nan with one seed."""
        return stdev(self.values) if len(self.values) > 1 and all(map(math.isfinite, self.values)) else math.nan

    @property
    def by_seed(self) -> ValuesBySeed:
        """The values by seed; empty if the seeds are unknown."""
        return dict(zip(self.seeds, self.values, strict=True)) if len(self.seeds) == len(self.values) else {}

    def text(self, about: MetricInfo, *, deviation: bool = True) -> str:
        """Format it like the papers: '4.35 ± 0.21 (2.50, gamma 0.37)', in percent if the metric is a share."""
        learned = f"({self.learned_text})" if self.learned_text else ""
        return " ".join(filter(None, [self.number_text(about, deviation=deviation), learned, self.significance]))

    def number_text(self, about: MetricInfo, *, deviation: bool = True) -> str:
        """Return mean and standard deviation, or why there are none."""
        if not self.values:
            return "n/a" if self.reason else "diverged"
        return _number_text(about, self.mean, self.deviation if deviation else math.nan)

    @property
    def learned_text(self) -> str:
        """Learned numbers, such as '2.50, gamma 0.37' with the temperature first."""
        temperature = [] if math.isnan(self.temperature) else [f"{self.temperature:.2f}"]
        return ", ".join([*temperature, *(f"{name} {value:z.2f}" for name, value in self.learned_values.items())])

    @property
    def significance(self) -> str:
        """Mark and letters of the tests."""
        return " ".join(filter(None, [self.mark, self.letters]))


@dataclass(frozen=True)
class ResultTable:
    """One metric: a row per loss (with data set and network), a column per calibrator."""

    metric: str
    rows: tuple[tuple[str, ...], ...]  # (data set, network, loss)
    columns: tuple[str, ...]  # calibrators
    cells: dict[CellKey, Cell]
    paper_note: str = ""  # on the sources and setting of the paper's numbers
    shift: str = ""  # of the test set
    versions_note: str = ""  # if several versions of calibrant trained the networks

    @property
    def about(self) -> MetricInfo:
        """The declaration of the metric."""
        return metrics.metric_info(self.metric)

    @property
    def heading(self) -> str:
        """The metric with its unit, and the shift."""
        return self.about.heading(self.metric) + (f" on {self.shift}" if self.shift else "")

    @property
    def caption(self) -> str:
        """Description of the cells."""
        cells = self.cells.values()
        parts = {
            describe_metric(self.metric) + (f" on {self.shift}" if self.shift else ""): True,
            "mean ± standard deviation over seeds": any(len(cell.values) > 1 for cell in cells),
            "temperature in brackets": any(not math.isnan(cell.temperature) for cell in cells),
            "best in bold": any(cell.best for cell in cells),
        }
        text = "; ".join(part for part, applies in parts.items() if applies)
        return f"{text[:1].upper()}{text[1:]}."

    @property
    def significance_note(self) -> str:
        """Explanation of the marks and letters of significance, if there are any."""
        sentences: list[str] = []
        if any(cell.mark for cell in self.cells.values()):
            first = {row[2] for row in _reference_rows(self.rows).values()}
            reference = first.pop() if len(first) == 1 else "the first row of the same data set and network"
            sentences.append(
                f"▲ is higher and ▼ lower than {reference} by a paired t-test over shared seeds at level "
                f"{SIGNIFICANCE_LEVEL}, with Holm's correction for the rows of a column; △ and ▽ are not significant."
            )
        if any(_calibrator_tests(self.cells).values()):
            sentences.append(
                "Calibrators of a row that share a letter, or have no letters, do not differ significantly by paired "
                f"t-tests over shared seeds at level {SIGNIFICANCE_LEVEL}, with Holm's correction per row."
            )
        return " ".join(sentences)

    @property
    def notes(self) -> tuple[str, ...]:
        """All notes below a table that stands alone."""
        return tuple(note for note in (self.significance_note, *self.table_notes) if note)

    @property
    def table_notes(self) -> tuple[str, ...]:
        """Notes on diverged networks, methods that do not apply, versions and the paper's numbers."""
        return tuple(
            note for note in (self.divergence_note, *self.unmeasured_notes, self.versions_note, self.paper_note) if note
        )

    @property
    def unmeasured_notes(self) -> list[str]:
        """Reasons for missing values (n/a), and their rows."""
        names = group_pairs((cell.reason, self.name(row)) for (row, _), cell in self.cells.items() if cell.reason)
        return [f"Not measured (n/a): {reason} ({'; '.join(dict.fromkeys(rows))})." for reason, rows in names.items()]

    @property
    def divergence_note(self) -> str:
        """Numbers of networks that diverged."""
        first = {row: cell for (row, _), cell in reversed(self.cells.items()) if cell.diverged}
        counts = [
            f"{cell.diverged} of {cell.diverged + len(cell.values)} of {self.name(row)}"
            for row, cell in reversed(first.items())
        ]
        return f"Excluded because the network diverged: {', '.join(counts)}." if counts else ""

    @property
    def has_trained_networks(self) -> bool:
        """Whether the rows are networks that the study trained, rather than external models."""
        return not all(row[1] == MODELS_PLACEHOLDER for row in self.rows)

    @property
    def row_header(self) -> str:
        """Header of the column of row names."""
        return "trained with" if self.has_trained_networks else "model"

    def name(self, row: tuple[str, ...]) -> str:
        """Return the name of a row: the loss, and the data set and network if they differ between rows."""
        shown_parts = [len({table_row[i] for table_row in self.rows}) > 1 or i == 2 for i in range(3)]
        return ", ".join(part for part, show in zip(row, shown_parts, strict=True) if show)

    def rendered_rows(
        self, *, deviation: bool = True
    ) -> Iterator[tuple[tuple[str, ...], list[tuple[str, bool]], list[str]]]:
        """Yield every row with the texts of its cells, whether each is the best, and any texts of the paper."""
        for row in self.rows:
            cells = [self.cells[row, column] for column in self.columns]
            texts = [(cell.text(self.about, deviation=deviation), cell.best) for cell in cells]
            paper_texts = [cell.paper.text(self.about, deviation=deviation) if cell.paper else "" for cell in cells]
            yield row, texts, paper_texts if any(paper_texts) else []

    def markdown(self) -> str:
        """Return the table as Markdown, the best cell bold, the paper's numbers in italics below."""
        return _templates().get_template("table.md.j2").render(t=self)

    def latex(self) -> str:
        """Return the table as LaTeX with booktabs rules, no wider than a line; see `LATEX_PACKAGES`."""
        return _templates().get_template("table.tex.j2").render(t=self)

    def __str__(self) -> str:
        """Return the table as plain text, the best cell between stars."""
        lines = [[self.heading, *self.columns]]
        for row, cells, paper_texts in self.rendered_rows():
            lines.append([self.name(row), *(f"*{text}*" if is_best else text for text, is_best in cells)])
            lines += [["  paper", *paper_texts]] if paper_texts else []
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        aligned = ["  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) for line in lines]
        return escape_invisible("\n".join([*map(str.rstrip, aligned), *self.notes]), allowed="\n")

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield every cell as a record for a CSV file, with numbers in the metric's unit."""
        for (row, column), cell in self.cells.items():
            yield {
                "metric": self.metric,
                "shift": self.shift,
                **dict(zip(("dataset", "network", "loss"), row, strict=True)),
                "calibrator": column,
                "mean": cell.mean,
                "deviation": cell.deviation,
                "seeds": len(cell.values),
                "diverged": cell.diverged,
                "temperature": cell.temperature,
                "learned": ", ".join(f"{name} {value}" for name, value in cell.learned_values.items()),
                "best": cell.best,
                "mark": cell.mark,
                "letters": cell.letters,
                "reason": cell.reason,
                **{f"paper_{number.name}": getattr(cell.paper, number.name, None) for number in fields(PaperNumber)},
            }


@cache
def _templates() -> Environment:
    """Return the templates of tables, whose delimiters do not occur in LaTeX."""
    environment = Environment(
        loader=PackageLoader("calibrant.lab.study", "."),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
        variable_start_string="<<",
        variable_end_string=">>",
        block_start_string="<%",
        block_end_string="%>",
    )
    environment.filters |= {"markdown": escape_markdown, "latex": _escape_latex}
    return environment


def _number_text(about: MetricInfo, value: float, deviation: float) -> str:
    return about.text(value) + ("" if math.isnan(deviation) else f" ± {about.text(deviation)}")


def _escape_latex(text: str) -> str:
    text = escape_latex(text).replace("±", r"$\pm$")
    return re.sub(f"[{''.join(LATEX_MARKS)}]", lambda match: LATEX_MARKS[match[0]], text)


def build_tables(
    rows: Iterable[Mapping[str, Any]],
    find_paper_number: Callable[[Mapping[str, Any]], PaperNumber | None] = lambda row: None,
    paper_note: Callable[[Iterable[PaperNumber]], str] = lambda numbers: "",
) -> list[ResultTable]:
    """Build one table per shift and metric from the rows of a study.

    The best cell of each data set and network is marked. With at least two shared seeds, every row is tested against
    the first of the same data set and network, and the calibrators of a row against each other.

    Args:
        rows: Rows as in `RunMeasurement`.
        find_paper_number: Returns the paper's number for a row.
        paper_note: Returns a note on the paper's numbers of a table.
    """
    result: list[ResultTable] = []
    for (shift, metric), table_rows in group_pairs(((row["shift"], row["metric"]), row) for row in rows).items():
        rows_by_cell = group_pairs(
            (((row["dataset"], row["network"], row["loss"]), row["calibrator"]), row) for row in table_rows
        )
        names_by_place = group_pairs((name[:2], name) for name in dict.fromkeys(name for name, _ in rows_by_cell))
        names = tuple(name for place_names in names_by_place.values() for name in place_names)
        columns = tuple(dict.fromkeys(calibrator for _, calibrator in rows_by_cell))
        cells = _mark_cells(
            {key: _build_cell(cell_rows, find_paper_number(cell_rows[0])) for key, cell_rows in rows_by_cell.items()},
            metric,
        )
        paper_numbers = [cell.paper for cell in cells.values() if cell.paper]
        note = paper_note(paper_numbers) if paper_numbers else ""
        result.append(ResultTable(metric, names, columns, cells, note, shift))
    return result


def describe_cells(tables: Iterable[ResultTable]) -> str:
    """Return what the cells of tables show: a mean over seeds, or one seed."""
    seeds = max((len(cell.values) for table in tables for cell in table.cells.values()), default=1)
    return f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "one seed"


def main_calibration_error(names: Iterable[str]) -> str:
    """Return the first calibration error among metrics, or the first metric if there is none.

    >>> main_calibration_error(["error", "adaptive_ece(bins=10)", "ece"]), main_calibration_error(["error", "nll"])
    ('adaptive_ece(bins=10)', 'error')
    """
    candidates = list(names)
    return next((name for name in candidates if metrics.is_calibration_error(name)), candidates[0])


def _build_cell(rows: list[Mapping[str, Any]], paper_number: PaperNumber | None) -> Cell:
    """Return a cell of a table from the rows of its runs; diverged runs are counted, but have no value."""
    reason = next((row["reason"] for row in rows if row.get("reason")), "")
    applicable_rows = [row for row in rows if not row.get("reason")]
    converged_rows = [row for row in applicable_rows if not row.get("diverged")]
    temperature = mean(row["temperature"] for row in converged_rows) if converged_rows else math.nan
    names = [key for key in converged_rows[0] if key.startswith(LEARNED_PREFIX)] if converged_rows else []
    learned = {name.removeprefix(LEARNED_PREFIX): mean(row[name] for row in converged_rows) for name in names}
    return Cell(
        tuple(row["value"] for row in converged_rows),
        temperature,
        paper=paper_number,
        diverged=len(applicable_rows) - len(converged_rows),
        seeds=tuple(row["seed"] for row in converged_rows if "seed" in row),
        reason=reason,
        learned_values=learned,
    )


def _mark_cells(cells: dict[CellKey, Cell], metric: str) -> dict[CellKey, Cell]:
    """Return the cells with their marks and letters, and whether each is the best of its data set and network."""
    neighbors = group_pairs((row[:2], cell.mean) for (row, _), cell in cells.items())
    best = {place: metrics.metric_info(metric).best(values) for place, values in neighbors.items()}
    marks, letters = _row_marks(cells), _calibrator_letters(cells)
    return {
        (row, column): replace(
            cell,
            best=cell.mean == best[row[:2]],
            mark=marks.get((row, column), ""),
            letters=letters.get((row, column), ""),
        )
        for (row, column), cell in cells.items()
    }


def _reference_rows(rows: Iterable[tuple[str, ...]]) -> dict[tuple[str, ...], tuple[str, ...]]:
    """Return the first row of every data set and network."""
    return {place: place_rows[0] for place, place_rows in group_pairs((row[:2], row) for row in rows).items()}


def _row_marks(cells: Mapping[CellKey, Cell]) -> dict[CellKey, str]:
    """Return marks of cells that are higher or lower than the reference row, as in Wang et al. (2021).

    P-values are corrected for the number of rows that are tested against one reference.
    """
    reference_rows = _reference_rows(row for row, _ in cells)
    references = {(row, column): cells.get((reference_rows[row[:2]], column)) for row, column in cells}
    families = group_pairs(
        ((row[:2], column), ((row, column), paired_p_value(reference.by_seed, cells[row, column].by_seed)))
        for (row, column), reference in references.items()
        if reference is not None and cells[row, column].mean != reference.mean
    )
    marks: dict[CellKey, str] = {}
    for (place, column), p_values in families.items():
        for key, p in holm(dict(p_values)).items():
            if not math.isnan(p):
                higher = cells[key].mean > cells[reference_rows[place], column].mean
                triangles = "▲▼" if p < SIGNIFICANCE_LEVEL else "△▽"
                marks[key] = triangles[0] if higher else triangles[1]
    return marks


def _calibrator_letters(cells: Mapping[CellKey, Cell]) -> dict[CellKey, str]:
    """Return letters for the calibrators of every row in which some differ significantly."""
    letters: dict[CellKey, str] = {}
    for table_row, p_values in _calibrator_tests(cells).items():
        different = [pair for pair, p in p_values.items() if p < SIGNIFICANCE_LEVEL]
        if different:
            tested = [column for row, column in cells if row == table_row and any(column in pair for pair in p_values)]
            letters |= {(table_row, column): text for column, text in letter_groups(tested, different).items()}
    return letters


def _calibrator_tests(cells: Mapping[CellKey, Cell]) -> dict[tuple[str, ...], dict[tuple[str, str], float]]:
    """Return the corrected p-values of all pairs of calibrators of a row that share seeds."""
    rows = group_pairs((row, (column, cell.by_seed)) for (row, column), cell in cells.items())
    return {
        row: {pair: p for pair, p in pairwise_p_values(dict(values)).items() if not math.isnan(p)}
        for row, values in rows.items()
    }
