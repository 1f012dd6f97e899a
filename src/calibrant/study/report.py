"""The report of a study: the pieces of a page, made of numbers that exist already."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from markupsafe import Markup

from calibrant.catalog import CALIBRATORS, LOSSES
from calibrant.html import (
    BAR_READING,
    CURVE_READING,
    INFINITE,
    Section,
    bar_diagram,
    coded,
    curve_diagram,
    facts,
    figure,
    folded,
    joined,
    listed,
    note,
    page,
    readable,
    render,
    table,
    term,
    typeset,
)
from calibrant.metrics import About, in_words
from calibrant.study.config import Recipe, Run, Study
from calibrant.study.drawing import Drawing
from calibrant.study.learning import drawings
from calibrant.study.rows import Diagram, Measured, diagrams_of, shown
from calibrant.study.store import Store
from calibrant.study.sweeps import sweeps
from calibrant.study.tables import Cell, Table, central

BINS = 15
SMALL = 2.6  # inches, where there are many
SAID = 4  # places, or losses, or metrics, that are told one by one
MAX_OTHER_DIAGRAMS = 24  # after calibrators beside the one that is drawn first
MANY = 30  # pairs of curves, before and after, of which all are not drawn once more as bars
LONG = 12  # rows of a table from which not all metrics stand open

SHIFT_READING = note(
    "The networks and calibrators of above on other test sets: corrupted images, whose labels still "
    "hold, and other data sets, of which one wants to know only that they are foreign. ood_ tells how well a score of "
    "the logits divides the test set from the shift: AUROC 50 % is chance."
)
SWEPT_READING = note("Points are means over seeds, shaded from the least to the greatest.")
LEARNED_READING = note(
    "Curves are means over seeds, shaded from the least to the greatest; histograms hold the examples of all seeds."
)

LESS = "On the training data, by correct and wrong predictions, and by bin of confidence"


def study_report(
    study: Study, tables: Sequence[Table], measured: Sequence[Measured], store: Store, command: str
) -> str:
    """Return a study's HTML report: what was found, the tables, reliability diagrams before and after."""
    trained = [one.run for one in measured if isinstance(one.run, Run)]
    seconds = sum(store.record(run)["facts"]["seconds"] for run in trained)
    curves, bars = _diagrams(study, measured)
    sections = [
        Section("Results", _other_places(tables) + result_tables(study, tables)),
        Section("Confidence against accuracy", curves + CURVE_READING + bars),
    ]
    if len({row[:2] for row in tables[0].rows}) > 1:
        told = _first_of(tables)
        sections.insert(1, Section("Networks side by side", joined(side_by_side(t) for t in told)))
    if shifted := [t for t in tables if t.shift]:
        sections.append(Section("Under shift", SHIFT_READING + _shifted(shifted)))
    swept = sweeps(study, (row for one in measured for row in one.rows))
    if against := _figures(swept, SWEPT_READING, "The other metrics"):
        sections.append(Section("Against a parameter", against))
    if learned := _figures(drawings(study, store), LEARNED_READING, LESS):
        sections.append(Section("How they learned", learned))
    ran = {"study": f"{study.name}: {len(trained)} networks, {seconds / 60:.1f} minutes of training"}
    ran |= _recipes(study, trained) if trained else {"study": f"{study.name}: {len(measured)} sets of predictions"}
    return page(
        study.title or study.name, findings(tables), sections, ran | facts(command), kicker="A calibration study"
    )


def _other_places(tables: Sequence[Table]) -> Markup:
    """What was found where the opening does not say it."""
    rest = by_place(_judged_by(tables))
    rest = rest[_first(len(rest)) :]
    if not rest:
        return Markup()
    told = joined(render("<dt>{}</dt><dd>{}</dd>", typeset(place), typeset(words)) for place, words in rest)
    return folded(f"What was found in {len(rest)} more places", render('<dl class="answers">{}</dl>', told))


