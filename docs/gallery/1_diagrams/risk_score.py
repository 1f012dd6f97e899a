"""
A binary risk score
===================

Of two classes the probability of class 1 is judged, from 0 to 100 %, not the confidence in the larger.
"""

import numpy as np

from calibrant import Predictions, plots

rng = np.random.default_rng(0)
risk = rng.beta(1.2, 3, 5000)
ill = (rng.random(5000) < risk**1.5).astype(int)
p = Predictions.from_probs(risk, ill, class_names=["well", "ill"])

plots.reliability(p, title="risks are overstated")
