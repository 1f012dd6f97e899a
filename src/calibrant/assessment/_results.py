"""What was measured and what was found, as data: words, pages and text are made of these."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from calibrant._text import display_name
from calibrant.assessment._evaluation import Mistake
from calibrant.assessment._events import EventDescription
from calibrant.assessment._provenance import data_source, provenance
from calibrant.assessment._serialize import encode_nonfinite, serialize_fitted
from calibrant.assessment._temperature_grid import TemperatureMeasurement, slider_temperatures
from calibrant.backend.bins import Bins, GroupedScores
from calibrant.backend.solvers import Certificate
from calibrant.metrics import Comparison, Interval, MetricInfo
from calibrant.metrics.tables import Classes, Groups
from calibrant.predictions import Predictions


@dataclass(frozen=True)
class Row:
    """One line of the table; nan where there is no interval or no p-value."""

    name: str  # the metric's text
    value: float
    low: float = math.nan
    high: float = math.nan
    p_value: float = math.nan
    note: str = ""  # what the number says here
    info: MetricInfo = field(default_factory=lambda: MetricInfo(""), repr=False)

    @property
    def title(self) -> str:
        """The name in words, with the unit in which `text` writes the value."""
        return self.info.heading(self.name if "(" in self.name else self.info.title)

    @property
    def text(self) -> str:
        """The value in its unit; a dash where there is none."""
        return "–" if math.isnan(self.value) else self.info.text(self.value)

    @property
    def interval(self) -> str:
        """The interval in its unit; nothing where there is none, or it holds every number."""
        unbounded = math.isnan(self.low) or (math.isinf(self.low) and math.isinf(self.high))
        return "" if unbounded else f"[{self.info.text(self.low)}, {self.info.text(self.high)}]"


Status = Literal["miscalibrated", "unclear", "no_evidence"]
Direction = Literal["over", "under"]


@dataclass(frozen=True)
class Verdict:
    """Whether predictions are calibrated, as far as the data tell.

    `miscalibrated`: the Kuiper test rejects calibration. `unclear`: it does not, but ECE lies above its noise floor,
    or the interval of the signed gap excludes 0. `no_evidence`: neither.
    """

    status: Status
    direction: Direction | None = None  # of the mean prediction, where it is certain or, if unclear, likely

    @property
    def is_miscalibrated(self) -> bool:
        """Whether the predictions are called miscalibrated."""
        return self.status == "miscalibrated"


@dataclass(frozen=True, eq=False)
class MeasurementData:
    """What was measured, in the order in which it should be read, and what is behind it: data alone."""

    n: int
    k: int
    bins: int
    level: float  # of the intervals
    rows: tuple[Row, ...]
    event: EventDescription  # what is judged
    names: tuple[str, ...] | None  # of the classes
    observed_frequency: Interval  # how often it happened
    ties: GroupedScores  # examples sorted by confidence: what curves are drawn from
    reliability_bins: Bins  # the bins behind ECE
    compute_classes: Callable[[], Classes] | None = field(repr=False)
    compute_groups: Callable[[], Groups | None] | None = field(default=None, repr=False)
    compute_row_groups: Callable[[], Groups | None] | None = field(default=None, repr=False)
    compute_temperatures: Callable[[list[float]], tuple[TemperatureMeasurement, ...]] | None = field(
        default=None, repr=False
    )
    compute_mistakes: Callable[[list[int], int], dict[int, tuple[Mistake, ...]]] | None = field(
        default=None, repr=False
    )
    clusters: str = ""  # such as "50 clusters", where examples depend on each other
    verdict: Verdict = Verdict("no_evidence")
    remarks: tuple[str, ...] = ()  # sentences on what looks like a mistake in the data
    compute_source: Callable[[], dict[str, Any]] | None = field(default=None, repr=False)  # of the data, for provenance

    @property
    def population(self) -> str:
        """What there are n of."""
        return self.event.population + (f" in {self.clusters}" if self.clusters else "")

    @cached_property
    def classes(self) -> Classes | None:
        """What is known of every class; nothing of a summary that was not made by class."""
        return None if self.compute_classes is None else self.compute_classes()

    @cached_property
    def groups(self) -> Groups | None:
        """What is known of every group; nothing without groups."""
        return None if self.compute_groups is None else self.compute_groups()

    @cached_property
    def row_groups(self) -> Groups | None:
        """Return the groups of rows that several labels share, beside the groups, which are the labels."""
        return None if self.compute_row_groups is None else self.compute_row_groups()

    def with_row_groups(self) -> "MeasurementData | None":
        """Return the same table with the groups of rows as its groups; None where there are none."""
        if self.row_groups is None:
            return None
        groups = self.row_groups
        return replace(
            self, compute_groups=lambda: groups, compute_row_groups=None, event=replace(self.event, group="group")
        )

    def at_temperatures(self, max_logits: int) -> tuple[TemperatureMeasurement, ...]:
        """What temperatures make of the predictions, in passes over `most` logits together; nothing of a summary's."""
        return (
            ()
            if self.compute_temperatures is None
            else self.compute_temperatures(slider_temperatures(self.n * self.k, max_logits))
        )

    def mistakes_by_class(self, classes: list[int], limit: int) -> dict[int, tuple[Mistake, ...]] | None:
        """The most confident mistakes with each of some classes, taken for another or another for it; not of pieces."""
        return None if self.compute_mistakes is None else self.compute_mistakes(classes, limit)

    @property
    def mean_confidence(self) -> float:
        """How often it should have happened, by what was said."""
        return self.observed_frequency.value + self["signed_gap"].value

    def class_name(self, index: int) -> str:
        """What a class is called."""
        return str(index) if self.names is None else display_name(self.names[index])

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __contains__(self, name: str) -> bool:
        return any(row.name == name for row in self.rows)

    def __getitem__(self, name: str) -> Row:
        """The row of that name.

        Raises KeyError with the names that there are.
        """
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(f"no row {name!r}; there are {', '.join(row.name for row in self.rows)}")

    def records(self) -> list[dict[str, Any]]:
        """Return a row {"metric", "title", "value", "low", "high", "p_value", "note"} per number; nan where none is.

        Where there are groups, each row has its "group", "" for all examples, and those of the groups follow; groups of
        rows, beside the labels, alike in "row_group".
        """
        keys = ("value", "low", "high", "p_value", "note")
        rows = [
            {"metric": row.name, "title": row.info.title} | {key: getattr(row, key) for key in keys} for row in self
        ]
        if self.groups is None:
            return rows
        rows = [row | {"group": ""} for row in rows] + self._group_records(self.groups)
        if self.row_groups is None:
            return rows
        row_group_records = [
            row | {"group": "", "row_group": row["group"]} for row in self._group_records(self.row_groups)
        ]
        return [row | {"row_group": ""} for row in rows] + row_group_records

    def _group_records(self, groups: Groups) -> list[dict[str, Any]]:
        """Return the rows of every group."""
        missing_fields = {"low": math.nan, "high": math.nan, "p_value": math.nan, "note": ""}
        rows: list[dict[str, Any]] = []
        for record in groups.records():
            values: dict[str, dict[str, float]] = {
                "signed_gap": {"value": record["gap"], "low": record["low"], "high": record["high"]},
                "ece": {"value": record["ece"]},
                "noise_floor": {"value": record["floor"], "high": record["floor_high"]},
                "nll": {"value": record["nll"]},
            }
            for name, value in values.items():
                title = {"metric": name, "title": self.event.metric_info(name).title}
                rows.append({**title, **missing_fields, **value, "group": record["group"]})
        return rows

    def to_polars(self) -> Any:
        """Return the records as a polars frame."""
        import polars

        return polars.DataFrame(self.records())

    def json(self, source: Mapping[str, Any] | None = None) -> str:
        """Return all numbers as JSON text; null for what there is not, "inf" for infinity.

        Its `provenance` holds version, time, and the rows, digest and notes of the data; `source` adds to it.
        """
        content: dict[str, Any] = {
            "n": self.n,
            "k": self.k,
            "judged": self.event.claim,
            "bins": self.bins,
            "level": self.level,
        }
        content |= {"clusters": self.clusters} if self.clusters else {}
        content |= {} if self.names is None else {"classes": self.names}
        content |= {} if self.groups is None else {"groups": self.groups.records()}
        content |= {} if self.row_groups is None else {"row_groups": self.row_groups.records()}
        content["results"] = [row for row in self.records() if not (row.get("group") or row.get("row_group"))]
        content |= {"verdict": asdict(self.verdict), "notes": list(self.remarks)}
        content["provenance"] = provenance([] if self.compute_source is None else [self.compute_source()], source)
        return json.dumps(encode_nonfinite(content), indent=1, allow_nan=False) + "\n"


