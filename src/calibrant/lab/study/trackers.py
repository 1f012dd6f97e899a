"""A run's scalars to TensorBoard, MLflow or Weights & Biases, each by its own client: events in, scalars out."""

import math
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from calibrant import registry
from calibrant.lab.study.config import Run, Study
from calibrant.lab.study.engine import RunEvent
from calibrant.types import InputError


@dataclass(frozen=True)
class RunTracker:
    """Where the numbers of one run go."""

    log: Callable[[dict[str, float], int], object]  # the scalars of an epoch
    close: Callable[[bool], object]  # with whether the run ended well


@contextmanager
def open_tracker(name: str | None, study: Study, folder: Path) -> Generator[Callable[[RunEvent], object] | None]:
    """Give a function that takes the events of a study, in any order of its runs, to a tracker; None: nowhere.

    A run's page is opened at its first epoch, and closed when it ends or all are stopped. Raises `InputError` if there
    is no such tracker, or its client is not installed.
    """
    if name is None:
        yield None
        return
    if name not in TRACKERS:
        raise InputError(f"no tracker {name!r}; {registry.suggest(name, TRACKERS)}", code="unknown_tracker")
    _import_client(name)
    pages: dict[Run, RunTracker] = {}

    def watch(event: RunEvent) -> None:
        if event.kind == "epoch":
            if event.run not in pages:
                pages[event.run] = TRACKERS[name](study, event.run, folder)
            pages[event.run].log(scalars(event), event.facts["epoch"])
        elif event.run in pages:
            pages.pop(event.run).close(event.kind == "done")

    try:
        yield watch
    finally:
        for page in pages.values():
            page.close(False)


def scalars(event: RunEvent) -> dict[str, float]:
    """Return the numbers of an event, without the epoch's own."""
    numbers = {key: value for key, value in event.facts.items() if isinstance(value, int | float)}
    return {key: value for key, value in numbers.items() if key != "epoch" and math.isfinite(value)}


def run_title(study: Study, run: Run) -> str:
    """Name a run as its study spells it."""
    return f"{' '.join(study.names(run))} seed {run.seed}"


def tensorboard(study: Study, run: Run, folder: Path) -> RunTracker:
    """Open a folder of event files, FOLDER/tensorboard/RUN."""
    _import_client("tensorboard")
    writer_class = import_module("torch.utils.tensorboard").SummaryWriter
    writer = writer_class(folder / "tensorboard" / f"{run_title(study, run)} {run.id}".replace("/", "-"))

    def log(numbers: dict[str, float], epoch: int) -> None:
        for name, value in numbers.items():
            writer.add_scalar(name, value, epoch)
        writer.flush()

    return RunTracker(log, lambda ok: writer.close())


def mlflow(study: Study, run: Run, folder: Path) -> RunTracker:
    """Open a run in the experiment named like the study, where MLFLOW_TRACKING_URI says."""
    client = _import_client("mlflow").MlflowClient()
    known_experiment = client.get_experiment_by_name(study.name)
    experiment = client.create_experiment(study.name) if known_experiment is None else known_experiment.experiment_id
    name = client.create_run(experiment, run_name=run_title(study, run), tags={"calibrant": run.id}).info.run_id
    for key, value in run.spec.items():
        client.log_param(name, key, value)

    def log(numbers: dict[str, float], epoch: int) -> None:
        for key, value in numbers.items():
            client.log_metric(name, key, value, step=epoch)

    return RunTracker(log, lambda ok: client.set_terminated(name, "FINISHED" if ok else "FAILED"))


def wandb(study: Study, run: Run, folder: Path) -> RunTracker:
    """Open a run in the project named like the study; one that was interrupted goes on."""
    run_ = _import_client("wandb").init(
        project=study.name,
        name=run_title(study, run),
        id=run.id,
        config=run.spec,
        dir=folder,
        resume="allow",
        reinit="create_new",  # several may be trained at once
    )
    return RunTracker(
        lambda numbers, epoch: run_.log(numbers, step=epoch), lambda ok: run_.finish(exit_code=0 if ok else 1)
    )


TRACKERS = {"tensorboard": tensorboard, "mlflow": mlflow, "wandb": wandb}


def _import_client(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise InputError(
            f"tracking by {name} needs its client: pip install 'calibrant[{name}]'", code="missing_package"
        ) from None
