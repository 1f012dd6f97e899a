"""Reports of several data sets compare nothing across them, and have unique captions."""

import math
import re
from dataclasses import replace

import pytest
import torch
from rendered import assert_rendered

from calibrant import Predictions
from calibrant.lab.study import Grid, Recipe, Store, Study, report
from calibrant.lab.study.grids import RunNames
from calibrant.lab.study.measurements import measure_runs
from calibrant.lab.study.report import findings
from calibrant.lab.study.results import Result
from calibrant.lab.study.tables import ResultCell, build_tables
from calibrant.reports import document as doc

LONG, SHORT = Recipe(epochs=9, milestones=(3,)), Recipe(epochs=4, milestones=(3,))
LOSSES = ("cross_entropy", "focal", "brier")
STUDY = Study(
    "x",
    (
        Grid(("digits", "svhn"), ("resnet8",), LOSSES, (0, 1), LONG),
        Grid(("cifar10",), ("resnet8", "resnet20"), LOSSES, (0, 1), SHORT),
    ),
    metrics=("ece", "nll"),
)


@pytest.fixture(scope="module")
def measurements(tmp_path_factory):
    g = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(100, 3, generator=g)
    labels = torch.multinomial(logits.softmax(-1), 1, generator=g).squeeze(1)
    store = Store(tmp_path_factory.mktemp("store"))
    for i, run in enumerate(STUDY.runs()):
        p = Predictions((0.5 + 0.1 * i) * logits, labels)
        row = {"epoch": 1, "train_loss": 1.0, "learning_rate": 0.1, "val_error": 0.1, "val_nll": 1.0, "seconds": 1.0}
        store.save(run, {"val": p, "test": p}, {"seconds": 1.0}, [row])
    found_measurements = list(measure_runs(STUDY, store))
    built_tables = build_tables(row for measurement in found_measurements for row in measurement.rows)
    return built_tables, found_measurements, store


@pytest.mark.slow  # of drawing
def test_every_caption_is_unique(measurements, page, pictures):
    built_tables, found_measurements, store = measurements
    page = Result(STUDY, built_tables, found_measurements, failed={}, folder=store.root).html()
    captions = [re.sub(r"<[^>]*>", "", text) for text in re.findall(r"<figcaption>(.*?)</figcaption>", page, re.DOTALL)]
    assert len(captions) >= 2 * 2 * 12  # curves and bars, before and after, of every loss in every place
    assert len(set(captions)) == len(captions)


def num_pictures(part: doc.Part) -> int:
    return sum(map(num_pictures, getattr(part, "parts", ()))) + isinstance(part, doc.Picture)


def test_many_diagrams_are_not_drawn_twice(measurements, monkeypatch):
    monkeypatch.setattr(report, "MAX_BAR_DIAGRAM_PAIRS", 11)
    *curves, _, bars = report._reliability_parts(STUDY, measurements[1])
    assert sum(map(num_pictures, curves)) == 2 * 12
    assert isinstance(bars, doc.Note)
    assert "calibrant figures x" in bars.text


def test_every_network_and_data_set_has_a_finding(measurements):
    built_tables = measurements[0]
    text_by_setup = {str(setup): text for setup, text in findings(built_tables).items()}
    assert list(text_by_setup) == ["resnet8 on digits", "resnet8 on svhn", "resnet8 on cifar10", "resnet20 on cifar10"]
    ece = next(t for t in built_tables if t.metric == "ece")
    for setup, text in text_by_setup.items():
        lowest = min((r for r in ece.rows if str(r.setup) == setup), key=lambda r: ece.cells[r, "Identity"].mean)
        value = ece.cells[lowest, "Identity"].mean_text(ece.metric_info)
        section = text.partition("Without a calibrator, ")[2]
        assert section.startswith(f"no result is significantly the lowest; the lowest mean ECE in % is {value} by")


def test_findings_are_printed_in_lines(measurements):
    result = Result(STUDY, measurements[0], measurements[1], failed={}, folder=measurements[2].root)
    assert [line.partition(": ")[0] for line in result.finding.splitlines()] == [*map(str, findings(measurements[0]))]


