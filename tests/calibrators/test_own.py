"""A calibrator of one's own: a plain class, no dataclass, no certificate, and a fit that knows no weights."""

import pytest
import torch

from calibrant import InputError, Predictions, calibrators
from calibrant.calibrators import Chain, Temperature, calibrate, cross_fit, fitted_on, load, save
from calibrant.catalog import CALIBRATORS


class Halved:
    """Divide by a number that the data choose, and add what a calibrator inside says."""

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
def own(monkeypatch):
    monkeypatch.setitem(CALIBRATORS._methods, "Halved", Halved)
    return Halved


@pytest.fixture
def data() -> Predictions:
    g = torch.Generator().manual_seed(0)
    z = 2 * torch.randn(200, 3, dtype=torch.float64, generator=g)
    return Predictions(2 * z, torch.multinomial(z.softmax(-1), 1, generator=g).squeeze(1))


def test_it_is_fitted_by_name_by_class_and_in_a_chain(own, data):
    fitted = calibrators.fit("Halved", data)
    assert torch.equal(fitted(data.logits), calibrators.fit(own, data)(data.logits))
    chain = Chain.fit(data, first="Halved", second="Identity")
    torch.testing.assert_close(chain(data.logits), fitted(data.logits))
    again = Chain.fit(data, first="Temperature", second="Halved", warm_start=Chain.fit(data, second="Halved"))
    assert isinstance(again.second, Halved)
    assert again.certificate.nll_after > 0


def test_a_chain_begins_from_another_even_where_a_part_cannot(data):
    begun = Chain.fit(data, second="Identity")
    again = Chain.fit(data, second="Identity", warm_start=begun)
    torch.testing.assert_close(again(data.logits), begun(data.logits), rtol=0, atol=1e-6)


def test_it_is_judged_on_other_data_and_cross_fitted(own, data):
    fitted = own.fit(data.logits, data.labels)
    assert fitted_on(fitted) == {data.digest}  # of the calibrator inside
    with pytest.raises(InputError, match="Halved was fitted on these very predictions"):
        calibrate(fitted, data)
    assert len(calibrate(fitted, data[:50])) == 50
    assert len(cross_fit("Halved", data)) == len(cross_fit(own, data)) == 200


def test_it_is_saved_attribute_by_attribute_and_built_only_where_it_is_known(data, tmp_path):
    fitted = Halved.fit(data.logits, data.labels)
    path = tmp_path / "mine.safetensors"
    save(fitted, path)
    with pytest.raises(InputError, match=r"not known here; give its class, load\(path, also=\[Halved\]\), or register"):
        load(path)
    back = load(path, also=[Halved])
    assert torch.equal(back(data.logits), fitted(data.logits))
    assert vars(back).keys() == vars(fitted).keys()
    assert back.words == ("a", 1, 0.5)
    assert fitted_on(back) == fitted_on(fitted)


def test_a_registered_one_is_found_again_by_its_name(own, data, tmp_path):
    chain = Chain.fit(data, first="Halved", second="Temperature")
    save(chain, tmp_path / "c.safetensors")
    back = load(tmp_path / "c.safetensors")
    assert torch.equal(back(data.logits), chain(data.logits))
    assert isinstance(back.first, Halved)


def test_what_is_no_calibrator_is_not_stored(data, tmp_path):
    fitted = Halved.fit(data.logits, data.labels)
    fitted.words = object()
    with pytest.raises(InputError, match="cannot store words of type object"):
        save(fitted, tmp_path / "x.safetensors")


@pytest.mark.parametrize("how", [lambda p: calibrators.fit("Halved", p), lambda p: calibrators.fit(Halved, p)])
def test_weights_it_does_not_know_are_refused_with_its_name(own, data, how):
    weighted = Predictions(data.logits, data.labels, torch.ones(200))
    with pytest.raises(InputError, match=r"^Halved takes no weights, [^\n]*$"):
        how(weighted)
    for name in "first", "second":
        with pytest.raises(InputError, match="Halved takes no weights"):
            Chain.fit(weighted, **{"first": "Temperature", "second": "Temperature"} | {name: "Halved"})
    assert float(calibrators.fit(Weighing, weighted).scale) == pytest.approx(200 + float(data.logits.abs().amax()))
