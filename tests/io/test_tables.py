"""Tables in common forms: each is read like the same data as arrays, or refused."""

import gzip
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars
import pytest
from refusals import code_of, refused
from rendered import assert_rendered

from calibrant import Predictions, metrics
from calibrant.io.column_roles import TableOptions
from calibrant.io.contents import Chunk, ChunkedFile, Contents
from calibrant.io.predictions import read_content_chunks
from calibrant.predictions.validation.columns import parse_class_suffix

N = 12
RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(N, 3)).round(4)
PROBS = np.exp(LOGITS) / np.exp(LOGITS).sum(1, keepdims=True)
Y = RNG.integers(0, 3, N)
NAMES = np.array(["cat", "dog", "emu"])
C = RNG.random(N).round(3)
HIT = RNG.integers(0, 2, N)
W = RNG.integers(1, 4, N).astype(float)
GROUPS = np.array(["north", "south"])[RNG.integers(0, 2, N)]
TAGS = RNG.integers(0, 2, (N, 3))  # several labels per example
SIGMOID = 1 / (1 + np.exp(-LOGITS))


def by_class(prefix: str, values: np.ndarray, names: Any = range(3)) -> dict[str, Any]:
    return {f"{prefix}{name}": values[:, i] for i, name in enumerate(names)}


def three() -> Predictions:
    return Predictions.from_probs(PROBS, Y)


def named() -> Predictions:
    return Predictions.from_probs(PROBS, Y, class_names=NAMES)


def raw() -> Predictions:
    return Predictions(LOGITS, Y)


def stated() -> Predictions:
    return Predictions.from_confidence(C, HIT)


def binary() -> Predictions:
    return Predictions.from_probs(C, HIT, of=1)


@dataclass(frozen=True)
class Case:
    name: str  # of the file
    columns: dict[str, Any]
    expected: Callable[[], Predictions] | str  # or the code of the refusal
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    write: Callable[[polars.DataFrame, Path], Any] | None = None


def csv(separator: str = ",", **extra: Any) -> Callable[[polars.DataFrame, Path], Any]:
    return lambda frame, path: frame.write_csv(path, separator=separator, **extra)


def packed(frame: polars.DataFrame, path: Path) -> None:
    path.write_bytes(gzip.compress(frame.write_csv().encode()))


def zstd(frame: polars.DataFrame, path: Path) -> None:
    frame.write_csv(path, compression="zstd", check_extension=False)


def packed_lines(frame: polars.DataFrame, path: Path) -> None:
    path.write_bytes(gzip.compress(frame.write_ndjson().encode()))


def folder(frame: polars.DataFrame, path: Path) -> None:
    path.mkdir()
    frame[:5].write_parquet(path / "part-0.parquet")
    frame[5:].write_parquet(path / "part-1.parquet")


def pattern(frame: polars.DataFrame, path: Path) -> None:
    for i in range(2):
        frame[6 * i : 6 * i + 6].write_csv(path.with_name(f"part-{i}.csv"))


def stream(frame: polars.DataFrame, path: Path) -> None:
    frame.write_ipc_stream(path)


def european(frame: polars.DataFrame, path: Path) -> None:
    frame.write_csv(path, separator=";", decimal_comma=True)


def byte_order_mark(frame: polars.DataFrame, path: Path) -> None:
    path.write_bytes(b"\xef\xbb\xbf" + frame.write_csv().encode())


