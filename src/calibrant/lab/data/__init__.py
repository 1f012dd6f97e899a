"""Data sets: functions of a folder that return `Splits`. `corruptions` shift images, and `register` adds your own."""

from calibrant._core.registry import DATA_SETS
from calibrant.lab.data import corruptions as corruptions
from calibrant.lab.data._splits import Split, Splits
from calibrant.lab.data.cifar import cifar10, cifar100
from calibrant.lab.data.imagenet import imagenet, tiny_imagenet
from calibrant.lab.data.newsgroups import newsgroups
from calibrant.lab.data.sst import Trees, sst
from calibrant.lab.data.svhn import svhn
from calibrant.lab.data.without_download import blobs, digits

register = DATA_SETS.register
__all__ = ["Split", "Splits", "Trees", "blobs", "cifar10", "cifar100", "digits", "imagenet", "newsgroups", "register"]
__all__ += ["sst", "svhn", "tiny_imagenet"]
