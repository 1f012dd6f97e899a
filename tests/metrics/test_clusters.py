"""Examples that depend on each other within clusters: identities, and coverage where the truth is known."""

import math

import pytest
import torch
from refusals import refused

from calibrant import Predictions, measure, metrics
from calibrant.metrics import Summary, compare
from calibrant.metrics._intervals import cluster_share_interval

F = torch.float64
MEANS = ["accuracy", "error", "nll", "brier", "event_brier", "signed_gap", "confident_share", "confident_accuracy"]
INTERVALS = [*MEANS, "auroc", "debiased_l2"]


def settings(name: str) -> dict[str, float]:
    return {"above": 0.7} if name.startswith("confident") else {}


def drawn(g: torch.Generator, clusters: int = 50, each: int = 100, shift: float = 0.0) -> Predictions:
    """Two classes; scores and outcomes of a cluster depend on each other, probabilities are true where shift is 0."""
    score = torch.randn(clusters, 1, dtype=F, generator=g) + 0.6 * torch.randn(clusters, each, dtype=F, generator=g)
    common, own = (torch.randn(clusters, m, dtype=F, generator=g) for m in (1, each))
    happened = torch.special.ndtr(math.sqrt(0.6) * common + math.sqrt(0.4) * own) < (score + shift).sigmoid()
    logits = torch.stack([torch.zeros_like(score), score], -1).view(-1, 2)
    index = torch.arange(clusters).repeat_interleave(each)
    return Predictions(logits, happened.long().flatten(), of=1, clusters=index)


def independent(p: Predictions) -> Predictions:
    return Predictions(p.logits, p.labels, p.weights, of=p.of)


@pytest.fixture
def few() -> Predictions:
    return independent(drawn(torch.Generator().manual_seed(3), clusters=80, each=1))


def copies(p: Predictions, times: int = 3) -> Predictions:
    """Every example so many times, which makes it a cluster."""
    index = torch.arange(len(p)).repeat(times)
    return Predictions(p.logits[index], p.labels[index], of=p.of, clusters=index)


@pytest.mark.parametrize("name", ["nll", "brier", "event_brier", "auroc"])
def test_copies_in_clusters_tell_no_more_than_their_originals(few, name):
    metric = getattr(metrics, name)
    one, many, wrong = (metric.interval(p) for p in (few, copies(few), independent(copies(few))))
    assert many.value == pytest.approx(one.value, rel=1e-12)
    assert many.high - many.value == pytest.approx(one.high - one.value, rel=1e-9)
    assert wrong.high - wrong.low < 0.6 * (many.high - many.low)


def test_errors_without_bias_count_pairs_of_different_clusters_only(few):
    for name in ("debiased_l2", "skce"):
        metric = getattr(metrics, name)
        assert float(metric(copies(few))) == pytest.approx(float(metric(few)), rel=1e-9)
        assert float(metric(independent(copies(few)))) > float(metric(few)) + 1e-3


@pytest.mark.parametrize("name", ["accuracy", "signed_gap"])
def test_a_share_of_copies_has_the_interval_of_its_originals(few, name):
    one, many = (getattr(metrics, name).interval(p) for p in (few, copies(few)))
    assert many.low == pytest.approx(one.low, abs=2e-3)
    assert many.high == pytest.approx(one.high, abs=2e-3)


