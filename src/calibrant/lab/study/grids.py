"""Runs and grids: the networks to train, models trained elsewhere, and the methods that they name, checked early.

A `Method` is an entry of a registry with settings. Its `text` is as the study spells it; `canonical` also has the
defaults. `code` is the version of its code: "" for the first revision of a built-in method, a digest for a user's.
"""

import inspect
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple

from calibrant import metrics
from calibrant._core import registry
from calibrant._core.kernels.digests import json_digest
from calibrant._core.kernels.overlap import Overlap, Sketch
from calibrant._core.registry import Method, Registry
from calibrant._core.text import describe_error, shorten_repr, to_one_line
from calibrant._core.types import InputError, StatefulLoss, UpdatedLoss, prefix_errors
from calibrant.io.column_roles import COLUMN_ROLES
from calibrant.lab.study.recipe import Recipe
from calibrant.predictions import Predictions

Methods = tuple[Method, ...]
LIST_REGISTRIES: dict[str, Registry | None] = {
    "datasets": registry.DATA_SETS,
    "networks": registry.NETWORKS,
    "losses": registry.LOSSES,
    "shifts": None,  # corruptions and data sets
    "traces": registry.TRACES,
    "calibrators": registry.CALIBRATORS,
    "metrics": registry.METRICS,
    "detection": registry.OOD_SCORES,
}
CALL_FORMS: dict[str, list[tuple[str, ...]]] = {  # allowed positional arguments by kind of method
    "data": [("root",)],
    "networks": [("classes",), ("classes", "vectors")],  # networks for texts take the initial word vectors
    "losses": [("logits", "labels")],
    "calibrators": [("logits", "labels")],
    "scores": [("logits",)],
    "corruptions": [("images",)],
    "traces": [("context",)],
}
MethodSpec = str | Method
SplitMode = Literal["fixed", "seed"]  # one validation split for all seeds, or one per seed
DEFAULT_RECIPE = Recipe()
MONITORED_FIELDS = "shifts", "traces"  # a stored run may hold more of these than a study asks for
SIZE_SETTINGS = "train", "val"  # sizes of the splits; any other setting of a data set changes its examples
TRAINING_ID_DIGITS = 12  # 48 bits, so that equal ids of different trainings do not occur
MODELS_PLACEHOLDER = "models"  # replaces the network in the names of a run


def parse_method(key: str, spec: MethodSpec) -> Method:
    """Parse an entry of a study's list `key`, and check its signature. A method is returned as it is."""
    if isinstance(spec, Method):
        return spec
    method = _find_registry(key, spec).method(spec)
    _check_signature(method)
    return method


def is_corruption(shift: Method) -> bool:
    """Return whether a shift corrupts the test set, whose labels stay valid, instead of being another data set."""
    return shift.registry is registry.CORRUPTIONS


def is_user_method(method: Method) -> bool:
    """Return whether a method is defined outside this package."""
    return not method.target.__module__.startswith("calibrant.")


def error_text(error: Exception) -> str:
    """Return an error in one line, with its type unless it is an `InputError`."""
    return to_one_line(error) if isinstance(error, InputError) else describe_error(error)


def _find_registry(key: str, text: str) -> Registry:
    """Return the registry of a list. A shift is looked up among corruptions, then among data sets."""
    if (method_registry := LIST_REGISTRIES[key]) is not None:
        return method_registry
    name = text.partition("(")[0].strip()
    names = [*registry.CORRUPTIONS, *registry.DATA_SETS]
    registry.check_name(name, names, "name among corruptions and data sets", "unknown_method")
    return registry.CORRUPTIONS if name in registry.CORRUPTIONS else registry.DATA_SETS


def _check_signature(method: Method) -> None:
    """Raise `InputError` for an undeclared metric, or a function with the wrong arguments for its kind of method."""
    if method.registry is registry.METRICS:
        metrics.declared_metric(method)  # raises if it is not declared
    if (call_forms := CALL_FORMS.get(method.registry.kind)) is None:  # for metrics, which are checked by now
        return
    for arguments in call_forms:  # one of the forms has to fit
        with suppress(TypeError):  # which `bind` raises if the function does not take these arguments
            inspect.signature(method.bound_function).bind(*arguments)
            return
    function_name = f"{method.name}.fit" if method.registry is registry.CALIBRATORS else method.name
    raise InputError(
        f"Expected {function_name} to take ({', '.join(call_forms[0])}) and hyperparameters by keyword.",
        code="signature",
    )


