"""Focal temperature scaling against temperature scaling, fitted on validation and evaluated on test predictions.

    python benchmarks/focal_temperature.py DIR

DIR holds NAME.val.npz and NAME.test.npz. Both calibrators minimize adaptive_ece over temperatures .01 to 5.00 and the
gammas of Komisarenko & Kull (2024). Values are those of the test data, in percent except NLL.
"""

import sys
from pathlib import Path

from calibrant import Predictions, metrics
from calibrant.calibrators import FocalTemperature, Temperature
from calibrant.calibrators._focal import FOCAL_GRIDS

CRITERION = "adaptive_ece(edges='mukhoti')"


def main(folder: Path) -> None:
    """Print two rows per file."""
    print(f"{'predictions':40} {'map':8} {'gamma':>6} {'T':>5} {'AdaECE':>7} {'NLL':>7} {'accuracy':>8}")
    for path in sorted(folder.glob("*.val.npz")):
        name = path.name.removesuffix(".val.npz")
        val, test = Predictions.load(path), Predictions.load(folder / f"{name}.test.npz")
        temperature = Temperature.fit(val, criterion=CRITERION, grid=FOCAL_GRIDS["text"][1])
        focal = FocalTemperature.fit(val, criterion=CRITERION)
        for kind, fitted, gamma in ("plain", temperature, 0.0), ("focal", focal, float(focal.gamma)):
            after = fitted(test.logits.double()), test.labels
            error = 100 * float(metrics.adaptive_ece(after, edges="mukhoti"))
            print(
                f"{name:40} {kind:8} {gamma:6.2f} {float(fitted.temperature):5.2f} {error:7.2f} "
                f"{float(metrics.nll(after)):7.4f} {100 * float(metrics.accuracy(after)):8.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
