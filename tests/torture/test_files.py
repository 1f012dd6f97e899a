"""Damaged files of every format in `measure`, `assess` and `apply`, and forged calibrators.

A tenth runs with the other tests, everything by `make torture`.
"""

import json
import math
import random
import struct
import threading
import traceback
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from calibrant.registry import CALIBRATORS
from drawn import drawn_labels
from golden_problems import ONE_SCORE
from torture.campaign import Counts
from typer.testing import CliRunner

from calibrant import InputError, Predictions, calibrators
from calibrant._core.arrays import is_torch_array, read_arrays
from calibrant._core.kernels.digests import arrays_digest
from calibrant.cli import app

torch: Any = import_module("torch") if find_spec("torch") else None  # which files of tensors need
FORMATS = [".npz", ".npy", ".safetensors", ".csv", ".parquet", *[".pt"] * bool(torch)]
FILES, SEALED = 5000, 1000
CHEAP = {"Auto": "Auto(folds=2)", "Chain": "Chain(first='Temperature', second='Vector')"}
CHEAP |= {"PriorShift": "PriorShift(calibrator='Vector')", "GroupCalibrated": "GroupCalibrated(calibrator='Vector')"}
LONGEST = 300  # seconds, after which something is stuck
PRINTED = 5  # failures


def draw_predictions(n: int, k: int, seed: int) -> Predictions:
    rng = np.random.default_rng(seed)
    z = 2 * rng.standard_normal((n, k), np.float32)
    return Predictions(z, drawn_labels(z / 2, rng))


# Files


def write_file(p: Predictions, suffix: str, folder: Path) -> Path:
    """Write valid predictions in a format."""
    path = folder / f"good_logits{suffix}"
    if suffix == ".npy":
        np.save(path, p.logits)
        np.save(folder / "good_labels.npy", p.labels)
    elif suffix == ".pt":
        torch.save({"logits": torch.from_numpy(p.logits), "labels": torch.from_numpy(p.labels)}, path)
    else:
        p.save(path)
    return path


def cut_bytes(data: bytearray, r: random.Random) -> None:
    del data[r.randrange(len(data)) :]


def flip_bits(data: bytearray, r: random.Random) -> None:
    for _ in range(r.choice([1, 1, 2, 8, 64])):
        data[r.randrange(len(data))] ^= 1 << r.randrange(8)


def overwrite_bytes(data: bytearray, r: random.Random) -> None:
    start = r.randrange(len(data))
    data[start : start + r.randrange(1, 200)] = r.randbytes(r.randrange(1, 200))


def repeat_bytes(data: bytearray, r: random.Random) -> None:
    start = r.randrange(len(data))
    data[start:start] = data[start : start + r.randrange(1, 300)]


def insert_numbers(data: bytearray, r: random.Random) -> None:
    """Overwrite numbers with invalid ones."""
    bad = [math.nan, math.inf, -math.inf, 1e308, -1e308, 5e-324]
    start = r.randrange(max(1, len(data) - 8))
    data[start : start + 8] = struct.pack("<d", r.choice(bad)) if r.random() < 0.5 else b"\xff" * 8


def insert_words(data: bytearray, r: random.Random) -> None:
    bad = [
        b"nan",
        b"inf",
        b"-inf",
        b"",
        b"1e999",
        b'"',
        b",,",
        b"\n\n",
        b"\x00",
        b"\xff\xfe",
        b"label",
        b"-1",
        b"0x1",
        "½".encode(),
    ]
    start = r.randrange(len(data))
    data[start : start + r.randrange(0, 6)] = r.choice(bad)


MUTATIONS: list[Callable[[bytearray, random.Random], None]] = [
    cut_bytes,
    flip_bits,
    overwrite_bytes,
    repeat_bytes,
    insert_numbers,
    insert_words,
]


