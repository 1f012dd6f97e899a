"""Text: words to token ids, and their initial vectors."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, takewhile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from calibrant._core.types import InputError
from calibrant.io.cells import is_number
from calibrant.lab.data._loading import find_in_root

_PUNCTUATION_TO_BLANKS = str.maketrans(dict.fromkeys('!"#$%&()*+,-./:;<=>?@[\\]^_`{|}~\t\n', " "))


def tokenize_words(text: str) -> list[str]:
    """Tokenize as Keras does: lower case, punctuation and line ends to blanks, split at blanks.

    >>> tokenize_words("Don't PANIC (yet).")
    ["don't", 'panic', 'yet']
    """
    return [word for word in text.lower().translate(_PUNCTUATION_TO_BLANKS).split(" ") if word]


def vocabulary(documents: Iterable[Sequence[str]], size: int) -> dict[str, int]:
    """Return the ids of the size - 1 most frequent words, from 1, with ties in order of first occurrence.

    Id 0 is padding.

    >>> vocabulary([["b", "a"], ["a", "c"]], 3)
    {'a': 1, 'b': 2}
    """
    counts = Counter(word for document in documents for word in document)
    return {word: rank for rank, (word, _) in enumerate(counts.most_common(size - 1), 1)}


def pad_token_ids(documents: Iterable[Sequence[str]], ids: dict[str, int], length: int) -> Tensor:
    """Return the ids of n documents of words, (n length) int32.

    Unknown words are dropped, the last `length` of a document are kept, and zeros pad the front.
    """
    rows = [[ids[word] for word in document if word in ids][-length:] for document in documents]
    tokens = np.zeros((len(rows), length), dtype=np.int32)
    for row, values in enumerate(rows):
        tokens[row, length - len(values) :] = values
    return torch.from_numpy(tokens)


def initial_word_vectors(
    words: Sequence[str],
    name: str | None,
    root: Path | None,
    *,
    dimension: int,
    unknown_init: str = "zero",
    skip_first: bool = False,
    seed: int = 0,
) -> tuple[Tensor, dict[str, object]]:
    """Return initial word vectors (words, dimension), and entries of a run's record. The padding row 0 is zero.

    Args:
        words: The words by id.
        name: GloVe file (Pennington et al. 2014), as given or in the data folder, with lines "word x1 .. xd". Without
            a file, vectors are drawn from N(0, 0.4^2), about the spread of GloVe.
        root: Data folder.
        dimension: Length of a word vector.
        unknown_init: Words that are not in the file are "zero" (code of Mukhoti et al. (2020) for 20 Newsgroups) or
            drawn from "normal", N(-0.05, 0.05^2) (their code for SST).
        skip_first: Treat the first word of the file as unknown, as their code for SST does.
        seed: Seed of random vectors.

    Raises:
        InputError: If the file is missing or has another dimension.
    """
    generator = torch.Generator().manual_seed(seed)
    if name is None:
        vectors = 0.4 * torch.randn(len(words), dimension, generator=generator)
        record: dict[str, object] = {"vectors": f"random, {dimension}"}
    else:
        path = find_in_root(name, root)
        vectors, in_file = _read_vectors(path, {word: row for row, word in enumerate(words)}, dimension, skip_first)
        if unknown_init == "normal":
            random_vectors = 0.05 * torch.randn(len(words), dimension, generator=generator) - 0.05
            vectors = vectors.where(in_file[:, None], random_vectors)
        record = {"vectors": path.name, "vectors_found": int(in_file.sum())}
    vectors[0] = 0
    return vectors, record


def _read_vectors(path: Path, rows: dict[str, int], dimension: int, skip_first: bool) -> tuple[Tensor, Tensor]:
    """Return the vectors (words, dimension), zero for words that the file lacks, and a mask of the words that it has.

    `rows` maps each word to its row in the result. With `skip_first`, the first line of the file is left out.

    Raises:
        InputError: If there is no such file, a line has another form, or no word is known.
    """
    if not path.is_file():
        raise InputError(
            f"Expected a file of word vectors, got {path}, which does not exist. Without `vectors`, they are random.",
            code="no_file",
        )
    vectors = torch.zeros(len(rows), dimension)
    in_file = torch.zeros(len(rows), dtype=torch.bool)
    _check_dimension(path, dimension)
    for line_number, line in islice(_vector_lines(path), int(skip_first), None):
        word, *fields = line.rstrip().rsplit(" ", dimension)  # some words of GloVe contain blanks
        if len(fields) != dimension:
            raise InputError(
                f"{path}, line {line_number}: Expected a word and {dimension} numbers, got {len(fields)}.",
                code="vector_length",
            )
        if (row := rows.get(word)) is not None:
            vectors[row] = _parse_vector(fields, f"{path}, line {line_number}, {word!r}")
            in_file[row] = True
    if not in_file.any():
        raise InputError(
            f"{path}: Expected vectors of the {len(rows) - 1} words of this data set, got none of them. Check the "
            "language of the file.",
            code="no_known_words",
        )
    return vectors, in_file


def _vector_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the number and text of each line, except blank lines and the header of word2vec."""
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line_number, line in enumerate(lines, 1):
            # the header of word2vec has the number of words and the dimension
            is_header = line_number == 1 and len(line.split()) == 2 and all(map(str.isdecimal, line.split()))
            if line.strip() and not is_header:
                yield line_number, line


def _check_dimension(path: Path, dimension: int) -> None:
    """Raise `InputError` if the commonest length of the vectors in the first 100 lines is not `dimension`.

    Without the check, the first numbers of longer vectors would be read as parts of the words.
    """
    counts = Counter[int]()  # number of lines for each length, the count of numbers at the end of a line
    for _, line in islice(_vector_lines(path), 100):
        numbers = takewhile(is_number, reversed(line.split()[1:]))  # stops at a part of a word that contains blanks
        counts[len(list(numbers))] += 1
    for length, _ in counts.most_common(1):  # the commonest length; no item for a file of blank lines
        if length not in (0, dimension):  # lines without numbers are an error of another kind, which the caller reports
            raise InputError(
                f"{path}, line 1: Expected a word and {dimension} numbers, got {length}. Try dimension={length}.",
                code="vector_length",
            )


def _parse_vector(fields: Sequence[str], location: str) -> Tensor:
    """Return the vector in the fields of a line. Raises `InputError` for text, NaN and infinity."""
    try:
        numbers = [float(field) for field in fields]
    except ValueError:
        raise InputError(f"{location}: Expected {len(fields)} numbers, got text.", code="not_numbers") from None
    if not all(map(math.isfinite, numbers)):
        raise InputError(f"{location}: Expected finite numbers, got nan or inf. Fetch it again.", code="not_finite")
    return torch.tensor(numbers)
