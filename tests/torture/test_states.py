"""Changed states with new checksums: they are refused in one line, or work."""

import json
import random
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from calibrant.types import InputError
from drawn import drawn_labels
from refusals import code_of
from torture.campaign import Counts
from torture.test_files import changed_array, changed_tree, seal, unsealed

from calibrant import Predictions, calibrators
from calibrant.calibrators.subgroups import MultiCalibrated
from calibrant.decisions import CrossSets, Sets
from calibrant.deployment import Contract
from calibrant.language_models.fusion import Fusion
from calibrant.metrics import Summary
from calibrant.monitoring import Watch

NUM_STATES = 3000
PRINTED = 5
SIGNALS = {"stated": np.linspace(0, 1, 7), "tokens": np.linspace(1, 0, 7)}


@cache
def predictions() -> Predictions:
    rng = np.random.default_rng(0)
    z = rng.normal(scale=2, size=(120, 3))
    return Predictions(z, drawn_labels(z, rng), groups=["g", "h"] * 60, class_names=["a", "b", "c"])


@cache
def build_states() -> dict[str, tuple[Any, Callable[[Any], Any]]]:
    """Return a state of every kind that has a file, and what must be finite when it is used."""
    p, rng = predictions(), np.random.default_rng(1)
    correct = rng.integers(0, 2, 80)
    fusions = {
        f"fusion_{scale}": Fusion.fit(rng.random((80, 2)), correct, groups=["g", "h"] * 40, scale=scale, worth=True)
        for scale in ("rank", "probability")
    }
    watch = Watch().add(Predictions.from_probs(rng.random(95), rng.integers(0, 2, 95)), ids=range(95))
    batch = Predictions.from_probs(rng.random(30), rng.integers(0, 2, 30))
    features = {"age": rng.random(600), "site": rng.choice(["n", "s"], 600)}
    binary = Predictions.from_probs(rng.random(600), rng.integers(0, 2, 600))
    fitted = MultiCalibrated.fit(binary, features)
    contract = Contract.create(calibrators.Temperature(2.0), p, alpha=0.2, risk=0.6)
    used_by_sets = lambda sets: sets.apply(p)  # noqa: E731
    return {
        **{name: (fused, lambda fused: fused.apply(rng.random((7, 2)))) for name, fused in fusions.items()},
        "summary": (Summary.from_predictions(p, by_class=True), read_summary),
        "summary_clusters": (Summary.empty(k=3).add(p), read_summary),
        "watch": (watch, lambda state: state.add(batch, ids=range(100, 130)).verdict.json() and [0.0]),
        "sets": (Sets.fit(p, by="groups"), used_by_sets),
        "cross": (CrossSets.fit_folds(p, "Temperature", folds=2), used_by_sets),
        "contract": (contract, lambda contract: contract.calibrate(p).logits),
        "subgroups": (fitted, lambda fitted: fitted.apply(binary, features).logits),
    }


def read_summary(summary: Summary) -> list[float]:
    doubled = summary + summary
    interval = summary.interval("nll")
    return [
        doubled["ece"],
        doubled["brier"],
        doubled["kuiper"],
        doubled["accuracy"],
        interval.value,
        float(len(doubled)),
    ]


def contents(folder: Path) -> list[tuple[type, Callable[[Any], Any], dict[str, str], dict[str, np.ndarray]]]:
    """Return the class, the use, the metadata and the arrays of every state."""
    states = []
    for name, (state, use) in build_states().items():
        path = folder / (
            f"{name}.contract" if name == "contract" else f"{name}.watch" if name == "watch" else f"{name}.safetensors"
        )
        state.save(path)
        use(type(state).load(path))  # the good file works
        states.append((type(state), use, *unsealed(path)))
    return states


def changed(meta: dict[str, str], arrays: dict[str, np.ndarray], r: random.Random) -> tuple[Any, Any]:
    """Return metadata and arrays of which one is changed."""
    if arrays and r.random() < 0.6:
        key = r.choice(list(arrays))
        return meta, arrays | {key: changed_array(arrays[key], r)}
    if arrays and r.random() < 0.1:
        return meta, {key: x for key, x in arrays.items() if key != r.choice(list(arrays))}
    key = "settings" if "settings" in meta else "calibrator"
    return meta | {key: json.dumps(changed_tree(json.loads(meta[key]), r))}, arrays


def attempt(cls: type, use: Callable[[Any], Any], path: Path, failures: list[str]) -> Counts:
    """Load a changed state, and use it."""
    try:
        numbers = use(cls.load(path))
    except InputError as error:
        return Counts(tried=1, refused=1, traceback=int("\n" in str(error)))
    except Exception:
        failures.append(traceback.format_exc()[-1200:])
        return Counts(tried=1, traceback=1)
    is_sound = bool(np.isfinite(np.asarray(numbers, dtype=np.float64)).all())
    return Counts(tried=1, recovered=int(is_sound), silent=int(not is_sound))


def campaign(seed: int, count: int, folder: Path) -> Counts:
    """Change states of every kind, recompute their checksums, and use them."""
    r, counts, failures = random.Random(seed), Counts(), list[str]()
    states = contents(folder)
    for i in range(count):
        cls, use, meta, arrays = states[i % len(states)]
        path = folder / f"changed{'.contract' if cls is Contract else '.watch' if cls is Watch else '.safetensors'}"
        seal(*changed(meta, arrays, r), path)
        outcome = attempt(cls, use, path, failures)
        if not outcome.has_no_failures and outcome.silent:
            failures.append(f"{cls.__name__}: {i}")
        counts += outcome
    print(counts.line("changed states"), *failures[:PRINTED], sep="\n")
    return counts


def check(counts: Counts) -> None:
    assert counts.has_no_failures, counts
    assert counts.refused > 0.4 * counts.tried
    assert counts.recovered > 0


@pytest.mark.parametrize(
    ("name", "field", "index", "value"),
    [
        ("fusion_rank", ".coefficients", 0, np.nan),
        ("fusion_rank", ".covariance", 0, -1e3),
        ("watch", ".evidence.peak_bet", 0, 999),
        ("watch", ".pending.labels", 0, 7),
        ("summary", "sums", 5, -1),
        ("summary", "max_surprisals", 0, np.nan),
        ("cross", ".scores.0", 0, np.nan),
    ],
)
def test_state_with_an_impossible_number_is_refused(tmp_path, name, field, index, value):
    state = build_states()[name][0]
    path = tmp_path / ("a.watch" if name == "watch" else "a.safetensors")
    state.save(path)
    meta, arrays = unsealed(path)
    arrays[field].reshape(-1)[index] = value
    seal(meta, arrays, path)
    assert code_of(type(state).load, path) in ("field_value", "file_content")


def test_sets_whose_calibrator_is_a_number_are_refused(tmp_path):
    build_states()["cross"][0].save(tmp_path / "a.safetensors")
    meta, arrays = unsealed(tmp_path / "a.safetensors")
    description = json.loads(meta["calibrator"])
    description["fields"]["maps"]["tuple"][0] = 1
    seal(meta | {"calibrator": json.dumps(description)}, arrays, tmp_path / "a.safetensors")
    assert code_of(CrossSets.load, tmp_path / "a.safetensors") == "file_content"


def test_some_changed_states_are_refused_or_work(tmp_path):
    check(campaign(0, 100, tmp_path))


@pytest.mark.torture
def test_all_changed_states_are_refused_or_work(tmp_path):
    check(campaign(1, NUM_STATES, tmp_path))
