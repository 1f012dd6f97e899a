"""Take the screenshot of a report for the README, with Chromium: python docs/images/report.py."""

import shutil
import subprocess
import tempfile
from pathlib import Path

import torch

import calibrant
from calibrant import Predictions
from calibrant.lab import data, networks
from calibrant.nn import Criterion

HERE = Path(__file__).parent
digits = data.digits(train=100, val=600)
x, y = digits.prepare(digits.train.inputs), digits.train.labels
torch.manual_seed(0)
network = networks.mlp(10)
criterion, step = Criterion("cross_entropy"), torch.optim.Adam(network.parameters(), 0.003)
for _ in range(60):
    step.zero_grad()
    criterion(network(x), y).backward()
    step.step()
with torch.no_grad():
    val, test = (
        Predictions(network(digits.prepare(part.inputs)), part.labels, class_names=digits.classes)
        for part in (digits.val, digits.test)
    )
folder = Path(tempfile.mkdtemp())
calibrant.assess(val, test).save(folder / "report.html")
browser = shutil.which("chromium") or shutil.which("chromium-browser") or "google-chrome"
options = ["--headless", "--no-sandbox", "--hide-scrollbars", "--window-size=1100,1420"]
to = f"--screenshot={HERE / 'report.png'}"
subprocess.run([browser, *options, to, (folder / "report.html").as_uri()], check=True, capture_output=True)
