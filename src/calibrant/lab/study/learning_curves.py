"""Learning curves and histograms over epochs, from the histories of finished runs."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from calibrant import metrics
from calibrant._core import registry
from calibrant._core.grouping import group_pairs
from calibrant._core.kernels.bins import Bins, equal_width_edges
from calibrant._core.numbers import format_percent
from calibrant.lab.study.config import Study
from calibrant.lab.study.drawing import Drawing, numbered_name, reliability_drawing, slug
from calibrant.lab.study.measurements import ece_over_seeds_text
from calibrant.lab.study.store import Store
from calibrant.reports import plots

EpochRows = Sequence[Mapping[str, Any]]  # the epochs of one run
Histories = Mapping[str, Sequence[EpochRows]]  # the runs of each loss
Histogram = tuple[Sequence[int], Sequence[float]]  # counts and edges

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
    """Yield figures of training histories, per data set and network, with a line per loss.

    Curves are means over seeds with the range from minimum to maximum: recorded scores (Mukhoti et al. 2020, Figures 1
    and 3; Wang et al. 2021, Figure 4), gaps of single bins, and gammas (Ghosh et al. 2022). Reliability diagrams and
    histograms of confidences show some epochs (Mukhoti et al. 2020, Figure 2). Other histograms show gradient norms
    (ibid., Figure 4) and maximum logits by learned epoch (Wang et al. 2021, Figure 5).
    """
    finished_runs = ((study.names(run), run) for run in study.runs() if run in store)
    runs_by_setup = group_pairs((names.setup, (names.loss, run)) for names, run in finished_runs)
    for setup, loss_runs in runs_by_setup.items():
        histories = group_pairs((loss, store.history(run).to_dicts()) for loss, run in loss_runs)
        for drawing in _history_drawings(histories):
            name = numbered_name(drawing.name, study.setup_numbers[setup])
            title = drawing.title + study.setup_suffix(setup)
            yield replace(drawing, name=name, title=title, is_main=_is_main(drawing))


def _is_main(drawing: Drawing) -> bool:
    """Return whether the report shows a figure without unfolding.

    Figures of training data, of single bins, and of correct or wrong predictions alone are folded.
    """
    is_detail = drawing.name.startswith(("train_", "val_bin_gaps", "reliability", "confidences"))
    return not is_detail and not drawing.name.endswith(("_correct", "_wrong"))


def _history_drawings(histories: Histories) -> Iterator[Drawing]:
    """Yield the figures of every column of the histories.

    Columns that share a figure, such as the counts and edges of a histogram, are handled through one of them.
    """
    columns = dict.fromkeys(key for runs in histories.values() for rows in runs for row in rows for key in row)
    for column in columns:
        split, _, quantity = column.partition("_")
        quantity_title = _quantity_title(quantity) if split in SPLIT_TITLES else ""
        title = f"{quantity_title}, {SPLIT_TITLES[split]}" if quantity_title else SINGLE_COLUMN_TITLES.get(column)
        if title:  # a column with one number per epoch; the columns below hold lists
            yield from _drawings_by_loss_family(slug(column), title, _column_values(histories, column))
        elif quantity == "bin_gaps":
            yield from _bin_gap_drawings(histories, column, SPLIT_TITLES[split])
        elif quantity == "reliability_count":
            yield from _reliability_drawings(histories, split)
        elif column in DRAWINGS_OF_COLUMNS:
            yield from DRAWINGS_OF_COLUMNS[column](histories)


def _quantity_title(quantity: str) -> str:
    """Return the title of a quantity, which is a column's name without the split, such as "nll_wrong".

    The title is "" if the quantity is neither in `COLUMN_TITLES` nor a metric.
    """
    if quantity in COLUMN_TITLES:
        return COLUMN_TITLES[quantity]
    is_metric = quantity.partition("(")[0] in registry.METRICS
    return metrics.describe_metric(quantity).removesuffix(" in %") if is_metric else ""


def _recorded_rows(histories: Histories, column: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the loss and the row of every epoch in which a column of lists was recorded."""
    for loss, runs in histories.items():
        yield from ((loss, row) for rows in runs for row in rows if row.get(column))


def _column_values(histories: Histories, column: str, item: int | None = None) -> dict[str, np.ndarray]:
    """Return a column of the histories as an array (runs, epochs) for each loss that has the column.

    From a column of lists, the `item` at this index is taken, or the last one of a shorter list. Missing epochs and
    values are nan.
    """
    values_by_loss: dict[str, np.ndarray] = {}
    for loss, runs in histories.items():
        array = np.full((len(runs), max(map(len, runs))), np.nan)
        for i, rows in enumerate(runs):
            for epoch, row in enumerate(rows):
                if (value := row.get(column)) is not None:
                    array[i, epoch] = value if item is None else value[min(item, len(value) - 1)]
        if not np.isnan(array).all():
            values_by_loss[loss] = array
    return values_by_loss


