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

from calibrant import catalog
from calibrant._text import shorten
from calibrant.catalog import Method
from calibrant.study.methods import LISTS, Methods, corrupts, method
from calibrant.study.models import Model
from calibrant.study.recipe import RECIPES
from calibrant.study.recipe import Recipe as Recipe
from calibrant.types import InputError

Text = str | Method
Read = Callable[[str, Any], Method]
Splitting = Literal["fixed", "seed"]  # one split for all seeds, or one that each seed draws
STANDARD = Recipe()
WATCHED = "shifts", "traces"  # what a run may keep more of than a study asks for


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
    split: Splitting
    code: tuple[tuple[str, str], ...]  # of its methods, where there is any to know: the text of each, and its code

    def __init__(
        self,
        dataset: Text,
        network: Text,
        loss: Text,
        seed: int,
        recipe: Recipe,
        shifts: Iterable[Text] = (),
        traces: Iterable[Text] = (),
        split: Splitting = "fixed",
    ) -> None:
        _set(self, datasets=dataset, networks=network, losses=loss, shifts=shifts, traces=traces)
        _check_seed(seed)
        _set(self, seed=seed, recipe=recipe.of(self.loss.name), split=split)
        _set(self, code=self.present_code)

    @property
    def methods(self) -> Methods:
        """All the methods that its results depend on."""
        return self.examples, self.network, self.loss, *self.shifts, *self.traces

    @property
    def present_code(self) -> tuple[tuple[str, str], ...]:
        """The code of its methods in this process, which may differ from that of the process that began the study."""
        return tuple(sorted({method.canonical: method.code for method in self.methods if method.code}.items()))

    @property
    def examples(self) -> Method:
        """The data set as this run divides it: with the run's own seed, if the split follows that."""
        return self.dataset if self.split == "fixed" else self.dataset.having(seed=self.seed)

    @property
    def trained(self) -> dict[str, Any]:
        """What is trained, in plain texts and numbers, every default spelled out."""
        methods = {"dataset": self.examples, "network": self.network, "loss": self.loss}
        one = {key: method.canonical for key, method in methods.items()}
        recipe = {key: value for key, value in asdict(self.recipe).items() if key != "averaged"}  # decided by the loss
        return {**one, "seed": self.seed, "recipe": recipe}

    @property
    def watched(self) -> dict[str, list[str]]:
        """What is watched while it learns, and what the network is judged on besides its test set."""
        return {key: [m.canonical for m in getattr(self, key)] for key in WATCHED}

    @property
    def data(self) -> Methods:
        """The data sets that must be at hand: that to train on, and those it is shifted to."""
        return self.examples, *(shift for shift in self.shifts if not corrupts(shift))

    @property
    def spelled(self) -> dict[str, Any]:
        """All of it."""
        return {**self.trained, **self.watched} | ({"code": dict(self.code)} if self.code else {})

    @cached_property
    def training(self) -> str:
        """Twelve hex digits of the canonical JSON of `trained`."""
        return _hex(self.trained, 12)

    @cached_property
    def id(self) -> str:
        """The training, and six hex digits each of what is watched and of the code, where there is any to tell."""
        watched = f"-{_hex(self.watched, 6)}" if self.shifts or self.traces else ""
        return f"{self.training}{watched}{f'_{_hex(self.code, 6)}' if self.code else ''}"


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
    split: Splitting

    def __init__(
        self,
        datasets: Iterable[Text],
        networks: Iterable[Text],
        losses: Iterable[Text],
        seeds: Iterable[int] = (0,),
        recipe: Recipe = STANDARD,
        shifts: Iterable[Text] = (),
        traces: Iterable[Text] = (),
        split: Splitting = "fixed",
    ) -> None:
        _set(self, datasets=datasets, networks=networks, losses=losses, shifts=shifts, traces=traces)
        _set(self, seeds=tuple(seeds), recipe=recipe, split=split)
        _filled(self, "datasets", "networks", "losses", "seeds")
        for seed in self.seeds:
            _check_seed(seed)
        _single(self, "datasets", "networks", "losses", "seeds", *WATCHED)
        if split == "seed":
            _check_seeded(self.datasets, self.seeds)

    def runs(self) -> Iterator[Run]:
        """Every network of the grid, seeds innermost."""
        for dataset, network, loss, seed in itertools.product(self.datasets, self.networks, self.losses, self.seeds):
            yield Run(dataset, network, loss, seed, self.recipe, self.shifts, self.traces, self.split)


