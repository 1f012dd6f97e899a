"""Exported files: the same numbers as the calibrator, with numpy alone, for every calibrator, sets and thresholds."""

import runpy
import subprocess
import sys
from dataclasses import dataclass, replace

import numpy as np
import pytest
from calibrant.registry import CALIBRATORS
from commands import run
from drawn import drawn_labels
from golden_problems import ONE_SCORE
from refusals import code_of
from scipy.special import softmax

from calibrant import Predictions, calibrators
from calibrant.calibrators import maps
from calibrant.decisions import CrossSets, Sets, certify_threshold
from calibrant.deployment import Contract, export
from calibrant.language_models.fusion import Fusion

QUICK = {  # the same methods with less work
    "Auto": "Auto(folds=2)",
    "Chain": "Chain(first='Temperature', second='Vector')",
    "FocalTemperature": "FocalTemperature(criterion='nll', grid='code', search='line')",
}
# Imports numpy first, and refuses everything else that is not in the standard library
NUMPY_ALONE = """
import sys, numpy
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in sys.stdlib_module_names | {"numpy"}:
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
import runpy
module = runpy.run_path(sys.argv[1])
numpy.save(sys.argv[3], module["probabilities"](numpy.load(sys.argv[2])))
"""


def hard_logits(k, n=300):
    """Return logits with saturated, tied, impossible and rounded rows."""
    z = np.random.default_rng(5).normal(scale=4, size=(n, k))
    z[0], z[1], z[2, 0], z[3] = 50 * z[0], 0.0, -np.inf, z[3].round()
    return z


@pytest.mark.parametrize("name", sorted(CALIBRATORS))
def test_numpy_file_gives_the_same_probabilities(tmp_path, name):
    k = 2 if name in ONE_SCORE else 3
    fitted, z = calibrators.fit(QUICK.get(name, name), draw(300, k)), hard_logits(k)
    export(fitted, tmp_path / "map.py")
    module = runpy.run_path(str(tmp_path / "map.py"))
    np.testing.assert_allclose(module["probabilities"](z), softmax(fitted(z), 1), rtol=0, atol=1e-9)
    assert module["probabilities"](z[:0]).shape == (0, k)  # no rows


def test_numpy_file_needs_numpy_alone(tmp_path):
    fitted, z = calibrators.fit(QUICK["Auto"], draw(300, 3)), hard_logits(3)
    export(fitted, tmp_path / "map.py")
    np.save(tmp_path / "z.npy", z)
    paths = (str(tmp_path / name) for name in ("map.py", "z.npy", "p.npy"))
    subprocess.run([sys.executable, "-I", "-c", NUMPY_ALONE, *paths], check=True)
    np.testing.assert_allclose(np.load(tmp_path / "p.npy"), softmax(fitted(z), 1), rtol=0, atol=1e-9)


@pytest.mark.parametrize("scale", ["rank", "probability"])
def test_numpy_file_of_a_fusion_needs_numpy_alone(tmp_path, scale):
    rng = np.random.default_rng(0)
    signals = {"stated": rng.random(300).round(1), "tokens": rng.random(300)}
    signals["tokens"][::7] = np.nan
    correct = (rng.random(300) < signals["stated"]).astype(int)
    groups = rng.choice(["law", "math"], 300)
    fused = Fusion.fit(signals, correct, groups=groups, scale=scale)
    export(fused, tmp_path / "fusion.py")
    np.save(tmp_path / "signals.npy", np.stack(list(signals.values())))
    call = "lambda x: module['probability_right'](dict(stated=x[0], tokens=x[1]), ['law', 'new', 'math'] * 100)"
    program = NUMPY_ALONE.replace('module["probabilities"]', f"({call})")
    paths = (str(tmp_path / name) for name in ("fusion.py", "signals.npy", "p.npy"))
    subprocess.run([sys.executable, "-I", "-c", program, *paths], check=True)
    expected = fused.apply(signals, ["law", "new", "math"] * 100)
    np.testing.assert_allclose(np.load(tmp_path / "p.npy"), expected, rtol=0, atol=1e-12)
    assert code_of(export, fused, tmp_path / "fusion.onnx", to="onnx") == "format"


