"""The door: what comes in, what is turned away, and with which words."""

import numpy as np
import polars
import pytest
import torch
from safetensors.torch import save_file

from calibrant import InputError, Predictions, collect
from calibrant.predictions import load_logits

GOOD = [[0.0, 1.0, 2.0], [2.0, 1.0, -1.0]]


@pytest.mark.parametrize(
    ("logits", "labels", "message"),
    [
        (GOOD, [0, 3], "labels must lie in [0, 3), got 0 .. 3"),
        (GOOD, [1, 3], "are they 1-based? then subtract 1"),
        (GOOD, [0, -1], "negative ones need ignore_index"),
        (GOOD, [0, 7], "are there classes without a column?"),
        (GOOD, [0], "need logits (n, k) and labels (n,), got (2, 3) and (1,)"),
        (GOOD, [[1, 0, 0], [0, 1, 0]], "use labels.argmax(-1)"),
        (GOOD, [0.5, 1.0], "labels must be whole numbers"),
        ([0.1, 0.2], [0, 1], "the pair [0, s]"),
        ([[0.1], [0.2]], [0, 0], "need at least 2 classes, got 1"),
        (np.zeros((0, 3)), np.zeros(0, dtype=int), "no examples"),
        ([[0.0, float("nan")], [1.0, 2.0]], [0, 1], "1 of 2 rows of logits contain NaN"),
        ([[0.0, float("inf")], [1.0, 2.0]], [0, 1], "1 of 2 rows of logits contain +inf"),
        ([[-float("inf")] * 2, [1.0, 2.0]], [0, 1], "-inf everywhere"),
        ([[0, 1], [1, 0]], [0, 1], "logits must be floating point"),
        ([[0.25, 0.75], [0.5, 0.5]], [0, 1], "look like probabilities"),
        ("nonsense", [0, 1], "logits must be an array of numbers"),
    ],
)
def test_turns_away_in_one_line(logits, labels, message):
    with pytest.raises(InputError) as caught:
        Predictions(logits, labels)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("probs", "message"),
    [
        ([[0.5, 0.6], [0.5, 0.5]], "sums 1 .. 1.1"),
        ([[-0.1, 1.1], [0.5, 0.5]], "minimum -0.1"),
        ([[3.0, -1.0], [2.0, 0.0]], "if these are logits, say logits"),
        ([[float("nan"), 1.0], [0.5, 0.5]], "1 of 2 rows of probs contain NaN"),
    ],
)
def test_turns_away_what_are_no_probabilities(probs, message):
    with pytest.raises(InputError) as caught:
        Predictions.from_probs(probs, [0, 1])
    assert message in str(caught.value)


@pytest.mark.parametrize("convert", [torch.tensor, np.array, list])
def test_takes_anything_array_like(convert):
    p = Predictions(convert(GOOD), convert([2, 0]))
    assert p.logits.tolist() == GOOD
    assert p.labels.tolist() == [2, 0]
    assert p.labels.dtype == torch.int64


def test_keeps_impossible_classes_and_certain_ones():
    p = Predictions.from_probs([[1.0, 0.0], [0.5, 0.5]], [0, 1])
    assert p.logits.softmax(-1).tolist() == [[1.0, 0.0], [0.5, 0.5]]


def test_half_precision_probabilities_pass_with_their_rounding():
    probs = torch.rand(50, 100, generator=torch.Generator().manual_seed(0)).softmax(-1).half()
    assert len(Predictions.from_probs(probs, torch.zeros(50, dtype=torch.int64))) == 50


def test_binary_probabilities_become_two_classes():
    p = Predictions.from_probs([0.25, 0.75], [0, 1])
    torch.testing.assert_close(p.logits.exp(), torch.tensor([[0.75, 0.25], [0.25, 0.75]]).double())


def test_positions_become_rows_and_ignored_ones_leave():
    logits = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    labels = torch.randint(3, (2, 4, 5), generator=torch.Generator().manual_seed(1))
    labels[0, 0, 0] = 255
    p = Predictions(logits, labels, torch.ones(2, 4, 5), ignore_index=255)
    assert len(p) == 39 == len(p.weights)
    torch.testing.assert_close(p.logits[0], logits[0, :, 0, 1])
    assert p.labels[-1] == labels[-1, -1, -1]


def test_weights_must_fit():
    with pytest.raises(InputError, match="one weight per label"):
        Predictions(GOOD, [0, 1], [1.0])
    with pytest.raises(InputError, match="non-negative"):
        Predictions(GOOD, [0, 1], [1.0, -1.0])


