"""Golden values of every built-in loss, metric and calibrator, stored with the revision of its code.

`PYTHONPATH=src python tests/golden_methods.py` adds new methods and changed values, and refuses values that changed
without a raised revision. Look at what has changed before you commit it.
"""

import json
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import golden_problems
import pytest
from calibrant.registry import CALIBRATORS, LOSSES, METRICS, REGISTRIES, is_built_in
from scipy.special import softmax

from calibrant import calibrators

FILE = Path(__file__).parent / "golden" / "methods.json"
EVENTS = ("binary", "classes", "multilabel", "weights")  # the problems that metrics measure
TOLERANCES = {"objective": (0.0, 1e-9), "probs": (0.0, 1e-6)}  # relative and absolute; searches end near the optimum
Golden = dict[str, Any]  # "code", the revision or "", and lists of numbers by name
predictions = cache(golden_problems.predictions)


def loss_values(name: str) -> Golden:
    """Return values and gradients of a loss for a few fixed logits of three classes."""
    import torch

    from calibrant import losses

    steps = torch.arange(18, dtype=torch.float64).reshape(6, 3)
    z = (3 * torch.sin(7 * steps)).requires_grad_()
    y = torch.tensor([0, 1, 2, 0, 1, 1])
    loss = losses.for_counts(losses.for_epochs(LOSSES.resolve(name), 10), y.bincount(minlength=3))
    values = loss(z, y)
    (gradient,) = torch.autograd.grad(values.sum(), z)
    return {"code": LOSSES.code(name), "values": values.tolist(), "gradient": gradient.flatten().tolist()}


def metric_values(name: str) -> Golden:
    """Return a metric of the problems in EVENTS."""
    return {"code": METRICS.code(name), "values": [float(METRICS[name](predictions(0)[event])) for event in EVENTS]}


def calibrator_values(name: str) -> Golden:
    """Return the objective that a calibrator's fit reaches and the probabilities of five fresh rows."""
    kind = "binary" if name in golden_problems.ONE_SCORE else "classes"
    method = CALIBRATORS.method("PriorShift(calibrator='Temperature')" if name == "PriorShift" else name)
    fitted_map = calibrators.fit(method.text, predictions(0)[kind])
    certificate = getattr(fitted_map, "certificate", None)
    smooth = certificate is not None and certificate.criterion in ("nll", "brier")  # others change by bin edges
    objective = [certificate.before, certificate.after] if smooth else []
    probs = softmax(fitted_map(predictions(50)[kind].logits[:5].astype(float)), -1)
    return {"code": method.code, "objective": [float(x) for x in objective], "probs": probs.flatten().tolist()}


VALUES: dict[str, Callable[[str], Golden]] = {
    "losses": loss_values,
    "metrics": metric_values,
    "calibrators": calibrator_values,
}


def built_in() -> list[tuple[str, str]]:
    """Return the kind and name of every built-in method."""
    return [(kind, name) for kind in VALUES for name in REGISTRIES[kind] if is_built_in(REGISTRIES[kind][name])]


def stale_golden(kind: str, name: str, golden: Golden, computed: Golden) -> str:
    """Return what to do about a golden record that is not that of the code, "" if it is."""
    if golden["code"] != computed["code"]:
        return f"{kind}: {name} has {computed['code'] or 'revision 1'}; run tests/golden_methods.py"
    for part in computed.keys() - {"code"}:
        relative, absolute = TOLERANCES.get(part, (1e-7, 1e-9))
        if computed[part] != pytest.approx(golden[part], rel=relative, abs=absolute, nan_ok=True):
            return f"{kind}: {part} of {name} changed; raise its revision, then run tests/golden_methods.py"
    return ""


def write() -> None:
    """Write the golden values of new methods and of raised revisions; exit if values changed without one.

    Values of the same revision are left as they are, so that another processor changes no digit.
    """
    stored = json.loads(FILE.read_text()) if FILE.exists() else {}
    lines: dict[str, list[str]] = {kind: [] for kind in VALUES}
    for kind, name in built_in():
        computed, golden = VALUES[kind](name), stored.get(kind, {}).get(name)
        if golden is not None and golden["code"] == computed["code"]:
            if message := stale_golden(kind, name, golden, computed):
                sys.exit(message)
            computed = golden
        rounded = {
            part: numbers if part == "code" else [float(f"{x:.12g}") for x in numbers]
            for part, numbers in computed.items()
        }
        lines[kind].append(f"{json.dumps(name)}: {json.dumps(rounded)}")
    blocks = (f"{json.dumps(kind)}: {{\n" + ",\n".join(rows) + "\n}" for kind, rows in lines.items())
    FILE.write_text("{\n" + ",\n".join(blocks) + "\n}\n")


if __name__ == "__main__":
    write()
