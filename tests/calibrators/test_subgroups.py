"""Multicalibration: subgroups that differ are found and corrected, and where none differ nothing changes."""

import inspect
import time
from dataclasses import replace
from decimal import Decimal

import numpy as np
import polars
import pytest
from commands import run
from drawn import drawn_labels
from refusals import code_of

from calibrant import Predictions, assess, calibrators, metrics
from calibrant.calibrators.subgroups import MultiCalibrated
from calibrant.calibrators.subgroups._features import FeatureSchema
from calibrant.deployment import export
from calibrant.language_models.fusion import Fusion
from calibrant.predictions.validation.columns import split_columns


def draw(n, seed, effect=1.5, k=2):
    """Draw predictions that are right, but for young women, whose event, or last class, is likelier than stated."""
    rng = np.random.default_rng(seed)
    features = {
        "age": rng.integers(18, 80, n),
        "sex": np.where(rng.random(n) < 0.5, "f", "m"),
        "noise": rng.random(n),
    }
    z = rng.standard_normal((n, k))
    in_subgroup = (features["age"] < 35) & (features["sex"] == "f")
    labels = drawn_labels(z + effect * np.outer(in_subgroup, np.arange(k) == k - 1), rng)
    p = Predictions.from_binary_logits(z[:, 1] - z[:, 0], labels) if k == 2 else Predictions(z, labels)
    return p, features, in_subgroup


def mean_gap(p, mask):
    return abs(float(metrics.signed_gap(p[mask])))


@pytest.mark.parametrize("k", [2, 4])
def test_the_worst_subgroup_is_found_and_halved(k):
    p, features, _ = draw(4000, seed=0, k=k)
    test, test_features, in_subgroup = draw(20_000, seed=1, k=k)
    fitted = MultiCalibrated.fit(p, features)
    before, after = test.apply(fitted.pooled), fitted.apply(test, test_features)
    event = 1 if k == 2 else 3
    gaps = [mean_gap(q.with_event(event), in_subgroup) for q in (before, after)]
    assert gaps[0] > 0.1
    assert gaps[1] < gaps[0] / 2
    assert float(metrics.nll(after)) < float(metrics.nll(before)) - 0.005
    table = fitted.evaluate(test, test_features)
    assert table.nll_gain.low > 0
    if k == 2:
        assert "sex is" in table.rows[0].name
        assert "age" in table.rows[0].name
        assert abs(table.rows[0].after.value) < abs(table.rows[0].before.value) / 2


def test_where_subgroups_do_not_differ_the_common_map_stays():
    """Of 10 fits to calibrated predictions at most one changes anything, and the mean change is small."""
    test, test_features, _ = draw(20_000, seed=99, effect=0.0)
    changes = []
    for seed in range(10):
        p, features, _ = draw(1000, seed, effect=0.0)
        fitted = MultiCalibrated.fit(p, features)
        difference = metrics.nll(fitted.apply(test, test_features)) - metrics.nll(test.apply(fitted.pooled))
        changes.append(float(difference))
    assert sum(change != 0 for change in changes) <= 1
    assert np.mean(changes) < 0.0005


def test_a_map_of_features_is_not_applied_without_them():
    p, features, _ = draw(500, seed=3, effect=0.0)
    fitted = MultiCalibrated.fit(p, features)
    for no_map in (fitted, "Temperature", None):
        assert code_of(inspect.unwrap(Predictions.apply), p, no_map) == "map_kind"


def test_a_network_does_not_take_a_map_of_features(torch):
    from calibrant.nn import CalibratedNetwork

    p, features, _ = draw(500, seed=3, effect=0.0)
    fitted = MultiCalibrated.fit(p, features)
    network = CalibratedNetwork.__new__(CalibratedNetwork)
    assert code_of(inspect.unwrap(CalibratedNetwork.__init__), network, torch.nn.Identity(), fitted) == "map_kind"


@pytest.mark.parametrize(("to", "suffix"), [("numpy", ".py"), ("torch", ".pt2"), ("onnx", ".onnx")])
def test_a_map_of_features_has_no_export(to, suffix, tmp_path):
    p, features, _ = draw(500, seed=3, effect=0.0)
    fitted, path = MultiCalibrated.fit(p, features), tmp_path / f"map{suffix}"
    for options in ({}, {"num_classes": 2}):
        assert code_of(export, fitted, path, to=to, **options) == "map_kind"
    fitted.save(tmp_path / "map.safetensors")
    assert run("export", tmp_path / "map.safetensors", "-o", path).code == "not_a_calibrator"
    assert not path.exists()


