"""Rename modules, functions, classes, members, parameters and local variables, without any change of logic.

`python tools/rename.py tools/renames.toml ...` reads tables of old and new names and rewrites src, tests, docs and
benchmarks. Names are resolved on syntax trees: by scope, by import, and for members by the type of the object where an
annotation, a constructor or a return type says it. Whatever it cannot decide is printed and left alone. Running it
again changes nothing.

    [modules]     "calibrant.old" = "calibrant.new"                  a file or package, with all its imports
    [names]       "calibrant.module:old" = "new"                     a function, class or constant of a module
    [members]     "calibrant.module:Class.old" = "new"               a method, property, field or attribute
    [parameters]  "calibrant.module:function.old" = "new"            a parameter, also where it is given by keyword
    [fallback]    old = "new"                                        a member, where the type of the object is unknown
    [objects]     name = "calibrant.module"                          a name, or function called, that is a module
    [locals]      "calibrant.module:function.old" = "new"            a local variable, also "tests/file.py:..."

All old names are those of the code before the script ran, modules included.
"""

import ast
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars
import torch

ROOT = Path(__file__).parent.parent
FOLDERS = ("src", "tests", "docs", "benchmarks", "README.md", "CONTRIBUTING.md", "SECURITY.md")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
LIBRARIES = (torch.Tensor, torch.nn.Linear(1, 1), torch.autograd.Function, np.ndarray, polars.DataFrame, polars.Series)
LIBRARIES += (
    np.random.Generator,
    torch.Generator,
    polars.LazyFrame,
    polars,
    str,
    dict,
    set,
    list,
    Path,
    re.Match,
    re,
    ast,
    sys,
)
FOREIGN = {member for kind in LIBRARIES for member in dir(kind)} | {*polars.__all__, "then", "otherwise"}
COPIES = {"replace", "_with", "_replace", "copy"}  # functions whose keywords are fields


@dataclass(eq=False)
class Scope:
    """The names that a module, function, class or comprehension binds; `origin` holds what each was imported from."""

    node: ast.AST
    parent: "Scope | None"
    path: str  # dotted, such as "Class.method"
    bound: set[str] = field(default_factory=set)
    origin: dict[str, str] = field(default_factory=dict)
    types: dict[str, ast.expr] = field(default_factory=dict)  # annotation or value of a name
    outer: set[str] = field(default_factory=set)  # declared global or nonlocal

    def find(self, name: str) -> "Scope | None":
        """Return the scope that a name read here belongs to, or None if it is a builtin."""
        scope, first = self, True
        while scope is not None:
            visible = first or not isinstance(scope.node, ast.ClassDef)
            if visible and name in scope.bound and name not in scope.outer:
                return scope
            scope, first = scope.parent, False
        return None


@dataclass(eq=False)
class Module:
    """One Python file with its scopes and the edits to make."""

    path: Path
    name: str | None  # dotted, of files in src
    text: str
    tree: ast.Module = field(init=False)
    scopes: dict[ast.AST, Scope] = field(default_factory=dict)
    edits: set[tuple[int, int, int, str]] = field(default_factory=set)  # line, first and last column, new text

    def __post_init__(self):
        self.tree = ast.parse(self.text)
        self.key = self.name or str(self.path.relative_to(ROOT))
        _bind(self.tree, Scope(self.tree, None, ""), self)

    def column(self, line: int, offset: int) -> int:
        """Return the column in characters of an offset in bytes."""
        return len(self.lines[line - 1].encode()[:offset].decode())

    @property
    def lines(self) -> list[str]:
        """The lines of the text, split as Python counts them."""
        if not hasattr(self, "_lines"):
            self._lines = self.text.split("\n")
        return self._lines


def _targets(node: ast.AST) -> list[str]:
    return [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]


def _bind(node: ast.AST, scope: Scope, module: Module) -> None:
    """Fill the scopes below a node."""
    module.scopes[node] = scope
    for child in ast.iter_child_nodes(node):
        _bind_child(child, scope, module)


