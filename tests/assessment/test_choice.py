"""Few labels: which calibrators can be told apart, what is selected, and the interval of the gain."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from drawn import drawn_labels
from evidence_checker import find_contradictions

from calibrant import Predictions, assess, calibrators, metrics
from calibrant.assessment import _sentences as sentences
from calibrant.assessment._choice import MAX_FEW_UNITS, has_few_labels, num_parameters

FAST = ("Identity", "Temperature", "StructuredVector")


def draw(n: int, seed: int, by: float, k: int = 3, clusters: np.ndarray | None = None) -> Predictions:
    rng = np.random.default_rng(seed)
    z = 1.5 * rng.normal(size=(n, k))
    return Predictions(by * z, drawn_labels(z, rng), clusters=clusters)


def test_calibrated_model_with_few_labels_is_left_alone():
    result = assess(draw(40, 1, 1.0), draw(200, 2, 1.0), FAST)
    assert set(result.held_out.indistinguishable) == set(FAST)
    assert result.chosen_name == "Identity"
    assert str(len(FAST)) in sentences.few_labels_sentence(result)


def test_strongly_overconfident_model_is_calibrated_by_the_simplest_of_equals():
    result = assess(draw(80, 1, 4.0), draw(200, 2, 4.0), FAST)
    assert "Identity" not in result.held_out.indistinguishable
    assert result.chosen_name == result.held_out.indistinguishable[0] == "Temperature"
    gain = result.held_out.gains["Temperature"]
    assert 0 < gain.low < gain.value < gain.high
    true_gain = float(metrics.nll(draw(20_000, 3, 4.0)) - metrics.nll(draw(20_000, 3, 4.0).apply(result.best)))
    assert true_gain in gain
    assert f"{gain.value:.4f} nats, at least {gain.low:.4f}" in sentences.gain_sentence(result)


def test_many_labels_select_the_lowest_nll_if_it_is_better_by_more_than_a_standard_error():
    val = draw(MAX_FEW_UNITS + 1, 1, 2.0)
    assert not has_few_labels(val)
    assert has_few_labels(val[:MAX_FEW_UNITS])
    result = assess(val, draw(200, 2, 2.0), ("Identity", "Temperature"))
    assert result.held_out.deficits == {}
    assert result.held_out.simplest is None
    assert sentences.few_labels_sentence(result) == ""
    assert result.chosen_name == min(result.held_out_nll, key=result.held_out_nll.__getitem__) == "Temperature"
    hardly_better = metrics.Interval(0.001, -0.003, 0.005)  # two thirds of a standard error are 0.0016
    comparison = replace(result.held_out, gains={"Temperature": hardly_better})
    assert not comparison.is_better("Temperature")
    assert replace(comparison, gains={"Temperature": replace(hardly_better, value=0.003, low=-0.001)}).is_better(
        "Temperature"
    )


def test_clusters_count_as_the_labels():
    p = draw(600, 1, 1.0, clusters=np.arange(600) // 20)
    assert has_few_labels(p)
    assert not has_few_labels(Predictions(p.logits, p.labels))


def test_auto_states_its_own_gain_with_many_labels():
    result = assess(draw(400, 1, 2.0), draw(200, 2, 2.0), ("Identity", "Auto"))
    fitted, gain = result.calibrators["Auto"], result.held_out.gains["Auto"]
    assert (gain.value, gain.low) == (fitted.gain, fitted.gain_low)
    assert result.held_out_nll["Auto"] == fitted.out_of_fold


def test_calibrator_that_adds_zeros_is_never_indistinguishable():
    result = assess(draw(40, 1, 1.0), draw(40, 2, 1.0), ("Identity", "HistogramBinning"))
    assert result.held_out.deficits["HistogramBinning"].value == math.inf
    assert result.held_out.indistinguishable == ("Identity",)


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
    for seed in range(1, draws + 1):
        result = assess(draw(n, seed, 1.5), draw(10, 0, 1.5), ("Identity", "Temperature"), metrics=["nll"])
        true_gain = float(metrics.nll(test) - metrics.nll(test.apply(result.calibrators["Temperature"])))
        inside += true_gain in result.held_out.gains["Temperature"]
    assert inside >= 0.84 * draws


def test_a_gain_of_any_size_has_a_sentence():
    result = assess(draw(80, 1, 4.0), draw(50, 2, 4.0), ("Identity", "Temperature"))
    huge = {name: metrics.Interval(300.0, -1e6, 1e6) for name in result.held_out.gains}
    result = replace(result, held_out=replace(result.held_out, gains=huge))
    assert "1000000" in sentences.gain_sentence(result)
