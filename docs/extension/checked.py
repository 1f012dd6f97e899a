"""Check the built site: images have alternative text, links and anchors exist, nothing is loaded externally."""

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from sphinx.errors import SphinxError

URL_ATTRIBUTES = {"img": "src", "script": "src", "link": "href", "iframe": "src"}
LOADED_LINKS = {"stylesheet", "preload", "icon"}  # values of rel for which a browser loads the target
THUMBNAIL = "_thumb."  # thumbnails stand beside a title, so screen readers may skip them


class Page(HTMLParser):
    """Links, images, resources and anchors of an HTML page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.images: list[tuple[str, str]] = []
        self.resources: list[str] = []
        self.anchors: set[str] = {""}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect the attributes of a tag."""
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag == "img":
            self.images.append((values.get("src", ""), values.get("alt", "")))
        if tag in URL_ATTRIBUTES and (tag != "link" or LOADED_LINKS & set(values.get("rel", "").split())):
            self.resources.append(values.get(URL_ATTRIBUTES[tag], ""))


def find_faults(folder: Path) -> Iterator[str]:
    """Yield the faults of all pages in a folder."""
    pages = {path.resolve(): Page(path) for path in sorted(folder.rglob("*.html"))}
    for path, page in pages.items():
        name = path.relative_to(folder.resolve())
        undescribed = (source for source, alt in page.images if not alt.strip() and THUMBNAIL not in source)
        yield from (f"{name}: image {source} has no alternative text" for source in undescribed)
        yield from (f"{name}: {url} is loaded externally" for url in page.resources if urlsplit(url).netloc)
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or link == "#":
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.exists():
                yield f"{name}: {link} does not exist"
            elif target in pages and unquote(parts.fragment) not in pages[target].anchors:
                yield f"{name}: {link} has no such anchor"


def check(app: Any, failed: Exception | None) -> None:
    """Fail the build if a page has a fault."""
    if failed is None and app.builder.name == "html" and (faults := sorted(set(find_faults(Path(app.outdir))))):
        raise SphinxError("\n".join([f"{len(faults)} faults in the built pages", *faults[:40]]))
