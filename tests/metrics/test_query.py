"""Summaries from a database: the query in six dialects, and its answer equal to `measure` in memory."""

import sqlite3
from dataclasses import dataclass, field
from typing import Any

import duckdb
import numpy as np
import polars
import pytest
import torch
from refusals import code_of

from calibrant import Predictions, metrics
from calibrant.assessment import measure
from calibrant.metrics import Summary
from calibrant.metrics._sums import FEATURES

NUM_TABLES = 50
KINDS = ("prob", "logit", "probs", "logits", "confidence")
# Metrics that a summary computes from cells of confidence; ties of few confidences have a cell each
OF_CELLS = ("adaptive_ece", "adaptive_noise_floor", "kuiper", "omnibus", "smooth_ece", "aurc", "auroc")


@dataclass
class Drawn:
    """A random table, the options of its query, and the same predictions in memory."""

    frame: polars.DataFrame
    options: dict[str, Any]
    predictions: Predictions
    has_ties: bool
    num_incomplete: int = 0
    extra: dict[str, Any] = field(default_factory=dict)


def draw(seed: int) -> Drawn:
    """Draw a table of some kind, with or without weights, groups, ties and NULLs."""
    rng = np.random.default_rng(seed)
    kind = KINDS[seed % len(KINDS)]
    n, k = int(rng.integers(40, 400)), 2 if kind in ("prob", "logit", "confidence") else int(rng.integers(2, 6))
    has_ties, has_weights, has_groups, has_nulls = rng.random(4) < 0.5
    logits = 2 * rng.standard_normal((n, k))
    if has_ties:
        logits = logits[rng.integers(0, 7, n)] if kind.startswith("logit") else logits
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    if has_ties and not kind.startswith("logit"):  # tenths, in which classes are tied too
        probs = rng.multinomial(10, probs) / 10
        probs = np.where(probs.sum(1, keepdims=True) == 1, probs, np.eye(k)[0])
    labels = np.array([rng.choice(k, p=p / p.sum()) for p in probs])
    data: dict[str, Any] = {"label": labels.tolist()}
    options: dict[str, Any] = {"label": "label"}
    if kind == "probs":
        names = [f"p '{j}" for j in range(k)]
        data |= dict(zip(names, probs.T.tolist(), strict=True))
        options["probs"] = names
    elif kind == "logits":
        names = [f'z"{j}' for j in range(k)]
        data |= dict(zip(names, logits.T.tolist(), strict=True))
        options["logits"] = names
    else:
        data["score"] = (logits[:, 1] - logits[:, 0] if kind == "logit" else probs[:, 1]).tolist()
        options[{"prob": "probs", "logit": "logits"}.get(kind, kind)] = "score"
    columns: dict[str, Any] = {}
    if has_weights:
        columns["weights"] = rng.integers(0, 5, n)
        data["n"], options["weights"] = columns["weights"].tolist(), "n"
    if has_groups:
        columns["groups"] = rng.choice(["north", "south", "o'east"], n, p=[0.6, 0.35, 0.05])
        data["site"], options["by"] = columns["groups"].tolist(), "site"
    missing = rng.random(n) < (0.1 if has_nulls else 0)
    name = str(rng.choice(list(data)))
    data[name] = [None if lost else x for x, lost in zip(data[name], missing.tolist(), strict=True)]
    frame = polars.DataFrame(data)
    keep = ~missing
    columns = {key: column[keep] for key, column in columns.items()}
    weights = columns.get("weights")
    if weights is not None and not weights.sum():
        return draw(seed + 1000)
    if kind == "prob":
        p = Predictions.from_probs(probs[keep, 1], labels[keep], **columns)
    elif kind == "confidence":
        p = Predictions.from_confidence(probs[keep, 1], labels[keep], **columns)
    elif kind == "logit":
        scores = (logits[:, 1] - logits[:, 0])[keep]
        p = Predictions.from_binary_logits(scores, labels[keep], logits=True, **columns)
    else:
        build = Predictions.from_probs if kind == "probs" else Predictions
        p = build((probs if kind == "probs" else logits)[keep], labels[keep], **columns)
        if rng.random() < 0.3:
            options["of"] = int(rng.integers(0, k))
            p = p.with_event(options["of"])
    return Drawn(frame, options, p.with_default_event(options.get("of")), bool(has_ties), int(missing.sum()))


