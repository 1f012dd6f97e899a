"""Sentences on data whose labels are all of one class, or lack one."""

from collections.abc import Sequence

from calibrant._core.text import join_names
from calibrant.metrics import Interval, Summary
from calibrant.predictions import Predictions
from calibrant.predictions.events import BINARY_EVENTS, EventKind, quote

MAX_NAMED_CLASSES = 5
ALIKE_REMARK = "Calibrators are therefore limited to those that treat all classes alike."


def find_only_class(source: Predictions | Summary, event: EventKind, frequency: Interval) -> int | None:
    """Return the class that all labels are of, or None if there are several, or a summary does not tell.

    `frequency` is the observed frequency of the event.
    """
    if isinstance(source, Predictions):
        absent = {*source.absent_classes}
        return next(j for j in range(source.k) if j not in absent) if source.has_one_class else None
    if isinstance(event.selector, int) and frequency.value == 1:
        return event.selector
    if isinstance(event.selector, int) and frequency.value == 0 and source.k == 2:
        return 1 - event.selector
    return None


def only_class_remark(only_class: int, names: Sequence[str] | None, event: EventKind, n: int, k: int) -> str:
    """Say that all of `n` labels are of one of `k` classes, and what to try for pairs of scores."""
    is_class_of_two = k == 2 and names not in BINARY_EVENTS
    hint = " If every row compares two scores, try Predictions.from_pairs." if is_class_of_two else ""
    return (
        f"Every label is {class_label(only_class, names)} ({event.count(n)}), so that nothing is known about "
        f"{event.units} with another label.{hint}"
    )


def fitting_remarks(p: Predictions, event: EventKind) -> tuple[str, ...]:
    """Return sentences on classes that no label of the fitting data is of, () if every class has a label."""
    absent = p.absent_classes
    if not absent:
        return ()
    if p.has_one_class:
        (only_class,) = {*range(p.k)} - {*absent}
        return (only_class_remark(only_class, p.class_names, event, p.num_examples, p.k), ALIKE_REMARK)
    labels = [class_label(j, p.class_names) for j in absent[:MAX_NAMED_CLASSES]]
    if len(absent) > MAX_NAMED_CLASSES:
        labels.append(f"{len(absent) - MAX_NAMED_CLASSES:,} more")
    return (
        f"The fitting data have no label of {join_names(labels)}, which calibrators that learn the frequencies of "
        "classes make rare.",
    )


def class_label(index: int, names: Sequence[str] | None) -> str:
    """Return a class as it appears in a sentence: its name in quotation marks, or its number."""
    return f"class {index}" if names is None else quote(names[index])
