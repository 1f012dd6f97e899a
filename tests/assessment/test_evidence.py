"""The one statement of evidence: no page of small data contradicts itself."""

import json
from typing import Any

import numpy as np
import pytest
from evidence_checker import find_contradictions, small_problem

from calibrant import Predictions, assess, measure
from calibrant.metrics import Summary

QUICK_SEEDS, ALL_SEEDS = range(30), range(30, 500)
FULL_PAGE_EVERY = 10  # of notebook cells, which hold the same answers and cost less


def answers(confidence: float, right: int, n: int) -> Predictions:
    return Predictions.from_confidence([confidence] * n, [1] * right + [0] * (n - right))


def contradictions(result: Any, *, full_page: bool = False) -> list[str]:
    pages = [result._repr_html_(), *([result.html()] if full_page else [])]
    return [line for page in pages for line in find_contradictions(json.loads(result.json()), page)]


@pytest.mark.parametrize("seed", QUICK_SEEDS)
def test_measurement_of_small_data_does_not_contradict_itself(seed):
    assert contradictions(measure(small_problem(seed)), full_page=seed % FULL_PAGE_EVERY == 0) == []


@pytest.mark.slow
def test_500_measurements_of_small_data_do_not_contradict_themselves():
    lines_by_seed = {
        seed: contradictions(measure(small_problem(seed)), full_page=seed % FULL_PAGE_EVERY == 0) for seed in ALL_SEEDS
    }
    assert {seed: lines for seed, lines in lines_by_seed.items() if lines} == {}


@pytest.mark.parametrize(
    "seed", [1, pytest.param(16, marks=pytest.mark.slow), pytest.param(23, marks=pytest.mark.slow)]
)
def test_assessment_of_small_data_does_not_contradict_itself(seed):
    val, test = small_problem(seed), small_problem(seed + 1000)
    test = test if test.k == val.k and test.class_names == val.class_names else None
    result = assess(val, test, ["Identity", "Temperature"])
    assert contradictions(result, full_page=True) == []


@pytest.mark.parametrize(
    ("confidence", "right", "n"),
    [(0.9, 20, 20), (0.9, 50, 50), (0.9, 45, 50), (0.95, 20, 20), (0.98, 20, 20), (0.9, 5, 5), (0.99, 19, 20)],
)
def test_constant_confidences_have_one_verdict_and_intervals_with_a_width(confidence, right, n):
    """These gave [-10.00, -10.00], and at once "above the noise floor", "underconfident" and "nothing says it"."""
    table = measure(answers(confidence, right, n))
    assert contradictions(table, full_page=n == 20) == []
    for name in ("signed_gap", "event_brier", "nll"):
        assert table[name].low < table[name].high
    if table.verdict.status != "miscalibrated":
        assert table.verdict.status == "too_little_data"
        assert table["signed_gap"].note == ""


def test_five_separated_examples_do_not_prove_a_perfect_ranking():
    table = measure(Predictions.from_confidence([0.9, 0.8, 0.7, 0.2, 0.1], [1, 1, 1, 0, 0]))
    assert table["auroc"].value == 1.0
    assert table["auroc"].low < 0.9


def test_tolerance_decides_between_no_evidence_and_too_little_data():
    p = answers(0.9, 900, 1000)
    bound = measure(p).verdict.bound
    assert measure(p, tolerance=bound).verdict.status == "no_evidence"
    assert measure(p, tolerance=0.99 * bound).verdict.status == "too_little_data"
    over = answers(0.9, 700, 1000)
    assert {measure(over, tolerance=t).verdict.status for t in (0.0, 1.0)} == {"miscalibrated"}


def test_upper_bound_covers_the_true_error():
    """The L2 error of confidences 0.5 + d and 0.9 - d, with d = 0.04, is d; 5 % of the bounds may be smaller."""
    rng, too_small, draws, d = np.random.default_rng(0), 0, 40, 0.04
    truth, confidence = np.tile([0.5, 0.9], 50), np.tile([0.5 + d, 0.9 - d], 50)
    for _ in range(draws):
        table = measure(Predictions.from_confidence(confidence, rng.binomial(1, truth)))
        too_small += table.verdict.bound < d
    assert too_small <= 0.1 * draws


@pytest.mark.parametrize(("events", "tolerance"), [(0, 0.0), (4, 0.002), (100, 0.05), (700, 0.05), (990, 0.005)])
def test_default_tolerance_is_half_of_the_rarer_rate_and_at_most_five_points(events, tolerance):
    p = Predictions.from_probs([0.5] * 1000, [1] * events + [0] * (1000 - events))
    assert measure(p).verdict.tolerance == pytest.approx(tolerance)
    assert measure(p, of="top").verdict.tolerance == 0.05
    assert measure(p, tolerance=0.03).verdict.tolerance == 0.03
    assert measure(Summary.empty(of=1).add(p)).verdict.tolerance == pytest.approx(tolerance)


def test_errors_of_a_rare_class_are_compared_with_its_base_rate():
    p = Predictions.from_probs([0.006] * 1000, [1] * 4 + [0] * 996)
    table = measure(p)
    assert table.is_rare
    assert table.base_rate == 0.004
    assert table.relative_to_rate(0.002) == "50 % of the base rate"
    (metrics_table,) = table.document().sections[0].parts
    relative = {row[0].text: row[-1] for row in metrics_table.rows}
    assert relative[table["signed_gap"].title] == "50 %"
    assert relative[table["nll"].title] == ""


# The checker itself


@pytest.mark.parametrize(
    "change",
    [
        {"status": "miscalibrated"},
        {"status": "no_evidence"},
        {"p_value": 0.001},
        {"direction": "over"},
        {"bound": 0.01},
        {"tolerance": 1.0},
    ],
)
def test_checker_finds_a_changed_verdict(change):
    table = measure(answers(0.9, 18, 20))
    content = json.loads(table.json())
    assert find_contradictions(content, table._repr_html_()) == []
    assert find_contradictions({**content, "verdict": {**content["verdict"], **change}}, table._repr_html_())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("Too little data to tell.", "No evidence of miscalibration."),
        ("No clear direction.", "Too high."),
        ("<h3>Too little data", "<h3>Overconfident"),
        ("cannot be ruled out", "is ruled out"),
        ("p&nbsp;=", "p&nbsp;&lt;"),
    ],
)
def test_checker_finds_a_changed_page(before, after):
    table = measure(answers(0.9, 18, 20))
    page = table._repr_html_().replace("\N{NO-BREAK SPACE}", "&nbsp;")
    assert before in page
    assert find_contradictions(json.loads(table.json()), page.replace(before, after))
