"""Rows become the papers' tables: a row per network and loss, a column per calibrator and metric, mean over seeds."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from statistics import mean, stdev
from typing import Any

from calibrant import metrics
from calibrant._text import latex, markdown, visible
from calibrant.metrics import About, in_words
from calibrant.study.models import MODELS
from calibrant.study.significance import LEVEL, BySeed, holm, letter_groups, paired_p_value, pairwise

LEARNED = "learned_"  # begins the columns of a row that hold what a calibrator reports besides its temperature
PACKAGES = "% \\usepackage{booktabs, amssymb, graphicx}; names in other scripts than Latin want LuaLaTeX or XeLaTeX\n"
MARKS = {"▲": r"$\blacktriangle$", "▼": r"$\blacktriangledown$", "△": r"$\vartriangle$", "▽": r"$\triangledown$"}


@dataclass(frozen=True)
class Printed:
    """A paper's number: its mean and deviation, nan where none is printed, its temperature, and where it stands."""

    mean: float
    deviation: float
    temperature: float
    source: str

    def text(self, about: About, *, deviation: bool = True) -> str:
        """Say it as a `Cell` does."""
        return _text(about, self.mean, self.deviation if deviation else math.nan, self.temperature)


@dataclass(frozen=True)
class Cell:
    """One number of a table: its values over seeds, their mean temperature if any, and what is printed of it.

    `learned` holds the means of what else the calibrators report, such as the gamma of `FocalTemperature`.
    `mark` tells it from the table's reference: higher (▲) or lower (▼) by a paired t-test over seeds, hollow if not
    significantly. Cells of a row that share a letter do not differ significantly. `diverged` more networks did, and
    have no value; neither have those that a method does not suit, for this `reason`.
    """

    values: tuple[float, ...]
    temperature: float
    best: bool = False
    mark: str = ""
    printed: Printed | None = None
    diverged: int = 0
    seeds: tuple[int, ...] = ()
    letters: str = ""
    reason: str = ""
    learned: Mapping[str, float] = field(default_factory=dict[str, float])

    @property
    def mean(self) -> float:
        """Mean over seeds; nan if every network diverged."""
        return mean(self.values) if self.values else math.nan

    @property
    def deviation(self) -> float:
        """Standard deviation over seeds, nan with one seed."""
        return stdev(self.values) if len(self.values) > 1 and all(map(math.isfinite, self.values)) else math.nan

    @property
    def by_seed(self) -> BySeed:
        """The values by their seeds; empty where these are not known."""
        return dict(zip(self.seeds, self.values, strict=True)) if len(self.seeds) == len(self.values) else {}

    def text(self, about: About, *, deviation: bool = True) -> str:
        """Say it as the papers do: '4.35 ± 0.21 (2.50, gamma 0.37)', in percent where the metric is a share."""
        if not self.values:
            return "n/a" if self.reason else "diverged"
        said = _text(about, self.mean, self.deviation if deviation else math.nan, self.temperature, self.learned)
        return " ".join(filter(None, [said, self.mark, self.letters]))


