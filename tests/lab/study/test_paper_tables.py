"""One table of a paper: printed values, the study's own beside them, and both tests."""

import math

import pytest
from refusals import refused
from scipy.stats import ttest_ind_from_stats

from calibrant.cli import app
from calibrant.lab import study
from calibrant.lab.study import Study
from calibrant.lab.study.paper_tables import paper_table
from calibrant.lab.study.published_results import load_paper, study_tables
from calibrant.lab.study.significance import unpaired_p_value


def test_test_of_printed_means_is_students():
    expected = ttest_ind_from_stats(0.95, 0.19, 5, 1.39, 0.28, 5).pvalue
    assert unpaired_p_value((0.95, 0.19), (1.39, 0.28), 5) == pytest.approx(expected, rel=1e-12)
    assert math.isnan(unpaired_p_value((0.95, math.nan), (1.39, 0.28), 5))
    assert math.isnan(unpaired_p_value((0.95, 0.19), (1.39, 0.28), 1))
    assert math.isnan(unpaired_p_value((0.95, 0.0), (0.95, 0.0), 5))


def test_thirteen_of_the_24_means_of_wang_are_significantly_higher(tmp_path):
    table = study.table("wang_2021", "Table 2", out=tmp_path)
    assert len(table.rows) == 32
    marks = [row.paper_mark for row in table.rows]
    assert (marks.count(""), marks.count("▲"), marks.count("▼"), marks.count("△"), marks.count("▽")) == (
        8,
        13,
        0,
        10,
        1,
    )
    assert all(row.cell is None for row in table.rows)


def test_printed_values_of_an_undefined_loss_are_shown(tmp_path):
    table = study.table("mukhoti_2020", "Table 7", out=tmp_path)
    focal = [row.paper.mean for row in table.rows if row.names[2] == "Focal Loss"]
    assert focal == pytest.approx([0.6141, 0.3110, 0.4631, 0.1427, 0.9951, 0.9968, 0.9957, 0.9993])
    assert {row.paper_mark for row in table.rows} == {""}  # no deviations


def test_a_table_that_repeats_another_is_whole(tmp_path):
    first, repeated = (study.table("mukhoti_2020", f"Table {i}", out=tmp_path) for i in (4, 8))
    assert {row.paper.mean for row in first.rows} <= {row.paper.mean for row in repeated.rows}


def test_cells_of_a_scale_are_beside_the_papers():
    small_study = Study.load("wang_2021", "small")
    names = {"dataset": small_study.grids[0].datasets[0].text, "network": "resnet8", "shift": "", "metric": "ece"}
    names |= {"calibrator": "HistogramBinning", "temperature": math.nan, "diverged": 0}
    values = {"cross_entropy": (0.02, 0.03, 0.02), "logit_norm(strength=0.05)": (0.03, 0.05, 0.04)}
    rows = [names | {"loss": x, "seed": i, "value": v} for x, vs in values.items() for i, v in enumerate(vs)]
    paper = load_paper(small_study)
    table = paper_table(paper, "Table 2", study_tables(rows, paper))
    cells = {row.names[:4]: row.cell for row in table.rows if row.cell is not None}
    assert {key: cell.mean for key, cell in cells.items()} == {
        ("CIFAR-10", "ResNet-32", "Cross-Entropy", "with HB"): pytest.approx(0.07 / 3),
        ("CIFAR-10", "ResNet-32", "L1 Norm", "with HB"): pytest.approx(0.04),
    }
    assert cells["CIFAR-10", "ResNet-32", "L1 Norm", "with HB"].mark == "▲"
    records = [record for record in table.records() if record["mean"] is not None]
    assert [record["paper_mean"] for record in records] == pytest.approx([0.0074, 0.0116])


def test_unknown_tables_and_studies_without_a_paper_are_refused(tmp_path):
    with refused("unknown_table"):
        study.table("wang_2021", "Table 9", out=tmp_path)
    with refused("no_paper"):
        study.table("quickstart", "Table 1", out=tmp_path)


def test_the_command_prints_one_table(tmp_path, capsys):
    app(["study", "table", "wang_2021", "Table 2", "--out", str(tmp_path)], standalone_mode=False)
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.rstrip().endswith("▲") for line in lines) == 13
    with refused("scale"):
        app(["study", "table", "wang_2021", "Table 2", "--scale", "tiny"], standalone_mode=False)
