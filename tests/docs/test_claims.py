"""The table of effects of the results page agrees with the studies' own tables, and with hand-made values."""

import csv
import json
from pathlib import Path

import polars as pl
import pytest
from scipy.stats import ttest_ind_from_stats, ttest_rel

pytest.importorskip("torch")
from benchmarks import claims
from calibrant import theory

RESULTS = Path(__file__).parents[2] / "docs" / "results"
SWEEPS = (
    "wang_2021_coefficients-small",
    "mukhoti_2020-gammas",
    "wang_2021_validation_size-small",
    "wang_2021_inverse-small",
)
FOLDERS = "mukhoti_2020", "medium", "long", "wang_2021", "adafocal_2022", "loss_survey", *SWEEPS


def table(name):
    with (RESULTS / name).open(newline="") as file:
        return list(csv.DictReader(file))


def test_effects_are_those_of_the_studies_own_tables():
    effect_rows = [
        dict(zip(claims.HEAD, row, strict=True)) for name in FOLDERS for row in claims.effects(RESULTS / name)
    ]
    assert effect_rows == table("effects.csv")


@pytest.mark.parametrize("name", FOLDERS)
def test_every_mean_and_temperature_is_a_cell_of_the_study(name):
    cells = pl.read_csv(RESULTS / name / "tables.csv", infer_schema_length=None).filter(
        pl.col("shift").fill_null("") == ""
    )
    key = "dataset", "network", "loss", "metric", "calibrator"
    means = {tuple(row[k] for k in key): (row["mean"], row["temperature"]) for row in cells.to_dicts()}
    study = json.loads((RESULTS / name / "made_with.json").read_text())["study"]
    rows = [row for row in table("effects.csv") if row["study"] == study]
    assert rows
    for row in rows:
        for loss, column in (row["loss"], "value"), (row["reference"], "reference value"):
            mean, temperature = means[row["dataset"], row["network"], loss, row["metric"], row["calibrator"]]
            assert float(row[column]) == pytest.approx(100 * mean, abs=0.0051)
        mean, temperature = means[tuple(row[k] for k in key)]
        assert (f"{temperature:.2f}" if temperature == temperature else "") == row["temperature"]


def test_grid_and_metric_are_those_of_each_paper():
    used = {(row["study"], row["metric"], row["calibrator"]) for row in table("effects.csv")}
    assert ("wang_2021-small", "ece", "Temperature(criterion='ece', grid='wang')") in used
    assert ("wang_2021-small", "ece", "HistogramBinning") in used
    adaptive = "adaptive_ece(edges='mukhoti')"
    assert ("adafocal_2022-small", adaptive, f'Temperature(criterion="{adaptive}")') in used
    assert not {c for study, _, c in used if study == "wang_2021-small"} & {"Temperature(criterion='ece')"}


def test_paired_means_agree_with_the_studies_tables():
    cells = pl.read_csv(RESULTS / "mukhoti_2020" / "tables.csv").filter(pl.col("metric") == "ece")
    study_calibrators = {"ECE": "Identity", "ECE after temperature": "Temperature(criterion='ece')"}
    rows = [row for row in table("paired.csv") if row["study"] == "mukhoti" and row["number"] in study_calibrators]
    assert len(rows) == 10
    for row in rows:
        loss = row["loss"].replace("mmce(strength=2)", "mmce")
        mean = cells.filter((pl.col("loss") == loss) & (pl.col("calibrator") == study_calibrators[row["number"]]))[
            "mean"
        ].item(0)
        assert float(row["this loss"]) == pytest.approx(100 * mean, abs=0.0051)
    # only Mukhoti et al. search this grid after training
    assert {row["study"] for row in table("paired.csv") if row["number"] == "ECE after temperature"} == {"mukhoti"}


def test_rule_of_products_of_temperatures_does_not_hold():
    criterion, nearest = "Temperature(criterion='ece')", theory.nearest_temperature(3.0, 3).temperature
    for row, folder in zip(table("product_rule.csv"), ("mukhoti_2020", "medium", "long"), strict=True):
        cells = pl.read_csv(RESULTS / folder / "tables.csv", infer_schema_length=None).filter(
            (pl.col("metric") == "ece") & (pl.col("calibrator") == criterion) & (pl.col("shift").fill_null("") == "")
        )
        temperatures = dict(zip(cells["loss"], cells["temperature"], strict=True))
        ours = (
            temperatures["cross_entropy"],
            nearest,
            temperatures["cross_entropy"] * nearest,
            temperatures["focal(gamma=3)"],
        )
        columns = "cross-entropy", "nearest", "product", "focal loss"
        assert [row[column] for column in columns] == [f"{temperature:.2f}" for temperature in ours]
        assert ours[-1] > 1.1 * ours[-2]


