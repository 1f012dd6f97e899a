"""Digests of the users' own code: equal for equal syntax trees, whatever the comments, docstrings and lines."""

import ast
import hashlib
import inspect
import re
import site
import sys
import sysconfig
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from importlib.machinery import PathFinder
from importlib.util import resolve_name
from pathlib import Path
from types import ModuleType
from typing import Any

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
PLAIN = int, float, str, bytes, bool, tuple, list, dict, set, type(None)


def code_digest(method: Any) -> str:
    """Return 16 hex digits of the code that a method runs, as far as it is the user's own.

    They cover its definition, what that uses of its module, statements that run when the module is imported, and the
    users' modules that are imported, transitively; not installed packages. Code without a source counts by its
    bytecode. Names of modules do not count.
    """
    plain = unwrapped(method)
    module = sys.modules.get(getattr(plain, "__module__", ""))
    try:
        parts = list(_texts(plain, module))
    except (OSError, SyntaxError, TypeError, ValueError, RecursionError):
        parts = list(_bytecode(plain))
    return hashlib.sha256("\n".join(sorted(parts)).encode(errors="replace")).hexdigest()[:16]


def unwrapped(method: Any) -> Any:
    """Return the function or class behind a method that may be a partial, a decorated one or an instance."""
    while not isinstance(method, type):
        inner = method.func if isinstance(method, partial) else getattr(method, "function", None)
        inner = inner if callable(inner) else getattr(method, "__wrapped__", None)
        if inner is None:
            return method if hasattr(method, "__qualname__") else type(method)
        method = inner
    return method


def defined_twice(method: Any) -> bool:
    """Say whether a module defines a name twice side by side, so that the second replaces the first."""
    plain = unwrapped(method)
    try:
        tree = ast.parse(Path(inspect.getfile(plain)).read_bytes())
    except (OSError, SyntaxError, TypeError, ValueError, RecursionError):
        return False
    name = plain.__name__
    blocks = [getattr(node, key) for node in ast.walk(tree) for key in ("body", "orelse") if hasattr(node, key)]
    return any(
        sum(isinstance(s, Definition) and s.name == name and not _is_overload(s) for s in block) > 1
        for block in blocks
        if isinstance(block, list)
    )


def _is_overload(statement: Definition) -> bool:
    return any("overload" in ast.unparse(decorator) for decorator in statement.decorator_list)


# What counts


def _texts(plain: Any, module: ModuleType | None) -> Iterator[str]:
    """Yield the statements that count, without comments and docstrings."""
    package = plain.__module__.partition(".")[0]
    path = _file(module)
    if path is None:  # a notebook
        statements = list(_interactive(plain, module))
    else:
        statements = list(_reached(_Module.read(path), plain.__qualname__.partition(".")[0], _is_main(module)))
    yield from map(_plain_text, statements)
    done, pending = set[Path](), list(_imported(statements, getattr(module, "__package__", None), package))
    while pending:
        name, path = pending.pop()
        if path not in done:
            done.add(path)
            tree = _Module.read(path).statements
            yield from map(_plain_text, tree)
            pending += _imported(tree, name if path.name == "__init__.py" else name.rpartition(".")[0], package)


@dataclass(frozen=True)
class _Module:
    """The statements of a file, by the names that they bind."""

    statements: tuple[ast.stmt, ...]

    @classmethod
    def read(cls, path: Path) -> "_Module":
        return cls(tuple(ast.parse(path.read_bytes()).body))

    @property
    def bound(self) -> Mapping[str, list[ast.stmt]]:
        found: dict[str, list[ast.stmt]] = {}
        for statement in self.statements:
            for name in _bound(statement):
                found.setdefault(name, []).append(statement)
        return found


def _reached(module: _Module, root: str, is_main: bool) -> Iterator[ast.stmt]:
    """Yield the statements that a definition needs: what it uses, and what is run when the module is imported.

    Of a script that is run itself only those of the latter that use what is needed, as it may hold the study, too.
    """
    bound = module.bound
    if root not in bound:
        yield from module.statements
        return
    run = [s for s in module.statements if not _bound(s) and not _is_docstring(s)]
    needed, pending = dict[int, ast.stmt](), [*bound[root], *([] if is_main else run)]
    while pending:
        while pending:
            statement = pending.pop()
            if id(statement) not in needed:
                needed[id(statement)] = statement
                pending += [other for name in _used(statement) for other in bound.get(name, ())]
        names = {name for s in needed.values() if isinstance(s, Definition) for name in _bound(s)}
        pending = [s for s in run if id(s) not in needed and names & _used(s, texts=False)]
    yield from needed.values()


