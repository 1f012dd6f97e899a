"""File formats: text dialects, workbooks, invalid arrays, round trips and calibrated files."""

import gzip
import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars
import pytest
import xlsxwriter
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from refusals import code_of, refused
from safetensors.numpy import save_file

from calibrant import InputError, Predictions, calibrators
from calibrant._core.files import is_case_insensitive
from calibrant._core.text import escape_formula, unescape_column
from calibrant.assessment import apply_to_file
from calibrant.io.arrays import LABEL_ARRAY_KEYS, ROW_KEYS, TEXT_KEYS
from calibrant.io.column_roles import TableOptions
from calibrant.io.encoding import read_decompressed, write_compressed
from calibrant.io.formats import WRITABLE_SUFFIXES
from calibrant.io.predictions import read_contents, write_table
from calibrant.io.tables import read_table

CATS = [("cat", 0.25, 0.75), ("dog", 0.5, 0.5), ("dog", 0.125, 0.875)]
CSV_TEXT = "label,prob_cat,prob_dog\n" + "".join(f"{a},{b},{c}\n" for a, b, c in CATS)


def load_text(text: str | bytes, folder: Path, name: str = "t.csv", **options: Any) -> Predictions:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return Predictions.load(path, **options)


def assert_csv_text(p: Predictions) -> None:
    assert p.class_names == ("cat", "dog")
    assert p.labels.tolist() == [0, 1, 1]
    np.testing.assert_allclose(np.exp(p.logits), np.array([row[1:] for row in CATS]), strict=True)


# Dialects


@pytest.mark.parametrize(
    "text",
    [
        CSV_TEXT,
        CSV_TEXT.replace(",", ";").replace(".", ","),
        CSV_TEXT.replace(",", ";"),
        CSV_TEXT.replace(",", "\t"),
        CSV_TEXT.replace(",", "|"),
        CSV_TEXT.replace(",", " "),
        "sep=;\n" + CSV_TEXT.replace(",", ";").replace(".", ","),
        '"sep=;"\r\n' + CSV_TEXT.replace(",", ";").replace("\n", "\r\n"),
        "# made in May\n#\n" + CSV_TEXT,
        "# label,prob_cat,prob_dog\n" + CSV_TEXT.partition("\n")[2],
        CSV_TEXT.replace("\n", "\r\n"),
        CSV_TEXT.replace("\n", "\r"),
        CSV_TEXT + "\n\n  \n",
        CSV_TEXT.replace("\n", "\n\n"),
        CSV_TEXT + ",,\n,,\n",
        CSV_TEXT.rstrip("\n"),
        CSV_TEXT.replace(",", " , "),
        CSV_TEXT.replace(",", ", "),
        " label ,prob_cat , prob_dog\n" + CSV_TEXT.partition("\n")[2],
        'label,"prob_cat","prob_dog"\n"cat","0,25","0,75"\n"dog","0,5","0,5"\n"dog","0,125","0,875"\n',
        "".join(f'{line},"x, ""y""\n\nz"\n' for line in CSV_TEXT.splitlines()),
        "".join(f'{line},5" pipe\n' for line in CSV_TEXT.splitlines()),
    ],
)
def test_dialects_give_the_same_predictions(tmp_path, text):
    assert_csv_text(load_text(text, tmp_path))


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "cp1252", "latin-1"])
def test_encodings_are_detected_and_noted(tmp_path, encoding):
    text = CSV_TEXT.replace("cat", "chät")
    p = load_text(text.encode(encoding), tmp_path)
    assert p.class_names == ("chät", "dog")
    assert sum("encoding" in note for note in p.notes) == 1
    assert not any("encoding" in note for note in load_text(text, tmp_path).notes)


def test_explicit_encoding_is_used(tmp_path):
    text = CSV_TEXT.replace("cat", "кот").encode("cp1251")
    assert load_text(text, tmp_path, encoding="cp1251").class_names == ("кот", "dog")
    assert code_of(load_text, text, tmp_path, encoding="utf-8") == "encoding"
    assert code_of(load_text, text, tmp_path, encoding="no-such") == "unknown_encoding"
    assert code_of(load_text, text, tmp_path, encoding="rot13") == "unknown_encoding"


