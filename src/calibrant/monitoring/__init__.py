"""Monitor calibration: requirements, comparisons, drift, and a watch over time. It never changes the model.

`check` compares predictions with requirements, `compare` an old with a new model, and `drift` new predictions without
labels with a labeled reference. `Watch` is the state of a watch over time; `Watch.verdict` tells
which test has raised an alarm, and since when.
"""

from calibrant.monitoring._check import CheckResult, Condition, check
from calibrant.monitoring._check import read_requirements as read_requirements
from calibrant.monitoring._compare import ComparedRow, CompareResult, compare
from calibrant.monitoring._drift import DriftResult, drift
from calibrant.monitoring._estimates import Estimate
from calibrant.monitoring._files import lock_state
from calibrant.monitoring._intervals import mean_sequence, time_uniform_bound
from calibrant.monitoring._reading import WatchFile as WatchFile
from calibrant.monitoring._reading import add_file
from calibrant.monitoring._verdict import TestState, WatchVerdict
from calibrant.monitoring._watch import Watch

__all__ = ["CheckResult", "CompareResult", "ComparedRow", "Condition", "DriftResult"]
__all__ += ["Estimate", "TestState", "Watch", "WatchVerdict"]
__all__ += ["add_file", "check", "compare", "drift", "lock_state", "mean_sequence", "time_uniform_bound"]
