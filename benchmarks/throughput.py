"""Our training loop and focal loss run against a bare torch loop of the same network, in alternating epochs.

Both loops have the same start, order, optimizer and precision, so that their training losses must be equal; the table
shows those of the last epoch. Validation is of two images.
"""

import statistics
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks._harness import US, Row, Size, clock, markdown
from calibrant import losses
from calibrant.lab import networks
from calibrant.lab.data import Split, Splits
from calibrant.lab.study.recipe import Recipe
from calibrant.lab.study.train import train
from calibrant.nn import Criterion

TITLE = "Training"
BATCH = 128
Loss = Callable[[Tensor, Tensor], Tensor]


def run(size: Size) -> Iterator[Row]:
    """Measure images per second of every loop on every network."""
    epochs = 2 if size.shrink > 1 else 12 if size.full else 6
    yield from _table("lenet5", lambda: networks.lenet5(10, channels=3), _splits(8192 // min(size.shrink, 32)), epochs)
    yield from _table("resnet8", lambda: networks.resnet8(10), _splits(1024 // min(size.shrink, 4)), epochs)


def _splits(n: int) -> Splits:
    g = torch.Generator().manual_seed(0)
    labels = torch.randint(10, (n + 2,), generator=g)
    images = torch.randn(n + 2, 3, 32, 32, generator=g) + torch.randn(10, 3, 1, 1, generator=g)[labels]
    val_split = Split(images[n:], labels[n:])  # validation is part of each epoch: two images cost nothing
    return Splits(Split(images[:n], labels[:n]), val_split, val_split, tuple("0123456789"))


def _table(name: str, make: Callable[[], nn.Module], splits: Splits, epochs: int) -> Iterator[Row]:
    recipe = Recipe(epochs=epochs, batch_size=BATCH, learning_rate=0.01, milestones=())

    def network() -> nn.Module:
        torch.manual_seed(0)
        return make()

    cross_entropy = Criterion("cross_entropy")
    loops: dict[str, Iterator[float]] = {
        "bare torch": _bare(network(), splits, recipe, F.cross_entropy),
        f"{US} train": (epoch.train_loss for epoch in train(network(), splits, losses.cross_entropy, recipe)),
        "bare torch, Criterion(cross_entropy)": _bare(network(), splits, recipe, cross_entropy),
        "bare torch, Criterion(focal)": _bare(network(), splits, recipe, Criterion("focal")),
        f"{US} train, focal": (epoch.train_loss for epoch in train(network(), splits, losses.focal, recipe)),
    }
    seconds: dict[str, list[float]] = {contender: [] for contender in loops}
    loss: dict[str, float] = {}
    for _ in range(epochs):
        for contender, loop in loops.items():
            start = clock()
            loss[contender] = next(loop)
            seconds[contender].append(clock() - start)
    n = len(splits.train)
    for contender, took in seconds.items():
        against = [mine / bare for mine, bare in zip(took[1:], seconds["bare torch"][1:])]
        same = f"bare torch, Criterion({'focal' if 'focal' in contender else 'cross_entropy'})"
        yield {
            "network": name,
            "contender": contender,
            "images_per_second": n / statistics.median(took[1:]),
            "of_bare": statistics.median(against),
            "loss": loss[contender],
            "off": abs(loss[contender] - loss[same]),
        }


def _bare(network: nn.Module, splits: Splits, recipe: Recipe, criterion: Loss) -> Iterator[float]:
    """Train as in torch's tutorials, in the order of our loop."""
    optimizer = torch.optim.SGD(network.parameters(), lr=recipe.learning_rate, momentum=0.9, weight_decay=5e-4)
    inputs, labels = splits.train.inputs, splits.train.labels
    for number in range(1, recipe.epochs + 1):
        network.train()
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(hash((0, number, 1))))
        total = 0.0
        for rows in order.split(recipe.batch_size):
            loss = criterion(network(inputs[rows]), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += float(loss.detach()) * len(rows)
        yield total / len(labels)


def page(rows: list[Row]) -> str:
    """Return the table, and whether the overhead is below 5 %."""
    ours = [row for row in rows if row["contender"] == f"{US} train"]
    overheads = ", ".join(f"{row['network']}: {100 * (row['of_bare'] - 1):+.1f} %" for row in ours)
    verdict = "within" if all(row["of_bare"] <= 1.05 for row in ours) else "not within"
    lines = [
        [
            row["network"],
            row["contender"],
            row["images_per_second"],
            f"{row['of_bare']:.3f}",
            f"{row['loss']:.5f}",
            row["off"],
        ]
        for row in rows
    ]
    head = ["network", "loop", "images / s", "time of bare", "training loss", "off"]
    return f"Overhead of our loop: {overheads}; {verdict} the limit of 5 %.\n\n" + markdown(head, lines)
