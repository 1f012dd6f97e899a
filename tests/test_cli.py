"""The commands as people use them: real processes, what they print, and how they refuse."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from calibrant import Predictions, metrics
from calibrant.cli import main

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "120"}


def calibrant(*arguments, cwd=None):
    command = [sys.executable, "-m", "calibrant", *map(str, arguments)]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False, cwd=cwd)


@pytest.fixture
def refused(monkeypatch, capsys):
    """Run a command, in this process, that must be refused: exit status 2 and one line, which is returned."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["calibrant", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            main()
        printed = capsys.readouterr()
        assert caught.value.code == 2, printed
        assert printed.out == ""
        assert printed.err.count("\n") == 1, printed.err
        assert printed.err.startswith("calibrant: ")
        return printed.err

    return run


def overconfident(n, seed):
    g = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, 5, generator=g)
    labels = torch.multinomial(logits.softmax(-1), 1, generator=g).squeeze(1)
    return Predictions(2.5 * logits, labels)


@pytest.fixture
def files(tmp_path):
    for name, seed in ("val", 0), ("test", 1):
        overconfident(1000, seed).save(tmp_path / f"{name}.npz")
    return tmp_path / "val.npz", tmp_path / "test.npz"


def test_from_two_files_to_a_shipped_calibrator(files, tmp_path):
    html, out, saved = tmp_path / "r.html", tmp_path / "out.json", tmp_path / "c.safetensors"
    done = calibrant(
        "assess", *files, "-c", "Identity", "-c", "Temperature", "--html", html, "--json", out, "--save", saved
    )
    assert done.returncode == 0, done.stderr
    assert "overconfident" in done.stdout
    assert "<svg" in html.read_text()
    content = json.loads(out.read_text())
    assert content["chosen"] == "Temperature"
    assert {"calibrator", "metric", "value"} <= content["results"][0].keys()
    temperature = next(p["temperature"] for p in content["parameters"] if p["calibrator"] == "Temperature")
    assert temperature == pytest.approx(2.5, abs=0.3)

    done = calibrant("apply", saved, files[1], "-o", tmp_path / "calibrated.npz")
    assert done.returncode == 0, done.stderr
    before, after = Predictions.load(files[1]), Predictions.load(tmp_path / "calibrated.npz")
    torch.testing.assert_close(after.logits, before.logits.double() / temperature)
    value = next(r["value"] for r in content["results"] if (r["calibrator"], r["metric"]) == ("Temperature", "nll"))
    assert metrics.nll(*after) == pytest.approx(value, rel=1e-9)


def test_predictions_without_labels_can_be_calibrated(files, tmp_path):
    assert calibrant("assess", *files, "-c", "Temperature", "--save", tmp_path / "c.safetensors").returncode == 0
    np.savez(tmp_path / "new.npz", logits=np.random.default_rng(0).normal(size=(3, 5)))
    assert (
        calibrant("apply", tmp_path / "c.safetensors", tmp_path / "new.npz", "-o", tmp_path / "o.npz").returncode == 0
    )
    assert np.load(tmp_path / "o.npz").files == ["logits"]


def test_one_file_is_cross_fitted_on_request(files):
    done = calibrant("assess", files[0], "--cv", 4, "-c", "Identity", "-c", "Temperature")
    assert done.returncode == 0, done.stderr
    assert "Cross-fitted in 4 folds" in " ".join(done.stdout.split())


def test_list_names_everything_with_parameters_and_source():
    done = calibrant("list")
    assert done.returncode == 0, done.stderr
    for text in (
        "focal(gamma=3",
        "(Lin et al. 2017, eq. 4)",
        "ece(bins=15",
        "Temperature(criterion='nll'",
        "digits(",
        "resnet8(",
    ):
        assert text in done.stdout


def test_refusals_reach_the_shell(files):
    done = calibrant("assess", files[0])
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


def test_version_and_help():
    assert calibrant("--version").stdout.startswith("calibrant ")
    assert "assess" in calibrant("--help").stdout


STUDY = 'datasets = ["digits"]\nnetworks = ["resnet8(channels=1)"]\nlosses = [{}]\n{}'


def _inputs(folder):
    z = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    y = np.arange(20) % 3
    np.savez(folder / "good.npz", logits=z, labels=y)
    np.savez(folder / "other.npz", logits=z + 1, labels=y)
    np.savez(folder / "wide.npz", logits=np.hstack([z, z]), labels=y)
    np.savez(folder / "short.npz", logits=z, labels=y[:5])
    np.savez(folder / "one_based.npz", logits=z, labels=y + 1)
    np.savez(folder / "nan.npz", logits=np.where(z > 1, np.nan, z), labels=y)
    np.savez(folder / "probs.npz", logits=np.full((20, 2), 0.5), labels=y % 2)
    (folder / "empty.npz").touch()
    (folder / "fake.safetensors").write_bytes(b"not a calibrator")
    (folder / "key.toml").write_text(STUDY.format('"focal"', "epochs = 3"))
    (folder / "loss.toml").write_text(STUDY.format('"foccal"', ""))
    (folder / "parameter.toml").write_text(STUDY.format('"focal(gama=2)"', ""))
    (folder / "file").touch()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("assess good.npz short.npz", "need logits (n, k) and labels (n,), got (20, 3) and (5,)"),
        ("assess one_based.npz good.npz", "are they 1-based?"),
        ("assess good.npz nan.npz", "contain NaN"),
        ("assess good.npz probs.npz", "look like probabilities"),
        ("assess good.npz empty.npz", "the file is empty"),
        ("assess good.npz none.npz", "no such file"),
        ("assess good.npz wide.npz", "the same classes, got 3 and 6"),
        ("assess good.npz good.npz", "fitting and judging on the same data is refused"),
        ("assess good.npz", "--cv 5"),
        ("assess good.npz --cv 100", "folds must lie in 2 .. 20"),
        ("assess good.npz other.npz -c Temprature", "did you mean 'Temperature'?"),
        ("assess good.npz other.npz -c Temperature(grd=1)", "Temperature has no 'grd'; it has criterion"),
        ("assess good.npz other.npz -m eec", "did you mean 'ece'?"),
        ("assess good.npz other.npz --html file/report.html", "cannot write"),
        ("assess good.npz other.npz --save c.pkl", "saved as .safetensors"),
        ("apply fake.safetensors good.npz -o out.npz", "fake.safetensors"),
        ("study run key.toml", "study has no key 'epochs'"),
        ("study run loss.toml", "did you mean 'focal'?"),
        ("study run parameter.toml", "focal has no 'gama'"),
        ("study run none.toml", "cannot read study"),
        ("study run nonsense", "bundled studies: "),
        ("demo --out file", "choose another folder"),
        ("figures tocal -o f", "no study 'tocal'; give a .toml file"),
        ("figures focal -o file/deep", "cannot write"),
        ("list lossess", "no 'lossess' to list"),
    ],
)
def test_bad_input_is_one_line_and_status_2(tmp_path, monkeypatch, refused, arguments, message):
    _inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert message in refused(*arguments.split())
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before  # nothing lost, nothing left behind


def test_an_unwritable_folder_is_refused_before_any_work(files, tmp_path, refused):
    if os.geteuid() == 0:
        folder = "/proc/calibrant"  # nobody can write there
    else:
        (tmp_path / "locked").mkdir(mode=0o500)
        folder = tmp_path / "locked"
    assert "choose another folder" in refused("assess", *files, "--json", f"{folder}/out.json")
