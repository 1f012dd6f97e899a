"""Validation of inputs to `Predictions`, its rows, events, maps, folds and files."""

import math
import os
from contextlib import suppress

import numpy as np
import polars
import pytest
from calibrant.registry import METRICS
from refusals import code_of, refused
from safetensors.numpy import save_file
from scipy.special import softmax as to_probs

import calibrant
from calibrant import InputError, Predictions, measure, metrics
from calibrant._core.kernels import softmax
from calibrant.calibrators import Temperature, fit
from calibrant.decisions import decision_loss, net_benefit
from calibrant.io.predictions import read_file
from calibrant.predictions import to_predictions
from calibrant.predictions.folds import assign_folds

LOGITS = [[0.0, 1.0, 2.0], [2.0, 1.0, -1.0]]


@pytest.mark.parametrize(
    ("logits", "labels", "code", "part"),
    [
        (LOGITS, [0, 3], "label_range", "0 .. 3"),
        (LOGITS, [1, 3], "labels_from", "1 .. 3"),
        (LOGITS, [0, -1], "negative_labels", "ignore_index"),
        (LOGITS, [0, 7], "label_range", "0 .. 7"),
        (LOGITS, [0], "shape", "(2, 3) and (1,)"),
        (LOGITS, [[1, 0, 0], [0, 1, 0]], "one_hot_labels", "argmax"),
        (LOGITS, [0.5, 1.0], "label_fractions", "float"),
        ([0.1, 0.2], [0, 1], "single_logit", "from_binary_logits"),
        ([[0.1], [0.2]], [0, 0], "one_class", "from_binary_logits"),
        (np.zeros((0, 3)), np.zeros(0, dtype=int), "no_rows", ""),
        ([[0.0, float("nan")], [1.0, 2.0]], [0, 1], "nan", "1 of 2"),
        ([[0.0, float("inf")], [1.0, 2.0]], [0, 1], "infinite", "1 of 2"),
        ([[-float("inf")] * 2, [1.0, 2.0]], [0, 1], "impossible_row", "-inf"),
        ([[0, 1], [1, 0]], [0, 1], "not_floating", "int64"),
        ([[0.25, 0.75], [0.5, 0.5]], [0, 1], "probs_as_logits", "from_probs"),
        ("nonsense", [0, 1], "not_numbers", "logits"),
    ],
)
def test_invalid_logits_and_labels_are_refused(logits, labels, code, part):
    with refused(code, part):
        Predictions(logits, labels)


@pytest.mark.parametrize(
    ("probs", "code", "part"),
    [
        ([[0.5, 0.6], [0.5, 0.5]], "not_probabilities", "1 .. 1.1"),
        ([[-0.1, 1.1], [0.5, 0.5]], "not_probabilities", "-0.1"),
        ([[3.0, -1.0], [2.0, 0.0]], "not_probabilities", "logits"),
        ([[float("nan"), 1.0], [0.5, 0.5]], "nan", "1 of 2"),
    ],
)
def test_invalid_probabilities_are_refused(probs, code, part):
    with refused(code, part):
        Predictions.from_probs(probs, [0, 1])


@pytest.mark.parametrize("library", ["torch", "numpy", "list"])
def test_arrays_of_any_library_are_read(library):
    convert = list if library == "list" else pytest.importorskip(library).asarray
    p = Predictions(convert(LOGITS), convert([2, 0]))
    assert p.logits.tolist() == LOGITS
    assert p.labels.tolist() == [2, 0]
    assert p.labels.dtype == np.int64


def test_scalar_is_read_as_one_row():
    assert Predictions([[0.0, 1.0]], 1).labels.tolist() == [1]
    assert Predictions([[0.0, 1.0]], [1], 2.0).weights.tolist() == [2.0]
    assert len(Predictions.from_confidence(0.9, 1)) == len(Predictions.from_binary_logits(np.array(2.0), 1)) == 1


def test_probabilities_0_and_1_are_exact():
    p = Predictions.from_probs([[1.0, 0.0], [0.5, 0.5]], [0, 1])
    assert to_probs(p.logits, 1).tolist() == [[1.0, 0.0], [0.5, 0.5]]


