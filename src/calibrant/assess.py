"""The second half on its own: fit calibrators on some predictions, judge them on others, choose one honestly."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from calibrant import calibrators, catalog, metrics
from calibrant._types import Calibrator, InputError
from calibrant.predictions import Predictions

CALIBRATORS = ("Identity", "Temperature", "Temperature(criterion='ece')", "HistogramBinning")
METRICS = ("accuracy", "nll", "brier", "ece", "adaptive_ece", "classwise_ece")
FOLDS = 5


@dataclass(frozen=True, eq=False)
class Assessment:
    """What every calibrator did to predictions that it was not fitted on."""

    truth: Predictions  # what was judged
    logits: dict[str, Tensor]  # calibrated logits of it, by the calibrator's text
    fitted: dict[str, Calibrator]  # on all fitting data
    values: dict[str, dict[str, float]]  # calibrator -> metric -> value
    chosen: str  # the calibrator with the lowest cross-fitted NLL on the fitting data
    how: str  # one sentence on which data did what

    def rows(self) -> list[dict[str, Any]]:
        """Return one row {"calibrator", "metric", "value"} per number."""
        return [
            {"calibrator": calibrator, "metric": metric, "value": value}
            for calibrator, found in self.values.items()
            for metric, value in found.items()
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
) -> Assessment:
    """Fit on `val`, judge on `test`. Raises `InputError` if they are the same predictions."""
    if val.logits.shape[1] != test.logits.shape[1]:
        raise InputError(
            f"fitting and judging data must have the same classes, got {val.logits.shape[1]} and {test.logits.shape[1]}"
        )
    if val.digest == test.digest:
        raise InputError(
            "fitting and judging on the same data is refused, since it flatters every calibrator; give other data to "
            "judge on, or cross-fit with --cv 5"
        )
    names, judged_by, choose = _known(names, judged_by, choose)
    fitted = {name: fit(name, val) for name in names}
    logits = {name: calibrator(test.logits.double()) for name, calibrator in fitted.items()}
    how = f"Fitted on {len(val):,} examples, judged on {len(test):,} others."
    return _assessment(test, logits, fitted, judged_by, choose or _choice(val, names), how)


def cross_assess(
    predictions: Predictions,
    folds: int = FOLDS,
    names: Sequence[str] = CALIBRATORS,
    judged_by: Sequence[str] = METRICS,
    choose: str | None = None,
) -> Assessment:
    """Judge every example with a calibrator fitted on the other folds; the kept calibrators are fitted on all."""
    names, judged_by, choose = _known(names, judged_by, choose)
    logits = {name: cross_fitted(name, predictions, folds) for name in names}
    nll = {name: float(metrics.nll(z, predictions.labels, weights=predictions.weights)) for name, z in logits.items()}
    fitted = {name: fit(name, predictions) for name in names}
    how = (
        f"Cross-fitted in {folds} folds: each of the {len(predictions):,} examples was judged by calibrators fitted on "
        "the other folds; what is saved was fitted on all."
    )
    return _assessment(predictions, logits, fitted, judged_by, choose or min(nll, key=nll.__getitem__), how)


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


def cross_fitted(name: str, predictions: Predictions, folds: int = FOLDS, seed: int = 0) -> Tensor:
    """Return calibrated logits of every example, each from a calibrator fitted on the other folds."""
    n = len(predictions)
    if not 2 <= folds <= n:
        raise InputError(f"cross-fitting needs between 2 and {n} folds (the number of examples), got {folds}")
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    out = predictions.logits.double().clone()
    for held in order.tensor_split(folds):
        rest = torch.ones(n, dtype=torch.bool)
        rest[held] = False
        out[held] = fit(name, predictions[rest])(predictions.logits[held].double())
    return out


def learned(calibrator: Any) -> dict[str, Any]:
    """Return the fields of a fitted calibrator as plain numbers, lists and texts."""
    return {f.name: _plain(getattr(calibrator, f.name)) for f in fields(calibrator)}


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    if is_dataclass(value) and not isinstance(value, type):
        return {"name": type(value).__name__} | {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    return value


def _known(
    names: Sequence[str], judged_by: Sequence[str], choose: str | None
) -> tuple[list[str], list[str], str | None]:
    names = [catalog.brief(name, calibrators) for name in names]
    chosen = None if choose is None else catalog.brief(choose, calibrators)
    if chosen and chosen not in names:
        names.append(chosen)
    return list(dict.fromkeys(names)), [catalog.brief(name, metrics) for name in judged_by], chosen


def _choice(val: Predictions, names: Sequence[str]) -> str:
    folds = min(FOLDS, len(val))
    if folds < 2:
        return names[0]
    nll = {name: float(metrics.nll(cross_fitted(name, val, folds), val.labels, weights=val.weights)) for name in names}
    return min(nll, key=nll.__getitem__)


def _assessment(
    truth: Predictions,
    logits: dict[str, Tensor],
    fitted: dict[str, Calibrator],
    judged_by: Sequence[str],
    chosen: str,
    how: str,
) -> Assessment:
    values = {name: judge(z, truth, judged_by) for name, z in logits.items()}
    return Assessment(truth, logits, fitted, values, chosen, how)
