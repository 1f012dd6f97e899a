"""Published results belong to the code: changed recipes, losses, metrics and calibrators make them stale."""

import json
from pathlib import Path

import pytest

from calibrant import registry
from calibrant.lab.study import Study
from calibrant.lab.study.config import STUDIES_FOLDER
from calibrant.lab.study.results import made_with

RESULTS = Path(__file__).parents[3] / "docs" / "results"
RECORDS = sorted(RESULTS.glob("*/made_with.json"))


def load(record):
    name, _, scale = record["study"].rpartition("-")
    return Study.load(name, scale).with_precision(record["precision"])


def stale_parts(record, study):
    """Return in words what the study would now train or evaluate otherwise than in a record of `made_with`."""
    planned = made_with(study, study.runs())
    return [*_differences(record["runs"], planned["runs"]), *_differences(record["revisions"], planned["revisions"])]


def _differences(stored, planned):
    for key, text in planned.items():
        if key not in stored:
            yield f"missing: {key}, {text}"
        elif stored[key] != text:
            yield f"changed: {key}, {stored[key]}; now {text}"
    yield from (f"no longer made: {key}, {text}" for key, text in stored.items() if key not in planned)


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.parent.name)
def test_published_results_are_those_of_the_code(path):
    record = json.loads(path.read_text())
    assert stale_parts(record, load(record)) == [], "train or measure the study again, and rewrite its page"


def test_every_folder_of_results_has_a_record():
    assert {path.parent for path in RECORDS} == {path.parent for path in RESULTS.glob("*/tables.csv")}


@pytest.fixture
def study():
    return Study.load("mukhoti_2020", "small")


def test_results_of_the_same_study_are_not_stale(study):
    record = json.loads(json.dumps(made_with(study, study.runs())))
    assert stale_parts(record, Study.load("mukhoti_2020", "small")) == []


@pytest.mark.parametrize(
    ("registry_name", "method", "expected"),
    [("LOSSES", "brier", "brier"), ("METRICS", "ece", "changed: ece"), ("CALIBRATORS", "Temperature", "Temperature(")],
)
def test_raised_revision_makes_results_stale(study, monkeypatch, registry_name, method, expected):
    record = made_with(study, study.runs())
    monkeypatch.setitem(getattr(registry, registry_name)._code_versions, method, "revision 2")
    parts = stale_parts(record, Study.load("mukhoti_2020", "small"))
    assert any(expected in part for part in parts)


def test_other_precision_makes_results_stale(study):
    record = made_with(study, study.runs())
    assert record["precision"] == "32-true"
    changed = study.with_precision("bf16-mixed")
    assert made_with(changed, changed.runs())["precision"] == "bf16-mixed"
    assert len(stale_parts(record, changed)) == 2 * len(list(study.runs()))


def test_changed_recipe_makes_results_stale(study, tmp_path):
    text = (STUDIES_FOLDER / "mukhoti_2020.toml").read_text()
    path = tmp_path / "mukhoti_2020.toml"
    path.write_text(text.replace("epochs = 30, batch_size = 64", "epochs = 31, batch_size = 64"))
    record, changed = made_with(study, study.runs()), Study.load(path, "small")
    assert len(stale_parts(record, changed)) == 2 * len(list(study.runs()))
