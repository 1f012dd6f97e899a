"""The words for a metric that is given by its text, such as "ece(bins=10)"."""

from calibrant._core.registry import METRICS
from calibrant.metrics import ood
from calibrant.metrics._metric import Metric, MetricInfo


def metric_info(name: str) -> MetricInfo:
    """Return the words for a metric, given by its text or name. An unknown metric has only its own name.

    >>> metric_info("ece(bins=10)").heading()
    'ECE (%)'
    """
    family = name.partition("(")[0]
    if family in ood.OOD_INFO:
        return ood.OOD_INFO[family]
    registered = METRICS.get(family)
    return registered.about if isinstance(registered, Metric) else MetricInfo(family)


def noise_floor_name(name: str) -> str:
    """Return the name of the metric that is the noise floor of another, or "" if there is none.

    A text with settings has no noise floor.

    >>> noise_floor_name("ece"), noise_floor_name("ece(bins=10)"), noise_floor_name("nll")
    ('noise_floor', '', '')
    """
    return getattr(METRICS.get(name), "noise_floor", "")


def is_calibration_error(name: str) -> bool:
    """Return whether a metric, given by its text or name, is 0 for true probabilities, up to chance.

    >>> is_calibration_error("ece(bins=10)"), is_calibration_error("nll")
    (True, False)
    """
    return getattr(METRICS.get(name.partition("(")[0]), "is_calibration_error", False)


def fits_summary(name: str, *, by_class: bool) -> bool:
    """Return whether a metric, given by name, can be computed from a `Summary` that was made `by_class` or not.

    >>> fits_summary("ece", by_class=False), fits_summary("classwise_ece", by_class=False)
    (True, False)
    """
    metric = METRICS.get(name)
    return isinstance(metric, Metric) and metric.fits_summary(by_class=by_class)


def describe_metric(text: str) -> str:
    """Write a metric's text in words, with its settings and its unit.

    >>> describe_metric("ece(bins=10)"), describe_metric("nll")
    ('ECE (bins=10) in %', 'negative log-likelihood')
    """
    info, settings = metric_info(text), text.partition("(")[2]
    return info.title + (f" ({settings}" if settings else "") + (" in %" if info.percent else "")
