"""Train the small scales of the sweeps of Wang et al. (2021) and of the other focal losses of Mukhoti et al. (2020).

    python -m benchmarks.small_sweeps --data DATASETS [--out out] [--results docs/results]

Runs the studies of `SWEEPS` in their order, below OUT/runs, whose finished runs they share. It can be interrupted and
started again. The tables of a finished study are copied to RESULTS; `python -m benchmarks.statements --write` then puts
them on the page of results, which lists what is unfinished.
"""

import argparse
import contextlib
import json
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from calibrant.lab import study as studies
from calibrant.lab.study import Run, Study

COPIED = "tables.csv", "made_with.json"


@dataclass(frozen=True)
class Sweep:
    """A study at a small scale, and the part of the paper that it repeats."""

    study: str
    scale: str
    title: str

    @property
    def name(self) -> str:
        """The folder of its runs and results."""
        return f"{self.study}-{self.scale}"

    @property
    def command(self) -> str:
        """The command that runs it."""
        return f"calibrant study run {self.study} --scale {self.scale}"

    def runs(self) -> list[Run]:
        """Return its runs."""
        return list(Study.load(self.study, self.scale).runs())

    def is_finished(self, results: Path) -> bool:
        """Return whether the results have every run."""
        path = results / self.name / "made_with.json"
        if not path.exists():
            return False
        finished = set(json.loads(path.read_text())["runs"].values())
        study = Study.load(self.study, self.scale)
        return all(study.describe(run) in finished for run in study.runs())


SWEEPS = (
    Sweep("wang_2021_coefficients", "small", "Strengths of regularization (Figures 1 and 4 of Wang et al. 2021)"),
    Sweep("mukhoti_2020", "gammas", "Other focal losses (Tables 8 to 10 of Mukhoti et al. 2020)"),
    Sweep("wang_2021_validation_size", "small", "Size of the validation set (Figure 3 of Wang et al. 2021)"),
    Sweep("wang_2021_inverse", "small", "From focal to inverse focal loss (Figure 6 of Wang et al. 2021)"),
)


def new_trainings(sweeps: Iterable[Sweep] = SWEEPS) -> Iterator[tuple[Sweep, list[Run]]]:
    """Yield each sweep with the runs whose network no earlier sweep trains.

    Runs that differ in the number of validation images alone share a network.
    """
    trained = set[tuple[object, ...]]()
    for sweep in sweeps:
        new_runs = list[Run]()
        for run in sweep.runs():
            settings = {key: value for key, value in run.dataset.settings.items() if key != "val"}
            key = run.dataset.name, repr(sorted(settings.items())), run.network, run.loss, run.seed, run.recipe
            if key not in trained:
                new_runs.append(run)
            trained.add(key)
        yield sweep, new_runs


def run_sweeps(sweeps: Iterable[Sweep], data: Path | None, out: Path, results: Path) -> None:
    """Run sweeps one after another, and copy the tables of those that finish."""
    data, results = (None if data is None else data.absolute()), results.absolute()
    out.mkdir(parents=True, exist_ok=True)
    with contextlib.chdir(out):  # studies in one folder `runs` share finished runs
        for sweep in sweeps:
            result = studies.run(sweep.study, scale=sweep.scale, data=data, command=sweep.command)
            if result.failed:
                continue
            (results / sweep.name).mkdir(parents=True, exist_ok=True)
            for name in COPIED:
                shutil.copy(result.folder / name, results / sweep.name / name)


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