def test_half_precision_probabilities_may_be_rounded():
    probs = to_probs(np.random.default_rng(0).random((50, 100)), 1).astype(np.float16)
    assert len(Predictions.from_probs(probs, np.zeros(50, int))) == 50


def test_binary_probabilities_become_two_classes():
    p = Predictions.from_probs([0.25, 0.75], [0, 1])
    np.testing.assert_allclose(np.exp(p.logits), [[0.75, 0.25], [0.25, 0.75]])


def test_positions_become_rows_without_ignored_labels():
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(2, 3, 4, 5)), rng.integers(0, 3, (2, 4, 5))
    labels[0, 0, 0] = 255
    p = Predictions(logits, labels, np.ones((2, 4, 5)), ignore_index=255)
    assert len(p) == 39 == len(p.weights)
    assert np.array_equal(p.logits[0], logits[0, :, 0, 1])
    assert p.labels[-1] == labels[-1, -1, -1]


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
@pytest.mark.parametrize("of", ["top", "classes", 2])
def test_array_files_keep_the_event(tmp_path, suffix, of):
    path = tmp_path / f"p{suffix}"
    Predictions(LOGITS, [0, 1]).with_event(of).save(path)
    assert Predictions.load(path).of == of
    assert Predictions.load(path, of=0).of == 0


def test_tables_keep_the_event_of_confidences_and_refuse_those_they_lose(tmp_path):
    p = Predictions.from_confidence([0.9, 0.2, 0.6], [1, 0, 1])
    p.save(tmp_path / "p.csv")
    p.with_event("top").save(tmp_path / "p.npz")
    assert (Predictions.load(tmp_path / "p.csv").of, Predictions.load(tmp_path / "p.npz").of) == (1, "top")
    assert metrics.ece(Predictions.load(tmp_path / "p.csv")) == metrics.ece(p)
    for of in ("classes", 2):
        assert code_of(Predictions(LOGITS, [0, 1]).with_event(of).save, tmp_path / "q.csv") == "event_in_table"


def test_damaged_events_of_files_are_refused(tmp_path):
    for event in (["4"], [], ["top", "0"], ["cat"]):
        np.savez(tmp_path / "p.npz", logits=LOGITS, labels=[0, 1], evaluated_event=np.array(event, dtype=str))
        assert code_of(Predictions.load, tmp_path / "p.npz") == "unknown_event"


def test_weights_of_another_shape_or_sign_are_refused():
    with refused("shape", "weights"):
        Predictions(LOGITS, [0, 1], [1.0])
    assert code_of(Predictions, LOGITS, [0, 1], [1.0, -1.0]) == "weight_range"


def test_collect_restores_training_mode(torch):
    network = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Dropout(0.9)).train()
    inputs, labels = torch.randn(10, 4), torch.arange(10) % 3
    p = calibrant.collect(network, zip(inputs.split(3), labels.split(3), strict=True))
    np.testing.assert_allclose(p.logits, network[0](inputs).detach().numpy(), rtol=1.3e-6, atol=1e-5)
    assert network.training
    assert p.labels.tolist() == labels.tolist()
    assert code_of(calibrant.collect, network, []) == "no_batches"


def test_digest_depends_on_values_only():
    p = Predictions(LOGITS, [2, 0])
    assert p.digest == Predictions(np.float32(LOGITS), np.array([2, 0])).digest
    assert p.digest != Predictions(LOGITS, [2, 1]).digest


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".csv", ".parquet"])
@pytest.mark.parametrize("weights", [None, [1.0, 2.0]])
def test_saved_predictions_are_loaded(tmp_path, suffix, weights):
    p = Predictions(LOGITS, [2, 0], weights)
    p.save(tmp_path / f"p{suffix}")
    q = Predictions.load(tmp_path / f"p{suffix}")
    assert q.logits.tolist() == LOGITS
    assert q.labels.tolist() == [2, 0]
    assert (q.weights is None) if weights is None else q.weights.tolist() == weights


