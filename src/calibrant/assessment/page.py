"""The report on somebody's own predictions: read from top to bottom it answers whether they can be believed."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from markupsafe import Markup
from matplotlib.figure import Figure

from calibrant._text import name_text
from calibrant.assessment import plainly
from calibrant.assessment._cells import (
    change_cell,
    explained,
    name_cell,
    row_cell,
    share_text,
    sure_text,
    two_lines,
    value_cell,
)
from calibrant.assessment._controls import classes, temperature_alone, temperature_of, threshold
from calibrant.assessment._table import Findings, Table
from calibrant.assessment.words import (
    Answer,
    answers,
    at,
    best,
    cost,
    dependent,
    first_answers,
    fit_cautions,
    group_head,
    group_rows,
    headings,
    headline,
    p_text,
    percent,
    split,
)
from calibrant.catalog import CALIBRATORS
from calibrant.html import (
    INFINITE,
    Section,
    bar_diagram,
    both,
    coded,
    curve_diagram,
    facts,
    figure,
    folded,
    joined,
    note,
    page,
    readable,
    readings,
    render,
    table,
    typeset,
)
from calibrant.metrics import About, Curve, Difference
from calibrant.metrics.curves import risk_coverage_of
from calibrant.metrics.tables import thresholds_of
from calibrant.plots import risk_coverage
from calibrant.predictions import KINDS

CUTS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)  # thresholds
SHOWN = 15  # rows of the tables of classes and mistakes before the rest is folded away
MAX_ROWS = 1000  # of classes or groups on the page
KICKER = "Are these probabilities true?"

Tables = Mapping[str, Table]  # by what was done to the predictions: one, or before and after


def measurement_page(measured: Table, more: Mapping[str, str]) -> str:
    """Return the HTML report on predictions as they are."""
    tables = {"value": measured}
    sections = [
        Section("The answer", _answers(first_answers(measured), plainly.first_answers(measured))),
        Section(measured.event.against, _diagrams({"As they are": measured}) + temperature_alone(measured)),
        Section("The numbers", _numbers(tables, {})),
        *_groups(tables),
        *_classes(tables),
        *_coverage({"as they are": measured}),
        *_thresholds({"as they are": measured}),
    ]
    lead = f"{measured.n:,} {measured.among}, as they are: nothing was fitted. {_judged(measured)}"
    tiles = _tiles(measured, measured, measured["nll"].interval)
    opening = [lead.strip(), *measured.remarks]
    return page(headline(measured), opening, sections, _facts(more), kicker=KICKER, tiles=tiles)


def assessment_page(found: Findings, more: Mapping[str, str], saved: str | Path | None = None) -> str:
    """Return the HTML report of calibrators on somebody's own predictions."""
    before, after = found.before, found.after
    tables = _before_and_after(found)
    changes = {row.name: row for row in found.changes or ()}
    sections = [
        Section("The answer", _answers(answers(found), plainly.answers(found))),
        Section(
            before.event.against,
            _diagrams({_capital(name): each for name, each in tables.items()}) + temperature_of(found),
        ),
        *([Section("What it costs, and what is left", _split(found))] if split(found) else []),
        Section("The numbers", _numbers(tables, changes)),
        Section("Every calibrator", _ranking(found)),
        *_groups(tables),
        *_classes(tables),
        *_coverage(tables),
        *_thresholds(tables),
        *([Section("Confident mistakes", _mistakes(found))] if found.mistakes else []),
        Section("Use the calibrator", _use(found, saved, "command" in more)),
    ]
    lead = f"{before.n:,} {before.among}. {found.how} {_judged(before)}"
    tiles = _tiles(before, after, f"by {found.chosen_text}" if after is not before else "")
    opening = [lead.strip(), *before.remarks]
    return page(headline(before), opening, sections, _facts(more), kicker=KICKER, tiles=tiles)


def measurement_cell(measured: Table) -> str:
    """Return what a notebook shows."""
    return _cell_page(measured, first_answers(measured), {"value": measured}, {})


def assessment_cell(found: Findings) -> str:
    """Return what a notebook shows."""
    tables = {"before": found.before} | (
        {} if found.chosen == "Identity" else {f"after {found.chosen_text}": found.after}
    )
    changes = {row.name: row for row in found.changes or ()}
    return _cell_page(found.before, answers(found), tables, changes)


def _before_and_after(found: Findings) -> Tables:
    after = {} if found.chosen == "Identity" else {f"after {found.chosen_text}": found.after}
    return {"before": found.before} | after


def _cell_page(first: Table, told: Sequence[Answer], tables: Tables, changes: Mapping[str, Difference]) -> str:
    words = [render("<p><b>{}</b> {}</p>", question, typeset(text)) for question, text in told]
    words += [render("<p>{}</p>", typeset(remark)) for remark in first.remarks]
    title = render("<h3>{}</h3>", typeset(headline(first)))
    return readable(joined([title, *words, _numbers(tables, changes, plain_words=False)]))