def write_odd_arrays(p: Predictions, folder: Path, r: random.Random) -> Path:
    """Write a readable file of invalid arrays."""
    z, y = p.logits, p.labels
    odd = [
        lambda: {"logits": z[0], "labels": y},
        lambda: {"logits": z.astype(r.choice(["f2", "i4", "c8", "S4", "U3", ">f4", "?"])), "labels": y},
        lambda: {"logits": z, "labels": y.astype(r.choice(["f8", "S2", "u1", "c8", "M8[s]"]))},
        lambda: {"logits": z * r.choice([1e38, 1e-45, 0, math.nan, math.inf]), "labels": y},
        lambda: {"logits": np.where(z > r.random() * 4 - 2, z, -math.inf), "labels": y},
        lambda: {"logits": z[:, : r.randrange(3)], "labels": y},
        lambda: {"logits": z, "labels": y[: r.randrange(len(y))]},
        lambda: {"logits": z, "labels": y - r.randrange(1, 9)},
        lambda: {"probs": z, "labels": y},
        lambda: {"logits": z, "labels": y, "weights": z[:, 0] * r.choice([1, math.nan, 1e300, math.inf])},
        lambda: {"logits": z, "labels": y, "weights": np.full(len(y), r.choice([0.0, 1e-9, 1e308, math.inf]))},
        lambda: {"logits": z, "labels": y, "groups": z[: r.randrange(40), 0]},
        lambda: {"logits": z[None], "labels": y[None]},
        lambda: {"logits": z},
        lambda: {"labels": y},
        lambda: {},
        lambda: {"logits": z, "probs": z, "labels": y},
        lambda: {"logits": np.float32(r.random()), "labels": np.int64(0)},
    ]
    path = folder / "odd.npz"
    with np.errstate(all="ignore"):
        np.savez(path, **r.choice(odd)())
    return path


def answered(command: list[str], out: Path | None, fails: list[str]) -> Counts:
    """Return the outcome of a command: refused in one line, valid numbers, or a failure."""
    finished_command: list[Counts] = []

    def run() -> None:
        command_result = CliRunner().invoke(app, command)
        error = command_result.exception
        if error is None and command_result.exit_code == 0:
            sound = out is None or not out.exists() or sound_numbers(out)
            finished_command.append(Counts(tried=1, recovered=int(sound), silent=int(not sound)))
        elif isinstance(error, InputError | OSError) or (isinstance(error, SystemExit) and error.code == 2):
            finished_command.append(Counts(tried=1, refused=1))
        else:
            finished_command.append(Counts(tried=1, traceback=1))
            fails.append("".join(traceback.format_exception(error))[-1500:])

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(LONGEST)
    return finished_command[0] if finished_command else Counts(tried=1, stuck=1)


def sound_numbers(out: Path) -> bool:
    """Whether calibrated logits are numbers, and the rows of a table have values."""
    if out.suffix == ".npz":
        z = np.load(out)["logits"]
        return not bool(np.isnan(z).any() or np.isposinf(z).any() or np.isneginf(z).all(1).any())
    outcomes = json.loads(out.read_text())
    return all(row["value"] is not None for row in outcomes["results"] if row["metric"] in ("nll", "brier", "accuracy"))


def files(seed: int, share: float, folder: Path) -> Counts:
    """Damage valid files, and run a command on each."""
    r, counts, fails = random.Random(seed), Counts(), list[str]()
    val, test = draw_predictions(60, 3, 0), draw_predictions(60, 3, 1)
    sources = {suffix: write_file(test, suffix, folder).read_bytes() for suffix in FORMATS}
    good_files = folder / "val.npz"
    val.save(good_files)
    temperature = folder / "t.safetensors"
    calibrators.save(calibrators.Temperature.fit(draw_predictions(60, 3, 2)), temperature)
    for _ in range(round(share * FILES)):
        if r.random() < 0.2:
            path = write_odd_arrays(test, folder, r)
        else:
            suffix = r.choice(FORMATS)
            path, data = folder / f"bad_logits{suffix}", bytearray(sources[suffix])
            if suffix == ".npy":
                (folder / "bad_labels.npy").write_bytes((folder / "good_labels.npy").read_bytes())
                if r.random() < 0.3:
                    path, data = folder / "bad_labels.npy", bytearray((folder / "good_labels.npy").read_bytes())
                    (folder / "bad_logits.npy").write_bytes(sources[".npy"])
            for _ in range(r.choice([1, 1, 2])):
                if data:
                    r.choice(MUTATIONS)(data, r)
            path.write_bytes(data)
            path = folder / "bad_logits.npy" if suffix == ".npy" else path
        counts += answered(*command(r, path, good_files, temperature, folder), fails)
    print(counts.line("mutated files"), *fails[:PRINTED], sep="\n")
    return counts


