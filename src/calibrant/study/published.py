"""The numbers that papers print, to stand beside ours: `studies/published/*.toml`, in the papers' own words."""

import math
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

from calibrant import catalog
from calibrant.catalog import Method
from calibrant.study.config import Study, recipe
from calibrant.study.methods import method
from calibrant.study.recipe import RECIPES, Recipe
from calibrant.study.tables import Printed, Table, tables
from calibrant.types import InputError

KINDS = "datasets", "networks", "losses", "calibrators", "metrics"
Key = tuple[Method, ...]  # one of each kind, in this order
Read = Callable[[str, str], Method]
Sizes = tuple[int, int, int]  # how many examples train, validate and test
ROW = "dataset", "network", "loss", "calibrator", "metric"

SPEED_ONLY = {"channels_last", "compile"}
_CELL = re.compile(r"(\d+(?:\.\d+)?)(?:±(\d+(?:\.\d+)?))?(?:\((\d+(?:\.\d+)?)\))?")


@dataclass(frozen=True)
class Published:
    """A paper's numbers by what they are of, and its recipes by data set.

    >>> mukhoti = Published.load("mukhoti_2020")
    >>> found = mukhoti.find("cifar10", "resnet50", "cross_entropy", "Temperature(criterion='ece')", "ece")
    >>> round(found.mean, 4), found.temperature, found.source
    (0.0135, 2.5, 'Table 1')
    """

    paper: str
    numbers: Mapping[Key, Printed]
    recipes: Mapping[Method, Recipe]
    exceptions: Mapping[Key, Recipe]  # of a data set, network and loss that were trained otherwise
    examples: Mapping[Method, Sizes]  # as far as the paper says
    runs: int | None  # over which its means are
    seeded: frozenset[Method] = frozenset()  # data sets whose validation split each seed draws
    judged: Mapping[Method, tuple[str, str]] = field(default_factory=dict[Method, tuple[str, str]])  # there, and here

    @classmethod
    def load(cls, name: str) -> "Published":
        """Read the numbers that come with calibrant by name, or a TOML file of the same form."""
        folder = Path(str(files("calibrant") / "studies" / "published"))
        path = Path(name) if name.endswith(".toml") else folder / f"{name}.toml"
        try:
            table = tomllib.loads(path.read_text())
        except FileNotFoundError:
            there = sorted(known.stem for known in folder.glob("*.toml"))
            raise InputError(
                f"no published numbers {name!r}; {catalog.suggest(name, there)}", code="unknown_name"
            ) from None
        except tomllib.TOMLDecodeError as error:
            raise InputError(f"{path} is not valid TOML: {error}", code="toml") from None
        try:
            read: Read = cache(method)  # a text is read once, however many numbers are of it
            sets = {read("datasets", of["name"]): of for of in table["datasets"].values()}
            recipes = {dataset: RECIPES[of["recipe"]] for dataset, of in sets.items()}
            sizes = {dataset: of["examples"] for dataset, of in sets.items() if "examples" in of}
            examples = {dataset: (n[0], n[1], n[2]) for dataset, n in sizes.items()}
            exceptions = dict(_exceptions(table, read))
            seeded = frozenset(dataset for dataset, of in sets.items() if of.get("split") == "seed")
            judged = {dataset: (of["judged"][0], of["judged"][1]) for dataset, of in sets.items() if "judged" in of}
            numbers, runs = dict(_numbers(table, read)), table.get("runs")
            return cls(table["paper"], numbers, recipes, exceptions, examples, runs, seeded, judged)
        except (KeyError, InputError) as error:
            said = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else error
            code = "missing_key" if isinstance(error, KeyError) else error.code
            raise InputError(f"{path}: {said}", code=code) from None

    def recipe(self, dataset: Method, network: Method, loss: Method) -> Recipe | None:
        """Return how the paper trained a network, if that is known."""
        known = self.exceptions.get((dataset, network, loss), self.recipes.get(dataset))
        return None if known is None else known.of(loss.name)

    @cached_property
    def places(self) -> frozenset[tuple[Method, ...]]:
        """The data sets and networks of which numbers are printed."""
        return frozenset(key[:2] for key in self.numbers)

    def find(self, *names: str | Method) -> Printed | None:
        """Return what is printed of a data set, network, loss, calibrator and metric, however they are spelled."""
        return self.numbers.get(tuple(map(method, KINDS, names)))


