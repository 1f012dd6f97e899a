"""`GroupCalibrated`: its interface, and its gains and costs on simulations."""

import numpy as np
import pytest
import torch
from refusals import refused

from calibrant import Predictions, assess, calibrators, metrics
from calibrant._core.tensors import logit_tensor
from calibrant.calibrators import BiasCorrectedTemperature, Chain, GroupCalibrated, Identity, Platt, Temperature
from calibrant.calibrators._groups import (
    OUTLIER_SHARES,
    PRIOR_COMMON_DEVIATION,
    PRIOR_NO_DIFFERENCE,
    _posterior_weights,
)

F = torch.float64


def setting(name: str, g: torch.Generator) -> tuple[list[int], torch.Tensor, torch.Tensor]:
    """Return group sizes, and the slope and shift of the truth of each group relative to its scores."""

    def normal(m: int) -> torch.Tensor:
        return torch.randn(m, generator=g, dtype=F)

    def of(sizes: list[int], slope: float, shift: float) -> tuple[list[int], torch.Tensor, torch.Tensor]:
        m = len(sizes)
        return sizes, (slope * normal(m)).exp(), shift * normal(m)

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
        "two": lambda: ([200, 200], torch.ones(2, dtype=F), torch.tensor([-0.7, 0.7], dtype=F)),
        "rare alike": lambda: of([500] * 4 + [20] * 10, 0, 0),
        "rare": lambda: of([500] * 4 + [20] * 10, 0, 0.7),
        "many": lambda: of([100] * 60, 0, 0.3),
        "many small alike": lambda: of([30] * 60, 0, 0),
        "large": lambda: of([2000] * 5, 0, 0.5),
    }[name]()


SETTINGS = ["alike", "three alike", "one deviating", "shifts", "slopes", "both", "slight shifts", "two"]
SETTINGS += ["rare alike", "rare", "many", "many small alike", "large"]
HALVED = ["one deviating", "shifts", "slopes", "both", "two", "large"]  # 200 per group, or more


def drawn(sizes, slopes, shifts, g) -> tuple[Predictions, torch.Tensor]:
    """Draw predictions of two classes, overconfident by a factor of 1.5, and the true probabilities."""
    group = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    odds = 1.5 * torch.randn(len(group), generator=g, dtype=F) - 0.3
    scores = 1.5 * (odds - shifts[group]) / slopes[group]
    true = odds.sigmoid()
    logits = torch.stack([torch.zeros_like(scores), scores], 1)
    return Predictions(logits, torch.bernoulli(true, generator=g).long(), of=1, groups=group), true


def risk(p: Predictions, true: torch.Tensor) -> float:
    """Return the expected NLL under the true probabilities."""
    log_p = logit_tensor(p).log_softmax(1)
    return -float((true * log_p[:, 1] + (1 - true) * log_p[:, 0]).mean())


def worst(p: Predictions, true: torch.Tensor) -> float:
    """Return the largest mean distance of a group from the true probabilities."""
    off = (logit_tensor(p).softmax(1)[:, 1] - true).abs()
    assert p.groups is not None
    return max(float(off[p.groups == i].mean()) for i in np.unique(p.groups))


def trial(name: str, g: torch.Generator) -> tuple[float, float, float]:
    """Return the increase of the NLL, and the error of the worst group of the common calibrator and by group."""
    sizes, slopes, shifts = setting(name, g)
    val, _ = drawn(sizes, slopes, shifts, g)
    test, true = drawn([3 * size for size in sizes], slopes, shifts, g)
    pooled, by_group = test.apply(Platt.fit(val)), test.apply(GroupCalibrated.fit(val))
    return risk(by_group, true) - risk(pooled, true), worst(pooled, true), worst(by_group, true)


def test_deviating_group_is_corrected_and_equal_groups_are_not():
    g = torch.Generator().manual_seed(2)
    rise, before, after = trial("one deviating", g)
    assert rise < -0.005
    assert after < before / 2
    assert trial("alike", g)[0] < 0.002


@pytest.mark.large
@pytest.mark.parametrize("name", SETTINGS)
def test_worst_group_gains_and_the_nll_does_not_increase(name):
    g = torch.Generator().manual_seed(5)
    rise, before, after = (sum(column) / 10 for column in zip(*(trial(name, g) for _ in range(10)), strict=True))
    print(f"{name}: NLL {rise:+.5f}, worst group {before:.4f} -> {after:.4f}")
    assert rise < 0.002
    if name in HALVED:
        assert after < before / 2


@pytest.mark.large
@pytest.mark.parametrize("spread", [0.0, 0.7])
def test_labels_of_an_example_are_partially_pooled(spread):
    """Twelve labels, half of them rare; a common calibrator, or one by label."""
    g, m, rises, errors = torch.Generator().manual_seed(9), 12, [], []
    for _ in range(5):
        base = torch.where(torch.arange(m) < 6, 0.0, -3.0) + torch.zeros(m, dtype=F)
        shift = spread * torch.randn(m, generator=g, dtype=F)
        mapped = []
        for n in (200, 2000):
            odds = base + torch.randn(n, 1, generator=g, dtype=F) + torch.randn(n, m, generator=g, dtype=F)
            outcome = torch.bernoulli(odds.sigmoid(), generator=g)
            mapped.append((Predictions.multilabel(1.4 * (odds - shift), outcome), odds.sigmoid().flatten()))
        (val, _), (test, true) = mapped
        pooled, separate = test.apply(Platt.fit(val)), test.apply(GroupCalibrated.fit(val))
        rises.append(risk(separate, true) - risk(pooled, true))
        errors.append((worst(pooled, true), worst(separate, true)))
    print(spread, sum(rises) / 5, [sum(column) / 5 for column in zip(*errors, strict=True)])
    assert sum(rises) / 5 < 0.002
    if spread:
        assert sum(after for _, after in errors) < sum(before for before, _ in errors) / 2


