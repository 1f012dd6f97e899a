"""Examples in clusters: identities, and coverage of intervals with a known truth."""

import math

import numpy as np
import pytest
from refusals import refused
from scipy.special import expit, ndtr

from calibrant import Predictions, measure, metrics
from calibrant.metrics import Summary, compare
from calibrant.metrics._intervals import cluster_share_interval

MEANS = ["accuracy", "error", "nll", "brier", "event_brier", "signed_gap", "confident_share", "confident_accuracy"]
INTERVALS = [*MEANS, "auroc", "debiased_l2"]


def settings(name: str) -> dict[str, float]:
    return {"above": 0.7} if name.startswith("confident") else {}


def draw(rng: np.random.Generator, clusters: int = 50, size: int = 100, shift: float = 0.0) -> Predictions:
    """Draw binary predictions whose scores and outcomes depend on the cluster; calibrated if `shift` is 0."""
    score = rng.standard_normal((clusters, 1)) + 0.6 * rng.standard_normal((clusters, size))
    common, noise = (rng.standard_normal((clusters, m)) for m in (1, size))
    outcome = ndtr(math.sqrt(0.6) * common + math.sqrt(0.4) * noise) < expit(score + shift)
    logits = np.stack([np.zeros_like(score), score], -1).reshape(-1, 2)
    return Predictions(logits, outcome.astype(int).ravel(), of=1, clusters=np.arange(clusters).repeat(size))


def independent(p: Predictions) -> Predictions:
    return Predictions(p.logits, p.labels, p.weights, of=p.of)


@pytest.fixture
def sample() -> Predictions:
    return independent(draw(np.random.default_rng(3), clusters=80, size=1))


def copies(p: Predictions, times: int = 3) -> Predictions:
    """Repeat every example, with its copies in one cluster."""
    index = np.tile(np.arange(len(p)), times)
    return Predictions(p.logits[index], p.labels[index], of=p.of, clusters=index)


@pytest.mark.parametrize("name", ["nll", "brier", "event_brier", "auroc"])
def test_copies_in_clusters_add_no_information(sample, name):
    metric = getattr(metrics, name)
    original, clustered, naive = (metric.interval(p) for p in (sample, copies(sample), independent(copies(sample))))
    assert clustered.value == pytest.approx(original.value, rel=1e-12)
    assert clustered.high - clustered.value == pytest.approx(original.high - original.value, rel=1e-9)
    assert naive.high - naive.low < 0.6 * (clustered.high - clustered.low)


def test_unbiased_errors_count_only_pairs_of_different_clusters(sample):
    for name in ("debiased_l2", "skce"):
        metric = getattr(metrics, name)
        assert float(metric(copies(sample))) == pytest.approx(float(metric(sample)), rel=1e-9)
        assert float(metric(independent(copies(sample)))) > float(metric(sample)) + 1e-3


@pytest.mark.parametrize("name", ["accuracy", "signed_gap"])
def test_interval_of_share_ignores_copies_in_clusters(sample, name):
    original, clustered = (getattr(metrics, name).interval(p) for p in (sample, copies(sample)))
    assert clustered.low == pytest.approx(original.low, abs=2e-3)
    assert clustered.high == pytest.approx(original.high, abs=2e-3)


