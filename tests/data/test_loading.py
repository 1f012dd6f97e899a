"""Reading data sets: damaged files are refused, and the cache survives anything."""

import io
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
from functools import partial

import numpy as np
import polars
import pytest
import torch
from PIL import Image
from refusals import refused
from small_data import write_images

from calibrant.lab import data
from calibrant.lab.data._loading import load_or_build
from calibrant.registry import DATA_SETS


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CALIBRANT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "data"


def check_refused(code, call, *mentions):
    with refused(code) as caught:
        call()
    assert [part for part in mentions if part not in str(caught.value)] == []
    assert caught.value.__cause__ is None


def test_missing_folders_and_files_are_refused(tmp_path, own_cache):
    check_refused("no_folder", lambda: data.cifar10(tmp_path), str(tmp_path / "cifar10"), "uoft-cs/cifar10")
    (tmp_path / "cifar10").mkdir()
    check_refused("missing_split", lambda: data.cifar10(tmp_path), "train.parquet", "nothing")
    check_refused("no_images", lambda: data.imagenet(tmp_path))


def test_wrong_columns_are_refused(tmp_path, own_cache):
    write_images(tmp_path / "cifar10", {"train": 20, "test": 10}, size=32, classes=10, image="photo")
    check_refused("no_column", lambda: data.cifar10(tmp_path, val=5), "img or image", "photo, label")


