"""Compare a study with the values that papers print, from `studies/published/*.toml`."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property
from typing import Any

from calibrant._core.foreign import read_toml
from calibrant._core.registry import Method
from calibrant._core.types import InputError, prefix_errors
from calibrant.lab.study.config import STUDIES_FOLDER, Study, find_toml, parse_recipe
from calibrant.lab.study.grids import parse_method
from calibrant.lab.study.recipe import RECIPES, Recipe
from calibrant.lab.study.tables import PaperValue, ResultTable, build_tables

KEY_LISTS = "datasets", "networks", "losses", "calibrators", "metrics"
ROW_COLUMNS = "dataset", "network", "loss", "calibrator", "metric"
ValueKey = tuple[Method, ...]  # data set, network, loss, calibrator and metric, as in KEY_LISTS
PrintedNames = tuple[str, ...]  # data set, network, loss, calibrator and metric, as the paper prints them
# the key is None if the paper does not define the loss
PrintedTable = Mapping[PrintedNames, tuple[ValueKey | None, PaperValue]]
TrainingKey = tuple[Method, Method, Method]  # data set, network and loss
ParseMethod = Callable[[str, str], Method]
SplitSizes = tuple[int, int, int]  # of the training, validation and test examples

PUBLISHED_FOLDER = STUDIES_FOLDER / "published"
SPEED_ONLY_FIELDS = {"channels_last", "compile"}
_CELL_PATTERN = re.compile(r"(\d+(?:\.\d+)?)(?:±(\d+(?:\.\d+)?))?(?:\((\d+(?:\.\d+)?)\))?")


@dataclass(frozen=True)
class PaperDataset:
    """How a paper divides a data set, trains on it and evaluates."""

    recipe: Recipe
    examples: SplitSizes | None  # None if the paper does not state them
    split: str  # "seed" if every seed draws the validation split, else "fixed"
    evaluation_texts: tuple[str, str] | None  # what the paper evaluates, and what this package does; None if equal


@dataclass(frozen=True)
class PublishedResults:
    """The printed values of a paper by data set, network, loss, calibrator and metric, and its recipes.

    >>> mukhoti = PublishedResults.load("mukhoti_2020")
    >>> printed = mukhoti.find("cifar10", "resnet50", "cross_entropy", "Temperature(criterion='ece')", "ece")
    >>> round(printed.mean, 4), printed.temperature, printed.source
    (0.0135, 2.5, 'Table 1')
    """

    paper: str
    tables: Mapping[str, PrintedTable]  # by their sources, such as "Table 2"
    datasets: Mapping[Method, PaperDataset]
    exceptions: Mapping[TrainingKey, Recipe]  # recipes of trainings that do not use the recipe of their data set
    runs: int | None  # number of runs that the means are over; None if unknown
    remarks: Mapping[str, str]  # on the paper's values, by the name of a loss

    @classmethod
    def load(cls, name: str) -> "PublishedResults":
        """Read a bundled paper's values by name, or a TOML file of the same form."""
        path = find_toml(name, PUBLISHED_FOLDER, "published results", "unknown_name")
        table = read_toml(path)
        with prefix_errors(f"{path}"):
            try:
                return cls._from_table(table, cache(parse_method))  # parses every text once
            except KeyError as error:
                raise InputError(f"The key {error.args[0]!r} is missing.", code="missing_key") from None

    @classmethod
    def _from_table(cls, table: Mapping[str, Any], read_method: ParseMethod) -> "PublishedResults":
        """Build the results from the content of a TOML file, with `read_method` as the parser of methods.

        Raises:
            KeyError: For a missing key.
        """

        def read_training(entry: Mapping[str, str]) -> TrainingKey:
            dataset, network = read_method("datasets", entry["dataset"]), read_method("networks", entry["network"])
            return dataset, network, read_method("losses", entry["loss"])

        def read_dataset(entry: Mapping[str, Any]) -> PaperDataset:
            # "judged" has two texts: what the paper evaluates, and what this package does
            sizes, evaluation = (tuple(entry[key]) if key in entry else None for key in ("examples", "judged"))
            split = "seed" if entry.get("split") == "seed" else "fixed"
            return PaperDataset(RECIPES[entry["recipe"]], sizes, split, evaluation)

        return cls(
            paper=table["paper"],
            tables=_read_values(table, read_method),
            datasets={read_method("datasets", e["name"]): read_dataset(e) for e in table["datasets"].values()},
            exceptions={read_training(entry): parse_recipe(entry["recipe"]) for entry in table.get("exceptions", [])},
            runs=table.get("runs"),
            remarks={read_method("losses", name).name: text for name, text in table.get("remarks", {}).items()},
        )

    def recipe(self, dataset: Method, network: Method, loss: Method) -> Recipe:
        """Return the paper's recipe for a training: an exception, or the recipe of the data set."""
        return self.exceptions.get((dataset, network, loss), self.datasets[dataset].recipe).for_loss(loss.name)

    @cached_property
    def values(self) -> Mapping[ValueKey, PaperValue]:
        """The values of all tables. If a value is printed in several tables, the first one counts."""
        printed = reversed([pair for table in self.tables.values() for pair in table.values()])
        return {key: value for key, value in printed if key is not None}

    @cached_property
    def setups(self) -> frozenset[tuple[Method, Method]]:
        """Pairs of data set and network with printed values."""
        return frozenset((dataset, network) for dataset, network, *_ in self.values)

    def find(self, *names: str | Method) -> PaperValue | None:
        """Return the value for a data set, network, loss, calibrator and metric, however they are spelled, or None."""
        return self.values.get(tuple(map(parse_method, KEY_LISTS, names)))


