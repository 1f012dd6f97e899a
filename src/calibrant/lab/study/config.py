"""Studies: grids of runs, and what to do with them, read from Python or TOML and checked before any work starts.

A `Method` is a registered function with settings, parsed from a text such as "focal(gamma=3)". Its `text` is as it was
written. Methods are equal if their names and settings are, defaults included.
"""

import inspect
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cache, cached_property
from importlib.resources import files
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from calibrant._core import registry
from calibrant._core.foreign import read_toml
from calibrant._core.grouping import group_pairs
from calibrant._core.registry import Method
from calibrant._core.text import shorten_repr
from calibrant._core.types import InputError, prefix_errors
from calibrant.lab.study.grids import (
    LIST_REGISTRIES,
    Grid,
    Methods,
    MethodSpec,
    Model,
    Run,
    RunNames,
    Setup,
    SplitMode,
    check_lists,
    parse_lists,
    parse_method,
    set_fields,
)
from calibrant.lab.study.recipe import RECIPES, Recipe

MAX_FOLDER_NAME_CHARACTERS = 200
STUDIES_FOLDER = Path(str(files("calibrant") / "studies"))
GPU_SCALE = "gpu"  # of every study
MethodReader = Callable[[str, Any], Method]
SPECIAL_KEYS = {"grids", "with", "models", "drawn", "beside"}  # not converted by the types of the fields


@dataclass(frozen=True, init=False)
class Setting:
    """The data set and network of the paper to compare with, if the study trains others."""

    dataset: Method
    network: Method

    def __init__(self, dataset: MethodSpec, network: MethodSpec) -> None:
        set_fields(self, dataset=parse_method("datasets", dataset), network=parse_method("networks", network))


@dataclass(frozen=True)
class Exhibit:
    """A table or figure of a paper, the command that reproduces it, and the names of its output.

    Outputs are the tables of `study run`, which are named after metrics, and the files of `figures`. A star in a name
    matches any text.
    """

    title: str  # such as "error over epochs"
    command: str
    names: tuple[str, ...]


