"""The tables of docs/results: cells, differences, and the tables that the page of results shows of them."""

import csv
import json
import math
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import permutations
from pathlib import Path
from statistics import mean as mean_of
from typing import Any

import numpy as np
from scipy.stats import rankdata, ttest_1samp

from benchmarks._result_texts import (
    LOSS_NAMES,
    STORED_NETWORKS,
    Row,
    column_head,
    italic_text,
    num_split,
    number_text,
    span_text,
    table_text,
)
from benchmarks.claims import LEVEL
from calibrant._core.grouping import group_pairs

OWN_TEMPERATURE = {  # temperature scaling of each study, as its paper does it
    "mukhoti_2020": "Temperature(criterion='ece')",
    "medium": "Temperature(criterion='ece')",
    "long": "Temperature(criterion='ece')",
    "wang_2021": "Temperature(criterion='ece', grid='wang')",
    "adafocal_2022": "Temperature(criterion=\"adaptive_ece(edges='mukhoti')\")",
    "loss_survey": "Temperature",
    "mukhoti_2020-gammas": "Temperature(criterion='ece')",
    "wang_2021_coefficients-small": "Temperature(criterion='ece', grid='wang')",
    "wang_2021_validation_size-small": "Temperature(criterion='ece', grid='wang')",
    "wang_2021_inverse-small": "Temperature(criterion='ece', grid='wang')",
}
OTHER_CALIBRATORS = {
    "": "Identity",
    "nll": "Temperature",
    "focal": "FocalTemperature(criterion='nll')",
    "bins": "HistogramBinning",
    "equal mass": OWN_TEMPERATURE["adafocal_2022"],
}
ADAPTIVE = "adaptive_ece(edges='mukhoti')"


