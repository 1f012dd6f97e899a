"""What to say of a number that is given by the text of its metric."""

from calibrant.catalog import METRICS
from calibrant.metrics import ood
from calibrant.metrics._metric import About, Metric


def about(name: str) -> About:
    """What to say of a metric, given by its text or name; of an unknown one, its own name.

    >>> about("ece(bins=10)").heading()
    'ECE (%)'
    """
    family = name.partition("(")[0]
    if family in ood.ABOUT:
        return ood.ABOUT[family]
    known = METRICS.get(family)
    return known.about if isinstance(known, Metric) else About(family)
