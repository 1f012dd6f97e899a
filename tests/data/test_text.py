"""Text: the tokenization and splits of the papers' codes."""

import re

import numpy as np
import pytest
import torch
from small_data import TREES

from calibrant import data
from calibrant.data._text import padded, vocabulary, words_of
from calibrant.data.sst import parse


def test_documents_become_ids_as_with_keras():
    documents = [words_of(t) for t in ("The cat, the CAT!", "a cat\tsat\n\non the_mat", "")]
    assert documents[1] == ["a", "cat", "sat", "on", "the", "mat"]
    ids = vocabulary(documents, 4)
    assert ids == {"the": 1, "cat": 2, "a": 3}  # three times, three times, and the first of those that appear once
    assert padded(documents, ids, 3).tolist() == [[2, 1, 2], [3, 2, 1], [0, 0, 0]]
    assert padded(documents, ids, 5).tolist()[0] == [0, 1, 2, 1, 2]


def test_newsgroups_are_split_as_in_the_authors_code(small_data):
    splits = data.newsgroups(small_data, val=30, length=50)
    n = 250
    order = sorted((f"group{i % 20:02d}", str(i) if i < 200 else str(1000 + i - 200)) for i in range(n))
    order = [group for group, _ in order]
    indices = np.arange(n)
    np.random.seed(1)  # noqa: NPY002
    np.random.shuffle(indices)  # noqa: NPY002
    labels = [int(order[i][-2:]) for i in indices]
    held = int(0.2 * n)
    assert splits.train.labels.tolist() == labels[: -(held + 30)]
    assert splits.val.labels.tolist() == labels[n - held - 30 : n - held]
    assert splits.test.labels.tolist() == labels[-held:]
    assert splits.vectors.shape == (len(splits.vectors), 100)
    assert splits.facts["vectors"] == "random, 100"
    assert int(splits.train.inputs.max()) < len(splits.vectors)
    assert (splits.train.inputs[:, :10] == 0).all()  # 40 words, padded in front, the header gone


def test_vectors_come_from_a_file_where_it_has_the_word(small_data, tmp_path):
    (tmp_path / "glove.txt").write_text("good 1 2\nof course 3 4\nbad -1 0.5\n")
    splits = data.sst(small_data, vectors=str(tmp_path / "glove.txt"), dimension=2)
    assert splits.facts["vectors"] == "glove.txt"
    assert splits.facts["vectors_found"] == 2
    found = {tuple(v) for v in splits.vectors.tolist()}
    assert (1.0, 2.0) in found
    assert (-1.0, 0.5) in found
    assert splits.vectors[0].tolist() == [0, 0]
    (small_data / "glove.txt").write_text("good 1 2\n")
    assert data.sst(small_data, vectors="glove.txt", dimension=2).facts["vectors_found"] == 1


def test_binary_trees_drop_neutral_sentences_and_keep_neutral_nodes(small_data):
    splits = data.sst(small_data)
    judged = [label for _, label in TREES if label is not None]
    assert splits.train.labels.tolist() == judged
    batch = splits.train.inputs[[1]]
    assert splits.targets(batch, splits.train.labels[[1]]).tolist() == [1, 2, 0, 1, 0]
    five = data.sst(small_data, classes=5)
    assert five.train.labels.tolist() == [int(tree[1]) for tree, _ in TREES]
    assert five.targets(five.train.inputs[:1], five.train.labels[:1]).tolist() == [2, 4, 3]


def test_some_trees_are_the_trees_they_were(small_data):
    trees = data.sst(small_data, classes=5).train.inputs
    rows = torch.tensor([4, 1, 3])
    some = trees[rows]
    for place, row in enumerate(rows.tolist()):
        a, b = some[place : place + 1], trees[row : row + 1]
        for field in "start", "word", "left", "right", "height", "label":
            assert torch.equal(getattr(a, field), getattr(b, field))
    assert len(trees[torch.zeros(len(trees), dtype=torch.bool)]) == 0


def test_a_word_may_hold_a_no_break_space():
    assert [node[0] for node in parse("(2 (2 8\xa01\\/2) (2 .))", {"": 0})] == [1, 2, 0]


@pytest.fixture
def wordpiece(tmp_path):
    """A tiny tokenizer in a folder, as Transformers saves them."""
    from transformers import BertTokenizerFast

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "word", *(f"##{d}" for d in range(10))]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    BertTokenizerFast(vocab={w: i for i, w in enumerate(words)}).save_pretrained(tmp_path / "tiny")
    return tmp_path / "tiny"


def test_subwords_of_a_transformers_tokenizer(small_data, wordpiece):
    splits = data.newsgroups(small_data, val=30, length=60, tokenizer=str(wordpiece))
    assert splits.vectors is None
    assert splits.train.inputs.shape == (170, 60)
    assert (splits.train.inputs[:, 0] == 2).all()  # [CLS]
    assert splits.prepare(splits.train.inputs).dtype == torch.int64


@pytest.mark.shared
def test_sst_is_all_of_it(shared, data_cache):
    import polars

    folder = shared / "datasets"
    splits = data.sst(folder)
    assert [len(s) for s in (splits.train, splits.val, splits.test)] == [6920, 872, 1821]
    assert len(splits.vectors) == 21_702  # 21,701 words, as in the code the authors build on, and padding
    file = polars.read_parquet(folder / "sst2" / "train.parquet")
    assert splits.train.labels.tolist() == file["label"].to_list()
    five = data.sst(folder, classes=5)
    assert [len(s) for s in (five.train, five.val, five.test)] == [8544, 1101, 2210]
    assert [len(s.inputs.word) for s in (five.train, five.val, five.test)] == [318_582, 41_447, 82_600]
    text = polars.read_parquet(folder / "sst5" / "test.parquet")["tree"].to_list()
    words = [re.findall(r"([^ ()]+)\)", t) for t in text]
    leaves = (five.test.inputs.word > 0).long()
    ends = leaves.cumsum(0)[five.test.inputs.start[1:] - 1]
    assert torch.diff(ends, prepend=ends.new_zeros(1)).tolist() == [len(w) for w in words]


@pytest.mark.shared
def test_newsgroups_are_all_of_them(shared, data_cache):
    splits = data.newsgroups(shared / "datasets")
    assert [len(s) for s in (splits.train, splits.val, splits.test)] == [14_177, 900, 3_769]
    assert splits.vectors.shape == (20_000, 100)
    assert splits.classes[0] == "alt.atheism"
    dated = data.newsgroups(shared / "datasets", protocol="bydate")
    assert [len(s) for s in (dated.train, dated.val, dated.test)] == [10_414, 900, 7_532]
    hashes = [{x.numpy().tobytes() for x in s.inputs} for s in (splits.train, splits.val, splits.test)]
    assert len(hashes[0] & hashes[2]) < 0.01 * 3_769  # some posts were posted twice