@pytest.mark.parametrize("line", ["dog,.5", "dog,.5,.5,.5", "dog,0,5,0,5", 'dog,.5,".5\n.5",1'])
def test_ragged_lines_are_refused_with_their_number(tmp_path, line):
    text = f"label,prob_cat,prob_dog\n\ncat,.5,.5\n{line}\ncat,.5,.5\n".replace("\n\n", "\n")
    with refused("ragged") as caught:
        load_text(text, tmp_path)
    assert "line 3" in str(caught.value)


def test_lines_are_counted_from_the_top_of_the_file(tmp_path):
    text = "sep=,\n# by hand\n\n" + CSV_TEXT + "dog,1\n"
    with refused("ragged") as caught:
        load_text(text, tmp_path)
    assert "line 8" in str(caught.value)


@pytest.mark.parametrize("text", ["label,prob_cat,prob_dog\n", "label,prob_cat,prob_dog", "label,prob_0\n\n ,\n,\n"])
def test_tables_without_rows_are_refused(tmp_path, text):
    assert code_of(load_text, text, tmp_path) == "no_rows"


def test_open_quotes_are_refused(tmp_path):
    text = "label,prob_cat,prob_dog,note\n" + 'cat,.5,.5,"a\n' + "dog,.5,.5,b\n" * 5
    assert code_of(load_text, text, tmp_path) == "quotes"


@pytest.mark.parametrize("word", ["NA", "n/a", "#N/A", "null", "None", "nan", "-", "?", "", "."])
def test_missing_words_are_missing_in_columns_of_numbers(tmp_path, word):
    text = CSV_TEXT + f"dog,{word},{word}\n"
    with refused("missing_values") as caught:
        load_text(text, tmp_path)
    assert "1 of 4" in str(caught.value)
    assert len(load_text(text, tmp_path, drop=True)) == 3


@pytest.mark.parametrize("word", ["NA", "None", "null", "-", "?"])
def test_missing_words_are_classes_if_columns_have_these_names(tmp_path, word):
    p = load_text(CSV_TEXT.replace("cat", word), tmp_path)
    assert p.class_names == (word, "dog")
    assert p.labels.tolist() == [0, 1, 1]
    numbers = CSV_TEXT.replace("cat", word).replace("dog", "7")
    assert load_text(numbers, tmp_path).labels.tolist() == [0, 1, 1]


def test_na_option_adds_words_for_missing_values(tmp_path):
    text = CSV_TEXT + "dog,absent,-99\nabsent,0.5,0.5\n"
    frame = polars.DataFrame({"y": [0, 1, 1, 0, -99], "prob": [0.1, -99.0, 0.5, 0.2, 0.5]})
    assert len(load_text(text, tmp_path, na=["absent", "-99"], drop=True)) == 3
    assert len(Predictions.from_table(frame, label="y", na=["-99"], drop=True)) == 3
    frame.write_parquet(tmp_path / "t.parquet")
    assert len(Predictions.load(tmp_path / "t.parquet", label="y", na="-99", drop=True)) == 3


def test_thousands_commas_are_not_decimal_commas(tmp_path):
    text = 'label,prob_cat,prob_dog,weight\ncat,.25,.75,"1,234"\ndog,.5,.5,"2,500"\n'
    assert code_of(load_text, text, tmp_path, weight="weight") == "not_numbers"


@pytest.mark.parametrize("suffix", [".csv.gz", ".tsv.gz", ".txt.gz", ".csv.zst", ".tsv.zst"])
def test_compressed_text_is_read(tmp_path, suffix):
    text = CSV_TEXT.replace(",", "\t") if ".tsv" in suffix else CSV_TEXT
    path = tmp_path / f"t{suffix}"
    write_compressed(text, path)
    assert_csv_text(Predictions.load(path))
    if suffix.endswith("gz"):
        assert gzip.decompress(path.read_bytes()).decode() == text


@pytest.mark.parametrize("text", ["", "\ufeff", "\n\n", "# a\n# b\n", "sep=;\n"])
def test_text_without_a_header_is_refused(tmp_path, text):
    assert code_of(load_text, text, tmp_path) == ("no_header" if text else "empty_file")


def test_zero_bytes_are_refused(tmp_path):
    assert code_of(load_text, CSV_TEXT + "\0\0,.5,.5\n", tmp_path) == "zero_bytes"


