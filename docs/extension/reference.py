"""The reference, one page a family: every public name with its source's signature and its docstring, as Markdown.

`pages()` returns the pages as text, without Sphinx: `tests/docs/test_reference.py` looks for every public name in them.
"""

import ast
import copy
import importlib
import pkgutil
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import calibrant
from extension.contents import HEADINGS, PAGES, Page

GALLERY = Path(__file__).parents[1] / "gallery"
MODULE = re.compile(r"^calibrant\.(?:(?:metrics\.(?:curves|tables|ood)|data\.corruptions|integrations\.\w+|\w+)\.)")
PRIVATE = {"cli", "studies"}  # the command line has a page of its own; studies are files


def public_modules() -> set[str]:
    """Return the names of all public modules and packages right below calibrant."""
    found = (module.name for module in pkgutil.iter_modules(calibrant.__path__))
    return {name for name in found if not name.startswith("_")} - PRIVATE


@cache
def names_of(module: str) -> list[str]:
    """Return the public names of a module: `__all__`, or what its file defines."""
    body = _tree(module).body
    if any(isinstance(node, ast.AugAssign) and getattr(node.target, "id", "") == "__all__" for node in body):
        made = importlib.import_module(f"calibrant.{module}")  # put together from its parts
        return [name for name in made.__all__ if not isinstance(getattr(made, name), ModuleType)]
    said = [name for node in body if isinstance(node, ast.Assign) for name in _all_of(node)]
    return said or [name for node in body for name in _defined(node) if not name.startswith("_")]


def pages() -> dict[str, str]:
    """Return the pages by file name, as Markdown."""
    return {name: "\n".join(_page(page)) + "\n" for name, page in PAGES.items()}


def _page(page: Page) -> Iterator[str]:
    yield f"# {page.title}\n\n{page.lead}\n"
    for module in page.modules:
        full = f"calibrant.{module}"
        yield f"```{{py:module}} {full}\n```\n"
        if len(page.modules) > 1:
            yield f"## {full}\n"
        yield _markdown(ast.get_docstring(_tree(module)) or "") + "\n"
        heading = ""
        for name, home, node in sorted(_entries(module), key=lambda entry: _order(entry[1], module)):
            if (title := _heading(home, module)) != heading and title:
                yield f"{'###' if len(page.modules) > 1 else '##'} {title}\n"
                heading = title
            yield from _entry(full, name, home, node)


# Finding the source of a name


def _path(module: str) -> Path:
    base = Path(calibrant.__file__).parent.joinpath(*module.removeprefix("calibrant.").split("."))
    return base / "__init__.py" if base.is_dir() else base.with_suffix(".py")


@cache
def _source(module: str) -> str:
    return _path(module).read_text()


@cache
def _tree(module: str) -> ast.Module:
    return ast.parse(_source(module))


@cache
def _gallery() -> dict[Path, str]:
    return {path.relative_to(GALLERY): path.read_text() for path in sorted(GALLERY.rglob("*.py"))}


def _all_of(node: ast.Assign) -> list[str]:
    return ast.literal_eval(node.value) if getattr(node.targets[0], "id", "") == "__all__" else []


