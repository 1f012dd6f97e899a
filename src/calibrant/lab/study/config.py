"""A study is data: what to train, what to do with it, what to measure. Read once, and checked before anything runs."""

import hashlib
import inspect
import itertools
import json
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from functools import cache, cached_property
from importlib.resources import files
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from calibrant import registry
from calibrant._text import shorten_repr
from calibrant.lab.study.external_models import Model
from calibrant.lab.study.methods import LIST_REGISTRIES, Methods, is_corruption, parse_method
from calibrant.lab.study.recipe import RECIPES
from calibrant.lab.study.recipe import Recipe as Recipe
from calibrant.registry import Method
from calibrant.types import InputError

MethodSpec = str | Method
MethodReader = Callable[[str, Any], Method]
SplitMode = Literal["fixed", "seed"]  # one split for all seeds, or one that each seed draws
DEFAULT_RECIPE = Recipe()
MONITORED_FIELDS = "shifts", "traces"  # what a run may keep more of than a study asks for


@dataclass(frozen=True, init=False)
class Run:
    """One network to train, and what to watch and keep of it.

    `training` names what is trained, `id` also what is watched and by which code: equal texts and code have equal ids,
    on any machine and however spelled. A finished run serves every study that trains the same by the same code and
    watches no more.
    """

    dataset: Method  # as the study names it
    network: Method
    loss: Method
    seed: int
    recipe: Recipe
    shifts: Methods  # further test sets to predict: corruptions of the test set, or other data sets
    traces: Methods  # what to watch in every epoch
    split: SplitMode
    code: tuple[tuple[str, str], ...]  # of its methods, where there is any to know: the text of each, and its code

    def __init__(
        self,
        dataset: MethodSpec,
        network: MethodSpec,
        loss: MethodSpec,
        seed: int,
        recipe: Recipe,
        shifts: Iterable[MethodSpec] = (),
        traces: Iterable[MethodSpec] = (),
        split: SplitMode = "fixed",
    ) -> None:
        _assign_fields(self, datasets=dataset, networks=network, losses=loss, shifts=shifts, traces=traces)
        _check_seed(seed)
        _assign_fields(self, seed=seed, recipe=recipe.for_loss(self.loss.name), split=split)
        _assign_fields(self, code=self.current_code)

    @property
    def methods(self) -> Methods:
        """All the methods that its results depend on."""
        return self.divided_dataset, self.network, self.loss, *self.shifts, *self.traces

    @property
    def current_code(self) -> tuple[tuple[str, str], ...]:
        """The code of its methods in this process, which may differ from that of the process that began the study."""
        return tuple(sorted({method.canonical: method.code for method in self.methods if method.code}.items()))

    @property
    def divided_dataset(self) -> Method:
        """The data set as this run divides it: with the run's own seed, if the split follows that."""
        return self.dataset if self.split == "fixed" else self.dataset.with_settings(seed=self.seed)

    @property
    def training_spec(self) -> dict[str, Any]:
        """What is trained, in plain texts and numbers, every default spelled out."""
        methods = {"dataset": self.divided_dataset, "network": self.network, "loss": self.loss}
        texts = {key: method.canonical for key, method in methods.items()}
        recipe = {key: value for key, value in asdict(self.recipe).items() if key != "averaged"}  # decided by the loss
        return {**texts, "seed": self.seed, "recipe": recipe}

    @property
    def monitoring_spec(self) -> dict[str, list[str]]:
        """What is watched while it learns, and what the network is judged on besides its test set."""
        return {key: [m.canonical for m in getattr(self, key)] for key in MONITORED_FIELDS}

    @property
    def required_datasets(self) -> Methods:
        """The data sets that must be at hand: that to train on, and those it is shifted to."""
        return self.divided_dataset, *(shift for shift in self.shifts if not is_corruption(shift))

    @property
    def spec(self) -> dict[str, Any]:
        """All of it."""
        return {**self.training_spec, **self.monitoring_spec} | ({"code": dict(self.code)} if self.code else {})

    @cached_property
    def training_id(self) -> str:
        """Twelve hex digits of the canonical JSON of `trained`."""
        return _hex_digest(self.training_spec, 12)

    @cached_property
    def id(self) -> str:
        """The training, and six hex digits each of what is watched and of the code, where there is any to tell."""
        monitoring_suffix = f"-{_hex_digest(self.monitoring_spec, 6)}" if self.shifts or self.traces else ""
        return f"{self.training_id}{monitoring_suffix}{f'_{_hex_digest(self.code, 6)}' if self.code else ''}"


