"""The contract of every registered calibrator."""

from functools import cache

import numpy as np
import pytest
from calibrant.registry import CALIBRATORS
from drawn import drawn_labels
from method_contracts import Contract
from refusals import refused
from scipy.special import log_softmax, softmax

from calibrant import InputError, Predictions, calibrators, metrics
from calibrant._core.kernels.roots import Certificate
from calibrant.calibrators import calibrate, fitting_digests

CAPABILITIES = {name: calibrators.capabilities(CALIBRATORS[name]) for name in CALIBRATORS}
UNLEARNED = {name for name, promised in CAPABILITIES.items() if not promised.repairs_overconfidence}
BINARY = {name for name, promised in CAPABILITIES.items() if promised.num_classes == 2}
ZERO_BINS = {"HistogramBinning", "TopLabelBinning"}  # a bin without a right or wrong example has an accuracy of 0 or 1
contract, tensor_contract = Contract(), Contract()
QUICK = {  # the same methods with less work
    "Auto": "Auto(folds=2)",
    "PriorShift": "PriorShift(calibrator='Temperature')",
    "FocalTemperature": f"FocalTemperature(grid=((-0.5, 0.0, 1.0, 3.0), {tuple(i / 8 for i in range(2, 40))}))",
}


def fit(name: str, predictions: Predictions):
    return calibrators.fit(QUICK.get(name, name), predictions)


def fit_unless_refused(name: str, predictions: Predictions, code: str):
    """Return the fitted calibrator, or None if the fit refuses the data with this code."""
    try:
        return fit(name, predictions)
    except InputError as error:
        if error.code != code:
            raise
        return None


def draw(n: int, k: int, seed: int, scale: float = 1.0) -> Predictions:
    """Draw calibrated predictions, and multiply their logits by a scale."""
    rng = np.random.default_rng(seed)
    logits = 2 * rng.normal(size=(n, k))
    return Predictions(scale * logits, drawn_labels(logits, rng))


@pytest.mark.parametrize("name", sorted(CALIBRATORS))
def test_contract_of(name):
    contract.verify(name, k=2 if name in BINARY else 4)


@pytest.mark.parametrize("name", sorted(CALIBRATORS))
def test_contract_for_tensors_of(name, torch):
    tensor_contract.verify(name, k=2 if name in BINARY else 4, torch=torch)


@contract.holds()
def every_class_declares_its_capabilities(name):
    assert isinstance(CALIBRATORS[name].capabilities, calibrators.Capabilities)


@contract.holds(k_of=[(4, "top"), (2, "top"), (2, 1)])
def classes_are_treated_alike_where_promised(name, k_of):
    """Permuted logits then give permuted results. Every other fit learns that some classes are more frequent."""
    k, of = k_of
    if name in BINARY and k > 2:
        return
    data, z = draw(300, k, 10), draw(50, k, 11).logits
    fitted = fit(name, Predictions(data.logits + np.arange(k), data.labels, of=of))
    order = np.roll(np.arange(k), 1)
    is_alike = np.allclose(softmax(fitted(z[:, order]), 1), softmax(fitted(z), 1)[:, order], atol=1e-9)
    assert calibrators.treats_classes_alike(fitted) == is_alike


@contract.holds()
def fits_to_pairs_are_antisymmetric(name):
    rng = np.random.default_rng(12)
    margins, rejected = rng.normal(size=(2, 150))
    fitted = fit(name, Predictions.from_pairs(rejected + margins + 0.5, rejected))
    z = 2 * rng.normal(size=(50, 2))
    np.testing.assert_allclose(softmax(fitted(z), 1), softmax(fitted(z[:, ::-1]), 1)[:, ::-1], atol=1e-6, rtol=0)


@contract.holds()
def a_class_without_labels_keeps_a_finite_probability(name, k):
    """Dirichlet gave it e^-18,000, and affine maps a probability that depended on where the search ended."""
    data, fresh = draw(300, k, 13), draw(300, k, 14, scale=1.5)
    data = data[data.labels != 1]
    fitted = fit(name, data)
    if name != "Identity":
        assert fitted.certificate.absent == 1
    if name not in ZERO_BINS:
        log_p = log_softmax(fitted(fresh.logits), 1)
        assert np.isfinite(log_p).all()
        assert log_p.min() > -100  # FocalMap has the lowest, -43


