"""Agreement with independent implementations; docs/metrics_conventions.md lists differences of convention."""

import math

import numpy as np
import pytest
from drawn import drawn_labels
from scipy.special import expit, log_softmax, softmax
from scipy.stats import entropy, ks_1samp
from sklearn.metrics import average_precision_score, brier_score_loss, log_loss, roc_auc_score, roc_curve

from calibrant import Predictions, metrics
from calibrant._core.kernels.bins import Events
from calibrant.metrics import _cumulative, _ranking, _smooth, ood


@pytest.fixture(scope="module", params=[(2, 0), (5, 1), (40, 2)])
def miscalibrated(request) -> Predictions:
    """Return predictions that are overconfident on some examples and underconfident on others."""
    k, seed = request.param
    rng = np.random.default_rng(seed)
    true = 2 * rng.standard_normal((3000, k))
    slope = np.where(rng.random((3000, 1)) < 0.4, 0.5, 2.0)
    return Predictions(true * slope, drawn_labels(true, rng))


def events(p: Predictions) -> tuple[np.ndarray, np.ndarray]:
    probs = softmax(p.logits.astype(float), 1)
    return probs.max(1), (probs.argmax(1) == p.labels).astype(float)


def plain_bins(c: np.ndarray, a: np.ndarray, bins: int) -> list[tuple[int, float]]:
    result = []
    for i in range(bins):
        low, high = np.linspace(0, 1, bins + 1)[i : i + 2]
        inside = (c > low) & (c <= high) if i else (c >= low) & (c <= high)
        if inside.any():
            result.append((int(inside.sum()), float(a[inside].mean() - c[inside].mean())))
    return result


@pytest.mark.parametrize("bins", [1, 7, 15, 50])
@pytest.mark.parametrize("norm", [1.0, 2.0, math.inf])
def test_ece_of_any_norm_is_that_of_a_loop(miscalibrated, bins, norm):
    gaps = plain_bins(*events(miscalibrated), bins)
    n = len(miscalibrated)
    expected = (
        max(abs(g) for _, g in gaps) if math.isinf(norm) else sum(m / n * abs(g) ** norm for m, g in gaps) ** (1 / norm)
    )
    assert float(metrics.ece(miscalibrated, bins=bins, norm=norm)) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("bins", [1, 10, 15])
@pytest.mark.parametrize(("name", "norm"), [("ece", "l1"), ("mce", "max")])
def test_binned_errors_agree_with_torchmetrics(miscalibrated, torch, bins, name, norm):
    torchmetrics = pytest.importorskip("torchmetrics.functional.classification")
    p = miscalibrated[events(miscalibrated)[0] < 0.999999][:1000]  # which has a separate bin for confidence 1
    data = torch.tensor(softmax(p.logits, 1)), torch.tensor(p.labels)
    theirs = torchmetrics.multiclass_calibration_error(*data, num_classes=p.k, n_bins=bins, norm=norm)
    assert getattr(metrics, name)(p, bins=bins) == pytest.approx(float(theirs), abs=1e-6, rel=0)


def test_errors_agree_with_netcal(miscalibrated):
    """netcal evaluates class 1 of two; the number of bins divides that of examples, and there are no ties."""
    netcal = pytest.importorskip("netcal.metrics")
    p = miscalibrated[events(miscalibrated)[0] < 0.999999][:1500]
    data, two = (softmax(p.logits, 1), p.labels), p.k == 2
    for bins in 1, 10, 15:
        ours = metrics.ece(p.with_event(1 if two else "top"), bins=bins)
        assert float(ours) == pytest.approx(netcal.ECE(bins).measure(*data))
        if two:
            continue
        assert float(metrics.mce(p, bins=bins)) == pytest.approx(netcal.MCE(bins).measure(*data))
        for theirs in netcal.ECE(bins, equal_intervals=False), netcal.ACE(bins, equal_intervals=False):
            assert float(metrics.adaptive_ece(p, bins=bins)) == pytest.approx(theirs.measure(*data))
        table = metrics.tables.bins(p, bins=bins)  # by default, their ACE is the plain mean over bins of equal width
        assert abs(table.gap[table.count > 0]).mean() == pytest.approx(netcal.ACE(bins).measure(*data))
    assert float(metrics.mmce(p)) == pytest.approx(netcal.MMCE().measure(*data))


