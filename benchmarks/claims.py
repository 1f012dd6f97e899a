"""Effects of losses on calibration, as each study measures them: with its calibrators, its grid and its metric.

    python -m benchmarks.claims FOLDER... [--out docs/results/effects.csv]

A FOLDER holds the output of a study. If it has rows.csv, with the values of every seed, differences are paired over
networks and seeds. If it only has tables.csv, a row is tested against its reference by Student's unpaired t-test from
the printed means and deviations, per data set and network, as Wang et al. (2021) do. Intervals cover 90 %. p-values are
corrected by Holm over the losses that are compared with one reference by one metric after one calibrator. Values are in
percent. Without three seeds in all, there is no test. The metric is the first calibration error of the whole study, as
its paper judges.
"""

import argparse
import json
import math
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import polars as pl
from scipy.stats import t as student

from benchmarks._harness import write_table
from calibrant._core.grouping import group_pairs
from calibrant.lab.study import Study
from calibrant.lab.study.significance import holm
from calibrant.lab.study.tables import main_calibration_error

NAMES = "study", "dataset", "network", "loss", "reference", "metric", "calibrator"
HEAD = *NAMES, "test", "seeds", "reference value", "value", "temperature", "difference", "interval", "p"
FOCAL_LOSSES = "focal", "flsd", "Scheduled"
COMPARED: dict[str, dict[str, tuple[str, ...]]] = {  # by study: losses compared with a reference besides cross-entropy
    "mukhoti_2020": {"mmce": FOCAL_LOSSES, "brier": FOCAL_LOSSES},
    "mukhoti_2020-gammas": {"focal(gamma=1)": ("focal",), "Scheduled(gammas=(5, 3, 1))": ("Scheduled",)},
    "adafocal_2022": {"flsd": ("AdaFocal",), "focal(gamma=3)": ("AdaFocal",)},
}
OWN_METRICS = {"confident_share"}  # that a claim of a paper is about, besides the calibration error
LEVEL = 0.90
Sample = dict[tuple[str, int], float]  # a value for each network and seed
Difference = tuple[float, float, int, int]  # mean, standard error (nan without one), degrees of freedom, seeds


def study_of(folder: Path) -> tuple[str, set[str], set[str]]:
    """Return the study whose output a folder holds, and the metrics and calibrators that its paper's claims are about.

    They are those of the whole study; a scale may have more.
    """
    name = json.loads((folder / "made_with.json").read_text())["study"]
    paper_study = Study.load(name.partition("-")[0])
    paper_metrics = [method.text for method in paper_study.metrics]
    claimed = {main_calibration_error(paper_metrics), *OWN_METRICS.intersection(paper_metrics)}
    return name, claimed, {method.text for method in paper_study.calibrators}


def compared_pairs(study: str, losses: Collection[str]) -> dict[str, list[str]]:
    """Return the losses that are compared with each reference."""
    pairs = {"cross_entropy": list(losses)}
    for reference, names in (COMPARED.get(study) or COMPARED.get(study.partition("-")[0], {})).items():
        pairs[reference] = [loss for loss in losses if loss.partition("(")[0] in names]
    return {
        reference: [loss for loss in compared if loss != reference]
        for reference, compared in pairs.items()
        if reference in losses
    }


def read_cells(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield a dictionary per data set, network, loss, calibrator and metric of a study, on its test data."""
    path = next(path for path in (folder / "rows.csv", folder / "tables.csv") if path.exists())
    rows = pl.read_csv(path, infer_schema_length=None).filter(pl.col("shift").fill_null("") == "").to_dicts()
    if path.name == "tables.csv":
        yield from rows
        return
    keys = "dataset", "network", "loss", "calibrator", "metric"
    for names, cells in group_pairs((tuple(row[key] for key in keys), row) for row in rows).items():
        sample: Sample = {(row["network"], row["seed"]): row["value"] for row in cells}
        mean = sum(sample.values()) / len(sample)
        temperature = sum(row["temperature"] for row in cells) / len(cells)
        yield dict(zip(keys, names, strict=True)) | {
            "mean": mean,
            "seeds": len(sample),
            "temperature": temperature,
            "sample": sample,
        }


def difference(cell: Mapping[str, Any], reference: Mapping[str, Any]) -> Difference:
    """Return the difference of two cells: paired over seeds if both have their values, else from their deviations."""
    if "sample" in cell:
        pairs = [
            value - reference["sample"][key] for key, value in cell["sample"].items() if key in reference["sample"]
        ]
        n, mean = len(pairs), sum(pairs) / len(pairs)
        variance = sum((x - mean) ** 2 for x in pairs) / (n - 1) if n > 1 else math.nan
        return mean, math.sqrt(variance / n), n - 1, n
    n, m = cell["seeds"], reference["seeds"]
    if min(n, m) < 2:
        return cell["mean"] - reference["mean"], math.nan, n + m - 2, n
    squares = (n - 1) * cell["deviation"] ** 2 + (m - 1) * reference["deviation"] ** 2
    return cell["mean"] - reference["mean"], math.sqrt(squares / (n + m - 2) * (1 / n + 1 / m)), n + m - 2, n


def effects(folder: Path) -> Iterator[list[str]]:
    """Yield a row for each data set, network, metric, calibrator, reference and loss of a study."""
    study, metrics, calibrators = study_of(folder)
    cells = [c for c in read_cells(folder) if c["metric"] in metrics and c["calibrator"] in calibrators]
    groups = group_pairs(((c["dataset"], c["network"], c["metric"], c["calibrator"]), c) for c in cells)
    for (dataset, network, *method), group in groups.items():
        by_loss = {cell["loss"]: cell for cell in group}
        for reference, losses in compared_pairs(study, by_loss).items():
            differences = {loss: difference(by_loss[loss], by_loss[reference]) for loss in losses}
            p_values = holm({loss: p_value(parts) for loss, parts in differences.items()})
            for loss in losses:
                values = effect(by_loss[loss], by_loss[reference], differences[loss], p_values[loss])
                yield [study, dataset, network, loss, reference, *method, *values]


def effect(cell: Mapping[str, Any], reference: Mapping[str, Any], parts: Difference, p: float) -> list[str]:
    """Return the texts of a row after its names: test, seeds, values, temperature, difference, interval and p."""
    mean, error, df, n = parts
    margin = student.ppf((1 + LEVEL) / 2, df) * error if df > 0 else math.nan
    tested = not math.isnan(margin)
    return [
        ("paired" if "sample" in cell else "unpaired") if tested else "",
        str(n),
        *(f"{100 * x['mean']:.2f}" for x in (reference, cell)),
        "" if math.isnan(cell["temperature"]) else f"{cell['temperature']:.2f}",
        f"{100 * mean:+.2f}",
        *((f"{100 * (mean - margin):+.2f} to {100 * (mean + margin):+.2f}", f"{p:.2g}") if tested else ("", "")),
    ]


def p_value(parts: Difference) -> float:
    """Return the two-sided p-value of Student's t-test of a difference, or nan without a standard error."""
    mean, error, df, _ = parts
    return math.nan if math.isnan(error) or df < 1 else float(2 * student.sf(abs(mean) / error, df)) if error else 0.0


def main() -> None:
    """Print the effects, and write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    write_table([*HEAD], [line for folder in options.folders for line in effects(folder)], options.out)


if __name__ == "__main__":
    main()
