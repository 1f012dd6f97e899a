"""Commands: printed text, written files, and errors."""

import hashlib
import json
import os
import subprocess
import sys
from datetime import datetime, timedelta
from unittest.mock import Mock

import numpy as np
import polars
import pytest
from commands import run
from drawn import drawn_labels

from calibrant import Predictions, assess, cli, measure, metrics
from calibrant.assessment import DEFAULT_CALIBRATORS
from calibrant.cli import assess as assess_commands
from calibrant.predictions.events import TOP_CLASS

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "120"}


def run_process(*arguments):
    """Run a command in a new process."""
    command = [sys.executable, "-m", "calibrant", *map(str, arguments)]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)


def is_close(text, expected):
    """Whether two JSON texts have the same numbers up to rounding, apart from files and times in the provenance."""
    left, right = json.loads(text), json.loads(expected)
    return left.pop("provenance").keys() == right.pop("provenance").keys() and _is_close(left, right)


def _is_close(left, right):
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_is_close(left[name], right[name]) for name in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_is_close, left, right))
    return left == (pytest.approx(right, rel=1e-6, abs=1e-9, nan_ok=True) if isinstance(right, float) else right)


def refused(code, *arguments):
    """Run a command that must fail with this code, exit status 2 and one line; return the line."""
    finished = run(*arguments)
    assert (finished.code, finished.returncode, finished.stdout, finished.stderr.count("\n")) == (code, 2, "", 1), (
        finished
    )
    assert finished.stderr.startswith("calibrant: ")
    return finished.stderr


def succeeded(*arguments):
    """Run a command that must succeed; return its output."""
    finished = run(*arguments)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def overconfident(n, seed):
    rng = np.random.default_rng(seed)
    logits = rng.normal(scale=2, size=(n, 5))
    return Predictions((2.5 * logits).astype(np.float32), drawn_labels(logits, rng))


@pytest.fixture
def files(tmp_path):
    for name, seed in ("val", 0), ("test", 1):
        overconfident(1000, seed).save(tmp_path / f"{name}.npz")
    return tmp_path / "val.npz", tmp_path / "test.npz"


def test_piped_output_keeps_long_sentences_on_one_line():
    code = "from calibrant.cli._common import console; console.print('word ' * 300)"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.splitlines() == ["word " * 300]


def test_assess_saves_a_calibrator_that_apply_uses(files, tmp_path):
    html, out, saved = tmp_path / "r.html", tmp_path / "out.json", tmp_path / "c.safetensors"
    finished = run(
        "assess", *files, "-c", "Identity", "-c", "Temperature", "--html", html, "--json", out, "--save", saved
    )
    assert finished.returncode == 0, finished.stderr
    assert "overconfident" in finished.stdout
    assert "<svg" in html.read_text()
    content = json.loads(out.read_text())
    assert content["chosen"] == "Temperature"
    assert {"calibrator", "metric", "value"} <= content["results"][0].keys()
    temperature = next(p["temperature"] for p in content["parameters"] if p["calibrator"] == "Temperature")
    assert temperature == pytest.approx(2.5, abs=0.3)

    finished = run("apply", saved, files[1], "-o", tmp_path / "calibrated.npz")
    assert finished.returncode == 0, finished.stderr
    before, after = Predictions.load(files[1]), Predictions.load(tmp_path / "calibrated.npz")
    np.testing.assert_allclose(after.logits, before.logits.astype(float) / temperature, strict=True)
    value = next(r["value"] for r in content["results"] if (r["calibrator"], r["metric"]) == ("Temperature", "nll"))
    assert float(metrics.nll(after)) == pytest.approx(value, rel=1e-9)


def test_predictions_without_labels_can_be_calibrated(files, tmp_path):
    assert run("assess", *files, "-c", "Temperature", "--save", tmp_path / "c.safetensors").returncode == 0
    np.savez(tmp_path / "new.npz", logits=np.random.default_rng(0).normal(size=(3, 5)))
    assert run("apply", tmp_path / "c.safetensors", tmp_path / "new.npz", "-o", tmp_path / "o.npz").returncode == 0
    assert np.load(tmp_path / "o.npz").files == ["logits"]


