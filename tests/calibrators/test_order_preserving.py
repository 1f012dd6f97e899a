"""The intra-order-preserving map: Rahimi et al. (2020), an independent fit, and a simulated truth."""

import numpy as np
import pytest
from drawn import drawn_labels
from scipy import optimize
from scipy.special import log_softmax, softmax

from calibrant import Predictions, metrics
from calibrant.calibrators import IntraOrderPreserving, Monotone, Temperature
from calibrant.calibrators._order_preserving import SHRINKAGE


def random_logits(n: int, k: int, seed: int) -> np.ndarray:
    return 2 * np.random.default_rng(seed).standard_normal((n, k))


def bent_by_row(n: int, k: int, seed: int) -> tuple[Predictions, float]:
    """Draw logits whose right slope depends on the distance of the first two classes, and the NLL of the truth."""
    z = random_logits(n, k, seed)
    second, first = np.sort(z)[:, -2:].T
    truth = z * (0.4 + 1.1 * np.clip((first - second) / 2, 0, 1))[:, None]
    labels = drawn_labels(truth, np.random.default_rng(seed + 1))
    return Predictions(z, labels), float(metrics.nll(truth, labels))


@pytest.fixture(scope="module")
def fitted() -> IntraOrderPreserving:
    return IntraOrderPreserving.fit(bent_by_row(2000, 6, 0)[0])


def test_the_order_of_all_classes_is_preserved_and_ties_remain_ties(fitted):
    z = 3 * random_logits(5000, 6, 7)
    assert np.array_equal(fitted(z).argsort(-1), z.argsort(-1))
    assert (fitted.slopes > 0).all()
    tied = z.round()
    equal = tied[:, :, None] == tied[:, None, :]
    mapped = fitted(tied)
    assert (mapped[:, :, None] == mapped[:, None, :])[equal].all()


def test_much_smoothness_gives_the_monotone_map():
    data, _ = bent_by_row(1000, 5, 2)
    z = random_logits(500, 5, 9)
    smooth = softmax(IntraOrderPreserving.fit(data, smoothness=1e9)(z), 1)
    np.testing.assert_allclose(smooth, softmax(Monotone.fit(data)(z), 1), rtol=0, atol=1e-6)


def map_row(v: np.ndarray, knots: np.ndarray, slopes: np.ndarray) -> np.ndarray:
    """Return minus the new logits of one row of v = -log p, class by class from the definition."""
    in_order = np.sort(v)
    contexts = in_order[1] - in_order[0], v.mean()
    by_rank = [sum(np.interp(x, at, s) for x, at, s in zip(contexts, knots, rank, strict=True)) for rank in slopes]
    total = np.zeros(len(v))
    for r, slope in enumerate(by_rank):
        upper = in_order[r + 1] if r + 1 < len(by_rank) else np.inf
        total += slope * np.clip(np.minimum(v, upper) - in_order[r], 0, None)
    return total


def test_map_and_optimum_are_those_of_the_definition():
    data, _ = bent_by_row(300, 4, 4)
    fitted = IntraOrderPreserving.fit(data, ranks=2, knots=3, smoothness=2.0)
    v = -log_softmax(fitted.monotone(data.logits), 1)
    knots, slopes, y = fitted.knots, fitted.slopes, data.labels
    contexts = np.stack([np.sort(v)[:, 1] - np.sort(v)[:, 0], v.mean(1)])
    assert np.allclose(knots, np.quantile(contexts, [0, 0.5, 1], axis=1).T)
    expected = log_softmax(-np.stack([map_row(row, knots, slopes) for row in v]), 1)
    assert np.allclose(log_softmax(fitted(data.logits), 1), expected, atol=1e-10)

    # the new logits are linear in the slopes: one unit slope at a time
    units = np.eye(12).reshape(12, 2, 2, 3)
    lengths = np.stack([[map_row(row, knots, unit) for row in v] for unit in units], 2)

    def loss(theta):
        nll = -log_softmax(-lengths @ theta, 1)[np.arange(300), y].mean()
        s = theta.reshape(2, 2, 3)
        differences = (np.diff(s, axis=2) ** 2).sum() + (np.diff(s, axis=0) ** 2).sum()
        return nll + 2 / 300 * (differences + SHRINKAGE * ((theta - 0.5) ** 2).sum())

    bounds, options = [(1e-3, None)] * 12, {"ftol": 1e-15}
    result = optimize.minimize(loss, np.full(12, 0.5), method="SLSQP", bounds=bounds, options=options)
    assert loss(slopes.ravel()) <= result.fun + 1e-9
    assert np.allclose(slopes.ravel(), result.x, atol=0.01)
    assert fitted.certificate is not None
    assert fitted.certificate.status == "converged"


def test_slopes_that_differ_by_row_are_recovered():
    data, _ = bent_by_row(5000, 6, 0)
    fresh, bayes = bent_by_row(20000, 6, 10)
    loss = {cls: float(metrics.nll(fresh.apply(cls.fit(data)))) - bayes for cls in (IntraOrderPreserving, Monotone)}
    assert loss[IntraOrderPreserving] < 0.010
    assert loss[Monotone] > loss[IntraOrderPreserving] + 0.005


def test_little_is_lost_where_a_temperature_is_the_truth():
    z = random_logits(21000, 10, 12)
    labels = drawn_labels(z / 2, np.random.default_rng(13))
    data, fresh = Predictions(z[:1000], labels[:1000]), Predictions(z[1000:], labels[1000:])
    after = [float(metrics.nll(fresh.apply(cls.fit(data)))) for cls in (IntraOrderPreserving, Temperature)]
    assert after[0] < after[1] + 0.004


@pytest.mark.shared
def test_real_networks_are_better_calibrated_than_by_the_monotone_map(shared):
    for name in "kull_cifar10_resnet110_ce", "mukhoti_cifar10_densenet121_brier":
        val, test = (Predictions.load(shared / "logits" / f"{name}.{part}.npz").double() for part in ("val", "test"))
        calibrated = (test.apply(cls.fit(val)) for cls in (Monotone, IntraOrderPreserving))
        assert metrics.compare(*calibrated, names=["nll"])["nll"].high < 0