@pytest.mark.parametrize("name", ["val_probs.npy", "p.pt", "p.csv", "p.parquet"])
def test_files_of_other_tools_are_read(tmp_path, name):
    probs = np.array([[0.25, 0.75], [0.5, 0.5]])
    np.save(tmp_path / "val_probs.npy", probs)
    np.save(tmp_path / "val_labels.npy", np.array([0, 1]))
    if name == "p.pt":
        torch = pytest.importorskip("torch")
        torch.save({"probs": torch.tensor(probs), "labels": torch.tensor([0, 1])}, tmp_path / name)
    polars.DataFrame({"label": [0, 1], "prob_1": probs[:, 1], "prob_0": probs[:, 0]}).write_csv(tmp_path / "p.csv")
    polars.DataFrame({"labels": [0, 1], "probs": probs.tolist()}).write_parquet(tmp_path / "p.parquet")
    p = Predictions.load(tmp_path / name)
    np.testing.assert_allclose(np.exp(p.logits), probs)
    assert p.labels.tolist() == [0, 1]


def test_unlabeled_file_is_read(tmp_path):
    np.savez(tmp_path / "new.npz", logits=np.array(LOGITS))
    loaded = read_file(tmp_path / "new.npz", needs_labels=False)
    assert loaded.predictions.logits.tolist() == LOGITS
    assert not loaded.has_labels


def write_invalid_files(folder):
    (folder / "empty.npz").touch()
    (folder / "torn.npz").write_bytes(b"PK\x03\x04 not all of it")
    (folder / "torn.safetensors").write_bytes(b"\xff" * 20)
    (folder / "text.doc").write_text("0 1 2")
    np.savez(folder / "keys.npz", scores=np.zeros((2, 3)))
    np.savez(folder / "probs_as_logits.npz", logits=np.full((4, 2), 0.5), labels=np.zeros(4, dtype=int))
    np.savez(folder / "logits_as_probs.npz", probs=np.array(LOGITS), labels=np.array([0, 1]))
    np.savez(folder / "pickled.npz", logits=np.array([object()]), labels=np.array([0]))
    np.save(folder / "alone_logits.npy", np.zeros((2, 3)))
    save_file({"logits": np.zeros((2, 3))}, folder / "no_labels.safetensors")
    polars.DataFrame({"label": [0], "logit_0": [0.1], "logit_2": [0.1]}).write_csv(folder / "gap.csv")
    polars.DataFrame({"label": [0], "logit_0": ["a"], "logit_1": ["b"]}).write_csv(folder / "words.csv")


@pytest.mark.parametrize(
    ("name", "code", "part"),
    [
        ("missing.npz", "no_file", ""),
        ("empty.npz", "empty_file", ""),
        ("torn.npz", "unreadable", ".npz"),
        ("torn.safetensors", "unreadable", ".safetensors"),
        ("text.doc", "suffix", ".npz"),
        ("keys.npz", "no_scores", "'scores'"),
        ("probs_as_logits.npz", "probs_as_logits", "'probs'"),
        ("logits_as_probs.npz", "not_probabilities", "logits"),
        ("pickled.npz", "unreadable", ".npz"),
        ("alone_logits.npy", "no_scores", "'labels'"),
        ("no_labels.safetensors", "no_scores", "'labels'"),
        ("code.pt", "unreadable", ".pt"),
        ("gap.csv", "class_missing", "logit_1"),
        ("words.csv", "not_numbers", "'logit_0'"),
    ],
)
def test_invalid_files_are_refused_by_name(tmp_path, name, code, part):
    write_invalid_files(tmp_path)
    if name == "code.pt":
        torch = pytest.importorskip("torch")
        torch.save({"logits": torch.zeros(2, 3), "labels": print}, tmp_path / name)
    with refused(code, part, str(tmp_path / name)):
        Predictions.load(tmp_path / name)


def test_single_row_and_one_hot_rows_with_sum_1_are_logits():
    assert len(Predictions([[0.5, 0.5], [3.0, 0.0]], [0, 0])[:1]) == 1
    assert Temperature.fit(np.eye(3), np.arange(3)).certificate.status == "separable"
    assert len(Predictions([[0.5, 0.5]], [0])) == 1


@pytest.mark.parametrize("n", [2, 5, 600])
def test_probabilities_as_logits_are_refused_by_every_function(n):
    probs, labels = to_probs(np.random.default_rng(0).normal(size=(n, 4)), 1), np.zeros(n, int)
    for use in (
        lambda: Predictions(probs, labels),
        lambda: metrics.ece(probs, labels),
        lambda: metrics.nll(probs, labels),
        lambda: Temperature.fit(probs, labels),
        lambda: metrics.tables.bins(probs, labels),
        lambda: metrics.curves.corp(probs, labels),
    ):
        with refused("probs_as_logits", "from_probs"):
            use()


