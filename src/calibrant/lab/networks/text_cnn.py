"""Convolutional networks for documents of token ids (n, t), id 0 being padding."""

from itertools import pairwise

from torch import Tensor, nn
from torch.nn.functional import max_pool1d, relu

from calibrant.registry import NETWORKS
from calibrant.types import Count, HalfOpenFraction

__all__ = ["cnn8_text", "global_pooling_cnn"]


def build_embedding(vectors: Tensor | None, *, words: int, dimension: int, frozen: bool) -> nn.Embedding:
    """A table of word vectors that starts from `vectors`, or at random from N(0, 0.4^2); row 0 is zero and stays so."""
    if vectors is not None:
        return nn.Embedding.from_pretrained(vectors.clone(), freeze=frozen, padding_idx=0)
    table = nn.Embedding(words, dimension, padding_idx=0)
    nn.init.normal_(table.weight, std=0.4)
    nn.init.zeros_(table.weight[0].detach())
    table.weight.requires_grad_(not frozen)
    return table


class _GlobalPoolingCNN(nn.Module):
    def __init__(self, classes: int, table: nn.Embedding, width: int, dropout: float) -> None:
        super().__init__()
        self.embedding = table
        self.conv1 = nn.Conv1d(table.embedding_dim, width, 5)
        self.conv2 = nn.Conv1d(width, width, 5)
        self.conv3 = nn.Conv1d(width, width, 5)
        self.hidden, self.dropout, self.head = nn.Linear(width, width), nn.Dropout(dropout), nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        x = max_pool1d(relu(self.conv1(self.embedding(tokens).mT)), 5, 1)
        x = max_pool1d(relu(self.conv2(x)), 5, 1)
        x = relu(self.conv3(x)).amax(2)
        return self.head(self.dropout(relu(self.hidden(x))))


@NETWORKS.register
def global_pooling_cnn(
    classes: int,
    vectors: Tensor | None = None,
    *,
    words: Count = 20_000,
    dimension: Count = 100,
    frozen: bool = False,
    width: Count = 128,
    dropout: HalfOpenFraction = 0.3,
) -> nn.Module:
    """Global-Pooling CNN of the code of Mukhoti et al. (2020), after Kumar et al. (2018) and Lin et al. (2013).

    Three convolutions of 5 tokens, the first two followed by maxima over 5 at stride 1, the maximum over the document,
    linear, dropout, linear: 247,316 parameters at 20 classes besides the word vectors. Mukhoti et al. (2020) give it
    GloVe vectors and freeze them (`frozen=True`); random ones want training. Needs documents of at least 21 tokens.
    """
    table = build_embedding(vectors, words=words, dimension=dimension, frozen=frozen)
    return _GlobalPoolingCNN(classes, table, width, dropout)


class _CNN8(nn.Module):
    def __init__(self, classes: int, table: nn.Embedding, width: int, dropout: float) -> None:
        super().__init__()
        self.embedding = table
        sizes = (table.embedding_dim, *(width,) * 6)
        self.convolutions = nn.ModuleList(nn.Conv1d(a, b, 5, padding=2) for a, b in pairwise(sizes))
        self.hidden, self.dropout, self.head = nn.Linear(width, width), nn.Dropout(dropout), nn.Linear(width, classes)
        for layer in self.modules():
            if isinstance(layer, nn.Conv1d):  # plain layers in a row fade away otherwise
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens).mT
        for layer_index, convolve in enumerate(self.convolutions):
            x = relu(convolve(x))
            x = max_pool1d(x, 3) if layer_index % 2 == 1 and x.shape[2] >= 3 else x
        return self.head(self.dropout(relu(self.hidden(x.amax(2)))))


@NETWORKS.register
def cnn8_text(
    classes: int,
    vectors: Tensor | None = None,
    *,
    words: Count = 20_000,
    dimension: Count = 100,
    frozen: bool = False,
    width: Count = 128,
    dropout: HalfOpenFraction = 0.3,
) -> nn.Module:
    """An 8-layer 1-D CNN for 20 Newsgroups, named and not described by Wang et al. (2021): this reading is ours.

    Six convolutions of 5 tokens, a maximum over 3 after every second one, the maximum over the document, two linear
    layers with dropout between them.
    """
    table = build_embedding(vectors, words=words, dimension=dimension, frozen=frozen)
    return _CNN8(classes, table, width, dropout)
