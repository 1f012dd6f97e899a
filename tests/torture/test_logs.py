"""Damaged logs, TOML files and first lines: one line of error or the right answer, in little time and memory.

A few hundred run with the other tests, everything by `make torture`.
"""

import gzip
import json
import random
import resource
import sys
import time
import traceback
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from evaluation_logs import (
    choice_record,
    compress_zstandard,
    generation_record,
    inspect_log,
    inspect_sample,
    write_harness,
    write_helm,
    write_inspect,
    write_lines,
)
from torture.campaign import Counts
from torture.test_files import MUTATIONS

from calibrant import EvaluationLog, InputError, Predictions
from calibrant._core.foreign import read_toml
from calibrant.monitoring import read_requirements

LOGS, TOMLS, FIRST_LINES = 2000, 1000, 1000
MAX_SECONDS = 10.0
MAX_MEMORY, MAX_MEMORY_RATIO = 100e6, 20  # bytes above the idle process, and per byte of the file
ODD_VALUES: list[Any] = [None, True, -1, 0, 1e308, 10**400, "", "x", "n", [], {}, [[]], [None], [1], {"a": 1}, -9999.0]
ODD_TEXTS = [
    "[" * 600 + "]" * 600,
    '{"a":' * 900 + "1" + "}" * 900,
    "9" * 5000,
    "-Infinity",
    "NaN",
    "\ud800".encode("utf-8", "surrogatepass").decode("latin-1"),
]
REQUIREMENTS = 'require = ["ece < 0.05", "nll < 0.4"]\nlevel = 0.9\nof = "top"\nby = "site"\n'


def one_trial(read: Callable[[Path], Any], path: Path, fails: list[str]) -> Counts:
    """Read a file, and count how it ends; time and memory beyond the limits count as stuck."""
    start, before = time.monotonic(), peak_memory()
    counts = Counts(tried=1, recovered=1)
    try:
        read(path)
    except InputError as error:
        is_one_line = len(str(error).splitlines()) == 1
        counts = Counts(tried=1, refused=1, silent=int(not is_one_line))
        if not is_one_line:
            fails.append(str(error))
    except Exception:
        fails.append(traceback.format_exc()[-1500:])
        counts = Counts(tried=1, traceback=1)
    seconds, memory = time.monotonic() - start, peak_memory() - before
    if seconds > MAX_SECONDS or memory > MAX_MEMORY + MAX_MEMORY_RATIO * path.stat().st_size:
        fails.append(f"{path.name}: {seconds:.1f} s, {memory / 1e6:.0f} MB")
        counts += Counts(stuck=1)
    return counts