# Runs and grids


class Setup(NamedTuple):
    """A network on a data set, whose losses and calibrators are compared, by their names."""

    dataset: str
    network: str

    def __str__(self) -> str:
        return f"{self.network} on {self.dataset}"


class RunNames(NamedTuple):
    """Names of the data set, network and loss of runs that differ in their seeds only."""

    dataset: str
    network: str
    loss: str

    @property
    def setup(self) -> Setup:
        """The network and its data set."""
        return Setup(self.dataset, self.network)

    def short_text(self, compared: Iterable["RunNames"]) -> str:
        """Return the loss, after the data set and the network if they differ between the compared names."""
        columns = zip(*(names.setup for names in compared), strict=True)  # the data sets, and the networks
        is_needed = [len(set(column)) > 1 for column in columns]
        return ", ".join([*itertools.compress(self.setup, is_needed), self.loss])


@dataclass(frozen=True, init=False)
class Run:
    """One network to train, and what to monitor and keep.

    `training_id` names the training. `id` also covers what is monitored and the code of the methods. Equal settings and
    code have equal ids on every machine, however they are spelled. A finished run serves every study that trains the
    same network with the same code and monitors no more.
    """

    dataset: Method  # as the study names it
    network: Method
    loss: Method
    seed: int
    recipe: Recipe
    shifts: Methods  # further test sets: corruptions of the test set, or other data sets
    traces: Methods  # recorded after every epoch
    split: SplitMode
    code: tuple[tuple[str, str], ...]  # (method, code digest) of each method that has a digest

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
        """Parse the methods, set the fields, and record the code of the methods."""
        set_fields(self, dataset=parse_method("datasets", dataset), network=parse_method("networks", network))
        set_fields(self, loss=parse_method("losses", loss), seed=_check_seed(seed), split=split)
        # the recipe with the reduction that it has for this loss
        set_fields(self, **parse_lists(shifts=shifts, traces=traces), recipe=recipe.for_loss(self.loss.name))
        set_fields(self, code=self.current_code)  # the code as it was when the study started

    @property
    def methods(self) -> Methods:
        """All methods that the results depend on."""
        return self.divided_dataset, self.network, self.loss, *self.shifts, *self.traces

    @property
    def current_code(self) -> tuple[tuple[str, str], ...]:
        """Code digests of the methods in this process, which may differ from those at the start of the study."""
        return tuple(sorted({method.canonical: method.code for method in self.methods if method.code}.items()))

    @property
    def divided_dataset(self) -> Method:
        """The data set with this run's validation split: drawn by the run's seed if `split` is "seed"."""
        return self.dataset if self.split == "fixed" else self.dataset.with_settings(seed=self.seed)

    @property
    def training_spec(self) -> dict[str, Any]:
        """The settings that determine the training, as JSON, including all defaults."""
        methods = {"dataset": self.divided_dataset, "network": self.network, "loss": self.loss}
        recipe = asdict(self.recipe) | {"milestones": list(self.recipe.milestones)}  # JSON has no tuples
        del recipe["averaged"]  # applied by `for_loss`
        return {key: method.canonical for key, method in methods.items()} | {"seed": self.seed, "recipe": recipe}

    @property
    def monitoring_spec(self) -> dict[str, list[str]]:
        """The traces and the shifted test sets, as texts."""
        return {key: [m.canonical for m in getattr(self, key)] for key in MONITORED_FIELDS}

    @property
    def required_datasets(self) -> Methods:
        """The data sets to load: for training and for shifts."""
        return self.divided_dataset, *(shift for shift in self.shifts if not is_corruption(shift))

    @property
    def spec(self) -> dict[str, Any]:
        """The training, the monitoring and the code digests, as stored in the run's record."""
        return self.training_spec | self.monitoring_spec | ({"code": dict(self.code)} if self.code else {})

    @cached_property
    def training_id(self) -> str:
        """The first hex digits of the digest of `training_spec`."""
        return json_digest(self.training_spec)[:TRAINING_ID_DIGITS]

    @cached_property
    def id(self) -> str:
        """The training id, with six hex digits each for the monitoring and for the code, if there are any.

        An example with both is 0123456789ab-cdef01_234567.
        """
        monitoring_suffix = f"-{json_digest(self.monitoring_spec)[:6]}" if self.shifts or self.traces else ""
        code_suffix = f"_{json_digest(self.code)[:6]}" if self.code else ""
        return f"{self.training_id}{monitoring_suffix}{code_suffix}"