def test_errors_agree_with_uncertainty_calibration(miscalibrated):
    calibration = pytest.importorskip("calibration", reason="uncertainty-calibration is not installed")
    probs, labels = softmax(miscalibrated.logits, 1), miscalibrated.labels
    for bins in 7, 15:
        width = {"num_bins": bins, "binning_scheme": calibration.get_equal_prob_bins}
        pairs = [
            (metrics.ece(miscalibrated, bins=bins), calibration.get_ece(probs, labels, num_bins=bins)),
            (
                metrics.ece(miscalibrated.with_event(1), bins=bins),
                calibration.get_ece(probs[:, 1], (labels == 1) * 1, num_bins=bins),
            ),
            (
                metrics.ece(miscalibrated, bins=bins, norm=2.0),
                calibration.lower_bound_scaling_top_ce(probs, labels, debias=False, **width),
            ),
            (
                metrics.classwise_ece(miscalibrated, bins=bins),
                calibration.get_ece(probs, labels, num_bins=bins, mode="marginal"),
            ),
            (metrics.adaptive_ece(miscalibrated, bins=bins), calibration.get_ece_em(probs, labels, num_bins=bins)),
            (1 - metrics.aurc(miscalibrated), calibration.get_selective_stats(*events(miscalibrated))[0]),
        ]
        for ours, theirs in pairs:
            assert float(ours) == pytest.approx(theirs, rel=1e-9)


def test_debiased_error_agrees_with_uncertainty_calibration_for_constant_bins():
    """In other bins they also subtract the spread of the confidences, which is no noise of the labels."""
    calibration = pytest.importorskip("calibration", reason="uncertainty-calibration is not installed")
    rng = np.random.default_rng(0)
    c = (rng.integers(5, 10, 2000) + 0.5) / 10
    p = Predictions.from_probs(np.stack([1 - c, c], 1), (rng.random(2000) < c - 0.06).astype(int))
    for bins in 10, 20:
        width = {"num_bins": bins, "binning_scheme": calibration.get_equal_prob_bins}
        theirs = calibration.lower_bound_scaling_top_ce(softmax(p.logits, 1), p.labels, **width)
        assert float(metrics.debiased_l2(p, bins=bins)) == pytest.approx(theirs, rel=1e-9)


def test_scores_agree_with_scikit_learn(miscalibrated):
    probs, labels = softmax(miscalibrated.logits, 1), miscalibrated.labels
    k = probs.shape[1]
    w = np.random.default_rng(0).random(len(labels))
    for weights in (None, w):
        expected = log_loss(labels, probs, sample_weight=weights, labels=range(k))
        p = Predictions(miscalibrated.logits, labels, weights)
        assert float(metrics.nll(p)) == pytest.approx(expected, rel=1e-9)
        if k == 2:
            expected = 2 * brier_score_loss(labels, probs[:, 1], sample_weight=weights)  # of one class
            assert float(metrics.brier(p)) == pytest.approx(expected, rel=1e-9)
            expected = roc_auc_score(labels, probs[:, 1], sample_weight=weights)
        else:
            expected = roc_auc_score(labels, probs, multi_class="ovr", sample_weight=weights)
        assert float(metrics.auroc(p)) == pytest.approx(expected, rel=1e-9)


def test_scores_are_means_of_the_losses(miscalibrated, torch):
    from calibrant import losses

    data = torch.tensor(miscalibrated.logits), torch.tensor(miscalibrated.labels)
    for metric, loss in ((metrics.brier, losses.brier), (metrics.nll, losses.cross_entropy)):
        assert metric(miscalibrated) == pytest.approx(float(loss(*data).mean()), rel=1e-12, abs=0)
    c, correct = events(miscalibrated)
    assert float(metrics.event_brier(miscalibrated)) == pytest.approx(((c - correct) ** 2).mean(), rel=1e-12)


