"""DenseNet (Huang et al. 2017) in its CIFAR form."""

import torch
from torch import Tensor, nn

from calibrant._core.registry import NETWORKS
from calibrant._core.types import Count, OpenFraction
from calibrant.lab.networks.resnet import PooledClassifier


class _DenseLayer(nn.Module):
    """A layer that adds `growth` channels to its input: 1x1 and 3x3 convolutions, each after batch norm and ReLU."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        bottleneck = [nn.BatchNorm2d(inputs), nn.ReLU(), nn.Conv2d(inputs, 4 * growth, 1, bias=False)]
        convolution = [nn.BatchNorm2d(4 * growth), nn.ReLU(), nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)]
        self.body = nn.Sequential(*bottleneck, *convolution)

    def forward(self, x: Tensor) -> Tensor:
        """Return the new channels followed by the channels of the input."""
        return torch.cat([self.body(x), x], 1)


@NETWORKS.register
def densenet(
    classes: int,
    *,
    blocks: tuple[int, ...] = (6, 12, 24, 16),
    growth: Count = 12,
    reduction: OpenFraction = 0.5,
    channels: Count = 3,
) -> nn.Module:
    """Build DenseNet-BC with a 3x3 stem of 2 `growth` channels.

    Args:
        classes: Number of classes.
        blocks: Layers of each dense block. A layer has a 1x1 convolution (4 `growth` channels) and a 3x3 convolution
            (`growth` channels), each after batch norm and ReLU.
        growth: Channels that each layer adds.
        reduction: Fraction of the channels that a transition keeps; it also halves the image.
        channels: Channels of the images.
    """
    width = 2 * growth  # channels after the last layer so far
    layers: list[nn.Module] = [nn.Conv2d(channels, width, 3, padding=1, bias=False)]
    for stage, count in enumerate(blocks):
        if stage:  # a transition between two blocks
            outputs = int(width * reduction)
            layers += [nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, outputs, 1, bias=False), nn.AvgPool2d(2)]
            width = outputs
        layers += [_DenseLayer(width + i * growth, growth) for i in range(count)]
        width += count * growth
    layers += [nn.BatchNorm2d(width), nn.ReLU()]
    return PooledClassifier(nn.Sequential(*layers), width, classes)


@NETWORKS.register
def densenet121(classes: int, *, growth: Count = 32, channels: Count = 3) -> nn.Module:
    """Build DenseNet-121 for CIFAR (Mukhoti et al. 2020): blocks 6/12/24/16, growth 32, 7.0 M parameters."""
    return densenet(classes, growth=growth, channels=channels)
