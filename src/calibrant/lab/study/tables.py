"""Build tables like the papers': a row per loss, network and data set, a column per calibrator, means over seeds."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from itertools import chain
from statistics import mean, stdev
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from calibrant import metrics
from calibrant._core.grouping import group_pairs
from calibrant._core.registry import CALIBRATORS, LOSSES
from calibrant._core.text import escape_latex, escape_markdown
from calibrant.lab.study import significance
from calibrant.lab.study.grids import MODELS_PLACEHOLDER, RunNames, Setup
from calibrant.lab.study.significance import SIGNIFICANCE_LEVEL, Key
from calibrant.metrics import MetricInfo, describe_metric
from calibrant.reports import document as doc
from calibrant.reports.diagrams import INFINITE_MEAN_EXPLANATION
from calibrant.reports.text import table_lines

PARAMETER_PREFIX = "learned_"  # of the result columns with fitted parameters other than the temperature
LATEX_PACKAGES = "% \\usepackage{booktabs, amssymb, graphicx}; names in non-Latin scripts need LuaLaTeX or XeLaTeX\n"
CellKey = tuple[RunNames, str]  # row and column
LATEX_MARKS = {"▲": r"$\blacktriangle$", "▼": r"$\blacktriangledown$", "△": r"$\vartriangle$", "▽": r"$\triangledown$"}


@dataclass(frozen=True)
class PaperValue:
    """A mean printed in a paper."""

    mean: float
    deviation: float  # nan if not printed
    temperature: float  # nan if not printed
    source: str  # such as "Table 1"

    def text(self, metric_info: MetricInfo, *, deviation: bool = True) -> str:
        """Return the mean, deviation and temperature in the form of `ResultCell.text`."""
        text = _mean_text(metric_info, self.mean, self.deviation if deviation else math.nan)
        return text if math.isnan(self.temperature) else f"{text} ({self.temperature:.2f})"


@dataclass(frozen=True)
class ResultCell:
    """The values of a metric over seeds for one row and column of a table."""

    values: significance.ValuesBySeed  # of the networks that did not diverge
    temperature: float  # mean over seeds; nan without one
    best: bool = False
    mark: str = ""  # higher (▲) or lower (▼) than the reference row by a paired t-test; hollow if not significant
    paper: PaperValue | None = None
    diverged: int = 0  # number of networks that diverged
    letters: str = ""  # cells of a row that share a letter do not differ significantly
    reason: str = ""  # why the calibrator or metric does not apply
    unmeasured: int = 0  # number of networks that did not diverge, to which the calibrator or metric does not apply
    floor: float = math.nan  # noise floor of a calibration error, mean over seeds
    fitted_parameters: Mapping[str, float] = field(default_factory=dict[str, float])  # other means, by name

    @property
    def mean(self) -> float:
        """Mean over seeds, or nan if every network diverged."""
        return mean(self.values.values()) if self.values else math.nan

    @property
    def deviation(self) -> float:
        """Standard deviation over seeds, or nan with one seed."""
        values = self.values.values()
        return stdev(values) if len(values) > 1 and all(map(math.isfinite, values)) else math.nan

    @property
    def num_seeds(self) -> int:
        """Number of networks, with those that have no value."""
        return len(self.values) + self.diverged + self.unmeasured

    @property
    def excluded(self) -> int:
        """Number of networks without a finite value. Tests and the mean would favor a cell that leaves them out."""
        return self.diverged + self.unmeasured + sum(not math.isfinite(value) for value in self.values.values())

    @property
    def tested_values(self) -> significance.ValuesBySeed:
        """The values by seed, or none if any network has no finite value."""
        return {} if self.excluded else self.values

    def text(self, metric_info: MetricInfo, *, deviation: bool = True) -> str:
        """Return the cell as papers print it, such as '4.35 ± 0.21 (2.50, gamma 0.37) ▲', with shares in percent.

        The noise floor of a calibration error follows its mean in square brackets: '4.35 ± 0.21 [0.98]'.
        """
        texts = [self.mean_text(metric_info, deviation=deviation), self.bracketed_floor(metric_info)]
        texts += [f"({self.parameters_text})" if self.parameters_text else "", self.test_results]
        return " ".join(filter(None, texts))

    def floor_text(self, metric_info: MetricInfo) -> str:
        """Return the noise floor, or "" without one."""
        return "" if math.isnan(self.floor) else metric_info.text(self.floor)

    def bracketed_floor(self, metric_info: MetricInfo) -> str:
        """Return the noise floor in square brackets, or "" without one."""
        return "" if math.isnan(self.floor) else f"[{self.floor_text(metric_info)}]"

    def details(self, metric_info: MetricInfo) -> str:
        """Return what stands behind the mean: noise floor, fitted parameters, and the paper's value."""
        parameters = f"({self.parameters_text})" if self.parameters_text else ""
        paper = f"paper {self.paper.text(metric_info)}" if self.paper else ""
        own_text = " ".join(filter(None, [self.bracketed_floor(metric_info), parameters]))
        return "; ".join(filter(None, [own_text, paper]))

    def mean_text(self, metric_info: MetricInfo, *, deviation: bool = True) -> str:
        """Return "n/a" if a method does not apply, "diverged" without values, else the mean and its deviation."""
        if not self.values:
            return "n/a" if self.reason else "diverged"
        return _mean_text(metric_info, self.mean, self.deviation if deviation else math.nan)

    @property
    def parameters_text(self) -> str:
        """Fitted parameters such as '2.50, gamma 0.37', where the temperature comes first and has no name."""
        temperature = [] if math.isnan(self.temperature) else [f"{self.temperature:.2f}"]
        return ", ".join([*temperature, *(f"{name} {value:z.2f}" for name, value in self.fitted_parameters.items())])

    @property
    def test_results(self) -> str:
        """The mark of the test between rows, and the letters of the tests between calibrators."""
        return " ".join(filter(None, [self.mark, self.letters]))


