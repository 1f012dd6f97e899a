"""Classic networks: LeNet-5, VGG-16 with batch norm in its CIFAR form, and the multilayer perceptron."""

from itertools import pairwise

from torch import nn

from calibrant._core.registry import NETWORKS
from calibrant._core.types import Count
from calibrant.lab.networks.resnet import PooledClassifier


@NETWORKS.register
def lenet5(classes: int, *, channels: Count = 1, size: Count = 32) -> nn.Module:
    """Build LeNet-5 (LeCun et al. 1998, figure 2) with 61,706 parameters for 10 classes.

    The common modern form: 5x5 convolutions with 6 and 16 channels, linear layers of 120 and 84, a fully connected
    third layer, max-pooling, ReLU and a linear output. `size` is the side of the images in pixels.
    """
    side = ((size - 4) // 2 - 4) // 2  # of the last feature maps: a 5x5 convolution removes 4 pixels, pooling halves
    features = nn.Conv2d(channels, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)
    head = nn.Linear(16 * side * side, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, classes)
    return nn.Sequential(*features, nn.Flatten(), *head)


@NETWORKS.register
def mlp(classes: int, *, features: Count = 64, hidden: tuple[Count, ...] = (256, 256)) -> nn.Module:
    """Build a multilayer perceptron with ReLU on flattened inputs.

    Args:
        classes: Number of classes.
        features: Values per input; 64 for the digits.
        hidden: Widths of the hidden layers; `()` gives a linear model.
    """
    widths = features, *hidden
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], classes))


@NETWORKS.register
def vgg16(classes: int, *, channels: Count = 3, width: Count = 64) -> nn.Module:
    """Build VGG-16 for CIFAR (14.7 M parameters).

    13 convolutions with bias and batch norm in five groups, max-pooling after each group, and one linear layer. The
    two wide linear layers of the ImageNet form are omitted, as usual on CIFAR. Needs images of at least 32 x 32.
    """
    layers: list[nn.Module] = []
    inputs = channels
    for group, count in enumerate((2, 2, 3, 3, 3)):
        outputs = width * min(2**group, 8)  # 64, 128, 256, 512, 512 by default
        for _ in range(count):
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
            inputs = outputs
        layers.append(nn.MaxPool2d(2))
    return PooledClassifier(nn.Sequential(*layers), inputs, classes)