def peak_memory() -> float:
    """Return the largest memory of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def change_value(value: Any, r: random.Random) -> Any:
    """Return a JSON value with one part replaced, left out or wrapped."""
    if isinstance(value, dict) and value and r.random() < 0.85:
        key = r.choice(list(value))
        if r.random() < 0.1:
            return {name: part for name, part in value.items() if name != key}
        return value | {key: change_value(value[key], r)}
    if isinstance(value, list) and value and r.random() < 0.85:
        i = r.randrange(len(value))
        return [change_value(part, r) if i == j else part for j, part in enumerate(value)]
    return [value] if r.random() < 0.1 else r.choice(ODD_VALUES)


def response_records() -> list[dict[str, Any]]:
    """Return a record for each server."""
    entry = {"token": "B", "logprob": -0.3, "top_logprobs": [{"token": "A", "logprob": -2.0}]}
    pieces = [{"type": "output_text", "text": "B", "logprobs": [entry]}]
    chosen = {"token": "B", "logProbability": -0.3}
    gemini = {"chosenCandidates": [chosen], "topCandidates": [{"candidates": [chosen]}]}
    responses: list[dict[str, Any]] = [
        {"choices": [{"message": {"content": "Confidence: 85%"}, "logprobs": {"content": [entry]}}]},
        {"choices": [{"text": "B", "logprobs": {"token_logprobs": [None, -0.3], "tokens": ["", "B"]}}]},
        {"output": [{"type": "message", "content": pieces}]},
        {"response": "<confidence>0.9</confidence>", "logprobs": [entry]},
        {"candidates": [{"content": {"parts": [{"text": "B"}]}, "avgLogprobs": -0.3, "logprobsResult": gemini}]},
    ]
    return [{"id": i, "correct": i % 2, "confidence": "85%"} | response for i, response in enumerate(responses)]


def write_changed_log(folder: Path, r: random.Random) -> Path:
    """Write a log of some format, with changed values."""
    kind = r.choice(["choice", "generation", "inspect", "eval", "helm", "servers", "table"])
    if kind == "helm":
        run = write_helm(folder / "helm", [(i, "A", -0.3, 1) for i in range(3)])
        path = run / r.choice(["scenario_state.json", "per_instance_stats.json", "run_spec.json"])
        path.write_text(json.dumps(change_value(json.loads(path.read_text()), r)))
        return run
    if kind in ("inspect", "eval"):
        samples = [inspect_sample(i, 1, {"judge": {"value": "C"}}, metadata={"confidence": 0.7}) for i in range(3)]
        log = inspect_log(samples)
        i = r.randrange(3)
        changed = change_value(samples[i], r) if r.random() < 0.8 else samples[i]
        log["samples"] = [changed if i == j else sample for j, sample in enumerate(samples)]
        if kind == "eval" and isinstance(changed, dict) and {"id", "epoch"} <= changed.keys():
            return write_inspect(folder / "log.eval", log)
        return write_inspect(folder / "log.json", log)
    if kind == "choice":
        records = [choice_record(i, [-1.0, -2.0], ["red", "blue"], i % 2) for i in range(4)]
    elif kind == "generation":
        records = [generation_record(i, "4", i % 2, resps="Confidence: 85%") for i in range(4)]
    else:
        records = response_records()
        records = [{key: record[key] for key in ("id", "correct", "confidence")} for record in records] * (
            kind == "table"
        ) or records
    for _ in range(r.choice([1, 1, 3])):
        i = r.randrange(len(records))
        changed = change_value(records[i], r)
        records[i] = changed if isinstance(changed, dict) else {"changed": changed}
    return (
        write_harness(folder, "quiz", records)
        if kind in ("choice", "generation")
        else write_lines(folder / "log.jsonl", records)
    )


def damage(path: Path, r: random.Random) -> Path:
    """Damage the bytes of a file, or put an odd text into it; and sometimes compress it."""
    data = bytearray(path.read_bytes())
    if r.random() < 0.3 and data:
        start = r.randrange(len(data))
        data[start : start + r.randrange(3)] = r.choice(ODD_TEXTS).encode("latin-1")
    else:
        r.choice(MUTATIONS)(data, r)
    path.write_bytes(data)
    if path.suffix == ".jsonl" and r.random() < 0.2:
        suffix, compress = r.choice([(".gz", gzip.compress), (".zst", lambda text: text[:9])])
        path = path.with_name(path.name + suffix)
        path.write_bytes(compress(bytes(data)))
    return path


def read_log(path: Path, r: random.Random) -> None:
    """Read a log as one or as predictions, with some confidence."""
    if r.random() < 0.3:
        Predictions.load(path)
        return
    EvaluationLog.read(
        path, confidence=r.choice([None, None, "stated", "tokens", "mean_token", "choices", "confidence"])
    )


def logs(seed: int, share: float, folder: Path) -> Counts:
    """Change values and bytes of logs, and read them."""
    r, counts, fails = random.Random(seed), Counts(), list[str]()
    for i in range(round(share * LOGS)):
        (folder / str(i)).mkdir()
        path = write_changed_log(folder / str(i), r)
        if r.random() < 0.5:
            file = r.choice(sorted(path.iterdir())) if path.is_dir() else path
            damaged = damage(file, r)
            path = path if path.is_dir() else damaged
        counts += one_trial(lambda path: read_log(path, r), path, fails)
    print(counts.line("changed logs"), *fails[:5], sep="\n")
    return counts


def first_lines(seed: int, share: float, folder: Path) -> Counts:
    """Write files whose first line alone is odd, and load them as predictions."""
    r, counts, fails = random.Random(seed), Counts(), list[str]()
    records = [{"prob": 0.5, "label": i % 2} for i in range(4)]
    sources = [records, response_records(), [choice_record(i, [-1.0, -2.0], ["a", "b"], 0) for i in range(3)]]
    bombs = [b"0" * 10**8, b'{"a":' * 10**6, b"[" * 10**7, b'{"prob": 0.5, "label": 1}\n' * 10**5]
    for i in range(round(share * FIRST_LINES)):
        lines = [json.dumps(record) for record in r.choice(sources)]
        kind = r.random()
        if kind < 0.5:
            lines[0] = json.dumps(change_value(json.loads(lines[0]), r))
        elif kind < 0.97:
            position = r.randrange(len(lines[0]))
            lines[0] = lines[0][:position] + r.choice(ODD_TEXTS) + lines[0][position + r.randrange(3) :]
        path = folder / f"{i}.jsonl"
        path.write_bytes("\n".join(lines).encode("latin-1"))
        if kind >= 0.97:
            bomb = r.choice(bombs)
            path = folder / f"{i}.jsonl{r.choice(['.gz', '.zst'])}"
            path.write_bytes(gzip.compress(bomb, 9) if path.suffix == ".gz" else compress_zstandard(bomb))
        counts += one_trial(Predictions.load, path, fails)
    print(counts.line("first lines"), *fails[:5], sep="\n")
    return counts


def tomls(seed: int, share: float, folder: Path) -> Counts:
    """Damage files of requirements and studies, and read them by each reader."""
    r, counts, fails = random.Random(seed), Counts(), list[str]()
    readers: list[Callable[[Path], Any]] = [read_toml, read_requirements]
    if find_spec("torch"):
        from calibrant.lab.study.config import Study

        readers.append(Study.load)
    odd = [*ODD_TEXTS, "a." * 5000, "=", "[[", "]]", '"""', "\\u", "'''", "{", "1e999", "inf", "0x", "1979-05-27"]
    for i in range(round(share * TOMLS)):
        data = bytearray(REQUIREMENTS.encode())
        if r.random() < 0.6:
            start = r.randrange(len(data))
            data[start : start + r.randrange(3)] = r.choice(odd).encode("latin-1")
        else:
            r.choice(MUTATIONS)(data, r)
        path = folder / f"{i}.toml"
        path.write_bytes(data)
        counts += one_trial(r.choice(readers), path, fails)
    print(counts.line("TOML files"), *fails[:5], sep="\n")
    return counts


CAMPAIGNS = {"logs": logs, "first_lines": first_lines, "tomls": tomls}


def check(counts: Counts) -> None:
    assert (counts.silent, counts.traceback, counts.stuck) == (0, 0, 0), counts
    assert counts.refused > 0.2 * counts.tried
    assert counts.recovered > 0


@pytest.mark.parametrize("name", CAMPAIGNS)
def test_some(name, tmp_path):
    check(CAMPAIGNS[name](0, 0.05, tmp_path))


@pytest.mark.torture
@pytest.mark.parametrize("name", CAMPAIGNS)
def test_all(name, tmp_path):
    check(CAMPAIGNS[name](1, 1.0, tmp_path))
