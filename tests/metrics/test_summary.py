"""Summaries: the same state for any sharding and order, and values within the documented bounds."""

import math
import threading
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from calibrant.registry import METRICS
from drawn import drawn_labels
from refusals import code_of, refused
from scipy.special import softmax

from calibrant import Predictions, metrics
from calibrant.assessment import measure
from calibrant.io.contents import Chunk, ChunkedFile, Contents
from calibrant.metrics import Summary

STATE = ("sums", "cells")


def draw(n: int, k: int, seed: int = 0, weighted: bool = False) -> Predictions:
    rng = np.random.default_rng(seed)
    logits = 3 * rng.standard_normal((n, k), dtype=np.float32)
    weights = {"weights": rng.random(n) + 0.5, "weights_are": "counts"} if weighted else {}
    return Predictions(logits, drawn_labels(logits, rng), **weights)


def equal_state(a: Summary, b: Summary) -> bool:
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in STATE) and a.k == b.k


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("k", [2, 10, 150])
def test_state_does_not_depend_on_sharding_and_order(k, weighted):
    p = draw(9000, k, weighted=weighted)
    expected = Summary.from_predictions(p)
    rng = np.random.default_rng(1)
    for _ in range(8):
        q = p[rng.permutation(len(p))]
        cuts = [0, *sorted(rng.integers(len(p), size=5)), len(p)]
        parts = [Summary.from_predictions(q[a:b]) for a, b in pairwise(cuts) if a < b]
        rng.shuffle(parts)
        assert equal_state(sum(parts, Summary.empty()), expected)


def test_adding_batches_equals_merging():
    p = draw(1000, 4)
    summary = Summary.empty()
    for i in range(0, 1000, 123):
        part = p[i : i + 123]
        summary = summary.add(part.logits, part.labels)
    assert equal_state(summary, Summary.from_predictions(p))
    assert len(summary) == 1000


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("n", "k"), [(1, 2), (20_000, 2), (20_000, 10), (3000, 200)])
def test_values_are_within_the_documented_bounds(n, k, weighted):
    p = draw(n, k, weighted=weighted)
    summary, exact = measure(Summary.from_predictions(p)), measure(p, of="top")
    weight = Summary.from_predictions(p).by_score.total_weight
    heaviest = weight.max() / weight.sum()
    bounds = {
        "adaptive_ece": 28 * heaviest,
        "kuiper": 2 * heaviest,
        "omnibus": 2 * heaviest,
        "aurc": heaviest,
        "smooth_ece": 2e-4,
        "noise_floor": 1e-7,
    }
    for row in summary:
        if row.name in ("adaptive_noise_floor",):
            continue
        assert row.value == pytest.approx(exact[row.name].value, abs=bounds.get(row.name, 2**-30)), row.name
    for name in ("accuracy", "nll", "brier", "signed_gap", "debiased_l2", "noise_floor", "confident_share"):
        for end in "low", "high":
            assert getattr(summary[name], end) == pytest.approx(getattr(exact[name], end), abs=1e-6), name


def test_errors_of_sorted_metrics_shrink_with_the_number_of_examples():
    p = draw(200_000, 10)
    summary, exact = measure(Summary.from_predictions(p)), measure(p, of="top")
    for name, bound in {"adaptive_ece": 1e-4, "kuiper": 1e-4, "smooth_ece": 1e-5, "aurc": 1e-5}.items():
        assert summary[name].value == pytest.approx(exact[name].value, abs=bound)
    assert summary["kuiper"].p_value == pytest.approx(exact["kuiper"].p_value, abs=2e-2)


def test_bin_table_is_exact():
    p = draw(5000, 10)
    ours, exact = Summary.from_predictions(p).equal_width(15), metrics.tables.bins(p)
    assert ours.count.tolist() == exact.count.tolist()
    np.testing.assert_allclose(ours.gap, exact.gap, atol=1e-9, rtol=0)


