"""Rows known by 64-bit hashes: which examples two sets share, whatever their order, and how many would by chance."""

import base64
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from calibrant.backend.dispatch import chunk_elements

MAX_SKETCH_HASHES = 1 << 20  # hashes that a sketch holds
MIN_DISTINCT_ROWS = 10  # rows from which two sets of the same counts are no accident
_HASH_CHUNK_ELEMENTS = 1 << 18  # elements hashed at a time, to stay in cache


def hash_rows(logits: Tensor, labels: Tensor) -> np.ndarray:
    r"""Return a hash of every row: $\sum_j a_j w_j + a y$, mixed, of the words w of two float32 with odd a."""
    n, k = logits.shape
    words = (k + 1) // 2
    keys = _hash_keys(words + 1)
    result = np.empty(n, dtype=np.uint64)
    size, keys = max(1, chunk_elements(logits, _HASH_CHUNK_ELEMENTS) // k), keys.to(logits.device)
    for first in range(0, n, size):
        rows = slice(first, min(first + size, n))
        values = logits.new_zeros(rows.stop - first, 2 * words, dtype=torch.float32)
        values[:, :k] = logits[rows].detach() + 0.0  # -0 is 0
        total = labels[rows].long() * keys[words] + (values.view(torch.int64) * keys[:words]).sum(1)
        result[rows] = _mix_bits(total.cpu().numpy().view(np.uint64))
    return result


@lru_cache(8)
def _hash_keys(count: int) -> Tensor:
    """Odd numbers, the same ones always."""
    return torch.from_numpy(np.random.default_rng(0).integers(0, 2**63, count, dtype=np.int64) | 1)


def _mix_bits(x: np.ndarray) -> np.ndarray:
    """Mix the bits of 64-bit numbers, one to one (splitmix64, Steele, Lea & Flood 2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@dataclass(frozen=True, eq=False)
class Sketch:
    """The hashes of a set's rows, or where they are many, of those whose hash ends in `level` zero bits.

    All copies of a row are in it or none, so that shares of it estimate shares of the set.
    """

    n: int
    hashes: np.ndarray  # uint64, sorted
    level: int = 0

    @classmethod
    def from_hashes(cls, hashes: np.ndarray) -> "Sketch":
        """Of the hashes of all rows."""
        return cls(0, np.empty(0, dtype=np.uint64)).add(hashes)

    def add(self, hashes: np.ndarray) -> "Sketch":
        """The same with more rows."""
        merged = np.concatenate([self.hashes, _thin(hashes, self.level)])
        level = self.level
        while len(merged) > MAX_SKETCH_HASHES:
            level += 1
            merged = _thin(merged, level)
        return Sketch(self.n + len(hashes), np.sort(merged), level)

    def thin_to_level(self, level: int) -> "Sketch":
        """The same, thinned to another level at or above its own."""
        return Sketch(self.n, _thin(self.hashes, level), level)

    def thin_to_size(self, max_hashes: int) -> "Sketch":
        """The same, thinned until it holds no more than `most` hashes."""
        sketch = self
        while len(sketch.hashes) > max_hashes:
            sketch = sketch.thin_to_level(sketch.level + 1)
        return sketch

    def __repr__(self) -> str:
        return f"Sketch({self.n:,} rows, {len(self.hashes):,} hashes)"

    @property
    def text(self) -> str:
        """All of it in one word, for a file: what `read` reads."""
        return f"{self.n}:{self.level}:{base64.b64encode(self.hashes.astype('<u8').tobytes()).decode()}"

    @classmethod
    def from_text(cls, text: str) -> "Sketch":
        """Of its text. Raises `ValueError` if that is none."""
        n, level, encoded = text.split(":")
        hashes = np.frombuffer(base64.b64decode(encoded, validate=True), dtype="<u8").astype(np.uint64)
        if not (0 <= int(level) < 64 and len(hashes) <= int(n)):
            raise ValueError(text)
        return cls(int(n), np.sort(hashes), int(level))


MAX_EXCESS_OVERLAP = 0.1  # share of rows beyond chance from which two sets are no others


@dataclass(frozen=True)
class Overlap:
    """How many rows of two sets are the other's too, and how many would be if both were drawn from one source.

    A row that the other set holds more than once is a common value, such as a clipped probability or one of a small
    forest: finding it there is no sign of copied data, however often it occurs. Of the rows that the other set holds
    once, two samples from one source share about as many as that set has rows in pairs (Good 1953).
    """

    shares: tuple[float, float]  # of the first set's rows that are in the second, and the other way
    expected_shares: tuple[float, float]
    standard_errors: tuple[float, float]  # standard errors of the differences
    is_identical: bool  # the same rows altogether, in whatever order

    @classmethod
    def compare(cls, first: Sketch, second: Sketch) -> "Overlap":
        """Of two sets."""
        level = max(first.level, second.level)
        first, second = first.thin_to_level(level), second.thin_to_level(level)
        pairs = (first, second), (second, first)
        shares = tuple(float(_is_member(a.hashes, b.hashes).mean()) if len(a.hashes) else 0.0 for a, b in pairs)
        expected = tuple(_expected_share(a.hashes, b.hashes) for a, b in pairs)
        errors = tuple(
            _standard_error(share, e, a, b) for share, e, (a, b) in zip(shares, expected, pairs, strict=True)
        )
        is_identical = (
            first.n == second.n
            and len(np.unique(first.hashes)) >= MIN_DISTINCT_ROWS
            and np.array_equal(first.hashes, second.hashes)
        )
        return cls(shares, expected, errors, is_identical)  # pyright: ignore[reportArgumentType]

    @property
    def too_large(self) -> bool:
        """Whether two sets share so many rows beyond chance that one is no other data than the other."""
        return self.excess > MAX_EXCESS_OVERLAP

    @property
    def text(self) -> str:
        """Say the shares."""
        (judged, fitted), (by_chance, _) = self.shares, self.expected_shares
        return (
            f"{100 * judged:.3g} % of the judged rows are among the fitted ones, {100 * fitted:.3g} % of the fitted "
            f"among the judged ({100 * by_chance:.3g} % by chance)"
        )

    @property
    def excess(self) -> float:
        """The larger share beyond chance: 0 where four standard errors explain it."""
        parts = zip(self.shares, self.expected_shares, self.standard_errors, strict=True)
        return 1.0 if self.is_identical else max(0.0, *(s - e if s - e > 4 * error else 0.0 for s, e, error in parts))


def _expected_share(rows: np.ndarray, other_hashes: np.ndarray) -> float:
    """Share of rows that chance alone finds among `held`: those of common values, and new pairs."""
    if not len(rows):
        return 0.0
    values, counts = np.unique(other_hashes, return_counts=True)
    common_share = float(_is_member(rows, values[counts > 1]).mean())
    pairs = 2 * int((counts == 2).sum()) / max(1, len(other_hashes))
    return min(1.0, common_share + pairs)


def _standard_error(share: float, expected: float, a: Sketch, b: Sketch) -> float:
    """Standard error of a share less what is expected: rows come in clusters of copies, of which each counts once."""
    p = (share + expected) / 2
    distinct = [max(1, len(np.unique(part.hashes))) for part in (a, b)]
    return float(np.sqrt(p * (1 - p) * sum(1 / d for d in distinct)))


def _thin(hashes: np.ndarray, level: int) -> np.ndarray:
    return hashes[hashes & np.uint64((1 << level) - 1) == 0] if level else hashes


def _is_member(rows: np.ndarray, sorted_hashes: np.ndarray) -> np.ndarray:
    if not len(sorted_hashes):
        return np.zeros(len(rows), dtype=bool)
    return sorted_hashes[np.searchsorted(sorted_hashes, rows).clip(max=len(sorted_hashes) - 1)] == rows
