"""The pieces that reports share, and the report of a study: made from numbers that exist already."""

import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import torch
from markupsafe import Markup
from matplotlib.figure import Figure

from calibrant import __version__
from calibrant._bins import Bins, Events, Ties
from calibrant._types import InputError
from calibrant.assess import fit
from calibrant.metrics.curves import corp_of
from calibrant.plots import confidence_histogram, reliability, reliability_curve
from calibrant.report.html import Section, figure, folded, page, table, typeset
from calibrant.report.words import finding as finding
from calibrant.report.words import percent
from calibrant.study.config import Study
from calibrant.study.learning import Drawing, drawings
from calibrant.study.published import study_tables
from calibrant.study.store import Store
from calibrant.study.tables import Cell, Table, family

BINS, DRAWS = 15, 200
SMALL = 2.6  # inches, where there are many

CURVE_READING = (
    '<p class="note">The line shows how often predictions of a given confidence were right (isotonic regression, so '
    "that no bins are chosen); on the dashed diagonal they would be exactly right. The gray band is where the line of "
    "a calibrated model lies 90 % of the time: only where the line leaves it, in red, is evidence. Below: "
    "where the confidences are.</p>"
)
BAR_READING = (
    '<p class="note">Bars show how often the predictions of a bin were right. The red part is the gap to the mean '
    "confidence of the bin; fainter bars hold fewer examples.</p>"
)


SHIFT_READING = (
    '<p class="note">The networks and calibrators of above on other test sets: corrupted images, whose labels still '
    "hold, and other data sets, of which one wants to know only that they are foreign. ood_ tells how well a score of "
    "the logits divides the test set from the shift: AUROC 50 % is chance.</p>"
)
LEARNED_READING = (
    '<p class="note">Curves are means over seeds, shaded from the least to the greatest; histograms hold the examples '
    "of all seeds.</p>"
)


def study_report(study: Study, rows: Sequence[dict[str, Any]], store: Store, command: str) -> str:
    """Return a study's HTML report: what was found, the tables, reliability diagrams before and after."""
    if not rows:
        raise InputError(f"nothing to report: no run of study {study.name!r} is done")
    made = study_tables(study, rows)
    done = [run for run in study.runs() if run in store]
    seconds = sum(store.record(run)["facts"]["seconds"] for run in done)
    curves, bars = _study_diagrams(study, store)
    sections = [
        Section("Results", "".join(_study_table(t) for t in made if not t.shift) + _legend(study, made)),
        Section("Confidence against accuracy", curves + CURVE_READING + folded("The same in classical bars", bars)),
    ]
    if shifted := [t for t in made if t.shift]:
        sections.append(Section("Under shift", SHIFT_READING + _shifted(shifted)))
    if learned := _learned(study, store):
        sections.append(Section("How they learned", learned))
    ran = {
        "study": f"{study.name}: {len(done)} networks, {seconds / 60:.1f} minutes of training",
        "recipe": ", ".join(f"{key} {value}" for key, value in vars(study.grids[0].recipe).items()),
    }
    return page(study.title or study.name, finding(made), sections, ran | facts(command), kicker="A calibration study")


def curve_diagram(title: str, ties: Ties, bins: Bins, note: str = "", width: float = 4.0) -> str:
    """Return a CORP reliability curve with its band, above the histogram of the confidences."""
    curve = corp_of(ties, 0.90, DRAWS, 0)

    def draw(drawing: Figure) -> None:
        upper, lower = drawing.subplots(2, 1, height_ratios=[5, 1], sharex=True)
        reliability_curve(curve, ax=upper)
        confidence_histogram(bins, ax=lower)
        upper.set_xlabel("")
        lower.set_ylabel("examples")

    return figure(
        draw,
        _in_words(f"Reliability curve of {title}", bins),
        caption=_caption(title, note),
        size=(width, 1.25 * width),
    )


def bar_diagram(title: str, bins: Bins, note: str = "", width: float = 4.0) -> str:
    """Return a classical reliability diagram of bars."""
    words = _in_words(f"Reliability diagram of {title}", bins)

    def draw(drawing: Figure) -> None:
        reliability(bins, ax=drawing.add_subplot())

    return figure(draw, words, caption=_caption(title, note), size=(width, width))


