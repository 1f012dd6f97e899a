"""Where a probability of 0 came true: of how many rows is told, and the change is tested by Brier."""

import pytest
import torch

from calibrant import Predictions, assess, measure
from calibrant.assessment import expert_text
from calibrant.metrics import Summary


def certain(n: int, *, weighted: bool = False) -> Predictions:
    """Two classes, far too sure, and of every hundredth row entirely."""
    g = torch.Generator().manual_seed(n)
    s = torch.randn(n, generator=g, dtype=torch.float64)
    y = torch.bernoulli(s.sigmoid(), generator=g).long()
    z = torch.stack([0 * s, 4 * s], 1)
    z[::100, 0], z[::100, 1], y[::100] = -torch.inf, 0.0, 0
    return Predictions(z, y, torch.full((n,), 2.0).double() if weighted else None)


@pytest.mark.parametrize("weighted", [False, True])
def test_rows_with_infinite_nll_are_counted(weighted):
    p = certain(400, weighted=weighted)
    said = "8 of 800" if weighted else "4 of 400"
    for judged in (p, Summary.from_predictions(p.with_event(1))):
        row = measure(judged)["nll"]
        assert said in row.note
        assert row.note in " ".join(str(measure(judged)).split())


@pytest.mark.parametrize("pieces", [False, True])
def test_the_change_is_tested_by_brier_where_nll_is_infinite(pieces):
    test = certain(600)
    judged = (test[i : i + 200] for i in range(0, 600, 200)) if pieces else test
    found = assess(certain(900), judged, ["Platt"])
    brier = next(row for row in found.changes or () if row.name == "event_brier")
    title, answer = found.uncalibrated["event_brier"].title, expert_text.significance_answer(found)
    assert all(part in answer for part in (title, f"{-brier.difference:.4f}", "6 of 600"))
    assert answer in " ".join(str(found).split())
