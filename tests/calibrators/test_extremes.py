"""Fits to masks, outliers and extreme scales reach the optimum, or their certificates say that they do not."""

import html
import json
import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import scipy
from calibrant.registry import CALIBRATORS
from drawn import drawn_labels
from refusals import refused
from scipy.special import log_expit, log_softmax, softmax

from calibrant import Predictions, assess, calibrators, metrics
from calibrant.assessment import _sentences as sentences
from calibrant.calibrators import BiasCorrectedTemperature, StructuredVector, Temperature, Vector, fitting_digests
from calibrant.predictions.folds import map_out_of_fold
from calibrant.predictions.masks import mask_depth, replace_masks

QUICK = {  # the same methods, with less work
    "Auto": "Auto(folds=2)",
    "PriorShift": "PriorShift(calibrator='Temperature')",
    "FocalTemperature": "FocalTemperature(grid=((-0.5, 0.0, 1.0), (0.5, 1.0, 2.0, 2.5, 3.0, 3.5, 4.0)))",
}
ONE_SCORE = [name for name in CALIBRATORS if calibrators.capabilities(CALIBRATORS[name]).num_classes == 2]
LEAST = {str(np.dtype(t)): float(np.finfo(t).min) for t in (np.float16, np.float32, np.float64)}
LEAST["bfloat16"] = -(2.0**128 - 2.0**120)
MASKS = [-1e4, -1e9, -1e30, *LEAST.values()]
SETTINGS = ("one row", "a quarter", "absent class", "other labels")


def draw(n: int, k: int, seed: int, scale: float = 3.0) -> tuple[np.ndarray, np.ndarray]:
    """Draw logits that are overconfident by a factor, and labels."""
    rng = np.random.default_rng(seed)
    z = 2 * rng.standard_normal((n, k))
    return scale * z, drawn_labels(z, rng)


def masked(setting: str, value: float, k: int = 4, *, n: int = 300, seed: int = 0, **options) -> Predictions:
    """Return predictions with a mask value in place of some logits of classes other than the label."""
    z, y = draw(n, k, seed)
    rng, classes = np.random.default_rng(seed + 1), np.arange(k)
    where = {
        "one row": (np.arange(n) == 0)[:, None],
        "a quarter": rng.random((n, k)) < 0.25,
        "absent class": (classes == 0) & (rng.random((n, 1)) < 0.95),
        "other labels": classes == 0,
    }[setting]
    weights = rng.integers(1, 4, n) if setting == "a quarter" else None
    return Predictions(np.where(where & (classes != y[:, None]), value, z), y, weights, **options)


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
    k = 2 if name in ONE_SCORE else 4
    check_masks(name, SETTINGS[place % 4], (MASKS[place % 7],), k)
    check_masks(name, SETTINGS[(place + 2) % 4], (-1e4,), 2, of=1)


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", sorted(CALIBRATORS))
def test_every_mask_gives_the_fit_of_impossible_classes(name, setting):
    for k in (2,) if name in ONE_SCORE else (2, 4):
        check_masks(name, setting, MASKS, k)
    check_masks(name, setting, MASKS, 2, of=1)


@pytest.mark.parametrize("name", ["refinement_nll", "refinement_brier"])
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.usefixtures("torch")
def test_masks_do_not_change_refinement(name, setting):
    from calibrant.nn import selection

    metric = getattr(selection, name)
    expected = float(metric(masked(setting, -math.inf)))
    for value in MASKS:
        assert agrees(float(metric(masked(setting, value))), expected)


def test_masks_do_not_change_the_decomposition_of_a_score():
    expected = metrics.decompose_score(masked("a quarter", -math.inf), fit=Temperature.fit)
    result = metrics.decompose_score(masked("a quarter", LEAST["float32"]), fit=Temperature.fit)
    assert agrees(result.refinement.value, expected.refinement.value)


