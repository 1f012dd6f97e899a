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

from calibrant import registry
from calibrant.lab.study.config import Study, parse_recipe
from calibrant.lab.study.methods import parse_method
from calibrant.lab.study.recipe import RECIPES, Recipe
from calibrant.lab.study.tables import PaperNumber, ResultTable, build_tables
from calibrant.registry import Method
from calibrant.types import InputError

KEY_LISTS = "datasets", "networks", "losses", "calibrators", "metrics"
NumberKey = tuple[Method, ...]  # one of each kind, in this order
MethodReader = Callable[[str, str], Method]
SplitSizes = tuple[int, int, int]  # how many examples train, validate and test
ROW_COLUMNS = "dataset", "network", "loss", "calibrator", "metric"

SPEED_ONLY_FIELDS = {"channels_last", "compile"}
_CELL_PATTERN = re.compile(r"(\d+(?:\.\d+)?)(?:±(\d+(?:\.\d+)?))?(?:\((\d+(?:\.\d+)?)\))?")


@dataclass(frozen=True)
class PublishedResults:
    """A paper's numbers by what they are of, and its recipes by data set.

    >>> mukhoti = PublishedResults.load("mukhoti_2020")
    >>> found = mukhoti.find("cifar10", "resnet50", "cross_entropy", "Temperature(criterion='ece')", "ece")
    >>> round(found.mean, 4), found.temperature, found.source
    (0.0135, 2.5, 'Table 1')
    """

    paper: str
    numbers: Mapping[NumberKey, PaperNumber]
    recipes: Mapping[Method, Recipe]
    exceptions: Mapping[NumberKey, Recipe]  # of a data set, network and loss that were trained otherwise
    examples: Mapping[Method, SplitSizes]  # as far as the paper says
    runs: int | None  # over which its means are
    seed_split_datasets: frozenset[Method] = frozenset()  # data sets whose validation split each seed draws
    evaluation_sets: Mapping[Method, tuple[str, str]] = field(
        default_factory=dict[Method, tuple[str, str]]
    )  # there, and here

    @classmethod
    def load(cls, name: str) -> "PublishedResults":
        """Read the numbers that come with calibrant by name, or a TOML file of the same form."""
        folder = Path(str(files("calibrant") / "studies" / "published"))
        path = Path(name) if name.endswith(".toml") else folder / f"{name}.toml"
        try:
            table = tomllib.loads(path.read_text())
        except FileNotFoundError:
            names = sorted(known.stem for known in folder.glob("*.toml"))
            raise InputError(
                f"no published numbers {name!r}; {registry.suggest(name, names)}", code="unknown_name"
            ) from None
        except tomllib.TOMLDecodeError as error:
            raise InputError(f"{path} is not valid TOML: {error}", code="toml") from None
        try:
            read_method: MethodReader = cache(parse_method)  # a text is read once, however many numbers are of it
            sets = {read_method("datasets", entry["name"]): entry for entry in table["datasets"].values()}
            recipes = {dataset: RECIPES[entry["recipe"]] for dataset, entry in sets.items()}
            sizes = {dataset: entry["examples"] for dataset, entry in sets.items() if "examples" in entry}
            examples = {dataset: (n[0], n[1], n[2]) for dataset, n in sizes.items()}
            exceptions = dict(_read_exceptions(table, read_method))
            seeded = frozenset(dataset for dataset, entry in sets.items() if entry.get("split") == "seed")
            evaluation_sets = {
                dataset: (entry["judged"][0], entry["judged"][1])
                for dataset, entry in sets.items()
                if "judged" in entry
            }
            numbers, runs = dict(_read_numbers(table, read_method)), table.get("runs")
            return cls(table["paper"], numbers, recipes, exceptions, examples, runs, seeded, evaluation_sets)
        except (KeyError, InputError) as error:
            reason = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else error
            code = "missing_key" if isinstance(error, KeyError) else error.code
            raise InputError(f"{path}: {reason}", code=code) from None

    def recipe(self, dataset: Method, network: Method, loss: Method) -> Recipe | None:
        """Return how the paper trained a network, if that is known."""
        paper_recipe = self.exceptions.get((dataset, network, loss), self.recipes.get(dataset))
        return None if paper_recipe is None else paper_recipe.for_loss(loss.name)

    @cached_property
    def places(self) -> frozenset[tuple[Method, ...]]:
        """The data sets and networks of which numbers are printed."""
        return frozenset(key[:2] for key in self.numbers)

    def find(self, *names: str | Method) -> PaperNumber | None:
        """Return what is printed of a data set, network, loss, calibrator and metric, however they are spelled."""
        return self.numbers.get(tuple(map(parse_method, KEY_LISTS, names)))


