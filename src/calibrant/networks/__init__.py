"""Networks: (classes, ...) -> nn.Module from prepared inputs to logits. `register` enrolls one of your own.

Networks for text take the word vectors they start from as second argument.
"""

from calibrant.catalog import NETWORKS
from calibrant.networks import bert as _bert
from calibrant.networks import densenet as _densenet
from calibrant.networks import resnet as _resnet
from calibrant.networks import small as _small
from calibrant.networks import text_cnn as _text_cnn
from calibrant.networks import tree_lstm as _tree_lstm
from calibrant.networks import vgg as _vgg
from calibrant.networks import wide_resnet as _wide_resnet
from calibrant.networks.bert import *
from calibrant.networks.densenet import *
from calibrant.networks.resnet import *
from calibrant.networks.small import *
from calibrant.networks.text_cnn import *
from calibrant.networks.tree_lstm import *
from calibrant.networks.vgg import *
from calibrant.networks.wide_resnet import *

register = NETWORKS.register
__all__ = ["register"]
__all__ += _bert.__all__
__all__ += _densenet.__all__
__all__ += _resnet.__all__
__all__ += _small.__all__
__all__ += _text_cnn.__all__
__all__ += _tree_lstm.__all__
__all__ += _vgg.__all__
__all__ += _wide_resnet.__all__
