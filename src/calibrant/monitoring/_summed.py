"""What a check needs of a `Summary`, which has sums in place of rows."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from calibrant._core.types import InputError
from calibrant.metrics import FEATURES, NUM_GROUP_SLOT_FEATURES, BinSums, Summary
from calibrant.monitoring._features import states_confidence
from calibrant.monitoring._requirement import Requirement
from calibrant.predictions import Predictions
from calibrant.predictions.validation import resolve_event
from calibrant.predictions.validation.weights import COUNTS

Source = Predictions | BinSums  # rows, or the sums of a `Summary` or of one of its groups


def has_clusters(p: Source) -> bool:
    """Return whether several examples form a cluster."""
    return p.shared_clusters is not None if isinstance(p, Predictions) else p.slots is not None


def num_examples(p: Source) -> int:
    """Return the number of examples."""
    return p.num_examples if isinstance(p, Predictions) else int(p.total("rows"))


def summed_groups(summary: Summary) -> dict[str, BinSums]:
    """Return the sums of each group with examples, by name. Raise `InputError` without groups."""
    if summary.groups is None:
        raise InputError("Expected a summary with groups, got one without. Try by= in Summary.query.", code="no_groups")
    return {name: sums for name, sums in summary.groups if sums.total_weight > 0}


def check_summary(summary: Summary, requirements: Sequence[Requirement], of: Any, *, by_group: bool) -> None:
    """Raise `InputError` for an event or a requirement that a summary has no sums for."""
    if not len(summary):
        raise InputError("Expected a summary of at least one example, got none.", code="no_rows")
    if of is not None and resolve_event(of, summary.k, summary.class_names) != summary.of:
        raise InputError(
            f"Expected of={summary.of!r}, the event of this summary, got {of!r}. Try a summary of that event.",
            code="summary_event",
        )
    for requirement in requirements:
        metric = requirement.metric
        if not metric.fits_summary(by_class=False):
            raise InputError(
                f"{requirement.text} needs every prediction, not a summary. Try checking them in memory.",
                code="summary_only",
            )
        of_groups = metric.takes == "statistics" or (metric.sums or "?")[0] in FEATURES[:NUM_GROUP_SLOT_FEATURES]
        if by_group and not of_groups:
            raise InputError(
                f"Expected requirements on accuracy, gap or ECE in the groups of a summary, got {requirement.text}. "
                "Try a summary of each group.",
                code="summary_only",
            )


def with_stated_answers(summary: Summary) -> Summary:
    """Return a summary whose accuracy is that of the answers if their confidences are stated, as `stated_answers`."""
    if not states_confidence(summary):
        return summary

    def answered(part: Any) -> Any:
        """Return sums whose feature "correct" is the outcome."""
        words = {name: None if (array := getattr(part, name)) is None else _copy(array) for name in ("sums", "slots")}
        return replace(part, **words)

    def _copy(array: np.ndarray) -> np.ndarray:
        """Return the words of sums (3 f ...) with one feature replaced."""
        array = array.copy()
        array[:, FEATURES.index("correct")] = array[:, FEATURES.index("outcome")]
        return array

    groups = None if summary.groups is None else answered(summary.groups)
    return replace(answered(summary), groups=groups)


def label_counts(summary: Summary) -> Predictions | None:
    """Return predictions with a row for each class (and group), with its number of labels as weight.

    They tell the values of constant models. None if the summary does not know the numbers of labels.
    """
    k, of = summary.k, summary.of
    if k == 2 and isinstance(of, int):
        parts = summed_groups(summary) if summary.groups is not None else {"": summary}
        totals = [(part.total("outcome"), part.total_weight) for part in parts.values()]
        counts = np.array([[n - a, a] if of == 1 else [a, n - a] for a, n in totals])
    elif summary.classes is not None and summary.groups is None:
        parts, counts = {"": summary}, summary.classes.rows[:1]
    else:
        return None
    names = [name for name in parts for _ in range(k)]
    labels, weights = np.tile(np.arange(k), len(parts)), np.maximum(counts, 0).flatten()
    options: dict[str, Any] = {"of": of, "class_names": summary.class_names, "weights_are": COUNTS}
    return Predictions(np.zeros((len(labels), k)), labels, weights, groups=names, **options)
