"""Tables under construction, their true values, and common names of columns and classes."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import numpy as np

LABELS = (
    "label",
    "labels",
    "y",
    "y_true",
    "true_label",
    "target",
    "truth",
    "gold",
    "class",
    "ground_truth",
    "actual",
    "True Label",
    "trueLabel",
)
UNUSUAL_LABELS = ("species", "diagnosis", "outcome", "answer_key", "category", "sentiment")
SCORES = ("prob", "proba", "probability", "score", "p", "y_prob", "y_score")
UNUSUAL_SCORES = ("risk", "y_hat", "model_output", "chance")
LOGITS = ("logit", "margin", "decision_function", "log_odds")
PREFIXES = ("prob_", "prob_", "proba_", "probs_", "p_", "probability_")
UNUSUAL_PREFIXES = ("score_", "prob.", "softmax_", "out_")
LOGIT_PREFIXES = ("logit_", "logit_", "logits_", "z_")
UNUSUAL_LOGIT_PREFIXES = ("score_", "output_", "logprob_", "raw_")
PREDICTED = ("y_pred", "pred", "prediction", "predicted", "predicted_label", "Predicted Class")
CONFIDENCE = ("confidence", "confidence", "conf")
CORRECT = ("correct", "is_correct", "correctness")
WORDS = (
    ("cat", "dog", "emu", "fox", "gnu", "hen", "ibis", "jay", "koi", "lynx", "mole", "newt"),
    (
        "setosa",
        "versicolor",
        "virginica",
        "sibirica",
        "pumila",
        "lactea",
        "cristata",
        "aphylla",
        "pallida",
        "x1",
        "x2",
        "x3",
    ),
    ("Sports", "World", "Business", "Sci/Tech", "Health", "Arts", "Opinion", "Travel", "Food", "Style", "Local", "Law"),
    ("not spam", "spam", "phishing mail", "news letter", "bulk", "own list", "a b", "c d", "e f", "g h", "i j", "k l"),
    ("Entrée", "Dessert", "Café", "Menü", "Käse", "Brötchen", "piñata", "crème", "Öl", "Übung", "façade", "naïve"),
    ("猫", "犬", "鳥", "魚", "馬", "牛", "羊", "虎", "龍", "蛇", "猿", "鼠"),
    ("m", "m²", "m³", "²", "³", "¹", "x²", "y²", "z²", "½", "¼", "¾"),
    ("A", "B", "C", "D", "E", "F", "G", "H", "I", "J", "K", "L"),
    ("min", "mean", "max", "std", "sum", "top", "value", "gap", "score", "val", "var", "diff"),
    (
        "negative",
        "neutral",
        "positive",
        "mixed",
        "none of these",
        "other",
        "unclear",
        "true",
        "false",
        "yes",
        "no",
        "?!",
    ),
    ("0-10", "11-20", "21-30", "31-40", "41-50", "51-60", "61-70", "71-80", "81-90", "91-100", "101-110", "111+"),
    ("01", "02", "03", "04", "05", "06", "07", "08", "09", "10", "11", "12"),
    (
        "class_0",
        "class_1",
        "class_2",
        "class_3",
        "class_4",
        "class_5",
        "class_6",
        "class_7",
        "class_8",
        "class_9",
        "x",
        "z",
    ),
    (
        "No Finding",
        "Edema",
        "Mass",
        "Hernia",
        "Nodule",
        "Fibrosis",
        "Effusion",
        "Pneumonia",
        "NAD",
        "Cyst",
        "Scar",
        "Tear",
    ),
)
PAIRS = (
    ("benign", "malignant"),
    ("malignant", "benign"),
    ("ham", "spam"),
    ("legit", "fraud"),
    ("negative", "positive"),
    ("neg", "pos"),
    ("healthy", "sick"),
    ("stays", "churns"),
    ("good", "bad"),
    ("paid", "default"),
)
YES_NO = (("no", "yes"), ("No", "Yes"), ("NO", "YES"), ("n", "y"), ("N", "Y"), ("F", "T"))
RIGHT_WRONG = (*YES_NO, ("wrong", "right"), ("Wrong", "Right"), ("false", "true"), ("incorrect", "correct"))


Naming = tuple[list[Any], list[Any]]  # what columns of the classes are called, and what labels are


@dataclass(frozen=True)
class Truth:
    """The true values of a table: probabilities (n, k), labels (n), and whether the event is class 1 of two."""

    probs: np.ndarray
    labels: np.ndarray
    event: bool = False
    weights: np.ndarray | None = None
    clusters: Iterable[Any] | None = None
    groups: Iterable[Any] | None = None
    label_names: np.ndarray | None = None  # of several labels per example: the label of each row
    examples: np.ndarray | None = None  # and its example

    def take(self, rows: np.ndarray) -> "Truth":
        """Return some of the rows."""
        parts = {name: getattr(self, name) for name in ("weights", "clusters", "groups", "label_names", "examples")}
        parts = {name: None if part is None else np.asarray(part)[rows] for name, part in parts.items()}
        return replace(self, probs=self.probs[rows], labels=self.labels[rows], **parts)


def attached(t: Truth, n: int, parts: dict[str, Any]) -> Truth:
    """Return a truth with values of `n` examples, each for all rows of its example."""
    repeat = len(t.labels) // n
    return replace(t, **{name: np.repeat(np.asarray(values), repeat) for name, values in parts.items()})


@dataclass
class Sheet:
    """A table under construction.

    The user gives `explicit_options`; errors must name those in `needed` before the table can be read. A table without
    truth must be refused, or read by one of the `conventions` with its word in the notes. A person would understand a
    `fair` table: an error that names no needed option is unfair then.
    """

    r: Random
    g: np.random.Generator
    kind: str = ""
    columns: dict[str, list[Any]] = field(default_factory=dict)
    truth: Truth | None = None
    explicit_options: dict[str, Any] = field(default_factory=dict)
    needed: dict[str, Any] = field(default_factory=dict)
    conventions: list[tuple[Truth, str]] = field(default_factory=list)
    noted: str = ""
    fair: bool = True
    case: Callable[[str], str] = str
    complete_rows: np.ndarray | None = None  # rows without missing cells
    ordered: bool = False  # the order of the columns has a meaning
    n: int = 0

    def name(self, names: Sequence[str]) -> str:
        """Return a column name that is not taken, in the table's capitals."""
        used_names = {column.strip().casefold() for column in self.columns}
        return self.case(self.r.choice([name for name in names if name.casefold() not in used_names]))

    def add_column(self, names: str | Sequence[str], values: Iterable[Any]) -> str:
        """Add a column under one of the names, and return its name without blanks around it."""
        name = self.name([names] if isinstance(names, str) else names)
        self.columns[name] = [v.item() if isinstance(v, np.generic) else v for v in values]
        return name.strip()

    def attach(self, **parts: Any) -> None:
        """Give the truth weights, clusters or groups, one of each per example."""
        assert self.truth is not None
        self.truth = attached(self.truth, self.n, parts)
        self.conventions = [(attached(t, self.n, parts), word) for t, word in self.conventions]

    def put_role(self, role: str, usual_names: Sequence[str], unusual: Sequence[str], values: Iterable[Any]) -> str:
        """Add a column under a usual name or, less often, one that has to be given by an option."""
        odd = bool(unusual) and self.r.random() < 0.1
        name = self.add_column(unusual if odd else usual_names, values)
        if odd:
            self.needed[role] = name.strip()
        return name


