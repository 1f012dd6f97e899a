"""Detection of rows that fitting and evaluation data share, without false alarms for repeated values."""

import numpy as np
import pytest
import torch
from refusals import refused

from calibrant import Predictions, assess
from calibrant.assessment import load_checked_calibrator
from calibrant.backend.overlap import MAX_SKETCH_HASHES, Overlap, Sketch, hash_rows
from calibrant.calibrators import Temperature, calibrate, origin, save


def drawn(n: int, seed: int, k: int = 3) -> Predictions:
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(n, k, generator=g)
    return Predictions(2 * z, torch.multinomial(z.softmax(-1), 1, generator=g).squeeze(1))


def forest(n: int, seed: int, trees: int = 5) -> Predictions:
    """Probabilities that are shares of a few trees: nearly every row is there many times."""
    g = torch.Generator().manual_seed(seed)
    p = torch.randint(0, trees + 1, (n,), generator=g) / trees
    return Predictions.from_probs(p, (torch.rand(n, generator=g) < p).long())


def joined(*parts: Predictions) -> Predictions:
    return Predictions(torch.cat([p.logits for p in parts]), torch.cat([p.labels for p in parts]))


def overlap(one: Predictions, other: Predictions) -> Overlap:
    return Overlap.compare(Sketch.from_hashes(one.row_hashes), Sketch.from_hashes(other.row_hashes))


VAL, OTHER = drawn(400, 0), drawn(400, 1)
LEAKS = {
    "the same": VAL,
    "reversed": VAL[torch.arange(399, -1, -1)],
    "permuted": VAL[torch.randperm(400, generator=torch.Generator().manual_seed(2))],
    "in double": VAL.double(),
    "a part": VAL[100:150],
    "repeated": VAL[torch.arange(800) % 400],
    "more": joined(OTHER, VAL),
    "half": joined(OTHER[:200], VAL[:200]),
    "few of many": joined(drawn(4000, 3), VAL[:100]),
}


@pytest.mark.parametrize("leak", LEAKS)
def test_rows_of_the_fitting_data_are_refused(leak):
    with refused("same_data") as caught:
        assess(VAL, LEAKS[leak], ["Temperature"])
    assert "%" in str(caught.value)


@pytest.mark.parametrize("leak", LEAKS)
def test_a_saved_calibrator_knows_the_rows_it_was_fitted_on(leak, tmp_path):
    path = tmp_path / "t.safetensors"
    save(Temperature.fit(VAL), path, fitted_on=VAL)
    with refused("fitted_on_same"):
        assess(OTHER, LEAKS[leak], [path])
    with refused("fitted_on_same"):
        load_checked_calibrator(path)(LEAKS[leak])
    assert assess(OTHER, drawn(400, 9), [path]).chosen_name == str(path)


def test_saved_calibrator_stores_a_small_sketch_of_many_rows(tmp_path):
    many, path = drawn(40_000, 5), tmp_path / "t.safetensors"
    save(Temperature.fit(many), path, fitted_on=many)
    assert path.stat().st_size < 16_000
    rows = origin(path).rows
    assert rows is not None
    assert rows.n == 40_000
    assert 256 < len(rows.hashes) <= 1024
    with refused("fitted_on_same") as caught:
        load_checked_calibrator(path)(many[5000:7000])
    assert "100 %" in str(caught.value)
    load_checked_calibrator(path)(drawn(40_000, 6))


@pytest.mark.parametrize("leak", LEAKS)
def test_rows_of_the_fitting_data_are_refused_in_pieces(leak):
    pieces = (LEAKS[leak][first : first + 90] for first in range(0, len(LEAKS[leak]), 90))
    with refused("same_data"):
        assess(VAL, pieces, ["Temperature"])


def test_small_overlaps_are_reported_with_both_shares():
    found = assess(VAL, joined(OTHER, VAL[:20]), ["Identity"])
    assert "4.76 %" in found.protocol
    assert "5 %" in found.protocol
    assert "%" not in assess(VAL, OTHER, ["Identity"]).protocol


def test_a_calibrator_is_not_judged_on_its_own_data_in_another_order():
    with refused("fitted_on_same"):
        calibrate(Temperature.fit(VAL), LEAKS["reversed"])


@pytest.mark.parametrize("trees", [1, 5, 200])
def test_few_distinct_rows_are_no_leak_but_the_same_ones_are(trees):
    for seed in range(20):
        one, other = forest(300, 2 * seed, trees), forest(300, 2 * seed + 1, trees)
        assert overlap(one, other).excess == 0
    if trees > 1:
        assert overlap(one, one[torch.arange(299, -1, -1)]).excess == 1


@pytest.mark.parametrize("clipped", [(0.4, 0.5), (0.3, 0.7)])
def test_common_values_are_no_leak_where_one_set_has_more_of_them(clipped):
    """Probabilities clipped at one end, in one set more often than in the other, as of other labels or another year."""

    def drawn_with(share: float, seed: int) -> Predictions:
        g = torch.Generator().manual_seed(seed)
        p = torch.rand(3000, generator=g, dtype=torch.float64)
        p = torch.where(torch.rand(3000, generator=g) < share, 1e-3, p)
        return Predictions.from_probs(p, (torch.rand(3000, generator=g) < p).long())

    fitted, judged = (drawn_with(share, seed) for seed, share in enumerate(clipped))
    found = overlap(judged, fitted)
    assert found.shares[0] > 0.4
    assert found.excess == 0
    leaked = overlap(joined(judged, fitted[:600]), fitted)
    assert leaked.excess > 0.05


@pytest.mark.shared
def test_honest_tables_pass(shared):
    files = sorted((shared / "tabular").glob("*.npz"))
    if not files:
        pytest.skip("no tabular predictions")
    for path in files:
        data = np.load(path)
        val, test = (Predictions.from_probs(data[f"{s}_probs"], data[f"{s}_labels"]) for s in ("val", "test"))
        assert overlap(test, val).excess == 0, path.name


def test_large_sets_are_sketched():
    """A sketch of 2^20 hashes tells the overlap of sets five times as large to a few tenths of a percent."""
    g = np.random.default_rng(0)
    one = g.integers(0, 2**63, 5 * MAX_SKETCH_HASHES, dtype=np.int64).view(np.uint64)
    sketch = Sketch.from_hashes(one[: 2 * MAX_SKETCH_HASHES]).add(one[2 * MAX_SKETCH_HASHES :])
    assert sketch.n == 5 * MAX_SKETCH_HASHES
    assert MAX_SKETCH_HASHES // 4 < len(sketch.hashes) <= MAX_SKETCH_HASHES
    found = Overlap.compare(Sketch.from_hashes(one[:MAX_SKETCH_HASHES]), sketch)
    assert found.shares[0] == 1
    assert abs(found.shares[1] - 0.2) < 0.005


def test_hashes_know_every_number_and_the_label():
    z = torch.randn(50, 5, generator=torch.Generator().manual_seed(0))
    y = torch.zeros(50, dtype=torch.int64)
    seen = {tuple(hash_rows(z, y)), tuple(hash_rows(z, y + 1))}
    for j in range(5):
        changed = z.clone()
        changed[:, j] += 1e-3
        seen |= {tuple(hash_rows(changed, y)), tuple(hash_rows(changed.roll(1, 1), y))}
    assert len(seen) == 12
    assert all(len(set(row)) == 50 for row in seen)
    assert tuple(hash_rows(z.double(), y)) in seen
    assert np.array_equal(hash_rows(z * 0, y), hash_rows(-z.abs() * 0, y))
