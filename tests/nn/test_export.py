"""`nn.CalibratedNetwork` compiled, exported and run by onnxruntime, for every calibrator that declares it."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from calibrant.registry import CALIBRATORS

from calibrant.nn import CalibratedNetwork

PAGE = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "extension" / "exports.py"))
EXPORTED = [name for name, promised in PAGE["CAPABILITIES"].items() if "ONNX" in promised.exports]
DIFFERENTIABLE = [name for name in EXPORTED if PAGE["CAPABILITIES"][name].is_differentiable]
QUICK = {"Monotone", "Temperature"}  # by a table of values, and by a formula


def build(name: str) -> CalibratedNetwork:
    """Return a small network with a calibrator fitted to simulated predictions."""
    fitted = PAGE["fit_calibrator"](name)
    torch.manual_seed(0)
    return CalibratedNetwork(torch.nn.Linear(5, 2 if name in PAGE["BINARY"] else 3), fitted).eval()


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in EXPORTED]
)
def module(request) -> CalibratedNetwork:
    return build(request.param)


@pytest.fixture
def inputs() -> torch.Tensor:
    return 3 * torch.randn(7, 5, generator=torch.Generator().manual_seed(1))


def probs(logits) -> torch.Tensor:
    return torch.as_tensor(logits).double().softmax(-1)


def test_torch_export_gives_the_same_probabilities(module, inputs):
    batch = torch.export.Dim("batch", min=2)
    program = torch.export.export(module, (inputs,), dynamic_shapes=(({0: batch},),))
    for x in inputs, inputs[:3]:
        torch.testing.assert_close(probs(program.module()(x)), probs(module(x)), rtol=0, atol=1e-6)


def compile_all(backend: str = "aot_eager") -> None:
    """Compile every map in one graph; print the names of those whose probabilities or gradients differ."""
    x = 3 * torch.randn(7, 5, generator=torch.Generator().manual_seed(1))
    for name in DIFFERENTIABLE:
        torch.compiler.reset()
        module = build(name)
        compiled = torch.compile(module, fullgraph=True, backend=backend)
        z, expected = x.clone().requires_grad_(), x.clone().requires_grad_()
        compiled(z).square().sum().backward()
        module(expected).square().sum().backward()
        pairs = [(probs(compiled(rows).detach()), probs(module(rows).detach())) for rows in (x, x[:3], 20 * x)]
        same = all(torch.allclose(*pair, rtol=0, atol=1e-6) for pair in pairs)
        if not (same and torch.allclose(z.grad, expected.grad, rtol=1e-4, atol=1e-5)):
            print(name)
    print("compiled")


@pytest.mark.slow
def test_compilation_gives_the_same_probabilities_and_gradients():
    """Runs in its own process, because the type checks of the test session cannot be compiled."""
    code = "import test_export; test_export.compile_all()"
    root = Path(__file__).parents[2]
    paths = {"PYTHONPATH": os.pathsep.join([str(root / "src"), str(Path(__file__).parent)])}
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | paths)
    assert process.stdout == "compiled\n", process.stderr


@pytest.mark.filterwarnings("ignore")
def test_onnxruntime_gives_the_same_probabilities(module, inputs, tmp_path):
    import onnxruntime

    batch = torch.export.Dim("batch", min=2)
    path = tmp_path / "model.onnx"
    torch.onnx.export(module, (inputs,), path, dynamo=True, dynamic_shapes=(({0: batch},),), verbose=False)
    session = onnxruntime.InferenceSession(path)
    for x in inputs, 20 * inputs[:3]:
        (logits,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        torch.testing.assert_close(probs(logits), probs(module(x).detach()), rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_auto_with_a_step_function_is_exported(tmp_path):
    """For two classes `Auto` mixes VennAbers with other members if the truth has a step, here at odds of e."""
    g = torch.Generator().manual_seed(0)
    s = 3 * torch.randn(2000, generator=g)
    y = torch.where(s.abs() < 1, torch.randint(0, 2, (2000,), generator=g), (s > 0).long())
    z = torch.stack([-s / 2, s / 2], 1)
    stack = CALIBRATORS.resolve("Auto")(z, y)
    assert "VennAbers" in stack.names
    module = CalibratedNetwork(torch.nn.Linear(5, 2), stack).eval()
    x = 3 * torch.randn(7, 5, generator=g)
    assert PAGE["_exports_to_torch"](module, x)
    assert PAGE["_exports_to_onnx"](module, x, tmp_path / "model.onnx")
