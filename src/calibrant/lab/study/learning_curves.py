"""Learning curves and histograms over epochs, from the histories of finished runs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from calibrant import metrics, plots, registry
from calibrant._grouping import group_pairs
from calibrant._text import format_percent
from calibrant.backend.bins import Bins
from calibrant.lab.study.config import Study
from calibrant.lab.study.drawing import (
    Drawing,
    group_by_place,
    number_places,
    numbered_name,
    reliability_drawing,
    slug,
)
from calibrant.lab.study.measurements import ece_over_seeds_text
from calibrant.lab.study.store import Store

EpochRows = Sequence[Mapping[str, Any]]  # the epochs of one run
Histories = Mapping[str, Sequence[EpochRows]]  # the runs of each loss
HistogramPart = tuple[Sequence[int], Sequence[float]]  # counts and edges of one run

MAX_LINES = 10  # figures with more lines are divided
SPLIT_TITLES = {"train": "training data", "val": "validation", "test": "test"}
SINGLE_COLUMN_TITLES = {"last_layer_norm": "norm of the last layer's weights"}  # of columns without a split
COLUMN_TITLES = {
    "loss": "loss",
    "error": "error",
    "nll": "NLL",
    "nll_correct": "NLL of correct predictions",
    "nll_wrong": "NLL of wrong predictions",
    "entropy_correct": "entropy of correct predictions",
    "entropy_wrong": "entropy of wrong predictions",
    "confidence_correct": "confidence of correct predictions",
    "confidence_wrong": "confidence of wrong predictions",
    "label_probability_correct": "probability of the true class, of correct predictions",
    "label_probability_wrong": "probability of the true class, of wrong predictions",
    "ece": "ECE",
    "optimal_ece": "ECE at the best temperature",
    "temperature": "best temperature for ECE",
}


def learning_drawings(study: Study, store: Store) -> Iterator[Drawing]:
    """Yield figures of the histories of finished runs, for every data set and network, with a line per loss.

    Curves are means over seeds with the range from minimum to maximum: recorded scores (Mukhoti et al. 2020, Figures 1
    and 3; Wang et al. 2021, Figure 4), gaps of single bins, and gammas (Ghosh et al. 2022). Reliability diagrams and
    histograms of confidences show some epochs (Mukhoti et al. 2020, Figure 2). Other histograms show gradient norms
    (their Figure 4) and maximum logits by learned epoch (Wang et al. 2021, Figure 5).
    """
    finished_runs = ((run, store.history(run).to_dicts()) for run in study.runs() if run in store)
    numbers = number_places(study)
    for (dataset, network), histories in group_by_place(study, finished_runs).items():
        place_text = f", {network} on {dataset}" if len(numbers) > 1 else ""
        for drawing in _history_drawings(histories):
            yield replace(
                drawing,
                name=numbered_name(drawing.name, numbers[dataset, network]),
                title=drawing.title + place_text,
                is_main=_is_main(drawing),
            )


def _is_main(drawing: Drawing) -> bool:
    is_detail = drawing.name.startswith(("train_", "val_bin_gaps", "reliability", "confidences"))
    return not is_detail and not drawing.name.endswith(("_correct", "_wrong"))


def _history_drawings(histories: Histories) -> Iterator[Drawing]:
    columns = dict.fromkeys(key for runs in histories.values() for rows in runs for row in rows for key in row)
    for column in columns:
        split, _, quantity = column.partition("_")
        title = _column_title(quantity) if split in SPLIT_TITLES else ""
        title = f"{title}, {SPLIT_TITLES[split]}" if title else SINGLE_COLUMN_TITLES.get(column, "")
        if title:
            yield from _drawings_by_loss_family(slug(column), title, _column_lines(histories, column))
        elif quantity == "bin_gaps":
            yield from _bin_gap_drawings(histories, column, SPLIT_TITLES[split])
        elif quantity == "reliability_count":
            yield from _reliability_drawings(histories, split)
        elif column == "gammas":
            yield from _gamma_drawings(histories)
        elif column == "gradient_norms":
            yield from _gradient_drawings(histories)
        elif column == "learned_counts":
            yield from _learned_epoch_drawings(histories)


def _column_title(column: str) -> str:
    """Return the title of a column without its split, or "" if it does not hold numbers."""
    if column in COLUMN_TITLES:
        return COLUMN_TITLES[column]
    return metrics.describe_metric(column).removesuffix(" in %") if column.partition("(")[0] in registry.METRICS else ""


def _column_lines(histories: Histories, column: str, item: int | None = None) -> dict[str, np.ndarray]:
    """Return a column, or one item of a column of lists, as an array (runs, epochs) per loss that has it."""
    lines: dict[str, np.ndarray] = {}
    for loss, runs in histories.items():
        values = [[_to_float(row.get(column), item) for row in rows] for rows in runs]
        length = max(map(len, values))
        array = np.array([line + [np.nan] * (length - len(line)) for line in values])
        if not np.isnan(array).all():
            lines[loss] = array
    return lines


def _to_float(value: Any, item: int | None) -> float:
    value = value if item is None or value is None else value[min(item, len(value) - 1)]
    return np.nan if value is None else float(value)


def _drawings_by_loss_family(name: str, title: str, lines: Mapping[str, np.ndarray]) -> Iterator[Drawing]:
    """Yield one figure, or for many lines one per family of losses, each with the first loss for comparison."""
    families = group_pairs((line.partition("(")[0], line) for line in (lines if len(lines) > MAX_LINES else ()))
    parts = {family: members for family, members in families.items() if len(members) > 2}
    if not parts:
        yield _curve_drawing(name, title, lines)
        return
    if ungrouped := [line for family, members in families.items() if family not in parts for line in members]:
        parts["the rest"] = ungrouped
    first = next(iter(lines))
    for family, members in parts.items():
        part_lines = {line: lines[line] for line in dict.fromkeys([first, *members])}
        yield _curve_drawing(f"{name}_{slug(family)}", f"{title}, {family}", part_lines)


def _curve_drawing(name: str, title: str, lines: Mapping[str, np.ndarray]) -> Drawing:
    numbers = [
        {"line": line, "run": run, "epoch": epoch, "value": float(value)}
        for line, values in lines.items()
        for run, row in enumerate(values)
        for epoch, value in enumerate(row, 1)
    ]
    last = "; ".join(f"{line} {np.nanmean(values[:, -1]):.4g}" for line, values in lines.items() if len(values))
    length = max(values.shape[1] for values in lines.values())
    padded_lines = {
        line: np.pad(values, ((0, 0), (0, length - values.shape[1])), constant_values=np.nan)
        for line, values in lines.items()
    }
    draw = partial(plots.curves, padded_lines)
    return Drawing(name, title, f"{title} over epochs; at the end: {last}.", draw, numbers)


def _bin_gap_drawings(histories: Histories, column: str, split: str) -> Iterator[Drawing]:
    count = max(len(row[column]) for runs in histories.values() for rows in runs for row in rows if row.get(column))
    for item, bin_name in (0, "least confident"), (count // 2, "middle"), (count - 1, "most confident"):
        title = f"confidence minus accuracy, {bin_name} of {count} bins, {split}"
        yield _curve_drawing(f"{column}_{item + 1}", title, _column_lines(histories, column, item))


def _reliability_drawings(histories: Histories, split: str) -> Iterator[Drawing]:
    """Yield a diagram and a histogram of the pooled examples for every loss and epoch, with the ECE over seeds."""
    columns = [f"{split}_reliability_{name}" for name in ("count", "confidence", "accuracy")]
    for loss, runs in histories.items():
        epoch_rows = [row for rows in runs for row in rows if row.get(columns[0])]
        values = ((row["epoch"], np.array([row[column] for column in columns], dtype=float)) for row in epoch_rows)
        for epoch, parts in group_pairs(values).items():
            count = np.sum([part[0] for part in parts], axis=0)
            totals = [np.nansum([part[0] * part[i] for part in parts], axis=0) for i in (1, 2)]
            means = [np.divide(t, count, out=np.full(len(count), np.nan), where=count > 0) for t in totals]
            edges = np.linspace(0, 1, len(count) + 1)
            bins = Bins(*map(torch.from_numpy, (edges, count / count.sum(), *means, count.astype(int))))
            title = f"reliability on {SPLIT_TITLES[split]} at epoch {epoch}, {loss}"
            ece_text = ece_over_seeds_text(
                [float(np.nansum(n * abs(confidence - accuracy)) / n.sum()) for n, confidence, accuracy in parts]
            )
            description = f"Reliability diagram: {title}; {ece_text}."
            yield reliability_drawing(f"reliability_{epoch}_{slug(loss)}", title, description, bins)
            title = f"confidences on {SPLIT_TITLES[split]} at epoch {epoch}, {loss}"
            description = f"Histogram: {title}; {format_percent(float(totals[0].sum() / count.sum()))} on average."
            name = f"confidences_{epoch}_{slug(loss)}"
            yield reliability_drawing(name, title, description, bins, plots.confidence_histogram)


def _gamma_drawings(histories: Histories) -> Iterator[Drawing]:
    for loss, runs in histories.items():
        count = max((len(row["gammas"]) for rows in runs for row in rows if row.get("gammas")), default=0)
        if count == 0:
            continue
        items = dict.fromkeys(round(share * (count - 1)) for share in (0, 0.25, 0.5, 0.75, 1))
        lines = {f"bin {i + 1}": _column_lines({loss: runs}, "gammas", i)[loss] for i in items}
        title = f"gamma of {loss}" + (f", of {count} bins from the least confident" if count > 1 else "")
        yield _curve_drawing(f"gammas_{slug(loss)}", title, lines if count > 1 else {loss: lines["bin 1"]})


def _gradient_drawings(histories: Histories) -> Iterator[Drawing]:
    histograms = group_pairs(
        (row["epoch"], (loss, (row["gradient_norms"], row["gradient_edges"])))
        for loss, runs in histories.items()
        for rows in runs
        for row in rows
        if row.get("gradient_norms")
    )
    for epoch, parts in sorted(histograms.items()):
        title = f"gradient norm in the last layer, per training example, epoch {epoch}"
        yield _histogram_drawing(f"gradient_norms_{epoch}", title, group_pairs(parts), "gradient norm")


def _learned_epoch_drawings(histories: Histories) -> Iterator[Drawing]:
    for loss, runs in histories.items():
        parts: list[tuple[str, HistogramPart]] = []
        for row in (rows[-1] for rows in runs if rows[-1].get("learned_counts")):
            starts = [int(np.ceil(start)) for start in row["learned_spans"]]
            ends = [*(start - 1 for start in starts[1:]), int(row["epoch"])]
            names = [
                f"epochs {start} to {end}" if end > start else f"epoch {start}"
                for start, end in zip(starts, ends, strict=True)
            ]
            histograms = ((counts, row["learned_edges"]) for counts in row["learned_counts"])
            parts += zip([*names, "never"], histograms, strict=True)
        if parts:
            title = f"maximum logits of training examples by learned epoch, {loss}"
            yield _histogram_drawing(f"learned_{slug(loss)}", title, group_pairs(parts), "maximum logit")


def _histogram_drawing(name: str, title: str, groups: Mapping[str, Sequence[HistogramPart]], xlabel: str) -> Drawing:
    values: dict[str, np.ndarray] = {}
    numbers: list[dict[str, Any]] = []
    for group, parts in groups.items():
        if any(sum(counts) for counts, _ in parts):
            values[group] = np.concatenate([_histogram_samples(counts, edges) for counts, edges in parts])
        numbers += [
            {"group": group, "run": run, "from": low, "to": high, "count": count}
            for run, (counts, edges) in enumerate(parts)
            for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True)
        ]
    medians = "; ".join(f"{group} {np.median(part):.3g} of {len(part)}" for group, part in values.items())
    draw = partial(plots.histograms, values, xlabel=xlabel)
    return Drawing(name, title, f"Histograms of the {title}. Medians: {medians}.", draw, numbers)


def _histogram_samples(counts: Sequence[int], edges: Sequence[float]) -> np.ndarray:
    """Return values with this histogram, evenly spaced inside each bin."""
    samples = [np.linspace(low, high, n + 2)[1:-1] for n, low, high in zip(counts, edges[:-1], edges[1:], strict=True)]
    return np.concatenate(samples)
