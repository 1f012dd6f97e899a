"""Reports: self-contained pages with text alternatives, whose numbers equal those of the metrics."""

import math
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from assessed_pages import FAST, drawn, reported
from drawn import drawn_labels
from markupsafe import Markup
from rendered import FOLDER, assert_rendered
from scipy.special import softmax

from calibrant import Predictions, assess, measure, metrics
from calibrant._core.numbers import format_p_value
from calibrant.assessment import Assessment
from calibrant.assessment._sentences import (
    decomposed_changes,
    headline,
    remedy_answer,
    score_change_sentence,
)
from calibrant.reports.document import Picture
from calibrant.reports.html import page, table, typeset
from calibrant.reports.svg import figure


def number(name: str, value: float) -> str:
    return metrics.metric_info(name).text(value)


class Parsed(HTMLParser):
    def __init__(self, text: str):
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        if self.elements and self.elements[-1][0] not in ("script", "style"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).replace("\N{NO-BREAK SPACE}", " ").replace("\N{MINUS SIGN}", "-").split())

    def all(self, *tags: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.elements if tag in tags]


def test_page_loads_nothing_from_outside(over):
    _, text = over
    result = Parsed(text)
    assert result.all("iframe", "object", "embed", "base", "form") == []
    assert [kind for script in result.all("script") if (kind := script.get("type")) != "application/json"] == [None]
    for _, attributes in result.elements:
        for name in ("href", "src", "srcset", "xlink:href", "action", "poster"):
            value = attributes.get(name) or ""
            assert not value or value.startswith(("#", "data:")), (name, value)
    outside = set(re.findall(r"https?://[^\"' ]*|@import|url\((?!#|\"#|'#)", text))
    assert outside <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}  # namespaces in the script


def test_every_picture_has_a_text_alternative(over):
    result = Parsed(over[1])
    pictures = result.all("svg", "img", "canvas")
    assert len(pictures) >= 5  # two curves, two bar charts, one risk-coverage curve
    for picture in pictures:
        assert picture["role"] == "img"
        assert len(picture["aria-label"] or "") > 60
    for region in result.all("div"):
        if region.get("class") == "scroll":
            assert (region["tabindex"], region["role"]) == ("0", "region")
            assert region["aria-label"]


def test_page_is_valid_html(over):
    result = Parsed(over[1])
    assert over[1].startswith("<!doctype html>")
    assert len(result.all("h1")) == len(result.all("main")) == len(result.all("title")) == 1
    assert result.all("html")[0]["lang"] == "en"
    ids = [attributes["id"] for _, attributes in result.elements if attributes.get("id")]
    refs = set(re.findall(r'(?:href="|url\()#([^")]+)', over[1]))
    assert refs <= set(ids)
    for tag in ("div", "table", "tr", "td", "th", "section", "details", "svg", "figure", "dl", "dd", "small", "strong"):
        assert over[1].count(f"<{tag}>") + over[1].count(f"<{tag} ") == over[1].count(f"</{tag}>"), tag


def test_assessment_sections(over):
    assert_rendered("headings_assessed", "\n".join(re.findall(r"<h2>(.*?)</h2>", over[1])), may_add_lines=True)


def test_sections_that_are_missing_or_moved_are_detected(monkeypatch):
    monkeypatch.delenv("CALIBRANT_WRITE_GOLDEN", raising=False)
    headings = (FOLDER / "headings_assessed.txt").read_text().splitlines()
    assert_rendered("headings_assessed", "\n".join([*headings[:5], "New", *headings[5:]]), may_add_lines=True)
    for wrong in (headings[:3] + headings[4:], [*headings[:2], headings[3], headings[2], *headings[4:]]):
        with pytest.raises(AssertionError):
            assert_rendered("headings_assessed", "\n".join(wrong), may_add_lines=True)


