"""Metrics: (logits, labels) -> one number. `__all__` is the registry.

What is more than a number stands beside them: `intervals`, `tests` (p-values), `curves`, `tables` (bins, classes),
`ood`; `assess` prints what one should know of a set of predictions, `compare` tests two models on the same examples,
`split` divides a score into refinement and calibration.
"""

from calibrant.metrics import _binned, _corp, _cumulative, _ranking, _scores, _smooth
from calibrant.metrics import curves as curves
from calibrant.metrics import intervals as intervals
from calibrant.metrics import ood as ood
from calibrant.metrics import tables as tables
from calibrant.metrics import tests as tests
from calibrant.metrics._assess import Assessment as Assessment
from calibrant.metrics._assess import Row as Row
from calibrant.metrics._assess import assess as assess
from calibrant.metrics._binned import *
from calibrant.metrics._compare import Comparison as Comparison
from calibrant.metrics._compare import Difference as Difference
from calibrant.metrics._compare import compare as compare
from calibrant.metrics._corp import *
from calibrant.metrics._cumulative import *
from calibrant.metrics._ranking import *
from calibrant.metrics._results import Curve as Curve
from calibrant.metrics._results import Evidence as Evidence
from calibrant.metrics._results import Interval as Interval
from calibrant.metrics._scores import *
from calibrant.metrics._smooth import *
from calibrant.metrics._split import Split as Split
from calibrant.metrics._split import split as split
from calibrant.metrics._summary import Summary as Summary

__all__: list[str] = []
__all__ += _binned.__all__
__all__ += _corp.__all__
__all__ += _cumulative.__all__
__all__ += _ranking.__all__
__all__ += _scores.__all__
__all__ += _smooth.__all__
