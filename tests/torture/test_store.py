"""Stores are damaged in every way we know: nothing silent, no traceback, nothing stuck."""

import pytest
from torture.stores import CAMPAIGNS, Counts


@pytest.mark.slow
@pytest.mark.parametrize("name", CAMPAIGNS)
def test_a_tenth_of_every_campaign(name):
    assert CAMPAIGNS[name](1, 0.1).good


@pytest.mark.torture
@pytest.mark.parametrize("name", CAMPAIGNS)
def test_every_campaign(name, capsys):
    counts = CAMPAIGNS[name](2, 1.0)
    with capsys.disabled():
        print(f"\n{Counts.head()}\n{counts.line(name)}")
    assert counts.good
