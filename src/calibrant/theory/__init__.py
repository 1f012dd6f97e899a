r"""The theory of focal loss as functions: its gradients, its probabilities, their inverse. It never needs a network.

Mukhoti et al. (2020): focal loss multiplies the gradient of cross-entropy by $g(p_y, \gamma)$; $\gamma^*(p)$ makes this
factor 1 at p. Komisarenko & Kull (2024): focal loss is a proper loss of a sharper prediction, the focal calibration
map, which is close to a temperature. `docs/theory.md` explains both, and corrects some of the papers' statements.
"""

from calibrant.theory import _focal_map, _gradient, _risk, _temperature
from calibrant.theory._focal_map import *
from calibrant.theory._gradient import *
from calibrant.theory._risk import *
from calibrant.theory._temperature import *

__all__: list[str] = []
__all__ += _gradient.__all__
__all__ += _focal_map.__all__
__all__ += _risk.__all__
__all__ += _temperature.__all__