def test_page_numbers_equal_the_metrics(over):
    result, text = over
    test = drawn(1500, 1, 2.0)
    page_text = Parsed(text).text
    for name in ("accuracy", "nll", "brier", "ece", "adaptive_ece", "debiased_l2", "kuiper", "smooth_ece", "aurc"):
        assert number(name, float(getattr(metrics, name)(test))) in page_text, name
    gap = metrics.signed_gap.interval(test)
    assert f"[{number('signed_gap', gap.low)}, {number('signed_gap', gap.high)}]" in page_text
    floor = metrics.noise_floor.interval(test)
    assert f"[{number('noise_floor', floor.low)}, {number('noise_floor', floor.high)}]" in page_text
    calibrated = Predictions(result.calibrators["Temperature"](test.logits), test.labels)
    for row in measure(calibrated):
        assert row.text in page_text, row.name
    nll = metrics.compare(test, calibrated, names=["nll"])["nll"]
    assert f"[{nll.low:.4f}, {nll.high:.4f}]" in page_text


def test_refinement_and_calibration_add_up_to_the_score(over):
    result, text = over
    test = drawn(1500, 1, 2.0)
    after = Predictions(result.calibrators["Temperature"](test.logits), test.labels)
    body = text.partition("<h2>Refinement and calibration</h2>")[2].partition("<h2>")[0]
    for name in ("nll", "brier"):
        score, refinement = (float(getattr(metrics, name)(p)) for p in (test, after))
        row = next(
            parts for parts in re.findall(r"<tr>(.*?)</tr>", body) if metrics.metric_info(name).heading() in parts
        )
        assert [float(cell) for cell in re.findall(r"<td>([\d.]+)", row)[:3]] == pytest.approx(
            [score, refinement, score - refinement], abs=1e-4
        )
    decomposition = metrics.decompose_score(
        test, fit=lambda p: result.calibrators["Temperature"]
    )  # fitted on other data
    assert f"[{decomposition.score.low:.4f}, {decomposition.score.high:.4f}]" in body
    assert f"{decomposition.score.value:.4f} by {decomposition.calibration.value:.4f} (" in body


def test_cost_sentence_without_improvement(over):
    changed = (replace(over[0], changes=_changed(over[0], nll)) for nll in (0.0, 0.5, math.nan))
    assert_rendered("cost_unsplit", "\n".join(map(score_change_sentence, changed)))
    for result, text in (reported(1.0, choose="Identity"), reported(2.0, n=1, choose="Temperature")):
        assert decomposed_changes(result) == []
        assert "Refinement and calibration" not in text


def _changed(result: Assessment, nll: float) -> metrics.Comparison:
    rows = {row.name: row for row in result.changes or ()}
    rows["nll"] = replace(rows["nll"], difference=nll, low=nll - 0.1, high=nll + 0.1)
    return replace(result.changes, rows=tuple(rows.values()))


def test_classes_are_listed_worst_first(over):
    test = drawn(1500, 1, 2.0)
    body = over[1].partition("<h2>Classes, worst first</h2>")[2].partition("</table>")[0]
    rows = re.findall(r'<th scope="row">(\d+)</th>', body)
    class_ece = [metrics.ece(test.with_event(j)) for j in range(5)]
    assert rows == [str(j) for j in sorted(range(5), key=class_ece.__getitem__, reverse=True)]
    assert f"{100 * max(class_ece):.2f}" in body


def test_mistakes_are_listed_by_row(over):
    result, text = over
    body = text.partition("<h2>Most confident errors</h2>")[2].partition("<h2>")[0]
    assert re.findall(r'<th scope="row">(\d+)</th>', body) == [str(m.row) for m in result.mistakes]


