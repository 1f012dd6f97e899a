"""Compute digests of user code that ignore comments, docstrings and layout."""

import ast
import hashlib
import inspect
import re
import site
import sys
import sysconfig
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, partial
from importlib.machinery import PathFinder
from importlib.util import resolve_name
from itertools import accumulate
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from calibrant._core.grouping import group_pairs

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
LITERAL_TYPES = int, float, str, bytes, bool, tuple, list, dict, set, type(None)


def code_digest(method: Any) -> str:
    """Return 16 hex digits of the user code that a method runs.

    The digest covers the method's definition, the definitions of its module that it uses, statements that run when the
    module is imported, and all user modules that are imported, transitively. Installed packages and the names of
    modules do not count. Code without a source is represented by its bytecode.
    """
    definition = unwrap(method)
    module = sys.modules.get(getattr(definition, "__module__", ""))
    try:
        parts = list(_relevant_source_texts(definition, module))
    except (OSError, SyntaxError, TypeError, ValueError, RecursionError):
        parts = list(_bytecode_texts(definition))
    return hashlib.sha256("\n".join(sorted(parts)).encode(errors="replace")).hexdigest()[:16]


def unwrap(method: Any) -> Any:
    """Return the function or class behind a partial, a decorated function or an instance."""
    while not isinstance(method, type):
        inner = method.func if isinstance(method, partial) else getattr(method, "function", None)  # as of a `Metric`
        inner = inner if callable(inner) else getattr(method, "__wrapped__", None)  # as of `functools.wraps`
        if inner is None:
            return method if hasattr(method, "__qualname__") else type(method)
        method = inner
    return method


def is_defined_twice(method: Any) -> bool:
    """Whether a module defines the name of a method twice in one block, so that the second replaces the first."""
    definition = unwrap(method)
    try:
        tree = ast.parse(Path(inspect.getfile(definition)).read_bytes())
    except (OSError, SyntaxError, TypeError, ValueError, RecursionError):
        return False
    name = definition.__name__
    blocks = [getattr(node, key, None) for node in ast.walk(tree) for key in ("body", "orelse")]
    statement_lists: list[list[ast.stmt]] = [block for block in blocks if isinstance(block, list)]  # no expressions
    return any(
        sum(isinstance(s, Definition) and s.name == name and not _is_overload(s) for s in statements) > 1
        for statements in statement_lists
    )


def _is_overload(statement: Definition) -> bool:
    """Whether a definition has a decorator such as `typing.overload`, which declares another signature."""
    return any("overload" in ast.unparse(decorator) for decorator in statement.decorator_list)


# Relevant statements


def _relevant_source_texts(definition: Any, module: ModuleType | None) -> Iterator[str]:
    """Yield the source of all statements that a definition relies on, without comments and docstrings.

    These are statements of its own module, and whole user modules that they import, directly or not.
    """
    package = definition.__module__.partition(".")[0]
    path = _module_file(module)
    if path is None:  # a notebook
        statements = list(_notebook_statements(definition, module))
    else:
        name = definition.__qualname__.partition(".")[0]
        is_main = definition.__module__ in ("__main__", "__mp_main__")  # the latter in processes of `multiprocessing`
        statements = list(_required_statements(ast.parse(path.read_bytes()).body, name, is_main=is_main))
    yield from map(_source_text, statements)
    visited_files = set[Path]()
    pending = list(_imported_user_modules(statements, getattr(module, "__package__", None), package))
    while pending:
        name, path = pending.pop()
        if path not in visited_files:
            visited_files.add(path)
            statements = ast.parse(path.read_bytes()).body
            yield from map(_source_text, statements)
            parent = name if path.name == "__init__.py" else name.rpartition(".")[0]
            pending += _imported_user_modules(statements, parent, package)


def _required_statements(statements: Sequence[ast.stmt], root: str, *, is_main: bool) -> Iterator[ast.stmt]:
    """Yield the statements that the definition `root` needs: those it uses, and those that run at import.

    A script that runs as `__main__` may also run the study. In it, a statement that runs at import and binds no name
    counts only if it uses a required function or class, such as a call that registers it.
    """
    by_name = group_pairs((name, statement) for statement in statements for name in _bound_names(statement))
    if root not in by_name:
        yield from statements
        return
    import_time_statements = [s for s in statements if not _bound_names(s) and not _is_docstring(s)]
    required, pending = dict[int, ast.stmt](), [*by_name[root], *([] if is_main else import_time_statements)]
    while pending:
        while pending:  # add the statements that define the names which required statements mention
            statement = pending.pop()
            if id(statement) not in required:
                required[id(statement)] = statement
                pending += [binding for name in _mentioned_names(statement) for binding in by_name.get(name, ())]
        definition_names = {name for s in required.values() if isinstance(s, Definition) for name in _bound_names(s)}
        # Texts are left out: a printed sentence may contain the name of a function by chance
        pending = [
            s
            for s in import_time_statements
            if id(s) not in required and definition_names & _mentioned_names(s, include_texts=False)
        ]
    yield from required.values()


def _notebook_statements(definition: Any, module: ModuleType | None) -> Iterator[ast.stmt]:
    """Yield the definitions of a notebook that a definition needs, and assignments of the values that it needs.

    Needs are found by name: a definition mentions a name, whose value is looked up in the module of the notebook.
    """
    namespace, pending, visited_names = vars(module) if module else {}, [definition], set[str]()
    while pending:
        (statement,) = ast.parse(textwrap.dedent(inspect.getsource(pending.pop()))).body
        yield statement
        for name in sorted(_mentioned_names(statement) - visited_names):
            visited_names.add(name)
            value = namespace.get(name)
            if isinstance(value, LITERAL_TYPES):
                text = repr(value)  # quoted below, as the repr of nan, for example, would be parsed as a name
                yield ast.parse(f"{name} = {text!r}").body[0]
            elif value is not definition and getattr(value, "__module__", None) == definition.__module__:  # no import
                pending.append(unwrap(value))


