"""Following the advice of refused files and folders works."""

import numpy as np
import polars as pl
import pytest
from advised import Case, follow, refused_command, succeed

from calibrant import Predictions, calibrators
from calibrant.io.predictions import write_table

RNG = np.random.default_rng(0)
N = 120
LABELS = RNG.integers(0, 3, N)
LOGITS = RNG.normal(size=(N, 3)) + 2 * np.eye(3)[LABELS]
ROWS = {"label": LABELS, **{f"logit_{j}": LOGITS[:, j] for j in range(3)}}
WORDS = np.array(["cat", "dog", "owl"])[LABELS]
NAMED = {"label": WORDS, **{f"logit_{name}": LOGITS[:, j] for j, name in enumerate(("cat", "dog", "owl"))}}


@pytest.fixture
def folder(tmp_path):
    """Return a folder with a calibrator."""
    calibrators.save(calibrators.fit("Temperature", Predictions(LOGITS, LABELS)), tmp_path / "t.safetensors")
    return tmp_path


def write(path, columns):
    """Write columns to a table."""
    write_table(path, pl.DataFrame(columns, strict=False))


def test_advice_on_ids_and_outputs_works(folder):
    np.savez(folder / "p.npz", logits=LOGITS, labels=LABELS, ids=np.arange(7))
    refused_command("ids_length", "apply", "t.safetensors", "p.npz", "-o", "out.npz", folder=folder)
    np.savez(folder / "p.npz", logits=LOGITS, labels=LABELS)
    succeed("apply", "t.safetensors", "p.npz", "-o", "out.npz", folder=folder)
    (folder / "tables").mkdir()
    write(folder / "tables" / "a.csv", ROWS)
    apply = ("apply", "t.safetensors", "tables", "-o")
    refused_command("output_among_inputs", *apply, "tables/out.csv", folder=folder)
    succeed(*apply, "out.csv", folder=folder)


CELLS = {
    "lists": [[1, 2]] * N,
    "bytes": [b"a"] * N,
    "long": ["y" * 40_000] * N,
}
FORMATS = [("lists", ".csv", "nested"), ("bytes", ".csv", "nested"), ("lists", ".xlsx", "nested")]
FORMATS += [("long", ".xlsx", "too_long"), ("bytes", ".jsonl", "not_writable")]


@pytest.mark.parametrize(("cells", "suffix", "code"), FORMATS, ids=[f"{cells}{suffix}" for cells, suffix, _ in FORMATS])
def test_advice_on_cells_that_a_format_lacks_works(folder, cells, suffix, code):
    write(folder / "in.parquet", ROWS | {"x": CELLS[cells]})
    apply = ("apply", "t.safetensors", "in.parquet", "-o")
    advice = refused_command(code, *apply, f"out{suffix}", folder=folder)
    assert "arquet" in advice or "format" in advice
    succeed(*apply, "out.parquet", folder=folder)


def test_advice_on_reading_in_chunks_works(folder):
    write(folder / "t.xlsx", ROWS)
    refused_command("pieces", "measure", "t.xlsx", "--stream", folder=folder)
    succeed("measure", "t.xlsx", folder=folder)
    write(folder / "words.parquet", ROWS | {"label": WORDS})
    refused_command("whole_only", "measure", "words.parquet", "--stream", folder=folder)
    for columns in ROWS, NAMED:
        write(folder / "words.parquet", columns)
        succeed("measure", "words.parquet", "--stream", folder=folder)


def test_advice_on_rows_groups_and_names_works(folder):
    labels = [None if i < 70 else int(y) for i, y in enumerate(LABELS)]
    write(folder / "t.csv", ROWS | {"label": labels, "truth": LABELS})
    refused_command("drop_most", "measure", "t.csv", "--drop", "--label", "label", folder=folder)
    succeed("measure", "t.csv", "--drop", "--label", "truth", folder=folder)
    arrays = {"logits": LOGITS, "labels": LABELS}

    def load(**groups):
        np.savez(folder / "p.npz", **arrays, **groups)
        return Predictions.load(folder / "p.npz").require_groups()

    follow(
        Case(
            "group_index",
            lambda: load(groups=LABELS / 2, group_names=["a", "b", "c"]),
            lambda t: (load(groups=LABELS, group_names=["a", "b", "c"]), load(groups=WORDS)),
        )
    )
    (folder / "rows.safetensors").write_bytes((folder / "t.safetensors").read_bytes())
    refused_command("calibrator", "measure", "rows.safetensors", folder=folder)
    write(folder / "rows.csv", ROWS)
    succeed("apply", "rows.safetensors", "rows.csv", "-o", "out.csv", folder=folder)
