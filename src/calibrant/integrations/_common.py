"""Shared by the adapters: metrics by name, their values, and the examples of several processes."""

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from calibrant import losses
from calibrant._core.registry import METRICS, Method
from calibrant._core.types import InputError
from calibrant.nn import Criterion
from calibrant.predictions import Predictions

DEFAULT_METRICS = ("accuracy", "nll", "ece")


def named_metrics(names: Sequence[str], prefix: str = "") -> dict[str, Method]:
    """Return metrics by their texts, such as "ece(bins=10)", after the prefix. One text is one metric."""
    names = [names] if isinstance(names, str) else names
    return {f"{prefix}{method}": method for method in map(METRICS.method, names)}


def evaluate_metrics(
    metrics: Mapping[str, Method], make_predictions: Callable[[], Predictions], logits: Iterable[Tensor]
) -> tuple[dict[str, float], Predictions | None]:
    """Return the value of each metric, and the predictions.

    A network that has diverged must not end the program that trains it: with NaN or infinity in the logits, all values
    are NaN, a warning says so, and there are no predictions.
    """
    diverged = [(batch.isnan() | batch.isposinf()).any(1) for batch in logits if batch.ndim > 1]
    if num_diverged := sum(int(rows.sum()) for rows in diverged):
        warnings.warn(
            f"The logits of {num_diverged} examples contain NaN or infinity, so calibration metrics are NaN.",
            stacklevel=2,
        )
        return dict.fromkeys(metrics, math.nan), None
    p = make_predictions()
    return {name: float(metric(p)) for name, metric in metrics.items()}, p


def advance(criterion: Criterion, epoch: int, val: Predictions | None) -> None:
    """Advance a loss with state after an epoch. A loss that learns from validation waits for an epoch that has one."""
    if val is not None or not losses.needs_validation(criterion.loss):
        criterion.after_epoch(epoch, val)


def num_processes() -> int:
    """Return the number of processes that train or evaluate together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def num_process_examples(num_examples: int, rank: int, processes: int) -> int:
    """Return how many of `num_examples` a process has if example i belongs to process i modulo their number.

    `DistributedSampler` gives every process equally many, by copies at the end.

    >>> num_process_examples(9, 0, 2), num_process_examples(9, 1, 2)
    (5, 4)
    """
    return max(0, -((rank - num_examples) // processes))


def have_new_ids(ids: Any, num_examples: int, seen_ids: set[Any]) -> Tensor:
    """Return which examples of a batch have an id that no example before has.

    The ids of all processes are added to `seen_ids`. Those of one batch stand in the order of the processes, which all
    need equally many batches.

    Raises:
        InputError: Unless there is an id per example.
    """
    batch_ids: list[Any] = list(ids.tolist() if hasattr(ids, "tolist") else ids)
    if len(batch_ids) != num_examples:
        raise InputError(f"Expected an id per example, {num_examples}, got {len(batch_ids)}.", code="num_ids")
    rank, parts = 0, [batch_ids]
    if num_processes() > 1:
        rank, parts = dist.get_rank(), [list[Any]()] * num_processes()
        dist.all_gather_object(parts, batch_ids)  # fills the list
    are_new: list[bool] = []
    for part_rank, part in enumerate(parts):
        for example_id in part:
            if part_rank == rank:
                are_new.append(example_id not in seen_ids)
            seen_ids.add(example_id)
    return torch.tensor(are_new, dtype=torch.bool)


def warn_padding_counts(remedy: str) -> None:
    """Warn that copies of examples, which samplers add to give all processes equally many, are counted."""
    warnings.warn(
        f"Examples that a sampler has copied, to give all processes equally many, are counted twice. Try {remedy}.",
        stacklevel=3,
    )
