"""The report: self-contained, a text alternative for every picture, every number in it the functions' own."""

import math
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
import torch
from markupsafe import Markup
from rendered import assert_rendered

from calibrant import Predictions, assess, measure, metrics
from calibrant.assessment import Assessment
from calibrant.assessment.expert_text import (
    assessment_answers,
    decomposed_changes,
    format_p_value,
    headline,
    miscalibration_cost_sentence,
    undetected_error_bound,
    verdict_paragraph,
)
from calibrant.report import Section, figure, page, table, typeset

FAST = ("Identity", "Temperature", "HistogramBinning")


def drawn(n: int, seed: int, by: float, k: int = 5) -> Predictions:
    """Predictions whose logits are `by` times what the labels were drawn from."""
    g = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, k, generator=g, dtype=torch.float64)
    return Predictions(by * logits, torch.multinomial(logits.softmax(-1), 1, generator=g).squeeze(1))


def reported(by: float, n: int = 1500, choose: str | None = None) -> tuple[Assessment, str]:
    found = assess(drawn(n, 0, by), drawn(n, 1, by), FAST, choose=choose)
    return found, found.html({"command": "calibrant assess a.npz b.npz", "judged on": "b.npz"})


def number(name: str, value: float) -> str:
    return metrics.metric_info(name).text(value)


@pytest.fixture(scope="module")
def over() -> tuple[Assessment, str]:
    return reported(2.0)


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


def test_the_page_asks_for_nothing_from_outside(over):
    _, text = over
    found = Parsed(text)
    assert found.all("iframe", "object", "embed", "base", "form") == []
    assert [kind for script in found.all("script") if (kind := script.get("type")) != "application/json"] == [None]
    for _, attributes in found.elements:
        for name in ("href", "src", "srcset", "xlink:href", "action", "poster"):
            value = attributes.get(name) or ""
            assert not value or value.startswith(("#", "data:")), (name, value)
    outside = set(re.findall(r"https?://[^\"' ]*|@import|url\((?!#|\"#|'#)", text))
    assert outside <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}  # names, by the script


def test_every_picture_says_in_words_what_it_shows(over):
    found = Parsed(over[1])
    pictures = found.all("svg", "img", "canvas")
    assert len(pictures) == 5  # two curves, two bar diagrams, one of risk and coverage
    for picture in pictures:
        assert picture["role"] == "img"
        assert len(picture["aria-label"] or "") > 60
    for region in found.all("div"):
        if region.get("class") == "scroll":
            assert (region["tabindex"], region["role"]) == ("0", "region")
            assert region["aria-label"]


def test_the_page_is_sound_html(over):
    found = Parsed(over[1])
    assert over[1].startswith("<!doctype html>")
    assert len(found.all("h1")) == len(found.all("main")) == len(found.all("title")) == 1
    assert found.all("html")[0]["lang"] == "en"
    ids = [attributes["id"] for _, attributes in found.elements if attributes.get("id")]
    refs = set(re.findall(r'(?:href="|url\()#([^")]+)', over[1]))
    assert refs <= set(ids)
    for tag in ("div", "table", "tr", "td", "th", "section", "details", "svg", "figure", "dl", "dd", "small", "strong"):
        assert over[1].count(f"<{tag}>") + over[1].count(f"<{tag} ") == over[1].count(f"</{tag}>"), tag


def test_sections_follow_the_order_of_the_questions(over):
    assert_rendered("headings_assessed", "\n".join(re.findall(r"<h2>(.*?)</h2>", over[1])))


def test_the_numbers_are_the_functions_own(over):
    found, text = over
    test = drawn(1500, 1, 2.0)
    shown = Parsed(text).text
    for name in ("accuracy", "nll", "brier", "ece", "adaptive_ece", "debiased_l2", "kuiper", "smooth_ece", "aurc"):
        assert number(name, float(getattr(metrics, name)(test))) in shown, name
    gap = metrics.signed_gap.interval(test)
    assert f"[{number('signed_gap', gap.low)}, {number('signed_gap', gap.high)}]" in shown
    floor = metrics.noise_floor.interval(test)
    assert f"[{number('noise_floor', floor.low)}, {number('noise_floor', floor.high)}]" in shown
    calibrated = Predictions(found.calibrators["Temperature"](test.logits), test.labels)
    for row in measure(calibrated):
        assert row.text in shown, row.name
    nll = metrics.compare(test, calibrated, names=["nll"])["nll"]
    assert f"[{nll.low:.4f}, {nll.high:.4f}]" in shown


