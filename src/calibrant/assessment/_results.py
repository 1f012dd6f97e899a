"""Results as data. Texts, pages and tables are made from the classes in this file."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import NormalDist
from typing import Any, Literal

from calibrant import metrics
from calibrant._core.files import atomic_write, write_by_suffix
from calibrant._core.kernels.bins import Bins, GroupedScores
from calibrant._core.kernels.roots import Certificate
from calibrant._core.lazy import LazyModule, polars
from calibrant._core.numbers import MAX_RARE_RATE, format_multiple
from calibrant._core.text import display_name
from calibrant.assessment._mistakes import Mistake
from calibrant.assessment._serialize import data_source, serialize_fitted
from calibrant.assessment._verdict import Verdict
from calibrant.io.formats import CALIBRATOR_SUFFIX
from calibrant.io.tables import to_safe_csv
from calibrant.metrics import Comparison, Difference, Interval, MetricInfo, Summary, tables
from calibrant.metrics.tables import Classes, Groups
from calibrant.predictions import Predictions
from calibrant.predictions.events import EventKind
from calibrant.predictions.folds import num_units
from calibrant.reports import Document, Reportable

calibrators: Any = LazyModule("calibrant.calibrators")  # which takes long to load

MIN_GAIN_ERRORS = 2 / 3  # gain of a calibrator that is selected, in standard errors that allow for shared data
REFINEMENT_MEANING = "NLL that remains after cross-fitted calibration"
CALIBRATION_MEANING = "reduction of NLL by cross-fitted calibration"
NLL_PARTS = {
    "refinement": MetricInfo("refinement part of NLL", "nats", meaning=REFINEMENT_MEANING),
    "calibration_loss": MetricInfo("calibration part of NLL", "nats", meaning=CALIBRATION_MEANING),
}


@dataclass(frozen=True)
class HeldOutComparison:
    """Differences of NLL on held-out validation data, with intervals over draws of these data."""

    gains: dict[str, Interval]  # NLL of the uncalibrated probabilities minus NLL of the calibrator
    deficits: dict[str, Interval]  # NLL minus NLL of the best calibrator; empty unless there are few labels

    @property
    def indistinguishable(self) -> tuple[str, ...]:
        """Calibrators whose NLL differs from the lowest by no more than chance explains, the simplest first."""
        return tuple(name for name, deficit in self.deficits.items() if deficit.low <= 0)

    @property
    def simplest(self) -> str | None:
        """The simplest of the indistinguishable calibrators but `Identity`, or None unless there are few labels."""
        names = sorted(self.indistinguishable, key=lambda name: name == "Identity")  # stable: it comes last
        return names[0] if names else None

    def is_better(self, name: str) -> bool:
        """Return whether a gain over no calibration exceeds one standard error of independent examples.

        That of the interval is 1.5 times as large for five folds, as they share data. A stricter rule would keep
        predictions uncalibrated where most gains are real.
        """
        gain = self.gains[name]
        standard_error = (gain.value - gain.low) / NormalDist().inv_cdf((1 + gain.level) / 2)
        return gain.value == math.inf or gain.value > max(MIN_GAIN_ERRORS * standard_error, 0.0)


# "held_out": by the NLL on held-out folds; "first": there is no such NLL, so that the first of the list is taken
Selection = Literal["requested", "held_out", "first"]


@dataclass(frozen=True)
class Row:
    """One line of the table of metrics. Missing intervals and p-values are NaN."""

    name: str  # the metric as text, such as "ece(bins=10)"
    value: float
    low: float = math.nan
    high: float = math.nan
    p_value: float = math.nan
    note: str = ""  # interpretation of this value
    info: MetricInfo = field(default_factory=lambda: MetricInfo(""), repr=False)

    @property
    def title(self) -> str:
        """The metric's name in words, or as it was requested if with settings, and the unit of `text`."""
        return self.info.heading(self.name if "(" in self.name else self.info.title)

    @property
    def text(self) -> str:
        """The value in its unit, or a dash."""
        return "–" if math.isnan(self.value) else self.info.text(self.value)

    @property
    def interval(self) -> str:
        """The interval in its unit, or an empty text if it is missing or unbounded."""
        unbounded = math.isnan(self.low) or (math.isinf(self.low) and math.isinf(self.high))
        return "" if unbounded else f"[{self.info.text(self.low)}, {self.info.text(self.high)}]"


