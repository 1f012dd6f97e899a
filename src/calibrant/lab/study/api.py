"""Run a study, measure stored runs again, show the status, and draw figures. The command line calls these functions.

A run is one network to train. A `Store` is a folder of finished runs: `run in store` says whether a run is finished on
the data at hand.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from calibrant._core import registry
from calibrant._core.files import ensure_writable
from calibrant._core.registry import Method
from calibrant._core.types import InputError
from calibrant.io.files import check_outputs
from calibrant.lab.study.config import Study, study_file
from calibrant.lab.study.datasets import DatasetCache
from calibrant.lab.study.engine import Engine, Ray, run_locally
from calibrant.lab.study.grids import Run
from calibrant.lab.study.measurements import diverged_rows, measure_runs
from calibrant.lab.study.paper_tables import PaperTable, paper_table
from calibrant.lab.study.progress import (
    Progress,
    Trial,
    check_data,
    check_user_methods,
    check_versions,
    first_line,
    plan_lines,
    run_trial,
    runs_without_timing,
    seconds_left,
    select_runs,
    train_all,
    training_version,
)
from calibrant.lab.study.progress_lines import ProgressLines
from calibrant.lab.study.published_results import PaperComparison, load_paper, study_tables
from calibrant.lab.study.results import RESULT_FILES, Result, RunStatus, Status
from calibrant.lab.study.store import Store
from calibrant.lab.study.trackers import open_tracker

MAX_DRY_RUN_SECONDS = 10.0  # no further trial starts after this time
OnProgress = Callable[[Progress], object]
StudyLike = str | Path | Study


def run(
    study: StudyLike,
    *,
    out: str | Path | None = None,
    data: str | Path | None = None,
    scale: str | None = None,
    precision: str | None = None,
    select: str | Sequence[str] | None = None,
    engine: str = "local",
    address: str | None = None,
    gpus: float | None = None,
    track: str | None = None,
    mix_versions: bool = False,
    with_: Sequence[str] = (),
    progress: OnProgress | None = None,
    command: str = "",
) -> Result:
    """Train the missing runs of a study, calibrate, measure, and write tables and report.

    Can be interrupted and called again at any time. A run that fails, diverges or lacks its data does not stop the
    others; the result tells why. Damaged runs in the store are set aside and trained again.

    Args:
        study: A TOML file, the name of a bundled study, or a `Study`.
        out: Folder of the runs and the report, by default runs/NAME. With the default, finished runs of other studies
            in runs/ are reused.
        data: Folder of local data sets, by default the environment variable CALIBRANT_DATA.
        scale: Name of a scale of the study file.
        precision: Precision of the training in place of the study's, such as "bf16-mixed". Runs of another precision
            are other runs.
        select: Conditions on the runs, such as "cross_entropy", "seed 1" or "cross_entropy, seed 1"; all must hold.
        engine: "local" or "ray".
        address: Address of the Ray cluster.
        gpus: GPUs of each run on Ray.
        track: "tensorboard", "mlflow" or "wandb" records every epoch.
        mix_versions: Train missing runs beside runs that another minor version of calibrant trained.
        with_: Python files or packages that define further methods, as given by --with; they are run.
        progress: Called with every step. By default, lines about the start, finished runs, and the state about every 30
            seconds are written to stderr; `lambda step: None` writes nothing.
        command: Command that the report shows, by default this call.

    Raises:
        InputError: If settings, data or methods are not valid, before any training as far as possible.
    """
    # Long because it lists the steps of a study in their order, and 15 options.
    selected_engine = _select_engine(engine, address, gpus)
    loaded_study, store, inputs = _open_study(study, out=out, scale=scale, precision=precision, with_=with_)
    check_outputs([store.root / name for name in RESULT_FILES], inputs)  # no result may replace an input
    paper = load_paper(loaded_study)
    runs, dataset_cache = select_runs(loaded_study, select), DatasetCache(None if data is None else Path(data))
    on_progress = progress or ProgressLines()
    repeated = on_progress.repeated() if isinstance(on_progress, ProgressLines) else nullcontext()
    notes = _NoteLog(on_progress)
    for damaged_run, damage in store.set_aside_damaged(runs).items():
        # a run that is still in the store had a damaged copy
        remedy = "an intact copy is used" if damaged_run in store else "it is trained again"
        notes.add(f"{loaded_study.describe(damaged_run)} is damaged: {damage}; {remedy}")
    notes.add(*store.sync_runs(runs))
    store, failed = check_data(runs, store, dataset_cache)  # runs without data, with the reason
    ready_runs = [ready_run for ready_run in runs if ready_run not in failed]
    if not ready_runs and not loaded_study.models:
        raise InputError("; ".join(dict.fromkeys(failed.values())), code="no_data")
    if not mix_versions:
        check_versions(ready_runs, store)
    missing_runs = [ready_run for ready_run in ready_runs if ready_run not in store]
    if missing_runs:
        check_user_methods(loaded_study, missing_runs, dataset_cache)
    for missing_run in missing_runs:
        if change := store.code_change(missing_run):  # the predicate of a sentence
            notes.add(f"{loaded_study.describe(missing_run)} {change}: it is trained again")
    for found_run in ready_runs:
        if found_run.code and found_run in store and (doubt := store.uncompared_code(found_run)):
            notes.add(f"{loaded_study.describe(found_run)} {doubt}: it is used. Move it away to train it again")
    if missing_runs:
        for line in plan_lines(ready_runs, missing_runs):
            notes.report(Progress(line, note=True))
    with open_tracker(track, loaded_study, store.root) as on_event, repeated:
        for step in train_all(loaded_study, ready_runs, store, dataset_cache, selected_engine, on_event):
            if step.event is not None and step.event.kind == "failed":
                failed[step.event.run] = first_line(step.event.content["error"])
            notes.report(step)
    return _build_result(loaded_study, store, paper, failed, notes, command=command or _call_text("run", study))


def measure(
    study: StudyLike,
    *,
    out: str | Path | None = None,
    data: str | Path | None = None,
    scale: str | None = None,
    precision: str | None = None,
    calibrators: Sequence[str | Method] = (),
    metrics: Sequence[str | Method] = (),
    jobs: int | None = None,
    with_: Sequence[str] = (),
    progress: OnProgress | None = None,
    command: str = "",
) -> Result:
    """Calibrate and measure stored runs again, without training.

    With other calibrators or metrics than those of the study, the results are written to the folder "measured" beside
    the report of the study, which stays as it is.

    Args:
        study: A TOML file, the name of a bundled study, or a `Study`.
        out: Folder of the runs and the report.
        data: Folder of local data sets; only runs on these data are measured.
        scale: Name of a scale of the study file.
        precision: Precision of the training in place of the study's, such as "bf16-mixed". Runs of another precision
            are other runs.
        calibrators: Calibrators in place of the study's.
        metrics: Metrics in place of the study's.
        jobs: Number of processes for long work, by default one per core.
        with_: Python files or packages that define further methods.
        progress: Called with every step.
        command: Command that the report shows.

    Raises:
        InputError: If no run is finished.
    """
    loaded_study, store, inputs = _open_study(study, out=out, scale=scale, precision=precision, with_=with_)
    check_outputs([store.root / name for name in RESULT_FILES], inputs)  # no result may replace an input
    methods = {"calibrators": tuple(calibrators), "metrics": tuple(metrics)}
    # without calibrators or metrics, the study's own count
    loaded_study = replace(loaded_study, **{key: value for key, value in methods.items() if value})
    paper = load_paper(loaded_study)
    notes, runs = _NoteLog(progress), list(loaded_study.runs())
    failed = {
        run: f"it is damaged: {damage}; run the study again"
        for run, damage in store.set_aside_damaged(runs).items()
        if run not in store  # else an intact copy is used
    }
    notes.add(*store.sync_runs(runs))
    if data is not None:  # the store then finds only runs on these data
        store, _ = check_data(runs, store, DatasetCache(Path(data)))
    call_text = command or _call_text("measure", study)
    folder = store.root / "measured" if any(methods.values()) else store.root
    result = _build_result(loaded_study, store, paper, failed, notes, command=call_text, jobs=jobs, folder=folder)
    if not result.tables:
        raise InputError(
            f"Nothing to measure: no run of study {loaded_study.name!r} is finished in {store.root}.",
            code="no_finished_run",
        )
    return result


def table(
    study: StudyLike,
    source: str,
    *,
    out: str | Path | None = None,
    scale: str | None = None,
    precision: str | None = None,
    with_: Sequence[str] = (),
) -> PaperTable:
    """Return one table of the paper that a study repeats, with the values of the finished runs beside it.

    Nothing is trained or written.

    Args:
        study: A TOML file, the name of a bundled study, or a `Study`.
        source: The table, such as "Table 2".
        out: Folder of the runs, by default runs/NAME.
        scale: Name of a scale of the study file.
        precision: Precision of the training in place of the study's.
        with_: Python files or packages that define further methods.

    Raises:
        InputError: If the study names no paper, or the paper has no such table.
    """
    loaded_study, store, _ = _open_study(study, out=out, scale=scale, precision=precision, with_=with_)
    paper = load_paper(loaded_study)
    paper_table(paper, source, ())  # refuses an unknown table before anything is measured
    store.sync_runs(loaded_study.runs())
    rows = [row for measurement in measure_runs(loaded_study, store) for row in measurement.rows]
    return paper_table(paper, source, study_tables(rows, paper) if rows else ())


def status(
    study: StudyLike,
    *,
    out: str | Path | None = None,
    data: str | Path | None = None,
    scale: str | None = None,
    precision: str | None = None,
    select: str | Sequence[str] | None = None,
    with_: Sequence[str] = (),
    estimate: bool = False,
    progress: OnProgress | None = None,
) -> Status:
    """Return the state of every run in a study, and the estimated time for the remaining runs.

    With `estimate`, data sets are loaded and single batches timed, to tell which runs can be trained and how long they
    take; after `MAX_DRY_RUN_SECONDS` no further network is timed. `run` explains the other arguments.
    """
    loaded_study, store, _ = _open_study(study, out=out, scale=scale, precision=precision, with_=with_)
    runs, dataset_cache = select_runs(loaded_study, select), DatasetCache(None if data is None else Path(data))
    store.sync_runs(runs)
    runs_without_data: dict[Run, str] = {}
    trainable_runs, trials = runs, dict[Run, Trial]()
    if estimate:
        store, runs_without_data = check_data(runs, store, dataset_cache)
        trainable_runs = [study_run for study_run in runs if study_run not in runs_without_data]
        start_time = time.monotonic()
        for trial_run in runs_without_timing(trainable_runs, store):
            # at least one network is timed: without any timing there is no estimate
            if trials and time.monotonic() - start_time > MAX_DRY_RUN_SECONDS:
                break
            if progress is not None:
                progress(Progress(f"timing {loaded_study.names(trial_run).setup}"))
            trials[trial_run] = run_trial(trial_run, dataset_cache)
    statuses = tuple(_run_status(study_run, store, runs_without_data) for study_run in runs)
    return Status(loaded_study, statuses, seconds_left(trainable_runs, store, trials), trials, runs_without_data)


def draw(
    study: StudyLike,
    folder: str | Path,
    *,
    out: str | Path | None = None,
    scale: str | None = None,
    precision: str | None = None,
    with_: Sequence[str] = (),
) -> list[Path]:
    """Draw the figures of the finished runs to `folder`: SVG and PNG, with their data as CSV.

    `run` explains the other arguments.

    Returns:
        The files; none if no run is finished.
    """
    from calibrant.lab.study import figures

    loaded_study, store, input_files = _open_study(study, out=out, scale=scale, precision=precision, with_=with_)
    store.sync_runs(loaded_study.runs())  # also fetches runs from the stores of other studies
    ensure_writable(Path(folder) / "figure.svg")
    return figures.draw(loaded_study, store, Path(folder), input_files)


def _open_study(
    study: StudyLike,
    *,
    out: str | Path | None,
    scale: str | None,
    precision: str | None,
    with_: Sequence[str],
) -> tuple[Study, Store, list[str | Path]]:
    """Load a study and open its store.

    Returns:
        The study.
        Its store, by default in runs/NAME beside the stores of other studies.
        The files that the study reads: its own, the files of methods, and the predictions of external models.
    """
    sources = (with_,) if isinstance(with_, str) else tuple(with_)  # a single source may be given as a text
    registry.include(sources)
    inputs: list[str | Path] = [*sources]
    if isinstance(study, Study):
        loaded_study = study
        if scale is not None:
            raise InputError(
                f"Expected a study file with scale {scale!r}, got a Study. Try Study.load(path, {scale!r}).",
                code="scale_without_file",
            )
    else:
        loaded_study = Study.load(study, scale)
        inputs.append(study_file(study))  # the output folder may have the name of a bundled study
    if precision is not None:
        loaded_study = loaded_study.with_precision(precision)
    inputs += [*loaded_study.with_, *(path for model in loaded_study.models for path in (model.val, model.test))]
    if out is not None:
        return loaded_study, Store(Path(out)), inputs
    root = (Path("runs") / loaded_study.name).absolute()
    # finished runs of other studies are reused if they train the same networks
    roots = sorted(runs_folder.parent for runs_folder in root.parent.glob("*/runs") if runs_folder.is_dir())
    return loaded_study, Store(root, tuple(other_root for other_root in roots if other_root != root)), inputs


class _NoteLog:
    """Notes for the result. Each is kept and reported once, through the callback for all steps."""

    def __init__(self, progress: OnProgress | None) -> None:
        self.report: OnProgress = progress or (lambda step: None)
        self.lines: list[str] = []

    def add(self, *lines: str) -> None:
        """Add and report the lines that are new."""
        for line in lines:
            if line not in self.lines:
                self.lines.append(line)
                self.report(Progress(line, note=True))


def _call_text(function_name: str, study: StudyLike) -> str:
    """Return the Python call as text. A `Study` is shown by its name."""
    argument = f"Study({study.name!r}, ...)" if isinstance(study, Study) else repr(str(study))
    return f"calibrant.lab.study.{function_name}({argument})"


def _select_engine(name: str, address: str | None, gpus: float | None) -> Engine:
    """Return an engine, which trains the runs, by its name.

    `address` and `gpus` are options of "ray", explained in `run`. Raises `InputError` for an unknown name, or for
    options that the engine lacks.
    """
    engines: dict[str, Engine] = {"local": run_locally, "ray": Ray(address, gpus)}
    registry.check_name(name, engines, "engine", "unknown_engine")
    if name == "local" and (address is not None or gpus is not None):
        raise InputError("The options address and gpus need engine 'ray'.", code="needs_ray")
    return engines[name]


def _build_result(
    study: Study,
    store: Store,
    paper: PaperComparison | None,
    failed: dict[Run, str],
    notes: _NoteLog,
    *,
    command: str,
    jobs: int | None = None,
    folder: Path | None = None,
) -> Result:
    """Measure all finished runs, build the tables, and write the result if there is any table.

    The `failed` runs are given with their reasons; the result adds the runs that diverged. The facts in a run's record
    are what its training found out, such as its time and the sizes of the splits. `paper` finds published values for
    the tables, `command` is shown in the report, and `jobs` is the number of processes, by default one per core. The
    result is written to `folder`, by default that of the store.
    """
    from calibrant.lab.study.learning_curves import learning_drawings

    folder = folder or store.root
    ensure_writable(folder / "report.html")
    notes.add(*store.sync_runs(study.runs()))  # other studies may have finished runs meanwhile
    notes.report(Progress("calibrating and measuring"))
    measurements = list(measure_runs(study, store, jobs or torch.get_num_threads()))
    facts_by_run = {m.run: store.record(m.run)["facts"] for m in measurements if isinstance(m.run, Run)}
    for run, facts in facts_by_run.items():
        if nonfinite := facts.get("nonfinite"):
            notes.add(
                f"{study.describe(run)}: {nonfinite['losses']:,} training losses in {nonfinite['epochs']} of "
                f"{run.recipe.epochs} epochs are not finite"
            )
    if paper is not None:  # its note also compares the sizes of the splits
        sizes = {run.dataset: facts["examples"] for run, facts in facts_by_run.items() if facts.get("examples")}
        paper = replace(
            paper, examples={dataset: (size["train"], size["val"], size["test"]) for dataset, size in sizes.items()}
        )
    diverged_reasons = {
        run: store.record(run)["facts"]["why"] for run in study.runs() if store.state(run) == "diverged"
    }
    diverged = [row for run in diverged_reasons for row in diverged_rows(study, store, run)]
    measured = [row for measurement in measurements for row in measurement.rows]
    versions_note = _versions_note(training_version(run, store) for run in [*facts_by_run, *diverged_reasons])
    tables = study_tables(measured + diverged, paper, versions_note)
    failed = failed | diverged_reasons
    result = Result(
        study,
        tables,
        measurements,
        failed=failed,
        folder=folder,
        diverged_rows=diverged,
        notes=tuple(notes.lines),
        learning_curves=tuple(learning_drawings(study, store)),
        facts=_origin(study, len(measurements), facts_by_run),
    )
    if tables:
        result.write(command)
    return result


def _origin(study: Study, num_predictions: int, facts_by_run: Mapping[Run, Mapping[str, Any]]) -> dict[str, str]:
    """Return what was trained and how, as names and texts for the end of the report."""
    from calibrant.lab.study.report import recipe_texts

    if not facts_by_run:
        return {"study": f"{study.name}: {num_predictions} sets of predictions"}
    minutes = sum(facts["seconds"] for facts in facts_by_run.values()) / 60
    trained = f"{study.name}: {len(facts_by_run)} networks, {minutes:.1f} minutes of training"
    return {"study": trained} | recipe_texts(study, list(facts_by_run))


def _versions_note(versions: Iterable[str]) -> str:
    """Return a note with the number of networks that each version of calibrant trained, or "" if one trained all.

    `versions` has an entry for each network, "" if its version is unknown.
    """
    counts = Counter(version or "an unknown version" for version in versions)
    if len(counts) < 2:
        return ""
    version_counts = " and ".join(f"{version} ({count})" for version, count in sorted(counts.items()))
    return f"Networks trained by calibrant {version_counts}."


def _run_status(run: Run, store: Store, runs_without_data: Mapping[Run, str]) -> RunStatus:
    """Return the state of a run, with the seconds of its training if it is done or diverged.

    The reason says why its data cannot be loaded, why it failed, or at which epoch it diverged; else it is "".
    """
    if run in runs_without_data:
        return RunStatus(run, "no data", math.nan, runs_without_data[run])
    state = store.state(run)
    if state in ("done", "diverged"):
        facts: dict[str, Any] = store.record(run)["facts"]
        return RunStatus(run, state, facts["seconds"], facts.get("why", ""))
    reason = ""
    if state == "failed":
        reason = first_line((store.partial(run) / "error.txt").read_text(errors="replace"))
    return RunStatus(run, state, math.nan, reason)
