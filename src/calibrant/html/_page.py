"""A page is a title, an opening and sections; everything it shows is inside it, and it asks the network for nothing."""

import io
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from calibrant._text import visible
from calibrant.plots import BAR, GAP, LINE, PAPER

INK = "#123457"
COLORS = {  # drawn in these, shown in the page's own colors, light or dark
    INK: "currentColor",
    BAR: "var(--blue)",
    GAP: "var(--red)",
    LINE: "var(--soft)",
    PAPER: "var(--paper)",
}
_SETTINGS: Any = {
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
    "svg.fonttype": "none",
    "text.parse_math": False,  # titles are what people wrote
    "svg.hashsalt": "calibrant",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.linewidth": 0.7,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "hatch.linewidth": 0.5,
    "savefig.bbox": "tight",
    "savefig.pad_inches": 0.03,
}


@dataclass(frozen=True)
class Section:
    """A heading with what stands under it, as HTML."""

    heading: str
    body: str


def page(
    title: str,
    lead: str | Sequence[str],
    sections: Sequence[Section],
    facts: Mapping[str, str],
    *,
    kicker: str = "",
    tiles: str = "",
) -> str:
    """Return the whole HTML page: the answer as its title, and `facts` on how everything was computed at its end.

    `lead` is a paragraph, or several.
    """
    lead = [lead] if isinstance(lead, str) else lead
    style = Markup(files("calibrant.html").joinpath("style.css").read_text())
    parts = [(section.heading, Markup(section.body)) for section in sections]
    made = _template().render(
        title=title, lead=lead, sections=parts, facts=facts, style=style, kicker=kicker, tiles=Markup(tiles)
    )
    return visible(made, but="\n\t")


def typeset(text: str) -> Markup:
    """Return text for a page: escaped, percent signs kept with their numbers, minus signs for hyphens before them."""
    text = re.sub(r"(?<=\d) (?=%)|(?<=\b[pT]) (?=[<=])|(?<=\b[pT] [<=]) (?=\d)", "\N{NO-BREAK SPACE}", text)
    return escape(re.sub(r"(?<![\w-])-(?=[\d.]|inf)", "\N{MINUS SIGN}", text))


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    best: Sequence[Sequence[bool]] = (),
    marked: Sequence[bool] = (),
    labels: int = 1,
    caption: str = "table",
    named: bool = False,
    groups: Mapping[int, str] | None = None,
) -> str:
    """Return an HTML table; the first `labels` cells of a row are its headings, cells marked best are bold.

    Rows that are marked stand out. Cells are text, or `Markup`. Where rows are `named` by long texts, these are broken.
    `groups` are headings by the row that they stand above.
    """
    top = "".join(f'<th scope="col">{_cell(cell).replace("(", Markup("<wbr>("))}</th>' for cell in head)
    body = ""
    for i, row in enumerate(rows):
        if groups and i in groups:
            body += f'<tr class="group"><th scope="rowgroup" colspan="{len(head)}">{_cell(groups[i])}</th></tr>'
        cells = "".join(f'<th scope="row">{_cell(cell)}</th>' for cell in row[:labels])
        for j, cell in enumerate(row[labels:]):
            strong = bool(best) and best[i][j]
            cells += f"<td>{'<strong>' if strong else ''}{_cell(cell)}{'</strong>' if strong else ''}</td>"
        body += f'<tr class="marked">{cells}</tr>' if marked and marked[i] else f"<tr>{cells}</tr>"
    return (
        f'<div class="scroll{" named" if named else ""}" tabindex="0" role="region" aria-label="{escape(caption)}">'
        f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cell(cell: str) -> Markup:
    return cell if isinstance(cell, Markup) else typeset(cell)


def figure(
    draw: Callable[[Figure], Any], alternative: str, *, caption: str = "", size: tuple[float, float] = (3.0, 3.0)
) -> str:
    """Return a figure as inline SVG with a caption; `alternative` says in words what it shows."""
    import matplotlib as mpl

    with mpl.rc_context(_SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # the font that shows the text is the reader's
        drawing = Figure(figsize=size, layout="compressed")
        draw(drawing)
        file = io.StringIO()
        drawing.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'(<g) id="[^"]*"|<metadata>.*?</metadata>\s*|<title>.*?</title>\s*', r"\1", svg, flags=re.DOTALL)
    svg = re.sub(r" xmlns(:xlink)?=\"[^\"]*\"", "", svg).replace("xlink:href", "href")
    svg = re.sub(r"font: ([^\"';]*?px) [^;\"]*", r"font: \1 system-ui, sans-serif", svg)
    for drawn, shown in COLORS.items():
        svg = svg.replace(drawn, shown)
    opening, _, rest = svg.partition(">")
    words = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f'<figure>{words}{opening} role="img" aria-label="{escape(alternative)}">{rest}</figure>'


def folded(summary: str, body: str) -> str:
    """Return a part that opens at a click or by the keyboard, and always in print."""
    return f"<details><summary>{escape(summary)}</summary>{body}</details>"


@cache
def _template() -> Any:
    environment = Environment(loader=PackageLoader("calibrant.html", "."), autoescape=True, undefined=StrictUndefined)
    environment.filters["typeset"] = typeset
    return environment.get_template("page.html.j2")


def percent(share: float, digits: int = 2) -> str:
    """Write a share in percent."""
    return f"{100 * share:.{digits}f} %"


def listed(names: Sequence[str]) -> str:
    """Write 'a, b and c'."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
