"""Unusual arrays are read correctly, or refused in one line with a code."""

import copy
import pickle

import numpy as np
import pytest
from refusals import code_of
from scipy.special import expit, softmax

from calibrant import InputError, Predictions
from calibrant.io.contents import Contents
from calibrant.metrics import tables

Z = np.random.default_rng(0).normal(size=(6, 3))
Y = np.array([0, 1, 2, 0, 1, 2])


@pytest.mark.parametrize("name", ["class_names", "group_names"])
@pytest.mark.parametrize(
    "names",
    [
        *("abc", b"abc", 3, 3.5, np.array("abc"), np.array(3), {"a", "b", "c"}),
        *(dict.fromkeys("abc"), ["a", "b", None], ["a", "b", float("nan")], [["a"], ["b"]], [["a", "b"], "c", "d"]),
    ],
)
def test_names_other_than_a_list_are_refused(name, names):
    if name == "class_names":
        assert code_of(Predictions, Z, Y, class_names=names) == "names"
    else:
        assert code_of(Contents("logits", Z, Y, groups=Y, group_names=names).to_predictions) == "names"


@pytest.mark.parametrize(
    "names",
    [
        *(("a", "b", "c"), ["a", "b", "c"], np.array(["a", "b", "c"]), np.array([b"a", b"b", b"c"])),
        *({0: "a", 1: "b", 2: "c"}.values(), np.array(["a", "b", "c"], dtype=object)),
    ],
)
def test_lists_of_names_of_any_kind_are_read(names):
    assert Predictions(Z, Y, class_names=names).class_names == ("a", "b", "c")


def test_duplicate_names_are_refused():
    assert code_of(Predictions, Z, Y, class_names=["a", "b", "a"]) == "names_differ"
    assert code_of(Predictions, Z, Y, class_names=[1, "1", 2]) == "names_differ"


@pytest.mark.parametrize(
    ("groups", "code"),
    [
        (np.array([0, 1, -1, 0, 1, 0]), "group_index"),
        (np.array([0, 1, 2, 0, 1, 0]), "group_index"),
        (np.array([0, 1, 0, 1, 0, 1.0]), "group_index"),
        (np.array([True, False] * 3), "group_index"),
        (np.array(["a"] * 6), "not_numbers"),
        (np.array(["a", 1] * 3, dtype=object), "not_numbers"),
    ],
)
def test_invalid_indices_of_group_names_are_refused(groups, code):
    contents = Contents("logits", Z, Y, groups=groups, group_names=np.array(["x", "y"]))
    assert code_of(contents.to_predictions) == code


def test_names_and_indices_in_tensors_are_refused(torch):
    assert code_of(Predictions, Z, Y, class_names=torch.tensor([[3]])) == "names"
    assert code_of(Contents("logits", Z, Y, groups=Y, group_names=torch.tensor([[3]])).to_predictions) == "names"
    for groups in (torch.tensor([0.0, 1.0] * 3), torch.tensor([True, False] * 3)):
        contents = Contents("logits", Z, Y, groups=groups, group_names=np.array(["x", "y"]))
        assert code_of(contents.to_predictions) == "group_index"


def test_indices_of_group_names_are_read():
    groups = np.array([1, 1, 0, 0, 1, 0], dtype=np.uint8)
    p = Contents("logits", Z, Y, groups=groups, group_names=np.array(["x", "y"])).to_predictions()
    assert [p.group_names[i] for i in p.groups] == ["y", "y", "x", "x", "y", "x"]


