"""Imports between the files of the package, and tests that lie where the package lies that they test."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import calibrant

ROOT = Path(calibrant.__file__).parent
FILES = {
    ".".join(("calibrant", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in ROOT.rglob("*.py")
}
WHOLE_PACKAGE = {"advice", "contracts", "docs", "golden", "torture"}  # folders of tests of all packages


def imported_modules(name: str) -> set[str]:
    """Return the modules of the package that a module imports, inside functions too."""
    modules: set[str] = set()
    tree = ast.parse(FILES[name].read_text())
    tree.body = [
        node for node in tree.body if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test))
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names if alias.name in FILES}
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("calibrant"):
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                modules.add(submodule if submodule in FILES else node.module)
    return modules - {name}


GRAPH = {name: imported_modules(name) for name in FILES}


def test_imports_have_no_cycle():
    assert set(TopologicalSorter(GRAPH).static_order()) == set(FILES)


def test_private_files_are_imported_only_inside_their_package():
    for name, modules in GRAPH.items():
        package = name if FILES[name].name == "__init__.py" else name.rpartition(".")[0]
        for module in modules:
            parent, _, last = module.rpartition(".")
            assert not last.startswith("_") or parent in ("calibrant", package), f"{name} imports {module}"


def test_folders_of_tests_mirror_the_packages():
    tests = Path(__file__).parent
    folders = {str(path.parent.relative_to(tests)) for path in tests.rglob("test_*.py")} - WHOLE_PACKAGE
    assert [folder for folder in folders if not (ROOT / folder / "__init__.py").exists()] == []