@dataclass(frozen=True)
class Table:
    """One metric: a row per loss (with data set and network), a column per calibrator."""

    metric: str
    rows: tuple[tuple[str, ...], ...]  # (data set, network, loss)
    columns: tuple[str, ...]  # calibrators
    cells: dict[tuple[tuple[str, ...], str], Cell]
    beside: str = ""  # on the paper whose numbers stand beside
    shift: str = ""  # of the test set
    trained: str = ""  # by whom, where versions are mixed

    @property
    def about(self) -> About:
        """What the metric's declaration says of it."""
        return metrics.about(self.metric)

    @property
    def heading(self) -> str:
        """Name the metric with its unit, and the shift."""
        return self.about.heading(self.metric) + (f" on {self.shift}" if self.shift else "")

    @property
    def caption(self) -> str:
        """Say what a cell holds."""
        several = any(len(cell.values) > 1 for cell in self.cells.values())
        brackets = any(not math.isnan(cell.temperature) for cell in self.cells.values())
        said = in_words(self.metric) + (f" on {self.shift}" if self.shift else "")
        said += "; mean ± standard deviation over seeds" if several else ""
        said += "; temperature in brackets" if brackets else ""
        return f"{said[:1].upper()}{said[1:]}{'; best in bold' if any(c.best for c in self.cells.values()) else ''}."

    @property
    def tested(self) -> str:
        """Explain the marks and letters of significance, where there are any."""
        sentences: list[str] = []
        if any(cell.mark for cell in self.cells.values()):
            first = {row[2] for row in _references(self.rows).values()}
            than = first.pop() if len(first) == 1 else "the first row of the same data set and network"
            sentences.append(
                f"▲ higher and ▼ lower than {than} by a paired t-test over shared seeds at level {LEVEL}, with Holm's "
                "correction for the rows of a column; △ and ▽ not significantly so."
            )
        if any(_calibrator_tests(self.cells).values()):
            sentences.append(
                "Calibrators of a row that share a letter, or have no letters, do not differ significantly by paired "
                f"t-tests over shared seeds at level {LEVEL}, with Holm's correction for the pairs of the row."
            )
        return " ".join(sentences)

    @property
    def notes(self) -> tuple[str, ...]:
        """What stands below the table by itself: on the marks, and what is true of this table alone."""
        return tuple(note for note in (self.tested, *self.own_notes) if note)

    @property
    def own_notes(self) -> tuple[str, ...]:
        """On networks that diverged, methods that suit no data here, the versions that trained, the paper's numbers."""
        return tuple(note for note in (self.lost, *self.reasons, self.trained, self.beside) if note)

    @property
    def reasons(self) -> list[str]:
        """Say why cells have fewer values than seeds, or none (n/a), and in which rows."""
        where: dict[str, dict[str, None]] = {}
        for (row, _), cell in self.cells.items():
            if cell.reason:
                where.setdefault(cell.reason, {})[self.name(row)] = None
        return [f"Not measured (n/a): {reason} ({'; '.join(rows)})." for reason, rows in where.items()]

    @property
    def lost(self) -> str:
        """Say which networks diverged, of how many."""
        first = {row: cell for (row, _), cell in reversed(self.cells.items()) if cell.diverged}
        counts = [
            f"{cell.diverged} of {cell.diverged + len(cell.values)} of {self.name(row)}"
            for row, cell in reversed(first.items())
        ]
        return f"Networks that diverged, and are left out: {', '.join(counts)}." if counts else ""

    @property
    def trained_here(self) -> bool:
        """Whether its rows are networks that a study trained, by their losses; else models, by their names."""
        return not all(row[1] == MODELS for row in self.rows)

    @property
    def side(self) -> str:
        """What the column of the rows' names is called."""
        return "trained with" if self.trained_here else "model"

    def name(self, row: tuple[str, ...]) -> str:
        """Name a row by the parts that differ between rows; the loss always stands."""
        several = [len({other[i] for other in self.rows}) > 1 or i == 2 for i in range(3)]
        return ", ".join(part for part, show in zip(row, several, strict=True) if show)

    def printed(self, row: tuple[str, ...], *, deviation: bool = True) -> list[str]:
        """Return what the paper prints in a row, column by column; nothing if it prints none of it."""
        found = [self.cells[row, column].printed for column in self.columns if (row, column) in self.cells]
        texts = [p.text(self.about, deviation=deviation) if p else "" for p in found]
        return texts if any(texts) else []

    def markdown(self) -> str:
        """Write the table in Markdown, the best cell bold, the paper's numbers in italics below ours."""
        head = " | ".join(map(markdown, [self.heading, *self.columns]))
        lines = [f"| {head} |", "|---|" + "---:|" * len(self.columns)]
        for row in self.rows:
            cells = [self.cells[row, column] for column in self.columns]
            texts = [f"**{c.text(self.about)}**" if c.best else c.text(self.about) for c in cells]
            lines.append(f"| {markdown(self.name(row))} | {' | '.join(texts)} |")
            if printed := self.printed(row):
                lines.append(f"| *paper* | {' | '.join(f'*{text}*' if text else '' for text in printed)} |")
        return "\n".join(lines) + "\n" + "".join(f"\n{markdown(note)}\n" for note in self.notes)

    def latex(self) -> str:
        """Write the table for LaTeX, no wider than a line, with booktabs rules, the best cell bold; see `PACKAGES`."""
        lines = [rf"\begin{{tabular}}{{l{'r' * len(self.columns)}}}", r"\toprule"]
        lines.append(" & ".join(map(_escaped, [self.heading, *self.columns])) + r" \\")
        for row, above in zip(self.rows, (None, *self.rows), strict=False):
            lines += [r"\midrule"] if above is None or above[:2] != row[:2] else []
            cells = [self.cells[row, column] for column in self.columns]
            texts = [_escaped(c.text(self.about)) for c in cells]
            bold = [rf"\textbf{{{text}}}" if c.best else text for text, c in zip(texts, cells, strict=True)]
            lines.append(" & ".join([_escaped(self.name(row)), *bold]) + r" \\")
            if printed := self.printed(row):
                italic = [rf"\textit{{{_escaped(text)}}}" if text else "" for text in ["paper", *printed]]
                lines.append(r"\quad " + " & ".join(italic) + r" \\")
        fitting = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"
        notes = [rf"\par\smallskip\parbox{{\linewidth}}{{\footnotesize {_escaped(note)}}}" for note in self.notes]
        float_ = [r"\begin{table}[htbp]", r"\centering", rf"\caption{{{_escaped(self.caption)}}}\smallskip", fitting]
        return "\n".join([*float_, *lines, r"\bottomrule", r"\end{tabular}}", *notes, r"\end{table}"]) + "\n"

    def __str__(self) -> str:
        """Write the table as plain text, the best cell between stars."""
        lines = [[self.heading, *self.columns]]
        for row in self.rows:
            cells = [self.cells[row, column] for column in self.columns]
            lines.append(
                [self.name(row), *(f"*{c.text(self.about)}*" if c.best else c.text(self.about) for c in cells)]
            )
            if printed := self.printed(row):
                lines.append(["  paper", *printed])
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        aligned = [[line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])] for line in lines]
        return visible("\n".join(["  ".join(line).rstrip() for line in aligned] + list(self.notes)), but="\n")

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield every cell as a record, for a CSV file: all of its numbers in the metric's own unit."""
        for (row, column), cell in self.cells.items():
            known = cell.printed
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
                "learned": ", ".join(f"{name} {value}" for name, value in cell.learned.items()),
                "best": cell.best,
                "mark": cell.mark,
                "letters": cell.letters,
                "reason": cell.reason,
                "paper_mean": known.mean if known else None,
                "paper_deviation": known.deviation if known else None,
                "paper_temperature": known.temperature if known else None,
                "paper_source": known.source if known else None,
            }


