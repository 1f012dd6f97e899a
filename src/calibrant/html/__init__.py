"""Pages: one self-contained HTML file that opens offline; numbers in, ink out."""

from calibrant.html._diagrams import (
    BAR_READING,
    CURVE_READING,
    INFINITE,
    Words,
    bar_diagram,
    curve_diagram,
    facts,
    readings,
)
from calibrant.html._figure import Mark, figure
from calibrant.html._page import (
    Section,
    both,
    breakable,
    coded,
    data,
    folded,
    joined,
    listed,
    note,
    numbers,
    page,
    percent,
    readable,
    render,
    table,
    term,
    typeset,
)

__all__ = ["BAR_READING", "CURVE_READING", "INFINITE", "Mark", "Section", "Words", "bar_diagram", "both", "breakable"]
__all__ += ["coded", "curve_diagram", "data", "facts", "figure", "folded", "joined", "listed", "note", "numbers"]
__all__ += ["page", "percent", "readable", "readings", "render", "table", "term", "typeset"]