@dataclass(frozen=True)
class PaperComparison:
    """Find the paper's values for a study's rows, in the same setting or in `study.paper_setting`."""

    published: PublishedResults
    study: Study
    examples: Mapping[Method, SplitSizes] = field(default_factory=dict[Method, SplitSizes])  # of the study's data sets

    def find_value(self, row: Mapping[str, Any]) -> PaperValue | None:
        """Return the paper's value for a row of results, or None without one.

        Papers have no values for shifts, nor for variants of a training, such as another number of epochs.
        """
        key = self.paper_key(row)
        return None if key is None else self.published.values.get(key)

    def paper_key(self, row: Mapping[str, Any]) -> ValueKey | None:
        """Return the key of the paper's value for a row of results, or None for a shift or a variant of a training."""
        if row["shift"] or ("loss", row["loss"]) not in self._methods:  # a variant's label has a suffix
            return None
        dataset, network, *methods = (self._methods[column, row[column]] for column in ROW_COLUMNS)
        return (*self._paper_setup(dataset, network), *methods)

    @cached_property
    def _methods(self) -> dict[tuple[str, str], Method]:
        """The study's methods by column and label, without the suffixes of variants."""
        methods = {("calibrator", m.text): m for m in self.study.calibrators}
        methods |= {("metric", m.text): m for m in self.study.metrics}
        for run in self.study.runs():
            columns = {"dataset": run.dataset, "network": run.network, "loss": run.loss}
            methods |= {(column, self.study.label(method)): method for column, method in columns.items()}
        return methods

    def note(self, paper_values: Iterable[PaperValue]) -> str:
        """Return the sources of the values, and the differences between the paper's setting and the study's."""
        unique_sources = {paper_value.source for paper_value in paper_values}
        # by length first, as "Table 2" comes before "Table 10"
        sources = ", ".join(sorted(unique_sources, key=lambda source: (len(source), source)))
        differences = dict.fromkeys(self._differences())
        loss_names = {run.loss.name for run in self.study.runs()}
        remarks = [text for name, text in self.published.remarks.items() if name in loss_names]
        texts = [sources, *(differences or [self._agreement_text()]), *remarks]
        return f"paper: {self.published.paper}, {'; '.join(texts)}."

    def _paper_setup(self, dataset: Method, network: Method) -> tuple[Method, Method]:
        """Return the data set and network to look up in the paper.

        They are the given ones if the paper has them, else those of the study's `paper_setting`, if it has one.
        """
        setting = self.study.paper_setting
        if (dataset, network) in self.published.setups or setting is None:
            return dataset, network
        return setting.dataset, setting.network

    def _agreement_text(self) -> str:
        """Return what agrees if no difference is known.

        That is the whole setting, or only the recipe if the sizes of splits or the number of runs are unknown.
        """
        # the data sets of the study, with those of the paper that they are compared with
        pairs = {(run.dataset, self._paper_setup(run.dataset, run.network)[0]) for run in self.study.runs()}
        has_sizes = all(  # of the study and of the paper
            dataset in self.examples and self.published.datasets[paper_dataset].examples
            for dataset, paper_dataset in pairs
            if paper_dataset in self.published.datasets
        )
        return "the same setting" if has_sizes and self.published.runs else "the same recipe; data are not compared"

    def _differences(self) -> Iterator[str]:
        """Yield how each training of the study differs from the paper's: "published: epochs 350; here: epochs 30".

        Trainings on data sets that the paper lacks, and equal trainings, yield nothing.
        """
        trainings = dict.fromkeys((r.dataset, r.network, r.loss, r.recipe, r.split) for r in self.study.runs())
        for dataset, network, loss, our_recipe, split in trainings:
            paper_dataset, paper_network = self._paper_setup(dataset, network)
            if (paper_data := self.published.datasets.get(paper_dataset)) is None:
                continue
            paper_recipe = self.published.recipe(paper_dataset, paper_network, loss)
            pairs: list[tuple[str, str]] = []  # texts of the paper's setting and of the study's
            if (paper_dataset, paper_network) != (dataset, network):
                our_setup = f"{self.study.label(network)} on {self.study.label(dataset)}"
                pairs.append((f"{paper_network} on {paper_dataset}", our_setup))
            pairs += [  # settings of the recipe
                (f"{key} {value}", f"{key} {getattr(our_recipe, key)}")
                for key, value in asdict(paper_recipe).items()
                if key not in SPEED_ONLY_FIELDS and value != getattr(our_recipe, key)
            ]
            pairs += self._data_differences(dataset, network, paper_data, split)
            if paper_data.evaluation_texts is not None:
                pairs.append(paper_data.evaluation_texts)
            if pairs:
                paper_texts, our_texts = zip(*pairs, strict=True)
                yield f"published: {', '.join(paper_texts)}; here: {', '.join(our_texts)}"

    def _data_differences(
        self, dataset: Method, network: Method, paper_data: PaperDataset, split: str
    ) -> Iterator[tuple[str, str]]:
        """Yield two texts, the paper's and the study's, for each difference in the data of a training.

        Differences may be in the sizes of splits, the number of seeds and the validation split. Unknown sizes and
        numbers are not compared.
        """
        our_sizes = self.examples.get(dataset)
        if paper_data.examples is not None and our_sizes is not None and paper_data.examples != our_sizes:
            yield _sizes_text(paper_data.examples), _sizes_text(our_sizes)
        num_seeds = len({run.seed for run in self.study.runs() if (run.dataset, run.network) == (dataset, network)})
        if self.published.runs is not None and self.published.runs != num_seeds:
            yield _seeds_text(self.published.runs), _seeds_text(num_seeds)
        split_texts = {"seed": "a split per seed", "fixed": "one split for all seeds"}
        if paper_data.split != split:
            yield split_texts[paper_data.split], split_texts[split]


