"""Summaries from a database: the query in six dialects, and its answer equal to `measure` in memory."""

import json
import math
import sqlite3
from dataclasses import dataclass
from typing import Any

import duckdb
import numpy as np
import polars
import pytest
import sqlglot
from commands import run
from refusals import code_of, refused

from calibrant import Predictions, metrics
from calibrant.assessment import measure
from calibrant.metrics import Summary
from calibrant.metrics._query import AGGREGATE_COLUMNS, DIALECTS
from calibrant.metrics._sums import FEATURES
from calibrant.monitoring import check

NUM_TABLES = 50
SEEDS = [*range(8), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(8, NUM_TABLES))]
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
    num_incomplete: int


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
    if has_ties and not kind.startswith("logit"):  # odd tenths, of which none is an edge of a bin; classes are tied too
        tenths = rng.multinomial(10, probs)
        is_used = ((tenths % 2 == 1) | (tenths == 0) | (tenths == 10)).all(1, keepdims=True)
        probs = np.where(is_used & ((tenths / 10).sum(1, keepdims=True) == 1), tenths / 10, np.eye(k)[0])
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
    is_complete = ~missing
    columns = {key: column[is_complete] for key, column in columns.items()}
    weights = columns.get("weights")
    if weights is not None and not weights.sum():
        return draw(seed + 1000)
    if kind == "prob":
        p = Predictions.from_probs(probs[is_complete, 1], labels[is_complete], **columns)
    elif kind == "confidence":
        p = Predictions.from_confidence(probs[is_complete, 1], labels[is_complete], **columns)
    elif kind == "logit":
        scores = (logits[:, 1] - logits[:, 0])[is_complete]
        p = Predictions.from_binary_logits(scores, labels[is_complete], logits=True, **columns)
    else:
        build = Predictions.from_probs if kind == "probs" else Predictions
        p = build((probs if kind == "probs" else logits)[is_complete], labels[is_complete], **columns)
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
    close = {"rtol": 1e-9, "atol": 1e-11}
    pairs = [(summary, expected)]
    assert (summary.groups is None) == (expected.groups is None)
    if summary.groups is not None and expected.groups is not None:
        assert summary.groups.names == expected.groups.names
        pairs += [(a, b) for (_, a), (_, b) in zip(summary.groups, expected.groups, strict=True)]
    for a, b in pairs:
        for name in FEATURES:
            np.testing.assert_allclose(a.per_bin(name), b.per_bin(name), **close)
    for name in ("value", "total_weight", "correct"):
        np.testing.assert_allclose(getattr(summary.by_score, name), getattr(expected.by_score, name), **close)
    np.testing.assert_allclose(summary.max_surprisals, expected.max_surprisals, **close)
    assert summary.classes is not None
    assert expected.classes is not None
    np.testing.assert_allclose(summary.classes.cells, expected.classes.cells, **close)
    np.testing.assert_allclose(summary.classes.rows, expected.classes.rows, **close)


def summarize(drawn: Drawn, engine: str) -> Summary:
    """Return the summary of a table in a database, with its classes."""
    answers = [ENGINES[engine](drawn.frame, **drawn.options, by_class=by_class) for by_class in (False, True)]
    answers = [a.fetchall() if hasattr(a, "fetchall") else a for a in answers]
    if drawn.num_incomplete:
        assert code_of(Summary.from_aggregates, *answers) == "missing"
    return Summary.from_aggregates(*answers, drop=True)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_sum_equals_that_of_a_summary_in_memory(seed):
    drawn = draw(seed)
    p = drawn.predictions
    expected = Summary.from_predictions(p, by_class=True)
    for engine in ENGINES:
        summary = summarize(drawn, engine)
        assert (summary.of, summary.class_names, len(summary)) == (p.of, p.class_names, len(p))
        assert_same_state(summary, expected)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(NUM_TABLES))
def test_every_number_equals_measure_in_memory(seed):
    drawn = draw(seed)
    p = drawn.predictions
    summary = summarize(drawn, "duckdb")
    result, exact = measure(summary), measure(p)
    in_cells = result if drawn.has_ties else measure(Summary.from_predictions(p, by_class=True))
    for row in result:
        reference = in_cells if row.name in OF_CELLS else exact
        assert numbers(row) == pytest.approx(numbers(reference[row.name]), rel=1e-9, abs=1e-12, nan_ok=True), row.name
        if drawn.has_ties and row.name != "adaptive_noise_floor":
            ours, theirs = row.value, exact[row.name].value
            assert ours == pytest.approx(theirs, rel=1e-9, abs=1e-12, nan_ok=True), row.name
    assert result.verdict.status == exact.verdict.status or not drawn.has_ties
    ours, table = metrics.tables.groups(summary), metrics.tables.groups(p)
    assert (ours is None) == (table is None)
    if ours is not None and table is not None:
        a, b = ours.records(), table.records()
        assert [row.pop("group") for row in a] == [row.pop("group") for row in b]
        for row, row_in_memory in zip(a, b, strict=True):
            assert row == pytest.approx(row_in_memory, rel=1e-9, abs=1e-12, nan_ok=True)


