"""HTML elements of a self-contained page: a title, a lead, sections, and a script that adds interaction.

Functions return `Markup`. Other text is escaped wherever it is inserted, so that a forgotten conversion shows tags
instead of running them. The page loads nothing from the network and is complete without its script.
"""

import hashlib
import json
import platform
import re
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache, partial
from importlib.resources import files
from typing import Any, LiteralString

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup, escape

from calibrant._core.text import MAX_TEXT_CHARACTERS, abbreviate, escape_invisible, isolate_right_to_left
from calibrant._core.version import __version__


def page(
    title: str,
    lead: Markup,
    sections: Sequence[tuple[str, Markup]],
    facts: Mapping[str, str],
    *,
    kicker: str = "",
) -> str:
    """Return the HTML page.

    Args:
        title: The main result.
        lead: What stands between the title and the sections.
        sections: Headings and bodies in reading order.
        facts: Names and values for the last section, "How this was computed".
        kicker: Small text above the title.
    """
    script = _read_asset("script.js")
    html = _template("page.html.j2").render(
        title=title,
        lead=lead,
        sections=sections,
        facts=facts,
        style=_read_asset("style.css"),
        script=script,
        digest=b64encode(hashlib.sha256(script.encode()).digest()).decode(),  # the page runs no other script
        kicker=kicker,
    )
    return reveal_hidden_characters(html)


def render(template: LiteralString, *values: str, **named_values: str) -> Markup:
    """Return a literal template filled with values, each escaped unless it is `Markup`.

    >>> render("<b>{}</b>", "<script>")
    Markup('<b>&lt;script&gt;</b>')
    """
    return Markup(template).format(*values, **named_values)


def join_html(parts: Iterable[str]) -> Markup:
    """Return the concatenated parts, each escaped unless it is `Markup`."""
    return Markup().join(parts)


def reveal_hidden_characters(html: str) -> str:
    """Return HTML with visible escapes for invisible characters, and with right-to-left words isolated."""
    return isolate_right_to_left(escape_invisible(html, allowed="\n\t"))


def term(text: str, meaning: str) -> Markup:
    """Return text with an explanation on hover, or the text alone if the explanation is empty."""
    return render('<abbr title="{}">{}</abbr>', meaning, typeset(text)) if meaning else typeset(text)


def breakable(name: str) -> Markup:
    """Return a method's name that may break before its arguments."""
    return typeset(name).replace("(", Markup("<wbr>("))


def note(text: str) -> Markup:
    """Return a small explanatory paragraph."""
    return render('<p class="note">{}</p>', typeset(text))


def control_data(kind: str, content: Any) -> Markup:
    """Return the data of an interactive control, hidden until the script builds the control of this `kind`."""
    return render('<div class="play" data-kind="{}" hidden>{}</div>', kind, json_script(content))


def json_script(content: Any) -> Markup:
    r"""Return JSON in a script element, safe inside HTML and with visible escapes for invisible characters.

    >>> print(json_script(["</script>&"]))
    <script type="application/json">["\u003c/script\u003e\u0026"]</script>
    """
    text = json.dumps(_clean_strings(content), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for mark in "<>&":  # which JSON contains only inside strings
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return render('<script type="application/json">{}</script>', Markup(text))


def _clean_strings(content: Any) -> Any:
    """Return JSON content with its texts shortened, and with visible escapes for invisible characters."""
    if isinstance(content, str):
        return escape_invisible(abbreviate(content, MAX_TEXT_CHARACTERS))
    if isinstance(content, Mapping):
        return {escape_invisible(key): _clean_strings(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_clean_strings(value) for value in content]
    return content


def typeset(text: str) -> Markup:
    """Return escaped text with non-breaking spaces in values such as "90 %", and with real minus signs.

    `Markup` is returned unchanged.
    """
    if isinstance(text, Markup):
        return text
    text = abbreviate(text, MAX_TEXT_CHARACTERS)
    # The spaces in "90 %", "1 ± 2", "p = 0.01", "p < 0.0001" and "T = 2" do not break
    text = re.sub(r"(?<=\d) (?=[%±])|(?<=±) (?=\d)", "\N{NO-BREAK SPACE}", text)
    text = re.sub(r"(?<=\b[pT]) (?=[<=])|(?<=\b[pT] [<=]) (?=\d)", "\N{NO-BREAK SPACE}", text)
    # The hyphens in "-1", "-.5" and "-inf" are minus signs, but not those in "a-1" and "--1"
    return escape(re.sub(r"(?<![\w-])-(?=[\d.]|inf)", "\N{MINUS SIGN}", text))


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    bold: Sequence[Sequence[bool]] = (),
    highlighted: Sequence[bool] = (),
    caption: str = "table",
    long_row_names: bool = False,
    groups: Mapping[int, str] | None = None,
) -> Markup:
    """Return an HTML table.

    Args:
        head: Column headings.
        rows: Cells of each row, as text or `Markup`; the first one is the heading of the row.
        bold: Which cells after the row heading are bold.
        highlighted: Which rows are highlighted.
        caption: Name of the table for screen readers and downloads.
        long_row_names: Whether row headings may break.
        groups: Headings to insert above rows, by row index.
    """
    html = _template("table.html.j2").render(
        head=head,
        rows=rows,
        bold=bold,
        highlighted=highlighted,
        caption=caption,
        long_row_names=long_row_names,
        groups=groups or {},
    )
    return Markup(html)


def details(summary: str, body: Markup) -> Markup:
    """Return a foldable part, which print always shows open."""
    return render("<details><summary>{}</summary>{}</details>", typeset(summary), body)


@cache
def _read_asset(name: str) -> Markup:
    """Return the text of a file of this package, such as the style sheet, to be inserted without escapes."""
    return Markup(files("calibrant.reports").joinpath(name).read_text("utf-8"))


@cache
def _template(name: str) -> Template:
    """Return a template of this package, which escapes all texts and fails for undefined names."""
    environment = Environment(
        loader=PackageLoader("calibrant.reports", "."), autoescape=True, undefined=StrictUndefined
    )
    shorten = partial(abbreviate, limit=MAX_TEXT_CHARACTERS)
    environment.filters |= {"typeset": typeset, "breakable": breakable, "shorten": shorten}
    return environment.get_template(name)


def version_facts(command: str) -> dict[str, str]:
    """Return command, versions and time of the report."""
    return {
        "command": command,
        "versions": f"calibrant {__version__}, numpy {np.__version__}, Python {platform.python_version()}",
        "created": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }
