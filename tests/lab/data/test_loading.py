"""Loading: damaged files are refused, the cache survives crashes, and original formats equal the hub's tables."""

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
from calibrant.registry import DATA_SETS
from PIL import Image
from refusals import refused
from small_data import write_images

from calibrant.lab import data
from calibrant.lab.data._loading import Source, load, load_or_build


@pytest.fixture
def cache_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("CALIBRANT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "data"


def check_refused(code, call, *mentions):
    with refused(code) as caught:
        call()
    assert [part for part in mentions if part not in str(caught.value)] == []
    assert caught.value.__cause__ is None


def test_missing_folders_and_files_are_refused(tmp_path, cache_folder):
    check_refused("no_folder", lambda: data.cifar10(tmp_path), str(tmp_path / "cifar10"), "uoft-cs/cifar10")
    (tmp_path / "cifar10").mkdir()
    check_refused("missing_split", lambda: data.cifar10(tmp_path), "train.parquet", "nothing")
    check_refused("no_images", lambda: data.imagenet(tmp_path))


def test_wrong_columns_are_refused(tmp_path, cache_folder):
    write_images(tmp_path / "cifar10", {"train": 20, "test": 10}, size=32, classes=10, image="photo")
    check_refused("no_column", lambda: data.cifar10(tmp_path, val=5), "img or image", "photo, label")


def test_truncated_parquet_files_are_refused(tmp_path, cache_folder):
    folder = write_images(tmp_path / "svhn", {"train": 20, "test": 10}, size=32, classes=10)
    content = (folder / "train.parquet").read_bytes()
    (folder / "train.parquet").write_bytes(content[: len(content) // 2])
    check_refused("unreadable", lambda: data.svhn(tmp_path))
    (folder / "train.parquet").write_bytes(b"")
    check_refused("unreadable", lambda: data.svhn(tmp_path))


def test_images_of_another_size_or_without_pixels_are_refused(tmp_path, cache_folder):
    folder = write_images(tmp_path / "svhn", {"train": 20, "test": 10}, size=40, classes=10)
    check_refused("image_size", lambda: data.svhn(tmp_path), "train, row 0", "32 x 32", "40 x 40")
    write_images(tmp_path / "svhn", {"train": 20, "test": 10}, size=32, classes=10)
    frame = polars.read_parquet(folder / "test.parquet").with_row_index()
    damaged = polars.struct(bytes=polars.lit(b"no image"), path=polars.lit("x.png"))
    frame = frame.with_columns(image=polars.when(polars.col("index") == 3).then(damaged).otherwise("image"))
    frame.drop("index").write_parquet(folder / "test.parquet")
    check_refused("unreadable", lambda: data.svhn(tmp_path), "test, row 3")


@pytest.mark.parametrize("label", [10, -1])
def test_labels_out_of_range_are_refused(tmp_path, cache_folder, label):
    folder = write_images(tmp_path / "svhn", {"train": 20, "test": 10}, size=32, classes=10)
    frame = polars.read_parquet(folder / "train.parquet").with_row_index()
    frame = frame.with_columns(label=polars.when(polars.col("index") == 4).then(label).otherwise("label"))
    frame.drop("index").write_parquet(folder / "train.parquet")
    check_refused("label_range", lambda: data.svhn(tmp_path), "[0, 10)", str(label), "row 4")


@pytest.mark.parametrize("tree", ["", "(3 (2 so)", "(7 (2 so) (2 good))", "(3 (2 a) (2 b) (2 c))", "so good", None])
def test_malformed_trees_are_refused(tmp_path, cache_folder, tree):
    (tmp_path / "sst5").mkdir()
    for name in "train", "validation", "test":
        trees = polars.Series("tree", ["(3 (2 so) (4 good))", tree], dtype=polars.String)
        polars.DataFrame([trees]).write_parquet(tmp_path / "sst5" / f"{name}.parquet")
    check_refused("not_a_tree", lambda: data.sst(tmp_path), "train, row 1")


def test_invalid_vector_files_are_refused(small_data, tmp_path):
    def read(name, **settings):
        return partial(data.sst, small_data, vectors=str(tmp_path / name), **settings)

    check_refused("no_file", read("no.txt"), "no.txt")
    (tmp_path / "short.txt").write_text("good 1 2 3\n")
    check_refused("vector_length", read("short.txt"), "line 1", "300", "3")
    (tmp_path / "words.txt").write_text("good one two\n")
    check_refused("not_numbers", read("words.txt", dimension=2), "line 1", "2", "'good'")


def test_vectors_of_another_dimension_are_refused(small_data, tmp_path):
    def load(text, **settings):
        (tmp_path / "glove.txt").write_text(text)
        return lambda: data.sst(small_data, vectors=str(tmp_path / "glove.txt"), **settings)

    three = "the .1 .2 .3\n. . of 1 2 3\ngood 1 2 3\n"
    check_refused("vector_length", load(three, dimension=2), "2", "dimension=3")
    assert load(three, dimension=3)().facts["vectors_found"] == 1
    check_refused("vector_length", load("good 1 2\nof course 3 4\nbad 1\n", dimension=2), "line 3")  # truncated
    check_refused("not_finite", load("good nan 2\nbad 1 2\n", dimension=2), "line 1")
    check_refused("not_finite", load("good 1 2\nbad 1 inf\n", dimension=2), "line 2")
    check_refused("no_known_words", load("gut 1 2\nschlecht 3 4\n", dimension=2))


def test_vectors_with_a_header_or_blank_lines_are_read(small_data, tmp_path):
    (tmp_path / "w2v.txt").write_text("2 2\ngood 1 2\nbad 3 4\n\n")
    splits = data.sst(small_data, vectors=str(tmp_path / "w2v.txt"), dimension=2)
    assert splits.facts["vectors_found"] == 2
    read = partial(data.sst, small_data, vectors=str(tmp_path / "w2v.txt"), dimension=3)
    check_refused("vector_length", read, "3", "dimension=2")


def test_unreachable_hub_fails_without_retries(cache_folder, monkeypatch, closed_port):
    from huggingface_hub import constants

    monkeypatch.delenv("CALIBRANT_DATA", raising=False)
    monkeypatch.setattr(constants, "ENDPOINT", f"http://{closed_port}")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    waits, sleep = list[float](), time.sleep
    main_thread = threading.get_ident()
    monkeypatch.setattr(time, "sleep", lambda s: waits.append(s) if threading.get_ident() == main_thread else sleep(s))
    check_refused("hub_unavailable", data.svhn, "ufldl-stanford/svhn", "--data DIR")
    assert sum(waits) < 1
    assert constants.HF_HUB_OFFLINE is False


def test_facts_state_the_commit_on_the_hub(small_data, cache_folder, monkeypatch):
    import datasets

    revisions = []

    def from_hub(name, *_, revision=None):
        revisions.append(revision)
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
    origin = f"hub uoft-cs/cifar10 at {commit}"
    assert data.cifar10(val=10).facts["source"] == f"{origin}, latest; pin it with revision='{commit}'"
    assert revisions == [None]
    assert data.cifar10(val=10, revision=commit).facts["source"] == origin
    assert data.cifar10(val=10, revision="v1").facts["source"] == f"{origin}, revision v1"
    assert revisions == [None, commit, "v1"]


def test_data_sets_of_the_hub_accept_a_revision_but_no_folder_with_it(tmp_path, cache_folder, monkeypatch):
    import datasets

    revisions = {}

    def from_hub(name, *_, revision=None):
        revisions[name] = revision
        raise OSError("not today")

    monkeypatch.setattr(datasets, "load_dataset", from_hub)
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: io.BytesIO())
    monkeypatch.delenv("CALIBRANT_DATA", raising=False)
    for read in (data.cifar10, data.cifar100, data.svhn, data.tiny_imagenet, data.newsgroups, data.sst):
        check_refused("hub_unavailable", partial(read, revision="abc"), "not today")
        with_folder = partial(read, tmp_path, revision="abc")
        check_refused("revision_with_folder", with_folder, "'abc'", str(tmp_path))
    assert len(revisions) == 6
    assert set(revisions.values()) == {"abc"}
    check_refused("hub_unavailable", data.sst, "not today")
    assert revisions["stanfordnlp/sst"] == "refs/convert/parquet"


def test_splits_of_the_hub_may_have_other_names(cache_folder, monkeypatch):
    import datasets

    def convert(tables):
        return {split: torch.tensor(table) for split, table in tables.items()}, {}

    source = Source(("letters",), "somebody/letters", splits=(("train",), ("validation", "valid", "dev")))
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: {"dev": [3], "train": [1, 2], "valid": [4, 5]})
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: io.BytesIO())
    monkeypatch.delenv("CALIBRANT_DATA", raising=False)
    tensors, _ = load(source, None, None, convert)
    assert {split: rows.tolist() for split, rows in tensors.items()} == {"train": [1, 2], "validation": [4, 5]}