def test_a_truncated_parquet_file_is_refused(tmp_path, own_cache):
    folder = write_images(tmp_path / "svhn", {"train": 20, "test": 10}, size=32, classes=10)
    whole = (folder / "train.parquet").read_bytes()
    (folder / "train.parquet").write_bytes(whole[: len(whole) // 2])
    check_refused("unreadable", lambda: data.svhn(tmp_path))
    (folder / "train.parquet").write_bytes(b"")
    check_refused("unreadable", lambda: data.svhn(tmp_path))


def test_images_of_another_size_or_without_pixels_are_refused(tmp_path, own_cache):
    folder = write_images(tmp_path / "svhn", {"train": 20, "test": 10}, size=40, classes=10)
    check_refused("image_size", lambda: data.svhn(tmp_path), "train, row 0", "32 x 32", "40 x 40")
    write_images(tmp_path / "svhn", {"train": 20, "test": 10}, size=32, classes=10)
    frame = polars.read_parquet(folder / "test.parquet").with_row_index()
    damaged = polars.struct(bytes=polars.lit(b"no image"), path=polars.lit("x.png"))
    frame = frame.with_columns(image=polars.when(polars.col("index") == 3).then(damaged).otherwise("image"))
    frame.drop("index").write_parquet(folder / "test.parquet")
    check_refused("unreadable", lambda: data.svhn(tmp_path), "test, row 3")


@pytest.mark.parametrize("label", [10, -1])
def test_labels_out_of_range_are_refused(tmp_path, own_cache, label):
    folder = write_images(tmp_path / "svhn", {"train": 20, "test": 10}, size=32, classes=10)
    frame = polars.read_parquet(folder / "train.parquet").with_row_index()
    frame = frame.with_columns(label=polars.when(polars.col("index") == 4).then(label).otherwise("label"))
    frame.drop("index").write_parquet(folder / "train.parquet")
    check_refused("label_range", lambda: data.svhn(tmp_path), "[0, 10)", str(label), "row 4")


@pytest.mark.parametrize("tree", ["", "(3 (2 so)", "(7 (2 so) (2 good))", "(3 (2 a) (2 b) (2 c))", "so good", None])
def test_malformed_trees_are_refused(tmp_path, own_cache, tree):
    (tmp_path / "sst5").mkdir()
    for name in "train", "validation", "test":
        trees = polars.Series("tree", ["(3 (2 so) (4 good))", tree], dtype=polars.String)
        polars.DataFrame([trees]).write_parquet(tmp_path / "sst5" / f"{name}.parquet")
    check_refused("not_a_tree", lambda: data.sst(tmp_path), "train, row 1")


def test_vectors_that_do_not_fit_are_refused(small_data, tmp_path):
    def read(name, **settings):
        return partial(data.sst, small_data, vectors=str(tmp_path / name), **settings)

    check_refused("no_file", read("no.txt"), "no.txt")
    (tmp_path / "short.txt").write_text("good 1 2 3\n")
    check_refused("vector_length", read("short.txt"), "line 1", "300", "3")
    (tmp_path / "words.txt").write_text("good one two\n")
    check_refused("not_numbers", read("words.txt", dimension=2), "line 1", "2", "'good'")


def test_vectors_of_another_length_are_not_read_as_words(small_data, tmp_path):
    def said(text, **settings):
        (tmp_path / "glove.txt").write_text(text)
        return lambda: data.sst(small_data, vectors=str(tmp_path / "glove.txt"), **settings)

    three = "the .1 .2 .3\n. . of 1 2 3\ngood 1 2 3\n"
    check_refused("vector_length", said(three, dimension=2), "2", "dimension=3")
    assert said(three, dimension=3)().facts["vectors_found"] == 1
    check_refused("vector_length", said("good 1 2\nof course 3 4\nbad 1\n", dimension=2), "line 3")  # cut off
    check_refused("not_finite", said("good nan 2\nbad 1 2\n", dimension=2), "line 1")
    check_refused("not_finite", said("good 1 2\nbad 1 inf\n", dimension=2), "line 2")
    check_refused("no_known_words", said("gut 1 2\nschlecht 3 4\n", dimension=2))


def test_vectors_with_a_header_or_blank_lines_are_read(small_data, tmp_path):
    (tmp_path / "w2v.txt").write_text("2 2\ngood 1 2\nbad 3 4\n\n")
    splits = data.sst(small_data, vectors=str(tmp_path / "w2v.txt"), dimension=2)
    assert splits.facts["vectors_found"] == 2
    read = partial(data.sst, small_data, vectors=str(tmp_path / "w2v.txt"), dimension=3)
    check_refused("vector_length", read, "3", "dimension=2")


def test_without_a_network_the_hub_costs_one_line_and_no_retries(own_cache, monkeypatch, closed_port):
    from huggingface_hub import constants

    monkeypatch.delenv("CALIBRANT_DATA", raising=False)
    monkeypatch.setattr(constants, "ENDPOINT", f"http://{closed_port}")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    waits, sleep = list[float](), time.sleep
    here = threading.get_ident()
    monkeypatch.setattr(time, "sleep", lambda s: waits.append(s) if threading.get_ident() == here else sleep(s))
    check_refused("hub_unavailable", data.svhn, "ufldl-stanford/svhn", "--data DIR")
    assert sum(waits) < 1
    assert constants.HF_HUB_OFFLINE is False


def test_what_comes_from_the_hub_says_at_which_commit(small_data, own_cache, monkeypatch):
    import datasets

    asked = []

    def from_hub(name, *_, revision=None):
        asked.append(revision)
        files = {key: str(small_data / "cifar10" / f"{key}.parquet") for key in ("train", "test")}
        tables = {key: load("parquet", data_files={"train": files[key]})["train"] for key in files}
        url = f"hf://datasets/{name}@{'0123456789' * 4}/plain_text/train-00000-of-00001.parquet"
        for table in tables.values():
            table.info.download_checksums = {url: {"num_bytes": 1, "checksum": None}}
        return tables

    load = datasets.load_dataset
    monkeypatch.setattr(datasets, "load_dataset", from_hub)
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: io.BytesIO())
    monkeypatch.delenv("CALIBRANT_DATA", raising=False)
    commit = "0123456789" * 4
    here = f"hub uoft-cs/cifar10 at {commit}"
    assert data.cifar10(val=10).facts["source"] == f"{here}, the newest then; revision='{commit}' is it for good"
    assert asked == [None]
    assert data.cifar10(val=10, revision=commit).facts["source"] == here
    assert data.cifar10(val=10, revision="v1").facts["source"] == f"{here}, revision v1"
    assert asked == [None, commit, "v1"]


def test_every_data_set_of_the_hub_takes_a_commit_of_it_and_no_folder_beside(tmp_path, own_cache, monkeypatch):
    import datasets

    asked = {}

    def from_hub(name, *_, revision=None):
        asked[name] = revision
        raise OSError("not today")

    monkeypatch.setattr(datasets, "load_dataset", from_hub)
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: io.BytesIO())
    monkeypatch.delenv("CALIBRANT_DATA", raising=False)
    for made in (data.cifar10, data.cifar100, data.svhn, data.tiny_imagenet, data.newsgroups, data.sst):
        check_refused("hub_unavailable", partial(made, revision="abc"), "not today")
        both = partial(made, tmp_path, revision="abc")
        check_refused("revision_with_folder", both, "'abc'", str(tmp_path))
    assert len(asked) == 6
    assert set(asked.values()) == {"abc"}
    check_refused("hub_unavailable", data.sst, "not today")
    assert asked["stanfordnlp/sst"] == "refs/convert/parquet"


def test_where_data_come_from_is_not_what_they_are():
    plain = DATA_SETS.method("svhn")
    assert "revision" not in plain.canonical
    assert plain == DATA_SETS.method("svhn(revision=None)")
    assert "revision='abc'" in DATA_SETS.canonical("svhn(revision='abc')")


