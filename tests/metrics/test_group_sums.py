"""Groups of summaries and of chunks: the same as of all predictions in memory."""

import json

import numpy as np
import pytest
from drawn import drawn_labels
from refusals import refused

from calibrant import Predictions, assess, measure
from calibrant.metrics import Summary
from calibrant.metrics.tables import Groups, groups

COLUMNS = ("count", "said", "happened", "gap", "ece", "nll")
CHANCE = ("low", "high", "floor", "floor_high")


def draw(n: int = 1200, *, weighted: bool = False, clusters: int = 0, seed: int = 0) -> Predictions:
    rng = np.random.default_rng(seed)
    z = 2 * rng.standard_normal((n, 3))
    names = ["b", "a", "2", "10", "only one"]
    group = rng.integers(4, size=n)
    group[n // 2] = 4
    cluster = np.arange(n) // max(n // clusters, 1) if clusters else None
    y = drawn_labels(z / 2, rng)
    w = {"weights": 3 * rng.random(n), "weights_are": "counts"} if weighted else {}
    return Predictions(z, y, **w, groups=[names[i] for i in group], clusters=cluster)


def in_batches(p: Predictions, size: int) -> Summary:
    parts = [Summary.from_predictions(p[i : i + size]) for i in range(0, len(p), size)]
    return sum(reversed(parts), Summary.empty(of=p.of))


def columns(table: Groups | None, names: tuple[str, ...]) -> dict[str, list[float]]:
    assert table is not None
    rows = {row["group"]: row for row in table.records()}
    return {name: [rows[group][name] for group in sorted(rows)] for name in names}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("of", ["top", 1])
def test_groups_of_a_summary_are_those_of_all_predictions(weighted, of):
    p = draw(weighted=weighted).with_event(of)
    all_rows, chunks = groups(p), groups(in_batches(p, 290))
    for name, values in columns(all_rows, COLUMNS + CHANCE).items():
        assert columns(chunks, (name,))[name] == pytest.approx(values, abs=1e-12 if name in COLUMNS else 1e-9), name


def test_clusters_change_intervals_of_groups_but_no_value():
    p = draw(6400, clusters=640)
    all_rows, chunks = groups(p), groups(in_batches(p, 1600))
    for name, values in columns(all_rows, COLUMNS).items():
        assert columns(chunks, (name,))[name] == pytest.approx(values, abs=1e-12), name
    assert all_rows is not None
    assert chunks is not None
    is_large = np.array([name != "only one" for name in all_rows.names])
    widths = [(t.high - t.low)[is_large] for t in (all_rows, chunks)]
    assert abs(np.log(widths[1] / widths[0])).max() < 0.4  # of 63 degrees of freedom instead of 639
    assert abs(np.log((chunks.floor_high / all_rows.floor_high)[is_large])).max() < 0.4


def test_group_sums_do_not_depend_on_batches():
    p = draw(900, clusters=90)
    first, second = Summary.from_predictions(p).groups, in_batches(p, 100).groups
    assert first is not None
    assert second is not None
    assert first.names == second.names == ("10", "2", "a", "b", "only one")
    assert np.array_equal(first.sums, second.sums)
    assert np.array_equal(first.slots, second.slots)


def test_summary_refuses_batches_without_groups():
    p = draw(60)
    without_groups = Predictions(p.logits, p.labels)
    with refused("partly_missing", "groups"):
        Summary.from_predictions(p).add(without_groups)
    with refused("partly_missing", "groups"):
        Summary.from_predictions(p) + Summary.from_predictions(without_groups)
    assert groups(Summary.from_predictions(without_groups)) is None
    assert groups(Summary.empty() + Summary.from_predictions(p)) is not None


def test_groups_of_weight_zero_are_left_out():
    p = Predictions([[0.0, 1.0]] * 3, [1, 0, 1], [1, 0, 2], groups=["a", "nobody", "a"])
    table = groups(Summary.from_predictions(p))
    assert table is not None
    assert table.names == ("a",)


def test_assess_of_chunks_has_groups_before_and_after_calibration():
    p = draw(900)
    val, test = p[:400], p[400:]
    all_rows = assess(val, test, ["Temperature"], ["nll"])
    chunks = assess(val, (test[i : i + 150] for i in range(0, 500, 150)), ["Temperature"], ["nll"])
    for name in all_rows.measurements:
        expected = columns(all_rows.measurements[name].groups, COLUMNS + CHANCE)
        for column, values in columns(chunks.measurements[name].groups, COLUMNS + CHANCE).items():
            assert values == pytest.approx(expected[column], abs=1e-9), (name, column)
    assert "groups after Temperature" in str(chunks)


def test_every_export_of_an_assessment_has_groups():
    p = draw(800)
    result = assess(p[:400], p[400:], ["Identity", "Temperature"], ["nll", "ece"])
    rows = result.records()
    assert {row["group"] for row in rows} == {"", "a", "b", "2", "10", "only one"}
    table = result.measurements["Temperature"]
    assert table.groups is not None
    at = table.groups.names.index("a")
    ece = next(r for r in rows if (r["calibrator"], r["metric"], r["group"]) == ("Temperature", "ece", "a"))
    assert ece["value"] == pytest.approx(float(table.groups.ece[at]))
    content = json.loads(result.json())
    assert {row["group"] for row in content["results"]} == {""}
    assert len(content["groups"]["Identity"]) == len(table.groups.names)
    assert set(result.to_polars()["group"]) == {row["group"] for row in rows}
    assert len(json.loads(measure(Summary.from_predictions(p)).json())["groups"]) == 5
