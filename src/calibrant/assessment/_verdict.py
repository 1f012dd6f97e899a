"""The verdict on calibration, which titles, answers, notes and JSON follow."""

from dataclasses import dataclass
from typing import Literal

from calibrant._core.numbers import MAX_RARE_RATE
from calibrant.metrics import MISCALIBRATION_P_VALUE

Status = Literal["miscalibrated", "no_evidence", "too_little_data"]
Direction = Literal["over", "under"]

DEFAULT_TOLERANCE = 0.05
RELATIVE_TOLERANCE = DEFAULT_TOLERANCE / MAX_RARE_RATE  # one half


def default_tolerance(base_rate: float | None) -> float:
    """Return the smaller of 5 points and half of the rate of the rarer outcome. Without a base rate, return 5 points.

    >>> default_tolerance(None), default_tolerance(0.3), default_tolerance(0.004), default_tolerance(0.98)
    (0.05, 0.05, 0.002, 0.01)
    """
    if base_rate is None:
        return DEFAULT_TOLERANCE
    return min(DEFAULT_TOLERANCE, round(RELATIVE_TOLERANCE * min(base_rate, 1 - base_rate), 15))


@dataclass(frozen=True)
class Verdict:
    """The conclusion about calibration that the data allow.

    - "miscalibrated": the omnibus test rejects calibration, p < 0.05.
    - "no_evidence": it does not, and the error is at most `tolerance`, because its upper bound is.
    - "too_little_data": it does not, but the upper bound exceeds `tolerance`.
    """

    status: Status
    direction: Direction | None  # sign of the signed gap if miscalibrated and its interval excludes 0
    p_value: float  # of the omnibus test
    bound: float  # upper bound of the L2 error; at the level 0.9 of intervals it holds with probability 0.95
    tolerance: float

    @classmethod
    def decide(cls, *, p_value: float, gap: tuple[float, float], error_high: float, tolerance: float) -> "Verdict":
        """Decide from the values of a table of metrics.

        The L2 error is at least |signed gap|, the distance of the mean confidence from the frequency. Its upper bound
        is therefore raised to the upper bound of |signed gap|.

        Args:
            p_value: p-value of the omnibus test.
            gap: Ends (low, high) of the interval of the signed gap, mean confidence minus frequency.
            error_high: Upper end of the interval of the debiased L2 error.
            tolerance: Largest acceptable L2 error.
        """
        low, high = gap
        bound = max(error_high, high, -low)
        status, direction = "no_evidence" if bound <= tolerance else "too_little_data", None
        if p_value < MISCALIBRATION_P_VALUE:
            status = "miscalibrated"
            if low > 0:
                direction = "over"
            elif high < 0:
                direction = "under"
        return cls(status, direction, p_value=p_value, bound=bound, tolerance=tolerance)

    @property
    def is_miscalibrated(self) -> bool:
        """Whether the status is "miscalibrated"."""
        return self.status == "miscalibrated"