def test_one_file_is_cross_fitted_on_request(files):
    printed = succeeded("assess", files[0], "--cv", 4, "-c", "Identity", "-c", "Temperature")
    assert "4 folds" in " ".join(printed.split())


def test_one_file_is_cross_fitted_in_five_folds_by_default(files):
    printed = succeeded("assess", files[0], "-c", "Identity", "-c", "Temperature")
    assert "5 folds" in " ".join(printed.split())


def test_measure_prints_and_writes_the_results_of_the_function(files, tmp_path):
    finished = run("measure", files[1], "-m", "mce", "--html", tmp_path / "m.html", "--json", tmp_path / "m.json")
    assert finished.returncode == 0, finished.stderr
    expected = measure(Predictions.load(files[1]), metrics=["mce"])
    for row in expected:
        for output_text in (finished.stdout, (tmp_path / "m.html").read_text()):
            assert row.title in output_text
            assert row.text in output_text
    assert "Overconfident" in finished.stdout
    assert is_close((tmp_path / "m.json").read_text(), expected.json())


@pytest.mark.parametrize("command", ["measure", "assess", "compare", "drift"])
def test_level_widens_the_intervals(command, files):
    """The tests of `check`, `contract`, `card` and `watch` have their own."""
    arguments = [files[1]] if command == "measure" else files
    arguments = [*arguments, "-c", "Temperature"] if command == "assess" else arguments
    rows = {"measure": "results", "assess": "changes", "compare": "rows", "drift": "estimates"}[command]
    contents = [json.loads(run(command, *arguments, "--level", x, "--json", "-").stdout) for x in (0.5, 0.99)]
    if command != "assess":
        assert [content["level"] for content in contents] == [0.5, 0.99]
    inner, outer = (
        np.array([(r["low"], r["high"]) for r in content[rows] if isinstance(r.get("low"), float)]).T
        for content in contents
    )
    assert len(inner[0]) > 1
    assert (outer[0] <= inner[0]).all()
    assert (outer[1] >= inner[1]).all()
    assert (outer[1] - outer[0] > inner[1] - inner[0]).any()


@pytest.mark.parametrize("command", ["measure", "compare"])
def test_levels_out_of_range_are_refused(command, files):
    arguments = files[:1] if command == "measure" else files
    assert run(command, *arguments, "--level", 95).code == "level_range"


def test_json_goes_to_standard_output_alone(files, tmp_path):
    finished = run("measure", files[1], "--json", "-", "--html", tmp_path / "m.html")
    assert is_close(finished.stdout, measure(Predictions.load(files[1])).json())
    finished = run("assess", *files, "-c", "Temperature", "--json", "-", "--save", tmp_path / "c.safetensors")
    expected = assess(*map(Predictions.load, files), ["Temperature"])
    assert is_close(finished.stdout, expected.json())
    assert not (tmp_path / "-").exists()
    assert (tmp_path / "c.safetensors").is_file()


def test_json_lists_data_calibrators_and_time(files, tmp_path):
    saved, out = tmp_path / "c.safetensors", tmp_path / "a.json"
    lines = ["correct,confidence", *(f"{i % 2},0.{i % 9 + 1}" for i in range(60)), "1,"]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    finished = run("assess", *files, "-c", "Temperature", "--save", saved, "--json", out)
    assert finished.returncode == 0, finished.stderr
    source = json.loads(out.read_text())["provenance"]
    assert [data["path"] for data in source["data"]] == list(map(str, files))
    assert [data["role"] for data in source["data"]] == ["fitted", "judged"]
    assert [data["digest"] for data in source["data"]] == [Predictions.load(file).digest for file in files]
    digest = hashlib.sha256(saved.read_bytes()).hexdigest()[:16]
    assert source["calibrators"] == [{"role": "saved", "path": str(saved), "digest": digest}]
    assert datetime.fromisoformat(source["time"]).utcoffset() == timedelta(0)
    finished = run("measure", files[1], "-c", saved, "--json", "-")
    source = json.loads(finished.stdout)["provenance"]
    assert source["calibrators"] == [{"role": "applied", "path": str(saved), "digest": digest}]
    finished = run("measure", tmp_path / "t.csv", "--drop", "--json", "-")
    (data,) = json.loads(finished.stdout)["provenance"]["data"]
    assert data["n"] == 60
    assert any("1" in note and "missing" in note for note in data["notes"])