def command(r: random.Random, path: Path, good_files: Path, saved: Path, folder: Path) -> tuple[list[str], Path | None]:
    """Return one of the three commands, and its output."""
    json_, npz = folder / "out.json", folder / "out.npz"
    for out in json_, npz:
        out.unlink(missing_ok=True)
    stream = ["--stream"] if r.random() < 0.3 else []
    kind = r.random()
    if kind < 0.6:
        return ["measure", str(path), "--json", str(json_), *stream], json_
    if kind < 0.8:
        return ["apply", str(saved), str(path), "-o", str(npz)], npz
    pair = [str(good_files), str(path)] if r.random() < 0.5 else [str(path), str(good_files)]
    return ["assess", *pair, "-c", "Temperature", "--json", str(json_), *stream], json_


# Calibrators


def changed_tree(node: object, r: random.Random) -> object:
    """Return the description with one value changed."""
    bad = [None, True, -1, 0, 1e308, 10**400, "", "x", [], {}, {"tensor": ".absent"}, {"float": "nan"}, {"float": "x"}]
    bad += [{"tuple": []}, {"class": "Temperature", "fields": {}}, {"class": "os.system", "fields": {}}]
    if not isinstance(node, dict | list) or not node or r.random() < 0.25:
        return r.choice(bad)
    if isinstance(node, list):
        i = r.randrange(len(node))
        return [changed_tree(part, r) if i == j else part for j, part in enumerate(node)]
    key = r.choice(list(node))
    if r.random() < 0.1:
        return {k: v for k, v in node.items() if k != key}
    return node | {key: changed_tree(node[key], r)}


def changed_array(x: np.ndarray, r: random.Random) -> Any:
    """Return an array with other numbers, or of another shape or type: a tensor of bfloat16, which numpy lacks."""
    changes: list[Callable[[], Any]] = [
        lambda: x.astype(float) * r.choice([math.nan, math.inf, 0.0, -1.0, 1e300, 1e-300, 1e6]),
        lambda: x[..., None],
        lambda: x.flatten()[: r.randrange(1 + x.size)],
        lambda: np.tile(x.flatten(), 2),
        lambda: x.astype(r.choice([np.int64, bool, np.float16, np.uint8])),
        lambda: np.full_like(x, r.choice([0, 1, 5, 100])),
        lambda: spoiled(x, r),
        lambda: x[::-1] if x.ndim else -x,
    ]
    if torch and r.random() < 0.025:
        return torch.tensor(x).bfloat16()
    with np.errstate(all="ignore"):
        return np.asarray(r.choice(changes)(), order="C")


def spoiled(x: np.ndarray, r: random.Random) -> np.ndarray:
    x = x.flatten()
    if len(x):
        bad = [math.nan, math.inf, -math.inf, -1.0, 2.0, 1e300] if x.dtype.kind == "f" else [-1, 9, 10**9]
        x[r.randrange(len(x))] = np.asarray(r.choice(bad)).astype(x.dtype)
    return x


def seal(meta: dict[str, str], arrays: dict[str, Any], path: Path) -> None:
    """Write a .safetensors file with its checksum."""
    meta = meta | {"sha256": arrays_digest(meta, arrays)}
    if any(is_torch_array(x) for x in arrays.values()):
        tensors = {key: torch.as_tensor(x) for key, x in arrays.items()}
        import_module("safetensors.torch").save_file(tensors, path, meta)
    else:
        safetensors.numpy.save_file(arrays, path, meta)


