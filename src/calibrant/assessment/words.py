"""The answers in words, each with its evidence; the report, the notebook and the command line say the same."""

import math
from collections.abc import Callable, Sequence
from itertools import starmap

from calibrant._solve import Certificate
from calibrant._text import name_text
from calibrant.assessment._event import Event, quoted
from calibrant.assessment._table import Findings, Row, Table
from calibrant.metrics import About, Difference
from calibrant.metrics.tables import Groups

SURE = 0.01  # p-value below which a calibrated model is ruled out
MOST_GROUPS = 3  # that a sentence names
VAGUE = 0.1  # error that cannot be ruled out, above which the examples are too few

Answer = tuple[str, str]  # question, answer


def headline(table: Table) -> str:
    """Say in a few words whether, and which way, the predictions are off."""
    if table.verdict.status == "no_evidence":
        off = 0 if table.groups is None else int((table.groups.beyond > 0).sum())
        if table.groups is not None and off:
            many = f"{len(table.groups.names)} {table.event.group}s"
            return f"No evidence of miscalibration on the whole, but in {off} of {many}"
        few = f", but too few {table.event.one}s to tell"
        return "No evidence of miscalibration" + (few if unseen(table) > VAGUE else "")
    way = table.event.way(table.verdict.direction).removeprefix("is ")
    by = f"{way} by {gap_points(table)} points" if way else "miscalibrated, in no certain direction"
    return f"{by[0].upper()}{by[1:]}" if table.verdict.certain else f"Possibly {by}"


def verdict(found: Findings) -> str:
    """Say in one paragraph which way the predictions are off, what repairs them, and how sure that is."""
    return " ".join(text for _, text in answers(found))


def first_answers(table: Table) -> list[Answer]:
    """Answer what one wants to know first of a model's probabilities."""
    told = [("Is it calibrated?", calibrated(table)), ("Which way is it off?", which_way(table))]
    if table.groups is None:
        return told
    return [*told, (f"And in every {table.event.group}?", by_group(table, table.groups))]


def answers(found: Findings) -> list[Answer]:
    """Answer, in this order, what one wants to know of a model's probabilities, and of what was done to them."""
    told = [*first_answers(found.before), ("What fixes it?", remedy(found))]
    if found.chosen == "Identity":
        return told
    after = found.after
    told += [
        ("Is the difference real?", difference(found)),
        ("Is it calibrated then?", calibrated(after, found.before)),
    ]
    if after.groups is None:
        return told
    return [*told, (f"And in every {after.event.group} then?", by_group(after, after.groups))]


def calibrated(table: Table, before: Table | None = None) -> str:
    """Weigh the bin-free test first, then ECE against its noise floor, then what could have been missed."""
    p, ece, floor = table["kuiper"].p_value, table["ece"], table["noise_floor"]
    above = ece.value > floor.high
    against = (
        f"its ECE of {ece.text} % is {'above' if above else 'within'} what a calibrated model shows by chance "
        f"({floor.text} % on average, {percent(floor.high)} at the {50 * (1 + table.level):g} % quantile)"
    )
    if table.verdict.certain:
        sure = "No" if p < SURE else "Probably not"
        if before is not None and ece.value < before["ece"].value:
            sure = "Better, but not perfectly" if p < SURE else "Better, but probably not perfectly"
        return f"{sure}: the Kuiper test rejects it ({p_text(p)}), {'and' if above else 'but'} {against}."
    many = f"{table.n:,} {table.event.one}{'s' * (table.n != 1)}"
    missed = f"With {many}, an error of up to {percent(unseen(table), 1)} cannot be ruled out."
    if table.verdict.status == "unclear":
        more = "" if above else f", but {_doubt(table)}"
        join = "but" if above else "and"
        return f"Unclear: the Kuiper test finds no error ({p_text(p)}), {join} {against}{more}. {missed}"
    return f"No evidence that it is not: the Kuiper test finds no error ({p_text(p)}), and {against}. {missed}"


def _doubt(table: Table) -> str:
    """Say what is beyond chance where neither the Kuiper test nor ECE is."""
    if not table.verdict.direction:
        return f"its adaptive ECE of {table['adaptive_ece'].text} % is above"
    low, high = sorted(abs(100 * end) for end in (table["signed_gap"].low, table["signed_gap"].high))
    off = f"the mean {table.event.said} is off by {gap_points(table)} points"
    return f"{off} ({low:.1f} to {high:.1f} with {at(table.level)})"


