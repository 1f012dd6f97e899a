"""What a wheel without extras must do, run by `make dist` in an environment of its own: assess a file, apply it."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

rng = np.random.default_rng(0)
truth = 1.5 * rng.standard_normal((600, 3))
odds = np.exp(truth)
labels = np.array([rng.choice(3, p=row / row.sum()) for row in odds])
for name, rows in (("val", slice(0, 300)), ("test", slice(300, 600))):
    np.savez(f"{name}.npz", logits=2 * truth[rows], labels=labels[rows])

calibrant = Path(sys.executable).parent / "calibrant"
for command in (
    "--version",
    "assess val.npz test.npz --html wheel.html --json wheel.json --save wheel.safetensors",
    "apply wheel.safetensors test.npz -o calibrated.npz",
    "measure calibrated.npz",
    "list calibrators",
):
    print(f"$ calibrant {command}", flush=True)
    subprocess.run([calibrant, *command.split()], check=True)
result = json.loads(Path("wheel.json").read_text())
assert result["held_out_nll"][result["chosen"]] < result["held_out_nll"]["Identity"]
assert Path("wheel.html").stat().st_size > 10_000