@dataclass(frozen=True)
class ResultTable:
    """One metric: a row per loss (with data set and network), a column per calibrator."""

    metric: str
    rows: tuple[RunNames, ...]
    columns: tuple[str, ...]  # calibrators
    cells: dict[CellKey, ResultCell]
    paper_note: str = ""  # on the sources and setting of the paper's values
    shift: str = ""  # of the test set
    versions_note: str = ""  # if several versions of calibrant trained the networks

    @property
    def metric_info(self) -> MetricInfo:
        """Title, unit and better direction of the metric."""
        return metrics.metric_info(self.metric)

    @property
    def _shift_text(self) -> str:
        """The end of a sentence about a shifted test set, or "" without a shift."""
        return f" on {self.shift}" if self.shift else ""

    @property
    def heading(self) -> str:
        """The metric with its unit, and the shift."""
        return self.metric_info.heading(self.metric) + self._shift_text

    @property
    def description(self) -> str:
        """The metric in words, and the shift."""
        text = describe_metric(self.metric)
        return text[:1].upper() + text[1:] + self._shift_text  # capitalize() would change NLL to Nll

    @property
    def caption(self) -> str:
        """Description of the cells."""
        cells = self.cells.values()
        part_applies = {  # parts of the caption, and whether they apply to any cell
            "mean ± standard deviation over seeds": any(len(cell.values) > 1 for cell in cells),
            "temperature in brackets": any(not math.isnan(cell.temperature) for cell in cells),
            "noise floor in square brackets": has_noise_floor(self),
            "best mean in bold": any(cell.best for cell in cells),
        }
        return "; ".join([self.description, *(part for part, applies in part_applies.items() if applies)]) + "."

    @property
    def significance_sentences(self) -> tuple[str, ...]:
        """Explanations of the marks and letters of significance, if there are any."""
        sentences: list[str] = []
        if any(cell.mark for cell in self.cells.values()):
            # the reference of each data set and network is its first row, named by the loss if all have the same
            first_losses = {row.loss for row in first_rows(self.rows).values()}
            reference = (
                first_losses.pop() if len(first_losses) == 1 else "the first row of the same data set and network"
            )
            sentences.append(
                f"▲ is higher and ▼ lower than {reference} by a paired t-test over shared seeds at level "
                f"{SIGNIFICANCE_LEVEL}, with Holm's correction for the rows of a column; △ and ▽ are not significant."
            )
        if any(_calibrator_tests(self.cells).values()):
            sentences.append(
                "Calibrators of a row that share a letter do not differ significantly by paired t-tests over shared "
                f"seeds at level {SIGNIFICANCE_LEVEL}, with Holm's correction per row; nor do those of a row without "
                "letters."
            )
        if sentences and (untested := self._untested_cells()):
            sentences.append(f"Not tested, because not all seeds have a finite value: {'; '.join(untested)}.")
        return tuple(sentences)

    def _untested_cells(self) -> list[str]:
        """Name the columns of each row whose cells are not tested, and the number of seeds without a finite value."""
        texts: list[str] = []
        for row in self.rows:
            cells = [(column, self.cells[row, column]) for column in self.columns]
            names = [f"{c} ({cell.excluded} of {cell.num_seeds})" for c, cell in cells if cell.excluded and cell.values]
            texts += [f"{self.name(row)} with {', '.join(names)}"] if names else []
        return texts

    @property
    def notes(self) -> tuple[str, ...]:
        """All notes below a table that stands alone."""
        return tuple(filter(None, [" ".join(self.significance_sentences), *self.table_notes]))

    @property
    def table_notes(self) -> tuple[str, ...]:
        """Notes on diverged networks, methods that do not apply, versions and the paper's values."""
        return tuple(filter(None, [self.divergence_note, *self.unmeasured_notes, self.versions_note, self.paper_note]))

    @property
    def unmeasured_notes(self) -> list[str]:
        """Reasons for missing values (n/a), and their rows."""
        pairs = ((cell.reason, self.name(row)) for (row, _), cell in self.cells.items() if cell.reason)
        names_by_reason = group_pairs(dict.fromkeys(pairs))  # each pair once
        return [f"Not measured (n/a): {reason} ({'; '.join(names)})." for reason, names in names_by_reason.items()]

    @property
    def divergence_note(self) -> str:
        """How many networks of each row diverged, or "" if none did."""
        first_cells = {row: self.cells[row, self.columns[0]] for row in self.rows}  # all columns have the same networks
        counts = [
            f"{cell.diverged} of {cell.diverged + len(cell.values)} of {self.name(row)}"
            for row, cell in first_cells.items()
            if cell.diverged
        ]
        return f"Excluded because the network diverged: {', '.join(counts)}." if counts else ""

    @property
    def has_trained_networks(self) -> bool:
        """Whether the rows are networks that the study trained, rather than external models."""
        return not all(row.network == MODELS_PLACEHOLDER for row in self.rows)

    @property
    def row_header(self) -> str:
        """Header of the column of row names."""
        return "trained with" if self.has_trained_networks else "model"

    def name(self, row: RunNames) -> str:
        """Return the name of a row: the loss, after the data set and the network if they differ between rows."""
        return row.short_text(self.rows)

    def rendered_rows(self, *, deviation: bool = True) -> Iterator[tuple[RunNames, list[tuple[str, bool]], list[str]]]:
        """Yield every row with its cells, pairs of a text and whether it is the best, and the paper's values as texts.

        The paper's texts are "" for cells without a value, and an empty list if no cell of the row has one.
        """
        for row in self.rows:
            cells = [self.cells[row, column] for column in self.columns]
            texts = [(cell.text(self.metric_info, deviation=deviation), cell.best) for cell in cells]
            paper_texts = [
                cell.paper.text(self.metric_info, deviation=deviation) if cell.paper else "" for cell in cells
            ]
            yield row, texts, paper_texts if any(paper_texts) else []

    def markdown(self) -> str:
        """Return the table as Markdown, the best cell bold, the paper's values in italics below."""
        return _templates().get_template("table.md.j2").render(t=self)

    def latex(self) -> str:
        """Return the table as LaTeX with booktabs rules, no wider than a line (packages in `LATEX_PACKAGES`)."""
        return _templates().get_template("table.tex.j2").render(t=self)

    def as_table(self) -> doc.Table:
        """Return the table for a report, with a line above each network and data set if there are several."""
        setup_titles = {self.rows.index(row): str(setup) for setup, row in first_rows(self.rows).items()}
        cells = [[self.cells[row, column] for column in self.columns] for row in self.rows]
        return doc.Table(
            caption=self.heading,
            head=[self.row_header, *(doc.Cell(column, CALIBRATORS.title(column)) for column in self.columns)],
            rows=[
                [doc.Cell(row.loss, LOSSES.title(row.loss)), *(self._report_cell(cell) for cell in row_cells)]
                for row, row_cells in zip(self.rows, cells, strict=True)
            ],
            bold=[[cell.best for cell in row_cells] for row_cells in cells],
            headings=setup_titles if len(setup_titles) > 1 else {},
            note=" ".join(self.table_notes),
        )

    def _report_cell(self, cell: ResultCell) -> doc.Cell:
        """Return a cell: its mean with test results, and in small print what stands behind it."""
        mean_text = cell.mean_text(self.metric_info)
        hint = INFINITE_MEAN_EXPLANATION if mean_text == "inf" else ""
        if mean_text == "nan":  # the metric has no value, such as the entropy of wrong predictions if none is wrong
            mean_text = "\N{EN DASH}"
        return doc.Cell(f"{mean_text} {cell.test_results}".strip(), cell.details(self.metric_info), hint)

    def __str__(self) -> str:
        """Return the table as plain text with its notes, the best cells between stars."""
        return "\n".join([self.heading, *(line.text for line in table_lines(self.as_table())), *self.notes])

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield every cell as a record for a CSV file. Shares are not in percent.

        `mark` and `letters` are the results of the tests (see `ResultCell`), `learned` the means of fitted parameters
        other than the temperature.
        """
        for (row, column), cell in self.cells.items():
            yield {
                "metric": self.metric,
                "shift": self.shift,
                **row._asdict(),
                "calibrator": column,
                "mean": cell.mean,
                "deviation": cell.deviation,
                "floor": cell.floor,
                "seeds": len(cell.values),
                "diverged": cell.diverged,
                "temperature": cell.temperature,
                "learned": ", ".join(f"{name} {value}" for name, value in cell.fitted_parameters.items()),
                "best": cell.best,
                "mark": cell.mark,
                "letters": cell.letters,
                "reason": cell.reason,
                **{f"paper_{field.name}": getattr(cell.paper, field.name, None) for field in fields(PaperValue)},
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


def _mean_text(metric_info: MetricInfo, value: float, deviation: float) -> str:
    """Return a mean in the metric's unit, with its deviation unless that is nan."""
    return metric_info.text(value) + ("" if math.isnan(deviation) else f" ± {metric_info.text(deviation)}")


