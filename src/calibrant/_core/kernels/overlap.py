"""Overlap of two data sets: common rows by 64-bit hashes, in any order, and as many as expected by chance."""

import base64
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from calibrant._core.arrays import is_on_cpu, like, namespace, to_numpy
from calibrant._core.kernels.bits import mix_bits
from calibrant._core.kernels.dispatch import kernels
from calibrant._core.kernels.threads import map_row_chunks
from calibrant._core.types import Array

MAX_SKETCH_HASHES = 1 << 20  # hashes of a sketch
MIN_DISTINCT_ROWS = 10  # distinct rows of identical sets; fewer may coincide by chance
_HASH_CHUNK_ELEMENTS = 1 << 18  # elements hashed at a time, to stay in cache


def hash_rows(logits: Array, labels: np.ndarray) -> np.ndarray:
    r"""Return a 64-bit hash of every row and its label, (n) uint64.

    The hash is $\sum_j a_j w_j + a y$ modulo $2^{64}$ with its bits mixed. The a are odd random numbers, a word w holds
    the bits of two neighboring logits in float32, and y is the label.
    """
    logits = to_numpy(logits) if is_on_cpu(logits) else logits
    k = logits.shape[1]
    words = (k + 1) // 2
    all_keys = hash_keys(words + 1)  # the last one is a, the factor of the label
    keys, compiled, xp = like(all_keys[:words], logits), kernels(logits), namespace(logits)

    def sums(z: Array, y: np.ndarray) -> np.ndarray:
        """Return the sum of each row before its bits are mixed. Sums and products wrap around at 64 bits."""
        with np.errstate(over="ignore"):  # infinity, for what float32 cannot hold
            values = xp.astype(z, xp.float32)
        values = xp.reshape(values + 0.0, (-1,)).reshape(z.shape)  # contiguous, and -0 becomes 0
        if k % 2:  # the words; an odd number of logits is followed by a 0
            values = xp.concat([values, xp.zeros_like(values[:, :1])], axis=1)
        bits, label_sums = values.view(xp.int64), y * all_keys[words]
        if compiled is None:
            return label_sums + to_numpy((bits * keys).sum(1))
        compiled.add_weighted_bits(*(x.view(np.uint64) for x in (bits, all_keys, label_sums)))
        return label_sums

    total = np.concatenate(map_row_chunks(sums, logits, labels, elements=_HASH_CHUNK_ELEMENTS))
    return mix_bits(total.view(np.uint64))


@lru_cache(8)
def hash_keys(count: int) -> np.ndarray:
    """Return odd random numbers, (count) int64, the same in every process."""
    return np.random.default_rng(0).integers(0, 2**63, count, dtype=np.int64) | 1


@dataclass(frozen=True, eq=False)
class Sketch:
    """The row hashes of a data set, or a sample of them.

    A large set keeps the hashes that end in `level` zero bits. All copies of a row are kept or dropped together, so
    that shares of the sketch estimate shares of the set.
    """

    n: int  # rows of the set
    hashes: np.ndarray  # uint64, sorted
    level: int = 0  # number of zero bits in which every kept hash ends

    @classmethod
    def from_hashes(cls, hashes: np.ndarray) -> "Sketch":
        """Build the sketch from the hashes of all rows."""
        return cls(0, np.empty(0, dtype=np.uint64)).add(hashes)

    def add(self, hashes: np.ndarray) -> "Sketch":
        """Return the sketch with the hashes of more rows.

        If there are too many, only the hashes that end in more zero bits, about half of them for each bit, are kept.
        """
        merged = np.concatenate([self.hashes, _thin(hashes, self.level)])
        level = self.level
        while len(merged) > MAX_SKETCH_HASHES:
            level += 1
            merged = _thin(merged, level)
        return Sketch(self.n + len(hashes), np.sort(merged), level)

    def thin_to_level(self, level: int) -> "Sketch":
        """Return the sketch with only the hashes that end in `level` zero bits."""
        return Sketch(self.n, _thin(self.hashes, level), level)

    def thin_to_size(self, max_hashes: int) -> "Sketch":
        """Return the sketch thinned to at most `max_hashes` hashes."""
        sketch = self
        while len(sketch.hashes) > max_hashes:
            sketch = sketch.thin_to_level(sketch.level + 1)
        return sketch

    def __repr__(self) -> str:
        return f"Sketch({self.n:,} rows, {len(self.hashes):,} hashes)"

    @property
    def text(self) -> str:
        """The sketch as one word, for files. `from_text` is the inverse."""
        return f"{self.n}:{self.level}:{base64.b64encode(self.hashes.astype('<u8').tobytes()).decode()}"

    @classmethod
    def from_text(cls, text: str) -> "Sketch":
        """Read a sketch from its text.

        Raises:
            ValueError: If the text is not a sketch.
        """
        n, level, encoded = text.split(":")
        hashes = np.frombuffer(base64.b64decode(encoded, validate=True), dtype="<u8").astype(np.uint64)
        if not (0 <= int(level) < 64 and len(hashes) <= int(n)):
            raise ValueError(text)
        return cls(int(n), np.sort(hashes), int(level))


