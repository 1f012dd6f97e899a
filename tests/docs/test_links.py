"""Links lead somewhere, pictures are described, and the gallery's files are as short as it says."""

import ast
import re

import pytest
from shown import ROOT

DOCS = ROOT / "docs"
MADE = ("auto_tutorials", "auto_gallery", "reference/api", "reference/command_line.md")  # by the build
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")] + [
    path for path in sorted(DOCS.rglob("*.md")) if not str(path.relative_to(DOCS)).startswith(MADE)
]
SCRIPTS = sorted([*(DOCS / "gallery").rglob("*.py"), *(DOCS / "tutorials").glob("*.py")])
LINK = re.compile(r"(?<!\!)\[[^\]]*\]\(([^)\s]+)\)")
PICTURE = re.compile(
    r"!\[([^\]]*)\]\(([^)\s]+)\)|<img ([^>]*)>|^```\{image\} (\S+)\n(.*?)^```", re.MULTILINE | re.DOTALL
)


def prose(path) -> str:
    """The text of a page without its code."""
    return re.sub(r"^```(?!\{image\}).*?^```|`[^`\n]+`", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(path) -> set[str]:
    heads = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


def broken(path, link: str) -> str:
    """Why a link leads nowhere; nothing if it leads somewhere, or to another place of the web."""
    if link.startswith(("https://", "mailto:")):
        return ""
    place, _, anchor = link.partition("#")
    target = (path.parent / place).resolve() if place else path
    inside = str(target.relative_to(DOCS)) if target.is_relative_to(DOCS) else ""
    if inside.startswith(MADE):
        return "" if not inside.startswith("auto_") or inside.endswith(("/index", "/index.rst")) else "no such page"
    if not target.exists():
        return "no such file"
    return f"no heading {anchor!r}" if anchor and anchor not in anchors(target) else ""


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path):
    found = {link: broken(path, link) for link in LINK.findall(prose(path))}
    assert {link: why for link, why in found.items() if why} == {}
    assert "http://" not in path.read_text()


def test_broken_links_are_noticed():
    page = DOCS / "metrics.md"
    assert broken(page, "nowhere.md") == "no such file"
    assert broken(page, "theory.md#no-such-heading") == "no heading 'no-such-heading'"
    assert broken(page, "theory.md#the-figures") == ""
    assert broken(page, "#conventions") == ""


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_pictures_are_there_and_described(path):
    for alternative, file, html, image, options in PICTURE.findall(path.read_text()):
        said = dict(re.findall(r'(\w+)="([^"]*)"', html)) | dict(re.findall(r"^:(\w+): (.*)$", options, re.MULTILINE))
        assert len((alternative or said.get("alt", "")).split()) >= 3, f"{path}: a picture without words"
        assert (path.parent / (file or image or said["src"])).is_file()


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: str(path.relative_to(DOCS)))
def test_scripts_are_short_and_say_what_they_show(path):
    text = path.read_text()
    title, line, *_ = (ast.get_docstring(ast.parse(text)) or "").splitlines()
    assert len(title) <= len(line)
    assert set(line) == {"="}
    assert "shared" not in text.replace("shared within", "").replace("sharey", "").replace("sharex", "")
    if "gallery" in path.parts:
        assert len(text.splitlines()) < 70
    for name in re.findall(r":doc:`/([^`]+)`", text):
        assert (DOCS / f"{name}.md").is_file() or name.startswith(MADE)


def test_the_gallery_has_enough():
    assert len([path for path in SCRIPTS if "gallery" in path.parts]) >= 25
    assert len([path for path in SCRIPTS if "tutorials" in path.parts]) >= 9


# The built pages


def test_faults_of_built_pages_are_noticed(tmp_path, monkeypatch):
    pytest.importorskip("sphinx", reason="sphinx is not installed")
    monkeypatch.syspath_prepend(str(DOCS))
    from extension import checked

    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "index.html").write_text('<h1 id="here">B</h1><a href="../a.html">back</a>')
    fine = '<a href="b/#here">b</a><a href="#there">a</a><p id="there"><img src="x.png" alt="a curve"></p>'
    (tmp_path / "a.html").write_text(fine)
    assert list(checked.faults(tmp_path)) == []
    (tmp_path / "a.html").write_text(
        fine + '<a href="b/index.html#nowhere">b</a><a href="c.html">c</a><img src="y.png" alt="">'
        '<script src="https://example.org/x.js"></script>'
    )
    found = "\n".join(checked.faults(tmp_path))
    for fault in ("#nowhere has no such place", "c.html leads nowhere", "y.png without words", "x.js is fetched"):
        assert fault in found
    assert len(found.splitlines()) == 4