def unsealed(path: Path) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """Return the metadata of a .safetensors file, without its checksum, and its arrays."""
    arrays, meta = read_arrays(path)
    return {key: text for key, text in meta.items() if key != "sha256"}, arrays


def calibrated(path: Path, p: Predictions, fails: list[str]) -> Counts:
    """Apply the calibrator of a file."""
    try:
        calibrators.origin(path)
        after = p.apply(calibrators.load(path)).logits
    except InputError as error:
        return Counts(tried=1, refused=1, traceback=int("\n" in str(error)))
    except Exception:
        fails.append(traceback.format_exc()[-1500:])
        return Counts(tried=1, traceback=1)
    sound = not bool(np.isnan(after).any() or np.isposinf(after).any() or np.isneginf(after).all(1).any())
    return Counts(tried=1, recovered=int(sound), silent=int(not sound))


def groups(p: Predictions) -> Predictions:
    """Return predictions with two groups and class names."""
    names = [f"class {j}" for j in range(p.k)]
    return Predictions(p.logits, p.labels, groups=["a", "b"] * (len(p) // 2), class_names=names)


def fitted(name: str, path: Path) -> tuple[dict[str, str], dict[str, np.ndarray], Predictions]:
    """Return the content of a calibrator file, and predictions for it."""
    k = 2 if name in ONE_SCORE else 3
    data, fresh = groups(draw_predictions(80, k, 0)), groups(draw_predictions(30, k, 1).double())
    calibrators.save(calibrators.fit(CHEAP.get(name, name), data), path, fitted_on=data)
    return *unsealed(path), fresh


def sealed(seed: int, share: float, folder: Path) -> Counts:
    """Change saved calibrators of every kind, recompute their checksums, and apply them."""
    r, counts, fails = random.Random(seed), Counts(), list[str]()
    contents = [fitted(name, folder / "good.safetensors") for name in CALIBRATORS]
    for _ in range(round(share * SEALED)):
        first, kept_bytes, fresh = r.choice(contents)
        meta, arrays = dict(first), dict(kept_bytes)
        if arrays and r.random() < 0.6:
            key = r.choice(list(arrays))
            arrays[key] = changed_array(arrays[key], r)
        elif r.random() < 0.2:
            meta["version"] = r.choice(["0", "-1", "9" * 5000, "²", "", "1.5"])
        elif r.random() < 0.3:
            key = r.choice(["rows", "class_names", "fitted_on"])
            meta[key] = r.choice(["", "x", "[]", "[1]", "{}", "null", '["a","a","b"]', "0" * 9999, meta[key][:-1]])
        else:
            meta["calibrator"] = json.dumps(changed_tree(json.loads(meta["calibrator"]), r))
        path = folder / "sealed.safetensors"
        seal(meta, arrays, path)
        counts += calibrated(path, fresh, fails)
    print(counts.line("re-sealed calibrators"), *fails[:PRINTED], sep="\n")
    return counts


CAMPAIGNS = {"files": files, "sealed": sealed}


def check(outcomes: Counts) -> None:
    assert (outcomes.silent, outcomes.traceback, outcomes.stuck) == (0, 0, 0), outcomes
    assert outcomes.refused > 0.3 * outcomes.tried
    assert outcomes.recovered > 0


@pytest.mark.parametrize(("name", "share"), [("files", 0.01), ("sealed", 0.05)])
def test_some(name, share, tmp_path):
    check(CAMPAIGNS[name](0, share, tmp_path))


@pytest.mark.slow
def test_a_tenth_of_the_files(tmp_path):
    check(files(2, 0.1, tmp_path))


@pytest.mark.torture
@pytest.mark.parametrize("name", CAMPAIGNS)
def test_all(name, tmp_path):
    check(CAMPAIGNS[name](1, 1.0, tmp_path))