@pytest.mark.parametrize(("n", "k"), [(10, 2), (10_000, 2), (1000, 1000)])
def test_state_takes_at_most_three_megabytes(n, k):
    summary = Summary.from_predictions(draw(n, k))
    assert sum(getattr(summary, name).nbytes for name in STATE) <= 3_000_000


def test_summary_of_saturated_and_impossible_predictions():
    p = Predictions([[1e4, 0.0], [-np.inf, 0.0], [0.0, 1e4]], [0, 0, 0])
    summary = Summary.from_predictions(p)
    assert summary["nll"] == math.inf
    assert summary["ece"] == pytest.approx(2 / 3)
    assert summary["kuiper"] == pytest.approx(2 / 3, abs=1e-9)
    assert metrics.kuiper.test(summary).p_value == 0


def test_summary_refuses_what_does_not_match():
    with refused("different_summaries", "2 classes"):
        Summary.from_predictions(draw(5, 2)) + Summary.from_predictions(draw(5, 3))
    with refused("different_summaries", "15 bins"):
        Summary.empty() + Summary.empty(bins=10)
    with refused("num_classes"):
        Summary.from_predictions(draw(5, 2)).add(draw(5, 3))
    with refused("weight_range"):
        Summary.empty().add(np.zeros((5, 2)), np.zeros(5), np.full(5, 1e7))
    with refused("different_summaries", "'top' and 1"):
        Summary.empty() + Summary.empty(of=1)
    with refused("num_bins"):
        Summary.from_predictions(draw(5, 2)).equal_width(10)
    with refused("summary_only", "auroc"):
        Summary.from_predictions(draw(5, 2))["auroc"]
    heavy = Predictions(np.zeros((8, 2)), np.zeros(8), np.full(8, 2.0**20))
    merged = Summary.from_predictions(heavy)
    for _ in range(22):
        merged = merged + merged
    assert merged.total_weight == 2.0**45
    with refused("too_many_rows"):
        merged + merged


@pytest.mark.parametrize("scale", [None, 1e-9, 1.0, 1e6, "mixed"])
def test_summary_agrees_with_predictions_for_any_weights(scale):
    p = draw(3000, 5)
    if scale is not None:
        drawn = np.random.default_rng(2).random(3000)
        weights = 10 ** (15 * drawn - 9) if scale == "mixed" else scale * (drawn + 1e-3)
        if scale == 1e-9:
            weights[0] = 2.0  # or the total weight would be below one example
        p = Predictions(p.logits, p.labels, weights, weights_are="counts")
    summary = sum((Summary.from_predictions(p[i : i + 700]) for i in range(0, 3000, 700)), Summary.empty())
    result, exact = measure(summary), measure(p, of="top")
    for name in ("accuracy", "nll", "brier", "signed_gap", "ece", "noise_floor", "debiased_l2", "confident_share"):
        for end in "value", "low", "high":
            value, expected = getattr(result[name], end), getattr(exact[name], end)
            within = math.sqrt(3000 * 2**-53) if scale == 1e-9 else 1e-12  # roots of tiny sums of rounded numbers
            assert value == pytest.approx(expected, rel=1e-12, abs=within, nan_ok=True), (name, end)


def write(path, p: Predictions, kind: str = "logits") -> None:
    values = p.logits if kind == "logits" else softmax(p.logits.astype(float), 1)
    if path.suffix == ".npy":
        np.save(path, values)
        np.save(path.with_name(path.stem.removesuffix(kind) + "labels.npy"), p.labels)
    else:
        p.save(path)