def test_unpacking_predictions_is_refused_because_it_drops_weights():
    p = Predictions([[0.0, 3.0], [0.0, 1.0]], [1, 0], weights=[3, 1])
    with pytest.raises(TypeError, match="unpack"):
        metrics.nll(*p)
    with pytest.raises(TypeError, match="unpack"):
        _, _ = p
    copies = Predictions([[0.0, 3.0]] * 3 + [[0.0, 1.0]], [1, 1, 1, 0])
    assert float(metrics.nll(p)) == pytest.approx(float(metrics.nll(copies)))
    assert code_of(metrics.nll, p, p.labels) == "labels_twice"
    assert code_of(metrics.nll, p.logits) == "no_labels"


@pytest.mark.parametrize("weights", [[0.25, 0.75], [1e-9, 1e-9], [0.5, 0.1]])
def test_normalized_weights_are_refused(weights):
    assert code_of(Predictions, [[0.0, 3.0], [0.0, 1.0]], [1, 0], weights=weights) == "weights_sum"


def test_with_event_selects_the_event():
    p = Predictions([[0.0, 2.0], [1.0, 0.0], [0.0, 1.0]], [1, 1, 0])
    assert p.events.outcome.tolist() == [1, 0, 0]
    binary = p.with_event(1)
    np.testing.assert_allclose(binary.events.confidence, to_probs(p.logits, 1)[:, 1], rtol=1e-7)
    assert binary.events.outcome.tolist() == [1, 1, 0]
    assert binary.with_event("top").events.outcome.tolist() == [1, 0, 0]
    class_eces = [float(metrics.ece(p.with_event(j))) for j in range(2)]
    assert float(metrics.ece(p.with_event("classes"))) == pytest.approx(sum(class_eces) / 2)
    assert float(metrics.classwise_ece(p)) == pytest.approx(sum(class_eces) / 2)
    assert code_of(lambda: p.with_event("classes").events) == "event_per_class"
    for of in (2, -1, "topp", True):
        assert code_of(Predictions, [[0.0, 1.0]], [1], of=of) == "unknown_event"


def test_outcomes_are_computed_once_and_selected_with_rows(monkeypatch):
    passes = []
    for name in ("outcomes", "top_label", "log_likelihood", "class_probability"):
        kernel = getattr(softmax, name)
        counted = lambda z, *args, kernel=kernel, **options: passes.append(len(z)) or kernel(z, *args, **options)  # noqa: E731
        monkeypatch.setattr(softmax, name, counted)
    rng = np.random.default_rng(0)
    p = Predictions(rng.normal(size=(500, 3)), rng.integers(0, 3, 500))
    outcomes = p.outcomes
    part = p[100:200]
    for metric in (metrics.ece, metrics.nll, metrics.brier, metrics.accuracy, metrics.kuiper):
        metric(p), metric(part)
    assert passes == [500]
    assert np.array_equal(part.outcomes.confidence, outcomes.confidence[100:200])
    fresh = Predictions(p.logits[100:200], p.labels[100:200])
    assert np.array_equal(fresh.outcomes.brier, part.outcomes.brier)


def test_maps_must_return_logits_of_the_same_shape_without_nan():
    p = Predictions([[0.0, 2.0], [1.0, 0.0]], [1, 0], weights=[2, 1], clusters=["a", "b"])
    halved = p.apply(lambda z: z / 2)
    assert halved.logits.tolist() == [[0.0, 1.0], [0.5, 0.0]]
    assert halved.weights.tolist() == [2, 1]
    assert halved.clusters.tolist() == [0, 1]
    with refused("map_shape", "(2, 2)", "(2,)"):
        p.apply(lambda z: z[:, 0])
    assert code_of(p.apply, lambda z: z * np.nan) == "nan"


def test_folds_never_split_a_cluster():
    rng = np.random.default_rng(0)
    p = Predictions(rng.normal(size=(400, 3)), rng.integers(0, 3, 400), clusters=rng.integers(0, 40, 400))
    fold = assign_folds(p, 5)
    assert all(len(np.unique(fold[p.clusters == i])) == 1 for i in range(40))
    assert [len(np.unique(p.clusters[fold == i])) for i in range(5)] == [8] * 5
    with refused("folds_range", "clusters"):
        assign_folds(p, 41)