def test_saved_calibrator_is_measured_and_assessed(files, tmp_path):
    saved = tmp_path / "c.safetensors"
    assert run("assess", *files, "-c", "Temperature", "--save", saved).returncode == 0
    expected = assess(*map(Predictions.load, files), ["Temperature"])
    finished = run("measure", files[1], "-c", saved, "--json", "-")
    values = {row["metric"]: row["value"] for row in json.loads(finished.stdout)["results"]}
    assert values["nll"] == pytest.approx(expected.calibrated["nll"].value, rel=1e-12)
    overconfident(500, 2).save(tmp_path / "third.npz")
    finished = run("assess", tmp_path / "third.npz", files[1], "-c", saved, "-c", "Identity", "--json", "-")
    results = json.loads(finished.stdout)["results"]
    (value,) = (r["value"] for r in results if (r["calibrator"], r["metric"]) == (str(saved), "nll"))
    assert value == pytest.approx(expected.calibrated["nll"].value, rel=1e-12)


def test_options_select_the_event_and_the_ignored_label(tmp_path):
    rng, has_label = np.random.default_rng(0), np.arange(400) % 4 > 0
    z, y = rng.normal(size=(400, 2)), rng.integers(2, size=400)
    np.savez(tmp_path / "p.npz", logits=z, labels=np.where(has_label, y, 255))
    p = Predictions(z, y)[has_label]
    for options, of in ([], 1), (["--of", "top"], "top"), (["--of", "0"], 0):
        finished = run("measure", tmp_path / "p.npz", "--ignore-index", 255, *options, "--json", "-")
        assert is_close(finished.stdout, measure(p, of=of).json()), finished.stderr


def test_stream_reads_files_in_chunks(files, tmp_path):
    parquet_path = tmp_path / "test.parquet"
    Predictions.load(files[1]).save(parquet_path)
    finished = run("assess", files[0], parquet_path, "--stream", "-c", "Temperature", "--json", "-")
    expected = assess(Predictions.load(files[0]), parquet_path, ["Temperature"])
    assert is_close(finished.stdout, expected.json())
    finished = run("measure", parquet_path, "--stream", "--json", "-")
    assert "classwise_ece" in finished.stdout
    assert json.loads(finished.stdout)["n"] == 1000
    for memory, streamed in ((1e-6, True), (1, False)):
        finished = run("measure", parquet_path, "--memory", memory, "--json", "-")
        (data,) = json.loads(finished.stdout)["provenance"]["data"]
        assert (data["digest"] is None) == streamed


def test_stream_prints_how_many_rows_were_left_out(tmp_path):
    path = tmp_path / "a.parquet"
    polars.DataFrame({"label": [None, *[0, 1] * 20], "probs": [0.3, *[0.3, 0.7] * 20]}).write_parquet(path)
    for stream in ("--stream", "--whole"):
        finished = run("measure", path, stream, "--drop")
        assert "Left out 1 row in which 'label' is missing." in finished.stdout, finished.stderr


USER_METHODS = """
from calibrant import calibrators, metrics

@metrics.metric("second best", unit="share", higher_is_better=True, meaning="the label is among two")
def two_best(logits, labels):
    '''Share of labels among the first two.'''
    return (logits.argsort(1)[:, -2:] == labels[:, None]).any(1).mean()

@calibrators.register
class Divided:
    '''Divide the logits.'''

    def __init__(self, by):
        self.by = by

    @classmethod
    def fit(cls, logits, labels, *, by=2.0):
        return cls(by)

    def __call__(self, logits):
        return logits / self.by
"""


USER_TENSOR_METHODS = """
from calibrant import losses, metrics

@losses.register
def mine(logits, labels, *, strength=2.0):
    '''My loss (nobody 2026).'''
    return strength * (1 - logits.softmax(1).gather(1, labels[:, None]).squeeze(1))

@metrics.metric("third best")
def three_best(logits, labels):
    '''Share of labels among the first three.'''
    return (logits.topk(3).indices == labels[:, None]).any(1).double().mean()
"""


