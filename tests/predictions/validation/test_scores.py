"""Probabilities given as logits are detected by every constructor, `collect` and files."""

import numpy as np
import polars
import pytest
from commands import run
from refusals import code_of
from scipy.special import expit, softmax

import calibrant
from calibrant import Predictions, metrics
from calibrant.io.predictions import read_file

RNG = np.random.default_rng(0)
LOGITS = 2 * RNG.normal(size=40)
PROBS = expit(LOGITS)
LABELS = RNG.binomial(1, PROBS)


@pytest.mark.parametrize("shape", [(40,), (40, 1), (5, 8), (2, 1, 4, 5)])
@pytest.mark.parametrize("kind", ["torch", "numpy", "list"])
def test_single_probabilities_are_refused_as_logits(shape, kind):
    scores, labels = PROBS.reshape(shape), LABELS.reshape(shape)
    if kind == "torch":
        scores, labels = map(pytest.importorskip("torch").from_numpy, (scores, labels))
    scores = scores.tolist() if kind == "list" else scores
    assert code_of(Predictions.from_binary_logits, scores, labels) == "probs_as_logits"
    p = Predictions.from_binary_logits(scores, labels, logits=True)
    assert p.logits[:, 1].tolist() == pytest.approx(PROBS.tolist())


@pytest.mark.parametrize("scores", [[0.3], [0.3, 0.9], [0.0, 1.0, 1.0, 0.0], [0.0] * 9, [0.5, 0.5, 0.5, 1.1]])
def test_few_scores_in_the_unit_interval_may_be_logits(scores):
    assert len(Predictions.from_binary_logits(scores, [1] * len(scores))) == len(scores)


def test_ignored_positions_are_not_evidence():
    scores, labels = np.r_[PROBS, 7.0], np.r_[LABELS, -100]
    assert code_of(Predictions.from_binary_logits, scores, labels, ignore_index=-100) == "probs_as_logits"
    assert len(Predictions.from_binary_logits(np.r_[LOGITS, np.full(40, 0.5)], np.tile(LABELS, 2))) == 80


def test_multilabel_probabilities_are_refused_as_logits():
    scores, targets = PROBS.reshape(10, 4), LABELS.reshape(10, 4)
    assert code_of(Predictions.multilabel, scores, targets) == "probs_as_logits"
    assert code_of(Predictions.multilabel, scores, targets, probs=True, logits=True) == "probs_and_logits"
    assert Predictions.multilabel(scores, targets, logits=True).logits[:, 1].tolist() == PROBS.tolist()
    assert metrics.nll(Predictions.multilabel(scores, targets, probs=True)) == pytest.approx(
        float(metrics.nll(Predictions.multilabel(LOGITS.reshape(10, 4), targets)))
    )


def batches(scores):
    torch = pytest.importorskip("torch")
    return list(zip(torch.tensor(scores[:, None]).split(2), torch.tensor(LABELS).split(2)))


@pytest.mark.parametrize("to", [None, "collected.parquet"])
def test_collect_judges_all_batches_together(to, torch, tmp_path):
    path = None if to is None else tmp_path / to
    assert code_of(calibrant.collect, torch.nn.Identity(), batches(PROBS), binary=True, to=path) == "probs_as_logits"
    assert code_of(calibrant.collect, torch.nn.Identity(), batches(PROBS), logits=True, to=path) == "logits"
    assert list(tmp_path.iterdir()) == []
    mixed = np.r_[PROBS[:39], 3.0]
    for scores, options in ((PROBS, {"logits": True}), (mixed, {})):
        collected = calibrant.collect(torch.nn.Identity(), batches(scores), binary=True, to=path, **options)
        p = collected if path is None else Predictions.load(collected)
        assert p.logits[:, 1].tolist() == pytest.approx(scores.tolist())


@pytest.mark.parametrize("to", [None, "collected.parquet"])
def test_collect_refuses_probabilities_of_classes_in_batches_of_one(to, torch, tmp_path):
    rows = torch.randn(6, 3).softmax(1)
    single, path = [(row[None], torch.tensor([1])) for row in rows], None if to is None else tmp_path / to
    assert code_of(calibrant.collect, torch.nn.Identity(), single, to=path) == "probs_as_logits"


def test_images_of_probabilities_are_clusters():
    mask, truth = PROBS.reshape(2, 1, 4, 5), LABELS.reshape(2, 4, 5)
    for labels in (truth, truth[:, None]):
        p = Predictions.from_probs(mask, labels)
        assert (p.of, p.clusters.tolist()) == (1, [0] * 20 + [1] * 20)
        assert metrics.nll(p) == pytest.approx(float(metrics.nll(Predictions.from_probs(PROBS, LABELS))))
    assert metrics.nll(Predictions.from_probs(PROBS[:, None], LABELS)) == pytest.approx(float(metrics.nll(p)))
    assert code_of(Predictions.from_probs, LOGITS.reshape(2, 1, 4, 5), truth) == "not_probabilities"


