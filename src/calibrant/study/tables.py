"""Rows become the papers' tables: a row per network and loss, a column per calibrator and metric, mean over seeds."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

PERCENT = {
    *("error", "accuracy", "ece", "adaptive_ece", "classwise_ece", "mce", "sweep_ece", "smooth_ece", "debiased_l2"),
    *("noise_floor", "adaptive_noise_floor", "signed_gap", "kuiper", "ks", "confident_share", "confident_accuracy"),
    "aurc",
}
HIGHER_IS_BETTER = {"accuracy", "auroc", "discrimination", "confident_accuracy"}


@dataclass(frozen=True)
class Cell:
    """One number of a table: mean and deviation over seeds (nan with one seed), and the mean temperature if any."""

    mean: float
    deviation: float
    temperature: float
    best: bool = False

    def text(self, metric: str, *, deviation: bool = True) -> str:
        """Say it as the papers do: '4.35 ± 0.21 (2.5)', in percent where the metric is a share."""
        spread = f" ± {number(metric, self.deviation)}" if deviation and not math.isnan(self.deviation) else ""
        temperature = "" if math.isnan(self.temperature) else f" ({self.temperature:.2f})"
        return number(metric, self.mean) + spread + temperature


@dataclass(frozen=True)
class Table:
    """One metric: a row per loss (with data set and network), a column per calibrator."""

    metric: str
    rows: tuple[tuple[str, ...], ...]  # (data set, network, loss)
    columns: tuple[str, ...]  # calibrators
    cells: dict[tuple[tuple[str, ...], str], Cell]

    @property
    def heading(self) -> str:
        """Name the metric with its unit."""
        return heading(self.metric)

    def name(self, row: tuple[str, ...]) -> str:
        """Name a row by the parts that differ between rows; the loss always stands."""
        several = [len({other[i] for other in self.rows}) > 1 or i == 2 for i in range(3)]
        return ", ".join(part for part, show in zip(row, several, strict=True) if show)

    def markdown(self) -> str:
        """Write the table in Markdown, the best cell bold."""
        lines = [f"| {self.heading} | {' | '.join(self.columns)} |", "|---|" + "---:|" * len(self.columns)]
        for row in self.rows:
            cells = [self.cells[row, column] for column in self.columns]
            texts = [f"**{c.text(self.metric)}**" if c.best else c.text(self.metric) for c in cells]
            lines.append(f"| {self.name(row)} | {' | '.join(texts)} |")
        return "\n".join(lines) + "\n"

    def latex(self) -> str:
        """Write the table as a LaTeX tabular with booktabs rules, the best cell bold."""
        lines = [rf"\begin{{tabular}}{{l{'r' * len(self.columns)}}}", r"\toprule"]
        lines.append(" & ".join(map(_escaped, [self.heading, *self.columns])) + r" \\ \midrule")
        for row in self.rows:
            cells = [self.cells[row, column] for column in self.columns]
            texts = [c.text(self.metric).replace("±", r"$\pm$") for c in cells]
            bold = [rf"\textbf{{{text}}}" if c.best else text for text, c in zip(texts, cells, strict=True)]
            lines.append(" & ".join([_escaped(self.name(row)), *bold]) + r" \\")
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _escaped(text: str) -> str:
    return re.sub(r"([%_#&$])", r"\\\1", text)


def family(metric: str) -> str:
    """Return the metric's name without its arguments."""
    return metric.partition("(")[0]


def heading(metric: str) -> str:
    """Name a metric with its unit; shares are shown in percent."""
    return f"{metric} (%)" if family(metric) in PERCENT else metric


def number(metric: str, value: float) -> str:
    """Write a metric's value in its unit."""
    return f"{100 * value:z.2f}" if family(metric) in PERCENT else f"{value:z.4f}"


def tables(rows: Iterable[dict[str, Any]]) -> list[Table]:
    """Gather the rows of `measure` in one table per metric; the best cell of a row's neighbors is marked."""
    groups: dict[tuple[str, tuple[str, ...], str], list[dict[str, Any]]] = {}
    for row in rows:
        key = row["metric"], (row["dataset"], row["network"], row["loss"]), row["calibrator"]
        groups.setdefault(key, []).append(row)
    result: list[Table] = []
    for metric in dict.fromkeys(metric for metric, _, _ in groups):
        chosen = {(where, calibrator): found for (m, where, calibrator), found in groups.items() if m == metric}
        names = tuple(dict.fromkeys(where for where, _ in chosen))
        columns = tuple(dict.fromkeys(calibrator for _, calibrator in chosen))
        cells = {key: _cell(found) for key, found in chosen.items()}
        result.append(Table(metric, names, columns, _mark(cells, metric)))
    return result


def _cell(rows: Sequence[dict[str, Any]]) -> Cell:
    values = [row["value"] for row in rows]
    return Cell(
        mean(values),
        stdev(values) if len(values) > 1 and all(map(math.isfinite, values)) else math.nan,
        mean(row["temperature"] for row in rows),
    )


def _mark(cells: dict[Any, Cell], metric: str) -> dict[Any, Cell]:
    sign = -1 if family(metric) in HIGHER_IS_BETTER else 1
    best = {
        where[:2]: min(sign * cell.mean for (w, _), cell in cells.items() if w[:2] == where[:2]) for where, _ in cells
    }
    return {
        key: Cell(cell.mean, cell.deviation, cell.temperature, sign * cell.mean == best[key[0][:2]])
        for key, cell in cells.items()
    }
