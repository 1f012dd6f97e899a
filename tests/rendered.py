"""Compare rendered text, such as reports and tables, with the files of tests/golden/texts."""

import os
from pathlib import Path

FOLDER = Path(__file__).parent / "golden" / "texts"


def assert_rendered(name: str, text: str) -> None:
    """Assert that a text equals NAME.txt, apart from spaces at the ends of lines.

    With CALIBRANT_WRITE_GOLDEN=1 the file is rewritten instead: read the diff before you commit it.
    """
    path = FOLDER / f"{name}.txt"
    text = "\n".join(line.rstrip() for line in text.strip("\n").splitlines()) + "\n"
    if os.environ.get("CALIBRANT_WRITE_GOLDEN") == "1":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.is_file(), f"no {path}: CALIBRANT_WRITE_GOLDEN=1 writes it"
    assert text == path.read_text(encoding="utf-8"), f"not as in {path}; CALIBRANT_WRITE_GOLDEN=1 rewrites it"
