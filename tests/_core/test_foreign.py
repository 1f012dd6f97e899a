"""JSON and TOML of unknown origin: depth, size and types are checked before anything else looks at them."""

import gzip
import json
import time
from pathlib import Path

import numpy as np
import pytest
from refusals import code_of
from safetensors.numpy import save_file

from calibrant import Predictions
from calibrant._core.foreign import MAX_DEPTH, MAX_TOML_BYTES, check_shape, parse_json, parse_json_lines, read_toml
from calibrant.io.encoding import max_zstandard_size, read_decompressed
from calibrant.monitoring import read_requirements


def nested(depth: int) -> str:
    return "[" * depth + "1" + "]" * depth


@pytest.mark.parametrize("depth", [MAX_DEPTH, 600, 900, 100_000])
def test_nested_json_lines_are_refused_before_a_parser_sees_them(tmp_path, depth):
    path = tmp_path / "rows.jsonl"
    path.write_text(f'{{"prob": 0.5, "label": 1, "extra": {nested(depth)}}}\n' * 3)
    start = time.monotonic()
    assert code_of(Predictions.load, path) == "too_deep"
    assert time.monotonic() - start < 10


def test_brackets_in_texts_are_no_levels():
    text = '{"a": "' + "[{" * 500 + '\\"[", "b": ' + nested(MAX_DEPTH - 1) + "}"
    assert len(parse_json(text)["a"]) == 1002
    assert parse_json_lines(text.encode())[0].keys() == {"a", "b"}


def test_a_repeated_key_among_many_is_found_in_linear_time():
    text = "{" + ", ".join(f'"k{i}": 1' for i in range(100_000)) + ', "k99999": 2}'
    start = time.monotonic()
    assert code_of(parse_json, text) == "repeated_key"
    assert time.monotonic() - start < 10


@pytest.mark.parametrize("text", ["", "[1", "nul", "9" * 5000, "\x00", "[1] 2"])
def test_other_texts_are_no_json(text):
    assert code_of(parse_json, text) == "unreadable"


def test_types_are_checked_by_a_shape():
    shape = {"ids": [(str, int)], "score": {"value": float}}
    for value in ({"ids": ["a", 1], "score": {"value": 0.5}}, {"ids": None}, {"more": 1}):
        check_shape(value, shape)
    for value in ({"ids": "a"}, {"ids": [None]}, {"ids": [True]}, {"score": {"value": "x"}}, [], None, 1):
        assert code_of(check_shape, value, shape) == "json_type"


@pytest.mark.parametrize(
    "metadata",
    [{"ids": "null"}, {"ids": "[null, null]"}, {"ids": "{"}, {"class_names": "5"}, {"class_names": '[["a"]]'}],
)
def test_metadata_of_safetensors(tmp_path, metadata):
    path = tmp_path / "p.safetensors"
    save_file({"logits": np.zeros((2, 2)), "labels": np.array([0, 1])}, path, metadata)
    assert code_of(Predictions.load, path) in ("json_type", "unreadable")


TOML = {
    "digits": "require = " + "9" * 5000,
    "brackets": "require = " + "[" * 3000 + "]" * 3000,
    "keys": "a." * 100_000 + "a = 1",
    "large": "#" * (MAX_TOML_BYTES + 1),
    "bytes": b"\xff\xfe\x00",
    "open": "require = [",
}


def read_study(path: Path) -> object:
    pytest.importorskip("torch")
    from calibrant.lab.study.config import Study

    return Study.load(path)


@pytest.mark.parametrize("read", [read_toml, read_requirements, read_study])
@pytest.mark.parametrize("name", TOML)
def test_one_reader_of_toml_refuses_in_one_line(tmp_path, read, name):
    path, content = tmp_path / "x.toml", TOML[name]
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert code_of(read, path) in ("toml", "unreadable")


def test_toml_with_a_byte_order_mark(tmp_path):
    path = tmp_path / "x.toml"
    path.write_bytes(b'\xef\xbb\xbfrequire = ["ece < 0.05"]')
    assert read_toml(path) == read_requirements(path) == {"require": ["ece < 0.05"]}
    assert code_of(read_toml, tmp_path / "absent.toml") == "unreadable"


def test_compressed_files_may_expand_a_hundredfold(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    line = json.dumps({"confidence": 0.5, "correct": 1, "text": "x" * 200}).encode() + b"\n"
    path.write_bytes(gzip.compress(line * 1000))
    assert read_decompressed(path) == line * 1000
    path.write_bytes(gzip.compress(b"0" * 10**8))
    assert code_of(read_decompressed, path) == "expansion"


@pytest.mark.parametrize("size", [0, 1, 1000, 300_000])
def test_the_size_of_zstandard_is_bounded_from_its_blocks(tmp_path, size):
    from evaluation_logs import compress_zstandard

    text = np.random.default_rng(size).integers(65, 90, size, dtype=np.uint8).tobytes() or b"a"
    path = tmp_path / "a.zst"
    path.write_bytes(compress_zstandard(text))
    with path.open("rb") as file:
        bound = max_zstandard_size(file, path.stat().st_size)
    assert len(text) <= bound <= len(text) + 2 * (1 << 17)
