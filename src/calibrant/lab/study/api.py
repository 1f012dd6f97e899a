"""The front door: run a study, measure what is stored again, ask how it stands. The command line calls these."""

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from calibrant import registry
from calibrant._text import shorten_repr
from calibrant.io import check_outputs, ensure_writable
from calibrant.lab.study.config import Run, Study
from calibrant.lab.study.engine import DatasetCache, Engine, Ray, run_locally
from calibrant.lab.study.measurements import diverged_rows, diverged_runs, measure_runs
from calibrant.lab.study.method_checks import check_user_methods, user_methods
from calibrant.lab.study.preflight import check_data, check_versions, training_version
from calibrant.lab.study.progress import (
    Progress,
    Trial,
    first_line,
    run_trial,
    runs_without_timing,
    seconds_left,
    select_runs,
    train_all,
)
from calibrant.lab.study.published_results import PaperComparison, load_paper, study_tables
from calibrant.lab.study.results import RESULT_FILES, Result, RunStatus, Status
from calibrant.lab.study.store import Store
from calibrant.lab.study.trackers import open_tracker
from calibrant.registry import Method
from calibrant.types import InputError

MAX_DRY_RUN_SECONDS = 10.0  # seconds after which a dry run tries no more batches
OnProgress = Callable[[Progress], object]
StudyLike = str | Path | Study


