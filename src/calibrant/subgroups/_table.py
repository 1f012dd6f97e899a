"""How wrong the probabilities are in subgroups, before and after their correction."""

from dataclasses import dataclass

from calibrant._text import cut_middle
from calibrant.metrics import Interval


@dataclass(frozen=True)
class SubgroupRow:
    """A subgroup, and confidence minus frequency of the event in it."""

    name: str
    n: int
    before: Interval
    after: Interval


@dataclass(frozen=True)
class SubgroupTable:
    """The worst subgroups that the fit found, measured on new examples, the worst of the fit first."""

    rows: tuple[SubgroupRow, ...]
    nll_before: float
    nll_after: float
    nll_gain: Interval  # nll_before - nll_after

    def __str__(self) -> str:
        gain = self.nll_gain
        title = f"{100 * gain.level:g} % interval"
        lines = [f"{'subgroup':48} {'n':>8} {'before':>8} {'':>18} {'after':>8} {title:>18}"]
        for row in self.rows:
            texts = [_percent_texts(interval) for interval in (row.before, row.after)]
            numbers = " ".join(f"{value:>8} {limits:>18}" for value, limits in texts)
            lines.append(f"{cut_middle(row.name, 48):48} {row.n:8,} {numbers}")
        nlls = f"NLL {self.nll_before:.4f} before, {self.nll_after:.4f} after"
        lines.append(f"{nlls}: a gain of {gain.value:.4f} ({gain.low:.4f} to {gain.high:.4f}).")
        return "\n".join(lines)


def _percent_texts(interval: Interval) -> tuple[str, str]:
    """Return the value and the limits of an interval in percent."""
    return f"{100 * interval.value:+.1f} %", f"{100 * interval.low:+.1f} to {100 * interval.high:+.1f} %"