def test_command_exports_a_saved_fusion(tmp_path):
    rng = np.random.default_rng(0)
    fused = Fusion.fit({"stated": rng.random(100)}, rng.integers(0, 2, 100))
    fused.save(tmp_path / "fusion.safetensors")
    export(fused, tmp_path / "python.py")
    assert run("export", "fusion.safetensors", "-o", "command.py", folder=tmp_path).returncode == 0
    assert (tmp_path / "command.py").read_text() == (tmp_path / "python.py").read_text()
    assert run("export", "fusion.safetensors", "-o", "fusion.onnx", folder=tmp_path).code == "format"


def draw(n, k, seed=0, **options):
    rng = np.random.default_rng(seed)
    z = rng.normal(scale=2, size=(n, k))
    return Predictions(1.5 * z, drawn_labels(z, rng), **options)


def test_groups_are_mapped_by_name(tmp_path):
    names = ["north", "south"] * 300
    p = draw(600, 3, groups=names)
    fitted = calibrators.GroupCalibrated.fit(p)
    export(fitted, tmp_path / "map.py")
    module = runpy.run_path(str(tmp_path / "map.py"))
    q = Predictions(p.logits[:4], p.labels[:4], groups=["north", "south", "new", "north"])
    actual = module["probabilities"](q.logits, ["north", "south", "new", "north"])
    np.testing.assert_allclose(actual, softmax(q.apply(fitted).logits, 1), rtol=0, atol=1e-9)
    with pytest.raises(ValueError, match="group"):
        module["calibrate"](q.logits)


@pytest.mark.parametrize("kind", ["numbers", "tensors", "bytes", "texts"])
def test_groups_are_found_by_number(tmp_path, kind):
    index = np.arange(300) % 2
    p = draw(300, 3, groups=index)
    fitted = calibrators.GroupCalibrated.fit(p)
    sets = Sets.fit(p.apply(fitted), by="groups")
    export(fitted, tmp_path / "map.py", sets=sets)
    module = runpy.run_path(str(tmp_path / "map.py"))
    expected = p.apply(fitted)
    forms = {"numbers": index.astype(float), "bytes": index.astype("S"), "texts": [f"{i}.0" for i in index]}
    groups = pytest.importorskip("torch").from_numpy(index) if kind == "tensors" else forms[kind]
    actual = module["calibrate"](p.logits, groups)
    np.testing.assert_allclose(actual, expected.logits, rtol=0, atol=1e-9)
    actual = module["prediction_sets"](p.logits, groups)
    assert (actual == sets.apply(expected)).all()
    again = Predictions(p.logits, p.labels, groups=groups)
    assert np.array_equal(again.apply(fitted).logits, expected.logits)
    assert not again.apply(fitted).notes
    assert sets.unseen_groups(again) == ()
    with pytest.raises(ValueError, match="group"):  # letters are no groups
        module["calibrate"](p.logits, "0" * 300)


@pytest.mark.parametrize("name", ["Temperature", "Vector"])
@pytest.mark.parametrize("shape", [(3,), (5, 1), (5, 4), (2, 5, 3)])
def test_numpy_file_refuses_logits_of_another_shape(tmp_path, name, shape):
    """One column was broadcast to all classes."""
    p = draw(200, 3)
    export(calibrators.fit(name, p), tmp_path / "map.py", sets=Sets.fit(p))
    module = runpy.run_path(str(tmp_path / "map.py"))
    for function in "calibrate", "probabilities", "prediction_sets":
        with pytest.raises(ValueError, match="logits"):
            module[function](np.zeros(shape))


@pytest.mark.parametrize("score", ["lac", "aps", "raps", "saps"])
@pytest.mark.parametrize("by", [None, "class", "groups"])
@pytest.mark.parametrize("k", [3, 4])
def test_sets_are_the_same(tmp_path, score, by, k):
    p = draw(500, k, groups=np.arange(500) % 2)
    temperature = calibrators.Temperature.fit(p[:200])
    calibrated = p.apply(temperature)
    sets = Sets.fit(calibrated[200:], score=score, by=by, seed=3)
    export(temperature, tmp_path / "map.py", sets=sets)
    groups = [str(i % 2) for i in range(500)]
    actual = runpy.run_path(str(tmp_path / "map.py"))["prediction_sets"](p.logits, groups)
    assert (actual == sets.apply(calibrated)).all()