PROB, LOGIT = by_class("prob_", PROBS), by_class("logit_", LOGITS)
CASES = (
    # the library's own
    Case("own.csv", {"label": Y, **LOGIT}, raw),
    Case("own.parquet", {**PROB, "label": Y}, three),
    Case("lists.parquet", {"labels": Y, "probs": PROBS.tolist()}, three),
    Case("lists.jsonl", {"label": Y, "logits": LOGITS.tolist()}, raw),
    # formats
    Case("a.tsv", {"label": Y, **PROB}, three, write=csv("\t")),
    Case("semicolon.csv", {"label": Y, **PROB}, three, write=csv(";")),
    Case("european.csv", {"label": Y, **PROB}, three, write=european),
    Case("pipe.txt", {"label": Y, **PROB}, three, write=csv("|")),
    Case("marked.csv", {"label": Y, **PROB}, three, write=byte_order_mark),
    Case("a.csv.gz", {"label": Y, **PROB}, three, write=packed),
    Case("a.csv.zst", {"label": Y, **PROB}, three, write=zstd),
    Case("a.jsonl.gz", {"label": Y, **PROB}, three, write=packed_lines),
    Case("a.arrow", {"label": Y, **PROB}, three),
    Case("stream.arrow", {"label": Y, **PROB}, three, write=stream),
    Case("parts", {"label": Y, **PROB}, three, write=folder),
    Case("part-*.csv", {"label": Y, **PROB}, three, write=pattern),
    # names of columns
    Case("y_true.csv", {"y_true": Y, **PROB}, three),
    Case("target.csv", {"target": Y, **by_class("p_", PROBS)}, three),
    Case("Capital.csv", {"Label": Y, **by_class("Prob_", PROBS)}, three),
    Case("shuffled.csv", {**dict(reversed(PROB.items())), "label": Y}, three),
    Case("many.csv", {"label": Y, **by_class("proba_", PROBS), "text": ["x"] * N}, three),
    Case("said.csv", {"answer": Y, **by_class("score.", PROBS)}, three, {"label": "answer", "probs": "score."}),
    Case("bare.csv", {"y": NAMES[Y], **by_class("", PROBS, NAMES)}, named, {"probs": list(NAMES)}),
    Case(
        "weights.csv",
        {"label": Y, **PROB, "sample_weight": W},
        lambda: Predictions.from_probs(PROBS, Y, W),
        {"weight": "sample_weight"},
    ),
    Case("groups.csv", {"label": Y, **PROB, "site": GROUPS}, three, {"group": "site"}),
    # labels
    Case("words.csv", {"label": NAMES[Y], **by_class("prob_", PROBS, NAMES)}, named),
    Case("words_by_number.csv", {"label": NAMES[Y], **PROB}, named),
    Case("positions.csv", {"label": Y, **by_class("prob_", PROBS, NAMES)}, named),
    Case(
        "from_1.csv",
        {"label": Y + 1, **by_class("prob_", PROBS, (1, 2, 3))},
        lambda: Predictions.from_probs(PROBS, Y, class_names=("1", "2", "3")),
    ),
    Case("floats.csv", {"label": Y.astype(float), **PROB}, three),
    # two classes
    Case("score.csv", {"label": HIT, "score": C}, binary),
    Case("true.jsonl", {"y_true": HIT.astype(bool), "prob": C}, binary),
    Case(
        "yes.csv",
        {"label": np.array(["no", "yes"])[HIT], "y_prob": C},
        lambda: Predictions.from_probs(C, HIT, of=1, class_names=("no", "yes")),
    ),
    Case("prob_1.csv", {"label": HIT, "prob_1": C}, binary),
    Case(
        "margin.csv", {"label": HIT, "logit": LOGITS[:, 0]}, lambda: Predictions.from_binary_logits(LOGITS[:, 0], HIT)
    ),
    # confidences
    Case("stated.csv", {"confidence": C, "correct": HIT}, stated),
    Case(
        "judge.jsonl",
        {"question": ["?"] * N, "verbal": C, "is_correct": HIT.astype(bool)},
        stated,
        {"confidence": "verbal"},
    ),
    Case("graded.csv", {"conf": C, "label": HIT}, stated, {"correct": "label"}),
    # several labels per example
    Case(
        "tags.parquet",
        {**by_class("prob_", SIGMOID, NAMES), **by_class("label_", TAGS, NAMES)},
        lambda: Predictions.multilabel(SIGMOID, TAGS, names=NAMES, probs=True),
    ),
    # rounding
    Case(
        "rounded.csv",
        {"label": Y, **by_class("prob_", PROBS.round(3))},
        lambda: Predictions.from_probs(PROBS.round(3), Y),
    ),
    # what cannot be known
    Case("none.csv", {"a": Y, "b": C}, "no_scores"),
    Case("bare_unsaid.csv", {"label": NAMES[Y], **by_class("", PROBS, NAMES)}, named),
    Case("both.csv", {"label": Y, **PROB, **LOGIT}, raw),
    Case("differ.csv", {"label": Y, **PROB, **by_class("logit_", LOGITS[::-1])}, "ambiguous_columns"),
    Case("hole.csv", {"label": Y, "prob_0": C, "prob_2": 1 - C}, "unknown_label"),
    Case("two_labels.csv", {"y_true": Y, "target": Y[::-1], **PROB}, "ambiguous_columns"),
    Case("same_labels.csv", {"y_true": Y, "target": NAMES[Y], **PROB}, three),
    Case("missing.csv", {"label": Y, **PROB, "prob_1": [None, *PROBS[1:, 1]]}, "missing_values"),
    Case("percent.csv", {"confidence": 100 * C, "correct": HIT}, "percent"),
    Case("unknown_word.csv", {"label": ["fox"] * N, **by_class("prob_", PROBS, NAMES)}, "unknown_label"),
    Case("no_label.csv", {**PROB}, "no_labels"),
    Case("typo.csv", {"label": Y, **PROB}, "no_column", {"label": "labl"}),
    Case("unnormalized.csv", {"label": Y, **by_class("prob_", 2 * PROBS)}, "not_probabilities"),
)


