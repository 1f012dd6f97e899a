"""Files that are small on disk and huge in memory, or hold code: one line, at once, and nothing is run."""

import gzip
import io
import os
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import polars
import pytest
from refusals import code_of

from calibrant import InputError, Predictions

ROWS = 6_000_000
MAX_MEMORY = 100 << 10  # KB, of a process that reads 100 bytes to 1 MB
MEASURE = """
import contextlib, resource, sys
import numpy, polars
with contextlib.suppress(ImportError):
    import torch
from calibrant import InputError, Predictions
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    Predictions.load(sys.argv[1])
except InputError as error:
    assert len(str(error).splitlines()) == 1
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


class Payload:
    """An object whose pickle runs a command."""

    def __reduce__(self):
        return os.mkdir, ("executed",)


def npy(shape: tuple[int, ...], dtype: str, length: int) -> bytes:
    """Return a file of zeros that states its shape."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": dtype, "fortran_order": False, "shape": shape})
    return stream.getvalue() + bytes(length)


def write_npz(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("logits.npy", npy((ROWS, 2), "<f8", 16 * ROWS))
        archive.writestr("labels.npy", npy((ROWS,), "<i8", 8 * ROWS))


def write_false_shape(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("logits.npy", npy((10**12, 2), "<f8", 64))
        archive.writestr("labels.npy", npy((4,), "<i8", 32))


def write_gzip(path: Path) -> None:
    path.write_bytes(gzip.compress(b"prob,label\n" + b"0.5,1\n" * (4 * ROWS), 1))


def write_compressed_tensors(path: Path) -> None:
    torch, stream = pytest.importorskip("torch"), io.BytesIO()
    torch.save({"logits": torch.zeros(ROWS, 2), "labels": torch.zeros(ROWS, dtype=torch.int64)}, stream)
    with zipfile.ZipFile(stream) as stored, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member in stored.infolist():
            archive.writestr(member.filename, stored.read(member.filename))


def write_views(path: Path) -> None:
    torch = pytest.importorskip("torch")
    labels = torch.zeros(1, dtype=torch.int64)
    torch.save({"logits": torch.zeros(1, 1).expand(10 * ROWS, 2), "labels": labels.expand(10 * ROWS)}, path)


def write_tensors(path: Path, logits: object) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"logits": logits, "labels": torch.zeros(2)}, path)


def constant_frame() -> polars.DataFrame:
    return polars.DataFrame({"prob": np.full(ROWS, 0.5), "label": np.zeros(ROWS, dtype=np.int64)})


BOMBS: dict[str, Callable[[Path], object]] = {
    "a.npz": write_npz,
    "a.csv.gz": write_gzip,
    "a.pt": write_compressed_tensors,
    "views.pt": write_views,
    "a.arrow": lambda path: constant_frame().write_ipc(path, compression="zstd"),
    "stream.arrow": lambda path: constant_frame().write_ipc_stream(path, compression="lz4"),
    "a.parquet": lambda path: constant_frame().write_parquet(path),
}
WRITERS: dict[str, Callable[..., object]] = {
    "parquet": lambda frame, path, compression: frame.write_parquet(path, compression=compression),
    "arrow file": lambda frame, path, compression: frame.write_ipc(path, compression=compression),
    "arrow stream": lambda frame, path, compression: frame.write_ipc_stream(path, compression=compression),
}
PICKLES: dict[str, Callable[[Path], object]] = {
    "shape.npz": write_false_shape,
    "pickle.pt": lambda path: path.write_bytes(pickle.dumps({"logits": Payload()})),
    "saved.pt": lambda path: write_tensors(path, Payload()),
    "pickle.npz": lambda path: np.savez(path, logits=np.array([Payload()], dtype=object), labels=np.zeros(1)),
    "pickle.npy": lambda path: path.write_bytes(pickle.dumps(Payload())),
    "pickle.safetensors": lambda path: path.write_bytes(pickle.dumps(Payload())),
}


