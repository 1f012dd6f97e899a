"""Run the code of documentation pages as a reader would, block after block."""

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def blocks(page: str, language: str = "python") -> list[str]:
    """Return the code blocks of a page of the repository, such as docs/losses.md."""
    fences = re.findall(r"^```([^\n]*)\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
    return [block for block_language, block in fences if block_language.strip() == language]


def run(page: str, **variables: Any) -> dict[str, Any]:
    """Run the code of a page, and return everything that it defines; `variables` exist from the start."""
    names: dict[str, Any] = {"__name__": "page", **variables}
    for i, block in enumerate(blocks(page)):
        exec(compile(block, f"{page}, block {i + 1}", "exec"), names)
    return names