@dataclass(frozen=True, init=False)
class Setting:
    """Where a paper's numbers come from."""

    dataset: Method
    network: Method

    def __init__(self, dataset: Text, network: Text) -> None:
        _set(self, datasets=dataset, networks=network)


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
        calibrators: Iterable[Text] = ("Identity", "Temperature"),
        metrics: Iterable[Text] = ("error", "nll", "brier", "ece", "adaptive_ece"),
        detection: Iterable[Text] = ("max_probability",),
        title: str = "",
        published: str = "",
        beside: Setting | None = None,
        with_: Iterable[str] = (),
        models: Iterable[Model] = (),
        drawn: Iterable[Exhibit] = (),
    ) -> None:
        _set(self, models=tuple(models))
        _set(self, name=name, grids=tuple(grids), title=title, published=published, beside=beside, with_=tuple(with_))
        _set(self, drawn=tuple(drawn))
        _set(self, calibrators=calibrators, metrics=metrics, detection=detection)
        if not self.grids and not self.models:
            raise InputError("a study needs at least one grid, or models that were trained elsewhere", code="no_grids")
        _differ(self.models)
        _filled(self, "calibrators", "metrics", "detection")
        _single(self, "calibrators", "metrics", "detection")
        _check_name(self.name)

    @classmethod
    def load(cls, study: str | Path, scale: str | None = None) -> "Study":
        """Read a study from a TOML file, or a bundled one by its name; what is not known is an error with a suggestion.

        What a grid does not say, it has from the top level, and a file without [[grids]] is one grid. `scale` names a
        table [scales.NAME] that replaces what stands at the top level. Files and packages under the key `with` must
        have been included before.
        """
        path = _path(study)
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
            scales = _scales(table.pop("scales", {}))
            if scale is not None and scale not in scales:
                raise InputError(f"no scale {shorten(scale)}; it has {', '.join(scales) or 'none'}", code="scale")
            if scale is not None:
                table.pop("drawn", None)  # is said of the whole study
            name = path.stem if scale is None else f"{path.stem}-{scale}"
            table = {"name": name} | table | (scales[scale] if scale is not None else {})
            return _study(table, path.parent)
        except InputError as error:
            raise InputError(f"{path}: {error}", code=error.code) from None

    def runs(self) -> Iterator[Run]:
        """Every network of every grid, once."""
        yield from dict.fromkeys(run for grid in self.grids for run in grid.runs())

    def label(self, method: Method) -> str:
        """Say a method as this study spells it first: 'focal(gamma=3)' may be its 'focal'."""
        return self._spelled.get(method, method.text)

    def names(self, run: Run | Model) -> tuple[str, str, str]:
        """Say a run's data set, network and loss as this study spells them, and in what its training differs."""
        if isinstance(run, Model):
            return run.names
        way = self._ways[run.recipe, run.split]
        return self.label(run.dataset), self.label(run.network), self.label(run.loss) + way

    @cached_property
    def _ways(self) -> dict[tuple[Recipe, Splitting], str]:
        """What tells each way to train from the others of the same loss, on the same network and data."""
        ways: dict[tuple[Method, ...], dict[tuple[Recipe, Splitting], dict[str, Any]]] = {}
        for run in self.runs():
            way = asdict(run.recipe) | {"split": run.split}
            ways.setdefault((run.dataset, run.network, run.loss), {})[run.recipe, run.split] = way
        groups = [list(group.values()) for group in ways.values()]
        apart = {key for group in groups for key in group[0] if len({way[key] for way in group}) > 1}
        told = {
            which: ", ".join(f"{key}={value}" for key, value in way.items() if key in apart)
            for group in ways.values()
            for which, way in group.items()
        }
        return {which: f" with {words}" if words else "" for which, words in told.items()}

    @cached_property
    def _spelled(self) -> dict[Method, str]:
        lists = [(*g.datasets, *g.networks, *g.losses, *g.shifts, *g.traces) for g in self.grids]
        return {m: m.text for found in reversed(lists) for m in reversed(found)}


# Lists


def _set(value: Any, **parts: Any) -> None:
    """Set the parts of a frozen value; make methods of texts, in lists and alone: fail now, not after training."""
    for key, part in parts.items():
        if key not in LISTS:
            object.__setattr__(value, key, part)
        elif isinstance(part, str | Method):
            object.__setattr__(value, ALONE[key], method(key, part))
        else:
            object.__setattr__(value, key, tuple(method(key, one) for one in part))


ALONE = {"datasets": "dataset", "networks": "network", "losses": "loss"}


def _filled(value: Any, *keys: str) -> None:
    for key in keys:
        if not getattr(value, key):
            raise InputError(f"a study needs at least one entry in {key}", code="no_entries")


