"""Damaged stores never give silent errors, tracebacks or stuck processes."""

import pytest
from torture.stores import CAMPAIGNS, Counts


def when(name):
    """Mark the campaigns on Ray as large, because a cluster needs the whole machine."""
    return pytest.param(name, marks=pytest.mark.large if "Ray" in name else pytest.mark.slow)


@pytest.mark.parametrize("name", [when(name) for name in CAMPAIGNS])
def test_a_tenth_of_every_campaign(name):
    assert CAMPAIGNS[name](1, 0.1).has_no_failures


@pytest.mark.torture
@pytest.mark.parametrize("name", CAMPAIGNS)
def test_every_campaign(name, capsys):
    counts = CAMPAIGNS[name](2, 1.0)
    with capsys.disabled():
        print(f"\n{Counts.head()}\n{counts.line(name)}")
    assert counts.has_no_failures