def _recipes(study: Study, runs: Sequence[Run]) -> dict[str, str]:
    """Say each recipe that trained, and what: all of the first, of the others what differs from it."""
    trained: dict[Recipe, dict[str, None]] = {}
    for run in runs:
        loss, network, dataset = map(study.label, (run.loss, run.network, run.dataset))
        trained.setdefault(run.recipe, {})[f"{loss} of {network} on {dataset}"] = None
    first = vars(next(iter(trained)))
    told = {"recipe": ", ".join(f"{key} {value}" for key, value in first.items() if key != "averaged")}
    for i, (recipe, what) in enumerate(list(trained.items())[1:], 2):
        apart = ", ".join(f"{key} {value}" for key, value in vars(recipe).items() if value != first[key])
        some = listed(list(what)) if len(what) <= SAID else f"{len(what)} kinds of networks, such as {next(iter(what))}"
        told[f"recipe {i}"] = f"{apart}: {some}"
    return told


def result_cell(study: Study, tables: Sequence[Table]) -> str:
    """Return what a notebook shows of a study."""
    return readable(result_tables(study, tables))


def result_tables(study: Study, tables: Sequence[Table]) -> Markup:
    """Return the tables of a study without those of its shifts, and what stands in them."""
    made = [(_study_table(t), len(t.rows)) for t in tables if not t.shift]
    first = SAID if any(rows > LONG for _, rows in made) else len(made)
    rest = joined(table for table, _ in made[first:])
    more = folded("The other metrics", rest) if rest else Markup()
    return joined([*(table for table, _ in made[:first]), more, _legend(study, tables)])


def _first_of(tables: Sequence[Table]) -> list[Table]:
    """The tables of the first metric, of NLL and of ECE: how good the networks are, and how true."""
    here = [t for t in tables if not t.shift]
    named = [t for t in here if family(t.metric) == "nll"]
    return list({t.metric: t for t in (here[0], *named, _judged_by(tables))}.values())


def finding(made: Sequence[Table]) -> str:
    """Say in words what a study found, a line for each place."""
    return "\n".join(findings(made))


def _judged_by(made: Sequence[Table]) -> Table:
    here = {t.metric: t for t in made if not t.shift}
    return here[central(here)] if here else made[0]


def findings(made: Sequence[Table]) -> list[str]:
    """Say in words what a study found, place by place: who is over- and underconfident, and what is best."""
    table = _judged_by(made)
    places = list(dict.fromkeys(row[:2] for row in table.rows))
    if len(places) == 1:
        return [" ".join(_finding(table, table.rows))]
    first, left = _first(len(places)), len(places) - _first(len(places))
    parts = [f"{place}: {words}" for place, words in by_place(table)[:first]]
    return [*parts, f"So it goes on for {left} more, place by place."] if left else parts


def _first(places: int) -> int:
    """How many are told one by one: `SAID`, and not all but one."""
    return SAID if places > SAID + 1 else places


def by_place(table: Table) -> list[tuple[str, str]]:
    """Say of every place what was found there."""
    places = dict.fromkeys(row[:2] for row in table.rows)
    told = (" ".join(_finding(table, [row for row in table.rows if row[:2] == place])) for place in places)
    return [(f"{network} on {dataset}", words) for (dataset, network), words in zip(places, told, strict=True)]


