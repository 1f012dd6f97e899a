"""Networks: (classes, ...) -> nn.Module from prepared inputs to logits. `__all__` is the registry."""

from calibrant.networks import resnet as _resnet
from calibrant.networks.resnet import *

__all__: list[str] = []
__all__ += _resnet.__all__
