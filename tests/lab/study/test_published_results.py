"""Published numbers, and their comparison with a study."""

import json
import math
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from refusals import refused
from rendered import assert_rendered

import calibrant
from calibrant.lab.study import RECIPES, Grid, Study
from calibrant.lab.study.config import Setting
from calibrant.lab.study.published_results import PaperComparison, PublishedResults
from calibrant.lab.study.tables import build_tables
from calibrant.metrics import metric_info

FOLDER = Path(calibrant.__file__).parent / "studies" / "published"
NAMES = sorted(path.stem for path in FOLDER.glob("*.toml"))
BY_ECE = "Temperature(criterion='ece')"
BY_ADAECE = "Temperature(criterion=\"adaptive_ece(edges='mukhoti')\")"
ADAECE = "adaptive_ece(edges='mukhoti')"
COUNTS = {
    # 10 pairs of data set and network, 10 losses: 4 metrics before and after T, and error; Table 7 without focal
    "mukhoti_2020": 10 * 10 * 9 + 2 * 2 * 2 * 2,
    "wang_2021": 4 * 4 * 4,
    "komisarenko_2024": 3 * 6 * 5 - 13,  # 13 numbers are not legible
}


@pytest.mark.parametrize("name", NAMES)
def test_every_number_has_a_place_in_the_catalog_and_is_plausible(name):
    published = PublishedResults.load(name)  # rejects unknown methods
    assert len(published.values) == COUNTS[name]
    for key, printed in published.values.items():
        highest = 1.0 if key[4].name != "nll" else 2.5
        assert 0.001 < printed.mean <= highest, key
        assert math.isnan(printed.deviation) or 0 <= printed.deviation < 0.05, key
        assert math.isnan(printed.temperature) or 0.4 <= printed.temperature <= 4.2, key
        assert math.isnan(printed.temperature) or "Temperature" in key[3].name, key
    assert set(published.datasets) == {key[0] for key in published.values}
    assert {dataset.recipe for dataset in published.datasets.values()} <= set(RECIPES.values())


@pytest.mark.parametrize("name", NAMES)
def test_tables_have_the_papers_form(name):
    file = tomllib.loads((FOLDER / f"{name}.toml").read_text())
    for table in file["tables"]:
        rows = len(file["datasets"]) if name != "mukhoti_2020" else 2 if table["source"] == "Table 7" else 10
        assert len(table["rows"]) == rows, table["source"]
        assert len({tuple(row[:2]) for row in table["rows"]}) == rows
        assert {row[0] for row in table["rows"]} <= set(file["datasets"])


def test_tables_that_repeat_each_other_agree():
    file = tomllib.loads((FOLDER / "mukhoti_2020.toml").read_text())
    first_cells: dict[tuple, str] = {}
    repeated = 0
    for table in file["tables"]:
        for dataset, network, *cells in table["rows"]:
            for loss, cell in zip(table["losses"], cells, strict=True):
                key = (dataset, network, loss, table["metric"], *table["columns"])
                repeated += key in first_cells
                assert first_cells.setdefault(key, cell) == cell, (table["source"], key)
    assert repeated == 30 + 90  # FLA-53 of Tables 1-3 in 4-6, all of 4-6 in 8-10


