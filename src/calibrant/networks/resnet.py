"""Residual networks in their CIFAR form (He et al. 2016, section 4.2)."""

from torch import Tensor, nn
from torch.nn.functional import relu

__all__ = ["resnet8", "resnet20"]


class _Basic(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.extra, self.stride = outputs - inputs, stride

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(relu(self.norm1(self.conv1(x)))))
        x = x[:, :, :: self.stride, :: self.stride]  # option A: subsample, fill new channels with zeros
        return relu(y + nn.functional.pad(x, (0, 0, 0, 0, self.extra // 2, self.extra - self.extra // 2)))


class _ResNet(nn.Module):
    def __init__(self, classes: int, blocks: int, channels: int, width: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(channels, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        widths = [width, width, 2 * width, 4 * width]
        self.stages = nn.Sequential(
            *(
                _Basic(
                    widths[stage] if block == 0 else widths[stage + 1],
                    widths[stage + 1],
                    2 if block == 0 < stage else 1,
                )
                for stage in range(3)
                for block in range(blocks)
            )
        )
        self.head = nn.Linear(4 * width, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stages(self.stem(x)).mean((2, 3)))


def resnet8(classes: int, *, channels: int = 3, width: int = 16) -> nn.Module:
    """ResNet-8: one basic block a stage, widths 16/32/64, option-A shortcuts (He et al. 2016, section 4.2, n = 1)."""
    return _ResNet(classes, 1, channels, width)


def resnet20(classes: int, *, channels: int = 3, width: int = 16) -> nn.Module:
    """ResNet-20: three basic blocks a stage, widths 16/32/64, option-A shortcuts; 0.27 M parameters (ibid., n = 3)."""
    return _ResNet(classes, 3, channels, width)
