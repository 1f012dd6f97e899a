"""Write the API reference as Markdown: every public name with its signature and docstring, one page per family.

`pages()` returns the pages as text, without Sphinx, so that `tests/docs/test_reference.py` can check them.
"""

import ast
import copy
import importlib
import pkgutil
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import Any

import calibrant
from calibrant import metrics
from extension.contents import HEADINGS, PAGES, Page

Entry = tuple[str, str, ast.stmt | None]  # a name, the file that defines it, and its definition
GALLERY = Path(__file__).parents[1] / "gallery"
MODULES = sorted((f"calibrant.{module}." for page in PAGES.values() for module in page.modules), key=len, reverse=True)
UNDOCUMENTED = {"cli", "studies"}  # the command line has its own page, and studies are files
PLACES = {"types": "_core.types", "registry": "_core.registry"}  # modules that are public by a short name


def public_modules() -> set[str]:
    """Return the names of all public modules and packages directly below calibrant."""
    names = {module.name for module in pkgutil.iter_modules(calibrant.__path__)}
    return {name for name in names if not name.startswith("_")} - UNDOCUMENTED | set(PLACES)


@cache
def public_names(module: str) -> list[str]:
    """Return the public names of a module: `__all__`, or the definitions in its file and what it imports as itself."""
    body = _tree(module).body
    if any(isinstance(node, ast.AugAssign) and getattr(node.target, "id", "") == "__all__" for node in body):
        package = importlib.import_module(f"calibrant.{module}")  # `__all__` is assembled from submodules
        return [name for name in package.__all__ if not isinstance(getattr(package, name), ModuleType)]
    listed = [name for node in body if isinstance(node, ast.Assign) for name in _all_of(node)]
    imports = [alias for node in body if isinstance(node, ast.ImportFrom) for alias in node.names]
    reexported = [alias.name for alias in imports if alias.asname == alias.name]
    return listed or [*reexported, *(name for node in body for name in _defined(node) if not name.startswith("_"))]


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
        groups = _groups(module)
        yield _overview(full, [(title, [name for name, _, _ in group]) for title, group in groups])
        for title, group in groups:
            yield f"{'###' if len(page.modules) > 1 else '##'} {title}\n" if title else ""
            for name, home, node in group:
                yield from _entry(full, name, home, node)


def _groups(module: str) -> list[tuple[str, list[Entry]]]:
    """Return the headings of a page in reading order, each with its entries."""
    entries = sorted(_entries(module), key=lambda entry: _order(*entry[1:], module))
    return [(title, list(group)) for title, group in groupby(entries, lambda entry: _heading(entry[1], module))]


def _overview(full: str, groups: list[tuple[str, list[str]]]) -> str:
    """Return a table of links to all entries of a module, a row per heading."""
    rows = [f"| {title} | {', '.join(f'{{py:obj}}`{n} <{full}.{n}>`' for n in names)} |" for title, names in groups]
    return "\n".join(["| | |", "| :-- | :-- |", *rows, ""])


# Find the source of a name


def _place(module: str) -> str:
    return PLACES.get(module, module)


def _path(module: str) -> Path:
    base = Path(calibrant.__file__).parent.joinpath(*_place(module.removeprefix("calibrant.")).split("."))
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


def _entries(module: str) -> list[Entry]:
    """Return each public name with the module that defines it and its definition."""
    return [(name, *_definition(module, name)) for name in dict.fromkeys(public_names(module))]


@cache
def _definition(module: str, name: str) -> tuple[str, ast.stmt | None]:
    """Return the module that defines a name, following imports, and the definition."""
    tree = _tree(module)
    for node in tree.body:
        if name in _defined(node) and not isinstance(node, ast.Assign):
            nodes = [other for other in tree.body if name in _defined(other)]
            return module, nodes[-1]  # the last one, after overloads
    for node in tree.body:
        if name in _defined(node):
            return module, node
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("calibrant."):
            home = str(node.module).removeprefix("calibrant.")
            if home == module or not _path(home).exists():
                continue
            imported = {alias.name for alias in node.names}
            if name in imported or ("*" in imported and name in public_names(home)):
                return _definition(home, name)
    return module, None