@pytest.mark.parametrize("name", ["p.parquet", "p.safetensors", "p_logits.npy"])
@pytest.mark.parametrize("rows", [None, 7, 1000])
def test_files_are_read_in_chunks(tmp_path, name, rows):
    p = draw(100, 5)
    write(tmp_path / name, p)
    parts = list(Predictions.load_chunks(tmp_path / name, rows=rows))
    assert len(parts) == (1 if rows != 7 else 15)
    for column in ("logits", "labels"):
        assert np.array_equal(np.concatenate([getattr(part, column) for part in parts]), getattr(p, column))
    assert equal_state(Summary.from_file(tmp_path / name), Summary.from_predictions(p))


def test_classes_of_a_file_are_summed_on_request(tmp_path):
    p = draw(100, 5)
    p.save(tmp_path / "p.parquet")
    result = Summary.from_file(tmp_path / "p.parquet", by_class=True)
    assert equal_state(result, Summary.from_predictions(p, by_class=True))
    assert result.classes is not None
    assert np.allclose(result.classes.ece, measure(p).classes.ece, rtol=0, atol=1e-12)
    assert Summary.from_file(tmp_path / "p.parquet").classes is None


def test_next_chunk_is_read_ahead_and_its_error_is_raised_when_due(monkeypatch):
    read, started = [], threading.Event()

    def piece(rows):
        if rows.start == 4:
            raise OSError("the disk is gone")
        if rows.start == 2:
            started.set()
        read.append(rows)
        return Chunk(Contents("logits", np.zeros((2, 3)), [0, 1]), Counter())

    monkeypatch.setattr("calibrant.io.predictions.open_chunked", lambda *_, **__: ChunkedFile(6, 3, piece))
    pieces = Predictions.load_chunks("any.npy", rows=2)
    assert len(next(pieces)) == 2
    assert started.wait(60)  # before it is requested
    assert len(next(pieces)) == 2
    with refused("unreadable", "any.npy", "the disk is gone"):
        next(pieces)
    assert read == [slice(0, 2), slice(2, 4)]


def test_closed_generator_of_chunks_leaves_no_thread(monkeypatch):
    readers = set[threading.Thread]()

    def piece(_):
        readers.add(threading.current_thread())
        return Chunk(Contents("logits", np.zeros((2, 3)), [0, 1]), Counter())

    monkeypatch.setattr("calibrant.io.predictions.open_chunked", lambda *_, **__: ChunkedFile(6, 3, piece))
    pieces = Predictions.load_chunks("any.npy", rows=2)
    next(pieces)
    pieces.close()
    assert len(readers) == 1
    assert not readers.pop().is_alive()


def test_files_with_weights_probabilities_and_pixels(tmp_path):
    p = draw(50, 5, weighted=True)
    p.save(tmp_path / "p.parquet")
    p.save(tmp_path / "p.safetensors")
    for name in "p.parquet", "p.safetensors":
        assert equal_state(Summary.from_file(tmp_path / name), Summary.from_predictions(p))
    write(tmp_path / "p_probs.npy", p, "probs")
    assert Summary.from_file(tmp_path / "p_probs.npy")["ece"] == pytest.approx(
        float(metrics.ece(p.logits, p.labels)), abs=1e-6
    )
    rng = np.random.default_rng(0)
    images, labels = rng.standard_normal((6, 3, 4, 4), dtype=np.float32), rng.integers(3, size=(6, 4, 4))
    labels[2] = 255
    np.save(tmp_path / "s_logits.npy", images)
    np.save(tmp_path / "s_labels.npy", labels)
    assert len(list(Predictions.load_chunks(tmp_path / "s_logits.npy", rows=1, ignore_index=255))) == 5
    assert len(Summary.from_file(tmp_path / "s_logits.npy", ignore_index=255)) == 80