@pytest.mark.usefixtures("torch")
def test_commands_include_methods_of_tensors(files, tmp_path):
    (tmp_path / "mine.py").write_text(USER_TENSOR_METHODS)
    printed = succeeded("list", "losses", "--with", tmp_path / "mine.py")
    assert "mine(strength=2)" in printed
    assert "My loss (nobody 2026)." in printed
    assert "third best" in succeeded("measure", files[1], "-m", "three_best", "--with", tmp_path / "mine.py")


def test_every_command_includes_methods_of_a_given_file(files, tmp_path):
    (tmp_path / "mine.py").write_text(USER_METHODS)
    include_options, saved = ("--with", tmp_path / "mine.py"), tmp_path / "c.safetensors"
    assert "two_best" in succeeded("list", "metrics", *include_options)
    finished = run("measure", files[1], "-m", "two_best", *include_options)
    assert "second best (%)" in finished.stdout, finished.stderr
    finished = run(
        "assess", *files, "-c", "Divided(by=2.5)", "-m", "two_best", "--json", "-", "--save", saved, *include_options
    )
    content = json.loads(finished.stdout)
    assert content["chosen"] == "Divided(by=2.5)"
    assert content["parameters"] == [{"calibrator": "Divided(by=2.5)", "by": 2.5}]
    assert content["metrics"]["two_best"]["higher_is_better"] is True
    finished = run("apply", saved, files[1], "-o", tmp_path / "o.npz", *include_options)
    assert finished.returncode == 0, finished.stderr
    before, after = Predictions.load(files[1]), Predictions.load(tmp_path / "o.npz")
    np.testing.assert_allclose(after.logits, before.logits.astype(float) / 2.5, strict=True)
    refused("unknown_class", "apply", saved, files[1], "-o", tmp_path / "o.npz")
    refused("fitted_on_same", "measure", files[0], "-c", saved, *include_options)


@pytest.mark.usefixtures("torch")
def test_list_names_everything_with_parameters_and_source():
    finished = run("list")
    assert finished.returncode == 0, finished.stderr
    for text in (
        "focal(gamma=3",
        "(Lin et al. 2017, eq. 4)",
        "ece(bins=15",
        "Temperature(criterion='nll'",
        "digits(",
        "resnet8(",
        "gaussian_noise",
        "max_probability",
    ):
        assert text in finished.stdout
    kinds = "losses", "metrics", "calibrators", "data", "networks", "corruptions", "scores", "traces"
    assert set(kinds) <= set(finished.stdout.splitlines())


def test_list_wraps_descriptions_on_a_narrow_terminal(monkeypatch, capsys):
    from rich.console import Console

    from calibrant.cli import list_methods

    console = Console(width=80, force_terminal=True, color_system=None)
    monkeypatch.setattr(list_methods, "console", console)
    with console.capture() as capture:
        list_methods.list_command("metrics", None)
    lines = [line.rstrip() for line in capture.get().splitlines()]
    assert "ece(bins=15, norm=1, edges='equal_width')" in lines
    assert any(line.startswith("    ") and "(Guo et al. 2017, eq. 3)" in line for line in lines)
    assert max(map(len, lines)) <= 80


def test_list_shows_entry_points_and_their_errors(monkeypatch):
    from importlib.metadata import EntryPoint

    from calibrant.registry import OOD_SCORES

    from calibrant.cli import list_methods

    entry = EntryPoint("theirs", "no.such.module:score", "calibrant.scores")
    monkeypatch.setattr(OOD_SCORES, "_entry_points", {"theirs": entry}, raising=False)
    values = dict(list_methods.registry_entries(OOD_SCORES))
    assert "ModuleNotFoundError" in values["theirs"]
    assert "max_logit" in values


def test_help_shows_the_actual_defaults():
    assert assess_commands.DEFAULT_CALIBRATORS_HELP.split(", ") == list(DEFAULT_CALIBRATORS)
    assert assess_commands.DEFAULT_METRICS_HELP.split(", ") == list(TOP_CLASS.compared_metrics)


