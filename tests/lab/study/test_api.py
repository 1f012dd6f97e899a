"""Functions and commands of studies: training, measuring, files, and reports of failures."""

import sys
from dataclasses import replace

import numpy as np
import polars
import pytest
from polars.testing import assert_frame_equal
from processes import finish, start
from refusals import refused
from typer.testing import CliRunner

from calibrant import registry
from calibrant.cli.study import study_app
from calibrant.lab import study as studies
from calibrant.lab.study import Grid, Recipe, Result, Store, Study
from calibrant.lab.study import measurements as rows_module
from calibrant.lab.study.datasets import DatasetCache
from calibrant.lab.study.engine import RunEvent
from calibrant.lab.study.progress import check_data, plan_lines, select_runs, train_all

MINE = '''
import torch
from torch import nn
from calibrant import calibrators, losses, metrics
from calibrant.lab import data, networks
from calibrant.lab.data import Split, Splits

@losses.register
def squared(logits, labels, *, power: float = 2.0):
    return (1 - logits.softmax(-1).gather(1, labels[:, None]).squeeze(1)) ** power

@losses.register
class Warming:
    """A loss that counts its epochs and changes itself."""
    def __init__(self, *, start: float = 0.5):
        self.strength = start
    def __call__(self, logits, labels):
        return self.strength * torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    def after_epoch(self, epoch, val):
        self.strength = min(1.0, self.strength + 0.25)
        return self
    def state_dict(self):
        return {"strength": self.strength}
    def with_state_dict(self, state):
        self.strength = state["strength"]
        return self

@metrics.metric("top-2 accuracy", unit="share", higher_is_better=True)
def top2(logits, labels):
    return (logits.topk(2).indices == labels[:, None]).any(1).double().mean()

@calibrators.register
class HalfTemperature:
    """A plain class, without a certificate."""
    def __init__(self, temperature):
        self.temperature = temperature
    @classmethod
    def fit(cls, logits, labels, *, strength: float = 2.0):
        return cls(strength)
    def __call__(self, logits):
        return logits / self.temperature

@networks.register
class Narrow(nn.Module):
    def __init__(self, classes, *, width: int = 8):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, classes))
    def forward(self, inputs):
        return self.layers(inputs)

def _split(n, seed):
    g = torch.Generator().manual_seed(seed)
    inputs = torch.randn(n, 2, generator=g)
    return Split(inputs, (inputs[:, 0] > 0).long() + (inputs[:, 1] > 0).long())

@data.register
def corners(root=None, *, n: int = 80):
    return Splits(_split(n, 0), _split(n, 1), _split(2 * n, 2), tuple("abc"))

@data.register
class Corners(Splits):
    def __init__(self, root=None, *, n: int = 80):
        super().__init__(_split(n, 3), _split(n, 4), _split(2 * n, 5), tuple("abc"))
'''
STUDY = """
with = ["mine_here.py"]
datasets = ["corners", "Corners(n=60)"]
networks = ["Narrow(width=4)"]
losses = ["squared", "Warming"]
calibrators = ["Identity", "HalfTemperature(strength=3)"]
metrics = ["top2", "ece"]
seeds = [0, 1]
[recipe]
epochs = 2
batch_size = 20
milestones = []
"""
RECIPE = Recipe(epochs=1, batch_size=20, milestones=())


@pytest.fixture
def mine(tmp_path):
    """Return the path of a study of user methods only."""
    (tmp_path / "mine_here.py").write_text(MINE)
    (tmp_path / "mine.toml").write_text(STUDY)
    return tmp_path / "mine.toml"


def blobs(losses=("focal",), networks=("mlp(features=2, hidden=())",), **options):
    settings = {"calibrators": ("Identity", "Temperature"), "metrics": ("error", "ece", "brier")} | options
    grid = Grid(("blobs(train=60, val=40, test=50)",), networks, losses, recipe=RECIPE)
    return Study("small", (grid,), **settings)


