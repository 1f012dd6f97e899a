"""Validation of inputs to `Predictions`: arrays that are read, and codes of those that are refused."""

import math
import os
from contextlib import suppress

import numpy as np
import polars
import pytest
import torch
from commands import run
from refusals import code_of, refused
from safetensors.torch import save_file

from calibrant import InputError, Predictions, collect, measure, metrics
from calibrant.backend import softmax
from calibrant.calibrators import Temperature, fit
from calibrant.io import check_outputs
from calibrant.predictions import load_unlabeled, to_predictions
from calibrant.predictions.folds import assign_folds
from calibrant.registry import METRICS

GOOD = [[0.0, 1.0, 2.0], [2.0, 1.0, -1.0]]


@pytest.mark.parametrize(
    ("logits", "labels", "code", "got"),
    [
        (GOOD, [0, 3], "label_range", "0 .. 3"),
        (GOOD, [1, 3], "labels_from", "1 .. 3"),
        (GOOD, [0, -1], "negative_labels", "ignore_index"),
        (GOOD, [0, 7], "label_range", "0 .. 7"),
        (GOOD, [0], "shape", "(2, 3) and (1,)"),
        (GOOD, [[1, 0, 0], [0, 1, 0]], "one_hot_labels", "argmax"),
        (GOOD, [0.5, 1.0], "label_fractions", "float"),
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
def test_invalid_logits_and_labels_are_refused(logits, labels, code, got):
    with refused(code) as caught:
        Predictions(logits, labels)
    assert got in str(caught.value)


@pytest.mark.parametrize(
    ("probs", "code", "got"),
    [
        ([[0.5, 0.6], [0.5, 0.5]], "not_probabilities", "1 .. 1.1"),
        ([[-0.1, 1.1], [0.5, 0.5]], "not_probabilities", "-0.1"),
        ([[3.0, -1.0], [2.0, 0.0]], "not_probabilities", "logits"),
        ([[float("nan"), 1.0], [0.5, 0.5]], "nan", "1 of 2"),
    ],
)
def test_invalid_probabilities_are_refused(probs, code, got):
    with refused(code) as caught:
        Predictions.from_probs(probs, [0, 1])
    assert got in str(caught.value)


@pytest.mark.parametrize("convert", [torch.tensor, np.array, list])
def test_array_likes_of_any_kind_are_read(convert):
    p = Predictions(convert(GOOD), convert([2, 0]))
    assert p.logits.tolist() == GOOD
    assert p.labels.tolist() == [2, 0]
    assert p.labels.dtype == torch.int64


def test_single_numbers_count_as_one_row():
    assert Predictions([[0.0, 1.0]], 1).labels.tolist() == [1]
    assert Predictions([[0.0, 1.0]], [1], 2.0).weights.tolist() == [2.0]
    assert len(Predictions.from_confidence(0.9, 1)) == len(Predictions.from_binary_logits(np.array(2.0), 1)) == 1


def test_probabilities_of_0_and_1_are_kept():
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


def test_weights_of_another_shape_or_sign_are_refused():
    with refused("shape") as caught:
        Predictions(GOOD, [0, 1], [1.0])
    assert "weights" in str(caught.value)
    assert code_of(Predictions, GOOD, [0, 1], [1.0, -1.0]) == "weight_range"


def test_collect_runs_a_network_and_gives_it_back_as_it_was():
    network = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Dropout(0.9)).train()
    inputs, labels = torch.randn(10, 4), torch.arange(10) % 3
    p = collect(network, zip(inputs.split(3), labels.split(3), strict=True))
    torch.testing.assert_close(p.logits, network[0](inputs).detach())
    assert network.training
    assert p.labels.tolist() == labels.tolist()
    assert code_of(collect, network, []) == "no_batches"


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


def test_files_of_other_tools_are_read(tmp_path):
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
    p, labeled = load_unlabeled(tmp_path / "new.npz")
    assert p.logits.tolist() == GOOD
    assert not labeled


def _bad_files(folder):
    (folder / "empty.npz").touch()
    (folder / "torn.npz").write_bytes(b"PK\x03\x04 not all of it")
    (folder / "torn.safetensors").write_bytes(b"\xff" * 20)
    (folder / "text.doc").write_text("0 1 2")
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
    ("name", "code", "named"),
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
def test_invalid_files_are_refused_by_name(tmp_path, name, code, named):
    _bad_files(tmp_path)
    with refused(code) as caught:
        Predictions.load(tmp_path / name)
    assert named in str(caught.value)
    assert str(tmp_path / name) in str(caught.value)


def test_rows_that_happen_to_sum_to_one_are_no_probabilities():
    assert len(Predictions([[0.5, 0.5], [3.0, 0.0]], [0, 0])[:1]) == 1
    assert Temperature.fit(torch.eye(3), torch.tensor([0, 1, 2])).certificate.status == "separable"
    assert len(Predictions([[0.5, 0.5]], [0])) == 1


@pytest.mark.parametrize("n", [2, 5, 600])
def test_probabilities_are_no_logits(n):
    g = torch.Generator().manual_seed(0)
    probs, labels = torch.randn(n, 4, generator=g).softmax(-1), torch.zeros(n, dtype=torch.int64)
    for use in (
        lambda: Predictions(probs, labels),
        lambda: metrics.ece(probs, labels),
        lambda: metrics.nll(probs, labels),
        lambda: Temperature.fit(probs, labels),
        lambda: metrics.tables.bins(probs, labels),
        lambda: metrics.curves.corp(probs, labels),
    ):
        with refused("probs_as_logits") as caught:
            use()
        assert "from_probs" in str(caught.value)


def test_metrics_never_drop_weights():
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
def test_weights_that_are_no_counts_are_refused(weights):
    assert code_of(Predictions, [[0.0, 3.0], [0.0, 1.0]], [1, 0], weights=weights) == "weights_sum"


def test_judging_selects_the_event():
    p = Predictions([[0.0, 2.0], [1.0, 0.0], [0.0, 1.0]], [1, 1, 0])
    assert p.events.outcome.tolist() == [1, 0, 0]
    one = p.with_event(1)
    torch.testing.assert_close(one.events.confidence, p.logits.double().softmax(-1)[:, 1])
    assert one.events.outcome.tolist() == [1, 1, 0]
    assert one.with_event("top").events.outcome.tolist() == [1, 0, 0]
    both = [float(metrics.ece(p.with_event(j))) for j in range(2)]
    assert float(metrics.ece(p.with_event("classes"))) == pytest.approx(sum(both) / 2)
    assert float(metrics.classwise_ece(p)) == pytest.approx(sum(both) / 2)
    assert code_of(lambda: p.with_event("classes").events) == "event_per_class"
    for of in (2, -1, "topp", True):
        assert code_of(Predictions, [[0.0, 1.0]], [1], of=of) == "unknown_event"


def test_outcomes_are_made_once_and_go_with_their_rows(monkeypatch):
    passes = []
    for name in ("outcomes", "top_label", "log_likelihood", "class_probability"):
        kernel = getattr(softmax, name)
        counted = lambda z, *args, kernel=kernel, **more: passes.append(len(z)) or kernel(z, *args, **more)  # noqa: E731
        monkeypatch.setattr(softmax, name, counted)
    g = torch.Generator().manual_seed(0)
    p = Predictions(torch.randn(500, 3, generator=g), torch.randint(0, 3, (500,), generator=g))
    alone = p.outcomes
    part = p[100:200]
    for metric in (metrics.ece, metrics.nll, metrics.brier, metrics.accuracy, metrics.kuiper):
        metric(p), metric(part)
    assert passes == [500]
    assert torch.equal(part.outcomes.confidence, alone.confidence[100:200])
    fresh = Predictions(p.logits[100:200], p.labels[100:200])
    assert torch.equal(fresh.outcomes.brier, part.outcomes.brier)


def test_maps_must_return_as_many_logits_without_nan():
    p = Predictions([[0.0, 2.0], [1.0, 0.0]], [1, 0], weights=[2, 1], clusters=["a", "b"])
    halved = p.apply(lambda z: z / 2)
    assert halved.logits.tolist() == [[0.0, 1.0], [0.5, 0.0]]
    assert halved.weights.tolist() == [2, 1]
    assert halved.clusters.tolist() == [0, 1]
    with refused("map_shape") as caught:
        p.apply(lambda z: z[:, 0])
    assert "(2, 2)" in str(caught.value)
    assert "(2,)" in str(caught.value)
    assert code_of(p.apply, lambda z: z * torch.nan) == "nan"


def test_clusters_are_never_divided_between_folds():
    g = torch.Generator().manual_seed(0)
    clusters = torch.randint(0, 40, (400,), generator=g)
    p = Predictions(torch.randn(400, 3, generator=g), torch.randint(0, 3, (400,), generator=g), clusters=clusters)
    fold = assign_folds(p, 5)
    assert all(len(fold[clusters == i].unique()) == 1 for i in range(40))
    assert [len(clusters[fold == i].unique()) for i in range(5)] == [8] * 5
    with refused("folds_range") as caught:
        assign_folds(p, 41)
    assert "clusters" in str(caught.value)


def _permuted(p: Predictions, rows: torch.Tensor, classes: torch.Tensor) -> Predictions:
    """The same predictions with rows and class columns in another order."""
    parts = [None if part is None else part[rows] for part in (p.weights, p.clusters)]
    return Predictions(p.logits[rows][:, classes], classes.argsort()[p.labels[rows]], parts[0], clusters=parts[1])


@pytest.mark.parametrize("k", [2, 3, 40])
@pytest.mark.parametrize("kind", ["plain", "rounded", "repeated", "impossible", "weighted", "clustered"])
def test_folds_do_not_depend_on_the_order_of_rows_or_classes(k, kind):
    g = torch.Generator().manual_seed(k)
    logits, labels = torch.randn(300, k, dtype=torch.float64, generator=g), torch.randint(0, k, (300,), generator=g)
    weights = clusters = None
    if kind == "rounded":
        logits = logits.softmax(1).mul(20).round().add(1).log()
    if kind in ("repeated", "weighted", "clustered"):
        logits, labels = logits[:60].repeat(5, 1), labels[:60].repeat(5)
    if kind == "impossible":
        logits = logits.masked_fill(logits < logits.amax(1, keepdim=True) - 2, -torch.inf)
    if kind == "weighted":
        weights = torch.randint(1, 4, (300,), generator=g)
    if kind == "clustered":
        clusters = torch.randint(0, 50, (300,), generator=g)
    p = Predictions(logits, labels, weights, clusters=clusters)
    rows, classes = torch.randperm(300, generator=g), torch.randperm(k, generator=g)
    ours, theirs = assign_folds(p, 5)[rows], assign_folds(_permuted(p, rows, classes), 5)
    content = torch.cat([logits - logits.amax(1, keepdim=True), labels[:, None]], 1)[rows]
    if weights is not None:
        content = torch.cat([content, weights[rows, None]], 1)
    if clusters is not None:
        assert torch.equal(ours, theirs)
        return
    same = content.unique(dim=0, return_inverse=True)[1]  # equal rows may change places
    for fold in range(5):
        assert torch.equal(same[ours == fold].sort().values, same[theirs == fold].sort().values)


@pytest.mark.parametrize("name", ["test[1].parquet", "q*.parquet", "test[1].csv", "t?.csv"])
def test_file_names_with_wildcards_are_read_literally(tmp_path, name):
    other = name.replace("[1]", "1").replace("*", "x").replace("?", "x")
    Predictions(GOOD, [0, 1]).save(tmp_path / other)
    Predictions([[5.0, 6.0, 7.0]], [2]).save(tmp_path / name)
    assert Predictions.load(tmp_path / name).logits.tolist() == [[5.0, 6.0, 7.0]]
    if name.endswith("parquet"):
        assert [len(part) for part in Predictions.load_chunks(tmp_path / name)] == [1]


# What the door refuses, and what is its own


@pytest.mark.parametrize("name", ["logits", "labels", "weights"])
def test_later_changes_of_the_inputs_have_no_effect(name):
    z, y, w = torch.randn(6, 3).double(), torch.arange(6) % 3, torch.ones(6).double()
    p = Predictions(z, y, w)
    before = getattr(p, name).clone()
    for given in (z, y, w):
        given.fill_(7)
    assert torch.equal(getattr(p, name), before)


def test_a_metric_of_raw_arrays_copies_none_of_them():
    z, y = torch.randn(6, 3), torch.arange(6) % 3
    assert to_predictions(z, y).logits.data_ptr() == z.data_ptr()


@pytest.mark.parametrize(
    ("odd", "codes"),
    [
        (torch.tensor(0.5), ("label_fractions", "shape", "single_logit")),
        (torch.zeros(2, 3).to(torch.float8_e4m3fn), ("tensor_kind",)),
        (torch.zeros(2, 3).to_sparse(), ("tensor_kind",)),
        (torch.zeros(2, 3, device="meta"), ("tensor_kind",)),
        (torch.zeros(2, 3, dtype=torch.complex64), ("tensor_kind",)),
        ([[0.1, 0.2], [0.3]], ("not_numbers",)),
        ([[1.0, 2.0], ["a", None]], ("not_numbers",)),
        (np.array([[1 + 2j, 0], [0, 1]]), ("tensor_kind",)),
        ([[2**70, 1], [1, 0]], ("not_numbers",)),
        ({"a": 1}, ("not_numbers",)),
        (None, ("not_numbers", "shape")),
    ],
    ids=str,
)
def test_odd_arrays_are_refused(odd, codes):
    good = torch.randn(2, 3)
    ways = (
        lambda: Predictions(odd, [0, 1]),
        lambda: Predictions.from_probs(odd, [0, 1]),
        lambda: Predictions(good, odd),
        lambda: Predictions(good, [0, 1], odd if odd is not None else []),
    )
    assert {code_of(enter) for enter in ways} == set(codes)


def test_tensors_without_numbers_are_refused_at_every_entrance(tmp_path):
    z, y = torch.zeros(6, 3, device="meta"), torch.arange(6) % 3
    torch.save({"logits": z, "labels": y}, tmp_path / "p.pt")
    for enter, code in (
        (lambda: metrics.ece(z, y), "tensor_kind"),
        (lambda: Temperature.fit(z, y), "tensor_kind"),
        (lambda: metrics.Summary.empty().add(z, y), "tensor_kind"),
        (lambda: measure(Predictions(z, y)), "tensor_kind"),
        (lambda: measure(Predictions.load(tmp_path / "p.pt")), "odd_tensor"),
    ):
        assert code_of(enter) == code


@pytest.mark.parametrize("weights", [[1.0, math.inf], [1e308, 1e308], [1e308, 0.0], [1e16, 1.0]])
def test_weights_beyond_counting_are_refused(weights):
    assert code_of(Predictions, [[0.0, 1.5], [1.0, 0.3]], [0, 1], weights) == "weight_range"


@pytest.mark.parametrize("clusters", [[[1], [2, 3]], [object(), 1], [None, "a"]])
def test_clusters_without_an_order_are_refused(clusters):
    assert code_of(Predictions, [[0.0, 1.5], [1.0, 0.3]], [0, 1], clusters=clusters) == "not_names"


@pytest.mark.parametrize("name", sorted(METRICS))
def test_no_metric_gives_a_number_for_nan(name):
    z = torch.randn(20, 2)
    z[3, 1] = math.nan
    with refused("nan") as caught:
        METRICS[name](z, torch.arange(20) % 2)
    assert "1 of 20" in str(caught.value)


def test_whole_numbers_at_the_head_of_a_column_are_no_promise(tmp_path):
    rows = "".join(f"{i % 2},{i % 3},0\n" for i in range(300)) + "1,0.25,-0.5\n"
    (tmp_path / "late.csv").write_text("label,logit_0,logit_1\n" + rows)
    p = Predictions.load(tmp_path / "late.csv")
    assert p.logits[-1].tolist() == [0.25, -0.5]


def test_a_corrupt_parquet_file_is_refused(tmp_path):
    """Some of these make polars panic, which is no `Exception`."""
    good = tmp_path / "good.parquet"
    Predictions(torch.randn(50, 3), torch.arange(50) % 3).save(good)
    whole, g = good.read_bytes(), np.random.default_rng(0)
    for i in range(30):
        torn = bytearray(whole)
        for place in g.integers(0, len(whole), 8):
            torn[place] ^= 1 << int(g.integers(8))
        path = tmp_path / f"{i}.parquet"
        path.write_bytes(torn)
        for read in (Predictions.load, lambda path: list(Predictions.load_chunks(path))):
            with suppress(InputError):
                read(path)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".csv", ".parquet"])
