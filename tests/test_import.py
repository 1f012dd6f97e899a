"""Imports are light: no heavy library before it is needed."""

import json
import subprocess
import sys

import pytest

HEAVY = ["matplotlib", "polars", "sklearn", "lightning", "lightning_fabric", "ray", "transformers", "datasets"]
HEAVY += ["scipy", "typer", "rich", "jinja2", "numba"]


def loaded_modules(code: str, *arguments: str) -> set[str]:
    """Run code in a new process and return the modules that it loaded."""
    report = "import atexit, json, sys; atexit.register(lambda: print(json.dumps(list(sys.modules)), file=sys.stderr))"
    command = [sys.executable, "-c", f"{report}\n{code}", *map(str, arguments)]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(json.loads(process.stderr.splitlines()[-1]))


def test_import_loads_no_heavy_library():
    modules = loaded_modules("import calibrant as c; c.Predictions; c.measure; c.calibrators; c.EvaluationLog")
    assert "numpy" in modules
    assert modules.isdisjoint([*HEAVY, "torch"])


@pytest.mark.usefixtures("torch")
def test_packages_of_tensors_load_no_other_heavy_library():
    modules = loaded_modules("import calibrant as c; c.nn; c.losses; c.theory")
    assert "torch" in modules
    assert modules.isdisjoint(HEAVY)


def test_help_loads_no_torch():
    program = (
        "import sys\nfrom calibrant.cli import main\n"
        "for command in ([], ['assess'], ['measure'], ['apply'], ['sample-size'], ['watch'], ['list'], ['study']):\n"
        "    sys.argv = ['calibrant', *command, '--help']\n"
        "    try:\n        main()\n    except SystemExit as done:\n        assert not done.code"
    )
    modules = loaded_modules(program)
    assert "typer" in modules
    assert "torch" not in modules


def test_measuring_loads_no_torch(tmp_path):
    rows = "\n".join(f"{(i % 50 + 0.5) / 50},{int(i % 7 < 3)}" for i in range(200))
    (tmp_path / "p.csv").write_text(f"prob,label\n{rows}\n")
    commands = (
        ["measure", "p.csv", "--html", "p.html"],
        ["check", "p.csv", "--require", "ece < 0.9"],
        ["compare", "p.csv", "p.csv"],
        ["drift", "p.csv", "p.csv"],
    )
    program = (
        f"import os, sys\nos.chdir({str(tmp_path)!r})\nfrom calibrant.cli import main\n"
        f"for command in {commands!r}:\n"
        "    sys.argv = ['calibrant', *command]\n"
        "    try:\n        main()\n    except SystemExit as done:\n        assert not done.code, command"
    )
    assert "torch" not in loaded_modules(program)
    assert (tmp_path / "p.html").is_file()


@pytest.mark.slow
def test_assess_loads_no_lab_and_works_without_fcntl(tmp_path):
    program = (
        "import sys; sys.modules['fcntl'] = None\n"
        "import numpy as np; from calibrant import Predictions\n"
        "rng = np.random.default_rng(0); z = rng.normal(size=(60, 3)); y = rng.integers(3, size=60)\n"
        "Predictions(z[:30], y[:30]).save('val.npz'); Predictions(z[30:], y[30:]).save('test.npz')\n"
        "sys.argv = ['calibrant', 'assess', 'val.npz', 'test.npz', '-c', 'Temperature', '--html', 'r.html']\n"
        "from calibrant.cli import main; main()"
    )
    modules = loaded_modules(f"import os; os.chdir({str(tmp_path)!r})\n{program}")
    assert (tmp_path / "r.html").is_file()
    assert "calibrant.assessment" in modules
    lab = ("calibrant.lab.study", "calibrant.lab.data", "calibrant.lab.networks")
    assert [name for name in modules if name.startswith(lab)] == []