def _order(home: str, node: ast.stmt | None, module: str) -> tuple[int, bool]:
    """Return the sort key of a name: the module itself first, then files in the order of `HEADINGS`, values last."""
    is_value = not isinstance(node, ast.ClassDef | ast.FunctionDef)
    return (-1 if home in (module, _place(module)) else list(HEADINGS).index(home)), is_value


def _heading(home: str, module: str) -> str:
    """Return the heading of a file's names, which every file but the module itself needs."""
    return "" if home in (module, _place(module)) else HEADINGS[home]


# Write an entry


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
    if module in ("calibrant.metrics", "calibrant.nn.selection"):
        metric = getattr(importlib.import_module(module), name)
        body += [_declaration(metric)] if hasattr(metric, "has_interval") else []
    return body


def _declaration(metric: Any) -> str:
    """Describe a metric from its declaration: title, unit, direction, interval and test, and meaning."""
    info = metrics.metric_info(metric.__name__)
    direction = {True: "higher is better", False: "lower is better", None: "neither direction is better"}
    has = [word for word, present in (("an interval", metric.has_interval), ("a test", metric.has_test)) if present]
    facts = [info.title, {"share": "a share", "": "a number"}.get(info.unit, info.unit)]
    facts += [direction[info.higher_is_better], *([f"has {' and '.join(has)}"] if has else [])]
    return f"*{'; '.join(facts)}.* {_markdown(info.meaning[:1].upper() + info.meaning[1:].rstrip('.') + '.')}"


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


def _members(home: str, node: ast.ClassDef, overridden: frozenset[str] = frozenset()) -> list[ast.FunctionDef]:
    """Return the public methods with docstrings, including those of base classes in the package."""
    methods = {part.name: part for part in node.body if isinstance(part, ast.FunctionDef)}
    members = [
        part
        for name, part in methods.items()
        if ast.get_docstring(part) and name not in overridden and (not name.startswith("_") or name == "__call__")
    ]
    for base in node.bases:
        if isinstance(base, ast.Name):
            source, definition = _definition(home, base.id)
            if isinstance(definition, ast.ClassDef):
                members += _members(source, definition, overridden | set(methods))
    return members


def _fields(home: str, node: ast.ClassDef) -> list[str]:
    """Return one line per field of a dataclass, with the comment beside it."""
    lines = _source(home).splitlines()
    decorated = any("dataclass" in ast.dump(decorator) for decorator in node.decorator_list)
    fields: list[str] = []
    for part in node.body if decorated else ():
        if isinstance(part, ast.AnnAssign) and "ClassVar" not in ast.unparse(part.annotation):
            name, kind = ast.unparse(part.target), ast.unparse(part.annotation)
            value = "" if part.value is None or "field(" in ast.unparse(part.value) else f" = {ast.unparse(part.value)}"
            _, _, comment = lines[(part.end_lineno or 1) - 1].partition("  # ")
            text = f": {_markdown(comment.split('pyright:')[0].strip())}" if comment else ""
            fields.append(f"- `{name}: {kind}{value}`{text}")
    return fields


def _signature(node: ast.FunctionDef, *, bound: bool = False) -> str:
    """Return the signature from the source, or that of the decorated function for metrics and fits."""
    args = copy.deepcopy(node.args)
    if bound:
        (args.posonlyargs or args.args).pop(0)
    text = ast.unparse(args)
    if {"metric", "fit_method", "accepts_predictions"} & _decorators(node):
        args.args, args.posonlyargs, args.defaults = [], [], []
        text = f"predictions, labels=None, weights=None, {ast.unparse(args)}".removesuffix(", ")
    result = "" if node.returns is None or node.name == "__init__" else ast.unparse(node.returns)
    result = result.strip("'") if isinstance(node.returns, ast.Constant) else result  # quoted forward reference
    returns = f" -> {result}" if result else ""
    return f"({text}){returns}".replace("\n", " ")


