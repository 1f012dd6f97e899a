"""Reports in a real browser: no request, no console message, and a text alternative for every picture."""

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from assessed_pages import drawn

from calibrant import assess

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium on the path (Debian: apt-get install chromium)")


@dataclass
class Visit:
    document: str
    requests: list[str]  # beside the page itself
    console: list[str]


def visit(file: Path, folder: Path, *flags: str) -> Visit:
    """Open a file. Requests of the browser itself have no origin and are ignored."""
    log = folder / "net.json"
    command = [BROWSER, *FLAGS, *flags, f"--user-data-dir={folder}/user", f"--log-net-log={log}"]
    command += ["--enable-logging=stderr", "--dump-dom", file.as_uri()]
    process = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    params = [event.get("params", {}) for event in json.loads(log.read_text())["events"]]
    requests = [p["url"] for p in params if "url" in p and p.get("initiator", "not an origin") != "not an origin"]
    console = [line for line in process.stderr.splitlines() if "CONSOLE" in line]
    return Visit(process.stdout, [url for url in requests if not url.startswith("data:")], console)


@pytest.fixture(scope="module", params=["two classes", "five classes"])
def report(request, over, tmp_path_factory) -> Path:
    text = over[1]
    if request.param == "two classes":
        text = assess(drawn(300, 0, 2.0, k=2), drawn(300, 1, 2.0, k=2), ("Identity", "Temperature")).html()
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("scheme", [0, 1])
def test_report_opens_offline_without_messages(report, tmp_path, scheme):
    visited = visit(report, tmp_path, f"--blink-settings=preferredColorScheme={scheme}")
    assert visited.requests == []
    assert visited.console == []
    pictures = re.findall(r"<(?:svg|img)\b[^>]*>", visited.document)
    assert len(pictures) >= 5  # one is drawn by the script; two classes have no risk-coverage curve
    assert all(re.search(r'aria-label="[^"]{40,}"|alt="[^"]+"', picture) for picture in pictures)


def test_visit_detects_requests_and_messages(tmp_path):
    """Negative control: a foreign style sheet, a foreign image and a script error are detected."""
    path = tmp_path / "bad.html"
    path.write_text(
        '<link rel="stylesheet" href="http://127.0.0.1:9/a.css"><img src="http://127.0.0.1:9/b.png">'
        '<script>console.error("broken")</script>'
    )
    visited = visit(path, tmp_path)
    assert {url.rpartition("/")[2] for url in visited.requests} == {"a.css", "b.png"}
    assert any("broken" in line for line in visited.console)


@pytest.mark.parametrize("width", [390, 1280])
def test_page_fits_the_screen(report, tmp_path, width):
    """Wide tables scroll inside the page. A frame is used because windows have a minimum width."""
    script = "<script>parent.postMessage(document.documentElement.scrollWidth, '*')</script></body>"
    page = re.sub(
        r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", report.read_text()
    )  # which would block the message
    (tmp_path / "inner.html").write_text(page.replace("</body>", script))
    outer = tmp_path / "outer.html"
    outer.write_text(
        "<title>-</title><script>onmessage = e => { document.title = e.data }</script>"
        f'<iframe src="inner.html" style="border: 0; width: {width}px; height: 900px"></iframe>'
    )
    visited = visit(outer, tmp_path, "--virtual-time-budget=2000")
    assert int(re.search(r"<title>(\d+)</title>", visited.document)[1]) <= width