def test_features_with_one_name_are_refused():
    p, features, _ = draw(500, seed=3, effect=0.0)
    age = features["age"]
    assert code_of(MultiCalibrated.fit, p, {0: age, "0": age}) == "column_twice"


def test_thirty_thousand_columns_are_split_within_seconds():
    start = time.process_time()
    assert len(split_columns({key: [0.0] for key in range(30_000)})) == 30_000
    assert time.process_time() - start < 3  # in quadratic time it takes ten times as long


def test_a_map_of_features_is_no_method_to_fit():
    p, features, _ = draw(500, seed=3, effect=0.0)
    for no_method in (MultiCalibrated.fit(p, features), 3, None):
        assert code_of(calibrators.fit, no_method, p) == "calibrator_kind"
        assert code_of(inspect.unwrap(assess), p[:250], p[250:], [no_method]) == "calibrator_kind"
    for method in (MultiCalibrated, Fusion):  # Fusion would take the logits for signals
        assert code_of(calibrators.fit, method, p) == "needs_features"
        assert code_of(inspect.unwrap(assess), p[:250], p[250:], [method]) == "needs_features"


def test_rows_without_trees_are_those_of_the_common_map():
    p, features, _ = draw(500, seed=3, effect=0.0)
    fitted = MultiCalibrated.fit(p, features)
    assert len(fitted.trees) == 0
    assert np.array_equal(fitted.apply(p, features).logits, p.double().apply(fitted.pooled).logits)


def test_copies_within_clusters_add_no_evidence():
    null, null_features, _ = draw(1500, seed=5, effect=0.0)
    tenfold = {name: np.tile(values, 10) for name, values in null_features.items()}
    rows = np.tile(np.arange(1500), 10)
    null_copies = Predictions(null.logits[rows], null.labels[rows], clusters=rows)
    assert len(MultiCalibrated.fit(null_copies, tenfold).trees) == 0


def test_forms_of_features_agree(torch):
    p, features, _ = draw(800, seed=6)
    fitted = MultiCalibrated.fit(p, features)
    frame = polars.DataFrame(features)
    reordered = frame.select("noise", "sex", "age")
    for form in (frame, reordered):
        assert np.array_equal(MultiCalibrated.fit(p, frame).apply(p, form).logits, fitted.apply(p, features).logits)
    numbers = np.stack([features["age"], features["noise"]], 1)
    of_array = MultiCalibrated.fit(p, numbers)
    assert of_array.schema.names == ("x0", "x1")
    expected = of_array.apply(p, numbers).logits
    assert np.array_equal(of_array.apply(p, torch.from_numpy(numbers).requires_grad_()).logits, expected)
    rounded = torch.from_numpy(numbers).bfloat16()
    assert np.array_equal(of_array.apply(p, rounded).logits, of_array.apply(p, rounded.double().numpy()).logits)


def test_missing_and_new_values_have_a_place():
    p, features, _ = draw(2000, seed=7)
    age = features["age"].astype(float)
    age[::7] = np.nan
    sex = features["sex"].astype(object)
    sex[::11] = None
    fitted = MultiCalibrated.fit(p, {"age": age, "sex": sex})
    new = {"age": [np.nan, 20.0, None], "sex": ["f", "x", None]}
    assert np.isfinite(fitted.apply(p[:3], new).logits).all()
    unknown = fitted.apply(p[:1], {"age": [20.0], "sex": ["x"]}).logits
    assert np.array_equal(unknown, fitted.apply(p[:1], {"age": [20.0], "sex": [None]}).logits)


def test_files_keep_every_bit(tmp_path):
    p, features, _ = draw(1500, seed=8)
    fitted = MultiCalibrated.fit(p, features)
    fitted.save(tmp_path / "m.safetensors")
    loaded = MultiCalibrated.load(tmp_path / "m.safetensors")
    assert np.array_equal(loaded.apply(p, features).logits, fitted.apply(p, features).logits)
    assert str(loaded.evaluate(p, features)) == str(fitted.evaluate(p, features))
    calibrators.save(fitted.pooled, tmp_path / "c.safetensors")
    assert code_of(MultiCalibrated.load, tmp_path / "c.safetensors") == "file_content"


