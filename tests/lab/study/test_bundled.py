"""Bundled studies load, and train what their papers trained."""

import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
from calibrant.registry import TRACES

import calibrant
from calibrant.lab.study import RECIPES, Study
from calibrant.lab.study.published_results import PublishedResults
from calibrant.metrics import metric_info

FOLDER = Path(calibrant.__file__).parent / "studies"
FILES = sorted(FOLDER.glob("*.toml"))
RUNS = {  # data sets and networks, losses, seeds
    "quickstart": 1 * 5 * 3,
    "losses": 1 * 29 * 3,
    "mukhoti_2020": 10 * 10 + 10 + 6,  # the later version: label smoothing everywhere, Tiny-ImageNet
    "komisarenko_2024": 3 * 8 * 5,
    "wang_2021": 4 * 4 * 5,
    "wang_2021_coefficients": 4 * 16 * 5,
    "wang_2021_inverse": 4 * 9 * 5,
    "wang_2021_resnet110": 2 * 4 * 5,
    "wang_2021_validation_size": 2 * 5 * 4 * 5,
    "wang_2021_training_size": 5 * (25 + 10 + 5),
    "loss_survey": 3 * 4,
    "refinement": 3 * 3 * 5,
    "adafocal_2022_bert": 6,
    "adafocal_2022_imagenet": 5,
    "adafocal_2022": 9 + 2 * 7 + 5 * 6 + 6 + 6,
}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_study_has_the_papers_runs(path):
    study = Study.load(path)
    runs = list(study.runs())
    assert len(runs) == RUNS[path.stem]
    assert len({run.id for run in runs}) == len(runs)
    assert study.title
    if study.published:
        PublishedResults.load(study.published)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_scale_is_smaller(path):
    full_study = Study.load(path)
    for scale in tomllib.loads(path.read_text()).get("scales", {}):
        study = Study.load(path, scale)
        assert sum(run.recipe.epochs for run in study.runs()) < sum(run.recipe.epochs for run in full_study.runs())
        assert study.name == f"{path.stem}-{scale}"


@pytest.mark.parametrize("name", sorted(path.stem for path in (FOLDER / "published").glob("*.toml")))
def test_studies_cover_every_printed_number_of_their_paper(name):
    study = Study.load(FOLDER / f"{name}.toml")
    assert study.published == name
    trained = {(run.dataset, run.network, run.loss): run.recipe for run in study.runs()}
    paper_results = PublishedResults.load(name)
    for dataset, network, loss, calibrator, metric in paper_results.values:
        assert trained[dataset, network, loss] == paper_results.recipe(dataset, network, loss)
        assert calibrator in study.calibrators
        assert metric in study.metrics


def test_the_papers_recipes_are_those_of_their_code():
    study = Study.load(FOLDER / "mukhoti_2020.toml")
    images = [run for run in study.runs() if run.dataset.name in ("cifar10", "cifar100", "tiny_imagenet")]
    assert {(run.loss.name, run.recipe.reduction) for run in images if run.loss.name in ("brier", "mmce", "flsd")} == {
        ("brier", "mean"),
        ("mmce", "sum"),
        ("flsd", "sum"),
    }
    longer = {(run.network.name, run.loss.name, run.recipe.epochs) for run in images if run.recipe.epochs > 350}
    assert longer == {("wide_resnet", "brier", 550), ("resnet110_bottleneck", "brier", 430)}
    assert {run.recipe.epochs for run in images} == {350, 550, 430, 100}
    assert {run.recipe.milestones for run in images} == {(149, 249), (39, 59)}
    watched = [run for run in study.runs() if run.traces]
    assert {(run.dataset.name, run.network.name) for run in watched} == {("cifar10", "resnet50")}
    tiny = {run.loss.name: run.recipe for run in study.runs() if run.dataset.name.startswith("tiny")}
    assert tiny["brier"].learning_rate == 0.035
    assert {recipe for loss, recipe in tiny.items() if loss != "brier"} == {
        RECIPES["komisarenko_tiny_imagenet"].for_loss("focal")
    }


