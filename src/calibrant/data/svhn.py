"""Street View House Numbers, cropped digits (Netzer et al. 2011): 73,257 + 26,032 images of 32 x 32 pixels."""

from pathlib import Path

from calibrant.catalog import DATA_SETS
from calibrant.data._images import CIFAR, convert_images, image_splits
from calibrant.data._load import Source, load
from calibrant.data._splits import Split, Splits, shuffled

__all__ = ["svhn"]


@DATA_SETS.register
def svhn(root: Path | None = None, *, val: int | None = None, seed: int = 1) -> Splits:
    """SVHN as Mukhoti et al. (2020) load it: a tenth of the rows validate, CIFAR-10's statistics, no augmentation.

    The first `val` (by default a tenth, rounded down) of the rows shuffled with `seed` validate. Used for training by
    Wang et al. (2021) and as out-of-distribution data for CIFAR-10 by Mukhoti et al. (2020) and AdaFocal.
    """
    source = Source(("svhn",), "ufldl-stanford/svhn", config="cropped_digits")
    tensors, facts = load(source, root, convert_images, image=("image",), label=("label",), size=32, classes=10)
    everything = Split(tensors["train.images"], tensors["train.labels"])
    held = len(everything) // 10 if val is None else val
    order = shuffled(len(everything), held, seed, "svhn")
    test = Split(tensors["test.images"], tensors["test.labels"])
    return image_splits(everything[order[held:]], everything[order[:held]], test, facts, CIFAR, padding=0)
