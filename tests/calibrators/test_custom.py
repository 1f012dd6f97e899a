"""A user's calibrator: a plain class without a certificate, whose fit takes no weights."""

import numpy as np
import pytest
from calibrant.registry import CALIBRATORS
from drawn import drawn_labels
from refusals import refused

from calibrant import Predictions, calibrators
from calibrant.calibrators import Chain, Temperature, calibrate, cross_fit, fitting_digests, load, save


class Halved:
    """Apply a calibrator and divide by a learned number."""

    def __init__(self, scale, inner):
        self.scale = scale
        self.inner = inner
        self.words = ("a", 1, 0.5)

    @classmethod
    def fit(cls, logits, labels):
        return cls(abs(logits).max() / 4, Temperature.fit(logits, labels))

    def __call__(self, logits):
        return self.inner(logits) / self.scale


class Weighing(Halved):
    @classmethod
    def fit(cls, logits, labels, weights=None):
        return cls(abs(logits).max() + (0 if weights is None else weights.sum()), Temperature.fit(logits, labels))


@pytest.fixture
def custom(monkeypatch):
    monkeypatch.setitem(CALIBRATORS._methods, "Halved", Halved)
    return Halved


@pytest.fixture
def data() -> Predictions:
    rng = np.random.default_rng(0)
    z = 2 * rng.standard_normal((200, 3))
    return Predictions(2 * z, drawn_labels(z, rng))


def test_custom_calibrator_is_fitted_by_name_by_class_and_in_a_chain(custom, data):
    fitted = calibrators.fit("Halved", data)
    assert np.array_equal(fitted(data.logits), calibrators.fit(custom, data)(data.logits))
    chain = Chain.fit(data, first="Halved", second="Identity")
    np.testing.assert_allclose(chain(data.logits), fitted(data.logits), rtol=1e-7)
    again = Chain.fit(data, first="Temperature", second="Halved", warm_start=Chain.fit(data, second="Halved"))
    assert isinstance(again.second, Halved)
    assert again.certificate.nll_after > 0


def test_chain_starts_from_another_although_a_part_cannot(data):
    begun = Chain.fit(data, second="Identity")
    again = Chain.fit(data, second="Identity", warm_start=begun)
    np.testing.assert_allclose(again(data.logits), begun(data.logits), rtol=0, atol=1e-6)


def test_custom_calibrator_refuses_its_fitting_data(custom, data):
    fitted = custom.fit(data.logits, data.labels)
    assert fitting_digests(fitted) == {data.digest}  # of the calibrator inside
    with refused("fitted_on_same", "Halved"):
        calibrate(fitted, data)
    assert len(calibrate(fitted, data[:50])) == 50
    assert len(cross_fit("Halved", data)) == len(cross_fit(custom, data)) == 200


def test_custom_calibrator_is_saved_by_attribute_and_loaded_only_if_known(data, tmp_path):
    fitted = Halved.fit(data.logits, data.labels)
    path = tmp_path / "mine.safetensors"
    save(fitted, path)
    with refused("unknown_class", "extra_classes=[Halved]"):
        load(path)
    back = load(path, extra_classes=[Halved])
    assert np.array_equal(back(data.logits), fitted(data.logits))
    assert vars(back).keys() == vars(fitted).keys()
    assert back.words == ("a", 1, 0.5)
    assert fitting_digests(back) == fitting_digests(fitted)


def test_registered_calibrator_is_loaded_by_its_name(custom, data, tmp_path):
    chain = Chain.fit(data, first="Halved", second="Temperature")
    save(chain, tmp_path / "c.safetensors")
    back = load(tmp_path / "c.safetensors")
    assert np.array_equal(back(data.logits), chain(data.logits))
    assert isinstance(back.first, Halved)


def test_calibrator_that_computes_with_tensors_alone_agrees(torch, data, tmp_path):
    class OfTensors(Halved):
        @classmethod
        def fit(cls, logits, labels):
            return cls(logits.abs().amax() / 4, Temperature.fit(logits, labels))

    fitted, expected = calibrators.fit(OfTensors, data), calibrators.fit(Halved, data)
    assert np.array_equal(data.apply(fitted).logits, data.apply(expected).logits)
    save(fitted, tmp_path / "t.safetensors")
    back = load(tmp_path / "t.safetensors", extra_classes=[OfTensors])
    z = torch.from_numpy(data.logits)
    assert torch.equal(back(z), fitted(z))


def test_field_of_unknown_type_is_refused(data, tmp_path):
    fitted = Halved.fit(data.logits, data.labels)
    fitted.words = object()
    with refused("field_kind", "words"):
        save(fitted, tmp_path / "x.safetensors")


@pytest.mark.parametrize("how", [lambda p: calibrators.fit("Halved", p), lambda p: calibrators.fit(Halved, p)])
def test_weights_are_refused_by_a_fit_without_weights(custom, data, how):
    weighted = Predictions(data.logits, data.labels, np.ones(200))
    with refused("weights_refused", "Halved"):
        how(weighted)
    for name in "first", "second":
        with refused("weights_refused", "Halved"):
            Chain.fit(weighted, **{"first": "Temperature", "second": "Temperature"} | {name: "Halved"})
    assert calibrators.fit(Weighing, weighted).scale == pytest.approx(200 + abs(data.logits).max())
