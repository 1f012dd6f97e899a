"""`GroupCalibrated`: its interface, and its gains and costs on simulations."""

import numpy as np
import pytest
from drawn import drawn_labels
from refusals import refused
from scipy.special import expit, log_softmax, softmax

from calibrant import Predictions, assess, calibrators, metrics
from calibrant.calibrators import BiasCorrectedTemperature, Chain, GroupCalibrated, Identity, Platt, Temperature
from calibrant.calibrators._groups import (
    OUTLIER_SHARES,
    PRIOR_COMMON_DEVIATION,
    PRIOR_NO_DIFFERENCE,
    _posterior_weights,
)


def setting(name: str, rng: np.random.Generator) -> tuple[list[int], np.ndarray, np.ndarray]:
    """Return group sizes, and the slope and shift of the truth of each group relative to its scores."""

    def of(sizes: list[int], slope: float, shift: float) -> tuple[list[int], np.ndarray, np.ndarray]:
        log_slopes, shifts = np.multiply([[slope], [shift]], rng.standard_normal((2, len(sizes))))
        return sizes, np.exp(log_slopes), shifts

    if name == "one deviating":
        sizes, slopes, shifts = of([200] * 10, 0, 0)
        shifts[3] = 1.5
        return sizes, slopes, shifts
    return {
        "alike": lambda: of([200] * 10, 0, 0),
        "three alike": lambda: of([200] * 3, 0, 0),
        "shifts": lambda: of([200] * 10, 0, 0.8),
        "slopes": lambda: of([200] * 10, 0.6, 0),
        "both": lambda: of([200] * 10, 0.4, 0.7),
        "slight shifts": lambda: of([200] * 10, 0, 0.15),
        "two": lambda: ([200, 200], np.ones(2), np.array([-0.7, 0.7])),
        "rare alike": lambda: of([500] * 4 + [20] * 10, 0, 0),
        "rare": lambda: of([500] * 4 + [20] * 10, 0, 0.7),
        "many": lambda: of([100] * 60, 0, 0.3),
        "many small alike": lambda: of([30] * 60, 0, 0),
        "large": lambda: of([2000] * 5, 0, 0.5),
    }[name]()


SETTINGS = ["alike", "three alike", "one deviating", "shifts", "slopes", "both", "slight shifts", "two"]
SETTINGS += ["rare alike", "rare", "many", "many small alike", "large"]
HALVED = ["one deviating", "shifts", "slopes", "both", "two", "large"]  # 200 per group, or more


def drawn(sizes, slopes, shifts, rng) -> tuple[Predictions, np.ndarray]:
    """Draw predictions of two classes, overconfident by a factor of 1.5, and the true probabilities."""
    group = np.arange(len(sizes)).repeat(sizes)
    odds = 1.5 * rng.standard_normal(len(group)) - 0.3
    scores = 1.5 * (odds - shifts[group]) / slopes[group]
    true = expit(odds)
    logits = np.stack([np.zeros_like(scores), scores], 1)
    return Predictions(logits, (rng.random(len(true)) < true).astype(int), of=1, groups=group), true


def risk(p: Predictions, true: np.ndarray) -> float:
    """Return the expected NLL under the true probabilities."""
    log_p = log_softmax(p.logits, 1)
    return -float((true * log_p[:, 1] + (1 - true) * log_p[:, 0]).mean())


def worst(p: Predictions, true: np.ndarray) -> float:
    """Return the largest mean distance of a group from the true probabilities."""
    off = abs(softmax(p.logits, 1)[:, 1] - true)
    assert p.groups is not None
    return max(float(off[p.groups == i].mean()) for i in np.unique(p.groups))


def trial(name: str, rng: np.random.Generator) -> tuple[float, float, float]:
    """Return the increase of the NLL, and the error of the worst group of the common calibrator and by group."""
    sizes, slopes, shifts = setting(name, rng)
    val, _ = drawn(sizes, slopes, shifts, rng)
    test, true = drawn([3 * size for size in sizes], slopes, shifts, rng)
    pooled, by_group = test.apply(Platt.fit(val)), test.apply(GroupCalibrated.fit(val))
    return risk(by_group, true) - risk(pooled, true), worst(pooled, true), worst(by_group, true)