def several(n: int, g: torch.Generator, k: int = 4) -> Predictions:
    """Draw predictions whose class frequencies are biased by group."""
    z = 2 * torch.randn(n, k, dtype=F, generator=g)
    group = torch.arange(n) % 5
    shift = torch.zeros(5, k, dtype=F)
    shift[0, 1], shift[1, 2] = 1.5, -1.5
    labels = torch.multinomial((z + shift[group]).softmax(1), 1, generator=g).squeeze(1)
    return Predictions(1.5 * z, labels, groups=[f"ward {i}" for i in group.tolist()])


def test_groups_have_biases_of_several_classes():
    g = torch.Generator().manual_seed(3)
    val, test = several(1500, g), several(5000, g)
    pooled, fitted = BiasCorrectedTemperature.fit(val), GroupCalibrated.fit(val)
    gain = float(metrics.nll(test.apply(pooled)) - metrics.nll(test.apply(fitted)))
    assert gain > 0.01
    assert float(fitted.biases[0, 1] - fitted.biases[0, 3]) == pytest.approx(1.5, abs=0.5)
    assert float(np.abs(fitted.biases[3]).max()) < 0.4


@pytest.fixture(scope="module")
def wards() -> tuple[Predictions, GroupCalibrated]:
    p = several(600, torch.Generator().manual_seed(4))
    return p, GroupCalibrated.fit(p)


def test_groups_are_matched_by_name_in_any_order(wards):
    p, fitted = wards
    subset = Predictions(logit_tensor(p)[:4], p.labels[:4], groups=["ward 3", "ward 0", "elsewhere", "ward 1"])
    mapped = subset.apply(fitted)
    for i, name in enumerate(["ward 3", "ward 0", None, "ward 1"]):
        single = fitted.pooled if name is None else fitted.of_group(name)
        torch.testing.assert_close(
            torch.as_tensor(logit_tensor(mapped)[i : i + 1]).softmax(1), single(logit_tensor(p)[i : i + 1]).softmax(1)
        )
    assert mapped.notes == ("GroupCalibrated was not fitted on the groups elsewhere: they get the common calibrator",)
    assert not p.apply(fitted).notes
    with refused("unknown_group", "elsewhere"):
        fitted.of_group("elsewhere")
    with refused("unknown_group", "no group, for it has none"):
        GroupCalibrated.fit(Predictions(logit_tensor(p), p.labels)).of_group("ward 3")


def test_logits_without_groups_are_refused(wards):
    p, fitted = wards
    for data in (logit_tensor(p), torch.zeros(2, 4)):
        with refused("no_groups", "of_group('ward 0')"):
            fitted(data)
    with refused("no_groups"):
        Predictions(logit_tensor(p), p.labels).apply(fitted)


def test_without_groups_it_is_the_common_map():
    p = several(300, torch.Generator().manual_seed(6))
    bare = Predictions(logit_tensor(p), p.labels)
    fitted = GroupCalibrated.fit(bare, calibrator="Temperature")
    torch.testing.assert_close(fitted(logit_tensor(bare)), Temperature.fit(bare)(logit_tensor(bare)))


def test_group_calibrator_is_saved_chained_cross_fitted_and_assessed(wards, tmp_path):
    p, fitted = wards
    calibrators.save(fitted, tmp_path / "g.safetensors")
    loaded = calibrators.load(tmp_path / "g.safetensors")
    assert np.array_equal(p.apply(loaded).logits, p.apply(fitted).logits)
    chained = p.apply(Chain(Identity(), fitted))
    torch.testing.assert_close(logit_tensor(chained), logit_tensor(p.apply(fitted)))
    other_data = several(500, torch.Generator().manual_seed(7))
    result = assess(p, other_data, ["Identity", "GroupCalibrated"], choose="GroupCalibrated")
    direct = float(metrics.nll(other_data.apply(fitted)))
    assert result.measurements["GroupCalibrated"]["nll"].value == pytest.approx(direct, rel=1e-9)
    assert "ward 0" in result.html()
    with refused("fitted_on_same"):
        calibrators.calibrate(fitted, p)


def test_integer_weights_equal_copies():
    p = several(300, torch.Generator().manual_seed(8))
    w = torch.arange(300) % 3
    weighted = Predictions(logit_tensor(p), p.labels, w, groups=p.groups)
    assert p.groups is not None
    rows = torch.arange(300).repeat_interleave(w)
    copied = Predictions(logit_tensor(p)[rows], p.labels[rows], groups=p.groups[rows], clusters=rows)
    single, other_data = (
        GroupCalibrated.fit(q, calibrator="Identity")
        for q in (weighted, Predictions(logit_tensor(copied), copied.labels, groups=copied.groups))
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
    rise, before, after = trial("many small alike", torch.Generator().manual_seed(5))
    assert rise < 5e-4
    assert after < before + 0.02
