"""Compare rendered text, such as reports and tables, with the files of tests/golden/texts."""

import os
from pathlib import Path

FOLDER = Path(__file__).parent / "golden" / "texts"


def assert_rendered(name: str, text: str, *, may_add_lines: bool = False) -> None:
    """Assert that a text equals NAME.txt, apart from spaces at the ends of lines.

    With CALIBRANT_WRITE_GOLDEN=1 the file is rewritten instead: read the diff before you commit it. A text that may add
    lines has those of the file in the same order.
    """
    path = FOLDER / f"{name}.txt"
    lines = [line.rstrip() for line in text.strip("\n").splitlines()]
    if os.environ.get("CALIBRANT_WRITE_GOLDEN") == "1":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert path.is_file(), f"no {path}: CALIBRANT_WRITE_GOLDEN=1 writes it"
    expected = path.read_text(encoding="utf-8").splitlines()
    if may_add_lines:
        remaining = iter(lines)
        lines = [line for line in expected if line in remaining]
    assert lines == expected, f"not as in {path}; CALIBRANT_WRITE_GOLDEN=1 rewrites it"
