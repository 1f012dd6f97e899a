"""Studies: grids of networks to train, calibrate and measure; each run is kept, so that nothing is done twice.

`run` trains what is missing and measures, `measure` measures again, `status` says how it stands, `draw` draws how
the networks learned.
"""

from calibrant.study.config import Grid, Run, Study
from calibrant.study.front import draw, measure, run, status
from calibrant.study.models import Model
from calibrant.study.progress import Progress
from calibrant.study.recipe import RECIPES, Recipe
from calibrant.study.results import Result, Status
from calibrant.study.store import Store

__all__ = ["RECIPES", "Grid", "Model", "Progress", "Recipe", "Result", "Run", "Status", "Store", "Study"]
__all__ += ["draw", "measure", "run", "status"]