def test_usage_code_loads_the_saved_calibrator(over, tmp_path):
    from markupsafe import Markup

    from calibrant import calibrators

    result, text = over
    path = tmp_path / "it's.safetensors"
    calibrators.save(result.calibrators[result.chosen_name], path)
    saved = result.html({"command": "calibrant"}, path)
    code = Markup(re.search(r"<pre><code>(.*?)</code></pre>", saved, re.DOTALL)[1]).unescape()
    assert len(code.splitlines()) == 4
    names: dict = {"logits": drawn(4, 3, 1.0).logits}
    exec(code, names)
    expected = softmax(result.calibrators[result.chosen_name](names["logits"]), -1)
    np.testing.assert_allclose(names["probs"], expected, rtol=1e-6)
    assert "--save" not in saved
    assert "--save calibrator.safetensors" in Parsed(text).text
    assert "result.save('calibrator.safetensors')" in Parsed(result.html()).text


@pytest.mark.parametrize(
    ("by", "status", "direction"),
    [(2.0, "miscalibrated", "over"), (0.5, "miscalibrated", "under"), (1.0, "too_little_data", None)],
)
def test_verdict_names_the_true_direction(by, status, direction, over):
    result, text = (
        over if by == 2.0 else reported(by, n=200 if by == 1.0 else 1500)
    )  # 200 are too few for a bound of .05
    assert (result.uncalibrated.verdict.status, result.uncalibrated.verdict.direction) == (status, direction)
    gap = abs(result.uncalibrated["signed_gap"].value)
    if by != 1.0:
        assert f"{100 * gap:.1f} " in headline(result.uncalibrated)
        assert result.changes["nll"].high < 0
    assert_rendered(
        f"answers_by_{by}",
        "\n".join([headline(result.uncalibrated), *(answer.text for answer in result.document().answers)]),
    )
    assert Parsed(text).text.count(headline(result.uncalibrated)) >= 2  # title and heading


def test_page_of_identity():
    result, text = reported(2.0, n=400, choose="Identity")
    assert "a lower NLL" not in remedy_answer(result)  # Temperature has one
    assert len(result.document().answers) == 3
    assert "Nothing to apply" in text
    assert "After" not in "".join(re.findall(r"<figcaption>(.*?)</figcaption>", text))


def test_few_examples_are_not_called_calibrated():
    result, _ = reported(1.0, n=12)
    assert result.uncalibrated.verdict.bound > 0.1
    assert_rendered("headline_few_examples", headline(result.uncalibrated))


@pytest.mark.usefixtures("pictures")  # whose numbers are text of the page
@pytest.mark.parametrize(
    ("n", "k", "right"),
    [
        (1, 2, True),
        pytest.param(1, 2, False, marks=pytest.mark.slow),
        pytest.param(3, 2, True, marks=pytest.mark.slow),
        (30, 3, True),
        (5, 40, False),
    ],
)
def test_degenerate_predictions_are_reported(n, k, right):
    logits = np.random.default_rng(n).normal(scale=9, size=(2 * n, k))
    labels = logits.argmax(1) if right else logits.argmin(1)
    predictions = Predictions(logits, labels)
    result = assess(predictions[:n], predictions[n:], FAST)
    page_text = Parsed(result.html()).text
    assert "nan" not in page_text.lower()
    assert not re.search(r"-0\.0+(?!\d)", page_text)
    assert ("Most confident errors" in page_text) != right


def test_confidence_is_not_rounded_up_to_certainty():
    before = Predictions([[20.0, 0.0], [0.0, 3.0]], [1, 1])
    text = assess(drawn(50, 0, 1.0, k=2), before, FAST).html()
    assert "99.99999979 %" in Parsed(text).text


def test_facts_are_escaped():
    result, _ = reported(1.0, n=50)
    text = result.html({"command": "calibrant '<script>alert(1)</script>'", "<b>": "<i>&"})
    assert "<script>alert" not in text
    assert "&lt;b&gt;" in text
    assert page("<t>", typeset("<l>"), [("<h>", Markup())], {}).count("<t>") == 0


