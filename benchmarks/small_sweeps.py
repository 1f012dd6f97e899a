"""Train the small scales of the sweeps of Wang et al. (2021) and of the other focal losses of Mukhoti et al. (2020).

    python -m benchmarks.small_sweeps --data DATASETS [--out out] [--results docs/results]

Runs the studies of `SWEEPS` in their order, below OUT/runs, whose finished runs they share. It can be interrupted and
started again, and two processes share the work. The tables of a finished study are copied to RESULTS. The figures
there, and the numbers of Figure 4 in val_optimal_ece.csv, are copied from the output of `calibrant figures`.
`python -m benchmarks.statements --write` then renders the page of results.
"""

import argparse
import contextlib
import shutil
from collections.abc import Iterable
from pathlib import Path

from calibrant.lab import study as studies

SWEEPS = (  # study and scale
    ("wang_2021_coefficients", "small"),
    ("mukhoti_2020", "gammas"),
    ("wang_2021_validation_size", "small"),
    ("wang_2021_inverse", "small"),
)
COPIED = "tables.csv", "made_with.json"


def run_sweeps(sweeps: Iterable[tuple[str, str]], data: Path | None, out: Path, results: Path) -> None:
    """Run sweeps one after another, and copy the tables of those that finish."""
    data, results = (None if data is None else data.absolute()), results.absolute()
    out.mkdir(parents=True, exist_ok=True)
    with contextlib.chdir(out):  # studies in one folder `runs` share finished runs
        for study, scale in sweeps:
            result = studies.run(study, scale=scale, data=data, command=f"calibrant study run {study} --scale {scale}")
            if result.failed:
                continue
            folder = results / result.folder.name
            folder.mkdir(parents=True, exist_ok=True)
            for name in COPIED:
                shutil.copy(result.folder / name, folder / name)


def main() -> None:
    """Run the sweeps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--results", type=Path, default=Path("docs/results"))
    options = parser.parse_args()
    run_sweeps(SWEEPS, options.data, options.out, options.results)


if __name__ == "__main__":
    main()
