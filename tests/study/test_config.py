import pytest

from calibrant import InputError
from calibrant.study import Grid, Recipe, Run, Study

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


def test_a_grid_has_from_the_top_level_what_it_does_not_say_and_no_run_is_named_twice(tmp_path):
    path = tmp_path / "some.toml"
    path.write_text(GRIDS)
    runs = list(Study.load(path).runs())
    assert len(runs) == len({run.id for run in runs}) == 2 * 2 * 2 + 1  # brier with seed 2 stands in both
    assert {(run.loss.partition("(")[0], run.seed) for run in runs if "cifar100" in run.dataset} == {
        ("focal", 1), ("focal", 2), ("brier", 1), ("brier", 2)
    }  # fmt: skip
    assert all(run.shifts == ("gaussian_noise(severity=5, seed=0)",) for run in runs)


def test_a_scale_replaces_what_stands_at_the_top_level(tmp_path):
    path = tmp_path / "some.toml"
    path.write_text(GRIDS)
    small = Study.load(path, "small")
    assert small.name == "some-small"
    assert [run.seed for run in small.runs()] == [1, 2]
    assert next(small.runs()).recipe.milestones == (3, 5)
    with pytest.raises(InputError, match=r"some\.toml: no scale 'tiny'; it has small"):
        Study.load(path, "tiny")


def test_every_cell_of_the_grid_is_a_run(tiny):
    runs = list(Study.load(tiny).runs())
    assert len(runs) == len({run.id for run in runs}) == 8
    assert [run.seed for run in runs] == [0, 1, 2, 3] * 2


def test_spelling_does_not_change_the_identity():
    texts = "focal", "focal()", "focal(gamma=3)", "focal( gamma = 3.0 )"
    studies = [Study("x", (Grid(**GRID | {"losses": (text,)}),)) for text in texts]
    assert len({next(study.runs()).id for study in studies}) == 1


def test_what_matters_changes_the_identity():
    base = Run("digits", "resnet8", "focal", 0, Recipe())
    others = [
        Run("digits(val=200)", "resnet8", "focal", 0, Recipe()),
        Run("digits", "resnet20", "focal", 0, Recipe()),
        Run("digits", "resnet8", "brier", 0, Recipe()),
        Run("digits", "resnet8", "focal", 1, Recipe()),
        Run("digits", "resnet8", "focal", 0, Recipe(epochs=3)),
        Run("digits", "resnet8", "focal", 0, Recipe(), shifts=("svhn",)),
        Run("digits", "resnet8", "focal", 0, Recipe(), traces=("norm",)),
    ]
    assert len({run.id for run in [base, *others]}) == 8


def test_a_label_is_what_the_study_says():
    study = Study("x", (Grid(**GRID | {"losses": ("focal( gamma = 3.0 )",)}),))
    assert study.label("losses", next(study.runs()).loss) == "focal(gamma=3)"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("losess = []", "study has no key 'losess'; did you mean 'losses'?"),
        ("xyz = 1", "study has no key 'xyz'; it has name"),
        ("", "study needs 'datasets'"),
        ('datasets = ["digits"]\nnetworks = ["resnet8"]\nlosses = []', "at least one entry in losses"),
        ('datasets = ["digit"]\nnetworks = ["resnet8"]\nlosses = ["focal"]', "did you mean 'digits'?"),
        ('datasets = ["digits"]\nnetworks = ["resnet"]\nlosses = ["focal"]', "no 'resnet' among networks"),
        ('datasets = ["digits"]\nnetworks = ["resnet8"]\nlosses = ["focal(gama=1)"]', "focal has no 'gama'"),
        ('datasets = "digits"', "datasets must be tuple[str, ...], got 'digits'"),
        ("[recipe]\nepoch = 3", "recipe has no key 'epoch'; did you mean 'epochs'?"),
        ('[recipe]\nepochs = "3"', "epochs must be int, got '3'"),
        ("[recipe]\nepochs = true", "epochs must be int, got True"),
        ("[recipe]\nepochs = 0", "epochs >= 1"),
        ('[recipe]\nreduction = "max"', "reduction must be Literal['mean', 'sum'], got 'max'"),
        ("datasets = [", "not valid TOML"),
        ("grids = 3", "grids must be tables, written [[grids]], got 3"),
        ("grids = []", "at least one grid"),
        ('losses = ["focal"]\n[[grids]]\ndatasets = ["digits"]', "study needs 'networks'"),
        ('[[grids]]\ndataset = ["digits"]', "study has no key 'dataset'; did you mean 'datasets'?"),
        (f'{LISTS}shifts = ["gausian_noise"]', "no 'gausian_noise' among data"),
        (f'{LISTS}shifts = ["gaussian_noise(strength=1)"]', "gaussian_noise has no 'strength'; it has severity, seed"),
        (f'{LISTS}traces = ["norms"]', "no 'norms' among traces; did you mean 'norm'?"),
        (f'{LISTS}[beside]\ndataset = "cifar10"', "setting needs 'network'"),
    ],
)
def test_mistakes_fail_before_training(tmp_path, text, message):
    path = tmp_path / "study.toml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        Study.load(path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_told_of(tmp_path):
    with pytest.raises(InputError, match="cannot read study"):
        Study.load(tmp_path / "none.toml")