@dataclass(frozen=True, init=False)
class Grid:
    """Every combination of data set, network, loss and seed, trained with one recipe.

    With `split="seed"`, every run's seed also draws the validation split of its data set.
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
        """Parse the methods, set the fields, and check them."""
        methods = parse_lists(datasets=datasets, networks=networks, losses=losses, shifts=shifts, traces=traces)
        set_fields(self, **methods, seeds=tuple(map(_check_seed, seeds)), recipe=recipe, split=split)
        check_lists(self, required=("datasets", "networks", "losses", "seeds"), optional=("shifts", "traces"))
        if split == "seed":
            _check_seed_split(self.datasets, self.seeds)

    def runs(self) -> Iterator[Run]:
        """Yield every run of the grid, with seeds varying fastest."""
        for dataset, network, loss, seed in itertools.product(self.datasets, self.networks, self.losses, self.seeds):
            yield Run(
                dataset, network, loss, seed, self.recipe, shifts=self.shifts, traces=self.traces, split=self.split
            )


# Comparing runs with records of finished runs


def changed_methods(run_record: Mapping[str, Any], methods: Iterable[Method]) -> list[str]:
    """Return those of the methods whose code differs from the code in the record of a finished run, as texts.

    The first revision of a built-in method has the code "", which records leave out. User methods have a digest, which
    counts as equal if it cannot be compared.
    """
    code, uncompared = run_record.get("code", {}), uncompared_methods(run_record, methods := tuple(methods))
    return [str(m) for m in methods if code.get(m.canonical, "") != m.code and str(m) not in uncompared]


def uncompared_methods(run_record: Mapping[str, Any], methods: Iterable[Method]) -> list[str]:
    """Return those of the methods whose recorded digest is of an earlier kind, as texts."""
    code = run_record.get("code", {})
    return [str(m) for m in methods if registry.is_earlier_digest(code.get(m.canonical, ""), m.code)]


def trains_same_network(run_record: Mapping[str, Any], run: Run, *, same_data: bool) -> bool:
    """Return whether a stored network equals the one that a run would train, given equal training examples.

    `run_record` has the settings of the stored run. With `same_data`, the validation and test examples are equal, too.
    Otherwise, the data sets may differ in the sizes of their splits only, and nothing that depends on the validation or
    test examples may have influenced the network or its history.
    """
    same_settings = all(run_record[key] == value for key, value in run.training_spec.items() if key != "dataset")
    # records leave out the code "", of the first revision of a built-in method
    same_data_code = run_record.get("code", {}).get(run_record["dataset"], "") == run.divided_dataset.code
    if not same_settings or not same_data_code or changed_methods(run_record, (run.network, run.loss, *run.traces)):
        return False
    if same_data:  # also for a network that was chosen by its validation scores; its history must have all traces
        return set(run.monitoring_spec["traces"]) <= set(run_record["traces"])
    uses_validation = run.recipe.choose != "last" or isinstance(run.loss.bound_function, StatefulLoss | UpdatedLoss)
    if uses_validation or run.traces or is_user_method(run.divided_dataset):  # a user's data set may do anything
        return False
    stored_dataset = parse_method("datasets", run_record["dataset"])
    return _settings_without_sizes(stored_dataset) == _settings_without_sizes(run.divided_dataset)


def _settings_without_sizes(dataset: Method) -> tuple[str, dict[str, Any]]:
    """Return the name and settings of a data set except the sizes of its splits."""
    settings = registry.hyperparameters(dataset.function) | dataset.settings
    return dataset.name, {key: value for key, value in settings.items() if key not in SIZE_SETTINGS}


# Fields of frozen classes


def set_fields(instance: Any, **values: Any) -> None:
    """Set fields of an instance of a frozen dataclass, whose own assignment is blocked."""
    for name, value in values.items():
        object.__setattr__(instance, name, value)


def parse_lists(**lists: MethodSpec | Iterable[MethodSpec]) -> dict[str, Methods]:
    """Parse the methods of every list by its name, such as `losses`. A list may also be a single method or text."""
    specs_by_key = {key: [specs] if isinstance(specs, str | Method) else specs for key, specs in lists.items()}
    return {key: tuple(parse_method(key, spec) for spec in specs) for key, specs in specs_by_key.items()}


def check_lists(instance: Any, required: Iterable[str], optional: Iterable[str] = ()) -> None:
    """Raise `InputError` for an empty list in a required field, or a repeated entry in any of the fields.

    A repeated entry would add no evidence, but make intervals narrower.
    """
    for key in (*required, *optional):
        entries: tuple[Any, ...] = getattr(instance, key)
        if not entries and key in required:
            raise InputError(f"Expected at least one entry in {key}, got an empty list.", code="no_entries")
        for entry, count in Counter(entries).items():
            if count > 1:
                spellings = " and ".join(dict.fromkeys(str(e) for e in entries if e == entry))
                raise InputError(f"{key} lists {spellings} {count} times. Try listing it once.", code="entry_twice")


def _check_seed(seed: object) -> int:
    """Return a seed. Raises `InputError` if torch does not accept it."""
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**64:
        raise InputError(f"Expected a seed from 0 to 2**64 - 1, got {shorten_repr(seed)}.", code="seed")
    return seed


def _check_seed_split(datasets: Methods, seeds: Iterable[int]) -> None:
    """Reject data sets whose validation split the seeds of the runs cannot draw, as split = 'seed' requires.

    These are data sets without a setting `seed`, with a fixed seed, or whose range excludes a seed of the runs.
    """
    for dataset in datasets:
        if "seed" not in registry.hyperparameters(dataset.function):
            raise InputError(f"split = 'seed' needs a seed, which {dataset.name} lacks. Remove split.", code="no_seed")
        if "seed" in dataset.settings:
            raise InputError(
                f"{dataset} fixes its seed, but split = 'seed' uses each run's. Remove one of them.", code="seed_twice"
            )
        for seed in seeds:
            dataset.with_settings(seed=seed)  # raises for seeds outside the data set's range


# Models that were trained elsewhere: files of predictions replace the training


@dataclass(frozen=True, eq=False)
class Model:
    """Files with the predictions of one model: `val` to fit calibrators, `test` to measure them.

    Models with the same name and data but several seeds are one row of the tables, and are tested against the others.
    `data` names the data on which models are compared. `columns` and `drop` describe how tables are read; see
    `Predictions.from_table`.
    """

    name: str
    val: str
    test: str
    seed: int = 0
    data: str = "these data"
    columns: Mapping[str, Any] = field(default_factory=dict[str, Any])
    drop: bool = False

    def __post_init__(self) -> None:
        for role in self.columns:
            registry.check_name(role, COLUMN_ROLES, "column of a model", "unknown_column")

    @property
    def names(self) -> RunNames:
        """Names that replace the data set, network and loss of a run."""
        return RunNames(self.data, MODELS_PLACEHOLDER, self.name)

    @property
    def id(self) -> str:
        """Name, data and seed."""
        return f"{self.name}, {self.data}, seed {self.seed}"

    def predictions(self) -> tuple[Predictions, Predictions]:
        """Load the validation and the test predictions.

        Raises:
            InputError: If a file cannot be read, classes differ, or both files hold the same examples.
        """
        val, test = (Predictions.load(path, drop=self.drop, **self.columns) for path in (self.val, self.test))
        with prefix_errors(f"{self.id}: {self.test}"):
            test = test.reorder_classes(val.class_names)  # raises if the names differ
        if val.k != test.k:  # possible if classes have no names
            raise InputError(
                f"{self.id}: Expected equal classes, got {val.k} in {self.val} and {test.k} in {self.test}.",
                code="num_classes",
            )
        # compares sets of row hashes, as equal examples may be in another order; a few rows coincide by chance
        overlap = Overlap.compare(Sketch.from_hashes(test.row_hashes), Sketch.from_hashes(val.row_hashes))
        if overlap.too_large:
            raise InputError(f"{self.id}: Expected different examples in val and test: {overlap.text}", code="overlap")
        return val, test