def written(case: Case, place: Path) -> Path:
    frame, path = polars.DataFrame(case.columns), place / case.name
    write = (
        case.write
        or {
            ".csv": polars.DataFrame.write_csv,
            ".parquet": polars.DataFrame.write_parquet,
            ".jsonl": polars.DataFrame.write_ndjson,
            ".arrow": polars.DataFrame.write_ipc,
        }[path.suffix]
    )
    write(frame, path)
    return path


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_tables_equal_their_arrays_or_are_refused(case, tmp_path):
    path = written(case, tmp_path)
    if isinstance(case.expected, str):
        with refused(case.expected) as caught:
            Predictions.load(path, **case.options)
        assert str(path) in str(caught.value)
        return
    loaded, expected = Predictions.load(path, **case.options), case.expected()
    np.testing.assert_allclose(loaded.logits, expected.logits, rtol=0, atol=1e-12, equal_nan=False)
    for name in ("labels", "weights", "clusters"):
        first_value, second_value = getattr(loaded, name), getattr(expected, name)
        assert (first_value is None) == (second_value is None)
        assert first_value is None or first_value.tolist() == second_value.tolist()
    assert (loaded.of, loaded.class_names) == (expected.of, expected.class_names)


def test_frames_of_all_libraries_are_tables():
    pandas, pyarrow, datasets = (pytest.importorskip(name) for name in ("pandas", "pyarrow", "datasets"))
    columns = {
        "label": NAMES[Y].tolist(),
        **{name: values.tolist() for name, values in by_class("prob_", PROBS, NAMES).items()},
    }
    frames = {
        "mapping": columns,
        "polars": polars.DataFrame(columns),
        "lazy": polars.LazyFrame(columns),
        "pandas": pandas.DataFrame(columns, index=range(5, 5 + N)),
        "categories": pandas.DataFrame(columns).astype({"label": "category"}),
        "arrow": pyarrow.table(columns),
        "hub": datasets.Dataset.from_dict(columns),
    }
    for kind, frame in frames.items():
        p = Predictions.from_table(frame)
        assert np.array_equal(p.logits, named().logits), kind
        assert p.labels.tolist() == Y.tolist(), kind
        assert p.class_names == tuple(NAMES), kind


@pytest.mark.parametrize(
    ("labels", "dtype"),
    [
        (["cat", None, "dog", "emu", "cat"], None),
        (["cat", None, "dog", "emu", "cat"], "category"),
        (["cat", None, "dog", "emu", "cat"], "string"),
        ([0, None, 1, 2, 0], "Int64"),
        ([0, None, 1, 2, 0], "float64"),
        ([0, None, 1, 2, 0], "Sparse[float64]"),
    ],
)
def test_missing_labels_in_pandas_are_missing(labels, dtype):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"label": pandas.Series(labels, dtype=dtype), **{f"prob_{c}": 1 / 3 for c in NAMES}})
    assert code_of(Predictions.from_table, frame) == "missing_values"
    assert Predictions.from_table(frame, drop=True).labels.tolist() == [0, 1, 2, 0]


def test_columns_with_one_name_in_pandas_are_refused():
    pandas = pytest.importorskip("pandas")
    for columns in (["label", "score", "label"], ["label", "0", 0]):
        frame = pandas.DataFrame([[0, 0.25, 1], [1, 0.75, 0]], columns=columns)
        assert code_of(Predictions.from_table, frame, probs=columns[1]) == "column_twice"
    assert Predictions.from_table({"label": [1, 0], 0: [0.25, 0.75], 1: [0.75, 0.25]}).labels.tolist() == [1, 0]


def test_roles_of_columns_are_noted_once():
    frame = {"y_true": Y, **PROB, "uid": range(N), "text": ["x"] * N}
    (note,) = Predictions.from_table(frame).notes
    assert_rendered("roles_of_columns", note)
    assert len(Predictions.from_table({"label": Y, **PROB}).notes) == 1


