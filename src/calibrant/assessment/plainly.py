"""The same answers for people who are not in the field: no test, no interval, no abbreviation."""

from calibrant._text import name_text
from calibrant.assessment._event import quoted
from calibrant.assessment._table import Findings, Table
from calibrant.assessment.words import scores, those_off, unseen
from calibrant.catalog import CALIBRATORS


def first_answers(table: Table) -> list[str]:
    """Answer, in the order of `words.first_answers`."""
    told = [_calibrated(table), _which_way(table)]
    return told if table.groups is None else [*told, _by_group(table)]


def answers(found: Findings) -> list[str]:
    """Answer, in the order of `words.answers`."""
    told = [*first_answers(found.before), _remedy(found)]
    if found.chosen == "Identity":
        return told
    told += [_difference(found), _calibrated(found.after)]
    return told if found.after.groups is None else [*told, _by_group(found.after)]


def name(calibrator: str) -> str:
    """Name a calibrator in words, with its code; the code alone of what has none."""
    called = CALIBRATORS.called(calibrator)
    return f"{called[0].lower()}{called[1:]} ({calibrator})" if called else name_text(calibrator)


def _calibrated(table: Table) -> str:
    gap, luck = _points(table["ece"].value), _points(table["noise_floor"].high)
    many = f"{table.n:,} {table.event.one}{'s' * (table.n != 1)}"
    if table.verdict.certain:
        return (
            f"No. What it says and what happens are typically {gap} points apart, and that is no accident of these "
            f"{many}. (Luck alone could make it look up to {luck} apart.)"
        )
    if table.verdict.status == "unclear":
        return (
            f"It is unclear: one measure shows more than luck explains, another does not. What it says and what "
            f"happens are typically {gap} points apart; luck alone explains up to {luck}."
        )
    hidden = f"An error of up to {_points(unseen(table))} points could still hide."
    return f"As far as {many} can tell, yes: what differs can be luck. {hidden}"


def _which_way(table: Table) -> str:
    outcome = table.event.outcome
    said, came = f"{100 * table.said:.1f}", f"{100 * table.happened.value:.1f}"
    facts = f"out of 100 it expects {said} to be {outcome}, and {came} are"
    if table.verdict.direction:
        return f"It {'promises' if table.verdict.certain else 'may promise'} {_amount(table)}: {facts}."
    return f"Neither clearly too much nor too little: {facts}."


def _amount(table: Table) -> str:
    return "too much" if table.verdict.direction == "over" else "too little"


def _by_group(table: Table) -> str:
    groups = table.groups
    assert groups is not None
    many = f"{len(groups.names)} {table.event.group}s"

    def said(i: int) -> str:
        gap = float(groups.gap[i])
        return (
            f"{quoted(groups.names[i])} (it promises {_points(abs(gap))} points too {'much' if gap > 0 else 'little'})"
        )

    off, named = those_off(groups, said)
    if not off:
        return f"In none of {many} is it off by more than luck explains."
    return f"In {off} of {many} it is off by more than luck: {named}."


def _remedy(found: Findings) -> str:
    if found.chosen == "Identity":
        return f"Nothing that was tried does better on {found.after.event.one}s it had not seen."
    first, last = (_points(table["ece"].value) for table in (found.before, found.after))
    new = f"{found.after.event.one}s it has not seen"
    why = f": of all that was tried, it is surprised least by {new}" if found.held_out else ""
    called = name(found.chosen)
    apart = f"What it says and what happens are then {last} points apart, instead of {first}."
    worse = f" That is worse{_turned(found)}." if found.after["ece"].value > found.before["ece"].value else ""
    return f"{called[0].upper()}{called[1:]}{why}. {apart}{worse}{_predictions(found)}"


def _turned(found: Findings) -> str:
    """Return a phrase if calibration turned overconfidence into underconfidence, or the reverse."""
    before, after = found.before, found.after
    if not (before.verdict.direction and after.verdict.direction):
        return ""
    turned = before.verdict.direction != after.verdict.direction
    return f": it promised {_amount(before)}, then it promises {_amount(after)}" if turned else ""


def _predictions(found: Findings) -> str:
    """Say what becomes of the predictions themselves."""
    change = next((row for row in found.changes or () if row.name == "accuracy"), None)
    if change is None:
        return ""
    if change.low == change.high == 0:
        return " The predictions themselves stay as they are."
    more = round(10_000 * change.difference)
    moved = f"{abs(more)} {'more' if more > 0 else 'fewer'} are right" if more else "about as many are right"
    return f" It also changes some predictions: of 10,000, {moved}."


def _difference(found: Findings) -> str:
    one, tested = found.after.event.one, scores(found)
    if not tested:
        return f"That cannot be told from these {one}s."
    if tested[0].high < 0:
        return f"Yes: so clear an improvement, on the very same {one}s, is not luck."
    return "Yes, but for the worse." if tested[0].low > 0 else "It may be luck."


def _points(share: float) -> str:
    return f"{100 * share:.1f}"