@pytest.mark.parametrize("folds", [0, 5000])
def test_invalid_input_exits_with_status_2(files, folds):
    finished = run("assess", files[0], "--cv", folds)
    assert (finished.returncode, finished.stdout, finished.stderr.count("\n")) == (2, "", 1)


@pytest.mark.parametrize("command", ["demo", "study run mukhoti_2020", "figures mukhoti_2020", "list losses"])
def test_missing_torch_is_one_line(command):
    code = "import sys; sys.modules['torch'] = None; from calibrant.cli import main; main()"
    ended = subprocess.run([sys.executable, "-c", code, *command.split()], capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "needs the package torch. Try pip install 'calibrant[" in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_garbage_collection_resumes_after_imports():
    code = "import gc, sys; from calibrant.cli._common import import_prediction_modules; "
    code += "import_prediction_modules(with_kernels=False); n = gc.get_freeze_count(); import_prediction_modules(); "
    code += "print(gc.isenabled(), n > 10_000, gc.get_freeze_count() <= n, 'calibrant.assessment' in sys.modules); "
    code += "print([name for name in ('matplotlib', 'numba', 'pandas', 'sklearn') if name in sys.modules])"
    finished = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True)
    assert finished.stdout == "True True True True\n[]\n", finished.stderr


def test_commands_on_small_files_run_without_a_compiler(files, monkeypatch):
    import_kernels = Mock(return_value=None)
    monkeypatch.setattr("calibrant._core.kernels.dispatch.cpu_kernels", import_kernels)
    run("measure", files[0])
    assert not import_kernels.called
    monkeypatch.setattr("calibrant.cli._common.SMALL_INPUT_BYTES", 10)
    run("measure", files[0])
    assert import_kernels.called


def test_version_and_help():
    assert run_process("--version").stdout.startswith("calibrant ")
    assert "assess" in run("--help").stdout


STUDY = 'datasets = ["digits"]\nnetworks = ["resnet8(channels=1)"]\nlosses = [{}]\n{}'


def write_inputs(folder):
    z = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    y = np.arange(20) % 3
    np.savez(folder / "good.npz", logits=z, labels=y)
    np.savez(folder / "other.npz", logits=z + 1, labels=y)
    np.savez(folder / "wide.npz", logits=np.hstack([z, z]), labels=y)
    np.savez(folder / "short.npz", logits=z, labels=y[:5])
    np.savez(folder / "nan.npz", logits=np.where(z > 1, np.nan, z), labels=y)
    np.savez(folder / "probs.npz", logits=np.full((20, 2), 0.5), labels=y % 2)
    (folder / "empty.npz").touch()
    (folder / "fake.safetensors").write_bytes(b"not a calibrator")
    (folder / "key.toml").write_text(STUDY.format('"focal"', "epochs = 3"))
    (folder / "loss.toml").write_text(STUDY.format('"foccal"', ""))
    (folder / "file").touch()


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        ("assess good.npz short.npz", "shape", "(20, 3) and (5,)"),
        ("assess good.npz nan.npz", "nan", "nan.npz"),
        ("assess good.npz probs.npz", "probs_as_logits", "probs.npz"),
        ("assess good.npz empty.npz", "empty_file", "empty.npz"),
        ("assess good.npz none.npz", "no_file", "none.npz"),
        ("assess good.npz wide.npz", "num_classes", "3 and 6"),
        ("assess good.npz good.npz", "same_data", "100 %"),
        ("assess good.npz --cv 100", "folds_range", "2 .. 20"),
        ("assess good.npz other.npz -c Temprature", "unknown_method", "'Temperature'"),
        ("assess good.npz other.npz --html file/report.html", "not_writable", "file/report.html"),
        ("assess good.npz other.npz --save c.pkl", "suffix", "c.pkl"),
        ("assess good.npz other.npz --json other.npz", "output_is_input", "other.npz"),
        ("apply fake.safetensors good.npz -o out.npz", "unreadable", "fake.safetensors"),
        ("measure good.npz -c fake.safetensors", "unreadable", "fake.safetensors"),
        ("measure good.npz --of maybe", "unknown_event", "'maybe'"),
        ("measure good.npz -m eec", "unknown_method", "'ece'"),
        ("measure good.npz --stream", "pieces", "good.npz"),
        ("measure good.npz --with none.py", "no_file", "none.py"),
        ("list --with no_such_package", "import", "no_such_package"),
        ("study run key.toml", "unknown_key", "'epochs'"),
        ("study run loss.toml", "unknown_method", "'focal'"),
        ("study run none.toml", "unreadable", "none.toml"),
        ("study run nonsense", "unknown_study", "'nonsense'"),
        ("demo --out file", "not_writable", "file"),
        ("figures tocal -o f", "unknown_study", "'tocal'"),
        ("figures focal -o file/deep", "not_writable", "file/deep"),
        ("list lossess", "unknown_kind", "'lossess'"),
    ],
)
def test_refused_commands_name_the_cause_and_write_nothing(tmp_path, monkeypatch, arguments, code, named):
    if arguments.startswith(("study", "demo", "figures")):
        pytest.importorskip("torch")
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert named in refused(code, *arguments.split())
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_unwritable_folder_is_refused_first(files, tmp_path):
    if os.geteuid() == 0:
        folder = "/proc/calibrant"  # nobody can write there
    else:
        (tmp_path / "locked").mkdir(mode=0o500)
        folder = tmp_path / "locked"
    refused("not_writable", "assess", *files, "--json", f"{folder}/out.json")


