"""Stanford Sentiment Treebank (Socher et al. 2013): sentences as binary parse trees, sentiment at every node."""

import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from calibrant.lab.data._loading import ConvertedData, Source, Tables, data_root, find_column, load, wrap_read_errors
from calibrant.lab.data._original_formats import InMemoryTable, OriginalFormat, SplitFiles
from calibrant.lab.data._splits import Split, Splits
from calibrant.lab.data._text import vectors_path, word_vectors
from calibrant.registry import DATA_SETS
from calibrant.types import Count, InputError, Seed

__all__ = ["sst"]

_FIVE_CLASSES = ("very negative", "negative", "neutral", "positive", "very positive")
_TOKEN_PATTERN = re.compile(r"\( *(\d)|\)|[^ ()]+")  # a few words hold a no-break space


@dataclass(frozen=True, eq=False)
class Trees:
    """Binary trees in one set of arrays: nodes of all trees one after another, children before parents.

    A leaf has a word and no children (-1); an inner node has word 0 and its children as node numbers within its tree;
    the last node of a tree is its root. `height` is 0 at leaves and one more than the higher child elsewhere: all
    nodes of one height can be evaluated at once.
    """

    start: Tensor  # (n + 1): the nodes of tree i are start[i] .. start[i + 1]
    word: Tensor  # (nodes)
    left: Tensor  # (nodes)
    right: Tensor  # (nodes)
    height: Tensor  # (nodes)
    label: Tensor  # (nodes): sentiment 0 .. 4

    def __len__(self) -> int:
        return len(self.start) - 1

    def __getitem__(self, rows: Any) -> "Trees":
        """Some of the trees, by slice, mask or indices."""
        rows = torch.arange(len(self), device=self.start.device)[rows].reshape(-1)
        first, size = self.start[rows], (self.start[1:] - self.start[:-1])[rows]
        start = torch.cat([size.new_zeros(1), size.cumsum(0)])
        nodes = torch.arange(int(start[-1]), device=start.device) + (first - start[:-1]).repeat_interleave(size)
        return Trees(start, *(x[nodes] for x in (self.word, self.left, self.right, self.height, self.label)))

    def to(self, device: Any) -> "Trees":
        """The same trees on a device."""
        moved = (x.to(device) for x in (self.start, self.word, self.left, self.right, self.height, self.label))
        return Trees(*moved)  # pyright: ignore[reportCallIssue]


@DATA_SETS.register
def sst(
    root: Path | None = None,
    *,
    classes: Literal[2, 3, 5] = 2,
    vectors: str | None = None,
    dimension: Count = 300,
    lookup: Literal["all", "mukhoti"] = "all",
    seed: Seed = 0,
    revision: str | None = None,
) -> Splits:
    """SST, binary (6,920 / 872 / 1,821 trees, no neutral roots; Mukhoti et al. 2020), or the 5 classes of all 11,855.

    Inputs are `Trees`; split labels are the roots'. `targets` gives the labels of every node of a training batch:
    negative, neutral, positive for 2 and 3 classes (neutral nodes train the third output), 0 .. 4 for 5. Words keep
    their case and are numbered over all three splits as in the code of Mukhoti et al. (2020); `vectors` names a GloVe
    file of `dimension` numbers a word (words not in it are drawn from N(-0.05, 0.05^2)); without it vectors are random,
    as facts say. With `lookup="mukhoti"` the first word of the file is drawn, too, as in their code, which takes its
    index of 0 for missing; in GloVe's files that is a comma or "the". Reads only the trees: a column `tree` or
    `ptb_tree`, or the original train.txt, dev.txt and test.txt. Raises `InputError` for what is not a tree.
    `revision` is a commit of the hub's copy, which is read where no folder is given.

    With 2 classes confidences are those given that a sentence is not neutral. The authors' code leaves them
    unnormalized (the third probability is set aside after softmax), so that its ECE is of lower confidences. These are
    to be had with `classes=3`: the same trees, and neutral as a class that no root has. Where neutral is the likeliest,
    it is the prediction here, and the likelier of the others there.
    """
    if classes not in (2, 3, 5):
        raise InputError(f"sst: classes must be 2, 3 or 5, got {classes}", code="setting_range")
    folders = ("sst5", "sst") if classes == 5 else ("sst5", "sst", "sst2")
    splits = (("train",), ("validation", "dev"), ("test",))
    source = Source(
        folders, "stanfordnlp/sst", splits, "ptb", revision, (_TREES_FORMAT,), default_revision="refs/convert/parquet"
    )
    tensors, facts = load(source, root, _convert)
    parts = [_tree_split(tensors, names[0], classes) for names in source.splits]
    words = facts.pop("words")
    initial_vectors, vector_facts = word_vectors(
        words,
        vectors_path(vectors, data_root(root)),
        dimension=dimension,
        unknown_init="normal",
        skip_first=lookup == "mukhoti",
        seed=seed,
    )
    names = {2: ("negative", "positive"), 3: ("negative", "neutral", "positive"), 5: _FIVE_CLASSES}[classes]
    targets = _five_class_labels if classes == 5 else _three_class_labels
    train, val, test = parts
    return Splits(train, val, test, names, targets=targets, vectors=initial_vectors, facts=facts | vector_facts)