def test_refinement_and_calibration_add_up_to_the_score(over):
    found, text = over
    test = drawn(1500, 1, 2.0)
    after = Predictions(found.calibrators["Temperature"](test.logits), test.labels)
    body = text.partition("<h2>What it costs, and what is left</h2>")[2].partition("<h2>")[0]
    for name in ("nll", "brier"):
        score, refinement = (float(getattr(metrics, name)(p)) for p in (test, after))
        row = next(
            parts for parts in re.findall(r"<tr>(.*?)</tr>", body) if metrics.metric_info(name).heading() in parts
        )
        assert [float(cell) for cell in re.findall(r"<td>([\d.]+)", row)[:3]] == pytest.approx(
            [score, refinement, score - refinement], abs=1e-4
        )
    told = metrics.decompose_score(
        test, fit=lambda p: found.calibrators["Temperature"]
    )  # a map that never saw these examples
    assert f"[{told.score.low:.4f}, {told.score.high:.4f}]" in body
    assert f"{told.score.value:.4f}, {told.calibration.value:.4f} (" in body


def test_cost_is_not_split_without_a_gain(over):
    changed = (replace(over[0], changes=_changed(over[0], nll)) for nll in (0.0, 0.5, math.nan))
    assert_rendered("cost_unsplit", "\n".join(map(miscalibration_cost_sentence, changed)))
    for found, text in (reported(1.0, choose="Identity"), reported(2.0, n=1, choose="Temperature")):
        assert decomposed_changes(found) == []
        assert "What it costs" not in text


def _changed(found: Assessment, nll: float) -> metrics.Comparison:
    rows = {row.name: row for row in found.changes or ()}
    rows["nll"] = replace(rows["nll"], difference=nll, low=nll - 0.1, high=nll + 0.1)
    return replace(found.changes, rows=tuple(rows.values()))


def test_classes_stand_worst_first(over):
    test = drawn(1500, 1, 2.0)
    body = over[1].partition("<h2>Classes, worst first</h2>")[2].partition("</table>")[0]
    rows = re.findall(r'<th scope="row">(\d+)</th>', body)
    each = torch.stack([metrics.ece(test.with_event(j)) for j in range(5)])
    assert rows == [str(j) for j in each.argsort(descending=True).tolist()]
    assert f"{100 * float(each.max()):.2f}" in body


def test_mistakes_are_named_by_row(over):
    found, text = over
    body = text.partition("<h2>Confident mistakes</h2>")[2].partition("<h2>")[0]
    assert re.findall(r'<th scope="row">(\d+)</th>', body) == [str(m.row) for m in found.mistakes]


def test_the_saved_calibrator_is_loaded_by_three_lines(over, tmp_path):
    from markupsafe import Markup

    from calibrant import calibrators

    found, text = over
    path = tmp_path / "it's.safetensors"
    calibrators.save(found.calibrators[found.chosen_name], path)
    saved = found.html({"command": "calibrant"}, path)
    code = Markup(re.search(r"<pre><code>(.*?)</code></pre>", saved, re.DOTALL)[1]).unescape()
    assert len(code.splitlines()) == 3
    names: dict = {"logits": drawn(4, 3, 1.0).logits}
    exec(code, names)
    expected = found.calibrators[found.chosen_name](names["logits"]).softmax(-1)
    torch.testing.assert_close(names["probs"], expected)
    assert "--save" not in saved
    assert "--save calibrator.safetensors" in Parsed(text).text
    assert "found.save('calibrator.safetensors')" in Parsed(found.html()).text


@pytest.mark.parametrize(
    ("by", "status", "direction"),
    [(2.0, "miscalibrated", "over"), (0.5, "miscalibrated", "under"), (1.0, "no_evidence", None)],
)
def test_verdict_names_the_true_direction(by, status, direction):
    found, text = reported(by)
    assert (found.uncalibrated.verdict.status, found.uncalibrated.verdict.direction) == (status, direction)
    gap = abs(found.uncalibrated["signed_gap"].value)
    if by != 1.0:
        assert f"{100 * gap:.1f} " in headline(found.uncalibrated)
        assert found.changes["nll"].high < 0
    assert_rendered(f"answers_by_{by}", "\n".join([headline(found.uncalibrated), verdict_paragraph(found)]))
    assert Parsed(text).text.count(headline(found.uncalibrated)) >= 2  # title and heading


def test_a_model_that_is_rightly_left_alone():
    found, text = reported(1.0, n=400, choose="Identity")
    assert len(assessment_answers(found)) == 3
    assert "There is nothing to apply" in text
    assert "After" not in "".join(re.findall(r"<figcaption>(.*?)</figcaption>", text))


def test_few_examples_are_not_called_calibrated():
    found, _ = reported(1.0, n=12)
    assert undetected_error_bound(found.uncalibrated) > 0.1
    assert_rendered("headline_few_examples", headline(found.uncalibrated))


def test_what_cannot_be_ruled_out_covers_the_truth():
    """All right at 90 %: the error is .1, and 20 examples that are all right must not rule it out."""
    z = torch.tensor([[0.0, 2.1972245773]]).double().repeat(20, 1)
    assert undetected_error_bound(measure(Predictions(z, torch.ones(20, dtype=torch.int64)), of="top")) > 0.0999


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
    g = torch.Generator().manual_seed(n)
    logits = 9 * torch.randn(2 * n, k, generator=g)
    labels = logits.argmax(1) if right else logits.argmin(1)
    both = Predictions(logits, labels)
    found = assess(both[:n], both[n:], FAST)
    shown = Parsed(found.html()).text
    assert "nan" not in shown.lower()
    assert not re.search(r"-0\.0+(?!\d)", shown)
    assert ("Confident mistakes" in shown) != right