@dataclass(frozen=True, init=False)
class Study:
    """Grids of runs, and the calibrators and metrics to apply to each run.

    Methods may be given as texts such as "focal(gamma=3)".
    """

    name: str
    grids: tuple[Grid, ...]
    calibrators: Methods
    metrics: Methods
    detection: Methods  # scores that detect shifted examples
    title: str
    published: str  # the paper to compare with, by name or TOML file
    paper_setting: Setting | None
    with_: tuple[str, ...]  # files and packages that define methods, as given by --with
    models: tuple[Model, ...]  # trained elsewhere
    drawn: tuple[Exhibit, ...]  # the paper's tables and figures that this study reproduces

    def __init__(
        self,
        name: str,
        grids: Iterable[Grid] = (),
        calibrators: Iterable[MethodSpec] = ("Identity", "Temperature"),
        metrics: Iterable[MethodSpec] = ("error", "nll", "brier", "ece", "adaptive_ece"),
        detection: Iterable[MethodSpec] = ("max_probability",),
        title: str = "",
        published: str = "",
        paper_setting: Setting | None = None,
        with_: Iterable[str] = (),
        models: Iterable[Model] = (),
        drawn: Iterable[Exhibit] = (),
    ) -> None:
        """Parse the methods, set the fields, and check them."""
        set_fields(self, name=name, title=title, published=published, paper_setting=paper_setting)
        set_fields(self, grids=tuple(grids), models=tuple(models), with_=tuple(with_), drawn=tuple(drawn))
        set_fields(self, **parse_lists(calibrators=calibrators, metrics=metrics, detection=detection))
        if not self.grids and not self.models:
            raise InputError("Expected at least one grid, or models that were trained elsewhere.", code="no_grids")
        if paper_setting is not None and not published:
            raise InputError("Expected published = 'PAPER' with the setting in beside, got none.", code="beside")
        _check_unique_models(self.models)
        check_lists(self, required=("calibrators", "metrics", "detection"))
        _check_name(self.name)

    @classmethod
    def load(cls, study: str | Path, scale: str | None = None) -> "Study":
        """Read a study from a TOML file, or a bundled study by its name.

        Grids inherit missing keys from the top level. A file without [[grids]] is one grid. Files and packages under
        the key `with` must have been included before.

        Args:
            study: Path of a TOML file, or name of a bundled study.
            scale: Name of a table [scales.NAME] whose keys replace keys of the top level. "gpu" is the whole study,
                trained as GPUs are fastest: in bfloat16, with channels last.

        Raises:
            InputError: If the file cannot be read, or has an unknown key or value; the message suggests the nearest.
        """
        path = study_file(study)
        table = read_toml(path)
        with prefix_errors(f"{path}"):
            scales = read_tables("scales", "[scales.NAME]", table.pop("scales", {}), code="scales")
            if scale is None:
                return _build_study({"name": path.stem} | table, path.parent)
            if scale == GPU_SCALE and scale not in scales:
                return _build_study({"name": f"{path.stem}-{scale}"} | table, path.parent)._for_gpu(path.stem)
            registry.check_name(scale, [*scales, GPU_SCALE], "scale", "scale")
            table.pop("drawn", None)  # describes the full study only
            return _build_study({"name": f"{path.stem}-{scale}"} | table | scales[scale], path.parent)

    def with_precision(self, precision: str) -> "Study":
        """Return the study with every run trained in another precision, such as "bf16-mixed".

        Raises `InputError` for an unknown precision.
        """
        return self._with_recipes(precision=precision)

    def _with_recipes(self, **changes: Any) -> "Study":
        """Return the study with changes of every recipe."""
        return replace(self, grids=[replace(grid, recipe=replace(grid.recipe, **changes)) for grid in self.grids])

    def _for_gpu(self, name: str) -> "Study":
        """Return the whole study called `name` in bfloat16 with channels last, with its own commands."""
        study = self._with_recipes(precision="bf16-mixed", channels_last=True)
        commands = {exhibit: f" {name}" in exhibit.command for exhibit in self.drawn}  # whether they run this study
        drawn = [
            replace(exhibit, command=f"{exhibit.command} --scale {GPU_SCALE}") if is_own else exhibit
            for exhibit, is_own in commands.items()
        ]
        return replace(study, drawn=drawn)

    def runs(self) -> Iterator[Run]:
        """Yield every training of every grid once, with the shifts and traces of all grids that list it."""
        runs_by_training = group_pairs(
            ((run.dataset, run.network, run.loss, run.seed, run.recipe, run.split), run)
            for grid in self.grids
            for run in grid.runs()
        )
        for runs in runs_by_training.values():
            run = runs[0]
            # each once, in the order of the grids
            shifts = dict.fromkeys(shift for variant in runs for shift in variant.shifts)
            traces = dict.fromkeys(trace for variant in runs for trace in variant.traces)
            yield Run(run.dataset, run.network, run.loss, run.seed, run.recipe, shifts, traces, split=run.split)

    def label(self, method: Method) -> str:
        """Return the first spelling of a method in this study, as one method has many: focal, focal(gamma=3)."""
        return self._method_labels.get(method, method.text)

    def names(self, run: Run | Model) -> RunNames:
        """Return the labels of a run's data set, network and loss.

        The label of the loss ends with the settings that differ between trainings of these methods.
        """
        if isinstance(run, Model):
            return run.names
        loss = self.label(run.loss) + self._variant_suffixes[run.recipe, run.split]
        return RunNames(self.label(run.dataset), self.label(run.network), loss)

    def describe(self, run: Run) -> str:
        """Return the names of a run and its seed in one line."""
        return f"{', '.join(self.names(run))}, seed {run.seed}"

    @cached_property
    def setup_numbers(self) -> dict[Setup, int]:
        """The index of every network on a data set, from 1, including setups without finished runs."""
        setups = dict.fromkeys(self.names(run).setup for run in (*self.models, *self.runs()))
        return {setup: number for number, setup in enumerate(setups, 1)}

    def setup_suffix(self, setup: Setup) -> str:
        """Return the end of a title, ", NETWORK on DATASET", or "" if the study has only one setup."""
        return f", {setup}" if len(self.setup_numbers) > 1 else ""

    @cached_property
    def _variant_suffixes(self) -> dict[tuple[Recipe, SplitMode], str]:
        """Suffixes of loss labels by recipe and split, such as " with epochs=350".

        A suffix holds the settings that differ anywhere between trainings of the same data set, network and loss.
        """
        runs = list(self.runs())
        settings_by_variant: dict[tuple[Recipe, SplitMode], dict[str, Any]] = {
            (run.recipe, run.split): asdict(run.recipe) | {"split": run.split} for run in runs
        }
        settings_by_methods = group_pairs(
            ((run.dataset, run.network, run.loss), settings_by_variant[run.recipe, run.split]) for run in runs
        )
        differing_keys = {
            key
            for settings_of_runs in settings_by_methods.values()
            for key in settings_of_runs[0]  # all have the same keys
            if len({settings[key] for settings in settings_of_runs}) > 1
        }
        texts = {
            variant: ", ".join(f"{key}={value}" for key, value in settings.items() if key in differing_keys)
            for variant, settings in settings_by_variant.items()
        }
        return {variant: f" with {text}" if text else "" for variant, text in texts.items()}

    @cached_property
    def _method_labels(self) -> dict[Method, str]:
        """The first spelling of every method. Methods that differ only in their spelling are equal keys."""
        methods = [m for g in self.grids for m in (*g.datasets, *g.networks, *g.losses, *g.shifts, *g.traces)]
        return {method: method.text for method in reversed(methods)}  # the first spelling is written last, and stays


