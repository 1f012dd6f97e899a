"""Commands of bundled studies reproduce the tables and figures that they list."""

import shlex
import tomllib
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import typer
from refusals import refused
from small_data import write_images, write_text

import calibrant
from calibrant.cli import app
from calibrant.lab import figures, study
from calibrant.lab.study import Grid, Study
from calibrant.lab.study.config import Exhibit

BUNDLED = sorted(path.stem for path in (Path(calibrant.__file__).parent / "studies").glob("*.toml"))
WALKED = [
    name for name in BUNDLED if name not in ("adafocal_2022_bert", "adafocal_2022_imagenet")
]  # same as adafocal_2022
QUICK = ("quickstart",)  # the others take minutes each
MAX_LOSSES = {"komisarenko_2024": 2}  # the calibrators of this study are slow
IMAGES = "cifar10", "cifar100", "svhn"


def parsed(command: str) -> dict[str, Any]:
    """Parse a command line, and return its parameters and the name of the command as `command`."""
    program, *words = shlex.split(command)
    assert program == "calibrant"
    click_command: Any = typer.main.get_command(app)
    while hasattr(click_command, "commands"):
        name, *words = words
        click_command = click_command.commands[name]
    return click_command.make_context("calibrant", words).params | {"command": click_command.name}


@pytest.mark.parametrize("name", BUNDLED)
def test_every_study_lists_its_exhibits_and_commands(name):
    exhibits = Study.load(name).drawn
    assert exhibits
    assert len({(exhibit.title, exhibit.command) for exhibit in exhibits}) == len(exhibits)
    for exhibit in exhibits:
        assert exhibit.names
        parameters = parsed(exhibit.command)
        about = parameters.get("study") or parameters.get("topic") or "quickstart"
        assert about in (name, "focal")


SCALES = [
    (path.stem, scale)
    for path in sorted((Path(calibrant.__file__).parent / "studies").glob("*.toml"))
    for scale in tomllib.loads(path.read_text()).get("scales", {})
]
SCORES = (
    "error",
    "nll",
    *(
        f"{score}_{subset}"
        for score in ("nll", "entropy", "confidence", "label_probability")
        for subset in ("correct", "wrong")
    ),
)


def curve_names(trace):
    """Return the patterns of the figures that a trace makes."""
    settings = {"split": "val"} | dict(trace.settings)
    split = settings["split"]
    return {
        "scores": [f"{split}_{score}" for score in SCORES],
        "calibration": [f"{split}_ece", f"{split}_optimal_ece", f"{split}_temperature"],
        "bins": [f"{split}_bin_gaps_*"],
        "gammas": ["gammas_*"],
        "norm": ["last_layer_norm"],
        "gradients": [f"gradient_norms_{epoch}" for epoch in settings.get("epochs", ())],
        "learned": ["learned_*"],
    }[trace.name]


@pytest.mark.parametrize(("name", "scale"), SCALES)
def test_every_scale_lists_what_it_makes(name, scale):
    at_scale = Study.load(name, scale)
    traces = [trace for grid in at_scale.grids for trace in grid.traces]
    figures_of_traces = {name for trace in traces for name in curve_names(trace)}
    setups = len(at_scale.setup_numbers)
    curves = {f"{curve}-{i}" if i > 1 else curve for curve in figures_of_traces for i in range(1, setups + 1)}
    has_shifts = any(grid.shifts for grid in at_scale.grids)
    other_figures = {"diagram_*", "sweep_*", *(("roc_*",) if has_shifts else ())}
    tables = {m.text for m in at_scale.metrics} | {f"ood_auroc({score})" for score in at_scale.detection if has_shifts}
    assert at_scale.drawn
    for exhibit in at_scale.drawn:
        parameters = parsed(exhibit.command)
        if parameters.get("topic") == "focal":
            continue
        assert (parameters.get("study") or parameters["topic"], parameters["scale"]) == (name, scale)
        for wanted in exhibit.names:
            possible_names = curves | other_figures if parameters["command"] == "figures" else tables
            assert wanted in possible_names or any(fnmatch(wanted, pattern) for pattern in possible_names), (
                exhibit.title,
                wanted,
            )


def test_listing_is_that_of_the_scale(capsys):
    app(["figures", "mukhoti_2020", "--scale", "small", "--list"], standalone_mode=False)
    text = capsys.readouterr().out
    assert "val_nll" in text
    assert "test_nll" not in text
    for command in (
        ["figures", "wang_2021", "--scale", "tiny", "--list"],
        ["study", "status", "wang_2021", "--scale", "x"],
    ):
        with refused("scale"):
            app(command, standalone_mode=False)
    with refused("scale"):
        app(["figures", "focal", "--scale", "small"], standalone_mode=False)


def test_scales_for_two_cores_train_in_float32():
    for name, scale in SCALES:
        precisions = {grid.recipe.precision for grid in Study.load(name, scale).grids}
        assert precisions == ({"bf16-mixed"} if scale in ("medium", "long") else {"32-true"}), (name, scale)
    assert study.RECIPES["quick_cpu"].precision == "32-true"
    changed = Study.load("wang_2021", "small").with_precision("bf16-mixed")
    assert {run.recipe.precision for run in changed.runs()} == {"bf16-mixed"}
    with refused("recipe_precision"):
        Study.load("wang_2021", "small").with_precision("bf16")


def test_unknown_command_options_are_rejected():
    with pytest.raises(Exception, match="--draw"):
        parsed("calibrant figures mukhoti_2020 --draw")


