"""What the reports say: each section is made from numbers that exist already; nothing is trained or fitted here."""

import math
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import torch

from calibrant import __version__
from calibrant._bins import Bins, top_label
from calibrant._types import InputError
from calibrant.assess import Assessment, fit
from calibrant.plots import reliability
from calibrant.predictions import Predictions
from calibrant.report.html import Section, figure, page, table
from calibrant.study.config import Study
from calibrant.study.store import Store
from calibrant.study.tables import HIGHER_IS_BETTER, Table, family, heading, number, tables

BINS = 15


def study_report(study: Study, rows: Sequence[dict[str, Any]], store: Store, command: str) -> str:
    """Return a study's HTML report: what was found, the tables, reliability diagrams before and after."""
    if not rows:
        raise InputError(f"nothing to report: no run of study {study.name!r} is done")
    made = tables(rows)
    sections = [Section("Results", "".join(map(_study_table, made)) + _legend(study))]
    sections.append(Section("Confidence against accuracy", _study_diagrams(study, store)))
    done = [run for run in study.runs() if run in store]
    seconds = sum(store.record(run)["facts"]["seconds"] for run in done)
    facts = {
        "study": f"{study.name}: {len(done)} networks, {seconds / 60:.1f} minutes of training",
        "recipe": ", ".join(f"{key} {value}" for key, value in vars(study.recipe).items()),
    } | _facts(command)
    return page(study.title or study.name, finding(made), sections, facts)


def assessment_report(found: Assessment, command: str, files: dict[str, str]) -> str:
    """Return the HTML report of calibrators on somebody's own predictions."""
    metrics = list(next(iter(found.values.values())))
    best = {
        m: (max if family(m) in HIGHER_IS_BETTER else min)(values[m] for values in found.values.values())
        for m in metrics
    }
    body = table(
        ["calibrator", *map(heading, metrics)],
        [[name, *(number(m, values[m]) for m in metrics)] for name, values in found.values.items()],
        best=[[values[m] == best[m] for m in metrics] for values in found.values.values()],
    )
    note = f'<p class="note">{found.how} The best value of a column is bold.</p>'
    diagrams = "".join(
        _diagram(name, Predictions(logits, found.truth.labels, found.truth.weights))
        for name, logits in found.logits.items()
    )
    sections = [
        Section("Every calibrator", body + note),
        Section("Confidence against accuracy", f'<div class="figures">{diagrams}</div>' + _READING),
    ]
    return page("Are these probabilities true?", verdict(found), sections, files | _facts(command))


def verdict(found: Assessment) -> str:
    """Say in words which way the predictions are off, and what the chosen calibrator does about it."""
    before = found.logits.get("Identity", found.truth.logits)
    confidence, correct = top_label(before, found.truth.labels)
    gap = float((confidence - correct).mean())
    way = "overconfident" if gap > 0 else "underconfident"
    error = float((confidence - correct).std()) / math.sqrt(len(correct)) if len(correct) > 1 else math.inf
    sure = "" if abs(gap) > 2 * error else ", which chance alone could explain"
    text = (
        f"On {len(correct):,} examples the model is right {100 * float(correct.mean()):.1f} % of the time and says "
        f"{100 * float(confidence.mean()):.1f} % on average: it is {way} by {100 * abs(gap):.1f} points{sure}."
    )
    values = found.values[found.chosen]
    raw = found.values.get("Identity")
    if found.chosen == "Identity":
        return text + " No calibrator did better on held-out data than leaving the predictions alone."
    changes = [
        f"{heading(m)} from {number(m, raw[m])} to {number(m, values[m])}" for m in ("nll", "ece") if raw and m in raw
    ]
    after = f" It changes {' and '.join(changes)}." if changes else ""
    return f"{text} Of the calibrators tried, {found.chosen} is the one to use: lowest cross-fitted NLL.{after}"


