import subprocess
import sys

HEAVY = ["matplotlib", "polars", "sklearn", "lightning", "lightning_fabric", "ray", "transformers", "datasets"]
HEAVY += ["scipy", "typer", "rich", "jinja2"]


def test_import_is_light():
    code = f"import calibrant, sys; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
