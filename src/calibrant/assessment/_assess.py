"""Fit calibrators on some predictions, judge them on others, and choose one by data that judges nothing."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from calibrant import calibrators as _calibrators
from calibrant import catalog, io
from calibrant import metrics as _metrics
from calibrant._rows import Overlap, Sketch
from calibrant._threads import threads_for
from calibrant.assessment._candidates import Candidate, Progress, candidates_of, usual
from calibrant.assessment._event import event, event_of
from calibrant.assessment._judge import Pieces, Whole, in_pieces, mapped
from calibrant.assessment._measure import Measurement, measure, texts
from calibrant.assessment._plain import written
from calibrant.assessment._shift import counts_of, shift
from calibrant.assessment._table import Findings
from calibrant.metrics import Comparison, Summary
from calibrant.predictions import CORRECTNESS, Of, Predictions
from calibrant.types import InputError

FOLDS = 5
KEEPING = "Auto(accuracy_preserving=True)"  # what is shown beside an Auto that costs accuracy


class Assessment(Findings):
    """What every calibrator did to predictions that it was not fitted on.

    It prints, shows itself in a notebook, and is saved as .html, .json or, the best calibrator alone, .safetensors.
    """

    before: Measurement
    tables: Mapping[str, Measurement]

    def html(self, facts: Mapping[str, str] | None = None, saved: str | Path | None = None) -> str:
        """Return the report, one page that opens offline.

        `facts` are told at its end; `saved` is where the best calibrator is to be found.
        """
        from calibrant.assessment.page import assessment_page

        return assessment_page(self, facts or {}, saved)

    def save(self, path: str | Path) -> None:
        """Write the report (.html), all numbers (.json), or the best calibrator (.safetensors)."""
        if Path(path).suffix != ".safetensors":
            return written(path, {".html": self.html, ".json": self.json, ".safetensors": str})
        with io.atomic_write(path) as draft:
            _calibrators.save(self.best, draft, fitted_on=self.fitted_on)
        return None

    def __rich__(self) -> Any:
        from calibrant.assessment._text import assessment_text

        return assessment_text(self)

    def __str__(self) -> str:
        from calibrant.assessment._text import plain_text

        return plain_text(self)

    def _repr_html_(self) -> str:
        from calibrant.assessment.page import assessment_cell

        return assessment_cell(self)


def assess(
    val: Predictions,
    test: Predictions | Iterable[Predictions] | str | Path | None = None,
    calibrators: Sequence[Any] | None = None,
    metrics: Sequence[str] | None = None,
    *,
    choose: str | None = None,
    folds: int = FOLDS,
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
    >>> found.chosen, round(float(found.best.temperature))
    ('Temperature', 3)
    """
    rows = [len(p) * p.k for p in (val, test) if isinstance(p, Predictions)]
    with threads_for(sum(rows)):
        return _assessed(val, test, calibrators, metrics, choose, folds, of, progress or _silent)


def _assessed(
    val: Predictions,
    test: Predictions | Iterable[Predictions] | str | Path | None,
    calibrators: Sequence[Any] | None,
    metrics: Sequence[str] | None,
    choose: str | None,
    folds: int,
    of: str | int | None,
    tell: Progress,
) -> Assessment:
    candidates, choose = candidates_of(usual(val.k) if calibrators is None else calibrators, choose)
    for c in candidates:
        val = c.ordered(val)
    test = test.in_order(val.class_names) if isinstance(test, Predictions) else test
    of = event_of(test if isinstance(test, Predictions) else val, of)
    val = val.judging(of)
    judged_by = event(of, val.k, val.class_names)
    shown = [catalog.METRICS.brief(text) for text in texts(judged_by.shown if metrics is None else metrics)]
    guard = Guard(val, candidates)
    if test is None:
        guard.refuse(val)
    elif isinstance(test, Predictions):
        guard.look(test)
        guard.told()
    if test is not None and not isinstance(test, Predictions):
        never = ("auroc",) if val.k <= Summary.CLASSES else ("classwise_ece", "auroc")
        shown = [name for name in shown if metrics is not None or name not in never]
        first = Summary.empty(of=of, by_class=True).add(val[:1])
        measure(first, metrics=shown)  # what a summary cannot tell is refused now
    fitted = {c.name: c.fit(val, tell) for c in candidates}
    held_out = {} if choose or test is None else _held_out(candidates, fitted, val, folds, tell)
    judged = _judged(val, test, guard, fitted, folds, of, tell)
    tell("judging")
    tables = {name: measure(p, metrics=shown, of=of) for name, p in judged.after.items()}
    if test is None and not choose:
        held_out = {name: table["nll"].value for name, table in tables.items()}
    chosen = choose or _least(held_out) or candidates[0].name
    same = next((name for name, p in judged.after.items() if p is judged.before), None)
    before = tables[same] if same else measure(judged.before, metrics=shown, of=of)
    changes = judged.changes(chosen, judged_by.paired)
    keeping = None
    if KEEPING in tables and _costs_accuracy(changes):
        keeping = KEEPING
    elif chosen == "Auto" and isinstance(judged, Whole) and _costs_accuracy(changes):
        c = Candidate.of(KEEPING)
        fitted[c.name] = keeper = c.fit(val, tell)
        made = c.out_of_fold(val.double(), keeper, folds, tell) if test is None else mapped(judged.before, keeper)
        tables[c.name], keeping = measure(made, metrics=shown, of=of), c.name
        held_out |= _held_out([c], fitted, val, folds, tell) if held_out else {}
    return Assessment(
        before=before,
        tables=tables,
        shown=tuple(shown),
        fitted=fitted,
        chosen=chosen,
        held_out=held_out,
        changes=changes,
        mistakes=judged.mistakes(chosen),
        how=_how(val, test, judged, folds, judged_by.one) + guard.told(),
        fitted_on=val,
        keeping=keeping,
    )