@pytest.mark.parametrize("name", ["BayesianBinning", "ScalingBinning", "SharedIsotonic", "Spline", "VennAbers"])
def test_confidences_that_differ_by_rounding_alone_are_equal(tmp_path, name):
    """Clipped probabilities of naive Bayes in float32: many are equal but for their last bits, which must not count."""
    rng = np.random.default_rng(0)
    scores = np.exp(rng.normal(0, 12, (1600, 8)))
    clipped = np.clip((scores / scores.sum(1, keepdims=True)).astype(np.float32), 1e-7, 1)
    z = np.log((clipped / clipped.sum(1, keepdims=True)).astype(np.float64))
    labels = np.where(rng.random(1600) < 0.7, scores.argmax(1), rng.integers(0, 8, 1600))
    fitted = calibrators.fit(name, Predictions(z[:800], labels[:800]))
    export(fitted, tmp_path / "map.py")
    actual = runpy.run_path(str(tmp_path / "map.py"))["probabilities"](z[800:])
    np.testing.assert_allclose(actual, softmax(fitted(z[800:]), 1), rtol=0, atol=1e-6)


@pytest.mark.parametrize("score", ["lac", "raps"])
@pytest.mark.parametrize("calibrator", ["Temperature", "StructuredMatrix"])
def test_cross_conformal_sets_are_the_same(tmp_path, calibrator, score):
    p = draw(400, 3)
    sets = CrossSets.fit_folds(p[:300], calibrator, score=score, folds=4)
    export(calibrators.fit(calibrator, p[:300]), tmp_path / "map.py", sets=sets)
    actual = runpy.run_path(str(tmp_path / "map.py"))["prediction_sets"](p.logits)
    assert (actual == sets(p.logits)).all()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_sets_of_logits_without_a_probability_are_refused(tmp_path, value):
    """Their sets were empty."""
    p = Predictions(hard_logits(3)[3:], np.arange(297) % 3)
    export(calibrators.Identity(), tmp_path / "sets.py", sets=Sets.fit(p))
    with pytest.raises(ValueError, match="logits"):
        runpy.run_path(str(tmp_path / "sets.py"))["prediction_sets"]([[value, 0.0, 1.0]])


def test_threshold_is_the_same(tmp_path):
    p = draw(800, 3)
    temperature = calibrators.Temperature.fit(p)
    certified = certify_threshold(p.apply(temperature), risk=0.2)
    export(temperature, tmp_path / "map.py", threshold=certified)
    actual = runpy.run_path(str(tmp_path / "map.py"))["acts_on"](p.logits)
    assert (actual == certified.acts_on(p.apply(temperature))).all()


def run_export(tmp_path, exported, **options):
    """Export to a .py file, and return what the file defines."""
    export(exported, tmp_path / "map.py", **options)
    return runpy.run_path(str(tmp_path / "map.py"))


@pytest.mark.parametrize("name", ["Temperature", "Platt"])
def test_probabilities_and_single_scores_enter_numpy_files_by_name(tmp_path, name):
    """Probabilities were taken for logits, and one score per row was refused."""
    z = draw(300, 2).logits
    p, score = softmax(z, 1), z[:, 1] - z[:, 0]
    fitted = calibrators.fit(name, Predictions(z, z.argmax(1)))
    module = run_export(tmp_path, fitted, sets=Sets.fit(draw(300, 2)))
    expected = softmax(fitted(z), 1)
    for logits in (score, score[:, None], module["from_binary_logits"](score), module["from_probs"](p)):
        np.testing.assert_allclose(module["probabilities"](logits), expected, rtol=0, atol=1e-9)
    for probs in (p[:, 1], p[:, 1:]):
        np.testing.assert_allclose(module["probabilities"](module["from_probs"](probs)), expected, rtol=0, atol=1e-9)
    for wrong in (p, p[:, 1], 100 * p, p.round(2), p.astype(np.float32)):
        with pytest.raises(ValueError, match="from_probs"):
            module["probabilities"](wrong)
    inside = np.array([0.1, 0.2, 0.9])
    confirmed = module["from_binary_logits"](inside, logits=True)
    np.testing.assert_allclose(module["calibrate"](confirmed), module["calibrate"](np.c_[0 * inside, inside]))
    for wrong in ([0.5, 1.5], [np.nan], [[0.5, 0.6]], [-0.1]):
        with pytest.raises(ValueError, match="probabilities"):
            module["from_probs"](wrong)


@pytest.mark.parametrize("row", [[np.nan, 0.0, 1.0], [np.inf, 0.0, 1.0], [-np.inf] * 3])
def test_numpy_file_refuses_rows_without_probabilities(tmp_path, row):
    module = run_export(tmp_path, calibrators.Temperature(2.0))
    with pytest.raises(ValueError, match="finite"):
        module["probabilities"]([[0.0, 1.0, 2.0], row])


