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


def in_words(text: str) -> str:
    """Say a metric's text in words, with its settings and its unit.

    >>> in_words("ece(bins=10)"), in_words("nll")
    ('ECE (bins=10) in %', 'negative log-likelihood')
    """
    known, settings = about(text), text.partition("(")[2]
    return known.title + (f" ({settings}" if settings else "") + (" in %" if known.percent else "")