def test_errors_name_the_file_of_a_folder(tmp_path):
    (tmp_path / "a.csv").write_text(CSV_TEXT)
    (tmp_path / "b.csv").write_text(CSV_TEXT + "dog,1\n")
    with refused("ragged", "b.csv"):
        Predictions.load(tmp_path)


def test_damaged_file_of_a_folder_is_named(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with refused("unreadable", "a.parquet"):
        Predictions.load(tmp_path)


# Workbooks


def workbook(path: Path, rows: list[list[Any]], *other_sheets: str) -> Path:
    book = xlsxwriter.Workbook(path)
    sheet, percent = book.add_worksheet("first"), book.add_format({"num_format": "0%"})
    for i, row in enumerate(rows):
        for j, value in enumerate(row):
            if isinstance(value, tuple):
                sheet.write_formula(i, j, value[0], None, value[1])
            elif isinstance(value, str):
                sheet.write_string(i, j, value)
            elif value is not None:
                sheet.write_number(i, j, value, percent)
    for name in other_sheets:
        book.add_worksheet(name).write(0, 0, "x")
    book.close()
    return path


def test_workbooks_are_read(tmp_path):
    rows: list[list[Any]] = [["label", "prob_cat", "prob_dog"], *map(list, CATS)]
    assert_csv_text(Predictions.load(workbook(tmp_path / "a.xlsx", rows)))
    rows[1][2] = ("=1-B2", 0.75)
    rows[2][1:] = ["0.5", " 0.5 "]
    p = Predictions.load(workbook(tmp_path / "b.xlsx", rows, "second", "third"))
    assert_csv_text(p)
    assert sum("'second', 'third'" in note for note in p.notes) == 1


def test_words_among_numbers_of_a_workbook_are_kept(tmp_path):
    rows: list[list[Any]] = [["label", "prob_cat", "prob_dog", "group"], *([*row, i] for i, row in enumerate(CATS))]
    rows[3][3] = "west"
    p = Predictions.load(workbook(tmp_path / "a.xlsx", rows))
    assert p.group_names == ("0", "1", "west")
    rows[3][1] = "NA"
    assert code_of(Predictions.load, workbook(tmp_path / "b.xlsx", rows)) == "missing_values"
    rows[3][1] = "oops"
    with refused("not_numbers") as caught:
        Predictions.load(workbook(tmp_path / "c.xlsx", rows))
    assert "oops" in str(caught.value)


def test_workbooks_have_no_formulas(tmp_path):
    import zipfile

    z = np.random.default_rng(0).normal(size=(6, 2))
    p = Predictions(z, np.arange(6) % 2, class_names=["=1+1", "@x"])
    p.save(tmp_path / "p.xlsx")
    assert b"<f>" not in zipfile.ZipFile(tmp_path / "p.xlsx").read("xl/worksheets/sheet1.xml")
    assert Predictions.load(tmp_path / "p.xlsx").class_names == ("=1+1", "@x")


def test_missing_package_error_names_the_extra(tmp_path, monkeypatch):
    import sys

    p = load_text(CSV_TEXT, tmp_path)
    p.save(tmp_path / "p.xlsx")
    monkeypatch.setitem(sys.modules, "fastexcel", None)
    monkeypatch.setitem(sys.modules, "xlsxwriter", None)
    with refused("missing_package") as caught:
        Predictions.load(tmp_path / "p.xlsx")
    assert "calibrant[excel]" in str(caught.value)
    assert code_of(p.save, tmp_path / "q.xlsx") == "missing_package"


# Formulas


@pytest.mark.parametrize("text", ["=1", "@a", "+a", "-a", " =a", "\t=a", "\r=a", "'=a", "''=a", "＝a", "-1+1"])
def test_formula_escaping_is_reversible(text):
    assert escape_formula(text) == "'" + text
    assert unescape_column([escape_formula(text), "b"]) == [text, "b"]


@pytest.mark.parametrize("text", ["-1", "-0,5", "+1.5e3", "-5 %", "-", "--", "a=b", "'a", "", "-inf"])
def test_numbers_and_dashes_are_not_escaped(text):
    assert escape_formula(text) == text


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".tsv.gz", ".txt.zst"])
def test_text_files_have_no_formulas(tmp_path, suffix):
    frame = polars.DataFrame({"=x": ["=1+1", "a"], "label": ["@b", "-1"], "n": [-1.5, 2.0]})
    path = tmp_path / f"t{suffix}"
    write_table(path, frame)
    cells = {cell for row in read_table(path).texts().rows() for cell in row}
    assert cells == {"'=1+1", "a", "'@b", "-1", "-1.5", "2.0"}
    assert read_decompressed(path).startswith(b'"\'=x"')
    assert read_table(path).frame.columns == frame.columns


