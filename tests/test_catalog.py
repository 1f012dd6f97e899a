import pytest
import torch

from calibrant import InputError, calibrators, catalog, losses, metrics


def polite(logits, labels, *, strength=1.0):
    return strength * losses.cross_entropy(logits, labels)


def test_a_text_means_the_function_with_its_arguments(honest):
    torch.testing.assert_close(catalog.resolve("focal(gamma=2)", losses)(*honest), losses.focal(*honest, gamma=2.0))
    fitted = catalog.resolve("Temperature(criterion='ece')", calibrators)(*honest)
    assert fitted.certificate.criterion == "ece"


def test_a_dotted_path_is_the_users_own(honest, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "mine", sys.modules[__name__])
    own = catalog.resolve("mine.polite(strength=2)", losses)
    torch.testing.assert_close(own(*honest), 2 * losses.cross_entropy(*honest))
    assert catalog.canonical("mine.polite", losses) == "mine.polite(strength=1)"


@pytest.mark.parametrize("text", ["focal", "focal()", " focal ( gamma = 3 )", "focal(gamma=3.0)"])
def test_equal_meaning_has_one_spelling(text):
    assert catalog.canonical(text, losses) == catalog.canonical("focal(gamma=3)", losses)


def test_the_spelling_means_the_same_again():
    for home in losses, metrics, calibrators:
        for name in home.__all__:
            if callable(getattr(home, name)):
                text = catalog.canonical(name, home)
                assert catalog.canonical(text, home) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("foccal", "no 'foccal' among losses; did you mean 'focal'?"),
        ("adafocal", "did you mean 'AdaFocal'?"),
        ("zzz", "no 'zzz' among losses; there are "),
        ("focal(gama=1)", "focal has no 'gama'; it has gamma"),
        ("focal(gamma=", "expected name or name(key=value, ...)"),
        ("focal(3)", "expected name or name(key=value, ...)"),
        ("focal(gamma=print())", "expected name or name(key=value, ...)"),
        ("no.such.module.loss", "cannot import 'no.such.module.loss'"),
    ],
)
def test_mistakes_are_told_of_in_one_line(text, message):
    with pytest.raises(InputError) as caught:
        catalog.resolve(text, losses)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
