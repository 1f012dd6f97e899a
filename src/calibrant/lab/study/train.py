"""The training loop: a generator of epochs, so that monitoring is a for loop.

Losses are functions of (logits, labels) that return one value per example. Besides, a `StatefulLoss` changes between
epochs, an `UpdatedLoss` within an epoch (both by validation predictions, as AdaFocal does), and a `MixingLoss` mixes
the examples of a batch, as mixup does.
"""

import logging
import math
import sys
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from calibrant import losses, metrics
from calibrant._core.text import describe_error
from calibrant._core.types import InputError, Loss, MixingLoss, StatefulLoss, UpdatedLoss
from calibrant.lab.data import Split, Splits
from calibrant.lab.study.recipe import Recipe
from calibrant.lab.study.stored_files import Checkpoint, DamagedError
from calibrant.nn.selection import refinement_nll
from calibrant.predictions import Predictions

ORDER_PART, MIXING_PART = 1, 2  # tell the seeds of an epoch apart; the seed of dropout has no such part


@dataclass(frozen=True, eq=False)
class Epoch:
    """The state after an epoch."""

    number: int  # counted from 1
    network: nn.Module
    loss: Loss  # in its state at the end of the epoch
    train_loss: float  # mean over the training examples of this epoch
    learning_rate: float
    val: Predictions
    seconds: float
    best: bool  # whether the recipe would choose this epoch among those so far
    nonfinite_losses: int = 0  # number of losses that are nan or infinite


def predict(
    network: nn.Module,
    split: Split,
    prepare: Callable[[Tensor], Tensor],
    *,
    device: torch.device | None = None,
    batch_size: int = 250,
) -> Predictions:
    """Return the network's predictions on a split, on the CPU, and leave the network in evaluation mode.

    `prepare` turns the raw inputs of a batch, moved to `device`, into inputs of the network. Batches of 250 images fit
    the processor's cache, and take half the time of batches of 1,000.

    Raises:
        FloatingPointError: If the logits are not valid, for example because the network diverged.
    """
    network.eval()
    with torch.no_grad():
        parts = [
            network(prepare(split.inputs[i : i + batch_size].to(device))).float().cpu()
            for i in range(0, len(split), batch_size)
        ]
    try:
        return Predictions(torch.cat(parts), split.labels)
    except InputError as error:  # divergence is not a user error and does not stop other runs
        raise FloatingPointError(f"the network's logits are not valid: {error}") from None


