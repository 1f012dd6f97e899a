"""Runs record the code of their methods: changed code trains again."""

import json
import linecache
import sys
import textwrap
from pathlib import Path
from types import ModuleType

import pytest
from refusals import refused

from calibrant import registry
from calibrant._core.registry._code_digest import code_digest
from calibrant.lab import study as studies
from calibrant.lab.study import Recipe, Run, Store, Study, stored_files
from calibrant.lab.study.datasets import DatasetCache
from calibrant.lab.study.engine import execute
from calibrant.lab.study.stored_files import read_record, serialize_record

USER_CODE = """
import torch
from calibrant import losses
from own_helpers_here import scale

FACTOR = 1.0

@losses.register
def scaled(logits, labels):
    return FACTOR * scale(torch.nn.functional.cross_entropy(logits, labels, reduction="none"))

@losses.register
def another(logits, labels):
    return logits.logsumexp(-1) - logits.gather(1, labels[:, None]).squeeze(1)
"""
HELPERS = "def scale(x):\n    return 2 * x\n"
STUDY = """
with = ["own_loss_here.py"]
datasets = ["blobs(train=60, val=40, test=50)"]
networks = ["mlp(features=2, hidden=())"]
losses = ["scaled", "focal"]
calibrators = ["Identity"]
metrics = ["error", "nll"]
recipe = {epochs = 3, batch_size = 20, milestones = []}
"""


@pytest.fixture
def project(tmp_path, monkeypatch, forgotten):
    """Return a function that runs a study of a user loss in `tmp_path` as a new process would."""
    monkeypatch.syspath_prepend(tmp_path)

    def run(source=USER_CODE, helpers=HELPERS, out="out"):
        forget()
        (tmp_path / "own_loss_here.py").write_text(source)
        (tmp_path / "own_helpers_here.py").write_text(helpers)
        (tmp_path / "study.toml").write_text(STUDY)
        steps = []
        result = studies.run(
            tmp_path / "study.toml",
            out=tmp_path / out,
            with_=[str(tmp_path / "own_loss_here.py")],
            progress=steps.append,
        )
        assert not result.failed
        kinds = {
            step.event.run.loss.name: step.event.kind for step in steps if step.event if step.event.kind != "epoch"
        }
        return result, kinds, [step.text for step in steps if step.note and not step.text.startswith("to train: ")]

    return run


def forget():
    """Forget the user's modules, as a new process does."""
    for name in "own_loss_here", "own_helpers_here":
        sys.modules.pop(name, None)
    for name in "scaled", "another":
        registry.LOSSES._methods.pop(name, None)
    registry.INCLUDED_SOURCES[:] = [place for place in registry.INCLUDED_SOURCES if "own_loss_here" not in place]


def values(result):
    return {row["loss"]: row["value"] for row in result.rows if row["metric"] == "nll"}


@pytest.mark.parametrize(
    ("source", "helpers"),
    [
        (USER_CODE.replace("return FACTOR *", "return -FACTOR *"), HELPERS),
        (USER_CODE.replace("FACTOR = 1.0", "FACTOR = 0.1"), HELPERS),
        (USER_CODE, HELPERS.replace("2 * x", "0.5 * x")),
    ],
    ids=["loss", "constant", "helper"],
)
def test_changed_code_trains_again_with_a_note(project, source, helpers):
    first, kinds, lines = project()
    assert (kinds, lines) == ({"scaled": "done", "focal": "done"}, [])
    second, kinds, lines = project(source, helpers)
    assert kinds == {"scaled": "done", "focal": "found"}
    assert len(lines) == 1
    assert "scaled" in lines[0]
    assert second.notes == tuple(lines)
    assert values(second)["scaled"] != values(first)["scaled"]
    again, kinds, lines = project()  # the first network is still stored
    assert (kinds, lines) == ({"scaled": "found", "focal": "found"}, [])
    assert values(again) == values(first)


