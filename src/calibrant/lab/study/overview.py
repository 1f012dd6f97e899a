"""The picture of a study's answer: the calibration error of every loss, before and after each calibrator."""

import math
from typing import Any

from matplotlib.figure import Figure

from calibrant.lab.study.grids import Setup
from calibrant.lab.study.tables import ResultTable
from calibrant.metrics import describe_metric
from calibrant.reports.document import Picture
from calibrant.reports.plots import LINE_COLOR, SERIES_COLORS

ROW_INCHES = 0.3  # height of a loss and calibrator
SEED_ALPHA = 0.55


def overview_picture(table: ResultTable, setup: Setup) -> Picture:
    """Return the picture of a table's rows of one data set and network.

    Every loss has a line for each calibrator, with a dot for each seed, and a gray band up to the noise floor: the
    error that a calibrated model would show.
    """
    rows = [row for row in table.rows if row.setup == setup]
    info = table.metric_info
    scale = 100 if info.percent else 1
    lines = [(row, column) for row in rows for column in table.columns]
    texts = [
        f"{row.loss}, {column}: {cell.mean_text(info)} {cell.bracketed_floor(info)}".strip()
        for row, column in lines
        if (cell := table.cells[row, column]).values
    ]

    def draw(figure: Figure) -> None:
        """Draw the losses from top to bottom."""
        ax = figure.add_subplot()
        for y, (row, column) in enumerate(lines):
            cell = table.cells[row, column]
            color = SERIES_COLORS[table.columns.index(column) % len(SERIES_COLORS)]
            values = [scale * value for value in cell.values.values() if math.isfinite(value)]
            dots: Any = {"color": color, "alpha": SEED_ALPHA, "linewidths": 0}
            ax.scatter(values, [y] * len(values), s=22, label=column if y < len(table.columns) else None, **dots)
            if not math.isnan(cell.floor):
                ax.barh(y, scale * cell.floor, height=1, color=LINE_COLOR, alpha=0.25, linewidth=0)
        middles = [len(table.columns) * (i + 0.5) - 0.5 for i in range(len(rows))]
        ax.set_yticks(middles, [row.loss for row in rows])
        for i in range(1, len(rows)):
            ax.axhline(len(table.columns) * i - 0.5, color=LINE_COLOR, linewidth=0.4)
        ax.set_ylim(len(lines) - 0.5, -0.5)
        ax.set_xlim(left=min(0.0, ax.get_xlim()[0]))
        ax.set_xlabel(describe_metric(table.metric))
        figure.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
        ax.spines[["top", "right"]].set_visible(False)

    return Picture(
        draw,
        alt_text=f"{describe_metric(table.metric)} on {setup}: {'; '.join(texts)}.",
        caption=str(setup),
        detail="A dot is a seed. The gray band ends at the noise floor: the mean error of a calibrated model.",
        size=(5.0, 1.3 + ROW_INCHES * len(lines) * 0.6),
    )
