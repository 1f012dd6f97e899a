"""Generated tables of known meaning are read correctly, or refused with the option that they need.

A part runs with the other tests, three seeds of 2,000 by `make torture`. `show(seed, index)` prints one table.
"""

import json
import re
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import softmax
from torture.dialects import IN_MEMORY, write
from torture.tables import Table, Truth, draw_table
from typer.testing import CliRunner

from calibrant import InputError, Predictions, metrics
from calibrant.cli import app

TABLES, QUICK, COMMANDS = 2000, 130, 60
READ = 0.95  # of the tables that a person understands
PRINTED = 4  # failures per kind
VERDICTS = ("read", "with options", "refused", "reported", "unfair", "misread", "crash")


@dataclass(frozen=True)
class Verdict:
    """The result for one table, and the line that explains it."""

    kind: str
    index: int
    result: str
    line: str = ""


# An independent reading of the truth


def mean(x: np.ndarray, weights: np.ndarray | None) -> float:
    """Return the weighted mean."""
    return float(np.average(x, weights=weights))


def expected_nll(t: Truth) -> float:
    """Return the mean negative log-likelihood."""
    with np.errstate(divide="ignore"):
        return mean(-np.log(t.probs[np.arange(len(t.labels)), t.labels]), t.weights)


def expected_brier(t: Truth) -> float:
    """Return the mean squared distance from the one-hot label."""
    return mean(((t.probs - np.eye(t.probs.shape[1])[t.labels]) ** 2).sum(1), t.weights)


def expected_accuracy(t: Truth) -> float:
    """Return the share of examples whose most probable class is right."""
    return mean(t.probs.argmax(1) == t.labels, t.weights)


def expected_ece(t: Truth) -> float:
    """Return the expected calibration error of 15 bins (lo, hi], of class 1 or of the most probable class."""
    c = t.probs[:, 1] if t.event else t.probs.max(1)
    hit = t.labels == 1 if t.event else t.probs.argmax(1) == t.labels
    w = np.ones(len(c)) if t.weights is None else t.weights
    bins = np.clip(np.ceil(c * 15), 1, 15).astype(int) - 1
    return float(np.abs(np.bincount(bins, w * (hit - c), 15)).sum() / w.sum())


def same_partition(a: Any, b: Any) -> bool:
    """Whether two lists of marks divide the rows alike."""
    pairs = set(zip(map(str, a), map(str, b), strict=True))
    return len(pairs) == len(set(map(str, a))) == len(set(map(str, b)))


def in_order_of_labels(t: Truth, names: tuple[str, ...]) -> Truth:
    """Return the truth with several labels per example in the order of the names."""
    assert t.label_names is not None
    assert t.examples is not None
    return t.take(np.lexsort([np.array([names.index(name) for name in t.label_names]), t.examples]))


def difference(p: Predictions, t: Truth) -> str:
    """Return how predictions differ from the truth, or nothing."""
    n, k = t.probs.shape
    if (len(p), p.k) != (n, k):
        return f"{len(p)} rows of {p.k} classes instead of {n} of {k}"
    if t.label_names is not None:
        if {*(p.group_names or ())} != {*t.label_names}:
            return f"labels {p.group_names}"
        t = in_order_of_labels(t, p.group_names or ())
    probs, labels, close = softmax(p.logits.astype(float), 1), p.labels, 2e-6
    if p.logits.dtype == np.float64:
        close = 1e-9
    rows = np.arange(n)
    if not np.allclose(probs[rows, labels], t.probs[rows, t.labels], rtol=0, atol=close):
        return "other probabilities of the true classes"
    if not np.allclose(np.sort(probs, 1), np.sort(t.probs, 1), rtol=0, atol=close):
        return "other probabilities"
    if t.event != isinstance(p.of, int):
        return f"the event is {p.of!r}"
    if t.event and not np.allclose(p.events.confidence, t.probs[:, 1], rtol=0, atol=close):
        return "the event is of the other class"
    if (p.weights is None) != (t.weights is None):
        return "weights where there are none" if t.weights is None else "no weights"
    if t.weights is not None and p.weights is not None and not np.allclose(p.weights, t.weights, rtol=1e-9):
        return "other weights"
    for name in ("clusters", "groups"):
        expected, value_read = getattr(t, name), getattr(p, name)
        if expected is not None and (value_read is None or not same_partition(value_read.tolist(), expected)):
            return f"other {name}"
    return measured_difference(p, t, close)


