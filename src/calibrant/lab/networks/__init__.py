"""Networks: functions of the number of classes that return an `nn.Module` from prepared inputs to logits.

Networks for text take initial word vectors as second argument. `register` adds your own.
"""

from calibrant.lab.networks import bert as _bert
from calibrant.lab.networks import classic as _classic
from calibrant.lab.networks import densenet as _densenet
from calibrant.lab.networks import resnet as _resnet
from calibrant.lab.networks import text_cnn as _text_cnn
from calibrant.lab.networks import tree_lstm as _tree_lstm
from calibrant.lab.networks import vgg as _vgg
from calibrant.lab.networks import wide_resnet as _wide_resnet
from calibrant.lab.networks.bert import *
from calibrant.lab.networks.classic import *
from calibrant.lab.networks.densenet import *
from calibrant.lab.networks.resnet import *
from calibrant.lab.networks.text_cnn import *
from calibrant.lab.networks.tree_lstm import *
from calibrant.lab.networks.vgg import *
from calibrant.lab.networks.wide_resnet import *
from calibrant.registry import NETWORKS

register = NETWORKS.register
__all__ = ["register"]
__all__ += _bert.__all__
__all__ += _classic.__all__
__all__ += _densenet.__all__
__all__ += _resnet.__all__
__all__ += _text_cnn.__all__
__all__ += _tree_lstm.__all__
__all__ += _vgg.__all__
__all__ += _wide_resnet.__all__
