"""A study is data: what to train, what to do with it, what to measure. Checked whole before anything runs."""

import hashlib
import itertools
import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType, UnionType
from typing import Any, Literal, get_args, get_origin

from calibrant import calibrators, catalog, data, losses, metrics, networks
from calibrant._types import InputError
from calibrant.study.recipe import RECIPES
from calibrant.study.recipe import Recipe as Recipe


@dataclass(frozen=True)
class Run:
    """One network to train. Equal runs have equal ids, on any machine and however they were spelled."""

    dataset: str
    network: str
    loss: str
    seed: int
    recipe: Recipe

    @property
    def id(self) -> str:
        """Twelve hex digits of the canonical JSON, in which every default is spelled out."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Study:
    """A grid of runs, and the calibrators and metrics to apply to each."""

    name: str
    datasets: tuple[str, ...]
    networks: tuple[str, ...]
    losses: tuple[str, ...]
    calibrators: tuple[str, ...] = ("Identity", "Temperature")
    metrics: tuple[str, ...] = ("error", "nll", "brier", "ece", "adaptive_ece")
    seeds: tuple[int, ...] = (0,)
    recipe: Recipe = field(default_factory=Recipe)
    title: str = ""

    def __post_init__(self) -> None:
        for key, home in HOMES.items():  # fail now, not after training
            texts = getattr(self, key)
            if not texts:
                raise InputError(f"a study needs at least one entry in {key}")
            object.__setattr__(self, key, tuple(catalog.brief(text, home) for text in texts))

    @classmethod
    def load(cls, path: str | Path) -> "Study":
        """Read a study from TOML; an unknown key is an error with a suggestion."""
        path = Path(path)
        try:
            table = tomllib.loads(path.read_text())
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot read study {path}: {getattr(error, 'strerror', None) or error}") from None
        except tomllib.TOMLDecodeError as error:
            raise InputError(f"{path} is not valid TOML: {error}") from None
        try:
            return build(cls, {"name": path.stem} | table)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None

    def runs(self) -> Iterator[Run]:
        """Every network of the grid, seeds innermost."""
        for dataset, network, loss, seed in itertools.product(self.datasets, self.networks, self.losses, self.seeds):
            yield Run(
                catalog.canonical(dataset, data),
                catalog.canonical(network, networks),
                catalog.canonical(loss, losses),
                seed,
                self.recipe,
            )

    def label(self, key: str, name: str) -> str:
        """Say a canonical name as this study spells it: 'focal(gamma=3, ...)' may be its 'focal'."""
        home = HOMES[key]
        return next((text for text in getattr(self, key) if catalog.canonical(text, home) == name), name)


HOMES: dict[str, ModuleType] = {
    "datasets": data,
    "networks": networks,
    "losses": losses,
    "calibrators": calibrators,
    "metrics": metrics,
}


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


def build(cls: type[Any], table: Mapping[str, Any]) -> Any:
    """Make a frozen dataclass from a TOML table, checking keys and types; lists become tuples, ints floats."""
    known = {f.name: f for f in fields(cls)}
    for key in table.keys() - known.keys():
        close = get_close_matches(key, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(known)}"
        raise InputError(f"{cls.__name__.lower()} has no key {key!r}; {hint}")
    values = {key: _convert(key, known[key].type, value) for key, value in table.items()}
    for f in known.values():
        if f.default is MISSING and f.default_factory is MISSING and f.name not in table:
            raise InputError(f"{cls.__name__.lower()} needs {f.name!r}")
    return cls(**values)


def _convert(key: str, kind: Any, value: Any) -> Any:
    if kind is Recipe and isinstance(value, str | dict):
        return recipe(value)  # pyright: ignore[reportUnknownArgumentType]
    if isinstance(kind, type) and isinstance(value, dict):
        return build(kind, value)  # pyright: ignore[reportUnknownArgumentType]
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