def metric_info(event: EventKind, name: str) -> MetricInfo:
    """Return the texts of a metric as they fit the evaluated event."""
    info = NLL_PARTS.get(name) or metrics.metric_info(name)
    if name == "signed_gap":
        return replace(info, title=event.gap_title, meaning=event.gap_meaning)
    # The meanings of metrics are written for confidences, which other events call probabilities
    return replace(info, meaning=info.meaning.replace("confidences", event.scores))


@dataclass(frozen=True, eq=False)
class Measurement(Reportable):
    """The metrics of one set of predictions, and the data behind them. `measurement["ece"]` is a row.

    Print it, show it in a notebook, or save it as .html, .json or .csv.
    """

    source: Predictions | Summary = field(repr=False)
    bins: int
    level: float  # of the intervals
    rows: tuple[Row, ...]
    event: EventKind
    observed_frequency: Interval
    compute_classes: Callable[[], Classes | None] = field(repr=False)
    verdict: Verdict
    remarks: tuple[str, ...] = ()  # sentences about likely mistakes in the data, and labels of a single class
    only_class: int | None = None  # the class that all labels are of, None if there are several or it is not known
    group_by: Literal["groups", "row_groups"] = "groups"  # column whose values are `groups`

    @property
    def n(self) -> int:
        """Number of examples."""
        return self.source.num_examples if isinstance(self.source, Predictions) else len(self.source)

    @property
    def k(self) -> int:
        """Number of classes."""
        return self.source.k

    @property
    def names(self) -> tuple[str, ...] | None:
        """Class names."""
        return self.source.class_names

    @property
    def by_score(self) -> GroupedScores:
        """Rows sorted by confidence, which curves are drawn from."""
        return self.source.by_score if isinstance(self.source, Summary) else self.source.events.by_score

    @cached_property
    def reliability_bins(self) -> Bins:
        """The bins behind ECE."""
        return (self.source if isinstance(self.source, Summary) else self.source.events).equal_width(self.bins)

    @property
    def clusters(self) -> str:
        """Description of the clusters, such as "50 clusters", or an empty text for independent examples."""
        if isinstance(self.source, Summary):
            return f"{self.event.cluster}s" if self.source.has_clusters else ""
        if self.source.shared_clusters is None:  # no cluster holds several examples
            return ""
        num_clusters = num_units(self.source)
        return f"{num_clusters:,} {self.event.cluster}{'s' * (num_clusters != 1)}"

    @property
    def population(self) -> str:
        """Description of the rows, such as "answers in 50 clusters"."""
        return self.event.population + (f" in {self.clusters}" if self.clusters else "")

    @cached_property
    def classes(self) -> Classes | None:
        """The table of classes, or None for a summary made without `by_class`."""
        return self.compute_classes()

    @cached_property
    def groups(self) -> Groups | None:
        """The table of groups, or None without groups."""
        return tables.groups(self.source, bins=self.bins, level=self.level, by=self.group_by)

    @cached_property
    def row_groups(self) -> Groups | None:
        """The table of the row groups of multilabel data, whose `groups` are the labels, or None without them."""
        if self.group_by == "row_groups":
            return None
        return tables.groups(self.source, bins=self.bins, level=self.level, by="row_groups")

    def with_row_groups(self) -> "Measurement | None":
        """Return this measurement with the row groups as its groups, or None without row groups."""
        if self.row_groups is None:
            return None
        event = replace(self.event, group="group")  # the word for a group in texts, which was "label"
        return replace(self, group_by="row_groups", event=event)

    @property
    def mean_confidence(self) -> float:
        """Mean predicted probability of the event."""
        return self.observed_frequency.value + self["signed_gap"].value

    @property
    def base_rate(self) -> float | None:
        """Frequency of the evaluated class, or None for an event such as "the prediction is correct"."""
        return None if self.event.is_confidence else self.observed_frequency.value

    @property
    def is_rare(self) -> bool:
        """Whether the evaluated class, or its absence, is so rare that errors are compared with its frequency."""
        return self.base_rate is not None and min(self.base_rate, 1 - self.base_rate) < MAX_RARE_RATE

    @property
    def rare_rate(self) -> float | None:
        """The base rate of the evaluated class if that class itself, not its absence, is rare."""
        return self.base_rate if self.base_rate is not None and self.base_rate < MAX_RARE_RATE else None

    def relative_to_rate(self, error: float, noun: bool = True) -> str:
        """Return an error of a rare class such as "12 % of the base rate", else "". Without `noun`, such as "12 % of".

        If the other labels are rarer, it is compared with their rate.
        """
        if self.base_rate is None or not self.is_rare or not 0 < self.base_rate < 1 or not math.isfinite(error):
            return ""
        multiple = format_multiple(error, min(self.base_rate, 1 - self.base_rate))
        return f"{multiple} the {'base rate' if self.base_rate < 0.5 else 'rate of other labels'}" if noun else multiple

    def class_name(self, index: int) -> str:
        """Return the name of a class as it is shown."""
        return str(index) if self.names is None else display_name(self.names[index])

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __contains__(self, name: str) -> bool:
        return any(row.name == name for row in self.rows)

    def __getitem__(self, name: str) -> Row:
        """Return the row of a metric.

        Raises:
            KeyError: There is no such row; the message lists the rows.
        """
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(f"no row {name!r}; there are {', '.join(row.name for row in self.rows)}")

    def records(self) -> list[dict[str, Any]]:
        """Return one dictionary per number, with keys metric, title, value, low, high, p_value and note.

        Missing numbers are NaN. Grouped predictions add the key "group", which is "" for all rows together. Multilabel
        data, whose groups are the labels, add the key "row_group" if each example has a group too.
        """
        keys = ("value", "low", "high", "p_value", "note")
        records: list[dict[str, Any]] = [
            {"metric": row.name, "title": row.info.title} | {key: getattr(row, key) for key in keys} for row in self
        ]
        if self.groups is None:
            return records
        records = [record | {"group": ""} for record in records] + self._group_records(self.groups)
        if self.row_groups is None:
            return records
        records = [record | {"row_group": ""} for record in records]
        for record in self._group_records(self.row_groups):  # which names each row group under "group"
            records.append(record | {"group": "", "row_group": record["group"]})
        return records

    def _group_records(self, groups: Groups) -> list[dict[str, Any]]:
        """Return a record for each group and metric: signed gap, ECE, noise floor and NLL."""
        missing = {"low": math.nan, "high": math.nan, "p_value": math.nan, "note": ""}
        records: list[dict[str, Any]] = []
        for group in groups.records():
            numbers: dict[str, dict[str, float]] = {
                "signed_gap": {"value": group["gap"], "low": group["low"], "high": group["high"]},
                "ece": {"value": group["ece"]},
                "noise_floor": {"value": group["floor"], "high": group["floor_high"]},
                "nll": {"value": group["nll"]},
            }
            for name, values in numbers.items():
                metric = {"metric": name, "title": metric_info(self.event, name).title}
                records.append({**metric, **missing, **values, "group": group["group"]})
        return records

    def to_polars(self) -> Any:
        """Return the records as a polars frame."""
        return polars.DataFrame(self.records())

    def describe_source(self, role: str) -> dict[str, Any]:
        """Describe the measured data for the provenance. Data read in chunks have no digest."""
        return data_source(role, self.source if isinstance(self.source, Predictions) else None, n=self.n)

    def numbers(self) -> dict[str, Any]:
        """Return all numbers as builtin types."""
        optional = {
            "base_rate": self.base_rate,
            "clusters": self.clusters or None,
            "classes": self.names,
            "groups": None if self.groups is None else self.groups.records(),
            "row_groups": None if self.row_groups is None else self.row_groups.records(),
        }
        return {
            **{"n": self.n, "k": self.k, "judged": self.event.title, "bins": self.bins, "level": self.level},
            **{key: value for key, value in optional.items() if value is not None},
            "results": _without_groups(self.records()),
            "verdict": asdict(self.verdict),
            "notes": list(self.remarks),
        }

    def sources(self) -> dict[str, Any]:
        """Describe the measured data."""
        return {"data": [self.describe_source("measured")], "calibrators": []}

    def writers(self) -> dict[str, Callable[[], str]]:
        """Return the writers of the page, the numbers and the table of metrics (.csv)."""
        return super().writers() | {".csv": lambda: to_safe_csv(self.to_polars())}


