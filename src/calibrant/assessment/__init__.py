"""Measure predictions, and choose a calibrator for them. It computes, and never decides how a result looks.

`measure` evaluates predictions as they are. `assess` fits calibrators, evaluates them on other data and selects one.
Both return a result that prints, shows itself in a notebook, and saves itself as a report or as numbers.
"""

from calibrant.assessment._apply_to_file import apply_to_file
from calibrant.assessment._assess import assess
from calibrant.assessment._candidates import DEFAULT_CALIBRATORS, load_checked_calibrator
from calibrant.assessment._measure import measure, summarize
from calibrant.assessment._mistakes import Mistake
from calibrant.assessment._results import Assessment, Measurement, Row
from calibrant.assessment._serialize import calibrator_source, data_source
from calibrant.assessment._validate import validate
from calibrant.assessment._validation import Center, Heterogeneity, Optimism, Validation

__all__ = ["DEFAULT_CALIBRATORS", "Assessment", "Measurement", "Mistake", "Row", "apply_to_file", "assess"]
__all__ += ["calibrator_source", "data_source", "load_checked_calibrator", "measure", "summarize"]
__all__ += ["Center", "Heterogeneity", "Optimism", "Validation", "validate"]
