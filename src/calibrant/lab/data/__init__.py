"""Data sets: (root, ...) -> Splits. `corruptions` shift images, `register` enrolls one of your own."""

from calibrant.lab.data import blobs as _blobs
from calibrant.lab.data import cifar as _cifar
from calibrant.lab.data import corruptions as corruptions
from calibrant.lab.data import digits as _digits
from calibrant.lab.data import imagenet as _imagenet
from calibrant.lab.data import newsgroups as _newsgroups
from calibrant.lab.data import sst as _sst
from calibrant.lab.data import svhn as _svhn
from calibrant.lab.data import tiny_imagenet as _tiny_imagenet
from calibrant.lab.data._splits import Split, Splits
from calibrant.lab.data.blobs import *
from calibrant.lab.data.cifar import *
from calibrant.lab.data.digits import *
from calibrant.lab.data.imagenet import *
from calibrant.lab.data.newsgroups import *
from calibrant.lab.data.sst import *
from calibrant.lab.data.sst import Trees
from calibrant.lab.data.svhn import *
from calibrant.lab.data.tiny_imagenet import *
from calibrant.registry import DATA_SETS

register = DATA_SETS.register
__all__ = ["Split", "Splits", "Trees", "corruptions", "register"]
__all__ += _blobs.__all__
__all__ += _cifar.__all__
__all__ += _digits.__all__
__all__ += _imagenet.__all__
__all__ += _newsgroups.__all__
__all__ += _sst.__all__
__all__ += _svhn.__all__
__all__ += _tiny_imagenet.__all__
