"""What was measured and what was found, as data: words, pages and text are made of these."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from calibrant._bins import Bins, Ties
from calibrant._solve import Certificate
from calibrant._text import name_text
from calibrant.assessment._event import Event
from calibrant.assessment._judge import Mistake
from calibrant.assessment._plain import learned, strict
from calibrant.assessment._provenance import data_source, provenance
from calibrant.assessment._scaled import Scaled, grid
from calibrant.metrics import About, Comparison, Interval
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
    about: About = field(default_factory=lambda: About(""), repr=False)

    @property
    def title(self) -> str:
        """The name in words, with the unit in which `text` writes the value."""
        return self.about.heading(self.name if "(" in self.name else self.about.title)

    @property
    def text(self) -> str:
        """The value in its unit; a dash where there is none."""
        return "–" if math.isnan(self.value) else self.about.text(self.value)

    @property
    def interval(self) -> str:
        """The interval in its unit; nothing where there is none, or it holds every number."""
        unbounded = math.isnan(self.low) or (math.isinf(self.low) and math.isinf(self.high))
        return "" if unbounded else f"[{self.about.text(self.low)}, {self.about.text(self.high)}]"


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
    def certain(self) -> bool:
        """Whether the predictions are called miscalibrated."""
        return self.status == "miscalibrated"


@dataclass(frozen=True, eq=False)
class Table:
    """What was measured, in the order in which it should be read, and what is behind it: data alone."""

    n: int
    k: int
    bins: int
    level: float  # of the intervals
    rows: tuple[Row, ...]
    event: Event  # what is judged
    names: tuple[str, ...] | None  # of the classes
    happened: Interval  # how often it happened
    ties: Ties  # examples sorted by confidence: what curves are drawn from
    table: Bins  # the bins behind ECE
    classes_: Callable[[], Classes] | None = field(repr=False)
    groups_: Callable[[], Groups | None] | None = field(default=None, repr=False)
    row_groups_: Callable[[], Groups | None] | None = field(default=None, repr=False)
    scaled_: Callable[[list[float]], tuple[Scaled, ...]] | None = field(default=None, repr=False)
    mistakes_: Callable[[list[int], int], dict[int, tuple[Mistake, ...]]] | None = field(default=None, repr=False)
    clusters: str = ""  # such as "50 clusters", where examples depend on each other
    verdict: Verdict = Verdict("no_evidence")
    remarks: tuple[str, ...] = ()  # sentences on what looks like a mistake in the data
    source_: Callable[[], dict[str, Any]] | None = field(default=None, repr=False)  # of the data, for provenance

    @property
    def among(self) -> str:
        """What there are n of."""
        return self.event.among + (f" in {self.clusters}" if self.clusters else "")

    @cached_property
    def classes(self) -> Classes | None:
        """What is known of every class; nothing of a summary that was not made by class."""
        return None if self.classes_ is None else self.classes_()

    @cached_property
    def groups(self) -> Groups | None:
        """What is known of every group; nothing without groups."""
        return None if self.groups_ is None else self.groups_()

    @cached_property
    def row_groups(self) -> Groups | None:
        """Return the groups of rows that several labels share, beside the groups, which are the labels."""
        return None if self.row_groups_ is None else self.row_groups_()

    def by_row_group(self) -> "Table | None":
        """Return the same table with the groups of rows as its groups; None where there are none."""
        if self.row_groups is None:
            return None
        groups = self.row_groups
        return replace(self, groups_=lambda: groups, row_groups_=None, event=replace(self.event, group="group"))

    def scaled(self, most: int) -> tuple[Scaled, ...]:
        """What temperatures make of the predictions, in passes over `most` logits together; nothing of a summary's."""
        return () if self.scaled_ is None else self.scaled_(grid(self.n * self.k, most))

    def mistakes_of(self, classes: list[int], most: int) -> dict[int, tuple[Mistake, ...]] | None:
        """The most confident mistakes with each of some classes, taken for another or another for it; not of pieces."""
        return None if self.mistakes_ is None else self.mistakes_(classes, most)

    @property
    def said(self) -> float:
        """How often it should have happened, by what was said."""
        return self.happened.value + self["signed_gap"].value

    def name_of(self, index: int) -> str:
        """What a class is called."""
        return str(index) if self.names is None else name_text(self.names[index])

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
            {"metric": row.name, "title": row.about.title} | {key: getattr(row, key) for key in keys} for row in self
        ]
        if self.groups is None:
            return rows
        rows = [row | {"group": ""} for row in rows] + self._by_group(self.groups)
        if self.row_groups is None:
            return rows
        more = [row | {"group": "", "row_group": row["group"]} for row in self._by_group(self.row_groups)]
        return [row | {"row_group": ""} for row in rows] + more

    def _by_group(self, groups: Groups) -> list[dict[str, Any]]:
        """Return the rows of every group."""
        none = {"low": math.nan, "high": math.nan, "p_value": math.nan, "note": ""}
        rows: list[dict[str, Any]] = []
        for record in groups.records():
            values: dict[str, dict[str, float]] = {
                "signed_gap": {"value": record["gap"], "low": record["low"], "high": record["high"]},
                "ece": {"value": record["ece"]},
                "noise_floor": {"value": record["floor"], "high": record["floor_high"]},
                "nll": {"value": record["nll"]},
            }
            for name, value in values.items():
                title = {"metric": name, "title": self.event.about(name).title}
                rows.append({**title, **none, **value, "group": record["group"]})
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
            "judged": self.event.judged,
            "bins": self.bins,
            "level": self.level,
        }
        content |= {"clusters": self.clusters} if self.clusters else {}
        content |= {} if self.names is None else {"classes": self.names}
        content |= {} if self.groups is None else {"groups": self.groups.records()}
        content |= {} if self.row_groups is None else {"row_groups": self.row_groups.records()}
        content["results"] = [row for row in self.records() if not (row.get("group") or row.get("row_group"))]
        content |= {"verdict": asdict(self.verdict), "notes": list(self.remarks)}
        content["provenance"] = provenance([] if self.source_ is None else [self.source_()], source)
        return json.dumps(strict(content), indent=1, allow_nan=False) + "\n"