def test_classwise_ece_is_that_of_a_loop(miscalibrated):
    probs, labels = softmax(miscalibrated.logits, 1), miscalibrated.labels
    k, n = probs.shape[1], len(labels)
    per_class = [sum(m / n * abs(g) for m, g in plain_bins(probs[:, j], (labels == j) * 1.0, 15)) for j in range(k)]
    assert float(metrics.classwise_ece(miscalibrated)) == pytest.approx(np.mean(per_class), rel=1e-9)
    assert float(metrics.classwise_ece(miscalibrated, reduction="sum")) == pytest.approx(np.sum(per_class), rel=1e-9)
    np.testing.assert_allclose(metrics.tables.classes(miscalibrated).ece, per_class, rtol=1e-8, atol=1e-12)
    last_class = metrics.ece(miscalibrated.with_event(k - 1))
    assert float(last_class) == pytest.approx(per_class[k - 1], rel=1e-9)


def test_table_of_classes_is_that_of_a_loop(miscalibrated):
    probs, labels = softmax(miscalibrated.logits, 1), miscalibrated.labels
    predicted, table = probs.argmax(1), metrics.tables.classes(miscalibrated)
    for j in range(probs.shape[1]):
        assert int(table.predicted[j]) == (predicted == j).sum()
        assert float(table.frequency[j]) == pytest.approx((labels == j).mean(), rel=1e-9, abs=1e-12)
        assert float(table.forecast[j]) == pytest.approx(probs[:, j].mean(), rel=1e-9)
        if (predicted == j).any():
            assert float(table.precision[j]) == pytest.approx((labels[predicted == j] == j).mean())
            assert float(table.confidence[j]) == pytest.approx(probs[predicted == j, j].mean())
        if (labels == j).any():
            assert float(table.recall[j]) == pytest.approx((predicted[labels == j] == j).mean())
    assert np.diff(table.ece[table.worst_first]).max() <= 0


def test_cumulative_errors_are_those_of_a_loop(miscalibrated):
    c, a = events(miscalibrated)
    order = np.argsort(c)
    walk = np.concatenate([[0], np.cumsum((a - c)[order])]) / len(c)
    assert float(metrics.kuiper(miscalibrated)) == pytest.approx(walk.max() - walk.min(), rel=1e-9)
    assert float(metrics.ks(miscalibrated)) == pytest.approx(np.abs(walk).max(), rel=1e-9)


def test_debiased_square_is_a_mean_over_all_pairs(miscalibrated):
    c, a = events(miscalibrated)
    index = np.clip(np.searchsorted(np.linspace(0, 1, 16), c) - 1, 0, 14)
    total = 0.0
    for b in range(15):
        u = (c - a)[index == b]
        if len(u) > 1:
            pairs = np.outer(u, u)
            total += len(u) / len(c) * (pairs.sum() - np.trace(pairs)) / (len(u) * (len(u) - 1))
    assert float(metrics.debiased_l2(miscalibrated, squared=True)) == pytest.approx(total, rel=1e-9)
    assert float(metrics.debiased_l2(miscalibrated)) == pytest.approx(max(total, 0.0) ** 0.5, rel=1e-9)


def test_sweep_ece_is_that_of_a_loop(miscalibrated):
    c, a = events(miscalibrated)
    order = np.argsort(c)
    best = abs(c.mean() - a.mean())
    for b in range(2, 3000):
        parts = np.array_split(order, b)
        accuracy = [a[p].mean() for p in parts]
        if np.any(np.diff(accuracy) < -1e-12):
            break
        best = sum(len(p) / len(c) * abs(a[p].mean() - c[p].mean()) for p in parts)
    assert float(metrics.sweep_ece(miscalibrated)) == pytest.approx(best, rel=1e-9)


def test_aurc_is_that_of_a_loop(miscalibrated):
    c, a = events(miscalibrated)
    wrong = 1 - a[np.argsort(-c)]
    expected = np.mean(np.cumsum(wrong) / np.arange(1, len(c) + 1))
    assert float(metrics.aurc(miscalibrated)) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("weighted", [False, True])
def test_aurc_of_ties_is_that_of_a_loop(weighted):
    rng = np.random.default_rng(0)
    c = rng.random(500).round(1)
    a = (rng.random(500) < c).astype(float)
    w = rng.integers(0, 4, 500).astype(float) if weighted else np.ones(500)
    covered, wrong, total = 0.0, 0.0, 0.0
    for v in np.unique(c)[::-1]:
        tie = c == v
        m = int(w[tie].sum())
        for _ in range(m):
            covered, wrong = covered + 1, wrong + (w * (1 - a))[tie].sum() / m
            total += wrong / covered
    assert _ranking.aurc_of(Events(c, a, w).by_score) == pytest.approx(total / w.sum(), rel=1e-10)