def _check_unique_models(models: tuple[Model, ...]) -> None:
    """Reject models that would count twice: with equal names and seeds, or with one test file under several seeds."""
    for model_id, count in Counter(model.id for model in models).items():
        if count > 1:
            raise InputError(f"models lists {model_id} {count} times. Give each a seed of its own.", code="model_twice")
    for test_file, file_models in group_pairs((model.test, model) for model in models).items():
        count = len(file_models)
        # models of different names may share a file, for example if they read different columns of a table
        if count > 1 and len({model.names for model in file_models}) == 1:
            raise InputError(
                f"Expected predictions for each seed, got {test_file} for {count} seeds.", code="predictions_twice"
            )


def _check_name(name: str) -> None:
    """Reject invalid directory names: results are kept in runs/NAME."""
    valid = name not in ("", ".", "..") and len(name) <= MAX_FOLDER_NAME_CHARACTERS and name.isprintable()
    if not valid or any(character in name for character in "/\\:"):
        raise InputError(
            f"Expected a study's name to be a plain folder name without / \\ and :, got {shorten_repr(name)}.",
            code="name",
        )


# Files

GRID_KEYS = {field.name for field in fields(Grid)}
STUDY_KEYS = {f.name for f in fields(Study)} - {"with_", "paper_setting"} | SPECIAL_KEYS


def study_file(study: str | Path) -> Path:
    """Return the TOML file of a study, given by its path or the name of a bundled study."""
    return find_toml(str(study), STUDIES_FOLDER, "bundled study", "unknown_study")


def find_toml(name: str, bundled: Path, description: str, code: str) -> Path:
    """Return the path of a TOML file given by its path, or by its name in `bundled`, a folder of this package.

    Raises:
        InputError: If the folder has no such file, with this `code` and the `description` of its files.
    """
    if name.endswith(".toml") or Path(name).is_file():
        return Path(name)
    registry.check_name(name, {path.stem for path in bundled.glob("*.toml")}, description, code)
    return bundled / f"{name}.toml"


