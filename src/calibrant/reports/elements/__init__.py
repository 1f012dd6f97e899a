"""Elements of self-contained HTML reports: pages, tables, figures and the data of interactive controls."""

from calibrant.reports.elements._elements import (
    Section,
    breakable,
    control_data,
    details,
    join_html,
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
from calibrant.reports.elements._figures import (
    BAR_EXPLANATION,
    CURVE_EXPLANATION,
    INFINITE_MEAN_EXPLANATION,
    HoverPoint,
    bar_diagram,
    curve_diagram,
    diagram_explanations,
    figure,
    reliability_figure,
    version_facts,
)

__all__ = ["BAR_EXPLANATION", "CURVE_EXPLANATION", "INFINITE_MEAN_EXPLANATION", "HoverPoint", "Section"]
__all__ += ["bar_diagram", "breakable", "control_data", "curve_diagram", "details", "diagram_explanations", "figure"]
__all__ += ["join_html", "json_script", "method_label", "note", "page", "reliability_figure", "render"]
__all__ += ["reveal_hidden_characters", "switchable_text", "table", "term", "typeset", "version_facts"]