def test_certainty_is_not_rounded_up():
    before = Predictions(torch.tensor([[20.0, 0.0], [0.0, 3.0]]), [1, 1])
    text = assess(drawn(50, 0, 1.0, k=2), before, FAST).html()
    assert "99.99999979 %" in Parsed(text).text


def test_names_from_outside_are_escaped():
    found, _ = reported(1.0, n=50)
    text = found.html({"command": "calibrant '<script>alert(1)</script>'", "<b>": "<i>&"})
    assert "<script>alert" not in text
    assert "&lt;b&gt;" in text
    assert page("<t>", "<l>", [Section("<h>", Markup())], {}).count("<t>") == 0


def test_pieces():
    assert typeset("4.75 % (-0.1, e-3) a-1 <") == "4.75\N{NO-BREAK SPACE}% (\N{MINUS SIGN}0.1, e-3) a-1 &lt;"
    assert format_p_value(0.0) == "p < 0.0001"
    assert format_p_value(0.034) == "p = 0.034"
    made = table(["a", "b"], [["x", "1"], ["y", "2"]], bold=[[False], [True]], highlighted=[True, False], caption='"q"')
    assert "<strong>2</strong>" in made
    assert '<tr class="marked"><th scope="row">x' in made
    assert "&#34;q&#34;" in made


def test_figures_take_the_colors_of_the_page():
    made = figure(lambda drawing: drawing.add_subplot().plot([0, 1], color="#4269d0"), "a line", caption="c")
    assert "var(--blue)" in made
    assert "currentColor" in made
    assert "#4269d0" not in made
    assert made == figure(lambda drawing: drawing.add_subplot().plot([0, 1], color="#4269d0"), "a line", caption="c")


def test_predictions_in_pieces_make_a_report_too():
    test = drawn(1500, 1, 2.0)
    found = assess(drawn(1500, 0, 2.0), [test[:600], test[600:]], FAST)
    shown = Parsed(found.html()).text
    assert "read in pieces" in shown
    assert "Classes, worst first" in shown
    assert number("ece", float(metrics.ece(test))) in shown
    assert "nan" not in shown


def shifted(n: int, seed: int) -> Predictions:
    """Two classes of which class 1 is said too likely, by .7 in logits."""
    g = torch.Generator().manual_seed(seed)
    q = torch.randn(n, generator=g, dtype=torch.float64)
    return Predictions(torch.stack([0 * q, q + 0.7], 1), torch.bernoulli(q.sigmoid(), generator=g).long())


def test_page_on_two_classes_describes_the_probability_of_class_1():
    test = shifted(1500, 1)
    found = assess(shifted(1500, 0), test, ("Identity", "Temperature"))
    text = found.html()
    shown = Parsed(text).text
    said, true = float(test.logits.softmax(1)[:, 1].mean()), float(test.labels.double().mean())
    assert f"{100 * (said - true):.1f} " in headline(found.uncalibrated)
    for part in (
        headline(found.uncalibrated),
        f"{100 * said:.1f} %",
        f"{100 * true:.1f} %",
        found.uncalibrated.event.claim,
    ):
        assert part in shown, part
    assert "frequency of class 1" in text
    for wrong in ("verconfiden", "nderconfiden", "Acting only when sure", "right of the time", "confidence minus"):
        assert wrong not in shown, wrong
    assert_rendered("figure_of_class_1", Parsed(text).all("svg")[0]["aria-label"] or "")
    top = Parsed(assess(shifted(1500, 0), test, ("Identity", "Temperature"), of="top").html()).text
    assert "class 1" not in top.replace("class 1 ", "")
    assert "Acting only when sure" in top


def test_page_on_a_measurement_has_no_calibrators():
    p = drawn(1500, 1, 2.0)
    measured = measure(p)
    text = measured.html({"measured": "b.npz"})
    shown = Parsed(text).text
    assert_rendered("headings_measured", "\n".join(re.findall(r"<h2>(.*?)</h2>", text)))
    assert "nothing was fitted" in shown
    assert headline(measured) in shown
    for row in measured:
        assert row.text in shown, row.name
    for word in ("calibrator", "held-out", "change is measured", "nan"):
        assert word not in shown.replace("calibrated", ""), word


def test_a_notebook_shows_the_answers_and_the_numbers(over):
    shown = Parsed(over[0]._repr_html_()).text
    for part in (headline(over[0].uncalibrated), *(answer for _, answer in assessment_answers(over[0]))):
        assert " ".join(part.split()) in shown
    assert "<svg" not in over[0]._repr_html_()
    assert Parsed(measure(drawn(100, 0, 1.0))._repr_html_()).all("table")