def test_exhibits_are_read_from_the_file(tmp_path):
    text = 'datasets = ["digits"]\nnetworks = ["resnet8"]\nlosses = ["focal"]\n[drawn.{}]\n"Table 1" = {}\n'
    path = tmp_path / "mine.toml"
    path.write_text(text.format('"calibrant study run mine"', '["ece"]'))
    assert Study.load(path).drawn == (Exhibit("Table 1", "calibrant study run mine", ("ece",)),)
    path.write_text(text.format('"calibrant study run mine"', "3"))
    with refused("type_of_key") as caught:
        Study.load(path)
    assert "Table 1" in str(caught.value)
    path.write_text(text.replace("[drawn.{}]\n", "[drawn]\n").format("3"))
    with refused("type_of_key") as caught:
        Study.load(path)
    assert "drawn" in str(caught.value)


# The walk


@pytest.fixture(scope="module")
def tiny_data(tmp_path_factory, data_cache):
    root = tmp_path_factory.mktemp("tiny")
    write_images(root / "cifar10", {"train": 128, "test": 40}, size=32, classes=10, image="img")
    write_images(root / "cifar100", {"train": 128, "test": 40}, size=32, classes=100, image="img", label="fine_label")
    write_images(root / "svhn", {"train": 128, "test": 40}, size=32, classes=10)
    write_images(root / "tiny-imagenet", {"train": 400, "validation": 40}, size=64, classes=200)
    write_text(root)
    for name, width in ("glove.6B.100d.txt", 100), ("glove.840B.300d.txt", 300):
        lines = (f"word{i} {' '.join([str(i % 7 - 3)] * width)}" for i in range(20))
        (root / name).write_text("\n".join(["the" + " 0.5" * width, *lines, "good" + " 0.1" * width]) + "\n")
    return root


@pytest.fixture(scope="module")
def theory(tmp_path_factory):
    """Return the names of the figures of the theory."""
    paths = figures.draw_focal_theory(tmp_path_factory.mktemp("theory"))
    assert all(path.stat().st_size for path in paths)
    return {path.stem for path in paths}


def dataset(method) -> str:
    """Return a data set with at most 64 training images; compared sizes stay different."""
    settings = dict(method.settings)
    if method.name in ("cifar10", "cifar100"):
        train, val = settings.get("train"), settings.get("val")
        settings["train"] = 64 if train is None or val else 8 + train // 1000
        settings["val"] = 20 if val is None else 10 + val // 100
    elif method.name in ("svhn", "tiny_imagenet"):
        settings["val"] = 64 if method.name == "svhn" else 0.5
    elif method.name == "newsgroups":
        settings["val"] = 40
    return calibrant.registry.format_call(method.name, settings)


def tiny(name: str, scale: str | None = None) -> Study:
    """Return a study with one epoch, one seed, small networks and data, and all calibrators and metrics."""
    study_ = Study.load(name, scale)
    grids: list[Grid] = []
    for grid in study_.grids:
        images = grid.datasets[0].name in (*IMAGES, "tiny_imagenet")
        used_networks = grid.networks if grid.traces else grid.networks[:1]  # each network has its own curves
        small_networks = [f"resnet8(width={2 + i})" for i, _ in enumerate(used_networks)]
        recipe = replace(grid.recipe, epochs=1, batch_size=32, milestones=(), warmup=0, channels_last=False)
        traces = [
            f"{t.name}(epochs=(1,))" if "epochs" in t.settings or t.name in ("gradients", "reliability") else t
            for t in grid.traces
        ]
        shifts = [dataset(s) if s.name in IMAGES else s for s in grid.shifts]
        datasets = [dataset(d) for d in grid.datasets]
        losses, networks = grid.losses[: MAX_LOSSES.get(name)], small_networks if images else grid.networks
        grids.append(Grid(datasets, networks, losses, grid.seeds[:1], recipe, shifts, traces))
    return Study(name, grids, study_.calibrators, study_.metrics, study_.detection, study_.title)


def first_epoch(name: str) -> str:
    """Return the name of a figure with its epoch replaced by the first."""
    head, _, rest = name.partition("_")
    number, *rest_parts = rest.split("_", 1)
    if head == "gradient":
        return "gradient_norms_1"
    return "_".join([head, "1", *rest_parts]) if head == "reliability" and number.isdigit() else name


@pytest.mark.parametrize(
    ("name", "scale"),
    [
        *(pytest.param(n, None, marks=pytest.mark.slow if n in QUICK else pytest.mark.large) for n in WALKED),
        *(pytest.param(name, scale, marks=pytest.mark.large) for name, scale in SCALES),
    ],
)
def test_every_exhibit_is_made_at_tiny_scale(name, scale, tiny_data, theory, tmp_path):
    result = study.run(tiny(name, scale), out=tmp_path / "runs", data=tiny_data)
    assert not result.failed
    drawn = study.draw(tiny(name, scale), tmp_path / "figures", out=tmp_path / "runs")
    assert all(path.stat().st_size for path in drawn)
    metrics = {table.metric for table in result.tables}
    for exhibit in Study.load(name, scale).drawn:
        parameters = parsed(exhibit.command)
        outputs = metrics if parameters["command"] != "figures" else {path.stem for path in drawn}
        outputs = theory if parameters.get("topic") == "focal" else outputs
        for wanted in map(first_epoch, exhibit.names):
            assert any(fnmatch(file, wanted) for file in outputs), (
                f"{exhibit.title}: no {wanted} among {sorted(outputs)}"
            )