def _tree_split(tensors: dict[str, Tensor], name: str, classes: int) -> Split:
    trees = Trees(*(tensors[f"{name}.{field.name}"].long() for field in fields(Trees)))
    root = trees.label[trees.start[1:] - 1]
    if classes == 5:
        return Split(trees, root)
    not_neutral = root != 2
    return Split(trees[not_neutral], (root[not_neutral] > 2).long() * (classes - 1))


def _three_class_labels(trees: Trees, labels: Tensor) -> Tensor:
    return (trees.label - 2).sign() + 1


def _five_class_labels(trees: Trees, labels: Tensor) -> Tensor:
    return trees.label


def _convert(tables: Tables) -> ConvertedData:
    ids: dict[str, int] = {"": 0}
    tensors: dict[str, Tensor] = {}
    for name, table in tables.items():
        with wrap_read_errors(name):
            tree = find_column(table, name, "tree", "ptb_tree")
            texts = [text for batch in table.iter(batch_size=1000) for text in batch[tree]]
        nodes: list[tuple[int, int, int, int, int]] = []
        start = [0]
        for row, text in enumerate(texts):
            nodes += parse_tree(text, ids, f"{name}, row {row}")
            start.append(len(nodes))
        columns = torch.tensor(nodes, dtype=torch.int32).T
        tensors[f"{name}.start"] = torch.tensor(start, dtype=torch.int32)
        for field, values in zip(("word", "left", "right", "height", "label"), columns, strict=True):
            tensors[f"{name}.{field}"] = values.clone()
    return tensors, {"words": list(ids)}


def parse_tree(text: Any, ids: dict[str, int], location: str = "tree") -> list[tuple[int, int, int, int, int]]:
    """Read a labeled tree in Penn Treebank's brackets as (word, left, right, height, label) of every node.

    New words are added to `ids`.

    >>> parse_tree("(3 (2 so) (4 good))", {"": 0})
    [(1, -1, -1, 0, 2), (2, -1, -1, 0, 4), (0, 0, 1, 1, 3)]
    """
    problem = InputError(
        f"{location}: not a binary tree with labels 0 .. 4 at every node: {str(text)[:60]!r}", code="not_a_tree"
    )
    nodes: list[tuple[int, int, int, int, int]] = []
    stack: list[list[Any]] = []  # open brackets: label, then words or node numbers
    for token in _TOKEN_PATTERN.finditer(text if isinstance(text, str) else ""):
        if token[1]:
            stack.append([int(token[1])])
        elif token[0] != ")":
            if not stack:
                raise problem
            stack[-1].append(token[0])
        else:
            match stack.pop() if stack else None:
                case [int(label), str(word)] if label < 5:
                    nodes.append((ids.setdefault(word, len(ids)), -1, -1, 0, label))
                case [int(label), int(left), int(right)] if label < 5:
                    nodes.append((0, left, right, 1 + max(nodes[left][3], nodes[right][3]), label))
                case _:
                    raise problem
            if stack:
                stack[-1].append(len(nodes) - 1)
    if stack or not nodes:
        raise problem
    return nodes


def _find_trees(place: Path) -> SplitFiles:
    home = next((place / name for name in ("trees", ".") if (place / name / "dev.txt").is_file()), place)
    files = {split: [home / f"{name}.txt"] for split, name in _FILE_NAMES.items()}
    return files if all(path.is_file() for (path,) in files.values()) else {}


def _read_trees(files: SplitFiles) -> dict[str, InMemoryTable]:
    def lines(path: Path) -> list[str]:
        return [line for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]

    return {name: InMemoryTable({"tree": lines(path)}) for name, (path,) in files.items()}


_FILE_NAMES = {"train": "train", "validation": "dev", "test": "test"}
_TREES_FORMAT = OriginalFormat("the trees train.txt, dev.txt and test.txt", _find_trees, _read_trees)