def test_deviating_group_is_corrected_and_equal_groups_are_not():
    rng = np.random.default_rng(2)
    rise, before, after = trial("one deviating", rng)
    assert rise < -0.005
    assert after < before / 2
    assert trial("alike", rng)[0] < 0.002


@pytest.mark.large
@pytest.mark.parametrize("name", SETTINGS)
def test_worst_group_gains_and_the_nll_does_not_increase(name):
    rng = np.random.default_rng(5)
    rise, before, after = (sum(column) / 10 for column in zip(*(trial(name, rng) for _ in range(10)), strict=True))
    print(f"{name}: NLL {rise:+.5f}, worst group {before:.4f} -> {after:.4f}")
    assert rise < 0.002
    if name in HALVED:
        assert after < before / 2


@pytest.mark.large
@pytest.mark.parametrize("spread", [0.0, 0.7])
def test_labels_of_an_example_are_partially_pooled(spread):
    """Twelve labels, half of them rare; a common calibrator, or one by label."""
    rng, m, rises, errors = np.random.default_rng(9), 12, [], []
    for _ in range(5):
        base, shift = np.where(np.arange(m) < 6, 0.0, -3.0), spread * rng.standard_normal(m)
        mapped = []
        for n in (200, 2000):
            odds = base + rng.standard_normal((n, 1)) + rng.standard_normal((n, m))
            outcome = (rng.random((n, m)) < expit(odds)).astype(int)
            mapped.append((Predictions.multilabel(1.4 * (odds - shift), outcome), expit(odds).ravel()))
        (val, _), (test, true) = mapped
        pooled, separate = test.apply(Platt.fit(val)), test.apply(GroupCalibrated.fit(val))
        rises.append(risk(separate, true) - risk(pooled, true))
        errors.append((worst(pooled, true), worst(separate, true)))
    print(spread, sum(rises) / 5, [sum(column) / 5 for column in zip(*errors, strict=True)])
    assert sum(rises) / 5 < 0.002
    if spread:
        assert sum(after for _, after in errors) < sum(before for before, _ in errors) / 2


def several(n: int, rng: np.random.Generator, k: int = 4) -> Predictions:
    """Draw predictions whose class frequencies are biased by group."""
    z, group = 2 * rng.standard_normal((n, k)), np.arange(n) % 5
    shift = np.zeros((5, k))
    shift[0, 1], shift[1, 2] = 1.5, -1.5
    labels = drawn_labels(z + shift[group], rng)
    return Predictions(1.5 * z, labels, groups=[f"ward {i}" for i in group])


def test_groups_have_biases_of_several_classes():
    rng = np.random.default_rng(3)
    val, test = several(4000, rng), several(5000, rng)
    pooled, fitted = BiasCorrectedTemperature.fit(val), GroupCalibrated.fit(val)
    gain = float(metrics.nll(test.apply(pooled)) - metrics.nll(test.apply(fitted)))
    assert gain > 0.01
    assert float(fitted.biases[0, 1] - fitted.biases[0, 3]) == pytest.approx(1.2, abs=0.4)  # a fifth is common
    assert float(np.abs(fitted.biases[3]).max()) < 0.4


@pytest.fixture(scope="module")
def wards() -> tuple[Predictions, GroupCalibrated]:
    p = several(600, np.random.default_rng(4))
    return p, GroupCalibrated.fit(p)


def test_groups_are_matched_by_name_in_any_order(wards):
    p, fitted = wards
    subset = Predictions(p.logits[:4], p.labels[:4], groups=["ward 3", "ward 0", "elsewhere", "ward 1"])
    mapped = subset.apply(fitted)
    for i, name in enumerate(["ward 3", "ward 0", None, "ward 1"]):
        single = fitted.pooled if name is None else fitted.of_group(name)
        after = softmax(mapped.logits[i]), softmax(single(p.logits[i : i + 1])[0])
        np.testing.assert_allclose(*after, rtol=1e-7, atol=1e-7)
    assert mapped.notes == ("GroupCalibrated was not fitted on the groups elsewhere: they get the common calibrator",)
    assert not p.apply(fitted).notes
    with refused("unknown_group", "elsewhere"):
        fitted.of_group("elsewhere")
    with refused("unknown_group", "no group, for it has none"):
        GroupCalibrated.fit(Predictions(p.logits, p.labels)).of_group("ward 3")