@dataclass(frozen=True)
class PaperComparison:
    """A paper's numbers beside those of a study: of the same setting, or of the one that `study.beside` names."""

    published: PublishedResults
    study: Study
    examples: Mapping[Method, SplitSizes] = field(
        default_factory=dict[Method, SplitSizes]
    )  # of the study's own data sets

    def find_number(self, row: Mapping[str, Any]) -> PaperNumber | None:
        """Return what the paper prints in place of a row of `rows`; of shifts, papers print no numbers."""
        if row["shift"]:
            return None
        if ("loss", row["loss"]) not in self._methods:  # one of several ways to train it
            return None
        dataset, network, loss, *calibrator_and_metric = (self._methods[key, row[key]] for key in ROW_COLUMNS)
        return self.published.find(*self._paper_place(dataset, network), loss, *calibrator_and_metric)

    @cached_property
    def _methods(self) -> dict[tuple[str, str], Method]:
        """The study's methods by the columns and texts of its rows."""
        lists = {"calibrator": self.study.calibrators, "metric": self.study.metrics}
        lists |= {key: tuple({getattr(run, key) for run in self.study.runs()}) for key in ROW_COLUMNS[:3]}
        return {
            (key, self.study.label(m) if key in ROW_COLUMNS[:3] else m.text): m for key in lists for m in lists[key]
        }

    def note(self, numbers: Iterable[PaperNumber]) -> str:
        """Say where the numbers that were found stand, and in what their setting differs from ours."""
        sources = ", ".join(sorted({p.source for p in numbers}, key=lambda s: (len(s), s)))
        differences = dict.fromkeys(self._differences())
        return f"paper: {self.published.paper}, {sources}; {'; '.join(differences) or self._agreement_text()}."

    def _paper_place(self, dataset: Method, network: Method) -> tuple[Method, Method]:
        if (dataset, network) in self.published.places:
            return dataset, network
        setting = self.study.beside
        return (setting.dataset, setting.network) if setting else (dataset, network)

    def _agreement_text(self) -> str:
        """Say what is known to be the same, where nothing is known to differ."""
        places = {(run.dataset, self._paper_place(run.dataset, run.network)[0]) for run in self.study.runs()}
        places = {(ours, theirs) for ours, theirs in places if theirs in self.published.recipes}
        compared = all(ours in self.examples and theirs in self.published.examples for ours, theirs in places)
        return "the same setting" if compared and self.published.runs else "the same recipe; data are not compared"

    def _size_differences(self, dataset: Method, theirs: Method) -> tuple[list[str], list[str]]:
        """Return how many examples the parts of a data set have, of either, where that is known and differs."""
        paper_sizes, our_sizes = self.published.examples.get(theirs), self.examples.get(dataset)
        if paper_sizes is None or our_sizes is None or paper_sizes == our_sizes:
            return [], []
        return [_sizes_text(paper_sizes)], [_sizes_text(our_sizes)]

    def _seed_differences(self, dataset: Method, network: Method) -> tuple[list[str], list[str]]:
        num_seeds = len({run.seed for run in self.study.runs() if (run.dataset, run.network) == (dataset, network)})
        if self.published.runs in (None, num_seeds):
            return [], []
        texts = [f"{n} seed" if n == 1 else f"{n} seeds" for n in (self.published.runs, num_seeds)]
        return texts[:1], texts[1:]

    def _split_differences(self, theirs: Method, split: str) -> tuple[list[str], list[str]]:
        """Return how often a validation split is drawn, of either, where it differs."""
        texts = {True: "a split per seed", False: "one split for all seeds"}
        paper_seeded, our_seeded = theirs in self.published.seed_split_datasets, split == "seed"
        return ([], []) if paper_seeded == our_seeded else ([texts[paper_seeded]], [texts[our_seeded]])

    def _evaluation_differences(self, theirs: Method) -> tuple[list[str], list[str]]:
        """Return on what the numbers are computed, of either, where it differs."""
        paper_set, our_set = self.published.evaluation_sets.get(theirs, ("", ""))
        return ([paper_set], [our_set]) if paper_set else ([], [])

    def _differences(self) -> Iterator[str]:
        places = dict.fromkeys((run.dataset, run.network, run.loss, run.recipe, run.split) for run in self.study.runs())
        for dataset, network, loss, our_recipe, split in places:
            theirs = self._paper_place(dataset, network)
            if (paper_recipe := self.published.recipe(*theirs, loss)) is None:
                continue
            ours = self.study.label(dataset), self.study.label(network)
            other_place = theirs != (dataset, network)
            paper_texts, our_texts = _recipe_differences(paper_recipe, our_recipe)
            place = ([f"{theirs[1]} on {theirs[0]}"], [f"{ours[1]} on {ours[0]}"]) if other_place else ([], [])
            comparisons = (
                self._size_differences(dataset, theirs[0]),
                self._seed_differences(dataset, network),
                self._split_differences(theirs[0], split),
            )
            for theirs_too, ours_too in (*comparisons, self._evaluation_differences(theirs[0])):
                paper_texts, our_texts = paper_texts + theirs_too, our_texts + ours_too
            if paper_texts or other_place:
                yield f"published: {', '.join(place[0] + paper_texts)}; here: {', '.join(place[1] + our_texts)}"