def _drawings_by_loss_family(name: str, title: str, lines: Mapping[str, np.ndarray]) -> Iterator[Drawing]:
    """Yield one figure of all lines, or above `MAX_LINES` lines one figure per family of losses.

    A family has the losses that differ in their arguments only, such as focal(gamma=1) and focal(gamma=3). Families of
    one or two losses share a figure. Each figure also shows the first loss of the study for comparison.

    Args:
        name: Name of the figure.
        title: Title of the figure.
        lines: Values (runs, epochs) by loss.
    """
    losses_by_family = group_pairs((loss.partition("(")[0], loss) for loss in lines)
    figure_losses = {family: losses for family, losses in losses_by_family.items() if len(losses) > 2}
    if len(lines) <= MAX_LINES or not figure_losses:  # few lines, or small families only
        yield _curve_drawing(name, title, lines)
        return
    if rest := [loss for losses in losses_by_family.values() for loss in losses if len(losses) <= 2]:
        figure_losses["the rest"] = rest
    first_loss = next(iter(lines))
    for group, losses in figure_losses.items():
        group_lines = {loss: lines[loss] for loss in (first_loss, *losses)}
        yield _curve_drawing(f"{name}_{slug(group)}", f"{title}, {group}", group_lines)


def _curve_drawing(name: str, title: str, lines: Mapping[str, np.ndarray]) -> Drawing:
    """Return a figure with a line over epochs for each array (runs, epochs), given by the name of its line.

    The numbers of epochs may differ between lines. The description has the mean over runs at the last epoch.
    """
    data = [
        {"line": line, "run": run, "epoch": epoch, "value": float(value)}
        for line, values in lines.items()
        for run, run_values in enumerate(values)
        for epoch, value in enumerate(run_values, 1)
    ]
    last_values = {line: values[~np.isnan(values[:, -1]), -1] for line, values in lines.items()}  # (runs without nan)
    texts = [f"{line} {values.mean():.4g}" for line, values in last_values.items() if len(values)]
    num_epochs = max(values.shape[1] for values in lines.values())
    padded_lines = {
        line: np.pad(values, ((0, 0), (0, num_epochs - values.shape[1])), constant_values=np.nan)
        for line, values in lines.items()
    }
    draw = partial(plots.curves, padded_lines)
    return Drawing(name, title, f"{title} over epochs; at the end: {'; '.join(texts) or 'no value'}.", draw, data)


