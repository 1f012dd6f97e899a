"""No output replaces an input, or is read as an input next time."""

import hashlib
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars
import pytest
from drawn import drawn_labels
from refusals import refused
from typer.testing import CliRunner

from calibrant import InputError, Predictions, calibrators
from calibrant._core.files import atomic_write
from calibrant.assessment import apply_to_file
from calibrant.cli import app
from calibrant.io.files import check_outputs, list_table_files

CODES = {"output_is_input", "output_among_inputs"}


def make_predictions(seed: int = 0) -> Predictions:
    rng = np.random.default_rng(seed)
    z = 2 * rng.standard_normal((40, 3), dtype=np.float32)
    return Predictions(z, drawn_labels(z, rng))


@pytest.fixture
def inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with an input of every kind, in the working folder."""
    folder = tmp_path / "in"
    (folder / "parts").mkdir(parents=True)
    (folder / "sub").mkdir()
    p = make_predictions()
    p.save(folder / "v.csv")
    p.save(folder / "v.npz")
    for i in (1, 2):
        make_predictions(i).save(folder / "parts" / f"p{i}.csv")
    p.save(folder / "v.safetensors")
    np.save(folder / "v_logits.npy", p.logits)
    np.save(folder / "v_labels.npy", p.labels)
    calibrators.save(calibrators.fit("Temperature", make_predictions(5)), folder / "t.safetensors")
    (folder / "mine.py").write_text("x = 1\n")
    (folder / "linked").symlink_to(folder / "parts", target_is_directory=True)
    monkeypatch.chdir(tmp_path)
    return folder


def digests(folder: Path) -> dict[str, str]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


SOURCES_AND_OUTPUTS: dict[str, tuple[str, str]] = {  # an input, and an output that would replace it or be read with it
    "table": ("in/v.csv", "in/v.csv"),
    "arrays": ("in/v.npz", "in/v.npz"),
    "labels beside": ("in/v_logits.npy", "in/v_labels.npy"),
    "folder": ("in/parts", "in/parts/p1.csv"),
    "linked folder": ("in/linked", "in/parts/p1.csv"),
    "pattern": ("in/parts/p*.csv", "in/parts/p2.csv"),
    "new in folder": ("in/parts", "in/parts/new.csv"),
    "new in pattern": ("in/parts/p*.csv", "in/parts/p3.csv"),
}
COMMANDS: dict[str, Callable[[str, str], list[str]]] = {
    "measure --json": lambda source, out: ["measure", source, "--json", out],
    "measure --html": lambda source, out: ["measure", source, "--html", out],
    "assess --json": lambda source, out: ["assess", source, "in/v.npz", "-c", "Temperature", "--json", out],
    "assess --html": lambda source, out: ["assess", "in/v.safetensors", source, "-c", "Temperature", "--html", out],
    "assess --save": lambda source, out: ["assess", source, "in/v.safetensors", "--save", out],
    "apply -o": lambda source, out: ["apply", "in/t.safetensors", source, "-o", out],
}
SPELLINGS: dict[str, Callable[[Path], Path]] = {
    "as it is": lambda path: path,
    "absolute": lambda path: path.absolute(),
    "dots": lambda path: path.parent / ".." / path.parent.name / path.name,
    "linked": lambda path: link_to(path, os.symlink),
    "hard link": lambda path: link_to(path, os.link),
}


def link_to(path: Path, link: Callable[[Path, Path], None]) -> Path:
    link_path = Path(f"another{path.suffix}")
    if path.exists():
        link(path.absolute(), link_path)
        return link_path
    return Path("in/linked") / path.name  # a new file in the linked folder


def refusal(command: list[str]) -> str:
    result = CliRunner().invoke(app, command)
    assert isinstance(result.exception, InputError), (command, result.exception, result.output)
    return result.exception.code


@pytest.mark.parametrize(
    ("command", "spelling"),
    [*itertools.product(COMMANDS, ["as it is"]), *itertools.product(["apply -o"], SPELLINGS)],
)
def test_outputs_never_replace_inputs(inputs, command, spelling):
    before = digests(inputs)
    for source, out in SOURCES_AND_OUTPUTS.values():
        path = SPELLINGS[spelling](Path(out))
        assert refusal(COMMANDS[command](source, str(path))) in CODES, (command, source, path)
        for link_path in Path().glob("another*"):
            link_path.unlink()
    assert digests(inputs) == before


def test_outputs_never_replace_calibrators_or_user_methods(inputs):
    before = digests(inputs)
    for out, spelling in itertools.product(("in/t.safetensors", "in/mine.py"), SPELLINGS):
        path = str(SPELLINGS[spelling](Path(out)))
        include_options = ["--with", "in/mine.py"]
        assert refusal(["measure", "in/v.csv", "-c", "in/t.safetensors", "--json", path, *include_options]) in CODES
        assert (
            refusal(["assess", "in/v.csv", "in/v.npz", "-c", "in/t.safetensors", "--save", path, *include_options])
            in CODES
        )
        assert refusal(["apply", "in/t.safetensors", "in/v.csv", "-o", path, *include_options]) in CODES
        for link_path in Path().glob("another*"):
            link_path.unlink()
    assert digests(inputs) == before


def test_apply_in_python_refuses_outputs_among_inputs(inputs):
    with refused("output_among_inputs"):
        apply_to_file("in/t.safetensors", "in/parts", "in/parts/new.csv")


def test_other_files_are_accepted_beside_inputs(inputs):
    check_outputs(["in/parts/report.html", "in/parts/numbers.json"], ["in/parts"])
    check_outputs(["in/parts/q3.csv", "in/p3.csv"], ["in/parts/p*.csv"])
    check_outputs(["in/parts/sub/new.csv"], ["in/parts"])


def test_case_insensitive_systems_compare_names_without_case(inputs, monkeypatch):
    check_outputs(["in/parts/P9.CSV"], ["in/parts/p*.csv"])
    check_outputs(["a.json", "A.json"], [])
    for module in ("calibrant._core.files", "calibrant.io.files"):
        monkeypatch.setattr(f"{module}.is_case_insensitive", lambda folder: True)
    with refused("output_among_inputs"):
        check_outputs(["in/parts/P9.CSV"], ["in/parts/p*.csv"])
    with refused("output_twice"):
        check_outputs(["a.json", "A.json"], ["in/v.csv"])


def test_patterns_skip_hidden_files(inputs):
    (inputs / "parts" / ".p0-draft.csv").write_text("half of a tab")
    assert [path.name for path in list_table_files("in/parts/*.csv")] == ["p1.csv", "p2.csv"]


@pytest.mark.parametrize("name", ["rows.csv", "tables.csv", "report.html", "tables.md"])
def test_studies_never_replace_inputs(tmp_path, torch, name):
    from calibrant.lab.study import run

    make_predictions(1).save(tmp_path / "val.csv")
    target = tmp_path / name
    target.write_bytes((tmp_path / "val.csv").read_bytes())
    text = f'[[models]]\nname = "a"\nval = "val.csv"\ntest = "{name}"\n'
    (tmp_path / "s.toml").write_text(text)
    before = digests(tmp_path)
    with refused("output_is_input"):
        run(tmp_path / "s.toml", out=tmp_path)
    assert before.items() <= digests(tmp_path).items()


@pytest.mark.slow
def test_signals_leave_no_draft(tmp_path):
    code = """
