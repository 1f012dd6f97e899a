"""Calibrators can be worse than none, on few examples or on predictions of other kinds of models.

The problems are tabular models, stated confidences of language models, simulated predictions of 50 and 100 examples,
and predictions of calibrated models with 2 to 100 classes, which no calibrator can improve. A calibrator hurts if its
log loss is more than .001 nats above that of the original probabilities; splits and draws of one model are averaged
first. Probabilities below 1e-7 are raised to 1e-7.
"""

from collections.abc import Iterator
from importlib.metadata import version

import numpy as np

from benchmarks._harness import US, Row, Size, markdown
from benchmarks._problems import REAL, Problem, calibrated, simulated, stated, tabular
from benchmarks.accuracy import contenders, judge, win_rates

TITLE = "Calibrators that hurt"
UNCALIBRATED = f"{US}, Identity"
MAIN = ["Auto", "Identity", "Temperature", "SmoothedTemperature", "StructuredVector", "StructuredMatrix", "Monotone"]
MAIN += ["Vector", "Isotonic", "HistogramBinning", "Platt", "Beta", "Quadratic"]


def run(size: Size) -> Iterator[Row]:
    """Fit and evaluate every calibrator on every problem, the smallest first."""
    spent: dict[tuple[str, int], float] = {}
    for problem in sorted(_problems(size), key=lambda problem: problem.n):
        yield from (row | {"version": version(US)} for row in judge(problem, contenders(size, MAIN), spent))


def _problems(size: Size) -> Iterator[Problem]:
    if size.name == "tiny":
        yield from list(simulated((50,), 1, test_rows=1000))[:1]
        yield from list(calibrated((100,), 1, test_rows=1000))[:2]
        return
    yield from tabular(3 if size.full else 1)
    yield from stated(2 if size.full else 10, repeats=2 if size.full else 1)
    yield from simulated((50, 100), 3 if size.full else 1)
    yield from calibrated(repeats=5 if size.full else 1)


def page(rows: list[Row]) -> str:
    """Return a table per kind of problem, and per number of examples where several are compared."""
    sections: dict[str, list[Row]] = {}
    for row in rows:
        kind = row["problem"].split(":")[0]
        if kind == "table":
            title = "Models of tables, two classes" if row["k"] == 2 else "Models of tables, more classes"
        else:
            title = f"{KINDS[kind]}, n = {row['n']:.0f}"
        sections.setdefault(title, []).append(row)
    measured = {str(row["version"]) for row in rows}
    text = [f"Calibrant {', '.join(sorted(measured))}.", ""]
    text += (
        [] if any("table" in title for title in sections) else [f"There are no files in {REAL.parent.name}/tabular."]
    )
    for title in sorted(sections, key=_order):
        text += [f"### {title}", "", _table(sections[title]), ""]
    return "\n".join(text)


KINDS = {
    "stated": "Stated confidences of language models",
    "simulated": "Simulated predictions",
    "calibrated": "Calibrated models, which nothing improves",
}


def _order(title: str) -> tuple[int, int]:
    kinds = ["Models", *KINDS.values()]
    number = title.rsplit(" ", 1)[-1]
    return next(i for i, kind in enumerate(kinds) if title.startswith(kind)), int(number) if number.isdigit() else 0


def _table(rows: list[Row]) -> str:
    """Return a row per calibrator that fitted every problem: means over pairs of data and model."""
    rows_by_pair: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        rows_by_pair.setdefault((row["problem"].split(" #")[0], row["contender"]), []).append(row)
    at = list(dict.fromkeys(name for name, _ in rows_by_pair))
    everyone = [
        contender
        for contender in dict.fromkeys(row["contender"] for row in rows)
        if all("nll" in row for name in at for row in rows_by_pair.get((name, contender), [{}]))
    ]
    numbers = ("nll", "ece", "seconds")
    mean = {
        (name, 0, contender): _means(rows_by_pair[name, contender], numbers) for name in at for contender in everyone
    }
    wins = win_rates([(name, 0) for name in at], everyone, mean)
    lines: list[list[object]] = []
    for contender in sorted(everyone, key=lambda contender: -wins[contender]):
        means = {key: np.array([mean[name, 0, contender][key] for name in at]) for key in numbers}
        excess = means["nll"] - np.array([mean[name, 0, UNCALIBRATED]["nll"] for name in at])
        lines.append(
            [
                f"**{contender}**" if contender.startswith(US) else contender,
                f"{wins[contender]:.3f}",
                _nats(means["nll"].mean()),
                f"{100 * (excess > 1e-3).mean():.1f}",
                f"{100 * (excess > 1e-2).mean():.1f}",
                _nats(excess.max(), "+"),
                f"{100 * means['ece'].mean():.2f}",
                f"{1e3 * np.median(means['seconds']):,.0f}",
            ]
        )
    head = ["calibrator", "wins", "log loss", "hurt % (> .001)", "hurt % (> .01)", "worst", "ECE15 %", "fit ms"]
    draws = len({row["problem"].rpartition(" #")[2] for row in rows})
    data = f"{len(at)} pairs of data and model, up to {draws} splits or draws each."
    return f"{data} Calibrators that failed on one of them are left out.\n\n{markdown(head, lines)}"


def _nats(x: float, sign: str = "") -> str:
    return f"{x:{sign}.4f}" if abs(x) < 1e4 else f"{x:{sign}.0e}"


def _means(rows: list[Row], numbers: tuple[str, ...]) -> Row:
    return {key: float(np.mean([row[key] for row in rows])) for key in numbers}