def _bin_gap_drawings(histories: Histories, column: str, split_title: str) -> Iterator[Drawing]:
    """Yield figures over epochs of confidence minus accuracy in the first, the middle and the last bin.

    `column` holds a list with the gap of each bin, from the least to the most confident.
    """
    num_bins = max(len(row[column]) for _, row in _recorded_rows(histories, column))
    for i, bin_name in (0, "least confident"), (num_bins // 2, "middle"), (num_bins - 1, "most confident"):
        title = f"confidence minus accuracy, {bin_name} of {num_bins} bins, {split_title}"
        yield _curve_drawing(f"{column}_{i + 1}", title, _column_values(histories, column, item=i))


def _reliability_drawings(histories: Histories, split: str) -> Iterator[Drawing]:
    """Yield a reliability diagram and a histogram of confidences for every loss and recorded epoch, over all seeds.

    They are drawn from the columns SPLIT_reliability_count, _confidence and _accuracy, lists with an item per bin.
    """
    columns = [f"{split}_reliability_{name}" for name in ("count", "confidence", "accuracy")]
    bins_by_figure = group_pairs(
        ((loss, row["epoch"]), [row[column] for column in columns])
        for loss, row in _recorded_rows(histories, columns[0])
    )
    for (loss, epoch), bins_by_seed in bins_by_figure.items():
        statistics = np.array(bins_by_seed, dtype=float)  # (seeds, 3, bins), nan in empty bins
        counts, confidences, accuracies = np.moveaxis(statistics, 1, 0)
        # pooled over seeds, in each bin
        confidence_sum, num_correct = np.nansum(counts * confidences, 0), np.nansum(counts * accuracies, 0)
        bins = Bins.from_sums(equal_width_edges(counts.shape[1]), counts.sum(0), confidence_sum, num_correct)
        ece_by_seed = np.nansum(counts * abs(confidences - accuracies), 1) / counts.sum(1)
        title = f"reliability on {SPLIT_TITLES[split]} at epoch {epoch}, {loss}"
        description = f"Reliability diagram: {title}; {ece_over_seeds_text(ece_by_seed.tolist())}."
        yield reliability_drawing(f"reliability_{epoch}_{slug(loss)}_{split}", title, description, bins)
        title = f"confidences on {SPLIT_TITLES[split]} at epoch {epoch}, {loss}"
        mean_confidence = format_percent(float(confidence_sum.sum() / counts.sum()))
        description = f"Histogram: {title}; {mean_confidence} on average."
        name = f"confidences_{epoch}_{slug(loss)}_{split}"
        yield reliability_drawing(name, title, description, bins, plots.confidence_histogram)


def _gamma_drawings(histories: Histories) -> Iterator[Drawing]:
    """Yield a figure over epochs per loss that recorded gammas: of its only gamma, or of the gammas of five bins.

    AdaFocal has a gamma for each bin of confidence; a loss with a schedule has one.
    """
    lengths_by_loss = group_pairs((loss, len(row["gammas"])) for loss, row in _recorded_rows(histories, "gammas"))
    for loss, lengths in lengths_by_loss.items():
        num_bins, title = max(lengths), f"gamma of {loss}"
        loss_histories = {loss: histories[loss]}
        lines = _column_values(loss_histories, "gammas", item=0)
        if num_bins > 1:
            shown_bins = dict.fromkeys(round(share * (num_bins - 1)) for share in (0, 0.25, 0.5, 0.75, 1))  # once each
            lines = {f"bin {i + 1}": _column_values(loss_histories, "gammas", item=i)[loss] for i in shown_bins}
            title += f", of {num_bins} bins from the least confident"
        yield _curve_drawing(f"gammas_{slug(loss)}", title, lines)


def _gradient_drawings(histories: Histories) -> Iterator[Drawing]:
    """Yield a figure for every epoch with histograms of gradient norms, which holds a histogram per loss."""
    histograms_by_epoch = group_pairs(
        (row["epoch"], (loss, (row["gradient_norms"], row["gradient_edges"])))
        for loss, row in _recorded_rows(histories, "gradient_norms")
    )
    for epoch, histograms in sorted(histograms_by_epoch.items()):
        title = f"gradient norm in the last layer, per training example, epoch {epoch}"
        yield _histogram_drawing(f"gradient_norms_{epoch}", title, group_pairs(histograms), "gradient norm")


def _learned_epoch_drawings(histories: Histories) -> Iterator[Drawing]:
    """Yield histograms of the maximum logits of training examples by learned epoch, a figure per loss.

    An example's learned epoch is the first one from which it is classified correctly until the end.
    """
    rows_by_loss = group_pairs(_recorded_rows(histories, "learned_counts"))  # the last row of each run
    for loss, rows in rows_by_loss.items():
        histograms: list[tuple[str, Histogram]] = []
        for row in rows:
            # the first and last epoch of each span; equal spans may begin between two epochs
            starts = [math.ceil(start) for start in row["learned_spans"]]
            ends = [*(start - 1 for start in starts[1:]), int(row["epoch"])]
            *span_counts, never_counts = row["learned_counts"]
            named_counts = [
                (f"epochs {start} to {end}" if end > start else f"epoch {start}", counts)
                for start, end, counts in zip(starts, ends, span_counts, strict=True)
                if end >= start  # more spans than epochs leave some without an epoch
            ]
            named_counts.append(("never", never_counts))
            histograms += ((name, (counts, row["learned_edges"])) for name, counts in named_counts)
        title = f"maximum logits of training examples by learned epoch, {loss}"
        yield _histogram_drawing(f"learned_{slug(loss)}", title, group_pairs(histograms), "maximum logit")


DRAWINGS_OF_COLUMNS = {
    "gammas": _gamma_drawings,
    "gradient_norms": _gradient_drawings,
    "learned_counts": _learned_epoch_drawings,
}


def _histogram_drawing(name: str, title: str, groups: Mapping[str, Sequence[Histogram]], xlabel: str) -> Drawing:
    """Return a figure of histograms by name, each over the examples of all runs.

    `groups` holds the histograms of the runs under each name.
    """
    samples_by_group = {
        group: np.concatenate([_histogram_samples(counts, edges) for counts, edges in histograms])
        for group, histograms in groups.items()
        if any(sum(counts) for counts, _ in histograms)  # an empty group has no median
    }
    data = [
        {"group": group, "run": run, "from": low, "to": high, "count": count}
        for group, histograms in groups.items()
        for run, (counts, edges) in enumerate(histograms)
        for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True)
    ]
    medians = "; ".join(f"{group} {np.median(v):.3g} of {len(v)}" for group, v in samples_by_group.items())
    draw = partial(plots.histograms, samples_by_group, xlabel=xlabel)
    return Drawing(name, title, f"Histograms of the {title}. Medians: {medians}.", draw, data)


def _histogram_samples(counts: Sequence[int], edges: Sequence[float]) -> np.ndarray:
    """Return values that have this histogram, evenly spaced inside each bin, for functions that take values."""
    bins = zip(counts, edges[:-1], edges[1:], strict=True)
    return np.concatenate([np.linspace(low, high, n + 2)[1:-1] for n, low, high in bins])  # n values, not the edges
