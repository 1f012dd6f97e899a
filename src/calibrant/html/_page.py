"""A page is a title, an opening and sections; everything it shows is inside it, and it asks the network for nothing.

It is complete without its script, which only adds to what stands there: sorting, searching, hovering, sliders.
"""

import hashlib
import json
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from calibrant._text import visible


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
    script = _file("script.js")
    parts = [(section.heading, Markup(section.body)) for section in sections]
    made = _template().render(
        title=title,
        lead=lead,
        sections=parts,
        facts=facts,
        style=_file("style.css"),
        script=script,
        digest=b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        kicker=kicker,
        tiles=Markup(tiles),
    )
    return visible(made, but="\n\t")


def term(shown: str, meaning: str) -> Markup:
    """Return words that say what they mean when they are pointed at."""
    return Markup('<abbr title="{}">{}</abbr>').format(meaning, typeset(shown)) if meaning else typeset(shown)


def coded(words: str, code: str) -> Markup:
    """Return a method's name in words with its code beside; the code alone where there are no words."""
    shown = typeset(code).replace("(", Markup("<wbr>("))
    return Markup("{} <code>{}</code>").format(typeset(words), shown) if words else shown


def both(exact: Markup, plain: Markup) -> Markup:
    """Return what is shown, and what instead to who asks for plain words."""
    return Markup('<span class="exact">{}</span><span class="plain">{}</span>').format(exact, plain)


def numbers(kind: str, content: Any) -> str:
    """Return numbers for the page's script, which makes of them what `kind` says; without it, nothing is seen."""
    return f'<div class="play" data-kind="{kind}" hidden>{data(content)}</div>'


def data(content: Any) -> str:
    r"""Return JSON that no browser takes for anything else, and in which whatever cannot be seen is spelled out.

    >>> print(data(["</script>&"]))
    <script type="application/json">["\u003c/script\u003e\u0026"]</script>
    """
    text = json.dumps(_shown(content), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for mark in "<>&":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return f'<script type="application/json">{text}</script>'


def _shown(content: Any) -> Any:
    if isinstance(content, str):
        return visible(content)
    if isinstance(content, Mapping):
        return {visible(key): _shown(value) for key, value in content.items()}
    return [_shown(value) for value in content] if isinstance(content, list | tuple) else content


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
    top = "".join(_head(cell) for cell in head)
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


def _head(cell: str) -> str:
    if not cell:
        return "<td></td>"
    return f'<th scope="col">{cell if isinstance(cell, Markup) else typeset(cell).replace("(", Markup("<wbr>("))}</th>'


def _cell(cell: str) -> Markup:
    return cell if isinstance(cell, Markup) else typeset(cell)


def folded(summary: str, body: str) -> str:
    """Return a part that opens at a click or by the keyboard, and always in print."""
    return f"<details><summary>{escape(summary)}</summary>{body}</details>"


@cache
def _file(name: str) -> Markup:
    return Markup(files("calibrant.html").joinpath(name).read_text("utf-8"))


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
