"""Studies: grids of networks to train, calibrate and measure; each run is kept, so that nothing is done twice.

`run` trains what is missing and measures, `measure` measures again, `status` says how it stands, `draw` draws how
the networks learned.
"""

from calibrant.lab.study.api import draw, measure, run, status
from calibrant.lab.study.config import Grid, Run, Study
from calibrant.lab.study.external_models import Model
from calibrant.lab.study.progress import Progress
from calibrant.lab.study.recipe import RECIPES, Recipe
from calibrant.lab.study.results import Result, Status
from calibrant.lab.study.store import Store

__all__ = ["RECIPES", "Grid", "Model", "Progress", "Recipe", "Result", "Run", "Status", "Store", "Study"]
__all__ += ["draw", "measure", "run", "status"]