def _escape_latex(text: str) -> str:
    """Escape LaTeX's special characters, and write ± and the marks of significance as its symbols."""
    text = escape_latex(text).replace("±", r"$\pm$")
    return re.sub(f"[{''.join(LATEX_MARKS)}]", lambda match: LATEX_MARKS[match[0]], text)


def build_tables(
    results: Iterable[Mapping[str, Any]],
    find_paper_value: Callable[[Mapping[str, Any]], PaperValue | None] = lambda result: None,
    paper_note: Callable[[Iterable[PaperValue]], str] = lambda paper_values: "",
) -> list[ResultTable]:
    """Build one table per shift and metric from the results of a study.

    The best cell of each data set and network is marked. With at least two shared seeds, every row is tested against
    the first of the same data set and network, and the calibrators of a row against each other.

    Args:
        results: Rows as in `RunMeasurement`, each with the value of one metric for one run.
        find_paper_value: Returns the paper's value for a result.
        paper_note: Returns a note on the paper's values of a table.
    """
    tables: list[ResultTable] = []
    results_by_table = group_pairs(((result["shift"], result["metric"]), result) for result in results)
    for (shift, metric), table_results in results_by_table.items():
        results_by_cell = group_pairs(
            ((RunNames(r["dataset"], r["network"], r["loss"]), r["calibrator"]), r) for r in table_results
        )
        cells = {
            key: _build_cell(cell_results, find_paper_value(cell_results[0]))
            for key, cell_results in results_by_cell.items()
        }
        rows_by_setup = group_pairs((row.setup, row) for row in dict.fromkeys(row for row, _ in cells))
        rows = tuple(chain.from_iterable(rows_by_setup.values()))  # rows of equal data set and network are together
        columns = tuple(dict.fromkeys(calibrator for _, calibrator in cells))
        paper_values = [cell.paper for cell in cells.values() if cell.paper]
        note = paper_note(paper_values) if paper_values else ""
        tables.append(ResultTable(metric, rows, columns, _mark_cells(cells, metric), paper_note=note, shift=shift))
    return tables


