"""A built-in loss, metric or calibrator whose values change must raise its revision."""

import json
from copy import deepcopy

import golden_methods
import pytest
from doc_pages import ROOT
from golden_methods import VALUES, built_in, stale_golden

from calibrant import registry

GOLDEN = json.loads(golden_methods.FILE.read_text())
RECORDED = [(kind, name) for kind in GOLDEN for name in GOLDEN[kind]]
NEED_TORCH = {"losses", "refinement_brier", "refinement_nll"}


@pytest.fixture(autouse=True)
def _torch_where_needed(request):
    if "kind" in request.fixturenames and not NEED_TORCH.isdisjoint(request.node.callspec.params.values()):
        pytest.importorskip("torch")


@pytest.mark.usefixtures("torch")
def test_every_released_method_has_golden_values():
    """A new method has no results of an earlier version to keep, and gets its values with the release."""
    assert set(RECORDED) <= set(built_in())
    if "## [Unreleased]" not in (ROOT / "CHANGELOG.md").read_text():
        assert set(RECORDED) == set(built_in())


@pytest.mark.parametrize(("kind", "name"), RECORDED)
def test_values_change_only_with_the_revision(kind, name):
    assert stale_golden(kind, name, GOLDEN[kind][name], VALUES[kind](name)) == ""


@pytest.mark.parametrize(("kind", "name"), [("losses", "focal"), ("metrics", "ece"), ("calibrators", "Temperature")])
def test_changed_values_and_raised_revisions_make_a_record_stale(kind, name, monkeypatch):
    golden = GOLDEN[kind][name]
    changed = deepcopy(golden)
    part = "probs" if kind == "calibrators" else "values"
    changed[part][1] *= 1.0001
    assert stale_golden(kind, name, golden, changed)
    monkeypatch.setitem(registry.REGISTRIES[kind]._code_versions, name, "revision 2")
    assert stale_golden(kind, name, golden, VALUES[kind](name))


@pytest.mark.parametrize("kind", ["losses", "metrics", "calibrators"])
def test_changed_values_are_not_written_without_a_raised_revision(kind, monkeypatch, tmp_path):
    stored = deepcopy(GOLDEN)
    name = next(iter(stored[kind]))
    for part in stored[kind][name].keys() - {"code"}:
        stored[kind][name][part][0] += 0.5
    path = tmp_path / "methods.json"
    path.write_text(json.dumps(stored))
    monkeypatch.setattr(golden_methods, "FILE", path)
    monkeypatch.setattr(golden_methods, "built_in", lambda: [(kind, name)])
    with pytest.raises(SystemExit):
        golden_methods.write()
    assert json.loads(path.read_text()) == stored
    monkeypatch.setitem(registry.REGISTRIES[kind]._code_versions, name, "revision 99")
    golden_methods.write()
    assert json.loads(path.read_text())[kind][name]["code"] == "revision 99"
