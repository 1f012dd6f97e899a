"""Take the screenshot of the report of the README's example, with Chromium: python docs/images/report.py."""

import shutil
import subprocess
import tempfile
from pathlib import Path

from benchmarks.statements import run_example

folder = Path(tempfile.mkdtemp())
run_example()[0].save(folder / "report.html")
browser = (
    shutil.which("chromium") or shutil.which("chromium-browser") or "google-chrome"
)
options = ["--headless", "--no-sandbox", "--hide-scrollbars", "--window-size=1100,1420"]
to = f"--screenshot={Path(__file__).parent / 'report.png'}"
subprocess.run(
    [browser, *options, to, (folder / "report.html").as_uri()],
    check=True,
    capture_output=True,
)