def gap_points(table: Table) -> str:
    """Write how far what is said on average is from what happens, without its sign."""
    return f"{100 * abs(table['signed_gap'].value):.1f}"


def unseen(table: Table) -> float:
    """Return the largest error that the intervals leave room for: of debiased L2, or of all predictions together."""
    true = table.happened
    return max(table["debiased_l2"].high, table.said - true.low, true.high - table.said)


def which_way(table: Table) -> str:
    """Compare what is said on average with what happens, and name the range of probabilities that costs most."""
    gap, way = table["signed_gap"], table.event.way(table.verdict.direction)
    happened = percent(table.happened.value, 1)
    says = f"it says {percent(table.said, 1)} on average and {table.event.verb} {happened} of the time"
    low, high = 100 * gap.low, 100 * gap.high
    if table.verdict.status == "no_evidence":
        return f"No direction beyond chance: {says}."
    if way:
        low, high = sorted((abs(low), abs(high)))
        apart = f"{gap_points(table)} points apart ({low:.1f} to {high:.1f} with {at(table.level)})"
        text = f"{'It' if table.verdict.certain else 'Perhaps it'} {way}: {says}, {apart}."
    else:
        room = f"{at(table.level)} interval of the difference: {low:.1f} to {high:.1f} points"
        text = f"No certain direction: {says}{f' ({room})' if math.isfinite(low) else ''}."
    shares = table.table.weight * table.table.gap.abs()
    worst = int(shares.argmax())
    low, high = (100 * float(edge) for edge in table.table.edges[worst : worst + 2])
    held = f"{percent(float(table.table.weight[worst]), 0)} of the {table.event.one}s"
    return (
        f"{text} {table.event.probabilities.capitalize()} of {low:.0f} to {high:.0f} % ({held}) "
        f"account for {100 * float(shares[worst]):.1f} of the {100 * float(shares.sum()):.1f} points of ECE."
    )


def by_group(table: Table, groups: Groups) -> str:
    """Say in how many groups the gap is beyond chance, and in which most."""
    many = f"{len(groups.names)} {table.event.group}s"
    level = f"{at(groups.level)} intervals that hold for all of them together"

    def said(i: int) -> str:
        way = table.event.direction(float(groups.low[i]), float(groups.high[i]))
        return f"{quoted(groups.names[i])} ({way} by {100 * abs(float(groups.gap[i])):.1f} points)"

    off, named = those_off(groups, said)
    if not off:
        return f"In none of {many} is the gap beyond chance ({level})."
    return f"In {off} of {many} the gap is beyond chance: {named} ({level})."


def those_off(groups: Groups, said: Callable[[int], str]) -> tuple[int, str]:
    """In how many groups the gap is beyond chance, and the worst of them, each as `said` has it."""
    off = [i for i in groups.worst_first if float(groups.beyond[i]) > 0]
    more = [f"{len(off) - MOST_GROUPS} more"] if len(off) > MOST_GROUPS else []
    return len(off), listed([*map(said, off[:MOST_GROUPS]), *more]) if off else ""


def group_rows(table: Table) -> list[list[str]]:
    """Write a row per group, worst first, then the mean over groups and what all examples together give."""
    groups = table.groups
    assert groups is not None

    def row(name: str, count: str, values: Sequence[float], room: str, floor: str) -> list[str]:
        said, happened, gap, ece, nll = values
        return [
            name,
            count,
            *(percent(share, 1) for share in (said, happened)),
            f"{100 * gap:+z.1f}",
            room,
            f"{100 * ece:.2f}",
            floor,
            table["nll"].about.text(nll),
        ]

    rows = [
        row(
            name_text(r["group"]),
            f"{r['count']:,.6g}" if r["count"] % 1 else f"{int(r['count']):,}",
            [r[name] for name in ("said", "happened", "gap", "ece", "nll")],
            f"[{100 * r['low']:+z.1f}, {100 * r['high']:+z.1f}]",
            f"{100 * r['floor']:.2f}, up to {100 * r['floor_high']:.2f}",
        )
        for r in groups.records()
    ]
    means = [groups.macro(name) for name in ("said", "happened", "gap", "ece", "nll")]
    gap, ece, floor = table["signed_gap"], table["ece"], table["noise_floor"]
    pooled = [table.said, table.happened.value, gap.value, ece.value, table["nll"].value]
    return [
        *rows,
        row(f"mean over {table.event.group}s", "", means, "", f"{100 * groups.macro('floor'):.2f}"),
        row(
            "all together",
            f"{table.n:,}",
            pooled,
            f"[{100 * gap.low:+z.1f}, {100 * gap.high:+z.1f}]",
            f"{100 * floor.value:.2f}, up to {100 * floor.high:.2f}",
        ),
    ]


