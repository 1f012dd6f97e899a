"""Small files of every data set's schema, and a cache of the tests' own."""

import os
import tempfile
from pathlib import Path

import numpy as np
import pytest

TREES = [
    ("(3 (2 so) (4 good))", 1),
    ("(1 (1 (2 not) (3 good)) (2 .))", 0),
    ("(2 (2 a) (2 film))", None),
    ("(4 (3 (2 a) (3 (3 good) (2 film))) (2 .))", 1),
    ("(0 bad)", 0),
    ("(0 (2 so) (0 (0 bad) (2 .)))", 0),
    ("(3 (3 good) (2 film))", 1),
    ("(1 (1 bad) (2 film))", 0),
    ("(4 (2 very) (4 good))", 1),
]


def write_images(folder: Path, splits: dict[str, int], *, size: int, classes: int, image="image", label="label"):
    """Write parquet files of random images as the hub has them; names end in a number, as Tiny-ImageNet's do."""
    import datasets

    folder.mkdir(parents=True, exist_ok=True)
    features = datasets.Features({image: datasets.Image(), label: datasets.ClassLabel(num_classes=classes)})
    for place, (name, n) in enumerate(splits.items()):
        rng = np.random.default_rng(place)
        pixels = rng.integers(0, 256, (n, size, size, 3), dtype=np.uint8)
        rows = {image: list(pixels), label: (np.arange(n) % classes).tolist()}
        datasets.Dataset.from_dict(rows, features=features).to_parquet(folder / f"{name}.parquet")
    return folder


def write_imagenet(folder: Path) -> None:
    from PIL import Image

    for name, per_class in ("train", 4), ("val", 3):
        rng = np.random.default_rng(per_class)
        for group in "n01", "n02", "n03":
            (folder / name / group).mkdir(parents=True)
            for i in range(per_class):
                pixels = rng.integers(0, 256, (70 + 10 * i, 90, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / name / group / f"{group}_{i}.JPEG")


def write_text(root: Path) -> None:
    import polars

    for place, (name, n) in enumerate({"train": 200, "test": 50}.items()):
        rng = np.random.default_rng(place)
        words = [[f"word{w}" for w in rng.integers(0, 300, 40)] for _ in range(n)]
        text = [f"From: someone\nSubject: {i}\n\n{' '.join(w)}\n" for i, w in enumerate(words)]
        label = (np.arange(n) % 20).tolist()
        ids = [f"group{y:02d}/{place * 1000 + i}" for i, y in enumerate(label)]
        frame = {"text": text, "label": label, "label_text": [f"group{y:02d}" for y in label], "id": ids}
        (root / "20newsgroups-raw").mkdir(parents=True, exist_ok=True)
        polars.DataFrame(frame).write_parquet(root / "20newsgroups-raw" / f"{name}.parquet")
    (root / "sst5").mkdir()
    for name in "train", "validation", "test":
        polars.DataFrame({"tree": [tree for tree, _ in TREES]}).write_parquet(root / "sst5" / f"{name}.parquet")


@pytest.fixture(scope="session")
def small_data(tmp_path_factory, data_cache) -> Path:
    """A folder of small files of every data set's schema."""
    root = tmp_path_factory.mktemp("data")
    write_images(root / "cifar10", {"train": 60, "test": 20}, size=32, classes=10, image="img")
    write_images(root / "cifar100", {"train": 300, "test": 100}, size=32, classes=100, image="img", label="fine_label")
    write_images(root / "svhn", {"train": 60, "test": 20}, size=32, classes=10)
    write_images(root / "tiny-imagenet", {"train": 2000, "validation": 200}, size=64, classes=200)
    write_imagenet(root / "imagenet")
    write_text(root)
    return root


@pytest.fixture(scope="session")
def cifar10_c(tmp_path_factory) -> Path:
    """A folder CIFAR-10-C with five severities of two images."""
    folder = tmp_path_factory.mktemp("corrupted") / "CIFAR-10-C"
    folder.mkdir()
    np.save(folder / "fog.npy", np.random.default_rng(0).integers(0, 256, (10, 32, 32, 3), dtype=np.uint8))
    return folder


@pytest.fixture(scope="session")
def data_cache():
    """A cache of the tests' own; it may outlive them, as its keys are made of files and conversions."""
    before = os.environ.get("CALIBRANT_CACHE")
    os.environ["CALIBRANT_CACHE"] = str(Path(tempfile.gettempdir()) / "calibrant-tests")
    yield Path(os.environ["CALIBRANT_CACHE"])
    os.environ.pop("CALIBRANT_CACHE")
    if before is not None:
        os.environ["CALIBRANT_CACHE"] = before