def _facts(more: Mapping[str, str]) -> dict[str, str]:
    known = facts(more.get("command", "calibrant, from Python"))
    return {name: text for name, text in more.items() if name != "command"} | known


def _judged(measured: Table) -> str:
    counted = f" {dependent(measured)}" if measured.clusters else ""
    return ("" if measured.event.of == "top" else f"Judged is {measured.event.judged}.") + counted


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _tiles(before: Table, after: Table, by: str) -> Markup:
    chance, happened = f"chance explains up to {percent(after['noise_floor'].high)}", before.happened
    tiles = {
        "Says, on average": (percent(before.said, 1), f"mean {before.event.said}"),
        _capital(before.event.verb): (
            percent(happened.value, 1),
            f"[{100 * happened.low:.2f}, {100 * happened.high:.2f}]",
        ),
        "ECE, in %": (_moved(100 * before["ece"].value, 100 * after["ece"].value, 2), chance),
        "NLL": (_moved(before["nll"].value, after["nll"].value, 3), by),
    }
    shown = [
        render("<div><dt>{}</dt><dd>{}</dd></div>", explained(name), two_lines(big, small))
        for name, (big, small) in tiles.items()
    ]
    return render('<dl class="tiles">{}</dl>', joined(shown))


def _moved(before: float, after: float, digits: int) -> str:
    first, last = (About("").text(value, digits) for value in (before, after))
    return first if first == last else f"{first} → {last}"


def _answers(told: Sequence[Answer], plain: Sequence[str]) -> Markup:
    parts = [
        render("<dt>{}</dt><dd>{}</dd>", question, both(explained(text), typeset(simply)))
        for (question, text), simply in zip(told, plain, strict=True)
    ]
    return render('<dl class="answers">{}</dl>', joined(parts))


def _diagrams(tables: Tables) -> Markup:
    event = next(iter(tables.values())).event
    words = event.said, event.happened, f"{event.one}s"
    curve_reading, bar_reading = readings(words)
    curves = bars = Markup()
    for name, each in tables.items():
        error = f"ECE {percent(each['ece'].value)}, Kuiper {p_text(each['kuiper'].p_value)}"
        curves += curve_diagram(name, each.ties, each.table, error, words=words)
        bars += bar_diagram(name, each.table, error, words=words, level=None if each.clusters else each.level)
    if len(tables) == 1:
        return joined([_pair(curves + bars), curve_reading, bar_reading])
    classical = folded("The same in classical bars", _pair(bars) + bar_reading)
    return joined([_pair(curves), curve_reading, classical])


def _pair(figures: Markup) -> Markup:
    """Place figures side by side."""
    return render('<div class="pair">{}</div>', figures)


def _split(found: Findings) -> Markup:
    """NLL and Brier as refinement + calibration: what the chosen calibrator leaves, and what it takes off."""
    rows = [
        [
            found.before[part.name].about.heading(),
            row_cell(found.before[part.name]),
            row_cell(found.after[part.name]),
            change_cell(found.before[part.name].about, -part.difference, -part.high, -part.low),
            percent(-part.difference / part.first, 1),
        ]
        for part in split(found)
    ]
    head = ["", "score", "refinement", "calibration", "share"]
    reading = (
        f"The score is the sum of both. Refinement is what {found.chosen_text} leaves, which has not seen the examples "
        "that it is judged on; calibration is what it takes off, a lower bound on average (Berta et al. 2025), and its "
        f"share of the score. In brackets: {at(found.before.level)} intervals."
    )
    body = table(head, rows, caption="refinement and calibration")
    return joined([render("<p>{}</p>", typeset(cost(found))), body, note(reading)])


def _numbers(tables: Tables, changes: Mapping[str, Difference], *, plain_words: bool = True) -> Markup:
    """All rows, before and after, with everything that says how surely they are known."""
    first, pair = next(iter(tables.values())), len(tables) > 1
    rows: list[list[str]] = []
    for row in first:
        cells = [row_cell(each[row.name]) if row.name in each else "–" for each in tables.values()]
        change = changes.get(row.name)
        if pair:
            told = None if change is None else (change.difference, change.low, change.high)
            cells.append("" if told is None else change_cell(row.about, *told, sign=True))
        rows.append([name_cell(row, plain_words=plain_words), *cells])
    head = ["", *tables, *(["change"] if pair else [])]
    reading = f"In brackets: {at(first.level)} intervals."
    if pair:
        reading += " The change is measured on the same examples, which tells much smaller differences from chance "
        reading += "than comparing the two intervals."
    caption = "all numbers, before and after" if pair else "all numbers"
    return table(head, rows, caption=caption) + note(reading)


