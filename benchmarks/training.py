"""Train three of the papers' networks on their real data on a CPU, and print the learning curve.

python benchmarks/training.py DATA resnet20 newsgroups sst     # DATA is the folder of data sets
"""

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from calibrant.registry import DATA_SETS, NETWORKS
from scipy.sparse import coo_array
from scipy.sparse.linalg import svds

from calibrant import losses, metrics
from calibrant.lab.data import Splits
from calibrant.lab.study.config import parse_recipe
from calibrant.lab.study.train import predict, train


def network_arguments(splits: Splits) -> tuple[Any, ...]:
    """Return the number of classes, and the initial word vectors of texts."""
    return len(splits.classes), *(() if splits.word_vectors is None else (splits.word_vectors,))


def cooccurrence_vectors(splits: Splits) -> tuple[Any, ...]:
    """Start from word vectors of the training documents, if there is no file of GloVe vectors.

    Positive pointwise mutual information of words at most 8 apart, factorized to 100 dimensions (Levy & Goldberg 2014).
    """
    assert splits.word_vectors is not None
    words, dimension = splits.word_vectors.shape
    tokens, pairs = splits.train.inputs.numpy(), []
    for gap in range(1, 9):
        word_pairs = np.stack([tokens[:, :-gap].ravel(), tokens[:, gap:].ravel()])
        pairs.append(word_pairs[:, (word_pairs > 0).all(0)])
    left_word, right_word = np.concatenate(pairs, 1)
    counts = coo_array((np.ones(len(left_word)), (left_word, right_word)), shape=(words, words)).tocsr()
    counts = (counts + counts.T).tocoo()
    word_counts = np.bincount(counts.row, counts.data, words)
    context_shares = word_counts**0.75 / (word_counts**0.75).sum()
    counts.data = np.log(counts.data / (word_counts[counts.row] * context_shares[counts.col])).clip(0)
    left, strength, _ = svds(counts.tocsr(), dimension, random_state=0)
    vectors = left * strength**0.5
    return len(splits.classes), torch.from_numpy(0.4 * vectors / vectors.std()).float()


TRAININGS = {  # data set, network, initialization, recipe
    "resnet20": ("cifar10", "resnet20", network_arguments, "quick_cpu"),
    "newsgroups": (  # half of the documents are shorter than 150 words
        "newsgroups(length=150)",
        "global_pooling_cnn(frozen=True)",
        cooccurrence_vectors,
        {"like": "mukhoti_newsgroups", "epochs": 12, "batch_size": 32, "schedule": "cosine", "precision": "bf16-mixed"},
    ),
    "sst": ("sst", "tree_lstm", network_arguments, {"like": "mukhoti_sst", "epochs": 8}),
}


def show(head: str, predictions, details: str) -> None:
    """Print accuracy, NLL and ECE."""
    accuracy = 100 * (1 - float(metrics.error(predictions)))
    nll, ece = float(metrics.nll(predictions)), 100 * float(metrics.ece(predictions))
    print(f"{head:10} accuracy {accuracy:6.2f} %  nll {nll:.4f}  ece {ece:5.2f} %  {details}", flush=True)


def main() -> None:
    """Train and evaluate the named networks."""
    root, names = Path(sys.argv[1]), sys.argv[2:] or list(TRAININGS)
    for name in names:
        where, network_text, start, how = TRAININGS[name]
        splits = DATA_SETS.resolve(where)(root)
        torch.manual_seed(0)
        network = NETWORKS.resolve(network_text)(*start(splits))
        facts = dict(splits.facts) | ({"vectors": "of the training documents"} if start is cooccurrence_vectors else {})
        print(f"{network_text} on {where} by {how}: {len(splits.train)} examples, {facts}", flush=True)
        used = time.process_time()
        for epoch in train(network, splits, losses.cross_entropy, parse_recipe(how)):
            rate = len(splits.train) / epoch.seconds
            note = ", best so far" if epoch.best and parse_recipe(how).choose != "last" else ""
            show(f"epoch {epoch.number}", epoch.val, f"train loss {epoch.train_loss:.4f}, {rate:.0f}/s{note}")
        used = time.process_time() - used
        show("test", predict(network, splits.test, splits.prepare), f"{used:.0f} s of CPU")


if __name__ == "__main__":
    main()