def train(
    network: nn.Module,
    splits: Splits,
    loss: Loss,
    recipe: Recipe,
    *,
    seed: int = 0,
    checkpoint: Checkpoint | None = None,
) -> Generator[Epoch]:
    """Train a network and yield after every epoch.

    The order of examples, augmentation and dropout of an epoch depend only on the seed and the number of the epoch.
    A caller that closes the generator after an epoch leaves a checkpoint of that epoch. After the last epoch, the
    network has the weights of the epoch that the recipe chooses.

    Args:
        network: Network to train, in place.
        splits: Training and validation data.
        loss: Loss per example.
        recipe: Optimizer, schedule and choice of epoch.
        seed: Seed of the order of examples, augmentation and dropout.
        checkpoint: File of the state. A killed training continues after the last saved epoch, with equal results.

    Raises:
        FloatingPointError: If the training diverges.
        DamagedError: If the checkpoint was changed, or does not fit the network, optimizer or loss.
    """
    # Long, as its loop shares the model, the loss and the sums of an epoch, which change in place
    fabric = _make_fabric(recipe.precision)
    torch.backends.cudnn.benchmark = True  # batches of one size: GPUs then use the fastest convolutions
    move_to_device(network, recipe)
    base_optimizers = build_optimizers(network, recipe)
    base_rates = [optimizer.param_groups[0]["lr"] for optimizer in base_optimizers]
    state = _TrainingState(network, base_optimizers, checkpoint)
    class_counts = splits.train.labels.bincount(minlength=len(splits.classes))
    # losses with a schedule need the number of epochs, losses for imbalanced classes the counts
    first_epoch, loss = state.resume(losses.for_counts(losses.for_epochs(loss, recipe.epochs), class_counts))
    compiled: Any = torch.compile(network) if recipe.compile else network
    model, *optimizers = fabric.setup(compiled, *base_optimizers)
    examples = splits.train.to(fabric.device)
    for epoch_number in range(first_epoch, recipe.epochs + 1):
        start_time = time.monotonic()
        rate_factor = recipe.rate_factor(epoch_number - 1)  # counts epochs from 0
        for optimizer, base_rate in zip(base_optimizers, base_rates, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = base_rate * rate_factor
        torch.manual_seed(mix_seed(seed, epoch_number))  # of dropout
        model.train()
        total_loss = torch.zeros((), device=fabric.device)  # read once per epoch, as reading waits for the GPU
        num_nonfinite = torch.zeros((), dtype=torch.long, device=fabric.device)
        num_examples, num_losses = 0, 0
        mixing_generator = torch.Generator().manual_seed(mix_seed(seed, epoch_number, MIXING_PART))
        batches = _batches(examples, splits, recipe, seed=mix_seed(seed, epoch_number, ORDER_PART))
        for batch_index, (inputs, labels, batch_size) in enumerate(batches):
            values = _batch_losses(loss, model, inputs, labels, mixing_generator)
            # A mixing loss returns more values than there are labels, as it appends mixed examples: they count as well.
            # The loss is a mean over examples, of which each may have several labels
            batch_size = batch_size * len(values) // len(labels)
            network.zero_grad()
            fabric.backward(values.sum() if recipe.reduction == "sum" else values.sum() / batch_size)
            if recipe.clip is not None:
                # Fabric clips per optimizer; an infinite norm makes it only undo the scaling of float16 gradients
                for optimizer in optimizers:
                    fabric.clip_gradients(model, optimizer, max_norm=math.inf, error_if_nonfinite=False)
                nn.utils.clip_grad_norm_(network.parameters(), recipe.clip)
            for optimizer in optimizers:
                optimizer.step()
            total_loss += values.detach().sum()
            num_nonfinite += (~values.detach().isfinite()).sum()
            num_losses += values.numel()
            num_examples += batch_size
            if isinstance(loss, UpdatedLoss) and loss.is_due(batch_index):  # changes within the epoch, by validation
                loss = loss.update(predict(model, splits.val, splits.prepare, device=fabric.device))
                model.train()  # as `predict` ends the training mode
        if int(num_nonfinite) == num_losses:
            raise FloatingPointError("no training loss is finite")
        val = predict(model, splits.val, splits.prepare, device=fabric.device)
        is_closed = False
        try:
            yield Epoch(
                number=epoch_number,
                network=network,
                loss=loss,
                train_loss=float(total_loss) / num_examples,
                learning_rate=recipe.learning_rate * rate_factor,
                val=val,
                best=state.update_best(epoch_number, network, val, recipe.choose),
                seconds=time.monotonic() - start_time,
                nonfinite_losses=int(num_nonfinite),
            )
        except GeneratorExit:
            is_closed = True
        if isinstance(loss, StatefulLoss):
            loss = loss.after_epoch(epoch_number - 1, val)  # counts epochs from 0
        state.save(epoch_number, loss, at_once=is_closed)
        if is_closed:
            return
    state.restore_best(network)


def mix_seed(seed: int, *parts: int) -> int:
    """Return a seed for a part of a training: the hash of the seed and of `parts`, such as the epoch.

    Integers hash alike in every process. But hash(n) is n modulo `sys.hash_info.modulus` (2^61 - 1), so that larger
    seeds would equal smaller ones; their two halves are hashed instead.

    >>> mix_seed(0, 1) != mix_seed(sys.hash_info.modulus, 1)
    True
    """
    seed_parts = (seed,) if seed < sys.hash_info.modulus else divmod(seed, 2**32)
    return hash((*seed_parts, *parts))


def move_to_device(network: nn.Module, recipe: Recipe) -> nn.Module:
    """Move a network to the training device, in the recipe's memory layout."""
    network.to(_make_fabric(recipe.precision).device)
    if recipe.channels_last:
        network.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    return network


def _make_fabric(precision: str) -> Any:
    """Return Lightning's Fabric for one device of this machine, without its message about the precision."""
    from lightning_fabric import Fabric  # imported here because it is slow

    log = logging.getLogger("lightning_fabric")
    previous_level = log.level
    log.setLevel(logging.WARNING)
    try:
        return Fabric(accelerator="auto", devices=1, precision=precision)  # pyright: ignore[reportArgumentType]
    finally:
        log.setLevel(previous_level)


def _batch_losses(loss: Loss, model: nn.Module, inputs: Any, labels: Tensor, generator: torch.Generator) -> Tensor:
    """Return the loss of every output of a batch in float32, for backward.

    A `MixingLoss` mixes the batch first, by random numbers of the generator.
    """
    if not isinstance(loss, MixingLoss):
        return per_example_losses(loss, model(inputs).float(), labels)
    batch = loss.mix(inputs, labels, generator=generator)
    return batch.loss(loss, model(batch.inputs).float())


def per_example_losses(loss: Loss, logits: Tensor, labels: Tensor) -> Tensor:
    """Return the loss of every example. Raises `InputError` if the loss reduces them."""
    values = loss(logits, labels)
    if values.shape != labels.shape:
        function = getattr(loss, "func", loss)  # hyperparameters are bound by functools.partial
        name = getattr(function, "__name__", type(function).__name__)
        raise InputError(
            f"Expected {name} to return the loss of every example, {tuple(labels.shape)}, got {tuple(values.shape)}.",
            code="loss_shape",
        )
    return values


_OPTIMIZERS: dict[str, Any] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "adagrad": torch.optim.Adagrad,
}


