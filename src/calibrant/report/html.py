"""A page is a title, a lead and sections; everything it shows is inside it."""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK = "#123457"  # drawn in this color, shown in the page's own text color, light or dark


@dataclass(frozen=True)
class Section:
    """A heading with what stands under it, as HTML."""

    heading: str
    body: str


def page(title: str, lead: str, sections: Sequence[Section], facts: Mapping[str, str]) -> str:
    """Return the whole HTML page; `facts` say how everything was computed."""
    style = Markup(files("calibrant.report").joinpath("style.css").read_text())
    parts = [(section.heading, Markup(section.body)) for section in sections]
    return _template().render(title=title, lead=lead, sections=parts, facts=facts, style=style)


def table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, best: Sequence[Sequence[bool]] = (), labels: int = 1
) -> str:
    """Return an HTML table; the first `labels` cells of a row are its headings, cells marked best are bold."""
    top = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    body = ""
    for i, row in enumerate(rows):
        cells = "".join(f'<th scope="row">{escape(cell)}</th>' for cell in row[:labels])
        for j, cell in enumerate(row[labels:]):
            strong = bool(best) and best[i][j]
            cells += f"<td>{'<strong>' if strong else ''}{escape(cell)}{'</strong>' if strong else ''}</td>"
        body += f"<tr>{cells}</tr>"
    return f'<div class="scroll" tabindex="0"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def figure(
    draw: Callable[[Axes], Any], alternative: str, *, caption: str = "", size: tuple[float, float] = (3.0, 3.0)
) -> str:
    """Return a figure as inline SVG with a caption; `alternative` says in words what it shows."""
    import matplotlib as mpl

    color = dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK)
    with mpl.rc_context({"svg.fonttype": "none", "font.family": "sans-serif", "font.size": 9, **color}):
        drawing = Figure(figsize=size, layout="constrained")
        draw(drawing.add_subplot())
        file = io.StringIO()
        drawing.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :].replace(INK, "currentColor")
    start = svg.index(">") + 1
    opening = svg[: start - 1] + f' role="img" aria-label="{escape(alternative)}">'
    return f"<figure><figcaption>{escape(caption)}</figcaption>{opening}{svg[start:]}</figure>"


@cache
def _template() -> Any:
    environment = Environment(loader=PackageLoader("calibrant.report", "."), autoescape=True, undefined=StrictUndefined)
    return environment.get_template("page.html.j2")