def measured_difference(p: Predictions, t: Truth, close: float) -> str:
    """Return which metric differs from its independent value, or nothing."""
    ordered = np.sort(t.probs, 1)
    expected = {"nll": expected_nll(t), "brier": expected_brier(t)}
    if bool((ordered[:, -1] - ordered[:, -2] > 1e-5).all()):
        expected["accuracy"] = expected_accuracy(t)
        scores = 15 * (t.probs[:, 1] if t.event else ordered[:, -1])
        if bool((np.abs(scores - scores.round()) > 1e-4).all()):
            expected["ece"] = expected_ece(t)
    for name, value in expected.items():
        value_read = float(getattr(metrics, name)(p))
        if value_read != pytest.approx(value, rel=max(close, 1e-8) * 50, abs=max(close, 1e-8) * 50):
            return f"{name} {value_read:.6g} instead of {value:.6g}"
    return ""


# A user who follows what refusals say


def names_option(message: str, option: str) -> bool:
    """Whether a refusal names an option, as the command line or as Python has it."""
    return bool(re.search(rf"--{option.replace('_', '-')}\b|\b{option}=", message))


@contextmanager
def written_table(table: Table) -> Generator[Any]:
    """Write a table into a folder of its own, and give what to read: its path, or the table in memory."""
    folder = Path(tempfile.mkdtemp())
    try:
        yield write(table.columns, folder, table.dialect)
    finally:
        shutil.rmtree(folder)


def read_with_options(table: Table, source: Any) -> tuple[Predictions | None, dict[str, Any], list[str]]:
    """Read a table, adding needed options as refusals name them; return options used and the refusals met."""
    options, refusals = dict(table.explicit_options), list[str]()
    left = dict(table.needed)
    while True:
        try:
            return Predictions.from_table(source, **options), options, refusals
        except InputError as error:
            refusals.append(re.sub(r"^/\S*/(?=table)", "", str(error)))
            named = next((option for option in left if names_option(refusals[-1], option)), None)
            if named is None:
                return None, options, refusals
            options[named] = left.pop(named)


def verdict_of(table: Table, p: Predictions | None, options: dict[str, Any], refusals: list[str]) -> tuple[str, str]:
    """Return the verdict and the line that explains it."""
    last = refusals[-1] if refusals else ""
    if any("\n" in line for line in refusals):
        return "crash", f"several lines: {last!r}"
    if p is None:
        return ("unfair" if table.fair else "refused"), last
    notes = " ".join(p.notes)
    reason = "nothing to read" if table.truth is None else difference(p, table.truth)
    if not reason and table.noted not in notes:
        return "misread", f"the notes do not name {table.noted!r}: {p.notes}"
    if not reason:
        return ("with options" if len(options) > len(table.explicit_options) else "read"), ""
    if any(word in notes and not difference(p, convention) for convention, word in table.conventions):
        return "reported", notes
    return "misread", f"{reason}; options {options}; notes {p.notes}"


def check_table(seed: int, index: int) -> Verdict:
    """Draw, write and read one table."""
    table = draw_table(seed, index)
    with written_table(table) as source:
        try:
            result, line = verdict_of(table, *read_with_options(table, source))
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            result, line = "crash", f"{type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})"
    return Verdict(table.kind, index, result, line[:600])


# Campaigns


