"""What the finished networks say: reliability diagrams and ROC curves from their kept predictions."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from calibrant import calibrators, metrics, plots
from calibrant.backend.bins import Bins
from calibrant.lab.study.config import Study
from calibrant.lab.study.drawing import Drawing, add_legend, number_places, numbered_name, slug
from calibrant.lab.study.measurements import (
    MACHINE_FAILURES,
    Diagram,
    RunMeasurement,
    pooled_diagrams,
    primary_calibrator,
)
from calibrant.lab.study.store import Store
from calibrant.predictions import Predictions

__all__ = ["reliability_drawings", "roc_drawings"]

FIGURE_BINS = 15


def reliability_drawings(study: Study, measured: Iterable[RunMeasurement]) -> Iterator[Drawing]:
    """Yield reliability diagrams of every loss, before and after each calibrator (Wang et al. 2021, Figure 2).

    They hold the test examples of all seeds. `diagram_after_LOSS` is of `shown(study)`; the names of others hold the
    calibrator, too.
    """
    groups: dict[tuple[str, str], dict[str, list[RunMeasurement]]] = {}
    for measurement in measured:
        dataset, network, loss = study.names(measurement.run)
        groups.setdefault((dataset, network), {}).setdefault(loss, []).append(measurement)
    numbers, primary = number_places(study), primary_calibrator(study).text
    for (dataset, network), losses in groups.items():
        place_text = f", {network} on {dataset}" if len(numbers) > 1 else ""
        for loss, runs in losses.items():
            for diagram in pooled_diagrams(runs, FIGURE_BINS):
                stage = "after" if diagram.calibrator else "before"
                prefix = "" if diagram.calibrator in ("", primary) else f"{slug(diagram.calibrator)}_"
                name = numbered_name(f"diagram_{stage}_{prefix}{slug(loss)}", numbers[dataset, network])
                yield _reliability_drawing(name, f"reliability of {loss}{place_text}, {diagram.stage}", diagram)


def _reliability_drawing(name: str, title: str, diagram: Diagram) -> Drawing:
    bins = diagram.events.equal_width(FIGURE_BINS)
    numbers = [
        {
            "from": float(low),
            "to": float(high),
            "count": int(n),
            "confidence": float(confidence),
            "accuracy": float(accuracy),
        }
        for low, high, n, confidence, accuracy in zip(
            bins.edges[:-1], bins.edges[1:], bins.count, bins.confidence, bins.accuracy, strict=True
        )
    ]
    return Drawing(name, f"{title}; {diagram.ece}", f"{title}: {diagram.ece}.", partial(_draw_bins, bins), numbers)


def _draw_bins(bins: Bins, ax: Axes) -> None:
    plots.reliability(bins, ax=ax)


def roc_drawings(study: Study, store: Store) -> Iterator[Drawing]:
    """Yield how well each loss tells every shift from the test set: ROC curves of all seeds, before and after scaling.

    (Ghosh et al. 2022, on out-of-distribution detection.) A curve per loss, by the study's first score.
    """
    score, primary = study.detection[0], primary_calibrator(study)
    groups: dict[tuple[str, ...], dict[str, list[tuple[Predictions, Predictions]]]] = {}
    for run in (run for run in study.runs() if run in store):
        val, test = store.get(run, "val").double(), store.get(run, "test").double()
        dataset, network, loss = study.names(run)
        for i, shift in enumerate(run.shifts):
            shifted = store.get(run, f"shift{i}").double()
            for calibrator in dict.fromkeys((study.calibrators[0], primary)):
                try:
                    fitted: Any = calibrators.fit(calibrator, val)
                except MACHINE_FAILURES:
                    raise
                except Exception:  # it may suit other data; the tables say why
                    continue
                key = study.label(shift), calibrator.text, network, dataset
                groups.setdefault(key, {}).setdefault(loss, []).append((test.apply(fitted), shifted.apply(fitted)))
    for (shift, calibrator, network, dataset), pairs_by_loss in groups.items():
        lines = {loss: _mean_roc(pairs, score) for loss, pairs in pairs_by_loss.items()}
        title = f"{dataset} told from {shift} by {score}, {network}, {calibrator}"
        numbers = [
            {"line": loss, "passing_outside": x, "passing_inside": y}
            for loss, line in lines.items()
            for x, y in zip(*line, strict=True)
        ]
        areas = {loss: f"{np.trapezoid(y, x):.3f}" for loss, (x, y) in lines.items()}
        words = "; ".join(f"{loss} {area}" for loss, area in areas.items())
        draw = partial(_draw_rocs, {f"{areas[loss]} {loss}": line for loss, line in lines.items()})
        yield Drawing(slug(f"roc_{title}"), title, f"ROC curves, {title}. Area below: {words}.", draw, numbers)


def _mean_roc(pairs: Sequence[tuple[Predictions, Predictions]], score: Any, points: int = 200) -> tuple[Any, Any]:
    """Return the mean ROC curve over seeds, read at `points` shares of what is outside."""
    x = np.linspace(0, 1, points + 1)
    curves = (metrics.ood.roc(inside, outside, score=score) for inside, outside in pairs)
    return x, np.mean([np.interp(x, curve.x.numpy(), curve.y.numpy()) for curve in curves], axis=0)


def _draw_rocs(lines: Mapping[str, tuple[Any, Any]], ax: Axes) -> None:
    guide = {"_chance": ([0, 1], [0, 1])}
    plots.family(guide | dict(lines), ax=ax, xlabel="shifted examples that pass", ylabel="test examples that pass")
    add_legend(ax, "area below")
