"""ResNets: residual networks for small images.

`resnet8` .. `resnet110` are the CIFAR networks of He et al. (2016, section 4.2): three stages of 16/32/64 channels.
`resnet18` .. `resnet152` and `resnet110_bottleneck` are the ImageNet architectures (ibid., table 1) with a 3x3 stem:
four stages of 64/128/256/512 channels. Mukhoti et al. (2020), AdaFocal and Komisarenko & Kull (2024) train these.
`resnet50_imagenet` has the original stem, `wide_resnet` wider stages (Zagoruyko & Komodakis 2016). `resnet9` trains in
minutes.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, pad, relu

from calibrant._core.registry import NETWORKS
from calibrant._core.types import Count, InputError

__all__ = ["resnet8", "resnet9", "resnet18", "resnet20", "resnet32", "resnet34", "resnet44", "resnet50", "resnet56"]
__all__ += ["resnet50_imagenet", "resnet50_tiny_imagenet", "resnet101", "resnet110", "resnet110_bottleneck"]
__all__ += ["resnet152", "wide_resnet"]


def conv_batch_norm(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """Return a padded convolution without bias, followed by batch norm."""
    return nn.Sequential(nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(outputs))


class _ResidualBlock(nn.Module):
    """A body and a shortcut, added before ReLU.

    If stride or width change, the shortcut is a 1x1 convolution, or subsamples the image and pads it with channels of
    zeros. Otherwise it is the input itself.
    """

    def __init__(self, body: nn.Module, inputs: int, outputs: int, stride: int, *, project_shortcut: bool) -> None:
        super().__init__()
        self.body, self.stride, self.new_channels = body, stride, outputs - inputs
        changes_shape = stride > 1 or inputs != outputs
        self.shortcut = conv_batch_norm(inputs, outputs, 1, stride) if changes_shape and project_shortcut else None

    def forward(self, x: Tensor) -> Tensor:
        """Return ReLU(body(x) + shortcut(x))."""
        y = self.body(x)
        if self.shortcut is not None:
            x = self.shortcut(x)
        elif self.stride > 1 or self.new_channels:  # option A of He et al.: channels of zeros before and after x
            num_before = self.new_channels // 2
            x = pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, num_before, self.new_channels - num_before))
        return relu(y + x)


def basic_block(inputs: int, outputs: int, stride: int, *, project_shortcut: bool = True) -> nn.Module:
    """Return a block of two 3x3 convolutions with a shortcut."""
    body = nn.Sequential(conv_batch_norm(inputs, outputs, 3, stride), nn.ReLU(), conv_batch_norm(outputs, outputs, 3))
    return _ResidualBlock(body, inputs, outputs, stride, project_shortcut=project_shortcut)


def bottleneck_block(inputs: int, outputs: int, stride: int) -> nn.Module:
    """Return a block of 1x1, 3x3 and 1x1 convolutions from `inputs` to `outputs` channels, a quarter as wide inside.

    The 3x3 convolution has the stride. The shortcut is projected by a 1x1 convolution where the shape changes.
    """
    inside = outputs // 4
    first, middle = conv_batch_norm(inputs, inside, 1), conv_batch_norm(inside, inside, 3, stride)
    body = nn.Sequential(first, nn.ReLU(), middle, nn.ReLU(), conv_batch_norm(inside, outputs, 1))
    return _ResidualBlock(body, inputs, outputs, stride, project_shortcut=True)


class PooledClassifier(nn.Module):
    """Features, average-pooled to `grid` x `grid`, and a linear layer."""

    def __init__(self, features: nn.Module, width: int, classes: int, grid: int = 1) -> None:
        super().__init__()
        self.features, self.head, self.grid = features, nn.Linear(width * grid**2, classes), grid

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of images."""
        features: Tensor = self.features(x)
        # the mean equals adaptive pooling to 1 x 1
        pooled = features.mean((2, 3)) if self.grid == 1 else adaptive_avg_pool2d(features, self.grid).flatten(1)
        return self.head(pooled)


def init_he(network: nn.Module, mode: Literal["fan_in", "fan_out"], *layers: type[nn.Module]) -> nn.Module:
    """Initialize the weights of layers of these types from N(0, 2 / fan), and return the network (He et al. 2015).

    The fan of a layer is its number of inputs or outputs, as `mode` says.
    """
    for module in network.modules():
        if isinstance(module, layers):
            nn.init.kaiming_normal_(module.weight, mode=mode)  # pyright: ignore[reportArgumentType]
    return network


