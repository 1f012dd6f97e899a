"""Pages with hostile names make no request, no navigation and run no foreign script in a real browser.

One name runs with the other tests, all of them by `make torture`.
"""

import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from torture.hostile_names import named_predictions, names
from typesetting import LATEX, compile_latex

from calibrant import assess, measure

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
QUICK = ["script_end"]  # kinds of names in the quick suite

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium on the path (Debian: apt-get install chromium)")


@contextmanager
def counting() -> Iterator[tuple[int, list[str]]]:
    """Serve on a local port; yield the port and the requested paths."""
    requests: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(self.path)
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_address[1], requests
    finally:
        server.shutdown()
        server.server_close()


def opened_pages(pages: dict[str, str], folder: Path) -> str:
    """Open every page in a frame of one page, and return that page's document."""
    for name, text in pages.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    frames = "".join(f'<iframe src="{name}.html" width="900" height="700"></iframe>' for name in pages)
    (folder / "all.html").write_text(f"<title>all</title>{frames}")
    command = [BROWSER, *FLAGS, f"--user-data-dir={folder}/user", "--virtual-time-budget=5000", "--dump-dom"]
    finished = subprocess.run(
        [*command, (folder / "all.html").as_uri()], capture_output=True, text=True, timeout=300, check=True
    )
    return finished.stdout


def pages_of(name: str) -> dict[str, str]:
    """Return pages and notebook cells with a name in every place for names."""
    two, three = (measure(named_predictions(0, k, name), of=0) for k in (2, 3))
    study_result = assess(
        named_predictions(0, 2, name), named_predictions(1, 2, name), ["Identity", "Temperature"], of=0
    )
    facts = {"command": f"calibrant measure {name}", "measured": name, name: "x"}
    return {
        "two": two.html(facts),
        "three": three.html(facts),
        "assessed": study_result.html(facts, calibrator_path=name[:200]),
        "cell": two._repr_html_(),
        "cells": study_result._repr_html_(),
    }


def check(kinds: list[str], folder: Path) -> None:
    """Assert that the pages of some kinds of names make no request and do not navigate."""
    with counting() as (port, requests):
        is_complete = names(port)
        pages = {f"{kind}_{page}": text for kind in kinds for page, text in pages_of(is_complete[kind]).items()}
        assert "<title>all</title>" in opened_pages(pages, folder)
    assert requests == []


def test_a_page_that_is_not_escaped_is_caught(tmp_path):
    with counting() as (port, requests):
        is_complete = names(port)
        opened_pages({kind: is_complete[kind] for kind in ("refresh_bare", "script", "image")}, tmp_path)
    assert set(requests) == {"/refresh_bare", "/script", "/image"}


@pytest.mark.slow
def test_a_hostile_name_asks_for_nothing(tmp_path):
    check(QUICK, tmp_path)


@pytest.mark.torture
@pytest.mark.parametrize("first", range(0, len(names()), 5))
def test_every_hostile_name_asks_for_nothing(first, tmp_path):
    check(sorted(names())[first : first + 5], tmp_path)


@pytest.mark.torture
@pytest.mark.usefixtures("torch")
def test_a_study_of_hostile_names_asks_for_nothing(tmp_path):
    from calibrant.lab import study
    from calibrant.lab.study import Model, Study

    with counting() as (port, requests):
        for seed in (0, 1):
            named_predictions(seed, 3, names(port)["refresh_left"]).save(tmp_path / f"{seed}.npz")
        is_complete = {kind: name for kind, name in names(port).items() if kind not in ("escape", "long")}
        models = [
            Model(name, str(tmp_path / "0.npz"), str(tmp_path / "1.npz"), 0, name) for name in is_complete.values()
        ]
        predictions = Study("s", calibrators=("Identity", "Temperature"), metrics=("ece",), models=models)
        study_result = study.run(predictions, out=tmp_path)
        report = next(tmp_path.rglob("report.html")).read_text(encoding="utf-8")
        assert "<title>all</title>" in opened_pages({"study": report, "cell": study_result._repr_html_()}, tmp_path)
    assert requests == []
    if LATEX is not None:
        compile_latex(next(tmp_path.rglob("tables.tex")).read_text(encoding="utf-8"), tmp_path)
