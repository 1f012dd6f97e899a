"""The training loop: a generator of epochs, so that watching is a for loop."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from calibrant import losses
from calibrant._files import written
from calibrant._types import Adaptive, Loss
from calibrant.data import Split, Splits
from calibrant.predictions import Predictions
from calibrant.study.config import Recipe

CHECKPOINT_SECONDS = 10.0  # a kill loses at most one epoch, or this much of shorter ones


@dataclass(frozen=True, eq=False)
class Epoch:
    """What may be watched: yielded after every epoch, which counts from 1."""

    number: int
    network: nn.Module
    loss: Loss  # the loss that trained this epoch
    train_loss: float  # its mean over the training examples
    learning_rate: float
    val: Predictions
    seconds: float


def predict(
    network: nn.Module,
    split: Split,
    prepare: Callable[[Tensor], Tensor],
    *,
    device: torch.device | None = None,
    batch_size: int = 1000,
) -> Predictions:
    """Return the network's logits on a split, on the CPU; the network is left in evaluation mode."""
    network.eval()
    with torch.no_grad():
        parts = [
            network(prepare(split.inputs[i : i + batch_size].to(device))).float().cpu()
            for i in range(0, len(split), batch_size)
        ]
    return Predictions(torch.cat(parts), split.labels)


def train(
    network: nn.Module,
    splits: Splits,
    loss: Loss,
    recipe: Recipe,
    *,
    seed: int = 0,
    checkpoint: Path | None = None,
) -> Iterator[Epoch]:
    """Train a network and yield after every epoch.

    Order, augmentation and dropout of an epoch depend on the seed and its number alone. With `checkpoint`, a file,
    the state is kept there, and a run that was killed goes on after its last kept epoch as if nothing had happened.
    """
    fabric = Fabric(accelerator="auto", devices=1, precision=recipe.precision)  # pyright: ignore[reportArgumentType]
    optimizer = torch.optim.SGD(
        network.parameters(), lr=recipe.learning_rate, momentum=recipe.momentum, weight_decay=recipe.weight_decay
    )
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, list(recipe.milestones), recipe.decay)
    state = _State(network, optimizer, schedule, checkpoint)
    start, loss = state.resume(losses.for_epochs(loss, recipe.epochs))
    model, optimizer = fabric.setup(network, optimizer)
    examples = Split(splits.train.inputs.to(fabric.device), splits.train.labels.to(fabric.device))
    for number in range(start, recipe.epochs + 1):
        began, rate = time.monotonic(), optimizer.param_groups[0]["lr"]
        torch.manual_seed(hash((seed, number)))  # whole numbers hash alike everywhere
        model.train()
        total = torch.zeros((), device=fabric.device)
        for inputs, labels in _batches(examples, splits, recipe.batch_size, hash((seed, number, 1))):
            values = loss(model(inputs).float(), labels)
            optimizer.zero_grad()
            fabric.backward(values.sum() if recipe.reduction == "sum" else values.mean())
            if recipe.clip is not None:
                fabric.clip_gradients(model, optimizer, max_norm=recipe.clip)
            optimizer.step()
            total += values.detach().sum()
        schedule.step()
        val = predict(model, splits.val, splits.prepare, device=fabric.device)
        yield Epoch(number, network, loss, float(total) / len(examples), rate, val, time.monotonic() - began)
        if isinstance(loss, Adaptive):
            loss = loss.after_epoch(number - 1, val)
        state.keep(number, loss)


def _batches(examples: Split, splits: Splits, size: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    device = examples.labels.device
    generator = torch.Generator(device).manual_seed(seed)
    for rows in torch.randperm(len(examples), generator=generator, device=device).split(size):
        inputs = splits.prepare(examples.inputs[rows])
        yield inputs if splits.augment is None else splits.augment(inputs, generator), examples.labels[rows]


class _State:
    """All that an interrupted training needs to go on, in one file."""

    def __init__(self, network: nn.Module, optimizer: Any, schedule: Any, path: Path | None) -> None:
        self.parts = {"network": network, "optimizer": optimizer, "schedule": schedule}
        self.path, self.kept = path, time.monotonic()

    def keep(self, number: int, loss: Loss) -> None:
        if self.path is None or time.monotonic() - self.kept < CHECKPOINT_SECONDS:
            return
        state = {name: part.state_dict() for name, part in self.parts.items()}
        with written(self.path) as draft:
            torch.save(state | {"epoch": number, "loss": losses.state(loss)}, draft)
        self.kept = time.monotonic()

    def resume(self, loss: Loss) -> tuple[int, Loss]:
        if self.path is None or not self.path.is_file():
            return 1, loss
        state = torch.load(self.path, weights_only=True, map_location="cpu")
        for name, part in self.parts.items():
            part.load_state_dict(state[name])
        return state["epoch"] + 1, losses.restored(loss, state["loss"])
