"""PyTorch-Ignite: calibration metrics that attach to an evaluator."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from ignite import distributed  # pyright: ignore[reportMissingImports]
from ignite.exceptions import NotComputableError  # pyright: ignore[reportMissingImports]
from ignite.metrics import Metric  # pyright: ignore[reportMissingImports]
from torch import Tensor

from calibrant._core.registry import METRICS
from calibrant.nn.collecting import join_predictions, predictions_of_batches
from calibrant.predictions import Predictions
from calibrant.predictions.validation.arrays import to_tensor


class EpochCalibration(Metric):  # pyright: ignore[reportUntypedBaseClass]
    """A metric of Calibrant over all logits and labels of an epoch.

        EpochCalibration("ece").attach(evaluator, "ece")

    Logits and labels stay in memory on the CPU, and are gathered from all processes, each of which must have equally
    many. `predictions` are set by each computation, for `calibrant.measure`.

    Args:
        name: Metric as in a study file, such as "ece" or "ece(bins=10)".
        output_transform: Function from the output of the engine to logits and labels.
        binary: There is one logit per label for class 1.
        logits: Accept `binary` logits that all lie in [0, 1], which are otherwise refused as probabilities.
        ignore_index: Label of positions to leave out.
        device: Device of the tensors that processes exchange.
    """

    _state_dict_all_req_keys = ("_logits", "_labels")

    def __init__(
        self,
        name: str = "ece",
        output_transform: Callable[[Any], Any] = lambda output: output,
        *,
        binary: bool = False,
        logits: bool = False,
        ignore_index: int = -100,
        device: str | torch.device = "cpu",
    ) -> None:
        self.method = METRICS.method(name)
        self.make_predictions = partial(predictions_of_batches, binary=binary, logits=logits, ignore_index=ignore_index)
        self.predictions: Predictions | None = None  # of the epoch so far
        super().__init__(output_transform=output_transform, device=device)

    def reset(self) -> None:
        """Forget all logits and labels."""
        self._logits: list[Tensor] = []
        self._labels: list[Tensor] = []

    def update(self, output: Sequence[Any]) -> None:
        """Add the logits and labels of a batch."""
        logits, labels = output
        self._logits.append(to_tensor(logits, "logits").to(self._device))
        self._labels.append(to_tensor(labels, "labels").to(self._device))

    def compute(self) -> float:
        """Return the metric of all examples so far.

        Raises:
            NotComputableError: If there are none.
        """
        if not self._logits:
            raise NotComputableError("Expected at least one batch before compute(), got none.")
        logits, labels = self._logits, self._labels
        if distributed.get_world_size() > 1:
            logits, labels = ([_all_gather(torch.cat(batches))] for batches in (logits, labels))
        batches = ((scores.cpu(), classes.cpu()) for scores, classes in zip(logits, labels, strict=True))
        self.predictions = join_predictions(self.make_predictions(batches))
        return float(self.method(self.predictions))


def _all_gather(values: Tensor) -> Tensor:
    """Return the concatenated values of all processes."""
    gathered: Any = distributed.all_gather(values)  # a tensor, or a list if processes have different lengths
    return gathered if isinstance(gathered, Tensor) else torch.cat(gathered)