def test_line_search_is_compared_with_the_full_search_of_the_table():
    full = {row["network"]: row["focal temperature"] for row in table("komisarenko_2024/stored_networks.csv")}
    rows = table("komisarenko_2024/line_search.csv")
    assert len(rows) == 3
    for row in rows:
        assert row["full"] == full[row["network"]]
        assert float(row["line"]) <= float(row["full"]) + 0.01


@pytest.mark.parametrize(("scale", "rows"), [("medium", 10), ("long", 6)])
def test_tables_of_larger_scales_are_those_of_the_study(scale, rows):
    cells = pl.read_csv(RESULTS / scale / "tables.csv", infer_schema_length=None).filter(
        pl.col("shift").fill_null("") == ""
    )
    by_ece, by_nll, focal = "Temperature(criterion='ece')", "Temperature", "FocalTemperature(criterion='nll')"
    expected = [("error", "Identity"), ("ece", "Identity"), ("ece", by_ece)]
    expected += [("nll", "Identity"), ("nll", by_nll), ("nll", focal)]
    section = (RESULTS / "README.md").read_text().partition(f"## {scale.title()} scale")[2].partition("\n## ")[0]
    losses = {loss.replace(", detach_weight=True", "") for loss in cells["loss"]}
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:2] == "| "]
    lines = [line for line in lines if line[0] in losses]
    assert len(lines) == rows
    for loss, error, ece, _, after, _, temperatures, _, nll, nll_after, nll_focal in lines:
        loss_cells = cells.filter(pl.col("loss").str.replace(", detach_weight=True", "", literal=True) == loss)
        values = {(row["metric"], row["calibrator"]): row for row in loss_cells.to_dicts()}
        for (metric, calibrator), text in zip(expected, (error, ece, after, nll, nll_after, nll_focal), strict=True):
            scale_factor, digits = (1, 4) if metric == "nll" else (100, 2)
            printed = float(text.replace("*", "").split()[0])
            assert printed == pytest.approx(
                scale_factor * values[metric, calibrator]["mean"], abs=0.51 * 10**-digits
            ), (loss, text)
        pair = [float(part) for part in temperatures.split(",")]
        fitted = [values["ece", calibrator]["temperature"] for calibrator in (by_ece, by_nll)]
        assert pair == pytest.approx(fitted, abs=0.0051)


def write_study(folder, file, rows):
    (folder / "made_with.json").write_text(json.dumps({"study": "wang_2021-small"}))
    common = {
        "shift": "",
        "dataset": "data",
        "network": "net",
        "metric": "ece",
        "calibrator": "Identity",
        "temperature": float("nan"),
    }
    pl.DataFrame([common | row for row in rows]).write_csv(folder / file)


def test_values_of_seeds_are_paired(tmp_path):
    first, second = [0.10, 0.12, 0.17], [0.13, 0.16, 0.18]
    values = [("cross_entropy", first), ("focal", second)]
    write_study(
        tmp_path, "rows.csv", [{"loss": x, "seed": i, "value": v} for x, vs in values for i, v in enumerate(vs)]
    )
    (row,) = [dict(zip(claims.HEAD, line, strict=True)) for line in claims.effects(tmp_path)]
    assert (row["test"], row["difference"]) == ("paired", "+2.67")
    assert float(row["p"]) == pytest.approx(ttest_rel(second, first).pvalue, rel=0.03)


def test_means_and_deviations_are_tested_unpaired(tmp_path):
    cells = [("cross_entropy", 0.10, 0.01), ("focal", 0.13, 0.02)]
    rows = [{"loss": loss, "mean": m, "deviation": s, "seeds": 5} for loss, m, s in cells]
    write_study(tmp_path, "tables.csv", rows)
    (row,) = [dict(zip(claims.HEAD, line, strict=True)) for line in claims.effects(tmp_path)]
    assert (row["test"], row["difference"]) == ("unpaired", "+3.00")
    expected = ttest_ind_from_stats(0.13, 0.02, 5, 0.10, 0.01, 5).pvalue
    assert float(row["p"]) == pytest.approx(expected, rel=0.03)


FOCAL_LOSSES, COMPARED_LOSSES = ("focal(gamma=3)", "flsd"), ("cross_entropy", "mmce", "brier")


