"""Passes over logits and bins: exact edges, ties, end points, and no example lost."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_softmax, softmax

from calibrant._core.arrays import to_numpy
from calibrant._core.kernels.bins import (
    Bins,
    Events,
    GroupedScores,
    assign_bins,
    edges_between,
    equal_width_edges,
    equal_width_index,
    unbounded_bin_index,
)
from calibrant._core.kernels.softmax import ChunkVisitor, class_probability, outcomes, top_label, visit_probabilities


def f64(*values: float) -> np.ndarray:
    return np.array(values, dtype=float)


@pytest.mark.parametrize("k", [2, 3, 17, 127, 128, 300])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_pass_over_logits_agrees_with_softmax_in_float64(k, dtype):
    rng = np.random.default_rng(k)
    logits, labels = 3 * rng.standard_normal((1500, k)), rng.integers(k, size=1500)
    is_array = dtype != "bfloat16"  # which numpy lacks
    logits = logits.astype(dtype) if is_array else pytest.importorskip("torch").from_numpy(logits).bfloat16()
    z = to_numpy(logits).astype(float)
    p, hot = softmax(z, 1), np.eye(k)[labels]
    result, chunks = outcomes(logits, labels), list[np.ndarray]()
    visit_probabilities(logits, ChunkVisitor(lambda: lambda _, chunk: chunks.append(chunk.copy())))
    for ours, theirs in (
        (result.confidence, p.max(1)),
        (result.log_likelihood, log_softmax(z, 1)[np.arange(1500), labels]),
        (result.brier, np.square(p - hot).sum(1)),
        (class_probability(logits, k - 1), p[:, k - 1]),
        (np.concatenate(chunks), p),
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-14)
    assert np.array_equal(result.correct, z.argmax(1) == labels)
    assert np.array_equal((result.confidence, result.correct), top_label(logits, labels))


def test_outcomes_of_a_row_do_not_depend_on_other_rows():
    rng = np.random.default_rng(0)
    for k in (2, 10, 200):
        logits, labels = 4 * rng.standard_normal((3000, k), dtype=np.float32), rng.integers(k, size=3000)
        all_rows = outcomes(logits, labels)
        for first in range(0, 3000, 137):
            part = outcomes(logits[first : first + 137], labels[first : first + 137])
            for name in "confidence", "correct", "log_likelihood", "brier":
                assert bool((getattr(part, name) == getattr(all_rows, name)[first : first + 137]).all())


def test_prediction_is_the_lowest_index_that_attains_the_maximum():
    logits = np.array([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0], [1.0, 1.0, 1.0]])
    assert top_label(logits, np.array([0, 1, 0]))[1].tolist() == [1, 1, 1]
    assert top_label(logits, np.array([1, 2, 2]))[1].tolist() == [0, 0, 0]


def test_minus_infinity_is_probability_zero():
    logits = np.array([[0.0, -np.inf], [-np.inf, 0.0]])
    result = outcomes(logits, np.array([0, 0]))
    assert result.confidence.tolist() == [1, 1]
    assert result.correct.tolist() == [1, 0]
    assert result.log_likelihood.tolist() == [0, -np.inf]
    assert result.brier.tolist() == [0, 2]


@pytest.mark.parametrize("bins", [1, 2, 5, 10, 15, 25, 100])
def test_edges_belong_to_the_bin_below_and_zero_to_the_first(bins):
    table = Events(np.linspace(0, 1, bins + 1), np.ones(bins + 1)).equal_width(bins)
    assert table.count.tolist() == [2] + [1] * (bins - 1)


def test_value_just_above_an_edge_falls_into_the_next_bin():
    c = np.nextafter(np.linspace(0, 1, 16)[1:-1], 1)
    assert Events(c, np.ones(14)).equal_width(15).count.tolist() == [0] + [1] * 14


@pytest.mark.parametrize("bins", [1, 2, 7, 15, 100, 1_000_003])
def test_equal_width_index_agrees_with_a_search(bins):
    edges = equal_width_edges(bins)
    sampled_edges = edges[:: max(1, bins // 1000)]
    inside = np.random.default_rng(bins).random(10_000)
    c = np.concatenate(
        [inside, np.sqrt(inside), *(sampled_edges + shift for shift in (0, 1e-16, -1e-16, 1e-7, -1e-7)), edges[-1:]]
    )
    c = np.concatenate([c, *(np.nextafter(sampled_edges, end) for end in (0, 1))]).clip(0, 1)
    for confidence in c, c.astype(np.float32):
        expected = assign_bins(edges, confidence).clip(0, bins - 1)
        assert np.array_equal(equal_width_index(bins, confidence), expected)
    assert equal_width_index(bins, f64(math.nan)).tolist() == [bins - 1]


def test_float32_confidence_is_binned_by_its_exact_value():
    c = np.array([0.2, 0.4, 0.6, 0.8], dtype=np.float32)  # each lies above its fraction
    assert Events(c, np.ones(4)).equal_width(5).count.tolist() == [0, 1, 1, 1, 1]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.75, 1.0]), st.booleans()), min_size=1, max_size=60),
    st.integers(1, 20),
)
def test_no_example_is_lost(rows, bins):
    c, a = f64(*(r[0] for r in rows)), f64(*(float(r[1]) for r in rows))
    for table in (Events(c, a).equal_width(bins), Bins.equal_mass(bins, GroupedScores.from_scores(c, a))):
        assert int(table.count.sum()) == len(rows)
        for weighted, values in ((table.weight * table.confidence, c), (table.weight * table.accuracy, a)):
            np.testing.assert_allclose(np.nansum(weighted), values.mean(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("n", [1, 3, 14, 15, 16, 100, 1003])
def test_equal_mass_without_ties_is_numpy_array_split(n):
    rng = np.random.default_rng(n)
    c, a = rng.random(n), (rng.random(n) < 0.5).astype(float)
    parts = [p for p in np.array_split(c.argsort(), 15) if len(p)]
    table = Bins.equal_mass(15, GroupedScores.from_scores(c, a))
    used = table.count > 0
    assert table.count[used].tolist() == [len(p) for p in parts]
    np.testing.assert_allclose(table.confidence[used], [c[p].mean() for p in parts], rtol=1e-12)
    np.testing.assert_allclose(table.accuracy[used], [a[p].mean() for p in parts], rtol=1e-12, atol=1e-12)


def test_equal_mass_bins_average_over_ties():
    rng = np.random.default_rng(0)
    c = rng.random(200).round(1)
    a = (rng.random(200) < c).astype(float)
    tie_means = np.array([a[c == v].mean() for v in c])
    expected = [tie_means[p].mean() for p in np.array_split(c.argsort(kind="stable"), 15)]
    np.testing.assert_allclose(Bins.equal_mass(15, GroupedScores.from_scores(c, a)).accuracy, expected, rtol=1e-12)


def test_heavy_ties_give_the_same_bits_over_100_shuffles():
    rng = np.random.default_rng(0)
    c = rng.random(1000).round(2)
    a = (rng.random(1000) < c).astype(float)
    reference = Bins.equal_mass(15, GroupedScores.from_scores(c, a))
    for _ in range(100):
        order = rng.permutation(1000)
        table = Bins.equal_mass(15, GroupedScores.from_scores(c[order], a[order]))
        for name in "edges", "weight", "confidence", "accuracy", "count":
            assert np.array_equal(getattr(table, name), getattr(reference, name))


def test_integer_weights_act_like_repetitions():
    rng = np.random.default_rng(1)
    c = rng.random(60)
    a = (rng.random(60) < c).astype(float)
    w = rng.integers(1, 5, 60)
    events, copies = Events(c, a, w.astype(float)), Events(c.repeat(w), a.repeat(w))
    for weighted, repeated in (
        (events.equal_width(15), copies.equal_width(15)),
        (Bins.equal_mass(15, events.by_score), Bins.equal_mass(15, copies.by_score)),
    ):
        np.testing.assert_allclose(weighted.gap, repeated.gap, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(weighted.weight, repeated.weight, rtol=1e-10, atol=1e-12)


def test_grouped_scores_hold_all_weight():
    by_score = GroupedScores.from_scores(f64(0.5, 0.2, 0.5, 0.9), f64(1, 0, 0, 1), f64(1, 2, 3, 0))
    assert by_score.value.tolist() == [0.2, 0.5]
    assert by_score.total_weight.tolist() == [2, 4]
    assert by_score.correct.tolist() == [0, 1]
    assert by_score.variance.tolist() == pytest.approx([2 * 0.16, 4 * 0.25])
    assert Events(f64(0.5), f64(1)).by_score.value.tolist() == [0.5]


@pytest.mark.parametrize("n", [1, 4, 60])
def test_undivided_bins_hold_the_examples_that_their_edges_assign(n):
    rng = np.random.default_rng(n)
    c = rng.choice([0.0, 5e-324, 1e-323, 1e-300, 0.2, 0.2 + 1e-14, 0.5, 1 - 1e-12, 1.0], n)
    a = rng.integers(0, 2, n).astype(float)
    for bins in (1, 2, 5, 15):
        table = Bins.undivided(bins, GroupedScores.from_scores(c, a))
        index = unbounded_bin_index(table.edges, c)
        assert np.array_equal(table.count, np.bincount(index, minlength=bins))
        outcome_sum = np.nan_to_num(table.accuracy * table.count)
        assert np.array_equal(outcome_sum.round(), np.bincount(index, a, minlength=bins))
        assert (np.diff(table.edges) >= 0).all()
        tied = (c[:, None] == c) & (index[:, None] != index)
        assert not tied.any()


def test_edges_lie_between_infinite_neighbors():
    low = f64(-np.inf, 1.0, -np.inf, 3.0, 5e-324, 0.0)
    high = f64(2.0, np.inf, np.inf, 3.0, 1e-323, 5e-324)
    edges = edges_between(low, high)
    assert edges.tolist()[:4] == [1.0, 2.0, 1.0, 3.0]
    assert ((low <= edges) & (edges < high))[[4, 5]].all()