def _build_resnet(
    classes: int,
    channels: int,
    blocks: Sequence[int],
    block: Callable[[int, int, int], nn.Module],
    *,
    width: int,
    widen: int = 1,
    grid: int = 1,
    stem: Sequence[nn.Module] | None = None,
) -> nn.Module:
    """Build a ResNet with one stage per entry of `blocks`, the number of blocks of the stage.

    A block is made by `block(input channels, output channels, stride)`. The stem, a 3x3 convolution unless another one
    is given, has `width` channels. Stage s = 0, 1, ... has widen * width * 2^s channels, where bottlenecks have
    widen = 4. The first block of every stage but the first has stride 2. The last feature maps are pooled to
    grid x grid.
    """
    layers = list(stem or (conv_batch_norm(channels, width, 3), nn.ReLU()))
    inputs = width
    for stage, count in enumerate(blocks):
        outputs = widen * width * 2**stage
        for i in range(count):
            layers.append(block(inputs, outputs, 2 if (i == 0 and stage > 0) else 1))
            inputs = outputs
    return PooledClassifier(nn.Sequential(*layers), inputs, classes, grid)


def _cifar_resnet(classes: int, blocks: int, channels: int, width: int) -> nn.Module:
    """Build a CIFAR ResNet of 3 stages with this number of basic blocks each, and shortcuts without parameters."""
    block = partial(basic_block, project_shortcut=False)
    return init_he(_build_resnet(classes, channels, (blocks,) * 3, block, width=width), "fan_in", nn.Conv2d, nn.Linear)


@NETWORKS.register
def resnet8(classes: int, *, channels: Count = 3, width: Count = 16) -> nn.Module:
    """Build ResNet-8 (He et al. 2016, section 4.2, n = 1): one basic block per stage, widths 16/32/64."""
    return _cifar_resnet(classes, 1, channels, width)


@NETWORKS.register
def resnet20(classes: int, *, channels: Count = 3, width: Count = 16) -> nn.Module:
    """Build ResNet-20 (He et al. 2016, n = 3): three basic blocks per stage, 0.27 M parameters."""
    return _cifar_resnet(classes, 3, channels, width)


@NETWORKS.register
def resnet32(classes: int, *, channels: Count = 3, width: Count = 16) -> nn.Module:
    """Build ResNet-32 (He et al. 2016, n = 5) with 0.46 M parameters, as in Wang et al. (2021) for SVHN and CIFAR."""
    return _cifar_resnet(classes, 5, channels, width)


@NETWORKS.register
def resnet44(classes: int, *, channels: Count = 3, width: Count = 16) -> nn.Module:
    """Build ResNet-44 (He et al. 2016, n = 7) with 0.66 M parameters."""
    return _cifar_resnet(classes, 7, channels, width)


@NETWORKS.register
def resnet56(classes: int, *, channels: Count = 3, width: Count = 16) -> nn.Module:
    """Build ResNet-56 (He et al. 2016, n = 9) with 0.85 M parameters."""
    return _cifar_resnet(classes, 9, channels, width)


@NETWORKS.register
def resnet110(classes: int, *, channels: Count = 3, width: Count = 16) -> nn.Module:
    """Build ResNet-110 (He et al. 2016, n = 18) with 1.7 M parameters.

    Mukhoti et al. (2020) use `resnet110_bottleneck`.
    """
    return _cifar_resnet(classes, 18, channels, width)


@NETWORKS.register
def resnet9(classes: int, *, channels: Count = 3, width: Count = 64) -> nn.Module:
    """Build ResNet-9 (Page 2018, DAWNBench) with 6.6 M parameters.

    Max-pooling between residual blocks reduces the image. The output is divided by 8, so that initial logits are small.
    Pooling precedes batch norm, as in Jordan (2024, arXiv:2404.00498), which is faster.
    """

    def layer(inputs: int, outputs: int) -> nn.Sequential:
        """Return convolution, batch norm and ReLU."""
        return nn.Sequential(conv_batch_norm(inputs, outputs, 3), nn.ReLU())

    def pooled(inputs: int, outputs: int) -> nn.Sequential:
        """Return a layer with max-pooling before batch norm."""
        conv, norm = conv_batch_norm(inputs, outputs, 3)
        return nn.Sequential(conv, nn.MaxPool2d(2), norm, nn.ReLU())

    def block(width: int) -> nn.Module:
        """Return a residual block of two layers, whose input is added to their output.

        The ReLU of `_ResidualBlock` has no effect here, as both are outputs of a ReLU already.
        """
        body = nn.Sequential(layer(width, width), layer(width, width))
        return _ResidualBlock(body, width, width, stride=1, project_shortcut=False)

    first = layer(channels, width), pooled(width, 2 * width), block(2 * width)
    last = pooled(2 * width, 4 * width), pooled(4 * width, 8 * width), block(8 * width)
    head = nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(8 * width, classes), _Scale(1 / 8)
    return nn.Sequential(*first, *last, *head)


