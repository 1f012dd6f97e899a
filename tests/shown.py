"""What a page of the docs shows, run as a reader would: block after block, each knowing what came before."""

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def blocks(page: str, language: str = "python") -> list[str]:
    """Return the blocks of a page of the repository, such as docs/losses.md."""
    fences = re.findall(r"^```([^\n]*)\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
    return [block for said, block in fences if said.strip() == language]


def run(page: str, **given: Any) -> dict[str, Any]:
    """Run a page's code, and return everything that it defines; `given` is what its text takes for granted."""
    names: dict[str, Any] = {"__name__": "page", **given}
    for i, block in enumerate(blocks(page)):
        exec(compile(block, f"{page}, block {i + 1}", "exec"), names)  # our own pages
    return names