def test_typeset_table_and_p_value():
    assert typeset("4.75 % (-0.1, e-3) a-1 <") == "4.75\N{NO-BREAK SPACE}% (\N{MINUS SIGN}0.1, e-3) a-1 &lt;"
    assert format_p_value(0.0) == "p < 0.0001"
    assert format_p_value(0.034) == "p = 0.034"
    html = table(["a", "b"], [["x", "1"], ["y", "2"]], bold=[[False], [True]], highlighted=[True, False], caption='"q"')
    assert "<strong>2</strong>" in html
    assert '<tr class="marked"><th scope="row">x' in html
    assert "&#34;q&#34;" in html


def test_figures_use_the_colors_of_the_page():
    picture = Picture(lambda drawing: drawing.add_subplot().plot([0, 1], color="#4269d0"), "a line", caption="c")
    html = figure(picture)
    assert "var(--blue)" in html
    assert "currentColor" in html
    assert "#4269d0" not in html
    assert html == figure(picture)


def test_report_on_chunks():
    test = drawn(1500, 1, 2.0)
    result = assess(drawn(1500, 0, 2.0), [test[:600], test[600:]], FAST)
    page_text = Parsed(result.html()).text
    assert "read in chunks" in page_text
    assert "Classes, worst first" in page_text
    assert number("ece", float(metrics.ece(test))) in page_text
    assert "nan" not in page_text


def shifted(n: int, seed: int) -> Predictions:
    """Return binary predictions whose logits are too large by 0.7."""
    rng = np.random.default_rng(seed)
    logits = np.stack([np.zeros(n), rng.normal(size=n)], 1)
    return Predictions(logits + np.array([0, 0.7]), drawn_labels(logits, rng))


def test_page_on_two_classes_describes_the_probability_of_class_1():
    test = shifted(1500, 1)
    result = assess(shifted(1500, 0), test, ("Identity", "Temperature"))
    text = result.html()
    page_text = Parsed(text).text
    mean_probability, frequency = softmax(test.logits, 1)[:, 1].mean(), test.labels.mean()
    assert f"{100 * (mean_probability - frequency):.1f} " in headline(result.uncalibrated)
    for part in (
        headline(result.uncalibrated),
        f"{100 * mean_probability:.1f} %",
        f"{100 * frequency:.1f} %",
        result.uncalibrated.event.title,
    ):
        assert part in page_text, part
    assert "frequency of class 1" in text
    for wrong in ("verconfiden", "nderconfiden", "Selective prediction", "confidence minus"):
        assert wrong not in page_text, wrong
    assert_rendered("figure_of_class_1", Parsed(text).all("svg")[0]["aria-label"] or "")
    top = Parsed(assess(shifted(1500, 0), test, ("Identity", "Temperature"), of="top").html()).text
    assert "class 1" not in top.replace("class 1 ", "")
    assert "Selective prediction" in top


def test_page_on_a_measurement_has_no_calibrators():
    p = drawn(1500, 1, 2.0)
    measured = measure(p)
    text = measured.html({"measured": "b.npz"})
    page_text = Parsed(text).text
    assert_rendered("headings_measured", "\n".join(re.findall(r"<h2>(.*?)</h2>", text)), may_add_lines=True)
    assert "no calibrator was fitted" in page_text
    assert headline(measured) in page_text
    for row in measured:
        assert row.text in page_text, row.name
    for word in ("held-out", "Changes are measured", "nan"):
        assert word not in page_text, word


@pytest.mark.parametrize("of", ["top", 1])
def test_page_on_a_measurement_calls_no_predictions_uncalibrated(of):
    # A calibrator may have been applied before: by `measure --calibrator`, or in Python
    text = measure(drawn(400, 3, 2.0, k=2), of=of).html()
    assert "uncalibrated" not in text.casefold()
    assert "As measured" in text


def test_notebook_shows_answers_and_numbers(over):
    page_text = Parsed(over[0]._repr_html_()).text
    for part in (headline(over[0].uncalibrated), *(answer.text for answer in over[0].document().answers)):
        assert " ".join(part.split()) in page_text
    assert "<svg" not in over[0]._repr_html_()
    assert Parsed(measure(drawn(100, 0, 1.0))._repr_html_()).all("table")