def test_a_share_that_is_certain_counts_clusters():
    certain = Predictions([[0.0, 9.0]] * 40, [1] * 40, clusters=[i // 10 for i in range(40)])
    assert metrics.accuracy.interval(certain).low < 0.5 < metrics.accuracy.interval(independent(certain)).low


def test_a_share_of_no_clusters_is_unknown():
    found = cluster_share_interval(torch.zeros(5, dtype=F), torch.zeros(5, dtype=F), 0.9)
    assert math.isnan(found.value)
    assert (found.low, found.high) == (0, 1)


def test_copies_make_no_test_and_no_floor_surer(few):
    for name in ("kuiper", "ks", "skce"):
        test = getattr(metrics, name).test
        one, many, wrong = (test(p).p_value for p in (few, copies(few, 9), independent(copies(few, 9))))
        assert wrong < one / 2
        assert many > one / 2.5
    for name in ("noise_floor", "adaptive_noise_floor"):
        floor = getattr(metrics, name)
        one, many, wrong = (floor.interval(p, bins=4) for p in (few, copies(few, 9), independent(copies(few, 9))))
        assert many.value == pytest.approx(one.value, rel=0.25)
        assert many.high == pytest.approx(one.high, rel=0.3)
        assert wrong.high == pytest.approx(one.high / 3, rel=1e-6)


def test_one_cluster_gives_unbounded_intervals(few):
    p = Predictions(few.logits, few.labels, of=1, clusters=[0] * len(few))
    assert math.isinf(metrics.nll.interval(p).high)
    assert (metrics.accuracy.interval(p).low, metrics.accuracy.interval(p).high) == (0, 1)
    assert metrics.kuiper.test(p).p_value == 1
    assert metrics.noise_floor.interval(p).high == 1
    with refused("one_cluster"):
        compare(p, p)
    assert "in 1 cluster" in str(measure(p))


def test_comparisons_leave_out_whole_clusters(few):
    first = copies(few, 9)
    second = Predictions(1.3 * first.logits, first.labels, of=1, clusters=first.clusters)
    alone = Predictions(1.3 * few.logits, few.labels, of=1)
    names = ["nll", "ece", "kuiper"]
    one, many = compare(few, alone, names=names), compare(first, second, names=names)
    wrong = compare(independent(first), independent(second), names=names)
    for name in names:
        width = [row[name].high - row[name].low for row in (one, many, wrong)]
        assert width[1] == pytest.approx(width[0], rel=0.35)
        assert width[2] < 0.6 * width[0]
    with refused("different_clusters"):
        compare(first, independent(second))


def test_summaries_hold_sets_of_whole_clusters():
    p = drawn(torch.Generator().manual_seed(5), clusters=400, each=10)
    parts = [Summary.from_predictions(p[i : i + 1000]) for i in range(0, 4000, 1000)]
    whole, merged = Summary.from_predictions(p), parts[3] + parts[1] + Summary.empty(of=1) + (parts[2] + parts[0])
    assert whole.slots is not None
    assert torch.equal(whole.slots, merged.slots)
    assert torch.equal(whole.sums, merged.sums)
    for name in ("accuracy", "nll", "brier", "event_brier", "signed_gap"):
        exact, kept = getattr(metrics, name).interval(p), merged.interval(name)
        assert kept.value == pytest.approx(exact.value, rel=1e-9)
        assert kept.high - kept.low == pytest.approx(exact.high - exact.low, rel=0.3)
        assert kept.high - kept.low > 1.3 * (lambda i: i.high - i.low)(getattr(metrics, name).interval(independent(p)))
    floor = metrics.noise_floor.interval(p)
    assert merged.interval("noise_floor").high == pytest.approx(floor.high, rel=0.25)
    assert "in clusters" in str(measure(merged))
    with refused("partly_missing", "clusters"):
        whole + Summary.from_predictions(independent(p))
    with refused("partly_missing", "clusters"):
        whole.add(independent(p))


def test_clusters_cover_where_independent_examples_do_not():
    g = torch.Generator().manual_seed(1)
    held, rejected = [0, 0], [0, 0]
    for _ in range(16):
        p = drawn(g)
        for i, q in enumerate((p, independent(p))):
            held[i] += 0.0 in metrics.signed_gap.interval(q)
            rejected[i] += metrics.kuiper.test(q).p_value < 0.05
    assert held[0] >= 12 > 8 >= held[1]
    assert rejected[0] <= 3 < 10 <= rejected[1]


@pytest.mark.large
@pytest.mark.parametrize("shift", [0.0, 0.5])
def test_coverage_and_size_with_fifty_clusters_of_a_hundred(shift):
    g, times = torch.Generator().manual_seed(11), 200
    far = independent(drawn(g, clusters=30_000, shift=shift))
    truth = {name: float(getattr(metrics, name)(far, **settings(name))) for name in INTERVALS}
    truth |= {"debiased_l2": 0.0} if shift == 0 else {}
    held = {name: [0, 0] for name in INTERVALS}
    rejected, above, summed = dict.fromkeys(("kuiper", "ks", "skce"), 0), [0, 0], dict.fromkeys(("nll", "accuracy"), 0)
    for _ in range(times):
        p = drawn(g, shift=shift)
        for name in INTERVALS:
            for i, q in enumerate((p, independent(p))):
                held[name][i] += truth[name] in getattr(metrics, name).interval(q, **settings(name))
        for name in rejected:
            rejected[name] += getattr(metrics, name).test(p).p_value < 0.05
        above[0] += float(metrics.ece(p)) > metrics.noise_floor.interval(p).high
        above[1] += float(metrics.adaptive_ece(p)) > metrics.adaptive_noise_floor.interval(p).high
        summary = Summary.from_predictions(p)
        for name in summed:
            summed[name] += truth[name] in summary.interval(name)
    print(shift, {k: [x / times for x in v] for k, v in held.items()}, rejected, above, summed)
    slack = 0.03  # of 200 draws
    for name, (robust, naive) in held.items():
        assert 0.88 - slack <= robust / times <= 0.999, name
        assert naive / times < 0.5, name
    assert all(0.88 - slack <= share / times <= 0.999 for share in summed.values())
    if shift == 0:
        assert all(0.01 <= many / times <= 0.09 for many in (*rejected.values(), *above))
