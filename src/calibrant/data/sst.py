"""Stanford Sentiment Treebank (Socher et al. 2013): sentences as binary parse trees, sentiment at every node."""

import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from calibrant.catalog import DATA_SETS
from calibrant.data._load import Converted, Source, Tables, column, data_root, load, reading
from calibrant.data._originals import Files, Original, Rows
from calibrant.data._splits import Split, Splits
from calibrant.data._text import vectors_path, word_vectors
from calibrant.types import Count, InputError, Seed

__all__ = ["sst"]

_FIVE = ("very negative", "negative", "neutral", "positive", "very positive")
_TOKEN = re.compile(r"\( *(\d)|\)|[^ ()]+")  # a few words hold a no-break space


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
    source = Source(folders, "stanfordnlp/sst", splits, "ptb", revision, (_TREES,), otherwise="refs/convert/parquet")
    tensors, facts = load(source, root, _convert)
    parts = [_split(tensors, names[0], classes) for names in source.splits]
    words = facts.pop("words")
    start, said = word_vectors(
        words,
        vectors_path(vectors, data_root(root)),
        dimension=dimension,
        unknown="normal",
        skip_first=lookup == "mukhoti",
        seed=seed,
    )
    names = {2: ("negative", "positive"), 3: ("negative", "neutral", "positive"), 5: _FIVE}[classes]
    targets = _five if classes == 5 else _three
    train, val, test = parts
    return Splits(train, val, test, names, targets=targets, vectors=start, facts=facts | said)


def _split(tensors: dict[str, Tensor], name: str, classes: int) -> Split:
    trees = Trees(*(tensors[f"{name}.{field.name}"].long() for field in fields(Trees)))
    root = trees.label[trees.start[1:] - 1]
    if classes == 5:
        return Split(trees, root)
    judged = root != 2
    return Split(trees[judged], (root[judged] > 2).long() * (classes - 1))


def _three(trees: Trees, labels: Tensor) -> Tensor:
    return (trees.label - 2).sign() + 1


def _five(trees: Trees, labels: Tensor) -> Tensor:
    return trees.label


def _convert(tables: Tables) -> Converted:
    ids: dict[str, int] = {"": 0}
    tensors: dict[str, Tensor] = {}
    for name, table in tables.items():
        with reading(name):
            tree = column(table, name, "tree", "ptb_tree")
            texts = [text for batch in table.iter(batch_size=1000) for text in batch[tree]]
        nodes: list[tuple[int, int, int, int, int]] = []
        start = [0]
        for row, text in enumerate(texts):
            nodes += parse(text, ids, f"{name}, row {row}")
            start.append(len(nodes))
        columns = torch.tensor(nodes, dtype=torch.int32).T
        tensors[f"{name}.start"] = torch.tensor(start, dtype=torch.int32)
        for field, values in zip(("word", "left", "right", "height", "label"), columns, strict=True):
            tensors[f"{name}.{field}"] = values.clone()
    return tensors, {"words": list(ids)}


def parse(text: Any, ids: dict[str, int], where: str = "tree") -> list[tuple[int, int, int, int, int]]:
    """Read a labeled tree in Penn Treebank's brackets as (word, left, right, height, label) of every node.

    New words are added to `ids`.

    >>> parse("(3 (2 so) (4 good))", {"": 0})
    [(1, -1, -1, 0, 2), (2, -1, -1, 0, 4), (0, 0, 1, 1, 3)]
    """
    problem = InputError(
        f"{where}: not a binary tree with labels 0 .. 4 at every node: {str(text)[:60]!r}", code="not_a_tree"
    )
    nodes: list[tuple[int, int, int, int, int]] = []
    stack: list[list[Any]] = []  # open brackets: label, then words or node numbers
    for token in _TOKEN.finditer(text if isinstance(text, str) else ""):
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


def _find(place: Path) -> Files:
    home = next((place / name for name in ("trees", ".") if (place / name / "dev.txt").is_file()), place)
    files = {split: [home / f"{name}.txt"] for split, name in _NAMES.items()}
    return files if all(path.is_file() for (path,) in files.values()) else {}


def _read(files: Files) -> dict[str, Rows]:
    def lines(path: Path) -> list[str]:
        return [line for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]

    return {name: Rows({"tree": lines(path)}) for name, (path,) in files.items()}


_NAMES = {"train": "train", "validation": "dev", "test": "test"}
_TREES = Original("the trees train.txt, dev.txt and test.txt", _find, _read)