def in_duckdb(frame: polars.DataFrame, **options: Any) -> Any:
    connection = duckdb.connect()
    connection.register("t", frame.to_arrow())
    return connection.sql(Summary.query("t", **options, dialect="duckdb"))


def in_sqlite(frame: polars.DataFrame, **options: Any) -> Any:
    connection = sqlite3.connect(":memory:")
    names = ", ".join("`" + name.replace("`", "``") + "`" for name in frame.columns)
    connection.execute(f"CREATE TABLE t ({names})")
    connection.executemany(f"INSERT INTO t VALUES ({', '.join('?' * frame.width)})", frame.rows())
    return connection.execute(Summary.query("t", **options, dialect="sqlite"))


def in_polars(frame: polars.DataFrame, **options: Any) -> Any:
    return polars.SQLContext(t=frame).execute(Summary.query("t", **options, dialect="duckdb")).collect()


ENGINES = {"duckdb": in_duckdb, "sqlite": in_sqlite, "polars": in_polars}


def numbers(row: Any) -> list[float]:
    return [row.value, row.low, row.high, row.p_value]


def assert_same_state(summary: Summary, expected: Summary) -> None:
    """Compare all sums, to rounding errors of their addition."""
    close = {"rtol": 1e-9, "atol": 1e-11, "equal_nan": True}
    pairs = [(summary, expected)]
    assert (summary.groups is None) == (expected.groups is None)
    if summary.groups is not None and expected.groups is not None:
        assert summary.groups.names == expected.groups.names
        pairs += [(a, b) for (_, a), (_, b) in zip(summary.groups, expected.groups, strict=True)]
    for a, b in pairs:
        for name in FEATURES:
            torch.testing.assert_close(a.per_bin(name), b.per_bin(name), **close)
    for name in ("value", "total_weight", "correct"):
        torch.testing.assert_close(getattr(summary.by_score, name), getattr(expected.by_score, name), **close)
    torch.testing.assert_close(summary.max_surprisals, expected.max_surprisals, **close)
    assert summary.classes is not None
    assert expected.classes is not None
    torch.testing.assert_close(summary.classes.cells, expected.classes.cells, **close)
    torch.testing.assert_close(summary.classes.rows, expected.classes.rows, **close)


@pytest.mark.parametrize("seed", range(NUM_TABLES))
def test_every_number_equals_measure_in_memory(seed):
    drawn = draw(seed)
    p, options = drawn.predictions, drawn.options
    expected = Summary.from_predictions(p, by_class=True)
    summaries = []
    for engine in ENGINES.values():
        answers = [engine(drawn.frame, **options, by_class=by_class) for by_class in (False, True)]
        answers = [a.fetchall() if hasattr(a, "fetchall") else a for a in answers]
        if drawn.num_incomplete:
            assert code_of(Summary.from_aggregates, *answers) == "missing"
        summaries.append(Summary.from_aggregates(*answers, drop=True))
    for summary in summaries:
        assert (summary.of, summary.class_names, len(summary)) == (p.of, p.class_names, len(p))
        assert_same_state(summary, expected)
    result, exact = measure(summaries[0]), measure(p)
    in_cells = result if drawn.has_ties else measure(expected)
    for row in result:
        reference = in_cells if row.name in OF_CELLS else exact
        assert numbers(row) == pytest.approx(numbers(reference[row.name]), rel=1e-9, abs=1e-12, nan_ok=True), row.name
        if drawn.has_ties and row.name != "adaptive_noise_floor":
            ours, theirs = row.value, exact[row.name].value
            assert ours == pytest.approx(theirs, rel=1e-9, abs=1e-12, nan_ok=True), row.name
    assert result.verdict.status == exact.verdict.status or not drawn.has_ties
    ours, table = metrics.tables.groups(summaries[0]), metrics.tables.groups(p)
    assert (ours is None) == (table is None)
    if ours is not None and table is not None:
        a, b = ours.records(), table.records()
        assert [row.pop("group") for row in a] == [row.pop("group") for row in b]
        for row, row_in_memory in zip(a, b, strict=True):
            assert row == pytest.approx(row_in_memory, rel=1e-9, abs=1e-12, nan_ok=True)
