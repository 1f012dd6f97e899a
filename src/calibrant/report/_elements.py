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

from calibrant._text import MAX_TEXT_CHARACTERS, abbreviate, escape_invisible, isolate_right_to_left


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
    script = _read_asset("script.js")
    html = _template().render(
        title=title,
        lead=lead,
        sections=[(section.heading, section.body) for section in sections],
        facts=facts,
        style=_read_asset("style.css"),
        script=script,
        digest=b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        kicker=kicker,
        tiles=tiles,
    )
    return reveal_hidden_characters(html)


def render(template: LiteralString, *values: str, **named_values: str) -> Markup:
    """Return a template of ours filled with values, each escaped unless it is `Markup`.

    >>> render("<b>{}</b>", "<script>")
    Markup('<b>&lt;script&gt;</b>')
    """
    return Markup(template).format(*values, **named_values)


def join_html(parts: Iterable[str]) -> Markup:
    """Return parts one after another, each escaped unless it is `Markup`."""
    return Markup().join(parts)


def reveal_hidden_characters(html: str) -> str:
    """Return HTML in which hidden characters can be seen, and words from right to left stay in their place."""
    return isolate_right_to_left(escape_invisible(html, allowed="\n\t"))


def term(text: str, meaning: str) -> Markup:
    """Return words that say what they mean when they are pointed at."""
    return render('<abbr title="{}">{}</abbr>', meaning, typeset(text)) if meaning else typeset(text)


def method_label(title: str, code: str) -> Markup:
    """Return a method's name in words with its code beside; the code alone where there are no words."""
    code_text = breakable(code)
    return render("{} <code>{}</code>", typeset(title), code_text) if title else code_text


def breakable(name: str) -> Markup:
    """Return a method's name in which a line may end before its arguments."""
    return typeset(name).replace("(", Markup("<wbr>("))


def switchable_text(expert: Markup, lay: Markup) -> Markup:
    """Return what is shown, and what instead to who asks for plain words."""
    return render('<span class="exact">{}</span><span class="plain">{}</span>', expert, lay)


def note(text: str) -> Markup:
    """Return a remark below what it is about."""
    return render('<p class="note">{}</p>', typeset(text))


def control_data(kind: str, content: Any) -> Markup:
    """Return numbers for the page's script, which makes of them what `kind` says; without it, nothing is seen."""
    return render('<div class="play" data-kind="{}" hidden>{}</div>', kind, json_script(content))


def json_script(content: Any) -> Markup:
    r"""Return JSON that no browser takes for anything else, and in which whatever cannot be seen is spelled out.

    >>> print(json_script(["</script>&"]))
    <script type="application/json">["\u003c/script\u003e\u0026"]</script>
    """
    text = json.dumps(_clean_strings(content), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for mark in "<>&":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return render('<script type="application/json">{}</script>', Markup(text))


def _clean_strings(content: Any) -> Any:
    if isinstance(content, str):
        return escape_invisible(abbreviate(content, MAX_TEXT_CHARACTERS))
    if isinstance(content, Mapping):
        return {escape_invisible(key): _clean_strings(value) for key, value in content.items()}
    return [_clean_strings(value) for value in content] if isinstance(content, list | tuple) else content


def typeset(text: str) -> Markup:
    """Return text for a page: escaped, percent signs kept with their numbers, minus signs for hyphens before them.

    `Markup` stays as it is.
    """
    if isinstance(text, Markup):
        return text
    text = abbreviate(text, MAX_TEXT_CHARACTERS)
    text = re.sub(r"(?<=\d) (?=%)|(?<=\b[pT]) (?=[<=])|(?<=\b[pT] [<=]) (?=\d)", "\N{NO-BREAK SPACE}", text)
    return escape(re.sub(r"(?<![\w-])-(?=[\d.]|inf)", "\N{MINUS SIGN}", text))


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    bold: Sequence[Sequence[bool]] = (),
    highlighted: Sequence[bool] = (),
    num_row_headings: int = 1,
    caption: str = "table",
    long_row_names: bool = False,
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
        cells = [render('<th scope="row">{}</th>', typeset(cell)) for cell in row[:num_row_headings]]
        for j, cell in enumerate(row[num_row_headings:]):
            strong = bool(bold) and bold[i][j]
            cells.append(render("<td><strong>{}</strong></td>" if strong else "<td>{}</td>", typeset(cell)))
        line = '<tr class="marked">{}</tr>' if highlighted and highlighted[i] else "<tr>{}</tr>"
        body.append(render(line, join_html(cells)))
    return render(
        '<div class="{}" tabindex="0" role="region" aria-label="{}">'
        "<table><thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>",
        "scroll named" if long_row_names else "scroll",
        abbreviate(caption, MAX_TEXT_CHARACTERS),
        join_html(map(_head_cell, head)),
        join_html(body),
    )


def _head_cell(cell: str) -> Markup:
    if not cell:
        return render("<td></td>")
    return render('<th scope="col">{}</th>', cell if isinstance(cell, Markup) else breakable(cell))


def details(summary: str, body: Markup) -> Markup:
    """Return a part that opens at a click or by the keyboard, and always in print."""
    return render("<details><summary>{}</summary>{}</details>", typeset(summary), body)


@cache
def _read_asset(name: str) -> Markup:
    return Markup(files("calibrant.report").joinpath(name).read_text("utf-8"))


def _shorten(text: str) -> str:
    return abbreviate(text, MAX_TEXT_CHARACTERS)


@cache
def _template() -> Any:
    environment = Environment(loader=PackageLoader("calibrant.report", "."), autoescape=True, undefined=StrictUndefined)
    environment.filters["typeset"] = typeset
    environment.filters["shorten"] = _shorten
    return environment.get_template("page.html.j2")


def format_percent(share: float, digits: int = 2) -> str:
    """Write a share in percent."""
    return f"{100 * share:.{digits}f} %"


def join_names(names: Sequence[str]) -> str:
    """Write 'a, b and c'."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