@dataclass(frozen=True, init=False)
class Grid:
    """Every loss on every network on every data set with every seed, trained by one recipe.

    With `split="seed"` the `seed` of each data set, which says who validates, is the run's own.
    """

    datasets: Methods
    networks: Methods
    losses: Methods
    seeds: tuple[int, ...]
    recipe: Recipe
    shifts: Methods
    traces: Methods
    split: SplitMode

    def __init__(
        self,
        datasets: Iterable[MethodSpec],
        networks: Iterable[MethodSpec],
        losses: Iterable[MethodSpec],
        seeds: Iterable[int] = (0,),
        recipe: Recipe = DEFAULT_RECIPE,
        shifts: Iterable[MethodSpec] = (),
        traces: Iterable[MethodSpec] = (),
        split: SplitMode = "fixed",
    ) -> None:
        _assign_fields(self, datasets=datasets, networks=networks, losses=losses, shifts=shifts, traces=traces)
        _assign_fields(self, seeds=tuple(seeds), recipe=recipe, split=split)
        _check_nonempty(self, "datasets", "networks", "losses", "seeds")
        for seed in self.seeds:
            _check_seed(seed)
        _check_unique(self, "datasets", "networks", "losses", "seeds", *MONITORED_FIELDS)
        if split == "seed":
            _check_seed_split(self.datasets, self.seeds)

    def runs(self) -> Iterator[Run]:
        """Every network of the grid, seeds innermost."""
        for dataset, network, loss, seed in itertools.product(self.datasets, self.networks, self.losses, self.seeds):
            yield Run(dataset, network, loss, seed, self.recipe, self.shifts, self.traces, self.split)


@dataclass(frozen=True, init=False)
class Setting:
    """Where a paper's numbers come from."""

    dataset: Method
    network: Method

    def __init__(self, dataset: MethodSpec, network: MethodSpec) -> None:
        _assign_fields(self, datasets=dataset, networks=network)


@dataclass(frozen=True)
class Exhibit:
    """A table or figure of a paper, and what makes it: a command, and names of what that writes.

    `study run` writes tables of metrics, `figures` files; a star in their names stands for any text.
    """

    place: str
    command: str
    names: tuple[str, ...]