def test_the_environment_names_the_folder(small_data, monkeypatch):
    monkeypatch.setenv("CALIBRANT_DATA", str(small_data))
    assert len(data.cifar10(val=10).train) == 50


def test_shards_are_read_in_order(tmp_path, own_cache):
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


def test_glob_characters_in_a_folder_are_its_name(tmp_path, own_cache):
    for name in "d1", "d[1]", "d*":
        write_images(tmp_path / name / "svhn", {"train": 20, "test": 10}, size=32, classes=10)
        table = polars.read_parquet(tmp_path / name / "svhn" / "train.parquet", glob=False)
        labels = polars.repeat(len(name), len(table), eager=True, dtype=polars.Int64)
        table.with_columns(label=labels).write_parquet(tmp_path / name / "svhn" / "train.parquet")
        assert data.svhn(tmp_path / name, val=5).train.labels.tolist() == [len(name)] * 15


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
        tensors, facts = load_or_build("thing", make)
        assert torch.equal(tensors["x"], build()[0]["x"])
        assert facts == {"said": ["a", 1]}


KILLED_WHILE_WRITING = """
import os, signal, torch, safetensors.torch
from calibrant.registry import DATA_SETS
from calibrant.lab.data._loading import cached
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
    assert float(load_or_build("thing", build)[0]["x"].sum()) == 1000
    assert float(load_or_build("thing", never)[0]["x"].sum()) == 1000
    os.utime(left[0], (0, 0))
    load_or_build("other", build)
    assert not left[0].exists()  # swept up a day later


def test_a_damaged_cache_is_built_again(own_cache):
    load_or_build("thing", build)
    path = own_cache / "thing.safetensors"
    os.truncate(path, path.stat().st_size // 2)
    assert float(load_or_build("thing", lambda: build(2.0))[0]["x"].sum()) == 2000
    path.write_bytes(b"")
    assert float(load_or_build("thing", build)[0]["x"].sum()) == 1000


def test_a_cache_that_cannot_be_written_costs_only_the_cache(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("CALIBRANT_CACHE", str(tmp_path / "file"))
    assert float(load_or_build("thing", build)[0]["x"].sum()) == 1000


# Originals


def pixels_of(folder, name, column="image"):
    rows = polars.read_parquet(folder / f"{name}.parquet")
    return np.stack([np.asarray(Image.open(io.BytesIO(one["bytes"]))) for one in rows[column]])


def same(a, b):
    for one, other in zip((a.train, a.val, a.test), (b.train, b.val, b.test), strict=True):
        assert torch.equal(one.inputs, other.inputs)
        assert torch.equal(one.labels, other.labels)


def write_pickle(path, table):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(table, protocol=2))


@pytest.mark.parametrize("packed", [False, True])
def test_cifar_is_read_from_its_pickles(small_data, tmp_path, own_cache, packed):
    home = tmp_path / "cifar-10-batches-py"
    images = {name: pixels_of(small_data / "cifar10", name, "img") for name in ("train", "test")}
    flat = {name: x.transpose(0, 3, 1, 2).reshape(len(x), -1) for name, x in images.items()}
    for i in range(5):
        rows = slice(12 * i, 12 * i + 12)
        table = {"data": flat["train"][rows], "labels": [y % 10 for y in range(60)][rows]}
        write_pickle(home / f"data_batch_{i + 1}", table)
    write_pickle(home / "test_batch", {"data": flat["test"], "labels": [y % 10 for y in range(20)]})
    write_pickle(home / "batches.meta", {"label_names": [f"class {i}" for i in range(10)]})
    if packed:
        with tarfile.open(tmp_path / "cifar-10-python.tar.gz", "w:gz") as archive:
            archive.add(home, "cifar-10-batches-py")
        shutil.rmtree(home)
    splits = data.cifar10(tmp_path, val=10)
    same(splits, data.cifar10(small_data, val=10))
    assert splits.classes[3] == "class 3"


def test_cifar100_is_read_by_its_fine_labels(small_data, tmp_path, own_cache):
    for name, n in ("train", 300), ("test", 100):
        pixels = pixels_of(small_data / "cifar100", name, "img")
        labels = [y % 100 for y in range(n)]
        table = {"data": pixels.transpose(0, 3, 1, 2).reshape(n, -1), "fine_labels": labels, "coarse_labels": [0] * n}
        write_pickle(tmp_path / "cifar100" / "cifar-100-python" / name, table)
    meta = {"fine_label_names": [f"class {i}" for i in range(100)]}
    write_pickle(tmp_path / "cifar100" / "cifar-100-python" / "meta", meta)
    same(data.cifar100(tmp_path, val=100), data.cifar100(small_data, val=100))


def test_a_pickle_that_would_run_something_is_refused(tmp_path, own_cache):
    class Evil:
        def __reduce__(self):
            return os.system, ("true",)

    write_pickle(tmp_path / "cifar-10-batches-py" / "batches.meta", {"label_names": Evil()})
    check_refused("unsafe_pickle", lambda: data.cifar10(tmp_path), "system")


def test_svhn_is_read_from_its_mat_files_with_ten_for_zero(small_data, tmp_path, own_cache):
    from scipy.io import savemat

    for name, n in ("train", 60), ("test", 20):
        labels = np.where(np.arange(n) % 10 == 0, 10, np.arange(n) % 10).astype(np.uint8)
        images = pixels_of(small_data / "svhn", name).transpose(1, 2, 3, 0)
        savemat(tmp_path / f"{name}_32x32.mat", {"X": images, "y": labels[:, None]})
    same(data.svhn(tmp_path, val=5), data.svhn(small_data, val=5))


def test_a_clone_of_the_hub_is_read_by_its_configuration(small_data, tmp_path, own_cache):
    clone = tmp_path / "svhn"
    for part in "cropped_digits", "full_numbers":
        (clone / part).mkdir(parents=True)
        for name in "train", "test":
            source = small_data / ("svhn" if part == "cropped_digits" else "cifar10") / f"{name}.parquet"
            shutil.copy(source, clone / part / f"{name}-00000-of-00001.parquet")
    same(data.svhn(tmp_path, val=5), data.svhn(small_data, val=5))


def test_tiny_imagenet_is_read_from_its_folders(tmp_path, own_cache):
    home, rng = tmp_path / "tiny-imagenet-200", np.random.default_rng(0)

    def write(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(path)

    names = [f"n{i:03d}" for i in range(200)]
    for name in names:
        for i in 3, 480:
            write(home / "train" / name / "images" / f"{name}_{i}.JPEG")
    (home / "val").mkdir()
    (home / "val" / "val_annotations.txt").write_text(
        "".join(f"val_{i}.JPEG\t{name}\t0\t0\t62\t62\n" for i, name in enumerate(reversed(names)))
    )
    for i in range(200):
        write(home / "val" / "images" / f"val_{i}.JPEG")
    splits = data.tiny_imagenet(tmp_path)
    assert splits.train.labels.tolist() == splits.val.labels.tolist() == [*range(200)]
    assert splits.classes == tuple(names)
    first = sorted(f"val_{i}.JPEG" for i in range(200))
    assert splits.test.labels.tolist() == [199 - int(name[4:-5]) for name in first]
    expected = np.asarray(Image.open(home / "val" / "images" / first[7]))
    assert np.array_equal(splits.test.inputs[7].permute(1, 2, 0), expected)


@pytest.mark.parametrize("noted", ["csv", "synsets", "devkit"])
def test_imagenets_validation_images_may_lie_flat(small_data, tmp_path, own_cache, noted):
    home = tmp_path / "imagenet"
    shutil.copytree(small_data / "imagenet", home)
    expected = data.imagenet(small_data, size=32)
    check_refused("no_images", lambda: data.imagenet(tmp_path / "none"))
    moved = []
    for i, path in enumerate(sorted((home / "val").glob("*/*"))):
        moved.append((f"ILSVRC2012_val_{i + 1:08d}", path.parent.name))
        path.rename(home / "val" / f"{moved[-1][0]}.JPEG")
    for folder in "n01", "n02", "n03":
        (home / "val" / folder).rmdir()
    check_refused("unsorted_images", lambda: data.imagenet(tmp_path, size=32), "LOC_val_solution.csv")
    classes = [name for _, name in moved]
    if noted == "csv":
        lines = [f"{name},{one} 1 2 3 4 {one} 5 6 7 8" for name, one in moved]
        (home / "LOC_val_solution.csv").write_text("\n".join(["ImageId,PredictionString", *lines[::-1]]) + "\n")
    elif noted == "synsets":
        (home / "imagenet_2012_validation_synset_labels.txt").write_text("\n".join(classes) + "\n")
    else:
        from scipy.io import savemat

        kit = home / "ILSVRC2012_devkit_t12" / "data"
        kit.mkdir(parents=True)
        numbers = {"n01": 2, "n02": 3, "n03": 1}
        synsets = np.array([(i, name) for name, i in numbers.items()], dtype=[("ILSVRC2012_ID", "O"), ("WNID", "O")])
        savemat(kit / "meta.mat", {"synsets": synsets})
        (kit / "ILSVRC2012_validation_ground_truth.txt").write_text("\n".join(str(numbers[c]) for c in classes) + "\n")
    same(data.imagenet(tmp_path, size=32), expected)