@dataclass(frozen=True, eq=False)
class AssessmentData:
    """What every calibrator did to predictions that it was not fitted on: data alone."""

    uncalibrated: MeasurementData  # the table of the predictions as they came
    tables: Mapping[str, MeasurementData]  # the table by calibrator
    metrics: tuple[str, ...]  # the metrics that were asked for
    calibrators: dict[str, Any]  # on all fitting data, or as they were saved
    chosen_name: str  # the calibrator with the lowest cross-fitted NLL on the fitting data, unless asked for
    held_out_nll: dict[str, float]  # that NLL, nan where none is honest; empty if a calibrator was asked for
    changes: Comparison | None  # chosen minus before, on the same examples; None for a single one
    mistakes: tuple[Mistake, ...]  # the most confident first
    protocol: str  # on which data who did what
    fitting_data: Predictions
    accuracy_preserving: str | None = (
        None  # what keeps every prediction, where the chosen one costs accuracy beyond chance
    )

    @property
    def best(self) -> Any:
        """The chosen calibrator, fitted on all fitting data: a map from logits to better logits."""
        return self.calibrators[self.chosen_name]

    @property
    def certificates(self) -> dict[str, Certificate]:
        """Certificates of the fits by calibrator, where they have one."""
        certificates = {name: getattr(fitted, "certificate", None) for name, fitted in self.calibrators.items()}
        return {name: certificate for name, certificate in certificates.items() if isinstance(certificate, Certificate)}

    @property
    def chosen_label(self) -> str:
        """The name of the chosen calibrator as it is shown to people."""
        return display_name(self.chosen_name)

    @property
    def calibrated(self) -> MeasurementData:
        """The table of the chosen calibrator."""
        return self.tables[self.chosen_name]

    @property
    def values(self) -> dict[str, dict[str, float]]:
        """The metrics that were asked for, by calibrator."""
        return {name: {m: table[m].value for m in self.metrics} for name, table in self.tables.items()}

    def records(self) -> list[dict[str, Any]]:
        """Return one row {"calibrator", "metric", "value", "low", "high", "p_value"} per number; nan where none is.

        Where there are groups, each row has its "group", "" for all examples, as those of `Table.records`.
        """
        keys = ("metric", "value", "low", "high", "p_value", "group", "row_group")
        return [
            {"calibrator": name} | {key: row[key] for key in keys if key in row}
            for name, table in self.tables.items()
            for row in table.records()
        ]

    def to_polars(self) -> Any:
        """Return the records as a polars frame."""
        import polars

        return polars.DataFrame(self.records())

    def parameters(self) -> list[dict[str, Any]]:
        """Return what every calibrator learned, in plain numbers and lists, with its certificate."""
        return [{"calibrator": name} | serialize_fitted(fitted) for name, fitted in self.calibrators.items()]

    def json(self, source: Mapping[str, Any] | None = None) -> str:
        """Return all numbers and fitted parameters as JSON text; null for what there is not, "inf" for infinity.

        Its `provenance` holds version, time, and the rows, digest and notes of the data; `source` adds to it.
        """
        rows: dict[str, Row] = {row.name: row for table in self.tables.values() for row in table}
        content: dict[str, Any] = {
            "chosen": self.chosen_name,
            "judged": self.uncalibrated.event.claim,
            "how": self.protocol,
            "metrics": {name: asdict(row.info) for name, row in rows.items()},
            "results": [row for row in self.records() if not (row.get("group") or row.get("row_group"))],
            "parameters": self.parameters(),
            "fits": {
                name: {"status": certificate.status, "gap": certificate.gap, "clean": certificate.is_optimal}
                for name, certificate in self.certificates.items()
            },
            "held_out_nll": self.held_out_nll,
            "changes": [asdict(row) for row in self.changes or ()],
            **({} if self.accuracy_preserving is None else {"accuracy_preserving": self.accuracy_preserving}),
        }
        by_group = {name: table.groups.records() for name, table in self.tables.items() if table.groups is not None}
        content |= {"groups": by_group} if by_group else {}
        by_row = {name: t.row_groups.records() for name, t in self.tables.items() if t.row_groups is not None}
        content |= {"row_groups": by_row} if by_row else {}
        content |= {"verdict": {"before": asdict(self.uncalibrated.verdict), "after": asdict(self.calibrated.verdict)}}
        evaluation_source = (
            []
            if self.uncalibrated.compute_source is None
            else [self.uncalibrated.compute_source() | {"role": "judged"}]
        )
        content |= {"notes": list(self.uncalibrated.remarks)}
        content["provenance"] = provenance([data_source("fitted", self.fitting_data), *evaluation_source], source)
        return json.dumps(encode_nonfinite(content), indent=1, allow_nan=False) + "\n"
