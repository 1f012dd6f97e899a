"""Fits to masks, outliers and extreme scales reach the optimum, or their certificates say that they do not."""

import html
import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import scipy
import torch
from calibrant.registry import CALIBRATORS
from golden_problems import ONE_SCORE
from refusals import refused

from calibrant import Predictions, assess, calibrators, metrics
from calibrant._core.tensors import logit_tensor
from calibrant.assessment import _sentences as sentences
from calibrant.calibrators import BiasCorrectedTemperature, StructuredVector, Temperature, Vector, fitting_digests
from calibrant.nn.selection import refinement_brier, refinement_nll
from calibrant.predictions.folds import map_out_of_fold
from calibrant.predictions.masks import mask_depth, replace_masks

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
    """Draw logits that are overconfident by a factor, and labels."""
    g = torch.Generator().manual_seed(seed)
    z = 2 * torch.randn(n, k, dtype=torch.float64, generator=g)
    return scale * z, torch.multinomial(z.softmax(-1), 1, generator=g).squeeze(1)


def masked(setting: str, value: float, k: int = 4, *, n: int = 300, seed: int = 0, **options) -> Predictions:
    """Return predictions with a mask value in place of some logits of classes other than the label."""
    z, y = draw(n, k, seed)
    g = torch.Generator().manual_seed(seed + 1)
    not_label, first = ~torch.nn.functional.one_hot(y, k).bool(), (torch.arange(k) == 0)[None]
    where = {
        "one row": (torch.arange(n) == 0)[:, None],
        "a quarter": torch.rand(n, k, generator=g) < 0.25,
        "absent class": first & (torch.rand(n, 1, generator=g) < 0.95),
        "other labels": first,
    }[setting]
    weights = torch.randint(1, 4, (n,), generator=g).double() if setting == "a quarter" else None
    return Predictions(z.masked_fill(where & not_label, value), y, weights, **options)


def fit(name: str, p: Predictions):
    return calibrators.fit(QUICK.get(name, name), p)


def nll_after(name: str, p: Predictions) -> float:
    return float(metrics.nll(p.apply(fit(name, p))))


def agrees(value: float, expected: float) -> bool:
    return value == pytest.approx(expected, abs=1e-6, nan_ok=True)


def check_masks(name: str, setting: str, values, k: int, **options) -> None:
    expected = nll_after(name, masked(setting, -math.inf, k, **options))
    for value in values:
        assert agrees(nll_after(name, masked(setting, value, k, **options)), expected), (name, setting, value, k)


@pytest.mark.parametrize("name", sorted(CALIBRATORS))
def test_masks_give_the_fit_of_impossible_classes(name):
    place = sorted(CALIBRATORS).index(name)
    values = list(MASKS.values())
    k = 2 if name in ONE_SCORE else 4
    check_masks(name, SETTINGS[place % 4], (values[place % 7],), k)
    check_masks(name, SETTINGS[(place + 2) % 4], (-1e4,), 2, of=1)


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", sorted(CALIBRATORS))
def test_every_mask_gives_the_fit_of_impossible_classes(name, setting):
    for k in (2,) if name in ONE_SCORE else (2, 4):
        check_masks(name, setting, MASKS.values(), k)
    check_masks(name, setting, MASKS.values(), 2, of=1)


@pytest.mark.parametrize("metric", [refinement_nll, refinement_brier])
@pytest.mark.parametrize("setting", SETTINGS)
def test_masks_do_not_change_refinement(metric, setting):
    expected = float(metric(masked(setting, -math.inf)))
    for value in MASKS.values():
        assert agrees(float(metric(masked(setting, value))), expected)


def test_masks_do_not_change_the_decomposition_of_a_score():
    expected = metrics.decompose_score(masked("a quarter", -math.inf), fit=Temperature.fit)
    result = metrics.decompose_score(masked("a quarter", torch.finfo(torch.float32).min), fit=Temperature.fit)
    assert agrees(result.refinement.value, expected.refinement.value)


