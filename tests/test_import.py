import json
import subprocess
import sys

import pytest

HEAVY = ["matplotlib", "polars", "sklearn", "lightning", "lightning_fabric", "ray", "transformers", "datasets"]
HEAVY += ["scipy", "typer", "rich", "jinja2", "numba"]


def loaded(code: str, *arguments: str) -> set[str]:
    """Run code in a process of its own, and return the modules that it loaded."""
    tell = "import atexit, json, sys; atexit.register(lambda: print(json.dumps(list(sys.modules)), file=sys.stderr))"
    command = [sys.executable, "-c", f"{tell}\n{code}", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(json.loads(done.stderr.splitlines()[-1]))


def test_import_is_light():
    modules = loaded("import calibrant; calibrant.Predictions; calibrant.measure; calibrant.nn; calibrant.theory")
    assert "torch" in modules
    assert modules.isdisjoint(HEAVY)


@pytest.mark.parametrize("command", ["", "assess", "measure", "apply", "list", "study"])
def test_help_needs_no_torch(command):
    arguments = [*command.split(), "--help"]
    modules = loaded(f"import sys; sys.argv = ['calibrant', *{arguments}]; from calibrant.cli import main; main()")
    assert "typer" in modules
    assert "torch" not in modules


def test_assess_needs_no_study_no_data_no_networks_and_no_locks(tmp_path):
    """As on systems that have no fcntl: it can be imported by nobody here."""
    make = (
        "import sys; sys.modules['fcntl'] = None\n"
        "import torch; from calibrant import Predictions\n"
        "g = torch.Generator().manual_seed(0); z = torch.randn(60, 3, generator=g); y = torch.randint(3, (60,))\n"
        "Predictions(z[:30], y[:30]).save('val.npz'); Predictions(z[30:], y[30:]).save('test.npz')\n"
        "sys.argv = ['calibrant', 'assess', 'val.npz', 'test.npz', '-c', 'Temperature', '--html', 'r.html']\n"
        "from calibrant.cli import main; main()"
    )
    modules = loaded(f"import os; os.chdir({str(tmp_path)!r})\n{make}")
    assert (tmp_path / "r.html").is_file()
    assert "calibrant.assessment" in modules
    foreign = [
        name
        for name in modules
        if name.startswith(("calibrant.lab.study", "calibrant.lab.data", "calibrant.lab.networks"))
    ]
    assert foreign == []
