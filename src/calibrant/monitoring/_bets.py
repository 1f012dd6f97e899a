r"""Bets against calibration: how much of the wealth to stake on each confidence.

A bet multiplies the wealth by $1 + \lambda(c)(y - c)$ for an event of probability $c$ with outcome $y$. If the model
is calibrated, given the past, the expected factor is 1 whatever the function $\lambda$ is, so that the wealth is a
nonnegative martingale. Here $\lambda$ is a step function of the confidence, chosen for an alternative probability
$q(c)$: the stake $(q - c) / (c (1 - c))$ makes the factor the likelihood ratio of $q$ to $c$, which grows fastest if
$q$ is true (Waudby-Smith and Ramdas 2024, section 5; Podkopaev and Ramdas 2023).
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import expit

MAX_STAKE = 20.0  # so that one event of stated probability 0 multiplies the wealth by at most 21
MIN_FACTOR = 0.02  # smallest factor of a bet, which keeps every factor positive
_MAX_CELL_LOGIT = 8.0
_CELL_LOGITS = np.linspace(-_MAX_CELL_LOGIT, _MAX_CELL_LOGIT, 129)
CELL_EDGES: np.ndarray = expit(_CELL_LOGITS)  # of the steps, in confidence


@dataclass(frozen=True)
class Bet:
    """An alternative to calibration: true probabilities q = expit(slope logit(c) + shift) in a band of confidence."""

    kind: Literal["shift", "slope", "band"]
    shift: float = 0.0
    slope: float = 1.0
    low: float = 0.0
    high: float = 1.0

    def alternative(self, confidence: np.ndarray, logit: np.ndarray) -> np.ndarray:
        """Return the probabilities q of the alternative, which outside the band are the confidences.

        `logit` is the log-odds of `confidence`, of the same shape.
        """
        q = expit(self.slope * logit + self.shift)
        inside = (confidence >= self.low) & ((confidence < self.high) | (self.high == 1))  # the last band has both ends
        return np.where(inside, q, confidence)

    @property
    def description(self) -> str:
        """The deviation that this bet profits from, as "confidences are ..."."""
        if self.kind == "slope":
            return "too extreme" if self.slope < 1 else "not extreme enough"
        direction = "too high" if self.shift < 0 else "too low"
        return direction if self.kind == "shift" else f"{direction} between {self.low:.2f} and {self.high:.2f}"


BETS = (
    *(Bet("shift", shift=sign * size) for size in (0.1, 0.2, 0.4, 0.8, 1.6) for sign in (1, -1)),
    *(Bet("slope", slope=slope) for slope in (0.4, 0.6, 0.75, 0.87, 1.15, 1.35, 1.7, 2.5)),
    *(
        Bet("band", shift=sign * 0.7, low=low, high=high)
        for low, high in ((0.0, 0.2), (0.2, 0.5), (0.5, 0.8), (0.8, 0.95), (0.95, 1.0))
        for sign in (1, -1)
    ),
)
_KIND_WEIGHTS = {"shift": 0.4, "slope": 0.4, "band": 0.2}
LOG_BET_WEIGHTS: np.ndarray = np.log(
    [_KIND_WEIGHTS[bet.kind] / sum(x.kind == bet.kind for x in BETS) for bet in BETS]  # equal within a kind
)


def stake_table() -> np.ndarray:
    """Return the stake of each bet in each cell of confidence, (cells, bets), which keeps all factors positive.

    The stake is (q - c) / (c (1 - c)) at the confidence c in the middle of the cell, on the scale of log-odds. It is
    cut so that 1 + stake (y - c) is at least `MIN_FACTOR` for every c in the cell.
    """
    middle_logits = (_CELL_LOGITS[1:] + _CELL_LOGITS[:-1]) / 2
    logits = np.concatenate([[-_MAX_CELL_LOGIT], middle_logits, [_MAX_CELL_LOGIT]])  # the outer cells are unbounded
    c = expit(logits)
    stakes = np.stack([(bet.alternative(c, logits) - c) / (c * (1 - c)) for bet in BETS], axis=1)
    stakes = np.clip(stakes, -MAX_STAKE, MAX_STAKE)
    low = np.concatenate([[0.0], CELL_EDGES])  # smallest confidence of each cell
    high = np.concatenate([CELL_EDGES, [1.0]])
    max_stake = (1 - MIN_FACTOR) / high[:, None]  # y = 0 multiplies by 1 - stake * c
    min_stake = -(1 - MIN_FACTOR) / (1 - low[:, None])  # y = 1 multiplies by 1 + stake * (1 - c)
    return np.clip(stakes, min_stake, max_stake)


STAKES = stake_table()


def bet_factors(confidence: np.ndarray, outcome: np.ndarray) -> np.ndarray:
    """Return the factor 1 + stake (y - c) of each of the e bets, as a new last axis (... e).

    Args:
        confidence: Confidences c in [0, 1], of any shape.
        outcome: Outcomes y, 0 or 1, of the same shape.
    """
    factors = STAKES[np.searchsorted(CELL_EDGES, confidence, side="right")]  # of the cell of each confidence
    factors *= (outcome - confidence)[..., None]  # in place, as the array is large
    factors += 1.0
    return factors
