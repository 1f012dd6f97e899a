"""Pages: one self-contained HTML file that opens offline; numbers in, ink out."""

from calibrant.report._diagrams import (
    BAR_EXPLANATION,
    CURVE_EXPLANATION,
    INFINITE_MEAN_EXPLANATION,
    AxisLabels,
    bar_diagram,
    curve_diagram,
    diagram_explanations,
    version_facts,
)
from calibrant.report._elements import (
    Section,
    breakable,
    control_data,
    details,
    format_percent,
    join_html,
    join_names,
    json_script,
    method_label,
    note,
    page,
    render,
    reveal_hidden_characters,
    switchable_text,
    table,
    term,
    typeset,
)
from calibrant.report._svg_figure import Mark, figure

__all__ = [
    "BAR_EXPLANATION",
    "CURVE_EXPLANATION",
    "INFINITE_MEAN_EXPLANATION",
    "AxisLabels",
    "Mark",
    "Section",
    "bar_diagram",
    "breakable",
    "switchable_text",
]
__all__ += [
    "control_data",
    "curve_diagram",
    "details",
    "figure",
    "join_html",
    "join_names",
    "json_script",
    "method_label",
    "note",
    "version_facts",
]
__all__ += [
    "diagram_explanations",
    "format_percent",
    "page",
    "render",
    "reveal_hidden_characters",
    "table",
    "term",
    "typeset",
]
