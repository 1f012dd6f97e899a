"""Hostile names of classes and groups stay text on every page and in every notebook cell."""

import ast
import re
import sys
import unicodedata
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markupsafe import Markup
from matplotlib.figure import Figure
from torture.hostile_names import named_predictions, names

import calibrant
from calibrant import assess, measure
from calibrant._core.text import INVISIBLE_CHARACTER, abbreviate, display_name, escape_invisible, isolate_right_to_left
from calibrant.predictions.events import describe_event
from calibrant.reports import plots
from calibrant.reports.diagrams import diagram_explanations
from calibrant.reports.html import details, note, page, render, table

NAMES = names()
SOURCE = Path(calibrant.__file__).parent

pytestmark = pytest.mark.usefixtures("pictures")


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag not in ("wbr", "text", "g", "tspan"):
            self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}


def tags(text: str) -> tuple[list[str], set[str]]:
    parser = Tags(text)
    return parser.tags, parser.attributes


@pytest.mark.parametrize("kind", NAMES)
def test_captions_of_an_event_hold_its_name_as_text(kind):
    event = describe_event(1, 2, ("no", NAMES[kind]))
    for reading in diagram_explanations(event):
        assert tags(note(reading)) == (["p"], {"class"})


@cache
def rendered_measurement(k: int, name: str) -> tuple[str, str, str]:
    """Return the page, the notebook cell and the text of a measurement."""
    measurement = measure(named_predictions(0, k, name), of=0)
    return measurement.html(), measurement._repr_html_(), str(measurement)


@cache
def rendered_assessment(name: str) -> tuple[str, str]:
    """Return the page and the notebook cell of an assessment."""
    result = assess(named_predictions(0, 2, name), named_predictions(1, 2, name), ["Identity", "Temperature"], of=0)
    return result.html(), result._repr_html_()


@pytest.mark.parametrize(("kind", "k"), [("refresh", 2), ("long", 3), ("override", 2)])
def test_measurement_page_and_cell_hold_names_as_text(kind, k):
    (page, cell, text), (plain_page, plain_cell, _) = (
        rendered_measurement(k, NAMES[kind]),
        rendered_measurement(k, "plain"),
    )
    assert tags(page) == tags(plain_page)
    assert tags(cell) == tags(plain_cell)
    assert len(page) < 2 * len(plain_page), "a section shows names without `display_name`"
    assert "\x1b" not in text


@pytest.mark.parametrize("kind", ["refresh_left", "quotes"])
def test_assessment_page_and_cell_hold_names_as_text(kind):
    for html, plain_html in zip(rendered_assessment(NAMES[kind]), rendered_assessment("plain"), strict=True):
        assert tags(html) == tags(plain_html)


def test_text_is_escaped_unless_it_is_markup():
    bad = "<meta http-equiv=refresh>"
    parts = [render("<p>{}</p>", bad), table([bad], [[bad]], caption=bad), details(bad, render("<i></i>"))]
    assert all("<meta" not in part and isinstance(part, Markup) for part in parts)
    clean, dirty = (page(text, note(text), [(text, Markup())], {text: text}, kicker=text) for text in ("x", bad))
    assert tags(clean) == tags(dirty)


def test_markup_is_built_from_literals():
    """Only two files may mark text as safe, and only text that they have escaped."""
    calls: set[str] = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            function = getattr(node.func, "id", "") if isinstance(node, ast.Call) else ""
            if function == "Markup" and not all(isinstance(argument, ast.Constant) for argument in node.args):
                calls.add(f"{path.relative_to(SOURCE)}: {ast.unparse(node)}")
    allowed = {f"Markup({name})" for name in ("template", "text", "html", "opening_tag", "svg_body")}
    assert {call.partition(": ")[2] for call in calls} - allowed == {
        "Markup(files('calibrant.reports').joinpath(name).read_text('utf-8'))"
    }
    assert {call.partition(":")[0] for call in calls} == {"reports/html.py", "reports/svg.py"}


def test_templates_are_literals():
    """Templates are written in the source, never built from values."""
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "render":
                assert not any(isinstance(part, ast.JoinedStr | ast.BinOp) for part in ast.walk(node.args[0])), path


def test_invisible_characters_are_escaped():
    marks = [chr(number) for number in range(sys.maxunicode + 1)]
    hidden = {mark for mark in marks if unicodedata.category(mark) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
    spelled = set(INVISIBLE_CHARACTER.findall("".join(marks)))
    assert hidden <= spelled
    noncharacters = {chr(number) for number in (*range(0xFDD0, 0xFDF0), 0xFFFE, 0xFFFF)}
    assert noncharacters <= spelled
    assert len(spelled - hidden - noncharacters) < 30
    assert escape_invisible("".join(sorted(spelled))).isascii()


def test_right_to_left_words_are_isolated():
    word = "\u05d0\u05d1\u05d2"
    text = measure(named_predictions(0, 2, word), of=0).html()
    assert word in text
    assert len(re.findall(f"\u2068{word}\u2069", text)) == text.count(word)
    assert isolate_right_to_left("abc 12") == "abc 12"


def test_study_figure_titles_escape_invisible_characters(tmp_path):
    pytest.importorskip("torch")
    from calibrant.lab.study import figures as study_figures
    from calibrant.lab.study.drawing import Drawing

    drawing = Drawing("d", NAMES["override"], "", lambda ax: ax.plot([0, 1]), [{"x": 1}])
    files = [path.read_text() for path in study_figures._save_drawing(tmp_path, drawing) if path.suffix == ".svg"]
    assert [INVISIBLE_CHARACTER.sub("", text.replace("\n", "")) == text.replace("\n", "") for text in files] == [True]


def test_long_names_are_abbreviated():
    name = "a" * 5_000_000
    assert len(display_name(name)) < 150
    assert "5,000,000" in display_name(name)
    assert abbreviate("b" * 100) == "b" * 100
    assert len(str(measure(named_predictions(0, 2, name), of=0))) < 20_000


@pytest.mark.parametrize("kind", ["latex", "long", "override"])
def test_figures_draw_names_as_text(kind):
    name, ax = NAMES[kind], Figure().add_subplot()
    plots.reliability(named_predictions(0, 2, name).with_event(0), ax=ax)
    plots.curves({name: [1.0, 2.0], "b": [2.0, 1.0]}, ax=(lines := Figure().add_subplot()))
    ax.figure.canvas.draw()
    lines.figure.canvas.draw()
    assert display_name(name) in ax.get_xlabel()