def _finding(table: Table, rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Say what was found in one place: numbers of different data sets are not compared."""
    raw = "Identity" if "Identity" in table.columns else table.columns[0]
    sentences = _ways(table, rows)
    for label, columns in (("Without a calibrator", [raw]), ("With the best calibrator", table.columns)):
        known = {(row, column): table.cells[row, column] for row in rows for column in columns}
        best = table.about.best([cell.mean for cell in known.values()])
        for (row, column), cell in known.items():
            if cell.mean == best:
                by = "" if column == "Identity" else f" followed by {column}"
                most = "highest" if table.about.higher_is_better else "lowest"
                value = replace(cell, mark="", letters="").text(table.about)
                sentences.append(f"{label}, {row[2]}{by} has the {most} {in_words(table.metric)}: {value}.")
                break
    return sentences


def _ways(table: Table, rows: Sequence[tuple[str, ...]]) -> list[str]:
    scaled = next((c for c in table.columns if family(c) == "Temperature"), None)
    at = {row[2]: table.cells[row, scaled].temperature for row in rows} if scaled else {}
    sentences: list[str] = []
    for way, found in (
        ("overconfident", {loss: t for loss, t in at.items() if t > 1.05}),
        ("underconfident", {loss: t for loss, t in at.items() if t < 0.95}),
    ):
        who = "Networks trained with " if table.trained_here else ""
        if len(found) > SAID:
            least, most = min(found, key=found.__getitem__), max(found, key=found.__getitem__)
            some = f"{'All' if len(found) == len(at) else f'{len(found)} of'} {len(at)}"
            left = f"ways to train left networks {way}" if who else f"models came out {way}"
            low, high = f"{found[least]:.2f}", f"{found[most]:.2f}"
            reach = f"s from {low} ({least}) to {high} ({most})" if low != high else f" {low}"
            sentences.append(f"{some} {left}: temperature{reach}.")
        elif found:
            names = listed([f"{loss} (T = {t:.2f})" for loss, t in found.items()])
            sentences.append(f"{who}{names} came out {way}.")
    return sentences


def family(text: str) -> str:
    """Return a method's name without its arguments."""
    return text.partition("(")[0]


def _study_table(t: Table) -> Markup:
    places = [f"{network} on {dataset}" for dataset, network, _ in t.rows]
    several = len(set(places)) > 1
    groups = {i: place for i, place in enumerate(places) if several and (i == 0 or place != places[i - 1])}
    rows = [
        [coded(LOSSES.called(row[2]), row[2]), *(_beside(t.cells[row, c], t.about) for c in t.columns)]
        for row in t.rows
    ]
    best = [[t.cells[row, c].best for c in t.columns] for row in t.rows]
    head = [t.side, *(coded(CALIBRATORS.called(c), c) for c in t.columns)]
    made = table(head, rows, best=best, caption=t.heading, named=True, groups=groups)
    notes = joined(map(note, t.own_notes))
    words = in_words(t.metric)
    words = words[:1].upper() + words[1:] + (f" on {t.shift}" if t.shift else "")
    return joined([_metric_heading(words, t.metric), made, notes])


def _metric_heading(words: str, metric: str) -> Markup:
    return render("<h3>{}<code>{}</code></h3>", typeset(words), typeset(metric))


def _beside(cell: Cell, about: About) -> Markup:
    """Return our number and, small below it, what the calibrator learned and the paper's number."""
    value, opening, learned = cell.text(about).partition(" (")
    learned, _, mark = learned.rpartition(")")
    ours = _kept_together("\N{EN DASH}" if value == "nan" else value + mark)
    small = [f"({learned})"] if opening else []
    small += [f"paper {cell.printed.text(about)}"] if cell.printed else []
    return ours + joined(render("<small>{}</small>", typeset(line)) for line in small)


def _kept_together(value: str) -> Markup:
    """Let a line end before the deviation, and nowhere else."""
    if value == "inf":
        return term(value, INFINITE)
    mean, sign, rest = value.partition(" ± ")
    if not sign:
        return typeset(value)
    return render("<span>{}</span> <span>{}</span>", typeset(mean), typeset(f"± {rest}"))


def side_by_side(t: Table) -> Markup:
    """Return a table of the losses against the networks: without a calibrator and, small below it, with the best."""
    places = list(dict.fromkeys(row[:2] for row in t.rows))
    names = list(dict.fromkeys(row[2] for row in t.rows))
    raw = "Identity" if "Identity" in t.columns else t.columns[0]
    rows: list[list[str]] = []
    best: list[list[bool]] = []
    for name in names:
        cells = [_with_best(t, (*place, name), raw) for place in places]
        rows.append([coded(LOSSES.called(name), name), *(cell for cell, _ in cells)])
        best.append([there for _, there in cells])
    head = [t.side, *(f"{network} on {dataset}" for dataset, network in places)]
    made = table(head, rows, best=best, caption=f"{t.heading}, side by side", named=True)
    reading = note("Without a calibrator and, below, with the best of them; bold is the best of a column.")
    return joined([_metric_heading(in_words(t.metric), t.metric), made, reading])


def _with_best(t: Table, row: tuple[str, ...], raw: str) -> tuple[str, bool]:
    """A cell of the losses against the networks, and whether it is the best without a calibrator."""
    if (row, raw) not in t.cells:
        return "\N{EN DASH}", False
    known = {column: t.cells[row, column] for column in t.columns}
    least = t.about.best([cell.mean for cell in known.values()])
    by = next((column for column, cell in known.items() if cell.mean == least), raw)
    there = t.about.best([cell.mean for (r, c), cell in t.cells.items() if c == raw and r[:2] == row[:2]])
    ours = _kept_together(replace(known[raw], mark="", letters="", temperature=math.nan, learned={}).text(t.about))
    below = f"{t.about.text(known[by].mean)} by {by}" if by != raw else "the best as it is"
    return ours + render("<small>{}</small>", typeset(below)), known[raw].mean == there


def _legend(study: Study, made: Sequence[Table]) -> Markup:
    tested = " ".join(dict.fromkeys(t.tested for t in made if t.tested))
    seeds = max((len(cell.values) for t in made for cell in t.cells.values()), default=1)
    words = f"Mean ± standard deviation over {seeds} seeds" if seeds > 1 else "One seed"
    return note(
        f"{words}, judged on test examples that no fit has seen; in brackets the mean temperature, and what else a "
        f"calibrator learned; the best of each table is bold. {tested}"
    )


def _shifted(made: Sequence[Table]) -> Markup:
    """Return the tables of every shift, the first metric and detection of each open."""
    body = Markup()
    for shift in dict.fromkeys(t.shift for t in made):
        here = [t for t in made if t.shift == shift]
        first = {next((t.metric for t in here if family(t.metric) == name), "") for name in ("ece", "ood_auroc")}
        body += joined(_study_table(t) for t in here if t.metric in first)
        rest = joined(_study_table(t) for t in here if t.metric not in first)
        body += folded(f"The other metrics on {shift}", rest)
    return body


def _figures(made: Iterable[Drawing], reading: Markup, rest: str) -> Markup:
    """Return the main drawings with what is to be said of them, and the others folded; nothing if there are none."""
    shown = [(drawing.main, _drawn(drawing)) for drawing in made]
    first, more = (joined(part for main, part in shown if main is wanted) for wanted in (True, False))
    grid = '<div class="figures wide">{}</div>'
    parts = [render(grid, first), reading] if first else []
    parts += [folded(rest, render(grid, more))] if more else []
    return joined(parts)


def _drawn(drawing: Drawing) -> Markup:
    return figure(lambda f: drawing.draw(f.add_subplot()), drawing.words, caption=drawing.title, size=(4.2, 2.9))


def _diagrams(study: Study, measured: Sequence[Measured]) -> tuple[Markup, Markup]:
    """Draw the events of all seeds together, before and after each calibrator; in bars, too, unless they are many."""
    places: dict[str, dict[str, list[Measured]]] = {}
    for one in measured:
        dataset, network, loss = study.names(one.run)
        places.setdefault(f"{network} on {dataset}", {}).setdefault(loss, []).append(one)
    curves, bars, others, many = Markup(), Markup(), 0, sum(map(len, places.values())) > MANY
    first = shown(study).text
    for i, (place, groups) in enumerate(places.items()):
        where = f", {place}" if len(places) > 1 else ""
        parts = [(f"{loss}{where}", d) for loss, runs in groups.items() for d in diagrams_of(runs, BINS)]
        main = [(title, d) for title, d in parts if d.calibrator in ("", first)]
        made = _curves(main)
        curves += made if i < SAID else folded(place, made)
        rest = [part for part in parts if part not in main]
        others += len(rest)
        if rest and others <= MAX_OTHER_DIAGRAMS:
            curves += folded(f"After the other calibrators{where}", _curves(rest))
        if not many:
            bars += joined(
                bar_diagram(f"{title}, {d.when}, in bars", d.events.equal_width(BINS), d.ece, SMALL)
                for title, d in main
            )
    if others > MAX_OTHER_DIAGRAMS:
        drawn = '<p class="note"><code>calibrant figures {}</code> draws the diagrams after all calibrators.</p>'
        curves += render(drawn, typeset(study.name))
    if many:
        reading = '<p class="note"><code>calibrant figures {}</code> draws classical bars.</p>'
        return curves, render(reading, typeset(study.name))
    return curves, folded("The same in classical bars", render('<div class="figures">{}</div>', bars + BAR_READING))


def _curves(parts: Iterable[tuple[str, Diagram]]) -> Markup:
    made = joined(
        curve_diagram(f"{title}, {d.when}", d.events.ties, d.events.equal_width(BINS), d.ece, SMALL)
        for title, d in parts
    )
    return render('<div class="figures">{}</div>', made)
