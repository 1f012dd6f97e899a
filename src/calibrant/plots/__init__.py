"""Plot functions: each draws numbers on matplotlib axes and returns the axes. None computes, shows or saves."""

from calibrant.plots import _decisions, _monitoring, _planning, _predictions, _theory
from calibrant.plots._decisions import *
from calibrant.plots._monitoring import *
from calibrant.plots._planning import *
from calibrant.plots._predictions import *
from calibrant.plots._predictions import BACKGROUND_COLOR, BAR_COLOR, GAP_COLOR, LINE_COLOR
from calibrant.plots._theory import *

__all__ = ["BACKGROUND_COLOR", "BAR_COLOR", "GAP_COLOR", "LINE_COLOR"]
__all__ += _decisions.__all__
__all__ += _monitoring.__all__
__all__ += _planning.__all__
__all__ += _predictions.__all__
__all__ += _theory.__all__