def facts(command: str) -> dict[str, str]:
    """Say what made the report."""
    return {
        "command": command,
        "versions": f"calibrant {__version__}, torch {torch.__version__}, Python {platform.python_version()}",
        "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


def _in_words(what: str, bins: Bins) -> str:
    full = bins.count > 0
    parts = [
        f"{100 * float(low):.0f} to {100 * float(high):.0f} %: right {percent(float(accuracy), 1)}, "
        f"said {percent(float(confidence), 1)}, {int(count):,} examples"
        for low, high, accuracy, confidence, count in zip(
            bins.edges[:-1][full],
            bins.edges[1:][full],
            bins.accuracy[full],
            bins.confidence[full],
            bins.count[full],
            strict=True,
        )
    ]
    error, signed = float((bins.weight * bins.gap.abs()).sum()), float((bins.weight[full] * bins.gap[full]).sum())
    way = "below" if signed < 0 else "above"
    return f"{what}: ECE {percent(error)}, accuracy on average {way} confidence. By confidence: {'; '.join(parts)}."


def _caption(title: str, note: str) -> Markup:
    words = typeset(title).replace("(", Markup("<wbr>("))
    return words + (Markup("<small>") + typeset(note) + Markup("</small>") if note else "")


def _study_table(t: Table) -> str:
    rows = [[t.name(row), *(_beside(t.cells[row, c], t.metric) for c in t.columns)] for row in t.rows]
    best = [[t.cells[row, c].best for c in t.columns] for row in t.rows]
    made = table(["trained with", *t.columns], rows, best=best, caption=t.heading)
    return f"<h3>{t.heading}</h3>{made}" + (f'<p class="note">{typeset(t.beside)}</p>' if t.beside else "")


def _beside(cell: Cell, metric: str) -> str:
    """Return our number and, small below it, the paper's."""
    ours = typeset(cell.text(metric))
    if cell.printed is None:
        return ours
    return ours + Markup("<small>paper ") + typeset(cell.printed.text(metric)) + Markup("</small>")


def _legend(study: Study, made: Sequence[Table]) -> str:
    tested = " ".join(dict.fromkeys(t.tested for t in made if t.tested))
    seeds = max(len(grid.seeds) for grid in study.grids)
    words = f"Mean ± standard deviation over {seeds} seeds" if seeds > 1 else "One seed"
    return (
        f'<p class="note">{words}, judged on test examples that no fit has seen; the mean temperature in brackets; the '
        f"best of each table is bold. {typeset(tested)}</p>"
    )


def _shifted(made: Sequence[Table]) -> str:
    """Return the tables of every shift, the first metric and detection of each open."""
    body = ""
    for shift in dict.fromkeys(t.shift for t in made):
        here = [t for t in made if t.shift == shift]
        first = {next((t.metric for t in here if family(t.metric) == name), "") for name in ("ece", "ood_auroc")}
        body += "".join(_study_table(t) for t in here if t.metric in first)
        rest = "".join(_study_table(t) for t in here if t.metric not in first)
        body += folded(f"The other metrics on {shift}", rest)
    return body


def _learned(study: Study, store: Store) -> str:
    shown = [(drawing.main, _drawn(drawing)) for drawing in drawings(study, store)]
    first, more = ("".join(part for main, part in shown if main is wanted) for wanted in (True, False))
    rest = "On the training data, by correct and wrong predictions, and by bin of confidence"
    return (f'<div class="figures wide">{first}</div>{LEARNED_READING}' if first else "") + (
        folded(rest, f'<div class="figures wide">{more}</div>') if more else ""
    )


def _drawn(drawing: Drawing) -> str:
    return figure(lambda f: drawing.draw(f.add_subplot()), drawing.words, caption=drawing.title, size=(4.2, 2.9))


def _study_diagrams(study: Study, store: Store) -> tuple[str, str]:
    after = next((c for c in study.calibrators if c.startswith("Temperature")), study.calibrators[-1])
    groups: dict[tuple[str, str, str], list[Any]] = {}
    for run in study.runs():
        if run in store:
            groups.setdefault((run.dataset, run.network, run.loss), []).append(run)
    curves = bars = ""
    for (_, _, loss), runs in groups.items():
        tests = [store.get(run, "test").double() for run in runs]
        for name in dict.fromkeys(("Identity", after)):
            logits = [fit(name, store.get(run, "val"))(t.logits) for run, t in zip(runs, tests, strict=True)]
            events = Events.top(torch.cat(logits), torch.cat([t.labels for t in tests]))
            bins = Bins.equal_width(BINS, events.confidence, events.correct)
            title = f"{study.label('losses', loss)}, {'before' if name == 'Identity' else f'after {name}'}"
            note = f"ECE {percent(float((bins.weight * bins.gap.abs()).sum()))}"
            curves += curve_diagram(title, events.ties, bins, note, SMALL)
            bars += bar_diagram(title, bins, note, SMALL)
    return tuple(f'<div class="figures">{part}</div>' for part in (curves, bars + BAR_READING))  # pyright: ignore
