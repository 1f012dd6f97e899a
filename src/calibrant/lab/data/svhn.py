"""Street View House Numbers, cropped digits (Netzer et al. 2011): 73,257 + 26,032 images of 32 x 32 pixels."""

from pathlib import Path

from calibrant.lab.data._images import CIFAR_STATISTICS, convert_images, image_splits
from calibrant.lab.data._loading import Source, load
from calibrant.lab.data._original_formats import InMemoryTable, OriginalFormat, SplitFiles
from calibrant.lab.data._splits import Split, Splits, shuffled_indices
from calibrant.registry import DATA_SETS
from calibrant.types import Count, Seed

__all__ = ["svhn"]


@DATA_SETS.register
def svhn(root: Path | None = None, *, val: Count | None = None, seed: Seed = 1, revision: str | None = None) -> Splits:
    """SVHN as Mukhoti et al. (2020) load it: a tenth of the rows validate, CIFAR-10's statistics, no augmentation.

    The first `val` (by default a tenth, rounded down) of the rows shuffled with `seed` validate. Used for training by
    Wang et al. (2021) and as out-of-distribution data for CIFAR-10 by Mukhoti et al. (2020) and AdaFocal. `revision` is
    a commit of the hub's copy, which is read where no folder is given.
    """
    source = Source(
        ("svhn",), "ufldl-stanford/svhn", config="cropped_digits", revision=revision, original_formats=(_MAT_FORMAT,)
    )
    tensors, facts = load(source, root, convert_images, image=("image",), label=("label",), size=32, classes=10)
    all_training = Split(tensors["train.images"], tensors["train.labels"])
    num_val = len(all_training) // 10 if val is None else val
    order = shuffled_indices(len(all_training), num_val, seed, "svhn")
    test = Split(tensors["test.images"], tensors["test.labels"])
    return image_splits(
        all_training[order[num_val:]], all_training[order[:num_val]], test, facts, CIFAR_STATISTICS, padding=0
    )


def _find_mat_files(place: Path) -> SplitFiles:
    files = {name: [place / f"{name}_32x32.mat"] for name in ("train", "test")}
    return files if all(path.is_file() for (path,) in files.values()) else {}


def _read_mat_files(files: SplitFiles) -> dict[str, InMemoryTable]:
    from scipy.io import loadmat

    tables: dict[str, InMemoryTable] = {}
    for name, (path,) in files.items():
        content = loadmat(path)
        labels = content["y"].ravel().astype(int) % 10  # the digit 0 is labeled 10 there
        tables[name] = InMemoryTable({"image": list(content["X"].transpose(3, 0, 1, 2)), "label": labels.tolist()})
    return tables


_MAT_FORMAT = OriginalFormat("train_32x32.mat and test_32x32.mat", _find_mat_files, _read_mat_files)