def summary(verdicts: Sequence[Verdict], seed: int) -> str:
    """Return a table of verdicts by kind, and the first failures of each kind."""
    kinds = sorted({v.kind for v in verdicts})
    lines = [f"| seed {seed} | tables | {' | '.join(VERDICTS)} |", f"|---|---:|{'---:|' * len(VERDICTS)}"]
    for kind in [*kinds, "all"]:
        counts = Counter(v.result for v in verdicts if kind in (v.kind, "all"))
        lines.append(f"| {kind} | {counts.total()} | {' | '.join(str(counts[name]) for name in VERDICTS)} |")
    for kind in kinds:
        bad = [v for v in verdicts if v.kind == kind and v.result in ("unfair", "misread", "crash")]
        lines += [f"{v.result}: {kind} ({seed}, {v.index}): {v.line}" for v in bad[:PRINTED]]
    return "\n".join(lines)


def campaign(seed: int, tables: Sequence[int]) -> list[Verdict]:
    """Read the tables of a seed, and print the verdicts."""
    verdicts = [check_table(seed, index) for index in tables]
    print(summary(verdicts, seed))
    return verdicts


def check(verdicts: Sequence[Verdict]) -> None:
    """Assert that no table is misread or crashes, and that nearly all understandable tables are read."""
    counts = Counter(v.result for v in verdicts)
    assert (counts["misread"], counts["crash"]) == (0, 0)
    understood = counts["read"] + counts["with options"]
    assert understood >= READ * (understood + counts["unfair"])
    assert counts["refused"] > 0
    assert counts["read"] > 0.4 * len(verdicts)


def flags(options: dict[str, Any]) -> list[str]:
    """Spell options as the command line has them."""
    spelled: list[str] = []
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            spelled.append(flag)
        elif name == "na":
            spelled += [part for word in value for part in (flag, word)]
        else:
            spelled += [flag, ",".join(value) if isinstance(value, list) else str(value)]
    return spelled


def measured_by_command(path: Path, options: dict[str, Any]) -> tuple[int, dict[str, Any], str]:
    """Return the exit status, the values by metric, and the printed text."""
    out = path.with_name("numbers.json") if path.is_file() else path.parent / "numbers.json"
    command_result = CliRunner().invoke(app, ["measure", str(path), "--json", str(out), *flags(options)])
    if command_result.exception is not None and not isinstance(command_result.exception, InputError | SystemExit):
        raise command_result.exception
    status = 2 if isinstance(command_result.exception, InputError) else command_result.exit_code
    values_by_metric = json.loads(out.read_text())["results"] if out.exists() else []
    return (
        status,
        {row["metric"]: row["value"] for row in values_by_metric},
        f"{command_result.output} {command_result.exception}",
    )


def check_command(table: Table, path: Path) -> None:
    """Assert that the command line gives the numbers of the function, or status 2."""
    p, options, _ = read_with_options(table, path)
    status, values_by_metric, command_result = measured_by_command(path, options)
    assert status == (2 if p is None else 0), (table.kind, options, command_result)
    assert len(values_by_metric) > 0 or p is None
    for name in ("nll", *({"accuracy"} & values_by_metric.keys())):  # confidences have no accuracy
        if p is not None and np.isfinite(value := float(getattr(metrics, name)(p))):
            assert values_by_metric[name] == pytest.approx(value, rel=1e-9, abs=1e-12), (table.kind, name)


def show(seed: int, index: int) -> None:
    """Print one table and its verdict."""
    table = draw_table(seed, index)
    print(table.kind, table.dialect, f"options {table.explicit_options}, needed {table.needed}", sep="\n")
    for name, values in table.columns.items():
        print(f"{name!r}: {values[:6]}")
    print(check_table(seed, index))


def test_most_generated_tables_are_read_and_none_is_misread():
    check(campaign(0, range(QUICK)))


@pytest.mark.torture
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_generated_tables(seed: int):
    check(campaign(seed, range(TABLES)))


@pytest.mark.torture
def test_command_line_reads_generated_tables_alike():
    for index in range(COMMANDS):
        table = draw_table(4, index)
        if table.dialect.suffix in IN_MEMORY:
            continue
        with written_table(table) as path:
            check_command(table, path)


if __name__ == "__main__":
    show(int(sys.argv[1]), int(sys.argv[2]))
