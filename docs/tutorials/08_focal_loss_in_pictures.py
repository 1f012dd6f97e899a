"""
The theory of focal loss in pictures
====================================

Focal loss, :math:`-(1 - p_y)^\\gamma \\log p_y`, is cross-entropy weighted by how wrong the model still is. Why do
networks trained with it know better how sure to be? Five pictures; the proofs, and where the papers had to be
corrected, are in :doc:`/theory`.
"""

import torch
from matplotlib import pyplot

from calibrant import losses, plots, theory
from calibrant.lab import figures

p = torch.linspace(0.005, 0.995, 300, dtype=torch.float64)
z, y = torch.stack([p, 1 - p], 1).log(), torch.zeros(300, dtype=torch.int64)

# %%
# 1. It pushes less where the model is sure
# -----------------------------------------
#
# Its gradient is that of cross-entropy times :math:`g(p, \gamma)`: above 1 below a threshold, below 1 beyond it. A
# network trained by it stops early to raise what is already high (Mukhoti et al. 2020).

figure, ax = pyplot.subplots(figsize=(5.4, 3.4))
curves = {"_one": (p, torch.ones_like(p))}
curves |= {f"gamma {gamma:g}": (p, theory.gradient_ratio(p, gamma)) for gamma in (1.0, 3.0, 5.0)}
plots.family(curves, ax=ax, xlabel="probability of the true class", ylabel="gradient ratio")
print("threshold of gamma 3:", round(float(theory.confidence_threshold(3.0)), 4))

# %%
# 2. It does not ask for the truth
# --------------------------------
#
# Where the truth is 80 %, what minimizes the expected loss? Cross-entropy asks for 80 %, focal loss for less.

figure, ax = pyplot.subplots(figsize=(5.4, 3.4))
truth = torch.tensor([[0.8, 0.2]], dtype=torch.float64).log().expand(300, 2)
curves = {}
for gamma in (0.0, 1.0, 2.0, 4.0):
    risk = theory.conditional_risk(z, truth, loss=lambda q, label, gamma=gamma: losses.focal(q, label, gamma=gamma))
    curves[f"gamma {gamma:g}: least at {float(p[risk.argmin()]):.2f}"] = (p, risk / risk.min())
plots.family(curves, ax=ax, xlabel="said", ylabel="risk, over the least")
ax.set(ylim=(0.98, 1.6))

# %%
# 3. But the truth can be read off
# --------------------------------
#
# A map, the same for every model, takes the minimizer back (Komisarenko & Kull 2024). It raises confidence: a network
# trained with focal loss says less than it means.

figure, ax = pyplot.subplots(figsize=(4.4, 4.2))
curves = {"_identity": (p, p)}
curves |= {f"gamma {gamma:g}": (p, theory.focal_map(z, gamma=gamma).exp()[:, 0]) for gamma in (1.0, 3.0, 5.0)}
plots.family(curves, ax=ax, xlabel="said", ylabel="meant")
ax.set(aspect="equal", xlim=(0, 1), ylim=(0, 1))

# %%
# 4. A network sees it
# --------------------
#
# Where the truth is known, a small network trained with gamma 3 misses it; the map finds it.

posterior, raw, mapped = figures.train_on_blobs(gamma=3.0, steps=60)
figure, axes = pyplot.subplots(1, 2, figsize=(8, 4), sharey=True)
for ax, log_q, title in zip(axes, (raw, mapped), ("as trained", "after the focal map"), strict=True):
    top = posterior.argmax(1, keepdim=True)
    ax.plot([1 / 3, 1], [1 / 3, 1], color="gray", linewidth=1)
    ax.scatter(posterior.exp().gather(1, top), log_q.exp().gather(1, top), s=3, alpha=0.4)
    ax.set(title=title, xlabel="largest true probability", aspect="equal")
axes[0].set_ylabel("what the network says")

# %%
# 5. The map is nearly a temperature
# ----------------------------------
#
# For two classes hardly to be told from one, which is why temperature scaling after focal loss is in good company.
# With more classes less so.

for classes in (2, 3):
    found = [theory.nearest_temperature(gamma, classes) for gamma in (1.0, 3.0, 5.0)]
    print(f"{classes} classes:", ", ".join(f"T = {t:.3f}, off by at most {off:.4f}" for t, off in found))