@pytest.mark.parametrize("name", ["Platt", "Temperature", "HistogramBinning", "Auto"])
def test_masked_scores_of_binary_networks_are_certain(name):
    z, y = draw(400, 2, 3)
    s = z[:, 1] - z[:, 0]
    s[:5], y[:5] = -math.inf, 0
    expected = nll_after(name, Predictions.from_binary_logits(s, y))
    for value in MASKS.values():
        assert agrees(nll_after(name, Predictions.from_binary_logits(s.clamp_min(value), y)), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_masks_of_every_precision_are_recognized(dtype):
    p = masked("one row", torch.finfo(dtype).min)
    low = Predictions(logit_tensor(p).to(dtype), p.labels)
    assert logit_tensor(replace_masks(low)).isneginf().sum() == 3
    assert logit_tensor(replace_masks(low)).dtype == logit_tensor(low).dtype


def test_certificate_names_the_masked_data():
    p = masked("one row", -1e4)
    assert p.digest in fitting_digests(fit("Vector", p))


def test_several_masks_in_one_data_set_are_recognized():
    p = masked("a quarter", -1e4)
    z = logit_tensor(p).clone()
    z[z == -1e4] = torch.tensor(list(MASKS.values()), dtype=torch.float64).repeat(1000)[: int((z == -1e4).sum())]
    assert np.array_equal(replace_masks(p.with_logits(z)).logits, masked("a quarter", -math.inf).logits)


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e3, 1e6, 1e30])
@pytest.mark.parametrize("k", [2, 4])
def test_large_logits_are_not_masks(scale, k):
    z, y = draw(200, k, 5)
    assert mask_depth(Predictions(scale * z, y)) == math.inf


@pytest.mark.parametrize("scale", [1e3, 1e5, 1e6, 1e9])
def test_a_class_on_another_scale_is_not_masked(scale):
    z, y = draw(200, 4, 6)
    z[:, 1] *= scale
    assert mask_depth(Predictions(z, y)) == math.inf


def test_mask_on_a_label_counts_as_an_error():
    p = masked("a quarter", -1e4)
    z = logit_tensor(p).clone()
    z[0, p.labels[0]] = -1e4
    assert mask_depth(p) < math.inf
    assert mask_depth(p.with_logits(z)) == math.inf


@pytest.mark.parametrize("name", sorted(CALIBRATORS))
@pytest.mark.parametrize("value", [-1e4, torch.finfo(torch.float32).min, torch.finfo(torch.float64).min])
def test_mask_on_a_label_gives_a_map_or_a_refusal(name, value):
    p = masked("one row", value, 2 if name in ONE_SCORE else 4)
    z = logit_tensor(p).clone()
    z[7, p.labels[7]] = value
    fitted = fit(name, p.with_logits(z))
    assert not fitted(z).softmax(-1).isnan().any()
    certificate = getattr(fitted, "certificate", None)
    if certificate is not None and certificate.criterion == "nll":
        not_optimized = certificate.status in ("closed form", "not converged")
        assert certificate.after <= certificate.before + 2 / 300 or not_optimized


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
    with refused("conflicting_settings"):
        CALIBRATORS[name].fit(*draw(50, 4, 9), **settings)


def test_refit_temperature_uses_robust_fits():
    z, y = draw(60, 3, 10)
    z[0, y[0]] = -300.0  # one gross error, which carries away the temperature of a fit that is not robust
    fitted = StructuredVector.fit(z, y, refit_temperature=True, robust=True)
    fit = partial(StructuredVector.fit, robust=True, warm_start=replace(fitted, final=torch.ones(()).double()))
    expected = Temperature.fit(map_out_of_fold(fit, Predictions(z, y)))
    assert float(fitted.final) == pytest.approx(float(expected.temperature), rel=1e-6)


