"""Wide residual networks (Zagoruyko & Komodakis 2016)."""

from torch import nn

from calibrant.lab.networks.resnet import (
    PooledClassifier,
    basic_block,
    conv_batch_norm,
    init_he,
    residual_stages,
)
from calibrant.registry import NETWORKS
from calibrant.types import Count, InputError


@NETWORKS.register
def wide_resnet(classes: int, *, depth: Count = 26, widen: Count = 10, channels: Count = 3) -> nn.Module:
    """Build WRN-depth-widen as in the code of Mukhoti et al. (2020).

    Three stages of (depth - 2) / 6 basic blocks with 16/32/64 x `widen` channels and projected shortcuts. Activations
    follow the additions (He et al. 2016), while the paper's networks have them first; there is no dropout. Mukhoti et
    al. (2020) and AdaFocal use the default WRN-26-10. It has 36.5 M parameters, the size of the paper's WRN-28-10,
    which counts two more layers.

    Raises:
        InputError: If `depth` is not 6 n + 2.
    """
    if depth < 8 or (depth - 2) % 6 or widen < 1:
        raise InputError(
            f"wide_resnet: Expected a depth of 6 n + 2 and widen of at least 1, got depth={depth}, widen={widen}.",
            code="setting_range",
        )
    widths = [16 * widen * 2**stage for stage in range(3)]
    stem = conv_batch_norm(channels, 16, 3), nn.ReLU()
    stages = residual_stages(16, widths, [(depth - 2) // 6] * 3, basic_block)
    network = PooledClassifier(nn.Sequential(*stem, *stages), widths[-1], classes)
    return init_he(network, "fan_out", nn.Conv2d)
