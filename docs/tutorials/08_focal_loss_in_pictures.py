"""
The theory of focal loss in pictures
====================================

Focal loss, :math:`-(1 - p_y)^\\gamma \\log p_y`, is cross-entropy with a weight that decreases as the prediction
improves. Five figures explain why networks trained with it are better calibrated. The proofs, with corrections of
published statements, are in :doc:`/theory`.
"""

import torch
from matplotlib import pyplot

from calibrant import losses, theory
from calibrant.lab import figures
from calibrant.reports import plots

p = torch.linspace(0.005, 0.995, 300, dtype=torch.float64)
z, y = torch.stack([p, 1 - p], 1).log(), torch.zeros(300, dtype=torch.int64)

# %%
# 1. Its gradient is small for confident predictions
# --------------------------------------------------
#
# The gradient of focal loss is that of cross-entropy times :math:`g(p, \gamma)`, which is above 1 below a threshold and
# below 1 above it. Training therefore stops increasing probabilities that are already high (Mukhoti et al. 2020).

figure, ax = pyplot.subplots(figsize=(5.4, 3.4))
curves = {"_one": (p, torch.ones_like(p))}
curves |= {
    f"gamma {gamma:g}": (p, theory.gradient_ratio(p, gamma))
    for gamma in (1.0, 3.0, 5.0)
}
plots.curve_family(
    curves, ax=ax, xlabel="probability of the true class", ylabel="gradient ratio"
)
print("threshold of gamma 3:", round(float(theory.confidence_threshold(3.0)), 4))

# %%
# 2. Its minimizer is not the true probability
# --------------------------------------------
#
# If the true probability is 80 %, cross-entropy is minimal at 80 %, focal loss at a lower value.

figure, ax = pyplot.subplots(figsize=(5.4, 3.4))
truth = torch.tensor([[0.8, 0.2]], dtype=torch.float64).log().expand(300, 2)
curves = {}
for gamma in (0.0, 1.0, 2.0, 4.0):
    risk = theory.conditional_risk(
        z, truth, loss=lambda q, label, gamma=gamma: losses.focal(q, label, gamma=gamma)
    )
    curves[f"gamma {gamma:g}: minimum at {float(p[risk.argmin()]):.2f}"] = (
        p,
        risk / risk.min(),
    )
plots.curve_family(
    curves, ax=ax, xlabel="predicted probability", ylabel="risk / minimum risk"
)
ax.set(ylim=(0.98, 1.6))

# %%
# 3. A map recovers the true probability
# --------------------------------------
#
# The focal map, the same for every model, turns the minimizer into the true probability (Komisarenko & Kull 2024). It
# increases confidence, because networks trained with focal loss are underconfident.

figure, ax = pyplot.subplots(figsize=(4.4, 4.2))
curves = {"_identity": (p, p)}
curves |= {
    f"gamma {gamma:g}": (p, theory.focal_map(z, gamma=gamma).exp()[:, 0])
    for gamma in (1.0, 3.0, 5.0)
}
plots.curve_family(
    curves, ax=ax, xlabel="predicted probability", ylabel="mapped probability"
)
ax.set(aspect="equal", xlim=(0, 1), ylim=(0, 1))

# %%
# 4. A trained network confirms it
# --------------------------------
#
# The true probabilities of this problem are known. A small network trained with gamma 3 is underconfident; the focal
# map of its output matches the truth.

posterior, raw, mapped = figures.train_on_blobs(gamma=3.0, steps=60)
figure, axes = pyplot.subplots(1, 2, figsize=(8, 4), sharey=True)
for ax, log_q, title in zip(
    axes, (raw, mapped), ("as trained", "after the focal map"), strict=True
):
    top = posterior.argmax(1, keepdim=True)
    ax.plot([1 / 3, 1], [1 / 3, 1], color="gray", linewidth=1)
    ax.scatter(
        posterior.exp().gather(1, top), log_q.exp().gather(1, top), s=3, alpha=0.4
    )
    ax.set(title=title, xlabel="largest true probability", aspect="equal")
axes[0].set_ylabel("predicted probability")

# %%
# 5. The map is nearly a temperature
# ----------------------------------
#
# For two classes the focal map is almost identical to a temperature, which explains why temperature scaling works well
# after focal loss. The difference grows with the number of classes.

for classes in (2, 3):
    nearest = [theory.nearest_temperature(gamma, classes) for gamma in (1.0, 3.0, 5.0)]
    print(
        f"{classes} classes:",
        ", ".join(
            f"T = {t:.3f}, deviation at most {deviation:.4f}"
            for t, deviation in nearest
        ),
    )
