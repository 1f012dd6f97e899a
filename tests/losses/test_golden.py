"""Values of every built-in loss, kept with its revision: a loss whose values change must raise its revision.

`python tests/losses/test_golden.py` writes the file again; look at what has changed before it is committed.
"""

import json
from pathlib import Path

import pytest
import torch

from calibrant import losses
from calibrant.registry import LOSSES, is_built_in

GOLDEN = Path(__file__).with_name("golden.json")
BUILT_IN = [name for name in LOSSES if is_built_in(LOSSES[name])]


def measure(name: str) -> dict[str, object]:
    """Return a loss's revision, and its values and gradients on a few fixed logits of three classes."""
    steps = torch.arange(18, dtype=torch.float64).reshape(6, 3)
    z = (3 * torch.sin(7 * steps)).requires_grad_()
    y = torch.tensor([0, 1, 2, 0, 1, 1])
    loss = losses.for_counts(losses.for_epochs(LOSSES.resolve(name), 10), y.bincount(minlength=3))
    values = loss(z, y)
    (gradient,) = torch.autograd.grad(values.sum(), z)
    rounded = [[float(f"{x:.10g}") for x in part.flatten()] for part in (values.detach(), gradient)]
    return {"code": LOSSES.code(name), "values": rounded[0], "gradient": rounded[1]}


def test_every_built_in_loss_has_golden_values():
    assert sorted(json.loads(GOLDEN.read_text())) == sorted(BUILT_IN)


@pytest.mark.parametrize("name", BUILT_IN)
def test_loss_values_change_only_with_the_revision(name):
    expected, computed = json.loads(GOLDEN.read_text())[name], measure(name)
    assert computed["code"] == expected["code"]
    for part in "values", "gradient":
        assert computed[part] == pytest.approx(expected[part], rel=1e-7, abs=1e-9), f"raise the revision of {name}"


if __name__ == "__main__":
    lines = [f"{json.dumps(name)}: {json.dumps(measure(name))}" for name in BUILT_IN]
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")