def permuted(p: Predictions, rows: np.ndarray, classes: np.ndarray) -> Predictions:
    """Return the predictions with rows and class columns in another order."""
    weights, clusters = (None if column is None else column[rows] for column in (p.weights, p.clusters))
    return Predictions(p.logits[rows][:, classes], classes.argsort()[p.labels[rows]], weights, clusters=clusters)


@pytest.mark.parametrize("k", [2, 3, 40])
@pytest.mark.parametrize("kind", ["plain", "rounded", "repeated", "impossible", "weighted", "clustered"])
def test_folds_do_not_depend_on_labels_or_on_the_order_of_classes_and_unequal_rows(k, kind):
    rng = np.random.default_rng(k)
    logits, labels = rng.normal(size=(300, k)), rng.integers(0, k, 300)
    weights = clusters = None
    if kind == "rounded":
        logits = np.log((20 * to_probs(logits, 1)).round() + 1)
    if kind == "repeated":
        logits, labels = np.tile(logits[:60], (5, 1)), np.tile(labels[:60], 5)
    if kind == "impossible":
        logits = np.where(logits < logits.max(1, keepdims=True) - 2, -np.inf, logits)
    if kind == "weighted":
        weights = rng.integers(1, 4, 300)
    if kind == "clustered":
        clusters = rng.integers(0, 50, 300)
    p = Predictions(logits, labels, weights, clusters=clusters)
    fold = assign_folds(p, 5)
    other_labels = rng.permutation(labels)
    assert np.array_equal(fold, assign_folds(Predictions(logits, other_labels, weights, clusters=clusters), 5))
    rows, classes = rng.permutation(300), rng.permutation(k)
    assert np.array_equal(fold, assign_folds(permuted(p, np.arange(300), classes), 5))
    if kind in ("plain", "weighted", "clustered"):  # without equal rows
        assert np.array_equal(fold[rows], assign_folds(permuted(p, rows, classes), 5))


def test_labels_of_equal_rows_differ_between_folds_as_those_of_random_samples():
    p = Predictions.from_confidence(np.full(300, 0.9), np.arange(300) < 100)  # sorted by label
    statistics = []
    for seed in range(40):
        counts = np.bincount(assign_folds(p, 5, seed)[:100], minlength=5)
        statistics.append(((counts - 20) ** 2).sum() / (20 * 2 / 3 * 300 / 299))  # chi-squared, 4 degrees of freedom
    assert 3 < np.mean(statistics) < 5


@pytest.mark.parametrize("name", ["test[1].parquet", "q*.parquet", "test[1].csv", "t?.csv"])
def test_file_names_with_wildcards_are_read_literally(tmp_path, name):
    matching_name = name.replace("[1]", "1").replace("*", "x").replace("?", "x")
    Predictions(LOGITS, [0, 1]).save(tmp_path / matching_name)
    Predictions([[5.0, 6.0, 7.0]], [2]).save(tmp_path / name)
    assert Predictions.load(tmp_path / name).logits.tolist() == [[5.0, 6.0, 7.0]]
    if name.endswith("parquet"):
        assert [len(part) for part in Predictions.load_chunks(tmp_path / name)] == [1]


# Copies and invalid arrays


@pytest.mark.parametrize("name", ["logits", "labels", "weights"])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_later_changes_of_the_inputs_have_no_effect(name, library):
    convert = pytest.importorskip(library).asarray
    z, y, w = convert([[0.5, 2.0, 1.0]] * 6), convert([0, 1, 2] * 2), convert([1.0, 2.0] * 3)
    p = Predictions(z, y, w)
    before = getattr(p, name).tolist()
    for array in (z, y, w):
        array[:] = 7
    assert getattr(p, name).tolist() == before


def test_metrics_of_tensors_do_not_copy(torch):
    z, y = torch.randn(6, 3), torch.arange(6) % 3
    assert np.shares_memory(to_predictions(z, y).logits, z.numpy())


