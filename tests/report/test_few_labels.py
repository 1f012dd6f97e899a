"""Few labels: which calibrators can be told apart, what is selected, and the interval of the gain."""

import json
import math
from dataclasses import replace

import pytest
import torch
from evidence_checker import find_contradictions
from torch import Tensor

from calibrant import Predictions, assess, calibrators, metrics
from calibrant.assessment import expert_text, lay_text
from calibrant.assessment._candidates import CandidateCalibrator
from calibrant.assessment._choice import MAX_FEW_UNITS, compare_held_out, has_few_labels, num_parameters

FAST = ("Identity", "Temperature", "StructuredVector")


def draw(n: int, seed: int, by: float, k: int = 3, clusters: Tensor | None = None) -> Predictions:
    g = torch.Generator().manual_seed(seed)
    z = 1.5 * torch.randn(n, k, generator=g, dtype=torch.float64)
    return Predictions(by * z, torch.multinomial(z.softmax(1), 1, generator=g).squeeze(1), clusters=clusters)


def test_calibrated_model_with_few_labels_is_left_alone():
    result = assess(draw(40, 1, 1.0), draw(200, 2, 1.0), FAST)
    assert set(result.held_out.indistinguishable) == set(FAST)
    assert result.chosen_name == result.held_out.simplest == "Identity"
    assert str(len(FAST)) in expert_text.few_labels_sentence(result)
    assert "40" in lay_text.few_labels_sentence(result)


def test_strongly_overconfident_model_is_calibrated_by_the_simplest_of_equals():
    result = assess(draw(80, 1, 4.0), draw(200, 2, 4.0), FAST)
    assert "Identity" not in result.held_out.indistinguishable
    assert result.chosen_name == result.held_out.indistinguishable[0] == "Temperature"
    gain = result.held_out.gains["Temperature"]
    assert 0 < gain.low < gain.value < gain.high
    true_gain = float(metrics.nll(draw(20_000, 3, 4.0)) - metrics.nll(draw(20_000, 3, 4.0).apply(result.best)))
    assert true_gain in gain
    sentence = expert_text.gain_sentence(result)
    assert f"{gain.low:.4f} and {gain.high:.4f} nats" in sentence
    assert f"{100 * math.expm1(gain.low):+.1f} to {100 * math.expm1(gain.high):+.1f}" in lay_text.gain_sentence(result)


def test_many_labels_select_the_lowest_nll_without_a_comparison():
    val = draw(MAX_FEW_UNITS + 1, 1, 1.0)
    assert not has_few_labels(val)
    assert has_few_labels(val[:MAX_FEW_UNITS])
    result = assess(val, draw(200, 2, 1.0), ("Identity", "Temperature"))
    assert result.held_out.deficits == {}
    assert result.held_out.simplest is None
    assert expert_text.few_labels_sentence(result) == ""
    assert result.chosen_name == min(result.held_out_nll, key=result.held_out_nll.__getitem__)


def test_clusters_count_as_the_labels():
    p = draw(600, 1, 1.0, clusters=torch.arange(600) // 20)
    assert has_few_labels(p)
    assert not has_few_labels(Predictions(p.logits, p.labels))


def test_auto_has_an_interval_of_its_gain_with_many_labels():
    val = draw(400, 1, 2.0)
    fitted = calibrators.Auto.fit(val)
    gain = compare_held_out(val, [], {"Auto": fitted}, lambda _: None).gains["Auto"]
    assert gain.value == fitted.gain
    assert gain.high - gain.low == pytest.approx(2 * 1.6487 * fitted.gain_error, rel=1e-3)


def test_calibrator_that_adds_zeros_is_never_indistinguishable():
    val = draw(40, 1, 1.0)
    names = ("Identity", "HistogramBinning")
    fits = {name: getattr(calibrators, name).fit(val) for name in names}
    held_out = compare_held_out(val, [CandidateCalibrator.of(name) for name in names], fits, lambda _: None)
    assert held_out.deficits["HistogramBinning"].value == math.inf
    assert held_out.indistinguishable == ("Identity",)


def test_calibrators_are_ordered_by_learned_numbers():
    val = draw(100, 1, 2.0)
    names = ("Identity", "Temperature", "StructuredVector", "StructuredMatrix", "Auto")
    counts = [num_parameters(getattr(calibrators, name).fit(val)) for name in names]
    assert counts[:2] == [0, 1]
    assert counts == sorted(counts)


def test_json_holds_the_comparison_and_nothing_contradicts_it():
    result = assess(draw(30, 4, 1.5), calibrators=("Identity", "Temperature"))
    content = json.loads(result.json())
    assert content["held_out"]["indistinguishable"] == list(result.held_out.indistinguishable)
    assert content["held_out"]["gains"]["Temperature"]["low"] == result.held_out.gains["Temperature"].low
    assert find_contradictions(content, result._repr_html_()) == []


@pytest.mark.slow
def test_gain_of_one_temperature_is_inside_its_interval():
    inside, draws, n = 0, 200, 40
    test = draw(50_000, 0, 1.5)
    candidates = [CandidateCalibrator.of("Identity"), CandidateCalibrator.of("Temperature")]
    for seed in range(1, draws + 1):
        val = draw(n, seed, 1.5)
        fits = {c.name: c.fit(val, lambda _: None) for c in candidates}
        gain = compare_held_out(val, candidates, fits, lambda _: None).gains["Temperature"]
        inside += float(metrics.nll(test) - metrics.nll(test.apply(fits["Temperature"]))) in gain
    assert inside >= 0.84 * draws


def test_a_gain_of_any_size_has_a_sentence():
    result = assess(draw(80, 1, 4.0), draw(50, 2, 4.0), ("Identity", "Temperature"))
    huge = {name: metrics.Interval(300.0, -1e6, 1e6) for name in result.held_out.gains}
    result = replace(result, held_out=replace(result.held_out, gains=huge))
    assert "%" not in lay_text.gain_sentence(result)
    assert "1000000" in expert_text.gain_sentence(result)
