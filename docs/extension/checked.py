"""The built site, looked at: every picture has words, every link and anchor is there, and nothing is fetched."""

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from sphinx.errors import SphinxError

FETCHED = {"img": "src", "script": "src", "link": "href", "iframe": "src"}
KINDS = {"stylesheet", "preload", "icon"}  # of links that a browser follows by itself
THUMBNAIL = "_thumb."  # beside the title that says what it shows: to be skipped by who listens


class Page(HTMLParser):
    """What a page of HTML links to, shows, and can be linked to at."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.pictures: list[tuple[str, str]] = []
        self.fetched: list[str] = []
        self.anchors: set[str] = {""}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep what a tag says."""
        said = {name: value or "" for name, value in attrs}
        self.anchors |= {said[name] for name in ("id", "name") if name in said}
        if tag == "a" and "href" in said:
            self.links.append(said["href"])
        if tag == "img":
            self.pictures.append((said.get("src", ""), said.get("alt", "")))
        if tag in FETCHED and (tag != "link" or KINDS & set(said.get("rel", "").split())):
            self.fetched.append(said.get(FETCHED[tag], ""))


def faults(folder: Path) -> Iterator[str]:
    """Say what is wrong with the pages of a folder."""
    pages = {path.resolve(): Page(path) for path in sorted(folder.rglob("*.html"))}
    for path, page in pages.items():
        name = path.relative_to(folder.resolve())
        bare = (source for source, alt in page.pictures if not alt.strip() and THUMBNAIL not in source)
        yield from (f"{name}: picture {source} without words" for source in bare)
        yield from (f"{name}: {source} is fetched" for source in page.fetched if urlsplit(source).netloc)
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or link == "#":
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.exists():
                yield f"{name}: {link} leads nowhere"
            elif target in pages and unquote(parts.fragment) not in pages[target].anchors:
                yield f"{name}: {link} has no such place"


def look(app: Any, failed: Exception | None) -> None:
    """Fail the build where something is wrong."""
    if failed is None and app.builder.name == "html" and (found := sorted(set(faults(Path(app.outdir))))):
        raise SphinxError("\n".join([f"{len(found)} faults in the built pages", *found[:40]]))
