"""The text of one SQL query whose answer is a `Summary`, for six databases."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from calibrant._core.kernels.bins import NUM_ODDS_CELLS, equal_width_edges
from calibrant._core.text import shorten_list, shorten_repr
from calibrant._core.types import Count, InputError, check_arguments
from calibrant.metrics import _sums
from calibrant.metrics._sums import FEATURES, MAX_WEIGHT
from calibrant.predictions import Predictions
from calibrant.predictions.events import CORRECTNESS
from calibrant.predictions.validation.scores import MAX_ROUNDING_EXCESS, MAX_SUM_ERROR

DialectName = Literal["duckdb", "postgres", "sqlite", "spark", "bigquery", "snowflake"]
WeightKind = Literal["counts", "importance"]
SETTINGS = "calibrant_summary"  # column of the settings, a JSON text that is the same in every row
KEYS = ("group_name", "cluster_set", "class_index", "bin", "cell")
EXTREMES = ("error_surprisal", "label_surprisal")
AGGREGATE_COLUMNS = (SETTINGS, *KEYS, *FEATURES, "fractional_weights", *EXTREMES)
INCOMPLETE = -1  # "bin" of the rows with a NULL, which are only counted, as are those of `REFUSALS`
REFUSALS = {
    -2: "labels among the classes of the query",
    -3: "probabilities in [0, 1] with sum 1, or finite logits",
    -4: f"weights in 0 .. {MAX_WEIGHT:,}",
}
LOG_HALF_EPSILON = -700  # logits so far below the highest have no probability: exp of less is an error in PostgreSQL
INFINITE = 1e300  # stands for an infinite surprisal, which not every database has a literal for


class DialectWords(NamedTuple):
    """The few words that databases do not share."""

    quote: str = '"'  # around identifiers
    text: str = "VARCHAR"
    number: str = "DOUBLE PRECISION"
    greatest: str = "GREATEST"
    has_backslash: bool = False  # whether a backslash escapes the next character of a string
    fence: str = ""  # keeps a step apart, where the database would repeat its expressions in the next ones
    cluster_set: str = "(DENSE_RANK() OVER (ORDER BY {})) % 64"  # an integer in 0 .. 63 for each cluster


DIALECTS: dict[str, DialectWords] = {
    "duckdb": DialectWords(number="DOUBLE", cluster_set="CAST(HASH({}) % 64 AS INTEGER)"),
    "postgres": DialectWords(fence=" OFFSET 0", cluster_set="HASHTEXT(CAST({} AS TEXT)) & 63"),
    # SQLite reads an unknown column in double quotes as a text
    "sqlite": DialectWords(quote="`", greatest="MAX", fence=" LIMIT -1"),
    "spark": DialectWords("`", "STRING", "DOUBLE", has_backslash=True, cluster_set="PMOD(HASH({}), 64)"),
    "bigquery": DialectWords(
        "`", "STRING", "FLOAT64", has_backslash=True, cluster_set="FARM_FINGERPRINT(CAST({} AS STRING)) & 63"
    ),
    "snowflake": DialectWords(number="DOUBLE", has_backslash=True, cluster_set="MOD(ABS(HASH({})), 64)"),
}


@dataclass(frozen=True)
class Scores:
    """The classes of a table, and the SQL expressions of their scores."""

    expressions: list[str]
    classes: tuple[Any, ...]  # values of the labels, in the order of the scores
    names: tuple[str, ...] | None
    are_probs: bool


@check_arguments
def build_query(
    table: str | Sequence[str],
    *,
    probs: str | Sequence[str] | Mapping[Any, str] | None = None,
    logits: str | Sequence[str] | Mapping[Any, str] | None = None,
    confidence: str | None = None,
    label: str,
    by: str | None = None,
    weights: str | None = None,
    dialect: DialectName = "duckdb",
    classes: Sequence[Any] | None = None,
    of: str | int | None = None,
    bins: Count = 15,
    clusters: str | None = None,
    by_class: bool = False,
    weights_are: WeightKind | None = None,
) -> str:
    """Return the text of `Summary.query`, whose arguments these are."""
    if clusters is not None and by_class:
        raise InputError(
            "Expected clusters or by_class, got both. Try one query for each, and both answers for "
            "Summary.from_aggregates.",
            code="clusters_and_classes",
        )
    words = DIALECTS[dialect]
    scores = _read_scores(words, probs, logits, confidence, classes)
    k = len(scores.classes)
    if confidence is None:
        event = Predictions(np.zeros((1, k)), [0], class_names=scores.names).with_default_event(of).of
    else:
        event = CORRECTNESS.selector
    if event == "classes":
        raise InputError('Expected one event, got of="classes". Try of="top" or a class.', code="several_events")
    settings = {"version": 1, "k": k, "bins": bins, "of": event, "class_names": scores.names}
    settings |= {"by": by is not None, "weights_are": weights_are}
    name = _quoter(words)
    source = {f"s{j}": expression for j, expression in enumerate(scores.expressions)}
    label_values = "".join(f" WHEN {name(label)} = {_literal(words, x)} THEN {j}" for j, x in enumerate(scores.classes))
    source["y"] = f"CASE WHEN {name(label)} IS NULL THEN NULL{label_values} ELSE -1 END"
    source["w"] = "1e0" if weights is None else _number(words, name(weights))
    if by is not None:
        source["g"] = f"CAST({name(by)} AS {words.text})"
    if clusters is not None:
        member = words.cluster_set.format(name(clusters))
        source["m"] = f"CASE WHEN {name(clusters)} IS NULL THEN NULL ELSE {member} END"
    parts = [table] if isinstance(table, str) else table
    steps = [f"q0 AS (SELECT {_select(source)} FROM {'.'.join(map(name, parts))}{words.fence})"]
    for step in _steps(words, scores, list(source), event, bins, by_class=by_class):
        joined = f"q{len(steps) - 1}{_class_table(k) if by_class and 'c' in step else ''}"
        steps.append(f"q{len(steps)} AS (SELECT *, {_select(step)} FROM {joined}{words.fence})")
    # keys without a column are NULL
    keys = {"group_name": "g" if by is not None and not by_class else "", "cluster_set": "m" if clusters else ""}
    keys |= {"class_index": "j" if by_class else "", "bin": "bin", "cell": "cell" if clusters is None else ""}
    output = {SETTINGS: f"MIN({_literal(words, json.dumps(settings))})"}
    nulls = {key: f"CAST(NULL AS {words.text if key == 'group_name' else 'INTEGER'})" for key in keys}
    output |= {key: column or nulls[key] for key, column in keys.items()} | _sum_columns()
    columns = ",\n  ".join(f"{expression} AS {name(alias)}" for alias, expression in output.items())
    grouped = ", ".join(column for column in keys.values() if column)
    text = ",\n".join(steps)
    return f"WITH {text}\nSELECT\n  {columns}\nFROM q{len(steps) - 1}\nGROUP BY {grouped}"


def _read_scores(words: DialectWords, probs: Any, logits: Any, confidence: str | None, classes: Any) -> Scores:
    """Return the scores that the query names, or raise `InputError` unless it names exactly one kind of them."""
    kinds = [columns for columns in (probs, logits, confidence) if columns is not None]
    if len(kinds) != 1:
        raise InputError(
            f"Expected one of probs, logits and confidence, got {len(kinds)}. Try probs=['p_0', 'p_1'].",
            code="num_scores",
        )
    columns: Any = kinds[0]
    if isinstance(columns, Mapping):
        if classes is not None:
            raise InputError("Expected classes once, got them twice. Leave out classes=.", code="classes_twice")
        classes, columns = list(columns), list(columns.values())  # pyright: ignore
    names = [columns] if isinstance(columns, str) else list(columns)
    expressions = [_number(words, _quoter(words)(name)) for name in names]
    if len(expressions) == 1:  # of class 1 of two
        expressions.insert(0, "0e0" if logits is not None else f"1e0 - {expressions[0]}")
    k = len(expressions)
    values: tuple[Any, ...] = tuple(range(k)) if classes is None else tuple(classes)
    if len(values) != k or len(set(values)) != k or k < 2 or not all(isinstance(x, str | int) for x in values):
        raise InputError(
            f"Expected {max(k, 2)} different classes, texts or integers, got "
            f"{shorten_list(list(map(str, values)))}. Try classes= with the values of the label, in order.",
            code="classes",
        )
    class_names: tuple[str, ...] | None = tuple(map(str, values))
    if confidence is not None:
        class_names = CORRECTNESS.classes
    elif all(isinstance(x, bool) for x in values) or values == tuple(range(k)):
        class_names = None
    return Scores(expressions, values, class_names, logits is None)


def _steps(
    words: DialectWords, scores: Scores, source: list[str], event: Any, bins: int, *, by_class: bool
) -> Iterable[dict[str, str]]:
    """Yield the columns that each step adds to those before, from the scores to the features of a row.

    `source` lists the columns of the table. With `by_class`, the event of a row is the class j.
    """
    classes = range(len(scores.classes))
    raw = [f"s{j}" for j in classes]
    low, high = (-MAX_ROUNDING_EXCESS, 1 + MAX_ROUNDING_EXCESS) if scores.are_probs else (None, 1.7e308)
    # A comparison is false for NaN, or NaN is greater than every number
    is_score = " AND ".join(f"{s} <= {high!r}" + ("" if low is None else f" AND {s} >= {low!r}") for s in raw)
    if scores.are_probs:
        is_score += f" AND ABS({' + '.join(raw)} - 1) <= {MAX_SUM_ERROR!r}"
    else:  # a logit of -infinity is a probability of 0, unless all are
        is_score += " AND (" + " OR ".join(f"{s} >= -1.7e308" for s in raw) + ")"
    is_missing = " OR ".join(f"{column} IS NULL" for column in source)
    status = f"CASE WHEN {is_missing} THEN {INCOMPLETE} WHEN y < 0 THEN -2 WHEN NOT ({is_score}) THEN -3"
    yield {"status": f"{status} WHEN NOT (w >= 0 AND w <= {MAX_WEIGHT}) THEN -4 ELSE 0 END"}
    clipped = "CASE WHEN status < 0 THEN NULL WHEN {0} < 0 THEN 0e0 WHEN {0} > 1 THEN 1e0 ELSE {0} END"
    usable = clipped if scores.are_probs else "CASE WHEN status < 0 THEN NULL ELSE {0} END"
    yield {f"z{j}": usable.format(f"s{j}") for j in classes}
    yield {"z": f"{words.greatest}({', '.join(f'z{j}' for j in classes)})"}
    # e: every probability divided by the largest one, which is 1 / (1 + rest)
    exponential = f"CASE WHEN {{0}} - z > {LOG_HALF_EPSILON} THEN EXP({{0}} - z) ELSE 0e0 END"
    scaled = "{0} / z" if scores.are_probs else exponential
    predicted = "".join(f" WHEN z{j} = z THEN {j}" for j in classes)  # the lowest index of a tie
    yield {f"e{j}": scaled.format(f"z{j}") for j in classes} | {"predicted": f"CASE{predicted} END"}
    rest = " + ".join(f"CASE WHEN predicted = {j} THEN 0e0 ELSE e{j} END" for j in classes)
    if scores.are_probs:
        surprisal = f"CASE WHEN {_by_class('e', classes)} > 0 THEN -LN({_by_class('e', classes)}) ELSE 1e301 END"
    else:
        surprisal = f"z - {_by_class('z', classes)}"
    # surprisal: that of the label, less that of the predicted class
    yield {"rest": rest, "surprisal": surprisal, "correct": "CASE WHEN predicted = y THEN 1e0 ELSE 0e0 END"}
    yield {"total": "1 + rest"}
    # log(1 + rest) without loss of digits (Kahan)
    logarithm = "CASE WHEN total = 1 THEN rest ELSE rest * LN(total) / (total - 1) END"
    yield {f"d{j}": f"e{j} / total - CASE WHEN y = {j} THEN 1e0 ELSE 0e0 END" for j in classes}
    distances = " + ".join(f"d{j} * d{j}" for j in classes)
    probability = f"{_by_class('e', classes, 'j')} / total" if by_class else f"e{event} / total"
    confidence = "1 / total" if event == "top" and not by_class else probability
    outcome = "correct" if event == "top" and not by_class else f"CASE WHEN y = {'j' if by_class else event}"
    outcome = outcome if outcome == "correct" else f"{outcome} THEN 1e0 ELSE 0e0 END"
    yield {"logarithm": logarithm, "brier": distances, "c": confidence, "a": outcome}
    yield {
        "infinite": f"CASE WHEN surprisal > {INFINITE!r} THEN 1e0 ELSE 0e0 END",
        "odds": f"CASE WHEN c > {1 / INFINITE!r} THEN 1 / c - 1 ELSE {INFINITE!r} END",
    }
    limit = _float(_sums.MAX_NLL)
    yield {
        "nll": f"CASE WHEN infinite = 1 THEN 0e0 WHEN logarithm + surprisal > {limit} THEN {limit} "
        "ELSE logarithm + surprisal END",
        "u": "c - a",
        # The exponent may be wrong by 1 next to a power of 2, where the cell is the same for both
        "exponent": "CASE WHEN odds < 9e-13 THEN -40 WHEN odds > 1048576 THEN 20 ELSE FLOOR(LN(odds) / LN(2e0)) END",
    }
    edges = equal_width_edges(bins).tolist()[1:-1]
    bin_ends = "".join(f" WHEN c <= {_float(edge)} THEN {i}" for i, edge in enumerate(edges))
    cell = "(exponent + 40) * 1024 + FLOOR((odds / POWER(2e0, exponent) - 1) * 1024)"
    limits = f"WHEN odds < {2.0**-40!r} THEN 0 WHEN odds >= 1048576 THEN {NUM_ODDS_CELLS - 1}"
    cell = "predicted = j THEN 1 ELSE 0" if by_class else f"status < 0 THEN NULL {limits} ELSE CAST({cell} AS INTEGER)"
    yield {"bin": f"CASE WHEN status < 0 THEN status{bin_ends} ELSE {bins - 1} END", "cell": f"CASE WHEN {cell} END"}


def _sum_columns() -> dict[str, str]:
    """Return the sums of the features over a group of rows, and the largest surprisals."""
    confident = f"CASE WHEN c >= {_float(_sums.HIGH_CONFIDENCE)} THEN w ELSE 0e0 END"
    features = {"weight": "w", "correct": "w * correct", "outcome": "w * a", "gap": "w * u", "gap_square": "w * u * u"}
    features |= {"variance": "w * c * (1 - c)", "nll": "w * nll", "nll_square": "w * nll * nll"}
    features |= {"infinite": "w * infinite", "brier": "w * brier", "brier_square": "w * brier * brier"}
    features |= {"confident": confident, "confident_outcome": f"a * {confident}", "gap_fourth": "w * u * u * u * u"}
    features["fractional_weights"] = "CASE WHEN w <> FLOOR(w) THEN 1 ELSE 0 END"
    error = f"CASE WHEN rest > 0 THEN logarithm - LN(rest) ELSE {INFINITE!r} END"
    label = f"CASE WHEN infinite = 1 THEN {INFINITE!r} ELSE logarithm + surprisal END"
    extremes = {"error_surprisal": error, "label_surprisal": label}  # rows of weight 0 do not count
    maxima = {name: f"MAX(CASE WHEN w > 0 THEN {value} ELSE 0e0 END)" for name, value in extremes.items()}
    return {"rows": "COUNT(*)"} | {name: f"SUM({value})" for name, value in features.items()} | maxima


def _by_class(prefix: str, classes: Iterable[int], index: str = "y") -> str:
    """Return the expression of a column with the number of a class, such as e0 where y is 0."""
    return f"CASE {index}{''.join(f' WHEN {j} THEN {prefix}{j}' for j in classes)} END"


def _class_table(k: int) -> str:
    """Return the join that repeats every row for each class j."""
    return f" CROSS JOIN ({' UNION ALL '.join(f'SELECT {j} AS j' for j in range(k))}) AS classes"


def _select(columns: Mapping[str, str]) -> str:
    """Return expressions with their names."""
    return ", ".join(f"{expression} AS {name}" for name, expression in columns.items())


def _float(value: float) -> str:
    """Return the literal of a float64; without an exponent, some databases would read a decimal."""
    return repr(value) if "e" in repr(value) else f"{value!r}e0"


def _number(words: DialectWords, column: str) -> str:
    """Return a quoted column as float64."""
    return f"CAST({column} AS {words.number})"


def _quoter(words: DialectWords) -> Callable[[str], str]:
    """Return the function that quotes an identifier, so that any name is a name and nothing else."""

    def quote(name: str) -> str:
        """Return a name in quotes, or raise `InputError` for one that no column can have."""
        is_escaped = words.has_backslash and words.number == "FLOAT64"  # a backslash escapes in names of BigQuery
        if not name or "\0" in name or (is_escaped and ("\\" in name or "`" in name)):
            raise InputError(
                f"Expected the name of a table or column, got {shorten_repr(name)}. Try a view with plain names.",
                code="identifier",
            )
        return words.quote + name.replace(words.quote, 2 * words.quote) + words.quote

    return quote


def _literal(words: DialectWords, value: str | int) -> str:
    """Return a value as a literal."""
    if not isinstance(value, str):
        return str(value).upper()  # TRUE and FALSE, or a number
    if words.has_backslash:
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\r", "\\r") + "'"
    return "'" + value.replace("'", "''") + "'"
