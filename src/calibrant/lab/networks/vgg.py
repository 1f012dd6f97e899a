"""VGG-16 (Simonyan & Zisserman 2015, configuration D) with batch norm, in its CIFAR form."""

from torch import nn

from calibrant.lab.networks.resnet import PooledClassifier
from calibrant.registry import NETWORKS
from calibrant.types import Count


@NETWORKS.register
def vgg16(classes: int, *, channels: Count = 3, width: Count = 64) -> nn.Module:
    """Build VGG-16 for CIFAR; 14.7 M parameters.

    13 convolutions with bias and batch norm in five groups, max-pooling after each group, and one linear layer. The
    two wide linear layers of the ImageNet form are omitted, as usual on CIFAR. Needs images of at least 32 x 32.
    """
    layers: list[nn.Module] = []
    inputs = channels
    for group, count in enumerate((2, 2, 3, 3, 3)):
        outputs = width * min(2**group, 8)
        for _ in range(count):
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
            inputs = outputs
        layers.append(nn.MaxPool2d(2))
    return PooledClassifier(nn.Sequential(*layers), inputs, classes)