@dataclass(frozen=True, init=False)
class Study:
    """Grids of runs, and the calibrators and metrics to apply to each.

    Wherever it holds methods, their texts may be given.
    """

    name: str
    grids: tuple[Grid, ...]
    calibrators: Methods
    metrics: Methods
    detection: Methods  # scores by which shifts are told from the test set
    title: str
    published: str  # the paper whose numbers stand beside ours
    beside: Setting | None  # which of them, where the paper trained something else
    with_: tuple[str, ...]  # files and packages of one's own methods
    models: tuple[Model, ...]  # trained elsewhere
    drawn: tuple[Exhibit, ...]  # where the paper's tables and figures come from

    def __init__(
        self,
        name: str,
        grids: Iterable[Grid] = (),
        calibrators: Iterable[MethodSpec] = ("Identity", "Temperature"),
        metrics: Iterable[MethodSpec] = ("error", "nll", "brier", "ece", "adaptive_ece"),
        detection: Iterable[MethodSpec] = ("max_probability",),
        title: str = "",
        published: str = "",
        beside: Setting | None = None,
        with_: Iterable[str] = (),
        models: Iterable[Model] = (),
        drawn: Iterable[Exhibit] = (),
    ) -> None:
        _assign_fields(self, models=tuple(models))
        _assign_fields(
            self, name=name, grids=tuple(grids), title=title, published=published, beside=beside, with_=tuple(with_)
        )
        _assign_fields(self, drawn=tuple(drawn))
        _assign_fields(self, calibrators=calibrators, metrics=metrics, detection=detection)
        if not self.grids and not self.models:
            raise InputError("a study needs at least one grid, or models that were trained elsewhere", code="no_grids")
        _check_unique_models(self.models)
        _check_nonempty(self, "calibrators", "metrics", "detection")
        _check_unique(self, "calibrators", "metrics", "detection")
        _check_name(self.name)

    @classmethod
    def load(cls, study: str | Path, scale: str | None = None) -> "Study":
        """Read a study from a TOML file, or a bundled one by its name; what is not known is an error with a suggestion.

        What a grid does not say, it has from the top level, and a file without [[grids]] is one grid. `scale` names a
        table [scales.NAME] that replaces what stands at the top level. Files and packages under the key `with` must
        have been included before.
        """
        path = _resolve_path(study)
        try:
            table = tomllib.loads(path.read_text())
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(
                f"cannot read study {path}: {getattr(error, 'strerror', None) or error}", code="unreadable"
            ) from None
        except tomllib.TOMLDecodeError as error:
            raise InputError(f"{path} is not valid TOML: {error}", code="toml") from None
        except RecursionError:
            raise InputError(f"{path} is nested too deeply; a study needs four levels at most", code="toml") from None
        try:
            scales = _check_scales(table.pop("scales", {}))
            if scale is not None and scale not in scales:
                raise InputError(f"no scale {shorten_repr(scale)}; it has {', '.join(scales) or 'none'}", code="scale")
            if scale is not None:
                table.pop("drawn", None)  # is said of the whole study
            name = path.stem if scale is None else f"{path.stem}-{scale}"
            table = {"name": name} | table | (scales[scale] if scale is not None else {})
            return _build_study(table, path.parent)
        except InputError as error:
            raise InputError(f"{path}: {error}", code=error.code) from None

    def runs(self) -> Iterator[Run]:
        """Every network of every grid, once."""
        yield from dict.fromkeys(run for grid in self.grids for run in grid.runs())

    def label(self, method: Method) -> str:
        """Say a method as this study spells it first: 'focal(gamma=3)' may be its 'focal'."""
        return self._method_labels.get(method, method.text)

    def names(self, run: Run | Model) -> tuple[str, str, str]:
        """Say a run's data set, network and loss as this study spells them, and in what its training differs."""
        if isinstance(run, Model):
            return run.names
        variant = self._training_variants[run.recipe, run.split]
        return self.label(run.dataset), self.label(run.network), self.label(run.loss) + variant

    @cached_property
    def _training_variants(self) -> dict[tuple[Recipe, SplitMode], str]:
        """What tells each way to train from the others of the same loss, on the same network and data."""
        variants: dict[tuple[Method, ...], dict[tuple[Recipe, SplitMode], dict[str, Any]]] = {}
        for run in self.runs():
            settings = asdict(run.recipe) | {"split": run.split}
            variants.setdefault((run.dataset, run.network, run.loss), {})[run.recipe, run.split] = settings
        groups = [list(group.values()) for group in variants.values()]
        differing_keys = {key for group in groups for key in group[0] if len({settings[key] for settings in group}) > 1}
        differences = {
            variant: ", ".join(f"{key}={value}" for key, value in settings.items() if key in differing_keys)
            for group in variants.values()
            for variant, settings in group.items()
        }
        return {variant: f" with {words}" if words else "" for variant, words in differences.items()}

    @cached_property
    def _method_labels(self) -> dict[Method, str]:
        lists = [(*g.datasets, *g.networks, *g.losses, *g.shifts, *g.traces) for g in self.grids]
        return {m: m.text for methods in reversed(lists) for m in reversed(methods)}


# Lists


def _assign_fields(instance: Any, **assignments: Any) -> None:
    """Set the parts of a frozen value; make methods of texts, in lists and alone: fail now, not after training."""
    for key, part in assignments.items():
        if key not in LIST_REGISTRIES:
            object.__setattr__(instance, key, part)
        elif isinstance(part, str | Method):
            object.__setattr__(instance, SINGULAR_FIELDS[key], parse_method(key, part))
        else:
            object.__setattr__(instance, key, tuple(parse_method(key, item) for item in part))


SINGULAR_FIELDS = {"datasets": "dataset", "networks": "network", "losses": "loss"}


def _check_nonempty(instance: Any, *keys: str) -> None:
    for key in keys:
        if not getattr(instance, key):
            raise InputError(f"a study needs at least one entry in {key}", code="no_entries")


def _check_unique(instance: Any, *keys: str) -> None:
    """Refuse what is listed twice: a repeat is no further evidence, and makes intervals look narrower than they are."""
    for key in keys:
        entries: tuple[Any, ...] = getattr(instance, key)
        counts = Counter(entries)
        for entry, count in counts.items():
            if count > 1:
                spellings = dict.fromkeys(str(other) for other in entries if other == entry)
                raise InputError(
                    f"{key} lists {' and '.join(spellings)} {count} times; list it once", code="entry_twice"
                )


def _check_unique_models(models: tuple[Model, ...]) -> None:
    """Refuse what would count one model twice."""
    for field in ("test", "id"):
        counts = Counter(getattr(model, field) for model in models)
        for value, count in counts.items():
            if count > 1 and field == "id":
                raise InputError(f"models lists {value} {count} times: give each its seed", code="model_twice")
            if count > 1 and len({(m.name, m.data) for m in models if m.test == value}) == 1:
                raise InputError(
                    f"{value} is given for {count} seeds: each needs predictions of its own", code="predictions_twice"
                )