@dataclass(frozen=True)
class Beside:
    """A paper's numbers beside those of a study: of the same setting, or of the one that `study.beside` names."""

    published: Published
    study: Study
    examples: Mapping[Method, Sizes] = field(default_factory=dict[Method, Sizes])  # of the study's own data sets

    def printed(self, row: Mapping[str, Any]) -> Printed | None:
        """Return what the paper prints in place of a row of `rows`; of shifts, papers print no numbers."""
        if row["shift"]:
            return None
        if ("loss", row["loss"]) not in self._methods:  # one of several ways to train it
            return None
        dataset, network, loss, *rest = (self._methods[key, row[key]] for key in ROW)
        return self.published.find(*self._place(dataset, network), loss, *rest)

    @cached_property
    def _methods(self) -> dict[tuple[str, str], Method]:
        """The study's methods by the columns and texts of its rows."""
        lists = {"calibrator": self.study.calibrators, "metric": self.study.metrics}
        lists |= {key: tuple({getattr(run, key) for run in self.study.runs()}) for key in ROW[:3]}
        return {(key, self.study.label(m) if key in ROW[:3] else m.text): m for key in lists for m in lists[key]}

    def note(self, found: Iterable[Printed]) -> str:
        """Say where the numbers that were found stand, and in what their setting differs from ours."""
        sources = ", ".join(sorted({p.source for p in found}, key=lambda s: (len(s), s)))
        differing = dict.fromkeys(self._differences())
        return f"paper: {self.published.paper}, {sources}; {'; '.join(differing) or self._same()}."

    def _place(self, dataset: Method, network: Method) -> tuple[Method, Method]:
        if (dataset, network) in self.published.places:
            return dataset, network
        other = self.study.beside
        return (other.dataset, other.network) if other else (dataset, network)

    def _same(self) -> str:
        """Say what is known to be the same, where nothing is known to differ."""
        places = {(run.dataset, self._place(run.dataset, run.network)[0]) for run in self.study.runs()}
        places = {(ours, theirs) for ours, theirs in places if theirs in self.published.recipes}
        compared = all(ours in self.examples and theirs in self.published.examples for ours, theirs in places)
        return "the same setting" if compared and self.published.runs else "the same recipe; data are not compared"

    def _sizes(self, dataset: Method, theirs: Method) -> tuple[list[str], list[str]]:
        """Return how many examples the parts of a data set have, of either, where that is known and differs."""
        known, ours = self.published.examples.get(theirs), self.examples.get(dataset)
        if known is None or ours is None or known == ours:
            return [], []
        return [_parts(known)], [_parts(ours)]

    def _seeds(self, dataset: Method, network: Method) -> tuple[list[str], list[str]]:
        own = len({run.seed for run in self.study.runs() if (run.dataset, run.network) == (dataset, network)})
        if self.published.runs in (None, own):
            return [], []
        said = [f"{n} seed" if n == 1 else f"{n} seeds" for n in (self.published.runs, own)]
        return said[:1], said[1:]

    def _splits(self, theirs: Method, split: str) -> tuple[list[str], list[str]]:
        """Return how often a validation split is drawn, of either, where it differs."""
        said = {True: "a split per seed", False: "one split for all seeds"}
        there, here = theirs in self.published.seeded, split == "seed"
        return ([], []) if there == here else ([said[there]], [said[here]])

    def _judged(self, theirs: Method) -> tuple[list[str], list[str]]:
        """Return on what the numbers are computed, of either, where it differs."""
        there, here = self.published.judged.get(theirs, ("", ""))
        return ([there], [here]) if there else ([], [])

    def _differences(self) -> Iterator[str]:
        places = dict.fromkeys((run.dataset, run.network, run.loss, run.recipe, run.split) for run in self.study.runs())
        for dataset, network, loss, ours_by, split in places:
            theirs = self._place(dataset, network)
            if (known := self.published.recipe(*theirs, loss)) is None:
                continue
            ours = self.study.label(dataset), self.study.label(network)
            elsewhere = theirs != (dataset, network)
            there, here = _apart(known, ours_by)
            place = ([f"{theirs[1]} on {theirs[0]}"], [f"{ours[1]} on {ours[0]}"]) if elsewhere else ([], [])
            more = self._sizes(dataset, theirs[0]), self._seeds(dataset, network), self._splits(theirs[0], split)
            for theirs_too, ours_too in (*more, self._judged(theirs[0])):
                there, here = there + theirs_too, here + ours_too
            if there or elsewhere:
                yield f"published: {', '.join(place[0] + there)}; here: {', '.join(place[1] + here)}"


