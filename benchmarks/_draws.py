"""Confidences, clusters and labels that simulations of several benchmarks draw alike."""

import math

import numpy as np


def draw_confidences(kind: float | str, shape: int | tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    """Draw confidences around a number (a normal spread of .3 in log-odds), or uniform ones, "mixed" or "rounded"."""
    if isinstance(kind, str):
        c = 0.5 + 0.5 * rng.random(shape)
        return np.round(c, 1) if kind == "rounded" else c
    odds = math.log(kind / (1 - kind)) + 0.3 * rng.standard_normal(shape)
    return 1 / (1 + np.exp(-odds))


def draw_clusters(n: int, largest: int, rng: np.random.Generator) -> np.ndarray:
    """Return the cluster of every example of n clusters, of 1 to `largest` examples each."""
    return np.repeat(np.arange(n), rng.integers(1, largest + 1, n))


def draw_cluster_noise(clusters: np.ndarray, rng: np.random.Generator, columns: int = 1) -> np.ndarray:
    """Draw normal numbers (n, columns), of which those of a cluster share half of their variance."""
    shared = rng.standard_normal((clusters[-1] + 1, columns))[clusters]
    return math.sqrt(0.5) * (shared + rng.standard_normal((len(clusters), columns)))


def draw_labels(z: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw a label from the softmax of each row."""
    return (z + rng.gumbel(size=z.shape)).argmax(1)
