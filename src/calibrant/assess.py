"""The second half on its own: fit calibrators on some predictions, judge them on others, choose one honestly."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant import calibrators, catalog, metrics
from calibrant._bins import judge as judge_examples
from calibrant._types import Calibrator, InputError
from calibrant.metrics._results import quantile
from calibrant.metrics.tables import Classes, classes
from calibrant.predictions import Predictions

CALIBRATORS = ("Identity", "Temperature", "StructuredMatrix", "HistogramBinning", "Auto")
METRICS = ("accuracy", "nll", "brier", "ece", "adaptive_ece", "classwise_ece")
PAIRED = ("accuracy", "nll", "brier", "signed_gap", "ece", "adaptive_ece", "debiased_l2", "kuiper", "aurc")
STREAMED = ("accuracy", "nll", "brier", "signed_gap")  # means, whose change is tested without a second pass
FOLDS, GROUPS = 5, 50
MISTAKES = 20

Progress = Callable[[str], object]  # told what is being done


@dataclass(frozen=True)
class Mistake:
    """An example that was predicted wrongly, and how probable the wrong class was said to be."""

    row: int  # index in the judged data
    label: int
    predicted: int
    before: float  # probability of the predicted class
    after: float  # the same, by the chosen calibrator


@dataclass(frozen=True, eq=False)
class Assessment:
    """What every calibrator did to predictions that it was not fitted on."""

    before: metrics.Assessment  # the table of the predictions as they came
    tables: dict[str, metrics.Assessment]  # the table by calibrator
    values: dict[str, dict[str, float]]  # calibrator -> metric -> value
    fitted: dict[str, Calibrator]  # on all fitting data
    chosen: str  # the calibrator with the lowest cross-fitted NLL on the fitting data, unless asked for
    held_out: dict[str, float]  # that NLL; empty if a calibrator was asked for
    changes: metrics.Comparison | None  # chosen minus before, on the same examples; None for a single one
    classes: tuple[Classes, Classes] | None  # before and after
    mistakes: tuple[Mistake, ...]  # the most confident first
    how: str  # on which data who did what

    @property
    def after(self) -> metrics.Assessment:
        """The table of the chosen calibrator."""
        return self.tables[self.chosen]

    @property
    def shown(self) -> list[str]:
        """The metrics that were asked for."""
        return list(next(iter(self.values.values())))

    def rows(self) -> list[dict[str, Any]]:
        """Return one row {"calibrator", "metric", "value", "low", "high", "p_value"} per number; nan where none is."""
        return [
            {"calibrator": name, "metric": metric, "value": value} | _evidence(self.tables[name], metric)
            for name, found in self.values.items()
            for metric, value in ({row.name: row.value for row in self.tables[name]} | found).items()
        ]

    def parameters(self) -> list[dict[str, Any]]:
        """Return what every calibrator learned, in plain numbers and lists, with its certificate."""
        return [{"calibrator": name} | learned(fitted) for name, fitted in self.fitted.items()]


def assess(
    val: Predictions,
    test: Predictions,
    names: Sequence[str] = CALIBRATORS,
    judged_by: Sequence[str] = METRICS,
    choose: str | None = None,
    *,
    progress: Progress = str,
) -> Assessment:
    """Fit on `val`, judge on `test`. Raises `InputError` if they are the same predictions."""
    _other(val, test)
    names, judged_by, choose = _known(names, judged_by, choose)
    fitted = _fitted(names, val, progress)
    held_out = {} if choose or len(val) < 2 else {n: _held_out(n, fitted[n], val, progress) for n in names}
    logits = {name: calibrator(test.logits.double()) for name, calibrator in fitted.items()}
    how = f"Fitted on {len(val):,} examples, judged on {len(test):,} others."
    return _assessment(test, logits, fitted, judged_by, choose, held_out, how, progress)


def cross_assess(
    predictions: Predictions,
    folds: int = FOLDS,
    names: Sequence[str] = CALIBRATORS,
    judged_by: Sequence[str] = METRICS,
    choose: str | None = None,
    *,
    progress: Progress = str,
) -> Assessment:
    """Judge every example with a calibrator fitted on the other folds; the kept calibrators are fitted on all."""
    names, judged_by, choose = _known(names, judged_by, choose)
    logits: dict[str, Tensor] = {}
    for name in names:
        progress(f"cross-fitting {name}")
        logits[name] = calibrators.cross_fit(name, predictions.double(), folds=folds).logits
    nll = {name: float(metrics.nll(z, predictions.labels, weights=predictions.weights)) for name, z in logits.items()}
    how = (
        f"Cross-fitted in {folds} folds: each of the {len(predictions):,} examples was judged by calibrators fitted on "
        "the other folds; what is saved was fitted on all."
    )
    fitted = _fitted(names, predictions, progress)
    return _assessment(predictions, logits, fitted, judged_by, choose, {} if choose else nll, how, progress)


def stream_assess(
    val: Predictions,
    pieces: Iterable[Predictions],
    names: Sequence[str] = CALIBRATORS,
    judged_by: Sequence[str] = METRICS,
    choose: str | None = None,
    *,
    progress: Progress = str,
) -> Assessment:
    """Fit on `val`, judge on pieces of any number of predictions, of which only a summary is kept.

    What needs all predictions at once (the class-wise error, the table of classes) is left out. Raises `InputError` if
    a piece is `val` itself.
    """
    names, judged_by, choose = _known(names, judged_by, choose)
    fitted = _fitted(names, val, progress)
    held_out = {} if choose or len(val) < 2 else {n: _held_out(n, fitted[n], val, progress) for n in names}
    chosen = _chosen(choose, held_out, fitted)
    before, after = metrics.Summary.empty(), {name: metrics.Summary.empty() for name in names}
    worst, sums, seen = list[Mistake](), torch.zeros(len(STREAMED), 5, dtype=torch.float64), 0
    for part in pieces:
        progress(f"judging, {seen:,} examples done")
        _other(val, part)
        before = before.add(part.logits, part.labels, part.weights)
        for name, calibrator in fitted.items():
            made = Predictions(calibrator(part.logits.double()), part.labels, part.weights)
            after[name] = after[name].add(made.logits, made.labels, made.weights)
            if name == chosen:
                worst += [replace(m, row=m.row + seen) for m in mistakes(part, made.logits)]
                worst = sorted(worst, key=lambda m: -m.before)[:MISTAKES]
                sums += _moments(part, made)
        seen += len(part)
    tables = {name: summary.assessment for name, summary in after.items()}
    return Assessment(
        before=before.assessment,
        tables=tables,
        values={name: {m: table[m].value for m in judged_by if m in table} for name, table in tables.items()},
        fitted=fitted,
        chosen=chosen,
        held_out=held_out,
        changes=_change(before.assessment, tables[chosen], sums) if seen > 1 else None,
        classes=None,
        mistakes=tuple(worst),
        how=f"Fitted on {len(val):,} examples, judged on {seen:,} others, read in pieces.",
    )


def fit(name: str, val: Predictions) -> Calibrator:
    """Fit a calibrator, given as text, in float64."""
    fitted: Calibrator = catalog.resolve(name, calibrators)(val.logits.double(), val.labels)
    return fitted


def judge(logits: Tensor, truth: Predictions, names: Sequence[str]) -> dict[str, float]:
    """Measure logits against the labels (and weights, if any) of `truth`: one value per metric's text."""

    def value(name: str) -> float:
        metric: Callable[..., Tensor] = catalog.resolve(name, metrics)
        return float(metric(logits, truth.labels, weights=truth.weights))

    return {name: value(name) for name in names}