def _parts(sizes: Sizes) -> str:
    return " / ".join(f"{n:,}" for n in sizes) + " examples"


def paper_of(study: Study) -> Beside | None:
    """Return the paper whose numbers stand beside those of a study, if it names one."""
    return Beside(Published.load(study.published), study) if study.published else None


def study_tables(rows: Iterable[Mapping[str, Any]], paper: Beside | None, trained: str = "") -> list[Table]:
    """Make the tables of a study's rows, with a paper's numbers beside ours, and what is to be said of the training."""
    made = tables(rows) if paper is None else tables(rows, paper.printed, paper.note)
    return [replace(table, trained=trained) for table in made]


def _apart(theirs: Recipe, ours: Recipe) -> tuple[list[str], list[str]]:
    """Return the settings in which two recipes differ, of either."""
    pairs = {key: (value, getattr(ours, key)) for key, value in asdict(theirs).items() if key not in SPEED_ONLY}
    keys = [key for key, (there, here) in pairs.items() if there != here]
    return [f"{key} {pairs[key][0]}" for key in keys], [f"{key} {pairs[key][1]}" for key in keys]


def _exceptions(table: Mapping[str, Any], read: Read) -> Iterator[tuple[Key, Recipe]]:
    for one in table.get("exceptions", []):
        yield tuple(read(f"{key}s" if key != "loss" else "losses", one[key]) for key in ROW[:3]), recipe(one["recipe"])


def _numbers(table: Mapping[str, Any], read: Read) -> Iterator[tuple[Key, Printed]]:
    """Read all tables; where the paper repeats a number, its first place counts."""
    seen: set[Key] = set()
    for part in table["tables"]:
        scale = 100.0 if part.get("percent", True) else 1.0
        for dataset, network, *cells in part["rows"]:
            place = table["datasets"][dataset]
            words = {dataset: place["name"]} | table["names"] | place.get("names", {})
            if len(cells) != len(part["losses"]):
                raise InputError(
                    f"{part['source']}, {dataset}, {network}: a cell for every loss, got {len(cells)}",
                    code="row_length",
                )
            for loss, cell in zip(part["losses"], cells, strict=True):
                texts = cell.split()
                if len(texts) != len(part["columns"]):
                    raise InputError(f"{part['source']}: a number for every column, got {cell!r}", code="cell_length")
                for column, text in zip(part["columns"], texts, strict=True):
                    if text == "?" or loss not in words:  # not legible, or the paper does not say which loss
                        continue
                    names = [words.get(word, word) for word in (dataset, network, loss, column, part["metric"])]
                    if (key := tuple(map(read, KINDS, names))) not in seen:
                        seen.add(key)
                        yield key, _printed(text, scale, part["source"])


def _printed(text: str, scale: float, source: str) -> Printed:
    if (match := _CELL.fullmatch(text)) is None:
        raise InputError(f"{source}: expected a number such as 4.35±0.21(2.50), got {text!r}", code="not_numbers")
    value, deviation, temperature = (float(part) if part else math.nan for part in match.groups())
    return Printed(value / scale, deviation / scale, temperature, source)
