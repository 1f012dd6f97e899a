"""Invalid values for every keyword of every method give one clear error, or a meaningful number."""

import math
import random
import signal
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from calibrant.registry import REGISTRIES, format_call, hyperparameters
from drawn import drawn_labels
from torture.campaign import Counts

from calibrant import InputError, Predictions

KINDS = tuple(REGISTRIES) if find_spec("torch") else ("metrics", "calibrators", "scores")  # others need torch
WORDS = ("average", "correct", "equal-mass", "", "0.5", "<script>", "None")
NUMBERS = (math.nan, math.inf, -math.inf, -1, 0, -1e-300, 1e-300, 0.5, 1.5, 2, 7, 1e9, 1e308, 2**31, 2**63, 10**400)
OTHER_METHODS = (
    None,
    True,
    False,
    (),
    (0.0,),
    (1, 2),
    (-1.0, 1.0),
    (math.nan, 1.0),
    ("a",),
    b"x",
    1j,
    {},
    {"a": 1},
    [[]],
)
SECONDS = 300


def data(k: int = 3) -> Predictions:
    rng = np.random.default_rng(0)
    z = 2 * rng.standard_normal((60, k), np.float32)
    return Predictions(1.5 * z, drawn_labels(z, rng))


def used(kind: str, text: str) -> Any:
    """What a method makes of small data."""
    method = REGISTRIES[kind].method(text)
    three, two = data(), data(2)
    match kind:
        case "losses":
            import torch

            return method(torch.from_numpy(three.logits), torch.from_numpy(three.labels))
        case "metrics":
            return method(three)
        case "calibrators":
            try:
                return method(three)(three.logits)
            except InputError as error:
                if error.code != "num_classes":
                    raise
            return method(two)(two.logits)
        case "scores":
            return method(three.logits)
        case "corruptions":
            import torch

            return method(torch.randint(0, 255, (2, 3, 16, 16), dtype=torch.uint8))
    return None


@contextmanager
def patience() -> Iterator[None]:
    def over(*_: Any) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def attempt(run: Callable[[], Any]) -> tuple[str, str]:
    """How one use ends, and what was said."""
    try:
        with patience():
            outcome = run()
    except InputError as error:
        return ("refused" if "\n" not in str(error) else "traceback"), str(error)
    except TimeoutError:
        return "stuck", ""
    except Exception as error:
        return "traceback", f"{type(error).__name__}: {error}"
    values = np.asarray(outcome if outcome is not None else 0, dtype=float)
    return ("silent" if bool(np.isnan(values).all()) else "recovered"), "nan"


def cases(kinds: Collection[str]) -> list[tuple[str, str]]:
    return [
        (kind, format_call(name, {key: value}))
        for kind in kinds
        for name, method in REGISTRIES[kind].items()
        for key in hyperparameters(getattr(method, "fit", method))
        for value in (*WORDS, *NUMBERS, *OTHER_METHODS)
    ]


def campaign(seed: int, share: float, kinds: Collection[str] = KINDS) -> Counts:
    """Every keyword of every method with every senseless value, or a share of them."""
    for kind, text in (("metrics", "ece"), ("metrics", "auroc"), ("calibrators", "Auto")):
        used(kind, text)  # what is compiled on first use is no one's hanging
    all_cases = cases(kinds)
    drawn_cases = random.Random(seed).sample(all_cases, round(share * len(all_cases)))
    counts, failures = Counts(), list[str]()
    for kind, text in drawn_cases:
        how, message = attempt(lambda kind=kind, text=text: used(kind, text))
        counts += Counts(tried=1, **{how: 1})
        if how in ("silent", "traceback", "stuck"):
            failures.append(f"{how}: {kind} {text}: {message[:150]}")
    print("\n".join(failures))
    print(counts.line("senseless keywords"))
    return counts


def judge(counts: Counts) -> None:
    assert counts.has_no_failures, counts
    assert counts.refused > counts.tried / 2


def test_a_tenth_of_senseless_keywords():
    judge(campaign(0, 0.1))


@pytest.mark.torture
def test_all_senseless_keywords():
    judge(campaign(0, 1.0))