def test_user_methods_work_from_training_to_report(mine, tmp_path, forgotten, page):
    source = str(tmp_path / "mine_here.py")
    with refused("code_not_allowed") as caught:
        studies.run(mine, out=tmp_path / "out")
    assert "mine_here.py" in str(caught.value)
    result = studies.run(mine, out=tmp_path / "out", with_=[source])
    assert not result.failed
    assert len(result.rows) == 2 * 2 * 2 * 2 * 2
    temperatures = {row["calibrator"]: row["temperature"] for row in result.rows}
    assert temperatures["HalfTemperature(strength=3)"] == 3.0
    top2, ece = result.tables
    assert (top2.heading, ece.heading) == ("top2 (%)", "ece (%)")
    for (dataset, *_), cell in ((where, cell) for (where, _), cell in top2.cells.items() if cell.best):
        assert cell.mean == max(other_grid.mean for (where, _), other_grid in top2.cells.items() if where[0] == dataset)
    for text in ((tmp_path / "out" / "tables.md").read_text(), result.report.read_text()):
        assert "top2 (%)" in text
    assert r"top2 (\%)" in (tmp_path / "out" / "tables.tex").read_text()
    assert "<table" in result._repr_html_()


@pytest.mark.slow
def test_stateful_loss_starts_fresh_in_every_run(mine, tmp_path, forgotten):
    registry.include([str(tmp_path / "mine_here.py")])
    grid = Grid(("corners",), ("Narrow",), ("Warming",), (0, 1), RECIPE, traces=("gammas",))
    result = Study("x", (grid,), metrics=("top2",))
    together = studies.run(result, out=tmp_path / "together")
    _, second = result.runs()
    studies.run(result, out=tmp_path / "alone", select="seed=1")
    stores = Store(tmp_path / "together"), Store(tmp_path / "alone")
    assert np.array_equal(*(store.get(second, "test").logits for store in stores))
    assert next(iter(result.runs())).loss.bound_function.strength == 0.5
    assert not together.failed


@pytest.mark.slow
def test_measuring_processes_include_user_methods(mine, tmp_path, forgotten, monkeypatch):
    single = studies.run(mine, out=tmp_path / "out", with_=[str(tmp_path / "mine_here.py")])
    monkeypatch.setattr(rows_module, "MIN_PARALLEL_SECONDS", 0.0)
    parallel = studies.measure(mine, out=tmp_path / "out", jobs=2)
    assert_frame_equal(parallel.to_polars(), single.to_polars(), check_exact=True)


@pytest.mark.slow
def test_command_accepts_user_methods(mine, tmp_path):
    text = finish(start(mine, tmp_path / "out", "--with", str(tmp_path / "mine_here.py")))
    assert text.count("done ") == 8
    assert "top2 (%)" in (tmp_path / "out" / "tables.md").read_text()
    assert "report.html" in text


@pytest.mark.slow
def test_ray_workers_include_user_methods(mine, tmp_path):
    pytest.importorskip("ray", reason="ray is not installed")
    text = finish(start(mine, tmp_path / "out", "--with", str(tmp_path / "mine_here.py"), "--engine", "ray"))
    assert text.count("done ") == 8


def test_second_call_reuses_trainings_and_repeats_measurements(tmp_path, page):
    steps = []
    result = studies.run(blobs(("focal", "brier")), out=tmp_path / "out", progress=steps.append)
    assert isinstance(result, Result)
    assert [step.event.kind for step in steps if step.event] == ["epoch", "done"] * 2
    assert steps[-1].event is None  # calibrates and measures
    assert {t.metric for t in result.tables} == {"error", "ece", "brier"}
    assert result.folder == tmp_path / "out"
    assert result.report == tmp_path / "out" / "report.html"
    assert "calibrant.lab.study.run(Study(" in result.report.read_text()
    for part in ("ece (%)", "focal", "Temperature", result.finding):
        assert part in " ".join(str(result).split())
    assert_frame_equal(
        polars.read_csv(tmp_path / "out" / "rows.csv")["value"].to_frame(), result.to_polars()[["value"]]
    )

    steps.clear()
    again = studies.run(blobs(("focal", "brier")), out=tmp_path / "out", progress=steps.append)
    assert [step.event.kind for step in steps if step.event] == ["found", "found"]
    assert_frame_equal(again.to_polars(), result.to_polars(), check_exact=True)

    other_grid = studies.measure(
        blobs(("focal", "brier")), out=tmp_path / "out", calibrators=["Dirichlet"], metrics=["kuiper"]
    )
    assert {(row["calibrator"], row["metric"]) for row in other_grid.rows} == {("Dirichlet", "kuiper")}


