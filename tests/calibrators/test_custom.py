"""A user's calibrator: a plain class without a certificate, whose fit takes no weights."""

import numpy as np
import pytest
import torch
from calibrant.registry import CALIBRATORS
from refusals import refused

from calibrant import Predictions, calibrators
from calibrant._core.tensors import logit_tensor
from calibrant.calibrators import Chain, Temperature, calibrate, cross_fit, fitting_digests, load, save


class Halved:
    """Apply a calibrator and divide by a learned number."""

    def __init__(self, scale, inner):
        self.scale = scale
        self.inner = inner
        self.words = ("a", 1, 0.5)

    @classmethod
    def fit(cls, logits, labels):
        return cls(logits.abs().amax() / 4, Temperature.fit(logits, labels))

    def __call__(self, logits):
        return self.inner(logits) / self.scale


class Weighing(Halved):
    @classmethod
    def fit(cls, logits, labels, weights=None):
        return cls(logits.abs().amax() + (0 if weights is None else weights.sum()), Temperature.fit(logits, labels))


@pytest.fixture
def custom(monkeypatch):
    monkeypatch.setitem(CALIBRATORS._methods, "Halved", Halved)
    return Halved


@pytest.fixture
def data() -> Predictions:
    g = torch.Generator().manual_seed(0)
    z = 2 * torch.randn(200, 3, dtype=torch.float64, generator=g)
    return Predictions(2 * z, torch.multinomial(z.softmax(-1), 1, generator=g).squeeze(1))


def test_custom_calibrator_is_fitted_by_name_by_class_and_in_a_chain(custom, data):
    fitted = calibrators.fit("Halved", data)
    assert np.array_equal(fitted(logit_tensor(data)), calibrators.fit(custom, data)(logit_tensor(data)))
    chain = Chain.fit(data, first="Halved", second="Identity")
    torch.testing.assert_close(chain(logit_tensor(data)), fitted(logit_tensor(data)))
    again = Chain.fit(data, first="Temperature", second="Halved", warm_start=Chain.fit(data, second="Halved"))
    assert isinstance(again.second, Halved)
    assert again.certificate.nll_after > 0


def test_chain_starts_from_another_although_a_part_cannot(data):
    begun = Chain.fit(data, second="Identity")
    again = Chain.fit(data, second="Identity", warm_start=begun)
    torch.testing.assert_close(again(logit_tensor(data)), begun(logit_tensor(data)), rtol=0, atol=1e-6)


def test_custom_calibrator_refuses_its_fitting_data(custom, data):
    fitted = custom.fit(logit_tensor(data), data.labels)
    assert fitting_digests(fitted) == {data.digest}  # of the calibrator inside
    with refused("fitted_on_same", "Halved"):
        calibrate(fitted, data)
    assert len(calibrate(fitted, data[:50])) == 50
    assert len(cross_fit("Halved", data)) == len(cross_fit(custom, data)) == 200


def test_custom_calibrator_is_saved_by_attribute_and_loaded_only_if_known(data, tmp_path):
    fitted = Halved.fit(logit_tensor(data), data.labels)
    path = tmp_path / "mine.safetensors"
    save(fitted, path)
    with refused("unknown_class", "extra_classes=[Halved]"):
        load(path)
    back = load(path, extra_classes=[Halved])
    assert np.array_equal(back(logit_tensor(data)), fitted(logit_tensor(data)))
    assert vars(back).keys() == vars(fitted).keys()
    assert back.words == ("a", 1, 0.5)
    assert fitting_digests(back) == fitting_digests(fitted)


def test_registered_calibrator_is_loaded_by_its_name(custom, data, tmp_path):
    chain = Chain.fit(data, first="Halved", second="Temperature")
    save(chain, tmp_path / "c.safetensors")
    back = load(tmp_path / "c.safetensors")
    assert np.array_equal(back(logit_tensor(data)), chain(logit_tensor(data)))
    assert isinstance(back.first, Halved)


def test_field_of_unknown_type_is_refused(data, tmp_path):
    fitted = Halved.fit(logit_tensor(data), data.labels)
    fitted.words = object()
    with refused("field_kind", "words"):
        save(fitted, tmp_path / "x.safetensors")


@pytest.mark.parametrize("how", [lambda p: calibrators.fit("Halved", p), lambda p: calibrators.fit(Halved, p)])
def test_weights_are_refused_by_a_fit_without_weights(custom, data, how):
    weighted = Predictions(logit_tensor(data), data.labels, torch.ones(200))
    with refused("weights_refused", "Halved"):
        how(weighted)
    for name in "first", "second":
        with refused("weights_refused", "Halved"):
            Chain.fit(weighted, **{"first": "Temperature", "second": "Temperature"} | {name: "Halved"})
    assert float(calibrators.fit(Weighing, weighted).scale) == pytest.approx(
        200 + float(logit_tensor(data).abs().amax())
    )
