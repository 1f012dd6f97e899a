"""Reading: what is wrong with a file is said in one line; the cache survives anything."""

import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from small_data import write_images

from calibrant import data
from calibrant.data._load import cached
from calibrant.types import InputError


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CALIBRANT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "data"


def one_line(call, *parts):
    with pytest.raises(InputError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message
    assert caught.value.__cause__ is None
    return message


def test_a_missing_folder_or_file(tmp_path, own_cache):
    one_line(lambda: data.cifar10(tmp_path), str(tmp_path / "cifar10"), "uoft-cs/cifar10")
    (tmp_path / "cifar10").mkdir()
    one_line(lambda: data.cifar10(tmp_path), "train.parquet", "found nothing")
    one_line(lambda: data.imagenet(tmp_path), "CLASS/NAME.JPEG")


def test_wrong_columns(tmp_path, own_cache):
    write_images(tmp_path / "cifar10", {"train": 20, "test": 10}, size=32, classes=10, image="photo")
    one_line(lambda: data.cifar10(tmp_path, val=5), "column img or image", "got photo, label")


def test_a_truncated_parquet(tmp_path, own_cache):
    folder = write_images(tmp_path / "svhn", {"train": 20, "test": 10}, size=32, classes=10)
    whole = (folder / "train.parquet").read_bytes()
    (folder / "train.parquet").write_bytes(whole[: len(whole) // 2])
    one_line(lambda: data.svhn(tmp_path), "cannot be read")
    (folder / "train.parquet").write_bytes(b"")
    one_line(lambda: data.svhn(tmp_path), "cannot be read")


def test_an_image_of_another_size_or_not_an_image(tmp_path, own_cache):
    import polars

    folder = write_images(tmp_path / "svhn", {"train": 20, "test": 10}, size=40, classes=10)
    one_line(lambda: data.svhn(tmp_path), "train, row 0", "expected an image of 32 x 32, got 40 x 40")
    write_images(tmp_path / "svhn", {"train": 20, "test": 10}, size=32, classes=10)
    frame = polars.read_parquet(folder / "test.parquet").with_row_index()
    damaged = polars.struct(bytes=polars.lit(b"no image"), path=polars.lit("x.png"))
    frame = frame.with_columns(image=polars.when(polars.col("index") == 3).then(damaged).otherwise("image"))
    frame.drop("index").write_parquet(folder / "test.parquet")
    one_line(lambda: data.svhn(tmp_path), "test, row 3", "cannot be read")


@pytest.mark.parametrize("label", [10, -1])
def test_labels_out_of_range(tmp_path, own_cache, label):
    import polars

    folder = write_images(tmp_path / "svhn", {"train": 20, "test": 10}, size=32, classes=10)
    frame = polars.read_parquet(folder / "train.parquet").with_row_index()
    frame = frame.with_columns(label=polars.when(polars.col("index") == 4).then(label).otherwise("label"))
    frame.drop("index").write_parquet(folder / "train.parquet")
    one_line(lambda: data.svhn(tmp_path), "labels must be whole and in [0, 10)", str(label), "row 4")


@pytest.mark.parametrize("tree", ["", "(3 (2 so)", "(7 (2 so) (2 good))", "(3 (2 a) (2 b) (2 c))", "so good", None])
def test_what_is_not_a_tree(tmp_path, own_cache, tree):
    import polars

    (tmp_path / "sst5").mkdir()
    for name in "train", "validation", "test":
        trees = polars.Series("tree", ["(3 (2 so) (4 good))", tree], dtype=polars.String)
        polars.DataFrame([trees]).write_parquet(tmp_path / "sst5" / f"{name}.parquet")
    one_line(lambda: data.sst(tmp_path), "train, row 1", "not a binary tree")


def test_vectors_that_do_not_fit(small_data, tmp_path):
    one_line(lambda: data.sst(small_data, vectors=str(tmp_path / "no.txt")), "no file of word vectors")
    (tmp_path / "short.txt").write_text("good 1 2 3\n")
    one_line(lambda: data.sst(small_data, vectors=str(tmp_path / "short.txt")), "line 1", "300 numbers, got 3")
    (tmp_path / "words.txt").write_text("good one two\n")
    one_line(lambda: data.sst(small_data, vectors=str(tmp_path / "words.txt"), dimension=2), "line 1", "not 2 numbers")


def test_without_a_network_the_hub_costs_one_line_and_little_time(own_cache, monkeypatch):
    import datasets  # noqa: F401  # here, so that its own long import is not timed
    from huggingface_hub import constants

    monkeypatch.delenv("CALIBRANT_DATA", raising=False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # nobody answers
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    begin = time.perf_counter()
    one_line(data.svhn, "cannot load ufldl-stanford/svhn from the hub", "--data DIR")
    assert time.perf_counter() - begin < 20
    assert constants.HF_HUB_OFFLINE is False


def test_the_environment_names_the_folder(small_data, monkeypatch):
    monkeypatch.setenv("CALIBRANT_DATA", str(small_data))
    assert len(data.cifar10(val=10).train) == 50


def test_shards_are_read_in_order(tmp_path, own_cache):
    import polars

    folder = write_images(tmp_path / "svhn", {"train": 20, "test": 10}, size=32, classes=10)
    whole = data.svhn(tmp_path, val=5)
    frame = polars.read_parquet(folder / "train.parquet")
    (folder / "train.parquet").unlink()
    (folder / "cropped").mkdir()
    frame[:12].write_parquet(folder / "cropped" / "train-00000-of-00002.parquet")
    frame[12:].write_parquet(folder / "cropped" / "train-00001-of-00002.parquet")
    parts = data.svhn(tmp_path, val=5)
    assert torch.equal(whole.train.inputs, parts.train.inputs)
    assert torch.equal(whole.val.labels, parts.val.labels)


def test_a_changed_file_is_read_again(tmp_path, own_cache):
    write_images(tmp_path / "svhn", {"train": 20, "test": 10}, size=32, classes=10)
    assert len(data.svhn(tmp_path, val=5).train) == 15
    write_images(tmp_path / "svhn", {"train": 30, "test": 10}, size=32, classes=10)
    assert len(data.svhn(tmp_path, val=5).train) == 25


def build(value=1.0):
    return {"x": torch.full((1000,), value)}, {"said": ["a", 1]}


def never():
    raise AssertionError("built twice")


def test_the_cache_gives_back_what_was_built(own_cache):
    for make in build, never:
        tensors, facts = cached("thing", make)
        assert torch.equal(tensors["x"], build()[0]["x"])
        assert facts == {"said": ["a", 1]}


KILLED_WHILE_WRITING = """
import os, signal, torch, safetensors.torch
from calibrant.data._load import cached
whole = safetensors.torch.save_file
def half(tensors, path, **kwargs):
    whole(tensors, path, **kwargs)
    os.truncate(path, os.path.getsize(path) // 2)
    os.kill(os.getpid(), signal.SIGKILL)
safetensors.torch.save_file = half
cached("thing", lambda: ({"x": torch.zeros(1000)}, {}))
"""


def test_the_cache_survives_a_kill_while_it_is_written(own_cache):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", KILLED_WHILE_WRITING], env=environment, check=False)
    assert done.returncode == -signal.SIGKILL
    left = list(own_cache.iterdir())
    assert len(left) == 1  # the unfinished part
    assert float(cached("thing", build)[0]["x"].sum()) == 1000
    assert float(cached("thing", never)[0]["x"].sum()) == 1000
    os.utime(left[0], (0, 0))
    cached("other", build)
    assert not left[0].exists()  # swept up a day later


def test_a_damaged_cache_is_built_again(own_cache):
    cached("thing", build)
    path = own_cache / "thing.safetensors"
    os.truncate(path, path.stat().st_size // 2)
    assert float(cached("thing", lambda: build(2.0))[0]["x"].sum()) == 2000
    path.write_bytes(b"")
    assert float(cached("thing", build)[0]["x"].sum()) == 1000


def test_a_cache_that_cannot_be_written_costs_only_the_cache(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("CALIBRANT_CACHE", str(tmp_path / "file"))
    assert float(cached("thing", build)[0]["x"].sum()) == 1000
