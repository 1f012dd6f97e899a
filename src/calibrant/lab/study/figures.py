"""All figures of a study, drawn to files."""

import textwrap
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import polars
from matplotlib import rc_context

from calibrant import io
from calibrant._text import escape_invisible
from calibrant.lab.figures import figure_files, new_figure, save_figure
from calibrant.lab.study.config import Study
from calibrant.lab.study.drawing import Drawing
from calibrant.lab.study.learning_curves import learning_drawings
from calibrant.lab.study.measurements import measure_runs
from calibrant.lab.study.prediction_figures import reliability_drawings, roc_drawings
from calibrant.lab.study.store import Store
from calibrant.lab.study.sweeps import sweep_drawings

__all__ = ["draw"]


def draw(study: Study, store: Store, folder: Path, inputs: Sequence[str | Path] = ()) -> list[Path]:
    """Draw how the finished networks of a study learned, what they say, and what came of its parameters and shifts.

    Returns the files written, none if nothing is done. Raises `InputError` where one would replace one of `inputs`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    measurements = list(measure_runs(study, store))
    swept_drawings = sweep_drawings(study, (row for measurement in measurements for row in measurement.rows))
    all_drawings = list(
        chain(
            learning_drawings(study, store),
            reliability_drawings(study, measurements),
            swept_drawings,
            roc_drawings(study, store),
        )
    )
    for drawing in all_drawings:
        io.check_outputs(figure_files(folder, drawing.name), inputs)
    return [path for drawing in all_drawings for path in _save_drawing(folder, drawing)]


def _save_drawing(folder: Path, drawing: Drawing) -> list[Path]:
    figure = new_figure(4.6, 3.2)
    with rc_context({"text.parse_math": False}):  # a dollar sign in a name is no formula
        drawing.draw(figure.subplots())
        figure.suptitle(textwrap.fill(escape_invisible(drawing.title), 64), fontsize=9)
        return save_figure(folder, drawing.name, figure, polars.DataFrame(drawing.numbers))