def test_rows_with_missing_values_are_dropped_and_counted():
    frame = {"confidence": [0.5, None, 1.2, float("nan"), 0.9, *[0.7] * 5], "correct": [1, 1, 0, 0, None, *[1] * 5]}
    p = Predictions.from_table(frame, drop=True)
    assert len(p) == 6
    (note,) = p.notes
    assert_rendered("dropped_rows", note)
    assert code_of(Predictions.from_table, {"confidence": [None, 1.2], "correct": [1, 1]}, drop=True) == "drop_most"


def test_rounded_probabilities_are_noted_and_others_refused():
    many_classes = np.full((4, 600), 0.002)  # of .00167 each: sums of 1.2
    assert "3 decimals" in Predictions.from_probs(many_classes, [0, 1, 2, 3]).notes[0]
    assert code_of(Predictions.from_probs, np.full((4, 3), 0.3), [0, 1, 2, 0]) == "class_missing"


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".csv", ".tsv", ".jsonl", ".parquet", ".arrow", ".csv.gz"])
def test_names_weights_clusters_and_groups_survive_a_file(tmp_path, suffix):
    p = Predictions(LOGITS, NAMES[Y], W, class_names=NAMES, groups=GROUPS, clusters=Y)
    p.save(tmp_path / f"saved{suffix}")
    back = Predictions.load(tmp_path / f"saved{suffix}")
    for name in ("logits", "labels", "weights", "clusters", "groups"):
        assert np.array_equal(getattr(back, name), getattr(p, name)), name
    assert (back.class_names, back.group_names) == (p.class_names, p.group_names)


def test_chunks_of_a_folder_equal_the_whole(tmp_path):
    path = written(Case("parts", {"label": NAMES[Y], **by_class("prob_", PROBS, NAMES)}, "", write=folder), tmp_path)
    predictions, chunks = Predictions.load(path), list(Predictions.load_chunks(path, rows=5))
    assert [len(chunk) for chunk in chunks] == [5, 5, 2]
    assert np.array_equal(np.concatenate([chunk.logits for chunk in chunks]), predictions.logits)
    assert np.array_equal(np.concatenate([chunk.labels for chunk in chunks]), predictions.labels)
    assert {chunk.class_names for chunk in chunks} == {tuple(NAMES)}


def test_reading_stops_after_an_unreadable_chunk(monkeypatch):
    started = list[int]()

    def read(rows: slice) -> Chunk:
        started.append(rows.start)
        if rows.start == 2:
            raise ValueError("damaged")
        return Chunk(Contents("logits", None, np.arange(rows.start, rows.stop)), Counter())

    monkeypatch.setattr("calibrant.io.predictions.open_chunked", lambda *_: ChunkedFile(9, 1, read))
    chunks = read_content_chunks("x.npy", 2, TableOptions())
    rows, chunk = next(chunks)
    assert (rows, chunk.contents.labels.tolist()) == (slice(0, 2), [0, 1])
    assert code_of(next, chunks) == "unreadable"
    assert started == [0, 2]


@pytest.mark.parametrize("rows", [1, 4, 5, 100])
def test_chunks_across_files_of_different_dtypes_equal_the_whole(tmp_path, rows):
    for i, (n, kind) in enumerate([(3, polars.Int32), (4, polars.Float32), (1, polars.Float64), (4, polars.Int64)]):
        numbers = polars.Series(range(n), dtype=kind)
        frame = polars.DataFrame({"label": [i % 2] * n, "logit_0": numbers, "logit_1": -numbers})
        frame.write_parquet(tmp_path / f"{i}.parquet")
    predictions, chunks = Predictions.load(tmp_path), list(Predictions.load_chunks(tmp_path, rows=rows))
    assert [len(chunk) for chunk in chunks] == [min(rows, 12 - first) for first in range(0, 12, rows)]
    assert np.array_equal(np.concatenate([chunk.logits for chunk in chunks]), predictions.logits)
    assert np.array_equal(np.concatenate([chunk.labels for chunk in chunks]), predictions.labels)
    assert {chunk.logits.dtype for chunk in chunks} == {predictions.logits.dtype}


def test_files_without_rows_are_skipped(tmp_path):
    for i, n in enumerate([0, 3, 0, 0, 2, 0]):
        frame = polars.DataFrame({"label": [1] * n, "logit_0": [0.5] * n, "logit_1": [float(i)] * n})
        kinds = {"label": polars.Int64, "logit_0": polars.Float64, "logit_1": polars.Float64}
        frame.cast(kinds).write_parquet(tmp_path / f"{i}.parquet")
    chunks = list(Predictions.load_chunks(tmp_path, rows=2))
    assert [chunk.logits[:, 1].tolist() for chunk in chunks] == [[1.0, 1.0], [1.0, 4.0], [4.0]]


