"""Properties of every registered metric."""

import math

import numpy as np
import pytest
from drawn import drawn_labels
from method_contracts import Contract
from refusals import refused
from scipy.special import softmax

from calibrant import InputError, Predictions, metrics, registry
from calibrant.metrics._flexible import CURVE_ERRORS

contract = Contract()
OF_BOTH_OUTCOMES = {  # metrics that need examples with the event and without it
    *("average_precision", "calibration_intercept", "calibration_slope", "cox", "scaled_brier"),
    *("ici", "e50", "e90", "emax"),
}
OF_LOG_ODDS = {  # which probabilities of 0 and 1 lack
    *("calibration_intercept", "calibration_slope", "cox", "ici", "e50", "e90", "emax"),
    *("ici_noise_floor", "e50_noise_floor", "e90_noise_floor", "emax_noise_floor"),
}


# Floors of curve errors fit a thousand simulated curves. They share one function, of which one contract is enough
FLOORS = {f"{name}_noise_floor" for name in CURVE_ERRORS}
NAMES = sorted(set(registry.METRICS) - FLOORS)


@pytest.mark.parametrize("name", [*NAMES, pytest.param("ici_noise_floor", marks=pytest.mark.slow)])
def test_contract_of(name):
    contract.verify(name)


def draw(n: int, k: int, seed: int = 0, decimals: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    logits = 4 * rng.normal(size=(n, k))
    labels = drawn_labels(logits, rng)
    return (logits if decimals is None else logits.round(decimals)), labels


@contract.holds(k=[2, 10, 200])
def is_one_number(name, k):
    value = getattr(metrics, name)(*draw(300, k))
    assert type(value) is float
    assert math.isfinite(value)


@contract.holds()
def does_not_depend_on_the_row_order(name):
    logits, labels = draw(400, 5, decimals=0)  # heavy ties
    if name.startswith("refinement"):  # rows of equal probabilities are dealt out to folds at random
        rows = np.unique(logits - logits.max(1, keepdims=True), axis=0, return_index=True)[1]
        logits, labels = logits[rows], labels[rows]
    value = getattr(metrics, name)(logits, labels)
    rng = np.random.default_rng(1)
    for _ in range(20):
        order = rng.permutation(len(labels))
        permuted = getattr(metrics, name)(logits[order], labels[order])
        assert permuted == pytest.approx(value, rel=1e-12, abs=1e-14)


@contract.holds(of=["top", 1, "classes"])
def integer_weight_equals_that_many_copies(name, of):
    logits, labels = draw(400, 4, decimals=1)
    w = np.random.default_rng(1).integers(0, 4, 400)
    metric = registry.METRICS[name]
    weighted = metric(Predictions(logits, labels, w, of=of))
    copies = Predictions(logits.repeat(w, 0), labels.repeat(w), of=of)
    assert weighted == pytest.approx(metric(copies), rel=1e-9, abs=1e-12)
    if of == "classes":
        return
    p = Predictions(logits, labels, w, of=of)
    if metric.has_interval:
        ours, theirs = metric.interval(p), metric.interval(copies)
        assert ours.low == pytest.approx(theirs.low, rel=1e-7, abs=1e-9)
        assert ours.high == pytest.approx(theirs.high, rel=1e-7, abs=1e-9)
    if metric.has_test and name != "skce":  # whose test draws the outcome of every example
        assert metric.test(p).p_value == pytest.approx(metric.test(copies).p_value, rel=1e-7)


@contract.holds()
def weights_of_one_change_nothing_and_fractions_are_finite(name):
    logits, labels = draw(500, 4)
    unweighted = getattr(metrics, name)(logits, labels)
    weighted = getattr(metrics, name)(logits, labels, np.ones(500))
    assert weighted == pytest.approx(unweighted, rel=1e-9, abs=1e-12)
    assert math.isfinite(getattr(metrics, name)(logits, labels, np.random.default_rng(0).random(500) * 1.3))


@contract.holds(k=[2, 3])
def weights_of_one_change_nothing_among_ties(name, k):
    logits, labels = draw(200, k, decimals=0)
    metric = registry.METRICS[name]
    unweighted, weighted = Predictions(logits, labels, of=1), Predictions(logits, labels, np.ones(200), of=1)
    exact = 0 if name in ("auroc", "accuracy", "error") else 1e-12
    assert metric(weighted) == pytest.approx(metric(unweighted), rel=exact, abs=exact, nan_ok=True)
    if metric.has_interval:
        ours, theirs = metric.interval(weighted), metric.interval(unweighted)
        assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), rel=1e-9, abs=1e-12, nan_ok=True)


def has_unique_maximum(logits: np.ndarray) -> np.ndarray:
    """Return the rows whose predicted class does not depend on the order of the columns."""
    return (logits == logits.max(1, keepdims=True)).sum(1) == 1


