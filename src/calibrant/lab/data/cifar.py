"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009): 50,000 + 10,000 images of 32 x 32 pixels."""

from pathlib import Path
from typing import Literal

from calibrant._core.registry import DATA_SETS
from calibrant._core.types import Count, InputError, Seed
from calibrant.lab.data._images import CIFAR_STATISTICS, IMAGENET_STATISTICS, LoadedImages, image_splits, load_images
from calibrant.lab.data._loading import InMemoryTable, OriginalFormat, Source, SplitFiles, first_existing, read_pickle
from calibrant.lab.data._splits import Splits, shuffled_indices

SplitProtocol = Literal["mukhoti", "wang"]

_PROTOCOLS = {  # seed of the split, and pixel statistics by data set
    "mukhoti": (1, {"cifar10": CIFAR_STATISTICS, "cifar100": CIFAR_STATISTICS}),
    "wang": (101, {"cifar10": IMAGENET_STATISTICS, "cifar100": ((0.507, 0.487, 0.441), (0.267, 0.256, 0.276))}),
}


def _source(
    classes: int, unpacked_folder: str, pickles: dict[str, list[str]], meta: tuple[str, str], label: str
) -> Source:
    """Return the source of a data set: tables, or the pickles of the authors' archive for Python.

    Args:
        classes: Number of classes.
        unpacked_folder: Name of the folder that the archive unpacks to.
        pickles: Names of the pickles of each split.
        meta: Name of the pickle with the names of the classes, and their key in it.
        label: Column of the labels; its plural is their key in the pickles.
    """

    def find(folder: Path) -> SplitFiles:
        """Return the unpacked folder, which may be `folder` itself, or the archive, for every split."""
        is_unpacked = any((folder / file).is_file() for file in ("test_batch", "meta"))  # of CIFAR-10, CIFAR-100
        archive_name = f"cifar-{classes}-python.tar.gz"
        location = first_existing(folder, unpacked_folder, archive_name) or (folder if is_unpacked else None)
        return {} if location is None else {split: [location] for split in pickles}

    def read(files: SplitFiles) -> dict[str, InMemoryTable]:
        """Read the pickles of each split from the unpacked folder or the archive."""
        (location,) = files["train"]  # the folder or archive, which is the same for both splits
        meta_pickle, meta_key = meta
        class_names = list(read_pickle(location, meta_pickle)[meta_key])
        contents = {split: [read_pickle(location, member) for member in members] for split, members in pickles.items()}
        return {
            split: InMemoryTable(
                {
                    # rows of 3072 bytes hold the red, green and blue planes; images are (h w c)
                    "img": [image for p in parts for image in p["data"].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)],
                    label: [int(value) for p in parts for value in p[f"{label}s"]],
                },
                class_names,
            )
            for split, parts in contents.items()
        }

    original = OriginalFormat(f"{unpacked_folder}, the python version", find, read)
    return Source((f"cifar{classes}",), f"uoft-cs/cifar{classes}", original_formats=(original,))


_CIFAR10 = _source(
    10,
    "cifar-10-batches-py",
    {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]},
    ("batches.meta", "label_names"),
    "label",
)
_CIFAR100 = _source(
    100, "cifar-100-python", {"train": ["train"], "test": ["test"]}, ("meta", "fine_label_names"), "fine_label"
)


@DATA_SETS.register
def cifar10(
    root: Path | None = None,
    *,
    train: Count | None = None,
    val: Count = 5000,
    protocol: SplitProtocol = "mukhoti",
    seed: Seed | None = None,
    augment: bool = True,
    revision: str | None = None,
) -> Splits:
    """Load CIFAR-10: 45,000 / 5,000 / 10,000 images of 10 classes, split and standardized as in a paper's code.

    Args:
        root: Data folder; by default CALIBRANT_DATA or the Hugging Face hub.
        train: Number of training examples to keep, the first ones of the split (Wang et al. 2021, Figure 1d).
        val: Number of validation examples.
        protocol: "mukhoti" (Mukhoti et al. 2020, AdaFocal, Komisarenko & Kull): shuffle the training rows with seed 1;
            the first `val` validate. "wang" (Wang et al. 2021): `RandomState(101).permutation`; the last `val`
            validate; ImageNet's pixel statistics. Both shuffle the rows of the files, which the authors read in the
            order of the official archive.
        seed: Seed of the split; by default 1 for "mukhoti" and 101 for "wang".
        augment: Crop training batches after padding by 4, and mirror half of them.
        revision: Commit on the Hugging Face hub.

    Raises:
        InputError: If the data cannot be read, or `train` and `val` do not fit.
    """
    loaded = load_images(_CIFAR10, root, revision, label="label", size=32, classes=10)
    return _split_as_in_paper("cifar10", loaded, train=train, val=val, protocol=protocol, seed=seed, augment=augment)


@DATA_SETS.register
def cifar100(
    root: Path | None = None,
    *,
    train: Count | None = None,
    val: Count = 5000,
    protocol: SplitProtocol = "mukhoti",
    seed: Seed | None = None,
    augment: bool = True,
    revision: str | None = None,
) -> Splits:
    """Load CIFAR-100 with its 100 fine classes. `cifar10` explains the arguments."""
    loaded = load_images(_CIFAR100, root, revision, label="fine_label", size=32, classes=100)
    return _split_as_in_paper("cifar100", loaded, train=train, val=val, protocol=protocol, seed=seed, augment=augment)


def _split_as_in_paper(
    name: str, loaded: LoadedImages, *, train: int | None, val: int, protocol: str, seed: int | None, augment: bool
) -> Splits:
    """Split and standardize CIFAR as `cifar10` describes, where the parameters are explained."""
    default_seed, pixel_statistics = _PROTOCOLS[protocol]
    examples = loaded.train
    order = shuffled_indices(len(examples), val, default_seed if seed is None else seed, name)
    # the code of Mukhoti et al. validates on the first shuffled rows, the code of Wang et al. on the last
    train_rows, val_rows = (order[val:], order[:val]) if protocol == "mukhoti" else (order[:-val], order[-val:])
    if train is not None and not 0 < train <= len(train_rows):
        raise InputError(
            f"{name}: Expected train between 1 and {len(train_rows)} with val={val}, got {train}.", code="empty_split"
        )
    splits = examples[train_rows[:train]], examples[val_rows], loaded.test
    record = loaded.record | {"protocol": protocol}
    return image_splits(*splits, record, pixel_statistics[name], padding=4 if augment else 0)
