"""Wide residual networks (Zagoruyko & Komodakis 2016)."""

from torch import nn

from calibrant.lab.networks.resnet import PooledClassifier, basic_block, conv_batch_norm, init_he_fan_out
from calibrant.registry import NETWORKS
from calibrant.types import Count, InputError

__all__ = ["wide_resnet"]


@NETWORKS.register
def wide_resnet(classes: int, *, depth: Count = 26, widen: Count = 10, channels: Count = 3) -> nn.Module:
    """WRN-depth-widen (Mukhoti et al. 2020, code): (depth - 2)/6 basic blocks a stage, 16/32/64 x `widen` channels.

    Activations follow the additions (He et al. 2016) and there is no dropout, where the paper's networks have
    activations first; shortcuts are projected. The default WRN-26-10 is that of Mukhoti et al. (2020) and AdaFocal;
    with 36.5 M parameters it is the size of what the paper calls WRN-28-10, counting two more layers.
    """
    if depth < 8 or (depth - 2) % 6 or widen < 1:
        raise InputError(
            f"wide_resnet: depth must be 6 n + 2 and widen at least 1, got depth={depth}, widen={widen}",
            code="setting_range",
        )
    layers: list[nn.Module] = [conv_batch_norm(channels, 16, 3), nn.ReLU()]
    inputs = 16
    for stage in range(3):
        outputs = 16 * widen * 2**stage
        for block in range((depth - 2) // 6):
            layers.append(basic_block(inputs, outputs, 2 if block == 0 < stage else 1))
            inputs = outputs
    return init_he_fan_out(PooledClassifier(nn.Sequential(*layers), inputs, classes))