def _single(value: Any, *keys: str) -> None:
    """Refuse what is listed twice: a repeat is no further evidence, and makes intervals look narrower than they are."""
    for key in keys:
        entries: tuple[Any, ...] = getattr(value, key)
        counts = Counter(entries)
        for entry, count in counts.items():
            if count > 1:
                spellings = dict.fromkeys(str(other) for other in entries if other == entry)
                raise InputError(
                    f"{key} lists {' and '.join(spellings)} {count} times; list it once", code="entry_twice"
                )


def _differ(models: tuple[Model, ...]) -> None:
    """Refuse what would count one model twice."""
    for what in ("test", "id"):
        counts = Counter(getattr(model, what) for model in models)
        for value, count in counts.items():
            if count > 1 and what == "id":
                raise InputError(f"models lists {value} {count} times: give each its seed", code="model_twice")
            if count > 1 and len({(m.name, m.data) for m in models if m.test == value}) == 1:
                raise InputError(
                    f"{value} is given for {count} seeds: each needs predictions of its own", code="predictions_twice"
                )


def _check_seed(seed: object) -> None:
    """Refuse seeds that torch does not take."""
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**64:
        raise InputError(f"a seed must be a whole number from 0 to 2**64 - 1, got {shorten(seed)}", code="seed")


def _check_seeded(datasets: Methods, seeds: Iterable[int]) -> None:
    """Refuse data sets whose split no seed draws, or that say by which one."""
    for dataset in datasets:
        if "seed" not in catalog.hyperparameters(dataset.function):
            raise InputError(
                f"{dataset.name} has no seed that a split could follow; leave out split = 'seed'", code="no_seed"
            )
        if "seed" in dataset.settings:
            raise InputError(
                f"{dataset} names its seed, and split = 'seed' takes each run's: leave out one of them",
                code="seed_twice",
            )
        for seed in seeds:
            dataset.having(seed=seed)  # which refuses those that the data set does not take


def _check_name(name: str) -> None:
    """Refuse a name that is no name of a folder, as what a study finds is kept in runs/NAME."""
    if name in ("", ".", "..") or len(name) > 200 or not name.isprintable() or any(c in name for c in "/\\:"):
        raise InputError(
            f"a study's name must be the plain name of a folder, without / \\ and :, got {shorten(name)}", code="name"
        )


def _hex(value: Any, digits: int) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:digits]


# Files


def _path(study: str | Path) -> Path:
    if str(study).endswith(".toml") or Path(study).is_file():
        return Path(study)
    folder = Path(str(files("calibrant") / "studies"))
    if not (folder / f"{study}.toml").is_file():
        there = ", ".join(sorted(path.stem for path in folder.glob("*.toml")))
        raise InputError(
            f"no study {shorten(str(study))}; give a .toml file, or one of the bundled studies: {there}",
            code="unknown_study",
        )
    return folder / f"{study}.toml"


def _study(table: dict[str, Any], folder: Path) -> Study:
    own, shared = ([f.name.rstrip("_") for f in fields(cls)] for cls in (Study, Grid))
    _known("study", table, [*own, *shared])
    sources = _convert("with", tuple[str, ...], table.pop("with", []), method)
    _check_included(sources, folder)
    models = _models(table.pop("models", []), folder)
    grids = table.pop("grids", [] if models and not set(table) & {"datasets", "networks", "losses"} else [{}])
    drawn = tuple(_exhibits(table.pop("drawn", {})))
    if not isinstance(grids, list) or not all(isinstance(grid, dict) for grid in grids):  # pyright: ignore
        raise InputError(f"grids must be tables, written [[grids]], got {shorten(grids)}", code="type_of_key")
    read: Read = cache(method)  # a text is read once, however often it stands there
    common = {key: table.pop(key) for key in list(table) if key in shared}
    made = tuple(build(Grid, common | grid, "study", read) for grid in grids)
    return build(Study, table, "study", read, grids=made, with_=sources, models=models, drawn=drawn)


def _scales(tables: Any) -> dict[str, dict[str, Any]]:
    if not isinstance(tables, dict):
        raise InputError(f"scales must be tables, written [scales.NAME], got {shorten(tables)}", code="scales")
    for name, table in cast(dict[str, Any], tables).items():
        if not isinstance(table, dict):
            raise InputError(f"scale {name!r} must be a table, [scales.{name}], got {shorten(table)}", code="scales")
    return cast(dict[str, dict[str, Any]], tables)


def _models(tables: Any, folder: Path) -> tuple[Model, ...]:
    if not isinstance(tables, list) or not all(isinstance(one, dict) for one in tables):  # pyright: ignore
        raise InputError(f"models must be tables, written [[models]], got {shorten(tables)}", code="type_of_key")
    return tuple(build(Model, one, "a model").within(folder) for one in tables)  # pyright: ignore