# Round trips


def row_attributes(p: Predictions) -> dict[str, Any]:
    groups = None if p.groups is None or p.group_names is None else [p.group_names[i] for i in p.groups]
    return {"clusters": p.clusters, "groups": groups}


def assert_same(p: Predictions, q: Predictions) -> None:
    if p.class_names is not None and q.class_names is None:  # columns of numbers are in their order, and need no names
        assert set(p.class_names) == set(map(str, range(p.k)))
        q = Predictions(q.logits, q.labels, q.weights, class_names=sorted(p.class_names), **row_attributes(q))
    q = q.reorder_classes(p.class_names)
    assert q.class_names == p.class_names
    assert np.array_equal(q.labels, p.labels)
    assert np.array_equal(q.logits, p.logits)
    for name in ("weights", "clusters"):
        first, second = getattr(p, name), getattr(q, name)
        assert (first is None) == (second is None)
        assert first is None or np.array_equal(first, second)
    assert (p.groups is None) == (q.groups is None)
    if p.groups is not None and q.groups is not None:
        assert p.group_names is not None
        assert q.group_names is not None
        assert [p.group_names[i] for i in p.groups] == [q.group_names[i] for i in q.groups]


PIECES = [*"=@+-'\",;\t\n\r #01.abéß日_|%\x00\u202e\ud800²", "10", "NA", "None", "null", "nan", "inf", "true"]
PIECES += ["sep=;", "=cmd()", "x" * 300]
NAMES = st.lists(st.sampled_from(PIECES), max_size=4).map("".join)


@st.composite
def prediction_parts(draw: st.DrawFn) -> dict[str, Any]:
    k, n = draw(st.integers(2, 4)), draw(st.integers(4, 8))
    kind = draw(st.sampled_from([np.float32, np.float64]))
    extra: dict[str, Any] = {
        "shape": (n, k),
        "kind": kind,
        "seed": draw(st.integers(0, 99)),
        "mask": draw(st.booleans()),
    }
    if draw(st.booleans()):
        extra["class_names"] = draw(st.lists(NAMES, min_size=k, max_size=k, unique=True))
    if draw(st.booleans()):
        extra["groups"] = draw(st.lists(NAMES, min_size=n, max_size=n))
    if draw(st.booleans()):
        extra["clusters"] = [i // 2 for i in range(n)]
    return extra


def make_predictions(
    shape: tuple[int, int], kind: type[np.floating], seed: int, mask: bool, **extra: Any
) -> Predictions:
    z = (3 * np.random.default_rng(seed).normal(size=shape)).astype(kind)
    z[0, 0] = -math.inf if mask else 0
    return Predictions(z, np.arange(shape[0]) % shape[1], **extra)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(parts_of_predictions=prediction_parts(), suffix=st.sampled_from(WRITABLE_SUFFIXES))
def test_saved_predictions_round_trip_or_are_refused(tmp_path, parts_of_predictions, suffix):
    p = make_predictions(**parts_of_predictions)
    path = tmp_path / f"p{suffix}"
    path.unlink(missing_ok=True)
    try:
        p.save(path)
    except InputError:
        assert not path.exists()
    else:
        assert_same(p, Predictions.load(path))
    assert not list(tmp_path.glob(".p*"))


@pytest.mark.parametrize("suffix", WRITABLE_SUFFIXES)
@pytest.mark.parametrize(
    "names",
    [
        ("=x", "@x", "+y", 'q"u', "a,b", "c;d", "é", "日本", "-", "'=cmd()", "=cmd()", "b", "a'", "a", "'a"),
        ("NA", "None", "null"),
        ("1.0 m", "2.0 m", "0.0 m"),
    ],
)
def test_portable_names_round_trip_in_every_format(tmp_path, names, suffix):
    k = len(names)
    z = np.random.default_rng(1).normal(size=(3 * k, k)).astype(np.float32)
    p = Predictions(z, np.arange(3 * k) % k, class_names=names, groups=[*names, *names, *names])
    p.save(tmp_path / f"p{suffix}")
    assert_same(p, Predictions.load(tmp_path / f"p{suffix}"))


@pytest.mark.parametrize("names", [("01", "1", "001"), ("a\0", "a", "b"), ("", "a", "b")])
def test_ambiguous_names_are_refused_by_tables(tmp_path, names):
    p = Predictions(np.eye(3), np.arange(3), class_names=names)
    assert code_of(p.save, tmp_path / "p.csv") == "not_exact"
    assert not list(tmp_path.iterdir())
    p.save(tmp_path / "p.safetensors")
    assert_same(p, Predictions.load(tmp_path / "p.safetensors"))


def test_unwritable_suffixes_are_refused(tmp_path):
    p = Predictions(np.eye(3), np.arange(3))
    for name in ("p.doc", "p", "p.npy", "p.pt"):
        assert code_of(p.save, tmp_path / name) == "suffix"


# Odd arrays


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({"logits": np.float64(1)}, "single_logit"),
        ({"labels": np.int64(1)}, "shape"),
        ({"class_names": np.array("abc")}, "names"),
        ({"class_names": np.array([["a", "b", "c"]])}, "names"),
        ({"groups": np.array([0, 1, 2, 7]), "group_names": np.array(["a", "b"])}, "group_index"),
        ({"groups": np.array(["a", "b", "a", "a"]), "group_names": np.array(["a", "b"])}, "not_numbers"),
        ({"labels": np.array(["2020-01-01"] * 4, dtype="M8[D]")}, "label_kind"),
    ],
)
def test_odd_arrays_are_refused(tmp_path, extra, expected):
    np.savez(tmp_path / "p.npz", **({"logits": np.zeros((4, 3)) + np.eye(4, 3), "labels": np.arange(4) % 3} | extra))
    assert code_of(Predictions.load, tmp_path / "p.npz") == expected


