"""Move modules of the package, and write their new names wherever the old ones stand.

    python tools/move_modules.py MOVES.toml

The file has a table `[modules]` of old and new dotted names below the package, and `[paths]` of old and new paths.
Only names change: imports, dotted names in code and text, and paths of files. `from calibrant import a, b` becomes a
line for each module that moves. A second run changes nothing.
"""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

PACKAGE = "calibrant"
SOURCE = Path("src") / PACKAGE
TEXT_SUFFIXES = {".py", ".md", ".toml", ".j2", ".yml", ".yaml", ".rst", ".txt", ".cfg", ".json", ".ipynb", ""}
UNTOUCHED = {"requirements.lock", "constraints.txt", "CHANGELOG.md", "LICENSE"}


def move_files(modules: dict[str, str], paths: dict[str, str]) -> None:
    """Move the files of modules and other paths with git."""
    moves = dict(paths)
    for old, new in modules.items():
        base, goal = SOURCE / old.replace(".", "/"), SOURCE / new.replace(".", "/")
        if base.is_dir():
            moves[str(base)] = str(goal)
        elif base.with_suffix(".py").is_file():
            moves[str(base) + ".py"] = str(goal) + ".py"
    for old, new in moves.items():
        if Path(old).exists() and not (Path(new).is_file() or any(Path(new).rglob("*.py"))):
            Path(new).parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(["git", "mv", old, new], check=True)


def rename(text: str, modules: dict[str, str], paths: dict[str, str]) -> str:
    """Return a text with the new names of modules and paths, the longest first."""
    for old, new in sorted(modules.items(), key=lambda pair: -len(pair[0])):
        is_part = new.startswith(f"{old}.")  # a module that becomes a part of a package of its name
        after = rf"(?!\.{re.escape(new[len(old) + 1 :])}\b)" if is_part else ""
        text = re.sub(rf"(?<![\w.]){PACKAGE}\.{re.escape(old)}\b(?!\(){after}", f"{PACKAGE}.{new}", text)
        old_path, new_path = (f"{PACKAGE}/{name.replace('.', '/')}" for name in (old, new))
        text = re.sub(rf"(?<![\w]){re.escape(old_path)}(?=\.py\b|/)", new_path, text)
    for old, new in sorted(paths.items(), key=lambda pair: -len(pair[0])):
        text = re.sub(rf"(?<![\w/]){re.escape(old)}(?![\w])", new, text)
    return text


def split_imports(text: str, modules: dict[str, str]) -> str:
    """Return code in which names of moved modules are imported from their new packages."""
    tops = {old: new for old, new in modules.items() if "." not in old}
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return text
    lines = text.splitlines(keepends=True)
    nodes = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == PACKAGE and any(a.name in tops for a in node.names)
    ]
    for node in sorted(nodes, key=lambda node: -node.lineno):
        indent = " " * node.col_offset
        comment = re.search(r"\s+# (noqa|pyright).*$", lines[node.end_lineno - 1].rstrip("\n"))
        kept_names = [a for a in node.names if a.name not in tops]
        new_lines = [f"{indent}from {PACKAGE} import {', '.join(map(ast.unparse, kept_names))}\n"] if kept_names else []
        for alias in node.names:
            if alias.name in tops:
                parent, _, name = tops[alias.name].rpartition(".")
                bound = alias.asname or alias.name
                imported = name if name == bound else f"{name} as {bound}"
                new_lines.append(
                    f"{indent}from {PACKAGE}.{parent} import {imported}\n"
                    if parent
                    else f"{indent}from {PACKAGE} import {imported}\n"
                )
        if comment:
            new_lines[-1] = new_lines[-1].rstrip("\n") + comment.group(0) + "\n"
        lines[node.lineno - 1 : node.end_lineno] = new_lines
    return "".join(lines)


def main() -> None:
    """Move the files, then rewrite every text under version control."""
    plan = tomllib.loads(Path(sys.argv[1]).read_text())
    modules, paths = plan["modules"], plan.get("paths", {})
    outside = {old: new for old, new in modules.items() if old not in plan["public"]["names"]}
    move_files(modules, paths)
    for name in subprocess.run(["git", "ls-files"], check=True, capture_output=True, text=True).stdout.splitlines():
        path = Path(name)
        if path.suffix not in TEXT_SUFFIXES or path.name in UNTOUCHED or path.is_symlink() or not path.is_file():
            continue
        if path.resolve() in (Path(sys.argv[1]).resolve(), Path(__file__).resolve()):
            continue
        text = path.read_text()
        moves = modules if path.is_relative_to("src") else outside
        new = split_imports(text, moves) if path.suffix == ".py" else text
        new = rename(new, moves, paths)
        if new != text:
            path.write_text(new)


if __name__ == "__main__":
    main()
