"""Text data: tokenization and splits as in the papers' code."""

import re
from collections import OrderedDict

import numpy as np
import pytest
import torch
from refusals import refused
from small_data import TREES

from calibrant.lab import data
from calibrant.lab.data._text import pad_token_ids, tokenize_words, vocabulary
from calibrant.lab.data.sst import parse_tree


def test_token_ids_equal_keras():
    documents = [tokenize_words(t) for t in ("The cat, the CAT!", "a cat\tsat\n\non the_mat", "")]
    assert documents[1] == ["a", "cat", "sat", "on", "the", "mat"]
    ids = vocabulary(documents, 4)
    assert ids == {"the": 1, "cat": 2, "a": 3}  # by count, then by first occurrence
    assert pad_token_ids(documents, ids, 3).tolist() == [[2, 1, 2], [3, 2, 1], [0, 0, 0]]
    assert pad_token_ids(documents, ids, 5).tolist()[0] == [0, 1, 2, 1, 2]


def test_newsgroups_split_equals_the_authors_code(small_data):
    splits = data.newsgroups(small_data, val=30, length=50)
    n = 250
    order = sorted((f"group{i % 20:02d}", str(i) if i < 200 else str(1000 + i - 200)) for i in range(n))
    order = [group for group, _ in order]
    indices = np.arange(n)
    np.random.seed(1)  # noqa: NPY002
    np.random.shuffle(indices)  # noqa: NPY002
    labels = [int(order[i][-2:]) for i in indices]
    held_out = int(0.2 * n)
    assert splits.train.labels.tolist() == labels[: -(held_out + 30)]
    assert splits.val.labels.tolist() == labels[n - held_out - 30 : n - held_out]
    assert splits.test.labels.tolist() == labels[-held_out:]
    assert splits.word_vectors.shape == (len(splits.word_vectors), 100)
    assert splits.facts["vectors"] == "random, 100"
    assert int(splits.train.inputs.max()) < len(splits.word_vectors)
    assert (splits.train.inputs[:, :10] == 0).all()  # 40 words without the header, padded in front


def test_vectors_of_known_words_come_from_the_file(small_data, tmp_path):
    (tmp_path / "glove.txt").write_text("good 1 2\nof course 3 4\nbad -1 0.5\n")
    splits = data.sst(small_data, vectors=str(tmp_path / "glove.txt"), dimension=2)
    assert splits.facts["vectors"] == "glove.txt"
    assert splits.facts["vectors_found"] == 2
    vectors = {tuple(v) for v in splits.word_vectors.tolist()}
    assert (1.0, 2.0) in vectors
    assert (-1.0, 0.5) in vectors
    assert splits.word_vectors[0].tolist() == [0, 0]
    (small_data / "glove.txt").write_text("good 1 2\n")
    assert data.sst(small_data, vectors="glove.txt", dimension=2).facts["vectors_found"] == 1


def test_mukhoti_lookup_draws_the_first_word_of_the_file(small_data, tmp_path):
    (tmp_path / "glove.txt").write_text("good 1 2\nbad -1 0.5\n")
    settings = {"vectors": str(tmp_path / "glove.txt"), "dimension": 2}
    ours, theirs = data.sst(small_data, **settings), data.sst(small_data, **settings, lookup="mukhoti")
    assert [splits.facts["vectors_found"] for splits in (ours, theirs)] == [2, 1]
    assert (ours.word_vectors != theirs.word_vectors).any(1).sum() == 1


def write_messages(folder, documents):
    for group, number, text in documents:
        (folder / group).mkdir(parents=True, exist_ok=True)
        (folder / group / number).write_bytes(text.encode("latin-1"))


