"""
A binary risk score
===================

For two classes, the diagram shows the probability of class 1 from 0 to 100 %, not the confidence of the top class.
"""

import numpy as np

from calibrant import Predictions
from calibrant.reports import plots

rng = np.random.default_rng(0)
risk = rng.beta(1.2, 3, 5000)
ill = (rng.random(5000) < risk**1.5).astype(int)
p = Predictions.from_probs(risk, ill, class_names=["well", "ill"])

plots.reliability(p, title="risks are overstated")