@pytest.mark.parametrize("options", [{"drop": True}, {"ignore_index": -1}])
def test_errors_of_chunks_count_rows_that_are_left_out(options, tmp_path):
    labels = [None if "drop" in options else -1] * 2 + [0, 1] * 6
    frame = polars.DataFrame({"label": labels, "prob_0": [0.5] * 12 + [0.9, 0.5], "prob_1": 0.5})
    frame.write_parquet(tmp_path / "a.parquet")
    with refused("not_probabilities", "rows 12 .. 13"):
        list(Predictions.load_chunks(tmp_path / "a.parquet", rows=3, **options))


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_incomplete_rows_are_counted_over_all_chunks(rows, tmp_path):
    path, labels = tmp_path / "a.parquet", [0, 1, None, None, 0, 1, 1]
    frame = polars.DataFrame({"label": labels, "probs": [0.5] * 7, "weight": [1.0] * 6 + [math.nan]})
    frame.write_parquet(path)
    notes: list[str] = []
    chunks = list(Predictions.load_chunks(path, rows=rows, on_note=notes.append, drop=True))
    predictions = Predictions.load(path, drop=True)
    assert len(notes) == 2
    assert all(note in predictions.notes[0] for note in notes)
    assert np.array_equal(np.concatenate([chunk.logits for chunk in chunks]), predictions.logits)
    assert np.array_equal(np.concatenate([chunk.labels for chunk in chunks]), predictions.labels)
    with refused("missing_values"):
        list(Predictions.load_chunks(path, rows=rows))
    frame.head(3).vstack(frame[2:4]).vstack(frame[3:4]).write_parquet(path)
    with refused("drop_most", "4 of 6"):
        list(Predictions.load_chunks(path, rows=rows, drop=True))


def test_file_with_the_name_of_a_pattern_is_that_file(tmp_path):
    polars.DataFrame({"label": [0, 1], "score": [0.1, 0.9]}).write_csv(tmp_path / "a[1].csv")
    polars.DataFrame({"label": [0, 1, 1], "score": [0.1, 0.9, 0.8]}).write_csv(tmp_path / "a1.csv")
    assert len(Predictions.load(tmp_path / "a[1].csv")) == 2
    (tmp_path / "a[1].csv").unlink()
    assert len(Predictions.load(tmp_path / "a[1].csv")) == 3


def test_summary_of_a_file_has_its_event(tmp_path):
    polars.DataFrame({"stated": C, "correct": HIT}).write_parquet(tmp_path / "stated.parquet")
    summary = metrics.Summary.from_file(tmp_path / "stated.parquet", confidence="stated")
    assert (summary.of, summary.class_names) == (1, ("wrong", "correct"))
    assert summary["ece"] == pytest.approx(float(metrics.ece(stated())), abs=1e-12)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"prob": "score"}, "unknown_option"),
        ({"percents": True}, "unknown_option"),
        ({"percent": "yes"}, "option_value"),
        ({"labels_from": 1.5}, "option_value"),
        ({"na": [1]}, "option_value"),
        ({"encoding": 8}, "option_value"),
    ],
)
def test_unknown_reading_options_and_values_are_refused(options, code, tmp_path):
    path = tmp_path / "a.parquet"
    polars.DataFrame({"label": HIT, "score": C}).write_parquet(path)
    for read in (Predictions.load, Predictions.from_table, lambda *a, **b: list(Predictions.load_chunks(*a, **b))):
        assert code_of(read, path, **options) == code


def test_options_that_are_none_are_ignored():
    assert Predictions.from_table({"label": HIT, "score": C}, label=None, positive=None, na=None).of == 1


def test_columns_without_scores_are_looked_at_once(tmp_path, monkeypatch):
    """20,000 keys in an object took minutes: each was compared with each prefix, and with each other key."""
    calls: list[str] = []

    def parse(name, prefix):
        calls.append(name)
        return parse_class_suffix(name, prefix)

    monkeypatch.setattr("calibrant.predictions.validation.columns.parse_class_suffix", parse)
    keys = ", ".join(f'"key{i}": {i}' for i in range(2000))
    (tmp_path / "t.jsonl").write_text("".join(f'{{"prob": 0.{i}, "label": {i % 2}, {keys}}}\n' for i in range(1, 9)))
    assert Predictions.load(tmp_path / "t.jsonl").labels.tolist() == [1, 0] * 4
    assert not [name for name in calls if name.startswith("key")]
