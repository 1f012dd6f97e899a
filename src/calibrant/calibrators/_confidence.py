"""The probability that binning and splines recalibrate."""

from typing import Any, Literal

from calibrant.calibrators._capabilities import certified_classes
from calibrant.predictions import Predictions

BinnedEvent = Literal["top", 0, 1]  # the predicted class, or one class of two


def binned_event(p: Predictions) -> BinnedEvent:
    """Return the class whose probability is recalibrated: the evaluated one of two, otherwise the predicted one."""
    return p.of if p.k == 2 and p.of in (0, 1) else "top"


def binned_num_classes(calibrator: Any) -> int:
    """Return the number of classes that a calibrator accepts: 2 if it maps one class of two, 0 if unknown."""
    return certified_classes(calibrator) if calibrator.of == "top" else 2
