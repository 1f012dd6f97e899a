"""Links and named test files exist, images have descriptions, and the scripts of the gallery are short."""

import ast
import re

import pytest
from doc_pages import ROOT

DOCS = ROOT / "docs"
GENERATED = ("auto_tutorials", "auto_gallery", "reference/api", "reference/command_line.md")
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")] + [
    path for path in sorted(DOCS.rglob("*.md")) if not str(path.relative_to(DOCS)).startswith(GENERATED)
]
SCRIPTS = sorted([*(DOCS / "gallery").rglob("*.py"), *(DOCS / "tutorials").glob("*.py")])
LINK = re.compile(r"(?<!\!)\[[^\]]*\]\(([^)\s]+)\)")
IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)\s]+)\)|<img ([^>]*)>|^```\{image\} (\S+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
TEST_FILE = re.compile(r"[\w/]*\btest_\w+\.py")
by_page = pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))


def prose(path) -> str:
    """Return the text of a page without its code."""
    return re.sub(r"^```(?!\{image\}).*?^```|`[^`\n]+`", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def link_error(path, link: str) -> str:
    """Return why a link is broken, or nothing for working and external links."""
    if link.startswith(("https://", "mailto:")):
        return ""
    place, _, anchor = link.partition("#")
    target = (path.parent / place).resolve() if place else path
    inside = str(target.relative_to(DOCS)) if target.is_relative_to(DOCS) else ""
    if inside.startswith(GENERATED):
        script = (DOCS / inside.removeprefix("auto_")).with_suffix(".py")
        exists = not inside.startswith("auto_") or script.stem == "index" or script.is_file()
        return "" if exists else "no such page"
    if not target.exists():
        return "no such file"
    return f"no heading {anchor!r}" if anchor and anchor not in anchors(target) else ""


@by_page
def test_links_are_valid(path):
    errors = {link: link_error(path, link) for link in LINK.findall(prose(path))}
    assert {link: error for link, error in errors.items() if error} == {}
    assert "http://" not in path.read_text()


def test_broken_links_are_detected():
    page = DOCS / "metrics.md"
    assert link_error(page, "nowhere.md") == "no such file"
    assert link_error(page, "auto_tutorials/00_nothing.rst") == "no such page"
    assert link_error(page, "theory.md#no-such-heading") == "no heading 'no-such-heading'"
    assert link_error(page, "theory.md#the-figures") == ""
    assert link_error(page, "#the-verdict") == ""


@by_page
def test_named_test_files_exist(path):
    existing = [str(file.relative_to(ROOT)) for file in (ROOT / "tests").rglob("test_*.py")]
    names = set(TEST_FILE.findall(path.read_text()))
    assert [name for name in sorted(names) if not any(f"/{file}".endswith(f"/{name}") for file in existing)] == []


@by_page
def test_images_exist_and_have_descriptions(path):
    for alternative, file, html, image, options in IMAGE.findall(path.read_text()):
        values = dict(re.findall(r'(\w+)="([^"]*)"', html)) | dict(re.findall(r"^:(\w+): (.*)$", options, re.MULTILINE))
        assert len((alternative or values.get("alt", "")).split()) >= 3, f"{path}: an image without a description"
        assert (path.parent / (file or image or values["src"])).is_file()


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: str(path.relative_to(DOCS)))
def test_scripts_are_short_and_have_a_title(path):
    text = path.read_text()
    title, line, *_ = (ast.get_docstring(ast.parse(text)) or "").splitlines()
    assert len(title) <= len(line)
    assert set(line) == {"="}
    assert "/shared" not in text
    if "gallery" in path.parts:
        assert len(text.splitlines()) < 70
    for name in re.findall(r":doc:`/([^`]+)`", text):
        assert (DOCS / f"{name}.md").is_file() or name.startswith(GENERATED)


def test_gallery_and_tutorials_are_complete():
    assert len([path for path in SCRIPTS if "gallery" in path.parts]) >= 25
    assert len([path for path in SCRIPTS if "tutorials" in path.parts]) >= 9


# The built pages


def test_faults_of_built_pages_are_detected(tmp_path, monkeypatch):
    pytest.importorskip("sphinx", reason="sphinx is not installed")
    monkeypatch.syspath_prepend(str(DOCS))
    from extension import checked

    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "index.html").write_text('<h1 id="here">B</h1><a href="../a.html">back</a>')
    valid = '<a href="b/#here">b</a><a href="#there">a</a><p id="there"><img src="x.png" alt="a curve"></p>'
    (tmp_path / "a.html").write_text(valid)
    assert list(checked.find_faults(tmp_path)) == []
    (tmp_path / "a.html").write_text(
        valid + '<a href="b/index.html#nowhere">b</a><a href="c.html">c</a><img src="y.png" alt="">'
        '<script src="https://example.org/x.js"></script>'
    )
    faults = list(checked.find_faults(tmp_path))
    assert len(faults) == 4
    assert all(any(name in fault for fault in faults) for name in ("#nowhere", "c.html", "y.png", "x.js"))
