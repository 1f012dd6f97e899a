"""Rows that wait for labels, and fingerprints of rows that were processed."""

import hashlib
from collections import Counter
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeVar

import numpy as np
from jaxtyping import Float, Int64, UInt64

from calibrant._core.text import shorten_list
from calibrant._core.types import Index, InputError, Range

UNKNOWN_LABEL = -1
NO_KEY = np.uint64(0)  # of rows without an id
MAX_RECENT_ROWS = 100_000  # processed rows whose id and label are remembered
Keys = UInt64[np.ndarray, " n"]
RowIndices = Annotated[Int64[np.ndarray, " n"], Range(ge=UNKNOWN_LABEL)]
RowLabels = Annotated[Int64[np.ndarray, " n"], Index("probs", axis=1, lowest=UNKNOWN_LABEL)]
RowProbs = Annotated[Float[np.ndarray, "n k"], Range(ge=0, le=1)]
Aligned = TypeVar("Aligned", bound="AlignedArrays")


@dataclass(frozen=True, eq=False)
class AlignedArrays:
    """A base for dataclasses whose fields are arrays with the same first axis."""

    def __len__(self) -> int:
        return len(next(iter(vars(self).values())))

    def __getitem__(self: Aligned, rows: Any) -> Aligned:
        """Select rows by slice, mask or indices."""
        return type(self)(**{name: array[rows] for name, array in vars(self).items()})

    def concatenate(self: Aligned, added: Aligned) -> Aligned:
        """Return these rows and others after them."""
        return type(self)(**{name: np.concatenate([array, getattr(added, name)]) for name, array in vars(self).items()})


@dataclass(frozen=True, eq=False)
class Rows(AlignedArrays):
    """Rows in the order of prediction."""

    keys: Keys  # (n) uint64, hashes of the ids, or NO_KEY
    labels: RowLabels  # (n) int64, or UNKNOWN_LABEL
    probs: RowProbs  # (n k) float64
    groups: RowIndices  # (n) int64, or -1
    periods: RowIndices  # (n) int64

    @classmethod
    def empty(cls, k: int) -> "Rows":
        """Return no rows of k classes."""
        integers = np.zeros(0, dtype=np.int64)
        keys = np.zeros(0, dtype=np.uint64)
        return cls(keys=keys, labels=integers, probs=np.zeros((0, k)), groups=integers, periods=integers)

    def with_labels(self, rows: np.ndarray, labels: np.ndarray) -> "Rows":
        """Return a copy with labels of some rows. An unknown label leaves the known one.

        Raises:
            InputError: If one of the rows has another label.
        """
        check_same_labels(self.labels[rows], labels)
        all_labels = self.labels.copy()
        all_labels[rows] = np.where(labels == UNKNOWN_LABEL, all_labels[rows], labels)
        return replace(self, labels=all_labels)

    @property
    def num_leading_labels(self) -> int:
        """Number of rows before the first one without a label."""
        unlabeled = np.flatnonzero(self.labels == UNKNOWN_LABEL)
        return int(unlabeled[0]) if len(unlabeled) else len(self)


@dataclass(frozen=True, eq=False)
class RecentRows(AlignedArrays):
    """Fingerprints of the last processed rows: their keys and labels."""

    keys: Keys  # (n) uint64
    labels: RowIndices  # (n) int64; UNKNOWN_LABEL for rows that were given up

    @classmethod
    def empty(cls) -> "RecentRows":
        """Return no rows."""
        return cls(np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=np.int64))

    def extended(self, rows: "Rows | RecentRows") -> "RecentRows":
        """Return the fingerprints of these and later rows with an id, at most MAX_RECENT_ROWS."""
        rows = rows[rows.keys != NO_KEY]
        return self.concatenate(replace(self, keys=rows.keys, labels=rows.labels))[-MAX_RECENT_ROWS:]


def check_same_labels(old: np.ndarray, new: np.ndarray) -> None:
    """Raise `InputError` if a row has two different labels that are both known."""
    is_changed = (old != UNKNOWN_LABEL) & (new != UNKNOWN_LABEL) & (old != new)
    if count := int(is_changed.sum()):
        raise InputError(
            f"Expected the labels that were given before, got other labels in {count:,} rows. Evidence cannot be taken "
            "back: try reset() (--reset) to start a new epoch with the corrected labels.",
            code="label_changed",
        )


def locate(keys: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return the index of each wanted key in `keys`, or -1."""
    if not len(keys):
        return np.full(len(wanted), -1)
    order = np.argsort(keys, kind="stable")
    sorted_keys = keys[order]
    position = np.minimum(np.searchsorted(sorted_keys, wanted), len(keys) - 1)  # the last one, for larger keys
    return np.where(sorted_keys[position] == wanted, order[position], -1)


def hash_ids(ids: Any) -> np.ndarray:
    """Return a 64-bit hash of the text of each id.

    Raises:
        InputError: If an id is missing or occurs twice.
    """
    all_texts = id_texts(ids)
    texts = [text for text in all_texts if text is not None]
    if len(texts) < len(all_texts):
        raise InputError("Expected an id in every row, got rows without one.", code="missing_id")
    keys = np.array([hash_text(text) for text in texts], dtype=np.uint64)
    if len(np.unique(keys)) < len(keys):
        repeated = [text for text, count in Counter(texts).items() if count > 1]
        raise InputError(
            f"Expected one row per id, got several rows of {shorten_list(repeated, 3)}. Try another column, or one row "
            "per prediction.",
            code="repeated_id",
        )
    return keys


def id_texts(ids: Any) -> list[str | None]:
    """Return ids as texts without blanks around them, and None for missing ones.

    Floats such as 7.0 are "7", because gaps turn integer columns into floats.
    """
    values = ids.tolist() if hasattr(ids, "tolist") else list(ids)
    return [None if value is None or value != value else _id_text(value) for value in values]  # NaN differs from itself


def _id_text(value: Any) -> str:
    """Return an id as text."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value).strip()


def hash_text(text: str) -> int:
    """Return 64 bits of a hash that is the same in every process, unlike `hash`."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def batch_digest(*arrays: np.ndarray | None) -> int:
    """Return a 64-bit digest of the arrays of a batch."""
    digest = hashlib.blake2b(digest_size=8)
    for array in arrays:
        digest.update(b"-" if array is None else array.tobytes())  # None differs from an empty array
    return int.from_bytes(digest.digest(), "little")
