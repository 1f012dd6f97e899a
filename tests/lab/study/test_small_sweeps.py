"""The small scales of the sweeps: their networks, and the tables that are kept of them."""

import pytest

from benchmarks import small_sweeps
from calibrant.lab.study import Study
from calibrant.lab.study.sweeps import _find_families

TOML = """
losses = ["cross_entropy", "focal(gamma=1)"]
networks = ["mlp(features=2, hidden=())"]
recipe = {epochs = 1, batch_size = 20, milestones = []}
calibrators = ["Identity", "Temperature(criterion='ece')"]
metrics = ["ece"]

[scales.tiny]
datasets = ["blobs(train=40, val=20, test=20)"]
"""


@pytest.mark.parametrize(("study", "scale"), small_sweeps.SWEEPS)
def test_every_loss_has_three_seeds(study, scale):
    seeds_by_loss = {}
    for run in Study.load(study, scale).runs():
        seeds_by_loss.setdefault(run.loss, set()).add(run.seed)
    assert {len(seeds) for seeds in seeds_by_loss.values()} == {3}


def networks_of(name):
    return {(run.network, run.loss, run.seed, run.recipe) for run in Study.load(name, "small").runs()}


def test_the_size_of_the_validation_set_needs_no_other_networks():
    assert networks_of("wang_2021_validation_size") <= networks_of("wang_2021_coefficients")


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


def test_tables_of_finished_sweeps_are_copied(tmp_path):
    path = tmp_path / "tiny_sweep.toml"
    path.write_text(TOML)
    small_sweeps.run_sweeps([(str(path), "tiny")], None, tmp_path / "out", tmp_path / "results")
    copied = {p.relative_to(tmp_path / "results").as_posix() for p in (tmp_path / "results").rglob("*.*")}
    assert copied == {f"tiny_sweep-tiny/{name}" for name in small_sweeps.COPIED}
    assert "focal(gamma=1)" in (tmp_path / "results/tiny_sweep-tiny/tables.csv").read_text()
