"""
Corruptions of CIFAR-10-C
=========================

Nine of the nineteen corruptions at severity 3, applied to a synthetic image.
"""

import torch
from matplotlib import pyplot

from calibrant.lab.data import corruptions

g = torch.Generator().manual_seed(1)
coarse = torch.randn(1, 3, 6, 6, generator=g)
image = torch.nn.functional.interpolate(coarse, size=(32, 32), mode="bicubic")
image = (255 * image.sigmoid()).to(torch.uint8)

names = ["gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "snow", "fog", "contrast", "pixelate"]
figure, axes = pyplot.subplots(2, 5, figsize=(9, 4))
axes[0, 0].imshow(image[0].movedim(0, -1).numpy())
axes[0, 0].set_title("original", fontsize=9)
for ax, name in zip(axes.flat[1:], [*names, "jpeg_compression"], strict=True):
    ax.imshow(getattr(corruptions, name)(image, severity=3)[0].movedim(0, -1).numpy())
    ax.set_title(name, fontsize=9)
for ax in axes.flat:
    ax.axis("off")