def _exhibits(table: Any) -> Iterator[Exhibit]:
    if not isinstance(table, dict):
        raise InputError(f"drawn must be tables, written [drawn.'COMMAND'], got {shorten(table)}", code="type_of_key")
    for command, places in cast(dict[str, Any], table).items():
        if not isinstance(places, dict):
            raise InputError(
                f"drawn.{shorten(command)} must be a table of places, got {shorten(places)}", code="type_of_key"
            )
        for place, names in cast(dict[str, Any], places).items():
            yield Exhibit(place, command, _convert(f"drawn.{place!r}", tuple[str, ...], names, method))


def _check_included(sources: tuple[str, ...], folder: Path) -> None:
    """Raise `InputError` if a study needs code that nobody has allowed to run."""
    for source in sources:
        place = folder / source if source.endswith(".py") else source
        if (str(place.resolve()) if isinstance(place, Path) else place) not in catalog.INCLUDED:
            raise InputError(
                f"its methods need {source}, which runs as a program: allow it by --with {place}",
                code="code_not_allowed",
            )


def recipe(value: str | Mapping[str, Any]) -> Recipe:
    """Make a recipe from TOML: the name of one, or a table of changes to the one its key `like` names.

    Changing the number of epochs of a named recipe moves its milestones in proportion.

    >>> recipe({"like": "mukhoti_cifar", "epochs": 35}).milestones
    (15, 25)
    >>> recipe("mukhoti_cifer")
    Traceback (most recent call last):
    calibrant.types.InputError: no recipe 'mukhoti_cifer'; did you mean 'mukhoti_cifar'?
    """
    table = {"like": value} if isinstance(value, str) else dict(value)
    if (name := table.pop("like", None)) is None:
        return build(Recipe, table)
    if not isinstance(name, str) or name not in RECIPES:
        hint = catalog.suggest(str(name), RECIPES)
        raise InputError(f"no recipe {shorten(name)}; {hint}", code="unknown_recipe")
    changes = build(Recipe, table)  # checks keys and types
    start = RECIPES[name].scaled(changes.epochs) if "epochs" in table else RECIPES[name]
    return replace(start, **{key: getattr(changes, key) for key in table})


def build(cls: type[Any], table: Mapping[str, Any], name: str = "", read: Read = method, **more: Any) -> Any:
    """Make a frozen dataclass from a TOML table, checking keys and types; lists become tuples, texts methods.

    `name` is what messages call it, `more` are values that need no check.
    """
    known, name = _field_types(cls), name or cls.__name__.lower()
    _known(name, table, known)
    values = {key: _convert(key, known[key], value, read) for key, value in table.items()} | more
    for key, parameter in inspect.signature(cls).parameters.items():
        if parameter.default is parameter.empty and key not in values:
            raise InputError(f"{name} needs {key!r}", code="missing_key")
    return cls(**values)


@cache
def _field_types(cls: type[Any]) -> dict[str, Any]:
    """Return the types of a dataclass's fields, without the ranges that the class itself checks."""
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in fields(cls)}


def _known(name: str, table: Iterable[str], known: Iterable[str]) -> None:
    for key in set(table) - set(known):
        raise InputError(f"{name} has no key {shorten(key)}; {catalog.suggest(key, known)}", code="unknown_key")


def _convert(key: str, kind: Any, value: Any, read: Read) -> Any:
    if kind is Recipe and isinstance(value, str | dict):
        return recipe(value)  # pyright: ignore[reportUnknownArgumentType]
    if kind is Method and isinstance(value, str):
        return read(key if key in LISTS else f"{key}s", value)
    if isinstance(value, dict) and (nested := [o for o in (kind, *get_args(kind)) if is_dataclass(o)]):
        return build(nested[0], value, "", read)  # pyright: ignore
    if get_origin(kind) is tuple and isinstance(value, list):
        return tuple(_convert(key, get_args(kind)[0], item, read) for item in value)
    if get_origin(kind) is Mapping and isinstance(value, dict):
        return value  # pyright: ignore[reportUnknownVariableType]
    if get_origin(kind) is Literal and value in get_args(kind):
        return value
    options: tuple[Any, ...] = get_args(kind) if get_origin(kind) in (UnionType, Union) else (kind,)
    if float in options and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if any(isinstance(o, type) and isinstance(value, o) and isinstance(value, bool) == (o is bool) for o in options):
        return value
    raise InputError(f"{key} must be {_expected(kind)}, got {shorten(value)}", code="type_of_key")


def _expected(kind: Any) -> str:
    if kind is Method:
        return "the text of a method"
    if get_origin(kind) is tuple:
        return "a list, each " + _expected(get_args(kind)[0])
    return kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", "")
