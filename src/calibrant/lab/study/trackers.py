"""Send the scalars of every epoch to TensorBoard, MLflow or Weights & Biases."""

import math
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from calibrant._core import registry
from calibrant._core.lazy import import_optional
from calibrant.lab.study.config import Study
from calibrant.lab.study.engine import RunEvent
from calibrant.lab.study.grids import Run


@dataclass(frozen=True)
class RunTracker:
    """Callbacks for the epochs and the end of one run."""

    log: Callable[[dict[str, float], int], object]  # called with the scalars of an epoch and its index, from 1
    close: Callable[[bool], object]  # called with whether the run succeeded


@contextmanager
def open_tracker(name: str | None, study: Study, folder: Path) -> Generator[Callable[[RunEvent], object] | None]:
    """Yield a function that sends the events of a study to the tracker `name`, or None if `name` is None.

    A run is opened at its first epoch, and closed when it ends or the block does. `folder` is for the tracker's files.

    Raises:
        InputError: If there is no such tracker, or its client is not installed.
    """
    if name is None:
        yield None
        return
    registry.check_name(name, TRACKERS, "tracker", "unknown_tracker")
    import_optional(name, name, f"Tracking with {name}")
    trackers: dict[Run, RunTracker] = {}

    def track(event: RunEvent) -> None:
        """Log an epoch, opening its run if needed, or close a run that has ended."""
        if event.kind == "epoch":
            if event.run not in trackers:
                trackers[event.run] = TRACKERS[name](study, event.run, folder)
            trackers[event.run].log(scalars(event), event.content["epoch"])
        elif event.run in trackers:
            trackers.pop(event.run).close(event.kind == "done")

    try:
        yield track
    finally:
        for tracker in trackers.values():  # runs that were interrupted
            tracker.close(False)


def scalars(event: RunEvent) -> dict[str, float]:
    """Return the finite scalars of an event, except the index of the epoch."""
    return {
        key: value
        for key, value in event.content.items()
        if key != "epoch" and isinstance(value, int | float) and math.isfinite(value)
    }


def run_title(study: Study, run: Run) -> str:
    """Return the names of a run and its seed."""
    return f"{' '.join(study.names(run))} seed {run.seed}"


def tensorboard(study: Study, run: Run, folder: Path) -> RunTracker:
    """Return callbacks that write a run's event files for TensorBoard to FOLDER/tensorboard/RUN."""
    writer_class = import_module("torch.utils.tensorboard").SummaryWriter
    # a slash in a name would be read as a folder
    writer = writer_class(folder / "tensorboard" / f"{run_title(study, run)} {run.id}".replace("/", "-"))

    def log(values: dict[str, float], epoch: int) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, epoch)
        writer.flush()

    return RunTracker(log, lambda ok: writer.close())


def mlflow(study: Study, run: Run, folder: Path) -> RunTracker:
    """Open a run in MLflow's experiment with the study's name, at MLFLOW_TRACKING_URI, and return its callbacks."""
    client = import_module("mlflow").MlflowClient()
    experiment = client.get_experiment_by_name(study.name)
    experiment_id = client.create_experiment(study.name) if experiment is None else experiment.experiment_id
    run_id = client.create_run(experiment_id, run_name=run_title(study, run), tags={"calibrant": run.id}).info.run_id
    for key, value in run.spec.items():
        client.log_param(run_id, key, value)

    def log(values: dict[str, float], epoch: int) -> None:
        for key, value in values.items():
            client.log_metric(run_id, key, value, step=epoch)

    return RunTracker(log, lambda ok: client.set_terminated(run_id, "FINISHED" if ok else "FAILED"))


def wandb(study: Study, run: Run, folder: Path) -> RunTracker:
    """Open a run in the project with the study's name in Weights & Biases, or resume it, and return its callbacks."""
    tracked_run = import_module("wandb").init(
        project=study.name,
        name=run_title(study, run),
        id=run.id,
        config=run.spec,
        dir=folder,
        resume="allow",
        reinit="create_new",  # several runs may be open at once
    )
    return RunTracker(
        lambda values, epoch: tracked_run.log(values, step=epoch),
        lambda ok: tracked_run.finish(exit_code=0 if ok else 1),
    )


TRACKERS = {"tensorboard": tensorboard, "mlflow": mlflow, "wandb": wandb}
