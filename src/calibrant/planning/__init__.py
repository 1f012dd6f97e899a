"""Plan an evaluation: how many examples or clusters to label, and which. It never fits a calibrator.

`sample_size` simulates future examples, from predictions or from assumptions. `quick_sample_size` is a fast estimate.
"""

from calibrant.planning._populations import Pattern as Pattern
from calibrant.planning._result import FIGURE_SUFFIXES as FIGURE_SUFFIXES
from calibrant.planning._result import SampleSize
from calibrant.planning._sample_size import quick_sample_size, sample_size
from calibrant.planning._sample_size import round_up as round_up
from calibrant.planning._search import PowerPoint

__all__ = ["PowerPoint", "SampleSize", "quick_sample_size", "sample_size"]
