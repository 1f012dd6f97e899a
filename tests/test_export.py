"""`nn.Calibrated` exported and run by onnxruntime, for every parametric calibrator."""

import pytest
import torch

from calibrant import Predictions, calibrators, catalog
from calibrant.nn import Calibrated

PARAMETRIC = sorted(
    set(calibrators.__all__)
    - {"BayesianBinning", "HistogramBinning", "Isotonic", "ScalingBinning", "SharedIsotonic", "Spline"}
    - {"TopLabelBinning", "VennAbers"}
)
BINARY = {"Beta", "Platt", "Quadratic"}
TEXT = {"FocalTemperature": "FocalTemperature(criterion='nll', grid='code', search='line')", "Auto": "Auto(folds=2)"}


@pytest.fixture(scope="module", params=PARAMETRIC)
def module(request) -> Calibrated:
    k = 2 if request.param in BINARY else 3
    g = torch.Generator().manual_seed(0)
    z = torch.randn(300, k, generator=g)
    data = Predictions(3 * z, torch.multinomial(z.softmax(-1), 1, generator=g).squeeze(1))
    if request.param == "Chain":
        first = calibrators.Temperature.fit(*data)
        fitted = calibrators.Chain(first, calibrators.Vector.fit(first(data.logits), data.labels))
    else:
        fitted = catalog.resolve(TEXT.get(request.param, request.param), calibrators)(*data)
    torch.manual_seed(0)
    return Calibrated(torch.nn.Linear(5, k), fitted).eval()


@pytest.fixture
def inputs() -> torch.Tensor:
    return 3 * torch.randn(7, 5, generator=torch.Generator().manual_seed(1))


def probs(logits) -> torch.Tensor:
    return torch.as_tensor(logits).double().softmax(-1)


def test_export_gives_the_same_probabilities(module, inputs):
    batch = torch.export.Dim("batch", min=2)
    program = torch.export.export(module, (inputs,), dynamic_shapes=(({0: batch},),))
    for x in inputs, inputs[:3]:
        torch.testing.assert_close(probs(program.module()(x)), probs(module(x)), rtol=0, atol=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_onnxruntime_gives_the_same_probabilities(module, inputs, tmp_path):
    import onnxruntime

    batch = torch.export.Dim("batch", min=2)
    path = tmp_path / "model.onnx"
    torch.onnx.export(module, (inputs,), path, dynamo=True, dynamic_shapes=(({0: batch},),), verbose=False)
    session = onnxruntime.InferenceSession(path)
    for x in inputs, 20 * inputs[:3]:
        (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        torch.testing.assert_close(probs(found), probs(module(x).detach()), rtol=0, atol=1e-5)
