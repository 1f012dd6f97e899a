"""The front door: run a study, measure what is stored again, ask how it stands. The command line calls these."""

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from calibrant import catalog
from calibrant._text import shorten
from calibrant.catalog import Method
from calibrant.io import apart, writable
from calibrant.study.config import Run, Study
from calibrant.study.engine import Data, Engine, Ray, local
from calibrant.study.preflight import check_versions, ready, trained_by
from calibrant.study.progress import Progress, Trial, chosen, first_line, seconds_left, train_all, tried, untimed
from calibrant.study.published import Beside, paper_of, study_tables
from calibrant.study.rehearsal import own_methods, rehearse
from calibrant.study.results import RESULT_FILES, Result, Standing, Status
from calibrant.study.rows import diverged, lost, measured
from calibrant.study.store import Store
from calibrant.study.track import tracking
from calibrant.types import InputError

TRYING = 10.0  # seconds after which a dry run tries no more batches
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
    mix_versions: bool = False,
    with_: Sequence[str] = (),
    progress: Tell | None = None,
    command: str = "",
) -> Result:
    """Train what is missing of a study, calibrate, measure, and write tables and report; stop and start as you like.

    - `study`: a TOML file, the name of a bundled one, or a `Study`.
    - `out`: where runs and the report are kept, runs/NAME if not said, and then those that other studies in runs/ have
      trained already are taken from there; `mirror`: a URL to share finished runs by.
    - `data`: the folder of local data sets, that of the environment's CALIBRANT_DATA if not said.
    - `scale`: one that the study file names; `only`: what a run's data set, network, loss or seed must contain.
    - `engine`: "local", or "ray" with the cluster's `address` and the `gpus` of each run.
    - `track`: "tensorboard", "mlflow" or "wandb" follows every epoch.
    - `mix_versions`: train what is missing beside runs that another version of calibrant trained.
    - `with_`: Python files or packages of your own methods, which are run.
    - `progress` is told what happens; `command` is what the report says made it.

    A run that fails, diverges, or whose data are not at hand does not stop the others; the result says why. What lies
    damaged in the store is set aside, and trained again. Raises `InputError` for what cannot be, before anything is
    trained as far as it can be known.
    """
    trains = _engine(engine, address, gpus)
    found, store, paper = _opened(study, out, mirror, scale, with_)
    _keep_inputs(found, study, with_, store)
    runs, source = chosen(found, only), Data(None if data is None else Path(data))
    said = _Said(progress)
    for run, why in store.mend(runs).items():
        said(f"{_what(found, run)} is damaged: {why}; {'another is whole' if run in store else 'it is trained again'}")
    said(*store.share(runs))
    known = ready(runs, store, source)
    if not known.runs and not found.models:
        raise InputError("; ".join(dict.fromkeys(known.absent.values())), code="no_data")
    store = store.knowing(known.digests)
    if not mix_versions:
        check_versions(known.runs, store)
    _rehearse(found, known.runs, store, source)
    for one in known.runs:
        if one not in store and (other := store.other_code(one)):
            said(f"{_what(found, one)} {other}: it is trained anew")
    failed = dict(known.absent)
    with tracking(track, found, store.root) as watch:
        for step in train_all(found, list(known.runs), store, source, trains, watch):
            if step.event is not None and step.event.kind == "failed":
                failed[step.event.run] = first_line(step.event.facts["error"])
            if progress is not None:
                progress(step)
    made = command or _called("run", study)
    return _result(found, store, paper, failed, None, said, made)


