"""The front door: run a study, measure what is stored again, ask how it stands. The command line calls these."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from calibrant import catalog
from calibrant.catalog import Method
from calibrant.io import writable
from calibrant.study.config import Run, Study
from calibrant.study.engine import Data, Engine, Ray, local
from calibrant.study.progress import Progress, Trial, chosen, seconds_left, train_all, tried, untimed
from calibrant.study.published import Beside, paper_of, study_tables
from calibrant.study.rehearsal import own_methods, rehearse
from calibrant.study.results import Result, Standing, Status
from calibrant.study.rows import measured
from calibrant.study.store import Store
from calibrant.study.track import tracking
from calibrant.types import InputError

Tell = Callable[[Progress], object]
AnyStudy = str | Path | Study


def run(
    study: AnyStudy,
    *,
    out: str | Path | None = None,
    data: str | Path | None = None,
    mirror: str | None = None,
    scale: str | None = None,
    only: str | None = None,
    engine: str = "local",
    address: str | None = None,
    gpus: float | None = None,
    track: str | None = None,
    with_: Sequence[str] = (),
    progress: Tell | None = None,
    command: str = "",
) -> Result:
    """Train what is missing of a study, calibrate, measure, and write tables and report; stop and start as you like.

    - `study`: a TOML file, the name of a bundled one, or a `Study`.
    - `out`: where runs and the report are kept, runs/NAME if not said; `mirror`: a URL to share finished runs by.
    - `data`: the folder of local data sets, that of the environment's CALIBRANT_DATA if not said.
    - `scale`: one that the study file names; `only`: what a run's data set, network, loss or seed must contain.
    - `engine`: "local", or "ray" with the cluster's `address` and the `gpus` of each run.
    - `track`: "tensorboard", "mlflow" or "wandb" follows every epoch.
    - `with_`: Python files or packages of your own methods, which are run.
    - `progress` is told what happens; `command` is what the report says made it.

    A run that fails does not stop the others; the result says why. Raises `InputError` for what cannot be, before
    anything is trained as far as it can be known.
    """
    trains = _engine(engine, address, gpus)
    found, store, paper = _opened(study, out, mirror, scale, with_)
    runs, source = chosen(found, only), Data(None if data is None else Path(data))
    _rehearse(found, runs, store, source)
    failed: dict[Run, str] = {}
    with tracking(track, found, store.root) as watch:
        for step in train_all(found, runs, store, source, trains, watch):
            if step.event is not None and step.event.kind == "failed":
                failed[step.event.run] = _first_line(step.event.facts["error"])
            if progress is not None:
                progress(step)
    return _result(found, store, paper, failed, None, progress, command or f"calibrant.study.run({str(study)!r})")


def measure(
    study: AnyStudy,
    *,
    out: str | Path | None = None,
    mirror: str | None = None,
    scale: str | None = None,
    calibrators: Sequence[str | Method] = (),
    metrics: Sequence[str | Method] = (),
    jobs: int | None = None,
    with_: Sequence[str] = (),
    progress: Tell | None = None,
    command: str = "",
) -> Result:
    """Calibrate and measure what is stored again, with other calibrators or metrics; nothing is trained.

    `jobs` processes share a long work, one per core if not said; the rest is as in `run`. Raises `InputError` if no run
    is done.
    """
    changes = {"calibrators": tuple(calibrators), "metrics": tuple(metrics)}
    _include(with_)
    loaded = replace(_loaded(study, scale), **{key: value for key, value in changes.items() if value})
    found, store, paper = _opened(loaded, out, mirror)
    made = f"calibrant.study.measure({str(study)!r})"
    result = _result(found, store, paper, {}, jobs, progress, command or made)
    if not result.tables:
        raise InputError(f"nothing to measure: no run of study {found.name!r} is done in {store.root}")
    return result


def status(
    study: AnyStudy,
    *,
    out: str | Path | None = None,
    data: str | Path | None = None,
    mirror: str | None = None,
    scale: str | None = None,
    only: str | None = None,
    with_: Sequence[str] = (),
    estimate: bool = False,
    progress: Tell | None = None,
) -> Status:
    """Say how the runs of a study stand and how long the rest takes; with `estimate` by training on single batches.

    The rest is as in `run`.
    """
    found, store, _ = _opened(study, out, mirror, scale, with_)
    runs, source = chosen(found, only), Data(None if data is None else Path(data))
    trials: dict[Run, Trial | str] = {}
    for one in untimed(runs, store) if estimate else ():
        where, what, _ = found.names(one)
        if progress is not None:
            progress(Progress(f"timing {what} on {where}"))
        try:
            trials[one] = tried(one, source)
        except InputError as error:  # data that are not at hand, such as of a study for another machine
            trials[one] = str(error)
    known = {one: trial for one, trial in trials.items() if isinstance(trial, Trial)}
    standings = tuple(_standing(one, store) for one in runs)
    return Status(found, standings, seconds_left(runs, store, known), trials)


def draw(
    study: AnyStudy,
    folder: str | Path,
    *,
    out: str | Path | None = None,
    scale: str | None = None,
    with_: Sequence[str] = (),
) -> list[Path]:
    """Draw how the finished networks of a study learned, each figure as SVG and PNG with its numbers as CSV.

    Returns the files written to `folder`, none if nothing is done; the rest is as in `run`.
    """
    from calibrant.study import learning

    found, store, _ = _opened(study, out, None, scale, with_)
    writable(Path(folder) / "figure.svg")
    return learning.draw(found, store, Path(folder))


def _opened(
    study: AnyStudy, out: str | Path | None, mirror: str | None, scale: str | None = None, with_: Sequence[str] = ()
) -> tuple[Study, Store, Beside | None]:
    """Load a study, and open the store in its folder, with the finished runs that others share."""
    _include(with_)
    found = _loaded(study, scale)
    paper = paper_of(found)
    store = Store(Path("runs") / found.name if out is None else Path(out), mirror)
    store.share(found.runs())
    return found, store, paper


def _include(sources: Sequence[str]) -> None:
    catalog.include((sources,) if isinstance(sources, str) else sources)


def _loaded(study: AnyStudy, scale: str | None) -> Study:
    if not isinstance(study, Study):
        return Study.load(study, scale)
    if scale is not None:
        raise InputError(f"scale {scale!r} is of a study file: load it by Study.load(path, {scale!r})")
    return study


def _engine(name: str, address: str | None, gpus: float | None) -> Engine:
    engines: dict[str, Engine] = {"local": local, "ray": Ray(address, gpus)}
    if name not in engines:
        raise InputError(f"no engine {name!r}; there are {', '.join(engines)}")
    if name == "local" and (address is not None or gpus is not None):
        raise InputError("address and gpus are of a Ray cluster: say engine 'ray' too")
    return engines[name]


def _rehearse(study: Study, runs: Sequence[Run], store: Store, data: Data) -> None:
    """Try one's own methods on the classes of the first data set that is to be trained on, if it is at hand."""
    missing = [run for run in runs if run not in store]
    if missing and own_methods(study, missing):
        rehearse(study, missing, len(data.splits(missing[0].dataset).classes))


def _result(
    study: Study,
    store: Store,
    paper: Beside | None,
    failed: dict[Run, str],
    jobs: int | None,
    progress: Tell | None,
    command: str,
) -> Result:
    from calibrant.study.report import study_report

    writable(store.root / "report.html")
    store.share(study.runs())  # others may have finished some meanwhile
    if progress is not None:
        progress(Progress("calibrating and measuring"))
    found = list(measured(study, store, jobs or torch.get_num_threads()))
    tables = study_tables((row for one in found for row in one.rows), paper)
    result = Result(study, tables, found, failed, store.root)
    if tables:
        result.write(study_report(result.study, result.tables, result.measured, store, command))
    return result


def _standing(run: Run, store: Store) -> Standing:
    state = store.state(run)
    if state == "done":
        return Standing(run, state, store.record(run)["facts"]["seconds"])
    error = store.partial(run) / "error.txt" if state == "failed" else None
    return Standing(run, state, math.nan, _first_line(error.read_text()) if error else "")


def _first_line(error: str) -> str:
    return error.strip().partition("\n")[0] or "it does not say why"
