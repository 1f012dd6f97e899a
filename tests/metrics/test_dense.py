"""Streamed logits of pixels: the same classes and groups as in memory, in constant memory."""

import subprocess
import sys

import numpy as np
import pytest
from drawn import drawn_labels
from refusals import refused

from calibrant import Predictions, measure
from calibrant.assessment import summarize
from calibrant.metrics import Summary
from calibrant.metrics.tables import classes, groups


def images(n: int = 6, *, names: bool = True) -> tuple[np.ndarray, np.ndarray, list[str] | None]:
    rng = np.random.default_rng(0)
    z = 2 * rng.standard_normal((n, 4, 9, 7))
    y = drawn_labels(np.moveaxis(z / 2, 1, -1), rng)
    y[:, 0] = 255
    return z, y, [f"image {i}" for i in range(n)] if names else None


def test_summary_of_images_has_the_classes_and_groups_of_all_predictions():
    z, y, names = images()
    all_images = Predictions(z, y, groups=names, ignore_index=255)
    assert names is not None
    parts = [Predictions(z[i : i + 2], y[i : i + 2], groups=names[i : i + 2], ignore_index=255) for i in (0, 2, 4)]
    table, in_memory = measure(summarize(parts)), measure(all_images)
    assert table.classes is not None
    for name, column in vars(classes(all_images)).items():
        np.testing.assert_allclose(getattr(table.classes, name), column, rtol=1e-12, atol=1e-12)
    assert table["classwise_ece"].value == pytest.approx(in_memory["classwise_ece"].value, abs=1e-12)
    expected, streamed_groups = groups(all_images), table.groups
    assert expected is not None
    assert streamed_groups is not None
    assert streamed_groups.names == expected.names == tuple(names)
    for name in ("count", "mean_confidence", "frequency", "gap", "ece", "nll"):
        np.testing.assert_allclose(getattr(streamed_groups, name), getattr(expected, name), rtol=1e-12, atol=1e-12)
    assert "Classes, worst first" in table.html()


def test_class_sums_are_optional_and_merge():
    z, y, _ = images()
    p = Predictions(z, y, ignore_index=255)
    with_classes, without_classes = Summary.empty(by_class=True).add(p), Summary.from_predictions(p)
    assert without_classes.classes is None
    assert measure(without_classes).classes is None
    merged = with_classes + with_classes
    assert merged.classes is not None
    assert with_classes.classes is not None
    np.testing.assert_allclose(merged.classes.ece, with_classes.classes.ece, rtol=1e-7, atol=1e-7)
    assert (Summary.empty(by_class=True) + with_classes).classes is not None
    with refused("partly_missing", "classes"):
        with_classes + without_classes


STREAM = """
import sys
import numpy as np
from calibrant import Predictions, measure
from calibrant.assessment import summarize

def pieces():
    rng = np.random.default_rng(0)
    for _ in range(int(sys.argv[1])):
        z = rng.standard_normal((1, 5, 256, 256), dtype=np.float32)
        yield Predictions(z, rng.integers(5, size=(1, 256, 256)))

measure(summarize(pieces()))
# not ru_maxrss, which keeps the peak of the parent process across exec
print(next(int(line.split()[1]) // 1024 for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak memory from /proc")
def test_memory_of_streamed_pixels_does_not_grow():
    short, long = (
        int(subprocess.run([sys.executable, "-c", STREAM, n], check=True, capture_output=True).stdout)
        for n in ("6", "48")
    )
    assert long < short + 40
    assert long < 500


def test_dense_file_is_streamed_with_its_classes(tmp_path):
    z, y, _ = images(names=False)
    np.save(tmp_path / "s_logits.npy", z)
    np.save(tmp_path / "s_labels.npy", y)
    pieces = Predictions.load_chunks(tmp_path / "s_logits.npy", rows=2, ignore_index=255)
    streamed, all_images = measure(summarize(pieces)), measure(Predictions(z, y, ignore_index=255))
    assert streamed.n == all_images.n == 6 * 8 * 7
    assert streamed["ece"].value == pytest.approx(all_images["ece"].value, abs=1e-12)
    assert streamed.classes is not None
    assert all_images.classes is not None
    np.testing.assert_allclose(streamed.classes.ece, all_images.classes.ece, rtol=1e-7, atol=1e-7)
