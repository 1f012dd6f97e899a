"""The answers in words, each with its evidence; the command line says the same."""

import math
from collections.abc import Sequence
from dataclasses import replace

from calibrant.assess import Assessment
from calibrant.metrics import Assessment as Measured
from calibrant.metrics import Difference, Row
from calibrant.study.tables import Table, family, heading, number

SURE, LIKELY = 0.01, 0.05  # p-values below which a calibrated model is ruled out, or unlikely
VAGUE = 0.1  # error that cannot be ruled out, above which the examples are too few
TITLES = {
    "debiased_l2": "debiased L2 error",
    "kuiper": "Kuiper error",
    "confident_share": "at least 99 % confident",
}

Answer = tuple[str, str]  # question, answer


def headline(found: Assessment) -> str:
    """Say in a few words whether, and which way, the predictions are off."""
    before = found.before
    if not before["kuiper"].p_value < LIKELY:
        return "No sign of miscalibration" + (", but too few examples to tell" if unseen(before) > VAGUE else "")
    way = direction(before["signed_gap"])
    if not way:
        return "Miscalibrated, in no certain direction"
    return f"{way.capitalize()} by {100 * abs(before['signed_gap'].value):.1f} points"


def verdict(found: Assessment) -> str:
    """Say in one paragraph which way the predictions are off, what repairs them, and how sure that is."""
    return " ".join(text for _, text in answers(found))


def answers(found: Assessment) -> list[Answer]:
    """Answer, in this order, what one wants to know of a model's probabilities."""
    return [
        ("Is it calibrated?", calibrated(found.before)),
        ("Which way is it off?", which_way(found.before)),
        ("What fixes it?", remedy(found)),
        ("Is the difference real?", difference(found)),
        ("Is it calibrated then?", calibrated(found.after, found.before)),
    ][: 3 if found.chosen == "Identity" else 5]


def calibrated(table: Measured, before: Measured | None = None) -> str:
    """Weigh the bin-free test first, then ECE against its noise floor, then what could have been missed."""
    p, ece, floor = table["kuiper"].p_value, table["ece"], table["noise_floor"]
    above = ece.value > floor.high
    above = ece.value > floor.high
    against = (
        f"{'and' if above == (p < LIKELY) else 'but'} its ECE of {percent(ece.value)} is "
        f"{'above' if above else 'within'} what a calibrated model shows by chance ({percent(floor.value)} on average, "
        f"{percent(floor.high)} at the 95 % quantile)"
    )
    if p < LIKELY:
        sure = "No" if p < SURE else "Probably not"
        if before is not None and ece.value < before["ece"].value:
            sure = "Better, but not perfectly" if p < SURE else "Better, but probably not perfectly"
        return f"{sure}: the Kuiper test rejects it ({p_text(p)}), {against}."
    many = f"{table.n:,} example{'s' * (table.n != 1)}"
    missed = f"With {many}, an error of up to {percent(unseen(table), 1)} cannot be ruled out."
    return f"Nothing says it is not: the Kuiper test finds no error ({p_text(p)}), {against}. {missed}"


def unseen(table: Measured) -> float:
    """Return the largest error that 90 % intervals leave room for: of debiased L2, or of the accuracy as a whole."""
    right = table["accuracy"]
    says = right.value + table["signed_gap"].value
    return max(table["debiased_l2"].high, says - right.low, right.high - says)


def which_way(table: Measured) -> str:
    """Compare mean confidence with accuracy, and name the range of confidences that costs most."""
    gap, right, sure = table["signed_gap"], table["accuracy"].value, table["kuiper"].p_value < LIKELY
    way = direction(gap)
    says = f"it says {percent(right + gap.value, 1)} on average and is right {percent(right, 1)} of the time"
    low, high = 100 * gap.low, 100 * gap.high
    if not sure:
        return f"No way that could be told from chance: {says}."
    if way:
        low, high = sorted((abs(low), abs(high)))
        text = f"It is {way}: {says}, {100 * abs(gap.value):.1f} points apart ({low:.1f} to {high:.1f} with 90 %)."
    else:
        room = f" (90 % interval of the difference: {low:.1f} to {high:.1f} points)" if math.isfinite(low) else ""
        text = f"Not surely one way: {says}{room}."
    shares = table.table.weight * table.table.gap.abs()
    worst = int(shares.argmax())
    low, high = (100 * float(edge) for edge in table.table.edges[worst : worst + 2])
    held = percent(float(table.table.weight[worst]), 0)
    return (
        f"{text} Confidences of {low:.0f} to {high:.0f} % ({held} of the examples) account for "
        f"{100 * float(shares[worst]):.1f} of the {100 * float(shares.sum()):.1f} points of ECE."
    )