def run(
    study: StudyLike,
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
    progress: OnProgress | None = None,
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
    selected_engine = _select_engine(engine, address, gpus)
    loaded_study, store, paper = _open_study(study, out, mirror, scale, with_)
    _check_outputs(loaded_study, study, with_, store)
    runs, source = select_runs(loaded_study, only), DatasetCache(None if data is None else Path(data))
    notes = _NoteLog(progress)
    for run, damage in store.set_aside_damaged(runs).items():
        notes(
            f"{_run_label(loaded_study, run)} is damaged: {damage}; "
            f"{'another is whole' if run in store else 'it is trained again'}"
        )
    notes(*store.sync_runs(runs))
    preflight = check_data(runs, store, source)
    if not preflight.runs and not loaded_study.models:
        raise InputError("; ".join(dict.fromkeys(preflight.runs_without_data.values())), code="no_data")
    store = store.with_data(preflight.digests)
    if not mix_versions:
        check_versions(preflight.runs, store)
    _check_methods(loaded_study, preflight.runs, store, source)
    for ready_run in preflight.runs:
        if ready_run not in store and (change := store.code_change(ready_run)):
            notes(f"{_run_label(loaded_study, ready_run)} {change}: it is trained anew")
    failed = dict(preflight.runs_without_data)
    with open_tracker(track, loaded_study, store.root) as on_event:
        for step in train_all(loaded_study, list(preflight.runs), store, source, selected_engine, on_event):
            if step.event is not None and step.event.kind == "failed":
                failed[step.event.run] = first_line(step.event.facts["error"])
            if progress is not None:
                progress(step)
    call_text = command or _call_text("run", study)
    return _build_result(loaded_study, store, paper, failed, None, notes, call_text)


def measure(
    study: StudyLike,
    *,
    out: str | Path | None = None,
    data: str | Path | None = None,
    mirror: str | None = None,
    scale: str | None = None,
    calibrators: Sequence[str | Method] = (),
    metrics: Sequence[str | Method] = (),
    jobs: int | None = None,
    with_: Sequence[str] = (),
    progress: OnProgress | None = None,
    command: str = "",
) -> Result:
    """Calibrate and measure what is stored again, with other calibrators or metrics; nothing is trained.

    `jobs` processes share a long work, one per core if not said. With `data`, only runs on the data there are measured.
    The rest is as in `run`. Raises `InputError` if no run is done.
    """
    changes = {"calibrators": tuple(calibrators), "metrics": tuple(metrics)}
    _include_sources(with_)
    loaded = replace(_load_study(study, scale), **{key: value for key, value in changes.items() if value})
    loaded_study, store, paper = _open_study(loaded, out, mirror)
    _check_outputs(loaded_study, study, with_, store)
    notes, runs = _NoteLog(progress), list(loaded_study.runs())
    damage_by_run = {run: damage for run, damage in store.set_aside_damaged(runs).items() if run not in store}
    damaged = {run: f"it is damaged: {damage}; run the study again" for run, damage in damage_by_run.items()}
    notes(*store.sync_runs(runs))
    if data is not None:
        store = store.with_data(check_data(runs, store, DatasetCache(Path(data))).digests)
    result = _build_result(loaded_study, store, paper, damaged, jobs, notes, command or _call_text("measure", study))
    if not result.tables:
        raise InputError(
            f"nothing to measure: no run of study {loaded_study.name!r} is done in {store.root}", code="no_finished_run"
        )
    return result


def status(
    study: StudyLike,
    *,
    out: str | Path | None = None,
    data: str | Path | None = None,
    mirror: str | None = None,
    scale: str | None = None,
    only: str | None = None,
    with_: Sequence[str] = (),
    estimate: bool = False,
    progress: OnProgress | None = None,
) -> Status:
    """Say how the runs of a study stand and how long the rest takes.

    With `estimate` the data sets are looked for and single batches trained, to say what can run and how long it takes;
    after some seconds no more kinds of networks are tried. The rest is as in `run`.
    """
    loaded_study, store, _ = _open_study(study, out, mirror, scale, with_)
    runs, source = select_runs(loaded_study, only), DatasetCache(None if data is None else Path(data))
    store.sync_runs(runs)
    runs_without_data, trials = dict[Run, str](), dict[Run, Trial]()
    if estimate:
        preflight = check_data(runs, store, source)
        runs_without_data, store = dict(preflight.runs_without_data), store.with_data(preflight.digests)
        start_time = time.monotonic()
        for trial_run in runs_without_timing(list(preflight.runs), store):
            if trials and time.monotonic() - start_time > MAX_DRY_RUN_SECONDS:
                break
            dataset, network, _ = loaded_study.names(trial_run)
            if progress is not None:
                progress(Progress(f"timing {network} on {dataset}"))
            trials[trial_run] = run_trial(trial_run, source)
    standings = tuple(_run_status(trial_run, store, runs_without_data) for trial_run in runs)
    trainable_runs = [trial_run for trial_run in runs if trial_run not in runs_without_data]
    return Status(loaded_study, standings, seconds_left(trainable_runs, store, trials), trials, runs_without_data)


def draw(
    study: StudyLike,
    folder: str | Path,
    *,
    out: str | Path | None = None,
    scale: str | None = None,
    with_: Sequence[str] = (),
) -> list[Path]:
    """Draw how the finished networks of a study learned, each figure as SVG and PNG with its numbers as CSV.

    Returns the files written to `folder`, none if nothing is done; the rest is as in `run`.
    """
    from calibrant.lab.study import figures

    loaded_study, store, _ = _open_study(study, out, None, scale, with_)
    store.sync_runs(loaded_study.runs())
    ensure_writable(Path(folder) / "figure.svg")
    return figures.draw(loaded_study, store, Path(folder), inputs=_input_files(loaded_study, study, with_))


def _open_study(
    study: StudyLike, out: str | Path | None, mirror: str | None, scale: str | None = None, with_: Sequence[str] = ()
) -> tuple[Study, Store, PaperComparison | None]:
    """Load a study, and open the store in its folder: runs/NAME, beside those of other studies, if none is said."""
    _include_sources(with_)
    loaded_study = _load_study(study, scale)
    paper = load_paper(loaded_study)
    if out is not None:
        return loaded_study, Store(Path(out), mirror), paper
    folder = (Path("runs") / loaded_study.name).absolute()
    neighbors = sorted(p.parent for p in folder.parent.glob("*/runs") if p.is_dir() and p.parent != folder)
    return loaded_study, Store(folder, mirror, tuple(neighbors)), paper


def _check_outputs(loaded_study: Study, study: StudyLike, with_: Sequence[str], store: Store) -> None:
    """Raise `InputError` where tables or report would replace a file that the study reads."""
    check_outputs([store.root / name for name in RESULT_FILES], _input_files(loaded_study, study, with_))


def _input_files(loaded_study: Study, study: StudyLike, with_: Sequence[str]) -> list[str | Path]:
    """Return the files a study reads: its own, those of methods, and those of models trained elsewhere."""
    study_files = [] if isinstance(study, Study) else [study]
    sources = (with_,) if isinstance(with_, str) else with_
    return [
        *study_files,
        *sources,
        *loaded_study.with_,
        *(path for model in loaded_study.models for path in (model.val, model.test)),
    ]


class _NoteLog:
    """What is to be remembered, said and kept."""

    def __init__(self, progress: OnProgress | None) -> None:
        self.progress, self.lines = progress, list[str]()

    def __call__(self, *lines: str) -> None:
        for line in dict.fromkeys(lines):
            if line not in self.lines:
                self.lines.append(line)
                if self.progress is not None:
                    self.progress(Progress(line, note=True))


def _call_text(function_name: str, study: StudyLike) -> str:
    """Say what was called in Python, of a study without a file by its name alone."""
    argument = f"Study({study.name!r}, ...)" if isinstance(study, Study) else repr(str(study))
    return f"calibrant.lab.study.{function_name}({argument})"


def _run_label(study: Study, run: Run) -> str:
    return f"{', '.join(study.names(run))}, seed {run.seed}"


def _include_sources(sources: Sequence[str]) -> None:
    registry.include((sources,) if isinstance(sources, str) else sources)


def _load_study(study: StudyLike, scale: str | None) -> Study:
    if not isinstance(study, Study):
        return Study.load(study, scale)
    if scale is not None:
        raise InputError(
            f"scale {scale!r} is of a study file: load it by Study.load(path, {scale!r})", code="scale_without_file"
        )
    return study


def _select_engine(name: str, address: str | None, gpus: float | None) -> Engine:
    engines: dict[str, Engine] = {"local": run_locally, "ray": Ray(address, gpus)}
    if name not in engines:
        raise InputError(f"no engine {shorten_repr(name)}; {registry.suggest(name, engines)}", code="unknown_engine")
    if name == "local" and (address is not None or gpus is not None):
        raise InputError("address and gpus are of a Ray cluster: say engine 'ray' too", code="needs_ray")
    return engines[name]


def _check_methods(study: Study, runs: Sequence[Run], store: Store, data: DatasetCache) -> None:
    """Try one's own methods on the classes of the first data set that is to be trained on."""
    missing = [run for run in runs if run not in store]
    if missing and user_methods(study, missing):
        check_user_methods(study, missing, len(data.splits(missing[0].divided_dataset).classes))


def _build_result(
    study: Study,
    store: Store,
    paper: PaperComparison | None,
    failed: dict[Run, str],
    jobs: int | None,
    notes: _NoteLog,
    command: str,
) -> Result:
    from calibrant.lab.study.report import study_report

    ensure_writable(store.root / "report.html")
    notes(*store.sync_runs(study.runs()))  # others may have finished some meanwhile
    if notes.progress is not None:
        notes.progress(Progress("calibrating and measuring"))
    measurements = list(measure_runs(study, store, jobs or torch.get_num_threads()))
    diverged_reasons = {run: store.record(run)["facts"]["why"] for run in diverged_runs(study, store)}
    lines = [row for run in diverged_reasons for row in diverged_rows(study, store, run)]
    trained = [measurement.run for measurement in measurements if isinstance(measurement.run, Run)]
    if paper is not None:
        sizes = {run.dataset: store.record(run)["facts"].get("examples") for run in trained}
        paper = replace(
            paper, examples={dataset: (n["train"], n["val"], n["test"]) for dataset, n in sizes.items() if n}
        )
    notes(*(line for run in trained if (line := _nonfinite_note(study, run, store.record(run)["facts"]))))
    versions = Counter(training_version(run, store) for run in [*trained, *diverged_reasons])
    tables = study_tables(
        [row for measurement in measurements for row in measurement.rows] + lines, paper, _versions_note(versions)
    )
    result = Result(study, tables, measurements, {**failed, **diverged_reasons}, store.root, lines, tuple(notes.lines))
    if tables:
        result.write(study_report(result.study, result.tables, result.measurements, store, command))
    return result


def _nonfinite_note(study: Study, run: Run, facts: Mapping[str, Any]) -> str:
    """Say how many training losses of a run were not finite, if any were."""
    if (nonfinite := facts.get("nonfinite")) is None:
        return ""
    losses, epochs = nonfinite["losses"], nonfinite["epochs"]
    return (
        f"{_run_label(study, run)}: {losses:,} training losses in {epochs} of {run.recipe.epochs} epochs are not finite"
    )


def _versions_note(versions: Mapping[str, int]) -> str:
    """Say by which versions of calibrant networks were trained, where there are several."""
    version_texts = [f"{version or 'an unknown version'} ({count})" for version, count in sorted(versions.items())]
    return f"Networks trained by calibrant {' and '.join(version_texts)}." if len(version_texts) > 1 else ""


def _run_status(run: Run, store: Store, absent: Mapping[Run, str]) -> RunStatus:
    if run in absent:
        return RunStatus(run, "no data", math.nan, absent[run])
    state = store.state(run)
    if state in ("done", "diverged"):
        facts = store.record(run)["facts"]
        return RunStatus(run, state, facts["seconds"], facts.get("why", ""))
    error = store.partial(run) / "error.txt" if state == "failed" else None
    return RunStatus(run, state, math.nan, first_line(error.read_text(errors="replace")) if error else "")