def test_composed_calibrator_has_the_worst_status_of_its_parts():
    z, y = draw(200, 4, 11)
    p = Predictions(-z, y)
    assert Temperature.fit(p).certificate.status == "at bound"
    for name in ("ScalingBinning", "PriorShift(calibrator='Temperature')", "Chain(first='Temperature')"):
        assert calibrators.fit(name, p).certificate.status in ("at bound", "not converged")


# Extreme inputs against an independent solver


def extreme(case: str, k: int, n: int = 600) -> Predictions:
    """Draw predictions, then change the scale or offset of some logits."""
    z, y = draw(n, k, 12, scale=1.5)
    kind, _, amount = case.partition(" ")
    match kind:
        case "scale":
            z = float(amount) * z
        case "column":
            z[:, 1] *= float(amount)
        case "offsets":
            z = z + float(amount) * torch.arange(k)
        case "outliers":  # that are right
            z[:5], y[:5] = 0.0, 0
            z[:5, 1] = float(amount)
        case _:  # that are wrong
            z[:5], y[:5] = 0.0, 1
            z[:5, 1] = float(amount)
    return Predictions(z, y)


def optimum(features: np.ndarray, y: np.ndarray) -> float:
    """Minimize the mean NLL of softmax(features @ t), features (n k d), by Newton's method with least squares steps."""
    n, k, d = features.shape
    features = features - features.mean(1, keepdims=True)
    spread = np.sqrt((features**2).mean((0, 1)))
    features = features / np.where(spread > 0, spread, 1)
    t, truth = np.zeros(d), np.eye(k)[y]

    def f(t: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        u = features @ t
        p = scipy.special.softmax(u, 1)
        mean = np.einsum("ik,ikd->id", p, features)
        hessian = np.einsum("nkd,nk,nke->de", features, p, features) - mean.T @ mean
        loss = scipy.special.logsumexp(u, 1) - (u * truth).sum(1)
        return loss.mean(), np.einsum("nk,nkd->d", p - truth, features) / n, hessian / n

    value, gradient, hessian = f(t)
    for _ in range(300):
        step = np.linalg.lstsq(hessian, -gradient, rcond=1e-14)[0]
        slope, length = float(gradient @ step), 1.0
        while length > 1e-12 and not f(t + length * step)[0] <= value + 1e-4 * length * slope:
            length /= 2
        if slope > -1e-15 or length <= 1e-12:
            break
        t = t + length * step
        value, gradient, hessian = f(t)
    return value


EXTREMES = ("scale 1000", "scale 1e-4", "column 1000", "column 1e-4", "column 1e5", "offsets 30", "offsets 60")
EXTREMES += ("offsets 90", "offsets 1000", "outliers -300", "errors -30", "errors -100")


@pytest.mark.parametrize("case", EXTREMES)
def test_vector_scaling_of_extreme_logits_is_optimal(case):
    p = extreme(case, 4)
    z, eye = p.logits, np.eye(4)
    features = np.concatenate([(z - z.mean(0))[:, :, None] * eye, np.broadcast_to(eye, (len(z), 4, 4))], 2)
    certificate = Vector.fit(p).certificate
    assert certificate is not None
    assert certificate.is_optimal
    if not case.startswith("errors"):  # lower than 87 temperatures, which the family cuts off
        assert certificate.after == pytest.approx(optimum(features, p.labels), abs=1e-6)


@pytest.mark.parametrize("case", EXTREMES)
def test_bias_corrected_temperature_of_extreme_logits_is_optimal(case):
    p = extreme(case, 4)
    z, eye = p.logits, np.eye(4)
    features = np.concatenate([(z - z.mean(0))[:, :, None], np.broadcast_to(eye, (len(z), 4, 4))], 2)
    certificate = BiasCorrectedTemperature.fit(p).certificate
    assert certificate is not None
    if certificate.is_optimal:
        assert certificate.after == pytest.approx(optimum(features, p.labels), abs=1e-6)
    else:
        assert case.startswith("errors")


@pytest.mark.parametrize("case", [*EXTREMES, "errors -1e4", "errors -65504"])
def test_temperature_of_extreme_logits_is_optimal(case):
    p = extreme(case, 4)
    fitted = Temperature.fit(p)

    def loss(u: float) -> float:
        return float(metrics.nll(math.exp(-u) * logit_tensor(p), p.labels))

    u = np.linspace(-18, 18, 145)
    best = u[int(np.argmin([loss(x) for x in u]))]
    least = scipy.optimize.minimize_scalar(loss, bounds=(best - 0.25, best + 0.25), method="bounded").fun
    assert fitted.certificate is not None
    if fitted.certificate.status == "converged":
        assert fitted.certificate.after <= least + 1e-6


def binary_features(name: str, fitted) -> Callable[[torch.Tensor], np.ndarray]:
    """Return the features in which the family of a fitted map is linear."""
    if name == "Platt":
        return lambda s: s[:, None].numpy()
    if name == "Beta":
        logs = torch.nn.functional.logsigmoid
        return lambda s: torch.stack([logs(s).clamp_min(-87), -logs(-s).clamp_min(-87)], 1).numpy()
    low, high = fitted.ends.tolist()
    twice = 2 * (high - low)
    return lambda s: torch.stack([s - low - (s - low) ** 2 / twice, (s - low) ** 2 / twice], 1).numpy()


def binary_optimum(features: np.ndarray, targets: np.ndarray) -> float:
    """Minimize the cross-entropy of a logistic regression with nonnegative weights from several starts."""
    best = math.inf
    for spread in (features.std(0), np.median(np.abs(features - np.median(features, 0)), 0)):
        x = (features - np.median(features, 0)) / np.where(spread > 1e-12 * np.abs(features).max(0), spread, 1)
        x = np.column_stack([x, np.ones(len(x))])
        bounds = [(0, None)] * features.shape[1] + [(None, None)]

        def f(w: np.ndarray, x: np.ndarray = x) -> tuple[float, np.ndarray]:
            u = x @ w
            return float((np.logaddexp(0, u) - targets * u).mean()), x.T @ (scipy.special.expit(u) - targets) / len(x)

        for start in (0.1, 1.0):
            options = {"maxiter": 10_000, "maxfun": 20_000, "ftol": 1e-16, "gtol": 1e-12}
            begin = np.r_[np.full(features.shape[1], start), 0]
            best = min(best, scipy.optimize.minimize(f, begin, jac=True, bounds=bounds, options=options).fun)
    return best


@pytest.mark.parametrize("case", [*EXTREMES, "outliers -1e4", "outliers -65504", "errors -1e4", "errors -65504"])
@pytest.mark.parametrize("name", ["Beta", "Platt", "Quadratic"])
def test_binary_families_of_extreme_scores_are_optimal(name, case):
    p = extreme(case, 2)
    fitted = CALIBRATORS[name].fit(p)
    s = (logit_tensor(p)[:, 1] - logit_tensor(p)[:, 0]).clamp(-fitted.limit, fitted.limit)
    y, n1 = p.labels.astype(float), p.labels.sum()
    if name == "Platt":
        y = np.where(y == 1, (n1 + 1) / (n1 + 2), 1 / (len(p) - n1 + 2))
    u = (fitted(logit_tensor(p))[:, 1] - fitted(logit_tensor(p))[:, 0]).numpy()
    value = float((np.logaddexp(0, u) - y * u).mean())
    gap = value - binary_optimum(binary_features(name, fitted)(s), y)
    assert gap <= 1e-6 or not fitted.certificate.is_optimal


@pytest.mark.parametrize("case", ["column 1000", "column 1e-4", "offsets 90", "errors -100"])
@pytest.mark.parametrize("name", ["Matrix", "Dirichlet", "StructuredMatrix", "StructuredVector"])
def test_penalized_maps_of_extreme_logits_are_optimal(name, case):
    """A Newton step by derivatives of autograd does not improve the fitted map."""
    p = extreme(case, 4)
    settings = {"penalty": 0.1} if name in ("Matrix", "Dirichlet") else {}
    fitted, eye = CALIBRATORS[name].fit(p, **settings), torch.eye(4, dtype=torch.float64)
    z, labels, n, k = logit_tensor(p), torch.from_numpy(p.labels), len(p), 4
    below = (z / fitted.temperature if name == "Matrix" else z).log_softmax(1)
    if name == "Matrix":
        x = z / fitted.temperature
        x = x.maximum(x.amax(1, keepdim=True) - 87)
        x = x - x.mean(1, keepdim=True)
    elif name == "Dirichlet":
        x = below.clamp_min(-87)
    else:
        x = (((z / fitted.temperature).softmax(1) * n + 1 / k) / (n + 1)).log()
    matrix, diagonal = name != "StructuredVector", name.startswith("Structured")
    change = torch.from_numpy(fitted.weight if matrix else fitted.scale)
    change = change - eye if matrix and not diagonal else change
    penalty = eye * k / n + (1 - eye) * k * (k - 1) / n if diagonal else (1 - eye) * 0.1 / (k * (k - 1))

    def objective(t: torch.Tensor) -> torch.Tensor:
        w, c = t[:-4].view(change.shape), t[-4:]
        loss = torch.nn.functional.cross_entropy(x @ (eye + (w if matrix else w.diag())).mT + c, labels)
        ridge = (penalty * w.square()).sum() if matrix else k / n * w.square().sum()
        return loss + ridge + (k / n if diagonal else 0.1 / k) * c.square().sum()

    t = torch.cat([change.flatten(), torch.from_numpy(fitted.bias)])
    value, least = float(objective(t)), math.inf
    for _ in range(5):
        gradient = torch.autograd.functional.jacobian(objective, t)
        hessian = torch.autograd.functional.hessian(objective, t)
        step = torch.linalg.lstsq(hessian, gradient[:, None], driver="gelsd").solution[:, 0]
        t = min((t - length * step for length in (1.0, 0.1, 0.01)), key=lambda t: float(objective(t)))
        least = min(least, float(objective(t)))
    assert value <= least + 1e-6 or not fitted.certificate.is_optimal


def test_cost_of_the_ridge_is_in_the_certificate():
    """If a class never occurs, or all examples are right, the likelihood has no maximum without the ridge."""
    z, y = draw(300, 4, 13)
    for labels in (y % 3, z.argmax(1)):
        certificate = Vector.fit(z, labels).certificate
        assert certificate is not None
        assert certificate.gap > 1e-6
        assert not certificate.is_optimal
    certificate = Vector.fit(z, y).certificate
    assert certificate is not None
    assert certificate.gap < 1e-9
    assert certificate.is_optimal


def test_gap_of_a_separable_fit_is_about_its_loss():
    z, _ = draw(300, 4, 14)
    for name in ("Vector", "BiasCorrectedTemperature"):
        certificate = CALIBRATORS[name].fit(z, z.argmax(1)).certificate
        assert certificate.gap == pytest.approx(certificate.after, rel=0.9)


# What assess says of certificates


def test_assess_shows_certificates_that_are_not_clean(tmp_path):
    z, y = draw(300, 4, 15)
    test = Predictions(*draw(300, 4, 16))
    clean = assess(Predictions(z, y), test, ["Vector", "Temperature"])
    unclean = assess(Predictions(z, y % 3), test.with_logits(-logit_tensor(test)), ["Vector", "Temperature"])
    for result, names in ((clean, set[str]()), (unclean, {"Vector"})):
        fits = json.loads(result.json())["fits"]
        assert {name for name, fit in fits.items() if not fit["clean"]} == names
        cautions = sentences.fit_warnings(result)
        assert len(cautions) == len(names)
        path = tmp_path / "page.html"
        result.save(path)
        for line in cautions:
            assert line in " ".join(str(result).split())
            assert html.escape(line) in path.read_text()
