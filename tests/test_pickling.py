"""Predictions, results and their parts survive pickling, copying and a pool of processes."""

import copy
import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest
from drawn import drawn_labels

import calibrant
from calibrant import Predictions, assess, calibrators, measure, metrics
from calibrant.metrics import Summary

CALIBRATORS = ("Identity", "Temperature", "HistogramBinning", "Auto(accuracy_preserving=True)")


def draw(k: int = 3, **options: object) -> Predictions:
    rng = np.random.default_rng(0)
    z = 2 * rng.standard_normal((240, k), np.float32)
    return Predictions(z, drawn_labels(z, rng), groups=np.arange(240) % 3, **options)


def copies(value):
    yield pickle.loads(pickle.dumps(value))
    yield copy.deepcopy(value)


def contents(value):
    """Return everything that a result contains, as text."""
    measurements = [value.uncalibrated, *value.measurements.values()] if hasattr(value, "measurements") else [value]
    classes = [None if m.classes is None else m.classes.ece.tolist() for m in measurements]
    return [value.json({"time": "then"}), str(value), classes]  # pages show the same


MEASURED = {
    "classes": lambda: measure(draw()),
    "two classes": lambda: measure(draw(2)),
    "clusters and weights": lambda: measure(draw(weights=np.ones(240), clusters=np.arange(240) // 4)),
    "a summary": lambda: measure(Summary.from_predictions(draw(), by_class=True)),
    "a summary without classes": lambda: measure(Summary.from_predictions(draw())),
    "confidences": lambda: measure(Predictions.from_confidence(np.linspace(0.1, 0.9, 40), np.arange(40) % 2)),
    "labels": lambda: measure(Predictions.multilabel(draw().logits, draw().logits > 0.5)),
    "an assessment": lambda: assess(draw()[:120], draw()[120:], CALIBRATORS),
    "a cross-fitted assessment": lambda: assess(draw(), None, ("Temperature",), folds=2),
    "an assessment of chunks": lambda: assess(draw()[:120], iter([draw()[120:200], draw()[200:]]), ("Temperature",)),
}


@pytest.mark.parametrize("name", MEASURED)
def test_copies_of_results_are_equal(name):
    result = MEASURED[name]()
    early = list(copies(result))  # before anything is computed on demand, and after
    expected = str(contents(result))
    for copied in (early[0], [*copies(result)][1]):
        assert type(copied) is type(result)
        assert str(contents(copied)) == expected


PARTS = {
    "predictions": draw,
    "a summary": lambda: Summary.from_predictions(draw(), by_class=True),
    "an interval": lambda: metrics.nll.interval(draw()),
    "a test": lambda: metrics.kuiper.test(draw()),
    "a metric": lambda: metrics.ece,
    "a comparison": lambda: metrics.compare(draw(), draw()),
    "parts of nll": lambda: metrics.decompose_score(draw(), fit=calibrators.Temperature.fit),
    "bins": lambda: metrics.tables.bins(draw()),
    "classes": lambda: metrics.tables.classes(draw()),
    "groups": lambda: metrics.tables.groups(draw()),
    "thresholds": lambda: metrics.tables.thresholds(draw(2)),
    "a curve": lambda: metrics.curves.corp(draw()),
    "coverage": lambda: metrics.curves.risk_coverage(draw()),
    "detection": lambda: metrics.ood.detection(draw(), draw()),
    "an error": lambda: calibrant.InputError("Expected 2, got 3.", code="number"),
}


@pytest.mark.parametrize("name", PARTS)
def test_copies_of_parts_are_equal(name):
    value = PARTS[name]()
    for copied in copies(value):
        assert type(copied) is type(value)
        assert str(copied) == str(value)
        assert getattr(copied, "code", None) == getattr(value, "code", None)


@pytest.mark.slow
def test_results_come_back_from_a_pool_of_processes():
    p = draw()
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        measured = pool.submit(measure, p)
        assessed = pool.submit(assess, p[:120], p[120:], ("Identity", "Temperature"))
        assert contents(measured.result())[0] == measure(p).json({"time": "then"})
        assert assessed.result().chosen_name == assess(p[:120], p[120:], ("Identity", "Temperature")).chosen_name


def test_statistics_are_not_pickled():
    p = draw()
    size = len(pickle.dumps(p))
    measure(p)
    assert len(pickle.dumps(p)) < size + 10_000