def _text(
    about: About, value: float, deviation: float, temperature: float, learned: Mapping[str, float] | None = None
) -> str:
    spread = "" if math.isnan(deviation) else f" ± {about.text(deviation)}"
    told = [] if math.isnan(temperature) else [f"{temperature:.2f}"]
    told += [f"{name} {number:z.2f}" for name, number in (learned or {}).items()]
    return about.text(value) + spread + (f" ({', '.join(told)})" if told else "")


def _escaped(text: str) -> str:
    text = latex(text).replace("±", r"$\pm$")
    return re.sub(f"[{''.join(MARKS)}]", lambda found: MARKS[found[0]], text)


CellKey = tuple[tuple[str, ...], str]  # a row and a column


def tables(
    rows: Iterable[Mapping[str, Any]],
    printed: Callable[[Mapping[str, Any]], Printed | None] = lambda row: None,
    note: Callable[[Iterable[Printed]], str] = lambda found: "",
) -> list[Table]:
    """Gather the rows of `measure` in one table per shift and metric; the best cell of a row's neighbors is marked.

    With two shared seeds or more, a row is tested against the first of the same data set and network, and the
    calibrators of a row against each other. `printed` finds what a
    paper has in place of a row, `note` says of what was found where it stands and how its setting differs.
    """
    groups: dict[tuple[str, str], dict[tuple[tuple[str, ...], str], list[Mapping[str, Any]]]] = {}
    for row in rows:
        key = (row["dataset"], row["network"], row["loss"]), row["calibrator"]
        groups.setdefault((row["shift"], row["metric"]), {}).setdefault(key, []).append(row)
    result: list[Table] = []
    for (shift, metric), chosen in groups.items():
        names = tuple(_together(where for where, _ in chosen))
        columns = tuple(dict.fromkeys(calibrator for _, calibrator in chosen))
        cells = _mark({key: _cell(found, printed(found[0])) for key, found in chosen.items()}, metric)
        found = [cell.printed for cell in cells.values() if cell.printed]
        result.append(Table(metric, names, columns, cells, note(found) if found else "", shift))
    return result


