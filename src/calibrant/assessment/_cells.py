"""Cells of the page's tables, and words that say what they mean."""

import math
import re

from markupsafe import Markup
from torch import Tensor

from calibrant import metrics
from calibrant.assessment._table import Row
from calibrant.assessment.words import evidence
from calibrant.html import INFINITE, both, joined, render, term, typeset
from calibrant.metrics import About

TERMS = {  # what is explained where it is met, and by which metric
    "adaptive ECE": "adaptive_ece",
    "class-wise ECE": "classwise_ece",
    "ECE": "ece",
    "NLL": "nll",
    "Kuiper": "kuiper",
    "event Brier": "event_brier",
    "Brier": "brier",
    "AUROC": "auroc",
    "AURC": "aurc",
}


def value_cell(about: About, value: float) -> Markup:
    """Write a value; an infinite one says why it is."""
    if math.isnan(value):
        return typeset("–")
    return term(about.text(value), INFINITE if math.isinf(value) else "")


def explained(text: str) -> Markup:
    """Return text whose abbreviations and names of tests say what they mean: each where it is first met."""
    parts, met = re.split(rf"\b({'|'.join(TERMS)})\b", text), set[str]()
    made: list[Markup] = []
    for i, part in enumerate(parts):
        about = metrics.about(TERMS[part]) if i % 2 and part not in met else None
        made.append(typeset(part) if about is None else term(part, f"{about.title}: {about.plain}; {about.meaning}"))
        met |= {part} if i % 2 else set()
    return joined(made)


def name_cell(row: Row, *, plain_words: bool) -> Markup:
    """Name a number in the field's words with what they mean; where a page can switch, in plain words too."""
    exact, about = two_lines(row.title, row.about.meaning), row.about
    plain = about.heading(about.plain[:1].upper() + about.plain[1:])
    return both(exact, two_lines(plain, row.title)) if about.plain and plain_words else exact


def row_cell(row: Row) -> Markup:
    """A value with what says how surely it is known: its interval, its p-value, or how it compares."""
    note = row.note if row.name in ("ece", "adaptive_ece") or math.isinf(row.value) else ""
    return two_lines(row.text, evidence(row) or note)


def change_cell(about: About, value: float, low: float, high: float, *, sign: bool = False) -> Markup:
    """Write a change with its interval."""
    plus = "+" if sign and value > 0 else ""
    return two_lines(plus + about.text(value), f"[{about.text(low)}, {about.text(high)}]")


def two_lines(large: str, small: str) -> Markup:
    """Write one text, and another below it in small letters."""
    return render("{} <small>{}</small>", typeset(large), typeset(small))


def share_text(x: Tensor) -> str:
    """Write a share in percent; a dash for none."""
    value = float(x)
    return "–" if math.isnan(value) else f"{100 * value:.1f} %"


def sure_text(p: float) -> str:
    """Write a probability with as many digits as keep it from reading as certainty."""
    digits = 2 if p < 0.999 or p >= 1 else math.ceil(-math.log10(1 - p)) - 1
    return f"{100 * p:.{digits}f} %"
