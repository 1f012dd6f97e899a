"""Find contradictions in the JSON of a result and in the text of its page, and generate small problems to check."""

import math
import re
from collections.abc import Iterator, Mapping
from html import unescape
from typing import Any

import numpy as np
from drawn import drawn_labels
from scipy.special import expit

from calibrant import Predictions
from calibrant._core.numbers import format_percent

STATUS_PHRASES = {
    "miscalibrated": "The omnibus test rejects calibration",
    "no_evidence": "No evidence of miscalibration.",
    "too_little_data": "Too little data to tell.",
}
DIRECTION_PHRASES = {"over": "Too high.", "under": "Too low."}
ROUNDING = 1e-12
Answers = list[tuple[str, str]]


def find_contradictions(content: Mapping[str, Any], page: str = "") -> list[str]:
    """Return a line for every contradiction in the parsed JSON of `measure` or `assess` and, if given, its page."""
    answers, verdicts = page_answers(page), [content["verdict"]]
    if "chosen" in content:
        verdicts = [content["verdict"]["before"], content["verdict"]["after"]]
        lines = list(_assessment_lines(content, answers))
    else:
        rows = {row["metric"]: row for row in content["results"]}
        lines = [*_measurement_lines(content["verdict"], rows), *_note_lines(content["verdict"], rows)]
        lines += [*_group_lines(content, page), *_ece_lines(content["verdict"], rows, answers)]
    return [*lines, *(_page_lines(verdicts, page, answers) if page else ())]


def _measurement_lines(verdict: Mapping[str, Any], rows: Mapping[str, Any]) -> Iterator[str]:
    """Check that the verdict follows from the rows."""
    gap, l2 = rows["signed_gap"], rows["debiased_l2"]
    excludes_zero = gap["low"] > 0 or gap["high"] < 0
    if verdict["p_value"] != rows["omnibus"]["p_value"]:
        yield "the p-value of the verdict is not that of the test"
    if (verdict["status"] == "miscalibrated") != (verdict["p_value"] < 0.05):
        yield f"{verdict['status']} beside p = {verdict['p_value']}"
    if verdict["status"] != "miscalibrated" and (verdict["bound"] > verdict["tolerance"]) != (
        verdict["status"] == "too_little_data"
    ):
        yield f"{verdict['status']} with an error of up to {verdict['bound']} for {verdict['tolerance']}"
    if verdict["bound"] < max(l2["high"], gap["high"], -gap["low"]):
        yield "the upper bound of the error is less than an interval allows"
    sign = {"over": 1, "under": -1, None: 0}[verdict["direction"]]
    if sign and not (excludes_zero and sign * gap["value"] > 0 and verdict["status"] == "miscalibrated"):
        yield f"{verdict['direction']} beside {verdict['status']} and [{gap['low']}, {gap['high']}]"
    if not sign and excludes_zero and verdict["status"] == "miscalibrated":
        yield "no direction beside an interval that excludes 0"
    for name, row in rows.items():
        low, value, high = (math.nan if row[key] is None else float(row[key]) for key in ("low", "value", "high"))
        if low > value + ROUNDING or value > high + ROUNDING:
            yield f"the interval of {name} does not contain its value"


def _note_lines(verdict: Mapping[str, Any], rows: Mapping[str, Any]) -> Iterator[str]:
    """Check that notes state a direction if the verdict does, and claim nothing else."""
    if bool(rows["signed_gap"]["note"]) != bool(verdict["direction"]):
        yield f"note {rows['signed_gap']['note']!r} beside the direction {verdict['direction']}"
    for name, row in rows.items():
        if re.search(r"above|within|significant|significance|calibrated(?!: up to)", row["note"]):
            yield f"the note of {name} judges: {row['note']}"


def _ece_lines(verdict: Mapping[str, Any], rows: Mapping[str, Any], answers: Answers) -> Iterator[str]:
    """Check that an ECE beyond its noise floor is explained if the verdict is not "miscalibrated"."""
    text = next((text for question, text in answers if question.startswith("Is it calibrated")), "")
    is_chance = verdict["status"] != "miscalibrated" and rows["ece"]["value"] > rows["noise_floor"]["high"]
    if text and is_chance != ("of calibrated models." in text):
        yield f"ECE {rows['ece']['value']} and its floor {rows['noise_floor']['high']} beside: {text}"


def _group_lines(content: Mapping[str, Any], page: str) -> Iterator[str]:
    groups = content.get("groups", [])
    deviating = sum(group["low"] > 0 or group["high"] < 0 for group in groups)
    match = re.search(r"overall, but (\d+) of (\d+)", page)
    is_listed = content["verdict"]["direction"] is None and deviating > 0
    if page and bool(match) != is_listed:
        yield f"{deviating} groups deviate, but the title says {match and match[0]}"
    if match and (int(match[1]), int(match[2])) != (deviating, len(groups)):
        yield f"{deviating} of {len(groups)} groups deviate, not {match[0]}"


