"""As many epochs of one network of a study as a number of minutes allows; the next call continues.

    python -m benchmarks.full_recipe STUDY --minutes N [--scale gpu] [--only TEXT] [--data FOLDER] [--out FOLDER]

Trains the first missing run that `--only` selects, with the schedule of its own recipe. Prints the minutes and the
processor minutes of an epoch, and what the whole run takes. At least one epoch is trained, and no epoch starts that
would take longer than the minutes left. Several calls with different `--only` share a GPU.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import torch

from calibrant.lab.study import Run, Store, Study
from calibrant.lab.study.datasets import DatasetCache
from calibrant.lab.study.engine import execute
from calibrant.lab.study.progress import check_data, duration_text, select_runs

Clock = Callable[[], float]


@dataclass(frozen=True)
class TrainedEpochs:
    """What a call has trained."""

    run: Run
    epoch: int  # the last one
    num_epochs: int  # of this call
    seconds: float  # of this call's epochs, with traces and checkpoints
    cpu_seconds: float
    is_finished: bool

    def __str__(self) -> str:
        recipe = self.run.recipe
        device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{torch.get_num_threads()} CPU threads"
        lines = [
            f"{self.run.dataset.text}, {self.run.network.text}, {self.run.loss.text}, seed {self.run.seed}",
            f"precision {recipe.precision}, channels last {recipe.channels_last}, {device}",
            f"epoch {self.epoch} of {recipe.epochs}, {self.num_epochs} in this call",
        ]
        if self.num_epochs:
            epoch_seconds = self.seconds / self.num_epochs
            lines += [
                f"{epoch_seconds / 60:.2f} minutes per epoch, "
                f"{self.cpu_seconds / self.num_epochs / 60:.2f} of processor time",
                f"whole run: {duration_text(epoch_seconds * recipe.epochs)}; "
                f"left: {duration_text(epoch_seconds * (recipe.epochs - self.epoch))}",
            ]
        return "\n".join([*lines, "finished"] if self.is_finished else lines)


def train_for(
    run: Run, store: Store, data: DatasetCache, seconds: float, clock: Clock = time.monotonic
) -> TrainedEpochs:
    """Train a run from its checkpoint until the next epoch would exceed the seconds, or the run ends.

    Raises:
        RuntimeError: If another process trains the run, or it fails.
    """
    start, cpu_start = clock(), time.process_time()
    epoch, num_epochs, last_time, is_finished = 0, 0, start, False
    spent, cpu_spent = 0.0, 0.0
    with store.claim(run) as is_claimed:
        if not is_claimed:
            raise RuntimeError(f"Expected a free run, but {store.holder(run)} trains it. Try --only for another.")
        with closing(execute(run, store, data)) as events:
            for event in events:
                if event.kind == "failed":
                    raise RuntimeError(event.content["error"])
                is_finished = event.kind == "done"
                if event.kind != "epoch":
                    continue
                epoch, num_epochs = event.content["epoch"], num_epochs + 1
                now = clock()
                spent, cpu_spent = now - start, time.process_time() - cpu_start
                epoch_seconds, last_time = now - last_time, now
                if epoch < run.recipe.epochs and spent + epoch_seconds > seconds:
                    break
    return TrainedEpochs(run, epoch or run.recipe.epochs, num_epochs, spent, cpu_spent, is_finished)


def first_missing_run(study: Study, conditions: Sequence[str], store: Store, data: DatasetCache) -> tuple[Run, Store]:
    """Return the first run that is not finished, and the store, which knows its data.

    Raises:
        SystemExit: If all runs are finished, or the data of the first one are missing.
    """
    for run in select_runs(study, conditions):
        known_store, missing_data = check_data([run], store, data)
        if missing_data:
            raise SystemExit("; ".join(missing_data.values()))
        if run not in known_store:
            return run, known_store
    raise SystemExit("all selected runs are finished")


def main(arguments: Sequence[str] | None = None) -> None:
    """Train one network for some minutes, and print its progress."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study")
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--scale")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    study, data = Study.load(options.study, options.scale), DatasetCache(options.data)
    run, store = first_missing_run(study, options.only, Store(options.out or Path("runs") / study.name), data)
    print(train_for(run, store, data, 60 * options.minutes))


if __name__ == "__main__":
    main()
