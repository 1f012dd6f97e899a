"""The small scales of the sweeps: how many networks they train, and what the page of results shows of them."""

import json

import pytest

from benchmarks import results_page, small_sweeps
from calibrant.lab.study import Study
from calibrant.lab.study.results import made_with
from calibrant.lab.study.sweeps import _find_families

MAX_NEW_RUNS = 40
TOML = """
losses = ["cross_entropy", "focal(gamma=1)"]
networks = ["mlp(features=2, hidden=())"]
recipe = {epochs = 1, batch_size = 20, milestones = []}
calibrators = ["Identity", "Temperature(criterion='ece')"]
metrics = ["ece"]

[scales.tiny]
datasets = ["blobs(train=40, val=20, test=20)"]
"""


def test_sweeps_train_few_networks_in_the_order_of_the_papers():
    counts = {sweep.name: len(runs) for sweep, runs in small_sweeps.new_trainings()}
    assert list(counts) == [
        "wang_2021_coefficients-small",
        "mukhoti_2020-gammas",
        "wang_2021_validation_size-small",
        "wang_2021_inverse-small",
    ]
    assert counts["wang_2021_validation_size-small"] == 0
    assert sum(counts.values()) <= MAX_NEW_RUNS
    for sweep in small_sweeps.SWEEPS:
        seeds_by_loss = {}
        for run in sweep.runs():
            seeds_by_loss.setdefault(run.loss, set()).add(run.seed)
        assert {len(seeds) for seeds in seeds_by_loss.values()} == {3}


@pytest.mark.parametrize(
    ("sweep", "families"),
    [
        ("wang_2021_coefficients", {("cross_entropy", "smoothing"), ("logit_norm", "strength"), ("focal", "gamma")}),
        ("wang_2021_inverse", {("focal", "gamma")}),
    ],
)
def test_each_sweep_has_enough_values_for_its_figures(sweep, families):
    study = Study.load(sweep, "small")
    all_families = _find_families({study.label(run.loss): run.loss for run in study.runs()})
    assert families <= {(family.name.partition("(")[0], family.parameter) for family in all_families}
    assert all(0.0 in family.values.values() for family in all_families)


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    path = tmp_path / "tiny_sweep.toml"
    path.write_text(TOML)
    sweep = small_sweeps.Sweep(str(path), "tiny", "Tiny (Figure 1)")
    monkeypatch.setattr(small_sweeps.Sweep, "name", "tiny_sweep-tiny")
    return sweep


def test_tables_of_finished_sweeps_are_copied_and_shown(sweep, tmp_path):
    results = tmp_path / "results"
    tables = results_page.ResultTables(results)
    assert not sweep.is_finished(results)
    small_sweeps.run_sweeps([sweep], None, tmp_path / "out", results)
    assert sweep.is_finished(results)
    lines = tables.sweep_table(sweep.name).splitlines()
    assert [line.split(" | ")[0].strip("| ") for line in lines[2:]] == ["cross_entropy", "focal(gamma=1)"]
    mean = tables.mean(sweep.name, "focal(gamma=1)")
    assert f"{100 * mean:.2f}".lstrip("0") in lines[3]


def test_a_sweep_with_missing_runs_is_unfinished(sweep, tmp_path):
    study = Study.load(sweep.study, sweep.scale)
    folder = tmp_path / sweep.name
    folder.mkdir()
    for runs, is_finished in (list(study.runs())[:1], False), (list(study.runs()), True):
        (folder / "made_with.json").write_text(json.dumps(made_with(study, runs)))
        assert sweep.is_finished(tmp_path) == is_finished


def test_the_page_lists_what_is_unfinished():
    unfinished = [sweep for sweep in small_sweeps.SWEEPS if not sweep.is_finished(results_page.ROOT / "docs/results")]
    text = results_page.render(results_page.ROOT / "docs/results")
    assert all(sweep.command in text for sweep in unfinished)
