"""Several labels per example, in clusters and in groups of their own."""

import copy
import json
import pickle

import pytest
import torch
from refusals import refused

from calibrant import Predictions, assess, measure, metrics
from calibrant.calibrators import GroupCalibrated
from calibrant.metrics import Summary, tables
from calibrant.predictions.folds import assign_folds

NAMES = ["fever", "cough", "rash"]


def draw(n: int, patients: int | None = None, seed: int = 0, tilt: float = 0.5, shared: float = 1.0):
    """Scores and targets (n, 3) that are calibrated but for `tilt`; targets of a patient are alike."""
    g = torch.Generator().manual_seed(seed)
    patients = patients or n
    patient = torch.arange(n) % patients
    scores = torch.randn(n, 3, dtype=torch.float64, generator=g)
    own = torch.rand(patients, 3, dtype=torch.float64, generator=g)[patient]
    alike = torch.rand(patients, 1, generator=g)[patient] < shared
    uniform = torch.where(alike, own, torch.rand(n, 3, dtype=torch.float64, generator=g))
    scores = torch.where(alike, scores[patient], scores)
    targets = (uniform < (scores - tilt).sigmoid()).long()
    return scores, targets, patient


ROWS = ("nll", "signed_gap", "brier")


def width(p: Predictions, name: str) -> float:
    row = measure(p)[name]
    return row.high - row.low


@pytest.mark.parametrize("name", ROWS)
def test_copies_in_one_cluster_count_once(name):
    scores, targets, _ = draw(300)
    once = Predictions.multilabel(scores, targets, names=NAMES)
    five = scores.repeat(5, 1), targets.repeat(5, 1)
    clustered = Predictions.multilabel(*five, names=NAMES, clusters=torch.arange(300).repeat(5))
    apart = Predictions.multilabel(*five, names=NAMES)
    assert measure(clustered)[name].value == pytest.approx(measure(once)[name].value)
    assert width(clustered, name) == pytest.approx(width(once, name), rel=0.08)
    assert width(clustered, name) == pytest.approx(5**0.5 * width(apart, name), rel=0.08)


def test_floor_and_tests_know_the_clusters():
    scores, targets, _ = draw(300)
    once = Predictions.multilabel(scores, targets)
    clusters = torch.arange(300).repeat(5)
    five = Predictions.multilabel(scores.repeat(5, 1), targets.repeat(5, 1), clusters=clusters)
    ours, theirs = metrics.noise_floor.interval(five), metrics.noise_floor.interval(once)
    assert (ours.value, ours.high) == pytest.approx((theirs.value, theirs.high), rel=0.1)
    apart = Predictions.multilabel(scores.repeat(5, 1), targets.repeat(5, 1))
    assert metrics.noise_floor.interval(apart).high < 0.6 * ours.high


def test_intervals_of_clustered_labels_hold_the_truth():
    g = torch.Generator().manual_seed(9)
    s = torch.randn(400_000, dtype=torch.float64, generator=g)
    truth = float((s.sigmoid() - (s - 0.5).sigmoid()).mean())
    held = dict.fromkeys(("patients", "rows"), 0)
    for seed in range(100):
        scores, targets, patient = draw(240, 60, seed=seed)
        for kind, clusters in (("patients", patient), ("rows", None)):
            p = Predictions.multilabel(scores, targets, clusters=clusters)
            held[kind] += truth in metrics.signed_gap.interval(p)
    assert held["patients"] >= 82, held  # of 100 at 90 %
    assert held["rows"] < 70, held


@pytest.mark.parametrize("kind", ["numbers", "names", "tensor"])
def test_folds_never_divide_a_cluster_of_rows(kind):
    scores, targets, patient = draw(200, 40)
    clusters = {"numbers": patient.numpy(), "names": [f"p{i}" for i in patient.tolist()], "tensor": patient}[kind]
    p = Predictions.multilabel(scores, targets, clusters=clusters)
    assert len(p.clusters.unique()) == 40
    of_row = patient.repeat_interleave(3)
    fold = assign_folds(p, 5)
    assert all(len(fold[of_row == i].unique()) == 1 for i in range(40))


def test_clusters_are_called_examples_only_where_they_are():
    scores, targets, patient = draw(200, 40)
    assert measure(Predictions.multilabel(scores, targets)).clusters == "200 examples"
    assert measure(Predictions.multilabel(scores, targets, clusters=patient)).clusters == "40 clusters"


def test_without_clusters_each_row_is_one():
    scores, targets, _ = draw(50)
    assert Predictions.multilabel(scores, targets).clusters.tolist() == torch.arange(50).repeat_interleave(3).tolist()