def authors_ids_and_labels(folder, length):
    """Return ids and labels of a folder of messages as in the authors' loader with the Keras tokenizer."""
    texts, labels = [], []
    for label, group in enumerate(sorted(path.name for path in folder.iterdir())):
        for name in sorted(path.name for path in (folder / group).iterdir()):
            if name.isdigit():
                text = (folder / group / name).read_text(encoding="latin-1")
                at = text.find("\n\n")
                texts.append(text[at:] if at > 0 else text)
                labels.append(label)
    counts = OrderedDict()
    split = re.compile("[" + re.escape('!"#$%&()*+,-./:;<=>?@[\\]^_`{|}~\t\n') + " ]+")
    words = [[w for w in split.split(text.lower()) if w] for text in texts]
    for word in (w for document in words for w in document):
        counts[word] = counts.get(word, 0) + 1
    ids = {w: i for i, (w, _) in enumerate(sorted(counts.items(), key=lambda x: x[1], reverse=True), 1) if i < 20_000}
    rows = np.zeros((len(words), length), dtype=np.int64)
    for row, document in enumerate(words):
        row_ids = [ids[w] for w in document if w in ids][-length:]
        rows[row, length - len(row_ids) :] = row_ids
    return rows, np.array(labels)


def test_original_newsgroups_are_read_from_folders(tmp_path, data_cache):
    rng = np.random.default_rng(0)
    documents = []
    for i in range(200):
        words = " ".join(f"w{w}" for w in rng.integers(0, 500, 30))
        header = " relay.edu!news\nSubject: x\n\n" if i % 40 == 0 else f"From: a{i}\nSubject: x\n\n"
        documents.append((f"group{i % 20:02d}", str(1000 - i), f"{header}{words} \xe9t\xe9\n"))
    write_messages(tmp_path / "20_newsgroups", documents)
    (tmp_path / "20_newsgroups" / "group00" / ".index").write_text("no message")
    splits = data.newsgroups(tmp_path, val=20, length=25)
    assert splits.facts["headers"] == "removed"
    assert splits.facts["documents"] == 200
    rows, labels = authors_ids_and_labels(tmp_path / "20_newsgroups", 25)
    order = np.random.RandomState(1).permutation(200)
    for part, rows_of_part in (splits.train, order[:140]), (splits.val, order[140:160]), (splits.test, order[160:]):
        assert np.array_equal(part.inputs, rows[rows_of_part])
        assert np.array_equal(part.labels, labels[rows_of_part])
    with refused("no_date_split"):
        data.newsgroups(tmp_path, protocol="bydate")


def test_newsgroups_by_date_are_read_from_folders_or_json_lines(tmp_path, small_data, data_cache):
    import polars

    (tmp_path / "lines" / "newsgroups").mkdir(parents=True)
    for name in "train", "test":
        frame = polars.read_parquet(small_data / "20newsgroups-raw" / f"{name}.parquet")
        rows = frame.iter_rows(named=True)
        write_messages(
            tmp_path / "folders" / f"20news-bydate-{name}", [(*row["id"].split("/"), row["text"]) for row in rows]
        )
        frame.write_ndjson(tmp_path / "lines" / "newsgroups" / f"{name}.jsonl")
    expected = data.newsgroups(small_data, val=30, length=50)
    for name in "folders", "lines":
        splits = data.newsgroups(tmp_path / name, val=30, length=50)
        assert np.array_equal(splits.train.inputs, expected.train.inputs)
        assert np.array_equal(splits.test.labels, expected.test.labels)
    assert len(data.newsgroups(tmp_path / "folders", protocol="bydate", val=30).test) == 50


def test_original_trees_are_read(tmp_path, small_data, data_cache):
    (tmp_path / "trees").mkdir()
    for name in "train", "dev", "test":
        (tmp_path / "trees" / f"{name}.txt").write_text("\n".join(tree for tree, _ in TREES) + "\n")
    splits, expected = data.sst(tmp_path), data.sst(small_data)
    assert np.array_equal(splits.val.inputs.word, expected.val.inputs.word)
    assert splits.test.labels.tolist() == expected.test.labels.tolist()