def test_missing_split_of_the_hub_is_refused(cache_folder, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: {"train": []})
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: io.BytesIO())
    monkeypatch.delenv("CALIBRANT_DATA", raising=False)
    check_refused("missing_split", data.cifar10, "uoft-cs/cifar10", "test")


def test_default_revision_is_not_part_of_the_identity():
    method = DATA_SETS.method("svhn")
    assert "revision" not in method.canonical
    assert method == DATA_SETS.method("svhn(revision=None)")
    assert "revision='abc'" in DATA_SETS.canonical("svhn(revision='abc')")


def test_environment_variable_sets_the_data_folder(small_data, monkeypatch):
    monkeypatch.setenv("CALIBRANT_DATA", str(small_data))
    assert len(data.cifar10(val=10).train) == 50


def test_shards_are_read_in_order(tmp_path, cache_folder):
    folder = write_images(tmp_path / "svhn", {"train": 20, "test": 10}, size=32, classes=10)
    single = data.svhn(tmp_path, val=5)
    frame = polars.read_parquet(folder / "train.parquet")
    (folder / "train.parquet").unlink()
    (folder / "cropped").mkdir()
    frame[:12].write_parquet(folder / "cropped" / "train-00000-of-00002.parquet")
    frame[12:].write_parquet(folder / "cropped" / "train-00001-of-00002.parquet")
    sharded = data.svhn(tmp_path, val=5)
    assert np.array_equal(single.train.inputs, sharded.train.inputs)
    assert np.array_equal(single.val.labels, sharded.val.labels)


