"""A study is data: what to train, what to do with it, what to measure. Checked whole before anything runs."""

import hashlib
import itertools
import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType, UnionType
from typing import Any, Literal, get_args, get_origin

from calibrant import calibrators, catalog, data, losses, metrics, networks
from calibrant._types import InputError
from calibrant.study import traces
from calibrant.study.recipe import RECIPES
from calibrant.study.recipe import Recipe as Recipe


@dataclass(frozen=True)
class Run:
    """One network to train, and what to keep of it. Equal runs have equal ids, on any machine and however spelled."""

    dataset: str
    network: str
    loss: str
    seed: int
    recipe: Recipe
    shifts: tuple[str, ...] = ()  # further test sets to predict: corruptions of the test set, or other data sets
    traces: tuple[str, ...] = ()  # what to watch in every epoch

    @property
    def id(self) -> str:
        """Twelve hex digits of the canonical JSON, in which every default is spelled out."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Grid:
    """Every loss on every network on every data set with every seed, trained by one recipe."""

    datasets: tuple[str, ...]
    networks: tuple[str, ...]
    losses: tuple[str, ...]
    seeds: tuple[int, ...] = (0,)
    recipe: Recipe = field(default_factory=Recipe)
    shifts: tuple[str, ...] = ()
    traces: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _spelled(self, "datasets", "networks", "losses", "seeds")
        _spelled(self, "shifts", "traces", empty=True)

    def runs(self) -> Iterator[Run]:
        """Every network of the grid, seeds innermost."""
        shifts, traces = (tuple(canonical(key, text) for text in getattr(self, key)) for key in ("shifts", "traces"))
        for dataset, network, loss, seed in itertools.product(self.datasets, self.networks, self.losses, self.seeds):
            names = canonical("datasets", dataset), canonical("networks", network), canonical("losses", loss)
            yield Run(*names, seed, self.recipe, shifts, traces)


@dataclass(frozen=True)
class Setting:
    """Where a paper's numbers come from."""

    dataset: str
    network: str


@dataclass(frozen=True)
class Study:
    """Grids of runs, and the calibrators and metrics to apply to each."""

    name: str
    grids: tuple[Grid, ...]
    calibrators: tuple[str, ...] = ("Identity", "Temperature")
    metrics: tuple[str, ...] = ("error", "nll", "brier", "ece", "adaptive_ece")
    detection: tuple[str, ...] = ("max_probability",)  # scores by which shifts are told from the test set
    title: str = ""
    published: str = ""  # the paper whose numbers stand beside ours
    beside: Setting | None = None  # which of them, where the paper trained something else

    def __post_init__(self) -> None:
        if not self.grids:
            raise InputError("a study needs at least one grid")
        _spelled(self, "calibrators", "metrics", "detection")

    @classmethod
    def load(cls, path: str | Path, scale: str | None = None) -> "Study":
        """Read a study from TOML; an unknown key is an error with a suggestion.

        What a grid does not say, it has from the top level, and a file without [[grids]] is one grid. `scale` names a
        table [scales.NAME] that replaces what stands at the top level.
        """
        path = Path(path)
        try:
            table = tomllib.loads(path.read_text())
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot read study {path}: {getattr(error, 'strerror', None) or error}") from None
        except tomllib.TOMLDecodeError as error:
            raise InputError(f"{path} is not valid TOML: {error}") from None
        try:
            scales = table.pop("scales", {})
            if scale is not None and scale not in scales:
                raise InputError(f"no scale {scale!r}; it has {', '.join(scales) or 'none'}")
            name = path.stem if scale is None else f"{path.stem}-{scale}"
            return _study({"name": name} | table | (scales[scale] if scale is not None else {}))
        except InputError as error:
            raise InputError(f"{path}: {error}") from None

    def runs(self) -> Iterator[Run]:
        """Every network of every grid, once."""
        yield from dict.fromkeys(run for grid in self.grids for run in grid.runs())

    def label(self, key: str, name: str) -> str:
        """Say a canonical name as this study spells it: 'focal(gamma=3, ...)' may be its 'focal'."""
        texts = (text for grid in self.grids for text in getattr(grid, key))
        return next((text for text in texts if canonical(key, text) == name), name)

    def names(self, run: Run) -> tuple[str, str, str]:
        """Say a run's data set, network and loss as this study spells them."""
        return self.label("datasets", run.dataset), self.label("networks", run.network), self.label("losses", run.loss)


