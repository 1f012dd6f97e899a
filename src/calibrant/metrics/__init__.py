"""Metrics: one number from predictions, or from logits and labels. A metric never changes a prediction.

Each metric is declared once, with its title, unit, direction and meaning and, if it has them, its interval, test and
noise floor: `nll(p)`, `nll.interval(p)`, `kuiper.test(p)`, `ece.about`. `metric` declares one of your own.

Results that are more than a number are in `curves`, `tables` (bins, classes, groups) and `ood`. `compare` tests two
models on the same examples, `decompose_score` divides a score into refinement and calibration, `two_sample` tests a
metric over seeds, and `Summary` holds more predictions than memory does.
"""

from calibrant._core.kernels.bins import Events, EventStatistics
from calibrant.metrics import _binned, _corp, _cumulative, _flexible, _omnibus, _ranking, _risk, _scores, _smooth
from calibrant.metrics import curves as curves
from calibrant.metrics import ood as ood
from calibrant.metrics import tables as tables
from calibrant.metrics._binned import *
from calibrant.metrics._compare import Comparison, compare, two_sample
from calibrant.metrics._compare import ModelDifferences as ModelDifferences
from calibrant.metrics._corp import *
from calibrant.metrics._cross_validation import allow_for_cross_fitting as allow_for_cross_fitting
from calibrant.metrics._cross_validation import cross_validated_mean as cross_validated_mean
from calibrant.metrics._cross_validation import shared_training_factor as shared_training_factor
from calibrant.metrics._cumulative import *
from calibrant.metrics._decomposition import ScoreDecomposition, decompose_score
from calibrant.metrics._differences import AnyDifference as AnyDifference
from calibrant.metrics._differences import Difference, paired_difference
from calibrant.metrics._differences import paired_p_value as paired_p_value
from calibrant.metrics._flexible import *
from calibrant.metrics._info import describe_metric as describe_metric
from calibrant.metrics._info import fits_summary as fits_summary
from calibrant.metrics._info import is_calibration_error as is_calibration_error
from calibrant.metrics._info import metric_info
from calibrant.metrics._info import noise_floor_name as noise_floor_name
from calibrant.metrics._intervals import Curve, Evidence, Interval, share_interval, share_limits, strict_limits
from calibrant.metrics._intervals import Extremes as Extremes
from calibrant.metrics._intervals import Sample as Sample
from calibrant.metrics._intervals import ScoreRange as ScoreRange
from calibrant.metrics._intervals import mean_limits as mean_limits
from calibrant.metrics._intervals import student_quantile as student_quantile
from calibrant.metrics._logistic import fit_logistic as fit_logistic
from calibrant.metrics._metric import Metric, metric
from calibrant.metrics._metric import MetricInfo as MetricInfo
from calibrant.metrics._metric import declared_metric as declared_metric
from calibrant.metrics._moments import ratio_for_bound as ratio_for_bound
from calibrant.metrics._omnibus import *
from calibrant.metrics._omnibus import MISCALIBRATION_P_VALUE as MISCALIBRATION_P_VALUE
from calibrant.metrics._paired_scores import PairedScores as PairedScores
from calibrant.metrics._paired_scores import merge_sums as merge_sums
from calibrant.metrics._paired_scores import score_values as score_values
from calibrant.metrics._ranking import *
from calibrant.metrics._ranking import auroc_of as auroc_of
from calibrant.metrics._risk import *
from calibrant.metrics._scores import *
from calibrant.metrics._smooth import *
from calibrant.metrics._summary import Summary
from calibrant.metrics._sums import FEATURES as FEATURES
from calibrant.metrics._sums import NUM_GROUP_SLOT_FEATURES as NUM_GROUP_SLOT_FEATURES
from calibrant.metrics._sums import BinSums as BinSums

__all__ = ["Comparison", "Curve", "Difference", "EventStatistics", "Events", "Evidence", "Interval", "Metric"]
__all__ += ["ScoreDecomposition", "Summary"]
__all__ += ["compare", "curves", "decompose_score", "metric", "metric_info", "ood", "paired_difference"]
__all__ += ["share_interval", "share_limits", "strict_limits", "tables", "two_sample"]
__all__ += _binned.__all__
__all__ += _corp.__all__
__all__ += _cumulative.__all__
__all__ += _flexible.__all__
__all__ += _omnibus.__all__
__all__ += _ranking.__all__
__all__ += _risk.__all__
__all__ += _scores.__all__
__all__ += _smooth.__all__


def __getattr__(name: str) -> Metric[...]:
    """Return a metric that is declared above this package, such as `refinement_nll`, which fits a calibrator."""
    from calibrant._core.registry import METRICS, suggest

    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if isinstance(registered := METRICS.get(name), Metric):
        return registered
    # With obj=None, Python adds no suggestion of its own, which would be 'aurc' for 'auc'
    message = f"module {__name__!r} has no attribute {name!r}: {suggest(name, METRICS)}"
    raise AttributeError(message, name=name, obj=None)
