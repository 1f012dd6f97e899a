"""Masks, outliers and scales: fits to them reach the optimum of their family, or their certificates say so."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch

from calibrant import InputError, Predictions, calibrators, metrics
from calibrant._folds import cross_fitted
from calibrant._masks import mask_gap, without_masks
from calibrant.calibrators import StructuredVector, Temperature, fitted_on
from calibrant.catalog import CALIBRATORS
from calibrant.selection import refinement_brier, refinement_nll

BINARY = {"Beta", "Platt", "Quadratic"}
QUICK = {  # the same methods, with less work
    "Auto": "Auto(folds=2)",
    "PriorShift": "PriorShift(calibrator='Temperature')",
    "FocalTemperature": "FocalTemperature(grid=((-0.5, 0.0, 1.0), (0.5, 1.0, 2.0, 2.5, 3.0, 3.5, 4.0)))",
}
MASKS = {
    "-1e4": -1e4,
    "-1e9": -1e9,
    "-1e30": -1e30,
    **{str(t): torch.finfo(t).min for t in (torch.float16, torch.bfloat16, torch.float32, torch.float64)},
}
SETTINGS = ("one row", "a quarter", "absent class", "other labels")


def draw(n: int, k: int, seed: int, scale: float = 3.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits that are overconfident by a factor, and labels."""
    g = torch.Generator().manual_seed(seed)
    z = 2 * torch.randn(n, k, dtype=torch.float64, generator=g)
    return scale * z, torch.multinomial(z.softmax(-1), 1, generator=g).squeeze(1)


def masked(setting: str, value: float, k: int = 4, *, n: int = 300, seed: int = 0, **more) -> Predictions:
    """Predictions with a value in place of some logits of classes other than the label."""
    z, y = draw(n, k, seed)
    g = torch.Generator().manual_seed(seed + 1)
    other, first = ~torch.nn.functional.one_hot(y, k).bool(), (torch.arange(k) == 0)[None]
    where = {
        "one row": (torch.arange(n) == 0)[:, None],
        "a quarter": torch.rand(n, k, generator=g) < 0.25,
        "absent class": first & (torch.rand(n, 1, generator=g) < 0.95),
        "other labels": first,
    }[setting]
    weights = torch.randint(1, 4, (n,), generator=g).double() if setting == "a quarter" else None
    return Predictions(z.masked_fill(where & other, value), y, weights, **more)


def fit(name: str, p: Predictions):
    return calibrators.fit(QUICK.get(name, name), p)


def nll_after(name: str, p: Predictions) -> float:
    return float(metrics.nll(p.mapped(fit(name, p))))


def agrees(value: float, expected: float) -> bool:
    return value == pytest.approx(expected, abs=1e-6, nan_ok=True)


def check_masks(name: str, setting: str, values, k: int, **more) -> None:
    expected = nll_after(name, masked(setting, -math.inf, k, **more))
    for value in values:
        assert agrees(nll_after(name, masked(setting, value, k, **more)), expected), (name, setting, value, k)


@pytest.mark.parametrize("name", sorted(CALIBRATORS))
def test_masks_give_the_fit_of_impossible_classes(name):
    place = sorted(CALIBRATORS).index(name)
    values = list(MASKS.values())
    k = 2 if name in BINARY else 4
    check_masks(name, SETTINGS[place % 4], (values[place % 7],), k)
    check_masks(name, SETTINGS[(place + 2) % 4], (-1e4,), 2, of=1)


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", sorted(CALIBRATORS))
def test_every_mask_gives_the_fit_of_impossible_classes(name, setting):
    for k in (2,) if name in BINARY else (2, 4):
        check_masks(name, setting, MASKS.values(), k)
    check_masks(name, setting, MASKS.values(), 2, of=1)


@pytest.mark.parametrize("metric", [refinement_nll, refinement_brier])
@pytest.mark.parametrize("setting", SETTINGS)
def test_masks_leave_refinement_alone(metric, setting):
    expected = float(metric(masked(setting, -math.inf)))
    for value in MASKS.values():
        assert agrees(float(metric(masked(setting, value))), expected)


def test_masks_leave_the_split_of_a_score_alone():
    expected = metrics.split(masked("a quarter", -math.inf), fit=Temperature.fit)
    found = metrics.split(masked("a quarter", torch.finfo(torch.float32).min), fit=Temperature.fit)
    assert agrees(found.refinement.value, expected.refinement.value)


