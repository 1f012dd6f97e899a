"""Several labels per sample, with clusters and groups of samples."""

import copy
import json
import pickle

import numpy as np
import pytest
from refusals import refused
from scipy.special import expit

from calibrant import Predictions, assess, measure, metrics
from calibrant.calibrators import GroupCalibrated
from calibrant.metrics import Summary, tables
from calibrant.predictions.folds import assign_folds

NAMES = ["fever", "cough", "rash"]


def draw(n: int, patients: int | None = None, seed: int = 0, tilt: float = 0.5, shared: float = 1.0):
    """Return scores and targets (n, 3), overconfident by `tilt` in the logit, and patients with similar targets."""
    rng = np.random.default_rng(seed)
    patients = patients or n
    patient = np.arange(n) % patients
    scores = rng.normal(size=(n, 3))
    is_shared = rng.random((patients, 1))[patient] < shared
    uniform = np.where(is_shared, rng.random((patients, 3))[patient], rng.random((n, 3)))
    scores = np.where(is_shared, scores[patient], scores)
    return scores, (uniform < expit(scores - tilt)).astype(int), patient


def width(p: Predictions, name: str) -> float:
    row = measure(p)[name]
    return row.high - row.low


@pytest.mark.parametrize("name", ["nll", "signed_gap", "brier"])
def test_copies_in_one_cluster_count_once(name):
    scores, targets, _ = draw(900)  # one that no example shows widens NLL by 1 / n
    once = Predictions.multilabel(scores, targets, names=NAMES)
    five = np.tile(scores, (5, 1)), np.tile(targets, (5, 1))
    clustered = Predictions.multilabel(*five, names=NAMES, clusters=np.tile(np.arange(900), 5))
    independent = Predictions.multilabel(*five, names=NAMES)
    assert measure(clustered)[name].value == pytest.approx(measure(once)[name].value)
    assert width(clustered, name) == pytest.approx(width(once, name), rel=0.05)
    assert width(clustered, name) == pytest.approx(5**0.5 * width(independent, name), rel=0.05)


def test_noise_floor_depends_on_clusters():
    scores, targets, _ = draw(300)
    once = Predictions.multilabel(scores, targets)
    copies = np.tile(scores, (5, 1)), np.tile(targets, (5, 1))
    five = Predictions.multilabel(*copies, clusters=np.tile(np.arange(300), 5))
    ours, theirs = metrics.noise_floor.interval(five), metrics.noise_floor.interval(once)
    assert (ours.value, ours.high) == pytest.approx((theirs.value, theirs.high), rel=0.1)
    independent = Predictions.multilabel(*copies)
    assert metrics.noise_floor.interval(independent).high < 0.6 * ours.high


@pytest.mark.slow
def test_intervals_of_clustered_labels_cover_the_truth():
    s = np.random.default_rng(9).normal(size=400_000)
    truth = (expit(s) - expit(s - 0.5)).mean()
    coverage = dict.fromkeys(("patients", "rows"), 0)
    for seed in range(100):
        scores, targets, patient = draw(240, 60, seed=seed)
        for kind, clusters in (("patients", patient), ("rows", None)):
            p = Predictions.multilabel(scores, targets, clusters=clusters)
            coverage[kind] += truth in metrics.signed_gap.interval(p)
    assert coverage["patients"] >= 82, coverage  # of 100 at 90 %
    assert coverage["rows"] < 70, coverage


@pytest.mark.parametrize("kind", ["numbers", "names", "tensor"])
def test_folds_never_split_a_cluster_of_samples(kind):
    scores, targets, patient = draw(200, 40)
    if kind == "tensor":
        clusters = pytest.importorskip("torch").tensor(patient)
    else:
        clusters = patient if kind == "numbers" else [f"p{i}" for i in patient]
    p = Predictions.multilabel(scores, targets, clusters=clusters)
    assert len(np.unique(p.clusters)) == 40
    row_patient = patient.repeat(3)
    fold = assign_folds(p, 5)
    assert all(len(np.unique(fold[row_patient == i])) == 1 for i in range(40))


def test_clusters_of_one_sample_are_called_examples():
    scores, targets, patient = draw(200, 40)
    assert measure(Predictions.multilabel(scores, targets)).clusters == "200 examples"
    assert measure(Predictions.multilabel(scores, targets, clusters=patient)).clusters == "40 clusters"


def test_each_sample_is_a_cluster_by_default():
    scores, targets, _ = draw(50)
    assert Predictions.multilabel(scores, targets).clusters.tolist() == np.arange(50).repeat(3).tolist()