def _bound_names(statement: ast.stmt) -> set[str]:
    """Return the names that a module-level statement binds."""
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


def _mentioned_names(statement: ast.stmt, *, include_texts: bool = True) -> set[str]:
    """Return the names in a statement and, by default, the words of its texts, because a text may name a method."""
    names = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
    if include_texts:
        values = (node.value for node in ast.walk(statement) if isinstance(node, ast.Constant))
        names |= {word for value in values if isinstance(value, str) for word in re.findall(r"\w+", value)}
    return names


def _source_text(statement: ast.stmt) -> str:
    """Return a statement as code without comments and docstrings, which are removed from the statement itself."""
    for node in ast.walk(statement):
        if isinstance(node, Definition) and _is_docstring(node.body[0]):
            node.body[:1] = [] if len(node.body) > 1 else [ast.Pass()]
    return "" if _is_docstring(statement) else ast.unparse(statement)


def _is_docstring(statement: ast.stmt) -> bool:
    """Whether a statement is a text alone."""
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def _bytecode_texts(definition: Any) -> Iterator[str]:
    """Yield the name of a definition, and the bytecode, names and constants of all code in it, nested code included."""
    members: Iterable[Any] = vars(definition).values() if isinstance(definition, type) else [definition]
    pending = [code for member in members if (code := getattr(unwrap(member), "__code__", None))]
    yield definition.__qualname__
    while pending:
        code = pending.pop()
        constants = [constant for constant in code.co_consts if not isinstance(constant, CodeType)]
        yield code.co_code.hex() + repr([code.co_names, *constants])
        pending += [constant for constant in code.co_consts if isinstance(constant, CodeType)]


# Modules


def _imported_user_modules(
    statements: Iterable[ast.stmt], parent: str | None, method_package: str
) -> Iterator[tuple[str, Path]]:
    """Yield the names and files of the user modules that statements import, and of their parent packages.

    Args:
        statements: Statements, which may contain imports at any depth.
        parent: Package that the dots of a relative import refer to, or None without a package.
        method_package: Top-level package of the method, whose modules are the user's even if it is installed.
    """
    for node in (node for statement in statements for node in ast.walk(statement)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            try:
                base = resolve_name("." * node.level + (node.module or ""), parent)
            except (ImportError, ValueError):
                continue
            names = [base, *(f"{base}.{alias.name}" for alias in node.names)]  # an alias may be a module
        for name in names:
            yield from _user_module_files(name, method_package)


def _user_module_files(name: str, method_package: str) -> Iterator[tuple[str, Path]]:
    """Yield the name and file of each user module on the way from the top-level package to a module: a, a.b, a.b.c."""
    folder: Path | None = None  # of the package that the next module belongs to
    for qualified_name in accumulate(name.split("."), "{}.{}".format):
        path, folder = _locate_module(qualified_name, folder)
        if not _is_user_module(path or folder, qualified_name, method_package):
            return
        if path is not None:
            yield qualified_name, path


def _locate_module(name: str, parent: Path | None) -> tuple[Path | None, Path | None]:
    """Return the file of a module, and its folder if it is a package, without importing it.

    Args:
        name: Qualified name of the module.
        parent: Folder of the package that it belongs to, or None at the top level.
    """
    path = _module_file(sys.modules.get(name))
    if path is not None:
        return path, path.parent if path.name == "__init__.py" else None
    if parent is not None:
        return _locate_path(parent / name.rpartition(".")[2])
    spec = None if "." in name else PathFinder.find_spec(name)
    if spec is None:
        return None, None
    if spec.submodule_search_locations:
        return _locate_path(Path(next(iter(spec.submodule_search_locations))).resolve())
    return Path(spec.origin).resolve() if spec.origin and spec.origin.endswith(".py") else None, None


def _locate_path(path: Path) -> tuple[Path | None, Path | None]:
    """Return the file and the folder of the module or package with this path, which has no suffix."""
    if (path / "__init__.py").is_file():
        return path / "__init__.py", path
    if path.with_suffix(".py").is_file():
        return path.with_suffix(".py"), None
    return None, path if path.is_dir() else None


def _module_file(module: ModuleType | None) -> Path | None:
    """Return the source file of a loaded module, or None without one, as for a notebook."""
    path = getattr(module, "__file__", None)
    return Path(path).resolve() if isinstance(path, str) and path.endswith(".py") else None


def _is_user_module(path: Path | None, name: str, method_package: str) -> bool:
    """Whether a module is the user's, not part of Python, Calibrant or another installed package.

    The package of the method is the user's even if it is installed.
    """
    top_package = name.partition(".")[0]
    if path is None or top_package in sys.stdlib_module_names or top_package == "calibrant":
        return False
    return top_package == method_package or not any(path.is_relative_to(folder) for folder in _installed_folders())


@cache
def _installed_folders() -> tuple[Path, ...]:
    """Return the folders of Python's library and of installed packages."""
    paths = sysconfig.get_paths()
    folders = [*site.getsitepackages(), site.getusersitepackages(), paths["stdlib"], paths["purelib"]]
    return tuple({Path(folder).resolve() for folder in folders})
