"""Pages: one self-contained HTML file that opens offline; numbers in, ink out."""

from calibrant.html._diagrams import BAR_READING, CURVE_READING, INFINITE, bar_diagram, curve_diagram, facts, readings
from calibrant.html._figure import Mark, figure
from calibrant.html._page import (
    Section,
    both,
    coded,
    data,
    folded,
    listed,
    numbers,
    page,
    percent,
    table,
    term,
    typeset,
)

__all__ = ["BAR_READING", "CURVE_READING", "INFINITE", "Mark", "Section", "bar_diagram", "both", "coded"]
__all__ += ["curve_diagram", "data", "facts", "figure", "folded", "listed", "numbers", "page", "percent", "readings"]
__all__ += ["table", "term", "typeset"]
