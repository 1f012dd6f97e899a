"""Table of export formats in deploy.md, from the calibrator classes.

`try_exports` checks what a class declares. It fits the calibrator, puts it behind a small network and exports it. The
loaded program must return the same probabilities.
"""

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from calibrant.registry import CALIBRATORS

from calibrant import Predictions, calibrators
from calibrant.deployment import export
from calibrant.nn import CalibratedNetwork

DOCS = Path(__file__).parents[1]
HEADER = ("calibrator", "safetensors", "numpy", "torch.export", "ONNX")
CAPABILITIES = {name: calibrators.capabilities(CALIBRATORS[name]) for name in sorted(CALIBRATORS)}
BINARY = {name for name, promised in CAPABILITIES.items() if promised.num_classes == 2}
FAST_SETTINGS = {
    "FocalTemperature": "FocalTemperature(criterion='nll', grid='code', search='line')",
    "Auto": "Auto(folds=2)",
}


def fit_calibrator(name: str) -> Any:
    """Return a calibrator of that name, fitted to simulated predictions."""
    k = 2 if name in BINARY else 3
    g = torch.Generator().manual_seed(0)
    z = torch.randn(300, k, generator=g)
    p = Predictions(3 * z, torch.multinomial(z.softmax(-1), 1, generator=g).squeeze(1))
    if name == "Chain":
        first = calibrators.Temperature.fit(p)
        return calibrators.Chain(first, calibrators.Vector.fit(first(p.logits), p.labels))
    return calibrators.fit(FAST_SETTINGS.get(name, name), p)


def try_exports(name: str, folder: Path, formats: tuple[str, ...] = HEADER[1:]) -> dict[str, str]:
    """Return for each format whether the calibrator can be exported to it."""
    calibrator = fit_calibrator(name)
    torch.manual_seed(0)
    module = CalibratedNetwork(torch.nn.Linear(5, 2 if name in BINARY else 3), calibrator).eval()
    x = 3 * torch.randn(7, 5, generator=torch.Generator().manual_seed(1))
    z, path = module.network(x).detach(), folder / f"{name}.safetensors"
    trials: dict[str, Callable[[], bool]] = {
        "safetensors": lambda: _survives_saving(calibrator, z, path),
        "torch.export": lambda: _exports_to_torch(module, x),
        "ONNX": lambda: _exports_to_onnx(module, x, folder / f"{name}.onnx"),
        "numpy": lambda: _runs_in_numpy(calibrator, z.double(), folder / f"{name}.py"),
    }
    return {"calibrator": name} | {key: "yes" if _succeeds(trials[key]) else "no" for key in formats}


def _succeeds(trial: Callable[[], bool]) -> bool:
    try:
        return trial()
    except Exception:
        return False


def _same_probs(logits: Any, expected: torch.Tensor, tolerance: float = 1e-5) -> bool:
    p, q = (torch.as_tensor(np.asarray(x)).double().softmax(-1) for x in (logits, expected.detach()))
    return bool((p - q).abs().max() < tolerance)


def _survives_saving(calibrator: Any, z: torch.Tensor, path: Path) -> bool:
    calibrators.save(calibrator, path)
    return bool(torch.equal(calibrators.load(path)(z), calibrator(z)))


def _exports_to_torch(module: torch.nn.Module, x: torch.Tensor) -> bool:
    batch = torch.export.Dim("batch", min=2)
    program = torch.export.export(module, (x,), dynamic_shapes=(({0: batch},),))
    return all(_same_probs(program.module()(rows).detach(), module(rows)) for rows in (x, x[:3]))


def _exports_to_onnx(module: torch.nn.Module, x: torch.Tensor, path: Path) -> bool:
    import onnxruntime

    batch = torch.export.Dim("batch", min=2)
    torch.onnx.export(module, (x,), path, dynamo=True, dynamic_shapes=(({0: batch},),), verbose=False)
    session = onnxruntime.InferenceSession(path)
    (inputs,) = session.get_inputs()
    return all(_same_probs(session.run(None, {inputs.name: r.numpy()})[0], module(r)) for r in (x, x[:3]))


def _runs_in_numpy(calibrator: Any, z: torch.Tensor, path: Path) -> bool:
    export(calibrator, path)
    return _same_probs(runpy.run_path(str(path))["calibrate"](z.numpy()), calibrator(z), 1e-9)


def declared_exports(name: str) -> dict[str, str]:
    """Return a row of the table: the formats that the class declares."""
    formats = ("safetensors", "numpy", *CAPABILITIES[name].exports)
    return {"calibrator": name} | {key: "yes" if key in formats else "no" for key in HEADER[1:]}


def markdown_table() -> str:
    """Return the declared formats of all calibrators."""
    rows = [HEADER, ("---",) * len(HEADER), *(tuple(declared_exports(name).values()) for name in CAPABILITIES)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