@pytest.mark.parametrize("name", PICKLES)
def test_pickles_are_refused_and_not_run(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / name.replace("pickle.npy", "pickle_logits.npy")
    if path.suffix == ".pt":
        pytest.importorskip("torch")
    PICKLES[name](path)
    assert code_of(Predictions.load, path) == "unreadable"
    assert not (tmp_path / "executed").exists()


def test_tuples_that_take_for_ever_to_hash_are_refused(torch, tmp_path):
    doubled = b"h\x00h\x00\x86q\x00" * 60  # a pair of the pair before, each time
    content, stored, path = b"\x80\x02)q\x00" + doubled + b"}h\x00K\x01s.", io.BytesIO(), tmp_path / "zip.pt"
    torch.save({"a": 1}, stored)
    with zipfile.ZipFile(stored) as source, zipfile.ZipFile(path, "w") as archive:
        for member in source.infolist():
            is_pickle = member.filename.endswith(".pkl")
            archive.writestr(member.filename, content if is_pickle else source.read(member.filename))
    (tmp_path / "pickle.pt").write_bytes(content)
    for name in ("zip.pt", "pickle.pt"):
        assert code_of(Predictions.load, tmp_path / name) == "expansion"


def test_files_of_torch_with_lists_and_shared_tensors_are_read(torch, tmp_path):
    labels, extra = torch.zeros(300, dtype=torch.int64), {"a": [(1, 2)] * 3000, "b": "x" * 10**5}
    for legacy in (True, False):
        path = tmp_path / "p.pt"
        content = {"logits": torch.randn(300, 2), "labels": labels, "again": [labels] * 100, "extra": extra}
        torch.save(content, path, _use_new_zipfile_serialization=legacy)
        assert len(Predictions.load(path)) == 300


@pytest.mark.slow
@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_before_they_expand(tmp_path, name):
    BOMBS[name](tmp_path / name)
    assert code_of(Predictions.load, tmp_path / name) == "expansion"
    command = [sys.executable, "-c", MEASURE, str(tmp_path / name)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert finished.stdout, finished.stderr
    assert int(finished.stdout) < MAX_MEMORY


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
@pytest.mark.parametrize("writer", WRITERS)
def test_a_row_may_expand_as_much_as_many_rows(tmp_path, writer, compression):
    """A list or a text takes one cell, whatever its length."""
    path, zeros = tmp_path / f"a.{writer.split()[0]}", np.zeros(5_000_000)
    columns: dict[str, Any] = {"list": [zeros], "text": ["x" * 40_000_000], "rows": zeros, "labels": zeros.astype(bool)}
    columns["array"] = polars.Series([zeros], dtype=polars.Array(polars.Float64, len(zeros)))
    for column in columns.values():
        WRITERS[writer](polars.DataFrame({"prob": column}), path, compression)
        assert code_of(Predictions.load, path) == "expansion"
    few_rows = polars.DataFrame({"prob": [0.2, 0.9] * 50, "label": ["no", "yes"] * 50, "note": ["x" * 90_000] * 100})
    WRITERS[writer](few_rows, path, compression)
    assert len(Predictions.load(path)) == 100


@pytest.mark.parametrize("writer", WRITERS)
def test_damaged_columns_are_refused_in_one_line(tmp_path, writer):
    """Every byte of the description of the columns in turn is another one: the file is refused, or read as it was."""
    path, frame = tmp_path / f"a.{writer.split()[0]}", polars.DataFrame({"prob": [0.2, 0.9], "label": ["no", "yes"]})
    WRITERS[writer](frame, path, "zstd")
    content, rng = path.read_bytes(), np.random.default_rng(0)
    for position in rng.choice(len(content), 60, replace=False):
        path.write_bytes(content[:position] + rng.bytes(1) + content[position + 1 :])
        with suppress(InputError):
            Predictions.load(path)


def test_compressed_predictions_are_read(tmp_path):
    """Files with the usual redundancy are far below the limit."""
    p = Predictions(np.zeros((5000, 2), np.float32), np.zeros(5000, dtype=int))
    for suffix in (".npz", ".csv.gz", ".parquet", ".arrow"):
        p.save(tmp_path / f"p{suffix}")
        assert len(Predictions.load(tmp_path / f"p{suffix}")) == 5000
