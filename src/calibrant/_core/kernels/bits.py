"""Pseudorandom numbers from the hashes of rows, in numpy. The text becomes a part of every exported .py file."""

import numpy as np

_GOLDEN_STEP = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio; odd, so that no two seeds give the same multiple


def mix_bits(x: np.ndarray) -> np.ndarray:
    """Mix the bits of 64-bit integers, one to one (splitmix64, Steele, Lea & Flood 2014)."""
    x = x ^ (x >> np.uint64(30))
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


def uniforms_of(hashes: np.ndarray, seed: int) -> np.ndarray:
    """Return a pseudorandom value in [0, 1) for every 64-bit hash. The seed changes all values."""
    x = hashes + np.uint64((seed * _GOLDEN_STEP) % 2**64)
    x ^= x >> np.uint64(31)  # mix high bits into low ones
    x *= np.uint64(_GOLDEN_STEP)  # modulo 2^64
    return (x >> np.uint64(11)).astype(np.float64) * 2.0**-53  # the 53 bits of a float64