def test_collect_runs_a_network_and_gives_it_back_as_it_was():
    network = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Dropout(0.9)).train()
    inputs, labels = torch.randn(10, 4), torch.arange(10) % 3
    p = collect(network, zip(inputs.split(3), labels.split(3), strict=True))
    torch.testing.assert_close(p.logits, network[0](inputs).detach())
    assert network.training
    assert p.labels.tolist() == labels.tolist()
    with pytest.raises(InputError, match="no batches"):
        collect(network, [])


def test_digest_knows_content_not_container():
    p = Predictions(GOOD, [2, 0])
    assert p.digest == Predictions(torch.tensor(GOOD).float(), np.array([2, 0])).digest
    assert p.digest != Predictions(GOOD, [2, 1]).digest


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".csv", ".parquet"])
@pytest.mark.parametrize("weights", [None, [1.0, 2.0]])
def test_save_and_load(tmp_path, suffix, weights):
    p = Predictions(GOOD, [2, 0], weights)
    p.save(tmp_path / f"p{suffix}")
    q = Predictions.load(tmp_path / f"p{suffix}")
    assert q.logits.tolist() == GOOD
    assert q.labels.tolist() == [2, 0]
    assert (q.weights is None) if weights is None else q.weights.tolist() == weights


def test_reads_what_others_write(tmp_path):
    probs = np.array([[0.25, 0.75], [0.5, 0.5]])
    np.save(tmp_path / "val_probs.npy", probs)
    np.save(tmp_path / "val_labels.npy", np.array([0, 1]))
    torch.save({"probs": torch.tensor(probs), "labels": torch.tensor([0, 1])}, tmp_path / "p.pt")
    polars.DataFrame({"label": [0, 1], "prob_1": probs[:, 1], "prob_0": probs[:, 0]}).write_csv(tmp_path / "p.csv")
    polars.DataFrame({"labels": [0, 1], "probs": probs.tolist()}).write_parquet(tmp_path / "p.parquet")
    for name in "val_probs.npy", "p.pt", "p.csv", "p.parquet":
        p = Predictions.load(tmp_path / name)
        np.testing.assert_allclose(p.logits.exp(), probs)
        assert p.labels.tolist() == [0, 1]


def test_labels_may_be_unknown_when_only_logits_are_wanted(tmp_path):
    np.savez(tmp_path / "new.npz", logits=np.array(GOOD))
    logits, labels = load_logits(tmp_path / "new.npz")
    assert logits.tolist() == GOOD
    assert labels is None


def _bad_files(folder):
    (folder / "empty.npz").touch()
    (folder / "torn.npz").write_bytes(b"PK\x03\x04 not all of it")
    (folder / "torn.safetensors").write_bytes(b"\xff" * 20)
    (folder / "text.txt").write_text("0 1 2")
    np.savez(folder / "keys.npz", scores=np.zeros((2, 3)))
    np.savez(folder / "probs_as_logits.npz", logits=np.full((4, 2), 0.5), labels=np.zeros(4, dtype=int))
    np.savez(folder / "logits_as_probs.npz", probs=np.array(GOOD), labels=np.array([0, 1]))
    np.savez(folder / "pickled.npz", logits=np.array([object()]), labels=np.array([0]))
    np.save(folder / "alone_logits.npy", np.zeros((2, 3)))
    save_file({"logits": torch.zeros(2, 3)}, folder / "no_labels.safetensors")
    torch.save({"logits": torch.zeros(2, 3), "labels": print}, folder / "code.pt")
    polars.DataFrame({"label": [0], "logit_0": [0.1], "logit_2": [0.1]}).write_csv(folder / "gap.csv")
    polars.DataFrame({"label": [0], "logit_0": ["a"], "logit_1": ["b"]}).write_csv(folder / "words.csv")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing.npz", "no such file"),
        ("empty.npz", "the file is empty"),
        ("torn.npz", "not a readable .npz file"),
        ("torn.safetensors", "not a readable .safetensors file"),
        ("text.txt", "expected one of .npz"),
        ("keys.npz", "expected 'labels' and either 'logits' or 'probs', got 'scores'"),
        ("probs_as_logits.npz", "the key 'probs'"),
        ("logits_as_probs.npz", "if these are logits, say logits"),
        ("pickled.npz", "not a readable .npz file"),
        ("alone_logits.npy", "expected 'labels'"),
        ("no_labels.safetensors", "expected 'labels'"),
        ("code.pt", "not a readable .pt file"),
        ("gap.csv", "expected columns logit_0 .. logit_1"),
        ("words.csv", "logits must be"),
    ],
)
def test_bad_files_are_told_of_in_one_line(tmp_path, name, message):
    _bad_files(tmp_path)
    with pytest.raises(InputError) as caught:
        Predictions.load(tmp_path / name)
    assert message in str(caught.value)
    assert str(tmp_path / name) in str(caught.value)
    assert "\n" not in str(caught.value)
