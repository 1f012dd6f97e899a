"""Subgroups of the examples, described by their features, in which probabilities are wrong, and their correction."""

from calibrant.calibrators.subgroups._multicalibrated import MultiCalibrated, SubgroupRow, SubgroupTable

__all__ = ["MultiCalibrated", "SubgroupRow", "SubgroupTable"]