@pytest.mark.parametrize(
    ("array", "codes"),
    [
        ([[0.1, 0.2], [0.3]], ("not_numbers",)),
        ([[1.0, 2.0], ["a", None]], ("not_numbers",)),
        (np.array([[1 + 2j, 0], [0, 1]]), ("not_numbers",)),
        ([[2**70, 1], [1, 0]], ("not_numbers",)),
        ({"a": 1}, ("not_numbers",)),
        (None, ("not_numbers", "shape")),
    ],
    ids=str,
)
def test_arrays_without_plain_numbers_are_refused(array, codes):
    assert codes_of(array) == set(codes)


def codes_of(array):
    """Return the codes of the refusals of an array in every place."""
    calls = (
        lambda: Predictions(array, [0, 1]),
        lambda: Predictions.from_probs(array, [0, 1]),
        lambda: Predictions(LOGITS, array),
        lambda: Predictions(LOGITS, [0, 1], array if array is not None else []),
    )
    return {code_of(call) for call in calls}


def test_tensors_without_plain_numbers_are_refused(torch):
    zeros = torch.zeros(2, 3)
    assert codes_of(torch.tensor(0.5)) == {"label_fractions", "shape", "single_logit"}
    for tensor in zeros.to(torch.float8_e4m3fn), zeros.to_sparse(), zeros.to("meta"), zeros.to(torch.complex64):
        assert codes_of(tensor) == {"tensor_kind"}


def test_meta_tensors_are_refused_by_every_function(torch, tmp_path):
    z, y = torch.zeros(6, 3, device="meta"), torch.arange(6) % 3
    torch.save({"logits": z, "labels": y}, tmp_path / "p.pt")
    for call, code in (
        (lambda: metrics.ece(z, y), "tensor_kind"),
        (lambda: Temperature.fit(z, y), "tensor_kind"),
        (lambda: metrics.Summary.empty().add(z, y), "tensor_kind"),
        (lambda: measure(Predictions(z, y)), "tensor_kind"),
        (lambda: measure(Predictions.load(tmp_path / "p.pt")), "tensor_kind"),
    ):
        assert code_of(call) == code


@pytest.mark.parametrize("weights", [[1.0, math.inf], [1e308, 1e308], [1e308, 0.0], [1e16, 1.0]])
def test_weights_beyond_exact_counts_are_refused(weights):
    assert code_of(Predictions, [[0.0, 1.5], [1.0, 0.3]], [0, 1], weights) == "weight_range"


@pytest.mark.parametrize("clusters", [[[1], [2, 3]], [object(), 1], [None, "a"]])
def test_unsortable_clusters_are_refused(clusters):
    assert code_of(Predictions, [[0.0, 1.5], [1.0, 0.3]], [0, 1], clusters=clusters) == "not_names"


@pytest.mark.parametrize("name", sorted(METRICS))
def test_every_metric_refuses_nan(name):
    z = np.random.default_rng(0).normal(size=(20, 2))
    z[3, 1] = math.nan
    with refused("nan", "1 of 20"):
        METRICS[name](z, np.arange(20) % 2)


def test_column_with_late_fractions_is_read_as_float(tmp_path):
    rows = "".join(f"{i % 2},{i % 3},0\n" for i in range(300)) + "1,0.25,-0.5\n"
    (tmp_path / "late.csv").write_text("label,logit_0,logit_1\n" + rows)
    p = Predictions.load(tmp_path / "late.csv")
    assert p.logits[-1].tolist() == [0.25, -0.5]


def test_corrupt_parquet_file_is_refused(tmp_path):
    """Polars panics on some of these files, with an error that is not an `Exception`."""
    intact = tmp_path / "intact.parquet"
    g = np.random.default_rng(0)
    Predictions(g.normal(size=(50, 3)), np.arange(50) % 3).save(intact)
    content = intact.read_bytes()
    for i in range(30):
        corrupt = bytearray(content)
        for position in g.integers(0, len(content), 8):
            corrupt[position] ^= 1 << int(g.integers(8))
        path = tmp_path / f"{i}.parquet"
        path.write_bytes(corrupt)
        for read in (Predictions.load, lambda path: list(Predictions.load_chunks(path))):
            with suppress(InputError):
                read(path)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".csv", ".parquet"])
def test_saved_files_follow_the_umask(tmp_path, suffix):
    path = tmp_path / f"p{suffix}"
    old = os.umask(0o022)
    try:
        Predictions(LOGITS, [0, 1]).save(path)
    finally:
        os.umask(old)
    assert path.stat().st_mode & 0o777 == 0o644