class _Scale(nn.Module):
    """Multiplication by a fixed constant."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        """Return the scaled input."""
        return self.factor * x


@NETWORKS.register
def resnet18(classes: int, *, channels: Count = 3, width: Count = 64) -> nn.Module:
    """Build ResNet-18 of ImageNet with a 3x3 stem: basic blocks 2/2/2/2, widths 64 .. 512, 11.2 M parameters."""
    return _build_resnet(classes, channels, (2, 2, 2, 2), basic_block, width=width)


@NETWORKS.register
def resnet34(classes: int, *, channels: Count = 3, width: Count = 64) -> nn.Module:
    """Build ResNet-34 of ImageNet with a 3x3 stem: basic blocks 3/4/6/3, 21.3 M parameters."""
    return _build_resnet(classes, channels, (3, 4, 6, 3), basic_block, width=width)


@NETWORKS.register
def resnet50(classes: int, *, channels: Count = 3, width: Count = 64) -> nn.Module:
    """Build ResNet-50 of ImageNet with a 3x3 stem: bottlenecks 3/4/6/3, 23.5 M parameters."""
    return _build_resnet(classes, channels, (3, 4, 6, 3), bottleneck_block, width=width, widen=4)


@NETWORKS.register
def resnet101(classes: int, *, channels: Count = 3, width: Count = 64) -> nn.Module:
    """Build ResNet-101 of ImageNet with a 3x3 stem: bottlenecks 3/4/23/3, 42.5 M parameters."""
    return _build_resnet(classes, channels, (3, 4, 23, 3), bottleneck_block, width=width, widen=4)


@NETWORKS.register
def resnet110_bottleneck(classes: int, *, channels: Count = 3, width: Count = 64) -> nn.Module:
    """Build ResNet-110 of Mukhoti et al. (2020): bottlenecks 3/4/26/3, widths 256 .. 2048, 45.9 M parameters."""
    return _build_resnet(classes, channels, (3, 4, 26, 3), bottleneck_block, width=width, widen=4)


@NETWORKS.register
def resnet152(classes: int, *, channels: Count = 3, width: Count = 64) -> nn.Module:
    """Build ResNet-152 of ImageNet with a 3x3 stem: bottlenecks 3/8/36/3, 58.2 M parameters."""
    return _build_resnet(classes, channels, (3, 8, 36, 3), bottleneck_block, width=width, widen=4)


@NETWORKS.register
def resnet50_tiny_imagenet(classes: int = 200, *, channels: Count = 3, width: Count = 64) -> nn.Module:
    """Build ResNet-50 for images of 64 x 64 (code of Mukhoti et al. 2020): pooled to 2 x 2, He fan-out."""
    network = _build_resnet(classes, channels, (3, 4, 6, 3), bottleneck_block, width=width, widen=4, grid=2)
    return init_he(network, "fan_out", nn.Conv2d)


@NETWORKS.register
def resnet50_imagenet(classes: int = 1000, *, channels: Count = 3, width: Count = 64) -> nn.Module:
    """Build ResNet-50 for ImageNet (He et al. 2016, table 1) with 25.6 M parameters.

    The stem is a 7x7 convolution of stride 2 and max-pooling, so that the sides of feature maps are a quarter as long
    as in `resnet50`. The 3x3 convolutions of a stage have the stride, as is common now. Weights start from He's
    initialization with fan-out. Images need at least 32 x 32 pixels.
    """
    stem = conv_batch_norm(channels, width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
    network = _build_resnet(classes, channels, (3, 4, 6, 3), bottleneck_block, width=width, widen=4, stem=stem)
    return init_he(network, "fan_out", nn.Conv2d)


@NETWORKS.register
def wide_resnet(classes: int, *, depth: Count = 26, widen: Count = 10, channels: Count = 3) -> nn.Module:
    """Build WRN-depth-widen as in the code of Mukhoti et al. (2020).

    Three stages of (depth - 2) / 6 basic blocks with 16/32/64 x `widen` channels and projected shortcuts. Activations
    follow the additions (He et al. 2016), while Zagoruyko & Komodakis (2016) have them first. There is no dropout.
    Mukhoti et al. (2020) and AdaFocal use the default WRN-26-10. It has 36.5 M parameters, the size of the WRN-28-10 of
    Zagoruyko & Komodakis, who count two more layers.

    Raises:
        InputError: If `depth` is not 6 n + 2.
    """
    if depth < 8 or (depth - 2) % 6:
        raise InputError(f"Expected a depth of 6 n + 2 from 8 on, got {depth}. Try 26.", code="depth_range")
    network = _build_resnet(classes, channels, [(depth - 2) // 6] * 3, basic_block, width=16, widen=widen)
    return init_he(network, "fan_out", nn.Conv2d)
