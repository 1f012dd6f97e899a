"""Texts from users appear as text on pages and in tables, spreadsheets and terminals."""

import csv
import hashlib
import io
import json
import re
import shutil
import subprocess
from base64 import b64encode
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import numpy as np
import polars
import pytest
from calibrant.registry import METRICS
from markdown_it import MarkdownIt
from rich.console import Console
from streams import draw
from typesetting import LATEX, compile_latex

from calibrant import Predictions, assess
from calibrant._core.text import (
    escape_cell,
    escape_invisible,
    escape_latex,
    escape_markdown,
    escape_markup,
    isolate_right_to_left,
)
from calibrant.assessment import Assessment
from calibrant.io.tables import to_safe_csv
from calibrant.metrics import metric
from calibrant.reports import page as pages
from calibrant.reports.document import HoverPoint, Picture
from calibrant.reports.html import control_data, json_script, note, page, table
from calibrant.reports.svg import figure

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
HOSTILE = [
    "<script>document.title='run'</script>",
    "<img src=x onerror=\"document.title='run'\">",
    "</style></title><svg onload=document.title='run'>",
    r"\input{/etc/passwd} 50 % of $x_1^2$ & {a} ~ # | \\[2em]",
    "a|b\n|---|\n**bold** [link](javascript:alert(1)) `code` <b> https://a.example",
    '=HYPERLINK("http://a.example","x")',
    "+1+cmd|' /C calc'!A0",
    "@SUM(1)",
    "\x1b[31mred\x1b]0;title\x07\x9b31m",
    "\u202eevil\u202c\u2066\u200b\ufeff\u2028",
    "[/b] [link=file:///etc] [red",
    "$\\frac{$ _a",
    "\u05d0\u05d1 (\u0645\u0631) \u65e5\u672c \U0001f600 \u0105\u0111 \u00ab\u00e9\u00bb \u03b3",
]


class Parsed(HTMLParser):
    def __init__(self, text: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(text)

    @property
    def kinds(self) -> list[str]:
        """Tags of the elements, without pieces of SVG text and possible line breaks."""
        return [tag for tag, _ in self.tags if tag not in ("wbr", "text", "g")]

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.words += data


def whole_page(text: str) -> str:
    """Return a page with `text` in every place that may hold user text."""
    body = table([text, text], [[text, text]], caption=text)
    hover_points = [HoverPoint(0.5, 0.5, text)]
    picture = figure(
        Picture(
            lambda drawing: drawing.add_subplot().set(title=text, xlabel=text),
            text,
            caption=text,
            hover_points=hover_points,
        )
    )
    content = control_data("classes", {"words": {text: text}, "rows": [[text]]})
    return page(text, note(text), [(text, body + picture + content)], {text: text}, kicker=text)


def study_table(text: str) -> Any:
    """Return a study table with `text` as every name, for an existing metric."""
    pytest.importorskip("torch")
    from calibrant.lab.study.grids import RunNames
    from calibrant.lab.study.tables import ResultCell, ResultTable

    row = RunNames(text, text, text)
    cells = {(row, text): ResultCell({0: 0.5}, 1.0, best=True)}
    return ResultTable("ece", (row,), (text,), cells, paper_note=text, shift=text)


def table_html(table: Any) -> str:
    return str(pages._part(table.as_table()))


@pytest.mark.parametrize("text", HOSTILE)
def test_page_holds_text_as_text(text):
    clean, result = Parsed(whole_page("plain")), Parsed(whole_page(text))
    assert result.kinds == clean.kinds
    assert {name for _, a in result.tags for name in a} <= {name for _, a in clean.tags for name in a}
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u202a-\u202e\u2066\u2067]", whole_page(text))


@pytest.mark.parametrize("text", HOSTILE)
def test_script_data_is_escaped(text):
    """Data for the script cannot end the element, and invisible characters are escaped."""
    content = re.fullmatch(
        r'<script type="application/json">(.*)</script>', json_script({text: [text, 0.5]}), re.DOTALL
    )[1]
    assert not set(content) & set("<>&\u2028\u2029")
    assert json.loads(content) == {escape_invisible(text): [escape_invisible(text), 0.5]}
    (in_page,) = re.findall(
        r'data-kind="classes" hidden><script type="application/json">(.*?)</script>', whole_page(text)
    )
    assert json.loads(in_page)["rows"] == [[isolate_right_to_left(escape_invisible(text))]]