@pytest.mark.parametrize(
    ("paper", "names", "text", "source"),
    [
        ("mukhoti_2020", ("cifar10", "resnet50", "cross_entropy", "Identity", "ece"), "4.35", "Table 1"),
        ("mukhoti_2020", ("cifar10", "resnet50", "flsd", BY_ECE, "ece"), "0.95 (1.10)", "Table 1"),
        ("mukhoti_2020", ("cifar100", "wide_resnet", "focal", "Identity", ADAECE), "2.08", "Table 5"),
        ("mukhoti_2020", ("cifar10", "wide_resnet", "cross_entropy", BY_ADAECE, ADAECE), "1.69 (2.20)", "Table 2"),
        ("mukhoti_2020", ("cifar100", "densenet121", "cross_entropy", "Identity", "nll"), "2.0561", "Table 11"),
        ("mukhoti_2020", ("cifar10", "wide_resnet", "focal(gamma=1)", BY_ECE, "mce"), "74.58", "Table 14"),
        ("mukhoti_2020", ("cifar10", "resnet50", "mmce", BY_ECE, "confident_accuracy"), "100.00", "Table 7"),
        (
            "wang_2021",
            ("cifar10(protocol='wang')", "resnet32", "cross_entropy", "HistogramBinning", "ece"),
            "0.74 ± 0.15",
            "Table 2",
        ),
        (
            "wang_2021",
            ("newsgroups", "cnn8_text", "cross_entropy", "Temperature(criterion='ece', grid='wang')", "ece"),
            "3.11 ± 0.33 (4.18)",
            "Table 2",
        ),
        (
            "komisarenko_2024",
            ("cifar10", "resnet50", "cross_entropy", f'FocalTemperature(criterion="{ADAECE}")', ADAECE),
            "0.71 ± 0.16 (2.36)",
            "Table 1",
        ),
    ],
)
def test_numbers_match_the_paper(paper, names, text, source):
    published = PublishedResults.load(paper).find(*names)
    assert (published.text(metric_info(names[4])), published.source) == (text, source)


def test_temperatures_match_the_text_of_the_paper():
    numbers = PublishedResults.load("mukhoti_2020").values
    ours = [
        p.temperature
        for (data, _, loss, calibrator, metric), p in numbers.items()
        if data.name == "cifar10" and loss.name in ("cross_entropy", "mmce") and metric.name == "ece"
        if calibrator.name != "Identity"
    ]
    assert len(ours) == 8
    assert min(ours) >= 2.0  # "values lying between 2.0 to 2.8"
    assert max(ours) <= 2.8
    focal = [
        p.temperature
        for (data, _, loss, _, metric), p in numbers.items()
        if data.name == "cifar10" and loss.canonical.startswith("flsd(thresholds=(0.2,)") and metric.name == "ece"
    ]
    assert {t for t in focal if not math.isnan(t)} <= {0.9, 1.0, 1.1}


@pytest.mark.shared
def test_numbers_match_the_authors_networks(shared):
    published = PublishedResults.load("mukhoti_2020")
    losses = {"brier": "brier", "flsd53": "flsd"}
    for name, values in json.loads((shared / "logits" / "published.json").read_text()).items():
        dataset, network, loss = re.fullmatch(r"mukhoti_(cifar\d+)_(.*)_([a-z0-9]+)", name).groups()
        place = dataset, network, losses[loss]
        for key, column, metric in (
            ("error", "Identity", "error"),
            ("ece", "Identity", "ece"),
            ("ece_at_T", BY_ECE, "ece"),
            ("adaece", "Identity", ADAECE),
            ("adaece_at_T", BY_ADAECE, ADAECE),
            ("nll_x100", "Identity", "nll"),
            ("nll_x100_at_T", BY_ECE, "nll"),
            ("mce", "Identity", "mce"),
            ("mce_at_T", BY_ECE, "mce"),
        ):
            assert 100 * published.find(*place, column, metric).mean == pytest.approx(float(values[key])), (name, key)
        assert published.find(*place, BY_ECE, "ece").temperature == float(values["T_ece"])
        assert published.find(*place, BY_ADAECE, ADAECE).temperature == float(values["T_adaece"])


def test_unknown_papers_are_refused_and_missing_numbers_are_none():
    with refused("unknown_name") as caught:
        PublishedResults.load("mukhoti")
    assert "'mukhoti_2020'" in str(caught.value)
    assert PublishedResults.load("wang_2021").find("cifar10", "resnet32", "cross_entropy", "Identity", "ece") is None