def _assessment_lines(content: Mapping[str, Any], answers: Answers) -> Iterator[str]:
    for moment, name in (("before", None), ("after", content["chosen"])):
        rows = {row["metric"]: row for row in content["results"] if row["calibrator"] == name}
        if rows:
            yield from (f"{moment}: {line}" for line in _measurement_lines(content["verdict"][moment], rows))
    change = next((row for row in content["changes"] if row["name"] == "nll"), None)
    text = next((text for question, text in answers if question.startswith("Is the change")), "")
    if change is None or not text or None in change.values() or "inf" in map(str, change.values()):
        return
    if not change["low"] <= change["difference"] <= change["high"]:
        yield "the interval of the change of NLL does not contain it"
    if text.startswith("Yes") != (change["low"] > 0 or change["high"] < 0):
        yield f"{text[:40]} beside [{change['low']}, {change['high']}]"


def _page_lines(verdicts: list[Mapping[str, Any]], page: str, answers: Answers) -> Iterator[str]:
    """Check title and answers of a page against the verdicts that its answers state, in order."""
    title = plain_text(re.split(r"</h[13]>", re.split(r"<h[13][^>]*>", page)[1])[0])
    yield from (f"title {title!r}: {line}" for line in _title_lines(verdicts[0], title))
    stated = [text for question, text in answers if question.startswith("Is it calibrated")]
    directions = [text for question, text in answers if question.startswith("Are the ")]
    for verdict, text in zip(verdicts, stated, strict=False):
        claims = [status for status, phrase in STATUS_PHRASES.items() if phrase in text]
        if claims != [verdict["status"]]:
            yield f"the answer states {claims}, the verdict is {verdict['status']}"
        if f"up to {format_percent(verdict['bound'], 1)} cannot be ruled out" not in text:
            yield f"the answer does not name the bound {verdict['bound']}: {text}"
        p = "p < 0.0001" if verdict["p_value"] < 1e-4 else f"p = {verdict['p_value']:.2g}"
        if re.findall(r"p [=<] [\de.-]*\d", text) != [p]:
            yield f"the answer does not state {p}: {text}"
    for verdict, text in zip(verdicts, directions, strict=False):
        claims = [direction for direction, phrase in DIRECTION_PHRASES.items() if phrase in text]
        if claims != [verdict["direction"]] * bool(verdict["direction"]):
            yield f"the answer states {claims}, the direction is {verdict['direction']}"
    text = plain_text(page)
    if re.search(r"\bnan\b|(?<![\d.])-0\.0+(?![\d])|well calibrated|perfectly calibrated", text):
        yield "the page shows nan, -0, or praise"


def _title_lines(verdict: Mapping[str, Any], title: str) -> Iterator[str]:
    is_claim = bool(re.match(r"(Over|Under|Miscalibrated)", title))
    if is_claim != (verdict["status"] == "miscalibrated"):
        yield f"the verdict is {verdict['status']}"
    if title.startswith("No evidence") != (verdict["status"] == "no_evidence"):
        yield f"the verdict is {verdict['status']}"
    if bool(re.match("Over|Under", title)) != bool(verdict["direction"]):
        yield f"the direction is {verdict['direction']}"


def page_answers(page: str) -> Answers:
    """Return the questions of a page or notebook cell with the expert answers."""
    listed = re.findall(
        r"<dt>(.*?)</dt><dd>(.*?)</dd>", page.partition('<dl class="answers">')[2].partition("</dl>")[0]
    )
    listed = listed or re.findall(r"<p><b>(.*?)</b> (.*?)</p>", page)
    return [(plain_text(question), plain_text(text)) for question, text in listed]


def plain_text(html: str) -> str:
    """Return the text of HTML, with plain spaces and minus signs."""
    text = unescape(re.sub(r"<(script|style|svg).*?</\1>|<[^>]+>", " ", html, flags=re.DOTALL))
    return " ".join(text.replace("\N{NO-BREAK SPACE}", " ").replace("\N{MINUS SIGN}", "-").split())


# Problems


def small_problem(seed: int) -> Predictions:
    """Return 5 to 300 predictions: two or ten classes, or confidences; calibrated or not; weights, clusters, groups."""
    rng = np.random.default_rng(seed)

    def choose(*options: Any) -> Any:
        return options[rng.integers(len(options))]

    n = int(5 * 60 ** rng.random())
    kind, by = choose("answers", "binary", "ten", "constant", "separated"), choose(1.0, 1.0, 0.4, 2.5)
    shift = choose(0.0, 0.0, 1.5) if kind in ("answers", "binary") else 0.0
    options: dict[str, Any] = {}
    if choose(True, False):
        options["weights"] = rng.integers(1, 11, n)
    if choose(True, False, False):
        options["clusters"] = rng.integers(max(2, n // 4), size=n)
    if choose(True, False, False):
        options["groups"] = [choose("north", "not spam", "1") for _ in range(n)]
    if kind == "ten":
        z = rng.normal(scale=2, size=(n, 10))
        return Predictions(by * z, drawn_labels(z, rng), **options)
    if kind == "constant":
        c = choose(0.5, 0.9, 0.98)
        return Predictions.from_confidence([c] * n, rng.random(n) < choose(c, c, 1.0, 0.7), **options)
    z = rng.normal(scale=choose(1.0, 2.0), size=n)
    y = z > 0 if kind == "separated" else rng.random(n) < expit(z)
    if kind == "answers":
        return Predictions.from_confidence(expit(by * z + shift), y, **options)
    return Predictions.from_binary_logits(by * z + shift, y, **options)