def _ranking(found: Findings) -> Markup:
    held, tables = found.held_out, list(found.tables.values())
    lowest = min((nll for nll in held.values() if not math.isnan(nll)), default=math.nan)
    names = [explained(text) for text in headings(found.after, found.shown)]
    head = ["calibrator", *([explained("held-out NLL")] if held else []), *names]
    rows: list[list[str]] = []
    bold: list[list[bool]] = []
    for (name, each), good in zip(found.tables.items(), best(tables, found.shown), strict=True):
        first = [value_cell(found.after["nll"].about, held[name])] if held else []
        rows.append(
            [
                coded(CALIBRATORS.called(name), name_text(name)),
                *first,
                *(value_cell(each[m].about, each[m].value) for m in found.shown),
            ]
        )
        bold.append([*([held[name] == lowest] if held else []), *good])
    why = (
        "The chosen one is marked: it has the lowest NLL on held-out folds of the fitting data. The other columns are "
        "measured on the judged data, which had no say in the choice"
        if held
        else "The chosen one is marked; the columns are measured on the judged data"
    )
    marked = [name == found.chosen for name in found.tables]
    body = table(head, rows, best=bold, marked=marked, caption="every calibrator")
    infinite = f" inf: {INFINITE}." if any(math.isinf(row.value) for each in tables for row in each) else ""
    cautions = [note(line) for line in fit_cautions(found)]
    return joined([body, note(f"{why}. The best value of a column is bold.{infinite}"), *cautions])


def _classes(tables: Tables) -> list[Section]:
    known = [each.classes for each in tables.values() if each.classes is not None]
    if not known or next(iter(tables.values())).names in KINDS:
        return []
    before = known[0]
    head = ["class", "examples", "is", "said to be", "right if predicted", "said if predicted", "ECE (%)"]
    rows: list[list[str]] = []
    for j in before.worst_first[:MAX_ROWS].tolist():
        row = [
            next(iter(tables.values())).name_of(j),
            f"{int(before.count[j]):,}",
            share_text(before.frequency[j]),
            share_text(before.forecast[j]),
        ]
        row += [share_text(before.precision[j]), share_text(before.confidence[j])]
        rows.append(row + [f"{100 * float(each.ece[j]):.2f}" for each in known])
    head += ["ECE after (%)"] if len(known) > 1 else []
    bins, more = next(iter(tables.values())).bins, classes(tables, known)
    reading = (
        f'ECE of the class\'s own probability as a forecast of the label, in {bins} bins. "Is" and "said to be": its '
        'frequency, and the mean probability it is given; "if predicted": its accuracy and mean confidence among the '
        "examples for which it is predicted."
    )
    listed = _long(head, rows, "classes, worst first", "classes") + _listed(len(before.ece), "classes")
    return [Section("Classes, worst first", joined([listed, more, note(reading)]))]


def _groups(tables: Tables) -> list[Section]:
    """Return the tables of all groups, and of groups of rows beside those of labels, before and after."""
    second = {name: each for name, table in tables.items() if (each := table.by_row_group()) is not None}
    return _groups_of(tables) + _groups_of(second)


def _groups_of(tables: Tables) -> list[Section]:
    """What is known of every group, before and after."""
    known = {name: each for name, each in tables.items() if each.groups is not None}
    if not known:
        return []
    body, event = Markup(), next(iter(known.values())).event
    head, many = group_head(event), f"{event.group}s"
    for name, each in known.items():
        rows = group_rows(each)
        title = render("<h3>{}</h3>", typeset(_capital(name))) if len(known) > 1 else Markup()
        caption = f"{many} {name}, worst first" if len(known) > 1 else f"{many}, worst first"
        together = table(head, rows[-2:], caption=caption.replace("worst first", "together"))
        listed = _long(head, rows[:-2][:MAX_ROWS], caption, many) + _listed(
            len(rows) - 2, many, "The JSON file has all."
        )
        body += title + listed + together
    first = next(iter(known.values()))
    reading = (
        f"The gap is what is said minus what happens; its {at(first.level)} intervals hold for all {many} together, "
        f'and {many} whose gap is furthest beyond chance come first. "By chance": the ECE that a calibrated model with '
        f"these {first.event.probabilities} shows, on average and at the {50 * (1 + first.level):g} % quantile."
    )
    return [Section(f"{_capital(many)}, worst first", body + note(reading))]