def _defined(node: ast.stmt) -> list[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Assign(targets=targets):
            return [target.id for target in targets if isinstance(target, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
        case _:
            return []


def _entries(module: str) -> list[tuple[str, str, ast.stmt | None]]:
    """Return each public name with the module whose file defines it, and where it stands there."""
    return [(name, *_found(module, name)) for name in dict.fromkeys(names_of(module))]


@cache
def _found(module: str, name: str) -> tuple[str, ast.stmt | None]:
    """Return the file that defines a name, following its imports, and the definition."""
    tree = _tree(module)
    for node in tree.body:
        if name in _defined(node) and not isinstance(node, ast.Assign):
            nodes = [other for other in tree.body if name in _defined(other)]
            return module, nodes[-1]  # after its overloads
    for node in tree.body:
        if name in _defined(node):
            return module, node
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("calibrant."):
            home = str(node.module).removeprefix("calibrant.")
            if home == module or not _path(home).exists():
                continue
            taken = {alias.name for alias in node.names}
            if name in taken or ("*" in taken and name in names_of(home)):
                return _found(home, name)
    return module, None


def _order(home: str, module: str) -> tuple[int, str]:
    """Where the names of a file stand on the page: after the module's own, as the headings do."""
    if home == module or not home.startswith(f"{module}."):
        return (-1 if home == module else len(HEADINGS) + 1), home
    known = list(HEADINGS)
    return (known.index(home) if home in known else len(known)), home


def _heading(home: str, module: str) -> str:
    """What the names of a file have in common: its heading, or the first words of its docstring."""
    if home == module or not home.startswith(f"{module}."):
        return "" if home == module else "More"
    first = (ast.get_docstring(_tree(home)) or "").split("\n")[0].rstrip(".")
    return HEADINGS.get(home) or _markdown(re.split(r": | \(", first)[0])


# Writing an entry


def _entry(full: str, name: str, home: str, node: ast.stmt | None) -> Iterator[str]:
    where = f"{full}.{name}"
    match node:
        case ast.ClassDef():
            yield from _class(where, home, node)
        case ast.FunctionDef():
            yield from _block("function", where + _signature(node), [*_function(where, node), *_pictures(full, name)])
        case _:
            yield from _block("data", where, [_value(home, node, name)])


def _function(where: str, node: ast.FunctionDef) -> list[str]:
    body = [_markdown(ast.get_docstring(node) or "")]
    module, _, name = where.rpartition(".")
    if module in ("calibrant.metrics", "calibrant.selection"):
        metric = getattr(importlib.import_module(module), name)
        body += [_declared(metric)] if hasattr(metric, "has_interval") else []
    return body


def _declared(metric: Any) -> str:
    """Say what a metric's declaration does: title, unit, direction, what it has, and its meaning."""
    about = metric.about
    better = {True: "higher is better", False: "lower is better", None: "neither direction is better"}
    has = [word for word, there in (("an interval", metric.has_interval), ("a test", metric.has_test)) if there]
    facts = [about.title, {"share": "a share", "": "a number"}.get(about.unit, about.unit)]
    facts += [better[about.higher_is_better], *([f"has {' and '.join(has)}"] if has else [])]
    return f"*{'; '.join(facts)}.* {_markdown(about.meaning[:1].upper() + about.meaning[1:] + '.')}"


def _class(where: str, home: str, node: ast.ClassDef) -> Iterator[str]:
    body = [_markdown(ast.get_docstring(node) or "")]
    init = next((part for part in node.body if isinstance(part, ast.FunctionDef) and part.name == "__init__"), None)
    fields = _fields(home, node)
    if fields and init is None:
        body.append("\n".join(fields))
    for member in _members(home, node):
        kinds = {getattr(d, "id", getattr(d, "attr", "")) for d in member.decorator_list}
        kind = "property" if kinds & {"property", "cached_property"} else "method"
        option = ":classmethod:\n\n" if "classmethod" in kinds else ""
        sign = "" if kind == "property" else _signature(member, bound="staticmethod" not in kinds)
        text = _markdown(ast.get_docstring(member) or "")
        body.append("\n".join(_block(kind, f"{where}.{member.name}{sign}", [option + text], fence="::::")))
    module, _, name = where.rpartition(".")
    yield from _block(
        "class", where + ("" if init is None else _signature(init, bound=True)), [*body, *_pictures(module, name)]
    )


def _members(home: str, node: ast.ClassDef, seen: frozenset[str] = frozenset()) -> list[ast.FunctionDef]:
    """Return the public methods that say what they do, its bases' of the same package included."""
    own = {part.name: part for part in node.body if isinstance(part, ast.FunctionDef)}
    shown = [
        part
        for name, part in own.items()
        if ast.get_docstring(part) and name not in seen and (not name.startswith("_") or name == "__call__")
    ]
    for base in node.bases:
        if isinstance(base, ast.Name):
            source, found = _found(home, base.id)
            if isinstance(found, ast.ClassDef):
                shown += _members(source, found, seen | set(own))
    return shown


def _fields(home: str, node: ast.ClassDef) -> list[str]:
    """Return a line for every field that is set when one is made, with the comment beside it."""
    lines = _source(home).splitlines()
    decorated = any("dataclass" in ast.dump(decorator) for decorator in node.decorator_list)
    found: list[str] = []
    for part in node.body if decorated else ():
        if isinstance(part, ast.AnnAssign) and "ClassVar" not in ast.unparse(part.annotation):
            name, kind = ast.unparse(part.target), ast.unparse(part.annotation)
            value = "" if part.value is None or "field(" in ast.unparse(part.value) else f" = {ast.unparse(part.value)}"
            _, _, comment = lines[(part.end_lineno or 1) - 1].partition("  # ")
            said = f": {_markdown(comment.split('pyright:')[0].strip())}" if comment else ""
            found.append(f"- `{name}: {kind}{value}`{said}")
    return found


def _signature(node: ast.FunctionDef, *, bound: bool = False) -> str:
    """Return the signature as its source has it; of a metric and a fit as it is called: with predictions, or arrays."""
    args = copy.deepcopy(node.args)
    if bound:
        (args.posonlyargs or args.args).pop(0)
    said = ast.unparse(args)
    if {"metric", "fits"} & {ast.unparse(decorator).split("(")[0] for decorator in node.decorator_list}:
        args.args, args.posonlyargs, args.defaults = [], [], []
        said = f"predictions, labels=None, weights=None, {ast.unparse(args)}".removesuffix(", ")
    made = "" if node.returns is None or node.name == "__init__" else ast.unparse(node.returns)
    made = made.strip("'") if isinstance(node.returns, ast.Constant) else made  # a class that is not yet defined
    returns = f" -> {made}" if made else ""
    return f"({said}){returns}".replace("\n", " ")


def _value(home: str, node: ast.stmt | None, name: str) -> str:
    if name == "register":
        return "Enroll a function or class under its own name or another; usable as a decorator."
    if node is None:
        return ""
    lines = _source(home).splitlines()
    source = "\n".join(lines[node.lineno - 1 : node.end_lineno]).partition("  # ")[0].strip()
    line = lines[(node.end_lineno or 1) - 1]
    _, _, comment = line.partition("  # ")
    short = source if len(source) < 300 else f"{source[:200]} ..."
    return f"```python\n{short}\n```\n" + (f"\n{_markdown(comment)}\n" if comment else "")


def _pictures(full: str, name: str) -> list[str]:
    """Return the gallery's figures that use a name."""
    short = f"{full.removeprefix('calibrant.')}.{name}"
    used = re.compile(rf"(?<![\w.]){re.escape(short)}\b|import [\w, ]*\b{re.escape(name)}\b")
    files = [path for path, code in _gallery().items() if used.search(code)][:4]
    if not files:
        return []
    listed = "\n".join(f"   gallery/{path}" for path in files)
    return [f"```{{eval-rst}}\n.. minigallery::\n\n{listed}\n```"]


def _block(kind: str, head: str, body: list[str], fence: str = ":::::") -> list[str]:
    head = MODULE.sub("", head)
    return [f"{fence}{{py:{kind}}} {head}", "\n\n".join(part for part in body if part), fence, ""]


# Docstrings are Markdown but for their examples


def _markdown(text: str) -> str:
    """Return a docstring as Markdown: examples fenced, quotations of settings kept, stars and angles as they are."""
    out: list[str] = []
    for block in re.split(r"\n\s*\n", textwrap.dedent(text)):
        if block.lstrip().startswith(">>> "):
            out.append(f"```pycon\n{textwrap.dedent(block).strip()}\n```")
        elif block.startswith("    "):
            out.append(f"```python\n{textwrap.dedent(block).rstrip()}\n```")
        else:
            out.append(_escaped(block))
    return "\n\n".join(out)


def _escaped(text: str) -> str:
    """Escape what Markdown would take for its own, outside of code and formulas."""
    parts = re.split(r"(`+[^`]*`+|\$[^$]+\$)", text)
    parts[::2] = [re.sub(r"(?<!^)(?<!\n)([*<\[\]])", r"\\\1", part) for part in parts[::2]]
    return "".join(parts)


def write(folder: Path) -> None:
    """Write the pages where they are not as they should be."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        path = folder / f"{name}.md"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
