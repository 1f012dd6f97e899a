"""Traces equal numbers computed by hand, and survive interruptions."""

import math

import numpy as np
import pytest
import torch
from refusals import refused

from calibrant import Predictions, losses, metrics
from calibrant.lab.data import Split, Splits
from calibrant.lab.study import Grid, Recipe, Store, Study, traces
from calibrant.lab.study.engine import execute
from calibrant.lab.study.train import Epoch

TRACES = (
    "scores(split='train')",
    "calibration",
    "bins(count=3)",
    "reliability(epochs=(3,), count=4)",
    "gammas",
    "norm",
    "gradients(epochs=(2,), count=8)",
    "learned(groups=2, count=5)",
)
GRID = Grid(
    ("digits(train=60, val=100)",),
    ("resnet8(channels=1, width=4)",),
    ("AdaFocal(bins=4)",),
    recipe=Recipe(epochs=4, batch_size=20, milestones=(3,)),
    shifts=("gaussian_noise(severity=5)", "digits(train=200, val=300)"),
    traces=TRACES,
)


def watched(network, loss, *, number=2, last=True, history=()):
    g = torch.Generator().manual_seed(0)
    inputs, labels = torch.randn(30, 4, generator=g), torch.randint(3, (30,), generator=g)
    splits = Splits(Split(inputs, labels), Split(inputs[:9], labels[:9]), Split(inputs, labels), tuple("abc"))
    with torch.no_grad():
        val = Predictions(network(inputs[:9]), labels[:9])
    return traces.EpochContext(Epoch(number, network, loss, 1.0, 0.1, val, 1.0, True), splits, last, history)


@pytest.fixture
def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3))


def test_gradient_norms_are_those_of_backpropagation_per_example(network):
    w = watched(network, losses.focal)
    expected = []
    for x, y in zip(w.splits.train.inputs, w.splits.train.labels, strict=True):
        loss = losses.focal(network(x[None]), y[None]).sum()
        slopes = torch.autograd.grad(loss, list(network[2].parameters()))
        expected.append(math.sqrt(sum(float(slope.square().sum()) for slope in slopes)))
    counts, edges = np.histogram(np.array(expected, dtype=np.float32), 50)
    row = traces.gradients(w, epochs=(2,))
    assert sum(row["gradient_norms"]) == 30
    np.testing.assert_allclose(row["gradient_edges"], edges, rtol=1e-4)
    assert (
        np.abs(np.cumsum(row["gradient_norms"]) - np.cumsum(counts)).max() <= 1
    )  # a norm on an edge may fall into either bin
    assert traces.gradients(w, epochs=(3,)) == {}


def test_scores_separate_correct_and_wrong_predictions(network):
    w = watched(network, losses.cross_entropy)
    row, p = traces.scores(w, split="test"), w.predictions("test").double()
    right = p.logits.argmax(-1) == p.labels
    share = float(right.mean())
    assert row["test_nll"] == pytest.approx(share * row["test_nll_correct"] + (1 - share) * row["test_nll_wrong"])
    assert row["test_error"] == pytest.approx(1 - share)
    true = share * row["test_label_probability_correct"] + (1 - share) * row["test_label_probability_wrong"]
    assert true == pytest.approx(float(torch.as_tensor(p.logits).softmax(-1)[torch.arange(30), p.labels].mean()))
    by_name = traces.values(w, split="test", metrics=("error", "ece(bins=5)"))
    assert by_name == {"test_error": row["test_error"], "test_ece(bins=5)": float(metrics.ece(p, bins=5))}
    confidence = share * row["test_confidence_correct"] + (1 - share) * row["test_confidence_wrong"]
    assert confidence == pytest.approx(float(torch.as_tensor(p.logits).softmax(-1).amax(-1).mean()))


def test_the_optimal_temperature_lowers_ece(network):
    w = watched(network, losses.cross_entropy)
    row = traces.calibration(w, split="test")
    assert row["test_ece"] == pytest.approx(float(metrics.ece(w.predictions("test").double())))
    assert row["test_optimal_ece"] <= row["test_ece"]
    p = w.predictions("test").double()
    best = min(float(metrics.ece(p.logits / (i / 100), p.labels)) for i in range(1, 1001))  # as the paper's text says
    assert row["test_optimal_ece"] == pytest.approx(best, abs=1e-12)
    coarse = traces.calibration(w, split="test", grid="mukhoti")
    assert coarse["test_optimal_ece"] > row["test_optimal_ece"]


def test_gammas_are_those_of_the_loss(network):
    assert traces.gammas(watched(network, losses.AdaFocal(bins=4))) == {"gammas": [1.0] * 4}
    assert traces.gammas(watched(network, losses.Scheduled(epochs=7))) == {"gammas": [5.0]}
    assert traces.gammas(watched(network, losses.brier)) == {}


def test_learned_epochs_count_from_the_last_mistake(network):
    first = traces.learned(watched(network, losses.brier, number=1, last=False))
    assert list(first) == ["learned_bits"]
    last = traces.learned(watched(network, losses.brier, history=[first]), groups=2)
    w = watched(network, losses.brier)
    right = torch.as_tensor(w.predictions("train").logits).argmax(-1) == w.splits.train.labels
    assert [sum(group) for group in last["learned_counts"]] == [int(right.sum()), 0, int((~right).sum())]


def test_a_network_without_a_linear_layer_is_refused():
    with refused("no_linear_layer") as caught:
        traces.last_layer(torch.nn.Identity())
    assert "Identity" in str(caught.value)


def test_resumed_run_has_equal_traces_and_shifts(tmp_path):
    (run,) = Study("x", (GRID,)).runs()
    complete, parted = Store(tmp_path / "whole"), Store(tmp_path / "parted")
    list(execute(run, complete))
    rows = complete.history(run).to_dicts()
    assert len(rows[0]["gammas"]) == 4
    assert len(rows[0]["val_bin_gaps"]) == 3
    assert [row["gradient_norms"] is None for row in rows] == [True, False, True, True]
    assert sum(map(sum, rows[-1]["learned_counts"])) == 60
    assert [sum(row["train_reliability_count"] or []) for row in rows] == [0, 0, 60, 0]
    assert len(complete.get(run, "shift0").labels) == len(complete.get(run, "test").labels)
    assert not complete.get(run, "shift1").labels.any()

    events = execute(run, parted)
    for _ in range(2):
        next(events)
    events.close()
    list(execute(run, parted))
    ours, theirs = (store.history(run).drop("seconds") for store in (complete, parted))
    assert ours.equals(theirs)
    for split in "test", "shift0", "shift1":
        assert np.array_equal(complete.get(run, split).logits, parted.get(run, split).logits)


def test_a_shift_that_does_not_fit_is_refused_before_training(tmp_path):
    grid = Grid(GRID.datasets, GRID.networks, GRID.losses, recipe=GRID.recipe, shifts=("blobs",))
    (run,) = Study("x", (grid,)).runs()
    with refused("shift_shape"):
        next(execute(run, Store(tmp_path)))
    with refused("setting_range"):
        Grid(GRID.datasets, GRID.networks, GRID.losses, shifts=("gaussian_noise(severity=9)",))
