"""Where a probability of 0 came true: of how many rows is told, and the change is tested by Brier."""

import pytest
import torch

from calibrant import Predictions, assess, measure
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
def test_rows_with_infinite_loss_are_counted(weighted):
    p = certain(400, weighted=weighted)
    said = "for 8 of 800 examples" if weighted else "for 4 of 400 examples"
    for judged in (p, Summary.from_predictions(p.judging(1))):
        row = measure(judged)["nll"]
        assert row.note == f"a probability of 0 came true {said}"
        assert said in " ".join(str(measure(judged)).split())


@pytest.mark.parametrize("pieces", [False, True])
def test_the_change_is_tested_by_brier_where_nll_is_infinite(pieces):
    test = certain(600)
    judged = (test[i : i + 200] for i in range(0, 600, 200)) if pieces else test
    found = assess(certain(900), judged, ["Platt"])
    text = " ".join(str(found).split())
    brier = next(row for row in found.changes or () if row.name == "event_brier")
    title = found.before["event_brier"].title
    assert f"Is the difference real? Yes: on the same examples the {title} falls by {-brier.difference:.4f}" in text
    assert "NLL cannot be tested: a probability of 0 came true for 6 of 600 examples." in text
    assert "cannot be tested on these" not in text
