"""Compute digests of user code: of its file and the modules beside it that the file imports."""

import ast
import hashlib
import inspect
import re
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any

LITERAL_TYPES = int, float, str, bytes, bool, tuple, list, dict, type(None)


def code_digest(method: Any) -> str:
    """Return "file:" and 16 hex digits of the code that a method runs.

    The digest covers the file of the method, and the modules of its folder or package that it imports, transitively.
    In a notebook, it covers the definition, and the definitions and values that it needs. Code without a source is
    represented by its bytecode.
    """
    definition = unwrap(method)
    path = _file(definition)
    try:
        contents = (
            list(_notebook_texts(definition)) if path is None else [p.read_bytes() for p in _imported_files(path)]
        )
    except (KeyError, OSError, SyntaxError, TypeError, ValueError):  # KeyError: code of no module, as `exec` runs it
        contents = list(_bytecode_texts(definition))
    digests = sorted(hashlib.sha256(content).hexdigest() for content in contents)
    return f"file:{hashlib.sha256(''.join(digests).encode()).hexdigest()[:16]}"


def is_earlier_digest(recorded: str, code: str) -> bool:
    """Whether a recorded digest is of syntax trees, as up to version 0.3.0, and cannot be compared with this `code`."""
    return code.startswith("file:") and re.fullmatch("[0-9a-f]{16}", recorded) is not None


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
    """Whether a file defines the name of a method twice at its top level, so that the second replaces the first."""
    definition = unwrap(method)
    path = _file(definition)
    statements = [] if path is None else ast.parse(path.read_bytes()).body
    definitions = (s for s in statements if isinstance(s, ast.FunctionDef | ast.ClassDef))
    return sum(s.name == definition.__name__ for s in definitions) > 1


def _file(definition: Any) -> Path | None:
    """Return the file of a function or class, or None without one, as in a notebook."""
    try:
        path = Path(inspect.getfile(definition)).absolute()
    except (OSError, TypeError):
        return None
    return path if path.suffix == ".py" and path.is_file() else None


def _imported_files(path: Path) -> set[Path]:
    """Return a file, and the files of its folder or package that it imports, directly or not."""
    top = path.parent
    while (top / "__init__.py").is_file():
        top = top.parent  # the folder of the outermost package
    package_folder = top / path.relative_to(top).parts[0] if top.name in ("site-packages", "dist-packages") else top
    imported_files, pending = set[Path](), [path]
    while pending:
        file = pending.pop()
        if file in imported_files:
            continue
        imported_files.add(file)
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                module, level = getattr(node, "module", None) or "", getattr(node, "level", 0)
                folders = [file.parents[level - 1]] if level else [file.parent, top]
                names = [module, *(f"{module}.{alias.name}".strip(".") for alias in node.names)]  # some are no modules
                modules = [folder.joinpath(*name.split(".")) for folder in folders for name in names if name]
                places = [place for m in modules for place in (m.with_name(f"{m.name}.py"), m / "__init__.py")]
                pending += [place for place in places if place.is_file() and place.is_relative_to(package_folder)]
    return imported_files


def _notebook_texts(definition: Any) -> Iterator[bytes]:
    """Yield the source of a definition, and the definitions and values of its notebook that it names."""
    namespace, pending, visited = vars(sys.modules[definition.__module__]), [definition], set[str]()
    while pending:
        source = inspect.getsource(pending.pop())
        yield source.encode()
        for name in set(re.findall(r"\w+", source)) - visited:
            visited.add(name)
            value = namespace.get(name)
            if isinstance(value, LITERAL_TYPES):
                yield f"{name} = {value!r}".encode()
            elif value is not definition and getattr(value, "__module__", None) == definition.__module__:
                pending.append(unwrap(value))


def _bytecode_texts(definition: Any) -> Iterator[bytes]:
    """Yield the name of a definition, and the bytecode, names and constants of all code in it, nested code included."""
    members: list[Any] = list(vars(definition).values()) if isinstance(definition, type) else [definition]
    pending = [code for member in members if (code := getattr(unwrap(member), "__code__", None))]
    yield definition.__qualname__.encode()
    while pending:
        code = pending.pop()
        constants = [constant for constant in code.co_consts if not isinstance(constant, CodeType)]
        yield code.co_code + repr([code.co_names, *constants]).encode(errors="replace")
        pending += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
