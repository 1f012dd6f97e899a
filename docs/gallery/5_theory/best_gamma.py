"""
Gamma by probability
====================

The gamma at which focal loss has the same gradient as cross-entropy (Mukhoti et al. 2020). FLSD-53 approximates this
curve.
"""

import numpy as np
from matplotlib import pyplot

from calibrant import theory

p = np.linspace(0.1, 0.49, 60)
figure, ax = pyplot.subplots(figsize=(5.2, 3.4))
ax.plot(p, [float(theory.gamma_for(float(x))) for x in p])
ax.plot([0.2, 0.25], [5, 3], "o", color="#ff725c", label="FLSD-53")
ax.set(xlabel="probability of the true class", ylabel="gamma", ylim=(0, 16))
ax.legend(frameon=False)
