"""Studies: grids of networks to train, calibrate and measure; each run is kept, so that nothing is done twice."""

from calibrant.study.config import Grid, Run, Study
from calibrant.study.recipe import RECIPES, Recipe
from calibrant.study.store import Store

__all__ = ["RECIPES", "Grid", "Recipe", "Run", "Store", "Study"]