def signs(scale, metric, calibrator, losses=FOCAL_LOSSES, references=COMPARED_LOSSES):
    """Return the signs of the differences of focal losses from the others, 0 if tested and not significant."""
    rows = {
        (row["loss"], row["reference"]): row
        for row in table("effects.csv")
        if (row["study"], row["metric"], row["calibrator"]) == (f"mukhoti_2020-{scale}", metric, calibrator)
    }
    row_signs = set()
    for row in (rows[loss, reference] for loss in losses for reference in references):
        is_significant = not row["p"] or float(row["p"]) < 0.05
        row_signs.add((1 if float(row["difference"]) > 0 else -1) if is_significant else 0)
    return row_signs


def verdicts():
    """Return the cells of the page's table of the four claims on focal loss, by claim and scale."""
    lines = (RESULTS / "README.md").read_text().partition("| claim | small |")[2].splitlines()[2:6]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {
        (int(name[0]), scale): text
        for name, *texts in cells
        for scale, text in zip(("small", "medium", "long"), texts, strict=True)
    }


def test_verdicts_on_focal_loss_follow_from_the_effects():
    """One verdict for each claim and scale, against MMCE and the Brier score, too."""
    before, after = "Identity", "Temperature(criterion='ece')"
    page = verdicts()
    assert len(page) == 12
    assert signs("small", "ece", before, references=("cross_entropy", "mmce")) == {-1}
    assert signs("small", "ece", before, references=("brier",)) == {1}
    assert "**holds**" in page[1, "small"]
    assert "**reversed** against Brier" in page[1, "small"]
    # before scaling, only the Brier score and MMCE of the larger scales lack a test, as they have one seed
    for scale in "medium", "long":
        assert signs(scale, "ece", before) == {1}
        assert page[1, scale].startswith("**reversed**")
    assert signs("small", "ece", after, references=("cross_entropy", "mmce")) == {0}
    assert signs("small", "ece", after, ("flsd",), ("brier",)) == {1}
    assert signs("medium", "ece", after) == {0, -1}
    assert signs("long", "ece", after, ("flsd",)) == {-1}
    assert signs("long", "ece", after, ("focal(gamma=3)",)) == {1}
    assert all(page[2, scale].startswith("**inconclusive**") for scale in ("small", "medium", "long"))
    assert signs("small", "confident_share", after, references=("cross_entropy",)) == {0}
    assert signs("small", "confident_share", after, references=("mmce",)) == {-1}
    assert "**inconclusive** against cross-entropy" in page[4, "small"]
    assert "**reversed** against MMCE" in page[4, "small"]
    for scale in "medium", "long":
        assert signs(scale, "confident_share", after) == {-1}
        assert page[4, scale].startswith("**reversed**")
    temperatures = [
        float(row["temperature"])
        for row in table("effects.csv")
        if (row["metric"], row["calibrator"]) == ("ece", after) and row["loss"] in FOCAL_LOSSES
    ]
    assert not any(0.9 <= temperature <= 1.1 for temperature in temperatures)  # those of the paper
    assert all(page[3, scale].startswith("**does not hold**") for scale in ("small", "medium", "long"))


def short(loss):
    return loss.replace(", detach_weight=True", "")


def significant_signs(study, calibrator, **names):
    """Return the sign of each loss's difference from its reference, 0 if it is not significant."""
    rows = [row for row in table("effects.csv") if (row["study"], row["calibrator"]) == (study, calibrator)]
    rows = [row for row in rows if row["metric"] == "ece" and all(row[key] == value for key, value in names.items())]
    return {
        short(row["loss"]): (float(row["difference"]) > 0) - (float(row["difference"]) < 0)
        if float(row["p"]) < 0.05
        else 0
        for row in rows
    }


WANG_TEMPERATURE = "Temperature(criterion='ece', grid='wang')"


def test_verdicts_on_strengths_follow_from_the_effects():
    study = "wang_2021_coefficients-small"
    before, after, binned = (significant_signs(study, x) for x in ("Identity", WANG_TEMPERATURE, "HistogramBinning"))
    assert set(before.values()) == {-1}
    assert [loss for loss, sign in after.items() if sign] == ["logit_norm(strength=0.05)"]
    assert after["logit_norm(strength=0.05)"] == 1
    assert set(binned.values()) == {0}
    rows = [row for row in table("effects.csv") if row["study"] == study and row["metric"] == "ece"]
    values = {(short(row["loss"]), row["calibrator"]): float(row["value"]) for row in rows}
    for name, weaker, stronger in (
        ("cross_entropy(smoothing={})", "0.05", "0.09"),
        ("logit_norm(strength={})", "0.01", "0.05"),
        ("focal(gamma={})", "1", "3"),
    ):
        assert values[name.format(stronger), "Identity"] < values[name.format(weaker), "Identity"]
    for calibrator, sign in (WANG_TEMPERATURE, 1), ("HistogramBinning", -1):
        assert all(sign * float(row["difference"]) > 0 for row in rows if row["calibrator"] == calibrator)


