"""Street View House Numbers, cropped digits (Netzer et al. 2011): 73,257 + 26,032 images of 32 x 32 pixels."""

from pathlib import Path

from calibrant.catalog import DATA_SETS
from calibrant.data._images import CIFAR, convert_images, image_splits
from calibrant.data._load import Source, load
from calibrant.data._originals import Files, Original, Rows
from calibrant.data._splits import Split, Splits, shuffled
from calibrant.types import Count, Seed

__all__ = ["svhn"]


@DATA_SETS.register
def svhn(root: Path | None = None, *, val: Count | None = None, seed: Seed = 1, revision: str | None = None) -> Splits:
    """SVHN as Mukhoti et al. (2020) load it: a tenth of the rows validate, CIFAR-10's statistics, no augmentation.

    The first `val` (by default a tenth, rounded down) of the rows shuffled with `seed` validate. Used for training by
    Wang et al. (2021) and as out-of-distribution data for CIFAR-10 by Mukhoti et al. (2020) and AdaFocal. `revision` is
    a commit of the hub's copy, which is read where no folder is given.
    """
    source = Source(("svhn",), "ufldl-stanford/svhn", config="cropped_digits", revision=revision, originals=(_MAT,))
    tensors, facts = load(source, root, convert_images, image=("image",), label=("label",), size=32, classes=10)
    everything = Split(tensors["train.images"], tensors["train.labels"])
    held = len(everything) // 10 if val is None else val
    order = shuffled(len(everything), held, seed, "svhn")
    test = Split(tensors["test.images"], tensors["test.labels"])
    return image_splits(everything[order[held:]], everything[order[:held]], test, facts, CIFAR, padding=0)


def _find(place: Path) -> Files:
    files = {name: [place / f"{name}_32x32.mat"] for name in ("train", "test")}
    return files if all(path.is_file() for (path,) in files.values()) else {}


def _read(files: Files) -> dict[str, Rows]:
    from scipy.io import loadmat

    tables: dict[str, Rows] = {}
    for name, (path,) in files.items():
        found = loadmat(path)
        labels = found["y"].ravel().astype(int) % 10  # the digit 0 is labeled 10 there
        tables[name] = Rows({"image": list(found["X"].transpose(3, 0, 1, 2)), "label": labels.tolist()})
    return tables


_MAT = Original("train_32x32.mat and test_32x32.mat", _find, _read)