def draw_probs(k=4, n=60):
    return softmax(np.random.default_rng(k).normal(size=(n, k)), 1)


@pytest.mark.parametrize(
    ("convert", "code"),
    [
        (lambda p: p, "probs_as_logits"),
        (lambda p: p.astype(np.float16), "probs_as_logits"),
        (lambda p: 100 * p, "percentages_as_logits"),
        (lambda p: (100 * p).round() / 100, "rounded_probs_as_logits"),
    ],
)
def test_probabilities_of_classes_are_refused_as_logits_by_kind(convert, code):
    assert code_of(Predictions, convert(draw_probs()), np.zeros(60, int)) == code


@pytest.mark.parametrize(
    ("convert", "code"),
    [
        (lambda p: 100 * p, "percent"),
        (lambda p: (10000 * p).round() / 100, "percent"),
        (lambda p: (100 * p).round() / 100, "rounded_sums"),
        (lambda p: p[:, :-1], "class_missing"),
        (lambda p: 1 - p, "not_probabilities"),
        (np.log, "not_probabilities"),
    ],
)
def test_code_of_invalid_probabilities_is_their_likely_cause(convert, code):
    assert code_of(Predictions.from_probs, convert(draw_probs()), np.zeros(60, int)) == code


def test_normalize_divides_rounded_rows_by_their_sum():
    p = (100 * draw_probs()).round() / 100
    labels = np.zeros(60, int)
    normalized = np.exp(Predictions.from_probs(p, labels, normalize=True).logits)
    np.testing.assert_allclose(normalized, p / p.sum(1, keepdims=True))
    assert code_of(Predictions.from_probs, p[:, :-1], labels, normalize=True) == "class_missing"
    assert code_of(Predictions.from_probs, 100 * p, labels, normalize=True) == "percent"


@pytest.mark.parametrize(("scale", "code"), [(100, "percent"), (1000, "not_probabilities"), (-1, "not_probabilities")])
def test_single_probabilities_outside_the_unit_interval_are_refused(scale, code):
    assert code_of(Predictions.from_probs, scale * PROBS, LABELS) == code


def write_logits(path, scores):
    import polars

    polars.DataFrame({"label": LABELS, "logit": scores}).write_parquet(path)
    return path


def test_files_of_single_probabilities_are_refused_as_logits(tmp_path):
    path = write_logits(tmp_path / "p.parquet", PROBS)
    assert code_of(Predictions.load, path) == "probs_as_logits"
    assert Predictions.load(path, are_logits=True).logits[:, 1].tolist() == PROBS.tolist()
    assert code_of(read_file, path, needs_labels=False) == "probs_as_logits"
    assert len(read_file(path, needs_labels=False, are_logits=True).predictions) == 40
    np.savez(tmp_path / "p.npz", logits=PROBS, labels=LABELS)
    assert code_of(Predictions.load, tmp_path / "p.npz") == "probs_as_logits"


def test_chunks_of_a_file_are_judged_together(tmp_path):
    path = write_logits(tmp_path / "p.parquet", PROBS)
    assert code_of(lambda: list(Predictions.load_chunks(path, rows=2))) == "probs_as_logits"
    assert sum(len(p) for p in Predictions.load_chunks(path, rows=2, are_logits=True)) == 40
    path = write_logits(tmp_path / "q.parquet", np.r_[PROBS[:39], -2.0])
    assert sum(len(p) for p in Predictions.load_chunks(path, rows=4)) == 40


def test_command_accepts_logits_in_the_unit_interval_by_flag(tmp_path):
    path = write_logits(tmp_path / "p.parquet", PROBS)
    command = ["measure", path, "--json", tmp_path / "m.json"]
    assert run(*command).code == "probs_as_logits"
    assert not (tmp_path / "m.json").exists()
    assert run(*command, "--are-logits").returncode == 0
    assert (tmp_path / "m.json").exists()


def test_chunks_of_several_probabilities_are_no_logits(tmp_path):
    """Their logits may all lie in [0, 1], as those of probabilities from 0.5 to 0.73 do."""
    path = tmp_path / "a.parquet"
    polars.DataFrame({"probs": [[0.6, 0.7]] * 4, "label": [[1, 0]] * 4}).write_parquet(path)
    (chunk,) = Predictions.load_chunks(path)
    assert np.array_equal(chunk.logits, Predictions.load(path).logits)