def test_logits_without_groups_are_refused(wards):
    p, fitted = wards
    for data in (p.logits, np.zeros((2, 4))):
        with refused("no_groups", "of_group('ward 0')"):
            fitted(data)
    with refused("no_groups"):
        Predictions(p.logits, p.labels).apply(fitted)


def test_without_groups_it_is_the_common_map():
    p = several(300, np.random.default_rng(6))
    bare = Predictions(p.logits, p.labels)
    fitted = GroupCalibrated.fit(bare, calibrator="Temperature")
    np.testing.assert_allclose(fitted(bare.logits), Temperature.fit(bare)(bare.logits), rtol=1e-7, atol=1e-7)


def test_group_calibrator_is_saved_chained_cross_fitted_and_assessed(wards, tmp_path):
    p, fitted = wards
    calibrators.save(fitted, tmp_path / "g.safetensors")
    loaded = calibrators.load(tmp_path / "g.safetensors")
    assert np.array_equal(p.apply(loaded).logits, p.apply(fitted).logits)
    chained = p.apply(Chain(Identity(), fitted))
    np.testing.assert_allclose(chained.logits, p.apply(fitted).logits, rtol=1e-7, atol=1e-7)
    other_data = several(500, np.random.default_rng(7))
    result = assess(p, other_data, ["Identity", "GroupCalibrated"], choose="GroupCalibrated")
    direct = float(metrics.nll(other_data.apply(fitted)))
    assert result.measurements["GroupCalibrated"]["nll"].value == pytest.approx(direct, rel=1e-9)
    assert "ward 0" in result.html()
    with refused("fitted_on_same"):
        calibrators.calibrate(fitted, p)


def test_integer_weights_equal_copies():
    p = several(300, np.random.default_rng(8))
    w = np.arange(300) % 3
    weighted = Predictions(p.logits, p.labels, w, groups=p.groups)
    assert p.groups is not None
    rows = np.arange(300).repeat(w)
    copied = Predictions(p.logits[rows], p.labels[rows], groups=p.groups[rows], clusters=rows)
    single, other_data = (
        GroupCalibrated.fit(q, calibrator="Identity")
        for q in (weighted, Predictions(copied.logits, copied.labels, groups=copied.groups))
    )
    np.testing.assert_allclose(single.biases, other_data.biases, atol=1e-6, rtol=1e-6)
    np.testing.assert_allclose(single.slopes, other_data.slopes, atol=1e-6, rtol=1e-6)


def test_posterior_weights_average_over_all_hyperpriors():
    """Enumerate every pair of priors and outlier share for three groups."""
    likelihood = np.array([[0.7, 0.2, 0.1], [0.1, 0.6, 1.0], [0.3, 0.3, 0.9]])
    models = [
        (PRIOR_NO_DIFFERENCE + PRIOR_COMMON_DEVIATION / 3 if i == 0 else PRIOR_COMMON_DEVIATION / 3, 0.0, i, i)
        for i in range(3)
    ]
    rest = (1 - PRIOR_NO_DIFFERENCE - PRIOR_COMMON_DEVIATION) / (9 * len(OUTLIER_SHARES))
    models += [(rest, share, i, j) for share in OUTLIER_SHARES for i in range(3) for j in range(3)]
    expected, total = np.zeros((3, 3)), 0.0
    for prior, share, i, j in models:
        separate = (1 - share) * likelihood[:, i] + share * likelihood[:, j]
        weight = prior * float(separate.prod())
        total += weight
        expected[:, i] += weight * (1 - share) * likelihood[:, i] / separate
        expected[:, j] += weight * share * likelihood[:, j] / separate
    np.testing.assert_allclose(_posterior_weights(likelihood), expected / total)


def test_priors_that_the_data_of_a_group_exclude_have_no_weight():
    likelihood = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    np.testing.assert_allclose(_posterior_weights(likelihood), likelihood)


def test_many_small_equal_groups_stay_at_the_common_map():
    rise, before, after = trial("many small alike", np.random.default_rng(5))
    assert rise < 5e-4
    assert after < before + 0.02
