"""The contract of every registered calibrator."""

from functools import cache

import pytest
import torch
from calibrant.registry import CALIBRATORS
from method_contracts import Contract
from refusals import refused

from calibrant import InputError, Predictions, calibrators, metrics
from calibrant._core.kernels.roots import Certificate
from calibrant._core.tensors import logit_tensor
from calibrant.calibrators import calibrate, fitting_digests

CAPABILITIES = {name: calibrators.capabilities(CALIBRATORS[name]) for name in CALIBRATORS}
UNLEARNED = {name for name, promised in CAPABILITIES.items() if not promised.repairs_overconfidence}
BINARY = {name for name, promised in CAPABILITIES.items() if promised.num_classes == 2}
ZERO_BINS = {"HistogramBinning", "TopLabelBinning"}  # a bin without a right or wrong example has an accuracy of 0 or 1
contract = Contract()
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
    g = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, k, dtype=torch.float64, generator=g)
    return Predictions(scale * logits, torch.multinomial(logits.softmax(-1), 1, generator=g).squeeze(1))


@pytest.mark.parametrize("name", sorted(CALIBRATORS))
def test_contract_of(name):
    contract.verify(name, k=2 if name in BINARY else 4)


@contract.holds()
def every_class_declares_its_capabilities(name):
    assert isinstance(CALIBRATORS[name].capabilities, calibrators.Capabilities)


@contract.holds(k_of=[(4, "top"), (2, "top"), (2, 1)])
def classes_are_treated_alike_where_promised(name, k_of):
    """Permuted logits then give permuted results. Every other fit learns that some classes are more frequent."""
    k, of = k_of
    if name in BINARY and k > 2:
        return
    data, z = draw(300, k, 10), logit_tensor(draw(50, k, 11))
    fitted = fit(name, Predictions(logit_tensor(data) + torch.arange(k), data.labels, of=of))
    order = torch.arange(k).roll(1)
    is_alike = torch.allclose(fitted(z[:, order]).softmax(-1), fitted(z).softmax(-1)[:, order], atol=1e-9)
    assert calibrators.treats_classes_alike(fitted) == is_alike


@contract.holds()
def fits_to_pairs_are_antisymmetric(name):
    g = torch.Generator().manual_seed(12)
    margins, rejected = torch.randn(2, 150, dtype=torch.float64, generator=g)
    fitted = fit(name, Predictions.from_pairs(rejected + margins + 0.5, rejected))
    z = 2 * torch.randn(50, 2, dtype=torch.float64, generator=g)
    torch.testing.assert_close(fitted(z).softmax(1), fitted(z.flip(1)).softmax(1).flip(1), atol=1e-6, rtol=0)


@contract.holds()
def a_class_without_labels_keeps_a_finite_probability(name, k):
    """Dirichlet gave it e^-18,000, and affine maps a probability that depended on where the search ended."""
    data, fresh = draw(300, k, 13), draw(300, k, 14, scale=1.5)
    data = data[data.labels != 1]
    fitted = fit(name, data)
    if name != "Identity":
        assert fitted.certificate.absent == 1
    if name not in ZERO_BINS:
        log_p = fitted(logit_tensor(fresh)).log_softmax(-1)
        assert bool(log_p.isfinite().all())
        assert float(log_p.min()) > -100  # FocalMap has the lowest, -43


@contract.holds()
def overconfidence_is_repaired_or_not_promised(name, k):
    """A fit improves its own criterion on the fitting data, and the Brier score and the ECE on fresh data."""
    data, fresh = draw(1500, k, 0, scale=3.0), draw(4000, k, 1, scale=3.0)
    fitted = fit(name, data)
    if name in UNLEARNED:
        assert metrics.brier(fitted(logit_tensor(fresh)), fresh.labels) > metrics.brier(fresh) - 0.01
        return
    certificate = fitted.certificate
    assert isinstance(certificate, Certificate)
    assert certificate.after < certificate.before
    assert metrics.brier(fitted(logit_tensor(fresh)), fresh.labels) < metrics.brier(fresh) - 0.01
    assert metrics.ece(fitted(logit_tensor(fresh)), fresh.labels) < 0.5 * metrics.ece(fresh)
    if calibrators.preserves_argmax(fitted):
        assert torch.equal(fitted(logit_tensor(fresh)).argmax(1), logit_tensor(fresh).argmax(1))


