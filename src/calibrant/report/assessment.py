"""The report on somebody's own predictions: read from top to bottom it answers whether they can be believed."""

import math
from pathlib import Path

from markupsafe import Markup, escape
from matplotlib.figure import Figure
from torch import Tensor

from calibrant.assess import Assessment
from calibrant.metrics import Assessment as Measured
from calibrant.metrics import Curve, Difference, Row
from calibrant.metrics._ranking import risk_coverage as coverage
from calibrant.plots import risk_coverage
from calibrant.report.html import Section, figure, folded, page, table, typeset
from calibrant.report.sections import BAR_READING, CURVE_READING, bar_diagram, curve_diagram, facts
from calibrant.report.words import answers, cost, headline, interval, p_text, percent, split, title
from calibrant.study.tables import HIGHER_IS_BETTER, family, heading, number

SHOWN = 15  # rows of the tables of classes and mistakes before the rest is folded away

NAMES = {
    "nll": "NLL",
    "brier": "Brier",
    "ece": "ECE (%)",
    "adaptive_ece": "adaptive ECE (%)",
    "classwise_ece": "class-wise ECE (%)",
}

MEANING = {
    "accuracy": "share of predictions that are right",
    "nll": "mean −log p of the true class, in nats; lower is better",
    "refinement": "what is left of NLL after cross-fitted recalibration",
    "calibration_loss": "what cross-fitted recalibration takes off NLL",
    "brier": "squared distance of the probabilities from the truth, 0 to 2",
    "signed_gap": "above 0: overconfident on the whole",
    "ece": "bins of equal width; biased upward, so read it against its floor",
    "noise_floor": "ECE of a calibrated model with these confidences: mean, central 90 %",
    "adaptive_ece": "bins of equal numbers of examples, ties averaged",
    "adaptive_noise_floor": "the same for adaptive ECE",
    "debiased_l2": "without the bias of ECE, so it may come out negative",
    "kuiper": "largest mean gap over any range of confidences, no bins; p is the chance of as much if calibrated",
    "smooth_ece": "smoothed over confidences, no bins",
    "classwise_ece": "every class's probability against its frequency, mean over classes",
    "confident_share": "how many predictions are that sure",
    "confident_accuracy": "how many of those are right",
    "aurc": "mean error of the most confident over all coverages; lower is better",
}


def assessment_report(found: Assessment, command: str, files: dict[str, str], saved: Path | None = None) -> str:
    """Return the HTML report of calibrators on somebody's own predictions."""
    before, after = found.before, found.after
    sections = [
        Section("The answer", _answers(found)),
        Section("Confidence against accuracy", _diagrams(found)),
        *([Section("What it costs, and what is left", _split(found))] if split(found) else []),
        Section("The numbers", _numbers(found)),
        Section("Every calibrator", _ranking(found)),
    ]
    if found.classes is not None:
        sections.append(Section("Classes, worst first", _classes(found)))
    sections.append(Section("Acting only when sure", _coverage(found)))
    if found.mistakes:
        sections.append(Section("Confident mistakes", _mistakes(found)))
    sections.append(Section("Use the calibrator", _use(found, saved)))
    lead = f"{before.n:,} examples of {before.k} classes. {found.how}"
    tiles = {
        "Says, on average": (percent(before["accuracy"].value + before["signed_gap"].value, 1), "mean confidence"),
        "Is right": (percent(before["accuracy"].value, 1), interval(before["accuracy"])),
        "ECE, in %": (_moved(100 * before["ece"].value, 100 * after["ece"].value, 2), _chance(after)),
        "NLL": (
            _moved(before["nll"].value, after["nll"].value, 3),
            f"by {found.chosen}" if after is not before else "",
        ),
    }
    shown = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{typeset(big)}<small>{typeset(small)}</small></dd></div>"
        for name, (big, small) in tiles.items()
    )
    return page(
        headline(found),
        lead,
        sections,
        files | facts(command),
        kicker="Are these probabilities true?",
        tiles=f'<dl class="tiles">{shown}</dl>',
    )


def _moved(before: float, after: float, digits: int) -> str:
    first, last = f"{before:.{digits}f}", f"{after:.{digits}f}"
    return first if first == last else f"{first} → {last}"


def _chance(table_: Measured) -> str:
    return f"chance explains up to {percent(table_['noise_floor'].high)}"


def _answers(found: Assessment) -> str:
    parts = "".join(f"<dt>{escape(question)}</dt><dd>{typeset(text)}</dd>" for question, text in answers(found))
    return f'<dl class="answers">{parts}</dl>'