def test_verdicts_on_the_ece_at_the_best_temperature_follow_from_the_epochs():
    parts = {}
    for row in table("wang_2021_coefficients-small/val_optimal_ece.csv"):
        epoch, line = int(row["epoch"]), short(row["line"])
        parts.setdefault((line, 0 if epoch <= 7 else 1 if epoch <= 15 else 2), []).append(float(row["value"]))
    means = {key: sum(values) / len(values) for key, values in parts.items()}
    rises = {line: means[line, 1] - means[line, 0] for line, part in means if part == 0}
    assert rises["logit_norm(strength=0.05)"] > 2 * max(rises["cross_entropy"], 0)
    assert means["logit_norm(strength=0.05)", 2] < means["logit_norm(strength=0.05)", 1]
    assert max(rises["cross_entropy(smoothing=0.05)"], rises["cross_entropy(smoothing=0.09)"]) < rises["cross_entropy"]
    in_second_half = sorted((line for line, part in means if part == 2), key=lambda line: means[line, 2])
    assert in_second_half[-2:] == ["focal(gamma=3)", "logit_norm(strength=0.05)"]


def test_verdicts_on_other_focal_losses_follow_from_the_effects():
    before = significant_signs("mukhoti_2020-gammas", "Identity")
    after, by_equal_mass = (
        significant_signs("mukhoti_2020-gammas", f"Temperature(criterion={text})")
        for text in ("'ece'", "\"adaptive_ece(edges='mukhoti')\"")
    )
    assert before == {"focal(gamma=2)": -1, "Scheduled": 0}
    assert after == {"focal(gamma=2)": 0, "Scheduled": 0}
    assert by_equal_mass == {"focal(gamma=2)": 1, "Scheduled": 0}
    cells = [*table("mukhoti_2020-gammas/tables.csv"), *table("mukhoti_2020/tables.csv")]
    means = {
        row["loss"]: float(row["mean"])
        for row in cells
        if (row["metric"], row["shift"], row["calibrator"]) == ("ece", "", "Identity")
    }
    for lower_loss, higher_loss in (
        ("focal(gamma=2)", "focal(gamma=1)"),
        ("focal(gamma=3)", "focal(gamma=2)"),
        ("flsd", "flsd(thresholds=(0.2, 0.5), gammas=(5, 3, 2))"),
        ("Scheduled", "Scheduled(gammas=(5, 3, 1))"),
    ):
        assert means[lower_loss] < means[higher_loss]


def test_verdicts_on_the_size_of_the_validation_set_follow_from_the_effects():
    study = "wang_2021_validation_size-small"
    cells = [row for row in table(f"{study}/tables.csv") if (row["metric"], row["shift"]) == ("ece", "")]
    sizes = {row["dataset"]: row["dataset"].partition("val=")[2].partition(",")[0] for row in cells}
    significant = {}
    for dataset, size in sizes.items():
        means = {(row["loss"], row["calibrator"]): float(row["mean"]) for row in cells if row["dataset"] == dataset}
        l1_norm = "logit_norm(strength=0.05)"
        assert means[l1_norm, WANG_TEMPERATURE] > means[l1_norm, "Identity"]
        if size == "100":
            assert all(value > means[l1_norm, "Identity"] for (_, name), value in means.items() if name != "Identity")
        for calibrator in WANG_TEMPERATURE, "HistogramBinning":
            signs = significant_signs(study, calibrator, dataset=dataset)
            significant |= {(size, calibrator, loss): sign for loss, sign in signs.items() if sign}
    assert significant == {("3000", WANG_TEMPERATURE, "logit_norm(strength=0.05)"): 1}


def test_verdicts_on_inverse_focal_loss_follow_from_the_effects():
    study, inverse = "wang_2021_inverse-small", "inverse_focal(gamma=1)"
    before = significant_signs(study, "Identity")
    assert before == {"focal(gamma=3)": -1, "focal(gamma=1)": -1, inverse: 1}
    for calibrator in WANG_TEMPERATURE, "HistogramBinning":
        assert set(significant_signs(study, calibrator).values()) == {0}
    temperatures = {
        short(row["loss"]): float(row["temperature"])
        for row in table(f"{study}/tables.csv")
        if (row["metric"], row["calibrator"]) == ("ece", WANG_TEMPERATURE)
    }
    by_temperature = sorted(temperatures, key=lambda loss: temperatures[loss])
    assert by_temperature == ["focal(gamma=3)", "focal(gamma=1)", "cross_entropy", inverse]