@contract.holds()
def calibrated_predictions_hardly_change(name, k):
    data, fresh = draw(3000, k, 2), draw(4000, k, 3)
    if name in UNLEARNED:
        return
    after = fit(name, data)(logit_tensor(fresh))
    assert abs(metrics.brier(after, fresh.labels) - metrics.brier(fresh)) < 0.01


@contract.holds(dtype=[torch.float32, torch.float64])
def output_has_the_shape_and_dtype_of_the_logits(name, k, dtype):
    data, fresh = draw(300, k, 4), draw(7, k, 5)
    fitted = fit(name, Predictions(logit_tensor(data).to(dtype), data.labels))
    after = fitted(logit_tensor(fresh).to(dtype))
    assert after.shape == logit_tensor(fresh).shape
    assert after.dtype == dtype
    assert torch.equal(fitted(logit_tensor(fresh).to(dtype).requires_grad_()).detach(), after)
    assert torch.allclose(after.softmax(-1).sum(-1), torch.ones(7, dtype=dtype))
    one_by_one = torch.cat([fitted(row[None].to(dtype)) for row in logit_tensor(fresh)])
    assert torch.allclose(one_by_one.softmax(-1), after.softmax(-1), atol=1e-5)


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
    assert fitted.certificate.accuracy_after == float(metrics.accuracy(fitted(logit_tensor(data)), data.labels))
    assert abs(fitted.certificate.nll_before - float(metrics.nll(data))) < 1e-9


@contract.holds()
def order_of_the_examples_does_not_matter(name, k):
    data, fresh = draw(1500, k, 8, scale=2.0), draw(500, k, 9, scale=2.0)
    shuffled = data[torch.randperm(1500, generator=torch.Generator().manual_seed(0))]
    gap = fit(name, data)(logit_tensor(fresh)).softmax(-1) - fit(name, shuffled)(logit_tensor(fresh)).softmax(-1)
    assert gap.abs().mean() < 1e-5


# Weights


def weighted(name: str, n: int, k: int, seed: int) -> tuple[Predictions, Predictions]:
    """Return predictions with weights 0 .. 3, and with that many copies of each row in one cluster, so in one fold."""
    data = draw(n, k, seed, scale=1.5)
    weights = torch.randint(0, 4, (n,), generator=torch.Generator().manual_seed(seed)).double()
    rows = torch.arange(n).repeat_interleave(weights.long())
    copies = Predictions(logit_tensor(data)[rows], data.labels[rows], clusters=rows)
    return Predictions(logit_tensor(data), data.labels, weights), copies


@contract.holds(n=[7, 400])
def integer_weights_equal_copies(name, k, n):
    data, copies = weighted(name, n, k, 14)
    fresh = draw(100, k, 15, scale=1.5).logits
    if n == 7 and name in ("Matrix", "Dirichlet"):  # rounding chooses the penalty with two rows per fold
        name += "(penalty=1.0)"
    by_weight, by_copies = fit(name, data), fit(name, copies)
    first, second = log_p(by_weight, fresh), log_p(by_copies, fresh)
    if n > 7 and name in ("Auto", "PriorShift"):  # weights count independent examples, and a cluster counts once
        torch.testing.assert_close(first.exp(), second.exp(), rtol=0, atol=0.05)
        return
    if n == 7:  # the objective is nearly flat, and the search ends anywhere within its tolerance
        torch.testing.assert_close(first.exp(), second.exp(), rtol=0, atol=2e-3)
    else:
        torch.testing.assert_close(first, second, rtol=1e-9, atol=1e-9)
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
    data, _ = weighted(name, 400, k, 14)
    fresh = draw(100, k, 15, scale=1.5).logits
    unweighted = fit(name, Predictions(logit_tensor(data), data.labels))
    assert not torch.allclose(log_p(fit(name, data), fresh), log_p(unweighted, fresh), rtol=1e-6, atol=1e-6)


@contract.holds()
def examples_of_weight_0_are_left_out(name, k):
    data, fresh = draw(120, k, 16, scale=1.5), draw(50, k, 17).logits
    weights = torch.arange(120).remainder(3).clamp_max(1).double()
    counted = data[weights > 0]
    fitted, expected = (fit(name, p) for p in (
        Predictions(logit_tensor(data), data.labels, weights),
        Predictions(logit_tensor(counted), counted.labels, torch.ones(80, dtype=torch.float64)),
    ))  # fmt: skip
    torch.testing.assert_close(log_p(fitted, fresh), log_p(expected, fresh), rtol=1e-12, atol=1e-12)
    if name != "Identity":
        assert fitting_digests(fitted) >= {data.digest}