def measure(
    study: AnyStudy,
    *,
    out: str | Path | None = None,
    data: str | Path | None = None,
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

    `jobs` processes share a long work, one per core if not said. With `data`, only runs on the data there are measured.
    The rest is as in `run`. Raises `InputError` if no run is done.
    """
    changes = {"calibrators": tuple(calibrators), "metrics": tuple(metrics)}
    _include(with_)
    loaded = replace(_loaded(study, scale), **{key: value for key, value in changes.items() if value})
    found, store, paper = _opened(loaded, out, mirror)
    _keep_inputs(found, study, with_, store)
    said, runs = _Said(progress), list(found.runs())
    mended = {run: why for run, why in store.mend(runs).items() if run not in store}
    damaged = {run: f"it is damaged: {why}; run the study again" for run, why in mended.items()}
    said(*store.share(runs))
    if data is not None:
        store = store.knowing(ready(runs, store, Data(Path(data))).digests)
    result = _result(found, store, paper, damaged, jobs, said, command or _called("measure", study))
    if not result.tables:
        raise InputError(
            f"nothing to measure: no run of study {found.name!r} is done in {store.root}", code="no_finished_run"
        )
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
    """Say how the runs of a study stand and how long the rest takes.

    With `estimate` the data sets are looked for and single batches trained, to say what can run and how long it takes;
    after some seconds no more kinds of networks are tried. The rest is as in `run`.
    """
    found, store, _ = _opened(study, out, mirror, scale, with_)
    runs, source = chosen(found, only), Data(None if data is None else Path(data))
    store.share(runs)
    absent, trials = dict[Run, str](), dict[Run, Trial]()
    if estimate:
        known = ready(runs, store, source)
        absent, store = dict(known.absent), store.knowing(known.digests)
        began = time.monotonic()
        for one in untimed(list(known.runs), store):
            if trials and time.monotonic() - began > TRYING:
                break
            where, what, _ = found.names(one)
            if progress is not None:
                progress(Progress(f"timing {what} on {where}"))
            trials[one] = tried(one, source)
    standings = tuple(_standing(one, store, absent) for one in runs)
    left = [one for one in runs if one not in absent]
    return Status(found, standings, seconds_left(left, store, trials), trials, absent)


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
    from calibrant.study import figures

    found, store, _ = _opened(study, out, None, scale, with_)
    store.share(found.runs())
    writable(Path(folder) / "figure.svg")
    return figures.draw(found, store, Path(folder), inputs=_inputs(found, study, with_))


def _opened(
    study: AnyStudy, out: str | Path | None, mirror: str | None, scale: str | None = None, with_: Sequence[str] = ()
) -> tuple[Study, Store, Beside | None]:
    """Load a study, and open the store in its folder: runs/NAME, beside those of other studies, if none is said."""
    _include(with_)
    found = _loaded(study, scale)
    paper = paper_of(found)
    if out is not None:
        return found, Store(Path(out), mirror), paper
    folder = (Path("runs") / found.name).absolute()
    beside = sorted(p.parent for p in folder.parent.glob("*/runs") if p.is_dir() and p.parent != folder)
    return found, Store(folder, mirror, tuple(beside)), paper


def _keep_inputs(found: Study, study: AnyStudy, with_: Sequence[str], store: Store) -> None:
    """Raise `InputError` where tables or report would replace a file that the study reads."""
    apart([store.root / name for name in RESULT_FILES], _inputs(found, study, with_))


def _inputs(found: Study, study: AnyStudy, with_: Sequence[str]) -> list[str | Path]:
    """Return the files a study reads: its own, those of methods, and those of models trained elsewhere."""
    own = [] if isinstance(study, Study) else [study]
    sources = (with_,) if isinstance(with_, str) else with_
    return [*own, *sources, *found.with_, *(path for model in found.models for path in (model.val, model.test))]


class _Said:
    """What is to be remembered, said and kept."""

    def __init__(self, progress: Tell | None) -> None:
        self.progress, self.lines = progress, list[str]()

    def __call__(self, *lines: str) -> None:
        for line in dict.fromkeys(lines):
            if line not in self.lines:
                self.lines.append(line)
                if self.progress is not None:
                    self.progress(Progress(line, note=True))


def _called(verb: str, study: AnyStudy) -> str:
    """Say what was called in Python, of a study without a file by its name alone."""
    return f"calibrant.study.{verb}({f'Study({study.name!r}, ...)' if isinstance(study, Study) else repr(str(study))})"


def _what(study: Study, run: Run) -> str:
    return f"{', '.join(study.names(run))}, seed {run.seed}"


def _include(sources: Sequence[str]) -> None:
    catalog.include((sources,) if isinstance(sources, str) else sources)


def _loaded(study: AnyStudy, scale: str | None) -> Study:
    if not isinstance(study, Study):
        return Study.load(study, scale)
    if scale is not None:
        raise InputError(
            f"scale {scale!r} is of a study file: load it by Study.load(path, {scale!r})", code="scale_without_file"
        )
    return study


def _engine(name: str, address: str | None, gpus: float | None) -> Engine:
    engines: dict[str, Engine] = {"local": local, "ray": Ray(address, gpus)}
    if name not in engines:
        raise InputError(f"no engine {shorten(name)}; {catalog.suggest(name, engines)}", code="unknown_engine")
    if name == "local" and (address is not None or gpus is not None):
        raise InputError("address and gpus are of a Ray cluster: say engine 'ray' too", code="needs_ray")
    return engines[name]


def _rehearse(study: Study, runs: Sequence[Run], store: Store, data: Data) -> None:
    """Try one's own methods on the classes of the first data set that is to be trained on."""
    missing = [run for run in runs if run not in store]
    if missing and own_methods(study, missing):
        rehearse(study, missing, len(data.splits(missing[0].examples).classes))


def _result(
    study: Study,
    store: Store,
    paper: Beside | None,
    failed: dict[Run, str],
    jobs: int | None,
    said: _Said,
    command: str,
) -> Result:
    from calibrant.study.report import study_report

    writable(store.root / "report.html")
    said(*store.share(study.runs()))  # others may have finished some meanwhile
    if said.progress is not None:
        said.progress(Progress("calibrating and measuring"))
    found = list(measured(study, store, jobs or torch.get_num_threads()))
    gone = {run: store.record(run)["facts"]["why"] for run in diverged(study, store)}
    lines = [row for run in gone for row in lost(study, store, run)]
    trained = [one.run for one in found if isinstance(one.run, Run)]
    if paper is not None:
        sizes = {run.dataset: store.record(run)["facts"].get("examples") for run in trained}
        paper = replace(
            paper, examples={dataset: (n["train"], n["val"], n["test"]) for dataset, n in sizes.items() if n}
        )
    said(*(line for run in trained if (line := _nonfinite(study, run, store.record(run)["facts"]))))
    versions = Counter(trained_by(run, store) for run in [*trained, *gone])
    tables = study_tables([row for one in found for row in one.rows] + lines, paper, _mixed(versions))
    result = Result(study, tables, found, {**failed, **gone}, store.root, lines, tuple(said.lines))
    if tables:
        result.write(study_report(result.study, result.tables, result.measured, store, command))
    return result


def _nonfinite(study: Study, run: Run, facts: Mapping[str, Any]) -> str:
    """Say how many training losses of a run were not finite, if any were."""
    if (found := facts.get("nonfinite")) is None:
        return ""
    losses, epochs = found["losses"], found["epochs"]
    return f"{_what(study, run)}: {losses:,} training losses in {epochs} of {run.recipe.epochs} epochs are not finite"


def _mixed(versions: Mapping[str, int]) -> str:
    """Say by which versions of calibrant networks were trained, where there are several."""
    told = [f"{version or 'an unknown version'} ({count})" for version, count in sorted(versions.items())]
    return f"Networks trained by calibrant {' and '.join(told)}." if len(told) > 1 else ""


def _standing(run: Run, store: Store, absent: Mapping[Run, str]) -> Standing:
    if run in absent:
        return Standing(run, "no data", math.nan, absent[run])
    state = store.state(run)
    if state in ("done", "diverged"):
        facts = store.record(run)["facts"]
        return Standing(run, state, facts["seconds"], facts.get("why", ""))
    error = store.partial(run) / "error.txt" if state == "failed" else None
    return Standing(run, state, math.nan, first_line(error.read_text(errors="replace")) if error else "")
