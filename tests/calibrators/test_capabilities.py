"""Preservation of the argmax in every precision, and the number of classes that a map accepts."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from calibrant.registry import CALIBRATORS
from drawn import drawn_labels
from refusals import refused
from scipy.special import softmax

from calibrant import Predictions, calibrators
from calibrant._core.arrays import to_numpy
from calibrant.calibrators import (
    Chain,
    Monotone,
    SharedIsotonic,
    StructuredMatrix,
    Temperature,
    load,
    num_classes,
    preserves_argmax,
    save,
)

TYPES = ["float16", "float32", "float64"]
TENSOR_TYPES = ["torch.float16", "torch.bfloat16", "torch.float32", "torch.float64"]
QUICK = {"Auto": "Auto(folds=2)", "FocalTemperature": "FocalTemperature(gamma=0.5, grid='code')"}
CAPABILITIES = {name: calibrators.capabilities(CALIBRATORS[name]) for name in sorted(CALIBRATORS)}
PRESERVING = [QUICK.get(name, name) for name, promised in CAPABILITIES.items() if promised.preserves_argmax is True]
PRESERVING.append("Auto(accuracy_preserving=True)")
TOP = ["HistogramBinning", "TopLabelBinning", "ScalingBinning", "BayesianBinning", "Spline"]
BINARY = {name for name, promised in CAPABILITIES.items() if promised.num_classes == 2}


def drawn(n: int, k: int, seed: int = 0) -> Predictions:
    rng = np.random.default_rng(seed)
    z = rng.standard_normal((n, k), dtype=np.float32)
    return Predictions(3 * z, drawn_labels(z, rng))


def library_and_type(dtype: str):
    """Return numpy or torch, which may be missing, and its type of this name."""
    library = pytest.importorskip("torch") if dtype.startswith("torch.") else np
    return library, getattr(library, dtype.removeprefix("torch."))


def close(dtype: str):
    """Return rows whose two highest logits differ by one rounding step, at many magnitudes; class 1 is the top."""
    library, precision = library_and_type(dtype)
    low, info = library.asarray(np.logspace(-3, 1, 400), dtype=precision), library.finfo(precision)
    high = low + (low * info.eps).clip(info.tiny)
    rows = library.stack([low, high, -low, low - 2], 1)
    return rows[high > low]


@cache
def fitted_to_draw(name: str):
    return calibrators.fit(name, drawn(300, 4))


@pytest.mark.parametrize("dtype", TYPES + TENSOR_TYPES)
@pytest.mark.parametrize("name", PRESERVING)
def test_nearly_equal_logits_keep_their_order(name, dtype):
    fitted, rows = fitted_to_draw(name), close(dtype)
    assert preserves_argmax(fitted)
    after = fitted(rows)
    assert after.dtype == rows.dtype == library_and_type(dtype)[1]
    assert len(rows) > 100
    assert (after.argmax(1) == 1).all()
    assert (rows.argmax(1) == 1).all()  # the rows are what they should be


@pytest.mark.parametrize("dtype", ["float16", "torch.bfloat16"])
def test_chain_preserves_the_argmax_if_both_maps_do(dtype):
    t = Temperature(3.0)
    assert preserves_argmax(Chain(t, t))
    assert not preserves_argmax(Chain(t, StructuredMatrix.fit(drawn(100, 3))))
    rows = close(dtype)
    assert np.array_equal(Chain(t, t)(rows).argmax(1), rows.argmax(1))


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize("dtype", [*TYPES, "torch.bfloat16"])
@pytest.mark.parametrize("name", PRESERVING + TOP)
def test_no_prediction_of_real_networks_changes(shared, name, dtype):
    """A predicted class may change only if its new confidence is 1/k or less (`HistogramBinning`)."""
    sets = sorted((shared / "logits").glob("*.test.npz"))
    assert len(sets) > 5
    library, precision = library_and_type(dtype)
    for path in sets:
        z, y = (np.load(path)[key] for key in ("logits", "labels"))
        logits = library.asarray(z, dtype=precision)
        after = to_numpy(calibrators.fit(name, Predictions(logits[::5], y[::5]))(logits))
        top = to_numpy(logits).argmax(1)
        changed = after.argmax(1) != top
        if name in TOP:
            changed &= softmax(after.astype(float), 1)[np.arange(len(top)), top] > 1.01 / z.shape[1]
        assert changed.sum() == 0, path.name


# Classes


@pytest.mark.parametrize("name", sorted(set(CALIBRATORS) - {"Chain"}))
def test_logits_of_other_numbers_of_classes_are_refused(name, tmp_path):
    k = 2 if name in BINARY else 4
    fitted = calibrators.fit(QUICK.get(name, name), drawn(300, k))
    if hasattr(fitted, "certificate"):
        assert fitted.certificate.classes == k
    save(fitted, tmp_path / "c.safetensors")
    back = load(tmp_path / "c.safetensors")
    for other_k in (2, 3, 7, 40):
        logits = drawn(5, other_k, 1).logits
        if name == "Identity" or other_k == k:
            assert fitted(logits).shape == back(logits).shape == logits.shape
            continue
        for map_ in (fitted, back):
            with refused("num_classes"):
                map_(logits)


@pytest.mark.parametrize("dtype", ["float32", "torch.float32"])
def test_integers_and_anything_but_rows_are_refused(dtype):
    """Integers were calibrated and then truncated, and one row of logits was sometimes taken for many."""
    library, _ = library_and_type(dtype)
    temperature, vector = Temperature(1.5), calibrators.fit("Vector", drawn(50, 3))
    for calibrator in temperature, vector:
        with refused("tensor_kind"):
            calibrator(library.asarray([[4, 0, 1]]))
        for shape in (3,), (2, 3, 3):
            with refused("logits_shape"):
                calibrator(library.zeros(shape))


def test_chain_takes_the_number_of_classes_of_its_members():
    data = drawn(300, 4)
    chain = Chain(Temperature.fit(data), Monotone.fit(data))
    assert num_classes(chain) == 4
    with refused("num_classes", "Chain"):
        chain(drawn(5, 3).logits)
    by_hand = Temperature(1.5)
    assert num_classes(Chain(by_hand, Temperature.fit(data))) == 4
    assert num_classes(Chain(by_hand, by_hand)) == 0


def test_map_without_a_certificate_accepts_any_number_of_classes():
    fitted = replace(SharedIsotonic.fit(drawn(100, 3)), certificate=None)
    assert num_classes(fitted) == 0
    assert fitted(drawn(5, 4).logits).shape == (5, 4)
