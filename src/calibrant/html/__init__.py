"""Pages: one self-contained HTML file that opens offline; numbers in, ink out."""

from calibrant.html._diagrams import BAR_READING, CURVE_READING, bar_diagram, curve_diagram, facts, readings
from calibrant.html._figure import Mark, figure
from calibrant.html._page import Section, both, data, folded, listed, numbers, page, percent, table, term, typeset

__all__ = ["BAR_READING", "CURVE_READING", "Mark", "Section", "bar_diagram", "both", "curve_diagram", "data", "facts"]
__all__ += ["figure", "folded", "listed", "numbers", "page", "percent", "readings", "table", "term", "typeset"]