def _costs_accuracy(changes: Comparison | None) -> bool:
    """Whether accuracy falls beyond chance."""
    return any(row.name == "accuracy" and row.high < 0 for row in changes or ())


# The choice


def _held_out(
    candidates: Sequence[Candidate], fitted: Mapping[str, Any], val: Predictions, folds: int, tell: Progress
) -> dict[str, float]:
    """NLL on held-out folds of the fitting data; nan where there are too few, or where none is honest.

    Infinite is that of who newly calls a class impossible, though it may not have come true yet: some day it will.
    """
    most = len(val) if val.clusters is None else len(val.clusters.unique())
    if most < 2:
        return {}
    found = dict[str, float]()
    for c in candidates:
        own = getattr(fitted[c.name], "out_of_fold", math.nan)
        if c.ready is not None and c.knows(val):
            found[c.name] = math.nan
        elif math.isfinite(own) and c.ready is None:  # one that has held out examples itself
            found[c.name] = own
        else:
            after = c.out_of_fold(val.double(), fitted[c.name], min(folds, most), tell)
            impossible = bool((after.logits.isneginf() & ~val.logits.isneginf()).any())
            found[c.name] = math.inf if impossible else float(_metrics.nll(after))
    return found


def _least(values: Mapping[str, float]) -> str | None:
    known = {name: value for name, value in values.items() if not math.isnan(value)}
    return min(known, key=known.__getitem__) if known else None


# What is judged


def _judged(
    val: Predictions,
    test: Predictions | Iterable[Predictions] | str | Path | None,
    guard: "Guard",
    fitted: Mapping[str, Any],
    folds: int,
    of: Of,
    tell: Progress,
) -> Whole | Pieces:
    if test is None:
        p = val.double()
        return Whole(p, {c.name: c.out_of_fold(p, fitted[c.name], folds, tell) for c in guard.candidates})
    if isinstance(test, Predictions):
        tell("applying what was fitted")
        return Whole.of(test.judging(of), fitted)
    pieces = Predictions.load_pieces(test) if isinstance(test, str | Path) else test
    return in_pieces(_told(pieces, guard, tell), fitted, of)


def _told(pieces: Iterable[Predictions], guard: "Guard", tell: Progress) -> Iterable[Predictions]:
    seen = 0
    for part in pieces:
        tell(f"judging, {seen:,} examples done")
        part = part.in_order(guard.val.class_names)
        guard.look(part)
        yield part
        seen += len(part)


class Guard:
    """Watches that no calibrator is judged on what it was fitted on, and whether the classes are as frequent."""

    def __init__(self, val: Predictions, candidates: Sequence[Candidate]) -> None:
        self.val, self.candidates = val, candidates
        self.judged: Sketch | None = None  # of the rows that were looked at
        self.counts: Tensor = torch.zeros(val.k, dtype=torch.float64)  # of their classes

    def refuse(self, part: Predictions) -> None:
        """Refuse data that a ready calibrator was fitted on."""
        for c in self.candidates:
            c.refuse(part)

    def look(self, part: Predictions) -> None:
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
        self.refuse(part)
        self.judged = Sketch.of(part.row_hashes) if self.judged is None else self.judged.add(part.row_hashes)
        self.counts += counts_of(part)

    def told(self) -> str:
        """Say how many rows are the fitting data's too, if they are more than by chance; refuse too many."""
        if self.judged is None:
            return ""
        overlap = Overlap.between(self.judged, Sketch.of(self.val.row_hashes))
        if overlap.too_large:
            raise InputError(
                f"fitting and judging on the same data is refused, since it flatters every calibrator: {overlap.text}; "
                "give other data to judge on, or cross-fit: leave out the second (on the command line, one file and "
                "--cv 5)",
                code="same_data",
            )
        for said in (c.knows_rows(self.judged) for c in self.candidates):
            if said:
                raise InputError(f"{said}; judge it on others", code="fitted_on_same")
        said = f" {overlap.text[0].upper()}{overlap.text[1:]}." if overlap.excess else ""
        alike = self.val.clusters is not None or self.val.class_names == CORRECTNESS
        return said if alike else said + shift(counts_of(self.val), self.counts, self.val.class_names)


def _how(val: Predictions, test: Any, judged: Whole | Pieces, folds: int, one: str) -> str:
    if test is None:
        return (
            f"Cross-fitted in {folds} folds: each of the {len(val):,} {one}s was judged by calibrators fitted on "
            "the other folds; what is saved was fitted on all."
        )
    read = ", read in pieces" if isinstance(judged, Pieces) else ""
    return f"Fitted on {len(val):,} {one}s, judged on {len(judged.before):,} others{read}."


def _silent(what: str) -> None:
    pass