def _without_groups(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the records of all rows together, whose groups are empty or missing."""
    return [record for record in records if not (record.get("group") or record.get("row_group"))]


@dataclass(frozen=True, eq=False)
class Assessment(Reportable):
    """The effect of every calibrator on predictions that it was not fitted on, and the selected calibrator.

    Print it, show it in a notebook, or save it as .html, .json or, for the selected calibrator alone, .safetensors.
    """

    uncalibrated: Measurement
    measurements: Mapping[str, Measurement]  # by calibrator
    metrics: tuple[str, ...]  # metrics that compare the calibrators
    calibrators: dict[str, Any]  # fitted on all fitting data, or loaded
    chosen_name: str
    selection: Selection  # why it was chosen
    held_out_nll: dict[str, float]  # NLL on held-out folds of the fitting data; NaN if fitted on all, empty if not used
    held_out: HeldOutComparison  # gains over draws of the fitting data, and what few labels tell apart
    changes: Comparison | None  # selected minus uncalibrated, on the same rows; None for a single row
    mistakes: tuple[Mistake, ...]  # most confident first
    protocol: str  # sentences about the data that calibrators were fitted and evaluated on
    fitting_data: Predictions
    is_cross_fitted: bool  # whether the folds of the fitting data are the evaluation data
    remarks: tuple[str, ...] = ()  # sentences about the classes of the labels, and likely mistakes in the data
    accuracy_preserving: str | None = None  # an alternative if the selected calibrator significantly loses accuracy

    @property
    def best(self) -> Any:
        """The selected calibrator, fitted on all fitting data: a function from logits to calibrated logits."""
        return self.calibrators[self.chosen_name]

    @property
    def certificates(self) -> dict[str, Certificate]:
        """Certificates of the fits, by calibrator."""
        certificates = {name: getattr(fitted, "certificate", None) for name, fitted in self.calibrators.items()}
        return {name: c for name, c in certificates.items() if isinstance(c, Certificate)}

    @property
    def chosen_label(self) -> str:
        """The name of the selected calibrator as it is shown."""
        return display_name(self.chosen_name)

    @property
    def is_identity(self) -> bool:
        """Whether the selected calibrator leaves predictions unchanged."""
        return self.chosen_name == "Identity"

    @property
    def has_lowest_held_out_nll(self) -> bool:
        """Whether no other calibrator has a lower NLL on held-out folds of the fitting data."""
        nll = {name: value for name, value in self.held_out_nll.items() if not math.isnan(value)}
        return self.chosen_name in nll and nll[self.chosen_name] == min(nll.values())

    @property
    def calibrated(self) -> Measurement:
        """The measurement after the selected calibrator."""
        return self.measurements[self.chosen_name]

    @property
    def changes_by_metric(self) -> dict[str, Difference]:
        """The changes by metric, or {} for a single row."""
        return {row.name: row for row in self.changes or ()}

    @property
    def reported_gain(self) -> tuple[str, Interval] | None:
        """The selected calibrator, or `Auto` if that is `Identity`, with its NLL gain, or None if it is not finite.

        None also if cross-fitting shows the same gain as a change, whose limits allow for the selection.
        """
        if self.is_cross_fitted and not self.is_identity and self.changes is not None:
            return None
        gains, name = self.held_out.gains, "Auto" if self.is_identity else self.chosen_name
        return (name, gains[name]) if name in gains and math.isfinite(gains[name].low) else None

    @property
    def values(self) -> dict[str, dict[str, float]]:
        """The compared metrics, by calibrator."""
        return {name: {m: measured[m].value for m in self.metrics} for name, measured in self.measurements.items()}

    def records(self) -> list[dict[str, Any]]:
        """Return one dictionary per number, with keys calibrator, metric, value, low, high and p_value.

        Missing numbers are NaN. Grouped predictions add keys as in `Measurement.records`.
        """
        keys = ("metric", "value", "low", "high", "p_value", "group", "row_group")
        return [
            {"calibrator": name} | {key: record[key] for key in keys if key in record}
            for name, measurement in self.measurements.items()
            for record in measurement.records()
        ]

    def to_polars(self) -> Any:
        """Return the records as a polars frame."""
        return polars.DataFrame(self.records())

    def parameters(self) -> list[dict[str, Any]]:
        """Return the fitted parameters and certificate of every calibrator as builtin types."""
        return [{"calibrator": name} | serialize_fitted(fitted) for name, fitted in self.calibrators.items()]

    def document(self, calibrator_path: str | Path | None = None, *, from_command_line: bool = False) -> Document:
        """Return the answers before and after calibration, the calibrators, and how to apply the selected one.

        Args:
            calibrator_path: File of the selected calibrator, if it was saved.
            from_command_line: Whether instructions are for the command line.
        """
        return self._describe(calibrator_path=calibrator_path, from_command_line=from_command_line)

    def html(self, facts: Mapping[str, str] | None = None, calibrator_path: str | Path | None = None) -> str:
        """Return a self-contained HTML page.

        Args:
            facts: Names and values to list at the end, such as "command".
            calibrator_path: File of the selected calibrator, for the instructions.
        """
        from calibrant.reports.page import render_page

        facts = facts or {}
        return render_page(self.document(calibrator_path, from_command_line="command" in facts), facts)

    def numbers(self) -> dict[str, Any]:
        """Return all numbers and fitted parameters as builtin types."""
        infos = {row.name: row.info for measurement in self.measurements.values() for row in measurement}
        content: dict[str, Any] = {
            "chosen": self.chosen_name,
            "judged": self.uncalibrated.event.title,
            "how": self.protocol,
            "level": self.uncalibrated.level,
            **({} if self.uncalibrated.base_rate is None else {"base_rate": self.uncalibrated.base_rate}),
            "metrics": {name: asdict(info) for name, info in infos.items()},
            "results": _without_groups(self.records()),
            "parameters": self.parameters(),
            "fits": {
                name: {"status": c.status, "gap": c.gap, "clean": c.is_optimal} for name, c in self.certificates.items()
            },
            "held_out_nll": self.held_out_nll,
            "held_out": asdict(self.held_out) | {"indistinguishable": list(self.held_out.indistinguishable)},
            "changes": [asdict(row) for row in self.changes or ()],
            **({} if self.accuracy_preserving is None else {"accuracy_preserving": self.accuracy_preserving}),
        }
        for key in "groups", "row_groups":
            group_tables = {name: getattr(measurement, key) for name, measurement in self.measurements.items()}
            records = {name: table.records() for name, table in group_tables.items() if table is not None}
            if records:
                content[key] = records
        content["verdict"] = {"before": asdict(self.uncalibrated.verdict), "after": asdict(self.calibrated.verdict)}
        content["notes"] = list(self.remarks)
        return content

    def sources(self) -> dict[str, Any]:
        """Describe the data that calibrators were fitted and judged on."""
        data = [data_source("fitted", self.fitting_data), self.uncalibrated.describe_source("judged")]
        return {"data": data, "calibrators": []}

    def save(self, path: str | Path) -> None:
        """Write the page (.html), all numbers (.json), or the selected calibrator (.safetensors)."""
        if Path(path).suffix == CALIBRATOR_SUFFIX:
            with atomic_write(path) as draft:
                calibrators.save(self.best, draft, fitted_on=self.fitting_data)
        else:  # the writer for calibrators is never called: it lists their suffix in the error for others
            write_by_suffix(path, self.writers() | {CALIBRATOR_SUFFIX: str})
