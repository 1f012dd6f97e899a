"""Finish what `rename.py` left: names that only a type checker can resolve, texts, and lines that grew too long.

`python tools/finish_renames.py tools/renames/*.toml` runs after `rename.py` with the same tables. `[[replace]]` tables
hold a file, a text and what takes its place; `[[create]]` tables hold a new file and its text. Then errors of pyright
that a table explains are repaired, and strings that no longer fit on their line are divided.
"""

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
BIN = ROOT / ".venv" / "bin"
ATTRIBUTE = re.compile(r'[Aa]ttribute "(\w+)" for class "([^"]+)"')
KEYWORD = re.compile(r'No parameter named "(\w+)"')
STRING_LINE = re.compile(r'^(\s*)(return |\w+ = )?(f?)"(.*)"(,?)$')


def read_tables(paths: list[Path]) -> dict[str, Any]:
    """Return all tables as one."""
    tables: dict[str, Any] = defaultdict(dict)
    for path in paths:
        for kind, entries in tomllib.loads(path.read_text()).items():
            if isinstance(entries, list):
                tables[kind] = [*tables.get(kind, []), *entries]
            else:
                tables[kind].update(entries)
    return tables


def replace_texts(tables: dict[str, Any]) -> None:
    """Create files and replace texts."""
    for entry in tables["create"]:
        path = ROOT / entry["file"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(entry["text"])
    for entry in tables["replace"]:
        path = ROOT / entry["file"]
        text = path.read_text()
        if entry["old"] not in text and entry["new"] not in text:
            print(f"{entry['file']}: nothing to replace: {entry['old']!r}")
        path.write_text(text.replace(entry["old"], entry["new"]))


def explanations(tables: dict[str, Any]) -> tuple[dict[Any, set[str]], dict[Any, set[str]]]:
    """Return the new names of members by (class, old), and of keywords by (function, old); class "" is any."""
    members: dict[Any, set[str]] = defaultdict(set)
    keywords: dict[Any, set[str]] = defaultdict(set)
    for entry, new in tables["members"].items():
        owner, old = entry.rsplit(".", 1)
        name = tables["names"].get(owner, owner.split(":")[1].split(".")[-1])
        members[name, old].add(new)
        members["", old].add(new)
        keywords[name, old].add(new)
        for function in ("replace", "cls"):
            keywords[function, old].add(new)
    for entry, new in tables["parameters"].items():
        function, old = entry.rsplit(".", 1)
        *owner, last = function.split(":")[1].split(".")
        name = tables["names"].get(function) or tables["members"].get(function) or last
        if last == "__init__":
            name = tables["names"].get(f"{function.split(':')[0]}:{owner[0]}", owner[0])
        keywords[name, old].add(new)
    return members, keywords


def called_function(text: str, line: int, column: int) -> str:
    """Return the name of the function that is called with the keyword at a position."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and any((k.lineno, k.col_offset) == (line, column) for k in node.keywords):
            return getattr(node.func, "attr", getattr(node.func, "id", ""))
    return ""


def repair(tables: dict[str, Any], folder: str) -> int:
    """Repair what a table explains of pyright's errors, and return how many there were."""
    members, keywords = explanations(tables)
    command = [BIN / "pyright", "--pythonpath", BIN / "python", "--outputjson", folder]
    output = subprocess.run(command, capture_output=True, text=True, cwd=ROOT).stdout
    edits: dict[Path, set[tuple[int, int, int, str]]] = defaultdict(set)
    for error in json.loads(output)["generalDiagnostics"]:
        path, start, message = Path(error["file"]), error["range"]["start"], error["message"]
        line, column = start["line"], start["character"]
        news: set[str] = set()
        if hit := ATTRIBUTE.search(message):
            name = re.sub(r"[\[*].*", "", re.sub(r"^type\[(.*)\]$", r"\1", hit[2]))
            news = members.get((name, hit[1])) or members.get(("", hit[1]), set())
        elif hit := KEYWORD.search(message):
            news = keywords.get((called_function(path.read_text(), line + 1, column), hit[1]), set())
        if hit and len(news) == 1:
            edits[path].add((line, column, len(hit[1]), next(iter(news))))
    for path, changes in edits.items():
        lines = path.read_text().split("\n")
        for line, column, length, new in sorted(changes, reverse=True):
            lines[line] = lines[line][:column] + new + lines[line][column + length :]
        path.write_text("\n".join(lines))
    return sum(map(len, edits.values()))


def divide(line: str) -> list[str] | None:
    """Divide the string of a line that is too long at its last blank outside braces, or return None."""
    if not (hit := STRING_LINE.match(line)) or line.strip().startswith('"""'):
        return None
    indent, prefix, f, body, comma = hit.groups()
    indent += "    " if prefix else ""
    depth, cut = 0, 0
    for i, character in enumerate(body):
        depth += ((character == "{") - (character == "}")) if f else 0
        if character == " " and depth == 0 and len(indent) + len(f) + i + 3 <= 118:
            cut = i + 1
    if not cut:
        return None
    parts = [f'{indent}{f if "{" in part else ""}"{part}"' for part in (body[:cut], body[cut:])]
    parts[1] += comma
    return [f"{indent[4:]}{prefix}(", *parts, f"{indent[4:]})"] if prefix else parts


def divide_long_lines() -> None:
    """Divide strings on lines of more than 120 characters."""
    command = [BIN / "ruff", "check", "--select", "E501", "--output-format", "json", "."]
    errors = json.loads(subprocess.run(command, capture_output=True, text=True, cwd=ROOT).stdout)
    for error in sorted(errors, key=lambda error: -error["location"]["row"]):
        path, row = Path(error["filename"]), error["location"]["row"]
        lines = path.read_text().split("\n")
        lines[row - 1 : row] = divide(lines[row - 1]) or [lines[row - 1]]
        path.write_text("\n".join(lines))


if __name__ == "__main__":
    all_tables = read_tables([Path(name) for name in sys.argv[1:]])
    replace_texts(all_tables)
    while repair(all_tables, "src/calibrant"):
        pass
    for _ in range(3):
        subprocess.run([BIN / "ruff", "format", "-q", "."], cwd=ROOT, check=True)
        divide_long_lines()
    subprocess.run([BIN / "ruff", "check", "--fix", "-q", "."], cwd=ROOT)
    subprocess.run([BIN / "ruff", "format", "-q", "."], cwd=ROOT, check=True)
