"""Detection of rows that fitting and evaluation data share, without false alarms for repeated values."""

import numpy as np
import pytest
from drawn import drawn_labels
from refusals import refused

from calibrant import Predictions, assess
from calibrant._core.kernels.overlap import Overlap, Sketch, hash_rows
from calibrant.assessment import load_checked_calibrator
from calibrant.calibrators import Temperature, calibrate, origin, save


def draw(n: int, seed: int, k: int = 3) -> Predictions:
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, k)).astype(np.float32)
    return Predictions(2 * z, drawn_labels(z, rng))


def forest(n: int, seed: int, trees: int = 5) -> Predictions:
    """Return probabilities that are shares of a few trees, so that rows repeat."""
    rng = np.random.default_rng(seed)
    p = rng.integers(0, trees + 1, n) / trees
    return Predictions.from_probs(p, rng.binomial(1, p))


def concatenate(*parts: Predictions) -> Predictions:
    return Predictions(*(np.concatenate([getattr(p, name) for p in parts]) for name in ("logits", "labels")))


def overlap(first: Predictions, second: Predictions) -> Overlap:
    return Overlap.compare(Sketch.from_hashes(first.row_hashes), Sketch.from_hashes(second.row_hashes))


VAL, FRESH = draw(400, 0), draw(400, 1)
LEAKS = {
    "the same": VAL,
    "reversed": VAL[np.arange(399, -1, -1)],
    "permuted": VAL[np.random.default_rng(2).permutation(400)],
    "in double": VAL.double(),
    "a part": VAL[100:150],
    "repeated": VAL[np.arange(800) % 400],
    "more": concatenate(FRESH, VAL),
    "half": concatenate(FRESH[:200], VAL[:200]),
    "few of many": concatenate(draw(4000, 3), VAL[:100]),
}


@pytest.mark.parametrize("leak", LEAKS)
def test_rows_of_the_fitting_data_are_refused(leak):
    with refused("same_data", "%"):
        assess(VAL, LEAKS[leak], ["Temperature"])


def test_saved_calibrator_refuses_its_fitting_data(tmp_path):
    path = tmp_path / "t.safetensors"
    save(Temperature.fit(VAL), path, fitted_on=VAL)
    for leak in LEAKS.values():
        with refused("fitted_on_same"):
            assess(FRESH, leak, [path])
        with refused("fitted_on_same"):
            load_checked_calibrator(path)(leak)
    assert assess(FRESH, draw(400, 9), [path]).chosen_name == str(path)


def test_saved_calibrator_stores_a_small_sketch_of_many_rows(tmp_path):
    p, path = draw(40_000, 5), tmp_path / "t.safetensors"
    save(Temperature.fit(p), path, fitted_on=p)
    assert path.stat().st_size < 16_000
    rows = origin(path).rows
    assert rows is not None
    assert rows.n == 40_000
    assert 256 < len(rows.hashes) <= 1024
    with refused("fitted_on_same", "100 %"):
        load_checked_calibrator(path)(p[5000:7000])
    load_checked_calibrator(path)(draw(40_000, 6))


@pytest.mark.parametrize("leak", LEAKS)
def test_rows_of_the_fitting_data_are_refused_in_chunks(leak):
    chunks = (LEAKS[leak][first : first + 90] for first in range(0, len(LEAKS[leak]), 90))
    with refused("same_data"):
        assess(VAL, chunks, ["Temperature"])


def test_small_overlaps_are_reported_with_both_shares():
    result = assess(VAL, concatenate(FRESH, VAL[:20]), ["Identity"])
    assert "4.76 %" in result.protocol
    assert "5 %" in result.protocol
    assert "%" not in assess(VAL, FRESH, ["Identity"]).protocol


def test_calibrate_refuses_the_fitting_data_in_another_order():
    with refused("fitted_on_same"):
        calibrate(Temperature.fit(VAL), LEAKS["reversed"])


@pytest.mark.parametrize("trees", [1, 5, 200])
def test_repeated_values_are_not_a_leak(trees):
    for seed in range(20):
        first, second = forest(300, 2 * seed, trees), forest(300, 2 * seed + 1, trees)
        assert overlap(first, second).excess == 0
    if trees > 1:
        assert overlap(first, first[np.arange(299, -1, -1)]).excess == 1


@pytest.mark.parametrize("clipped", [(0.4, 0.5), (0.3, 0.7)])
def test_clipped_probabilities_are_not_a_leak(clipped):
    """One data set has more clipped probabilities than the other, as after a change of the label distribution."""

    def draw_clipped(share: float, seed: int) -> Predictions:
        rng = np.random.default_rng(seed)
        p = np.where(rng.random(3000) < share, 1e-3, rng.random(3000))
        return Predictions.from_probs(p, rng.binomial(1, p))

    fitted, evaluated = (draw_clipped(share, seed) for seed, share in enumerate(clipped))
    result = overlap(evaluated, fitted)
    assert result.shares[0] > 0.4
    assert result.excess == 0
    leaked = overlap(concatenate(evaluated, fitted[:600]), fitted)
    assert leaked.excess > 0.05


@pytest.mark.shared
def test_splits_of_real_tables_do_not_overlap(shared):
    files = sorted((shared / "tabular").glob("*.npz"))
    if not files:
        pytest.skip("no tabular predictions")
    for path in files:
        data = np.load(path)
        val, test = (Predictions.from_probs(data[f"{s}_probs"], data[f"{s}_labels"]) for s in ("val", "test"))
        assert overlap(test, val).excess == 0, path.name


def test_sketch_of_a_large_set_estimates_overlap(monkeypatch):
    max_hashes = 1 << 18
    monkeypatch.setattr("calibrant._core.kernels.overlap.MAX_SKETCH_HASHES", max_hashes)
    g = np.random.default_rng(0)
    hashes = g.integers(0, 2**63, 5 * max_hashes, dtype=np.int64).view(np.uint64)
    sketch = Sketch.from_hashes(hashes[: 2 * max_hashes]).add(hashes[2 * max_hashes :])
    assert sketch.n == 5 * max_hashes
    assert max_hashes // 4 < len(sketch.hashes) <= max_hashes
    result = Overlap.compare(Sketch.from_hashes(hashes[:max_hashes]), sketch)
    assert result.shares[0] == 1
    assert abs(result.shares[1] - 0.2) < 0.005


def test_hashes_depend_on_every_logit_and_the_label():
    z = np.random.default_rng(0).normal(size=(50, 5)).astype(np.float32)
    y = np.zeros(50, dtype=np.int64)
    hashes = {tuple(hash_rows(z, y)), tuple(hash_rows(z, y + 1))}
    for j in range(5):
        changed = z.copy()
        changed[:, j] += 1e-3
        hashes |= {tuple(hash_rows(changed, y)), tuple(hash_rows(np.roll(changed, 1, 1), y))}
    assert len(hashes) == 12
    assert all(len(set(row)) == 50 for row in hashes)
    assert tuple(hash_rows(z.astype(float), y)) in hashes
    assert np.array_equal(hash_rows(z * 0, y), hash_rows(-abs(z) * 0, y))
