"""
Ten minutes: from logits to a deployed calibrator
=================================================

You have a trained classifier and data that it was not trained on. This tutorial measures its calibration, fits a
calibrator, and deploys both together.

The classifier is a small network, trained on a hundred handwritten digits within a second.
"""

import tempfile
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

import calibrant
from calibrant import Predictions, calibrators, metrics
from calibrant.lab import data, networks
from calibrant.nn import CalibratedNetwork, Criterion
from calibrant.reports import plots

digits = data.digits(train=100, val=600)
x, y = digits.prepare(digits.train.inputs), digits.train.labels
torch.manual_seed(0)
network = networks.mlp(10)
criterion, step = (
    Criterion("cross_entropy"),
    torch.optim.Adam(network.parameters(), 0.003),
)
for _ in range(60):
    step.zero_grad()
    criterion(network(x), y).backward()
    step.step()

# %%
# Collect predictions
# -------------------
#
# You need two sets that were not used in training: one to fit a calibrator on, one to evaluate it on. ``collect`` runs
# the network over batches and returns ``Predictions``: validated logits and labels.

val, test = (
    calibrant.collect(
        network,
        DataLoader(
            TensorDataset(digits.prepare(part.inputs), part.labels), batch_size=256
        ),
    )
    for part in (digits.val, digits.test)
)
print(val)

# %%
# If your logits are in files, use ``Predictions(np.load("logits.npy"), np.load("labels.npy"))``. There are other
# constructors for probabilities, confidences, single logits and tables, such as ``Predictions.from_probs``.
#
# Measure calibration
# -------------------
#
# ``measure`` prints each number with its interval, its noise floor or its p-value. The noise floor is the ECE of a
# perfectly calibrated network with the same confidences. The p-value of the omnibus test is the probability that such a
# network would look at least as miscalibrated.

print(calibrant.measure(test))

# %%

plots.reliability(test, title=f"as trained: ECE {100 * float(metrics.ece(test)):.1f} %")

# %%
# Calibrate
# ---------
#
# ``assess`` fits several calibrators on ``val``, selects one by cross-validation on ``val``, and evaluates all of them
# on ``test``. The test set does not influence the selection.

result = calibrant.assess(val, test)
print(result)

# %%

plots.reliability(test.apply(result.best), title=f"after {result.chosen_name}")

# %%
# Save the full report as a page that opens offline, and the calibrator as a file of numbers without code.

folder = Path(tempfile.mkdtemp())
result.save(folder / "report.html")
result.save(folder / "calibrator.safetensors")
print(
    sorted((path.name, path.stat().st_size // 1000) for path in folder.iterdir()), "kB"
)

# %%
# Deploy
# ------
#
# With torch, put the calibrator behind the network. Its parameters become buffers, which move with the module.

best = calibrators.load(folder / "calibrator.safetensors")
model = CalibratedNetwork(network, best).eval()
inputs = digits.prepare(digits.test.inputs[:4])
print(model(inputs).softmax(1).amax(1))

# %%
# ``torch.export`` writes both as one program. Loading it does not require Calibrant. For ONNX and numpy, see
# :doc:`/howto/deploy`.

batch = torch.export.Dim("batch", min=2)
program = torch.export.export(model, (inputs,), dynamic_shapes=(({0: batch},),))
torch.export.save(program, folder / "model.pt2")
loaded = torch.export.load(folder / "model.pt2").module()
print((loaded(inputs) - model(inputs)).abs().max() < 1e-5)

# %%
# Use the command line
# --------------------
#
# .. code-block:: console
#
#    $ calibrant assess val.npz test.npz --html report.html --save calibrator.safetensors
#    $ calibrant apply calibrator.safetensors new.npz -o calibrated.npz
#
# Calibration may drift. Measure again when you have new labeled predictions.

later = Predictions(result.best(test.logits[600:]), test.labels[600:])
print(metrics.omnibus.test(later))
