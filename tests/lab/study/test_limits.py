"""Invalid texts, nested ones too, and invalid numbers are rejected when a study is loaded."""

import math

import pytest
import torch
from calibrant.registry import CALIBRATORS, LOSSES, METRICS, TRACES
from refusals import refused

from calibrant import losses
from calibrant.lab.study import Grid, Recipe, Run, Study
from calibrant.lab.study.config import parse_recipe
from calibrant.lab.study.grids import Model
from calibrant.lab.study.train import mix_seed

STUDY = 'datasets = ["blobs"]\nnetworks = ["mlp(features=2)"]\nlosses = ["focal"]\n'


@pytest.mark.parametrize(
    ("registry", "text", "code"),
    [
        (CALIBRATORS, "Chain(first='x')", "unknown_method"),
        (CALIBRATORS, "Chain(second='Temperature(grid=3)')", "setting_range"),
        (CALIBRATORS, "Chain(first=\"Chain(second='x')\")", "unknown_method"),
        (CALIBRATORS, "PriorShift(calibrator='os.system')", "method_text"),
        (CALIBRATORS, "GroupCalibrated(calibrator='x')", "unknown_method"),
        (CALIBRATORS, "Temperature(criterion='x')", "unknown_method"),
        (CALIBRATORS, "Temperature(grid='x')", "setting_range"),
        (CALIBRATORS, "Temperature(grid=(1.0, -1.0))", "setting_range"),
        (CALIBRATORS, "FocalTemperature(criterion='x')", "unknown_method"),
        (CALIBRATORS, "FocalTemperature(grid='x')", "setting_range"),
        (LOSSES, "RegMixup(loss='x')", "unknown_method"),
        (LOSSES, "RegMixup(loss='focal(gamma='x')')", "method_text"),
        (TRACES, "values(metrics=('os.system',))", "method_text"),
        (TRACES, "values(metrics=('ece', 'ece(bins=0)'))", "setting_range"),
        (TRACES, "calibration(grid='x')", "setting_range"),
    ],
)
def test_nested_texts_are_checked_when_they_are_read(registry, text, code):
    with refused(code):
        registry.method(text)


def test_valid_nested_texts_are_accepted():
    for registry, text in (
        (CALIBRATORS, "Chain(first='Temperature', second='Temperature(grid=(1, 2))')"),
        (CALIBRATORS, "GroupCalibrated(calibrator='')"),
        (LOSSES, "RegMixup(loss='focal(gamma=2)')"),
        (TRACES, "values(metrics=('ece',))"),
        (METRICS, "ece"),
    ):
        assert registry.method(text).text


@pytest.mark.parametrize(
    "changes",
    [
        {"clip": -1.0},
        {"clip": 0.0},
        {"clip": math.nan},
        {"momentum": 5.0},
        {"momentum": -0.1},
        {"milestones": (-1,)},
        {"milestones": (3, 3)},
        {"milestones": (5, 3)},
        {"learning_rate": math.nan},
        {"learning_rate": math.inf},
        {"learning_rate": 0.0},
        {"vectors_learning_rate": -1.0},
        {"decay": -0.1},
        {"decay": math.nan},
        {"weight_decay": -1.0},
        {"weight_decay": math.inf},
        {"averaged": ("nope",)},
        {"batch_size": 0},
        {"epochs": 0},
        {"warmup": -1},
        {"warmup": 350},
    ],
    ids=str,
)
def test_recipes_reject_invalid_numbers(changes):
    with refused(f"recipe_{next(iter(changes))}"):
        Recipe(**changes)


@pytest.mark.parametrize(
    "changes", [{"precision": "31-true"}, {"epochs": 2.5}, {"optimizer": "sdg"}, {"compile": 3}, {"batch_size": True}]
)
def test_recipes_reject_wrong_types(changes):
    with refused("type_of_key"):
        parse_recipe(changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"milestones": [30, 40], "epochs": 30},
        {"milestones": [3], "schedule": "cosine"},
        {"decay": 0.5, "schedule": "cosine"},
        {"momentum": 0.9, "optimizer": "adam"},
        {"momentum": 0.9, "like": "mukhoti_sst"},
    ],
    ids=str,
)
def test_recipes_reject_settings_without_effect(changes):
    with refused(f"recipe_{next(iter(changes))}"):
        parse_recipe(changes)


