"""Passes over logits and bins: exact edges, ties, end points, and no example lost."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

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

F = torch.float64


def f64(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=F)


@pytest.mark.parametrize("k", [2, 3, 17, 127, 128, 300])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, F])
def test_pass_over_logits_agrees_with_softmax_in_float64(k, dtype):
    g = torch.Generator().manual_seed(k)
    logits = (3 * torch.randn(1500, k, generator=g)).to(dtype)
    labels = torch.randint(0, k, (1500,), generator=g)
    z = logits.double()
    p, hot = z.softmax(-1), torch.nn.functional.one_hot(labels, k)
    result, chunks = outcomes(logits, labels), list[torch.Tensor]()
    visit_probabilities(logits, ChunkVisitor(lambda: lambda _, chunk: chunks.append(chunk.clone())))
    for ours, theirs in (
        (result.confidence, p.amax(-1)),
        (result.log_likelihood, z.log_softmax(-1).gather(1, labels[:, None]).squeeze(1)),
        (result.brier, (p - hot).square().sum(-1)),
        (class_probability(logits, k - 1), p[:, k - 1]),
        (torch.cat(chunks), p),
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)
    assert bool((result.correct == (logits.argmax(-1) == labels)).all())
    assert torch.equal(torch.stack([result.confidence, result.correct]), torch.stack(top_label(logits, labels)))


def test_outcomes_of_a_row_do_not_depend_on_other_rows():
    g = torch.Generator().manual_seed(0)
    for k in (2, 10, 200):
        logits, labels = torch.randn(3000, k, generator=g) * 4, torch.randint(0, k, (3000,), generator=g)
        all_rows = outcomes(logits, labels)
        for first in range(0, 3000, 137):
            part = outcomes(logits[first : first + 137], labels[first : first + 137])
            for name in "confidence", "correct", "log_likelihood", "brier":
                assert bool((getattr(part, name) == getattr(all_rows, name)[first : first + 137]).all())


def test_prediction_is_the_lowest_index_that_attains_the_maximum():
    logits = torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0], [1.0, 1.0, 1.0]])
    assert top_label(logits, torch.tensor([0, 1, 0]))[1].tolist() == [1, 1, 1]
    assert top_label(logits, torch.tensor([1, 2, 2]))[1].tolist() == [0, 0, 0]


def test_minus_infinity_is_probability_zero():
    logits = torch.tensor([[0.0, -torch.inf], [-torch.inf, 0.0]])
    result = outcomes(logits, torch.tensor([0, 0]))
    assert result.confidence.tolist() == [1, 1]
    assert result.correct.tolist() == [1, 0]
    assert result.log_likelihood.tolist() == [0, -torch.inf]
    assert result.brier.tolist() == [0, 2]


@pytest.mark.parametrize("bins", [1, 2, 5, 10, 15, 25, 100])
def test_edges_belong_to_the_bin_below_and_zero_to_the_first(bins):
    edges = torch.from_numpy(np.linspace(0, 1, bins + 1))
    table = Events(edges, torch.ones(bins + 1, dtype=F)).equal_width(bins)
    expected = torch.ones(bins, dtype=torch.int64)
    expected[0] += 1
    assert table.count.tolist() == expected.tolist()


def test_value_just_above_an_edge_falls_into_the_next_bin():
    c = torch.from_numpy(np.nextafter(np.linspace(0, 1, 16)[1:-1], 1))
    assert Events(c, torch.ones(14, dtype=F)).equal_width(15).count.tolist() == [0] + [1] * 14


@pytest.mark.parametrize("bins", [1, 2, 7, 15, 100, 1_000_003])
def test_equal_width_index_agrees_with_a_search(bins):
    edges = equal_width_edges(bins)
    sampled_edges = edges[:: max(1, bins // 1000)]
    inside = torch.rand(10_000, generator=torch.Generator().manual_seed(bins), dtype=F)
    c = torch.cat(
        [inside, inside.sqrt(), *(sampled_edges + shift for shift in (0, 1e-16, -1e-16, 1e-7, -1e-7)), edges[-1:]]
    )
    c = torch.cat([c, *(torch.nextafter(sampled_edges, end) for end in f64(0, 1))]).clamp(0, 1)
    expected = assign_bins(edges, c).clamp(0, bins - 1)
    assert torch.equal(equal_width_index(bins, c), expected)
    assert torch.equal(equal_width_index(bins, c.float()), assign_bins(edges, c.float()).clamp(0, bins - 1))
    assert equal_width_index(bins, f64(math.nan)).tolist() == [bins - 1]


def test_float32_confidence_is_binned_by_its_exact_value():
    c = torch.tensor([0.2, 0.4, 0.6, 0.8], dtype=torch.float32)  # each lies above its fraction
    assert Events(c, torch.ones(4)).equal_width(5).count.tolist() == [0, 1, 1, 1, 1]


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
            torch.testing.assert_close(weighted.nansum(), values.mean(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("n", [1, 3, 14, 15, 16, 100, 1003])
def test_equal_mass_without_ties_is_numpy_array_split(n):
    g = torch.Generator().manual_seed(n)
    c, a = torch.rand(n, dtype=F, generator=g), (torch.rand(n, generator=g) < 0.5).double()
    order = c.argsort()
    parts = [p for p in np.array_split(order.numpy(), 15) if len(p)]
    table = Bins.equal_mass(15, GroupedScores.from_scores(c, a))
    used = table.count > 0
    assert table.count[used].tolist() == [len(p) for p in parts]
    np.testing.assert_allclose(table.confidence[used], [c[p].mean() for p in parts], rtol=1e-12)
    np.testing.assert_allclose(table.accuracy[used], [a[p].mean() for p in parts], rtol=1e-12, atol=1e-12)


def test_equal_mass_bins_average_over_ties():
    g = torch.Generator().manual_seed(0)
    c = torch.rand(200, dtype=F, generator=g).round(decimals=1)
    a = (torch.rand(200, generator=g) < c).double()
    tie_means = torch.stack([a[c == v].mean() for v in c])
    order = c.argsort(stable=True)
    expected = [tie_means[torch.from_numpy(p)].mean() for p in np.array_split(order.numpy(), 15)]
    np.testing.assert_allclose(Bins.equal_mass(15, GroupedScores.from_scores(c, a)).accuracy, expected, rtol=1e-12)


def test_heavy_ties_give_the_same_bits_over_100_shuffles():
    g = torch.Generator().manual_seed(0)
    c = torch.rand(1000, dtype=F, generator=g).round(decimals=2)
    a = (torch.rand(1000, generator=g) < c).double()
    reference = Bins.equal_mass(15, GroupedScores.from_scores(c, a))
    for _ in range(100):
        order = torch.randperm(1000, generator=g)
        table = Bins.equal_mass(15, GroupedScores.from_scores(c[order], a[order]))
        for name in "edges", "weight", "confidence", "accuracy", "count":
            assert bool((getattr(table, name) == getattr(reference, name)).all())


def test_integer_weights_act_like_repetitions():
    g = torch.Generator().manual_seed(1)
    c = torch.rand(60, dtype=F, generator=g)
    a = (torch.rand(60, generator=g) < c).double()
    w = torch.randint(1, 5, (60,), generator=g)
    events, copies = Events(c, a, w.double()), Events(c.repeat_interleave(w), a.repeat_interleave(w))
    for weighted, repeated in (
        (events.equal_width(15), copies.equal_width(15)),
        (Bins.equal_mass(15, events.by_score), Bins.equal_mass(15, copies.by_score)),
    ):
        torch.testing.assert_close(weighted.gap, repeated.gap, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(weighted.weight, repeated.weight, rtol=1e-10, atol=1e-12)


def test_grouped_scores_hold_all_weight():
    by_score = GroupedScores.from_scores(f64(0.5, 0.2, 0.5, 0.9), f64(1, 0, 0, 1), f64(1, 2, 3, 0))
    assert by_score.value.tolist() == [0.2, 0.5]
    assert by_score.total_weight.tolist() == [2, 4]
    assert by_score.correct.tolist() == [0, 1]
    assert by_score.variance.tolist() == pytest.approx([2 * 0.16, 4 * 0.25])
    assert Events(f64(0.5), f64(1)).by_score.value.tolist() == [0.5]


@pytest.mark.parametrize("n", [1, 4, 60])
def test_undivided_bins_hold_the_examples_that_their_edges_assign(n):
    g = torch.Generator().manual_seed(n)
    values = torch.tensor([0.0, 5e-324, 1e-323, 1e-300, 0.2, 0.2 + 1e-14, 0.5, 1 - 1e-12, 1.0], dtype=torch.float64)
    c = values[torch.randint(0, len(values), (n,), generator=g)]
    a = torch.randint(0, 2, (n,), generator=g).double()
    for bins in (1, 2, 5, 15):
        table = Bins.undivided(bins, GroupedScores.from_scores(c, a))
        index = unbounded_bin_index(table.edges, c)
        assert torch.equal(table.count, torch.bincount(index, minlength=bins))
        assert torch.equal(
            (table.accuracy * table.count).nan_to_num().round(), torch.bincount(index, a, minlength=bins)
        )
        assert (table.edges.diff() >= 0).all()
        tied = (c[:, None] == c) & (index[:, None] != index)
        assert not tied.any()


def test_edges_lie_between_infinite_neighbors():
    low = torch.tensor([-torch.inf, 1.0, -torch.inf, 3.0, 5e-324, 0.0], dtype=torch.float64)
    high = torch.tensor([2.0, torch.inf, torch.inf, 3.0, 1e-323, 5e-324], dtype=torch.float64)
    edges = edges_between(low, high)
    assert edges.tolist()[:4] == [1.0, 2.0, 1.0, 3.0]
    assert ((low <= edges) & (edges < high))[[4, 5]].all()