# Problems


def draw_problem(s: Sheet, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw logits (n, k) with float64 log-probabilities, and labels of which every class has some."""
    z = s.g.normal(size=(s.n, k)) * s.g.uniform(0.7, 3)
    sharp = z * s.g.uniform(0.5, 1.2)
    labels = (sharp + s.g.gumbel(size=z.shape)).argmax(1)
    labels[:k] = np.arange(k)
    return z, labels


def softmax(z: np.ndarray) -> np.ndarray:
    """Return probabilities."""
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def pair(p: np.ndarray) -> np.ndarray:
    """Return two columns, the second of which is `p`."""
    return np.stack([1 - p, p], 1)


def rounded(s: Sheet, x: np.ndarray, decimals: int | None = None) -> np.ndarray:
    """Round as tables are rounded: often not at all, or to so many decimals."""
    decimals = s.r.choice([17, 17, 8, 6, 4, 3]) if decimals is None else decimals
    return np.round(x, decimals)


def draw_scores(s: Sheet) -> tuple[np.ndarray, np.ndarray]:
    """Draw probabilities of class 1 and labels, 0 or 1, with both below and above one half."""
    z, y = draw_problem(s, 2)
    p = rounded(s, softmax(z)[:, 1])
    p[:4] = [0.11, 0.93, 0.31, 0.64]
    return p, y


def draw_confidences(s: Sheet) -> tuple[np.ndarray, np.ndarray]:
    """Draw confidences, and whether the answers are right."""
    c = s.g.beta(4, 2, s.n)
    hit = (s.g.random(s.n) < c**1.3).astype(int)
    hit[:2] = [0, 1]
    return c, hit


# Labels: what stands in the label column, and what the columns of the classes are called


def naming_words(s: Sheet, k: int) -> Naming:
    """Name the classes by words."""
    words = s.r.sample(s.r.choice(WORDS), k)
    return list(words), list(words)


def naming_positions(s: Sheet, k: int) -> Naming:
    """Name the classes 0 .. k-1, with labels as integers, floats or text."""
    values = s.r.choice([int, int, float, str])
    return list(range(k)), [values(j) for j in range(k)]


def naming_from_one(s: Sheet, k: int) -> Naming:
    """Name the classes 1 .. k, in the columns and the labels."""
    values = s.r.choice([int, int, float, str])
    return list(range(1, k + 1)), [values(j) for j in range(1, k + 1)]


def naming_other_numbers(s: Sheet, k: int) -> Naming:
    """Name the classes by other numbers, such as qualities 3 .. 8, or wards."""
    first = s.r.choice([3, 10, 100])
    numbers = sorted(s.r.sample(range(first, first + 3 * k), k))
    values = s.r.choice([int, int, float, str])
    return list(numbers), [values(j) for j in numbers]


def naming_floats(s: Sheet, k: int) -> Naming:
    """Name the columns 0.0, 1.0, ..., with labels as floats or integers."""
    values = s.r.choice([int, float])
    return [float(j) for j in range(k)], [values(j) for j in range(k)]


def naming_one_based_labels(s: Sheet, k: int) -> Naming:
    """Number the columns from 0 and the labels from 1."""
    s.needed["labels_from"] = 1
    return list(range(k)), list(range(1, k + 1))


def naming_one_based_words(s: Sheet, k: int) -> Naming:
    """Name the columns by words and number the labels from 1."""
    s.needed["labels_from"], s.ordered = 1, True
    return sorted(s.r.sample(WORDS[0], k)), list(range(1, k + 1))


NAMINGS: tuple[tuple[int, Callable[[Sheet, int], Naming]], ...] = (
    (8, naming_words),
    (5, naming_positions),
    (3, naming_from_one),
    (2, naming_other_numbers),
    (2, naming_floats),
    (1, naming_one_based_labels),
    (1, naming_one_based_words),
)


def draw_naming(s: Sheet, k: int) -> Naming:
    """Return the names of the columns, and the values of the labels."""
    weights, namings = zip(*NAMINGS, strict=True)
    return s.r.choices(namings, weights)[0](s, k)


def put_classes(s: Sheet, prefix: str, names: Sequence[Any], values: np.ndarray) -> None:
    """Add a column per class, in any order."""
    prefix = s.case(prefix)
    for j in s.r.sample(range(len(names)), len(names)) if s.r.random() < 0.3 and not s.ordered else range(len(names)):
        s.columns[f"{prefix}{names[j]}"] = values[:, j].tolist()


def put_label(s: Sheet, values: Iterable[Any]) -> str:
    """Add the label column."""
    return s.put_role("label", LABELS, UNUSUAL_LABELS, values)


def draw_prefix(s: Sheet, role: str, usual_names: Sequence[str], unusual: Sequence[str]) -> str:
    """Draw what class columns begin with, usual or to be given by an option."""
    odd = s.r.random() < 0.12
    prefix = s.r.choice(unusual if odd else usual_names)
    if odd:
        s.needed[role] = s.case(prefix).strip()
    return prefix


def binary_labels(s: Sheet, y: np.ndarray) -> tuple[Any, Any]:
    """Add a label column of two values and return them; an option names the positive one where it is not plain."""
    style = s.r.choice(["int", "int", "int", "float", "bool", "text", "yes", "sign", "words", "words", "from one"])
    is_plain = {"int": (0, 1), "float": (0.0, 1.0), "bool": (False, True), "text": ("0", "1")}
    values: tuple[Any, Any] = is_plain.get(style, (0, 1))
    if style in ("yes", "sign", "words", "from one"):
        values = {"sign": (-1, 1), "from one": (1, 2)}.get(style, s.r.choice(YES_NO if style == "yes" else PAIRS))
        s.needed["positive"] = str(values[1])
        if style == "from one":
            s.needed["labels_from"] = 1
    put_label(s, [values[j] for j in y])
    return values