INTERNAL = ["notes", "is_multilabel", "event_kind", "percent", "predicted", "of", "kind"]


@pytest.mark.parametrize("name", INTERNAL)
@pytest.mark.parametrize("suffix", [".npz", ".pt", ".safetensors"])
def test_files_cannot_set_internal_fields(tmp_path, name, suffix):
    logits = np.random.default_rng(0).normal(size=(4, 3))
    arrays = {"logits": logits, "labels": np.arange(4) % 3, name: np.ones(4)}
    path = tmp_path / f"p{suffix}"
    if suffix == ".npz":
        np.savez(path, **arrays)
    elif suffix == ".pt":
        torch = pytest.importorskip("torch")
        torch.save({key: torch.from_numpy(value) for key, value in arrays.items()}, path)
    else:
        save_file(arrays, path, {"notes": json.dumps(["x"]), "is_multilabel": "true"})
    p = Predictions.load(path)
    assert p.notes == ()
    assert np.array_equal(p.logits, logits)


ODD_ARRAYS: list[Callable[[random.Random], Any]] = [
    lambda r: np.float32(r.random()),
    lambda r: np.zeros(0),
    lambda r: np.full((4, 3), math.nan),
    lambda r: np.array(["a", "b", "", "c"]),
    lambda r: np.array([b"a", b"\xff", b"", b"c"]),
    lambda r: np.array([True, False, True, False]),
    lambda r: np.arange(4) - 2,
    lambda r: np.arange(4) * 10**15,
    lambda r: np.array("abc"),
    lambda r: np.zeros((4, 3, 2)),
    lambda r: np.zeros(4, dtype=np.complex64),
    lambda r: np.zeros(4, dtype="M8[s]"),
    lambda r: np.zeros(4, dtype="V8"),
    lambda r: np.array(["a", "a", "b"]),
    lambda r: np.longdouble([1, 2, 3, 4]),
    lambda r: np.uint64([2**64 - 1, 1, 2, 3]),
]
KEYS = [
    "logits",
    "probs",
    "confidence",
    *LABEL_ARRAY_KEYS,
    *ROW_KEYS,
    *TEXT_KEYS,
    "notes",
    "is_multilabel",
    "event_kind",
]


