"""The Tree-LSTM by height against the same network node by node, on SST: seconds per training batch, and their ratio.

python benchmarks/tree_lstm.py DATA        # the folder that contains sst5/
"""

import statistics
import sys
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from calibrant.lab import data, networks

BATCH, REPEATS = 25, 7


def recursive(network: nn.Module, trees: data.Trees, words: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Return hidden and cell state of every node of one tree, computed one node after another."""
    hidden: list[Tensor] = []
    cells: list[Tensor] = []
    for node in range(len(words)):
        if trees.left[node] < 0:
            cell, gate = network.leaf(network.embedding(words[node])).chunk(2, -1)
            state = gate.sigmoid() * cell.tanh()
        else:
            left, right = int(trees.left[node]), int(trees.right[node])
            gates = (network.left(hidden[left]) + network.right(hidden[right])).chunk(4, -1)
            enter, keep_left, keep_right = (gate.sigmoid() for gate in gates[:3])
            cell = enter * gates[3].tanh() + keep_left * cells[left] + keep_right * cells[right]
            state = cell.tanh()
        hidden.append(state)
        cells.append(cell)
    return hidden, cells


def node_by_node(network: nn.Module, trees: data.Trees, targets: Tensor) -> Tensor:
    """Return the mean loss per tree, computed one node after another."""
    total = torch.zeros(())
    for i in range(len(trees)):
        tree = trees[[i]]
        hidden, _ = recursive(network, tree, tree.word)
        tree_targets = targets[trees.start[i] : trees.start[i + 1]]
        for state, target in zip(hidden, tree_targets, strict=True):
            total = total + cross_entropy(network.head(network.dropout(state))[None], target[None])
    return total / len(trees)


def by_height(network: nn.Module, trees: data.Trees, targets: Tensor) -> Tensor:
    """Return the mean loss per tree, computed by height."""
    return cross_entropy(network(trees), targets, reduction="sum") / len(trees)


def main() -> None:
    """Print the medians and their ratio."""
    splits = data.sst(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
    torch.manual_seed(0)
    network = networks.tree_lstm(2, splits.word_vectors).train()
    seconds: dict[str, list[float]] = {"node by node": [], "by height": []}
    for repeat in range(REPEATS):
        trees = splits.train.inputs[torch.randperm(len(splits.train))[:BATCH]]
        targets = splits.targets(trees, trees.label)
        for name, run in ("node by node", node_by_node), ("by height", by_height):
            begin = time.perf_counter()
            network.zero_grad()
            run(network, trees, targets).backward()
            if repeat:  # the first warms up
                seconds[name].append(time.perf_counter() - begin)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    for name, value in medians.items():
        print(f"{name:14} {1000 * value:8.1f} ms per batch of {BATCH}")
    print(f"{'ratio':14} {medians['node by node'] / medians['by height']:8.1f}")


if __name__ == "__main__":
    main()