def _check_seed(seed: object) -> None:
    """Refuse seeds that torch does not take."""
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**64:
        raise InputError(f"a seed must be a whole number from 0 to 2**64 - 1, got {shorten_repr(seed)}", code="seed")


def _check_seed_split(datasets: Methods, seeds: Iterable[int]) -> None:
    """Refuse data sets whose split no seed draws, or that say by which one."""
    for dataset in datasets:
        if "seed" not in registry.hyperparameters(dataset.function):
            raise InputError(
                f"{dataset.name} has no seed that a split could follow; leave out split = 'seed'", code="no_seed"
            )
        if "seed" in dataset.settings:
            raise InputError(
                f"{dataset} names its seed, and split = 'seed' takes each run's: leave out one of them",
                code="seed_twice",
            )
        for seed in seeds:
            dataset.with_settings(seed=seed)  # which refuses those that the data set does not take


def _check_name(name: str) -> None:
    """Refuse a name that is no name of a folder, as what a study finds is kept in runs/NAME."""
    if name in ("", ".", "..") or len(name) > 200 or not name.isprintable() or any(c in name for c in "/\\:"):
        raise InputError(
            f"a study's name must be the plain name of a folder, without / \\ and :, got {shorten_repr(name)}",
            code="name",
        )


def _hex_digest(value: Any, digits: int) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:digits]


# Files


def _resolve_path(study: str | Path) -> Path:
    if str(study).endswith(".toml") or Path(study).is_file():
        return Path(study)
    folder = Path(str(files("calibrant") / "studies"))
    if not (folder / f"{study}.toml").is_file():
        bundled = ", ".join(sorted(path.stem for path in folder.glob("*.toml")))
        raise InputError(
            f"no study {shorten_repr(str(study))}; give a .toml file, or one of the bundled studies: {bundled}",
            code="unknown_study",
        )
    return folder / f"{study}.toml"


def _build_study(table: dict[str, Any], folder: Path) -> Study:
    study_keys, grid_keys = ([f.name.rstrip("_") for f in fields(cls)] for cls in (Study, Grid))
    _check_keys("study", table, [*study_keys, *grid_keys])
    sources = _convert_value("with", tuple[str, ...], table.pop("with", []), parse_method)
    _check_included(sources, folder)
    models = _build_models(table.pop("models", []), folder)
    grids = table.pop("grids", [] if models and not set(table) & {"datasets", "networks", "losses"} else [{}])
    drawn = tuple(_build_exhibits(table.pop("drawn", {})))
    if not isinstance(grids, list) or not all(isinstance(grid, dict) for grid in grids):  # pyright: ignore
        raise InputError(f"grids must be tables, written [[grids]], got {shorten_repr(grids)}", code="type_of_key")
    read_method: MethodReader = cache(parse_method)  # a text is read once, however often it stands there
    common = {key: table.pop(key) for key in list(table) if key in grid_keys}
    built_grids = tuple(build_dataclass(Grid, common | grid, "study", read_method) for grid in grids)
    return build_dataclass(
        Study, table, "study", read_method, grids=built_grids, with_=sources, models=models, drawn=drawn
    )


def _check_scales(tables: Any) -> dict[str, dict[str, Any]]:
    if not isinstance(tables, dict):
        raise InputError(f"scales must be tables, written [scales.NAME], got {shorten_repr(tables)}", code="scales")
    for name, table in cast(dict[str, Any], tables).items():
        if not isinstance(table, dict):
            raise InputError(
                f"scale {name!r} must be a table, [scales.{name}], got {shorten_repr(table)}", code="scales"
            )
    return cast(dict[str, dict[str, Any]], tables)


def _build_models(tables: Any, folder: Path) -> tuple[Model, ...]:
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):  # pyright: ignore
        raise InputError(f"models must be tables, written [[models]], got {shorten_repr(tables)}", code="type_of_key")
    return tuple(build_dataclass(Model, table, "a model").with_base_folder(folder) for table in tables)  # pyright: ignore


def _build_exhibits(table: Any) -> Iterator[Exhibit]:
    if not isinstance(table, dict):
        raise InputError(
            f"drawn must be tables, written [drawn.'COMMAND'], got {shorten_repr(table)}", code="type_of_key"
        )
    for command, places in cast(dict[str, Any], table).items():
        if not isinstance(places, dict):
            raise InputError(
                f"drawn.{shorten_repr(command)} must be a table of places, got {shorten_repr(places)}",
                code="type_of_key",
            )
        for place, names in cast(dict[str, Any], places).items():
            yield Exhibit(place, command, _convert_value(f"drawn.{place!r}", tuple[str, ...], names, parse_method))