def test_the_table_names_the_level_of_its_intervals():
    p, features, _ = draw(1500, seed=8)
    fitted = MultiCalibrated.fit(p, features)
    assert "95 % interval" in str(fitted.evaluate(p, features, level=0.95)).partition("\n")[0]


def test_table_tells_whether_anything_was_corrected():
    p, features, _ = draw(1500, seed=8)
    corrected = MultiCalibrated.fit(p, features)
    as_is = replace(corrected, trees=corrected.trees[:0])
    tables = [fitted.evaluate(p, features) for fitted in (corrected, as_is)]
    assert [table.num_trees for table in tables] == [len(corrected.trees), 0]
    assert len(str(tables[1]).splitlines()) == len(str(tables[0]).splitlines()) + (len(corrected.trees) > 0)


def test_named_classes_may_come_in_any_order():
    p, features, _ = draw(1500, seed=11, k=3)
    named = Predictions(p.logits, p.labels, class_names=("a", "b", "c"))
    fitted = MultiCalibrated.fit(named, features)
    shuffled = Predictions(p.logits[:, [2, 0, 1]], (p.labels + 1) % 3, class_names=("c", "a", "b"))
    after = [fitted.apply(q, features).logits for q in (shuffled, named)]
    np.testing.assert_allclose(*after, rtol=1e-7, atol=1e-7)
    assert code_of(fitted.apply, draw(5, seed=0, k=4)[0], {n: v[:5] for n, v in features.items()}) == "num_classes"


def test_bad_input_is_refused():
    p, features, _ = draw(300, seed=9)
    assert code_of(MultiCalibrated.fit, p, {"age": features["age"][:5]}) == "features_shape"
    assert code_of(MultiCalibrated.fit, p, {}) == "features_shape"
    assert code_of(MultiCalibrated.fit, p[:50], {"age": features["age"][:50]}) == "few_examples"
    fitted = MultiCalibrated.fit(p, features)
    assert code_of(fitted.apply, p, {"age": features["age"]}) == "no_column"
    assert code_of(fitted.apply, p, features | {"age": ["old"] * 300}) == "texts"
    assert code_of(fitted.apply, p, features | {"sex": np.arange(300) % 2}) == "texts"
    assert len(fitted.apply(p, features | {"sex": np.full(300, np.nan)})) == 300


def test_categories_and_numbers_are_found_in_any_form():
    columns = {"texts": np.array(["1", "2", "1"]), "numbers": np.array([Decimal(3), np.int64(4), None], dtype=object)}
    schema = FeatureSchema.from_columns(columns)
    expected = np.array([[0.0, 3.0], [1.0, 4.0], [0.0, -np.inf]])
    for texts in ([b"1", b"2", b"1"], [1, 2, 1], [1.0, 2.0, 1.0]):
        assert np.array_equal(schema.encode(columns | {"texts": np.array(texts)}), expected)
    pandas = pytest.importorskip("pandas")
    assert FeatureSchema.from_columns({"x": np.array(["a", pandas.NA], dtype=object)}).categories == (("a",),)


def test_a_tree_makes_the_best_split():
    """The first split is the one whose gain, computed for each split by its definition, is largest."""
    from calibrant.calibrators.subgroups._trees import LEAF_PRIOR, SplitGrid, grow_tree

    rng = np.random.default_rng(10)
    x = rng.integers(0, 6, (200, 3)).astype(float)
    gradient, hessian = rng.standard_normal((2, 200, 1))
    hessian = np.abs(hessian)
    is_category = np.array([False, True, False])
    cuts = [np.arange(5.0), np.arange(6.0)]
    tree = grow_tree(SplitGrid.from_cuts(x, [*cuts, cuts[0]], is_category), gradient, hessian, depth=1, min_rows=20)

    def score(mask):
        return float(gradient[mask].sum() ** 2 / (hessian[mask].sum() + LEAF_PRIOR))

    gains = {}
    for j in range(3):
        for cut in range(6):
            mask = x[:, j] == cut if is_category[j] else x[:, j] <= cut
            if min(int(mask.sum()), int((~mask).sum())) >= 20:
                gains[j, cut] = score(mask) + score(~mask)
    best = max(gains, key=gains.__getitem__)
    assert (int(tree.features[0, 0]), float(tree.cuts[0, 0])) == best
    mask = x[:, best[0]] == best[1] if is_category[best[0]] else x[:, best[0]] <= best[1]
    value = -gradient[mask].sum() / (hessian[mask].sum() + LEAF_PRIOR)
    assert np.allclose(tree(x)[mask], value)
