"""Logits at every position of an image, streamed: per class and per image what the whole says, in flat memory."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from refusals import refused

from calibrant import Predictions, measure
from calibrant.assessment import summarize
from calibrant.metrics import Summary
from calibrant.metrics.tables import classes, groups


def images(n: int = 6, *, names: bool = True) -> tuple[torch.Tensor, torch.Tensor, list[str] | None]:
    g = torch.Generator().manual_seed(0)
    z = 2 * torch.randn(n, 4, 9, 7, generator=g, dtype=torch.float64)
    y = torch.distributions.Categorical(logits=(z / 2).movedim(1, -1)).sample()
    y[:, 0] = 255
    return z, y, [f"image {i}" for i in range(n)] if names else None


def test_classes_and_images_of_a_stream_are_those_of_the_whole():
    z, y, names = images()
    whole = Predictions(z, y, groups=names, ignore_index=255)
    assert names is not None
    parts = [Predictions(z[i : i + 2], y[i : i + 2], groups=names[i : i + 2], ignore_index=255) for i in (0, 2, 4)]
    table, exact = measure(summarize(parts)), measure(whole)
    assert table.classes is not None
    for name, column in vars(classes(whole)).items():
        torch.testing.assert_close(getattr(table.classes, name), column, rtol=1e-12, atol=1e-12)
    assert table["classwise_ece"].value == pytest.approx(exact["classwise_ece"].value, abs=1e-12)
    mine, theirs = groups(whole), table.groups
    assert mine is not None
    assert theirs is not None
    assert theirs.names == mine.names == tuple(names)
    for name in ("count", "mean_confidence", "frequency", "gap", "ece", "nll"):
        torch.testing.assert_close(getattr(theirs, name), getattr(mine, name), rtol=1e-12, atol=1e-12)
    assert "Classes, worst first" in table.html()


def test_class_sums_are_optional_and_merge():
    z, y, _ = images()
    p = Predictions(z, y, ignore_index=255)
    with_, without = Summary.empty(by_class=True).add(p), Summary.from_predictions(p)
    assert without.classes is None
    assert measure(without).classes is None
    both = with_ + with_
    assert both.classes is not None
    assert with_.classes is not None
    torch.testing.assert_close(both.classes.ece, with_.classes.ece)
    assert (Summary.empty(by_class=True) + with_).classes is not None
    with refused("partly_missing", "classes"):
        with_ + without


STREAM = """
import sys, torch
from calibrant import Predictions, measure
from calibrant.assessment import summary_of

def pieces():
    g = torch.Generator().manual_seed(0)
    for _ in range(int(sys.argv[1])):
        z = torch.randn(1, 5, 256, 256, generator=g)
        yield Predictions(z, torch.randint(0, 5, (1, 256, 256), generator=g))

measure(summary_of(pieces()))
# not ru_maxrss: it remembers across exec what the process that started this one took
print(next(int(line.split()[1]) // 1024 for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="what a process took at most, in kilobytes, is Linux's")
def test_a_stream_of_pixels_takes_the_same_memory_however_long():
    few, many = (
        int(subprocess.run([sys.executable, "-c", STREAM, n], check=True, capture_output=True).stdout)
        for n in ("6", "48")
    )
    assert many < few + 40
    assert many < 500


def test_a_dense_file_is_streamed_with_its_classes(tmp_path):
    z, y, _ = images(names=False)
    np.save(tmp_path / "s_logits.npy", z.numpy())
    np.save(tmp_path / "s_labels.npy", y.numpy())
    pieces = Predictions.load_chunks(tmp_path / "s_logits.npy", rows=2, ignore_index=255)
    streamed, whole = measure(summarize(pieces)), measure(Predictions(z, y, ignore_index=255))
    assert streamed.n == whole.n == 6 * 8 * 7
    assert streamed["ece"].value == pytest.approx(whole["ece"].value, abs=1e-12)
    assert streamed.classes is not None
    assert whole.classes is not None
    torch.testing.assert_close(streamed.classes.ece, whole.classes.ece)