def test_glob_characters_in_folder_names_are_literal(tmp_path, cache_folder):
    for name in "d1", "d[1]", "d*":
        write_images(tmp_path / name / "svhn", {"train": 20, "test": 10}, size=32, classes=10)
        table = polars.read_parquet(tmp_path / name / "svhn" / "train.parquet", glob=False)
        labels = polars.repeat(len(name), len(table), eager=True, dtype=polars.Int64)
        table.with_columns(label=labels).write_parquet(tmp_path / name / "svhn" / "train.parquet")
        assert data.svhn(tmp_path / name, val=5).train.labels.tolist() == [len(name)] * 15


def test_changed_files_are_read_again(tmp_path, cache_folder):
    write_images(tmp_path / "svhn", {"train": 20, "test": 10}, size=32, classes=10)
    assert len(data.svhn(tmp_path, val=5).train) == 15
    write_images(tmp_path / "svhn", {"train": 30, "test": 10}, size=32, classes=10)
    assert len(data.svhn(tmp_path, val=5).train) == 25


def build(value=1.0):
    return {"x": torch.full((1000,), value)}, {"words": ["a", 1]}


def fail():
    raise AssertionError("built twice")


def test_cache_returns_the_built_data(cache_folder):
    for builder in build, fail:
        tensors, facts = load_or_build("thing", 0, builder)
        assert np.array_equal(tensors["x"], build()[0]["x"])
        assert facts == {"words": ["a", 1]}


KILLED_WHILE_WRITING = """
import os, signal, torch, safetensors.torch
from calibrant.lab.data._loading import load_or_build
save_file = safetensors.torch.save_file
def save_half(tensors, path, **kwargs):
    save_file(tensors, path, **kwargs)
    os.truncate(path, os.path.getsize(path) // 2)
    os.kill(os.getpid(), signal.SIGKILL)
safetensors.torch.save_file = save_half
load_or_build("thing", 0, lambda: ({"x": torch.zeros(1000)}, {}))
"""


@pytest.mark.slow
def test_cache_survives_a_kill_during_a_write(cache_folder):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run([sys.executable, "-c", KILLED_WHILE_WRITING], env=environment, check=False)
    assert result.returncode == -signal.SIGKILL
    drafts = list(cache_folder.iterdir())
    assert len(drafts) == 1
    assert float(load_or_build("thing", 0, build)[0]["x"].sum()) == 1000
    assert float(load_or_build("thing", 0, fail)[0]["x"].sum()) == 1000
    os.utime(drafts[0], (0, 0))
    load_or_build("other", 0, build)
    assert not drafts[0].exists()  # old drafts are removed