def _bind_child(node: ast.AST, scope: Scope, module: Module) -> None:
    if isinstance(node, FUNCTIONS):
        scope.bound.add(node.name)
        for outside in [*node.decorator_list, *node.args.defaults, *[d for d in node.args.kw_defaults if d]]:
            _bind_child(outside, scope, module)
        inner = Scope(node, scope, f"{scope.path}.{node.name}".lstrip("."))
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        for a in [*arguments, *[v for v in (node.args.vararg, node.args.kwarg) if v]]:
            inner.bound.add(a.arg)
            if a.annotation is not None:
                inner.types[a.arg] = a.annotation
                _bind_child(a.annotation, scope, module)
        if node.returns is not None:
            _bind_child(node.returns, scope, module)
        module.scopes[node] = inner
        for child in node.body:
            _bind_child(child, inner, module)
    elif isinstance(node, ast.Lambda):
        inner = Scope(node, scope, f"{scope.path}.<lambda>")
        for a in ast.walk(node.args):
            if isinstance(a, ast.arg):
                inner.bound.add(a.arg)
        for default in [*node.args.defaults, *[d for d in node.args.kw_defaults if d]]:
            _bind_child(default, scope, module)
        module.scopes[node] = inner
        _bind_child(node.body, inner, module)
    elif isinstance(node, ast.ClassDef):
        scope.bound.add(node.name)
        for outside in [*node.decorator_list, *node.bases, *node.keywords]:
            _bind_child(outside, scope, module)
        inner = Scope(node, scope, f"{scope.path}.{node.name}".lstrip("."))
        module.scopes[node] = inner
        for child in node.body:
            _bind_child(child, inner, module)
    elif isinstance(node, COMPREHENSIONS):
        inner = Scope(node, scope, scope.path)
        for g in node.generators:
            inner.bound.update(_targets(g.target))
        module.scopes[node] = inner
        _bind_child(node.generators[0].iter, scope, module)
        for index, g in enumerate(node.generators):
            for part in [g.target, *([g.iter] if index else []), *g.ifs]:
                _bind_child(part, inner, module)
        for name in ("elt", "key", "value"):
            if getattr(node, name, None) is not None:
                _bind_child(getattr(node, name), inner, module)
    else:
        if isinstance(node, ast.Global | ast.Nonlocal):
            scope.outer.update(node.names)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
            home = scope
            if isinstance(home.node, COMPREHENSIONS) and node.id not in home.bound:  # a walrus
                while isinstance(home.node, COMPREHENSIONS):
                    home = home.parent
            home.bound.add(node.id)
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            scope.types.setdefault(node.targets[0].id, node.value)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            scope.types[node.target.id] = node.annotation
        if isinstance(node, ast.ExceptHandler) and node.name:
            scope.bound.add(node.name)
        if isinstance(node, ast.MatchAs | ast.MatchStar) and node.name:
            scope.bound.add(node.name)
        if isinstance(node, ast.Import):
            for a in node.names:
                local = a.asname or a.name.split(".")[0]
                scope.bound.add(local)
                scope.origin[local] = a.name if a.asname else local
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for a in node.names:
                if a.name != "*":
                    scope.bound.add(a.asname or a.name)
                    scope.origin[a.asname or a.name] = f"{node.module}:{a.name}"
        module.scopes[node] = scope
        for child in ast.iter_child_nodes(node):
            _bind_child(child, scope, module)


