"""Subgroups of the examples, described by their features, in which probabilities are wrong, and their correction."""

from calibrant.subgroups._multicalibrated import MultiCalibrated
from calibrant.subgroups._table import SubgroupRow, SubgroupTable

__all__ = ["MultiCalibrated", "SubgroupRow", "SubgroupTable"]
