"""Refuse names that mean nothing alone, and names with two meanings in the package.

`python tools/check_names.py` reads src, tests and benchmarks, prints every refused name with its place, and exits with
status 1 if there is one.
"""

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = ("src/calibrant", "tests", "benchmarks", "tools")
REFUSED = frozenset(
    """
    alone along apart asked beside better big both called came chosen done each enough entered every far few found
    front given good got happened having held here honest judged judging keep keeping kept kin known large made many
    mass more most much narrow near none one ones only other others own owns plain put said say seen shown small some
    such sure taken tell telling that there these thing things those told usual way ways what which who whole whom
    whose wide worse yet
    """.split()  # noqa: SIM905  # read as a list of words
)


def bindings(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield the name and line of everything that a module binds."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno
        elif isinstance(node, ast.alias) and node.asname:
            yield node.asname, node.lineno


def shared_definitions(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield the public and private classes and constants of a module, which need one meaning in the package."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield node.name, node.lineno
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets:
            if isinstance(target, ast.Name) and target.id.isupper():
                yield target.id, node.lineno


def problems() -> Iterator[str]:
    """Yield a line for every refused name."""
    places: dict[str, list[str]] = defaultdict(list)
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            where, tree = path.relative_to(ROOT), ast.parse(path.read_text("utf-8"))
            if path.stem.strip("_").lower() in REFUSED:
                yield f"{where}: the name of the module means nothing alone"
            for name, line in bindings(tree):
                if name.strip("_").lower() in REFUSED:
                    yield f"{where}:{line}: {name} means nothing alone"
            if folder.startswith("src"):
                for name, line in shared_definitions(tree):
                    places[name].append(f"{where}:{line}")
    for name, lines in sorted(places.items()):
        if len(lines) > 1:
            yield f"{lines[0]}: {name} is also defined in {', '.join(lines[1:])}"


if __name__ == "__main__":
    found_problems = list(problems())
    print(*found_problems, sep="\n")
    sys.exit(bool(found_problems))