def _interactive(plain: Any, module: ModuleType | None) -> Iterator[ast.stmt]:
    """Yield the definitions of a notebook that one needs, and its plain values."""
    known, pending, done = vars(module) if module else {}, [plain], set[str]()
    while pending:
        value = pending.pop()
        (statement,) = ast.parse(textwrap.dedent(inspect.getsource(value))).body
        yield statement
        for name in sorted(_used(statement) - done):
            done.add(name)
            other = known.get(name)
            if isinstance(other, PLAIN):
                yield ast.parse(f"{name} = {repr(other)!r}").body[0]
            elif other is not plain and getattr(other, "__module__", None) == plain.__module__:
                pending.append(unwrapped(other))


def _bound(statement: ast.stmt) -> set[str]:
    """Return the names that a statement of a module binds."""
    if isinstance(statement, Definition):
        return {statement.name}
    names = set[str]()
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, Definition):
            names.add(node.name)
    return names


def _used(statement: ast.stmt, texts: bool = True) -> set[str]:
    """Return the names that a statement mentions, and the words of its texts, as a text may name a method."""
    names = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
    if texts:
        values = (node.value for node in ast.walk(statement) if isinstance(node, ast.Constant))
        names |= {word for value in values if isinstance(value, str) for word in re.findall(r"\w+", value)}
    return names


def _plain_text(statement: ast.stmt) -> str:
    for node in ast.walk(statement):
        if isinstance(node, Definition) and _is_docstring(node.body[0]):
            node.body[:1] = [] if len(node.body) > 1 else [ast.Pass()]
    return "" if _is_docstring(statement) else ast.unparse(statement)


def _is_docstring(statement: ast.stmt) -> bool:
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _bytecode(plain: Any) -> Iterator[str]:
    members: Iterable[Any] = vars(plain).values() if isinstance(plain, type) else [plain]
    pending = [code for member in members if (code := getattr(unwrapped(member), "__code__", None))]
    yield plain.__qualname__
    while pending:
        code = pending.pop()
        yield code.co_code.hex() + repr([code.co_names, *(c for c in code.co_consts if not hasattr(c, "co_code"))])
        pending += [c for c in code.co_consts if hasattr(c, "co_code")]


# Modules


def _imported(statements: Iterable[ast.stmt], parent: str | None, package: str) -> Iterator[tuple[str, Path]]:
    """Yield the names and files of the users' modules that statements import, and of the packages they are in."""
    for node in (node for statement in statements for node in ast.walk(statement)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            try:
                base = resolve_name("." * node.level + (node.module or ""), parent)
            except (ImportError, ValueError):
                continue
            names = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        for name in names:
            yield from _files(name, package)


def _files(name: str, package: str) -> Iterator[tuple[str, Path]]:
    folder: Path | None = None
    for i in range(len(parts := name.split("."))):
        full = ".".join(parts[: i + 1])
        path, folder = _found(full, folder if i else None)
        if not _is_own(path or folder, full, package):
            return
        if path is not None:
            yield full, path


def _found(name: str, parent: Path | None) -> tuple[Path | None, Path | None]:
    """Return the file of a module and its folder if it is a package, without importing it."""
    path = _file(sys.modules.get(name))
    if path is None and parent is not None:
        last = parent / name.rpartition(".")[2]
        path = next((p for p in (last / "__init__.py", last.with_suffix(".py")) if p.is_file()), None)
        if path is None and last.is_dir():
            return None, last
    elif path is None and "." not in name:
        spec = PathFinder.find_spec(name)
        origin = spec.origin if spec is not None else None
        path = Path(origin).resolve() if origin is not None and origin.endswith(".py") else None
        if path is None and spec is not None and spec.submodule_search_locations:  # a folder without __init__.py
            return None, Path(next(iter(spec.submodule_search_locations))).resolve()
    return path, path.parent if path is not None and path.name == "__init__.py" else None


def _file(module: ModuleType | None) -> Path | None:
    path = getattr(module, "__file__", None)
    return Path(path).resolve() if isinstance(path, str) and path.endswith(".py") else None


def _is_main(module: ModuleType | None) -> bool:
    return getattr(module, "__name__", "") in ("__main__", "__mp_main__")


def _is_own(path: Path | None, name: str, package: str) -> bool:
    """Whether a module is the user's: not of Python, not installed, or of the package that has the method."""
    top = name.partition(".")[0]
    if path is None or top in sys.stdlib_module_names or top == "calibrant":
        return False
    return top == package or not any(path.is_relative_to(folder) for folder in _installed())


@cache
def _installed() -> tuple[Path, ...]:
    places = sysconfig.get_paths()
    found = [*site.getsitepackages(), site.getusersitepackages(), *(places[key] for key in ("stdlib", "purelib"))]
    return tuple({Path(place).resolve() for place in found})
