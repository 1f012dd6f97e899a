"""Figures: every function takes numbers and an `ax`, draws, and gives the `ax` back; none computes, shows or saves."""

from calibrant.plots import _predictions
from calibrant.plots._predictions import *

__all__: list[str] = []
__all__ += _predictions.__all__