HOMES: dict[str, ModuleType] = {
    "datasets": data,
    "networks": networks,
    "losses": losses,
    "calibrators": calibrators,
    "metrics": metrics,
    "traces": traces,
    "detection": metrics.ood,
}


def canonical(key: str, text: str) -> str:
    """Spell out an entry of a study's list `key`, defaults included."""
    return catalog.canonical(text, home(key, text))


def home(key: str, text: str) -> ModuleType:
    """Return the module that knows an entry of a study's list `key`; a shift is a corruption or a data set."""
    if key != "shifts":
        return HOMES[key]
    return data.corruptions if corrupts(text) else data


def corrupts(shift: str) -> bool:
    """Say whether a shift is a corruption of the test set, whose labels still hold, and not another data set."""
    return shift.partition("(")[0].strip() in data.corruptions.__all__


def _spelled(value: Any, *keys: str, empty: bool = False) -> None:
    """Bring the lists of a study into normal form; fail now, not after training."""
    for key in keys:
        texts = getattr(value, key)
        if not texts and not empty:
            raise InputError(f"a study needs at least one entry in {key}")
        if key != "seeds":
            object.__setattr__(value, key, tuple(catalog.brief(text, home(key, text)) for text in texts))


def _study(table: dict[str, Any]) -> Study:
    own, shared = ([f.name for f in fields(cls)] for cls in (Study, Grid))
    _known("study", table, [*own, *shared])
    grids = table.pop("grids", [{}])
    if not isinstance(grids, list) or not all(isinstance(grid, dict) for grid in grids):  # pyright: ignore
        raise InputError(f"grids must be tables, written [[grids]], got {grids!r}")
    common = {key: table.pop(key) for key in list(table) if key in shared}
    made = tuple(build(Grid, common | grid, "study") for grid in grids)
    return build(Study, table, grids=made)


def recipe(value: str | Mapping[str, Any]) -> Recipe:
    """Make a recipe from TOML: the name of one, or a table of changes to the one its key `like` names.

    Changing the number of epochs of a named recipe moves its milestones in proportion.

    >>> recipe({"like": "mukhoti_cifar", "epochs": 35}).milestones
    (15, 25)
    >>> recipe("mukhoti_cifer")
    Traceback (most recent call last):
    calibrant._types.InputError: no recipe 'mukhoti_cifer'; did you mean 'mukhoti_cifar'?
    """
    table = {"like": value} if isinstance(value, str) else dict(value)
    if (name := table.pop("like", None)) is None:
        return build(Recipe, table)
    if name not in RECIPES:
        close = get_close_matches(str(name), RECIPES, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(RECIPES)}"
        raise InputError(f"no recipe {name!r}; {hint}")
    changes = build(Recipe, table)  # checks keys and types
    start = RECIPES[name].scaled(changes.epochs) if "epochs" in table else RECIPES[name]
    return replace(start, **{key: getattr(changes, key) for key in table})


def build(cls: type[Any], table: Mapping[str, Any], name: str = "", **more: Any) -> Any:
    """Make a frozen dataclass from a TOML table, checking keys and types; lists become tuples, ints floats.

    `name` is what messages call it, `more` are values that need no check.
    """
    known, name = {f.name: f for f in fields(cls)}, name or cls.__name__.lower()
    _known(name, table, known)
    values = {key: _convert(key, known[key].type, value) for key, value in table.items()} | more
    for f in known.values():
        if f.default is MISSING and f.default_factory is MISSING and f.name not in values:
            raise InputError(f"{name} needs {f.name!r}")
    return cls(**values)


def _known(name: str, table: Iterable[str], known: Iterable[str]) -> None:
    for key in set(table) - set(known):
        close = get_close_matches(key, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(known)}"
        raise InputError(f"{name} has no key {key!r}; {hint}")


def _convert(key: str, kind: Any, value: Any) -> Any:
    if kind is Recipe and isinstance(value, str | dict):
        return recipe(value)  # pyright: ignore[reportUnknownArgumentType]
    if isinstance(value, dict) and (nested := [o for o in (kind, *get_args(kind)) if is_dataclass(o)]):
        return build(nested[0], value)  # pyright: ignore
    if get_origin(kind) is tuple and isinstance(value, list):
        return tuple(_convert(key, get_args(kind)[0], item) for item in value)
    if get_origin(kind) is Literal and value in get_args(kind):
        return value
    options: tuple[Any, ...] = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    if float in options and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if any(isinstance(o, type) and isinstance(value, o) and isinstance(value, bool) == (o is bool) for o in options):
        return value
    expected = kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", "")
    raise InputError(f"{key} must be {expected}, got {value!r}")
