"""Which calibrator runs where, by trying: `python docs/extension/exports.py` writes the table of the deployment page.

Every registered calibrator is fitted, put behind a small network, and taken each way out; what comes back must be the
same probabilities.
"""

import csv
import runpy
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from calibrant import Predictions, calibrators
from calibrant.nn import CalibratedNetwork
from calibrant.registry import CALIBRATORS

DOCS = Path(__file__).parents[1]
TABLE = DOCS / "howto" / "exports.csv"
HEAD = ("calibrator", "safetensors", "torch.export", "ONNX", "plain numpy")
BINARY = {"Beta", "Platt", "Quadratic"}
QUICK = {"FocalTemperature": "FocalTemperature(criterion='nll', grid='code', search='line')", "Auto": "Auto(folds=2)"}


def fitted(name: str) -> Any:
    """Return a calibrator of that name, fitted to drawn predictions."""
    k = 2 if name in BINARY else 3
    g = torch.Generator().manual_seed(0)
    z = torch.randn(300, k, generator=g)
    p = Predictions(3 * z, torch.multinomial(z.softmax(-1), 1, generator=g).squeeze(1))
    if name == "Chain":
        first = calibrators.Temperature.fit(p)
        return calibrators.Chain(first, calibrators.Vector.fit(first(p.logits), p.labels))
    return calibrators.fit(QUICK.get(name, name), p)


def tried(name: str, folder: Path, ways: tuple[str, ...] = HEAD[1:]) -> dict[str, str]:
    """Return by way out whether the calibrator takes it."""
    calibrator = fitted(name)
    k = 2 if name in BINARY else 3
    torch.manual_seed(0)
    module = CalibratedNetwork(torch.nn.Linear(5, k), calibrator).eval()
    x = 3 * torch.randn(7, 5, generator=torch.Generator().manual_seed(1))
    trials: dict[str, Callable[[], bool]] = {
        "safetensors": lambda: _saved(calibrator, module.network(x).detach(), folder / f"{name}.safetensors"),
        "torch.export": lambda: _exported(module, x),
        "ONNX": lambda: _onnx(module, x, folder / f"{name}.onnx"),
        "plain numpy": lambda: _numpy(calibrator, module.network(x).detach().double(), folder / f"{name}.safetensors"),
    }
    return {"calibrator": name} | {way: "yes" if _succeeds(trials[way]) else "no" for way in ways}


def _succeeds(trial: Callable[[], bool]) -> bool:
    try:
        return trial()
    except Exception:
        return False


def _same(found: Any, expected: torch.Tensor, within: float = 1e-5) -> bool:
    one, other = (torch.as_tensor(np.asarray(x)).double().softmax(-1) for x in (found, expected.detach()))
    return bool((one - other).abs().max() < within)


def _saved(calibrator: Any, z: torch.Tensor, path: Path) -> bool:
    calibrators.save(calibrator, path)
    return bool(torch.equal(calibrators.load(path)(z), calibrator(z)))


def _exported(module: torch.nn.Module, x: torch.Tensor) -> bool:
    batch = torch.export.Dim("batch", min=2)
    program = torch.export.export(module, (x,), dynamic_shapes=(({0: batch},),))
    return all(_same(program.module()(rows).detach(), module(rows)) for rows in (x, x[:3]))


def _onnx(module: torch.nn.Module, x: torch.Tensor, path: Path) -> bool:
    import onnxruntime

    batch = torch.export.Dim("batch", min=2)
    torch.onnx.export(module, (x,), path, dynamo=True, dynamic_shapes=(({0: batch},),), verbose=False)
    session = onnxruntime.InferenceSession(path)
    return all(_same(session.run(None, {session.get_inputs()[0].name: r.numpy()})[0], module(r)) for r in (x, x[:3]))


def _numpy(calibrator: Any, z: torch.Tensor, path: Path) -> bool:
    calibrators.save(calibrator, path)
    mapped = runpy.run_path(str(DOCS / "howto" / "in_numpy.py"))["load"](path)
    return _same(mapped(z.numpy()), calibrator(z), 1e-12)


def main() -> None:
    """Try all, and write the table."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder, TABLE.open("w", newline="") as file:
        writer = csv.DictWriter(file, HEAD, lineterminator="\n")
        writer.writeheader()
        for name in sorted(CALIBRATORS):
            writer.writerow(row := tried(name, Path(folder)))
            print(*row.values(), file=sys.stderr)


if __name__ == "__main__":
    main()