def central(metrics: Iterable[str]) -> str:
    """Return what a study judges calibration by: ECE, else another kind of it, else the first metric.

    >>> central(["error", "adaptive_ece(bins=10)", "ece"]), central(["error", "adaptive_ece(bins=10)"])
    ('ece', 'adaptive_ece(bins=10)')
    """
    names = {metric: metric.partition("(")[0] for metric in metrics}
    return min(names, key=lambda metric: (names[metric] != "ece", not names[metric].endswith("ece")))


def _together(rows: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return the different rows in their order, those of one data set and network together."""
    places: dict[tuple[str, ...], dict[tuple[str, ...], None]] = {}
    for row in rows:
        places.setdefault(row[:2], {})[row] = None
    return [row for place in places.values() for row in place]


def _cell(rows: list[Mapping[str, Any]], printed: Printed | None) -> Cell:
    reason = next((row["reason"] for row in rows if row.get("reason")), "")
    left = [row for row in rows if not row.get("reason")]
    there = [row for row in left if not row.get("diverged")]
    temperature = mean(row["temperature"] for row in there) if there else math.nan
    names = [key for key in there[0] if key.startswith(LEARNED)] if there else []
    learned = {name.removeprefix(LEARNED): mean(row[name] for row in there) for name in names}
    values, seeds = tuple(row["value"] for row in there), tuple(row["seed"] for row in there if "seed" in row)
    diverged = len(left) - len(there)
    return Cell(values, temperature, printed=printed, diverged=diverged, seeds=seeds, reason=reason, learned=learned)


def _mark(cells: dict[CellKey, Cell], metric: str) -> dict[CellKey, Cell]:
    neighbors: dict[tuple[str, ...], list[float]] = {}
    for (where, _), cell in cells.items():
        neighbors.setdefault(where[:2], []).append(cell.mean)
    best = {place: metrics.about(metric).best(values) for place, values in neighbors.items()}
    marks, letters = _row_marks(cells), _calibrator_letters(cells)
    return {
        (where, column): replace(
            cell,
            best=cell.mean == best[where[:2]],
            mark=marks.get((where, column), ""),
            letters=letters.get((where, column), ""),
        )
        for (where, column), cell in cells.items()
    }


def _references(rows: Iterable[tuple[str, ...]]) -> dict[tuple[str, ...], tuple[str, ...]]:
    """Return the first row of every data set and network."""
    first: dict[tuple[str, ...], tuple[str, ...]] = {}
    for row in rows:
        first.setdefault(row[:2], row)
    return first


def _row_marks(cells: Mapping[CellKey, Cell]) -> dict[CellKey, str]:
    """Mark cells that are higher or lower than the first row of their place and column, as Wang et al. (2021) do.

    The rows that are tested against one reference are corrected for their number.
    """
    first = _references(where for where, _ in cells)
    families: dict[tuple[tuple[str, ...], str], dict[CellKey, float]] = {}
    for (where, column), cell in cells.items():
        reference = cells.get((first[where[:2]], column))
        if reference is not None and reference is not cell and cell.mean != reference.mean:
            p = paired_p_value(reference.by_seed, cell.by_seed)
            families.setdefault((where[:2], column), {})[where, column] = p
    marks: dict[CellKey, str] = {}
    for (place, column), p_values in families.items():
        for key, p in holm(p_values).items():
            if not math.isnan(p):
                higher = cells[key].mean > cells[first[place], column].mean
                marks[key] = ("▲" if higher else "▼") if p < LEVEL else ("△" if higher else "▽")
    return marks


def _calibrator_letters(cells: Mapping[CellKey, Cell]) -> dict[CellKey, str]:
    """Give the calibrators of a row letters, of which those share one that do not differ significantly.

    Rows in which none differ have no letters.
    """
    letters: dict[CellKey, str] = {}
    for where, p_values in _calibrator_tests(cells).items():
        different = [pair for pair, p in p_values.items() if p < LEVEL]
        if different:
            tested = [column for row, column in cells if row == where and any(column in pair for pair in p_values)]
            letters |= {(where, column): text for column, text in letter_groups(tested, different).items()}
    return letters


def _calibrator_tests(cells: Mapping[CellKey, Cell]) -> dict[tuple[str, ...], dict[tuple[str, str], float]]:
    """Test the calibrators of each row in pairs; return the corrected p-values of those that share seeds."""
    rows: dict[tuple[str, ...], dict[str, BySeed]] = {}
    for (where, column), cell in cells.items():
        rows.setdefault(where, {})[column] = cell.by_seed
    return {
        where: {pair: p for pair, p in pairwise(values).items() if not math.isnan(p)} for where, values in rows.items()
    }
