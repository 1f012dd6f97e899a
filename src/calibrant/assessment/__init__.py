"""The front door: `measure` looks at predictions, `assess` fits calibrators, judges them, and chooses one.

Both return a value that prints, shows itself in a notebook, and saves itself as a page or as numbers.
"""

from calibrant.assessment._apply import apply_to_file
from calibrant.assessment._assess import Assessment, assess
from calibrant.assessment._candidates import CALIBRATORS, saved
from calibrant.assessment._event import Event
from calibrant.assessment._judge import Mistake
from calibrant.assessment._measure import Measurement, measure, summary_of
from calibrant.assessment._provenance import calibrator_source, data_source
from calibrant.assessment._table import Row

__all__ = ["CALIBRATORS", "Assessment", "Event", "Measurement", "Mistake", "Row", "apply_to_file", "assess", "measure"]
__all__ += ["calibrator_source", "data_source", "saved", "summary_of"]