def grouped(n=400, seed=0):
    scores, targets, _ = draw(n, seed=seed)
    hospital = ["north" if i % 4 else "south" for i in range(n)]
    return Predictions.multilabel(scores, targets, names=NAMES, groups=hospital), scores, targets, hospital


def test_labels_and_groups_are_both_measured():
    p, scores, targets, hospital = grouped()
    assert (p.group_names, p.row_group_names) == (tuple(NAMES), ("north", "south"))
    table = measure(p)
    assert set(table.groups.names) == {*NAMES}
    rows = torch.tensor([name == "south" for name in hospital])
    south = measure(Predictions.multilabel(scores[rows], targets[rows]))
    place = table.row_groups.names.index("south")
    assert float(table.row_groups.gap[place]) == pytest.approx(south["signed_gap"].value)
    assert float(table.row_groups.ece[place]) == pytest.approx(south["ece"].value)
    found = json.loads(table.json())
    assert {row["group"] for row in found["groups"]} == {*NAMES}
    assert {row["group"] for row in found["row_groups"]} == {"north", "south"}
    assert [row["metric"] for row in found["results"]].count("ece") == 1
    records = table.records()
    assert {row["row_group"] for row in records} == {"", "north", "south"}
    for text in (str(table), table.html()):
        assert "north" in text
        assert "cough" in text


def test_groups_go_with_their_rows_and_through_maps():
    p, *_ = grouped()
    part = p[:300].apply(lambda z: 2 * z)
    assert part.row_groups.tolist() == p.row_groups[:300].tolist()
    for same in (pickle.loads(pickle.dumps(p)), copy.deepcopy(p)):
        assert torch.equal(same.row_groups, p.row_groups)
        assert same.row_group_names == p.row_group_names
        assert torch.equal(same.logits, p.logits)


def test_summaries_keep_groups_of_rows():
    p, *_ = grouped()
    summary = Summary.from_predictions(p[:600]) + Summary.from_predictions(p[600:])
    for by in ("groups", "row_groups"):
        ours, theirs = tables.groups(summary, by=by), tables.groups(p, by=by)
        assert ours.names == tuple(sorted(theirs.names))
        order = [theirs.names.index(name) for name in ours.names]
        assert ours.gap.tolist() == pytest.approx(theirs.gap[order].tolist())


def test_calibrators_stay_those_of_labels():
    p, *_ = grouped()
    fitted = GroupCalibrated.fit(p)
    assert set(fitted.names) == {*NAMES}
    found = assess(p, grouped(200, seed=1)[0], calibrators=["Platt", "GroupCalibrated"])
    assert {row["group"] for row in json.loads(found.json())["row_groups"]["Platt"]} == {"north", "south"}


def test_tables_pass_clusters_groups_and_weights_on(tmp_path):
    import polars

    scores, targets, patient = draw(120, 30)
    columns = {f"logit_{name}": scores[:, j].numpy() for j, name in enumerate(NAMES)}
    columns |= {f"label_{name}": targets[:, j].numpy() for j, name in enumerate(NAMES)}
    hospital = ["a" if i % 3 else "b" for i in range(120)]
    more = {"patient": patient.numpy(), "hospital": hospital, "weight": [1 + i % 2 for i in range(120)]}
    path = tmp_path / "labels.csv"
    polars.DataFrame(columns | more).write_csv(path)
    weights = torch.tensor(more["weight"])
    p = Predictions.load(path, cluster="patient", group="hospital", weight="weight")
    q = Predictions.multilabel(scores, targets, weights, names=NAMES, clusters=patient, groups=hospital)
    assert p.clusters.tolist() == q.clusters.tolist()
    assert p.row_groups.tolist() == q.row_groups.tolist()
    assert p.weights.tolist() == q.weights.tolist()
    assert measure(p)["nll"].high == pytest.approx(measure(q)["nll"].high)


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"clusters": [0, 1]}, "shape"),
        ({"groups": torch.zeros(50, 3)}, "shape"),
        ({"groups": [float("nan")] * 50}, "not_names"),
        ({"names": "abc"}, "names"),
    ],
)
def test_malformed_clusters_groups_and_names_of_rows_are_refused(more, code):
    scores, targets, _ = draw(50)
    with refused(code):
        Predictions.multilabel(scores, targets, **more)


def test_row_groups_are_refused_by_files_that_would_lose_them(tmp_path):
    p, *_ = grouped()
    with refused("row_groups"):
        p.save(tmp_path / "p.npz")
    assert not list(tmp_path.iterdir())
