"""Every number of the page of results is read from a table, a study file or a paper's printed table."""

import csv
import importlib
import re
import shutil

import jinja2
import jinja2.nodes
import pytest
from doc_pages import ROOT

pytest.importorskip("torch")
page = importlib.import_module("benchmarks.results_page")
tables = importlib.import_module("benchmarks._result_tables")
texts = importlib.import_module("benchmarks._result_texts")

RESULTS = ROOT / "docs" / "results"
FILES = sorted(path.relative_to(RESULTS) for path in RESULTS.rglob("*.csv"))
DIGITS = re.compile(r"\d")
NO_PROSE = re.compile(r"\{%.*?%\}|\{\{.*?\}\}|^```.*?^```|`[^`]+`|(src|width)=\"[^\"]*\"", re.DOTALL | re.MULTILINE)
NO_RESULTS = (  # numbers that name something: parts of papers, years, methods and data sets, settings, list items
    r"\b(table|figure|section)s? [\d.]*\d[a-z]?((, | and | to )\d+[a-z]?)*",
    r"\b(19|20)\d\d\b",
    r"\b[a-z]+\d*-?\d+\b",
    r"\b(gamma( of)?|seed|norm|smoothing) \.?\d+",
    r"^(\| )?\d\. ",
)


def other_numbers(template):
    """Return the lines of a template with a number that is neither an expression nor part of a name."""
    prose = NO_PROSE.sub("", template)
    for rule in NO_RESULTS:
        prose = re.sub(rule, "", prose, flags=re.MULTILINE | re.IGNORECASE)
    return [line for line in prose.splitlines() if DIGITS.search(line)]


def constant_expressions(template):
    """Return the lines of expressions and assignments that read nothing."""
    nodes = jinja2.nodes
    parsed = jinja2.Environment(autoescape=True).parse(template)
    outputs = [part for output in parsed.find_all(nodes.Output) for part in output.nodes]
    outputs = [part for part in outputs if not isinstance(part, nodes.TemplateData)]
    settings = [assigned.node for assigned in parsed.find_all(nodes.Assign)]
    constants = [node.lineno for node in outputs if not any((isinstance(node, nodes.Name), *node.find_all(nodes.Name)))]
    numbers = [part for node in settings for part in (node, *node.find_all(nodes.Const))]
    return constants + [
        part.lineno
        for part in numbers
        if isinstance(part, nodes.Const) and isinstance(part.value, float | int) and not isinstance(part.value, bool)
        if part.value != 0  # an index
    ]


def test_the_page_states_no_number_that_is_not_read():
    template = page.TEMPLATE.read_text()
    assert other_numbers(template) == []
    assert constant_expressions(template) == []
    assert template.count("{{") > 200


@pytest.mark.parametrize(
    "text",
    ["an ECE of 12.7 %", "p = .03", "| 3 | 4 |", "12 networks", "over 30 epochs", 'alt="ends at 2.3"', "by .5 points"],
)
def test_numbers_outside_of_expressions_are_found(text):
    assert other_numbers(text) == [text]


@pytest.mark.parametrize("text", ["{{ 12.7 }}", "{{ 100 * 2 | num }}", "{% set x = 12.7 %}{{ x }}", "{{ '12.7' }}"])
def test_numbers_written_as_expressions_are_found(text):
    assert constant_expressions(text) == [1]


def test_the_page_has_nothing_outside_of_the_rendered_text():
    text = (RESULTS / "README.md").read_text()
    statements = importlib.import_module("benchmarks.statements")
    outside = statements.MARKED.sub("", text)
    assert not DIGITS.search(outside)
    assert [path.name for path in RESULTS.rglob("*.md")] == ["README.md"]


@pytest.fixture(scope="module")
def rendered():
    return page.render(RESULTS)


@pytest.mark.parametrize("name", [str(path) for path in FILES])
def test_a_changed_number_changes_the_page(name, rendered, tmp_path):
    shutil.copytree(RESULTS, tmp_path / "results", ignore=shutil.ignore_patterns("*.png"))
    path = tmp_path / "results" / name
    with path.open(newline="") as lines:
        rows = list(csv.reader(lines))
    for row in rows[1:]:
        row[:] = [f"{1.5 * float(cell) + 0.1}" if re.fullmatch(r"-?\d+\.\d+", cell) else cell for cell in row]
    with path.open("w", newline="") as lines:
        csv.writer(lines).writerows(rows)
    assert page.render(tmp_path / "results") != rendered


def test_text_of_numbers():
    assert [texts.number_text(x, 2) for x in (0.125, -0.5, 1.0, "0.115")] == [".13", "-.50", "1.00", ".12"]
    assert texts.number_text(55.65) == "55.7"
    assert texts.span_text([0.24, 0.238], 2) == ".24"
    assert texts.span_text([0.3, 0.1], 0, 100) == "10 to 30"
    row = {"interval": "-1.06 to -0.16", "p": "0.13", "low": "0.5", "high": "0.9"}
    assert (texts.limits_text(row, 2, -1), texts.limits_text(row, 1)) == (".16 to 1.06", "-1.1 to -.2")
    assert (texts.p_text(row), texts.recorded_text(row)) == (".13", ".5 to .9")


def test_rank_correlation_has_the_exact_p_value():
    """Of five losses whose order is that of the paper except for two neighbors, 10 of 120 orders are as extreme."""
    result = tables.ResultTables(RESULTS).rank_correlation("long", "T")
    assert result["statistic"] == pytest.approx(0.9)
    assert result["pvalue"] == pytest.approx(10 / 120)


def test_paper_marks_count_only_regularized_networks():
    assert page.paper_marks("wang_2021", "Table 2") == {"▲": 13, "▼": 0, "higher": 23, "n": 24}