def test_saved_files_follow_the_umask(tmp_path, suffix):
    path = tmp_path / f"p{suffix}"
    old = os.umask(0o022)
    try:
        Predictions(torch.randn(5, 3), torch.arange(5) % 3).save(path)
    finally:
        os.umask(old)
    assert path.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("name", ["./v.npz", "link.npz", "sub/../v.npz"])
def test_outputs_that_are_inputs_are_refused(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "v.npz").touch()
    (tmp_path / "link.npz").symlink_to("v.npz")
    assert code_of(check_outputs, [name], ["t.npz", "v.npz"]) == "output_is_input"
    assert code_of(check_outputs, ["new.json", None, "sub/../new.json"], ["v.npz"]) == "output_twice"
    assert code_of(check_outputs, ["a_labels.npy"], ["a_logits.npy"]) == "output_is_input"
    check_outputs(["new.json", "new.html", None], ["v.npz", None])


@pytest.mark.parametrize("option", ["--json", "--html"])
def test_a_command_leaves_its_inputs_alone(tmp_path, option):
    path = tmp_path / "v.npz"
    Predictions(torch.randn(30, 3), torch.arange(30) % 3).save(path)
    before = path.read_bytes()
    assert run("measure", path, option, path).code == "output_is_input"
    assert path.read_bytes() == before


def test_maps_are_applied_in_blocks_of_rows(monkeypatch):
    g = torch.Generator().manual_seed(0)
    z = 2 * torch.randn(50, 4, generator=g, dtype=torch.float64)
    p = Predictions(z, torch.arange(50) % 4, groups=["a", "b"] * 25)
    fitted = fit("GroupCalibrated(calibrator='Temperature')", p)
    whole, seen = p.apply(fitted).logits, list[int]()

    def halved(logits: torch.Tensor) -> torch.Tensor:
        seen.append(len(logits))
        return logits / 2

    monkeypatch.setattr("calibrant.predictions._maps.BLOCK_ELEMENTS", 40)
    assert torch.equal(p.apply(halved).logits, z / 2)
    assert seen == [10] * 5
    torch.testing.assert_close(p.apply(fitted).logits, whole)
    assert code_of(p.apply, lambda logits: logits[:1]) == "map_shape"
