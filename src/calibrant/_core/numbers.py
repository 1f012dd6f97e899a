"""How numbers are written for people: with two significant digits at least, so that rare events stay readable."""

import math

MAX_RARE_RATE = 0.1  # of an event, below which errors are also written relative to its base rate
MAX_MORE_DIGITS = 5  # beyond the usual ones; smaller numbers are no more than rounding errors


def format_number(value: float, digits: int, sign: str = "") -> str:
    """Return a number with `digits` decimals, or as many as show two significant digits.

    `sign` is "+" for numbers whose sign matters. A rounded -0.00 is written as 0.00.

    >>> format_number(0.5, 2), format_number(0.00123, 2), format_number(0.0, 2), format_number(1e-12, 2)
    ('0.50', '0.0012', '0.00', '0.00')
    """
    return f"{value:{sign}z.{_num_decimals(abs(value), digits, significant=2)}f}"


def _num_decimals(size: float, digits: int, significant: int) -> int:
    """Return the number of decimals, at least `digits`, that show significant digits of a number of this size."""
    if not 10.0 ** -(digits + MAX_MORE_DIGITS) <= size < 1:
        return digits
    return max(digits, significant - 1 - math.floor(math.log10(size)))


def format_percent(share: float, digits: int = 2, sign: str = "") -> str:
    """Return a share in percent. Shares near 0 and near 1 have as many decimals as tell them from these.

    >>> format_percent(0.12345), format_percent(0.0027, 1), format_percent(0.99997, 1)
    ('12.35 %', '0.27 %', '99.997 %')
    """
    rest = 100 * (1 - share)
    if 0 < rest < 1:
        return f"{100 * share:{sign}z.{_num_decimals(rest, digits, significant=1)}f} %"
    return f"{format_number(100 * share, digits, sign)} %"


def format_percent_range(low: float, high: float, digits: int = 2, sign: str = "") -> str:
    """Return the ends of an interval of shares in percent.

    >>> format_percent_range(0.1, 0.25, 0)
    '10 to 25 %'
    """
    return f"{format_percent(low, digits, sign).removesuffix(' %')} to {format_percent(high, digits, sign)}"


def format_points(difference: float, digits: int = 1, sign: str = "") -> str:
    """Return a difference of shares in percentage points, without the unit.

    >>> format_points(0.123), format_points(-0.00042, sign="+")
    ('12.3', '-0.042')
    """
    return format_number(100 * difference, digits, sign)


def format_multiple(value: float, reference: float) -> str:
    """Return the size of a number relative to another, as the beginning of "the base rate".

    >>> format_multiple(-0.0012, 0.003), format_multiple(0.0051, 0.003), format_multiple(0.3, 0.003)
    ('40 % of', '1.7 times', '100 times')
    """
    ratio = abs(value) / reference
    if ratio < 1:
        return f"{format_percent(ratio, 0)} of"
    return f"{ratio:,.{0 if ratio >= 10 else 1}f} times"


def format_level(level: float) -> str:
    """Return the level of an interval in percent, such as "90 %"."""
    return f"{100 * level:g} %"


def format_p_value(p: float) -> str:
    """Return a p-value such as "p = 0.034" or "p < 0.0001"."""
    return "p < 0.0001" if p < 1e-4 else f"p = {p:.2g}"