@contract.holds()
def overconfidence_is_repaired_or_not_promised(name, k):
    """A fit improves its own criterion on the fitting data, and the Brier score and the ECE on fresh data."""
    data, fresh = draw(1500, k, 0, scale=3.0), draw(4000, k, 1, scale=3.0)
    fitted = fit(name, data)
    if name in UNLEARNED:
        assert metrics.brier(fitted(fresh.logits), fresh.labels) > metrics.brier(fresh) - 0.01
        return
    certificate = fitted.certificate
    assert isinstance(certificate, Certificate)
    assert certificate.after < certificate.before
    assert metrics.brier(fitted(fresh.logits), fresh.labels) < metrics.brier(fresh) - 0.01
    assert metrics.ece(fitted(fresh.logits), fresh.labels) < 0.5 * metrics.ece(fresh)
    if calibrators.preserves_argmax(fitted):
        assert np.array_equal(fitted(fresh.logits).argmax(1), fresh.logits.argmax(1))


@contract.holds()
def calibrated_predictions_hardly_change(name, k):
    data, fresh = draw(3000, k, 2), draw(4000, k, 3)
    if name in UNLEARNED:
        return
    after = fit(name, data)(fresh.logits)
    assert abs(metrics.brier(after, fresh.labels) - metrics.brier(fresh)) < 0.01


@contract.holds(dtype=["float32", "float64"])
def output_has_the_shape_and_dtype_of_the_logits(name, k, dtype):
    data, fresh = draw(300, k, 4), draw(7, k, 5).logits.astype(dtype)
    fitted = fit(name, Predictions(data.logits.astype(dtype), data.labels))
    after = fitted(fresh)
    assert after.shape == fresh.shape
    assert after.dtype == dtype
    assert np.allclose(softmax(after, 1).sum(1), 1)
    one_by_one = np.concatenate([fitted(row[None]) for row in fresh])
    assert np.allclose(softmax(one_by_one, 1), softmax(after, 1), atol=1e-5)


@tensor_contract.holds(dtype=["float32", "float64"])
def output_for_a_tensor_is_that_for_an_array(name, k, dtype, torch):
    z = torch.from_numpy(draw(7, k, 5).logits.astype(dtype))
    fitted = fit_to_80(name, k)
    after = fitted(z)
    assert after.shape == z.shape
    assert after.dtype == z.dtype
    assert torch.equal(fitted(z.clone().requires_grad_()).detach(), after)
    expected = torch.from_numpy(fitted(z.numpy()))
    torch.testing.assert_close(after.softmax(1), expected.softmax(1))


@contract.holds()
def certificate_names_its_fitting_data_which_calibrate_refuses(name, k):
    data, fresh = draw(300, k, 6), draw(300, k, 7)
    fitted = fit(name, data)
    if name == "Identity":
        assert fitting_digests(fitted) == set()
        return
    assert data.digest in fitting_digests(fitted)
    assert len(calibrate(fitted, fresh)) == 300
    assert len(calibrate(fitted, data, in_sample=True)) == 300
    with refused("fitted_on_same"):
        calibrate(fitted, data)
    text = str(fitted.certificate)
    assert "\n" not in text
    assert "accuracy" in text
    assert fitted.certificate.accuracy_before == float(metrics.accuracy(data))
    assert fitted.certificate.accuracy_after == float(metrics.accuracy(fitted(data.logits), data.labels))
    assert abs(fitted.certificate.nll_before - float(metrics.nll(data))) < 1e-9


@contract.holds()
def order_of_the_examples_does_not_matter(name, k):
    data, fresh = draw(1500, k, 8, scale=2.0), draw(500, k, 9, scale=2.0)
    shuffled = data[np.random.default_rng(0).permutation(1500)]
    gap = softmax(fit(name, data)(fresh.logits), 1) - softmax(fit(name, shuffled)(fresh.logits), 1)
    assert abs(gap).mean() < 1e-5


# Weights


def weighted(name: str, n: int, k: int, seed: int) -> tuple[Predictions, Predictions]:
    """Return predictions with weights 0 .. 3, and with that many copies of each row in one cluster, so in one fold."""
    data = draw(n, k, seed, scale=1.5)
    weights = np.random.default_rng(seed).integers(0, 4, n)
    rows = np.arange(n).repeat(weights)
    copies = Predictions(data.logits[rows], data.labels[rows], clusters=rows)
    return Predictions(data.logits, data.labels, weights), copies