# The text


QUERIES: dict[str, dict[str, Any]] = {
    "one probability": {"probs": "p", "label": "y"},
    "one logit": {"logits": "z", "label": "y", "weights": "w", "by": "g"},
    "probabilities": {"probs": {"cat's": "p0", "a\\b": "p1", 'c"d': "p2"}, "label": "y", "of": "cat's"},
    "logits": {"logits": ["z0", "z1", "z2"], "label": "y", "by": "g"},
    "confidence": {"confidence": "c", "label": "y", "classes": [False, True]},
    "clusters": {"probs": ["p0", "p1"], "label": "y", "by": "g", "clusters": "user"},
    "classes": {"probs": ["p0", "p1", "p2"], "label": "y", "by_class": True},
}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_dialect_parses_as_one_query_with_one_grouping(dialect):
    for options in QUERIES.values():
        text = Summary.query(["lake", "preds"], **options, dialect=dialect)
        (statement,) = sqlglot.parse(text, dialect=dialect)
        assert isinstance(statement, sqlglot.exp.Select)
        assert len(list(statement.find_all(sqlglot.exp.Group))) == 1
        assert [column.alias_or_name for column in statement.expressions] == list(AGGREGATE_COLUMNS)
        settings = next(x for x in statement.find_all(sqlglot.exp.Literal) if x.is_string and "version" in x.name)
        assert json.loads(settings.name)["version"] == 1


HOSTILE = [
    'p"; DROP TABLE t; --',
    "p'; DROP TABLE t; --",
    "p`; DROP TABLE t; --",
    "p) FROM t; --",
    "p\\",
    "p\n--",
    "/* p */",
]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_becomes_sql(dialect, name):
    options: dict[str, Any] = {"probs": {name: name, "other": name + "2"}, "label": name, "by": name, "weights": name}
    if dialect == "bigquery" and ("`" in name or "\\" in name):
        assert code_of(Summary.query, name, **options, dialect=dialect) == "identifier"
        return
    (statement,) = sqlglot.parse(Summary.query(name, **options, dialect=dialect), dialect=dialect)
    assert isinstance(statement, sqlglot.exp.Select)
    columns = {column.name for column in statement.find_all(sqlglot.exp.Column) if column.this.quoted}
    assert columns == {name, name + "2"}
    assert {table.name for table in statement.find_all(sqlglot.exp.Table) if table.this.quoted} == {name}


@pytest.mark.parametrize("engine", ["duckdb", "sqlite"])
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_names_of_columns_and_classes(engine, name):
    frame = polars.DataFrame({name: [0.8, 0.3, 0.1], name + "2": [0.2, 0.7, 0.9], "y": [name, "o", "o"]})
    answer = ENGINES[engine](frame, probs={name: name, "o": name + "2"}, label="y", of=name)
    summary = Summary.from_aggregates(answer)
    assert summary.class_names == (name, "o")
    assert summary["accuracy"] == 1


def test_queries_without_a_meaning_are_refused():
    with refused("num_scores", "2"):
        Summary.query("t", probs="p", logits="z", label="y")
    with refused("num_scores", "0"):
        Summary.query("t", label="y")
    with refused("classes"):
        Summary.query("t", probs=["p", "q"], label="y", classes=["a", "a"])
    with refused("classes"):
        Summary.query("t", probs=["p", "q"], label="y", classes=[0.5, 1.5])
    with refused("classes_twice"):
        Summary.query("t", probs={"a": "p", "b": "q"}, label="y", classes=["a", "b"])
    with refused("identifier"):
        Summary.query("", probs="p", label="y")
    with refused("clusters_and_classes"):
        Summary.query("t", probs="p", label="y", clusters="u", by_class=True)
    with refused("several_events"):
        Summary.query("t", probs="p", label="y", of="classes")


# The answer


FRAME = polars.DataFrame({"p": [0.9, 0.9, 0.2, 0.4] * 20, "y": [1, 0, 0, 1] * 20, "g": ["a", "b"] * 40})
TEXT = Summary.query("t", probs="p", label="y", by="g", dialect="sqlite")