def build_optimizers(network: nn.Module, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Return the recipe's optimizer, and one for word vectors (embeddings) if they have their own learning rate.

    Weight decay may exclude biases and normalization layers, which are the parameters with fewer than two dimensions.
    """
    vectors_rate = recipe.vectors_learning_rate
    embeddings = [m for m in network.modules() if isinstance(m, nn.Embedding)] if vectors_rate is not None else []
    word_vectors = [p for embedding in embeddings for p in embedding.parameters() if p.requires_grad]
    vector_ids = set(map(id, word_vectors))  # == compares the values of tensors
    parameters = [p for p in network.parameters() if p.requires_grad and id(p) not in vector_ids]
    decayed = [p for p in parameters if recipe.decayed == "all" or p.ndim >= 2]
    undecayed = [p for p in parameters if recipe.decayed == "weights" and p.ndim < 2]
    groups = [{"params": decayed}, {"params": undecayed, "weight_decay": 0.0}] if undecayed else [{"params": decayed}]
    settings = {"lr": recipe.learning_rate, "weight_decay": recipe.weight_decay}
    if recipe.optimizer == "sgd":
        settings["momentum"] = recipe.momentum
    optimizers: list[Any] = [_OPTIMIZERS[recipe.optimizer](groups, **settings)]
    if vectors_rate is not None and word_vectors:
        optimizers.append(torch.optim.SGD(word_vectors, lr=vectors_rate))  # without momentum and weight decay
    return optimizers


def _batches(examples: Split, splits: Splits, recipe: Recipe, seed: int) -> Iterator[tuple[Any, Tensor, int]]:
    """Yield the network's inputs, the labels of its outputs and the number of examples for each batch of an epoch.

    `examples` is `splits.train` on the training device. The seed determines the order and the augmentation.
    """
    device, size = examples.labels.device, recipe.batch_size
    generator = torch.Generator(device).manual_seed(seed)
    order = torch.randperm(len(examples), generator=generator, device=device)
    if recipe.drop_last and len(examples) >= size:  # a single, incomplete batch is kept
        order = order[: len(examples) // size * size]
    for rows in order.split(size):
        batch = examples[rows]
        inputs, labels = splits.prepare(batch.inputs), batch.labels
        if splits.augment is not None:
            inputs = splits.augment(inputs, generator)
        if splits.targets is not None:  # an example has many outputs, as trees do
            labels = splits.targets(batch.inputs, labels)
        yield inputs, labels, len(rows)


class _TrainingState:
    """State that an interrupted training needs to continue."""

    def __init__(
        self, network: nn.Module, optimizers: list[torch.optim.Optimizer], checkpoint: Checkpoint | None
    ) -> None:
        """Set the parts with a `state_dict`, which a checkpoint holds, and start without a best epoch."""
        self.parts: dict[str, Any] = {"network": network}
        self.parts |= {f"optimizer {i}": optimizer for i, optimizer in enumerate(optimizers)}
        self.checkpoint = checkpoint
        self.best_epoch: dict[str, Any] = {}

    def update_best(self, epoch_number: int, network: nn.Module, val: Predictions, choose: str) -> bool:
        """Return whether this epoch is the best so far by the criterion `choose`, and keep its weights if it is.

        If the recipe chooses the last epoch, every epoch counts as the best, and no weights need to be kept.
        """
        if choose == "last":
            return True
        # higher is better; with folds=1, the temperature of the NLL is fitted to these predictions themselves
        score = -float(metrics.error(val) if choose == "accuracy" else refinement_nll(val, folds=1))
        if self.best_epoch and not score > self.best_epoch["score"]:  # true if the score is nan, unlike <=
            return False
        weights = {name: value.detach().clone() for name, value in network.state_dict().items()}
        self.best_epoch = {"score": score, "epoch": epoch_number, "network": weights}
        return True

    def restore_best(self, network: nn.Module) -> None:
        """Load the weights of the best epoch, unless the recipe keeps the last epoch."""
        if self.best_epoch:
            network.load_state_dict(self.best_epoch["network"])

    def save(self, epoch_number: int, loss: Loss, *, at_once: bool = False) -> None:
        """Write the state after an epoch to the checkpoint, if there is one and a write is due or `at_once`."""
        if self.checkpoint is not None:
            state = {name: part.state_dict() for name, part in self.parts.items()}
            state |= {"epoch": epoch_number, "loss": losses.state(loss), "chosen": self.best_epoch}
            self.checkpoint.save(state, at_once=at_once)

    def resume(self, loss: Loss) -> tuple[int, Loss]:
        """Restore the state from the checkpoint, and return the number of the next epoch and the loss in its state.

        Without a checkpoint, these are 1 and the given loss.

        Raises:
            DamagedError: If the checkpoint was changed, or does not fit the network, optimizers or loss.
        """
        state = None if self.checkpoint is None else self.checkpoint.read()
        if state is None:
            return 1, loss
        try:
            for name, part in self.parts.items():
                part.load_state_dict(state[name])
            self.best_epoch = state["chosen"]
            return state["epoch"] + 1, losses.restore_state(loss, state["loss"])
        except Exception as error:  # the code of a network or loss may have changed
            raise DamagedError(f"its checkpoint does not fit ({describe_error(error)})") from None
