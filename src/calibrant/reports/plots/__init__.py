"""Plot functions: each draws numbers on matplotlib axes and returns the axes. None computes, shows or saves."""

from calibrant.reports.plots._decisions import net_benefit, prediction_sets
from calibrant.reports.plots._monitoring import evidence_timeline, gap_timeline
from calibrant.reports.plots._planning import power_curve
from calibrant.reports.plots._predictions import (
    BACKGROUND_COLOR,
    BAR_COLOR,
    GAP_COLOR,
    LINE_COLOR,
    SERIES_COLORS,
    confidence_histogram,
    curves,
    flexible_curve,
    histograms,
    intervals,
    reliability,
    reliability_curve,
    risk_coverage,
)
from calibrant.reports.plots._predictions import has_rare_scores as has_rare_scores
from calibrant.reports.plots._predictions import rare_histogram as rare_histogram
from calibrant.reports.plots._theory import curve_family, simplex_arrows, simplex_contours, simplex_heat

__all__ = ["BACKGROUND_COLOR", "BAR_COLOR", "GAP_COLOR", "LINE_COLOR", "SERIES_COLORS", "confidence_histogram"]
__all__ += ["curve_family", "curves", "evidence_timeline", "flexible_curve", "gap_timeline", "histograms", "intervals"]
__all__ += ["net_benefit", "power_curve", "prediction_sets", "reliability", "reliability_curve"]
__all__ += ["risk_coverage", "simplex_arrows", "simplex_contours", "simplex_heat"]
