"""Three of the papers' networks trained on their real data, with the learning curve: how far, and how fast, a CPU gets.

python benchmarks/training.py DATA resnet20 newsgroups sst     # DATA is the folder of data sets
"""

import sys
import time
from pathlib import Path

import torch

from calibrant import catalog, data, losses, metrics, networks
from calibrant.study.config import recipe
from calibrant.study.engine import sizes
from calibrant.study.train import predict, train

TRAININGS = {  # data set, network, recipe
    "resnet20": ("cifar10", "resnet20", "quick_cpu"),
    "newsgroups": (
        "newsgroups(length=300)",
        "global_pooling_cnn",
        {"like": "mukhoti_newsgroups", "epochs": 8, "precision": "bf16-mixed"},
    ),
    "sst": ("sst", "tree_lstm", {"like": "mukhoti_sst", "epochs": 8}),
}


def show(head: str, predictions, more: str) -> None:
    accuracy = 100 * (1 - float(metrics.error(*predictions)))
    nll, ece = float(metrics.nll(*predictions)), 100 * float(metrics.ece(*predictions))
    print(f"{head:10} accuracy {accuracy:6.2f} %  nll {nll:.4f}  ece {ece:5.2f} %  {more}", flush=True)


def main() -> None:
    root, names = Path(sys.argv[1]), sys.argv[2:] or list(TRAININGS)
    for name in names:
        where, what, how = TRAININGS[name]
        splits = catalog.resolve(where, data)(root)
        torch.manual_seed(0)
        network = catalog.resolve(what, networks)(*sizes(splits))
        print(f"{what} on {where} by {how}: {len(splits.train)} examples, {dict(splits.facts)}", flush=True)
        used = time.process_time()
        for epoch in train(network, splits, losses.cross_entropy, recipe(how)):
            rate = len(splits.train) / epoch.seconds
            kept = ", best so far" if epoch.best and recipe(how).choose != "last" else ""
            show(f"epoch {epoch.number}", epoch.val, f"train loss {epoch.train_loss:.4f}, {rate:.0f}/s{kept}")
        used = time.process_time() - used
        show("test", predict(network, splits.test, splits.prepare), f"{used:.0f} s of CPU")


if __name__ == "__main__":
    main()