def connect(frame: polars.DataFrame = FRAME) -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    connection.execute(f"CREATE TABLE t ({', '.join(frame.columns)})")
    connection.executemany(f"INSERT INTO t VALUES ({', '.join('?' * frame.width)})", frame.rows())
    return connection


def answer_frame() -> polars.DataFrame:
    cursor = connect().execute(TEXT)
    return polars.DataFrame(cursor.fetchall(), [column[0] for column in cursor.description], orient="row")


def test_answer_comes_in_any_form():
    frame = answer_frame()
    connection = connect()
    connection.row_factory = sqlite3.Row
    forms = [connect().execute(TEXT), connection.execute(TEXT).fetchall(), frame, frame.lazy(), frame.to_arrow()]
    forms += [frame.to_pandas(), frame.to_dict(as_series=False), frame.rows(named=True), frame.rows()]
    expected = Summary.from_predictions(Predictions.from_probs(FRAME["p"], FRAME["y"], groups=FRAME["g"]))
    for form in forms:
        summary = Summary.from_aggregates(form)
        assert summary["nll"] == pytest.approx(expected["nll"], rel=1e-12)
        assert summary.groups is not None
        assert summary.groups.names == ("a", "b")


def test_answers_merge_with_summaries_and_are_saved(tmp_path):
    p = Predictions.from_probs(FRAME["p"], FRAME["y"], groups=FRAME["g"])
    ours, theirs = Summary.from_aggregates(answer_frame()), Summary.from_predictions(p)
    merged = ours + theirs
    assert merged["ece"] == pytest.approx(theirs["ece"], rel=1e-12)
    assert len(merged) == 2 * len(FRAME)
    merged.save(tmp_path / "s.safetensors")
    assert Summary.load(tmp_path / "s.safetensors")["brier"] == merged["brier"]


