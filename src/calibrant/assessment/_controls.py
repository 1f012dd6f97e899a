"""What can be tried on the page: a temperature, another calibrator, a threshold, a class; all numbers are made here."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from markupsafe import Markup
from torch import Tensor

from calibrant._bins import Bins
from calibrant.assessment._judge import Mistake
from calibrant.assessment._scaled import Scaled
from calibrant.assessment._table import Findings, Table
from calibrant.assessment.words import at, percent
from calibrant.html import numbers
from calibrant.metrics.tables import Classes, thresholds_of

THRESHOLDS = (*(i / 100 for i in range(100)), 0.995, 0.999, 0.9999)
CLASSES = 200  # whose curves the page holds
MISTAKES = 5  # of a class
FITTED, MEASURED = 10**9, 3 * 10**7  # logits that are passed over for the temperatures, beside fits and alone


def temperature_of(found: Findings) -> Markup:
    """A slider for the temperature, and a switch for the calibrator."""
    fitted = {name: float(c.temperature) for name, c in found.fitted.items() if type(c).__name__ == "Temperature"}
    maps = {"as they came": found.before} | {name: t for name, t in found.tables.items() if name != "Identity"}
    return _temperature(found.before, maps, fitted, FITTED)


def temperature_alone(measured: Table) -> Markup:
    """A slider for the temperature."""
    return _temperature(measured, {}, {}, MEASURED)


def _temperature(before: Table, maps: Mapping[str, Table], fitted: Mapping[str, float], most: int) -> Markup:
    steps = before.scaled(most)
    if not steps and len(maps) < 2:
        return Markup()
    places = [step.temperature for step in steps]
    inside = {name: t for name, t in fitted.items() if places and places[0] <= t <= places[-1]}
    stops = {_nearest(places, t): f"{name}: {t:.2f}" for name, t in inside.items()}
    one = _nearest(places, 1.0) if places else 0
    stops = {one: "as they came: T = 1"} | stops
    content = {
        "heading": "What if it were more, or less, sure?",
        "note": _note(before, bool(steps), len(maps) > 1),
        "words": _words(before),
        "tiles": ["ECE", "NLL", "Says, on average", before.event.verb[0].upper() + before.event.verb[1:]],
        "one": one,
        "steps": [_step(before, step, stops.get(i, "")) for i, step in enumerate(steps)],
        "maps": [_map(name, table) for name, table in maps.items()] if len(maps) > 1 else [],
    }
    return numbers("temperature", content)


def _nearest(places: Sequence[float], t: float) -> int:
    return min(range(len(places)), key=lambda i: abs(math.log(places[i] / t)))


def _note(before: Table, by_hand: bool, switch: bool) -> str:
    many = f"{before.event.one}s"
    parts = [
        "Dividing the logits by a temperature T above 1 makes every probability more modest, below 1 bolder. Every "
        f"number is that of all {before.n:,} judged {many} at that T."
        if by_hand
        else "A temperature by hand would need the predictions again: these were read in pieces, or are too many."
    ]
    parts += ["Or look at what a calibrator makes of them."] if switch else []
    parts += [f"What looks best here was chosen on the {many} that judge it: trust the calibrators, fitted on others."]
    return " ".join(parts) + " Dots are bins, as large as they are full; the gray line is what came in."


def _words(table: Table) -> dict[str, Any]:
    z = None if table.clusters else float(torch.special.ndtri(torch.tensor((1 + table.level) / 2, dtype=torch.float64)))
    event = table.event
    return {
        "said": event.said,
        "happened": event.happened,
        "many": f"{event.one}s",
        "bins": table.bins,
        "z": z,
        "level": at(table.level),
    }


def _step(before: Table, step: Scaled, stop: str) -> dict[str, Any]:
    about = {name: before[name].about for name in ("ece", "nll")}
    tiles = [
        [f"{about['ece'].text(step.ece)} %", _by_chance(step.floor.value, step.floor.high)],
        [about["nll"].text(step.nll), ""],
        [percent(step.said, 1), ""],
        [percent(before.happened.value, 1), ""],
    ]
    shown = {"name": f"T = {step.temperature:.2f}", "tiles": tiles, "cells": _cells(step.table)}
    return shown | ({"stop": stop} if stop else {})


def _map(name: str, table: Table) -> dict[str, Any]:
    floor = table["noise_floor"]
    tiles = [
        [f"{table['ece'].text} %", _by_chance(floor.value, floor.high)],
        [table["nll"].text, ""],
        [percent(table.said, 1), ""],
        [percent(table.happened.value, 1), ""],
    ]
    return {"name": name, "tiles": tiles, "cells": _cells(table.table)}


def _by_chance(mean: float, high: float) -> str:
    return f"by chance {percent(mean)}, up to {percent(high)}"


def _cells(bins: Bins) -> list[list[int]]:
    """The bins that hold anything: which, how many, what was said and what happened, in millionths."""
    columns = bins.count.tolist(), bins.confidence.tolist(), bins.accuracy.tolist()
    return [
        [i, n, _whole(said), _whole(happened)] for i, (n, said, happened) in enumerate(zip(*columns, strict=True)) if n
    ]


def threshold(tables: Mapping[str, Table]) -> Markup:
    """A slider for the threshold from which on one acts, and what that costs."""
    first = next(iter(tables.values()))
    event, top = first.event, "aurc" in first.event.rows
    thing = event.said
    words = {
        "said": thing,
        "slider": f"Act on a {thing} of at least",
        "tiles": ["acted on", "error among them" if top else "false alarms among them", "expected cost"],
        "share": f"of all {event.one}s",
        "each": f"per {event.one}",
        "costs": ["cost of a mistake", "cost of not acting"] if top else ["cost of a false alarm", "cost of a miss"],
        "cheapest": f"On these {event.one}s it is cheapest to act from",
    }
    note = (
        "Costs are in any unit: what acting wrongly costs, and what it costs not to act, such as asking a person."
        if top
        else "Costs are in any unit: what a false alarm costs, and what it costs to miss a true one."
    )
    base = None if top else first.happened.value
    content = {
        "heading": "Where to draw the line",
        "note": note,
        "words": words,
        "base": base,
        "tables": [{"name": name, "rows": _thresholds(table)} for name, table in tables.items()],
    }
    return numbers("threshold", content)


def _thresholds(table: Table) -> list[list[Any]]:
    """Per threshold: itself, the shares acted on and found, how often that is right, and the same as it is shown."""
    found = thresholds_of(table.ties, THRESHOLDS, table.level)
    columns = found.threshold, found.share, found.precision, found.recall, found.low, found.high
    return [
        [c, *map(_rounded, (share, precision, recall)), percent(share), *_error(precision, low, high, table)]
        for c, share, precision, recall, low, high in zip(*(column.tolist() for column in columns), strict=True)
    ]


def _error(precision: float, low: float, high: float, table: Table) -> tuple[str, str]:
    if math.isnan(precision):
        return "\N{EN DASH}", ""
    return percent(1 - precision), f"{100 * (1 - high):.2f} to {percent(1 - low)} with {at(table.level)}"


def _rounded(x: float) -> float | None:
    return None if math.isnan(x) else round(x, 6)


def classes(tables: Mapping[str, Table], known: Sequence[Classes]) -> Markup:
    """What a class shows when it is opened: its curve, before and after, and its most confident mistakes."""
    first = next(iter(tables.values()))
    chosen = known[0].worst_first[:CLASSES].tolist()
    mistakes = first.mistakes_of(chosen, MISTAKES)
    rows = [
        {
            "layers": [_class_cells(each.cells[j], first.n) for each in known],
            "mistakes": None if mistakes is None else [_mistake(first, m) for m in mistakes.get(j, ())],
        }
        for j in chosen
    ]
    words = _words(first) | {
        "said": "probability of the class",
        "happened": "its frequency",
        "mistakes": "Its most confident mistakes",
        "none": f"No {first.event.one} of it, or predicted to be of it, is mistaken.",
    }
    head = ["row", "true class", "predicted", "said"]
    return numbers("classes", {"words": words, "names": list(tables), "rows": rows, "head": head})


def _mistake(table: Table, m: Mistake) -> list[str]:
    return [str(m.row), table.name_of(m.label), table.name_of(m.predicted), percent(m.before)]


def _class_cells(cells: Tensor, n: int) -> list[list[int]]:
    """The same of a class, by bin of its probability; rounding errors of sums must not leave what is a share."""
    share, said, happened = cells.T
    parts = zip((n * share).round().tolist(), (said / share).tolist(), (happened / share).tolist(), strict=True)
    return [[i, int(count), _whole(c), _whole(a)] for i, (count, c, a) in enumerate(parts) if count > 0]


def _whole(share: float) -> int:
    return round(1e6 * min(1.0, max(0.0, share)))
