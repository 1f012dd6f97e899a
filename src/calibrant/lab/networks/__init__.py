"""Networks: functions of the number of classes that return an `nn.Module` from prepared inputs to logits.

Networks for text take initial word vectors as second argument. `register` adds your own.
"""

from calibrant._core.registry import NETWORKS
from calibrant.lab.networks import resnet
from calibrant.lab.networks.bert import bert
from calibrant.lab.networks.classic import lenet5, mlp, vgg16
from calibrant.lab.networks.densenet import densenet, densenet121
from calibrant.lab.networks.resnet import *
from calibrant.lab.networks.text_cnn import cnn8_text, global_pooling_cnn
from calibrant.lab.networks.tree_lstm import tree_lstm

register = NETWORKS.register
__all__ = ["bert", "cnn8_text", "densenet", "densenet121", "global_pooling_cnn", "lenet5", "mlp", "register"]
__all__ += ["tree_lstm", "vgg16"]
__all__ += resnet.__all__