@pytest.fixture
def table_path(tmp_path):
    """Write a table of percentages with labels counted from 1."""
    generator = np.random.default_rng(0)
    p = generator.random(60).round(3)
    y = (generator.random(60) < p).astype(int)
    path = tmp_path / "table.csv"
    polars.DataFrame({"truth": y + 1, "score": 100 * p, "guess": 1 + (p > 0.5), "note": ["x"] * 60}).write_csv(path)
    return path


@pytest.mark.parametrize("command", [("measure",), ("assess",), ("apply", "none.safetensors")])
def test_columns_option_only_prints_roles(table_path, command):
    output_text = succeeded(*command, table_path, "--columns", "--probs", "score", "--label", "truth")
    rows = [[part.strip() for part in line.split(maxsplit=1)] for line in output_text.splitlines()]
    assert ["truth", "label"] in rows
    assert ["note", "not used"] in rows


def test_reading_options_reach_the_table(table_path):
    options = ["--percent", "--probs", "score", "--json", "-", "-m", "accuracy"]
    left = json.loads(succeeded("measure", table_path, *options, "--positive", "2"))
    right = json.loads(succeeded("measure", table_path, *options, "--labels-from", 1))
    assert left["n"] == right["n"] == 60
    assert left["results"] == right["results"]


def test_first_class_0_reaches_the_table(tmp_path):
    path = tmp_path / "table.csv"
    scores = {f"prob_{name}": [0.2, 0.3, 0.5] for name in (1, 2, 3)}
    polars.DataFrame({"label": [1, 2, 3]} | scores | {"prob_3": [0.6, 0.4, 0.0]}).write_csv(path)
    succeeded("measure", path, "--labels-from", 1)
    refused("labels_from", "measure", path, "--labels-from", 0)


def test_command_line_starts_in_a_removed_folder(tmp_path):
    code = (
        "import os, runpy, sys; os.rmdir(os.getcwd()); sys.argv = ['calibrant', '--version']; sys.path.insert(0, '')\n"
        "runpy.run_module('calibrant', run_name='__main__')"
    )
    removed_folder = tmp_path / "gone"
    removed_folder.mkdir()
    finished = subprocess.run([sys.executable, "-c", code], cwd=removed_folder, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr


@pytest.mark.parametrize(("words", "is_training"), [("study run x", True), ("demo", True), ("study measure x", False)])
def test_a_stopped_command_says_whether_runs_are_kept(words, is_training, monkeypatch, capsys):
    def stop():
        raise SystemExit(130)

    monkeypatch.setattr(cli, "app", stop)
    monkeypatch.setattr(sys, "argv", ["calibrant", *words.split()])
    with pytest.raises(SystemExit):
        cli.main()
    assert ("start again" in capsys.readouterr().err) is is_training