def grouped(n=400, seed=0):
    scores, targets, _ = draw(n, seed=seed)
    hospital = ["north" if i % 4 else "south" for i in range(n)]
    return Predictions.multilabel(scores, targets, names=NAMES, groups=hospital), scores, targets, hospital


def test_labels_and_groups_are_both_measured():
    p, scores, targets, hospital = grouped()
    assert (p.group_names, p.row_group_names) == (tuple(NAMES), ("north", "south"))
    table = measure(p)
    assert set(table.groups.names) == {*NAMES}
    rows = np.array(hospital) == "south"
    south = measure(Predictions.multilabel(scores[rows], targets[rows]))
    place = table.row_groups.names.index("south")
    assert table.row_groups.gap[place] == pytest.approx(south["signed_gap"].value)
    assert table.row_groups.ece[place] == pytest.approx(south["ece"].value)
    content = json.loads(table.json())
    assert {row["group"] for row in content["groups"]} == {*NAMES}
    assert {row["group"] for row in content["row_groups"]} == {"north", "south"}
    assert [row["metric"] for row in content["results"]].count("ece") == 1
    records = table.records()
    assert {row["row_group"] for row in records} == {"", "north", "south"}
    for text in (str(table), table.html()):
        assert "north" in text
        assert "cough" in text


def test_row_groups_survive_selection_maps_and_copies():
    p, *_ = grouped()
    part = p[:300].apply(lambda z: 2 * z)
    assert part.row_groups.tolist() == p.row_groups[:300].tolist()
    for copied in (pickle.loads(pickle.dumps(p)), copy.deepcopy(p)):
        assert np.array_equal(copied.row_groups, p.row_groups)
        assert copied.row_group_names == p.row_group_names
        assert np.array_equal(copied.logits, p.logits)


def test_summaries_contain_row_groups():
    p, *_ = grouped()
    summary = Summary.from_predictions(p[:600]) + Summary.from_predictions(p[600:])
    for by in ("groups", "row_groups"):
        ours, theirs = tables.groups(summary, by=by), tables.groups(p, by=by)
        assert ours.names == tuple(sorted(theirs.names))
        order = [theirs.names.index(name) for name in ours.names]
        assert ours.gap.tolist() == pytest.approx(theirs.gap[order].tolist())


def test_group_calibrator_uses_labels_as_groups():
    p, *_ = grouped()
    fitted = GroupCalibrated.fit(p)
    assert set(fitted.names) == {*NAMES}
    result = assess(p, grouped(200, seed=1)[0], calibrators=["Platt", "GroupCalibrated"])
    assert {row["group"] for row in json.loads(result.json())["row_groups"]["Platt"]} == {"north", "south"}


def test_tables_have_columns_of_clusters_groups_and_weights(tmp_path):
    import polars

    scores, targets, patient = draw(120, 30)
    columns = {f"logit_{name}": scores[:, j] for j, name in enumerate(NAMES)}
    columns |= {f"label_{name}": targets[:, j] for j, name in enumerate(NAMES)}
    hospital = ["a" if i % 3 else "b" for i in range(120)]
    sample_columns = {"patient": patient, "hospital": hospital, "weight": [1 + i % 2 for i in range(120)]}
    path = tmp_path / "labels.csv"
    polars.DataFrame(columns | sample_columns).write_csv(path)
    p = Predictions.load(path, cluster="patient", group="hospital", weight="weight")
    q = Predictions.multilabel(
        scores, targets, sample_columns["weight"], names=NAMES, clusters=patient, groups=hospital
    )
    assert p.clusters.tolist() == q.clusters.tolist()
    assert p.row_groups.tolist() == q.row_groups.tolist()
    assert p.weights.tolist() == q.weights.tolist()
    assert measure(p)["nll"].high == pytest.approx(measure(q)["nll"].high)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"clusters": [0, 1]}, "shape"),
        ({"groups": np.zeros((50, 3))}, "shape"),
        ({"groups": [float("nan")] * 50}, "not_names"),
        ({"names": "abc"}, "names"),
    ],
)
def test_invalid_clusters_groups_and_names_are_refused(options, code):
    scores, targets, _ = draw(50)
    with refused(code):
        Predictions.multilabel(scores, targets, **options)


def test_saving_row_groups_is_refused(tmp_path):
    p, *_ = grouped()
    with refused("row_groups"):
        p.save(tmp_path / "p.npz")
    assert not list(tmp_path.iterdir())
