"""Studies: train, calibrate and measure grids of networks. Finished runs are stored and reused.

`run` trains the missing runs and measures, `measure` measures again, `status` shows the state of the runs, `draw` draws
figures, and `table` shows one table of a paper beside the study's own values.
"""

from calibrant.lab.study.api import draw, measure, run, status, table
from calibrant.lab.study.config import Study
from calibrant.lab.study.grids import Grid, Model, Run
from calibrant.lab.study.paper_tables import PaperTable
from calibrant.lab.study.progress import Progress
from calibrant.lab.study.recipe import RECIPES, Recipe
from calibrant.lab.study.results import Result, Status
from calibrant.lab.study.store import Store

__all__ = ["RECIPES", "Grid", "Model", "PaperTable", "Progress", "Recipe", "Result", "Run", "Status", "Store", "Study"]
__all__ += ["draw", "measure", "run", "status", "table"]
