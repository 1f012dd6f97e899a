"""Names and texts of methods, their hyperparameters, and methods of the user."""

import pickle
import sys

import numpy as np
import pytest
from calibrant.registry import CALIBRATORS, LOSSES, METRICS, REGISTRIES, Registry
from commands import restored_registries
from refusals import refused

from calibrant import registry

needs_torch = pytest.mark.usefixtures("torch")


@pytest.fixture
def rows(torch):
    """Return logits and labels for losses."""
    return torch.randn(200, 3, generator=torch.Generator().manual_seed(0)), torch.arange(200) % 3


def test_resolve_binds_hyperparameters_of_losses(rows):
    from calibrant import losses

    assert LOSSES.resolve("focal(gamma=2)")(*rows).equal(losses.focal(*rows, gamma=2.0))


def test_resolve_binds_hyperparameters_of_calibrators():
    z = np.random.default_rng(0).standard_normal((200, 3))
    fitted = CALIBRATORS.resolve("Temperature(criterion='ece')")(z, np.arange(200) % 3)
    assert fitted.certificate.criterion == "ece"


@pytest.mark.parametrize(
    ("method", "text"),
    [
        (METRICS.method("ece").with_settings(norm=np.float32(3)), "ece(norm=3)"),
        (METRICS.method("ece").with_settings(bins=np.int64(10)), "ece(bins=10)"),
        (CALIBRATORS.method("Temperature").with_settings(grid=np.array([1, 2])), "Temperature(grid=(1, 2))"),
    ],
)
def test_numbers_and_arrays_of_numpy_are_settings(method, text):
    assert method == method.registry.method(text)


def test_a_refused_array_is_shown_on_one_line():
    with refused("setting_range") as caught:
        METRICS.method("ece").with_settings(bins=np.zeros((9, 3)))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["ece", "ece()", " ece ( norm = 1 )", "ece(norm=1.0)"])
def test_equal_methods_have_equal_text(text):
    assert METRICS.canonical(text) == METRICS.canonical("ece(norm=1)")
    assert METRICS.method(text) == METRICS.method("ece(norm=1)")
    assert len({METRICS.method(text), METRICS.method("ece(norm=1)"), METRICS.method("ece(norm=2)")}) == 2


@pytest.mark.parametrize("kind", REGISTRIES)
def test_canonical_text_and_pickles_give_the_same_method(request, kind):
    if kind not in ("metrics", "calibrators"):
        request.getfixturevalue("torch")
    method_registry = REGISTRIES[kind]
    for name in method_registry:
        text = method_registry.canonical(name)
        assert method_registry.canonical(text) == text
        assert pickle.loads(pickle.dumps(method_registry.method(name))) == method_registry.method(name)


@needs_torch
def test_registries_fill_themselves():
    kinds = {"losses", "metrics", "calibrators", "data", "networks", "corruptions", "scores", "traces"}
    assert kinds == set(REGISTRIES)
    assert {kind for kind, method_registry in REGISTRIES.items() if len(method_registry) <= 2} == {"corruptions"}
    assert len(REGISTRIES["corruptions"]) > 0


@pytest.mark.parametrize(
    ("docstring", "title"),
    [
        ("Focal loss, $-x$ (Lin et al. 2017).", "Focal loss"),
        ("Compute the focal loss, $-x$ (Lin et al. 2017).", "Focal loss"),
        ("Return an estimate: the mean.", "Estimate"),
        ("A map of all groups.", "Map of all groups"),
        ("ECE of the top class.", "ECE of the top class"),
        ("Blur by 0.3 .. 1.5 pixels. Edges are mirrored.", "Blur by 0.3 .. 1.5 pixels"),
        ("CIFAR-100. `cifar10` explains the arguments.", "CIFAR-100"),
        ("Digits as in Mukhoti et al. (2020).", "Digits as in Mukhoti et al."),
        (None, ""),
    ],
)
def test_title_is_the_first_phrase_of_the_docstring(docstring, title):
    def described(logits, labels):
        return logits[:, 0]

    described.__doc__ = docstring
    method_registry = Registry("examples", "calibrant")
    method_registry.register(described)
    assert method_registry.title("described") == title


@needs_torch
@pytest.mark.parametrize(
    ("text", "code", "parts"),
    [
        ("foccal", "unknown_method", ("'foccal'", "losses", "'focal'")),
        ("adafocal", "unknown_method", ("'AdaFocal'",)),
        ("zzz", "unknown_method", ("'zzz'", "brier, ")),
        ("focal(gama=1)", "unknown_setting", ("'gama'", "gamma")),
        ("focal(gamma=", "method_text", ()),
        ("focal(3)", "method_text", ()),
        ("focal(gamma=print())", "method_text", ()),
        ("focal(gamma=1, gamma=2)", "method_text", ()),
        ("focal(**{'gamma': 3})", "method_text", ()),
        ("focal(gamma='three')", "setting_range", ("focal", "gamma")),
        ("cross_entropy(off_target='j')", "setting_range", ("off_target", "'k'", "'k-1'", "'j'")),
        ("os.system", "method_text", ()),
    ],
)
def test_invalid_texts_are_refused(text, code, parts):
    with refused(code, *parts):
        LOSSES.resolve(text)


@needs_torch
def test_second_method_of_a_name_is_refused():
    from calibrant import losses

    def focal(logits, labels):
        return logits[:, 0]

    with refused("name_taken"):
        LOSSES.register(focal)
    LOSSES.register(losses.focal)  # the same method again is accepted