def test_further_findings_are_folded(measurements, monkeypatch):
    built_tables = measurements[0]
    monkeypatch.setattr(report, "MAX_LISTED", 3)
    document = report.study_document(STUDY, built_tables)
    assert len(document.answers) == 4  # a single remaining one is listed, too
    assert not folds(document)
    monkeypatch.setattr(report, "MAX_LISTED", 2)
    document = report.study_document(STUDY, built_tables)
    assert len(document.answers) == 3
    assert " 2 " in document.answers[-1].text
    (fold,) = folds(document)
    unlisted = report._divide_findings(built_tables)[1]
    assert fold.parts == [doc.Paragraph(text, f"{setup}:") for setup, text in unlisted]


def folds(document: doc.Document) -> list[doc.Fold]:
    """Return the folded findings."""
    parts = [part for section in document.sections for part in section.parts]
    return [part for part in parts if isinstance(part, doc.Fold) and part.summary.startswith("Findings")]


def test_networks_stand_side_by_side(measurements):
    ece = next(t for t in measurements[0] if t.metric == "ece")
    table = report.side_by_side(ece)
    assert table.head == [
        "trained with",
        *(f"resnet8 on {name}" for name in ("digits", "svhn", "cifar10")),
        "resnet20 on cifar10",
    ]
    assert [row[0].text for row in table.rows] == list(LOSSES)
    for (_, *cells), bold, loss in zip(table.rows, table.bold, LOSSES, strict=True):
        for cell, is_bold, setup in zip(cells, bold, dict.fromkeys(row.setup for row in ece.rows), strict=True):
            mine = {column: ece.cells[(*setup, loss), column] for column in ece.columns}
            assert cell.text.startswith(ece.metric_info.text(mine["Identity"].mean))
            least = min(c.mean for c in mine.values())
            assert ece.metric_info.text(least) in cell.text + cell.detail
            lowest = min(ece.cells[(*setup, other_loss), "Identity"].mean for other_loss in LOSSES)
            assert is_bold == (mine["Identity"].mean == lowest)


def test_a_study_that_always_calibrates_claims_no_uncalibrated_number(measurements):
    rows = [row for measurement in measurements[1] for row in measurement.rows if row["calibrator"] == "Temperature"]
    calibrated_tables = build_tables(rows)
    assert "Without a calibrator" not in "".join(findings(calibrated_tables).values())
    side_by_side = str(report.side_by_side(calibrated_tables[0]))
    assert "With Temperature" in side_by_side
    assert "ithout" not in side_by_side
    assert "uncalibrated" not in side_by_side


def test_no_calibrator_is_the_best_of_a_diverged_network(measurements):
    table = next(t for t in measurements[0] if t.metric == "ece")
    cells = {key: replace(cell, values={}, diverged=2) for key, cell in table.cells.items()}
    side_by_side = str(report.side_by_side(replace(table, cells=cells)))
    assert "diverged" in side_by_side
    assert "best uncalibrated" not in side_by_side


def test_findings_give_only_the_range_of_many_temperatures(measurements):
    """A sentence that lists ten losses is unreadable."""
    table = next(t for t in measurements[0] if t.metric == "ece")
    (column,) = [c for c in table.columns if c.startswith("Temperature")]
    rows = [RunNames("digits", "resnet8", f"loss{i}") for i in range(10)]
    long_table = replace(
        table,
        rows=tuple(rows),
        cells={
            (r, c): ResultCell({0: 0.1}, 1.1 + i / 10 if c == column else math.nan)
            for i, r in enumerate(rows)
            for c in table.columns
        },
    )
    same = replace(long_table, cells={key: replace(cell, temperature=2.0) for key, cell in long_table.cells.items()})
    short_table = replace(long_table, rows=tuple(rows[:2]))
    assert_rendered(
        "study_findings_of_temperatures",
        "\n\n".join("\n".join(findings([measurement]).values()) for measurement in (long_table, same, short_table)),
    )


def test_tables_of_several_networks_have_headings_for_them(measurements):
    table = measurements[0][0].as_table()
    assert len(set(table.headings.values())) == len(table.headings) == 4
    assert "resnet8 on digits" in table.headings.values()
    assert sum(map(sum, table.bold)) >= 4  # the best of each, as the legend says


def test_every_recipe_is_listed(measurements):
    recipes = report.recipe_texts(STUDY, [measurement.run for measurement in measurements[1]])
    assert_rendered("study_recipes", "\n\n".join(f"{name}\n{text}" for name, text in recipes.items()))
