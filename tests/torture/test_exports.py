"""Hostile names through every export: the file compiles, runs with numpy alone, and has the names as they were."""

import json
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torture import hostile_names

from calibrant import Predictions, calibrators
from calibrant.decisions import CrossSets, Sets
from calibrant.deployment import Contract, export
from calibrant.language_models.fusion import Fusion

NUM_NAMES = 500
BATCH = 10  # names in one file
PAYLOAD = "open('executed', 'w').close()"
PARTS = (
    *(
        '"""',
        "'''",
        '"',
        "'",
        "\\",
        "\\u",
        "\\u12",
        "\\N{",
        "\\x",
        "\\\n",
        "\n",
        "\r",
        "\r\n",
        "\0",
        "\t",
        "\x0c",
        "\x85",
    ),
    *(
        "\u2028",
        "\u202e",
        "\ufeff",
        "\ud800",
        "\udfff",
        "\U0001f600",
        "é",
        "{{",
        "}}",
        "{%",
        "%}",
        "{#",
        "#}",
        "#",
        "%s",
    ),
    *("{0}", "f'{1}'", ")", "]", "}", ",", ":", ";", "=", " ", "    ", "nan", "inf", "None", "1.0", PAYLOAD),
    *(
        f'"""\n{PAYLOAD}\n"""',
        f"'''\n{PAYLOAD}\n'''",
        f'"]}}\n{PAYLOAD}\n',
        f"{{{{ {PAYLOAD} }}}}",
        f"' + {PAYLOAD} + '",
    ),
)
# Runs files with numpy alone, and prints the names that each of them holds
READ_NAMES = """
import sys, json, numpy
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in sys.stdlib_module_names | {"numpy"}:
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
import runpy
def names_in(path, names):
    m = runpy.run_path(path)
    groups = [*names, "new"]
    z = numpy.random.default_rng(0).normal(size=(len(groups), len(names)))
    if "probability_right" in m:
        signals = {name: z[:, 0] ** 2 % 1 for name in m["FITTED"]["signals"]}
        assert numpy.isfinite(m["probability_right"](signals, groups)).all()
        return [*m["FITTED"]["signals"], *m["FITTED"]["groups"]]
    sets = m["prediction_sets"](z, *([groups] if m["FITTED"]["class"] == "GroupCalibrated" else []))
    assert sets.shape == z.shape
    contract = m["CONTRACT"]["requirements"] if "CONTRACT" in m else []
    return [*m.get("CLASS_NAMES", []), *m["SETS"].get("names", []), *m["FITTED"].get("names", []), *contract]
for line in sys.stdin:
    print(json.dumps(names_in(*json.loads(line))))
"""


def draw_names(count: int) -> list[str]:
    """Return different names, of one to six parts each, the first with markup and controls of pages."""
    rng = np.random.default_rng(0)
    names = {name[:5000]: None for name in hostile_names.names().values()}
    while len(names) < count:
        names["".join([*rng.choice(PARTS, rng.integers(1, 7)).tolist(), str(len(names))])] = None
    return list(names)[:count]


@cache
def fitted() -> dict[str, Any]:
    """Return one object of every kind that is exported, with plain names of classes, groups and signals."""
    rng, plain_names = np.random.default_rng(1), [f"n{i}" for i in range(BATCH)]
    z = rng.normal(scale=2, size=(200, BATCH))
    p = Predictions(z, z.argmax(1), class_names=plain_names, groups=plain_names * (200 // BATCH))
    signals, correct, groups = rng.random((200, BATCH)), rng.integers(0, 2, 200), plain_names * (200 // BATCH)
    return {
        "fusion": Fusion.fit(signals, correct, groups=groups, scale="probability"),
        "grouped": calibrators.GroupCalibrated.fit(p),
        "sets": Sets.fit(p, by="class"),
        "group_sets": Sets.fit(p, by="groups"),
        "cross": CrossSets.fit_folds(p, "Temperature", folds=2),
        "contract": Contract.create(calibrators.Temperature(2.0), p, require=["ece < 0.9"], alpha=0.1),
    }


def write_exports(names: list[str], folder: Path) -> dict[Path, list[str]]:
    """Export every kind of object with these names, and return the names that each file holds."""
    parts, classes = fitted(), tuple(names)
    fusion = replace(parts["fusion"], signals=classes, groups=classes)
    grouped = replace(parts["grouped"], names=classes)
    by_class = replace(parts["sets"], names=classes, class_names=classes)
    by_group = replace(parts["group_sets"], names=(*classes, ""), class_names=None)
    cross = replace(parts["cross"], class_names=classes)
    contract = replace(parts["contract"], class_names=classes, requirements=classes, sets=by_class)
    temperature = parts["contract"].calibrator
    return {
        write(folder / "fusion.py", fusion): names * 2,
        write(folder / "groups.py", grouped, sets=by_group): [*names, "", *names],
        write(folder / "classes.py", temperature, sets=by_class): names * 2,
        write(folder / "cross.py", temperature, sets=cross): names,
        write(folder / "contract.py", contract): names * 3,
    }


def write(path: Path, exported: Any, **parts: Any) -> Path:
    """Export to a new file and return its path."""
    path.parent.mkdir(exist_ok=True)
    export(exported, path, **parts)
    return path


def check(names: list[str], folder: Path) -> None:
    """Export every name, and run all files in one process without Calibrant."""
    expected, lines = dict[Path, list[str]](), list[str]()
    for i in range(0, len(names), BATCH):
        written = write_exports(names[i : i + BATCH], folder / str(i))
        lines += [json.dumps([str(path), names[i : i + BATCH]]) for path in written]
        expected |= written
    command = [sys.executable, "-I", "-c", READ_NAMES]
    finished = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, cwd=folder, timeout=300)
    assert finished.returncode == 0, finished.stderr[-2000:]
    assert [json.loads(line) for line in finished.stdout.splitlines()] == list(expected.values())
    assert not list(folder.rglob("executed"))


def test_a_tenth_of_hostile_names_are_only_names(tmp_path):
    check(draw_names(NUM_NAMES)[::10], tmp_path)


@pytest.mark.torture
def test_all_hostile_names_are_only_names(tmp_path):
    check(draw_names(NUM_NAMES), tmp_path)