def remedy(found: Assessment) -> str:
    """Name the calibrator that was chosen, why, and what it changes."""
    if found.chosen == "Identity":
        tried = [name for name in found.tables if name != "Identity"]
        return (
            f"Nothing that was tried ({_and(tried)}) does better on held-out data." if tried else "Nothing was tried."
        )
    why = ", which has the lowest NLL on held-out folds of the fitting data" if found.held_out else ""
    nll, ece = ((found.before[m].value, found.after[m].value) for m in ("nll", "ece"))
    moved = f"NLL from {nll[0]:.4f} to {nll[1]:.4f} and ECE from {percent(ece[0])} to {percent(ece[1])}"
    same = "may change predictions" if found.changes is None else _accuracy(found.changes["accuracy"])
    return f"{found.chosen}{why}. It takes {moved}, and {same}."


def difference(found: Assessment) -> str:
    """Test the change of NLL on the same examples."""
    nll = None if found.changes is None else found.changes["nll"]
    if nll is None or not math.isfinite(nll.difference) or not math.isfinite(nll.low):
        return "It cannot be tested on these examples."
    word = "falls" if nll.difference < 0 else "rises"
    low, high = sorted((abs(nll.low), abs(nll.high)))
    by = f"on the same examples NLL {word} by {abs(nll.difference):.4f}"
    if nll.low > 0 or nll.high < 0:
        sure = "Yes" if nll.difference < 0 else "Yes, but for the worse"
        return f"{sure}: {by} ({low:.4f} to {high:.4f} with 90 %; {p_text(nll.p_value)})."
    return (
        f"Not beyond chance: {by}, and the 90 % interval of the change, {nll.low:+.4f} to {nll.high:+.4f}, holds 0 "
        f"({p_text(nll.p_value)})."
    )


def split(found: Assessment) -> list[Difference]:
    """Return the changes of NLL and Brier that divide them into refinement and calibration; none without a map."""
    if found.chosen == "Identity" or found.changes is None:
        return []
    rows = (found.changes[name] for name in ("nll", "brier"))
    return [row for row in rows if all(map(math.isfinite, (row.difference, row.low, row.high)))]


def cost(found: Assessment) -> str:
    """Say how much of NLL, or of Brier where NLL is infinite, recalibration takes off, and who could lower the rest."""
    part = split(found)[0]
    name, taken = title(found.before[part.name]), -part.difference
    whole = number(part.name, part.first)
    if part.low <= 0 <= part.high:
        return f"Recalibration takes nothing beyond chance off the {name} of {whole}."
    if taken < 0:
        return f"Recalibration only adds to the {name} of {whole}: here it learned what does not hold."
    return (
        f"Of the {name} of {whole}, {number(part.name, taken)} ({percent(taken / part.first, 0)}) is the price of "
        f"miscalibration, which {found.chosen} takes off. The other {number(part.name, part.second)} only a model that "
        "tells the classes better apart could lower."
    )


def finding(made: Sequence[Table]) -> str:
    """Say in words what a study found: who is over- and underconfident, and what is best before and after."""
    chosen = next((t for t in made if family(t.metric) == "ece" and not t.shift), made[0])
    raw, sentences = "Identity" if "Identity" in chosen.columns else chosen.columns[0], list[str]()
    scaled = next((c for c in chosen.columns if family(c) == "Temperature"), None)
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
        value = replace(cell, mark="").text(chosen.metric)
        sentences.append(f"{label}, {row[2]}{by} has the lowest {heading(chosen.metric)}: {value}.")
    return " ".join(sentences)


def title(row: Row) -> str:
    """Name a row with its unit, in few words."""
    return TITLES.get(row.name, row.title) + (" (%)" if heading(row.name).endswith("(%)") else "")


def direction(gap: Row) -> str:
    """Name the direction of a signed gap, or nothing where its interval holds 0."""
    return "overconfident" if gap.low > 0 else "underconfident" if gap.high < 0 else ""


def percent(share: float, digits: int = 2) -> str:
    """Write a share in percent."""
    return f"{100 * share:.{digits}f} %"


def p_text(p: float) -> str:
    """Write a p-value."""
    return "p < 0.0001" if p < 1e-4 else f"p = {p:.2g}"


def interval(row: Row) -> str:
    """Write the interval of a row in its unit; nothing where there is none."""
    return "" if math.isnan(row.low) else f"[{number(row.name, row.low)}, {number(row.name, row.high)}]"


def _accuracy(change: Difference) -> str:
    if change.low == change.high == 0:
        return "keeps the accuracy"
    room = f" ({100 * change.low:+.2f} to {100 * change.high:+.2f})" if math.isfinite(change.low) else ""
    return f"changes accuracy by {100 * change.difference:+.2f} points{room}"


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
