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
from pathlib import Path

import numpy as np
import pytest
import torch
from calibrant.registry import CALIBRATORS
from golden_problems import ONE_SCORE
from safetensors import safe_open
from safetensors.torch import save_file
from torture.campaign import Counts
from typer.testing import CliRunner

from calibrant import InputError, Predictions, calibrators
from calibrant._core.kernels.digests import arrays_digest
from calibrant.cli import app

FORMATS = [".npz", ".npy", ".safetensors", ".pt", ".csv", ".parquet"]
FILES, SEALED = 5000, 1000
CHEAP = {"Auto": "Auto(folds=2)", "Chain": "Chain(first='Temperature', second='Vector')"}
CHEAP |= {"PriorShift": "PriorShift(calibrator='Vector')", "GroupCalibrated": "GroupCalibrated(calibrator='Vector')"}
LONGEST = 300  # seconds, after which something is stuck
PRINTED = 5  # failures


def draw_predictions(n: int, k: int, seed: int) -> Predictions:
    g = torch.Generator().manual_seed(seed)
    z = 2 * torch.randn(n, k, generator=g)
    return Predictions(z, torch.multinomial((z / 2).softmax(-1), 1, generator=g).squeeze(1))


# Files


def write_file(p: Predictions, suffix: str, folder: Path) -> Path:
    """Write valid predictions in a format."""
    path = folder / f"good_logits{suffix}"
    if suffix == ".npy":
        np.save(path, p.logits)
        np.save(folder / "good_labels.npy", p.labels)
    elif suffix == ".pt":
        torch.save({"logits": p.logits, "labels": torch.from_numpy(p.labels)}, path)
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


def changed_tensor(x: torch.Tensor, r: random.Random) -> torch.Tensor:
    """Return a tensor with other numbers, or of another shape or type."""
    changes = [
        lambda: x.double() * r.choice([math.nan, math.inf, 0.0, -1.0, 1e300, 1e-300, 1e6]),
        lambda: x[..., None],
        lambda: x.flatten()[: r.randrange(1 + x.numel())],
        lambda: torch.cat([x.flatten(), x.flatten()]),
        lambda: x.to(r.choice([torch.int64, torch.bool, torch.float16, torch.bfloat16, torch.uint8])),
        lambda: torch.full_like(x, r.choice([0, 1, 5, 100])),
        lambda: spoiled(x, r),
        lambda: x.flip(0) if x.ndim else -x,
    ]
    return r.choice(changes)().contiguous()


def spoiled(x: torch.Tensor, r: random.Random) -> torch.Tensor:
    x = x.clone().flatten()
    if len(x):
        value = (
            r.choice([math.nan, math.inf, -math.inf, -1.0, 2.0, 1e300])
            if x.is_floating_point()
            else r.choice([-1, 9, 10**9])
        )
        x[r.randrange(len(x))] = value
    return x


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


def fitted(name: str, path: Path) -> tuple[dict[str, str], dict[str, torch.Tensor], Predictions]:
    """Return the content of a calibrator file, and predictions for it."""
    k = 2 if name in ONE_SCORE else 3
    data, fresh = groups(draw_predictions(80, k, 0)), groups(draw_predictions(30, k, 1).double())
    calibrators.save(calibrators.fit(CHEAP.get(name, name), data), path, fitted_on=data)
    with safe_open(path, "pt") as file:
        meta = dict(file.metadata())
        del meta["sha256"]
        return meta, {key: file.get_tensor(key) for key in file.keys()}, fresh  # noqa: SIM118


def sealed(seed: int, share: float, folder: Path) -> Counts:
    """Change saved calibrators of every kind, recompute their checksums, and apply them."""
    r, counts, fails = random.Random(seed), Counts(), list[str]()
    contents = [fitted(name, folder / "good.safetensors") for name in CALIBRATORS]
    for _ in range(round(share * SEALED)):
        first, kept_bytes, fresh = r.choice(contents)
        meta, tensors = dict(first), dict(kept_bytes)
        if tensors and r.random() < 0.6:
            key = r.choice(list(tensors))
            tensors[key] = changed_tensor(tensors[key], r)
        elif r.random() < 0.2:
            meta["version"] = r.choice(["0", "-1", "9" * 5000, "²", "", "1.5"])
        elif r.random() < 0.3:
            key = r.choice(["rows", "class_names", "fitted_on"])
            meta[key] = r.choice(["", "x", "[]", "[1]", "{}", "null", '["a","a","b"]', "0" * 9999, meta[key][:-1]])
        else:
            meta["calibrator"] = json.dumps(changed_tree(json.loads(meta["calibrator"]), r))
        path = folder / "sealed.safetensors"
        save_file(tensors, path, meta | {"sha256": arrays_digest(meta, tensors)})
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