def describe_cells(tables: Iterable[ResultTable]) -> str:
    """Describe the cells of tables: a mean over the largest number of seeds, or one seed."""
    num_seeds = max((len(cell.values) for table in tables for cell in table.cells.values()), default=1)
    return f"mean ± standard deviation over {num_seeds} seeds" if num_seeds > 1 else "one seed"


def has_noise_floor(table: ResultTable) -> bool:
    """Return whether any cell of a table has a noise floor."""
    return any(not math.isnan(cell.floor) for cell in table.cells.values())


def main_calibration_error(names: Iterable[str]) -> str:
    """Return the first calibration error among metrics, or the first metric if there is none.

    >>> main_calibration_error(["error", "adaptive_ece(bins=10)", "ece"]), main_calibration_error(["error", "nll"])
    ('adaptive_ece(bins=10)', 'error')
    """
    candidates = list(names)
    return next((name for name in candidates if metrics.is_calibration_error(name)), candidates[0])


def best_keys(metric_info: MetricInfo, means: Mapping[Key, float]) -> list[Key]:
    """Return the keys whose mean is the best; several if they are equal.

    The list is empty if all means are nan, or if neither high nor low values of the metric are better.
    """
    best_mean = metric_info.best(list(means.values()))  # nan, which equals no mean, if there is none
    return [key for key, mean in means.items() if mean == best_mean]