@contract.holds(of=["top", 1, "classes"], k_decimals=[(2, 0), (5, 0), (5, None)])
def does_not_depend_on_the_order_of_classes(name, of, k_decimals):
    k, decimals = k_decimals
    logits, labels = draw(300, k, seed=k, decimals=decimals)
    logits, labels = logits[has_unique_maximum(logits)], labels[has_unique_maximum(logits)]
    rng = np.random.default_rng(k)
    weights, classes = rng.integers(1, 4, labels.shape), rng.permutation(k)
    place = classes.argsort()
    metric = registry.METRICS[name]
    for w in (None, weights):
        ours = Predictions(logits, labels, w, of=of)
        theirs = Predictions(logits[:, classes], place[labels], w, of=int(place[1]) if of == 1 else of)
        assert metric(ours) == pytest.approx(metric(theirs), rel=1e-9, abs=1e-12, nan_ok=True)
        if metric.has_interval and of != "classes":
            a, b = metric.interval(ours), metric.interval(theirs)
            assert (a.low, a.high) == pytest.approx((b.low, b.high), rel=1e-7, abs=1e-9, nan_ok=True)


@contract.holds()
def examples_of_weight_zero_are_left_out(name):
    logits, labels = draw(500, 4)
    w = np.ones(500)
    w[100:300] = 0
    expected = getattr(metrics, name)(logits[w > 0], labels[w > 0])
    assert getattr(metrics, name)(logits, labels, w) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@contract.holds()
def declaration_has_the_words_for_a_table(name):
    about = registry.METRICS[name].about
    assert about.title
    assert about.meaning
    assert "\n" not in about.meaning
    assert about.unit in ("share", "nats", "")
    assert about.heading().endswith(" (%)") == (about.unit == "share")


INVALID_SETTINGS = {int: [0, -1, 2.5, "15", True], float: [math.nan, "1"], str: ["typo", 1]}


@contract.holds()
def settings_out_of_range_are_refused(name):
    p = Predictions(*draw(50, 3))
    for key, default in registry.hyperparameters(registry.METRICS[name].function).items():
        kind = bool if isinstance(default, bool) else type(default)
        for value in INVALID_SETTINGS.get(kind, ["typo"]):
            with refused("setting_range", key):
                registry.METRICS[name](p, **{key: value})
    with refused("unknown_setting", "nonsense"):
        registry.METRICS[name](p, nonsense=1)


@contract.holds()
def probabilities_in_place_of_logits_are_refused(name):
    logits, labels = draw(200, 5)
    with refused("probs_as_logits", "from_probs"):
        registry.METRICS[name](softmax(logits, 1), labels)


@contract.holds()
def arguments_are_not_changed(name):
    logits, labels = draw(50, 3)
    before = logits.copy(), labels.copy()
    getattr(metrics, name)(logits, labels)
    assert np.array_equal(logits, before[0])
    assert np.array_equal(labels, before[1])


@contract.holds()
def single_example_of_two_classes_is_measured_or_refused(name):
    if name in OF_BOTH_OUTCOMES:
        with refused("one_outcome"):
            getattr(metrics, name)(np.array([[0.0, 1.0]]), np.array([1]))
        return
    value = getattr(metrics, name)(np.array([[0.0, 1.0]]), np.array([1]))
    assert type(value) is float
    if name != "auroc":  # needs both classes
        assert math.isfinite(value) or name == "confident_accuracy"


@contract.holds(dtype=["float16", "float32"])
def half_precision_logits_are_measured_in_float64(name, dtype):
    logits, labels = draw(300, 6)
    rounded, metric = logits.astype(dtype), getattr(metrics, name)
    assert metric(rounded, labels) == metric(rounded.astype(float), labels)


@pytest.mark.parametrize("name", NAMES)
def test_tensors_are_measured_as_arrays_of_float64(name, torch):
    logits, labels = map(torch.from_numpy, draw(300, 6))
    for dtype in torch.float16, torch.bfloat16, torch.float32, torch.float64:
        rounded, metric = logits.to(dtype), getattr(metrics, name)
        value = metric(rounded, labels)
        assert type(value) is float
        assert value == metric(rounded.double().numpy(), labels.numpy())


@contract.holds()
def saturated_confidence_is_finite_where_the_metric_is(name):
    logits, labels = np.array([[0.0, 1e4], [0.0, -1e4], [1e4, 0.0], [0.0, 0.0]]), np.array([1, 0, 0, 1])
    if name in OF_LOG_ODDS:
        with refused("certain_risks"):
            getattr(metrics, name)(logits, labels)
        return
    value = getattr(metrics, name)(logits, labels)
    assert not math.isnan(value)


@contract.holds()
def text_is_canonical(name):
    text = registry.METRICS.canonical(name)
    assert registry.METRICS.canonical(text) == text
    logits, labels = draw(60, 3)
    assert registry.METRICS.resolve(text)(logits, labels) == getattr(metrics, name)(logits, labels)


@contract.holds()
def intervals_and_tests_check_their_settings(name):
    metric, p = registry.METRICS[name], Predictions(*draw(50, 3))
    if metric.has_interval:
        for wrong in ({"bins": 0}, {"above": 2.0}, {"among": "wrong"}):
            with pytest.raises(InputError) as caught:
                metric.interval(p, **wrong)
            assert caught.value.code in ("setting_range", "unknown_setting", "no_interval")
    else:
        with refused("no_interval"):
            metric.interval(p)
    if not metric.has_test:
        with refused("no_test"):
            metric.test(p)
