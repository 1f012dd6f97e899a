"""What the finished networks say: reliability diagrams and ROC curves from their kept predictions."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from calibrant import calibrators, metrics, plots
from calibrant._bins import Bins
from calibrant.predictions import Predictions
from calibrant.study.config import Study
from calibrant.study.drawing import Drawing, legend, numbered, places, slug
from calibrant.study.rows import MACHINE_FAILURES, Diagram, Measured, diagrams_of, shown
from calibrant.study.store import Store

__all__ = ["diagrams", "rocs"]

BINS = 15


def diagrams(study: Study, measured: Iterable[Measured]) -> Iterator[Drawing]:
    """Yield reliability diagrams of every loss, before and after each calibrator (Wang et al. 2021, Figure 2).

    They hold the test examples of all seeds. `diagram_after_LOSS` is of `shown(study)`; the names of others hold the
    calibrator, too.
    """
    groups: dict[tuple[str, str], dict[str, list[Measured]]] = {}
    for one in measured:
        dataset, network, loss = study.names(one.run)
        groups.setdefault((dataset, network), {}).setdefault(loss, []).append(one)
    numbers, first = places(study), shown(study).text
    for (dataset, network), losses in groups.items():
        where = f", {network} on {dataset}" if len(numbers) > 1 else ""
        for loss, runs in losses.items():
            for diagram in diagrams_of(runs, BINS):
                when = "after" if diagram.calibrator else "before"
                which = "" if diagram.calibrator in ("", first) else f"{slug(diagram.calibrator)}_"
                name = numbered(f"diagram_{when}_{which}{slug(loss)}", numbers[dataset, network])
                yield _reliability(name, f"reliability of {loss}{where}, {diagram.when}", diagram)


def _reliability(name: str, title: str, diagram: Diagram) -> Drawing:
    bins = diagram.events.equal_width(BINS)
    numbers = [
        {"from": float(low), "to": float(high), "count": int(n), "confidence": float(said), "accuracy": float(right)}
        for low, high, n, said, right in zip(
            bins.edges[:-1], bins.edges[1:], bins.count, bins.confidence, bins.accuracy, strict=True
        )
    ]
    return Drawing(name, f"{title}; {diagram.ece}", f"{title}: {diagram.ece}.", partial(_bars, bins), numbers)


def _bars(bins: Bins, ax: Axes) -> None:
    plots.reliability(bins, ax=ax)


def rocs(study: Study, store: Store) -> Iterator[Drawing]:
    """Yield how well each loss tells every shift from the test set: ROC curves of all seeds, before and after scaling.

    (Ghosh et al. 2022, on out-of-distribution detection.) A curve per loss, by the study's first score.
    """
    score, after = study.detection[0], shown(study)
    groups: dict[tuple[str, ...], dict[str, list[tuple[Predictions, Predictions]]]] = {}
    for run in (run for run in study.runs() if run in store):
        val, test = store.get(run, "val").double(), store.get(run, "test").double()
        dataset, network, loss = study.names(run)
        for i, shift in enumerate(run.shifts):
            outside = store.get(run, f"shift{i}").double()
            for calibrator in dict.fromkeys((study.calibrators[0], after)):
                try:
                    fitted: Any = calibrators.fit(calibrator, val)
                except MACHINE_FAILURES:
                    raise
                except Exception:  # it may suit other data; the tables say why
                    continue
                key = study.label(shift), calibrator.text, network, dataset
                groups.setdefault(key, {}).setdefault(loss, []).append((test.mapped(fitted), outside.mapped(fitted)))
    for (shift, calibrator, network, dataset), found in groups.items():
        lines = {loss: _roc(pairs, score) for loss, pairs in found.items()}
        title = f"{dataset} told from {shift} by {score}, {network}, {calibrator}"
        numbers = [
            {"line": loss, "passing_outside": x, "passing_inside": y}
            for loss, line in lines.items()
            for x, y in zip(*line, strict=True)
        ]
        areas = {loss: f"{np.trapezoid(y, x):.3f}" for loss, (x, y) in lines.items()}
        words = "; ".join(f"{loss} {area}" for loss, area in areas.items())
        ink = partial(_draw_rocs, {f"{areas[loss]} {loss}": line for loss, line in lines.items()})
        yield Drawing(slug(f"roc_{title}"), title, f"ROC curves, {title}. Area below: {words}.", ink, numbers)


def _roc(pairs: Sequence[tuple[Predictions, Predictions]], score: Any, points: int = 200) -> tuple[Any, Any]:
    """Return the mean ROC curve over seeds, read at `points` shares of what is outside."""
    at = np.linspace(0, 1, points + 1)
    curves = (metrics.ood.roc(inside, outside, score=score) for inside, outside in pairs)
    return at, np.mean([np.interp(at, curve.x.numpy(), curve.y.numpy()) for curve in curves], axis=0)


def _draw_rocs(lines: Mapping[str, tuple[Any, Any]], ax: Axes) -> None:
    guide = {"_chance": ([0, 1], [0, 1])}
    plots.family(guide | dict(lines), ax=ax, xlabel="shifted examples that pass", ylabel="test examples that pass")
    legend(ax, "area below")