def learned(calibrator: Any) -> dict[str, Any]:
    """Return the fields of a fitted calibrator as plain numbers, lists and texts."""
    return {f.name: _plain(getattr(calibrator, f.name)) for f in fields(calibrator)}


def mistakes(before: Predictions, after: Tensor, most: int = MISTAKES) -> list[Mistake]:
    """Return the wrong predictions of the highest confidence, with what another map makes of that confidence."""
    judged = judge_examples(*before)
    wrong = (judged.correct == 0).nonzero().squeeze(1)
    order = np.lexsort((judged.log_likelihood[wrong].cpu().numpy(), -judged.confidence[wrong].cpu().numpy()))[:most]
    rows = wrong[torch.from_numpy(order).to(wrong.device)]
    predicted = before.logits[rows].argmax(1)
    probs = after[rows].double().softmax(-1).gather(1, predicted[:, None]).squeeze(1)
    columns = rows, before.labels[rows], predicted, judged.confidence[rows], probs
    return [Mistake(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def compared(before: Predictions, after: Predictions) -> metrics.Comparison | None:
    """Test the change of the metrics that are quick to measure again and again, on the same examples."""
    n = len(before)
    return metrics.compare(before, after, names=PAIRED, groups=min(GROUPS, n)) if n > 1 else None


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    if is_dataclass(value) and not isinstance(value, type):
        return {"name": type(value).__name__} | {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    return value


def _evidence(table: metrics.Assessment, metric: str) -> dict[str, float]:
    row = table[metric] if metric in table else metrics.Row(metric, math.nan)
    return {"low": row.low, "high": row.high, "p_value": row.p_value}


def _known(
    names: Sequence[str], judged_by: Sequence[str], choose: str | None
) -> tuple[list[str], list[str], str | None]:
    names = [catalog.brief(name, calibrators) for name in names]
    chosen = None if choose is None else catalog.brief(choose, calibrators)
    if chosen and chosen not in names:
        names.append(chosen)
    return list(dict.fromkeys(names)), [catalog.brief(name, metrics) for name in judged_by], chosen


def _other(val: Predictions, test: Predictions) -> None:
    if val.logits.shape[1] != test.logits.shape[1]:
        raise InputError(
            f"fitting and judging data must have the same classes, got {val.logits.shape[1]} and {test.logits.shape[1]}"
        )
    if val.digest == test.digest:
        raise InputError(
            "fitting and judging on the same data is refused, since it flatters every calibrator; give other data to "
            "judge on, or cross-fit with --cv 5"
        )


def _fitted(names: Sequence[str], val: Predictions, progress: Progress) -> dict[str, Calibrator]:
    found: dict[str, Calibrator] = {}
    for name in names:
        progress(f"fitting {name} to {len(val):,} examples")
        found[name] = fit(name, val)
    return found


def _held_out(name: str, fitted: Any, val: Predictions, progress: Progress) -> float:
    """NLL on held-out folds of the fitting data; one that knows its members' own is no worse than the best of them."""
    own = [nll for nll in getattr(fitted, "held_out", ()) if math.isfinite(nll)]
    if own and val.weights is None:
        return min(own)
    progress(f"cross-fitting {name}")
    honest = calibrators.cross_fit(name, val.double(), folds=min(FOLDS, len(val)))
    return float(metrics.nll(*honest, weights=honest.weights))


def _chosen(choose: str | None, held_out: dict[str, float], fitted: dict[str, Calibrator]) -> str:
    return choose or (min(held_out, key=held_out.__getitem__) if held_out else next(iter(fitted)))


def _moments(before: Predictions, after: Predictions) -> Tensor:
    """Sums of w, w^2, w d, w^2 d and w^2 d^2 over the differences d of the streamed metrics."""
    old, new = judge_examples(*before), judge_examples(*after)
    w = torch.ones_like(old.correct) if before.weights is None else before.weights
    differences = {
        "accuracy": new.correct - old.correct,
        "nll": old.log_likelihood - new.log_likelihood,
        "brier": new.brier - old.brier,
        "signed_gap": (new.confidence - new.correct) - (old.confidence - old.correct),
    }
    rows = [(w, w**2, w * d, w**2 * d, (w * d) ** 2) for d in map(differences.__getitem__, STREAMED)]
    return torch.stack([torch.stack([term.sum() for term in row]) for row in rows])


def _change(
    before: metrics.Assessment, after: metrics.Assessment, sums: Tensor, level: float = 0.90
) -> metrics.Comparison:
    """Give the paired differences of means their normal interval, as `metrics.compare` does, from their sums."""
    rows: list[metrics.Difference] = []
    for name, (w, w2, wd, w2d, w2d2) in zip(STREAMED, sums.tolist(), strict=True):
        mean = wd / w
        error = math.sqrt(max(w2d2 - 2 * mean * w2d + mean**2 * w2, 0) * before.n / (before.n - 1)) / w
        half, p = quantile(level) * error, math.erfc(abs(mean) / error / math.sqrt(2)) if error else float(mean == 0)
        rows.append(metrics.Difference(name, before[name].value, after[name].value, mean, mean - half, mean + half, p))
    return metrics.Comparison(before.n, level, tuple(rows))


def _assessment(
    truth: Predictions,
    logits: dict[str, Tensor],
    fitted: dict[str, Calibrator],
    judged_by: Sequence[str],
    choose: str | None,
    held_out: dict[str, float],
    how: str,
    progress: Progress,
) -> Assessment:
    progress("judging")
    judged = {name: Predictions(z, truth.labels, truth.weights) for name, z in logits.items()}
    tables = {name: metrics.assess(p) for name, p in judged.items()}
    values: dict[str, dict[str, float]] = {}
    for name, table in tables.items():
        other = judge(logits[name], truth, [m for m in judged_by if m not in table])
        values[name] = {m: other[m] if m in other else table[m].value for m in judged_by}
    chosen = _chosen(choose, held_out, fitted)
    after = judged[chosen]
    return Assessment(
        before=tables["Identity"] if "Identity" in tables else metrics.assess(truth),
        tables=tables,
        values=values,
        fitted=fitted,
        chosen=chosen,
        held_out=held_out,
        changes=compared(truth, after),
        classes=(classes(*truth, weights=truth.weights), classes(*after, weights=truth.weights)),
        mistakes=tuple(mistakes(truth, after.logits)),
        how=how,
    )
