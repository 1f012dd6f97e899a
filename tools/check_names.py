"""Refuse names that mean nothing alone, and names with two meanings in the package.

`python tools/check_names.py` reads the folders in FOLDERS, prints every refused name with its place, and exits with
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
    alone along apart asked beside better big both called came done each enough entered far few found
    front given good got happened having held here honest judged judging keep keeping kept kin known large made many
    mass more most much narrow near none one ones only other others own owns plain put said say seen shown small some
    such sure taken tell telling that there these thing things those told usual way ways what which who whole whom
    whose wide worse yet
    """.split()  # noqa: SIM905  # read as a list of words
)
REPEATABLE = frozenset({"TYPE_CHECKING"})  # constants that every module may define


def bindings(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield the name and line of everything that a module binds."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, node.lineno
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name, node.lineno
            case ast.alias(asname=str(name)):
                yield name, node.lineno


def shared_definitions(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield the classes and constants of a module, which need one meaning in the package.

    Type variables of one letter and the names in REPEATABLE are left out.
    """
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield node.name, node.lineno
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names = [target.id for target in targets if isinstance(target, ast.Name)]
        for name in names:
            if name.isupper() and len(name) > 1 and name not in REPEATABLE:
                yield name, node.lineno


def problems() -> Iterator[str]:
    """Yield a line for every refused name."""
    definitions: dict[str, list[str]] = defaultdict(list)
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            module, tree = path.relative_to(ROOT), ast.parse(path.read_text("utf-8"))
            if path.stem.strip("_").lower() in REFUSED:
                yield f"{module}: the name of the module means nothing alone"
            for name, line in bindings(tree):
                if name.strip("_").lower() in REFUSED:
                    yield f"{module}:{line}: {name} means nothing alone"
            if folder.startswith("src"):
                for name, line in shared_definitions(tree):
                    definitions[name].append(f"{module}:{line}")
    for name, places in sorted(definitions.items()):
        if len(places) > 1:
            yield f"{places[0]}: {name} is also defined in {', '.join(places[1:])}"


if __name__ == "__main__":
    found_problems = list(problems())
    print(*found_problems, sep="\n")
    sys.exit(bool(found_problems))
