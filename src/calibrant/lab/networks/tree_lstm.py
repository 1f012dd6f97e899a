"""Tree-LSTM: the binary constituency form (Tai et al. 2015, section 3.2), evaluated one height at a time."""

from typing import Any

import torch
from torch import Tensor, nn

from calibrant._core.registry import NETWORKS
from calibrant._core.types import Count, HalfOpenFraction
from calibrant.lab.networks.text_cnn import build_embedding


class _TreeLSTM(nn.Module):
    """The network of `tree_lstm`."""

    def __init__(self, classes: int, embedding: nn.Embedding, memory: int, dropout: float) -> None:
        """Build the layers of leaves and inner nodes, whose hidden state and cell have `memory` values each."""
        super().__init__()
        self.embedding, self.classes = embedding, classes
        # each layer computes several gates at once
        self.leaf = nn.Linear(embedding.embedding_dim, 2 * memory)  # cell, output gate
        # of the left and the right child: input gate, left and right forget gates, update
        self.left, self.right = nn.Linear(memory, 4 * memory), nn.Linear(memory, 4 * memory)
        # with two classes, nodes below the root may also be neutral
        self.dropout, self.head = nn.Dropout(dropout), nn.Linear(memory, 3 if classes == 2 else classes)

    def forward(self, trees: Any) -> Tensor:
        """Return the logits of all nodes of `calibrant.lab.data.Trees` in training, and of the roots in evaluation."""
        hidden = self._hidden_states(trees)
        if self.training:
            return self.head(self.dropout(hidden))
        roots = trees.start[1:] - 1  # the last node of each tree
        logits = self.head(hidden[roots])
        return logits[:, [0, 2]] if self.classes == 2 else logits  # without neutral

    def _hidden_states(self, trees: Any) -> Tensor:
        """Return the hidden states (nodes, memory) of `calibrant.lab.data.Trees`.

        The height of a node is 0 for a leaf, else one more than the height of its higher child. Nodes of equal height
        do not depend on each other, and are computed at once, from the leaves upward.
        """
        nodes_by_height = trees.height.argsort(stable=True).split(trees.height.bincount().tolist())
        leaves, *levels = nodes_by_height
        cell, output_gate = self.leaf(self.embedding(trees.word[leaves])).chunk(2, -1)
        memory = cell.shape[1]
        states = cell.new_empty(len(trees.height), 2 * memory)  # hidden state and cell of each node
        states[leaves] = torch.cat([output_gate.sigmoid() * cell.tanh(), cell], -1)
        # children are counted from the first node of their tree
        first_node = trees.start[:-1].repeat_interleave(trees.start[1:] - trees.start[:-1])
        left_child, right_child = first_node + trees.left, first_node + trees.right  # not valid for leaves
        for nodes in levels:
            states[nodes] = self._compose(states[left_child[nodes]], states[right_child[nodes]], memory)
        return states[:, :memory]

    def _compose(self, left: Tensor, right: Tensor, memory: int) -> Tensor:
        """Return the hidden state h and cell c, side by side (nodes, 2 memory), of nodes from those of their children.

        `left` and `right` have the same form, for the left and right children. With gates i, f_l, f_r and update u:
        c = i u + f_l c_l + f_r c_r and h = tanh(c).
        """
        z = self.left(left[:, :memory]) + self.right(right[:, :memory])
        input_gate, left_forget_gate, right_forget_gate = z[:, : 3 * memory].sigmoid().chunk(3, -1)
        update = z[:, 3 * memory :].tanh()
        cell = input_gate * update + left_forget_gate * left[:, memory:] + right_forget_gate * right[:, memory:]
        return torch.cat([cell.tanh(), cell], -1)


@NETWORKS.register
def tree_lstm(
    classes: int,
    vectors: Tensor | None = None,
    *,
    words: Count = 21_702,
    dimension: Count = 300,
    memory: Count = 150,
    dropout: HalfOpenFraction = 0.5,
) -> nn.Module:
    """Build a Tree-LSTM on binary parse trees, as in the code of Mukhoti et al. (2020).

    271,953 parameters without the embedding. Leaves: c = W x, h = sigmoid(W_o x) tanh(c). Inner nodes: gates i, f_l,
    f_r and update u, each linear in both children's h; c = i u + f_l c_l + f_r c_r and h = tanh(c), without an output
    gate. Inputs are `calibrant.lab.data.Trees`.

    In training, the network returns logits of every node, with dropout before the last layer; in evaluation, logits of
    the roots. With 2 classes, nodes have logits for negative, neutral and positive, and roots have the first and last
    of these: their probabilities are conditional on the sentence not being neutral. The code of Mukhoti et al. (2020)
    does not normalize these two probabilities; use 3 classes to reproduce that.

    Args:
        classes: Number of classes.
        vectors: Initial embedding (words, dimension); random by default.
        words: Rows of a random embedding.
        dimension: Columns of a random embedding.
        memory: Width of the hidden state and of the cell.
        dropout: Rate of dropout.
    """
    return _TreeLSTM(classes, build_embedding(vectors, words=words, dimension=dimension, frozen=False), memory, dropout)