import os, signal, sys
from calibrant._core.files import atomic_write
for name in sys.argv[2:]:
    if os.fork() == 0:
        default = signal.default_int_handler if name == "SIGINT" else signal.SIG_DFL
        signal.signal(getattr(signal, name), default)  # a parent such as nohup may ignore it
        with atomic_write(sys.argv[1]) as draft:
            draft.write_text("half")
            os.kill(os.getpid(), getattr(signal, name))
    assert os.wait()[1] != 0
"""
    target = tmp_path / "a.csv"
    target.write_text("old")
    subprocess.run([sys.executable, "-c", code, str(target), "SIGTERM", "SIGHUP", "SIGINT"], check=True)
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]
    assert target.read_text() == "old"


def test_signal_handlers_are_restored_after_a_write(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    with atomic_write(tmp_path / "a.txt") as draft:
        draft.write_text("new")
    assert signal.getsignal(signal.SIGTERM) is before


def test_failed_write_keeps_the_old_file(tmp_path):
    path = tmp_path / "a.csv"
    polars.DataFrame({"a": [1]}).write_csv(path)
    with pytest.raises(RuntimeError):
        write_half(path)
    assert path.read_text() == "a\n1\n"
    assert list(tmp_path.iterdir()) == [path]


def write_half(path: Path) -> None:
    with atomic_write(path) as draft:
        draft.write_text("half")
        raise RuntimeError
