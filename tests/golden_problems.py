"""A dozen small problems of every kind, and the numbers that Calibrant computes for them.

`PYTHONPATH=src python tests/golden_problems.py` writes golden.json anew, for when numbers are meant to change.
"""

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from calibrant.registry import CALIBRATORS

import calibrant
from calibrant import Predictions, calibrators
from calibrant.metrics import Summary

FILE = Path(__file__).parent / "golden" / "golden.json"
ONE_SCORE = [name for name in CALIBRATORS if calibrators.capabilities(CALIBRATORS[name]).num_classes == 2]
TABLES = ("results", "changes", "groups", "held_out_nll")  # the parts of the results of `assess` that are kept
ASSESSED = ("Identity", "Temperature", "Vector", "StructuredMatrix", "Auto")  # none whose values lie on bin edges


def classes(n: int, k: int, seed: int, scale: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Draw logits (n, k), rounded to 1/1024, and labels from their softmax; the logits are then multiplied by scale."""
    rng = np.random.default_rng(seed)
    logits = np.round(2 * rng.standard_normal((n, k)) * 1024) / 1024
    odds = np.exp(logits - logits.max(1, keepdims=True))
    below = odds.cumsum(1) / odds.sum(1, keepdims=True)
    return scale * logits, (rng.random((n, 1)) > below[:, :-1]).sum(1)


def shares(n: int, seed: int, steps: int = 20) -> tuple[np.ndarray, np.ndarray]:
    """Draw probabilities that are multiples of 1/steps, 0 and 1 included, and outcomes somewhat less certain."""
    rng = np.random.default_rng(seed)
    probs = rng.integers(0, steps + 1, n) / steps
    return probs, (rng.random(n) < 0.1 + 0.8 * probs).astype(np.int64)


def predictions(seed: int) -> dict[str, Predictions]:
    """Return the problems by name; another seed gives other examples of the same kinds."""
    rng = np.random.default_rng(1000 + seed)
    four, ten, binary = classes(400, 4, seed, 1.5), classes(300, 10, seed + 1, 0.7), classes(300, 2, seed + 2, 2.0)
    probs, outcomes = shares(240, seed + 3)
    several, present = classes(80, 3, seed + 4)[0], rng.integers(0, 2, (80, 3))
    masked = classes(200, 5, seed + 5)
    hidden = rng.random((200, 5)) < 0.2
    hidden[np.arange(200), masked[1]] = False
    image = np.round(2 * rng.standard_normal((6, 3, 5, 5)) * 64) / 64
    return {
        "binary": Predictions.from_binary_logits(np.diff(binary[0])[:, 0], binary[1]),
        "binary_probs": Predictions.from_probs(probs, outcomes),
        "classes": Predictions(*four),
        "classes_float32": Predictions(ten[0].astype(np.float32), ten[1]),
        "named_classes": Predictions(*classes(150, 3, seed + 6), class_names=["cat", "dog", "eel"], of="dog"),
        "multilabel": Predictions.multilabel(several, present),
        "confidences": Predictions.from_confidence(probs, outcomes),
        "weights": Predictions(*four, weights=rng.integers(1, 11, 400)),
        "clusters": Predictions(*four, clusters=rng.integers(0, 40, 400)),
        "groups": Predictions(*four, groups=np.array(["a", "b", "c"])[rng.integers(0, 3, 400)]),
        "pixels": Predictions(image, rng.integers(0, 3, (6, 5, 5))),
        "masks": Predictions(np.where(hidden, -np.inf, masked[0]), masked[1]),
        "twelve": Predictions(*classes(12, 3, seed + 7)),
    }


def numbers(node: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers of nested results by path; rows are called after what they are of."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "provenance":
                continue
            yield from numbers(value, f"{path}/{key}")
    elif isinstance(node, list):
        for i, value in enumerate(node):
            keys = [key for key in ("metric", "name", "class") if isinstance(value, dict) and key in value]
            yield from numbers(value, f"{path}/{value[keys[0]] if keys else i}")
    elif isinstance(node, int | float) and not isinstance(node, bool):
        yield path, float(node)


def measured() -> dict[str, float]:
    """Return the numbers of `measure`, of all problems and of summaries of pieces."""
    actual: dict[str, float] = {}
    for name, p in predictions(0).items():
        actual |= numbers(json.loads(calibrant.measure(p).json()), f"measure/{name}")
        if name == "multilabel":
            continue
        pieces = [p] if p.clusters is not None else [p[rows] for rows in (slice(0, 5), slice(5, 9), slice(9, None))]
        summary = sum(
            (Summary.from_predictions(part, by_class=True) for part in pieces), Summary.empty(of=p.of, by_class=True)
        )
        actual |= numbers(json.loads(calibrant.measure(summary).json()), f"summary/{name}")
    return actual


def assessed() -> dict[str, float]:
    """Return the numbers of `assess`, with a test set and cross-fitted."""
    val, test = predictions(0), predictions(50)
    actual: dict[str, float] = {}
    for name in ("binary", "classes", "confidences", "weights", "clusters", "groups"):
        result = calibrant.assess(val[name], test[name], [c for c in ASSESSED if c in CALIBRATORS])
        actual |= tables(result, f"assess/{name}")
    result = calibrant.assess(val["classes"], None, ["Identity", "Temperature"])
    return actual | tables(result, "cross_fit/classes")


def tables(result: Any, path: str) -> dict[str, float]:
    """Return the numbers of the tables of an assessment."""
    record = json.loads(result.json())
    return dict(numbers({key: record[key] for key in TABLES if key in record}, path))


PARTS: dict[str, Callable[[], Any]] = {"measured": measured, "assessed": assessed}


def encode_nonfinite(node: Any) -> Any:
    """Return nested results with infinite numbers as texts, which JSON has not."""
    if isinstance(node, dict):
        return {key: encode_nonfinite(value) for key, value in node.items()}
    if isinstance(node, list):
        return [encode_nonfinite(value) for value in node]
    return repr(node) if isinstance(node, float) and not math.isfinite(node) else node


if __name__ == "__main__":
    FILE.write_text(json.dumps(encode_nonfinite({name: make() for name, make in PARTS.items()}), indent=0) + "\n")