def _check_included(sources: tuple[str, ...], folder: Path) -> None:
    """Raise `InputError` if a study needs code that nobody has allowed to run."""
    for source in sources:
        place = folder / source if source.endswith(".py") else source
        if (str(place.resolve()) if isinstance(place, Path) else place) not in registry.INCLUDED_SOURCES:
            raise InputError(
                f"its methods need {source}, which runs as a program: allow it by --with {place}",
                code="code_not_allowed",
            )


def parse_recipe(value: str | Mapping[str, Any]) -> Recipe:
    """Make a recipe from TOML: the name of one, or a table of changes to the one its key `like` names.

    Changing the number of epochs of a named recipe moves its milestones in proportion.

    >>> parse_recipe({"like": "mukhoti_cifar", "epochs": 35}).milestones
    (15, 25)
    >>> parse_recipe("mukhoti_cifer")
    Traceback (most recent call last):
    calibrant.types.InputError: no recipe 'mukhoti_cifer'; did you mean 'mukhoti_cifar'?
    """
    table = {"like": value} if isinstance(value, str) else dict(value)
    if (name := table.pop("like", None)) is None:
        return build_dataclass(Recipe, table)
    if not isinstance(name, str) or name not in RECIPES:
        hint = registry.suggest(str(name), RECIPES)
        raise InputError(f"no recipe {shorten_repr(name)}; {hint}", code="unknown_recipe")
    changes = build_dataclass(Recipe, table)  # checks keys and types
    base = RECIPES[name].with_epochs(changes.epochs) if "epochs" in table else RECIPES[name]
    return replace(base, **{key: getattr(changes, key) for key in table})


def build_dataclass(
    cls: type[Any],
    table: Mapping[str, Any],
    name: str = "",
    read_method: MethodReader = parse_method,
    **extra_values: Any,
) -> Any:
    """Make a frozen dataclass from a TOML table, checking keys and types; lists become tuples, texts methods.

    `name` is what messages call it, `more` are values that need no check.
    """
    types, name = _field_types(cls), name or cls.__name__.lower()
    _check_keys(name, table, types)
    values = {key: _convert_value(key, types[key], value, read_method) for key, value in table.items()} | extra_values
    for key, parameter in inspect.signature(cls).parameters.items():
        if parameter.default is parameter.empty and key not in values:
            raise InputError(f"{name} needs {key!r}", code="missing_key")
    return cls(**values)


@cache
def _field_types(cls: type[Any]) -> dict[str, Any]:
    """Return the types of a dataclass's fields, without the ranges that the class itself checks."""
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in fields(cls)}


def _check_keys(name: str, table: Iterable[str], allowed: Iterable[str]) -> None:
    for key in set(table) - set(allowed):
        raise InputError(f"{name} has no key {shorten_repr(key)}; {registry.suggest(key, allowed)}", code="unknown_key")


def _convert_value(key: str, expected_type: Any, value: Any, read_method: MethodReader) -> Any:
    if expected_type is Recipe and isinstance(value, str | dict):
        return parse_recipe(value)  # pyright: ignore[reportUnknownArgumentType]
    if expected_type is Method and isinstance(value, str):
        return read_method(key if key in LIST_REGISTRIES else f"{key}s", value)
    if isinstance(value, dict) and (
        nested := [o for o in (expected_type, *get_args(expected_type)) if is_dataclass(o)]
    ):
        return build_dataclass(nested[0], value, "", read_method)  # pyright: ignore
    if get_origin(expected_type) is tuple and isinstance(value, list):
        return tuple(_convert_value(key, get_args(expected_type)[0], item, read_method) for item in value)
    if get_origin(expected_type) is Mapping and isinstance(value, dict):
        return value  # pyright: ignore[reportUnknownVariableType]
    if get_origin(expected_type) is Literal and value in get_args(expected_type):
        return value
    options: tuple[Any, ...] = (
        get_args(expected_type) if get_origin(expected_type) in (UnionType, Union) else (expected_type,)
    )
    if float in options and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if any(isinstance(o, type) and isinstance(value, o) and isinstance(value, bool) == (o is bool) for o in options):
        return value
    raise InputError(f"{key} must be {_describe_type(expected_type)}, got {shorten_repr(value)}", code="type_of_key")


def _describe_type(expected_type: Any) -> str:
    if expected_type is Method:
        return "the text of a method"
    if get_origin(expected_type) is tuple:
        return "a list, each " + _describe_type(get_args(expected_type)[0])
    return expected_type.__name__ if isinstance(expected_type, type) else str(expected_type).replace("typing.", "")