def test_the_status_lists_unfinished_runs_and_estimates_their_time(tmp_path):
    study = blobs(("focal", "brier"))
    before = studies.status(study, out=tmp_path, estimate=True)
    assert (len(before.finished), len(before.remaining)) == (0, 2)
    assert before.seconds > 0
    assert "2 of 2 runs" in before.summary
    studies.run(study, out=tmp_path, select="focal")
    after = studies.status(study, out=tmp_path)
    assert [run.loss.text for run in after.finished] == ["focal"]
    assert [run.loss.text for run in after.remaining] == ["brier"]
    assert "missing  blobs" in str(after)
    assert studies.status(study, out=tmp_path, select="focal").remaining == []


def test_conditions_select_what_the_listing_prints():
    study = Study(
        "x", (Grid(("blobs",), ("resnet8",), ("cross_entropy", "cross_entropy(smoothing=0.1)"), (1, 10, 101)),)
    )

    def selected(*conditions):
        return [(run.loss.text, run.seed) for run in select_runs(study, conditions)]

    first, second = ("cross_entropy", 1), ("cross_entropy(smoothing=0.1)", 1)
    for run in study.runs():  # each line of the listing selects its run
        assert select_runs(study, study.describe(run)) == [run]
    assert selected("cross_entropy, seed 1") == selected("resnet8, cross_entropy, seed=1") == [first]
    assert selected("seed 1") == selected("seed=1") == [first, second]
    assert selected("smoothing", "seed 1") == [second]
    assert len(selected("smoothing")) == 3
    assert len(selected()) == len(select_runs(study)) == 6
    for conditions in (("smoothing", "seed 2"), ("seed 11",), ("entropy, seed 1",)):
        with refused("no_matching_run"):
            selected(*conditions)


def test_a_run_says_what_it_trains_and_where_slow_precision_can_be_changed(tmp_path, monkeypatch):
    steps = []
    studies.run(blobs(("focal",)), out=tmp_path / "out", progress=steps.append)
    assert steps[0].note
    assert "1 of 1 runs" in steps[0].text
    assert "32-true" in steps[0].text
    slow = list(blobs(("focal",)).with_precision("bf16-mixed").runs())
    for fast, lines in (False, 2), (True, 1):
        monkeypatch.setattr("calibrant.lab.study.progress.has_fast_bfloat16", lambda fast=fast: fast)
        assert len(list(plan_lines(slow, slow))) == lines


@pytest.mark.slow
def test_each_method_text_is_resolved_once_per_study(tmp_path, monkeypatch):
    (tmp_path / "one.toml").write_text(
        'datasets = ["blobs(train=60, val=40, test=50)"]\nnetworks = ["mlp(features=2, hidden=())"]\n'
        'losses = ["focal(gamma=2)", "dual_focal"]\nshifts = ["blobs(seed=3)"]\ntraces = ["norm"]\nseeds = [0, 1]\n'
        'calibrators = ["Identity", "HistogramBinning"]\nmetrics = ["error", "ece(bins=10)"]\n'
        'detection = ["energy(temperature=2)"]\nrecipe = {epochs = 1, batch_size = 20, milestones = []}\n'
    )
    resolved, original_method = [], registry.Registry.method

    def counted(self, text):
        resolved.append(text)
        return original_method(self, text)

    monkeypatch.setattr(registry.Registry, "method", counted)
    result = studies.run(tmp_path / "one.toml", out=tmp_path / "out")
    assert len(result.rows) == 2 * 2 * 2 * (2 + 4)
    texts = [
        *("blobs(train=60, val=40, test=50)", "mlp(features=2, hidden=())", "focal(gamma=2)", "dual_focal", "norm"),
        *("blobs(seed=3)", "Identity", "HistogramBinning", "error", "ece(bins=10)", "energy(temperature=2)"),
    ]
    assert {text: resolved.count(text) for text in texts} == dict.fromkeys(texts, 1)