@pytest.mark.parametrize(
    ("change", "code", "mention"),
    [
        (('"1.84±0.19"', '"1.84+-0.19"'), "not_numbers", "'1.84+-0.19'"),
        (('"resnet32"', '"resnet33"'), "unknown_method", "'resnet33'"),
        (('"3.03±0.16",  ', ""), "row_length", "3"),
        (('paper = "Wang et al. (2021)"', ""), "missing_key", "'paper'"),
        (("[names]", "[names"), "toml", "mine.toml"),
    ],
)
def test_files_with_errors_are_rejected(tmp_path, change, code, mention):
    text = (FOLDER / "wang_2021.toml").read_text()
    assert change[0] in text
    (tmp_path / "mine.toml").write_text(text.replace(*change, 1))
    with refused(code) as caught:
        PublishedResults.load(str(tmp_path / "mine.toml"))
    assert mention in str(caught.value)


def rows(study, value=0.05):
    for run in study.runs():
        for calibrator in study.calibrators:
            yield {
                "dataset": study.label(run.dataset),
                "network": study.label(run.network),
                "loss": study.label(run.loss),
                "seed": run.seed,
                "calibrator": calibrator.text,
                "shift": "",
                "metric": "ece",
                "value": value + run.seed / 1000,
                "temperature": 1.5 if calibrator.name != "Identity" else math.nan,
            }


GRID = Grid(("cifar10",), ("resnet50",), ("cross_entropy", "focal", "poly1"), recipe=RECIPES["mukhoti_cifar"])


def study(grid, **options):
    return Study("mine", (grid,), ("Identity", BY_ECE), ("ece",), **options)


def table_with_paper(study, examples=(45000, 5000, 10000)):
    published = PaperComparison(
        PublishedResults.load("mukhoti_2020"), study, dict.fromkeys((r.dataset for r in study.runs()), examples)
    )
    return build_tables(rows(study), published.find_value, published.note)[0]


def test_numbers_of_the_paper_are_rendered_in_every_form():
    table = table_with_paper(study(GRID))
    paper_texts = {row[2]: texts for row, _, texts in table.rendered_rows()}
    assert paper_texts["cross_entropy"] == ["4.35", "1.35 (2.50)"]
    assert paper_texts["poly1"] == []
    assert_rendered("study_table_beside_paper", f"{table.markdown()}\n\n{table.latex()}")
    record = next(r for r in table.records() if r["loss"] == "focal" and r["calibrator"] == BY_ECE)
    assert (record["mean"], record["paper_mean"], record["paper_temperature"]) == (0.05, pytest.approx(0.0142), 1.1)
    assert record["paper_source"] == "Table 4"


def test_differences_from_the_paper_are_noted():
    shorter = replace(
        GRID, recipe=replace(RECIPES["mukhoti_cifar"].with_epochs(35), precision="bf16-mixed", compile=True)
    )
    other_network = replace(GRID, networks=("resnet20",))
    assert table_with_paper(study(other_network)).notes == ()
    seeds = replace(GRID, seeds=(1, 2))
    # the authors' confidences of SST drop a third class after softmax
    sst = Grid(("sst(vectors='glove.840B.300d.txt', lookup='mukhoti')",), ("tree_lstm",), ("cross_entropy",))
    unknown = PaperComparison(PublishedResults.load("mukhoti_2020"), study(GRID))
    cases = {
        "recipe": table_with_paper(study(shorter)),
        "network": table_with_paper(
            study(other_network, published="mukhoti_2020", paper_setting=Setting("cifar10", "resnet50"))
        ),
        "examples": table_with_paper(study(GRID), (2500, 500, 10000)),
        "seeds": table_with_paper(study(seeds)),
        "unknown data": build_tables(rows(study(GRID)), unknown.find_value, unknown.note)[0],
        "confidences": table_with_paper(study(replace(sst, recipe=RECIPES["mukhoti_sst"])), (6920, 872, 1821)),
    }
    notes = (f"{case}\n{note}" for case, table in cases.items() for note in table.table_notes)
    assert_rendered("study_notes_on_paper", "\n\n".join(notes))


def test_remarks_on_a_loss_stand_beside_its_numbers():
    published = PublishedResults.load("komisarenko_2024")
    notes = []
    for loss in "inverse_focal", "AdaFocal":
        grid = replace(GRID, losses=(*GRID.losses, loss))
        notes.append(PaperComparison(published, study(grid)).note([]))
    assert "gammas never change" not in notes[0]
    assert "gammas never change" in notes[1]