def clustered(n: int = 3000) -> tuple[polars.DataFrame, Predictions]:
    rng = np.random.default_rng(0)
    user = np.arange(n) // 5
    p = rng.beta(2, 2, n)
    y = rng.random(n) < np.clip(p + 0.2 * rng.standard_normal(n // 5)[user], 0, 1)
    frame = polars.DataFrame({"p": p, "y": y.astype(int), "user": user, "g": np.where(p > 0.4, "a", "b")})
    return frame, Predictions.from_probs(p, y.astype(int), clusters=user, groups=frame["g"])


@pytest.mark.parametrize("engine", ["duckdb", "sqlite"])
def test_second_query_sums_sets_of_whole_clusters(engine):
    frame, p = clustered()
    options: dict[str, Any] = {"probs": "p", "label": "y", "by": "g"}
    answers = [ENGINES[engine](frame, **options), ENGINES[engine](frame, **options, clusters="user")]
    summary = Summary.from_aggregates(*answers)
    assert summary.slots is not None
    assert summary.groups is not None
    assert summary.groups.slots is not None
    per_set = summary._per_slot("rows").sum(1)
    assert (per_set % 5 == 0).all()  # whole clusters
    assert (per_set > 0).sum() > 50
    expected = Summary.from_predictions(p)  # which joins the clusters into other sets
    for name in ("nll", "brier", "signed_gap"):
        ours, exact = summary.interval(name), expected.interval(name)
        assert ours.value == pytest.approx(exact.value, rel=1e-9)
        assert ours.high - ours.low == pytest.approx(exact.high - exact.low, rel=0.4)
    for i in range(5):
        words = summary.groups.slots[:, i].sum((1, 2)) - summary.slots[:, i].sum(1)
        assert abs((words * 2.0 ** np.array([[-52.0], [-26.0], [0.0]])).sum()) < 1e-9


def test_fractions_need_a_meaning():
    frame = FRAME.with_columns(w=polars.Series([0.5, 1.5] * 40), id=polars.Series(range(80)))
    options: dict[str, Any] = {"probs": "p", "label": "y", "weights": "w"}
    answer = in_duckdb(frame, **options).fetchall()
    with refused("importance_weights", "80"):
        Summary.from_aggregates(answer)
    counts = Summary.from_aggregates(in_duckdb(frame, **options, weights_are="counts"))
    p = Predictions.from_probs(frame["p"], frame["y"], frame["w"], weights_are="counts")
    assert counts.interval("nll").high == pytest.approx(metrics.nll.interval(p).high, rel=1e-9)
    weighted = Summary.from_aggregates(answer, in_duckdb(frame, **options, clusters="id").fetchall())
    assert weighted.has_clusters
    with refused("importance_weights", "importance"):
        Summary.from_aggregates(in_duckdb(frame, **options, weights_are="importance"))


@pytest.mark.parametrize(
    ("column", "value", "code"),
    [
        ("p", 1.5, "aggregate_rows"),
        ("p", float("nan"), "aggregate_rows"),
        ("y", 2, "aggregate_rows"),
        ("y", None, "missing"),
        ("p", None, "missing"),
        ("g", None, "missing"),
    ],
)
def test_rows_that_predictions_refuse_are_refused(column, value, code):
    frame = FRAME.with_columns(polars.Series(column, [value, *FRAME[column].to_list()[1:]], strict=False))
    with refused(code, "1 of 80"):
        Summary.from_aggregates(in_duckdb(frame, probs="p", label="y", by="g"))


def test_weights_out_of_range_and_mostly_missing_rows_are_refused():
    for weight in (-1, 2**21):
        frame = FRAME.with_columns(w=polars.Series([weight] + [1] * 79))
        with refused("aggregate_rows", "1 of 80"):
            Summary.from_aggregates(in_duckdb(frame, probs="p", label="y", weights="w"))
    frame = FRAME.with_columns(y=polars.Series([None] * 41 + [1] * 39))
    with refused("drop_most", "41 of 80"):
        Summary.from_aggregates(in_duckdb(frame, probs="p", label="y"), drop=True)


def test_wrong_answers_are_refused():
    frame = answer_frame()
    with refused("aggregate_columns", "nll", "gap"):
        Summary.from_aggregates(frame.drop("nll", "gap"))
    with refused("aggregate_columns", "24"):
        Summary.from_aggregates([(1, 2, 3)])
    with refused("aggregate_settings"):
        Summary.from_aggregates(frame.clear())
    with refused("aggregate_settings"):
        Summary.from_aggregates(frame, in_duckdb(FRAME, probs="p", label="y", bins=10))
    with refused("unreadable"):
        Summary.from_aggregates(frame.with_columns(calibrant_summary=polars.lit("text")))
    with refused("aggregate_settings"):
        Summary.from_aggregates(frame.with_columns(calibrant_summary=polars.lit('{"version": 2}')))
    with refused("aggregates", "gap"):
        Summary.from_aggregates(frame.with_columns(gap=polars.lit("many")))
    for column, value in (("weight", -1.0), ("bin", 99), ("cell", 0.5), ("nll", float("inf"))):
        with refused("aggregates", column):
            Summary.from_aggregates(frame.with_columns(polars.lit(value).alias(column)))
    with refused("aggregates"):
        Summary.from_aggregates(frame.with_columns(outcome=polars.lit(1e6)))
    clusters = in_duckdb(FRAME.with_columns(u=1).head(40), probs="p", label="y", by="g", clusters="u")
    with refused("rows_differ"):
        Summary.from_aggregates(frame, clusters)
    with refused("no_rows"):
        Summary.from_aggregates(in_duckdb(FRAME.with_columns(u=1), probs="p", label="y", clusters="u"))


def test_extreme_scores():
    frame = polars.DataFrame({"z0": [1e4, -math.inf, 0.0], "z1": [0.0, 0.0, 1e4], "y": [0, 0, 0]})
    expected = Summary.from_predictions(Predictions(frame.select("z0", "z1").to_numpy(), frame["y"]))
    summary = Summary.from_aggregates(in_duckdb(frame, logits=["z0", "z1"], label="y", of="top"))
    assert summary["nll"] == math.inf
    assert summary["ece"] == pytest.approx(expected["ece"])
    assert summary.max_surprisals.tolist() == expected.max_surprisals.tolist()
    frame = polars.DataFrame({"p": [0.0, 1.0, 1.0, 1e-9], "y": [0, 1, 1, 0]})
    summary = Summary.from_aggregates(in_duckdb(frame, probs="p", label="y"))
    assert summary["nll"] == pytest.approx(2.5e-10, rel=1e-6)
    assert summary.max_surprisals.tolist()[0] == math.inf


# Checks


@pytest.mark.parametrize("kind", ["probs", "confidence"])
@pytest.mark.parametrize("by_group", [False, True])
def test_check_of_a_summary_equals_that_of_predictions(kind, by_group):
    frame, _ = clustered()
    build = Predictions.from_probs if kind == "probs" else Predictions.from_confidence
    p = build(frame["p"], frame["y"], groups=frame["g"])
    summary = Summary.from_aggregates(in_duckdb(frame, **{kind: "p"}, label="y", by="g"))
    require = ["ece < 0.1", "accuracy > 40%", "abs(signed_gap) < 0.01", "debiased_l2 < 0.2"]
    require += [] if by_group else ["nll < 0.9", "event_brier < 0.3"]
    ours, exact = (check(x, require, by_group=by_group) for x in (summary, p))
    assert (ours.n, ours.event, ours.passing_constants) == (exact.n, exact.event, exact.passing_constants)
    for a, b in zip(ours.conditions, exact.conditions, strict=True):
        assert (a.requirement, a.group, a.status, a.unit, a.needed) == (
            b.requirement,
            b.group,
            b.status,
            b.unit,
            b.needed,
        )
        assert (a.value, a.low, a.high) == pytest.approx((b.value, b.low, b.high), rel=1e-9, abs=1e-12)


def test_check_refuses_what_a_summary_cannot_know():
    summary = Summary.from_aggregates(answer_frame())
    p = Predictions.from_probs(FRAME["p"], FRAME["y"])
    with refused("no_old"):
        check(summary, "nll < old")
    with refused("old_and_summary"):
        check(summary, "nll < old", old=p)
    with refused("summary_only", "auroc"):
        check(summary, "auroc > 0.7")
    with refused("summary_only", "nll"):
        check(summary, "nll < 1", by_group=True)
    with refused("summary_event"):
        check(summary, "ece < 0.5", of=0)
    with refused("no_rows"):
        check(Summary.empty(k=2), "ece < 0.5")
    with refused("no_groups"):
        check(Summary.from_predictions(p), "ece < 0.5", by_group=True)


# The commands


def test_commands_read_a_file_of_aggregates(tmp_path):
    frame = FRAME.with_columns(g=polars.Series(["007", "NA"] * 40), u=polars.Series(range(80)))
    options: dict[str, Any] = {"probs": "p", "label": "y", "by": "g"}
    answer = in_duckdb(frame, **options).to_arrow_table()
    answer_with_names = polars.from_arrow(answer)
    assert isinstance(answer_with_names, polars.DataFrame)
    answer_with_names.write_csv(tmp_path / "a.csv")
    answer_with_names.write_parquet(tmp_path / "a.parquet")
    folder = tmp_path / "folder"
    folder.mkdir()
    answer_with_names.write_parquet(folder / "a.parquet")
    sets = polars.from_arrow(in_duckdb(frame, **options, clusters="u").to_arrow_table())
    assert isinstance(sets, polars.DataFrame)
    sets.write_parquet(folder / "sets.parquet")
    expected = Summary.from_aggregates(answer)
    for source in ("a.csv", "a.parquet", "folder"):
        finished = run("measure", tmp_path / source, "--json", tmp_path / "m.json")
        assert finished.returncode == 0, finished.stderr
        result = json.loads((tmp_path / "m.json").read_text())
        value = next(row["value"] for row in result["results"] if row["metric"] == "nll")  # of all rows, the first
        assert value == pytest.approx(expected["nll"], rel=1e-9)
        assert sorted(group["group"] for group in result["groups"]) == ["007", "NA"]
        finished = run("check", tmp_path / source, "--by", "g", "-r", "accuracy > 99%", "--json", tmp_path / "c.json")
        assert finished.returncode == 3
        conditions = json.loads((tmp_path / "c.json").read_text())["conditions"]
        assert [condition["group"] for condition in conditions] == [None, "007", "NA"]


def test_commands_refuse_what_sums_do_not_have(tmp_path):
    answer_frame().write_csv(tmp_path / "a.csv")
    assert run("measure", tmp_path / "a.csv", "--probs", "p").code == "aggregates_options"
    Predictions.from_probs(FRAME["p"], FRAME["y"]).save(tmp_path / "old.csv")
    check_old = run("check", tmp_path / "a.csv", "--against", tmp_path / "old.csv", "-r", "nll < old")
    assert check_old.code == "old_and_summary"
    answer_frame().drop("nll").write_csv(tmp_path / "b.csv")
    assert run("measure", tmp_path / "b.csv").code == "aggregate_columns"
    frame = FRAME.with_columns(y=polars.Series([None] + [1] * 79))
    incomplete = polars.from_arrow(in_duckdb(frame, probs="p", label="y").to_arrow_table())
    assert isinstance(incomplete, polars.DataFrame)
    incomplete.write_csv(tmp_path / "n.csv")
    assert run("measure", tmp_path / "n.csv").code == "missing"
    assert run("measure", tmp_path / "n.csv", "--drop").returncode == 0