def test_damaged_cache_entries_are_built_again(cache_folder):
    load_or_build("thing", 0, build)
    (path,) = cache_folder.glob("thing-*.safetensors")
    os.truncate(path, path.stat().st_size // 2)
    assert float(load_or_build("thing", 0, lambda: build(2.0))[0]["x"].sum()) == 2000
    path.write_bytes(b"")
    assert float(load_or_build("thing", 0, build)[0]["x"].sum()) == 1000


def test_data_load_without_a_writable_cache(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("CALIBRANT_CACHE", str(tmp_path / "file"))
    assert float(load_or_build("thing", 0, build)[0]["x"].sum()) == 1000


# Original formats


def pixels_of(folder, name, column="image"):
    rows = polars.read_parquet(folder / f"{name}.parquet")
    return np.stack([np.asarray(Image.open(io.BytesIO(image["bytes"]))) for image in rows[column]])


def assert_equal(a, b):
    for name in "train", "val", "test":
        assert np.array_equal(getattr(a, name).inputs, getattr(b, name).inputs)
        assert np.array_equal(getattr(a, name).labels, getattr(b, name).labels)


def write_pickle(path, table):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(table, protocol=2))


@pytest.mark.parametrize("packed", [False, True])
def test_cifar10_is_read_from_pickles(small_data, tmp_path, cache_folder, packed):
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
    assert_equal(splits, data.cifar10(small_data, val=10))
    assert splits.classes[3] == "class 3"


def test_cifar100_is_read_with_fine_labels(small_data, tmp_path, cache_folder):
    for name, n in ("train", 300), ("test", 100):
        pixels = pixels_of(small_data / "cifar100", name, "img")
        labels = [y % 100 for y in range(n)]
        table = {"data": pixels.transpose(0, 3, 1, 2).reshape(n, -1), "fine_labels": labels, "coarse_labels": [0] * n}
        write_pickle(tmp_path / "cifar100" / "cifar-100-python" / name, table)
    meta = {"fine_label_names": [f"class {i}" for i in range(100)]}
    write_pickle(tmp_path / "cifar100" / "cifar-100-python" / "meta", meta)
    assert_equal(data.cifar100(tmp_path, val=100), data.cifar100(small_data, val=100))


def test_pickles_with_code_are_refused(tmp_path, cache_folder):
    class Evil:
        def __reduce__(self):
            return os.system, ("true",)

    write_pickle(tmp_path / "cifar-10-batches-py" / "batches.meta", {"label_names": Evil()})
    check_refused("unsafe_pickle", lambda: data.cifar10(tmp_path), "system")


def test_svhn_is_read_from_mat_files_with_label_10_for_zero(small_data, tmp_path, cache_folder):
    from scipy.io import savemat

    for name, n in ("train", 60), ("test", 20):
        labels = np.where(np.arange(n) % 10 == 0, 10, np.arange(n) % 10).astype(np.uint8)
        images = pixels_of(small_data / "svhn", name).transpose(1, 2, 3, 0)
        savemat(tmp_path / f"{name}_32x32.mat", {"X": images, "y": labels[:, None]})
    assert_equal(data.svhn(tmp_path, val=5), data.svhn(small_data, val=5))


def test_clones_of_the_hub_are_read_by_configuration(small_data, tmp_path, cache_folder):
    clone = tmp_path / "svhn"
    for part in "cropped_digits", "full_numbers":
        (clone / part).mkdir(parents=True)
        for name in "train", "test":
            source = small_data / ("svhn" if part == "cropped_digits" else "cifar10") / f"{name}.parquet"
            shutil.copy(source, clone / part / f"{name}-00000-of-00001.parquet")
    assert_equal(data.svhn(tmp_path, val=5), data.svhn(small_data, val=5))


def test_tiny_imagenet_is_read_from_folders(tmp_path, cache_folder):
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


@pytest.mark.parametrize("class_list", ["csv", "synsets", "devkit"])
def test_imagenet_accepts_a_flat_validation_folder(small_data, tmp_path, cache_folder, class_list):
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
    if class_list == "csv":
        lines = [f"{name},{folder} 1 2 3 4 {folder} 5 6 7 8" for name, folder in moved]
        (home / "LOC_val_solution.csv").write_text("\n".join(["ImageId,PredictionString", *lines[::-1]]) + "\n")
    elif class_list == "synsets":
        (home / "imagenet_2012_validation_synset_labels.txt").write_text("\n".join(classes) + "\n")
    else:
        from scipy.io import savemat

        kit = home / "ILSVRC2012_devkit_t12" / "data"
        kit.mkdir(parents=True)
        numbers = {"n01": 2, "n02": 3, "n03": 1}
        synsets = np.array([(i, name) for name, i in numbers.items()], dtype=[("ILSVRC2012_ID", "O"), ("WNID", "O")])
        savemat(kit / "meta.mat", {"synsets": synsets})
        (kit / "ILSVRC2012_validation_ground_truth.txt").write_text("\n".join(str(numbers[c]) for c in classes) + "\n")
    assert_equal(data.imagenet(tmp_path, size=32), expected)
