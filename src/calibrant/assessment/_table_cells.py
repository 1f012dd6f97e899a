"""Cells of the page's tables, and words that say what they mean."""

import math
import re

from markupsafe import Markup
from torch import Tensor

from calibrant import metrics
from calibrant.assessment._results import Row
from calibrant.assessment.expert_text import interval_or_p_value
from calibrant.metrics import MetricInfo
from calibrant.report import INFINITE_MEAN_EXPLANATION, join_html, render, switchable_text, term, typeset

METRIC_BY_TERM = {  # what is explained where it is met, and by which metric
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


def value_cell(info: MetricInfo, value: float) -> Markup:
    """Write a value; an infinite one says why it is."""
    if math.isnan(value):
        return typeset("–")
    return term(info.text(value), INFINITE_MEAN_EXPLANATION if math.isinf(value) else "")


def explain_terms(text: str) -> Markup:
    """Return text whose abbreviations and names of tests say what they mean: each where it is first met."""
    parts, explained_terms = re.split(rf"\b({'|'.join(METRIC_BY_TERM)})\b", text), set[str]()
    cells: list[Markup] = []
    for i, part in enumerate(parts):
        info = metrics.metric_info(METRIC_BY_TERM[part]) if i % 2 and part not in explained_terms else None
        cells.append(typeset(part) if info is None else term(part, f"{info.title}: {info.plain}; {info.meaning}"))
        explained_terms |= {part} if i % 2 else set()
    return join_html(cells)


def name_cell(row: Row, *, plain_words: bool) -> Markup:
    """Name a number in the field's words with what they mean; where a page can switch, in plain words too."""
    expert_cell, info = two_lines(row.title, row.info.meaning), row.info
    lay_heading = info.heading(info.plain[:1].upper() + info.plain[1:])
    return (
        switchable_text(expert_cell, two_lines(lay_heading, row.title)) if info.plain and plain_words else expert_cell
    )


def row_cell(row: Row) -> Markup:
    """A value with what says how surely it is known: its interval, its p-value, or how it compares."""
    note = row.note if row.name in ("ece", "adaptive_ece") or math.isinf(row.value) else ""
    return two_lines(row.text, interval_or_p_value(row) or note)


def change_cell(info: MetricInfo, value: float, low: float, high: float, *, show_plus: bool = False) -> Markup:
    """Write a change with its interval."""
    plus = "+" if show_plus and value > 0 else ""
    return two_lines(plus + info.text(value), f"[{info.text(low)}, {info.text(high)}]")


def two_lines(large: str, small: str) -> Markup:
    """Write one text, and another below it in small letters."""
    return render("{} <small>{}</small>", typeset(large), typeset(small))


def share_text(x: Tensor) -> str:
    """Write a share in percent; a dash for none."""
    value = float(x)
    return "–" if math.isnan(value) else f"{100 * value:.1f} %"


def confidence_text(p: float) -> str:
    """Write a probability with as many digits as keep it from reading as certainty."""
    digits = 2 if p < 0.999 or p >= 1 else math.ceil(-math.log10(1 - p)) - 1
    return f"{100 * p:.{digits}f} %"