def test_maps_are_applied_in_blocks_of_rows(monkeypatch):
    z = 2 * np.random.default_rng(0).normal(size=(50, 4))
    p = Predictions(z, np.arange(50) % 4, groups=["a", "b"] * 25)
    fitted = fit("GroupCalibrated(calibrator='Temperature')", p)
    expected, block_rows = p.apply(fitted).logits, list[int]()

    def halved(logits: np.ndarray) -> np.ndarray:
        block_rows.append(len(logits))
        return logits / 2

    monkeypatch.setattr("calibrant.predictions._apply.BLOCK_ELEMENTS", 40)
    assert np.array_equal(p.apply(halved).logits, z / 2)
    assert block_rows == [10] * 5
    np.testing.assert_allclose(p.apply(fitted).logits, expected)
    assert code_of(p.apply, lambda logits: logits[:1]) == "map_shape"


def test_probabilities_outside_the_range_by_rounding_are_clipped():
    stated = [-1e-9, 1 + 2e-7, 0.5]
    for p in (Predictions.from_confidence(stated, [0, 1, 1]), Predictions.from_probs(stated, [0, 1, 1])):
        np.testing.assert_allclose(p.events.confidence, [0.0, 1.0, 0.5], rtol=1e-7, atol=1e-7)
    rows = Predictions.from_probs([[1 + 2e-7, -2e-7], [0.5, 0.5]], [0, 1])
    np.testing.assert_allclose(np.exp(rows.logits[0]), [1.0, 0.0], atol=1e-7)
    with refused("probability_range"):
        Predictions.from_confidence([-0.001, 0.5], [0, 1])


# Frames


def draw_frame(kind, columns):
    """Return a table with columns of these values, in one of the kinds that have names."""
    if kind == "mapping":
        return dict(columns)
    return pytest.importorskip(kind).DataFrame(columns)


@pytest.mark.parametrize("kind", ["pandas", "polars", "mapping"])
@pytest.mark.parametrize("prefix", ["", "prob_", "p("])
def test_named_columns_are_matched_by_name(kind, prefix):
    """Labels were matched to the columns in alphabetical order: an accuracy of .25 instead of .75."""
    suffix = ")" if prefix == "p(" else ""
    labels = ["good", "good", "bad", "good"]
    p_good = np.array([0.9, 0.8, 0.2, 0.4])
    frame = draw_frame(kind, {f"{prefix}good{suffix}": p_good, f"{prefix}bad{suffix}": 1 - p_good})
    p = Predictions.from_probs(frame, labels)
    assert (p.class_names, float(metrics.accuracy(p)), p.of) == (("good", "bad"), 0.75, "top")
    z = draw_frame(kind, {"good": np.log(p_good), "bad": np.log(1 - p_good)})
    assert float(metrics.accuracy(Predictions(z, labels))) == float(metrics.accuracy(z, labels)) == 0.75
    reordered = Predictions.from_probs(frame, labels, class_names=["bad", "good"])
    assert reordered.class_names == ("bad", "good")
    assert np.array_equal(reordered.logits, p.logits[:, ::-1])
    renamed = Predictions.from_probs(frame, [0, 0, 1, 0], class_names=["up", "down"])
    assert (renamed.class_names, float(metrics.accuracy(renamed))) == (("up", "down"), 0.75)
    assert code_of(Predictions.from_probs, frame, labels, class_names=["good", "down"]) == "columns_differ"
    assert code_of(Predictions.from_probs, frame, ["good", "new", "bad", "bad"]) == "unknown_label"


def test_numbers_are_names_of_columns_only_if_all_names_are_numbers():
    p = np.array([0.9, 0.8, 0.3])
    assert float(metrics.accuracy(Predictions.from_probs({"1": p, "0": 1 - p}, [1, 1, 0]))) == 1.0
    assert float(metrics.accuracy(Predictions.from_probs({"7": p, "3": 1 - p}, [7, 7, 3]))) == 1.0
    assert float(metrics.accuracy(Predictions.from_probs({"True": p, "False": 1 - p}, [True, True, False]))) == 1.0
    positions = Predictions.from_probs({"good": p, "bad": 1 - p}, [0, 0, 1])
    assert float(metrics.accuracy(positions)) == 1.0
    assert len(positions.notes) == 1
    assert Predictions.from_probs(polars.DataFrame(np.c_[1 - p, p]), [1, 1, 0]).class_names is None


