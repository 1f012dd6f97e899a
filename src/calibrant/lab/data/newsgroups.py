"""20 Newsgroups (Lang 1995): Usenet posts of 20 groups as token ids."""

import re
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from calibrant._text import to_one_line
from calibrant.lab.data._loading import (
    ConvertedData,
    Source,
    Tables,
    check_labels,
    data_root,
    find_column,
    load,
    wrap_read_errors,
)
from calibrant.lab.data._original_formats import InMemoryTable, OriginalFormat, SplitFiles, first_existing
from calibrant.lab.data._splits import Split, Splits, shuffled_indices
from calibrant.lab.data._text import pad_token_ids, tokenize_words, vectors_path, vocabulary, word_vectors
from calibrant.lab.hub import is_hub_reachable
from calibrant.registry import DATA_SETS
from calibrant.types import Count, InputError, Seed

__all__ = ["newsgroups"]

VOCABULARY_SIZE, DOCUMENT_TOKENS = 20_000, 1000  # of the code of Mukhoti et al. (2020)
_HEADER_PATTERN = re.compile(r"[\w-]+: ")
_LINE_END_PATTERN = re.compile("\r\n?")  # read as files of text are


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
    """20 Newsgroups as Mukhoti et al. (2020) prepare it, or split by date.

    Headers (up to the first blank line) are cut off; the 19,999 most frequent words of all documents become ids 1 ..
    19,999, ties in the order of groups and numbers, others are dropped; documents are cut or padded in front to
    `length` ids. `protocol="mukhoti"`: documents in that order shuffled with `seed`, the last fifth for testing, `val`
    before it for validation. `"bydate"`: the files' own test set, `val` of the training rows for validation.

    There are several collections. The paper's numbers are of the original one, 19,997 messages (15,098 / 900 / 3,999),
    read from the folder `20_newsgroups` where the data folder has it. The "by date" one has 18,846 (14,177 / 900 /
    3,769), read from `20news-bydate-train` and `-test` or parquet files. The hub's copy of that has lost headers,
    signatures and quotations, so that it is harder; `revision` is a commit of it. The record says which it was, and
    whether headers were cut.

    `vectors` names a GloVe file of `dimension` numbers a word, found as given or in the data folder; without one the
    vectors are random, and the record says so. `tokenizer` names a Transformers tokenizer (`bert-base-uncased`, or its
    folder) whose ids, at most 512 or `length` of them, replace the words. Raises `InputError` for what cannot be read.
    """
    folders = "20newsgroups-raw", "20newsgroups", "newsgroups"
    source = Source(
        folders, "SetFit/20_newsgroups", revision=revision, original_formats=(_ORIGINAL_FORMAT, _BY_DATE_FORMAT)
    )
    settings: dict[str, Any] = {"length": length, "tokenizer": tokenizer}
    tensors, facts = load(source, root, _convert, **settings)
    parts = {name: Split(tensors[f"{name}.tokens"], tensors[f"{name}.labels"]) for name in ("train", "test")}
    if protocol == "mukhoti":
        parts["train"], parts["test"] = _split_off_test(parts, tensors["order"], seed)
        train, held_out = parts["train"][:-val], parts["train"][-val:]
        shuffled_indices(len(parts["train"]), val, seed, "newsgroups")  # checks val
    elif protocol == "bydate":
        if not len(parts["test"]):
            raise InputError(
                "newsgroups: the original collection is not divided by date; use protocol='mukhoti'",
                code="no_date_split",
            )
        order = shuffled_indices(len(parts["train"]), val, seed, "newsgroups")
        train, held_out = parts["train"][order[val:]], parts["train"][order[:val]]
    else:
        raise InputError(f"newsgroups: protocol must be mukhoti or bydate, got {protocol!r}", code="setting_range")
    initial_vectors = None
    words, classes = facts.pop("words"), tuple(facts.pop("classes"))
    if tokenizer is None:
        initial_vectors, vector_facts = word_vectors(
            words, vectors_path(vectors, data_root(root)), dimension=dimension, seed=seed
        )
        facts |= vector_facts
    facts["protocol"] = protocol
    return Splits(train, held_out, parts["test"], classes, prepare=_to_int64, vectors=initial_vectors, facts=facts)


def _split_off_test(parts: dict[str, Split], order: Tensor, seed: int) -> tuple[Split, Split]:
    tokens = torch.cat([part.inputs for part in parts.values()])
    all_documents = Split(tokens, torch.cat([part.labels for part in parts.values()]))
    shuffled_order = order[torch.from_numpy(np.random.RandomState(seed).permutation(len(order)))]
    cut = len(order) - len(order) // 5
    return all_documents[shuffled_order[:cut]], all_documents[shuffled_order[cut:]]


def _to_int64(tokens: Tensor) -> Tensor:
    return tokens.long()