def test_smooth_ece_agrees_with_relplot(miscalibrated):
    relplot = pytest.importorskip("relplot")
    c, a = events(miscalibrated[events(miscalibrated)[0] < 0.999])  # their grid counts what lies at 1 once, not twice
    assert float(metrics.smooth_ece(Events(c, a))) == pytest.approx(relplot.smECE(c, a), abs=1.5e-3)


def test_smooth_ece_solves_its_equation(miscalibrated):
    c, a = (x[:400] for x in events(miscalibrated))
    s = float(metrics.smooth_ece(miscalibrated[:400]))
    t = (np.arange(20000) + 0.5) / 20000
    images = (t[:, None] - np.concatenate([c, -c, 2 - c])[None]) / s  # further reflections are below e^-40
    kernel = np.exp(-0.5 * images**2) / (s * math.sqrt(2 * math.pi))
    smoothed_gap = kernel @ np.tile(a - c, 3) / 400
    assert np.abs(smoothed_gap).mean() == pytest.approx(s, rel=1e-5)


def test_corp_decomposition_is_exact(miscalibrated):
    c, a = events(miscalibrated)
    mcb, dsc, unc = (
        float(getattr(metrics, name)(miscalibrated)) for name in ("miscalibration", "discrimination", "uncertainty")
    )
    assert mcb - dsc + unc == pytest.approx(((c - a) ** 2).mean(), rel=1e-12)
    assert unc == pytest.approx(a.mean() * (1 - a.mean()))
    assert mcb >= 0
    assert dsc >= 0
    log = [
        float(getattr(metrics, name)(miscalibrated, score="log"))
        for name in ("miscalibration", "discrimination", "uncertainty")
    ]
    predicted = log_loss(a, c)
    assert log[0] - log[1] + log[2] == pytest.approx(predicted, rel=1e-9)


def test_nll_and_entropy_among_subsets_are_means(miscalibrated):
    z, labels = miscalibrated.logits, miscalibrated.labels
    right = z.argmax(1) == labels
    losses_per_example = -log_softmax(z, 1)[np.arange(len(z)), labels]
    entropies = entropy(softmax(z, 1), axis=1)
    for among, selected in (("correct", right), ("wrong", ~right), ("all", right | ~right)):
        for metric, values in ((metrics.nll, losses_per_example), (metrics.entropy, entropies)):
            expected = pytest.approx(values[selected].mean(), rel=1e-7, abs=1e-7)
            assert metric(miscalibrated, among=among) == expected


def test_metrics_of_confident_predictions_are_means(miscalibrated):
    c, a = events(miscalibrated)
    for above in (0.9, 0.99):
        assert float(metrics.confident_share(miscalibrated, above=above)) == pytest.approx((c >= above).mean())
        if (c >= above).any():
            assert float(metrics.confident_accuracy(miscalibrated, above=above)) == pytest.approx(a[c >= above].mean())


def test_detection_agrees_with_scikit_learn():
    rng = np.random.default_rng(0)
    inside, outside = (3 * rng.standard_normal((800, 6))).round(1), (2 * rng.standard_normal((500, 6))).round(1)
    truth = np.r_[np.ones(800), np.zeros(500)]
    for score in (ood.max_probability, ood.entropy, ood.max_logit, ood.energy):
        result = ood.detection(inside, outside, score=score)
        s = np.concatenate([score(inside), score(outside)])
        assert result.auroc == pytest.approx(roc_auc_score(truth, s), abs=1e-12)
        assert result.aupr_in == pytest.approx(average_precision_score(truth, s), abs=1e-12)
        assert result.aupr_out == pytest.approx(average_precision_score(1 - truth, -s), abs=1e-12)
        fpr, tpr, _ = roc_curve(truth, s, drop_intermediate=False)
        assert result.fpr95 == pytest.approx(fpr[np.argmax(tpr >= 0.95)], abs=1e-12)


def test_auroc_of_correctness_agrees_with_scikit_learn(miscalibrated):
    c, a = events(miscalibrated)
    assert float(metrics.auroc(miscalibrated, of="correctness")) == pytest.approx(roc_auc_score(a, c), rel=1e-9)