def _diagrams(found: Assessment) -> str:
    shown = {"Before": found.before} | ({f"After {found.chosen}": found.after} if found.chosen != "Identity" else {})
    curves = bars = ""
    for name, table_ in shown.items():
        note = f"ECE {percent(table_['ece'].value)}, Kuiper {p_text(table_['kuiper'].p_value)}"
        curves += curve_diagram(name, table_.ties, table_.table, note)
        bars += bar_diagram(name, table_.table, note)
    classical = folded("The same in classical bars", f'<div class="pair">{bars}</div>{BAR_READING}')
    return f'<div class="pair">{curves}</div>{CURVE_READING}{classical}'


def _split(found: Assessment) -> str:
    """NLL and Brier as refinement + calibration: what the chosen calibrator leaves, and what it takes off."""
    rows = [
        [
            NAMES[part.name],
            _cell(found.before[part.name]),
            _cell(found.after[part.name]),
            _two_lines(number(part.name, -part.difference), _range(part.name, -part.high, -part.low)),
            percent(-part.difference / part.first, 1),
        ]
        for part in split(found)
    ]
    head = ["", "score", "refinement", "calibration", "share"]
    note = typeset(
        f"The score is the sum of both. Refinement is what {found.chosen} leaves, which has not seen the examples that "
        "it is judged on; calibration is what it takes off, a lower bound on average (Berta et al. 2025), and its "
        "share of the score. In brackets: 90 % intervals."
    )
    body = table(head, rows, caption="refinement and calibration")
    return f'<p>{typeset(cost(found))}</p>{body}<p class="note">{note}</p>'


def _numbers(found: Assessment) -> str:
    """The default rows before and after, with everything that says how surely they are known."""
    pair = found.chosen != "Identity"
    changed = {row.name: row for row in found.changes or ()}
    rows: list[list[str]] = []
    for row in found.before:
        cells = [_cell(row)]
        if pair:
            cells += [_cell(found.after[row.name])] if row.name in found.after else ["–"]
            cells += [_change(changed[row.name]) if row.name in changed else ""]
        rows.append([_titled(row), *cells])
    head = ["", "before", *([f"after {found.chosen}", "change"] if pair else [])]
    note = (
        '<p class="note">In brackets: 90 % intervals. The change is measured on the same examples, which tells much '
        "smaller differences from chance than comparing the two intervals.</p>"
    )
    return table(head, rows, caption="all numbers, before and after") + (note if pair else _INTERVALS)


_INTERVALS = '<p class="note">In brackets: 90 % intervals.</p>'


def _ranking(found: Assessment) -> str:
    shown = found.shown
    best = {
        m: (max if family(m) in HIGHER_IS_BETTER else min)(values[m] for values in found.values.values()) for m in shown
    }
    head = ["calibrator", *(["held-out NLL"] if found.held_out else []), *(NAMES.get(m, heading(m)) for m in shown)]
    rows: list[list[str]] = []
    bold: list[list[bool]] = []
    for name, values in found.values.items():
        held = [f"{found.held_out[name]:.4f}"] if found.held_out else []
        rows.append([name, *held, *(number(m, values[m]) for m in shown)])
        least = [found.held_out[name] == min(found.held_out.values())] if found.held_out else []
        bold.append([*least, *(values[m] == best[m] for m in shown)])
    why = (
        "The chosen one is marked: it has the lowest NLL on held-out folds of the fitting data. The other columns are "
        "measured on the judged data, which had no say in the choice"
        if found.held_out
        else "The chosen one is marked; the columns are measured on the judged data"
    )
    marked = [name == found.chosen for name in found.values]
    body = table(head, rows, best=bold, marked=marked, caption="every calibrator")
    return f'{body}<p class="note">{why}. The best value of a column is bold.</p>'


def _classes(found: Assessment) -> str:
    assert found.classes is not None
    before, after = found.classes
    pair = found.chosen != "Identity"
    head = ["class", "examples", "is", "said to be", "right if predicted", "said if predicted", "ECE (%)"]
    rows: list[list[str]] = []
    for j in before.worst_first.tolist():
        row = [f"{j}", f"{int(before.count[j]):,}", _share(before.frequency[j]), _share(before.forecast[j])]
        row += [_share(before.precision[j]), _share(before.confidence[j]), f"{100 * float(before.ece[j]):.2f}"]
        rows.append(row + ([f"{100 * float(after.ece[j]):.2f}"] if pair else []))
    head += ["ECE after (%)"] if pair else []
    note = (
        '<p class="note">ECE of the class\'s own probability as a forecast of the label, in 15 bins. "Is" and '
        '"said to be": its frequency, and the mean probability it is given; "if predicted": its accuracy and mean '
        "confidence among the examples for which it is predicted.</p>"
    )
    return _long(head, rows, "classes, worst first", "classes") + note