def _sizes_text(sizes: SplitSizes) -> str:
    """Return the sizes of training, validation and test data, such as "45,000 / 5,000 / 10,000 examples"."""
    return " / ".join(f"{n:,}" for n in sizes) + " examples"


def _seeds_text(n: int) -> str:
    """Return "1 seed", "2 seeds", ..."""
    return f"{n} seed" if n == 1 else f"{n} seeds"


def load_paper(study: Study) -> PaperComparison | None:
    """Return the comparison with the paper that a study names, if any."""
    return PaperComparison(PublishedResults.load(study.published), study) if study.published else None


def study_tables(
    rows: Iterable[Mapping[str, Any]], paper: PaperComparison | None, versions_note: str = ""
) -> list[ResultTable]:
    """Build the tables of a study's rows, with the paper's values and a note on versions."""
    tables = build_tables(rows) if paper is None else build_tables(rows, paper.find_value, paper.note)
    return [replace(table, versions_note=versions_note) for table in tables]


def _read_values(table: Mapping[str, Any], read_method: ParseMethod) -> Mapping[str, PrintedTable]:
    """Return the values of all tables of a paper by their sources, such as "Table 1".

    A row holds abbreviations of the data set and network, then for each loss a cell: a text with a value for each
    calibrator.
    """
    tables: dict[str, dict[PrintedNames, tuple[ValueKey | None, PaperValue]]] = {}
    for part in table["tables"]:  # a table of the paper, for one metric
        source, losses, calibrators = part["source"], part["losses"], part["columns"]
        scale = 100.0 if part.get("percent", True) else 1.0  # printed values are divided by it
        for dataset, network, *cells in part["rows"]:
            dataset_entry = table["datasets"][dataset]
            # methods by abbreviation; a data set may have names of its own, such as of a loss with other settings there
            full_names = {dataset: dataset_entry["name"]} | table["names"] | dataset_entry.get("names", {})
            if len(cells) != len(losses):
                raise InputError(
                    f"{source}, {dataset}, {network}: Expected {len(losses)} cells, one per loss, got {len(cells)}.",
                    code="row_length",
                )
            for loss, cell in zip(losses, cells, strict=True):
                texts = cell.split()
                if len(texts) != len(calibrators):
                    raise InputError(
                        f"{source}: Expected a number for each of {len(calibrators)} columns, got {cell!r}.",
                        code="cell_length",
                    )
                for calibrator, text in zip(calibrators, texts, strict=True):
                    if text != "?":  # legible
                        names = (dataset, network, loss, calibrator, part["metric"])
                        methods = map(read_method, KEY_LISTS, (full_names.get(name, name) for name in names))
                        key = tuple(methods) if loss in full_names else None
                        tables.setdefault(source, {})[names] = key, _parse_value(text, scale, source)
    return tables


def _parse_value(text: str, scale: float, source: str) -> PaperValue:
    """Parse a printed value such as 4.35±0.21(2.50): mean, deviation and temperature, of which the last two may lack.

    Mean and deviation are divided by the scale, which is 100 for percent.
    """
    if (match := _CELL_PATTERN.fullmatch(text)) is None:
        raise InputError(f"{source}: Expected a number such as 4.35±0.21(2.50), got {text!r}.", code="not_numbers")
    value, deviation, temperature = (float(part) if part else math.nan for part in match.groups())
    return PaperValue(value / scale, deviation / scale, temperature, source)