@contract.holds(n=[7, 400])
def integer_weights_equal_copies(name, k, n):
    data, copies = weighted(name, n, k, 14)
    fresh = draw(100, k, 15, scale=1.5).logits
    if n == 7 and name in ("Matrix", "Dirichlet"):  # rounding chooses the penalty with two rows per fold
        name += "(penalty=1.0)"
    by_weight, by_copies = fit(name, data), fit(name, copies)
    first, second = log_p(by_weight, fresh), log_p(by_copies, fresh)
    if n > 7 and name in ("Auto", "PriorShift"):  # weights count independent examples, and a cluster counts once
        np.testing.assert_allclose(np.exp(first), np.exp(second), rtol=0, atol=0.05)
        return
    if n == 7:  # the objective is nearly flat, and the search ends anywhere within its tolerance
        np.testing.assert_allclose(np.exp(first), np.exp(second), rtol=0, atol=2e-3)
    else:
        np.testing.assert_allclose(first, second, rtol=1e-9, atol=1e-9)
    weighted_certificate, expected = (getattr(fitted, "certificate", None) for fitted in (by_weight, by_copies))
    assert (weighted_certificate is None) == (expected is None) == (name == "Identity")
    if expected is not None:
        tolerance = {"rel": 1e-8, "abs": 1e-12 if n > 7 else 1e-5, "nan_ok": True}
        assert weighted_certificate.status == expected.status
        for field in "after", "nll_before", "accuracy_after", "standard_error":
            value = getattr(weighted_certificate, field)
            assert value == pytest.approx(getattr(expected, field), **tolerance), field


@contract.holds()
def weights_matter(name, k):
    """Otherwise the test above would pass if both fits ignored them."""
    if name in UNLEARNED:
        return
    data, fresh = draw(400, k, 14, scale=1.5), draw(100, k, 15, scale=1.5).logits
    unweighted, heavy_errors = fit(name, data), 1 + 3 * (data.predicted != data.labels)
    reweighted = fit(name, Predictions(data.logits, data.labels, heavy_errors))
    assert not np.allclose(log_p(reweighted, fresh), log_p(unweighted, fresh), rtol=1e-6, atol=1e-6)


@contract.holds()
def examples_of_weight_0_are_left_out(name, k):
    data, fresh = draw(120, k, 16, scale=1.5), draw(50, k, 17).logits
    weights = np.minimum(np.arange(120) % 3, 1)
    counted = data[weights > 0]
    fitted, expected = (fit(name, p) for p in (
        Predictions(data.logits, data.labels, weights),
        Predictions(counted.logits, counted.labels, np.ones(80)),
    ))  # fmt: skip
    np.testing.assert_allclose(log_p(fitted, fresh), log_p(expected, fresh), rtol=1e-12, atol=1e-12)
    if name != "Identity":
        assert fitting_digests(fitted) >= {data.digest}


@contract.holds()
def fractional_weights_give_a_map_between(name, k):
    """Equal weights of 1/2, and random weights, give a finite map with a similar Brier score."""
    data = draw(300, k, 18, scale=1.5)
    fresh = draw(100, k, 19).logits
    unweighted = metrics.brier(log_p(fit(name, data), fresh), fresh.argmax(1))
    for weights in np.full(300, 0.5), 2 * np.random.default_rng(18).random(300):
        after = log_p(fit(name, Predictions(data.logits, data.labels, weights)), fresh)
        assert not np.isnan(after).any()
        assert abs(metrics.brier(after, fresh.argmax(1)) - unweighted) < 0.15


def log_p(fitted, logits):
    return np.maximum(log_softmax(fitted(logits), 1), -1e3)


# Order


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(CALIBRATORS))
def test_order_of_20_classes_and_their_rows_does_not_matter(name):
    order_of_classes_and_rows_does_not_matter(name, 20)