def _coverage(found: Assessment) -> str:
    tables = {"before": found.before} | ({"after": found.after} if found.chosen != "Identity" else {})
    curves = {name: Curve(*coverage(table_.ties)) for name, table_ in tables.items()}
    points = ", ".join(f"{percent(_risk(curves['before'], c))} at {percent(c, 0)}" for c in (0.5, 0.8, 0.9, 1.0))

    def draw(drawing: Figure) -> None:
        risk_coverage(curves, ax=drawing.add_subplot())

    picture = figure(draw, f"Risk-coverage curve. Error before, by coverage: {points}.", size=(4.6, 2.9))
    sure = found.before["confident_share"].value
    text = f"If only the most confident predictions are acted on, the error is {points} of the examples."
    if "confident_accuracy" in found.before:
        right = found.before["confident_accuracy"].value
        text += f" Confidences of 99 % and more: {percent(sure, 1)} of the examples, {percent(right)} of them right."
    return f"<p>{typeset(text)}</p>{picture}"


def _mistakes(found: Assessment) -> str:
    head = ["row", "true class", "predicted", "said", f"after {found.chosen}"][
        : None if found.chosen != "Identity" else 4
    ]
    rows = [
        [f"{m.row}", f"{m.label}", f"{m.predicted}", _sure(m.before), _sure(m.after)][: len(head)]
        for m in found.mistakes
    ]
    note = (
        '<p class="note">Rows of the judged data, counted from 0: the wrong predictions of the highest confidence. '
        "Often their labels are wrong, not the model.</p>"
    )
    return _long(head, rows, "confident mistakes", "mistakes") + note


def _use(found: Assessment, saved: Path | None) -> str:
    if found.chosen == "Identity":
        return "<p>There is nothing to apply: the predictions are best left as they are.</p>"
    path = str(saved or "calibrator.safetensors")
    code = (
        "from calibrant import calibrators\n"
        f"calibrate = calibrators.load({path!r})\n"
        "probs = calibrate(logits).softmax(-1)"
    )
    how = "" if saved else f"<p>It was not saved: give <code>--save {escape(path)}</code> to the command below.</p>"
    return (
        f"{how}<pre><code>{escape(code)}</code></pre><p>Or for a file of predictions: "
        f"<code>calibrant apply {escape(path)} new.npz -o calibrated.npz</code></p>"
    )


def _long(head: list[str], rows: list[list[str]], caption: str, what: str) -> str:
    body = table(head, rows[:SHOWN], caption=caption)
    if len(rows) > SHOWN:
        body += folded(f"{len(rows) - SHOWN} more {what}", table(head, rows[SHOWN:], caption=f"more {caption}"))
    return body


def _titled(row: Row) -> Markup:
    return _two_lines(title(row), MEANING[row.name])


def _cell(row: Row) -> Markup:
    """A value with what says how surely it is known: its interval, its p-value, or how it compares."""
    small = interval(row) if math.isnan(row.p_value) else p_text(row.p_value)
    return _two_lines(number(row.name, row.value), row.note if row.name in ("ece", "adaptive_ece") else small)


def _change(row: Difference) -> Markup:
    value = number(row.name, row.difference)
    return _two_lines(f"+{value}" if row.difference > 0 else value, _range(row.name, row.low, row.high))


def _range(name: str, low: float, high: float) -> str:
    return f"[{number(name, low)}, {number(name, high)}]"


def _two_lines(large: str, small: str) -> Markup:
    return typeset(large) + Markup("<small>") + typeset(small) + Markup("</small>")


def _share(x: Tensor) -> str:
    value = float(x)
    return "–" if math.isnan(value) else f"{100 * value:.1f} %"


def _sure(p: float) -> str:
    """Write a probability with as many digits as keep it from reading as certainty."""
    digits = 2 if p < 0.999 or p == 1 else math.ceil(-math.log10(1 - p)) - 1
    return f"{100 * p:.{digits}f} %"


def _risk(curve: Curve, share: float) -> float:
    at = int((curve.x < share - 1e-12).sum())
    return float(curve.y[min(at, len(curve.y) - 1)])
