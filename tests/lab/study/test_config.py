import hashlib
import pickle
import sys

import pytest
from refusals import refused

from calibrant import registry
from calibrant.lab.study import Grid, Recipe, Run, Study

GRID = {"datasets": ("digits",), "networks": ("resnet8",), "losses": ("focal",)}


LISTS = 'datasets = ["digits"]\nnetworks = ["resnet8"]\nlosses = ["focal"]\n'

GRIDS = """
losses = ["focal", "brier"]
seeds = [1, 2]
shifts = ["gaussian_noise"]

[[grids]]
datasets = ["cifar10", "cifar100"]
networks = ["resnet50"]
recipe = "mukhoti_cifar"

[[grids]]
datasets = ["cifar10"]
networks = ["resnet50"]
losses = ["brier", "mmce"]
seeds = [2]
recipe = "mukhoti_cifar"

[scales.small]
losses = ["focal"]
grids = [{datasets = ["cifar10(train=500)"], networks = ["resnet8"], recipe = {like = "mukhoti_cifar", epochs = 7}}]
"""


def test_grids_inherit_from_the_top_level_and_runs_are_unique(tmp_path):
    path = tmp_path / "some.toml"
    path.write_text(GRIDS)
    runs = list(Study.load(path).runs())
    assert len(runs) == len({run.id for run in runs}) == 2 * 2 * 2 + 1  # both grids hold brier with seed 2
    assert {(run.loss.name, run.seed) for run in runs if run.dataset.name == "cifar100"} == {
        ("focal", 1), ("focal", 2), ("brier", 1), ("brier", 2)
    }  # fmt: skip
    assert all([shift.canonical for shift in run.shifts] == ["gaussian_noise(severity=5, seed=0)"] for run in runs)


def test_scale_replaces_top_level_keys(tmp_path):
    path = tmp_path / "some.toml"
    path.write_text(GRIDS)
    small_study = Study.load(path, "small")
    assert small_study.name == "some-small"
    assert [run.seed for run in small_study.runs()] == [1, 2]
    assert next(small_study.runs()).recipe.milestones == (3, 5)
    with refused("scale") as caught:
        Study.load(path, "tiny")
    assert "some.toml" in str(caught.value)
    assert str(caught.value).endswith(" small")


def test_every_cell_of_the_grid_is_a_run(tiny):
    runs = list(Study.load(tiny).runs())
    assert len(runs) == len({run.id for run in runs}) == 8
    assert [run.seed for run in runs] == [0, 1, 2, 3] * 2


def test_spelling_does_not_change_the_run_id():
    texts = "focal", "focal()", "focal(gamma=3)", "focal( gamma = 3.0 )"
    studies = [Study("x", (Grid(**GRID | {"losses": (text,)}),)) for text in texts]
    assert len({next(study.runs()).id for study in studies}) == 1


IDS = {  # of the first run, and a digest of all: folders of finished runs have these names
    ("quickstart", None): ("f5f3645a0c4c", "e37c1b8c702d"),
    ("losses", None): ("a905fd5358ee", "83134db5d534"),
    ("mukhoti_2020", None): ("99d8d35aab17-fffdcb", "48219459a0f3"),
    ("mukhoti_2020", "small"): ("649d53854172-f69440", "85da078808c5"),
    ("komisarenko_2024", None): ("263860404fcf", "57e00a5e6043"),
    ("wang_2021_training_size", None): ("d1ae82bb91f7", "b6042cd0ba21"),
    ("adafocal_2022", None): ("10106288eec7-6c4f84", "16dfb9111f3b"),
}


@pytest.mark.parametrize(("name", "scale"), IDS)
def test_run_ids_are_stable(name, scale):
    ids = [run.id for run in Study.load(name, scale).runs()]
    assert (ids[0], hashlib.sha256("".join(ids).encode()).hexdigest()[:12]) == IDS[name, scale]


def test_runs_of_the_earlier_precision_keep_their_ids():
    """Small scales trained in bfloat16 before: `--precision bf16-mixed` finds these runs."""
    run = next(Study.load("mukhoti_2020", "small").with_precision("bf16-mixed").runs())
    assert run.id == "da01cbb25be7-f69440"


def test_a_text_alone_is_a_list_of_one():
    single = Study("x", (Grid("digits", "resnet8", "focal"),), "Temperature", "ece")
    assert single == Study("x", (Grid(("digits",), ("resnet8",), ("focal",)),), ("Temperature",), ("ece",))


