"""
Ten minutes: from logits to a deployed calibrator
=================================================

You have a trained classifier, and data it was not trained on. At the end of this page its probabilities are honest, you
know how honest, and what runs in production gives them.

Here the classifier is a small network that has seen a hundred handwritten digits, which takes a second to train.
"""

import tempfile
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

import calibrant
from calibrant import Predictions, calibrators, metrics, plots
from calibrant.lab import data, networks
from calibrant.nn import CalibratedNetwork, Criterion

digits = data.digits(train=100, val=600)
x, y = digits.prepare(digits.train.inputs), digits.train.labels
torch.manual_seed(0)
network = networks.mlp(10)
criterion, step = Criterion("cross_entropy"), torch.optim.Adam(network.parameters(), 0.003)
for _ in range(60):
    step.zero_grad()
    criterion(network(x), y).backward()
    step.step()

# %%
# What it says
# ------------
#
# Two sets are needed: one to fit a calibrator on, one to judge it on, neither seen in training. ``collect`` runs the
# network over batches of any form and returns its predictions: logits and labels, checked once.

val, test = (
    calibrant.collect(network, DataLoader(TensorDataset(digits.prepare(part.inputs), part.labels), batch_size=256))
    for part in (digits.val, digits.test)
)
print(val)

# %%
# Whoever has logits in files says ``Predictions(np.load("logits.npy"), np.load("labels.npy"))``. Probabilities,
# confidences, single logits and tables enter by name, such as ``Predictions.from_probs``.
#
# How honest it is
# ----------------
#
# ``measure`` prints what should be known: each number with its interval, its noise floor or its p-value. The noise
# floor is the ECE that a perfectly calibrated network with these very confidences would show; Kuiper's p-value is the
# chance that one would look as bad.

print(calibrant.measure(test))

# %%

plots.reliability(test, title=f"as trained: ECE {100 * float(metrics.ece(test)):.1f} %")

# %%
# Repair
# ------
#
# ``assess`` fits several calibrators to ``val``, chooses one by held-out folds of ``val``, and judges all on
# ``test``, which had no say.

found = calibrant.assess(val, test)
print(found)

# %%

plots.reliability(test.apply(found.best), title=f"after {found.chosen_name}")

# %%
# The whole answer is a page that opens offline; the calibrator is a file of numbers without code.

folder = Path(tempfile.mkdtemp())
found.save(folder / "report.html")
found.save(folder / "calibrator.safetensors")
print(sorted((path.name, path.stat().st_size // 1000) for path in folder.iterdir()), "kB")

# %%
# Deploy
# ------
#
# Where torch runs, put the calibrator behind the network: what it learned becomes buffers, which move with the module.

best = calibrators.load(folder / "calibrator.safetensors")
model = CalibratedNetwork(network, best).eval()
inputs = digits.prepare(digits.test.inputs[:4])
print(model(inputs).softmax(1).amax(1))

# %%
# ``torch.export`` writes it as one program, which is loaded without Calibrant. (ONNX, and plain numpy:
# :doc:`/howto/deploy`.)

batch = torch.export.Dim("batch", min=2)
program = torch.export.export(model, (inputs,), dynamic_shapes=(({0: batch},),))
torch.export.save(program, folder / "model.pt2")
again = torch.export.load(folder / "model.pt2").module()
print((again(inputs) - model(inputs)).abs().max() < 1e-5)

# %%
# The same from the shell
# -----------------------
#
# .. code-block:: console
#
#    $ calibrant assess val.npz test.npz --html report.html --save calibrator.safetensors
#    $ calibrant apply calibrator.safetensors new.npz -o calibrated.npz
#
# Later, on new labeled predictions, measure again: what was calibrated last year may have drifted.

later = Predictions(found.best(test.logits[600:]), test.labels[600:])
print(metrics.kuiper.test(later))