def _coverage(tables: Tables) -> list[Section]:
    """The error of the most confident predictions, where confidence is what is judged."""
    first = next(iter(tables.values()))
    if "aurc" not in first:
        return []
    curves = {name.partition(" ")[0]: risk_coverage_of(each.ties) for name, each in tables.items()}
    risks = next(iter(curves.values()))
    points = ", ".join(f"{percent(_risk(risks, c))} at {percent(c, 0)}" for c in (0.5, 0.8, 0.9, 1.0))

    def draw(drawing: Figure) -> None:
        risk_coverage(curves, ax=drawing.add_subplot())

    name = " before" if len(tables) > 1 else ""
    picture = figure(draw, f"Risk-coverage curve. Error{name}, by coverage: {points}.", size=(4.6, 2.9))
    text = f"If only the most confident predictions are acted on, the error is {points} of the {first.event.one}s."
    if "confident_accuracy" in first:
        sure, right = first["confident_share"].value, first["confident_accuracy"].value
        who, came = f"{percent(sure, 1)} of the {first.event.one}s", f"{percent(right)} of them {first.event.outcome}"
        text += f" Confidences of 99 % and more: {who}, {came}."
    body = joined([render("<p>{}</p>", typeset(text)), picture, threshold(_called(tables))])
    return [Section("Acting only when sure", body)]


def _thresholds(tables: Tables) -> list[Section]:
    """What acting on probabilities from a threshold on amounts to, where a probability of one event is judged."""
    name, measured = list(tables.items())[-1]
    if measured.event.of == "top":
        return []
    after = f", {name}" if len(tables) > 1 else ""
    found = thresholds_of(measured.ties, CUTS)
    head = [
        "from",
        f"share of {measured.event.one}s",
        "said",
        measured.event.happened,
        "share of all events found",
        "of others spared",
    ]
    columns = found.threshold, found.share, found.said, found.precision, found.recall, found.specificity
    rows = [[percent(float(first), 0), *map(share_text, more)] for first, *more in zip(*columns, strict=True)]
    reading = (
        f"If one acts on {measured.event.probabilities} of at least so much{after}: on how many, how often it should "
        "and does turn out so (precision), which share of all that turn out so is found (recall, sensitivity), and "
        "which share of the others is spared (specificity)."
    )
    more = Markup() if "aurc" in measured else threshold(_called(tables))
    body = joined([table(head, rows, caption="thresholds"), note(reading), more])
    return [Section("Acting from a threshold on", body)]


def _called(tables: Tables) -> Tables:
    """What is judged last first, since that is what one would use."""
    return dict(list(tables.items())[::-1])


def _mistakes(found: Findings) -> Markup:
    pair, name = found.chosen != "Identity", found.before.name_of
    head = ["row", "true class", "predicted", "said", *([f"after {found.chosen_text}"] if pair else [])]
    rows = [
        [
            f"{m.row}",
            name(m.label),
            name(m.predicted),
            sure_text(m.before),
            *([sure_text(m.after)] if pair else []),
        ]
        for m in found.mistakes
    ]
    reading = (
        "Rows of the judged data, counted from 0: the wrong predictions of the highest confidence. Often it is the "
        "recorded class that is wrong, not the model."
    )
    return _long(head, rows, "confident mistakes", "mistakes") + note(reading)


def _use(found: Findings, saved: str | Path | None, shell: bool) -> Markup:
    if found.chosen == "Identity":
        return render("<p>There is nothing to apply: the predictions are best left as they are.</p>")
    path = str(saved or "calibrator.safetensors")
    code = (
        "from calibrant import calibrators\n"
        f"calibrate = calibrators.load({path!r})\n"
        "probs = calibrate(logits).softmax(-1)"
    )
    way = (
        render("give <code>--save {}</code> to the command below", path)
        if shell
        else render("say <code>found.save({})</code> of what <code>assess</code> returned", repr(path))
    )
    parts = [] if saved else [render("<p>It was not saved: {}.</p>", way)]
    parts += [render("<pre><code>{}</code></pre>", code)]
    file = "<p>Or for a file of predictions: <code>calibrant apply {} new.npz -o calibrated.npz</code></p>"
    return joined([*parts, render(file, path)])


def _long(head: list[str], rows: list[list[str]], caption: str, what: str) -> Markup:
    body = table(head, rows[:SHOWN], caption=caption)
    if len(rows) <= SHOWN:
        return body
    rest = folded(f"{len(rows) - SHOWN} more {what}", table(head, rows[SHOWN:], caption=f"more {caption}"))
    return render('<div class="long">{}{}</div>', body, rest)


def _listed(total: int, many: str, elsewhere: str = "") -> Markup:
    """Say that a long table is cut off."""
    if total <= MAX_ROWS:
        return Markup()
    return note(f"The worst {MAX_ROWS:,} of {total:,} {many} are listed. {elsewhere}")


def _risk(curve: Curve, share: float) -> float:
    at_ = int((curve.x < share - 1e-12).sum())
    return float(curve.y[min(at_, len(curve.y) - 1)])