def finding(made: Sequence[Table]) -> str:
    """Say in words what a study found: who is over- and underconfident, and what is best before and after."""
    chosen = next((t for t in made if family(t.metric) == "ece"), made[0])
    raw, sentences = "Identity" if "Identity" in chosen.columns else chosen.columns[0], list[str]()
    scaled = next((c for c in chosen.columns if c == "Temperature"), None)
    if scaled:
        at = {row: chosen.cells[row, scaled].temperature for row in chosen.rows}
        for way, names in (
            ("overconfident", [f"{row[2]} (T = {t:.2f})" for row, t in at.items() if t > 1.05]),
            ("underconfident", [f"{row[2]} (T = {t:.2f})" for row, t in at.items() if t < 0.95]),
        ):
            if names:
                sentences.append(f"Networks trained with {_and(names)} came out {way}.")
    for label, columns in (("Without a calibrator", [raw]), ("With the best calibrator", chosen.columns)):
        (row, column), cell = min(
            (item for item in chosen.cells.items() if item[0][1] in columns), key=lambda item: item[1].mean
        )
        by = "" if column == "Identity" else f" followed by {column}"
        sentences.append(f"{label}, {row[2]}{by} has the lowest {heading(chosen.metric)}: {cell.text(chosen.metric)}.")
    return " ".join(sentences)


_READING = (
    '<p class="note">Bars show how often predictions of a given confidence were right; on the dashed diagonal they '
    "would be exactly right. The red part is the gap to the mean confidence of the bin; fainter bars hold fewer "
    "examples.</p>"
)


def _study_table(t: Table) -> str:
    rows = [[t.name(row), *(t.cells[row, c].text(t.metric) for c in t.columns)] for row in t.rows]
    best = [[t.cells[row, c].best for c in t.columns] for row in t.rows]
    return f"<h3>{t.heading}</h3>" + table(["trained with", *t.columns], rows, best=best)


def _legend(study: Study) -> str:
    seeds = f"Mean ± standard deviation over {len(study.seeds)} seeds" if len(study.seeds) > 1 else "One seed"
    return (
        f'<p class="note">{seeds}, judged on test examples that no fit has seen; the mean temperature in brackets; the '
        "lowest of each table is bold.</p>"
    )


def _study_diagrams(study: Study, store: Store) -> str:
    after = next((c for c in study.calibrators if c.startswith("Temperature")), study.calibrators[-1])
    groups: dict[tuple[str, str, str], list[Any]] = {}
    for run in study.runs():
        if run in store:
            groups.setdefault((run.dataset, run.network, run.loss), []).append(run)
    parts = ""
    for (_, _, loss), runs in groups.items():
        label = study.label("losses", loss)
        for name in ("Identity", after):
            tests = [store.get(run, "test").double() for run in runs]
            logits = [fit(name, store.get(run, "val"))(t.logits) for run, t in zip(runs, tests, strict=True)]
            pooled = Predictions(torch.cat(logits), torch.cat([t.labels for t in tests]))
            parts += _diagram(f"{label}, {'before' if name == 'Identity' else f'after {name}'}", pooled)
    return f'<div class="figures">{parts}</div>{_READING}'


def _diagram(title: str, predictions: Predictions) -> str:
    confidence, correct = top_label(*predictions)
    bins = Bins.equal_width(BINS, confidence, correct, predictions.weights)
    error = 100 * float((bins.weight * bins.gap.abs()).sum())
    way = "below" if float((bins.weight * bins.gap).sum()) < 0 else "above"
    words = (
        f"Reliability diagram of {title}: ECE {error:.1f} %, accuracy on average {way} confidence; "
        f"mean confidence {100 * float(confidence.mean()):.1f} %, accuracy {100 * float(correct.mean()):.1f} %."
    )
    return figure(lambda ax: reliability(bins, ax=ax), words, caption=f"{title}: ECE {error:.1f} %")


def _facts(command: str) -> dict[str, str]:
    return {
        "command": command,
        "versions": f"calibrant {__version__}, torch {torch.__version__}, Python {platform.python_version()}",
        "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