BROKEN = """
import torch
from calibrant import calibrators, losses, metrics
from calibrant.lab import data, networks
from torch import nn

@networks.register
class Breaks(nn.Linear):
    def __init__(self, classes):
        super().__init__(2, classes)
    def forward(self, inputs):
        if self.training:
            raise RuntimeError("no wonder\\nof two lines")
        return super().forward(inputs)

@networks.register
def wide(classes):
    return nn.Linear(2, classes + 1)

@networks.register
def no_network(classes):
    return classes

@losses.register
def mean_loss(logits, labels):
    return nn.functional.cross_entropy(logits, labels)

@calibrators.register
class Careless:
    @classmethod
    def fit(cls, logits, labels):
        return cls()
    def __call__(self, logits):
        return logits * self.nothing

@metrics.metric("per example")
def vector(logits, labels):
    return logits.amax(1)

@data.register
def no_splits(root=None):
    return [1, 2, 3]
"""


@pytest.fixture
def broken(tmp_path, forgotten):
    (tmp_path / "broken_here.py").write_text(BROKEN)
    registry.include([str(tmp_path / "broken_here.py")])


def test_failing_run_is_reported_and_does_not_stop_others(tmp_path, broken):
    study = blobs(networks=("Breaks", "mlp(features=2, hidden=())"))
    result = studies.run(study, out=tmp_path / "out")
    ((run, why),) = result.failed.items()
    assert run.network.name == "Breaks"
    assert why == "RuntimeError: no wonder of two lines"
    assert len(result.rows) == 2 * 3
    assert f"blobs(train=60, val=40, test=50), Breaks, focal, seed 0: {why}" in " ".join(str(result).split())
    assert studies.status(study, out=tmp_path / "out").failed == [run]
    assert why in str(studies.status(study, out=tmp_path / "out"))
    assert "Traceback" in (Store(tmp_path / "out").partial(run) / "error.txt").read_text()

    separate = studies.run(blobs(networks=("Breaks",)), out=tmp_path / "alone")
    assert (len(separate.failed), separate.report, separate.rows) == (1, None, [])
    with refused("no_finished_run"):
        studies.measure(blobs(networks=("Breaks",)), out=tmp_path / "alone")


def test_the_output_folder_may_have_the_name_of_a_bundled_study(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "refinement").mkdir()
    with refused("no_finished_run"):  # not taken for a folder that the study reads
        studies.measure("refinement", out="refinement")


def test_diverging_network_does_not_stop_other_runs(tmp_path):
    wild = Grid(
        ("blobs(train=60, val=40, test=50)",),
        ("mlp(features=2)",),
        ("brier",),
        recipe=replace(RECIPE, learning_rate=1e38),
    )
    study = Study("wild", (wild, *blobs().grids), metrics=("nll",))
    result = studies.run(study, out=tmp_path / "out")
    ((run, why),) = result.failed.items()
    assert run.loss.name == "brier"
    assert "epoch 1" in why
    assert "40 of 40" in why
    assert {row["loss"] for row in result.rows if not row["diverged"]} == {"focal"}
    assert {row["diverged"] for row in result.rows if row["loss"] == "brier"} == {1}


def test_progress_names_a_run_by_its_differences_from_the_others(tmp_path):
    def at_once(_, runs, store):
        return (RunEvent("done", run, {"seconds": 1.0}) for run in runs)

    single = Grid(("digits",), ("resnet8",), ("focal",), (0,), Recipe())
    for other_grid, labels in (
        (replace(single, seeds=(1,)), ["focal, seed 0", "focal, seed 1"]),
        (
            replace(single, recipe=Recipe(choose="accuracy")),
            ["focal with choose=last, seed 0", "focal with choose=accuracy, seed 0"],
        ),
        (replace(single, datasets=("svhn",)), ["digits, focal, seed 0", "svhn, focal, seed 0"]),
    ):
        study = Study("x", (single, other_grid))
        steps = train_all(study, list(study.runs()), Store(tmp_path), DatasetCache(None), at_once)
        assert [step.text for step in steps] == [f"done {words}, 1 s" for words in labels]


