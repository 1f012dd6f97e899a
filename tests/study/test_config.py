import pytest

from calibrant import InputError
from calibrant.study import Recipe, Run, Study

GRID = {"datasets": ("digits",), "networks": ("resnet8",), "losses": ("focal",)}


def test_every_cell_of_the_grid_is_a_run(tiny):
    runs = list(Study.load(tiny).runs())
    assert len(runs) == len({run.id for run in runs}) == 8
    assert [run.seed for run in runs] == [0, 1, 2, 3] * 2


def test_spelling_does_not_change_the_identity():
    texts = "focal", "focal()", "focal(gamma=3)", "focal( gamma = 3.0 )"
    studies = [Study("x", **GRID | {"losses": (text,)}) for text in texts]
    assert len({next(study.runs()).id for study in studies}) == 1


def test_what_matters_changes_the_identity():
    base = Run("digits", "resnet8", "focal", 0, Recipe())
    others = [
        Run("digits(val=200)", "resnet8", "focal", 0, Recipe()),
        Run("digits", "resnet20", "focal", 0, Recipe()),
        Run("digits", "resnet8", "brier", 0, Recipe()),
        Run("digits", "resnet8", "focal", 1, Recipe()),
        Run("digits", "resnet8", "focal", 0, Recipe(epochs=3)),
    ]
    assert len({run.id for run in [base, *others]}) == 6


def test_a_label_is_what_the_study_says():
    study = Study("x", **GRID | {"losses": ("focal( gamma = 3.0 )",)})
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