def _build_cell(results: list[Mapping[str, Any]], paper_value: PaperValue | None) -> ResultCell:
    """Return a table cell from the results of its runs, one per seed.

    Diverged runs are counted, but their values are left out. Results with a reason have no value: the method does not
    apply to them.
    """
    applicable = [result for result in results if not result.get("reason")]
    converged = [result for result in applicable if not result.get("diverged")]
    # A calibrator may lack a parameter in some seeds
    parameters = group_pairs(
        (key.removeprefix(PARAMETER_PREFIX), value)
        for result in converged
        for key, value in result.items()
        if key.startswith(PARAMETER_PREFIX)
    )
    return ResultCell(
        values={result["seed"]: result["value"] for result in converged},
        temperature=mean(result["temperature"] for result in converged) if converged else math.nan,
        paper=paper_value,
        diverged=len(applicable) - len(converged),
        reason=next((result["reason"] for result in results if result.get("reason")), ""),
        unmeasured=len(results) - len(applicable),
        floor=mean(result.get("floor", math.nan) for result in converged) if converged else math.nan,
        fitted_parameters={name: mean(values) for name, values in parameters.items()},
    )


def _mark_cells(cells: dict[CellKey, ResultCell], metric: str) -> dict[CellKey, ResultCell]:
    """Return the cells of a metric with the results of the tests, and whether each is the best of its setup.

    A setup is a data set and network.
    """
    metric_info = metrics.metric_info(metric)
    means_by_setup = group_pairs((row.setup, cell.mean) for (row, _), cell in cells.items())
    best_means = {setup: metric_info.best(means) for setup, means in means_by_setup.items()}
    marks, letters = _row_marks(cells), _calibrator_letters(cells)
    return {
        (row, column): replace(
            cell,
            best=cell.mean == best_means[row.setup],
            mark=marks.get((row, column), ""),
            letters=letters.get((row, column), ""),
        )
        for (row, column), cell in cells.items()
    }


def first_rows(rows: Iterable[RunNames]) -> dict[Setup, RunNames]:
    """Return the first row of every data set and network, against which the others are tested."""
    return {setup: setup_rows[0] for setup, setup_rows in group_pairs((row.setup, row) for row in rows).items()}


def _row_marks(cells: Mapping[CellKey, ResultCell]) -> dict[CellKey, str]:
    """Return a triangle for every cell above or below its reference, as in Wang et al. (2021).

    The reference is the cell of the first row with the same data set, network and column. The p-values of all paired
    t-tests against one reference are corrected together. Hollow triangles are not significant.
    """
    reference_rows = first_rows(row for row, _ in cells)
    # the key of the reference by the key of the cell
    references = {(row, column): (reference_rows[row.setup], column) for row, column in cells}
    p_values_by_reference = group_pairs(
        (reference, (key, significance.paired_p_value(cells[reference].tested_values, cells[key].tested_values)))
        for key, reference in references.items()
        if reference in cells and cells[key].mean != cells[reference].mean  # also leaves out the reference itself
    )
    marks: dict[CellKey, str] = {}
    for reference, p_values in p_values_by_reference.items():
        for key, p in significance.holm(dict(p_values)).items():
            if not math.isnan(p):  # without shared seeds, there is no test
                higher, lower = "▲▼" if p < SIGNIFICANCE_LEVEL else "△▽"  # a character each
                marks[key] = higher if cells[key].mean > cells[reference].mean else lower
    return marks


def _calibrator_letters(cells: Mapping[CellKey, ResultCell]) -> dict[CellKey, str]:
    """Return letters for the cells of every row in which calibrators differ significantly.

    Two tested cells of such a row differ significantly if and only if they share no letter. Cells that share no seeds
    with others, or lack a finite value of a seed, and the cells of other rows, have no letters.
    """
    letters: dict[CellKey, str] = {}
    for row, p_values in _calibrator_tests(cells).items():
        if different := [pair for pair, p in p_values.items() if p < SIGNIFICANCE_LEVEL]:
            tested = set(chain.from_iterable(p_values))  # the calibrators of all pairs
            columns = [column for cell_row, column in cells if cell_row == row and column in tested]  # in table order
            letters |= {(row, column): text for column, text in significance.letter_groups(columns, different).items()}
    return letters


def _calibrator_tests(cells: Mapping[CellKey, ResultCell]) -> dict[RunNames, dict[tuple[str, str], float]]:
    """Return, for each row, the p-values of all pairs of calibrators that share seeds, with Holm's correction."""
    values_by_row = group_pairs((row, (column, cell.tested_values)) for (row, column), cell in cells.items())
    return {row: significance.pairwise_p_values(dict(values)) for row, values in values_by_row.items()}
