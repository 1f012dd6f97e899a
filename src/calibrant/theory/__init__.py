r"""The theory of focal loss, as functions: what it does to gradients, to probabilities, and how to undo it.

Mukhoti et al. (2020): focal loss multiplies the gradient of cross-entropy by $g(p_y, \gamma)$, and $\gamma^*$ makes
that factor 1 where one wants it. Komisarenko & Kull (2024): focal loss is a proper loss of a sharper prediction, the
focal calibration map, which is nearly a temperature. `docs/theory.md` tells the story, and says where the papers'
statements had to be corrected.
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
