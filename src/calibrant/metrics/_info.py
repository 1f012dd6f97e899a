"""What to say of a number that is given by the text of its metric."""

from calibrant.metrics import ood
from calibrant.metrics._metric import Metric, MetricInfo
from calibrant.registry import METRICS


def metric_info(name: str) -> MetricInfo:
    """What to say of a metric, given by its text or name; of an unknown one, its own name.

    >>> metric_info("ece(bins=10)").heading()
    'ECE (%)'
    """
    family = name.partition("(")[0]
    if family in ood.OOD_INFO:
        return ood.OOD_INFO[family]
    registered = METRICS.get(family)
    return registered.about if isinstance(registered, Metric) else MetricInfo(family)


def describe_metric(text: str) -> str:
    """Say a metric's text in words, with its settings and its unit.

    >>> describe_metric("ece(bins=10)"), describe_metric("nll")
    ('ECE (bins=10) in %', 'negative log-likelihood')
    """
    info, settings = metric_info(text), text.partition("(")[2]
    return info.title + (f" ({settings}" if settings else "") + (" in %" if info.percent else "")