@pytest.mark.parametrize("suffix", [".npz", ".pt"])
def test_files_of_odd_arrays_are_read_or_refused_in_one_line(tmp_path, suffix):
    r, count, path = random.Random(0), 0, tmp_path / f"p{suffix}"
    for _ in range(150):
        arrays: dict[str, Any] = {"logits": np.eye(4, 3) + 1, "labels": np.arange(4) % 3}
        arrays |= {r.choice(KEYS): r.choice(ODD_ARRAYS)(r) for _ in range(r.choice([1, 1, 2]))}
        if suffix == ".npz":
            np.savez(path, **arrays)
        else:
            torch = pytest.importorskip("torch")
            odd = [[1, [2]], {"a": 1}, "x", 3, [torch.zeros(2), torch.zeros(3)], None, torch.zeros(2).to_sparse()]
            tensors = {key: torch.from_numpy(a) for key, a in arrays.items() if is_tensor_like(a)}
            torch.save({**tensors, r.choice(KEYS): r.choice(odd)}, path)
        reason = error_message(path)
        count += reason is not None
        assert "\n" not in (reason or "")
    assert count > 50


def error_message(path: Path) -> str | None:
    try:
        Predictions.load(path)
    except InputError as error:
        return str(error)
    return None


def is_tensor_like(array: Any) -> bool:
    return isinstance(array, np.ndarray) and array.dtype.kind in "bifc" and array.dtype != np.longdouble


# Apply


@pytest.fixture(scope="module")
def calibrator_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    z = np.random.default_rng(0).normal(size=(60, 2))
    path = tmp_path_factory.mktemp("c") / "c.safetensors"
    calibrators.save(calibrators.fit("Temperature", Predictions(z, np.arange(60) % 2)), path)
    return path


def json_lines(*further_pairs: str) -> str:
    """Return lines, of which the third has further pairs of key and value."""
    lines = [f'{{"id": {i}, "label": {i % 2}, "prob_0": 0.25, "prob_1": 0.75}}' for i in range(4)]
    lines[2] = lines[2][:-1] + "".join(f", {pair}" for pair in further_pairs) + "}"
    return "\n".join(lines)


@pytest.mark.parametrize("pair", ['"label": 1', '"label" :null', '"l\\u0061bel": 1', '"note": {"a": 1, "a": 2}'])
def test_repeated_keys_of_a_line_are_refused(pair, tmp_path):
    (tmp_path / "t.jsonl").write_text(json_lines(pair))
    with refused("repeated_key", "line 3"):
        Predictions.load(tmp_path / "t.jsonl")


def test_colons_in_texts_and_missing_keys_are_no_repeated_keys(tmp_path):
    text = json_lines('"note": "a: \\"label\\": 1"', '"other": {"label": 2}', '"id2": null')
    p = load_text(text, tmp_path, "t.jsonl")
    assert p.labels.tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize("value", ["NaN", "null"])
def test_nan_in_json_lines_is_a_missing_value(value, tmp_path):
    text = json_lines().replace('"label": 0, "prob_0": 0.25', f'"label": 0, "prob_0": {value}', 1)
    with refused("missing_values", "1 of 4"):
        load_text(text, tmp_path, "t.jsonl")
    assert load_text(text, tmp_path, "t.jsonl", drop=True).labels.tolist() == [1, 0, 1]


def test_json_lines_may_end_as_on_old_macintosh_computers(tmp_path):
    assert load_text(json_lines().replace("\n", "\r"), tmp_path, "t.jsonl").labels.tolist() == [0, 1, 0, 1]


def test_json_lines_of_mixed_types_are_refused(tmp_path):
    with refused("unreadable"):
        load_text(json_lines().replace('"label": 0', '"label": [0]', 1), tmp_path, "t.jsonl")


