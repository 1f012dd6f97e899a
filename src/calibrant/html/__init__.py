"""Pages: one self-contained HTML file that opens offline; numbers in, ink out."""

from calibrant.html._diagrams import BAR_READING, CURVE_READING, bar_diagram, curve_diagram, facts, readings
from calibrant.html._page import Section, figure, folded, listed, page, percent, table, typeset

__all__ = ["BAR_READING", "CURVE_READING", "Section", "bar_diagram", "curve_diagram", "facts", "figure", "folded"]
__all__ += ["listed", "page", "percent", "readings", "table", "typeset"]