def group_head(event: Event) -> list[str]:
    """Name the columns of these rows."""
    numbers = ["said", "happened", "gap (points)", "interval", "ECE (%)", "by chance", "NLL"]
    return [event.group, "examples" if event.group == event.one else f"{event.one}s", *numbers]


def dependent(table: Table) -> str:
    """Say what the clusters are for."""
    cluster = table.event.cluster
    a = "an" if cluster[0] in "aeiou" else "a"
    return f"Intervals and tests let the {table.event.one}s of {a} {cluster} depend on each other in any way."


def remedy(found: Findings) -> str:
    """Name the calibrator that was chosen, why, and what it changes."""
    if found.chosen == "Identity":
        others = [name for name in found.tables if name != "Identity"]
        if not others:
            return "No calibrator was fitted."
        return f"Nothing that was fitted ({listed(list(map(name_text, others)))}) does better on held-out data."
    why = ", which has the lowest NLL on held-out folds of the fitting data" if found.held_out else ""
    nll, ece = (tuple(table[m].text for table in (found.before, found.after)) for m in ("nll", "ece"))
    moved = f"NLL from {nll[0]} to {nll[1]} and ECE from {ece[0]} % to {ece[1]} %"
    accuracy = next((row for row in found.changes or () if row.name == "accuracy"), None)
    same = "" if accuracy is None and found.changes is not None else f", and {_accuracy(accuracy)}"
    parts = [f"{found.chosen_text}{why}. It takes {moved}{same}.{_keeping(found)}"]
    return " ".join([*parts, *turn(found), *setbacks(found)])


def turn(found: Findings) -> list[str]:
    """Say which way the predictions are off before and after, where either is beyond chance."""
    before, after = found.before, found.after
    first, last = (table.event.way(table.verdict.direction) for table in (before, after))
    if not (first or last):
        return []
    by = f"{gap_points(after)} points after"
    if first == last:
        return [f"It {first} by {gap_points(before)} points before, and by {by}."]
    off = "is off in no certain direction"
    start = "The direction turns: it" if first and last else "It"
    was = f"{first} by {gap_points(before)} points" if first else off
    return [f"{start} {was} before, and {f'{last} by {by}' if last else f'{off} after'}."]


def setbacks(found: Findings) -> list[str]:
    """Say of ECE and the Brier score that they get worse, where they do, and whether beyond chance."""
    changes = {row.name: row for row in found.changes or ()}
    told: list[str] = []
    brier = "event_brier" if "event_brier" in found.before else "brier"
    for name, title in (("ece", "ECE"), (brier, "the Brier score")):
        first, last = found.before[name], found.after[name]
        if last.value > first.value and last.text != first.text:
            unit = " %" if first.about.percent else ""
            tested = _tested(changes.get(name))
            told.append(f"But {title} gets worse, from {first.text}{unit} to {last.text}{unit}{tested}.")
    return told


def _tested(change: Difference | None) -> str:
    """Say whether a change is beyond chance, where that is known."""
    if change is None or not (math.isfinite(change.low) and math.isfinite(change.high)):
        return ""
    return ", beyond chance" if change.low > 0 or change.high < 0 else ", perhaps by chance"


def fit_cautions(found: Findings) -> list[str]:
    """Write a sentence for each fit whose certificate does not show that it is the optimum of its family."""
    return [_caution(name, one) for name, one in found.certificates.items() if not one.clean]


def _caution(name: str, certificate: Certificate) -> str:
    match certificate.status:
        case "at bound":
            return f"The fit of {name} ended at a bound of its range."
        case "separable":
            return f"The fit of {name} has no finite optimum: every example it was fitted on is already right."
        case "not converged":
            return f"The fit of {name} did not converge."
        case _:
            unit = " nats" if certificate.criterion == "nll" else ""
            return f"The fit of {name} is about {certificate.gap:.1g}{unit} above the optimum of its family."


def _keeping(found: Findings) -> str:
    """Name what keeps every prediction, where the chosen one costs accuracy beyond chance."""
    if found.keeping is None:
        return ""
    table = found.tables[found.keeping]
    reached = f"with an NLL of {table['nll'].text} and an ECE of {table['ece'].text} %"
    return f" That is a loss beyond chance: {name_text(found.keeping)} keeps every prediction, {reached}."