def test_two_classes_drop_neutral_sentences_but_keep_neutral_nodes(small_data):
    splits = data.sst(small_data)
    assert splits.train.labels.tolist() == [label for _, label in TREES if label is not None]
    batch = splits.train.inputs[[1]]
    assert splits.targets(batch, splits.train.labels[[1]]).tolist() == [1, 2, 0, 1, 0]
    five = data.sst(small_data, classes=5)
    assert five.train.labels.tolist() == [int(tree[1]) for tree, _ in TREES]
    assert five.targets(five.train.inputs[:1], five.train.labels[:1]).tolist() == [2, 4, 3]


def test_indexing_trees_keeps_each_tree(small_data):
    trees = data.sst(small_data, classes=5).train.inputs
    rows = torch.tensor([4, 1, 3])
    selected = trees[rows]
    for place, row in enumerate(rows.tolist()):
        a, b = selected[place : place + 1], trees[row : row + 1]
        for field in "start", "word", "left", "right", "height", "label":
            assert np.array_equal(getattr(a, field), getattr(b, field))
    assert len(trees[torch.zeros(len(trees), dtype=torch.bool)]) == 0


def test_words_may_contain_a_no_break_space():
    assert [node[0] for node in parse_tree("(2 (2 8\xa01\\/2) (2 .))", {"": 0})] == [1, 2, 0]


@pytest.fixture
def wordpiece(tmp_path):
    """A tiny Transformers tokenizer in a folder."""
    from transformers import BertTokenizerFast

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "word", *(f"##{d}" for d in range(10))]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    BertTokenizerFast(vocab={w: i for i, w in enumerate(words)}).save_pretrained(tmp_path / "tiny")
    return tmp_path / "tiny"


def test_newsgroups_with_a_transformers_tokenizer(small_data, wordpiece):
    splits = data.newsgroups(small_data, val=30, length=60, tokenizer=str(wordpiece))
    assert splits.word_vectors is None
    assert splits.train.inputs.shape == (170, 60)
    assert (splits.train.inputs[:, 0] == 2).all()  # [CLS]
    assert splits.prepare(splits.train.inputs).dtype == torch.int64


@pytest.mark.slow
@pytest.mark.shared
def test_sst_is_complete(shared, data_cache):
    import polars

    folder = shared / "datasets"
    splits = data.sst(folder)
    assert [len(s) for s in (splits.train, splits.val, splits.test)] == [6920, 872, 1821]
    assert len(splits.word_vectors) == 21_702  # padding and 21,701 words, as in the authors' code
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


@pytest.mark.slow
@pytest.mark.shared
def test_newsgroups_are_complete(shared, data_cache):
    splits = data.newsgroups(shared / "datasets")
    assert [len(s) for s in (splits.train, splits.val, splits.test)] == [14_177, 900, 3_769]
    assert splits.word_vectors.shape == (20_000, 100)
    assert splits.classes[0] == "alt.atheism"
    dated = data.newsgroups(shared / "datasets", protocol="bydate")
    assert [len(s) for s in (dated.train, dated.val, dated.test)] == [10_414, 900, 7_532]
    hashes = [{x.numpy().tobytes() for x in s.inputs} for s in (splits.train, splits.val, splits.test)]
    assert len(hashes[0] & hashes[2]) < 0.01 * 3_769  # a few messages are duplicates


@pytest.mark.shared
@pytest.mark.slow
def test_newsgroups_ids_equal_the_authors_code(shared, data_cache, tmp_path):
    import polars

    files = [polars.read_parquet(shared / "datasets" / "20newsgroups-raw" / f"{n}.parquet") for n in ("train", "test")]
    rows = polars.concat(files).iter_rows(named=True)
    write_messages(tmp_path, [(*row["id"].split("/"), row["text"]) for row in rows])
    tokens, labels = authors_ids_and_labels(tmp_path, 1000)
    splits = data.newsgroups(shared / "datasets")
    order = np.random.RandomState(1).permutation(18_846)
    assert np.array_equal(torch.cat([splits.train.inputs, splits.val.inputs, splits.test.inputs]), tokens[order])
    assert np.array_equal(torch.cat([splits.train.labels, splits.val.labels, splits.test.labels]), labels[order])