def test_values_outside_the_annotation_are_refused():
    for text, allowed in {
        "ece(edges='typo')": "'equal_width' or 'equal_mass'",
        "ece(norm=-1)": "[1, inf]",
        "ece(bins=0)": "[1, 1000000]",
        "ece(bins=2.5)": "a whole number",
        "classwise_ece(reduction='typo')": "'mean' or 'sum'",
        "nll(among='corect')": "'all' or 'correct' or 'wrong'",
        "confident_share(above=1.5)": "(0, 1)",
    }.items():
        with refused("setting_range", allowed):
            METRICS.method(text)


LOSS_FILE = """
import torch
from calibrant import losses, metrics

@losses.register
def {name}(logits, labels, *, strength: float = 1.0):
    return strength * losses.cross_entropy(logits, labels)
"""


@needs_torch
def test_file_is_included_once(tmp_path):
    file = tmp_path / "polite_losses.py"
    file.write_text(LOSS_FILE.format(name="polite"))
    with restored_registries():
        registry.include([str(file), str(file)])
        assert registry.INCLUDED_SOURCES.count(str(file)) == 1
        assert LOSSES.canonical("polite(strength=2)") == "polite(strength=2)"


@pytest.mark.parametrize(
    ("source", "text", "code", "part"),
    [
        ("missing.py", None, "no_file", "missing.py"),
        ("broken.py", "raise RuntimeError('so it is')", "import", "RuntimeError: so it is"),
        ("no_such_package_at_all", None, "import", "ModuleNotFoundError"),
        ("json.py", "x = 1", "module_exists", "'json'"),
    ],
)
def test_sources_that_cannot_be_included_are_refused(tmp_path, source, text, code, part):
    if text is not None:
        (tmp_path / source).write_text(text)
    path = str(tmp_path / source) if source.endswith(".py") else source
    with refused(code, part):
        registry.include([path])
    assert path not in registry.INCLUDED_SOURCES


def test_entry_points_register_methods_on_first_use(tmp_path, monkeypatch):
    (tmp_path / "othermethods.py").write_text("def gentle(logits, labels):\n    return logits[:, 0] * 0\n")
    info = tmp_path / "othermethods-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: othermethods\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[calibrant.examples]\ngentle = othermethods:gentle\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "othermethods", raising=False)
    method_registry = Registry("examples", "calibrant")
    assert "gentle" in list(method_registry)
    assert "othermethods" not in sys.modules
    assert method_registry.resolve("gentle")(np.ones((200, 3)), None).tolist() == [0] * 200
    assert "othermethods" in sys.modules
    del sys.modules["othermethods"]


@needs_torch
@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("focal(alpha=0.25)", "nn.Criterion('focal', binary=True, alpha=0.25)"),
        ("focal(weight=1)", "nn.Criterion('focal', weight=torch.tensor([...]))"),
        ("brier(reduction='sum')", "nn.Criterion('brier', reduction='sum')"),
        ("cross_entropy(label_smoothing=0.1)", "cross_entropy(smoothing=0.1)"),
    ],
)
def test_parameters_of_other_libraries_are_refused_with_a_hint(text, hint):
    with refused("unknown_setting", hint):
        LOSSES.resolve(text)


@needs_torch
@pytest.mark.parametrize("kind", ["data", "corruptions"])
def test_settings_of_data_and_corruptions_have_ranges(kind):
    for name, method in REGISTRIES[kind].items():
        if not method.__module__.startswith("calibrant."):
            continue
        for key, default in registry.hyperparameters(method).items():
            bad = [-1] if isinstance(default, int | float) and not isinstance(default, bool) else []
            bad += [2.5] if type(default) is int else []
            bad += [0, 6] if key == "severity" else [2**32] if key == "seed" else []
            for value in bad:
                with refused("setting_range", name, key):
                    REGISTRIES[kind].method(f"{name}({key}={value})")


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize(
    ("name", "key"), [("focal", "gamma"), ("inverse_focal", "gamma"), ("poly1", "epsilon"), ("AdaFocal", "rate")]
)
def test_losses_called_directly_refuse_infinite_settings(rows, name, key, bad):
    loss = LOSSES[name]
    data = () if isinstance(loss, type) else rows
    with refused("setting_range"):
        loss(*data, **{key: bad})


def test_losses_called_directly_check_settings_and_weights(rows, torch):
    for name, settings in (
        ("class_balanced", {"counts": (3, 2, 1), "beta": 99.99}),
        ("soft_ece", {"bins": 0}),
        ("logit_normalized", {"temperature": 0}),
        ("flsd", {"gammas": [-5.0, 3.0]}),
        ("entropy_regularized", {"strength": float("nan")}),
        ("dual_focal", {"gamma": np.float32(-1)}),
        ("focal", {"detach_weight": "no"}),
    ):
        for _ in range(2):  # what was refused once is refused again
            with refused("setting_range", name):
                LOSSES[name](*rows, **settings)
    with refused("unknown_setting", "cross_entropy(smoothing=0.1)"):
        LOSSES["cross_entropy"](*rows, label_smoothing=0.1)
    for weights in (-1, torch.tensor(-1.0), torch.ones(3), torch.full((200,), -1.0)):
        with refused("weights"):
            LOSSES["dca"](*rows, weights=weights)
    assert LOSSES["class_balanced"](*rows, counts=torch.tensor([3, 2, 1])).shape == (200,)