MAX_EXCESS_OVERLAP = 0.1  # share of rows beyond chance above which two sets count as the same data


@dataclass(frozen=True)
class Overlap:
    """Shares of rows that two data sets have in common, and the shares expected by chance.

    A row that the other set holds more than once is a common value, such as a clipped probability. Finding it there is
    no sign of copied data. Among rows that the other set holds once, two samples from one source share about as many as
    that set has in pairs (Good 1953).
    """

    shares: tuple[float, float]  # of the first set's rows in the second, and vice versa
    expected_shares: tuple[float, float]
    standard_errors: tuple[float, float]  # standard errors of the differences
    is_identical: bool  # the same rows, in any order

    @classmethod
    def compare(cls, first: Sketch, second: Sketch) -> "Overlap":
        """Compare two data sets by their sketches, thinned to one level so that common rows are kept in both."""
        level = max(first.level, second.level)
        first, second = first.thin_to_level(level), second.thin_to_level(level)
        pairs = (first, second), (second, first)
        shares = tuple(float(_is_member(a.hashes, b.hashes).mean()) if len(a.hashes) else 0.0 for a, b in pairs)
        expected_shares = tuple(_expected_share(a.hashes, b.hashes) for a, b in pairs)
        errors = tuple(
            _standard_error(share, expected, a, b)
            for share, expected, (a, b) in zip(shares, expected_shares, pairs, strict=True)
        )
        # Equal sets of few distinct rows may be chance
        is_identical = (
            first.n == second.n
            and len(np.unique(first.hashes)) >= MIN_DISTINCT_ROWS
            and np.array_equal(first.hashes, second.hashes)
        )
        return cls(shares, expected_shares, errors, is_identical)  # pyright: ignore[reportArgumentType]

    @property
    def too_large(self) -> bool:
        """Whether the sets share so many rows beyond chance that they count as the same data."""
        return self.excess > MAX_EXCESS_OVERLAP

    @property
    def text(self) -> str:
        """A sentence with both shares, and the share expected by chance."""
        (evaluated, fitted), (by_chance, _) = self.shares, self.expected_shares
        return (
            f"{100 * evaluated:.3g} % of the evaluated rows are among the fitted rows, {100 * fitted:.3g} % of the "
            f"fitted rows are among the evaluated rows ({100 * by_chance:.3g} % expected by chance)"
        )

    @property
    def excess(self) -> float:
        """The largest excess of a share over its share by chance: 1 for identical sets, 0 within 4 standard errors."""
        if self.is_identical:
            return 1.0
        parts = zip(self.shares, self.expected_shares, self.standard_errors, strict=True)
        excesses = [share - expected for share, expected, error in parts if share - expected > 4 * error]
        return max([0.0, *excesses])


def _expected_share(rows: np.ndarray, other_hashes: np.ndarray) -> float:
    """Return the share of rows expected in the other set by chance, the sum of two parts.

    The first is the share of rows whose value the other set holds more than once: such values repeat without copying.
    The second is the probability that a new row has a value which the other set holds once. Good (1953) estimates it by
    the share of the other set's rows whose value occurs exactly twice.
    """
    if not len(rows):
        return 0.0
    values, counts = np.unique(other_hashes, return_counts=True)
    common_share = float(_is_member(rows, values[counts > 1]).mean())
    share_in_pairs = 2 * int((counts == 2).sum()) / max(1, len(other_hashes))
    return min(1.0, common_share + share_in_pairs)


def _standard_error(share: float, expected: float, a: Sketch, b: Sketch) -> float:
    """Return the standard error of a share of common rows minus the share expected by chance.

    It is that of the difference of two shares with the same mean p, sqrt(p (1 - p) (1 / d_a + 1 / d_b)), for the d
    distinct rows of each set: copies of a row count once.
    """
    p = (share + expected) / 2
    distinct = [max(1, len(np.unique(sketch.hashes))) for sketch in (a, b)]
    return float(np.sqrt(p * (1 - p) * sum(1 / d for d in distinct)))


def _thin(hashes: np.ndarray, level: int) -> np.ndarray:
    """Return the hashes that end in `level` zero bits."""
    return hashes[hashes & np.uint64((1 << level) - 1) == 0] if level else hashes


def _is_member(rows: np.ndarray, sorted_hashes: np.ndarray) -> np.ndarray:
    """Return for each hash in `rows` whether it is among the sorted hashes, as a mask."""
    if not len(sorted_hashes):
        return np.zeros(len(rows), dtype=bool)
    return sorted_hashes[np.searchsorted(sorted_hashes, rows).clip(max=len(sorted_hashes) - 1)] == rows