def test_content_policy_allows_only_the_page():
    rendered = whole_page("x")
    (policy,) = [a["content"] for tag, a in Parsed(rendered).tags if a.get("http-equiv")]
    (script,) = re.findall(r"<script>(.*?)</script>", rendered, re.DOTALL)
    script_hash = b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy.startswith(f"default-src 'none'; script-src 'sha256-{script_hash}'; ")
    assert "unsafe-eval" not in policy
    assert policy.count("unsafe-inline") == policy.count("style-src 'unsafe-inline'") == 1


@pytest.mark.parametrize("text", HOSTILE)
def test_study_table_holds_names_as_text(text):
    assert Parsed(table_html(study_table(text))).kinds == Parsed(table_html(study_table("x"))).kinds


def test_metric_heading_is_escaped(monkeypatch):
    table = study_table("x")
    monkeypatch.setattr(type(table), "heading", "<script>alert(1)</script>")
    assert "<script" not in table_html(table)


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on the path (Debian: apt-get install chromium)")
def test_hostile_text_does_not_run_in_a_browser(tmp_path):
    path = tmp_path / "all.html"
    pages = [re.sub("<script>.*?</script>", "", whole_page(text), flags=re.DOTALL) for text in HOSTILE]
    path.write_text("".join(pages), encoding="utf-8")  # without the script, whose hash blocks everything else
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", f"--user-data-dir={tmp_path}/user"]
    command = [BROWSER, *flags, "--virtual-time-budget=2000", "--dump-dom", path.as_uri()]
    process = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert "<title>run</title>" not in process.stdout
    assert set(re.findall("<script.*?>", process.stdout)) == {'<script type="application/json">'}


@pytest.mark.parametrize("text", HOSTILE)
def test_markdown_table_shows_names(text):
    rendered = MarkdownIt("gfm-like", {"linkify": False, "html": True}).render(study_table(text).markdown())
    result = Parsed(rendered)
    assert {tag for tag, _ in result.tags} <= {"table", "thead", "tbody", "tr", "th", "td", "strong", "em", "p"}
    assert sum(tag == "td" for tag, _ in result.tags) == 2
    assert sum(tag == "strong" for tag, _ in result.tags) == 1
    assert result.words.count(escape_invisible(text).strip()) >= 3
    assert Parsed(MarkdownIt().render(escape_markdown(text))).words.strip() == escape_invisible(text).strip()


@pytest.mark.parametrize("text", HOSTILE)
def test_latex_has_only_own_commands(text):
    """Braces match, and every LaTeX command comes from calibrant."""
    rendered = study_table(text).latex()
    assert rendered.isprintable() or set(rendered) - {"\n"} <= {c for c in rendered if c.isprintable()}
    commands = set(re.findall(r"\\[a-zA-Z]+", rendered.replace(r"\\ ", " ").replace("\\\\\n", "\n")))
    ours = "begin end toprule midrule bottomrule quad textbf textit footnotesize pm"
    ours += " centering caption resizebox ifdim width linewidth else fi par smallskip parbox"
    ours += " ifdefined Umathcode"
    ours += " textbackslash textasciitilde textasciicircum textbar textless textgreater"
    assert commands <= {f"\\{word}" for word in ours.split()}
    bare = re.sub(r"\\[{}\\%_#&$]", "", rendered.replace(r"\ifdim\width>", "").replace("{!}{%", "{!}{"))
    assert bare.count("{") == bare.count("}")
    assert bare.count("&") == 2  # of the head and the row
    assert not re.search(r"[%#~^|<>_]", bare)


@pytest.mark.skipif(LATEX is None, reason="no LaTeX compiler on the path")
def test_latex_compiles(tmp_path):
    compile_latex("\n\n".join(study_table(text).latex() for text in HOSTILE), tmp_path)