def test_a_scaled_recipe_has_increasing_milestones():
    assert parse_recipe({"like": "mukhoti_cifar", "epochs": 2}).milestones == (1,)


@pytest.mark.parametrize("seed", [-1, 2**64, True])
def test_seeds_that_torch_does_not_take_are_refused(seed):
    for make in (
        lambda: Grid(("blobs",), ("mlp(features=2)",), ("focal",), (seed,)),
        lambda: Run("blobs", "mlp(features=2)", "focal", seed, Recipe()),
    ):
        with refused("seed"):
            make()


def test_a_seed_that_no_split_takes_is_refused_when_the_study_is_loaded():
    with refused("setting_range"):
        Grid(("blobs",), ("mlp(features=2)",), ("focal",), (2**40,), split="seed")


def test_seeds_do_not_share_the_order_of_examples():
    seeds = [0, 1, 2**61 - 2, 2**61 - 1, 2**61, 2**62, 2**64 - 1]
    assert len({mix_seed(seed, number) for seed in seeds for number in (1, 2)}) == 2 * len(seeds)
    assert mix_seed(7, 3, 1) == hash((7, 3, 1))  # seeds of finished runs must not change
    for seed in seeds:
        torch.Generator().manual_seed(mix_seed(seed, 1))


@pytest.mark.parametrize(
    "limits", ["lowest=5, highest=-5", "lowest=1, highest=1", "start=30", "start=-3", "lowest=-4", "highest=0.5"]
)
def test_adafocal_needs_its_start_between_its_limits(limits):
    with refused("adafocal_limits"):
        LOSSES.resolve(f"AdaFocal({limits})")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("recipe = {like = []}", "unknown_recipe"),
        ("beside = {dataset = 'cifar10', network = 'resnet50'}", "beside"),
        ("recipe = {like = 'mukhoti'}", "unknown_recipe"),
        ("[scales]\nx = 5", "scales"),
        ("scales = 3", "scales"),
        ("x = " + 100_000 * "[" + 100_000 * "]", "toml"),
        ("[[models]]\nname = 'a'\nval = 'v.csv'\ntest = 't.csv'\ncolumns = {drop = true}", "unknown_column"),
        ("[recipe]\nclip = nan", "recipe_clip"),
        ("[recipe]\nlearning_rate = inf", "recipe_learning_rate"),
        ("seeds = [-1]", "seed"),
        ("seeds = [18446744073709551616]", "seed"),
        (f"{'k' * 5000} = 1", "unknown_key"),
        (f"published = ['{'k' * 5000}']", "type_of_key"),
        (f"traces = ['{'k' * 5000}']", "unknown_method"),
        (f"traces = ['{'k' * 5000} ( ']", "method_text"),
        (f"metrics = ['ece({'k' * 5000}=1)']", "unknown_setting"),
        (f"name = '{'k' * 5000}'", "name"),
    ],
    ids=lambda value: value[:40],
)
def test_broken_studies_are_refused_in_one_short_line(tmp_path, text, code):
    parts = (STUDY, text) if text.startswith("[") else (text, STUDY)  # in TOML, keys precede tables
    (tmp_path / "study.toml").write_text("\n".join(parts))
    with refused(code) as caught:
        Study.load(tmp_path / "study.toml")
    assert len(str(caught.value)) < 1500


def test_a_model_refuses_unknown_columns():
    with refused("unknown_column"):
        Model("a", "val.csv", "test.csv", columns={"drop": True})


def test_regmixup_passes_class_counts_on():
    counts = torch.tensor([6, 2])
    mixing = losses.for_counts(LOSSES.resolve("RegMixup(loss='class_balanced')"), counts)
    z, y = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0])
    expected = losses.class_balanced(z, y, counts=counts)
    torch.testing.assert_close(mixing(z, y), expected)
