"""A page is a title, an opening and sections; everything it shows is inside it, and it asks the network for nothing.

Everything that builds a page returns `Markup`. Text that is not `Markup` is escaped wherever it is put in, so that a
piece joined by hand shows its tags instead of running them.

It is complete without its script, which only adds to what stands there: sorting, searching, hovering, sliders.
"""

import hashlib
import json
import re
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, LiteralString

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from calibrant._text import TEXT_LENGTH, abbreviate, isolate, visible


@dataclass(frozen=True)
class Section:
    """A heading with what stands under it."""

    heading: str
    body: Markup


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
    made = _template().render(
        title=title,
        lead=lead,
        sections=[(section.heading, section.body) for section in sections],
        facts=facts,
        style=_file("style.css"),
        script=script,
        digest=b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        kicker=kicker,
        tiles=tiles,
    )
    return readable(made)


def render(template: LiteralString, *values: str, **named: str) -> Markup:
    """Return a template of ours filled with values, each escaped unless it is `Markup`.

    >>> render("<b>{}</b>", "<script>")
    Markup('<b>&lt;script&gt;</b>')
    """
    return Markup(template).format(*values, **named)


def joined(parts: Iterable[str]) -> Markup:
    """Return parts one after another, each escaped unless it is `Markup`."""
    return Markup().join(parts)


def readable(made: str) -> str:
    """Return HTML in which hidden characters can be seen, and words from right to left stay in their place."""
    return isolate(visible(made, but="\n\t"))


def term(shown: str, meaning: str) -> Markup:
    """Return words that say what they mean when they are pointed at."""
    return render('<abbr title="{}">{}</abbr>', meaning, typeset(shown)) if meaning else typeset(shown)


def coded(words: str, code: str) -> Markup:
    """Return a method's name in words with its code beside; the code alone where there are no words."""
    shown = breakable(code)
    return render("{} <code>{}</code>", typeset(words), shown) if words else shown


def breakable(name: str) -> Markup:
    """Return a method's name in which a line may end before its arguments."""
    return typeset(name).replace("(", Markup("<wbr>("))


def both(exact: Markup, plain: Markup) -> Markup:
    """Return what is shown, and what instead to who asks for plain words."""
    return render('<span class="exact">{}</span><span class="plain">{}</span>', exact, plain)


def note(text: str) -> Markup:
    """Return a remark below what it is about."""
    return render('<p class="note">{}</p>', typeset(text))


def numbers(kind: str, content: Any) -> Markup:
    """Return numbers for the page's script, which makes of them what `kind` says; without it, nothing is seen."""
    return render('<div class="play" data-kind="{}" hidden>{}</div>', kind, data(content))


def data(content: Any) -> Markup:
    r"""Return JSON that no browser takes for anything else, and in which whatever cannot be seen is spelled out.

    >>> print(data(["</script>&"]))
    <script type="application/json">["\u003c/script\u003e\u0026"]</script>
    """
    text = json.dumps(_shown(content), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for mark in "<>&":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return render('<script type="application/json">{}</script>', Markup(text))


def _shown(content: Any) -> Any:
    if isinstance(content, str):
        return visible(abbreviate(content, TEXT_LENGTH))
    if isinstance(content, Mapping):
        return {visible(key): _shown(value) for key, value in content.items()}
    return [_shown(value) for value in content] if isinstance(content, list | tuple) else content


def typeset(text: str) -> Markup:
    """Return text for a page: escaped, percent signs kept with their numbers, minus signs for hyphens before them.

    `Markup` stays as it is.
    """
    if isinstance(text, Markup):
        return text
    text = abbreviate(text, TEXT_LENGTH)
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
) -> Markup:
    """Return an HTML table; the first `labels` cells of a row are its headings, cells marked best are bold.

    Rows that are marked stand out. Cells are text, or `Markup`. Where rows are `named` by long texts, these are broken.
    `groups` are headings by the row that they stand above.
    """
    body: list[Markup] = []
    for i, row in enumerate(rows):
        if groups and i in groups:
            group = '<tr class="group"><th scope="rowgroup" colspan="{}">{}</th></tr>'
            body.append(render(group, str(len(head)), typeset(groups[i])))
        cells = [render('<th scope="row">{}</th>', typeset(cell)) for cell in row[:labels]]
        for j, cell in enumerate(row[labels:]):
            strong = bool(best) and best[i][j]
            cells.append(render("<td><strong>{}</strong></td>" if strong else "<td>{}</td>", typeset(cell)))
        line = '<tr class="marked">{}</tr>' if marked and marked[i] else "<tr>{}</tr>"
        body.append(render(line, joined(cells)))
    return render(
        '<div class="{}" tabindex="0" role="region" aria-label="{}">'
        "<table><thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>",
        "scroll named" if named else "scroll",
        abbreviate(caption, TEXT_LENGTH),
        joined(map(_head, head)),
        joined(body),
    )


def _head(cell: str) -> Markup:
    if not cell:
        return render("<td></td>")
    return render('<th scope="col">{}</th>', cell if isinstance(cell, Markup) else breakable(cell))


def folded(summary: str, body: Markup) -> Markup:
    """Return a part that opens at a click or by the keyboard, and always in print."""
    return render("<details><summary>{}</summary>{}</details>", typeset(summary), body)


@cache
def _file(name: str) -> Markup:
    return Markup(files("calibrant.html").joinpath(name).read_text("utf-8"))


def _shortened(text: str) -> str:
    return abbreviate(text, TEXT_LENGTH)


@cache
def _template() -> Any:
    environment = Environment(loader=PackageLoader("calibrant.html", "."), autoescape=True, undefined=StrictUndefined)
    environment.filters["typeset"] = typeset
    environment.filters["shorten"] = _shortened
    return environment.get_template("page.html.j2")


def percent(share: float, digits: int = 2) -> str:
    """Write a share in percent."""
    return f"{100 * share:.{digits}f} %"


def listed(names: Sequence[str]) -> str:
    """Write 'a, b and c'."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
