"""Random tables of known meaning.

`draw_table(seed, index)` always draws the same table. The true probabilities and labels come from the problem, never
from a reader, so that whatever reads the file can be compared with them.
"""

import csv
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
from torture import kinds, traps
from torture.dialects import Columns, Dialect, draw_dialect
from torture.sheets import Sheet, Truth


@dataclass(frozen=True)
class Table:
    """A finished table: its columns, its dialect, and the expected result of reading it."""

    kind: str
    columns: Columns
    dialect: Dialect
    truth: Truth | None
    explicit_options: dict[str, Any]
    needed: dict[str, Any]
    conventions: tuple[tuple[Truth, str], ...]
    noted: str
    fair: bool


# Attributes and columns that have nothing to do with it


def add_attributes(s: Sheet) -> None:
    """Add weights, groups or clusters, found by name or by an option."""
    if s.r.random() < 0.1 and "weight" not in s.needed:
        w = s.g.uniform(0.2, 2, s.n)
        w = np.round(w * s.n / w.sum(), 6)
        s.add_column(("weight", "weights", "sample_weight"), w)
        s.attach(weights=w)
    if s.r.random() < 0.1 and s.kind not in ("multilabel", "missing targets", "one hot labels"):
        values = s.r.choices(["north", "south", "east"], k=s.n)
        name = s.add_column(("group", "groups", "hospital"), values)
        s.attach(groups=values)
        if name.casefold() == "hospital":
            s.explicit_options["group"] = name
    if s.r.random() < 0.1 and "cluster" not in s.explicit_options:
        values = s.g.integers(0, s.n // 3, s.n).tolist()
        name = s.add_column(("cluster", "clusters", "patient"), values)
        s.attach(clusters=values)
        if name.casefold() == "patient":
            s.explicit_options["cluster"] = name


def add_extras(s: Sheet) -> None:
    """Add unrelated columns: indices, features, texts."""
    n, r, g = s.n, s.r, s.g
    texts = ["good, but late", 'said "no"', "fine", "a; b; c", "50% off", "tab\there", "it's ok", "#1", "x | y"]
    extras: dict[str, Callable[[], Iterable[Any]]] = {
        "Unnamed: 0": lambda: range(n),
        "": lambda: range(n),
        "id": lambda: [f"img_{i:05d}" for i in range(n)],
        "index": lambda: r.sample(range(10 * n), n),
        "age": lambda: g.integers(18, 90, n),
        "weight_kg": lambda: g.uniform(45, 120, n).round(1),
        "year": lambda: g.integers(1990, 2025, n),
        "timestamp": lambda: [f"2024-03-{1 + i % 28:02d} {i % 24:02d}:15:00" for i in range(n)],
        "text": lambda: r.choices(texts, k=n),
        "price": lambda: [None if r.random() < 0.1 else float(x) for x in g.uniform(1, 500, n).round(2)],
        "city": lambda: r.choices(["Zürich", "Paris", "Łódź", "東京", "Lima"], k=n),
        "active": lambda: (g.random(n) < 0.5).tolist(),
        "split": lambda: ["test"] * n,
        "model": lambda: ["resnet50"] * n,
        "x1": lambda: g.normal(size=n),
        "file": lambda: [f"/data/{i}.png" for i in range(n)],
        "notes": lambda: [None] * n,
    }
    used_names = {name.casefold() for name in s.columns}
    latin = r.random() < 0.7
    for name in r.sample(list(extras), r.choice([0, 0, 1, 2, 4])):
        twice = {"id", "index"} & {name} and {"id", "ids", "row_id", "uid", "index", ""} & used_names
        if name.casefold() not in used_names and not twice and not (latin and name == "city"):
            s.add_column(name, extras[name]())
            used_names.add(name.casefold())


KINDS: tuple[tuple[int, Callable[[Sheet], None]], ...] = (
    (22, kinds.class_columns),
    (8, kinds.logit_columns),
    (14, kinds.single_score),
    (4, kinds.single_named_score),
    (6, kinds.single_logit),
    (6, kinds.two_columns),
    (4, kinds.words_beside_numbers),
    (2, kinds.numbers_beside_words),
    (8, kinds.stated_confidence),
    (8, kinds.predicted_confidence),
    (6, kinds.predicted_and_score),
    (4, kinds.predicted_and_sureness),
    (4, kinds.predicted_beside_columns),
    (2, kinds.probabilities_and_logits),
    (6, kinds.multilabel),
    (3, kinds.lists),
    (2, kinds.percent_columns),
    (3, kinds.percent_signs),
    (3, kinds.percent_scores),
    (4, kinds.two_decimals),
    (4, kinds.repeated_ids),
    (4, kinds.integer_weights),
    (5, kinds.missing_cells),
    (2, kinds.class_called_none),
    (3, kinds.confusing_extras),
    (2, kinds.scores_as_predictions),
    (2, kinds.absent_class),
    (2, kinds.single_score_of_the_first_class),
    (2, kinds.bare_columns),
    (4, kinds.styled_columns),
    (2, kinds.score_and_logit),
    (2, kinds.graded_answers),
    (2, kinds.constant_label),
    (2, kinds.missing_targets),
    (2, kinds.signs_beside_numbers),
    (2, kinds.other_capitals),
    (1, kinds.one_hot_labels),
)
TRAPS = tuple(draw for name, draw in sorted(vars(traps).items()) if name.startswith("trap_"))
TRAP_SHARE = 0.18
READABLE_TRAPS = (traps.trap_two_labels, traps.trap_two_scores)


def draw_case(r: Random) -> Callable[[str], str]:
    """Draw a style for the case and padding of column names."""
    styles: list[Callable[[str], str]] = [str.upper, str.title, str.capitalize, lambda name: f" {name}"]
    return r.choice(styles) if r.random() < 0.25 else str


def draw_table(seed: int, index: int) -> Table:
    """Draw the table of a seed and a running number."""
    r = Random(f"{seed}/{index}")
    s = Sheet(r, np.random.default_rng(r.getrandbits(64)), case=draw_case(r), n=r.randint(60, 400))
    if r.random() < TRAP_SHARE:
        draw = r.choice(TRAPS)
    else:
        weights, draws = zip(*KINDS, strict=True)
        draw = r.choices(draws, weights)[0]
    s.kind = draw.__name__.replace("_", " ")
    draw(s)
    if s.truth is not None and draw not in READABLE_TRAPS:
        add_attributes(s)
    if s.truth is not None and s.complete_rows is not None:
        s.truth = s.truth.take(s.complete_rows)
    if draw not in (traps.trap_unquoted_commas, traps.trap_nothing_in_it):
        add_extras(s)
    if r.random() < 0.4 and not s.ordered:
        s.columns = {name: s.columns[name] for name in r.sample(list(s.columns), len(s.columns))}
    text = "".join(map(str, s.columns)) + "".join(
        str(v) for values in s.columns.values() for v in values[:60] if isinstance(v, str)
    )
    try:
        text.encode("latin-1")
        latin = True
    except UnicodeEncodeError:
        latin = False
    dialect = draw_dialect(r, ascii_only=text.isascii(), latin=latin, lists=draw is kinds.lists)
    if draw is traps.trap_unquoted_commas:
        dialect = Dialect(quoting=csv.QUOTE_NONE)
    if "drop" in s.needed:
        s.needed["na"] = [dialect.missing or "NA"]
    columns = {name or ("Unnamed: 0" if dialect.typed else ""): values for name, values in s.columns.items()}
    fair = s.fair and s.truth is not None
    return Table(s.kind, columns, dialect, s.truth, s.explicit_options, s.needed, tuple(s.conventions), s.noted, fair)
