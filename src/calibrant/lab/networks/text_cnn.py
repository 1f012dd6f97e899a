"""Text CNNs: convolutional networks for documents of token ids (n, t). Id 0 is padding."""

from itertools import pairwise

from torch import Tensor, nn
from torch.nn.functional import max_pool1d, relu

from calibrant._core.registry import NETWORKS
from calibrant._core.types import Count, HalfOpenFraction


def build_embedding(vectors: Tensor | None, *, words: int, dimension: int, frozen: bool) -> nn.Embedding:
    """Return an embedding that starts from `vectors`, or from N(0, 0.4^2), about the spread of GloVe vectors.

    Without `vectors`, it has `words` rows of length `dimension`. A `frozen` embedding does not learn. The padding row 0
    is zero and never learns. The data set's own `vectors` do not change, as they are copied.
    """
    if vectors is not None:
        return nn.Embedding.from_pretrained(vectors.clone(), freeze=frozen, padding_idx=0)
    embedding = nn.Embedding(words, dimension, padding_idx=0)
    nn.init.normal_(embedding.weight, std=0.4)
    nn.init.zeros_(embedding.weight[0].detach())  # a view of row 0; only without gradient may it change in place
    embedding.weight.requires_grad_(not frozen)
    return embedding


class _GlobalPoolingCNN(nn.Module):
    """The network of `global_pooling_cnn`."""

    def __init__(self, classes: int, embedding: nn.Embedding, width: int, dropout: float) -> None:
        """Build three convolutions over 5 tokens with `width` channels, a hidden layer and the output layer."""
        super().__init__()
        self.embedding = embedding
        input_widths = embedding.embedding_dim, width, width
        self.conv1, self.conv2, self.conv3 = (nn.Conv1d(inputs, width, 5) for inputs in input_widths)
        self.hidden, self.dropout, self.head = nn.Linear(width, width), nn.Dropout(dropout), nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of documents of token ids (n, t)."""
        # convolutions and pooling each shorten the document by 4 tokens
        x = max_pool1d(relu(self.conv1(self.embedding(tokens).mT)), 5, 1)  # (n width t - 8)
        x = max_pool1d(relu(self.conv2(x)), 5, 1)  # (n width t - 16)
        x = relu(self.conv3(x)).amax(2)  # (n width)
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
    """Build the Global-Pooling CNN in the code of Mukhoti et al. (2020), after Kumar et al. (2018), Lin et al. (2013).

    Three convolutions over 5 tokens, the first two followed by max-pooling over 5 with stride 1; the maximum over the
    document; linear, dropout, linear. 247,316 parameters for 20 classes without the embedding. Needs documents of at
    least 21 tokens.

    Args:
        classes: Number of classes.
        vectors: Initial embedding (words, dimension); random by default.
        words: Rows of a random embedding.
        dimension: Columns of a random embedding.
        frozen: Do not train the embedding. Mukhoti et al. (2020) freeze GloVe vectors; random ones need training.
        width: Channels of the convolutions.
        dropout: Rate of dropout.
    """
    embedding = build_embedding(vectors, words=words, dimension=dimension, frozen=frozen)
    return _GlobalPoolingCNN(classes, embedding, width, dropout)


class _CNN8(nn.Module):
    """The network of `cnn8_text`."""

    def __init__(self, classes: int, embedding: nn.Embedding, width: int, dropout: float) -> None:
        """Build six convolutions over 5 tokens with `width` channels, a hidden layer and the output layer."""
        super().__init__()
        self.embedding = embedding
        sizes = (embedding.embedding_dim, *(width,) * 6)
        layers = (nn.Conv1d(inputs, outputs, 5, padding=2) for inputs, outputs in pairwise(sizes))
        self.convolutions = nn.ModuleList(layers)
        self.hidden, self.dropout, self.head = nn.Linear(width, width), nn.Dropout(dropout), nn.Linear(width, classes)
        for layer in self.convolutions:  # with the default initialization, activations vanish over the layers
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")  # pyright: ignore[reportArgumentType]

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of documents of token ids (n, t)."""
        x = self.embedding(tokens).mT  # (n dimension t)
        for i, convolution in enumerate(self.convolutions):
            x = relu(convolution(x))
            if i % 2 == 1 and x.shape[2] >= 3:  # a short document is not pooled further
                x = max_pool1d(x, 3)
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
    """Build an 8-layer 1-D CNN for 20 Newsgroups.

    Wang et al. (2021) name this network but do not describe it, so the architecture is ours: six convolutions over 5
    tokens, max-pooling over 3 after every second one, the maximum over the document, and two linear layers with dropout
    between them. `global_pooling_cnn` explains the arguments.
    """
    return _CNN8(classes, build_embedding(vectors, words=words, dimension=dimension, frozen=frozen), width, dropout)
