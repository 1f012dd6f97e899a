"""Studies: grids of networks to train, calibrate and measure; each run is kept, so that nothing is done twice."""

from calibrant.study.config import Recipe, Run, Study
from calibrant.study.store import Store

__all__ = ["Recipe", "Run", "Store", "Study"]
