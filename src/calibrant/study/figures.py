"""All figures of a study, drawn to files."""

import textwrap
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import polars
from matplotlib import rc_context

from calibrant import io
from calibrant._text import visible
from calibrant.figures import figure_files, new_figure, save_figure
from calibrant.study.config import Study
from calibrant.study.drawing import Drawing
from calibrant.study.judging import diagrams, rocs
from calibrant.study.learning import drawings
from calibrant.study.rows import measured
from calibrant.study.store import Store
from calibrant.study.sweeps import sweeps

__all__ = ["draw"]


def draw(study: Study, store: Store, folder: Path, inputs: Sequence[str | Path] = ()) -> list[Path]:
    """Draw how the finished networks of a study learned, what they say, and what came of its parameters and shifts.

    Returns the files written, none if nothing is done. Raises `InputError` where one would replace one of `inputs`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found = list(measured(study, store))
    swept = sweeps(study, (row for one in found for row in one.rows))
    made = list(chain(drawings(study, store), diagrams(study, found), swept, rocs(study, store)))
    for drawing in made:
        io.apart(figure_files(folder, drawing.name), inputs)
    return [path for drawing in made for path in _written(folder, drawing)]


def _written(folder: Path, drawing: Drawing) -> list[Path]:
    figure = new_figure(4.6, 3.2)
    with rc_context({"text.parse_math": False}):  # a dollar sign in a name is no formula
        drawing.draw(figure.subplots())
        figure.suptitle(textwrap.fill(visible(drawing.title), 64), fontsize=9)
        return save_figure(folder, drawing.name, figure, polars.DataFrame(drawing.numbers))
