"""Fit calibrators on some predictions, judge them on others, and choose one by data that judges nothing."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from calibrant import calibrators as _calibrators
from calibrant import io, registry
from calibrant import metrics as _metrics
from calibrant.assessment._candidates import CandidateCalibrator, Progress, default_calibrators, resolve_candidates
from calibrant.assessment._evaluation import InMemoryEvaluation, StreamedEvaluation, apply_calibrator, evaluate_pieces
from calibrant.assessment._events import describe_event, select_event
from calibrant.assessment._label_shift import class_counts, label_shift_message
from calibrant.assessment._measure import Measurement, as_list, measure
from calibrant.assessment._results import AssessmentData
from calibrant.assessment._serialize import write_by_suffix
from calibrant.backend.overlap import Overlap, Sketch
from calibrant.backend.threads import thread_limit
from calibrant.metrics import Comparison, Summary
from calibrant.predictions import CORRECTNESS_CLASSES, EventSelector, Predictions
from calibrant.types import InputError

DEFAULT_FOLDS = 5
ACCURACY_PRESERVING_AUTO = "Auto(accuracy_preserving=True)"  # what is shown beside an Auto that costs accuracy


class Assessment(AssessmentData):
    """What every calibrator did to predictions that it was not fitted on.

    It prints, shows itself in a notebook, and is saved as .html, .json or, the best calibrator alone, .safetensors.
    """

    uncalibrated: Measurement
    tables: Mapping[str, Measurement]

    def html(self, facts: Mapping[str, str] | None = None, calibrator_path: str | Path | None = None) -> str:
        """Return the report, one page that opens offline.

        `facts` are told at its end; `saved` is where the best calibrator is to be found.
        """
        from calibrant.assessment.sections import assessment_page

        return assessment_page(self, facts or {}, calibrator_path)

    def save(self, path: str | Path) -> None:
        """Write the report (.html), all numbers (.json), or the best calibrator (.safetensors)."""
        if Path(path).suffix != ".safetensors":
            return write_by_suffix(path, {".html": self.html, ".json": self.json, ".safetensors": str})
        with io.atomic_write(path) as draft:
            _calibrators.save(self.best, draft, fitted_on=self.fitting_data)
        return None

    def __rich__(self) -> Any:
        from calibrant.assessment._terminal import assessment_text

        return assessment_text(self)

    def __str__(self) -> str:
        from calibrant.assessment._terminal import render_plain_text

        return render_plain_text(self)

    def _repr_html_(self) -> str:
        from calibrant.assessment.sections import assessment_notebook_html

        return assessment_notebook_html(self)


def assess(
    val: Predictions,
    test: Predictions | Iterable[Predictions] | str | Path | None = None,
    calibrators: Sequence[Any] | None = None,
    metrics: Sequence[str] | None = None,
    *,
    choose: str | None = None,
    folds: int = DEFAULT_FOLDS,
    of: str | int | None = None,
    progress: Progress | None = None,
) -> Assessment:
    """Fit calibrators on `val`, judge them on `test`, and choose the one that predicts held-out folds of `val` best.

    - `test`: other predictions. Left out, every example of `val` is judged by calibrators fitted on the other folds.
      The path of a .parquet, .safetensors or .npy file, or an iterable of predictions, is read in pieces of which
      only summaries are kept; what needs all predictions at once, such as AUROC, is left out then.
    - Where both have names for their classes, these must be the same, and are put in one order.
    - `calibrators`: texts such as "Temperature", the path of a saved one (.safetensors), classes with a `fit`, or
      fitted ones, which stay as they are. Left out: Identity, Temperature, StructuredMatrix, HistogramBinning and
      Auto; beyond 1000 classes StructuredVector instead of StructuredMatrix.
    - `metrics`: by which calibrators are compared. Left out: what suits the event that is judged, for classes accuracy,
      nll, brier, ece, adaptive_ece and classwise_ece.
    - `choose`: the calibrator to choose, instead.
    - `of`: what is judged. "top", that the predicted class is right, or a class, by index or name; if left out, what
      the predictions say, and of two classes the probability of class 1.

    Raises `InputError` where a calibrator would be judged on the very predictions that it was fitted on.

    >>> g = torch.Generator().manual_seed(0)
    >>> z = torch.randn(2000, 3, generator=g)
    >>> p = Predictions(3 * z, torch.multinomial(z.softmax(1), 1, generator=g).squeeze(1))  # three times too sure
    >>> found = assess(p[:1000], p[1000:], ["Identity", "Temperature"])
    >>> found.chosen_name, round(float(found.best.temperature))
    ('Temperature', 3)
    """
    rows = [len(p) * p.k for p in (val, test) if isinstance(p, Predictions)]
    with thread_limit(sum(rows)):
        return _fit_and_evaluate(val, test, calibrators, metrics, choose, folds, of, progress or _ignore_progress)


def _fit_and_evaluate(
    val: Predictions,
    test: Predictions | Iterable[Predictions] | str | Path | None,
    calibrators: Sequence[Any] | None,
    metrics: Sequence[str] | None,
    choose: str | None,
    folds: int,
    of: str | int | None,
    on_progress: Progress,
) -> Assessment:
    candidates, choose = resolve_candidates(default_calibrators(val.k) if calibrators is None else calibrators, choose)
    for c in candidates:
        val = c.align_classes(val)
    test = test.reorder_classes(val.class_names) if isinstance(test, Predictions) else test
    of = select_event(test if isinstance(test, Predictions) else val, of)
    val = val.with_event(of)
    description = describe_event(of, val.k, val.class_names)
    metric_names = [
        registry.METRICS.normalize(text)
        for text in as_list(description.compared_metrics if metrics is None else metrics)
    ]
    guard = OverlapGuard(val, candidates)
    if test is None:
        guard.check_overlap(val)
    elif isinstance(test, Predictions):
        guard.inspect(test)
        guard.overlap_report()
    if test is not None and not isinstance(test, Predictions):
        missing_metrics = ("auroc",) if val.k <= Summary.MAX_CLASSES else ("classwise_ece", "auroc")
        metric_names = [name for name in metric_names if metrics is not None or name not in missing_metrics]
        one_row_summary = Summary.empty(of=of, by_class=True).add(val[:1])
        measure(one_row_summary, metrics=metric_names)  # what a summary cannot tell is refused now
    fitted = {c.name: c.fit(val, on_progress) for c in candidates}
    held_out = {} if choose or test is None else _held_out_nll(candidates, fitted, val, folds, on_progress)
    evaluation = _evaluate_maps(val, test, guard, fitted, folds, of, on_progress)
    on_progress("judging")
    tables = {name: measure(p, metrics=metric_names, of=of) for name, p in evaluation.calibrated.items()}
    if test is None and not choose:
        held_out = {name: table["nll"].value for name, table in tables.items()}
    chosen_name = choose or _lowest_key(held_out) or candidates[0].name
    identity_name = next((name for name, p in evaluation.calibrated.items() if p is evaluation.uncalibrated), None)
    uncalibrated = (
        tables[identity_name] if identity_name else measure(evaluation.uncalibrated, metrics=metric_names, of=of)
    )
    changes = evaluation.compare_metrics(chosen_name, description.tested_metrics)
    accuracy_preserving = None
    if ACCURACY_PRESERVING_AUTO in tables and _costs_accuracy(changes):
        accuracy_preserving = ACCURACY_PRESERVING_AUTO
    elif chosen_name == "Auto" and isinstance(evaluation, InMemoryEvaluation) and _costs_accuracy(changes):
        c = CandidateCalibrator.of(ACCURACY_PRESERVING_AUTO)
        fitted[c.name] = fitted_auto = c.fit(val, on_progress)
        calibrated = (
            c.out_of_fold(val.double(), fitted_auto, folds, on_progress)
            if test is None
            else apply_calibrator(evaluation.uncalibrated, fitted_auto)
        )
        tables[c.name], accuracy_preserving = measure(calibrated, metrics=metric_names, of=of), c.name
        held_out |= _held_out_nll([c], fitted, val, folds, on_progress) if held_out else {}
    return Assessment(
        uncalibrated=uncalibrated,
        tables=tables,
        metrics=tuple(metric_names),
        calibrators=fitted,
        chosen_name=chosen_name,
        held_out_nll=held_out,
        changes=changes,
        mistakes=evaluation.mistakes(chosen_name),
        protocol=_describe_protocol(val, test, evaluation, folds, description.unit) + guard.overlap_report(),
        fitting_data=val,
        accuracy_preserving=accuracy_preserving,
    )


def _costs_accuracy(changes: Comparison | None) -> bool:
    """Whether accuracy falls beyond chance."""
    return any(row.name == "accuracy" and row.high < 0 for row in changes or ())


# The choice


def _held_out_nll(
    candidates: Sequence[CandidateCalibrator],
    fitted: Mapping[str, Any],
    val: Predictions,
    folds: int,
    on_progress: Progress,
) -> dict[str, float]:
    """NLL on held-out folds of the fitting data; nan where there are too few, or where none is honest.

    Infinite is that of who newly calls a class impossible, though it may not have come true yet: some day it will.
    """
    max_folds = len(val) if val.clusters is None else len(val.clusters.unique())
    if max_folds < 2:
        return {}
    nll_by_name = dict[str, float]()
    for c in candidates:
        own_nll = getattr(fitted[c.name], "out_of_fold", math.nan)
        if c.fitted_map is not None and c.overlap_message(val):
            nll_by_name[c.name] = math.nan
        elif math.isfinite(own_nll) and c.fitted_map is None:  # one that has held out examples itself
            nll_by_name[c.name] = own_nll
        else:
            calibrated = c.out_of_fold(val.double(), fitted[c.name], min(folds, max_folds), on_progress)
            adds_zero_probability = bool((calibrated.logits.isneginf() & ~val.logits.isneginf()).any())
            nll_by_name[c.name] = math.inf if adds_zero_probability else float(_metrics.nll(calibrated))
    return nll_by_name


def _lowest_key(values: Mapping[str, float]) -> str | None:
    finite_values = {name: value for name, value in values.items() if not math.isnan(value)}
    return min(finite_values, key=finite_values.__getitem__) if finite_values else None


# What is judged


def _evaluate_maps(
    val: Predictions,
    test: Predictions | Iterable[Predictions] | str | Path | None,
    guard: "OverlapGuard",
    fitted: Mapping[str, Any],
    folds: int,
    of: EventSelector,
    on_progress: Progress,
) -> InMemoryEvaluation | StreamedEvaluation:
    if test is None:
        p = val.double()
        return InMemoryEvaluation(
            p, {c.name: c.out_of_fold(p, fitted[c.name], folds, on_progress) for c in guard.candidates}
        )
    if isinstance(test, Predictions):
        on_progress("applying what was fitted")
        return InMemoryEvaluation.from_maps(test.with_event(of), fitted)
    pieces = Predictions.load_chunks(test) if isinstance(test, str | Path) else test
    return evaluate_pieces(_check_pieces(pieces, guard, on_progress), fitted, of)


def _check_pieces(pieces: Iterable[Predictions], guard: "OverlapGuard", on_progress: Progress) -> Iterable[Predictions]:
    num_examples = 0
    for part in pieces:
        on_progress(f"judging, {num_examples:,} examples done")
        part = part.reorder_classes(guard.val.class_names)
        guard.inspect(part)
        yield part
        num_examples += len(part)


class OverlapGuard:
    """Watches that no calibrator is judged on what it was fitted on, and whether the classes are as frequent."""

    def __init__(self, val: Predictions, candidates: Sequence[CandidateCalibrator]) -> None:
        self.val, self.candidates = val, candidates
        self.evaluation_sketch: Sketch | None = None  # of the rows that were looked at
        self.evaluation_counts: Tensor = torch.zeros(val.k, dtype=torch.float64)  # of their classes

    def check_overlap(self, part: Predictions) -> None:
        """Refuse data that a ready calibrator was fitted on."""
        for c in self.candidates:
            c.check_overlap(part)

    def inspect(self, part: Predictions) -> None:
        """Look at data to be judged, or at a piece of it."""
        if self.val.k != part.k:
            raise InputError(
                f"fitting and judging data must have the same classes, got {self.val.k} and {part.k}",
                code="num_classes",
            )
        if any(c.class_names not in (None, part.class_names) for c in self.candidates if part.class_names):
            raise InputError(
                "saved calibrators know the classes in different orders: assess them one by one", code="class_order"
            )
        self.check_overlap(part)
        self.evaluation_sketch = (
            Sketch.from_hashes(part.row_hashes)
            if self.evaluation_sketch is None
            else self.evaluation_sketch.add(part.row_hashes)
        )
        self.evaluation_counts += class_counts(part)

    def overlap_report(self) -> str:
        """Say how many rows are the fitting data's too, if they are more than by chance; refuse too many."""
        if self.evaluation_sketch is None:
            return ""
        overlap = Overlap.compare(self.evaluation_sketch, Sketch.from_hashes(self.val.row_hashes))
        if overlap.too_large:
            raise InputError(
                f"fitting and judging on the same data is refused, since it flatters every calibrator: {overlap.text}; "
                "give other data to judge on, or cross-fit: leave out the second (on the command line, one file and "
                "--cv 5)",
                code="same_data",
            )
        for message in (c.row_overlap_message(self.evaluation_sketch) for c in self.candidates):
            if message:
                raise InputError(f"{message}; judge it on others", code="fitted_on_same")
        message = f" {overlap.text[0].upper()}{overlap.text[1:]}." if overlap.excess else ""
        skip_label_shift = self.val.clusters is not None or self.val.class_names == CORRECTNESS_CLASSES
        return (
            message
            if skip_label_shift
            else message + label_shift_message(class_counts(self.val), self.evaluation_counts, self.val.class_names)
        )


def _describe_protocol(
    val: Predictions, test: Any, evaluation: InMemoryEvaluation | StreamedEvaluation, folds: int, unit: str
) -> str:
    if test is None:
        return (
            f"Cross-fitted in {folds} folds: each of the {len(val):,} {unit}s was judged by calibrators fitted on "
            "the other folds; what is saved was fitted on all."
        )
    streaming_note = ", read in pieces" if isinstance(evaluation, StreamedEvaluation) else ""
    return f"Fitted on {len(val):,} {unit}s, judged on {len(evaluation.uncalibrated):,} others{streaming_note}."


def _ignore_progress(message: str) -> None:
    pass