@pytest.mark.parametrize("kind", ["pandas", "polars", "mapping"])
def test_soft_and_several_labels_are_matched_by_name(kind):
    p, y = np.array([0.9, 0.8, 0.3]), np.array([1.0, 1.0, 0.0])
    scores, targets = draw_frame(kind, {"a": p, "b": 1 - p}), draw_frame(kind, {"b": 1 - y, "a": y})
    soft = Predictions.from_soft_labels(scores, targets, probs=True)
    assert (soft.class_names, float(metrics.accuracy(soft))) == (("a", "b"), 1.0)
    several = Predictions.multilabel(scores, targets, probs=True)
    assert (several.group_names, float(metrics.accuracy(several))) == (("a", "b"), 1.0)
    other_names = draw_frame(kind, {"c": 1 - y, "a": y})
    for build in (Predictions.from_soft_labels, Predictions.multilabel):
        assert code_of(build, scores, other_names, probs=True) == "columns_differ"


def test_event_of_two_classes_is_the_known_positive_word():
    p = np.array([0.9, 0.8, 0.3])
    events = {("yes", "no"): 0, ("no", "yes"): 1, ("a", "b"): 1, ("1", "0"): 0, ("Ja", "Nein"): 0, ("non", "oui"): 1}
    for names, event in events.items():
        q = Predictions.from_probs(dict(zip(names, (p, 1 - p), strict=True)), [names[0], names[0], names[1]])
        assert q.with_default_event().of == event
        assert net_benefit(q, thresholds=[0.5]).event == decision_loss(q).event
        assert f"“{names[event]}”" in net_benefit(q).event


@pytest.mark.parametrize("name", ["cat", "prob_cat"])
def test_named_single_scores_are_of_the_class_of_this_name(name):
    pandas = pytest.importorskip("pandas")
    p, words = np.array([0.9, 0.8, 0.3]), ["cat", "cat", "dog"]
    for scores in (pandas.Series(p, name=name), pandas.DataFrame({name: p}), polars.Series(name, p)):
        q = Predictions.from_probs(scores, words)
        assert (q.class_names, q.of, float(metrics.accuracy(q))) == (("dog", "cat"), 1, 1.0)
        q = Predictions.from_binary_logits(10 * (scores - 0.5), words)
        assert (q.class_names, q.of, float(metrics.accuracy(q))) == (("dog", "cat"), 1, 1.0)
    no = Predictions.from_probs(pandas.Series(p, name="no"), ["no", "no", "yes"])
    assert (no.class_names, float(metrics.accuracy(no))) == (("yes", "no"), 1.0)


@pytest.mark.parametrize("labels", [[0, None, 1], [0.0, np.nan, 1.0], np.array([0, np.nan, 1], dtype=object)])
def test_missing_labels_are_counted(labels):
    """The error was the list of types that torch knows."""
    with pytest.raises(InputError, match="1 of 3 missing"):
        Predictions(np.zeros((3, 2)), labels)


def test_columns_of_labels_and_arrays_of_objects_are_read():
    z = np.log([[0.2, 0.8], [0.7, 0.3], [0.6, 0.4]])
    expected = Predictions(z, [1, 0, 1], weights=[1, 2, 3])
    for labels in ([[1], [0], [1]], np.array([1, 0, 1], dtype=object)):
        p = Predictions(z.astype(object), labels, weights=[[1], [2], [3]])
        assert np.array_equal(p.labels, expected.labels)
        assert np.array_equal(p.weights, expected.weights)


def test_a_notebook_cell_shows_the_first_rows():
    p = Predictions([[0.0, 2.0]] * 7, [0, 1] * 3 + [0], groups=list("aabbccd"), class_names=["no <", "yes"])
    cell = p._repr_html_()
    assert "Predictions(n=7, k=2" in cell
    assert cell.count("<td>yes</td><td>0.8808</td>") == 5
    assert "<td>no &lt;</td>" in cell
    assert "<th>group</th>" in cell
    assert "and 2 more rows" in cell