def test_each_method_text_is_parsed_once(monkeypatch):
    read, original_method = [], registry.Registry.method

    def noted(self, text):
        read.append((self.kind, text))
        return original_method(self, text)

    monkeypatch.setattr(registry.Registry, "method", noted)
    runs = list(Study.load("wang_2021").runs())  # all grids repeat the losses
    assert all(run.id for run in runs)
    texts = [text for kind, text in read if kind == "losses"]
    assert "cross_entropy" in texts
    assert len(texts) == len(set(texts))


def test_runs_can_be_pickled():
    study = Study.load("mukhoti_2020", "small")
    runs = list(study.runs())
    again = pickle.loads(pickle.dumps(runs))
    assert again == runs
    assert set(again) == set(runs)
    assert [run.id for run in again] == [run.id for run in runs]
    assert pickle.loads(pickle.dumps(study)) == study


USER_CODE = """
from calibrant import losses, registry

@losses.register
def careless(logits, *, labels=None):
    return logits.sum(1)

@registry.METRICS.register
def bare(logits, labels):
    return 0.5
"""


@pytest.mark.parametrize(
    ("key", "text", "code"),
    [
        ("losses", "careless", "signature"),
        ("metrics", "bare", "undeclared_metric"),
        ("losses", "AdaFocal(lowest=-9)", "adafocal_limits"),
    ],
)
def test_invalid_methods_are_rejected_at_loading(tmp_path, forgotten, key, text, code):
    (tmp_path / "careless.py").write_text(USER_CODE)
    registry.include([str(tmp_path / "careless.py")])
    settings = GRID | ({"losses": (text,)} if key == "losses" else {})
    with refused(code):
        Study("x", (Grid(**settings),), **({"metrics": (text,)} if key == "metrics" else {}))


ALLOWED = """
from calibrant import losses

@losses.register
def own(logits, labels):
    return logits[:, 0]
"""


def test_user_code_needs_permission(tmp_path, forgotten, monkeypatch):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "own_loss.py").write_text(ALLOWED)
    (tmp_path / "sub" / "study.toml").write_text('with = ["own_loss.py"]\n' + LISTS.replace("focal", "own"))
    monkeypatch.chdir(tmp_path)
    with refused("code_not_allowed") as caught:
        Study.load("sub/study.toml")
    assert "--with sub/own_loss.py " in str(caught.value)
    assert "own_loss" not in sys.modules
    registry.include(["sub/own_loss.py"])
    assert next(Study.load(tmp_path / "sub" / "study.toml").runs()).loss.text == "own"


def test_every_setting_changes_the_run_id():
    base = Run("digits", "resnet8", "focal", 0, Recipe())
    variants = [
        Run("digits(val=200)", "resnet8", "focal", 0, Recipe()),
        Run("digits", "resnet20", "focal", 0, Recipe()),
        Run("digits", "resnet8", "brier", 0, Recipe()),
        Run("digits", "resnet8", "focal", 1, Recipe()),
        Run("digits", "resnet8", "focal", 0, Recipe(epochs=3)),
        Run("digits", "resnet8", "focal", 0, Recipe(), shifts=("svhn",)),
        Run("digits", "resnet8", "focal", 0, Recipe(), traces=("norm",)),
    ]
    assert len({run.id for run in [base, *variants]}) == 8


def test_split_by_seed_changes_training_but_not_labels():
    by_seed = Study("x", (Grid(**GRID, seeds=(1, 2), split="seed"),))
    fixed = Study("x", (Grid(**GRID, seeds=(1, 2)),))
    assert [run.divided_dataset.text for run in by_seed.runs()] == ["digits(seed=1)", "digits(seed=2)"]
    assert {by_seed.names(run) for run in by_seed.runs()} == {("digits", "resnet8", "focal")}
    assert not {run.training_id for run in by_seed.runs()} & {run.training_id for run in fixed.runs()}
    assert next(by_seed.runs()).id == Run("digits(seed=1)", "resnet8", "focal", 1, Recipe()).id
    combined = Study("x", by_seed.grids + fixed.grids)
    assert {combined.names(run)[2] for run in combined.runs()} == {"focal with split=seed", "focal with split=fixed"}