@contract.holds()
def fractional_weights_give_a_map_between(name, k):
    """Equal weights of 1/2, and random weights, give a finite map with a similar Brier score."""
    g = torch.Generator().manual_seed(18)
    data = draw(300, k, 18, scale=1.5)
    fresh = logit_tensor(draw(100, k, 19))
    unweighted = metrics.brier(log_p(fit(name, data), fresh), fresh.argmax(1))
    for weights in torch.full((300,), 0.5), 2 * torch.rand(300, generator=g):
        after = log_p(fit(name, Predictions(logit_tensor(data), data.labels, weights)), fresh)
        assert not after.isnan().any()
        assert abs(metrics.brier(after, fresh.argmax(1)) - unweighted) < 0.15


def log_p(fitted, logits):
    return torch.as_tensor(fitted(logits)).log_softmax(-1).clamp_min(-1e3)


# Order


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(CALIBRATORS))
def test_order_of_20_classes_and_their_rows_does_not_matter(name):
    order_of_classes_and_rows_does_not_matter(name, 20)


@contract.holds(n_classes=[2, 5])
def order_of_classes_and_rows_does_not_matter(name, n_classes):
    if name in BINARY and n_classes > 2:
        return
    data, g = draw(400, n_classes, 20, scale=1.7), torch.Generator().manual_seed(21)
    columns = torch.arange(n_classes).roll(1) if n_classes == 2 else torch.randperm(n_classes, generator=g)
    rows, place = torch.randperm(400, generator=g), columns.argsort()
    groups = [("a", "b", "c")[i % 3] for i in range(400)] if name == "GroupCalibrated" else None
    first = Predictions(logit_tensor(data), data.labels, groups=groups)
    moved = Predictions(logit_tensor(data)[:, columns], place[data.labels], groups=groups)
    expected = logit_tensor(first.apply(fit(name, first))).softmax(1)
    permuted = logit_tensor(moved.apply(fit(name, moved))).softmax(1)[:, place]
    shuffled = logit_tensor(first.apply(fit(name, first[rows]))).softmax(1)
    tolerance = 1e-5 if name == "Auto" else 1e-6  # its weights depend on coarse fits
    torch.testing.assert_close(permuted, expected, rtol=0, atol=tolerance)
    torch.testing.assert_close(shuffled, expected, rtol=0, atol=tolerance)


# Devices and dtypes


@cache
def fit_to_80(name: str, k: int):
    return fit(name, draw(80, k, 22))


@contract.holds()
def meta_tensors_are_refused(name, k):
    if name == "Identity":  # works on no numbers
        return
    with refused("tensor_kind"):
        fit_to_80(name, k)(torch.zeros(5, k, device="meta"))


@contract.holds()
def fits_do_not_depend_on_the_default_dtype(name, k):
    fresh, before = draw(50, k, 23).logits, torch.get_default_dtype()
    expected = fit_to_80(name, k)(fresh)
    torch.set_default_dtype(torch.float16)
    try:
        after = fit(name, draw(80, k, 22))(fresh)
    finally:
        torch.set_default_dtype(before)
    torch.testing.assert_close(after, expected, rtol=1e-11, atol=1e-11)


# Hard data


def hard_case(case: str, k: int) -> Predictions:
    base = draw(60, k, 10)
    logits, labels = logit_tensor(base), base.labels
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
            return Predictions(torch.zeros_like(logits), labels)
        case "impossible classes":
            return Predictions(logits.masked_fill(logits == logits.amin(-1, keepdim=True), -torch.inf), labels)
        case "impossible labels":
            return Predictions(logits.scatter(1, torch.from_numpy(labels)[:, None], -torch.inf), labels)
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
    after = fitted(torch.cat([logit_tensor(data), logit_tensor(fresh)]))
    assert not after.isnan().any()
    assert not after.softmax(-1).isnan().any()
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
        assert not fitted(logit_tensor(rows)).softmax(-1).isnan().any()
    if name not in UNLEARNED:
        assert fitted.certificate.iterations <= 1000
