"""Preservation of the argmax in every precision, and the number of classes that a map accepts."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from calibrant.registry import CALIBRATORS
from refusals import refused

from calibrant import Predictions, calibrators
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

TYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
QUICK = {"Auto": "Auto(folds=2)", "FocalTemperature": "FocalTemperature(gamma=0.5, grid='code')"}
CAPABILITIES = {name: calibrators.capabilities(CALIBRATORS[name]) for name in sorted(CALIBRATORS)}
PRESERVING = [QUICK.get(name, name) for name, promised in CAPABILITIES.items() if promised.preserves_argmax is True]
PRESERVING.append("Auto(accuracy_preserving=True)")
TOP = ["HistogramBinning", "TopLabelBinning", "ScalingBinning", "BayesianBinning", "Spline"]
BINARY = {name for name, promised in CAPABILITIES.items() if promised.num_classes == 2}


def drawn(n: int, k: int, seed: int = 0) -> Predictions:
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(n, k, generator=g)
    return Predictions(3 * z, torch.multinomial(z.softmax(-1), 1, generator=g).squeeze(1))


def close(dtype: torch.dtype) -> torch.Tensor:
    """Return rows whose two highest logits differ by one rounding step, at many magnitudes; class 1 is the top."""
    low = torch.logspace(-3, 1, 400, dtype=torch.float64).to(dtype)
    high = low + (low.abs() * torch.finfo(dtype).eps).clamp_min(torch.finfo(dtype).tiny)
    rows = torch.stack([low, high, -low, low - 2], 1)
    return rows[high > low]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name", PRESERVING)
def test_nearly_equal_logits_keep_their_order(name, dtype):
    fitted, rows = calibrators.fit(name, drawn(300, 4)), close(dtype)
    assert preserves_argmax(fitted)
    after = fitted(rows)
    assert after.dtype == dtype
    assert np.array_equal(after.argmax(1), rows.argmax(1))
    assert np.array_equal(rows.argmax(1), torch.ones(len(rows), dtype=torch.int64))  # the rows are what they should be


def test_chain_preserves_the_argmax_if_both_maps_do():
    t = Temperature(torch.tensor(3.0))
    assert preserves_argmax(Chain(t, t))
    assert not preserves_argmax(Chain(t, StructuredMatrix.fit(drawn(100, 3))))
    rows = close(torch.bfloat16)
    assert np.array_equal(Chain(t, t)(rows).argmax(1), rows.argmax(1))


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize("name", PRESERVING + TOP)
def test_no_prediction_of_real_networks_changes(shared, name):
    """A predicted class may change only if its new confidence is 1/k or less (`HistogramBinning`)."""
    sets = sorted((shared / "logits").glob("*.test.npz"))
    assert len(sets) > 5
    for path in sets:
        z, y = (torch.from_numpy(np.load(path)[key]) for key in ("logits", "labels"))
        for dtype in TYPES:
            logits = z.to(dtype)
            after = calibrators.fit(name, Predictions(logits[::5], y[::5]))(logits)
            top = logits.argmax(1)
            changed = after.argmax(1) != top
            if name in TOP:
                confidence = after.double().softmax(1).gather(1, top[:, None]).squeeze(1)
                changed &= confidence > 1.01 / z.shape[1]
            assert int(changed.sum()) == 0, (path.name, dtype)


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


def test_integers_and_anything_but_rows_are_refused():
    """Integers were calibrated and then truncated, and one row of logits was sometimes taken for many."""
    temperature, vector = Temperature(torch.tensor(1.5)), calibrators.fit("Vector", drawn(50, 3))
    for calibrator in temperature, vector:
        with refused("tensor_kind"):
            calibrator(torch.tensor([[4, 0, 1]]))
        for shape in (3,), (2, 3, 3):
            with refused("logits_shape"):
                calibrator(torch.zeros(shape))


def test_chain_takes_the_number_of_classes_of_its_members():
    data = drawn(300, 4)
    chain = Chain(Temperature.fit(data), Monotone.fit(data))
    assert num_classes(chain) == 4
    with refused("num_classes", "Chain"):
        chain(drawn(5, 3).logits)
    by_hand = Temperature(torch.tensor(1.5))
    assert num_classes(Chain(by_hand, Temperature.fit(data))) == 4
    assert num_classes(Chain(by_hand, by_hand)) == 0


def test_map_without_a_certificate_accepts_any_number_of_classes():
    fitted = replace(SharedIsotonic.fit(drawn(100, 3)), certificate=None)
    assert num_classes(fitted) == 0
    assert fitted(drawn(5, 4).logits).shape == (5, 4)
