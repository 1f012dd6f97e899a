"""Decide what weights are: numbers of copies, or the importance of rows."""

from typing import Any

from calibrant._core.text import shorten_repr
from calibrant._core.types import InputError

COUNTS, IMPORTANCE = "counts", "importance"  # the values of `weights_are`
FRACTIONS_NOTE = (
    "Some weights are fractions: they are read as importance, and each row counts as one independent example "
    '(weights_are="counts" reads them as numbers of copies).'
)


def resolve_weights_are(weights_are: Any, weights: Any, clusters: Any) -> str | None:
    """Return what weights (n) are, "counts" or "importance", or None without weights.

    If `weights_are` is None, integers are counts, and fractions without clusters are importance: an interval from
    fractions that were taken for counts would be too narrow. With clusters (n), intervals do not depend on the reading,
    and fractions are counts, such as the shares of votes.

    Raises:
        InputError: If `weights_are` is another word, or there are no weights.
    """
    if weights_are not in (None, COUNTS, IMPORTANCE):
        raise InputError(
            f'Expected weights_are as "counts" or "importance", got {shorten_repr(weights_are)}. Try "counts" for '
            'numbers of copies, "importance" for importance and survey weights.',
            code="weights_are",
        )
    if weights is None and weights_are is not None:
        raise InputError(
            f'Expected weights beside weights_are="{weights_are}", got none. Try leaving weights_are out.',
            code="no_weights",
        )
    if weights is None or weights_are is not None:
        return weights_are
    return IMPORTANCE if clusters is None and not bool((weights == weights.round()).all()) else COUNTS