TENSORS = {
    "nested": lambda torch: torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.strided),
    "sparse": lambda torch: torch.eye(6).to_sparse(),
    "csr": lambda torch: torch.eye(6).to_sparse_csr(),
    "quantized": lambda torch: torch.quantize_per_tensor(torch.zeros(6, 3), 0.1, 0, torch.qint8),
    "complex": lambda torch: torch.zeros(6, 3, dtype=torch.complex64),
    "meta": lambda torch: torch.zeros(6, 3, device="meta"),
    "meta vector": lambda torch: torch.zeros(6, device="meta"),
    "scalar": lambda torch: torch.tensor(1.0),
}
ARRAYS = {
    "complex": lambda: np.zeros(6, dtype=complex),
    "zero-dimensional": lambda: np.array(1),
    "objects": lambda: np.array([object()] * 6),
    "mixed": lambda: np.array([1, None, "a", 2, 3, 4], dtype=object),
    "dates": lambda: np.arange("2024-01-01", "2024-01-07", dtype="datetime64[D]"),
    "spans": lambda: np.arange(6).astype("timedelta64[D]"),
    "ragged": lambda: [[1], [2, 3]],
    "mapping": lambda: {"a": 1},
    "none": lambda: [None] * 6,
    "empty": lambda: np.zeros((0, 3)),
    "nan": lambda: np.full(6, np.nan),
    "records": lambda: np.zeros(6, dtype=[("a", int), ("b", float)]),
    "bytes": lambda: b"abc",
    "huge": lambda: [10**30] * 6,
    "function": lambda: len,
}
ARGUMENTS = ("logits", "labels", "weights", "clusters", "groups", "class_names")
CONSTRUCTORS = {
    "logits": lambda kwargs: Predictions(**kwargs),
    "probs": lambda kwargs: Predictions.from_probs(kwargs.pop("logits"), **kwargs),
    "binary": lambda kwargs: Predictions.from_binary_logits(kwargs.pop("logits"), **kwargs),
    "multilabel": lambda kwargs: Predictions.multilabel(
        kwargs.pop("logits"), kwargs.pop("labels"), names=kwargs.pop("class_names", None), **kwargs
    ),
    "confidence": lambda kwargs: Predictions.from_confidence(kwargs.pop("logits"), kwargs.pop("labels"), **kwargs),
}
VALID = {
    "logits": (Z, Y),
    "probs": (softmax(Z, 1), Y),
    "binary": (Z[:, 0], Y % 2),
    "multilabel": (Z, (Z > 0).astype(int)),
    "confidence": (expit(Z[:, 0]), Y % 2),
}
READABLE_COLUMNS = {"dates", "spans", "records", "objects", "huge"}  # as clusters, groups or names


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("argument", ARGUMENTS)
@pytest.mark.parametrize("source", sorted(CONSTRUCTORS))
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_unusual_arrays_are_read_or_refused_in_one_line(library, source, argument):
    arguments = () if library == "numpy" else (pytest.importorskip(library),)
    if source == "confidence" and argument == "class_names":
        return
    for name, make in (TENSORS if arguments else ARRAYS).items():
        scores, labels = VALID[source]
        message = ""
        try:
            CONSTRUCTORS[source]({"logits": scores, "labels": labels, argument: make(*arguments)})
        except InputError as error:
            message = str(error)
        assert "\n" not in message, (name, message)
        assert len(message) < 600, (name, message)
        is_readable = argument not in ("logits", "labels", "weights") and name in READABLE_COLUMNS
        assert message or is_readable or (source, argument, name) == ("multilabel", "labels", "nan"), name


def test_many_classes_take_linear_time():  # minutes where it is quadratic
    k = 20_000
    names = [f"class {i}" for i in range(k)]
    logits = np.eye(3, k)
    p = Predictions(logits, [names[5], names[0], names[k - 1]], class_names=names)
    assert p.labels.tolist() == [5, 0, k - 1]
    full = Predictions(np.zeros((4000, 4000)), names[:4000])
    assert len(full.class_names) == 4000
    reversed_p = p.reorder_classes(tuple(reversed(names)))
    assert reversed_p.labels.tolist() == [k - 6, k - 1, 0]
    assert np.array_equal(reversed_p.logits[:, ::-1], p.logits)
    assert code_of(Predictions, logits, [0, 1, 2], class_names=[*names[:-1], names[0]]) == "names_differ"


def test_many_groups_and_clusters_take_linear_time():
    n = 60_000
    names = [f"group {i % 16_000}" for i in range(n)]
    p = Predictions(np.zeros((n, 2)), np.arange(n) % 2, of=1, groups=names, clusters=names)
    assert len(p.group_names) == 16_000
    assert len(p.select_group("group 7")) == len(range(7, n, 16_000))


@pytest.mark.parametrize("of", ["top", 1, "classes"])
def test_pickles_and_copies_of_predictions_are_equal(of):
    p = Predictions(Z, Y, [1.0] * 6, of=of, clusters=list("aabbcc"), groups=list("xyxyxy"), class_names=list("abc"))
    if of != "classes":
        p.events  # noqa: B018  # fills the cache
    for copied in (pickle.loads(pickle.dumps(p)), copy.deepcopy(p), copy.copy(p)):
        assert repr(copied) == repr(p)
        assert copied.digest == p.digest
        assert np.array_equal(copied.groups, p.groups)
        assert tables.groups(copied.with_event("top")).names == ("x", "y")
        assert copied[:2].labels.tolist() == p[:2].labels.tolist()


class Exchanged:
    """An array that offers DLPack alone, as arrays of a GPU do."""

    def __init__(self, values):
        self.values = values

    def __dlpack__(self, **options):
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.values.__dlpack_device__()


def test_arrays_are_exchanged_by_dlpack(torch):
    logits = torch.tensor(Z)
    p = Predictions(Exchanged(logits), Exchanged(torch.tensor(Y)))
    logits.zero_()  # the values were copied
    assert np.array_equal(p.logits, Z)
    assert np.array_equal(p.labels, Y)
