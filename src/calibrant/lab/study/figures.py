"""Draw all figures of a study to files, among them reliability diagrams and ROC curves of the stored predictions."""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars
from matplotlib import rc_context

from calibrant import calibrators, metrics
from calibrant._core.grouping import group_pairs
from calibrant._core.text import escape_invisible
from calibrant.io.files import check_outputs
from calibrant.lab.figures import figure_files, new_figure, save_figure
from calibrant.lab.study.config import Study
from calibrant.lab.study.drawing import Drawing, numbered_name, reliability_drawing, slug
from calibrant.lab.study.grids import Run
from calibrant.lab.study.learning_curves import learning_drawings
from calibrant.lab.study.measurements import (
    MACHINE_FAILURES,
    RunMeasurement,
    diagrams_over_seeds,
    measure_runs,
    primary_calibrator,
)
from calibrant.lab.study.store import Store
from calibrant.lab.study.sweeps import sweep_drawings
from calibrant.predictions import Predictions
from calibrant.reports import plots

PredictionPair = tuple[Predictions, Predictions]  # on the test set, and on a shift


def draw(study: Study, store: Store, folder: Path, inputs: Sequence[str | Path] = ()) -> list[Path]:
    """Draw learning curves, reliability diagrams, sweeps and ROC curves of the finished runs.

    Returns:
        The files; none if no run is finished.

    Raises:
        InputError: If a figure would replace one of `inputs`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    measurements = list(measure_runs(study, store))
    drawings = [
        *learning_drawings(study, store),
        *reliability_drawings(study, measurements),
        *sweep_drawings(study, (row for measurement in measurements for row in measurement.rows)),
        *roc_drawings(study, store),
    ]
    for drawing in drawings:  # before any is written
        check_outputs(figure_files(folder, drawing.name), inputs)
    return [path for drawing in drawings for path in _save_drawing(folder, drawing)]


def _save_drawing(folder: Path, drawing: Drawing) -> list[Path]:
    """Write a figure and its data, and return the files."""
    figure = new_figure(4.6, 3.2)
    with rc_context({"text.parse_math": False}):  # a dollar sign in a name is not a formula
        drawing.draw(figure)
        figure.suptitle(textwrap.fill(escape_invisible(drawing.title), width=64), fontsize=9)
        return save_figure(folder, drawing.name, figure, polars.DataFrame(drawing.data))


def reliability_drawings(study: Study, measurements: Iterable[RunMeasurement]) -> Iterator[Drawing]:
    """Yield reliability diagrams of every loss before and after each calibrator (Wang et al. 2021, Figure 2).

    They pool the test examples of all seeds. `diagram_after_LOSS` shows the primary calibrator; the names of other
    diagrams contain the calibrator.
    """
    primary = primary_calibrator(study).text
    for diagram in diagrams_over_seeds(study, measurements):
        stage = "after" if diagram.calibrator else "before"
        prefix = "" if diagram.calibrator in ("", primary) else f"{slug(diagram.calibrator)}_"
        setup_number = study.setup_numbers[diagram.names.setup]
        name = numbered_name(f"diagram_{stage}_{prefix}{slug(diagram.names.loss)}", setup_number)
        title = f"reliability of {diagram.title}"
        yield reliability_drawing(
            name, title=f"{title}; {diagram.ece}", description=f"{title}: {diagram.ece}.", bins=diagram.bins
        )


def roc_drawings(study: Study, store: Store) -> Iterator[Drawing]:
    """Yield ROC curves of detecting each shift by the study's first score (Ghosh et al. 2022).

    A curve per loss is the mean over seeds. An example passes if its score is above a threshold; good scores let test
    examples pass (the true positives) and few shifted ones (the false positives). Separate figures show the study's
    first calibrator and its primary one, which is that of the main figures.
    """
    score = study.detection[0]
    pairs_by_figure = group_pairs(
        ((shift, calibrator, study.names(run).setup), (study.names(run).loss, pair))
        for run in study.runs()
        if run.shifts and run in store
        for shift, calibrator, pair in _calibrated_pairs(study, store, run)
    )
    for (shift, calibrator, setup), loss_pairs in pairs_by_figure.items():
        curves = {loss: _mean_roc(pairs, score) for loss, pairs in group_pairs(loss_pairs).items()}
        title = f"{setup.dataset} told from {shift} by {score}, {setup.network}, {calibrator}"
        data = [
            {"line": loss, "passing_outside": x, "passing_inside": y}
            for loss, curve in curves.items()
            for x, y in zip(*curve, strict=True)
        ]
        areas = {loss: f"{np.trapezoid(y, x):.3f}" for loss, (x, y) in curves.items()}  # AUROC
        areas_text = "; ".join(f"{loss} {area}" for loss, area in areas.items())
        lines = {"_chance": ([0, 1], [0, 1])}  # matplotlib leaves names that begin with _ out of the legend
        lines |= {f"{areas[loss]} {loss}": curve for loss, curve in curves.items()}
        draw_rocs = partial(
            plots.curve_family, lines, xlabel="shifted examples that pass", ylabel="test examples that pass"
        )
        description = f"ROC curves, {title}. Area below: {areas_text}."
        yield Drawing(slug(f"roc_{title}"), title, description, draw_rocs, data, legend_title="area below")


def _calibrated_pairs(study: Study, store: Store, run: Run) -> Iterator[tuple[str, str, PredictionPair]]:
    """Yield the label of a shift, a calibrator, and the calibrated predictions on the test set and on the shift.

    There is an entry for every shift of the run and each of two calibrators: the study's first, and the primary one of
    its main figures. A calibrator that does not apply to these data is left out.
    """
    val, test = store.get(run, "val").double(), store.get(run, "test").double()
    fits: dict[str, Any] = {}
    for calibrator in dict.fromkeys((study.calibrators[0], primary_calibrator(study))):  # once if they are the same
        try:
            fits[calibrator.text] = calibrators.fit(calibrator, val)
        except MACHINE_FAILURES:
            raise
        except Exception:  # not applicable to these data; the tables give the reason
            continue
    for i, shift in enumerate(run.shifts):
        shifted = store.get(run, f"shift{i}").double()
        for calibrator, fitted in fits.items():
            yield study.label(shift), calibrator, (test.apply(fitted), shifted.apply(fitted))


def _mean_roc(pairs: Sequence[PredictionPair], score: Any) -> tuple[Any, Any]:
    """Return the mean ROC curve over seeds, as arrays of false and true positive rates.

    `pairs` has the predictions of each seed on the test set and the shift, and `score` tells them apart. The curves of
    the seeds have different points, so they are interpolated at evenly spaced false positive rates.
    """
    x = np.linspace(0, 1, 201)
    curves = (metrics.ood.roc(test, shifted, score=score) for test, shifted in pairs)
    return x, np.mean([np.interp(x, curve.x, curve.y) for curve in curves], axis=0)