@contract.holds(n_classes=[2, 5])
def order_of_classes_and_rows_does_not_matter(name, n_classes):
    if name in BINARY and n_classes > 2:
        return
    data, rng = draw(400, n_classes, 20, scale=1.7), np.random.default_rng(21)
    columns = np.array([1, 0]) if n_classes == 2 else rng.permutation(n_classes)
    rows, place = rng.permutation(400), columns.argsort()
    groups = [("a", "b", "c")[i % 3] for i in range(400)] if name == "GroupCalibrated" else None
    first = Predictions(data.logits, data.labels, groups=groups)
    moved = Predictions(data.logits[:, columns], place[data.labels], groups=groups)
    expected = softmax(first.apply(fit(name, first)).logits, 1)
    permuted = softmax(moved.apply(fit(name, moved)).logits, 1)[:, place]
    shuffled = softmax(first.apply(fit(name, first[rows])).logits, 1)
    tolerance = 1e-5  # fits end where the objective hardly changes
    np.testing.assert_allclose(permuted, expected, rtol=0, atol=tolerance)
    np.testing.assert_allclose(shuffled, expected, rtol=0, atol=tolerance)


# Devices and dtypes


@cache
def fit_to_80(name: str, k: int):
    return fit(name, draw(80, k, 22))


@tensor_contract.holds()
def meta_tensors_are_refused(name, k, torch):
    if name == "Identity":  # works on no numbers
        return
    with refused("tensor_kind"):
        fit_to_80(name, k)(torch.zeros(5, k, device="meta"))


@tensor_contract.holds()
def fits_do_not_depend_on_the_default_dtype(name, k, torch):
    fresh, before = draw(50, k, 23).logits, torch.get_default_dtype()
    expected = fit_to_80(name, k)(fresh)
    torch.set_default_dtype(torch.float16)
    try:
        after = fit(name, draw(80, k, 22))(fresh)
    finally:
        torch.set_default_dtype(before)
    np.testing.assert_allclose(after, expected, rtol=1e-11, atol=1e-11)


# Hard data


def hard_case(case: str, k: int) -> Predictions:
    base = draw(60, k, 10)
    logits, labels = base.logits, base.labels
    match case:
        case "class absent":
            return Predictions(logits, labels % (k - 1))
        case "one example":
            return base[:1]
        case "two examples":
            return base[:2]
        case "all correct":
            return Predictions(logits, logits.argmax(-1))
        case "all wrong":
            return Predictions(logits, logits.argmin(-1))
        case "constant logits":
            return Predictions(0 * logits, labels)
        case "impossible classes":
            return Predictions(np.where(logits == logits.min(1, keepdims=True), -np.inf, logits), labels)
        case "impossible labels":
            return Predictions(np.where(np.eye(k)[labels] == 1, -np.inf, logits), labels)
        case "saturated":
            return Predictions(1e4 * logits, labels)
        case "tiny":
            return Predictions(1e-6 * logits, labels)
        case _:
            return draw(60, 2, 10)


CASES = ["class absent", "one example", "two examples", "all correct", "all wrong", "constant logits"]
CASES += ["impossible classes", "impossible labels", "saturated", "tiny", "two classes"]


@contract.holds(case=CASES)
def hard_data_give_a_sensible_map_or_the_expected_refusal(name, k, case):
    data = hard_case(case, k)
    fitted = fit_unless_refused(name, data, "all_impossible" if case == "impossible labels" else "")
    if fitted is None:
        return
    fresh = draw(50, data.k, 11)
    after = fitted(np.concatenate([data.logits, fresh.logits]))
    assert not np.isnan(after).any()
    assert not np.isnan(softmax(after, 1)).any()
    if name != "Identity":
        is_worse = fitted.certificate.after > fitted.certificate.before + 2 / len(data)  # smoothing costs at most this
        assert not (is_worse and fitted.certificate.status == "converged")


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(CALIBRATORS))
def test_thousands_of_classes_give_a_sensible_map_or_a_refusal(name):
    """Most classes have no example among 300."""
    data = draw(300, 5000, 12)
    fitted = fit_unless_refused(name, data, "num_classes" if name in BINARY else "many_classes")
    assert fitted is None or name not in BINARY
    if fitted is None:
        return
    for rows in data, draw(20, 5000, 13):
        assert not np.isnan(softmax(fitted(rows.logits), 1)).any()
    if name not in UNLEARNED:
        assert fitted.certificate.iterations <= 2000
