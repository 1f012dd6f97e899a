"""20 Newsgroups (Lang 1995): Usenet messages of 20 groups as token ids."""

import re
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from calibrant._core.lazy import import_optional
from calibrant._core.registry import DATA_SETS
from calibrant._core.types import Count, InputError, Seed
from calibrant.lab.data._loading import (
    ConvertedData,
    InMemoryTable,
    OriginalFormat,
    Source,
    SplitFiles,
    Tables,
    check_labels,
    find_column,
    first_existing,
    load,
    wrap_read_errors,
)
from calibrant.lab.data._splits import Split, Splits, shuffled_indices
from calibrant.lab.data._text import initial_word_vectors, pad_token_ids, tokenize_words, vocabulary
from calibrant.lab.hub import is_hub_reachable, wrap_hub_errors

VOCABULARY_SIZE, DOCUMENT_TOKENS = 20_000, 1000  # as in the code of Mukhoti et al. (2020)
_HEADER_PATTERN = re.compile(r"[\w-]+: ")
_LINE_END_PATTERN = re.compile("\r\n?")  # normalized, as in text files


def _find_messages(folder: Path) -> SplitFiles:
    """Return the messages of the original collection as the training split, or nothing."""
    home = first_existing(folder, "20_newsgroups", "20_newsgroup", "20news-18828")
    return {} if home is None else {"train": _message_paths(home), "test": []}


def _find_by_date(folder: Path) -> SplitFiles:
    """Return the messages of both splits of the collection split by date, or nothing if one is missing."""
    files = {name: _message_paths(folder / f"20news-bydate-{name}") for name in ("train", "test")}
    return files if all(files.values()) else {}


def _message_paths(home: Path) -> list[Path]:
    """Return the files GROUP/NUMBER, sorted."""
    return sorted(path for path in home.glob("*/*") if path.name.isdigit())


def _read_messages(files: SplitFiles) -> dict[str, InMemoryTable]:
    """Read the messages of each split, with labels in the alphabetic order of groups."""
    groups = sorted({path.parent.name for paths in files.values() for path in paths})
    return {
        name: InMemoryTable(
            {
                # the messages have various encodings; latin-1 reads any bytes
                "text": [path.read_text(encoding="latin-1") for path in paths],
                "label": [groups.index(path.parent.name) for path in paths],
                "label_text": [path.parent.name for path in paths],
                "id": [f"{path.parent.name}/{path.name}" for path in paths],
            }
        )
        for name, paths in files.items()
    }


_NEWSGROUPS = Source(
    folders=("20newsgroups-raw", "20newsgroups", "newsgroups"),
    hub="SetFit/20_newsgroups",
    original_formats=(
        OriginalFormat("the folder 20_newsgroups of the original collection", _find_messages, _read_messages),
        OriginalFormat("20news-bydate-train and 20news-bydate-test", _find_by_date, _read_messages),
    ),
)


@DATA_SETS.register
def newsgroups(
    root: Path | None = None,
    *,
    protocol: Literal["mukhoti", "bydate"] = "mukhoti",
    val: Count = 900,
    seed: Seed = 1,
    vectors: str | None = None,
    dimension: Count = 100,
    tokenizer: str | None = None,
    length: Count = DOCUMENT_TOKENS,
    revision: str | None = None,
) -> Splits:
    """Load 20 Newsgroups as in the code of Mukhoti et al. (2020), or split by date.

    Headers (up to the first blank line) are removed. The 19,999 most frequent words of all documents have ids 1 ..
    19,999, with ties in the order of groups and message numbers; other words are dropped. Documents are cut or padded
    in front to `length` ids.

    There are three collections. The papers use the original one of 19,997 messages (15,098 / 900 / 3,999), read from
    the folder `20_newsgroups`. The one split by date has 18,846 (14,177 / 900 / 3,769), read from `20news-bydate-train`
    and `-test` or from parquet files. The copy of the latter on the Hugging Face hub lacks headers, signatures and
    quotations, which makes it harder. The record of a run says which collection was used and whether headers were
    removed.

    Args:
        root: Data folder; by default CALIBRANT_DATA or the Hugging Face hub.
        protocol: "mukhoti" shuffles all documents with `seed`; the last fifth tests, and the `val` before it validate.
            "bydate" uses the official test set, and `val` of the training rows validate.
        val: Number of validation documents.
        seed: Seed of the split and of random vectors.
        vectors: GloVe file, as given or in the data folder. Without it, vectors are random.
        dimension: Length of a word vector.
        tokenizer: A Transformers tokenizer, such as `bert-base-uncased` or a folder. Its ids, at most 512 per document,
            replace the words.
        length: Maximal number of ids per document.
        revision: Commit on the Hugging Face hub.

    Raises:
        InputError: If the data cannot be read, or `val` does not fit.
    """
    tensors, record = load(_NEWSGROUPS, root, revision, _convert, length=length, tokenizer=tokenizer)
    train, test = (Split(tensors[f"{name}.tokens"], tensors[f"{name}.labels"]) for name in ("train", "test"))
    if protocol == "mukhoti":
        train, test = _split_off_test(train, test, tensors["order"], seed)
        shuffled_indices(len(train), val, seed, "newsgroups")  # only to check val; the documents are shuffled already
        train, held_out = train[:-val], train[-val:]
    else:
        if not len(test):
            raise InputError(
                "newsgroups: Expected a collection split by date, got the original one. Try protocol='mukhoti'.",
                code="no_date_split",
            )
        order = shuffled_indices(len(train), val, seed, "newsgroups")
        train, held_out = train[order[val:]], train[order[:val]]
    words, classes = record.pop("words"), tuple(record.pop("classes"))
    word_vectors = None  # a tokenizer belongs to a network that has word vectors
    if tokenizer is None:
        word_vectors, vector_record = initial_word_vectors(words, vectors, root, dimension=dimension, seed=seed)
        record |= vector_record
    record["protocol"] = protocol
    return Splits(train, held_out, test, classes, prepare=Tensor.long, word_vectors=word_vectors, facts=record)


