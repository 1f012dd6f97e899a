"""A user-defined metric and calibrator, from public names only."""

import numpy as np

from calibrant import calibrators, metrics


@metrics.metric("top-2 accuracy", unit="share", higher_is_better=True, meaning="the label is among the first two")
def top2(logits, labels):
    """Compute the share of samples whose label is among the two most probable classes."""
    return (np.argsort(logits, 1)[:, -2:] == labels[:, None]).any(1).mean()


@calibrators.register
class Shrink:
    """Integer temperature with the lowest NLL, the smallest of equals: not a dataclass."""

    def __init__(self, by):
        self.by = by

    @classmethod
    def fit(cls, logits, labels, *, max_temperature: int = 8):
        return cls(min(range(1, max_temperature + 1), key=lambda t: float(metrics.nll(logits / t, labels))))

    def __call__(self, logits):
        return logits / self.by