@pytest.fixture(scope="module")
def hostile_study(tmp_path_factory):
    """Return the folder of a study whose models, data and metric settings have hostile names."""
    pytest.importorskip("torch")
    from calibrant.lab import study

    folder = tmp_path_factory.mktemp("hostile")

    def save_predictions(seed: int) -> str:
        draw(30, seed=seed).save(folder / f"{seed}.npz")
        return str(folder / f"{seed}.npz")

    pairs = enumerate([(text, seed) for text in HOSTILE for seed in range(2)])
    models = [
        study.Model(text, save_predictions(2 * i), save_predictions(2 * i + 1), seed, text) for i, (text, seed) in pairs
    ]
    measured = ("ece", *(f"noted(note={text!r})" for text in HOSTILE[3:5]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(METRICS, "_methods", {name: METRICS[name] for name in METRICS})
        patch.setattr(study.Result, "html", lambda *_: "no page")

        @metric("noted")
        def noted(logits, labels, *, note: str = ""):
            return logits.mean()

        study.run(
            study.Study("s", calibrators=("Identity", "Temperature"), metrics=measured, models=models), out=folder
        )
    return folder


def test_study_latex_has_packages_and_captions(hostile_study):
    text = (hostile_study / "tables.tex").read_text(encoding="utf-8")
    assert text.startswith(r"% \usepackage{booktabs, amssymb, graphicx}")
    assert text.count(r"\begin{table}") == text.count(r"\caption{") == text.count(r"\end{table}") == 3
    assert r"\caption{ECE in \%; mean $\pm$ standard deviation over seeds; temperature in brackets" in text


@pytest.mark.skipif(LATEX is None, reason="no LaTeX compiler on the path")
def test_study_latex_compiles_within_the_line_width(hostile_study):
    assert "Overfull" not in compile_latex((hostile_study / "tables.tex").read_text(encoding="utf-8"), hostile_study)


@pytest.mark.parametrize("text", HOSTILE)
def test_csv_holds_text_and_numbers(text):
    frame = polars.DataFrame({"name": [text, "-0.5", "plain", None], "value": [-0.5, 1.0, 2.0, 3.0]})
    rows = list(csv.reader(io.StringIO(to_safe_csv(frame))))
    assert len(rows) == 5
    assert [row[1] for row in rows[1:]] == ["-0.5", "1.0", "2.0", "3.0"]
    assert [row[0] for row in rows[2:]] == ["-0.5", "plain", ""]
    assert rows[1][0] in (escape_invisible(text), "'" + escape_invisible(text))
    assert rows[1][0][0] not in "=+-@\t\r"


@pytest.mark.parametrize("number", ["-0.5", "+1e-3", "-inf", "-.5", "3"])
def test_numbers_are_not_escaped(number):
    assert escape_cell(number) == number


@pytest.mark.parametrize("text", HOSTILE)
def test_terminal_shows_text(text):
    console = Console(file=io.StringIO(), width=400, force_terminal=True, color_system="truecolor", highlight=False)
    console.print(escape_markup(text))
    assert console.file.getvalue().rstrip("\n").replace("\\", "") == escape_invisible(text).replace("\\", "")
    assert all(32 <= ord(mark) < 127 or ord(mark) > 160 for mark in escape_invisible(text))


@pytest.mark.usefixtures("pictures")
@pytest.mark.parametrize("text", [HOSTILE[0], HOSTILE[8]])
def test_calibrator_may_have_a_hostile_name(text):
    p = Predictions(np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 3)
    result = assess(p[:20], p[20:], ["Identity"])

    def with_calibrator(name: str) -> Assessment:
        choice: dict[str, Any] = {"chosen_name": name, "selection": "requested", "held_out_nll": {}}
        return replace(result, measurements={name: result.calibrated}, calibrators={name: result.best}, **choice)

    assert "\x1b" not in str(with_calibrator(text))
    assert Parsed(with_calibrator(text).html()).kinds == Parsed(with_calibrator("Name").html()).kinds


def test_method_names_are_not_escaped():
    assert escape_markdown("label_smoothing(epsilon=0.05)") == "label_smoothing(epsilon=0.05)"
    assert escape_latex("focal(gamma=3)") == "focal(gamma=3)"
    assert (
        escape_latex("a--b-c, f(x='') ?`") == "a-{}-b-c, f(x='{}') ?{}`"
    )  # no dash, no quotation marks, nothing turned
    assert escape_invisible("Gruß ± 日本 – 5 %") == "Gruß ± 日本 – 5 %"
