"""The house's plan, held against its files: no circle, nothing private abroad."""

import ast
from pathlib import Path

import calibrant

ROOT = Path(calibrant.__file__).parent
FILES = {
    ".".join(("calibrant", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in ROOT.rglob("*.py")
}
SHARED = {
    f"calibrant._{name}"
    for name in [
        "arrays",
        "bins",
        "columns",
        "delimited",
        "door",
        "fast",
        "folds",
        "hub",
        "masks",
        "probabilities",
        "readings",
        "rows",
        "softmax",
        "solve",
        "source",
        "text",
        "threads",
        "version",
    ]
}


def imports(name: str) -> set[str]:
    """Return the files of the package that a file imports, inside functions too; an import of a name is its file."""
    found: set[str] = set()
    tree = ast.parse(FILES[name].read_text())
    tree.body = [
        node for node in tree.body if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test))
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name in FILES}
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("calibrant"):
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in FILES else node.module)
    return found - {name}


GRAPH = {name: imports(name) for name in FILES}


def test_no_file_imports_itself_by_way_of_others():
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join([*trail[trail.index(name) :], name])
        if name not in done:
            for other in sorted(GRAPH[name]):
                visit(other, (*trail, name))
            done.add(name)

    for name in sorted(FILES):
        visit(name, ())
    assert done == set(FILES)


def test_private_files_are_imported_only_inside_their_own_package():
    for name, others in GRAPH.items():
        package = name if FILES[name].name == "__init__.py" else name.rpartition(".")[0]
        for other in others - SHARED:
            home, _, last = other.rpartition(".")
            assert not last.startswith("_") or home == package, f"{name} imports {other}"