def _convert(tables: Tables, *, length: int, tokenizer: str | None) -> ConvertedData:
    texts: list[str] = []
    tensors: dict[str, Tensor] = {}
    keys: list[list[str]] = []
    names: dict[int, str] = {}
    for name, table in tables.items():
        with wrap_read_errors(name):
            text, label = find_column(table, name, "text"), find_column(table, name, "label")
            rows = [row for batch in table.iter(batch_size=1000) for row in _batch_rows(batch)]
        labels = check_labels([row[label] for row in rows], name, 20)
        if missing_rows := [i for i, row in enumerate(rows) if not isinstance(row[text], str)]:
            raise InputError(f"{name}, row {missing_rows[0]}: text is missing", code="missing_values")
        tensors[f"{name}.labels"] = torch.from_numpy(labels)
        texts += [_LINE_END_PATTERN.sub("\n", row[text]) for row in rows]
        names |= {int(row[label]): row.get("label_text") or str(row[label]) for row in rows}
        keys += [(row.get("id") or f"{row[label]:02d}/{i:06d}").split("/", 1) for i, row in enumerate(rows)]
    has_headers = (
        sum(1 for text in texts if _HEADER_PATTERN.match(text)) > len(texts) / 2
    )  # all are, or none of a collection
    texts = [_strip_header(text) for text in texts] if has_headers else texts
    order = sorted(range(len(keys)), key=keys.__getitem__)  # by group, then by name
    documents = None if tokenizer else [tokenize_words(text) for text in texts]
    ids = vocabulary((documents[i] for i in order), VOCABULARY_SIZE) if documents is not None else {}
    tokens = (
        pad_token_ids(documents, ids, length) if documents is not None else _subword_ids(texts, str(tokenizer), length)
    )
    tensors |= {f"{name}.tokens": part.clone() for name, part in _split_tokens(tensors, tokens).items()}
    tensors["order"] = torch.tensor(order)
    facts = {"classes": [names.get(i, str(i)) for i in range(20)], "words": ["", *ids], "length": length}
    return tensors, facts | {"documents": len(texts), "headers": "cut off" if has_headers else "not in this copy"}


def _batch_rows(batch: dict[str, list[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True)]


def _split_tokens(tensors: dict[str, Tensor], tokens: Tensor) -> dict[str, Tensor]:
    sizes = {name.partition(".")[0]: len(labels) for name, labels in tensors.items()}
    return dict(zip(sizes, tokens.split(list(sizes.values())), strict=True))


def _strip_header(text: str) -> str:
    cut = text.find("\n\n")
    return text[cut:] if cut > 0 else text


def _subword_ids(texts: list[str], name: str, length: int) -> Tensor:
    try:
        from transformers import AutoTokenizer

        encode = AutoTokenizer.from_pretrained(name, local_files_only=Path(name).is_dir() or not is_hub_reachable())
    except ImportError as error:
        raise InputError(f"subwords need {error.name}: pip install 'calibrant[text]'", code="missing_package") from None
    except (OSError, ValueError) as error:
        reason = to_one_line(error)
        raise InputError(
            f"cannot load tokenizer {name!r} ({reason}); give the folder of one if there is no network",
            code="hub_unavailable",
        ) from None
    with wrap_read_errors(f"tokenizer {name}"):
        max_length = min(length, 512)
        encoded = encode(texts, truncation=True, max_length=max_length, padding="max_length", return_tensors="pt")
        return encoded["input_ids"].int()


def _find_messages(place: Path) -> SplitFiles:
    home = first_existing(place, "20_newsgroups", "20_newsgroup", "20news-18828")
    return {} if home is None else {"train": _message_paths(home), "test": []}


def _find_by_date(place: Path) -> SplitFiles:
    homes = {name: place / f"20news-bydate-{name}" for name in ("train", "test")}
    return (
        {name: _message_paths(home) for name, home in homes.items()} if all(h.is_dir() for h in homes.values()) else {}
    )


def _message_paths(home: Path) -> list[Path]:
    return sorted(path for path in home.glob("*/*") if path.name.isdigit())


def _read_messages(files: SplitFiles) -> dict[str, InMemoryTable]:
    groups = sorted({path.parent.name for paths in files.values() for path in paths})
    number = {group: i for i, group in enumerate(groups)}
    return {
        name: InMemoryTable(
            {
                "text": [path.read_text(encoding="latin-1") for path in paths],
                "label": [number[path.parent.name] for path in paths],
                "label_text": [path.parent.name for path in paths],
                "id": [f"{path.parent.name}/{path.name}" for path in paths],
            }
        )
        for name, paths in files.items()
    }


_ORIGINAL_FORMAT = OriginalFormat("the folder 20_newsgroups of the original collection", _find_messages, _read_messages)
_BY_DATE_FORMAT = OriginalFormat("20news-bydate-train and 20news-bydate-test", _find_by_date, _read_messages)