def test_interval_of_share_of_one_counts_clusters():
    certain = Predictions([[0.0, 9.0]] * 40, [1] * 40, clusters=[i // 10 for i in range(40)])
    assert metrics.accuracy.interval(certain).low < 0.5 < metrics.accuracy.interval(independent(certain)).low


def test_share_without_clusters_has_the_whole_range():
    interval = cluster_share_interval(np.zeros(5), np.zeros(5), 0.9)
    assert math.isnan(interval.value)
    assert (interval.low, interval.high) == (0, 1)


def test_copies_in_clusters_sharpen_no_test_and_no_noise_floor():
    sample = independent(draw(np.random.default_rng(23), clusters=80, size=1))  # p-values of .12 to .16
    for name in ("kuiper", "ks", "omnibus", "skce"):
        test = getattr(metrics, name).test
        original, clustered, naive = (
            test(p).p_value for p in (sample, copies(sample, 9), independent(copies(sample, 9)))
        )
        assert naive < original / 2
        assert clustered > original / 1.5
    for name in ("noise_floor", "adaptive_noise_floor"):
        floor = getattr(metrics, name)
        original, clustered, naive = (
            floor.interval(p, bins=4) for p in (sample, copies(sample, 9), independent(copies(sample, 9)))
        )
        assert clustered.value == pytest.approx(original.value, rel=0.25)
        assert clustered.high == pytest.approx(original.high, rel=0.3)
        assert naive.high == pytest.approx(original.high / 3, rel=0.03)  # not quite normal


def test_one_cluster_gives_unbounded_intervals(sample):
    p = Predictions(sample.logits, sample.labels, of=1, clusters=[0] * len(sample))
    assert metrics.nll.interval(p).high == pytest.approx(float(p.max_surprisals.max()))
    assert (metrics.accuracy.interval(p).low, metrics.accuracy.interval(p).high) == (0, 1)
    assert metrics.kuiper.test(p).p_value > 0.05
    assert metrics.noise_floor.interval(p).high == 1
    with refused("one_cluster"):
        compare(p, p)
    assert "in 1 cluster" in str(measure(p))


def test_compare_leaves_out_whole_clusters():
    sample = independent(draw(np.random.default_rng(3), clusters=200, size=1))  # over 100 rows: as distinct as copies
    first = copies(sample, 9)
    second = Predictions(1.3 * first.logits, first.labels, of=1, clusters=first.clusters)
    second_sample = Predictions(1.3 * sample.logits, sample.labels, of=1)
    names = ["nll", "ece", "kuiper"]
    original, clustered = compare(sample, second_sample, names=names), compare(first, second, names=names)
    naive = compare(independent(first), independent(second), names=names)
    for name in names:
        width = [row[name].high - row[name].low for row in (original, clustered, naive)]
        assert width[1] == pytest.approx(width[0], rel=0.15)
        assert width[2] < 0.6 * width[0]
    with refused("different_clusters"):
        compare(first, independent(second))


def test_summary_keeps_sets_of_whole_clusters():
    p = draw(np.random.default_rng(5), clusters=400, size=10)
    parts = [Summary.from_predictions(p[i : i + 1000]) for i in range(0, 4000, 1000)]
    from_all, merged = Summary.from_predictions(p), parts[3] + parts[1] + Summary.empty(of=1) + (parts[2] + parts[0])
    assert from_all.slots is not None
    assert np.array_equal(from_all.slots, merged.slots)
    assert np.array_equal(from_all.sums, merged.sums)
    for name in ("accuracy", "nll", "brier", "event_brier", "signed_gap"):
        expected, estimate = getattr(metrics, name).interval(p), merged.interval(name)
        assert estimate.value == pytest.approx(expected.value, rel=1e-9)
        # 64 sets of clusters are kept: one unseen set counts for more than one unseen cluster of 400
        assert 0.7 < (estimate.high - estimate.low) / (expected.high - expected.low) < 2
        assert estimate.high - estimate.low > 1.3 * (lambda i: i.high - i.low)(
            getattr(metrics, name).interval(independent(p))
        )
    floor = metrics.noise_floor.interval(p)
    assert merged.interval("noise_floor").high == pytest.approx(floor.high, rel=0.25)
    assert "in clusters" in str(measure(merged))
    with refused("partly_missing", "clusters"):
        from_all + Summary.from_predictions(independent(p))
    with refused("partly_missing", "clusters"):
        from_all.add(independent(p))


def test_cluster_intervals_cover_and_naive_intervals_do_not():
    rng = np.random.default_rng(1)
    covered, rejected = [0, 0], [0, 0]
    for _ in range(16):
        p = draw(rng)
        for i, q in enumerate((p, independent(p))):
            covered[i] += 0.0 in metrics.signed_gap.interval(q)
            rejected[i] += metrics.kuiper.test(q).p_value < 0.05
    assert covered[0] >= 12 > 8 >= covered[1]
    assert rejected[0] <= 3 < 10 <= rejected[1]


@pytest.mark.large
@pytest.mark.parametrize("shift", [0.0, 0.5])
def test_coverage_and_size_with_fifty_clusters_of_a_hundred(shift):
    rng, times = np.random.default_rng(11), 200
    population = independent(draw(rng, clusters=30_000, shift=shift))
    truth = {name: float(getattr(metrics, name)(population, **settings(name))) for name in INTERVALS}
    truth |= {"debiased_l2": 0.0} if shift == 0 else {}
    covered = {name: [0, 0] for name in INTERVALS}
    rejected, above, summed = dict.fromkeys(("kuiper", "ks", "skce"), 0), [0, 0], dict.fromkeys(("nll", "accuracy"), 0)
    for _ in range(times):
        p = draw(rng, shift=shift)
        for name in INTERVALS:
            for i, q in enumerate((p, independent(p))):
                covered[name][i] += truth[name] in getattr(metrics, name).interval(q, **settings(name))
        for name in rejected:
            rejected[name] += getattr(metrics, name).test(p).p_value < 0.05
        above[0] += float(metrics.ece(p)) > metrics.noise_floor.interval(p).high
        above[1] += float(metrics.adaptive_ece(p)) > metrics.adaptive_noise_floor.interval(p).high
        summary = Summary.from_predictions(p)
        for name in summed:
            summed[name] += truth[name] in summary.interval(name)
    print(shift, {k: [x / times for x in v] for k, v in covered.items()}, rejected, above, summed)
    tolerance = 0.03  # of 200 draws
    for name, (robust, naive) in covered.items():
        assert 0.88 - tolerance <= robust / times <= 0.999, name
        assert naive / times < 0.5, name
    assert all(0.88 - tolerance <= share / times <= 0.999 for share in summed.values())
    if shift == 0:
        assert all(0.01 <= clustered / times <= 0.09 for clustered in (*rejected.values(), *above))
