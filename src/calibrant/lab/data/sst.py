"""SST: the Stanford Sentiment Treebank (Socher et al. 2013), parse trees with a sentiment label at every node."""

import re
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from calibrant._core.registry import DATA_SETS
from calibrant._core.types import Count, InputError, Seed
from calibrant.lab.data._loading import (
    ConvertedData,
    InMemoryTable,
    OriginalFormat,
    Source,
    SplitFiles,
    Tables,
    files_if_all_exist,
    find_column,
    load,
    wrap_read_errors,
)
from calibrant.lab.data._splits import Split, Splits
from calibrant.lab.data._text import initial_word_vectors

_FIVE_CLASSES = ("very negative", "negative", "neutral", "positive", "very positive")
_TOKEN_PATTERN = re.compile(r"\( *(\d)|\)|[^ ()]+")  # a few words contain a no-break space


def _find_trees(folder: Path) -> SplitFiles:
    """Return the files of trees in the subfolder "trees" or in the folder itself, or nothing if one is missing."""
    home = folder / "trees" if (folder / "trees" / "dev.txt").is_file() else folder
    names = {"train": "train", "validation": "dev", "test": "test"}
    return files_if_all_exist({split: [home / f"{name}.txt"] for split, name in names.items()})


def _read_trees(files: SplitFiles) -> dict[str, InMemoryTable]:
    """Read one tree per line that is not blank."""
    lines = {name: path.read_text(encoding="utf-8").split("\n") for name, (path,) in files.items()}
    return {name: InMemoryTable({"tree": list(filter(str.strip, texts))}) for name, texts in lines.items()}


_SST = Source(
    folders=("sst5", "sst", "sst2"),
    hub="stanfordnlp/sst",
    splits=(("train",), ("validation", "dev"), ("test",)),
    config="ptb",
    original_formats=(OriginalFormat("the trees train.txt, dev.txt and test.txt", _find_trees, _read_trees),),
    default_revision="refs/convert/parquet",
)


