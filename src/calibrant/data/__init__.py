"""Data sets: (root, ...) -> Splits. `corruptions` shift images, `register` enrolls one of your own."""

from calibrant.catalog import DATA_SETS
from calibrant.data import blobs as _blobs
from calibrant.data import cifar as _cifar
from calibrant.data import corruptions as corruptions
from calibrant.data import digits as _digits
from calibrant.data import imagenet as _imagenet
from calibrant.data import newsgroups as _newsgroups
from calibrant.data import sst as _sst
from calibrant.data import svhn as _svhn
from calibrant.data import tiny_imagenet as _tiny_imagenet
from calibrant.data._splits import Split, Splits
from calibrant.data.blobs import *
from calibrant.data.cifar import *
from calibrant.data.digits import *
from calibrant.data.imagenet import *
from calibrant.data.newsgroups import *
from calibrant.data.sst import *
from calibrant.data.sst import Trees
from calibrant.data.svhn import *
from calibrant.data.tiny_imagenet import *

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