def difference(found: Findings) -> str:
    """Test the change of NLL on the same examples, of Brier where NLL is infinite."""
    one, tested = found.after.event.one, scores(found)
    if not tested or found.changes is None:
        return f"It cannot be tested on these {one}s."
    change, level = tested[0], at(found.changes.level)
    about = found.before[change.name].about
    never = next((table["nll"].note for table in (found.before, found.after) if math.isinf(table["nll"].value)), "")
    name = f"the {about.title}" if never else "NLL"
    word = "falls" if change.difference < 0 else "rises"
    low, high = sorted((abs(change.low), abs(change.high)))
    by = f"on the same {one}s {name} {word} by {about.text(abs(change.difference))}"
    if change.low > 0 or change.high < 0:
        sure = "Yes" if change.difference < 0 else "Yes, but for the worse"
        told = f"{sure}: {by} ({about.text(low)} to {about.text(high)} with {level}; {p_text(change.p_value)})."
    else:
        room = f"{change.low:+.4f} to {change.high:+.4f}, holds 0 ({p_text(change.p_value)})"
        told = f"Not beyond chance: {by}, and the {level} interval of the change, {room}."
    return f"{told} NLL cannot be tested: {never}." if never else told


def scores(found: Findings) -> list[Difference]:
    """Return the changes of NLL and Brier that are known."""
    rows = [row for row in found.changes or () if row.name in ("nll", "brier", "event_brier")]
    return [row for row in rows if all(map(math.isfinite, (row.difference, row.low, row.high)))]


def split(found: Findings) -> list[Difference]:
    """Return the changes of NLL and Brier that divide them into refinement and calibration; none without a map.

    Where one event is evaluated, the Brier score is that of the event.
    """
    rows = [] if found.chosen == "Identity" else scores(found)
    of_event = any(row.name == "event_brier" for row in rows)
    return [row for row in rows if not (of_event and row.name == "brier")]


def cost(found: Findings) -> str:
    """Say how much of NLL, or of Brier where NLL is infinite, recalibration takes off, and who could lower the rest."""
    part = split(found)[0]
    about, taken = found.before[part.name].about, -part.difference
    name, whole = about.title, about.text(part.first)
    if part.low <= 0 <= part.high:
        return f"Recalibration takes nothing beyond chance off the {name} of {whole}."
    if taken < 0:
        return f"Recalibration only adds to the {name} of {whole}: here it learned what does not hold."
    return (
        f"Of the {name} of {whole}, {about.text(taken)} ({percent(taken / part.first, 0)}) is the price of "
        f"miscalibration, which {found.chosen_text} takes off. Only a more accurate model could lower the "
        f"remaining {about.text(part.second)}."
    )


# Pieces


def evidence(row: Row) -> str:
    """Write what says how surely a row is known: its interval, or its p-value."""
    return row.interval if math.isnan(row.p_value) else p_text(row.p_value)


def best(tables: Sequence[Table], shown: Sequence[str]) -> list[list[bool]]:
    """Say of every table and metric whether no other table's value is better."""

    def column(name: str) -> list[bool]:
        values = [table[name].value for table in tables]
        least = tables[0][name].about.best(values)
        return [value == least for value in values]

    return [list(row) for row in zip(*map(column, shown), strict=True)] if shown else [[] for _ in tables]


def headings(table: Table, shown: Sequence[str]) -> list[str]:
    """Name columns of metrics in few words, with their units."""

    def heading(name: str, about: About) -> str:
        return about.heading(name if "(" in name else "")

    return list(starmap(heading, ((name, table[name].about) for name in shown)))


def percent(share: float, digits: int = 2) -> str:
    """Write a share in percent."""
    return f"{100 * share:.{digits}f} %"


def at(level: float) -> str:
    """Write the level of an interval."""
    return f"{100 * level:g} %"


def p_text(p: float) -> str:
    """Write a p-value."""
    return "p < 0.0001" if p < 1e-4 else f"p = {p:.2g}"


def listed(names: Sequence[str]) -> str:
    """Write 'a, b and c'."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _accuracy(change: Difference | None) -> str:
    if change is None:
        return "may change predictions"
    if change.low == change.high == 0:
        return "keeps the accuracy"
    room = f" ({100 * change.low:+.2f} to {100 * change.high:+.2f})" if math.isfinite(change.low) else ""
    worse = f", which is worse{_tested(change)}" if change.difference < 0 else ""
    return f"changes accuracy by {100 * change.difference:+.2f} points{room}{worse}"