@dataclass(frozen=True, eq=False)
class Findings:
    """What every calibrator did to predictions that it was not fitted on: data alone."""

    before: Table  # the table of the predictions as they came
    tables: Mapping[str, Table]  # the table by calibrator
    shown: tuple[str, ...]  # the metrics that were asked for
    fitted: dict[str, Any]  # on all fitting data, or as they were saved
    chosen: str  # the calibrator with the lowest cross-fitted NLL on the fitting data, unless asked for
    held_out: dict[str, float]  # that NLL, nan where none is honest; empty if a calibrator was asked for
    changes: Comparison | None  # chosen minus before, on the same examples; None for a single one
    mistakes: tuple[Mistake, ...]  # the most confident first
    how: str  # on which data who did what
    fitted_on: Predictions
    keeping: str | None = None  # what keeps every prediction, where the chosen one costs accuracy beyond chance

    @property
    def best(self) -> Any:
        """The chosen calibrator, fitted on all fitting data: a map from logits to better logits."""
        return self.fitted[self.chosen]

    @property
    def certificates(self) -> dict[str, Certificate]:
        """Certificates of the fits by calibrator, where they have one."""
        found = {name: getattr(fitted, "certificate", None) for name, fitted in self.fitted.items()}
        return {name: one for name, one in found.items() if isinstance(one, Certificate)}

    @property
    def chosen_text(self) -> str:
        """The name of the chosen calibrator as it is shown to people."""
        return name_text(self.chosen)

    @property
    def after(self) -> Table:
        """The table of the chosen calibrator."""
        return self.tables[self.chosen]

    @property
    def values(self) -> dict[str, dict[str, float]]:
        """The metrics that were asked for, by calibrator."""
        return {name: {m: table[m].value for m in self.shown} for name, table in self.tables.items()}

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
        return [{"calibrator": name} | learned(fitted) for name, fitted in self.fitted.items()]

    def json(self, source: Mapping[str, Any] | None = None) -> str:
        """Return all numbers and fitted parameters as JSON text; null for what there is not, "inf" for infinity.

        Its `provenance` holds version, time, and the rows, digest and notes of the data; `source` adds to it.
        """
        rows: dict[str, Row] = {row.name: row for table in self.tables.values() for row in table}
        content: dict[str, Any] = {
            "chosen": self.chosen,
            "judged": self.before.event.judged,
            "how": self.how,
            "metrics": {name: asdict(row.about) for name, row in rows.items()},
            "results": [row for row in self.records() if not (row.get("group") or row.get("row_group"))],
            "parameters": self.parameters(),
            "fits": {
                name: {"status": one.status, "gap": one.gap, "clean": one.clean}
                for name, one in self.certificates.items()
            },
            "held_out_nll": self.held_out,
            "changes": [asdict(row) for row in self.changes or ()],
            **({} if self.keeping is None else {"accuracy_preserving": self.keeping}),
        }
        by_group = {name: table.groups.records() for name, table in self.tables.items() if table.groups is not None}
        content |= {"groups": by_group} if by_group else {}
        by_row = {name: t.row_groups.records() for name, t in self.tables.items() if t.row_groups is not None}
        content |= {"row_groups": by_row} if by_row else {}
        content |= {"verdict": {"before": asdict(self.before.verdict), "after": asdict(self.after.verdict)}}
        judged = [] if self.before.source_ is None else [self.before.source_() | {"role": "judged"}]
        content |= {"notes": list(self.before.remarks)}
        content["provenance"] = provenance([data_source("fitted", self.fitted_on), *judged], source)
        return json.dumps(strict(content), indent=1, allow_nan=False) + "\n"
