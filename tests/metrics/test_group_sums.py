"""The tables of groups of summaries and pieces: what the whole says, however it was divided."""

import json

import pytest
import torch
from refusals import refused

from calibrant import Predictions, assess, measure
from calibrant.metrics import Summary
from calibrant.metrics.tables import Groups, groups

COLUMNS = ("count", "said", "happened", "gap", "ece", "nll")
CHANCE = ("low", "high", "floor", "floor_high")


def drawn(n: int = 1200, *, weighted: bool = False, clusters: int = 0, seed: int = 0) -> Predictions:
    g = torch.Generator().manual_seed(seed)
    z = 2 * torch.randn(n, 3, generator=g, dtype=torch.float64)
    names = ["b", "a", "2", "10", "only one"]
    group = torch.randint(0, 4, (n,), generator=g)
    group[n // 2] = 4
    cluster = torch.arange(n) // max(n // clusters, 1) if clusters else None
    y = torch.multinomial((z / 2).softmax(1), 1, generator=g).squeeze(1)
    w = 3 * torch.rand(n, generator=g, dtype=torch.float64) if weighted else None
    return Predictions(z, y, w, groups=[names[i] for i in group.tolist()], clusters=cluster)


def in_batches(p: Predictions, size: int) -> Summary:
    parts = [Summary.from_predictions(p[i : i + size]) for i in range(0, len(p), size)]
    return sum(reversed(parts), Summary.empty(of=p.of))


def columns(table: Groups | None, names: tuple[str, ...]) -> dict[str, list[float]]:
    assert table is not None
    rows = {row["group"]: row for row in table.records()}
    return {name: [rows[group][name] for group in sorted(rows)] for name in names}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("of", ["top", 1])
def test_every_number_is_that_of_the_whole(weighted, of):
    p = drawn(weighted=weighted).with_event(of)
    whole, pieces = groups(p), groups(in_batches(p, 290))
    for name, values in columns(whole, COLUMNS + CHANCE).items():
        assert columns(pieces, (name,))[name] == pytest.approx(values, abs=1e-12 if name in COLUMNS else 1e-9), name


def test_clusters_widen_the_intervals_and_change_no_value():
    p = drawn(6400, clusters=640)
    whole, pieces = groups(p), groups(in_batches(p, 1600))
    for name, values in columns(whole, COLUMNS).items():
        assert columns(pieces, (name,))[name] == pytest.approx(values, abs=1e-12), name
    assert whole is not None
    assert pieces is not None
    several = torch.tensor([name != "only one" for name in whole.names])
    widths = [(t.high - t.low)[several] for t in (whole, pieces)]
    assert float((widths[1] / widths[0]).log().abs().max()) < 0.4  # of 63 degrees of freedom instead of 639
    assert float((pieces.floor_high / whole.floor_high)[several].log().abs().max()) < 0.4


def test_any_sharding_gives_the_same_state():
    p = drawn(900, clusters=90)
    one, other = Summary.from_predictions(p).groups, in_batches(p, 100).groups
    assert one is not None
    assert other is not None
    assert one.names == other.names == ("10", "2", "a", "b", "only one")
    assert torch.equal(one.sums, other.sums)
    assert torch.equal(one.slots, other.slots)


def test_groups_come_with_all_batches_or_none():
    p = drawn(60)
    bare = Predictions(p.logits, p.labels)
    with refused("partly_missing", "groups"):
        Summary.from_predictions(p).add(bare)
    with refused("partly_missing", "groups"):
        Summary.from_predictions(p) + Summary.from_predictions(bare)
    assert groups(Summary.from_predictions(bare)) is None
    assert groups(Summary.empty() + Summary.from_predictions(p)) is not None


def test_groups_without_mass_are_left_out():
    p = Predictions([[0.0, 1.0]] * 3, [1, 0, 1], [1, 0, 2], groups=["a", "nobody", "a"])
    table = groups(Summary.from_predictions(p))
    assert table is not None
    assert table.names == ("a",)


def test_pieces_are_assessed_with_groups_before_and_after():
    p = drawn(900)
    val, test = p[:400], p[400:]
    whole = assess(val, test, ["Temperature"], ["nll"])
    pieces = assess(val, (test[i : i + 150] for i in range(0, 500, 150)), ["Temperature"], ["nll"])
    for name in whole.tables:
        mine = columns(whole.tables[name].groups, COLUMNS + CHANCE)
        for column, values in columns(pieces.tables[name].groups, COLUMNS + CHANCE).items():
            assert values == pytest.approx(mine[column], abs=1e-9), (name, column)
    assert "group after" in str(pieces)


def test_every_output_of_findings_carries_groups():
    p = drawn(800)
    found = assess(p[:400], p[400:], ["Identity", "Temperature"], ["nll", "ece"])
    rows = found.records()
    assert {row["group"] for row in rows} == {"", "a", "b", "2", "10", "only one"}
    table = found.tables["Temperature"]
    assert table.groups is not None
    at = table.groups.names.index("a")
    ece = next(r for r in rows if (r["calibrator"], r["metric"], r["group"]) == ("Temperature", "ece", "a"))
    assert ece["value"] == pytest.approx(float(table.groups.ece[at]))
    content = json.loads(found.json())
    assert {row["group"] for row in content["results"]} == {""}
    assert len(content["groups"]["Identity"]) == len(table.groups.names)
    assert set(found.to_polars()["group"]) == {row["group"] for row in rows}
    assert len(json.loads(measure(Summary.from_predictions(p)).json())["groups"]) == 5