def test_numpy_file_of_any_number_of_classes_does_not_guess_one_row(tmp_path):
    module = run_export(tmp_path, calibrators.Temperature(2.0))
    with pytest.raises(ValueError, match="from_binary_logits"):
        module["calibrate"]([1.0, 2.0, 3.0])
    assert module["calibrate"](module["from_binary_logits"]([1.0, 2.0, 3.0])).shape == (3, 2)


def test_numpy_file_of_a_fusion_refuses_what_the_fusion_refuses(tmp_path):
    rng = np.random.default_rng(0)
    fused = Fusion.fit({"a": rng.random(100)}, rng.integers(0, 2, 100), scale="probability")
    apply = run_export(tmp_path, fused)["probability_right"]
    for signals, groups in (({"a": [90.0]}, None), ({"b": [0.5]}, None), ({"a": [0.5]}, ["g", "h"])):
        assert code_of(fused.apply, signals, groups) in ("signal_range", "signals", "shape")
        with pytest.raises(ValueError, match="Expected"):
            apply(signals, groups)


@pytest.mark.parametrize("of", ["top", "b"])
def test_contract_is_exported_with_all_its_parts(tmp_path, of):
    fitting, reference, p = (draw(800, 3, seed, class_names=["a", "b", "c"]) for seed in range(3))
    temperature = calibrators.Temperature.fit(fitting)
    contract = Contract.create(temperature, reference, require=["ece < 20%"], risk=0.5, alpha=0.2, of=of)
    contract.save(tmp_path / "c.contract")
    module = run_export(tmp_path, contract)
    z, expected = p.logits, contract.calibrate(p)
    np.testing.assert_allclose(module["probabilities"](z), softmax(expected.logits, 1), rtol=0, atol=1e-9)
    assert (module["acts_on"](z) == contract.acts_on(p)).all()
    assert (module["prediction_sets"](z) == contract.prediction_sets(p)).all()
    assert module["CLASS_NAMES"] == ["a", "b", "c"]
    assert module["CONTRACT"] == {"seal": contract.seal, "requirements": ["ece < 20%"]}
    assert run("export", "c.contract", "-o", "command.py", folder=tmp_path).returncode == 0
    assert (tmp_path / "command.py").read_text() == (tmp_path / "map.py").read_text()
    assert code_of(export, contract, tmp_path / "map.onnx") == "format"
    assert code_of(export, contract, tmp_path / "map.py", threshold=0.5) == "format"


@pytest.mark.parametrize("suffix", [".pt2", ".onnx"])
@pytest.mark.filterwarnings("ignore")
def test_format_follows_the_name_of_the_file(torch, tmp_path, suffix):
    if suffix == ".onnx":
        pytest.importorskip("onnx")
    path = tmp_path / f"map{suffix}"
    export(calibrators.BiasCorrectedTemperature.fit(draw(300, 3)), path)
    assert path.stat().st_size > 0


@pytest.mark.parametrize("to", ["torch", "onnx"])
@pytest.mark.filterwarnings("ignore")
def test_programs_give_the_same_probabilities(torch, tmp_path, to):
    if to == "onnx":
        pytest.importorskip("onnxruntime")
    fitted = calibrators.BiasCorrectedTemperature.fit(draw(300, 3))
    path = tmp_path / ("map.pt2" if to == "torch" else "map.onnx")
    export(fitted, path, to=to)
    z = torch.from_numpy(hard_logits(3)[3:]).float()
    if to == "torch":
        actual = torch.export.load(path).module()(z)
    else:
        import onnxruntime

        session = onnxruntime.InferenceSession(path)
        actual = torch.from_numpy(session.run(None, {session.get_inputs()[0].name: z.numpy()})[0])
    torch.testing.assert_close(actual.softmax(1), fitted(z).softmax(1), rtol=0, atol=1e-6)