def _build_study(table: dict[str, Any], folder: Path) -> Study:
    """Build a study from its TOML table, and resolve paths relative to `folder`, which holds the file.

    Keys of grids at the top level are shared by all grids. Without [[grids]] they are the only grid, which is left out
    if there are models and none of these keys names what to train.
    """
    check_keys("study", table, STUDY_KEYS | GRID_KEYS)
    read_method: MethodReader = cache(parse_method)  # parse every text once
    sources = convert_value("with", tuple[str, ...], table.pop("with", []), read_method)
    _check_included(sources, folder)
    models: list[Model] = [build_dataclass(Model, m, "a model") for m in read_array("models", table.pop("models", []))]
    # a file with models may have no grid
    has_top_level_grid = not models or table.keys() & {"datasets", "networks", "losses"}
    if not has_top_level_grid and "grids" not in table and (stray_keys := sorted(GRID_KEYS & table.keys())):
        raise InputError(
            f"Expected nothing to train beside models, got {stray_keys[0]}. Try leaving it out.", code="stray_key"
        )
    # {} is a grid that has the shared keys alone
    grids = read_array("grids", table.pop("grids", [{}] if has_top_level_grid else []))
    shared = {key: table.pop(key) for key in GRID_KEYS & table.keys()}
    paper_setting = table.pop("beside", None)  # of the paper to compare with
    exhibits = tuple(_read_exhibits(table.pop("drawn", {})))
    return build_dataclass(
        Study,
        table,  # the keys that are left
        "study",
        read_method,
        drawn=exhibits,
        grids=tuple(build_dataclass(Grid, shared | grid, "study", read_method) for grid in grids),
        models=[replace(m, val=str(folder / m.val), test=str(folder / m.test)) for m in models],
        paper_setting=None if paper_setting is None else build_dataclass(Setting, paper_setting, "beside", read_method),
        with_=sources,
    )


def _read_exhibits(tables: Any) -> Iterator[Exhibit]:
    """Yield the exhibits of tables such as [drawn."study run"], named after a command, which map titles to outputs."""
    for command, names_by_title in read_tables("drawn", "[drawn.'COMMAND']", tables).items():
        for title, names in names_by_title.items():
            yield Exhibit(title, command, convert_value(f"drawn.{title!r}", tuple[str, ...], names, parse_method))


def _check_included(sources: tuple[str, ...], folder: Path) -> None:
    """Raise `InputError` if a study needs files or packages that were not given by --with.

    A study file must not run code on its own: the user has to allow it. The paths of files are relative to `folder`.
    """
    for source in sources:
        path_or_package, included_name = source, source  # for a package
        if source.endswith(".py"):
            path_or_package, included_name = folder / source, str((folder / source).resolve())
        if included_name not in registry.INCLUDED_SOURCES:  # packages, and absolute paths of files
            raise InputError(
                f"Expected leave to run {source}, which has the study's methods. Try "
                f'with_=["{path_or_package}"], or --with {path_or_package} on the command line.',
                code="code_not_allowed",
            )


# TOML files as frozen dataclasses; errors name the file and suggest the nearest key


def check_type(expected_type: type, value: Any, description: str, code: str = "type_of_key") -> Any:
    """Return `value` unchanged. Raises `InputError`, with a `description` of what was expected, for another type."""
    if not isinstance(value, expected_type):
        raise InputError(f"Expected {description}, got {shorten_repr(value)}.", code=code)
    return value


def read_array(key: str, tables: Any) -> list[dict[str, Any]]:
    """Return an array of tables. Raises `InputError` for any other value."""
    expected = f"{key} as tables [[{key}]]"
    return [check_type(dict, table, expected) for table in check_type(list, tables, expected)]


def read_tables(key: str, notation: str, tables: Any, code: str = "type_of_key") -> dict[str, dict[str, Any]]:
    """Return a table of tables under a key, by name.

    Raises:
        InputError: For any other value, with this `code`; the message shows the `notation`, such as [scales.NAME].
    """
    return {
        name: check_type(dict, table, f"{key}.{shorten_repr(name)} as a table {notation}", code)
        for name, table in check_type(dict, tables, f"{key} as tables {notation}", code).items()
    }