class Renamer:
    """All files, and the tables of names."""

    def __init__(self, tables: list[Path]) -> None:
        self.tables: dict[str, dict[str, str]] = {
            k: {} for k in ("modules", "names", "members", "parameters", "locals", "objects", "fallback")
        }
        for table in tables:
            for kind, entries in tomllib.loads(table.read_text()).items():
                for old, new in entries.items() if isinstance(entries, dict) else ():
                    if self.tables[kind].setdefault(old, new) != new:
                        print(f"{kind}: {old} has two new names, {self.tables[kind][old]} and {new}")
        self.modules: dict[str, Module] = {}
        self.files: list[Module] = []
        self.texts: list[Path] = []
        listed = subprocess.run(["git", "ls-files", *FOLDERS, "*.py"], cwd=ROOT, capture_output=True, text=True)
        for line in sorted(set(listed.stdout.splitlines())):
            path = ROOT / line
            if path.suffix == ".md" or path.suffix == ".rst":
                self.texts.append(path)
            if path.suffix != ".py" or path.is_symlink() or line.startswith("tools/"):
                continue
            name = None
            if line.startswith("src/"):
                parts = Path(line).with_suffix("").parts[1:]
                name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            module = Module(path, name, path.read_text())
            self.files.append(module)
            if name:
                self.modules[name] = module
        self.classes: dict[str, ast.ClassDef] = {}
        self.members: dict[str, set[str]] = defaultdict(set)  # member name -> classes that define it
        self.methods: dict[str, set[str]] = defaultdict(set)
        for name, module in self.modules.items():
            for node, scope in module.scopes.items():
                if isinstance(node, ast.ClassDef):
                    key = f"{name}:{scope.path}"
                    self.classes[key] = node
                    for member in self.own_members(node):
                        self.members[member].add(key)
        for module in self.files:  # classes of tests have members of the same names
            for node in ast.walk(module.tree) if not module.name else ():
                if isinstance(node, ast.ClassDef):
                    for member in self.own_members(node):
                        self.members[member].add(f"{module.key}:{node.name}")
        self.all_names = {entry.split(":")[1] for entry in self.tables["names"]}
        self.member_names = {entry.rsplit(".", 1)[1] for entry in self.tables["members"]}
        self.by_function: dict[str, dict[str, str]] = defaultdict(dict)
        self.by_local: dict[str, dict[str, str]] = defaultdict(dict)
        for kind, into in (("parameters", self.by_function), ("locals", self.by_local)):
            for entry, new in self.tables[kind].items():
                function, old = entry.rsplit(".", 1)
                into[function][old] = new

    def own_members(self, node: ast.ClassDef) -> set[str]:
        """Return the members that a class itself defines, with the attributes its methods set."""
        matches = set()
        for part in node.body:
            if isinstance(part, (*FUNCTIONS, ast.ClassDef)):
                matches.add(part.name)
            elif isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                matches.add(part.target.id)
            elif isinstance(part, ast.Assign):
                matches.update(t.id for t in part.targets if isinstance(t, ast.Name))
        for part in ast.walk(node):
            if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store):
                if isinstance(part.value, ast.Name) and part.value.id in ("self", "cls"):
                    matches.add(part.attr)
        return matches

    # Resolution

    def canonical(self, module: str, name: str, depth: int = 0) -> str | None:
        """Return "module:name" where a name is defined, or the dotted name of a module."""
        if f"{module}.{name}" in self.modules and (
            module not in self.modules or name not in self.modules[module].scopes[self.modules[module].tree].bound
        ):
            return f"{module}.{name}"
        home = self.modules.get(module)
        if home is None or depth > 8:
            return None
        scope = home.scopes[home.tree]
        if scope.origin.get(name) == f"{module}:{name}":
            return f"{module}.{name}"
        if name in scope.origin:
            return self.imported(scope.origin[name], depth)
        if name in scope.bound:
            return f"{module}:{name}"
        for node in ast.walk(home.tree):
            if isinstance(node, ast.ImportFrom) and any(a.name == "*" for a in node.names):
                matches = self.canonical(node.module or "", name, depth + 1)
                if matches:
                    return matches
        return f"{module}.{name}" if f"{module}.{name}" in self.modules else None

    def imported(self, origin: str, depth: int = 0) -> str | None:
        """Return what an import means."""
        module, colon, name = origin.partition(":")
        if not colon:
            return module if module in self.modules else None
        return self.canonical(module, name, depth + 1)

    def meaning(self, node: ast.expr, scope: Scope, module: Module) -> str | None:
        """Return the definition or module that an expression names, or None."""
        if isinstance(node, ast.Name):
            home = scope.find(node.id)
            if home is None:
                return self.canonical(module.name, node.id) if module.name else None
            if node.id in home.origin:
                return self.imported(home.origin[node.id])
            if isinstance(home.node, ast.Module) and module.name:
                return f"{module.name}:{node.id}"
            if module.name and isinstance(home.node, ast.ClassDef | ast.FunctionDef):
                return f"{module.name}:{home.path}.{node.id}"
            return None
        if isinstance(node, ast.Attribute):
            base = self.meaning(node.value, scope, module)
            if base and ":" not in base:
                return self.canonical(base, node.attr)
        return None

    def bases(self, key: str) -> list[str]:
        """Return a class and the classes it inherits from."""
        node = self.classes.get(key)
        if node is None:
            return []
        module = self.modules[key.split(":")[0]]
        matches = [key]
        for base in node.bases:
            base = base.value if isinstance(base, ast.Subscript) else base
            meant = self.meaning(base, module.scopes[base], module) if base in module.scopes else None
            matches += self.bases(meant) if meant and meant in self.classes else []
        return matches

    def family(self, key: str) -> set[str]:
        """Return a class with its bases and subclasses."""
        if not hasattr(self, "_families"):
            self._families: dict[str, set[str]] = defaultdict(set)
            for name in self.classes:
                for base in self.bases(name):
                    self._families[base].add(name)
                    self._families[name].add(base)
        return self._families[key]

    def annotated(self, node: ast.expr | None, scope: Scope, module: Module) -> str | None:
        """Return the class that an annotation names, if it is one of ours."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            try:
                node = ast.parse(node.value, mode="eval").body
            except SyntaxError:
                return None
        if isinstance(node, ast.BinOp):
            return self.annotated(node.left, scope, module) or self.annotated(node.right, scope, module)
        if isinstance(node, ast.Subscript):
            node = node.value
        if isinstance(node, ast.Name | ast.Attribute):
            meant = self.meaning(node, scope, module)
            return meant if meant in self.classes else None
        return None

    def type_of(self, node: ast.expr, scope: Scope, module: Module, depth: int = 0) -> str | None:
        """Return the class of an expression, if it can be told."""
        if depth > 6:
            return None
        if isinstance(node, ast.Name):
            home = scope.find(node.id)
            if home is None:
                return None
            if node.id in ("self", "cls") and isinstance(home.parent and home.parent.node, ast.ClassDef):
                return f"{module.name}:{home.parent.path}" if module.name else None
            if node.id in home.types:
                value = home.types[node.id]
                return self.annotated(value, home, module) or self.type_of(value, home, module, depth + 1)
            return None
        if isinstance(node, ast.Call):
            if getattr(node.func, "id", "") == "replace" and node.args:
                return self.type_of(node.args[0], scope, module, depth + 1)
            meant = self.meaning(node.func, scope, module)
            if meant in self.classes:
                return meant
            function = self.function(meant) if meant else None
            if isinstance(node.func, ast.Attribute) and function is None:
                owner = self.type_of(node.func.value, scope, module, depth + 1)
                if owner is None:
                    direct = self.meaning(node.func.value, scope, module)
                    owner = direct if direct in self.classes else None
                for base in self.bases(owner) if owner else []:
                    function = self.function(f"{base}.{node.func.attr}")
                    if function:
                        break
            if function:
                at, definition = function
                return self.annotated(definition.returns, at.scopes[definition], at)
            return None
        if isinstance(node, ast.Attribute):
            owner = self.type_of(node.value, scope, module, depth + 1)
            for base in self.bases(owner) if owner else []:
                at, body = self.modules[base.split(":")[0]], self.classes[base].body
                for part in body:
                    if isinstance(part, ast.AnnAssign) and getattr(part.target, "id", None) == node.attr:
                        return self.annotated(part.annotation, at.scopes[self.classes[base]], at)
                    if isinstance(part, FUNCTIONS) and part.name == node.attr:
                        return self.annotated(part.returns, at.scopes[part], at)
        if isinstance(node, ast.Subscript):
            return self.type_of(node.value, scope, module, depth + 1)  # rows of predictions are predictions
        if isinstance(node, ast.IfExp):
            return self.type_of(node.body, scope, module, depth + 1)
        return None

    def is_foreign(self, node: ast.expr, scope: Scope, depth: int = 0) -> bool:
        """Whether an expression starts from a name that another library gave."""
        while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
            node = node.func if isinstance(node, ast.Call) else node.value
        home = scope.find(node.id) if isinstance(node, ast.Name) else None
        if home is None or depth > 6:
            return False
        if node.id in home.origin:
            return not home.origin[node.id].startswith("calibrant") and self.imported(home.origin[node.id]) is None
        return node.id in home.types and self.is_foreign(home.types[node.id], home, depth + 1)

    def function(self, key: str) -> tuple[Module, ast.FunctionDef] | None:
        """Return the definition of "module:function" or "module:Class.method"."""
        module = self.modules.get(key.split(":")[0])
        if module is None or ":" not in key:
            return None
        if not hasattr(module, "_functions"):
            module._functions = {
                scope.path: node for node, scope in module.scopes.items() if isinstance(node, FUNCTIONS)
            }
        node = module._functions.get(key.split(":")[1])
        return (module, node) if node is not None else None

    # Edits

    def edit(self, module: Module, node_line: int, offset: int, old: str, new: str) -> None:
        """Replace a name that stands at a byte offset of a line."""
        start = module.column(node_line, offset)
        line = module.lines[node_line - 1]
        if line[start : start + len(old)] != old:
            self.warn(module, node_line, f"expected {old}, found {line[start : start + len(old)]}")
            return
        module.edits.add((node_line, start, start + len(old), new))

    def edit_after(self, module: Module, line: int, offset: int, old: str, new: str) -> None:
        """Replace the first whole word `old` at or after an offset; it may stand on a later line."""
        start = module.column(line, offset)
        for number in range(line, min(line + 12, len(module.lines) + 1)):
            matches = re.compile(rf"(?<![\w.]){re.escape(old)}(?!\w)").search(module.lines[number - 1], start)
            if matches:
                module.edits.add((number, matches.start(), matches.end(), new))
                return
            start = 0
        self.warn(module, line, f"{old} not found")

    def warn(self, module: Module, line: int, text: str) -> None:
        """Print what is left to a person."""
        print(f"{module.path.relative_to(ROOT)}:{line}: {text}")

    def new_name(self, meant: str | None) -> str | None:
        """Return the new last part of a definition or module, if it changes."""
        if meant is None:
            return None
        if ":" in meant:
            return self.tables["names"].get(meant)
        new = self.new_module(meant)
        return new.rsplit(".", 1)[1] if new.rsplit(".", 1)[-1] != meant.rsplit(".", 1)[-1] else None

    def new_module(self, name: str) -> str:
        """Return the new dotted name of a module."""
        parts = name.split(".")
        for length in range(len(parts), 0, -1):
            prefix = ".".join(parts[:length])
            if prefix in self.tables["modules"]:
                return ".".join([self.tables["modules"][prefix], *parts[length:]])
        return name

    def member(self, owner: str | None, name: str) -> tuple[str | None, bool]:
        """Return the new name of a member, and whether that is certain."""
        if owner is not None:
            for key in [*self.bases(owner), *self.family(owner)]:
                if f"{key}.{name}" in self.tables["members"]:
                    return self.tables["members"][f"{key}.{name}"], True
            if any(name in self.own_members(self.classes[key]) for key in self.bases(owner)):
                return None, True
        if name in self.tables["fallback"]:
            return self.tables["fallback"][name], True
        if name in FOREIGN:
            return None, False
        news = {self.tables["members"].get(f"{key}.{name}") for key in self.members[name]}
        news |= {new for entry, new in self.tables["members"].items() if entry.rsplit(".", 1)[1] == name}
        return (next(iter(news)), True) if len(news) == 1 else (None, False)

    def run(self) -> None:
        """Compute all edits, then write and move the files."""
        for module in self.files:
            for node in ast.walk(module.tree):
                self.visit(node, module)
            if module.name:
                self.in_doctests(module)
        self.check()
        for module in self.files:
            self.write(module)
        for path in self.texts:
            text = path.read_text()
            new = self.in_text(self.in_blocks(path, text))
            if new != text:
                path.write_text(new)
        self.move()

    def in_blocks(self, path: Path, text: str) -> str:
        """Rename in the Python blocks of a page, which are read as one program."""
        lines, code, inside = text.split("\n"), [], False
        for line in lines:
            if line.lstrip().startswith("```"):
                inside = line.strip() in ("```python", "```{code-block} python")
                code.append("")
            else:
                code.append(line if inside else "")
        return self.in_code(path, None, lines, code)

    def in_doctests(self, module: Module) -> None:
        """Add the edits of the examples in docstrings, each read as a program."""
        for node in ast.walk(module.tree):
            if not isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.Module)) or ast.get_docstring(node) is None:
                continue
            first, last = node.body[0].lineno, node.body[0].end_lineno
            code = [""] * len(module.lines)
            for number in range(first, last + 1):
                matches = re.match(r"\s*(>>>|\.\.\.) (.*)", module.lines[number - 1])
                if matches:
                    code[number - 1] = matches.group(2)
            if any(code):
                before = {
                    number: len(module.lines[number - 1]) - len(code[number - 1]) for number in range(first, last)
                }
                for line, start, end, new in self.edits_of(module.path, module.name, code):
                    shift = before[line]
                    if end < 0:
                        module.edits.add((line, start + shift, len(module.lines[line - 1]), new))
                    else:
                        module.edits.add((line, start + shift, end + shift, new))

    def edits_of(self, path: Path, name: str | None, code: list[str]) -> set[tuple[int, int, int, str]]:
        """Return the edits of a piece of code that is no file."""
        try:
            piece = Module(path, name, "\n".join(code))
        except SyntaxError:
            return set()
        if name:  # its own variables are not those of the module
            piece.name, top = name, piece.scopes[piece.tree]
            top.node = ast.Lambda()
        for node in ast.walk(piece.tree):
            self.visit(node, piece)
        return piece.edits

    def in_code(self, path: Path, name: str | None, lines: list[str], code: list[str]) -> str:
        """Return the text of lines after the edits of their code."""
        edited = list(lines)
        for line, start, end, new in sorted(self.edits_of(path, name, code), reverse=True):
            if end < 0 and -end != line:
                print(f"{path.relative_to(ROOT)}:{line}: an import of several lines is left alone")
                continue
            end = len(edited[line - 1]) if end < 0 else end
            edited[line - 1] = edited[line - 1][:start] + new + edited[line - 1][end:]
        return "\n".join(edited)

    def visit(self, node: ast.AST, module: Module) -> None:
        """Compute the edits of one node."""
        scope = module.scopes.get(node)
        if isinstance(node, ast.Name):
            self.visit_name(node, module)
        elif isinstance(node, ast.Attribute):
            self.visit_attribute(node, module)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            self.visit_import(node, module)
        elif isinstance(node, ast.Import):
            for a in node.names:
                new = self.new_module(a.name)
                if new != a.name:
                    self.edit(module, a.lineno, a.col_offset, a.name, new)
        elif isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            new = None
            outer = scope.parent if scope else None
            if module.name and outer and isinstance(outer.node, ast.Module):
                new = self.tables["names"].get(f"{module.name}:{node.name}")
            elif module.name and outer and isinstance(outer.node, ast.ClassDef):
                new = self.member(f"{module.name}:{outer.path}", node.name)[0]
            elif module.name and outer:
                new = self.by_local.get(f"{module.name}:{outer.path}", {}).get(node.name)
            if new:
                offset = node.col_offset
                self.edit_after(module, node.lineno, offset + 4, node.name, new)
            if isinstance(node, FUNCTIONS) and module.name:
                key = f"{module.name}:{scope.path}"
                renamed = self.by_local.get(key, {}) | self.parameters(key)
                for a in ast.walk(node.args):
                    if isinstance(a, ast.arg) and a.arg in renamed:
                        self.edit(module, a.lineno, a.col_offset, a.arg, renamed[a.arg])
        elif isinstance(node, ast.Call):
            self.visit_keywords(node, module)
            self.visit_attribute_name(node, module)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            self.visit_text(node, module)
        elif isinstance(node, ast.Lambda):
            for a in ast.walk(node.args):
                new = self.bound_name(a.arg, scope, module) if isinstance(a, ast.arg) else None
                if new:
                    self.edit(module, a.lineno, a.col_offset, a.arg, new)
        elif isinstance(node, ast.Assign | ast.AugAssign) and "__all__" in (
            getattr(t, "id", "") for t in getattr(node, "targets", None) or [node.target]
        ):
            for part in ast.walk(node.value):
                if isinstance(part, ast.Constant) and module.name:
                    self.edit_string(part, module)
        if isinstance(node, (*FUNCTIONS, ast.AnnAssign)):
            roots = [getattr(node, "returns", None), getattr(node, "annotation", None)]
            roots += (
                [a.annotation for a in ast.walk(node.args) if isinstance(a, ast.arg)] if hasattr(node, "args") else []
            )
            words = {
                part
                for root in roots
                if root is not None
                for literal in ast.walk(root)
                if isinstance(literal, ast.Subscript) and getattr(literal.value, "id", "") == "Literal"
                for part in ast.walk(literal)
            }
            for part in (part for root in roots if root is not None for part in ast.walk(root)):
                if isinstance(part, ast.Constant) and isinstance(part.value, str) and module.name and part not in words:
                    self.edit_string(part, module)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            for name in node.names:
                home = module.scopes[node].parent and module.scopes[node].parent.find(name)
                if home is not None:
                    new = self.bound_name(name, home, module)
                    if new:
                        self.edit_after(module, node.lineno, node.col_offset, name, new)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            new = self.bound_name(node.name, module.scopes[node], module)
            if new:
                self.edit_after(module, node.type.end_lineno, node.type.end_col_offset, node.name, new)

    def parameters(self, key: str) -> dict[str, str]:
        """Return the renamed parameters of a function; those of a method are also those of its family."""
        renamed = dict(self.by_function.get(key, {}))
        module, _, path = key.partition(":")
        if "." in path:
            owner, method = path.rsplit(".", 1)
            for relative in self.family(f"{module}:{owner}"):
                renamed |= self.by_function.get(f"{relative}.{method}", {})
        return renamed

    def bound_name(self, name: str, home: Scope, module: Module) -> str | None:
        """Return the new name of what a scope binds."""
        if name in home.origin:
            meant = self.imported(home.origin[name])
            original = home.origin[name].rpartition(":")[2].rpartition(".")[2]
            return self.new_name(meant) if original == name else None
        if isinstance(home.node, ast.Module):
            return self.tables["names"].get(f"{module.name}:{name}") if module.name else None
        if isinstance(home.node, ast.ClassDef):
            return self.member(f"{module.name}:{home.path}", name)[0] if module.name else None
        module_home = home
        while module_home is not None:  # what comprehensions bind is listed under their function
            if isinstance(module_home.node, FUNCTIONS):
                key = f"{module.key}:{module_home.path}"
                new = self.by_local.get(key, {}).get(name)
                return self.parameters(key).get(name) or new
            if not isinstance(module_home.node, (*COMPREHENSIONS, ast.Lambda)):
                return None
            module_home = module_home.parent
        return None

    def visit_name(self, node: ast.Name, module: Module) -> None:
        """Rename a variable by the scope that binds it."""
        scope = module.scopes[node]
        home = scope.find(node.id)
        if home is None:
            meant = self.canonical(module.name, node.id) if module.name else None  # from a star import
            new = self.new_name(meant)
        else:
            new = self.bound_name(node.id, home, module)
        if not new:
            return
        existing = scope.find(new)
        if existing is not None and existing is not home:
            self.warn(module, node.lineno, f"{node.id} -> {new}, which means something else there")
        self.edit(module, node.lineno, node.col_offset, node.id, new)

    def visit_attribute(self, node: ast.Attribute, module: Module) -> None:
        """Rename what is taken from a module, and members."""
        scope = module.scopes[node]
        source = node.value.func if isinstance(node.value, ast.Call) else node.value
        base = self.tables["objects"].get(getattr(source, "id", "")) or self.meaning(node.value, scope, module)
        if base and ":" not in base:
            meant = self.canonical(base, node.attr)
            new = self.new_name(meant)
            if meant and ":" not in meant and self.new_module(meant).rpartition(".")[0] != self.new_module(base):
                full = self.new_module(meant).removeprefix("calibrant.")
                if base == "calibrant":
                    new = full
                else:
                    self.warn(module, node.lineno, f"{base}.{node.attr} moves to {self.new_module(meant)}")
            if new:
                self.edit_end(node, new, module)
            return
        if node.attr not in self.member_names:
            return
        owner = self.type_of(node.value, scope, module)
        if owner is None and base in self.classes:
            owner = base
        if owner is None and self.is_foreign(node.value, scope):
            return
        new, certain = self.member(owner, node.attr)
        if not certain:
            self.warn(module, node.lineno, f".{node.attr} is ambiguous")
        elif new:
            self.edit_end(node, new, module)

    def visit_attribute_name(self, node: ast.Call, module: Module) -> None:
        """Rename the attribute that `setattr(object, "name", ...)` and its kin take as a string."""
        function = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if function not in ("setattr", "getattr", "hasattr", "delattr") or len(node.args) < 2:
            return
        text = node.args[1]
        if not isinstance(text, ast.Constant) or not isinstance(text.value, str) or "." in text.value:
            return
        base = self.meaning(node.args[0], module.scopes[node], module)
        if base and ":" not in base:
            new = self.new_name(self.canonical(base, text.value))
        else:
            if self.members[text.value] or module.name:
                new = self.member(None, text.value)[0] if not module.name else None
                news = {entry for entry in self.tables["members"] if entry.endswith(f".{text.value}")}
            else:
                news = {new for entry, new in self.tables["names"].items() if entry.endswith(f":{text.value}")}
                new = next(iter(news)) if len(news) == 1 else None
            if news and not new:
                self.warn(module, node.lineno, f'"{text.value}" is ambiguous')
        if new:
            start = module.column(text.lineno, text.col_offset) + 1
            module.edits.add((text.lineno, start, start + len(text.value), new))

    def edit_end(self, node: ast.Attribute, new: str, module: Module) -> None:
        """Replace the last part of an attribute."""
        offset = node.end_col_offset - len(node.attr.encode())
        self.edit(module, node.end_lineno, offset, node.attr, new)

    def visit_import(self, node: ast.ImportFrom, module: Module) -> None:
        """Rewrite an import; submodules that move elsewhere get an import of their own."""
        home = self.new_module(node.module)
        lines, kept_lines = [], []
        for a in node.names:
            meant = None if a.name == "*" else self.canonical(node.module, a.name)
            if meant and ":" not in meant and f"{node.module}.{a.name}" == meant:
                parent, _, last = self.new_module(meant).rpartition(".")
            else:
                parent, last = home, self.tables["names"].get(meant or "", a.name)
                if meant and ":" in meant and meant.split(":")[1] != a.name:
                    last = a.name  # re-exported under another name
            local = last if a.asname == a.name else a.asname
            text = last + (f" as {local}" if a.asname and (local != last or a.asname == a.name) else "")
            (kept_lines if parent == home else lines).append((parent, text))
        if (
            home == node.module
            and not lines
            and all(text.split(" as ")[0] == a.name for (_, text), a in zip(kept_lines, node.names, strict=True))
        ):
            return
        indent = " " * module.column(node.lineno, node.col_offset)
        groups: dict[str, list[str]] = defaultdict(list)
        for parent, text in [*kept_lines, *lines]:
            groups[parent].append(text)
        last_line = module.lines[node.end_lineno - 1][module.column(node.end_lineno, node.end_col_offset) :]
        opening = re.search(r"import\s*\((\s*#.*)", module.lines[node.lineno - 1])
        comment = last_line or (opening.group(1) if opening else "")
        statements = [f"from {p} import {', '.join(t)}" for p, t in groups.items()]
        statements[0] += comment
        text = ("\n" + indent).join(statements)
        start, end = module.column(node.lineno, node.col_offset), node.end_lineno
        module.edits.add((node.lineno, start, -end, text))

    def visit_keywords(self, node: ast.Call, module: Module) -> None:
        """Rename keywords: parameters of known functions, and fields of dataclasses."""
        scope = module.scopes[node]
        if not any(k.arg for k in node.keywords):
            return
        meant = self.meaning(node.func, scope, module)
        renamed: dict[str, str] = {}
        if meant in self.classes:
            for base in self.bases(meant):
                renamed |= self.parameters(f"{base}.__init__")
                prefix = f"{base}."
                renamed |= {e[len(prefix) :]: n for e, n in self.tables["members"].items() if e.startswith(prefix)}
        elif meant and ":" in meant:
            renamed |= self.parameters(meant)
        elif isinstance(node.func, ast.Attribute):
            owner = self.type_of(node.func.value, scope, module)
            direct = self.meaning(node.func.value, scope, module)
            owner = owner or (direct if direct in self.classes else None)
            if owner:
                for base in self.bases(owner):
                    renamed |= self.parameters(f"{base}.{node.func.attr}")
            else:
                paths_to_name = [
                    e for e in self.by_function if e.rpartition(".")[2] == node.func.attr and "." in e.split(":")[1]
                ]
                owners = self.members[node.func.attr]
                for entry in paths_to_name:
                    if len(owners) <= len(paths_to_name):
                        renamed |= self.by_function[entry]
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        for k in node.keywords:
            new = renamed.get(k.arg or "")
            if new is None and name in COPIES and k.arg in self.member_names:
                target = node.func.value if isinstance(node.func, ast.Attribute) else (node.args or [None])[0]
                owner = self.type_of(target, scope, module) if target is not None else None
                new, certain = self.member(owner, k.arg)
                if not certain:
                    self.warn(module, k.lineno, f"{k.arg}= is ambiguous")
            if new:
                self.edit(module, k.lineno, k.col_offset, k.arg, new)

    def edit_string(self, node: ast.Constant, module: Module) -> None:
        """Rename what an annotation in quotes, or `__all__`, names."""
        start, end = module.column(node.lineno, node.col_offset), module.column(node.lineno, node.end_col_offset)
        for matches in re.finditer(r"(?<![\w.])[A-Za-z_]\w*", module.lines[node.lineno - 1][start:end]):
            new = self.new_name(self.canonical(module.name or "", matches.group()))
            if new:
                module.edits.add((node.lineno, start + matches.start(), start + matches.end(), new))

    def visit_text(self, node: ast.Constant, module: Module) -> None:
        """Rename dotted names in strings, and point out strings that equal a renamed name."""
        for number in range(node.lineno, node.end_lineno + 1):
            line = module.lines[number - 1]
            first = module.column(number, node.col_offset) if number == node.lineno else 0
            last = module.column(number, node.end_col_offset) if number == node.end_lineno else len(line)
            for matches in self.dotted.finditer(line, first, last):
                new = self.dotted_name(matches.group())
                if new != matches.group():
                    module.edits.add((number, matches.start(), matches.end(), new))
        if node.value in self.member_names | self.all_names and len(node.value) > 2:
            self.warn(module, node.lineno, f'string "{node.value}" equals a renamed name')

    dotted = re.compile(r"\bcalibrant(?:\.\w+)+(?::\w+)?")

    def dotted_name(self, text: str) -> str:
        """Return the new form of "calibrant.module", "calibrant.module.name" or "calibrant.module:name"."""
        path, _, name = text.partition(":")
        parts = path.split(".")
        for length in range(len(parts), 0, -1):
            prefix = ".".join(parts[:length])
            if prefix in self.modules:
                rest = parts[length:]
                if rest:
                    meant = self.canonical(prefix, rest[0])
                    rest[0] = self.tables["names"].get(meant or "", rest[0])
                new = ".".join([self.new_module(prefix), *rest])
                if name:
                    name = self.tables["names"].get(f"{prefix}:{name}", name)
                return f"{new}:{name}" if name else new
        return text

    def in_text(self, text: str) -> str:
        """Rename dotted names and paths of files in documentation."""
        text = self.dotted.sub(lambda matches: self.dotted_name(matches.group()), text)
        text = re.sub(r"(?<=`)(losses|metrics|calibrators|nn|plots|theory)\.(\w+)", self.short_name, text)
        for old, new in sorted(self.tables["modules"].items(), key=lambda pair: -len(pair[0])):
            for ending in (".py", "/"):
                a, b = old.replace(".", "/") + ending, new.replace(".", "/") + ending
                text = re.sub(rf"(?<=src/){re.escape(a)}", b, text)
        return text

    def short_name(self, matches: re.Match[str]) -> str:
        """Return the new form of "metrics.name", as pages write it."""
        meant = self.canonical(f"calibrant.{matches[1]}", matches[2])
        return f"{matches[1]}.{self.tables['names'].get(meant or '', matches[2])}"

    def check(self) -> None:
        """Report entries of the tables that name nothing."""
        for entry in self.tables["names"]:
            module, name = entry.split(":")
            if module not in self.modules or name not in self.modules[module].scopes[self.modules[module].tree].bound:
                print(f"names: {entry} does not exist")
        for entry in self.tables["members"]:
            owner, _, name = entry.rpartition(".")
            if owner not in self.classes or name not in self.own_members(self.classes[owner]):
                print(f"members: {entry} does not exist")
        for entry in [*self.tables["parameters"], *self.tables["locals"]]:
            function, _, name = entry.rpartition(".")
            matches = self.function(function)
            inside = matches and any(
                name in scope.bound and (scope.path == function.split(":")[1])
                for node, scope in matches[0].scopes.items()
            )
            if not inside:
                print(f"parameters or locals: {entry} does not exist")

    def write(self, module: Module) -> None:
        """Apply the edits of a file, last first."""
        if not module.edits:
            return
        lines = list(module.lines)
        spans = sorted(module.edits, reverse=True)
        whole_nodes = [(line, -end) for line, _, end, _ in spans if end < 0]
        for line, start, end, new in spans:
            if end < 0:
                lines[line - 1 : -end] = [lines[line - 1][:start] + new]
            elif not any(first <= line <= last for first, last in whole_nodes):
                lines[line - 1] = lines[line - 1][:start] + new + lines[line - 1][end:]
        module.path.write_text("\n".join(lines))

    def move(self) -> None:
        """Move the files of renamed modules."""
        for old in sorted(self.modules, key=lambda name: -name.count(".")):
            new = self.new_module(old)
            source = self.modules[old].path
            package = source.name == "__init__.py"
            target = ROOT / "src" / Path(*new.split("."))
            becomes_package = any(
                self.new_module(existing).startswith(new + ".") for existing in self.modules if existing != old
            )
            if (new == old and package == becomes_package) or old == "calibrant":
                continue
            target = target / "__init__.py" if package or becomes_package else target.with_suffix(".py")
            target.parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(["git", "mv", source, target], check=True, cwd=ROOT)
        for old, new in self.tables["modules"].items():
            folder, target = ROOT / "src" / Path(*old.split(".")), ROOT / "src" / Path(*new.split("."))
            listed = subprocess.run(["git", "ls-files", folder], cwd=ROOT, capture_output=True, text=True)
            for line in listed.stdout.splitlines():
                rest = (ROOT / line).relative_to(folder) if (ROOT / line).is_relative_to(folder) else None
                if rest is not None and rest != Path():
                    (target / rest).parent.mkdir(parents=True, exist_ok=True)
                    subprocess.run(["git", "mv", ROOT / line, target / rest], check=True, cwd=ROOT)


if __name__ == "__main__":
    Renamer([Path(name) for name in sys.argv[1:]]).run()