def test_studies_of_different_code_in_one_folder_share_no_network(project, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, _, _ = project(out="runs/first")
    monkeypatch.setattr("calibrant.lab.study.api._open_study", opened_beside(tmp_path, "second"))
    second, kinds, _ = project(USER_CODE.replace("FACTOR = 1.0", "FACTOR = -1.0"), out="runs/second")
    assert kinds["scaled"] == "done"
    assert kinds["focal"] == "found"
    assert values(second)["scaled"] != values(first)["scaled"]


def opened_beside(root, name):
    """Return `_open_study` with a store in runs/ and its neighbor."""
    from calibrant.lab.study import api

    open_study = api._open_study

    def opened(*arguments, **options):
        study, _, inputs = open_study(*arguments, **options)
        return study, Store(root / "runs" / name, (root / "runs" / "first",)), inputs

    return opened


def test_a_checkpoint_of_other_code_is_not_resumed(project, tmp_path, monkeypatch):
    complete, *_ = project(USER_CODE.replace("FACTOR = 1.0", "FACTOR = 3.0"), out="whole")
    interrupt(tmp_path, monkeypatch)
    result, kinds, lines = project(USER_CODE.replace("FACTOR = 1.0", "FACTOR = 3.0"))
    assert kinds["scaled"] == "done"
    assert len(lines) == 1
    assert values(result) == values(complete)


def interrupt(tmp_path, monkeypatch):
    """Stop the run of the user loss in its second epoch."""
    monkeypatch.setattr(stored_files, "MIN_SAVE_INTERVAL_SECONDS", 0.0)
    forget()
    (tmp_path / "own_loss_here.py").write_text(USER_CODE)
    registry.include([str(tmp_path / "own_loss_here.py")])
    run = next(Study.load(tmp_path / "study.toml").runs())
    store = Store(tmp_path / "out").with_data({run.dataset: DatasetCache().digest(run.dataset).full_digest})
    going = execute(run, store)
    assert [next(going).content["epoch"] for _ in range(2)] == [1, 2]
    going.close()
    assert (store.partial(run) / "checkpoint.pt").is_file()


def test_runs_without_recorded_code_serve_only_built_in_methods(project, tmp_path):
    """Runs of version 0.2.0 have no code in their records and names."""
    project()
    for folder in (tmp_path / "out" / "runs").iterdir():
        record = read_record(folder)
        record["run"].pop("code", None)
        name = record["id"].partition("_")[0] + "." + record["id"].rpartition(".")[2]
        (folder / "run.json").write_text(serialize_record(record | {"id": name}))
        folder.rename(folder.with_name(name))
    _, kinds, lines = project()
    assert kinds == {"scaled": "done", "focal": "found"}
    assert len(lines) == 1


def test_runs_with_digests_of_an_earlier_version_are_used_with_a_note(project, tmp_path):
    """Up to version 0.3.0, digests were of syntax trees; they tell nothing about the code of today."""
    project()
    for folder in (tmp_path / "out" / "runs").iterdir():
        record = read_record(folder)
        if record["run"].pop("code", None):
            record["run"]["code"] = {"scaled": "0123456789abcdef"}
            name = record["id"].partition("_")[0] + "_cdef01." + record["id"].rpartition(".")[2]
            (folder / "run.json").write_text(serialize_record(record | {"id": name}))
            folder.rename(folder.with_name(name))
    _, kinds, lines = project(USER_CODE.replace("FACTOR = 1.0", "FACTOR = 2.0"))
    assert kinds == {"scaled": "found", "focal": "found"}
    assert len(lines) == 1
    assert "scaled" in lines[0]


def test_code_that_changes_while_a_study_runs_trains_nothing(project, tmp_path):
    project()
    run = next(Study.load(tmp_path / "study.toml").runs())
    object.__setattr__(run, "code", (("scaled", "0" * 16),))
    with refused("code_changed"):
        next(execute(run, Store(tmp_path / "out")))


def test_another_revision_of_a_built_in_method_is_another_run(tmp_path, monkeypatch):
    (tmp_path / "study.toml").write_text(STUDY.replace('with = ["own_loss_here.py"]', "").replace('"scaled", ', ""))
    study = Study.load(tmp_path / "study.toml")
    before = next(study.runs())
    assert before.code == ()
    monkeypatch.setitem(registry.LOSSES._code_versions, "focal", "revision 2")
    for text in "focal", "RegMixup(loss='focal')":
        (tmp_path / "study.toml").write_text((tmp_path / "study.toml").read_text().replace('"focal"', f'"{text}"'))
        after = next(Study.load(tmp_path / "study.toml").runs())
        assert [code for _, code in after.code] == ["revision 2"]
        assert after.id != before.id


def test_a_digest_follows_packages_and_late_imports(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "own_package_here"
    (package / "deep").mkdir(parents=True)
    files = {
        "__init__.py": "",
        "parts.py": "from . import numbers_here\ndef part(x):\n    return numbers_here.N * x\n",
        "numbers_here.py": "N = 1\n",
        "deep/late.py": "K = 1\n",
        "main.py": """
            import numpy as np
            from .parts import part
            import torch
            def method(logits, labels):
                from own_package_here.deep.late import K
                return K * part(np.sum(logits))
        """,
    }
    kinds = set()
    changes = [
        {},
        {"numbers_here.py": "N = 2\n"},
        {"deep/late.py": "K = 2\n"},
        {"parts.py": "def part(x):\n    return x\n"},
    ]
    for change in changes:
        for name, text in (files | change).items():
            (package / name).write_text(textwrap.dedent(text))
        from importlib import import_module

        kinds.add(code_digest(import_module("own_package_here.main").method))
        for name in [name for name in sys.modules if name.startswith("own_package_here")]:
            del sys.modules[name]
    assert len(kinds) == len(changes)


@pytest.mark.parametrize("has_source", [True, False])
def test_a_digest_of_a_notebook_follows_what_a_method_needs(monkeypatch, has_source):
    cells = "FACTOR = {}\ndef scale(x):\n    return {} * x\ndef method(x):\n    return {} + FACTOR * scale(x)\n"
    digests = []
    for i, numbers in enumerate(((1, 1, 1), (1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2))):
        module, source = ModuleType("own_cells_here"), cells.format(*numbers)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        if has_source:
            monkeypatch.setitem(linecache.cache, f"<cell {i}>", (len(source), None, source.splitlines(True), ""))
        exec(compile(source, f"<cell {i}>", "exec"), vars(module))
        digests.append(code_digest(module.method))
    assert digests[0] == digests[1] != digests[4]
    assert len(set(digests)) == (4 if has_source else 2)  # bytecode alone shows no values of other names


def test_a_second_method_of_one_name_in_one_file_is_refused(tmp_path, forgotten):
    path = tmp_path / "own_twice_here.py"
    definition = "@losses.register\ndef twice_here(logits, labels):\n    return {} * logits.sum(1)\n"
    path.write_text("from calibrant import losses\n" + definition.format(1) + definition.format(2))
    with refused("name_taken"):
        registry.include([str(path)])


def test_the_code_of_a_run_is_in_its_record(project, tmp_path):
    project()
    run_specs = [json.loads((f / "run.json").read_text())["run"] for f in (tmp_path / "out" / "runs").iterdir()]
    codes = {run["loss"]: run.get("code", {}) for run in run_specs}
    assert set(codes["scaled"]) == {"scaled"}
    assert next(code for loss, code in codes.items() if loss.startswith("focal")) == {}


def test_included_code_cannot_change_folder_or_exit(tmp_path, monkeypatch, forgotten):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_moving_here.py").write_text("import os\nos.chdir('/')\n")
    (tmp_path / "own_exit_here.py").write_text("import sys\nsys.exit(3)\n")
    registry.include(["own_moving_here.py"])
    assert Path.cwd() == tmp_path
    with refused("import"):
        registry.include(["own_exit_here.py"])


def test_files_beside_user_code_do_not_shadow_installed_modules(tmp_path, monkeypatch, forgotten):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "polars.py").write_text("raise RuntimeError('of the folder')\n")
    (tmp_path / "own_beside_here.py").write_text("K = 1\n")
    (tmp_path / "own_importing_here.py").write_text("import polars\nfrom own_beside_here import K\n")
    registry.include([str(tmp_path / "own_importing_here.py")])


class Entry:
    def __init__(self, value, load):
        self.value, self.load, self.dist = value, load, None


@pytest.mark.parametrize(("name", "code"), [("focal", "name_taken"), ("broken_here", "entry_point")])
def test_entry_points_that_are_broken_or_take_a_name_are_refused(monkeypatch, forgotten, name, code):
    def unrelated(logits, labels):
        return logits.sum(1)

    def fails():
        raise ImportError("no such thing\nat all")

    load = fails if name == "broken_here" else lambda: unrelated
    monkeypatch.setitem(registry.LOSSES.__dict__, "_entry_points", {name: Entry("some.package:loss", load)})
    monkeypatch.setitem(registry.LOSSES.__dict__, "_loaded_entry_points", set())
    with refused(code):
        registry.LOSSES.method(name)
    assert registry.LOSSES.method("brier").name == "brier"


def test_trace_that_was_not_recorded_is_not_changed_code(tmp_path, forgotten, calibrated_predictions):
    @registry.TRACES.register
    def mine(watched):
        return {}

    untraced, traced = (Run("digits", "resnet8", "focal", 0, Recipe(), traces=names) for names in ((), ("mine",)))
    store = Store(tmp_path)
    store.save(untraced, {"val": calibrated_predictions, "test": calibrated_predictions}, {})
    assert store.code_change(traced) == ""