def _split_off_test(train: Split, test: Split, order: Tensor, seed: int) -> tuple[Split, Split]:
    """Return the training and the test documents of the papers: all documents, shuffled, with the last fifth as test.

    `train` and `test` are the splits of the files. `order` sorts their documents by group and message number, so that
    the shuffle depends on `seed` alone.
    """
    documents = Split(torch.cat([train.inputs, test.inputs]), torch.cat([train.labels, test.labels]))
    shuffled_order = order[torch.from_numpy(np.random.RandomState(seed).permutation(len(order)))]
    cut = len(order) - len(order) // 5
    return documents[shuffled_order[:cut]], documents[shuffled_order[cut:]]


def _convert(tables: Tables, *, length: int, tokenizer: str | None) -> ConvertedData:
    """Return ids (n length) and labels of each split, and the order of all documents by group and message number.

    The entries of the record are the names of the classes, the words by id, the length and number of documents, and
    whether headers were removed. `newsgroups` takes the classes and words out of the record.
    """
    rows_by_split = {split: _read_rows(table, split) for split, table in tables.items()}
    rows = list(chain.from_iterable(rows_by_split.values()))
    texts = [row["text"] for row in rows]
    has_headers = sum(bool(_HEADER_PATTERN.match(text)) for text in texts) > len(texts) / 2
    if has_headers:  # headers end at the first blank line; a text without one stays whole, as `find` returns -1
        texts = [text[max(text.find("\n\n"), 0) :] for text in texts]
    # of the rows of all splits together
    order = sorted(range(len(rows)), key=lambda i: rows[i]["id"].split("/", 1))  # by group, then by number as text
    if tokenizer is None:
        documents = [tokenize_words(text) for text in texts]
        ids = vocabulary((documents[i] for i in order), VOCABULARY_SIZE)  # ties follow the order
        tokens = pad_token_ids(documents, ids, length)
    else:
        ids, tokens = {}, _subword_ids(texts, tokenizer, length)
    tensors = {"order": torch.tensor(order)}
    sizes = list(map(len, rows_by_split.values()))
    for (split, split_rows), part in zip(rows_by_split.items(), tokens.split(sizes), strict=True):
        tensors[f"{split}.tokens"] = part.clone()  # the cache refuses tensors that share memory
        tensors[f"{split}.labels"] = torch.tensor([row["label"] for row in split_rows], dtype=torch.int64)
    names = {row["label"]: row["label_text"] for row in rows}
    return tensors, {
        "classes": [names.get(i, str(i)) for i in range(20)],
        "words": ["", *ids],  # id 0 is padding
        "length": length,
        "documents": len(texts),
        "headers": "removed" if has_headers else "not in this copy",
    }


def _read_rows(table: Any, split: str) -> list[dict[str, Any]]:
    """Return the rows of a split, with text, label, label_text, and an id GROUP/NUMBER, by default LABEL/ROW."""
    with wrap_read_errors(split):
        for column in ("text", "label"):
            find_column(table, split, column)  # raises if it is missing
        rows: list[dict[str, Any]] = [
            dict(zip(batch, values, strict=True))
            for batch in table.iter(batch_size=1000)  # a batch maps columns to lists
            for values in zip(*batch.values(), strict=True)
        ]
    check_labels([row["label"] for row in rows], split, 20)
    for i, row in enumerate(rows):
        if not isinstance(row["text"], str):
            raise InputError(f"{split}, row {i}: Expected text, got {row['text']!r}.", code="missing_values")
        row["text"] = _LINE_END_PATTERN.sub("\n", row["text"])
        row["label_text"] = row.get("label_text") or str(row["label"])
        row["id"] = row.get("id") or f"{row['label']:02d}/{i:06d}"  # with zeros, as ids are sorted as texts
    return rows


def _subword_ids(texts: list[str], name: str, length: int) -> Tensor:
    """Return token ids (n length) of a tokenizer from the Hugging Face hub or a folder, at most 512 as for BERT.

    Short documents are padded in front or at the end, as the tokenizer does. `name` is that of the tokenizer.
    """
    transformers = import_optional("transformers", "text", "A tokenizer")
    is_offline = Path(name).is_dir() or not is_hub_reachable()
    with wrap_hub_errors(f"the tokenizer {name!r}"):
        encode = transformers.AutoTokenizer.from_pretrained(name, local_files_only=is_offline)
    options = {"truncation": True, "max_length": min(length, 512), "padding": "max_length", "return_tensors": "pt"}
    with wrap_read_errors(f"tokenizer {name}"):
        return encode(texts, **options)["input_ids"].int()