def test_impossible_exports_are_refused(tmp_path):
    temperature, isotonic = calibrators.Temperature(2.0), calibrators.fit("Isotonic", draw(300, 3))
    assert code_of(export, temperature, tmp_path / "map.txt") == "suffix"
    assert code_of(export, temperature, tmp_path / "map.onnx", to="onnx") == "no_num_classes"
    assert code_of(export, isotonic, tmp_path / "map.pt2", to="torch") == "not_exportable"
    assert code_of(export, lambda logits: logits, tmp_path / "map.py") == "custom_calibrator"
    assert code_of(export, object(), tmp_path / "map.py") == "map_kind"
    sets = Sets.fit(draw(50, 3))
    assert code_of(export, temperature, tmp_path / "map.pt2", to="torch", num_classes=3, sets=sets) == "format"
    vector, path = calibrators.fit("Vector", draw(200, 3)), tmp_path / "map.py"
    assert code_of(export, vector, path, num_classes=5) == "num_classes"
    assert code_of(export, vector, path, sets=Sets.fit(draw(200, 4))) == "num_classes"


def test_command_exports_a_saved_calibrator(tmp_path):
    p = draw(300, 3)
    fitted = calibrators.fit("StructuredMatrix", p)
    calibrators.save(fitted, tmp_path / "c.safetensors")
    Sets.fit(p.apply(fitted)).save(tmp_path / "sets.safetensors")
    arguments = ("-o", "map.py", "--sets", "sets.safetensors", "--threshold", "0.9")
    finished = run("export", "c.safetensors", *arguments, folder=tmp_path)
    assert (finished.returncode, finished.stdout) == (0, "wrote map.py\n")
    module = runpy.run_path(str(tmp_path / "map.py"))
    assert {"calibrate", "probabilities", "prediction_sets", "acts_on"} <= set(module)
    for wrong, code in ((("-o", "map.txt"), "suffix"), (("-o", "map.py", "--to", "tf"), "to")):
        refused = run("export", "c.safetensors", *wrong, folder=tmp_path)
        assert (refused.returncode, refused.code) == (2, code)


def test_every_calibrator_has_a_map_in_numpy():
    with_own_map = {name for name in CALIBRATORS if hasattr(CALIBRATORS[name], "numpy_map")}
    assert not with_own_map & set(maps.MAPS)
    assert {*maps.MAPS, *with_own_map, "GroupCalibrated"} == set(CALIBRATORS)


@dataclass(frozen=True)
class Shrunken:
    """Scale the logits by a learned number, also in numpy."""

    share: float

    @classmethod
    def fit(cls, logits, labels):
        return cls(0.5)

    def __call__(self, logits):
        return self.share * logits

    @staticmethod
    def numpy_map(z, fitted):
        return fitted["share"] * z


@pytest.mark.parametrize("in_chain", [False, True])
def test_calibrator_brings_its_own_map_in_numpy(tmp_path, monkeypatch, in_chain):
    p = draw(100, 3)
    fitted = Shrunken.fit(p.logits, p.labels)
    assert code_of(export, fitted, tmp_path / "map.py") == "custom_calibrator"  # not registered
    monkeypatch.setitem(CALIBRATORS._methods, "Shrunken", Shrunken)
    if in_chain:
        fitted = calibrators.Chain(fitted, calibrators.Temperature(2.0))
    export(fitted, tmp_path / "map.py")
    actual = runpy.run_path(str(tmp_path / "map.py"))["calibrate"](p.logits)
    np.testing.assert_allclose(actual, fitted(p.logits), rtol=0, atol=1e-12)
    monkeypatch.delattr(Shrunken, "numpy_map")
    assert code_of(export, fitted, tmp_path / "map.py") == "custom_calibrator"


def test_map_without_source_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(CALIBRATORS._methods, "Shrunken", Shrunken)
    namespace = {}
    exec("def numpy_map(z, fitted): return z", namespace)
    monkeypatch.setattr(Shrunken, "numpy_map", staticmethod(namespace["numpy_map"]))
    assert code_of(export, Shrunken(0.5), tmp_path / "map.py") == "custom_calibrator"


@dataclass(frozen=True)
class Anonymous(Shrunken):
    """A map without a name, whose row of the maps is no Python."""

    numpy_map = staticmethod(lambda z, fitted: z)


def test_source_that_does_not_compile_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setitem(CALIBRATORS._methods, "Anonymous", Anonymous)
    assert code_of(export, Anonymous(0.5), tmp_path / "map.py") == "not_python"
    assert not (tmp_path / "map.py").exists()


def test_text_that_represents_itself_as_code_is_written_as_text(tmp_path):
    class Name(str):
        def __repr__(self):
            return "print('executed')"

    grouped = replace(calibrators.GroupCalibrated.fit(draw(100, 3, groups=["g"] * 100)), names=(Name("g"),))
    assert run_export(tmp_path, grouped)["FITTED"]["names"] == ["g"]
