"""Text: words to token ids, and the vectors they start from."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice, takewhile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from calibrant.types import InputError

_PUNCTUATION_TO_BLANKS = str.maketrans(dict.fromkeys('!"#$%&()*+,-./:;<=>?@[\\]^_`{|}~\t\n', " "))


def tokenize_words(text: str) -> list[str]:
    """Split as the Keras tokenizer does: lower case, punctuation and line ends to blanks, split at blanks.

    >>> tokenize_words("Don't PANIC (yet).")
    ["don't", 'panic', 'yet']
    """
    return [word for word in text.lower().translate(_PUNCTUATION_TO_BLANKS).split(" ") if word]


def vocabulary(documents: Iterable[Sequence[str]], size: int) -> dict[str, int]:
    """Number the most frequent words 1 .. size-1, ties in order of first appearance; 0 is padding.

    >>> vocabulary([["b", "a"], ["a", "c"]], 3)
    {'a': 1, 'b': 2}
    """
    counts = Counter(word for document in documents for word in document)
    return {word: rank for rank, (word, _) in enumerate(counts.most_common(size - 1), 1)}


def pad_token_ids(documents: Iterable[Sequence[str]], ids: dict[str, int], length: int) -> Tensor:
    """Return ids (n length) int32: unknown words dropped, the last `length` kept, zeros in front."""
    rows = [[ids[word] for word in document if word in ids][-length:] for document in documents]
    tokens = np.zeros((len(rows), length), dtype=np.int32)
    for row, values in enumerate(rows):
        if values:
            tokens[row, -len(values) :] = values
    return torch.from_numpy(tokens)


def word_vectors(
    words: Sequence[str],
    path: Path | None,
    *,
    dimension: int,
    unknown_init: str = "zero",
    skip_first: bool = False,
    seed: int = 0,
) -> tuple[Tensor, dict[str, object]]:
    """Return (words d) vectors and what to say of them.

    From `path`, a text file of lines "word x1 .. xd" as GloVe's (Pennington et al. 2014); words not in it are zero (the
    code of Mukhoti et al. (2020) for 20 Newsgroups), or with `unknown="normal"` drawn from N(-0.05, 0.05^2) (its code
    for SST). `skip_first` takes the file's first word for one that is not in it, as that code does. Without a file all
    are drawn from N(0, 0.4^2), about as spread as GloVe's. Row 0, the padding, is zero.
    Raises `InputError` for a file that does not fit.
    """
    generator = torch.Generator().manual_seed(seed)
    if path is None:
        vectors = 0.4 * torch.randn(len(words), dimension, generator=generator)
        facts: dict[str, object] = {"vectors": f"random, {dimension}"}
    else:
        vectors, in_file = _read_vectors(path, {word: row for row, word in enumerate(words)}, dimension, skip_first)
        if unknown_init == "normal":
            random_vectors = 0.05 * torch.randn(len(words), dimension, generator=generator) - 0.05
            vectors = vectors.where(in_file[:, None], random_vectors)
        facts = {"vectors": path.name, "vectors_found": int(in_file.sum())}
    vectors[0] = 0
    return vectors, facts


def _read_vectors(path: Path, rows: dict[str, int], dimension: int, skip_first: bool) -> tuple[Tensor, Tensor]:
    if not path.is_file():
        raise InputError(
            f"no file of word vectors {path}; leave `vectors` out to start from random ones", code="no_file"
        )
    vectors, in_file = torch.zeros(len(rows), dimension), torch.zeros(len(rows), dtype=torch.bool)
    _check_width(path, dimension)
    skip = skip_first
    with path.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            parts = line.rstrip().rsplit(" ", dimension)  # some words of GloVe contain blanks
            if parts == [""] or (number == 1 and _is_header(line)):
                continue
            if len(parts) != dimension + 1:
                raise InputError(
                    f"{path}, line {number}: expected a word and {dimension} numbers, got {len(parts) - 1}",
                    code="vector_length",
                )
            if (row := rows.get(parts[0])) is not None and not skip:
                vectors[row] = _parse_vector(parts, f"{path}, line {number}")
                in_file[row] = True
            skip = False
    if not in_file.any():
        raise InputError(
            f"{path}: holds none of the {len(rows) - 1} words of this data set; is it in another language?",
            code="no_known_words",
        )
    return vectors, in_file


def _check_width(path: Path, dimension: int) -> None:
    """Raise `InputError` if the first lines hold vectors of another length: their words would be read with numbers."""
    with path.open(encoding="utf-8", errors="replace") as lines:
        first = [line.split() for number, line in enumerate(islice(lines, 100)) if number or not _is_header(line)]
    widths = [sum(1 for _ in takewhile(_is_number, reversed(fields[1:]))) for fields in first if fields]
    width = max(set(widths), key=widths.count, default=0)  # a few words hold blanks, and numbers after them
    if width not in (0, dimension):
        raise InputError(
            f"{path}, line 1: expected a word and {dimension} numbers, got {width}; dimension={width} reads this file",
            code="vector_length",
        )


def _is_header(line: str) -> bool:
    """Whether a first line is word2vec's, which says how many words there are and how many numbers to each."""
    fields = line.split()
    return len(fields) == 2 and all(field.isdecimal() for field in fields)


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def _parse_vector(parts: Sequence[str], location: str) -> Tensor:
    try:
        vector = torch.tensor([float(part) for part in parts[1:]])
    except ValueError:
        raise InputError(f"{location}: not {len(parts) - 1} numbers after {parts[0]!r}", code="not_numbers") from None
    if not vector.isfinite().all():
        raise InputError(
            f"{location}: the vector of {parts[0]!r} is not finite; fetch the file again?", code="not_finite"
        )
    return vector


def vectors_path(name: str | None, root: Path | None) -> Path | None:
    """Find a file of vectors as given, or in the folder of data sets."""
    if name is None:
        return None
    return Path(name) if Path(name).is_file() or root is None else root / name