@pytest.mark.parametrize("name", ["Platt", "Temperature", "HistogramBinning", "Auto"])
def test_masked_scores_of_binary_networks_are_certain(name):
    z, y = draw(400, 2, 3)
    s = z[:, 1] - z[:, 0]
    s[:5], y[:5] = -math.inf, 0
    expected = nll_after(name, Predictions.from_binary_logits(s, y))
    for value in MASKS.values():
        assert agrees(nll_after(name, Predictions.from_binary_logits(s.clamp_min(value), y)), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_masks_of_every_precision_are_found(dtype):
    p = masked("one row", torch.finfo(dtype).min)
    low = Predictions(p.logits.to(dtype), p.labels)
    assert without_masks(low).logits.isneginf().sum() == 3
    assert without_masks(low).logits.dtype == dtype


def test_certificate_names_the_masked_data():
    p = masked("one row", -1e4)
    assert p.digest in fitted_on(fit("Vector", p))


def test_several_masks_in_one_data_set_are_all_found():
    p = masked("a quarter", -1e4)
    z = p.logits.clone()
    z[z == -1e4] = torch.tensor(list(MASKS.values()), dtype=torch.float64).repeat(1000)[: int((z == -1e4).sum())]
    assert torch.equal(without_masks(p.having(z)).logits, masked("a quarter", -math.inf).logits)


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e3, 1e6, 1e30])
@pytest.mark.parametrize("k", [2, 4])
def test_large_logits_are_not_masks(scale, k):
    z, y = draw(200, k, 5)
    assert mask_gap(Predictions(scale * z, y)) == math.inf


@pytest.mark.parametrize("scale", [1e3, 1e5, 1e6, 1e9])
def test_a_class_on_another_scale_is_not_masked(scale):
    z, y = draw(200, 4, 6)
    z[:, 1] *= scale
    assert mask_gap(Predictions(z, y)) == math.inf


def test_a_mask_on_a_label_is_evidence():
    p = masked("a quarter", -1e4)
    z = p.logits.clone()
    z[0, p.labels[0]] = -1e4
    assert mask_gap(p) < math.inf
    assert mask_gap(p.having(z)) == math.inf


@pytest.mark.parametrize("name", sorted(CALIBRATORS))
@pytest.mark.parametrize("value", [-1e4, torch.finfo(torch.float32).min, torch.finfo(torch.float64).min])
def test_a_mask_on_a_label_gives_a_map_or_one_line(name, value):
    p = masked("one row", value, 2 if name in BINARY else 4)
    z = p.logits.clone()
    z[7, p.labels[7]] = value
    fitted = fit(name, p.having(z))
    assert not fitted(z).softmax(-1).isnan().any()
    certificate = getattr(fitted, "certificate", None)
    if certificate is not None and certificate.criterion == "nll":
        assert certificate.after <= certificate.before + 2 / 300 or certificate.status == "not converged"


# Settings that contradict each other


def test_temperature_by_nll_searches_a_given_grid():
    z, y = draw(300, 4, 8)
    fitted = Temperature.fit(z, y, criterion="nll", grid=(0.5, 2.0, 8.0))
    assert float(fitted.temperature) == 2.0
    assert fitted.certificate.status == "grid"
    assert abs(float(Temperature.fit(z, y).temperature) - 2.0) > 0.1


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("PriorShift", {"prior": (0.5, 0.2, 0.2, 0.1), "unlabeled": torch.zeros(5, 4)}),
        ("FocalTemperature", {"grid": ((0.0, 1.0), (1.0, 2.0)), "gamma": 3.0}),
        ("Matrix", {"penalty": 1.0, "ridge": 1.0}),
    ],
)
def test_conflicting_settings_are_refused(name, settings):
    with pytest.raises(InputError) as error:
        CALIBRATORS[name].fit(*draw(50, 4, 9), **settings)
    assert error.value.code == "conflicting_settings"


def test_refit_temperature_is_found_by_robust_fits_if_asked_for():
    z, y = draw(60, 3, 10)
    z[0, y[0]] = -300.0  # one gross error, which carries away the temperature of a fit that is not robust
    fitted = StructuredVector.fit(z, y, refit_temperature=True, robust=True)
    fit = partial(StructuredVector.fit, robust=True, warm_start=replace(fitted, final=torch.ones(()).double()))
    expected = Temperature.fit(cross_fitted(fit, Predictions(z, y)))
    assert float(fitted.final) == pytest.approx(float(expected.temperature), rel=1e-6)


def test_a_composed_calibrator_has_the_worst_status_of_its_parts():
    z, y = draw(200, 4, 11)
    p = Predictions(-z, y)
    assert Temperature.fit(p).certificate.status == "at bound"
    for name in ("ScalingBinning", "PriorShift(calibrator='Temperature')", "Chain(first='Temperature')"):
        assert calibrators.fit(name, p).certificate.status in ("at bound", "not converged")
