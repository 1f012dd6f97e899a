"""Draw the layers of the package from the import rules of pyproject.toml.

`python tools/draw_layers.py` writes the picture docs/images/layers.svg and the table of folders in CONTRIBUTING.md,
whose sentences are those of each folder's `__init__`. With `--check`, it fails if one of them is stale.
"""

import argparse
import ast
import html
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PICTURE = Path("docs/images/layers.svg")
PAGE = Path("CONTRIBUTING.md")
TABLE = re.compile(r"(?<=<!-- layers -->\n).*?(?=<!-- end of layers -->)", re.DOTALL)
ROLES = {  # color, and the packages whose work it is
    "trains networks": ("#fde2c8", ("losses", "nn")),
    "measures and repairs": ("#d3e5fb", ("predictions", "metrics", "calibrators", "assessment")),
    "decides and monitors": ("#d8f0d6", ("decisions", "planning", "monitoring", "language_models", "deployment")),
    "reproduces papers": ("#eadcf7", ("theory", "lab")),
    "serves all others": ("#e8e8e8", ("_core", "io", "reports", "integrations", "cli")),
}
WIDTH, ROW, GAP, MARGIN, LEGEND = 760, 44, 8, 28, 40  # pixels


def layers() -> list[list[str]]:
    """Return the packages of each layer, the highest first."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    rows = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    return [[name.strip().removeprefix("calibrant.") for name in row.split("|")] for row in rows]


def sentence(package: str) -> str:
    """Return the first paragraph of a package's docstring on one line."""
    tree = ast.parse((ROOT / "src/calibrant" / package / "__init__.py").read_text())
    return " ".join((ast.get_docstring(tree) or "").split("\n\n")[0].split())


def parts(package: str) -> list[str]:
    """Return the folders of a package that hold modules."""
    return sorted(path.parent.name for path in (ROOT / "src/calibrant" / package).glob("*/__init__.py"))


def color(package: str) -> str:
    """Return the color of a package's role."""
    return next(fill for fill, packages in ROLES.values() if package in packages)


def table() -> str:
    """Return the folders with their sentences as Markdown, one group of rows per layer."""
    lines = ["| layer | folder | what it is for, and what it never does |", "|--:|---|---|"]
    for i, row in enumerate(layers()):
        number = str(len(layers()) - i)
        lines += [f"| {'' if j else number} | `{name}/` | {sentence(name)} |" for j, name in enumerate(row)]
    return "\n".join(lines) + "\n"


def picture() -> str:
    """Return the layers as SVG: a row of boxes per layer, with the folders in each package below its name."""
    rows = layers()
    height = len(rows) * (ROW + GAP) + LEGEND
    label = "Layers of the package, the command line at the top and the core at the bottom"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}" '
        'font-family="system-ui, sans-serif" font-size="14" text-anchor="middle">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<path d="M14 6 V{height - LEGEND - 12} m-5 -8 l5 8 l5 -8" fill="none" stroke="#555555" stroke-width="1.5"/>',
    ]
    for i, row in enumerate(rows):
        width = (WIDTH - MARGIN - GAP * len(row)) / len(row)
        for j, name in enumerate(row):
            lines += box(name, MARGIN + j * (width + GAP), i * (ROW + GAP) + 2, width)
    return "\n".join([*lines, *legend(height - LEGEND + 8), "</svg>"]) + "\n"


def box(package: str, x: float, y: float, width: float) -> Iterator[str]:
    """Yield the box of a package, with its name and the folders in it."""
    folders, middle, place = parts(package), f"{x + width / 2:.1f}", f'x="{x:.1f}" y="{y}" width="{width:.1f}"'
    yield f'<rect {place} height="{ROW}" rx="5" fill="{color(package)}" stroke="#777777"/>'
    yield f'<text x="{middle}" y="{y + (19 if folders else 27)}" font-weight="600">{html.escape(package)}</text>'
    if folders:
        yield f'<text x="{middle}" y="{y + 36}" font-size="11" fill="#444444">{html.escape(", ".join(folders))}</text>'


def legend(y: int) -> Iterator[str]:
    """Yield the meaning of the colors and of the arrow."""
    step = (WIDTH - MARGIN) / len(ROLES)
    for i, (role, (fill, _)) in enumerate(ROLES.items()):
        x = MARGIN + i * step
        yield f'<rect x="{x:.1f}" y="{y}" width="12" height="12" fill="{fill}" stroke="#777777"/>'
        yield f'<text x="{x + 17:.1f}" y="{y + 11}" font-size="11" text-anchor="start">{role}</text>'
    text = "A file imports only from rows below its own."
    yield f'<text x="{MARGIN}" y="{y + 28}" font-size="12" text-anchor="start">{text}</text>'


def expected() -> dict[Path, str]:
    """Return the texts of the files that show the layers."""
    return {PICTURE: picture(), PAGE: TABLE.sub(lambda _: table(), (ROOT / PAGE).read_text())}


def main() -> None:
    """Write the files, or list the stale ones."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    stale = {path: text for path, text in expected().items() if not _is_current(path, text)}
    for path, text in stale.items():
        if not check:
            (ROOT / path).write_text(text)
    if check and stale:
        sys.exit(f"{', '.join(map(str, stale))}: stale. Try python tools/draw_layers.py.")


def _is_current(path: Path, text: str) -> bool:
    return (ROOT / path).is_file() and (ROOT / path).read_text() == text


if __name__ == "__main__":
    main()
