"""
How many labels?
================

Power of the omnibus test for a calibration error of 0.05, before anything is labeled. Dashed: the number to label for a
power of 80 %.
"""

from matplotlib import pyplot

from calibrant import sample_size

figure, axes = pyplot.subplots(1, 2, figsize=(8, 3.2), sharey=True)
for ax, accuracy in zip(axes, (0.7, 0.95), strict=True):
    result = sample_size(accuracy=accuracy, detect=0.05, draws=1000)
    result.plot(ax).set_title(f"expected accuracy {accuracy:.0%}", fontsize=10)
