"""The front door: `measure` looks at predictions, `assess` fits calibrators, judges them, and chooses one.

Both return a value that prints, shows itself in a notebook, and saves itself as a page or as numbers.
"""

from calibrant.assessment._apply import apply_to_file
from calibrant.assessment._assess import Assessment, assess
from calibrant.assessment._candidates import DEFAULT_CALIBRATORS, load_checked_calibrator
from calibrant.assessment._evaluation import Mistake
from calibrant.assessment._events import EventDescription
from calibrant.assessment._measure import Measurement, measure, summarize
from calibrant.assessment._provenance import calibrator_source, data_source
from calibrant.assessment._results import Row

__all__ = [
    "DEFAULT_CALIBRATORS",
    "Assessment",
    "EventDescription",
    "Measurement",
    "Mistake",
    "Row",
    "apply_to_file",
    "assess",
    "measure",
]
__all__ += ["calibrator_source", "data_source", "load_checked_calibrator", "summarize"]
