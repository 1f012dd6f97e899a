"""A user-defined method of every kind that is for training, and a metric of tensors, from public names only."""

import torch
from torch import nn

from calibrant import losses, metrics
from calibrant.lab import data, networks


@losses.register
def hinge(logits, labels, *, margin: float = 1.0):
    """Compute the multi-class hinge loss, max(0, margin - (z_y - max z_j))."""
    label = logits.gather(1, labels[:, None])
    runner_up = logits.scatter(1, labels[:, None], -torch.inf).amax(1, keepdim=True)
    return (margin - (label - runner_up)).clamp_min(0).squeeze(1)


@losses.register
class WarmUp:
    """Cross-entropy with a weight that grows to 1 over the first epochs."""

    def __init__(self, *, epochs: int = 2):
        self.epochs, self.epoch = epochs, 0

    def __call__(self, logits, labels):
        share = min(1.0, (1 + self.epoch) / (1 + self.epochs))
        return share * losses.cross_entropy(logits, labels)

    def after_epoch(self, epoch, val):
        return self.with_state_dict({"epoch": epoch + 1})

    def state_dict(self):
        return {"epoch": self.epoch}

    def with_state_dict(self, state):
        loss = WarmUp(epochs=self.epochs)
        loss.epoch = int(state["epoch"])
        return loss


@metrics.metric("credit", unit="share", higher_is_better=True, meaning="the mean probability of the label")
def credit(logits, labels):
    """Compute the mean probability of the label."""
    return logits.softmax(1).gather(1, labels[:, None]).double().mean()


@networks.register
class Tiny(nn.Module):
    """One hidden layer on flat inputs: a class, not a factory."""

    def __init__(self, classes, *, width: int = 16):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, classes))

    def forward(self, inputs):
        return self.layers(inputs)


@data.register
def moons(root=None, *, n: int = 240, noise: float = 0.6):
    """Draw three noisy arcs in the plane."""
    g = torch.Generator().manual_seed(0)
    labels = torch.arange(n) % 3
    angle = 2 * torch.rand(n, generator=g) + 2.1 * labels
    points = torch.stack([angle.cos(), angle.sin()], 1) + noise * torch.randn(n, 2, generator=g)
    train, val, test = (data.Split(points[rows], labels[rows]) for rows in torch.randperm(n, generator=g).chunk(3))
    return data.Splits(train, val, test, classes=("a", "b", "c"), facts={"noise": noise})