@dataclass(frozen=True, eq=False)
class Trees:
    """Binary trees in one set of arrays: the nodes of all trees in sequence, children before parents.

    A leaf has a word and no children (-1). An inner node has word 0 and the indices of its children within the tree.
    The last node of a tree is its root. Nodes of equal `height` can be evaluated together: 0 for leaves, otherwise one
    more than the higher child.
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
        """Select trees by slice, mask or indices, and copy their nodes to new arrays.

        Indices of children do not change, as they count within a tree.
        """
        tree = torch.arange(len(self), device=self.start.device)[rows].reshape(-1)  # index of each selected tree
        size = self.start[tree + 1] - self.start[tree]
        new_start = torch.cat([size.new_zeros(1), size.cumsum(0)])
        shift = (self.start[tree] - new_start[:-1]).repeat_interleave(size)  # old minus new index of each node
        nodes = torch.arange(len(shift), device=shift.device) + shift  # old indices of the nodes in the new order
        return Trees(new_start, *(getattr(self, name)[nodes] for name in _NODE_FIELDS))

    def to(self, device: Any) -> "Trees":
        """Return a copy on a device."""
        return Trees(*(getattr(self, name).to(device) for name in ("start", *_NODE_FIELDS)))


_NODE_FIELDS = ("word", "left", "right", "height", "label")


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
    """Load SST: 6,920 / 872 / 1,821 trees without neutral roots (Mukhoti et al. 2020), or all 11,855 in 5 classes.

    Inputs are `Trees`, and labels the sentiments of their roots. `targets` returns the labels of all nodes of a
    training batch: negative, neutral, positive for 2 and 3 classes, 0 .. 4 for 5. Words are case-sensitive and numbered
    over all splits, as in the code of Mukhoti et al. (2020). Only the trees are read: a column `tree` or `ptb_tree`, or
    the original train.txt, dev.txt and test.txt.

    With 2 classes, confidences are conditional on the sentence not being neutral. The authors' code does not normalize
    them: it drops the third probability after the softmax, so its ECE uses lower confidences. Use `classes=3` to
    reproduce that: the same trees, with neutral as a class that no root has. If neutral is the most probable class, it
    is the prediction here, while their code predicts the more probable of the other two.

    Args:
        root: Data folder; by default CALIBRANT_DATA or the Hugging Face hub.
        classes: 2, 3 or 5.
        vectors: GloVe file. Words that it lacks are drawn from N(-0.05, 0.05^2). Without it, vectors are random.
        dimension: Length of a word vector.
        lookup: "mukhoti" also draws the first word of the file (a comma or "the" in GloVe), as their code does, which
            takes its index of 0 for a missing word.
        seed: Seed of random vectors.
        revision: Commit on the Hugging Face hub.

    Raises:
        InputError: If a line is not a tree, or the data cannot be read.
    """
    source = replace(_SST, folders=_SST.folders[:2]) if classes == 5 else _SST  # a folder sst2 may lack neutral trees
    tensors, record = load(source, root, revision, _convert)
    words, skip_first = record.pop("words"), lookup == "mukhoti"
    word_vectors, vector_record = initial_word_vectors(
        words, vectors, root, dimension=dimension, unknown_init="normal", skip_first=skip_first, seed=seed
    )
    return Splits(
        *(_tree_split(tensors, name, classes) for name, *_ in source.splits),
        classes={2: ("negative", "positive"), 3: ("negative", "neutral", "positive"), 5: _FIVE_CLASSES}[classes],
        targets=partial(_node_labels, classes=classes),
        word_vectors=word_vectors,
        facts=record | vector_record,
    )


def _tree_split(tensors: dict[str, Tensor], name: str, classes: int) -> Split:
    """Return the split `name` with trees as inputs and root labels, without neutral roots for 2 and 3 classes.

    `tensors` holds the fields of `Trees` of all splits.
    """
    trees = Trees(*(tensors[f"{name}.{field}"].long() for field in ("start", *_NODE_FIELDS)))
    root_label = trees.label[trees.start[1:] - 1]  # the last node of a tree is its root
    if classes == 5:
        return Split(trees, root_label)
    not_neutral = root_label != 2  # the labels are 0 .. 4, from very negative to very positive
    return Split(trees[not_neutral], (root_label[not_neutral] > 2).long() * (classes - 1))  # positive is the last class


def _node_labels(trees: Trees, labels: Tensor, *, classes: int) -> Tensor:
    """Return the label of every node: 0 .. 4 with 5 classes, else 0, 1 or 2 for negative, neutral or positive.

    `labels`, of the roots, are not used: `Splits.targets` is called with the inputs and labels of a batch.
    """
    return trees.label if classes == 5 else (trees.label - 2).sign() + 1


def _convert(tables: Tables) -> ConvertedData:
    """Return the fields of `Trees` for each split, and the words of all splits by id."""
    ids: dict[str, int] = {"": 0}  # 0 is padding
    tensors: dict[str, Tensor] = {}
    for name, table in tables.items():
        with wrap_read_errors(name):
            tree = find_column(table, name, "tree", "ptb_tree")
            texts = [text for batch in table.iter(batch_size=1000) for text in batch[tree]]
        trees = [parse_tree(text, ids, f"{name}, row {row}") for row, text in enumerate(texts)]
        tensors[f"{name}.start"] = torch.tensor([0, *accumulate(map(len, trees))], dtype=torch.int32)
        nodes = [node for tree in trees for node in tree]
        for field, values in zip(_NODE_FIELDS, torch.tensor(nodes, dtype=torch.int32).T, strict=True):
            tensors[f"{name}.{field}"] = values.clone()  # the cache refuses tensors that share memory
    return tensors, {"words": list(ids)}


def parse_tree(text: Any, ids: dict[str, int], location: str = "tree") -> list[tuple[int, int, int, int, int]]:
    """Parse a labeled tree in Penn Treebank format into (word, left, right, height, label) of every node.

    The fields are those of `Trees`: `word` is an id from `ids`, to which new words are added, `left` and `right` are
    indices of children, which come before their parents, and -1 at a leaf.

    Raises:
        InputError: If `text` is not a binary tree; `location` names its place.

    >>> parse_tree("(3 (2 so) (4 good))", {"": 0})
    [(1, -1, -1, 0, 2), (2, -1, -1, 0, 4), (0, 0, 1, 1, 3)]
    """
    problem = InputError(
        f"{location}: Expected a binary tree with labels 0 .. 4 at every node, got {str(text)[:60]!r}.",
        code="not_a_tree",
    )
    nodes: list[tuple[int, int, int, int, int]] = []
    stack: list[list[Any]] = []  # open brackets: a label, then a word or node indices
    for token in _TOKEN_PATTERN.finditer(text if isinstance(text, str) else ""):
        if token[1]:  # an opening bracket with a label
            stack.append([int(token[1])])
        elif token[0] != ")":  # a word
            if not stack:
                raise problem
            stack[-1].append(token[0])
        else:
            match stack.pop() if stack else None:
                case [int(label), str(word)] if label < 5:
                    nodes.append((ids.setdefault(word, len(ids)), -1, -1, 0, label))
                case [int(label), int(left), int(right)] if label < 5:
                    left_height, right_height = nodes[left][3], nodes[right][3]
                    nodes.append((0, left, right, 1 + max(left_height, right_height), label))
                case _:
                    raise problem
            if stack:  # the new node is a child of the open bracket
                stack[-1].append(len(nodes) - 1)
    if stack or not nodes:
        raise problem
    return nodes
