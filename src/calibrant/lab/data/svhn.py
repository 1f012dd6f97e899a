"""SVHN: Street View House Numbers (Netzer et al. 2011), 73,257 + 26,032 cropped digits of 32 x 32 pixels."""

from pathlib import Path

from calibrant._core.registry import DATA_SETS
from calibrant._core.types import Count, Seed
from calibrant.lab.data._images import CIFAR_STATISTICS, image_splits, load_images
from calibrant.lab.data._loading import InMemoryTable, OriginalFormat, Source, SplitFiles, files_if_all_exist
from calibrant.lab.data._splits import Splits, shuffled_indices


def _read_mat_files(files: SplitFiles) -> dict[str, InMemoryTable]:
    """Return the table of each split, read from its one MATLAB file."""
    from scipy.io import loadmat

    contents = {name: loadmat(path) for name, (path,) in files.items()}
    return {
        name: InMemoryTable(
            {
                "image": list(content["X"].transpose(3, 0, 1, 2)),  # from (h w c n)
                "label": (content["y"].ravel().astype(int) % 10).tolist(),  # the files label the digit 0 as 10
            }
        )
        for name, content in contents.items()
    }


_SVHN = Source(
    folders=("svhn",),
    hub="ufldl-stanford/svhn",
    config="cropped_digits",
    original_formats=(
        OriginalFormat(
            "train_32x32.mat and test_32x32.mat",
            lambda folder: files_if_all_exist({name: [folder / f"{name}_32x32.mat"] for name in ("train", "test")}),
            _read_mat_files,
        ),
    ),
)


@DATA_SETS.register
def svhn(root: Path | None = None, *, val: Count | None = None, seed: Seed = 1, revision: str | None = None) -> Splits:
    """Load SVHN as Mukhoti et al. (2020) do: CIFAR-10's pixel statistics and no augmentation.

    Wang et al. (2021) train on it. Mukhoti et al. (2020) and AdaFocal use it as out-of-distribution data for CIFAR-10.

    Args:
        root: Data folder; by default CALIBRANT_DATA or the Hugging Face hub.
        val: Number of validation examples, the first of the shuffled training rows; a tenth by default.
        seed: Seed of the split.
        revision: Commit on the Hugging Face hub.
    """
    loaded = load_images(_SVHN, root, revision, size=32, classes=10)
    examples = loaded.train
    val = len(examples) // 10 if val is None else val
    order = shuffled_indices(len(examples), val, seed, "svhn")
    splits = examples[order[val:]], examples[order[:val]], loaded.test
    return image_splits(*splits, loaded.record, CIFAR_STATISTICS, padding=0)