@pytest.mark.parametrize(
    ("dataset", "code"),
    [("tiny_imagenet", "no_seed"), ("digits(seed=3)", "seed_twice")],
)
def test_split_by_seed_rejects_data_sets_without_seed(dataset, code):
    with refused(code):
        Grid(**GRID | {"datasets": (dataset,)}, split="seed")


def test_labels_use_the_spelling_of_the_study():
    study = Study("x", (Grid(**GRID | {"losses": ("focal( gamma = 3.0 )",)}),))
    assert study.label(next(study.runs()).loss) == "focal(gamma=3)"


@pytest.mark.parametrize(
    ("text", "code", "mentions"),
    [
        ("losess = []", "unknown_key", ("'losess'", "'losses'")),
        ("xyz = 1", "unknown_key", ("'xyz'", "beside, calibrators")),
        ("", "missing_key", ("'datasets'",)),
        ('datasets = ["digits"]\nnetworks = ["resnet8"]\nlosses = []', "no_entries", ("losses",)),
        ('datasets = ["digit"]\nnetworks = ["resnet8"]\nlosses = ["focal"]', "unknown_method", ("'digits'",)),
        (
            'datasets = ["digits"]\nnetworks = ["resnet"]\nlosses = ["focal"]',
            "unknown_method",
            ("'resnet'", "networks"),
        ),
        ('datasets = ["digits"]\nnetworks = ["resnet8"]\nlosses = ["focal(gama=1)"]', "unknown_setting", ("'gama'",)),
        ('datasets = "digits"', "type_of_key", ("datasets", "a list", "'digits'")),
        ("[recipe]\nepoch = 3", "unknown_key", ("recipe", "'epoch'", "'epochs'")),
        ('[recipe]\nepochs = "3"', "type_of_key", ("epochs", "'3'")),
        ("[recipe]\nepochs = true", "type_of_key", ("epochs", "True")),
        ("[recipe]\nepochs = 0", "recipe_epochs", ("1",)),
        ('[recipe]\nreduction = "max"', "type_of_key", ("reduction", "'mean'", "'max'")),
        ("datasets = [", "toml", ()),
        (f'{LISTS}split = "seeds"', "type_of_key", ("split", "'fixed'", "'seeds'")),
        ("grids = 3", "type_of_key", ("[[grids]]", "3")),
        ("grids = []", "no_grids", ()),
        ('losses = ["focal"]\n[[grids]]\ndatasets = ["digits"]', "missing_key", ("'networks'",)),
        ('[[grids]]\ndataset = ["digits"]', "unknown_key", ("'dataset'", "'datasets'")),
        (f'{LISTS}shifts = ["gausian_noise"]', "unknown_method", ("corruptions", "data", "'gaussian_noise'")),
        (f'{LISTS}shifts = ["gaussian_noise(strength=1)"]', "unknown_setting", ("'strength'", "severity, seed")),
        (f'{LISTS}traces = ["norms"]', "unknown_method", ("traces", "'norm'")),
        (f'{LISTS}[beside]\ndataset = "cifar10"', "missing_key", ("'network'",)),
    ],
)
def test_study_file_errors_are_rejected_at_loading(tmp_path, text, code, mentions):
    path = tmp_path / "study.toml"
    path.write_text(text)
    with refused(code) as caught:
        Study.load(path)
    assert [part for part in mentions if part not in str(caught.value)] == []


def test_a_byte_order_mark_is_no_part_of_a_study_file(tmp_path):
    for name, encoding in (("a.toml", "utf-8"), ("b.toml", "utf-8-sig")):
        (tmp_path / name).write_text(LISTS, encoding=encoding)
    assert Study.load(tmp_path / "a.toml").grids == Study.load(tmp_path / "b.toml").grids
    with refused("scale", "small"):
        Study.load(tmp_path / "a.toml", scale="small")


def test_a_missing_file_is_refused(tmp_path):
    with refused("unreadable"):
        Study.load(tmp_path / "none.toml")


def test_training_that_two_grids_monitor_differently_is_one_run():
    monitored = {"traces": ("norm",)}, {}, {"traces": ("norm", "gammas"), "shifts": ("gaussian_noise",)}
    grids = [Grid(("digits",), ("resnet8",), ("focal",), **fields) for fields in monitored]
    (run,) = Study("x", grids).runs()
    assert [method.text for method in (*run.shifts, *run.traces)] == ["gaussian_noise", "norm", "gammas"]