def parse_recipe(value: str | Mapping[str, Any]) -> Recipe:
    """Build a recipe from a name in `RECIPES`, or from a table of settings.

    With the key `like`, the settings change the recipe of this name; a new number of epochs also moves its milestones
    in proportion.

    >>> parse_recipe({"like": "mukhoti_cifar", "epochs": 35}).milestones
    (15, 25)
    >>> parse_recipe("mukhoti_cifer")
    Traceback (most recent call last):
    calibrant.types.InputError: Unknown recipe 'mukhoti_cifer'; did you mean 'mukhoti_cifar'?
    """
    table = {"like": value} if isinstance(value, str) else dict(value)
    if (name := table.pop("like", None)) is None:
        recipe = build_dataclass(Recipe, table)
    else:
        registry.check_name(str(name), RECIPES, "recipe", "unknown_recipe")
        changes = build_dataclass(Recipe, table)  # checks keys and types
        base = RECIPES[name].with_epochs(changes.epochs) if "epochs" in table else RECIPES[name]
        recipe = replace(base, **{key: getattr(changes, key) for key in table})  # only the keys that the table has
    recipe.check_effects(table)
    return recipe


def build_dataclass(
    cls: type[Any], table: Any, name: str = "", read_method: MethodReader = parse_method, **checked_values: Any
) -> Any:
    """Build a frozen dataclass from a TOML table, checking keys and types.

    Lists become tuples, and texts become methods where the field is a method.

    Args:
        cls: The dataclass.
        table: Values by field name.
        name: Name of the table in error messages, by default the name of the class.
        read_method: Parses the text of a method under a key.
        checked_values: Further fields, whose values were checked before.
    """
    name, types = name or cls.__name__.lower(), _field_types(cls)
    check_keys(name, check_type(dict, table, f"{name} as a table"), types)
    values = {key: convert_value(key, types[key], value, read_method) for key, value in table.items()}
    values |= checked_values
    for key, parameter in inspect.signature(cls).parameters.items():
        if parameter.default is parameter.empty and key not in values:
            raise InputError(f"The key {key!r} of {name} is missing.", code="missing_key")
    return cls(**values)


@cache
def _field_types(cls: type[Any]) -> dict[str, Any]:
    """Return the types of a dataclass's fields, without their ranges, which the class checks itself."""
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in fields(cls)}


def check_keys(name: str, table: Iterable[str], allowed: Collection[str]) -> None:
    """Raise `InputError` for an unknown key, suggesting the nearest."""
    for key in table:
        registry.check_name(key, allowed, f"key of {name}", "unknown_key")


def convert_value(key: str, expected_type: Any, value: Any, read_method: MethodReader) -> Any:
    """Convert a TOML value to the type of a field. Raises `InputError` for a value of another type.

    Tables become recipes, texts become recipes or methods, lists become tuples of converted items, and whole numbers
    become floats, where the type asks for them. `read_method` parses the text of a method under a key.
    """
    origin, arguments = get_origin(expected_type), get_args(expected_type)
    if origin is Mapping:
        expected_type = dict  # the type of TOML tables
    if expected_type is Recipe and isinstance(value, str | dict):
        return parse_recipe(value)  # pyright: ignore[reportUnknownArgumentType]
    if expected_type is Method and isinstance(value, str):
        return read_method(key if key in LIST_REGISTRIES else f"{key}s", value)  # "network" is read like "networks"
    if origin is tuple and isinstance(value, list):  # tuple[T, ...]
        return tuple(convert_value(key, arguments[0], item, read_method) for item in value)  # pyright: ignore
    options = arguments if origin in (UnionType, Union) else (expected_type,)  # the types of a union
    if float in options and type(value) is int:  # TOML files have 1 for 1.0
        return float(value)
    if type(value) in options:  # not isinstance, as True would pass for an integer
        return value  # the class checks the range of numbers
    if mismatch := registry.describe_mismatch(value, expected_type):  # "" for a valid value, such as of a Literal
        # in the words of TOML
        mismatch = {"a Method": "the text of a method", "a tuple": "a list"}.get(mismatch, mismatch)
        raise InputError(f"Expected {key} to be {mismatch}, got {shorten_repr(value)}.", code="type_of_key")
    return value