def test_distributions_of_brownian_motion_by_simulation():
    rng = np.random.default_rng(0)
    walk = np.cumsum(rng.standard_normal((4000, 1000)) / math.sqrt(1000), axis=1)
    walk = np.concatenate([np.zeros((4000, 1)), walk], axis=1)
    reach = 2 * 0.5826 / math.sqrt(1000)  # a walk of finite steps is that much shorter, at both ends
    spread = walk.max(1) - walk.min(1) + reach
    p = np.array([_cumulative.range_tail(float(r)) for r in spread])
    assert ks_1samp(p, lambda x: x).pvalue > 0.01
    p = np.array([_cumulative.supremum_tail(float(x)) for x in np.abs(walk).max(1) + reach / 2])
    assert ks_1samp(p, lambda x: x).pvalue > 0.01


def test_both_series_of_the_supremum_agree():
    assert _cumulative.supremum_tail(2.0) == pytest.approx(_cumulative.supremum_tail(2.0 + 1e-12), rel=1e-9)


@pytest.mark.shared
def test_errors_of_real_predictions_are_the_published_ones(shared):
    p = Predictions.load(shared / "logits" / "mukhoti_cifar10_resnet50_flsd53.test.npz")
    assert float(metrics.ece(p)) == pytest.approx(0.0155, abs=5e-5)  # their Table 1: 1.55 %
    relplot = pytest.importorskip("relplot")
    assert float(metrics.smooth_ece(p)) == pytest.approx(relplot.smECE(*events(p)), abs=1.5e-3)


def test_risk_coverage_ends_at_the_error(miscalibrated):
    curve = metrics.curves.risk_coverage(miscalibrated)
    assert curve.x[-1] == 1
    assert curve.y[-1] == pytest.approx(metrics.error(miscalibrated))
    area = np.trapezoid(np.append(curve.y[:1], curve.y), np.append(0.0, curve.x))
    assert _ranking.aurc_of(miscalibrated.events.by_score) == pytest.approx(area, abs=2e-3)


def test_deposit_preserves_the_total():
    by_score = Events(np.random.default_rng(0).random(99), np.ones(99)).by_score
    residuals = np.stack([by_score.residual, 2 * by_score.residual])
    grid = _smooth.deposit(by_score.value, residuals, 64)
    assert grid.sum(1) == pytest.approx(residuals.sum(1))


@pytest.mark.parametrize("width", [1e-5, 1e-3, 0.0014, 0.4])
def test_kernel_errors_are_sums_over_all_pairs(miscalibrated, width):
    subset = miscalibrated[:300]
    c, a = events(subset)
    pairs = np.outer(c - a, c - a) * np.exp(-np.abs(c[:, None] - c) / width)
    off_diagonal = (pairs.sum() - np.trace(pairs)) / (300 * 299)
    assert float(metrics.skce(subset, width=width)) == pytest.approx(off_diagonal, rel=1e-9, abs=1e-15)
    assert float(metrics.mmce(subset, width=width)) == pytest.approx(pairs.sum() ** 0.5 / 300, rel=1e-9)
    w = np.random.default_rng(0).random(300)
    weighted = np.outer(w, w) * pairs
    # a copy of an example is another example
    off_diagonal = (weighted.sum() - (w * np.diag(pairs)).sum()) / (w.sum() * (w.sum() - 1))
    counts = Predictions(subset.logits, subset.labels, w, weights_are="counts")
    result = metrics.skce(counts, width=width)
    assert float(result) == pytest.approx(off_diagonal, rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("clustered", [False, True])
def test_debiased_error_with_a_negative_square_lies_in_its_interval(clustered):
    """As in uncertainty-calibration, the root of a negative square is 0."""
    negative = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        s = rng.standard_normal(200)
        y = (rng.random(200) < expit(s)).astype(int)
        p = Predictions.from_binary_logits(s, y, clusters=np.arange(200) // 4 if clustered else None)
        result = metrics.debiased_l2.interval(p)
        square = float(metrics.debiased_l2(p, squared=True))
        negative += square < 0
        assert result.low <= result.value <= result.high
        assert result.value == pytest.approx(max(square, 0.0) ** 0.5)
    assert 2 < negative < 12