def _decorators(node: ast.FunctionDef) -> set[str]:
    return {ast.unparse(decorator).split("(")[0] for decorator in node.decorator_list}


def _value(home: str, node: ast.stmt | None, name: str) -> str:
    if name == "register":
        return "Register a function or class under its own name or another. Usable as a decorator."
    if node is None:
        return ""
    lines = _source(home).splitlines()
    source = "\n".join(lines[node.lineno - 1 : node.end_lineno]).partition("  # ")[0].strip()
    line = lines[(node.end_lineno or 1) - 1]
    _, _, comment = line.partition("  # ")
    short = source if len(source) < 300 else f"{source[:200]} ..."
    return f"```python\n{short}\n```\n" + (f"\n{_markdown(comment)}\n" if comment else "")


def _pictures(full: str, name: str) -> list[str]:
    """Return the gallery figures that use a name."""
    short = f"{full.removeprefix('calibrant.')}.{name}"
    used = re.compile(rf"(?<![\w.]){re.escape(short)}\b|import [\w, ]*\b{re.escape(name)}\b")
    files = [path for path, code in _gallery().items() if used.search(code)][:4]
    if not files:
        return []
    listed = "\n".join(f"   gallery/{path}" for path in files)
    return [f"```{{eval-rst}}\n.. minigallery::\n\n{listed}\n```"]


def _block(kind: str, head: str, body: list[str], fence: str = ":::::") -> list[str]:
    head = next((head.removeprefix(module) for module in MODULES if head.startswith(module)), head)
    return [f"{fence}{{py:{kind}}} {head}", "\n\n".join(part for part in body if part), fence, ""]


# Docstrings are Markdown with Google-style sections and examples

SECTION = re.compile(r"(Args|Attributes|Returns|Yields|Raises):\n(?=    )")
ENTRY = re.compile(r"^ {4}(\S[^:\n]*): ", re.MULTILINE)  # a name at the indentation of the section


def _markdown(text: str) -> str:
    """Return a docstring as Markdown: examples are fenced, sections become tables, stars and angles are escaped."""
    out: list[str] = []
    separated = re.sub(rf"^(?={SECTION.pattern})", "\n", textwrap.dedent(text), flags=re.MULTILINE)
    for block in re.split(r"\n\s*\n", separated):
        if block.lstrip().startswith(">>> "):
            out.append(f"```pycon\n{textwrap.dedent(block).strip()}\n```")
        elif SECTION.match(block.lstrip("\n")):
            out.append(_section(block.lstrip("\n")))
        elif block.startswith("    "):
            out.append(f"```python\n{textwrap.dedent(block).rstrip()}\n```")
        else:
            out.append(_escaped(block))
    return "\n\n".join(out)


def _section(block: str) -> str:
    """Return a section of a Google-style docstring as a table of names, or as a paragraph if it has no names."""
    title, _, body = block.partition(":\n")
    title = {"Args": "Parameters"}.get(title, title)
    before, *parts = ENTRY.split(body) if title not in ("Returns", "Yields") else [body]
    if before.strip() or not parts:
        return f"**{title}:** {_escaped(' '.join(body.split()))}"
    rows = (f"| `{name}` | {_cell(description)} |" for name, description in zip(parts[::2], parts[1::2], strict=True))
    return "\n".join([f"| {title} | Description |", "| :-- | :-- |", *rows])


def _cell(text: str) -> str:
    """Return wrapped text on one line, with vertical bars escaped for a table."""
    return _escaped(" ".join(text.split())).replace("|", r"\|")


def _escaped(text: str) -> str:
    """Escape Markdown syntax outside of code and formulas."""
    parts = re.split(r"(`+[^`]*`+|\$[^$]+\$)", text)
    parts[::2] = [re.sub(r"(?<!^)(?<!\n)([*<\[\]])", r"\\\1", part) for part in parts[::2]]
    return "".join(parts)


def write(folder: Path) -> None:
    """Write the pages that have changed."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        path = folder / f"{name}.md"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
