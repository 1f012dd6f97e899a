import json
import math
import pickle
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path

import numpy as np
import pytest
from calibrant.registry import CALIBRATORS
from refusals import refused
from safetensors.numpy import save_file

from calibrant import InputError, Predictions, __version__, calibrators
from calibrant._core.arrays import read_arrays
from calibrant._core.kernels.digests import arrays_digest
from calibrant._core.kernels.roots import Certificate
from calibrant.calibrators import HistogramBinning, Identity, Temperature, load, origin, save

FIXTURES = Path(__file__).parent / "files"


def same(a, b) -> bool:
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=True)
    if is_dataclass(a):
        return type(a) is type(b) and all(same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    if isinstance(a, tuple):
        return type(b) is tuple and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and (a == b or (a != a and b != b))


@dataclass(frozen=True, eq=False)
class PairCalibrator:
    """A user's calibrator whose fields are calibrators, a tuple of calibrators, and values."""

    first: object
    members: tuple[object, ...]
    name: str
    share: float = float("nan")
    count: int = 3
    flag: bool = True
    certificate: Certificate | None = None

    def __call__(self, logits):
        for member in (self.first, *self.members):
            logits = member(logits)
        return logits


@pytest.fixture
def fitted(calibrated_predictions):
    return Temperature.fit(3 * calibrated_predictions.logits, calibrated_predictions.labels)


@pytest.fixture
def file(fitted, tmp_path):
    save(fitted, tmp_path / "t.safetensors")
    return tmp_path / "t.safetensors"


def resealed(file, array_changes=None, **changes) -> None:
    """Change arrays and the metadata, and update the checksum."""
    arrays, meta = read_arrays(file)
    arrays, meta = arrays | (array_changes or {}), meta | changes
    del meta["sha256"]
    save_file(arrays, file, meta | {"sha256": arrays_digest(meta, arrays)})


def test_calibrator_round_trips_bit_for_bit(fitted, file, calibrated_predictions):
    back = load(file)
    assert same(fitted, back)
    assert np.array_equal(back(calibrated_predictions.logits), fitted(calibrated_predictions.logits))


def test_bins_with_nan_round_trip(calibrated_predictions, tmp_path):
    sparse = HistogramBinning.fit(calibrated_predictions.logits[:40] * 9, calibrated_predictions.labels[:40], bins=40)
    assert np.isnan(sparse.accuracy).any()
    save(sparse, tmp_path / "h")
    assert same(sparse, load(tmp_path / "h"))


def test_nested_custom_calibrators_round_trip(fitted, tmp_path, calibrated_predictions):
    pair = PairCalibrator(fitted, (Identity(), fitted, PairCalibrator(fitted, (), "inner")), "outer", count=-1)
    save(pair, tmp_path / "b")
    back = load(tmp_path / "b", extra_classes=[PairCalibrator])
    assert same(pair, back)
    assert np.array_equal(back.members[2](calibrated_predictions.logits), fitted(calibrated_predictions.logits))
    with refused("unknown_class", "extra_classes=[PairCalibrator]"):
        load(tmp_path / "b")


def test_views_and_float32_round_trip(tmp_path):
    base = np.arange(6, dtype=np.float32)
    save(HistogramBinning(base[::2], base[1::2]), tmp_path / "v")
    assert same(load(tmp_path / "v"), HistogramBinning(np.array([0.0, 2, 4]), np.array([1.0, 3, 5])))


def test_origin_reads_the_metadata(fitted, calibrated_predictions, tmp_path):
    save(fitted, tmp_path / "a")
    info = origin(tmp_path / "a")
    data = Predictions(3 * calibrated_predictions.logits, calibrated_predictions.labels)
    assert (info.calibrator, info.fitted_on, info.calibrant) == ("Temperature", (data.digest,), __version__)
    with refused("fitted_on_same"):
        calibrators.calibrate(load(tmp_path / "a"), data)
    save(fitted, tmp_path / "a", fitted_on=data)
    assert len(repr(origin(tmp_path / "a"))) < 500  # without the hashes of rows
    save(Identity(), tmp_path / "a")
    assert origin(tmp_path / "a").fitted_on == ()
    assert [p.name for p in tmp_path.iterdir()] == ["a"]  # no half-written file is left


@pytest.mark.parametrize("path", sorted(FIXTURES.glob("*.safetensors")), ids=lambda p: p.stem)
def test_files_of_earlier_versions_are_read(path):
    """A JSON file beside each fixture has the logits and the output of that version."""
    expected = json.loads(path.with_suffix(".json").read_text())
    answer = load(path)(np.array(expected["logits"], dtype=float))
    np.testing.assert_allclose(answer, expected["answer"], rtol=1e-12, atol=1e-12)


def test_there_are_fixtures():
    assert len(list(FIXTURES.glob("*.safetensors"))) >= 1


@pytest.mark.parametrize("where", [10, 400, -1])
def test_flipped_byte_is_refused(file, where):
    data = bytearray(file.read_bytes())
    data[where] ^= 1
    file.write_bytes(data)
    with pytest.raises(InputError) as error:
        load(file)
    assert "\n" not in str(error.value)
    assert str(file) in str(error.value)


def test_other_files_are_refused(tmp_path):
    class Bomb:
        def __reduce__(self):
            return exec, ("raise SystemExit('code from a file was run')",)

    path = tmp_path / "x"
    path.write_bytes(pickle.dumps(Bomb()))
    with refused("unreadable"):
        load(path)
    path.write_bytes(b"")
    with refused("unreadable"):
        load(path)
    save_file({"weight": np.zeros(3)}, path)
    with refused("not_a_calibrator"):
        load(path)
    Predictions([[0.0, 2.0]], [1]).save(tmp_path / "p.safetensors")
    with refused("not_a_calibrator"):
        load(tmp_path / "p.safetensors")
    with refused("no_file"):
        load(tmp_path / "absent")


@pytest.mark.parametrize(
    ("tree", "code"),
    [
        ({"class": "os.system", "fields": {}}, "unknown_class"),
        ({"class": "TemperatureOfTheFuture", "fields": {}}, "unknown_class"),
        ({"class": "Temperature", "fields": {"temperature": "2"}}, "field_value"),
        ({"class": "Temperature", "fields": {}}, "field_names"),
        ({"class": "Temperature", "fields": {"temperature": {"tensor": ".temperature"}, "power": 1}}, "field_names"),
        ({"class": "Temperature", "fields": {"temperature": {"tensor": "absent"}}}, "file_content"),
        ({"__reduce__": "os.system"}, "file_content"),
        ([], "file_content"),
    ],
)
def test_forged_description_is_refused(file, tree, code):
    resealed(file, calibrator=json.dumps(tree))
    with refused(code):
        load(file)


def test_tensors_that_a_class_does_not_declare_are_refused(tmp_path, calibrated_predictions):
    """Every tensor in turn is replaced by NaN, an empty tensor, and other shapes."""
    for name in ("Vector", "StructuredMatrix", "SharedIsotonic", "Monotone", "EnsembleTemperature"):
        file = tmp_path / name
        save(calibrators.fit(name, calibrated_predictions[:200]), file)
        arrays = read_arrays(file)[0]
        for key, value in arrays.items():
            of_wrong_shape = value[..., None], value.ravel()[:0], np.zeros(calibrated_predictions.k + 1)
            for bad in (np.asarray(value * math.nan), *of_wrong_shape):
                resealed(file, arrays | {key: bad})
                with pytest.raises(InputError) as caught:
                    load(file)
                assert caught.value.code in ("field_value", "parts_mismatch", "file_content"), str(caught.value)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("{", "unreadable"),
        ("[]", "file_content"),
        ("1", "file_content"),
        ('"Temperature"', "file_content"),
        ('{"class": 1}', "file_content"),
        ('{"class": "Temperature", "class": "Vector", "fields": {}}', "repeated_key"),
        ("[" * 100000, "too_deep"),
    ],
)
def test_malformed_description_is_refused(file, text, code):
    resealed(file, calibrator=text)
    for read in (load, origin):
        with refused(code):
            read(file)


def test_tensors_of_inconsistent_lengths_are_refused(tmp_path, calibrated_predictions):
    save(calibrators.Isotonic.fit(calibrated_predictions[:200]), tmp_path / "i")
    resealed(tmp_path / "i", {".start": read_arrays(tmp_path / "i")[0][".start"][:1]})
    with refused("parts_mismatch"):
        load(tmp_path / "i")


def test_later_format_is_refused(file):
    resealed(file, version="6")
    with refused("newer_format"):
        load(file)


def test_fields_and_folders_that_cannot_be_written_are_refused(tmp_path):
    with refused("field_kind", "first"):
        save(PairCalibrator(lambda z: z, (), "x"), tmp_path / "x")
    with refused("not_writable"):
        save(Identity(), tmp_path / "no" / "such" / "folder")


def test_file_functions_are_not_registered():
    assert not {"save", "load", "origin"} & set(CALIBRATORS)
