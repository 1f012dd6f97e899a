"""The record that every reader fills: scores and labels as a source holds them, before they are validated."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from calibrant._core.text import parse_integer, shorten_list
from calibrant._core.types import InputError
from calibrant.predictions import Predictions
from calibrant.predictions.events import BINARY_EVENTS
from calibrant.predictions.validation import resolve_event
from calibrant.predictions.validation.labels import Positions
from calibrant.predictions.validation.names import factorize_samples, group_name_per_sample


@dataclass(frozen=True, eq=False)
class Contents:
    """What a file, table or log holds of predictions."""

    kind: str  # of the scores: logits, probs or confidence
    scores: Any
    labels: Any = None  # beside a confidence: whether the answer was correct, or its credit
    class_names: Any = None
    weights: Any = None
    weights_are: str | None = None
    clusters: Any = None
    groups: Any = None  # names, or with `group_names` indices of these
    group_names: Any = None
    examples: Any = None
    ids: Any = None
    event: str | None = None  # the event to evaluate, by name or index
    event_kind: str = "correct"  # of a confidence: the kind in `events.BINARY_KINDS`
    is_multilabel: bool = False  # labels (n, l) are l labels per row
    notes: tuple[str, ...] = ()

    def with_labels(self) -> "Contents":
        """Return the contents, with labels of 0 if they have none, one per row or position."""
        shape = np.shape(self.scores)
        return self if self.labels is not None else replace(self, labels=np.zeros(shape[:1] + shape[2:], np.int64))

    @property
    def keys(self) -> list[str]:
        """The kind of the scores, and the columns beside them and the labels."""
        columns = ("weights", "clusters", "groups", "examples")
        return sorted([self.kind, *(name for name in columns if getattr(self, name) is not None)])

    @property
    def has_single_logits(self) -> bool:
        """Whether there is a single logit for each label, and not one for each class, or probabilities."""
        return self.kind == "logits" and (self.is_multilabel or self._is_single)

    @property
    def _is_single(self) -> bool:
        """Whether scores (n,) or (n, 1) have one number per label instead of one per class."""
        shape = np.shape(self.scores)
        return len(shape) == 1 or shape[1:] == (1,)

    def to_predictions(
        self, ignore_index: int | None = None, of: Any = None, *, are_logits: bool = False
    ) -> Predictions:
        """Return predictions by the constructor for this kind of scores.

        Args:
            ignore_index: Label of positions to leave out.
            of: Event to evaluate. Default: the event in the file, else class 1 of a confidence or of several labels,
                else the default of the constructor.
            are_logits: Accept single logits that all lie in [0, 1], as probabilities do.
        """
        p = self._build(ignore_index, are_logits=are_logits)
        changes: dict[str, Any] = {"notes": (*self.notes, *p.notes)}
        if self.examples is not None:
            changes["examples"] = factorize_samples(self.examples, "examples", len(p))[0]
        if of is None and self.event is not None:
            index = parse_integer(self.event)
            of = self.event if index is None else index
        elif of is None and p.class_names in BINARY_EVENTS:  # such as wrong and correct
            of = 1
        if of is not None:
            changes["of"] = resolve_event(of, p.k, p.class_names)
        return p._replace(**changes)  # pyright: ignore[reportPrivateUsage]

    def _build(self, ignore_index: int | None, *, are_logits: bool) -> Predictions:
        """Return predictions by the constructor for this kind of scores, with its default event."""
        if self.labels is None:
            raise missing_scores_error(self.keys)
        scores, labels, groups, shape = self.scores, self.labels, self.groups, np.shape(self.scores)
        if self.class_names is not None and np.asarray(labels).dtype.kind in "iu":
            labels = np.asarray(labels).view(Positions)
        if groups is not None and self.group_names is not None:
            groups = group_name_per_sample(groups, self.group_names)
        options: dict[str, Any] = {"weights": self.weights, "clusters": self.clusters, "groups": groups}
        options["weights_are"] = self.weights_are
        if self.kind == "confidence":  # every stated confidence counts, whatever label is ignored
            return Predictions.from_confidence(scores, labels, of=self.event_kind, **options)
        options["ignore_index"] = ignore_index
        is_probs = self.kind == "probs"
        if self.is_multilabel and len(shape) == 2 and shape[1] > 1 and np.shape(labels) == shape:
            options |= {"probs": True} if is_probs else {"logits": are_logits}
            return Predictions.multilabel(scores, labels, names=self.class_names, **options)
        options["class_names"] = self.class_names
        if is_probs:  # a single column is the probability of class 1
            return Predictions.from_probs(scores[:, 0] if shape[1:] == (1,) else scores, labels, **options)
        if self._is_single:
            return Predictions.from_binary_logits(scores, labels, logits=are_logits, **options)
        return Predictions(scores, labels, **options)


class Chunk(NamedTuple):
    """Some rows of a file."""

    contents: Contents | None  # None if all rows were left out
    incomplete: Counter[str]  # number of rows that were left out, by reason


@dataclass(frozen=True)
class ChunkedFile:
    """A file that is read some rows at a time."""

    num_rows: int
    numbers_per_row: int  # of the scores
    read: Callable[[slice], Chunk]
    notes: tuple[str, ...] = ()  # sentences on the roles of columns
    has_fractional_weights: bool = False  # without clusters or a word on what they are


def missing_scores_error(names: Sequence[str]) -> InputError:
    """Return the error for a file with none of the required arrays, which lists the arrays it has."""
    return InputError(
        "Expected 'labels' and either 'logits' or 'probs', or 'confidence' and 'correct', got "
        f"{shorten_list(names) or 'nothing'}.",
        code="no_scores",
    )
