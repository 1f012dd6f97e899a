import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from refusals import refused

from calibrant import losses, registry
from calibrant.registry import CALIBRATORS, LOSSES, METRICS, REGISTRIES


def test_a_text_means_the_function_with_its_arguments(honest):
    z, y = honest.logits, honest.labels
    torch.testing.assert_close(LOSSES.resolve("focal(gamma=2)")(z, y), losses.focal(z, y, gamma=2.0))
    fitted = CALIBRATORS.resolve("Temperature(criterion='ece')")(honest)
    assert fitted.certificate.criterion == "ece"


@pytest.mark.parametrize("text", ["focal", "focal()", " focal ( gamma = 3 )", "focal(gamma=3.0)"])
def test_equal_meaning_has_one_spelling_and_is_one_value(text):
    assert LOSSES.canonical(text) == LOSSES.canonical("focal(gamma=3)")
    assert LOSSES.method(text) == LOSSES.method("focal(gamma=3)")
    assert len({LOSSES.method(text), LOSSES.method("focal(gamma=3)"), LOSSES.method("focal(gamma=2)")}) == 2


def test_the_spelling_means_the_same_again():
    for method_registry in REGISTRIES.values():
        for name in method_registry:
            text = method_registry.canonical(name)
            assert method_registry.canonical(text) == text
            assert pickle.loads(pickle.dumps(method_registry.method(name))) == method_registry.method(name)


def test_a_registry_fills_itself():
    assert {"losses", "metrics", "calibrators", "data", "networks", "corruptions", "scores", "traces"} == set(
        REGISTRIES
    )
    for method_registry in REGISTRIES.values():
        assert len(method_registry) > 2


@pytest.mark.parametrize(
    ("text", "code", "mentions"),
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
def test_texts_of_methods_with_mistakes_are_refused(text, code, mentions):
    with refused(code) as caught:
        LOSSES.resolve(text)
    assert [part for part in mentions if part not in str(caught.value)] == []


def test_a_name_belongs_to_one_method():
    def focal(logits, labels):
        return logits[:, 0]

    with refused("name_taken"):
        LOSSES.register(focal)
    LOSSES.register(losses.focal)  # again is no other


def test_words_types_and_ranges_are_held_against_the_annotations(honest):
    for text, wanted in {
        "ece(edges='typo')": "'equal_width' or 'equal_mass'",
        "ece(norm=-1)": "at least 1",
        "ece(bins=0)": "at least 1",
        "ece(bins=2.5)": "a whole number",
        "classwise_ece(reduction='typo')": "'mean' or 'sum'",
        "nll(among='corect')": "'all' or 'correct' or 'wrong'",
        "confident_share(above=1.5)": "above 0 and below 1",
    }.items():
        with refused("setting_range") as caught:
            METRICS.method(text)
        assert wanted in str(caught.value)


OWN = """
import torch
from calibrant import losses, metrics

@losses.register
def {name}(logits, labels, *, strength: float = 1.0):
    return strength * losses.cross_entropy(logits, labels)
"""


def test_ones_own_file_is_included_by_name_and_once(tmp_path):
    file = tmp_path / "polite_losses.py"
    file.write_text(OWN.format(name="polite"))
    program = (
        "import sys; from calibrant import catalog\n"
        f"catalog.include([{str(file)!r}, {str(file)!r}])\n"
        "print(catalog.LOSSES.canonical('polite(strength=2)'), len(catalog.INCLUDED))\n"
        "print('polite' in catalog.LOSSES)\n"
    )
    done = _python(program)
    assert done.stdout.split() == ["polite(strength=2)", "1", "True"], done.stderr


@pytest.mark.parametrize(
    ("source", "text", "code", "mention"),
    [
        ("missing.py", None, "no_file", "missing.py"),
        ("broken.py", "raise RuntimeError('so it is')", "import", "RuntimeError: so it is"),
        ("no_such_package_at_all", None, "import", "ModuleNotFoundError"),
        ("json.py", "x = 1", "module_exists", "'json'"),
    ],
)
def test_files_that_cannot_be_included_are_refused(tmp_path, source, text, code, mention):
    if text is not None:
        (tmp_path / source).write_text(text)
    place = str(tmp_path / source) if source.endswith(".py") else source
    with refused(code) as caught:
        registry.include([place])
    assert mention in str(caught.value)
    assert place not in registry.INCLUDED_SOURCES


def test_entry_points_of_a_package_enroll_its_methods(tmp_path):
    (tmp_path / "othermethods.py").write_text("def gentle(logits, labels):\n    return logits[:, 0] * 0\n")
    info = tmp_path / "othermethods-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: othermethods\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[calibrant.losses]\ngentle = othermethods:gentle\n")
    program = (
        "import sys; from calibrant.registry import LOSSES\n"
        "print('gentle' in list(LOSSES), 'othermethods' in sys.modules)\n"
        "LOSSES.resolve('gentle'); print('othermethods' in sys.modules)\n"
    )
    assert _python(program, tmp_path).stdout.split() == ["True", "False", "True"]


def _python(program: str, *paths: Path) -> subprocess.CompletedProcess[str]:
    source = Path(registry.__file__).parents[1]
    path = ":".join(map(str, [source, *paths]))
    return subprocess.run([sys.executable, "-c", program], env={"PYTHONPATH": path}, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("focal(alpha=0.25)", "nn.Criterion('focal', binary=True, alpha=0.25)"),
        ("focal(weight=1)", "nn.Criterion('focal', weight=torch.tensor([...]))"),
        ("brier(reduction='sum')", "nn.Criterion('brier', reduction='sum')"),
        ("cross_entropy(label_smoothing=0.1)", "cross_entropy(smoothing=0.1)"),
    ],
)
def test_settings_of_other_libraries_are_refused_with_ours(text, says):
    with refused("unknown_setting") as caught:
        LOSSES.resolve(text)
    assert says in str(caught.value)


@pytest.mark.parametrize("kind", ["data", "corruptions"])
def test_data_and_corruptions_have_ranges(kind):
    """No number of theirs may be negative, a fraction of a whole one, or without end, and no other may be told late."""
    for name, method in REGISTRIES[kind].items():
        if not method.__module__.startswith("calibrant."):
            continue
        for key, default in registry.hyperparameters(method).items():
            bad = [-1] if isinstance(default, int | float) and not isinstance(default, bool) else []
            bad += [2.5] if type(default) is int else []
            bad += [0, 6] if key == "severity" else [2**32] if key == "seed" else []
            for value in bad:
                with refused("setting_range") as caught:
                    REGISTRIES[kind].method(f"{name}({key}={value})")
                assert str(caught.value).startswith(f"{name}: {key} ")


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize(
    ("name", "key", "code"),
    [
        ("focal", "gamma", "gamma_range"),
        ("inverse_focal", "gamma", "gamma_range"),
        ("poly1", "epsilon", "epsilon_range"),
        ("AdaFocal", "rate", "setting_range"),
    ],
)
def test_losses_called_directly_refuse_infinite_settings(name, key, code, bad, honest):
    loss = LOSSES[name]
    data = () if isinstance(loss, type) else (honest.logits, honest.labels)
    with refused(code):
        loss(*data, **{key: bad})
