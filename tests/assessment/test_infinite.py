"""Infinite NLL after a probability of 0 came true: rows are counted, and the Brier score tests the change."""

import numpy as np
import pytest
from scipy.special import expit

from calibrant import Predictions, assess, measure
from calibrant.assessment import _sentences as sentences
from calibrant.metrics import Summary


def draw_certain(n: int, *, weighted: bool = False) -> Predictions:
    """Return overconfident binary predictions, of which every hundredth is certain and wrong."""
    rng = np.random.default_rng(n)
    s = rng.normal(size=n)
    z, y = np.c_[0 * s, 4 * s], rng.binomial(1, expit(s))
    z[::100, 0], z[::100, 1], y[::100] = -np.inf, 0.0, 0
    return Predictions(z, y, np.full(n, 2.0) if weighted else None)


@pytest.mark.parametrize("weighted", [False, True])
def test_rows_with_infinite_nll_are_counted(weighted):
    p = draw_certain(400, weighted=weighted)
    for source in (p, Summary.from_predictions(p.with_event(1))):
        result = measure(source)
        assert ("8 of 800" if weighted else "4 of 400") in result["nll"].note
        assert result["nll"].note in " ".join(str(result).split())


@pytest.mark.parametrize("in_chunks", [False, True])
def test_change_is_tested_by_brier_if_nll_is_infinite(in_chunks):
    test = draw_certain(600)
    source = (test[i : i + 200] for i in range(0, 600, 200)) if in_chunks else test
    result = assess(draw_certain(900), source, ["Platt"])
    brier = next(row for row in result.changes or () if row.name == "event_brier")
    title, answer = result.uncalibrated["event_brier"].title, sentences.significance_answer(result)
    assert all(part in answer for part in (title, f"{-brier.difference:.4f}", "6 of 600"))
    assert answer in " ".join(str(result).split())