@pytest.mark.parametrize("name", ["Platt", "Temperature", "HistogramBinning", "Auto"])
def test_masked_scores_of_binary_networks_are_certain(name):
    z, y = draw(400, 2, 3)
    s = z[:, 1] - z[:, 0]
    s[:5], y[:5] = -math.inf, 0
    expected = nll_after(name, Predictions.from_binary_logits(s, y))
    for value in MASKS:
        assert agrees(nll_after(name, Predictions.from_binary_logits(np.maximum(s, value), y)), expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_masks_of_every_precision_are_recognized(dtype):
    library = pytest.importorskip("torch") if dtype == "bfloat16" else np
    p = masked("one row", LEAST[dtype])
    low = Predictions(library.asarray(p.logits, dtype=getattr(library, dtype)), p.labels)
    assert np.isneginf(replace_masks(low).logits).sum() == 3
    assert replace_masks(low).logits.dtype == low.logits.dtype


def test_certificate_names_the_masked_data():
    p = masked("one row", -1e4)
    assert p.digest in fitting_digests(fit("Vector", p))


def test_several_masks_in_one_data_set_are_recognized():
    p = masked("a quarter", -1e4)
    z = p.logits.copy()
    z[z == -1e4] = np.resize(MASKS, (z == -1e4).sum())
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
    z = p.logits.copy()
    z[0, p.labels[0]] = -1e4
    assert mask_depth(p) < math.inf
    assert mask_depth(p.with_logits(z)) == math.inf


@pytest.mark.parametrize("name", sorted(CALIBRATORS))
@pytest.mark.parametrize("value", [-1e4, LEAST["float32"], LEAST["float64"]])
def test_mask_on_a_label_gives_a_map_or_a_refusal(name, value):
    p = masked("one row", value, 2 if name in ONE_SCORE else 4)
    z = p.logits.copy()
    z[7, p.labels[7]] = value
    fitted = fit(name, p.with_logits(z))
    assert not np.isnan(softmax(fitted(z), 1)).any()
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
        ("PriorShift", {"prior": (0.5, 0.2, 0.2, 0.1), "unlabeled": np.zeros((5, 4))}),
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
    fit = partial(StructuredVector.fit, robust=True, warm_start=replace(fitted, final=1.0))
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
            z = z + float(amount) * np.arange(k)
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
        p = softmax(u, 1)
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
        return float(metrics.nll(math.exp(-u) * p.logits, p.labels))

    u = np.linspace(-18, 18, 145)
    best = u[int(np.argmin([loss(x) for x in u]))]
    least = scipy.optimize.minimize_scalar(loss, bounds=(best - 0.25, best + 0.25), method="bounded").fun
    assert fitted.certificate is not None
    if fitted.certificate.status == "converged":
        assert fitted.certificate.after <= least + 1e-6


def binary_features(name: str, fitted, s: np.ndarray) -> np.ndarray:
    """Return the features of scores in which the family of a fitted map is linear."""
    if name == "Platt":
        return s[:, None]
    if name == "Beta":
        return np.stack([np.maximum(log_expit(s), -87), -np.maximum(log_expit(-s), -87)], 1)
    low, high = fitted.ends
    falling, rising = s - low, (s - low) ** 2 / (2 * (high - low))
    return np.stack([falling - rising, rising], 1)


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
    s = (p.logits[:, 1] - p.logits[:, 0]).clip(-fitted.limit, fitted.limit)
    y, n1 = p.labels.astype(float), p.labels.sum()
    if name == "Platt":
        y = np.where(y == 1, (n1 + 1) / (n1 + 2), 1 / (len(p) - n1 + 2))
    u = np.diff(fitted(p.logits))[:, 0]
    gap = (np.logaddexp(0, u) - y * u).mean() - binary_optimum(binary_features(name, fitted, s), y)
    assert gap <= 1e-6 or not fitted.certificate.is_optimal


@pytest.mark.parametrize("case", ["column 1000", "column 1e-4", "offsets 90", "errors -100"])
@pytest.mark.parametrize("name", ["Matrix", "Dirichlet", "StructuredMatrix", "StructuredVector"])
def test_penalized_maps_of_extreme_logits_are_optimal(torch, name, case):
    """A Newton step by derivatives of autograd does not improve the fitted map."""
    p = extreme(case, 4)
    settings = {"penalty": 0.1} if name in ("Matrix", "Dirichlet") else {}
    fitted, eye = CALIBRATORS[name].fit(p, **settings), torch.eye(4, dtype=torch.float64)
    n, k = p.logits.shape
    if name == "Matrix":
        x = p.logits / fitted.temperature
        x = np.maximum(x, x.max(1, keepdims=True) - 87)
        x = x - x.mean(1, keepdims=True)
    elif name == "Dirichlet":
        x = np.maximum(log_softmax(p.logits, 1), -87)
    else:
        x = np.log((softmax(p.logits / fitted.temperature, 1) * n + 1 / k) / (n + 1))
    x, labels = torch.from_numpy(x), torch.from_numpy(p.labels)
    matrix, diagonal = name != "StructuredVector", name.startswith("Structured")
    change = torch.from_numpy(fitted.weight if matrix else fitted.scale)
    change = change - eye if matrix and not diagonal else change
    penalty = eye * k / n + (1 - eye) * k * (k - 1) / n if diagonal else (1 - eye) * 0.1 / (k * (k - 1))

    def objective(t):
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
    unclean = assess(Predictions(z, y % 3), test.with_logits(-test.logits), ["Vector", "Temperature"])
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
