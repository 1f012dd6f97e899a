"""The page of results, rendered from a template in which every number is an expression.

`benchmarks/results_page.md.j2` is the text. An expression reads a number from the tables of docs/results, the study
files, or the printed tables of the papers. `python -m benchmarks.statements --write` renders the page. Numbers in
sentences have no zero before the point; the filters `pct` and `num` round them.
"""

import inspect
import math
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from statistics import mean as mean_of
from typing import Any

import jinja2

from benchmarks._result_tables import ADAPTIVE, ResultTables
from benchmarks._result_texts import FILTERS, num_split, percent_text
from benchmarks.claims import LEVEL

ROOT = Path(__file__).resolve().parents[1]
TEMPLATE = Path(__file__).with_suffix(".md.j2")
NUM_CIFAR_TRAIN, NUM_CIFAR_TEST = 50_000, 10_000


@cache
def _study(name: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / f"studies/{name}.toml").read_text())


@cache
def _printed(name: str, source: str) -> Any:
    from calibrant.lab.study.published_results import PublishedResults

    return PublishedResults.load(name).tables[source]


def paper_temperatures(losses: str, source: str, data: str) -> list[float]:
    """Return the printed temperatures of Mukhoti et al. for losses, split by "|", on a data set."""
    values = _printed("mukhoti_2020", source).items()
    wanted = losses.split("|")
    return [v.temperature for key, (_, v) in values if key[2] in wanted and key[0] == data and v.temperature > 0]


def paper_shares(network: str) -> str:
    """Return the share of confident predictions with focal loss in Table 7 of Mukhoti et al., before and after."""
    printed = {names: value.mean for names, (_, value) in _printed("mukhoti_2020", "Table 7").items()}
    shares = (printed["CIFAR-10", network, "Focal Loss", column, "IS99%"] for column in ("Pre T", "Post T"))
    return " and ".join(map(percent_text, shares))


@cache
def paper_marks(name: str, source: str) -> dict[str, int]:
    """Count the marks of the paper's unpaired test in a table; "n" counts the tested means, "higher" those above."""
    from calibrant.lab.study import Study
    from calibrant.lab.study.paper_tables import paper_table
    from calibrant.lab.study.published_results import load_paper

    rows = paper_table(load_paper(Study.load(name)), source, ()).rows
    first = rows[0].names[2]
    marks = [row.paper_mark for row in rows if row.names[2] != first]
    return {mark: marks.count(mark) for mark in "▲▼"} | {"higher": sum(m in "▲△" for m in marks if m), "n": len(marks)}


@cache
def parameters(network: str) -> int:
    """Count the parameters of a network for the ten classes of CIFAR-10."""
    from calibrant.registry import NETWORKS

    return sum(p.numel() for p in NETWORKS.method(network)(10).parameters())


def recipe(name: str) -> Any:
    """Return a recipe by name."""
    from calibrant.lab.study.recipe import RECIPES

    return RECIPES[name]


SUMMARIES: dict[str, Callable[[list[float]], float | list[float]]] = {
    "count_positive": lambda values: sum(value > 0 for value in values),
    "count_infinite": lambda values: sum(map(math.isinf, values)),
    "average": mean_of,
    "inverses": lambda values: [1 / value for value in values],
}


def _facts() -> dict[str, Any]:
    """Return the settings of the code that the page names."""
    from calibrant import losses, metrics
    from calibrant.calibrators._temperature import TEMPERATURE_GRIDS
    from calibrant.lab.data.cifar import cifar10
    from calibrant.lab.study.significance import SIGNIFICANCE_LEVEL

    num_val = inspect.signature(cifar10).parameters["val"].default
    above = inspect.signature(metrics.confident_share).parameters["above"].default
    grid = TEMPERATURE_GRIDS["mukhoti"]
    return {
        "SIGNIFICANCE_LEVEL": SIGNIFICANCE_LEVEL,
        "level": f"{100 * LEVEL:.0f}",
        "cifar_sizes": {"train": NUM_CIFAR_TRAIN - num_val, "val": num_val, "test": NUM_CIFAR_TEST},
        "confident_percent": f"{100 * above:.0f}",
        "wang_grid": TEMPERATURE_GRIDS["wang"],
        "mukhoti_step": grid[1] - grid[0],
        "adafocal_start": f"{losses.AdaFocal().start:.0f}",
    }


def render(results: Path) -> str:
    """Return the text of the page from the tables below `results`."""
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=False, keep_trailing_newline=True)
    environment.filters.update(FILTERS)
    tables = ResultTables(results)
    names = {name: getattr(tables, name) for name in dir(tables) if not name.startswith("_")}
    functions = {f.__name__: f for f in (paper_temperatures, paper_shares, paper_marks, parameters, num_split, recipe)}
    values = names | functions | SUMMARIES | {"study_file": _study, "ADAPTIVE": ADAPTIVE} | _facts()
    return environment.from_string(TEMPLATE.read_text()).render(values)