def test_progress_counts_runs_that_other_processes_finished(tmp_path):
    study, data = blobs(("focal", "brier")), DatasetCache(None)
    studies.run(study, out=tmp_path, select="brier", progress=lambda _: None)
    runs = list(study.runs())
    store, _ = check_data(runs, Store(tmp_path), data)

    def train_the_first(_, runs, store):
        yield RunEvent("done", runs[0], {"seconds": 1.0})
        yield RunEvent("found", runs[1], {})

    steps = train_all(study, runs, store, data, train_the_first)
    assert [step.details for step in steps] == ["2 of 2 runs", "2 of 2 runs"]


def test_the_command_reports_the_failed_run_and_its_error(tmp_path, broken):
    (tmp_path / "b.toml").write_text(
        'datasets = ["blobs(train=60, val=40, test=50)"]\nnetworks = ["Breaks"]\nlosses = ["focal"]\n'
        "recipe = {epochs = 1, batch_size = 20, milestones = []}\n"
    )
    completed = CliRunner().invoke(study_app, ["run", str(tmp_path / "b.toml"), "--out", str(tmp_path / "out")])
    assert completed.exit_code == 1
    assert "Breaks, focal, seed 0: RuntimeError: no wonder of two lines" in " ".join(completed.output.split())


@pytest.mark.parametrize(
    ("changes", "code", "mentions"),
    [
        ({"losses": ("mean_loss",)}, "loss_shape", ("mean_loss", "3 classes")),
        ({"calibrators": ("Careless",)}, "method_failed", ("AttributeError: 'Careless'",)),
        ({"metrics": ("vector",)}, "not_a_number", ("vector", "3 classes")),
        ({"networks": ("wide",)}, "logits_shape", ("wide", "(2, 3)", "(2, 4)")),
        ({"networks": ("no_network",)}, "not_a_network", ("no_network", "int")),
        ({"networks": ("mlp(features=7)",)}, "network_input", ("mlp(features=7)",)),
        ({"published": "mukhoti"}, "unknown_name", ("'mukhoti_2020'",)),
    ],
)
def test_broken_methods_are_refused_before_training(tmp_path, broken, changes, code, mentions):
    steps = []
    with refused(code) as caught:
        studies.run(blobs(**changes), out=tmp_path / "out", progress=steps.append)
    assert [part for part in mentions if part not in str(caught.value)] == []
    assert steps == []


def test_data_sets_that_are_not_splits_are_refused(tmp_path, broken):
    study = Study("x", (Grid(("no_splits",), ("resnet8",), ("focal",)),))
    with refused("no_data", "no_splits", "Splits", "list"):
        studies.run(study, out=tmp_path / "out")


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"engine": "rays"}, "unknown_engine"),
        ({"gpus": 0.25}, "needs_ray"),
        ({"scale": "small"}, "scale_without_file"),
        ({"track": "tensorbord"}, "unknown_tracker"),
        ({"select": "resnet"}, "no_matching_run"),
    ],
)
def test_impossible_arguments_are_refused_before_training(tmp_path, options, code):
    with refused(code):
        studies.run(blobs(), out=tmp_path / "out", **options)
    assert not list(tmp_path.glob("out/runs/*"))


def test_failing_user_calibrator_is_named(tmp_path, broken, calibrated_predictions):
    study = blobs(calibrators=("Careless",))
    store, run = Store(tmp_path / "out"), next(study.runs())
    store.save(run, {"val": calibrated_predictions, "test": calibrated_predictions}, {"seconds": 1.0})
    result = studies.measure(study, out=tmp_path / "out")
    assert {row["reason"] for row in result.rows} == {
        "Careless: AttributeError: 'Careless' object has no attribute 'nothing'"
    }
    assert {cell.text(table.metric_info) for table in result.tables for cell in table.cells.values()} == {"n/a"}


@pytest.mark.slow
def test_store_works_without_fcntl():
    import subprocess

    code = "import torch, sys; sys.modules['fcntl'] = None; import calibrant.lab.study.store"
    assert subprocess.run([sys.executable, "-c", code], env=start_environment(), check=False).returncode == 0


def start_environment():
    from processes import ENVIRONMENT

    return ENVIRONMENT