def test_files_are_validated_chunk_by_chunk(tmp_path):
    p = draw(30, 3)
    bad = p.logits.copy()
    bad[25, 1] = math.nan
    np.save(tmp_path / "x_logits.npy", bad)
    np.save(tmp_path / "x_labels.npy", p.labels)
    with refused("nan", "rows 20 .. 29", "1 of 10"):
        list(Predictions.load_chunks(tmp_path / "x_logits.npy", rows=10))
    np.save(tmp_path / "x_labels.npy", p.labels[:20])
    with refused("shape", "30 rows and 20 labels"):
        Summary.from_file(tmp_path / "x_logits.npy")
    (tmp_path / "x_labels.npy").unlink()
    with refused("no_labels"):
        Summary.from_file(tmp_path / "x_logits.npy")
    with refused("no_file"):
        Summary.from_file(tmp_path / "none.parquet")
    with refused("pieces"):
        Summary.from_file(tmp_path / "p.npz")
    for name in "p.parquet", "p.safetensors", "p_logits.npy":
        (tmp_path / name).write_bytes(b"nonsense")
        (tmp_path / "p_labels.npy").write_bytes(b"nonsense")
        with refused("unreadable"):
            Summary.from_file(tmp_path / name)
    np.save(tmp_path / "e_logits.npy", np.zeros((0, 3)))
    np.save(tmp_path / "e_labels.npy", np.zeros(0, dtype=int))
    with refused("no_rows"):
        Summary.from_file(tmp_path / "e_logits.npy")


@pytest.mark.parametrize("by_class", [False, True])
@pytest.mark.parametrize("grouped", [False, True])
def test_files_keep_every_bit(tmp_path, grouped, by_class):
    p = draw(400, 3)
    columns = {"groups": np.arange(400) % 3, "clusters": np.arange(400) // 4, "class_names": ("a", "b", "c")}
    p = Predictions(p.logits, p.labels, **columns) if grouped else p
    summary = Summary.from_predictions(p, by_class=by_class)
    summary.save(tmp_path / "a.safetensors")
    loaded = Summary.load(tmp_path / "a.safetensors")
    assert equal_state(loaded, summary)
    assert str(measure(loaded)) == str(measure(summary))
    assert equal_state(loaded + loaded, summary + summary)


def test_other_and_changed_files_are_refused(tmp_path):
    path = tmp_path / "a.safetensors"
    Summary.from_predictions(draw(50, 3)).save(path)
    content = bytearray(path.read_bytes())
    content[-200_000] ^= 1
    path.write_bytes(content)
    assert code_of(Summary.load, path) == "checksum"
    path.write_bytes(bytes(content[:1000]))
    assert code_of(Summary.load, path) == "unreadable"
    draw(50, 3).save(path)
    assert code_of(Summary.load, path) == "summary_file"
    assert code_of(Summary.load, tmp_path / "none.safetensors") == "no_file"


def test_event_of_a_file_may_be_the_name_of_a_class(tmp_path):
    p = draw(60, 3)
    p = Predictions(p.logits, p.labels, class_names=["a", "b", "c"])
    p.save(tmp_path / "p.parquet")
    summary = Summary.from_file(tmp_path / "p.parquet", of="b")
    assert equal_state(summary, Summary.from_predictions(p.with_event("b")))
    assert summary.of == 1


def test_addition_refuses_everything_but_summaries():
    p = draw(50, 3)
    summary = Summary.from_predictions(p)
    assert equal_state(sum([summary, summary]), summary + summary)
    for pair in (p, summary), (summary, p), (1, summary), (summary, 1):
        with pytest.raises(TypeError):
            pair[0] + pair[1]


def test_names_of_metrics_may_have_settings_and_are_checked():
    summary = Summary.from_predictions(draw(50, 3))
    assert summary["ece(bins=15)"] == summary["ece"]
    assert code_of(lambda: summary["eze"]) == "unknown_method"
    assert code_of(lambda: summary.interval("eze")) == "unknown_method"


def test_metrics_of_no_examples_are_nan():
    empty = Summary.empty(k=3)
    for name in METRICS:
        if metrics.fits_summary(name, by_class=False):
            assert math.isnan(empty[name]), name
    assert code_of(measure, empty) == "no_predictions"