def _sizes_text(sizes: SplitSizes) -> str:
    return " / ".join(f"{n:,}" for n in sizes) + " examples"


def load_paper(study: Study) -> PaperComparison | None:
    """Return the paper whose numbers stand beside those of a study, if it names one."""
    return PaperComparison(PublishedResults.load(study.published), study) if study.published else None


def study_tables(
    rows: Iterable[Mapping[str, Any]], paper: PaperComparison | None, versions_note: str = ""
) -> list[ResultTable]:
    """Make the tables of a study's rows, with a paper's numbers beside ours, and what is to be said of the training."""
    built_tables = build_tables(rows) if paper is None else build_tables(rows, paper.find_number, paper.note)
    return [replace(table, versions_note=versions_note) for table in built_tables]


def _recipe_differences(theirs: Recipe, ours: Recipe) -> tuple[list[str], list[str]]:
    """Return the settings in which two recipes differ, of either."""
    pairs = {key: (value, getattr(ours, key)) for key, value in asdict(theirs).items() if key not in SPEED_ONLY_FIELDS}
    keys = [key for key, (paper_value, our_value) in pairs.items() if paper_value != our_value]
    return [f"{key} {pairs[key][0]}" for key in keys], [f"{key} {pairs[key][1]}" for key in keys]


def _read_exceptions(table: Mapping[str, Any], read: MethodReader) -> Iterator[tuple[NumberKey, Recipe]]:
    for entry in table.get("exceptions", []):
        yield (
            tuple(read(f"{key}s" if key != "loss" else "losses", entry[key]) for key in ROW_COLUMNS[:3]),
            parse_recipe(entry["recipe"]),
        )


def _read_numbers(table: Mapping[str, Any], read: MethodReader) -> Iterator[tuple[NumberKey, PaperNumber]]:
    """Read all tables; where the paper repeats a number, its first place counts."""
    known_keys: set[NumberKey] = set()
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
                    if (key := tuple(map(read, KEY_LISTS, names))) not in known_keys:
                        known_keys.add(key)
                        yield key, _parse_number(text, scale, part["source"])


def _parse_number(text: str, scale: float, source: str) -> PaperNumber:
    if (match := _CELL_PATTERN.fullmatch(text)) is None:
        raise InputError(f"{source}: expected a number such as 4.35±0.21(2.50), got {text!r}", code="not_numbers")
    value, deviation, temperature = (float(part) if part else math.nan for part in match.groups())
    return PaperNumber(value / scale, deviation / scale, temperature, source)