class ResultTables:
    """The tables of a folder of results, whose methods are the names of the template."""

    def __init__(self, results: Path) -> None:
        self.results = results
        self.rows, self.cells = cache(self._read_rows), cache(self._read_cells)

    def _read_rows(self, name: str) -> list[Row]:
        with (self.results / name).open(newline="") as file:
            return list(csv.DictReader(file))

    def select(self, name: str, **values: str) -> list[Row]:
        """Return the rows of a table that have these values; without rows, the page is wrong."""
        rows = [row for row in self.rows(name) if all(row[key] == value for key, value in values.items())]
        if not rows:
            raise LookupError(f"Expected rows of {name} with {values}, got none.")
        return rows

    def study(self, folder: str) -> str:
        """Return the study and scale of a folder of results."""
        return json.loads((self.results / folder / "made_with.json").read_text())["study"]

    # Cells of tables.csv

    def losses(self, folder: str) -> list[str]:
        """Return the losses of a folder, in its order, as studies spell them."""
        return list(dict.fromkeys(_short(row["loss"]) for row in self.rows(f"{folder}/tables.csv")))

    def cell(self, folder: str, loss: str, metric: str = "ece", after: str = "", **names: str) -> Row:
        """Return the row of a loss, by default of its ECE without a calibrator on the test data.

        `after` is "T" for the temperature scaling of the study's paper, or a key of `OTHER_CALIBRATORS`.
        """
        calibrator = OWN_TEMPERATURE[folder] if after == "T" else OTHER_CALIBRATORS[after]
        cells = self.cells(folder)[loss, metric, calibrator, names.pop("shift", "")]
        (row,) = [row for row in cells if all(row[key] == value for key, value in names.items())]
        return row

    def _read_cells(self, folder: str) -> dict[tuple[str, ...], list[Row]]:
        """Return the rows of tables.csv by loss, metric, calibrator and shift: one for each network."""
        keys = "metric", "calibrator", "shift"
        rows = self.rows(f"{folder}/tables.csv")
        return group_pairs(((_short(row["loss"]), *(row[key] for key in keys)), row) for row in rows)

    def mean(self, folder: str, loss: str, metric: str = "ece", after: str = "", **names: str) -> float:
        """Return the mean of a cell."""
        return float(self.cell(folder, loss, metric, after, **names)["mean"])

    def deviation(self, folder: str, loss: str, metric: str = "ece", after: str = "") -> float:
        """Return the standard deviation of a cell over its seeds."""
        return float(self.cell(folder, loss, metric, after)["deviation"])

    def errors(self, folder: str) -> list[float]:
        """Return the error rates of a folder whose metric is the accuracy."""
        return [1 - value for value in self.means(folder, "accuracy")]

    def temperature(self, folder: str, loss: str, after: str = "T") -> float:
        """Return the mean temperature of a loss."""
        metric = ADAPTIVE if folder == "adafocal_2022" else "ece"
        return float(self.cell(folder, loss, metric, after)["temperature"])

    def means(
        self, folder: str, metric: str = "ece", after: str = "", losses: Iterable[str] = (), **names: str
    ) -> list[float]:
        """Return the means of several losses, by default of all."""
        return [self.mean(folder, loss, metric, after, **names) for loss in losses or self.losses(folder)]

    def temperatures(self, folder: str, losses: Iterable[str] = (), after: str = "T") -> list[float]:
        """Return the temperatures of several losses, by default of all."""
        return [self.temperature(folder, loss, after) for loss in losses or self.losses(folder)]

    def gains(self, folder: str, first: str, second: str) -> list[float]:
        """Return the NLL after one calibrator minus that after another, by loss."""
        return [a - b for a, b in zip(*(self.means(folder, "nll", x) for x in (first, second)), strict=True)]

    def learned(self, folder: str, loss: str) -> list[float]:
        """Return temperature and gamma of focal temperature scaling."""
        row = self.cell(folder, loss, "nll", "focal")
        return [float(row["temperature"]), float(row["learned"].removeprefix("gamma "))]

    def rank_correlation(self, folder: str, after: str = "", column: str = "mean", paper: str = "paper_mean") -> Any:
        """Return Spearman's correlation of our cells with the paper's over the losses that it prints, and its p-value.

        The p-value is that of all permutations.
        """
        rows = [self.cell(folder, loss, "ece", after) for loss in self.losses(folder)]
        printed = [
            (row, self.cell(folder, _short(row["loss"]), "ece", "T" if "temp" in paper else after)) for row in rows
        ]
        pairs = [(float(ours[column]), float(theirs[paper])) for ours, theirs in printed if theirs[paper]]
        ours, theirs = (rankdata(values) - (len(values) + 1) / 2 for values in zip(*pairs, strict=True))
        statistics = np.array([*permutations(ours)]) @ theirs / math.sqrt((ours @ ours) * (theirs @ theirs))
        statistic = statistics[0]  # of the order as it is
        return {"statistic": statistic, "pvalue": np.mean(abs(statistics) >= abs(statistic) - 1e-9)}

    # Differences

    def effect(self, folder: str, loss: str, reference: str = "cross_entropy", after: str = "", **names: str) -> Row:
        """Return the row of effects.csv of a loss against a reference, by the study's calibration error."""
        calibrator = OWN_TEMPERATURE[folder] if after == "T" else OTHER_CALIBRATORS[after]
        metric = ADAPTIVE if folder == "adafocal_2022" else "ece"
        wanted = {"study": self.study(folder), "metric": metric, "reference": reference, "calibrator": calibrator}
        rows = self.select("effects.csv", **(wanted | names))
        (row,) = [row for row in rows if _short(row["loss"]) == loss]
        return row

    def confident(self, folder: str, loss: str, reference: str) -> Row:
        """Return the row of effects.csv on the share of confident predictions after temperature scaling."""
        return self.effect(folder, loss, reference, "T", metric="confident_share")

    def paired(self, study: str, number: str, loss: str) -> Row:
        """Return a row of paired.csv."""
        (row,) = self.select("paired.csv", study=study, number=number, loss=loss)
        return row

    def paired_table(self, study: str, number: str, heading: str) -> str:
        """Return the table of the paired differences of a study from cross-entropy."""
        columns = "cross-entropy", "this loss", "noise floor", "difference", "interval", "p"
        rows = self.select("paired.csv", study=study, number=number)
        heads = [column_head(column) for column in columns]
        return table_text([heading, *heads], ([LOSS_NAMES[row["loss"]], *(row[c] for c in columns)] for row in rows))

    def effects_table(self, folder: str, heading: str, after: str, losses: Iterable[str], **names: str) -> str:
        """Return the table of a study's unpaired differences from cross-entropy."""
        columns = ["value", *(["temperature"] if after in ("T", "nll") else []), "difference", "interval", "p"]
        rows = [(LOSS_NAMES[loss], self.effect(folder, loss, after=after, **names)) for loss in losses]
        heads = [heading, "cross-entropy", *map(column_head, columns)]
        return table_text(heads, ([name, row["reference value"], *(row[c] for c in columns)] for name, row in rows))

    def references_table(self, folder: str, pairs: Iterable[tuple[str, str, str]]) -> str:
        """Return the table of differences of losses from the other references that a paper names."""
        short = {"focal(gamma=3)": "focal loss, gamma 3", "flsd": "FLSD-53", "mmce": "MMCE", "brier": "Brier"}
        columns = "reference value", "value", "difference", "interval", "p"
        heads = ["ECE (%)", "reference", *map(column_head, columns[1:])]
        lines = []
        for loss, reference, after in pairs:
            row = self.effect(folder, loss, reference, after)
            title = f"{short[loss]} against {short[reference]}, {'after' if after else 'before'}"
            lines.append([title, *(row[c] for c in columns)])
        return table_text(heads, lines)

    def larger_table(self, folder: str, losses: Iterable[str]) -> str:
        """Return the table of a larger scale of Mukhoti et al. beside the paper's numbers."""
        heads = "error", "ECE", "*paper*", "after temperature", "*paper*", "temperature (ECE, NLL)", "*paper*", "NLL"
        heads = ["", *heads, "after temperature", "after focal temperature (T, gamma)"]
        columns = [("error", ""), ("ece", ""), ("ece", "T"), ("nll", ""), ("nll", "nll"), ("nll", "focal")]
        best = {column: min(self.means(folder, *column)) for column in columns}
        lines = []
        for loss in losses:
            texts = [self._bold_text(folder, loss, column, best[column]) for column in columns]
            t, gamma = self.learned(folder, loss)
            papers = [self.cell(folder, loss, "ece", after) for after in ("", "T")]
            before, after = (italic_text(row["paper_mean"], 100) for row in papers)
            temperatures = ", ".join(number_text(self.temperature(folder, loss, fit), 2) for fit in ("T", "nll"))
            fitted = f"{texts[5]} ({number_text(t, 2)}, {number_text(gamma, 2)})"
            lines.append(
                [
                    loss,
                    *texts[:2],
                    before,
                    texts[2],
                    after,
                    temperatures,
                    italic_text(papers[1]["paper_temperature"], 1),
                ]
            )
            lines[-1] += [*texts[3:5], fitted]
        return table_text(heads, lines)

    def _bold_text(self, folder: str, loss: str, column: tuple[str, str], best: float) -> str:
        row = self.cell(folder, loss, *column)
        scale, digits = (1, 4) if column[0] == "nll" else (100, 2)
        text = number_text(scale * float(row["mean"]), digits)
        text = f"**{text}**" if float(row["mean"]) == best else text
        return text if row["seeds"] == "1" else f"{text} ± {number_text(scale * float(row['deviation']), digits)}"

    def reductions(self, folder: str, losses: Iterable[str], references: Iterable[str], after: str) -> list[float]:
        """Return by how many points the ECE of losses is lower than that of each reference."""
        return [-value for value in self.increases(folder, losses, references, after)]

    def increases(self, folder: str, losses: Iterable[str], references: Iterable[str], after: str) -> list[float]:
        """Return by how many points the ECE of losses is higher than that of each reference."""
        rows = (self.effect(folder, loss, reference, after) for loss in losses for reference in references)
        return [float(row["difference"]) for row in rows]

    def paired_floors(self, study: str = "", number: str = "ECE") -> list[float]:
        """Return the noise floors of paired.csv."""
        rows = self.select("paired.csv", number=number, **({"study": study} if study else {}))
        return [float(row["noise floor"]) for row in rows]

    # Sweeps

    def sweep_table(self, folder: str) -> str:
        """Return the ECE of every loss of a sweep in percent, before and after the calibrators of Wang et al."""
        columns = {"before": "", "after temperature (temperature)": "T", "after histogram binning": "bins"}
        return self._ece_table(folder, "ECE (%)", {head: {"after": after} for head, after in columns.items()})

    def largest_difference(self, folder: str, repeated_folder: str, after: str) -> float:
        """Return the largest difference between the mean ECEs of two folders, over the losses of both."""
        shared_losses = [loss for loss in self.losses(folder) if loss in self.losses(repeated_folder)]
        means = (self.means(name, after=after, losses=shared_losses) for name in (folder, repeated_folder))
        return max(abs(a - b) for a, b in zip(*means, strict=True))

    def optimal_ece(self, folder: str, loss: str) -> dict[str, float]:
        """Return the ECE at each epoch's best temperature: means over seeds and parts of the training."""
        rows = [row for row in self.rows(f"{folder}/val_optimal_ece.csv") if _short(row["line"]) == loss]
        num_epochs = max(int(row["epoch"]) for row in rows)

        def part(row: Row) -> str:
            share = int(row["epoch"]) / num_epochs
            return "second_half" if share > 1 / 2 else "second_quarter" if share > 1 / 4 else "first_quarter"

        values = group_pairs((part(row), float(row["value"])) for row in rows)
        return {name: mean_of(part_values) for name, part_values in values.items()}

    def num_above_reference(self, folder: str) -> dict[str, int]:
        """Count the differences from cross-entropy after a calibrator, and those with a mean above it."""
        rows = [row for row in self.select("effects.csv", study=self.study(folder)) if row["calibrator"] != "Identity"]
        return {"all": len(rows), "above": sum(float(row["difference"]) > 0 for row in rows)}

    def validation_sets(self, folder: str) -> dict[int, str]:
        """Return the data sets of a sweep by the number of their validation images."""
        datasets = dict.fromkeys(row["dataset"] for row in self.rows(f"{folder}/tables.csv"))
        return {num_split(dataset)["val"]: dataset for dataset in datasets}

    def sizes_table(self, folder: str, after: str, heading: str) -> str:
        """Return the ECE of every loss in percent after a calibrator, by the number of validation images."""
        sizes = self.validation_sets(folder)
        columns = {f"{size:,} images": {"after": after, "dataset": name} for size, name in sizes.items()}
        return self._ece_table(folder, heading, columns)

    def _ece_table(self, folder: str, heading: str, columns: Mapping[str, Mapping[str, str]]) -> str:
        """Return the ECE of every loss in percent; `columns` has the names of a cell by the head of its column."""
        lines = (
            [loss, *(_mean_text(self.cell(folder, loss, **names)) for names in columns.values())]
            for loss in self.losses(folder)
        )
        return table_text([heading, *columns], lines)

    def gammas_table(self, rows: Iterable[tuple[str, str]]) -> str:
        """Return the table of focal losses beside the numbers that Mukhoti et al. print, from folders and losses."""
        heads = "ECE (%)", "before", "*paper*", "after temperature (temperature)", "*paper*"
        lines = []
        for folder, loss in rows:
            before, after = (self.cell(folder, loss, after=after) for after in ("", "T"))
            papers = [italic_text(row["paper_mean"], 100) for row in (before, after)]
            temperature = italic_text(after["paper_temperature"], 1)
            paper_after = f"{papers[1]} ({temperature})"
            lines.append([LOSS_NAMES[loss], _mean_text(before), papers[0], _mean_text(after), paper_after])
        return table_text(heads, lines)

    # Focal temperature scaling

    def network_gains(self, file: str, pattern: str = "", *, without: bool = False) -> dict[str, Any]:
        """Summarize the differences of focal temperature from temperature scaling over the networks of a table.

        `pattern` selects networks whose name contains one of its parts, split by "|", or the others if `without`.
        """
        rows = self.rows(f"komisarenko_2024/{file}.csv")
        parts = pattern.split("|")
        rows = [row for row in rows if any(part in row["network"] for part in parts) != without]
        values = [float(row["difference"]) for row in rows]
        low, high = ttest_1samp(values, 0).confidence_interval(LEVEL)
        limits = [[float(x) for x in row["interval"].split(" to ")] for row in rows]
        return {
            "mean": mean_of(values),
            "low": low,
            "high": high,
            "n": len(rows),
            "lower": sum(row["difference"].startswith("-") for row in rows),  # also by less than is printed
            "clearly_lower": sum(high < 0 for _, high in limits),
            "clearly_higher": sum(low > 0 for low, _ in limits),
        }

    def network(self, loss: str) -> Row:
        """Return the row of the network of the medium scale that was trained with a loss."""
        rows = self.rows("komisarenko_2024/medium_networks.csv")
        return next(row for row in rows if row["network"].startswith(f"resnet9, {loss}"))

    def line_seconds(self, network: str, column: str = "seconds") -> str:
        """Return the seconds of processor time of a search."""
        return self.select("komisarenko_2024/line_search.csv", network=network)[0][column]

    def stored_networks_table(self) -> str:
        """Return the table of focal temperature scaling of other authors' networks."""
        columns = "noise floor", "uncalibrated", "temperature", "focal temperature", "gamma", "difference", "interval"
        rows = self.rows("komisarenko_2024/stored_networks.csv")
        lines = [[STORED_NETWORKS[row["network"]], *(row[c] for c in columns)] for row in rows]
        return table_text(["network", *map(column_head, columns)], lines)

    def printed_nearest(self) -> list[float]:
        """Return the limits of the temperature nearest to the focal map that the paper prints."""
        row = self.rows("product_rule.csv")[0]
        return [float(row["printed low"]), float(row["printed high"])]

    def products(self, scale: str) -> list[float]:
        """Return the limits of the product of the temperature of cross-entropy with the paper's nearest one."""
        (row,) = self.select("product_rule.csv", scale=scale)
        return [float(row["cross-entropy"]) * nearest for nearest in self.printed_nearest()]

    def product_table(self) -> str:
        """Return the table of products of temperatures."""
        columns = "scale", "cross-entropy", "nearest", "product", "focal loss"
        heads = ["scale", "cross-entropy", "nearest to the map, gamma 3", "product", "focal loss, gamma 3"]
        return table_text(heads, ([row[c] for c in columns] for row in self.rows("product_rule.csv")))

    def lower_with_equal_mass(self, folder: str) -> int:
        """Count the losses for which focal temperature scaling by NLL has the lower ECE with bins of equal mass."""
        pairs = zip(*(self.means(folder, ADAPTIVE, after) for after in ("focal", "nll")), strict=True)
        return sum(first < second for first, second in pairs)

    # Other tables, studies and papers

    def recorded(self, study: str, loss: str, quantity: str) -> Row:
        """Return a row of recorded.csv."""
        (row,) = self.select("recorded.csv", study=study, loss=loss, quantity=quantity)
        return row

    def paper_means(self, folder: str, metric: str, after: str = "") -> list[float]:
        """Return the means that the paper prints beside the losses of a folder."""
        texts = (self.cell(folder, loss, metric, after)["paper_mean"] for loss in self.losses(folder))
        return [float(text) for text in texts if text]

    def hours_of(self, study: str, epochs: int) -> str:
        """Return the hours of a whole training, from the recorded minutes of an epoch."""
        row = self.recorded(study, "cross_entropy", "minutes per epoch")
        return span_text([row["low"], row["high"]], 0, epochs / 60)

    def difference_by_network(self, loss: str) -> list[str]:
        """Return the difference of a loss of the survey from cross-entropy on each network, in points."""
        networks = dict.fromkeys(row["network"] for row in self.rows("loss_survey/tables.csv"))
        return [f"{float(self.effect('loss_survey', loss, network=n)['difference']):+.1f}" for n in networks]

    def survey_table(self) -> str:
        """Return the table of the survey's differences by network."""
        heads = ["mean difference in ECE (points)", "ResNet-8", "ResNet-18", "VGG-16"]
        losses = "entropy_regularized", "focal", "logit_norm"
        return table_text(heads, ([LOSS_NAMES[loss], *self.difference_by_network(loss)] for loss in losses))


def _mean_text(row: Row) -> str:
    """Return a mean in percent with its deviation, and the temperature in parentheses."""
    text = f"{number_text(100 * float(row['mean']), 2)} ± {number_text(100 * float(row['deviation']), 2)}"
    return text if row["temperature"] in ("", "NaN") else f"{text} ({number_text(row['temperature'], 2)})"


def _short(loss: str) -> str:
    return loss.replace(", detach_weight=True", "")
