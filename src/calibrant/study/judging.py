"""What the finished networks say: reliability diagrams and ROC curves from their kept predictions."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from calibrant import calibrators, metrics, plots
from calibrant._bins import Bins, Events
from calibrant.predictions import Predictions
from calibrant.study.config import Study
from calibrant.study.drawing import Drawing, legend, slug
from calibrant.study.rows import Measured, pooled, shown
from calibrant.study.store import Store

__all__ = ["diagrams", "rocs"]

BINS = 15


def diagrams(study: Study, measured: Iterable[Measured]) -> Iterator[Drawing]:
    """Yield a reliability diagram of every loss, before and after a calibrator (Wang et al. 2021, Figure 2).

    It holds the test examples of all seeds.
    """
    places: dict[tuple[str, str], dict[str, list[Measured]]] = {}
    for one in measured:
        dataset, network, loss = study.names(one.run)
        places.setdefault((dataset, network), {}).setdefault(loss, []).append(one)
    after = shown(study).text
    for i, ((dataset, network), losses) in enumerate(places.items()):
        where = f", {network} on {dataset}" if len(places) > 1 else ""
        for loss, some in losses.items():
            told = {"before": ("before", pooled([one.before for one in some]))}
            if after != "Identity":
                told["after"] = f"after {after}", pooled([one.after for one in some])
            for when, (words, events) in told.items():
                name = f"diagram_{when}_{slug(loss)}{f'-{i + 1}' if i else ''}"
                yield _reliability(name, f"reliability of {loss}{where}, {words}", events)


def _reliability(name: str, title: str, events: Events) -> Drawing:
    bins = events.equal_width(BINS)
    ece = 100 * float((bins.weight * bins.gap.abs()).sum())
    numbers = [
        {"from": float(low), "to": float(high), "count": int(n), "confidence": float(said), "accuracy": float(right)}
        for low, high, n, said, right in zip(
            bins.edges[:-1], bins.edges[1:], bins.count, bins.confidence, bins.accuracy, strict=True
        )
    ]
    return Drawing(name, f"{title}; ECE {ece:.2f} %", f"{title}: ECE {ece:.2f} %.", partial(_bars, bins), numbers)


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
                fitted: Any = calibrators.fit(calibrator, val)
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