def test_adafocal_trains_by_its_own_code():
    runs = list(Study.load(FOLDER / "adafocal_2022.toml").runs())
    assert {run.seed for run in runs} == {0}
    milestones = {run.dataset.name: run.recipe.milestones for run in runs}
    assert milestones["cifar10"] == (150, 250)
    assert milestones["tiny_imagenet"] == (40, 60)
    assert all((run.recipe.reduction == "mean") == (run.loss.name == "brier") for run in runs if run.recipe.clip)


def test_temperature_and_focal_scaling_search_the_same_grid():
    from calibrant.calibrators._focal import FOCAL_GRIDS
    from calibrant.calibrators._temperature import temperature_grid

    study = Study.load(FOLDER / "komisarenko_2024.toml")
    (scaling,) = [c for c in study.calibrators if c.name == "Temperature" and "ece" in c.text]
    focal = [c for c in study.calibrators if c.name == "FocalTemperature"]
    grids = {tuple(FOCAL_GRIDS[c.settings.get("grid", "text")][1]) for c in focal}
    assert grids == {tuple(temperature_grid(scaling.settings["grid"]))}
    assert len(temperature_grid("komisarenko")) == 500
    assert len(temperature_grid("komisarenko_code")) == 100


def test_labels_distinguish_several_recipes_of_one_loss():
    several = Study.load(FOLDER / "refinement.toml")
    names = {several.names(run)[2] for run in several.runs()}
    assert len(names) == 9
    assert "cross_entropy with weight_decay=0.005, choose=refinement" in names
    single = Study.load(FOLDER / "mukhoti_2020.toml")
    assert all(single.names(run)[2] == single.label(run.loss) for run in single.runs())


def test_runs_of_wang_draw_splits_by_seed_like_their_code():
    """Wang et al. (2021) use RandomState(seed) with seed 101 in the commands of their page."""
    for path in (path for path in FILES if path.stem.startswith("wang_2021")):
        runs = list(Study.load(path).runs())
        assert {run.seed for run in runs} <= {101, 102, 103, 104, 105}
        for run in runs:
            split_seed = run.divided_dataset.settings.get("seed")
            assert split_seed == (None if run.dataset.name == "newsgroups" else run.seed)


def test_validation_sizes_learn_from_the_same_images():
    """Wang et al. (2021), Figure 3, vary only the size of the validation set."""
    study = Study.load(FOLDER / "wang_2021_validation_size.toml")
    assert all("train=45000" in run.dataset.text and "protocol='wang'" in run.dataset.text for run in study.runs())


@pytest.mark.slow
@pytest.mark.shared
def test_validation_sizes_of_cifar10_share_training_images(shared):

    from calibrant.lab.data import cifar10

    small_val, large_val = (cifar10(shared / "datasets", train=45000, val=val, protocol="wang") for val in (500, 5000))
    assert np.array_equal(small_val.train.labels, large_val.train.labels)
    assert np.array_equal(small_val.train.inputs[:100], large_val.train.inputs[:100])
    assert np.array_equal(small_val.val.labels, large_val.val.labels[-500:])


def test_documentation_of_studies_matches_the_code(tmp_path):
    text = (Path(__file__).parents[3] / "docs" / "studies.md").read_text()
    study, *toml_texts, published = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    (tmp_path / "models.toml").write_text(next(toml_text for toml_text in toml_texts if "[[models]]" in toml_text))
    assert [model.id for model in Study.load(tmp_path / "models.toml").models] == ["resnet50, ImageNet, seed 0"]
    (tmp_path / "study.toml").write_text(study)
    (tmp_path / "published.toml").write_text(published.replace('= "mine"', '= "focal"'))
    assert len(list(Study.load(tmp_path / "study.toml").runs())) == 18
    paper_results = PublishedResults.load(str(tmp_path / "published.toml"))
    assert (
        paper_results.find("cifar10", "resnet50", "cross_entropy", "Temperature", "ece").text(metric_info("ece"))
        == "1.35 ± 0.10 (2.50)"
    )
    assert len(paper_results.values) == 3
    assert all(f"`{name}`" in text for name in RECIPES)
    assert set(re.findall(r"^\| `(\w+)(?:\(.*\))?` \| [a-zA-Z]", text, re.MULTILINE)) >= set(TRACES) - {"halt"}
    counts = dict(re.findall(r"^\| `(\w+)` \| .* \| (\d+) \|", text, re.MULTILINE))
    assert counts == {name: str(n) for name, n in RUNS.items() if name not in ("quickstart", "losses")}
