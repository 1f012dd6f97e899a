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
import torch
from calibrant.types import InputError
from refusals import code_of
from safetensors import safe_open
from safetensors.torch import save_file
from torture.campaign import Counts
from torture.test_files import changed_tensor, changed_tree

from calibrant import Predictions, calibrators
from calibrant._core.kernels.digests import arrays_digest
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
    z = torch.from_numpy(2 * rng.standard_normal((120, 3)))
    labels = torch.multinomial(z.softmax(1), 1, generator=torch.Generator().manual_seed(0)).squeeze(1)
    return Predictions(z, labels, groups=["g", "h"] * 60, class_names=["a", "b", "c"])


@cache
def build_states() -> dict[str, tuple[Any, Callable[[Any], Any]]]:
    """Return a state of every kind that has a file, and what must be finite when it is used."""
    p, rng = predictions(), np.random.default_rng(1)
    correct = rng.integers(0, 2, 80)
    fusions = {
        f"fusion_{scale}": Fusion.fit(rng.random((80, 2)), correct, groups=["g", "h"] * 40, scale=scale, worth=True)
        for scale in ("rank", "probability")
    }
    temperature = calibrators.Temperature(torch.tensor(2.0).double())
    watch = Watch().add(Predictions.from_probs(rng.random(95), rng.integers(0, 2, 95)), ids=range(95))
    batch = Predictions.from_probs(rng.random(30), rng.integers(0, 2, 30))
    features = {"age": rng.random(600), "site": rng.choice(["n", "s"], 600)}
    binary = Predictions.from_probs(rng.random(600), rng.integers(0, 2, 600))
    fitted = MultiCalibrated.fit(binary, features)
    used_by_sets = lambda sets: sets.apply(p)  # noqa: E731
    return {
        **{name: (fused, lambda fused: fused.apply(rng.random((7, 2)))) for name, fused in fusions.items()},
        "summary": (Summary.from_predictions(p, by_class=True), read_summary),
        "summary_clusters": (Summary.empty(k=3).add(p), read_summary),
        "watch": (watch, lambda state: state.add(batch, ids=range(100, 130)).verdict.json() and [0.0]),
        "sets": (Sets.fit(p, by="groups"), used_by_sets),
        "cross": (CrossSets.fit_folds(p, "Temperature", folds=2), used_by_sets),
        "contract": (Contract.create(temperature, p, alpha=0.2, risk=0.6), lambda c: c.calibrate(p).logits),
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


def contents(folder: Path) -> list[tuple[type, Callable[[Any], Any], dict[str, str], dict[str, torch.Tensor]]]:
    """Return the class, the use, the metadata and the tensors of every state."""
    states = []
    for name, (state, use) in build_states().items():
        path = folder / (
            f"{name}.contract" if name == "contract" else f"{name}.watch" if name == "watch" else f"{name}.safetensors"
        )
        state.save(path)
        use(type(state).load(path))  # the good file works
        with safe_open(path, "pt") as file:
            meta = dict(file.metadata())
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        states.append((type(state), use, {key: text for key, text in meta.items() if key != "sha256"}, tensors))
    return states


def changed(meta: dict[str, str], tensors: dict[str, torch.Tensor], r: random.Random) -> tuple[Any, Any]:
    """Return metadata and tensors of which one is changed."""
    if tensors and r.random() < 0.6:
        key = r.choice(list(tensors))
        return meta, tensors | {key: changed_tensor(tensors[key], r)}
    if tensors and r.random() < 0.1:
        return meta, {key: x for key, x in tensors.items() if key != r.choice(list(tensors))}
    key = "settings" if "settings" in meta else "calibrator"
    return meta | {key: json.dumps(changed_tree(json.loads(meta[key]), r))}, tensors


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
        cls, use, meta, tensors = states[i % len(states)]
        new_meta, new_tensors = changed(meta, tensors, r)
        path = folder / f"changed{'.contract' if cls is Contract else '.watch' if cls is Watch else '.safetensors'}"
        save_file(new_tensors, path, new_meta | {"sha256": arrays_digest(new_meta, new_tensors)})
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
    with safe_open(path, "pt") as file:
        meta = {key: text for key, text in file.metadata().items() if key != "sha256"}
        tensors = {key: file.get_tensor(key).clone() for key in file.keys()}  # noqa: SIM118
    tensors[field].view(-1)[index] = value
    save_file(tensors, path, meta | {"sha256": arrays_digest(meta, tensors)})
    assert code_of(type(state).load, path) in ("field_value", "file_content")


def test_some_changed_states_are_refused_or_work(tmp_path):
    check(campaign(0, 100, tmp_path))


@pytest.mark.torture
def test_all_changed_states_are_refused_or_work(tmp_path):
    check(campaign(1, NUM_STATES, tmp_path))