def test_json_lines_that_are_cut_off_are_refused_with_their_number(tmp_path):
    with refused("unreadable", "line 4"):
        load_text(json_lines()[:-5], tmp_path, "t.jsonl")


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".csv", ".jsonl.gz", ".parquet", ".xlsx"])
def test_calibrated_arrays_keep_row_attributes(tmp_path, calibrator_path, suffix):
    arrays = {
        "logits": np.random.default_rng(2).normal(size=(6, 2)),
        "labels": np.arange(6) % 2,
        "weights": np.array([1, 2, 0.5, 1, 1, 0.5]),
    }
    arrays |= {"clusters": np.arange(6) // 2, "groups": np.array([0, 1, 1, 0, 0, 1])}
    arrays |= {"group_names": np.array(["b", "a"])}
    arrays |= {"class_names": np.array(["no", "yes"]), "ids": np.array([f"r{i}" for i in range(6)])}
    np.savez(tmp_path / "in.npz", **arrays)
    apply_to_file(str(calibrator_path), tmp_path / "in.npz", tmp_path / f"out{suffix}")
    p = Predictions.load(tmp_path / "in.npz")
    assert_same(p.apply(calibrators.load(calibrator_path)), Predictions.load(tmp_path / f"out{suffix}"))
    assert list(read_contents(tmp_path / f"out{suffix}", TableOptions()).ids) == list(arrays["ids"])


def test_apply_reports_how_the_file_was_read(tmp_path, calibrator_path):
    notes: list[str] = []
    (tmp_path / "in.csv").write_bytes(SEMICOLON_TEXT.encode("utf-16"))
    apply_to_file(str(calibrator_path), tmp_path / "in.csv", tmp_path / "out.csv", on_note=notes.append)
    assert sum("utf-16" in note for note in notes) == 1


SEMICOLON_TEXT = "id;note;prob_no;prob_yes\n007;=1+1;0,25;0,75\n010;-;0,50;0,5\n011;NA;1e-3;0,999\n"


def test_calibrated_text_keeps_separator_decimal_sign_and_spelling(tmp_path, calibrator_path):
    (tmp_path / "in.csv").write_text(SEMICOLON_TEXT)
    apply_to_file(str(calibrator_path), tmp_path / "in.csv", tmp_path / "out.csv")
    out = (tmp_path / "out.csv").read_text().splitlines()
    assert out[0] == "id;note;prob_no;prob_yes;calibrated_prob_no;calibrated_prob_yes;predicted"
    assert out[1].startswith("007;'=1+1;0,25;0,75;0,")
    assert out[2].startswith("010;-;0,50;0,5;0,")
    assert out[3].startswith("011;NA;1e-3;0,999;")
    assert "." not in "".join(out)


@pytest.mark.parametrize("suffix", [s for s in WRITABLE_SUFFIXES if s not in (".npz", ".safetensors")])
def test_calibrated_tables_keep_rows_and_columns_in_every_format(tmp_path, calibrator_path, suffix):
    (tmp_path / "in.csv").write_text(SEMICOLON_TEXT)
    path = tmp_path / f"out{suffix}"
    assert apply_to_file(str(calibrator_path), tmp_path / "in.csv", path, drop=True)[0] == 3
    frame = read_table(path).frame
    assert frame.columns[:4] == ["id", "note", "prob_no", "prob_yes"]
    assert frame["prob_no"].to_list() == [0.25, 0.5, 0.001]
    assert frame["note"].to_list() == ["=1+1", "-", "NA"]
    assert frame["calibrated_prob_no"].null_count() == 0


def test_refused_apply_writes_nothing(tmp_path, calibrator_path):
    (tmp_path / "in.csv").write_text("prob_no,prob_yes\n.2,.8\n.2,\n")
    assert code_of(apply_to_file, str(calibrator_path), tmp_path / "in.csv", tmp_path / "out.xlsx") == "missing_values"
    (tmp_path / "in.csv").write_text(SEMICOLON_TEXT)
    assert (
        code_of(apply_to_file, str(calibrator_path), tmp_path / "in.csv", tmp_path / "out.doc", drop=True) == "suffix"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["in.csv"]


def test_digits_of_other_scripts_are_not_numbers(tmp_path: Path) -> None:
    rows = [f"{0.1 * (i % 9):.1f},{i % 2}" for i in range(20)]
    path = tmp_path / "a.csv"
    path.write_text("\n".join(["prob,label", *rows, "\u0660.\u0665,1", ""]), encoding="utf-8")
    assert code_of(Predictions.load, path, drop=True) == "not_numbers"


def test_case_sensitivity_of_a_folder_without_letters(tmp_path: Path) -> None:
    (tmp_path / "2024").mkdir()
    assert is_case_insensitive(tmp_path / "2024") == is_case_insensitive(tmp_path)
